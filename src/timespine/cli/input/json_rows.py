"""Read rows from JSON: one object per line, or one array of objects. Errors name the line."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa

from timespine.cli.error_wording import reword
from timespine.cli.input.find_wrong_row import find_first_wrong_row, without_row
from timespine.cli.input.rereadable_input import RereadableInput
from timespine.cli.input.value_codec import from_json
from timespine.columnar.ingest.cast import cast_column
from timespine.columnar.ingest.to_arrow import to_arrow
from timespine.columnar.schema.schema import Schema
from timespine.errors import UsageError, short_repr

_FAILURES = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_one = msgspec.json.Decoder(dict[str, Any], float_hook=Decimal)
_many = msgspec.json.Decoder(list[msgspec.Raw])


def read_json(source: RereadableInput, schema: Schema) -> pa.Table:
    """Read all rows; every one must have the key columns, if the collection has any."""
    needed = schema.key_names if schema.key else ()
    types = {**schema.types, **dict.fromkeys(schema.system_names, pa.int64())}
    converts = {name: from_json(type) for name, type in types.items()}
    rows, places = [], []
    for place, row in _objects(source.bytes()):
        for name in needed:
            if name not in row:
                raise UsageError(f"{place}: there is no {short_repr(name)}, which is part of the key")
        for name, convert in converts.items():
            if name in row:
                try:
                    row[name] = convert(row[name])
                except UsageError as error:
                    raise UsageError(f"{place}: column {short_repr(name)} {error}") from None
        rows.append(row)
        places.append(place)
    try:
        return _table(rows, schema)
    except UsageError:
        wrong = find_first_wrong_row(rows, lambda some: _table(some, schema))
        if wrong is None:
            raise
        number, why = wrong
        raise reword(why, f"{places[number]}: {without_row(why)}") from None


def _table(rows: Sequence[dict[str, Any]], schema: Schema) -> pa.Table:
    table = to_arrow(rows, schema)
    columns = [
        cast_column(name, table.column(name), schema.types[name]) if name in schema.types else table.column(name)
        for name in table.column_names
    ]
    return pa.table(columns, names=table.column_names) if columns else table


def _objects(data: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    """List the objects, each with its place."""
    for place, text in _texts(data.removeprefix(b"\xef\xbb\xbf")):
        try:
            row = _one.decode(text)
            _check_names(text, len(row), place)
        except _FAILURES as error:
            raise UsageError(f"{place} is not a JSON object: {error}") from None
        yield place, row


def _texts(data: bytes) -> Iterator[tuple[str, bytes]]:
    if data.lstrip()[:1] != b"[":
        for number, line in enumerate(io.BytesIO(data), 1):
            if line.strip():
                yield f"line {number}", line
        return
    try:
        pieces = _many.decode(data)
    except _FAILURES as error:
        raise UsageError(f"the JSON is not an array of objects: {error}") from None
    for number, piece in enumerate(pieces, 1):
        yield f"object {number}", bytes(piece)


def _check_names(text: bytes, names: int, place: str) -> None:
    """Refuse an object with a repeated name.

    Every name has a colon, also a repeated one. If there are as many colons as distinct names, no name
    is repeated. If there are more, which may be in texts or nested objects, parse the object again.
    """
    if text.count(b":") == names:
        return

    def check(pairs: list[tuple[str, Any]]) -> None:
        seen = set()
        for name, _ in pairs:
            if name in seen:
                raise UsageError(f"{place}: {short_repr(name)} is repeated")
            seen.add(name)

    json.loads(text.decode(), object_pairs_hook=check, parse_int=len, parse_float=len, strict=False)

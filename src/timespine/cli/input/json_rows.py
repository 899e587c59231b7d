"""Rows out of JSON: one object per line, or one array of objects. What is wrong is told with its line."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa

from timespine.cli.hints import reword
from timespine.cli.input.row_errors import first_wrong, without_row
from timespine.cli.input.source import Source
from timespine.cli.input.values import from_json
from timespine.columnar.ingest.cast import cast_column
from timespine.columnar.ingest.to_arrow import to_arrow
from timespine.columnar.schema.schema import Schema
from timespine.errors import UsageError, shown

_FAILURES = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_one = msgspec.json.Decoder(dict[str, Any], float_hook=Decimal)
_many = msgspec.json.Decoder(list[msgspec.Raw])


def read_json(source: Source, schema: Schema) -> pa.Table:
    """All rows; every one must have the key columns, if the collection has any."""
    needed = schema.key_names if schema.key else ()
    types = {**schema.types, **dict.fromkeys(schema.system_names, pa.int64())}
    converts = {name: from_json(type) for name, type in types.items()}
    rows, places = [], []
    for place, row in _objects(source.bytes()):
        for name in needed:
            if name not in row:
                raise UsageError(f"{place}: there is no {shown(name)}, which is part of the key")
        for name, convert in converts.items():
            if name in row:
                try:
                    row[name] = convert(row[name])
                except UsageError as error:
                    raise UsageError(f"{place}: column {shown(name)} {error}") from None
        rows.append(row)
        places.append(place)
    try:
        return _table(rows, schema)
    except UsageError:
        wrong = first_wrong(rows, lambda some: _table(some, schema))
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
    """The objects, each with the place that it has."""
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
    """Refuse an object that names something twice: which one is meant?

    There is a colon for every name, also for one that is there twice. If there are no more colons than
    names were found, nothing was. If there are, in texts or objects inside, it is looked at more closely.
    """
    if text.count(b":") == names:
        return

    def check(pairs: list[tuple[str, Any]]) -> None:
        seen = set()
        for name, _ in pairs:
            if name in seen:
                raise UsageError(f"{place}: {shown(name)} is there twice")
            seen.add(name)

    json.loads(text.decode(), object_pairs_hook=check, parse_int=len, parse_float=len, strict=False)

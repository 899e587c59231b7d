"""Rows out of files: CSV, JSON lines, Parquet. Types are those of the collection; nothing is guessed."""

from __future__ import annotations

import enum
import io
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

from timespine.cli.values import Convert, decode_json, from_json
from timespine.columnar.intake import to_arrow
from timespine.columnar.schema import Schema
from timespine.columnar.types import is_nested
from timespine.errors import UsageError, shown

STDIN = "-"


class FileFormat(enum.StrEnum):
    """What a file of rows looks like."""

    csv = "csv"
    json = "json"
    parquet = "parquet"


_ENDINGS = {
    ".csv": FileFormat.csv,
    ".json": FileFormat.json,
    ".jsonl": FileFormat.json,
    ".ndjson": FileFormat.json,
    ".parquet": FileFormat.parquet,
    ".pq": FileFormat.parquet,
}


def read_rows(file: str, given: FileFormat | None, schema: Schema) -> pa.Table:
    """All rows of a file, or of standard input."""
    kind = given or _ENDINGS.get(Path(file).suffix.lower())
    if kind is None:
        where = "standard input" if file == STDIN else shown(file)
        raise UsageError(f"{where} does not say what it holds: add --format csv, json or parquet")
    if file == STDIN:
        return _READERS[kind](sys.stdin.buffer, schema)
    path = Path(file)
    if not path.is_file():
        raise UsageError(f"there is no file {file}")
    with path.open("rb") as opened:
        return _READERS[kind](opened, schema)


def _read_csv(stream: BinaryIO, schema: Schema) -> pa.Table:
    types = {**schema.types, **dict.fromkeys(schema.system_names, pa.int64())}
    odd = {name: type for name, type in types.items() if is_nested(type) or pa.types.is_binary(type)}
    try:
        table = csv.read_csv(
            stream,
            # Of a single column, an empty line is a null; of several, it is nothing.
            parse_options=csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=len(schema.names) > 1),
            convert_options=csv.ConvertOptions(
                column_types={**types, **dict.fromkeys(odd, pa.string())},
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise UsageError(f"the CSV cannot be read: {error}") from None
    for name, type in odd.items():
        if name in table.column_names:
            values = _converted(table.column(name).to_pylist(), name, type, is_text=is_nested(type))
            column = to_arrow([{name: value} for value in values], schema).column(0)
            table = table.set_column(table.column_names.index(name), name, column)
    return table


def _converted(texts: list[str | None], name: str, type: pa.DataType, *, is_text: bool) -> list[Any]:
    """Cells that CSV has no form for: the text of a list or struct, or base64."""
    convert = from_json(type)
    values = []
    for number, text in enumerate(texts, 1):
        try:
            value = decode_json(text) if is_text and text is not None else text
            values.append(convert(value))
        except msgspec.MsgspecError:
            raise UsageError(f"row {number}: column {shown(name)} is not the JSON of a {type}") from None
        except UsageError as error:
            raise UsageError(f"row {number}: column {shown(name)} {error}") from None
    return values


def _read_json(stream: BinaryIO, schema: Schema) -> pa.Table:
    types = {**schema.types, **dict.fromkeys(schema.system_names, pa.int64())}
    converts = {name: from_json(type) for name, type in types.items()}
    rows = []
    for number, row in _objects(stream.read()):
        for name, convert in converts.items():
            if name in row:
                row[name] = _value(row[name], convert, name, number)
        rows.append(row)
    return to_arrow(rows, schema)


def _objects(data: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of JSON lines, or of one array of them, each with its number."""
    data = data.removeprefix(b"\xef\xbb\xbf")
    one = msgspec.json.Decoder(dict[str, Any], float_hook=Decimal)
    if data.lstrip()[:1] == b"[":
        try:
            yield from enumerate(msgspec.json.Decoder(list[dict[str, Any]], float_hook=Decimal).decode(data), 1)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise UsageError(f"the JSON is not an array of objects: {error}") from None
        return
    for number, line in enumerate(io.BytesIO(data), 1):
        if line.strip():
            try:
                yield number, one.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise UsageError(f"line {number} is not a JSON object: {error}") from None


def _value(value: Any, convert: Convert, name: str, number: int) -> Any:
    try:
        return convert(value)
    except UsageError as error:
        raise UsageError(f"line {number}: column {shown(name)} {error}") from None


def _read_parquet(stream: BinaryIO, schema: Schema) -> pa.Table:
    try:
        with pq.ParquetFile(stream if stream.seekable() else io.BytesIO(stream.read())) as file:
            return file.read()
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"the Parquet file cannot be read: {error}") from None


_READERS = {FileFormat.csv: _read_csv, FileFormat.json: _read_json, FileFormat.parquet: _read_parquet}

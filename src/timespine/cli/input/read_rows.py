"""Read rows from files: CSV, JSON lines, Parquet. Types are those of the collection, never inferred."""

from __future__ import annotations

import enum
from pathlib import Path

import pyarrow as pa

from timespine.cli.error_wording import error_text, reword
from timespine.cli.input.csv_rows import read_csv
from timespine.cli.input.find_wrong_row import first_line_number
from timespine.cli.input.json_rows import read_json
from timespine.cli.input.rereadable_input import STDIN, RereadableInput
from timespine.columnar.ingest.cast import cast_column
from timespine.columnar.ingest.to_arrow import check_names
from timespine.columnar.schema.schema import Schema
from timespine.errors import UsageError, short_repr
from timespine.libraries import pq


class FileFormat(enum.StrEnum):
    """The format of a file of rows."""

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
    """Read all rows of a file, or of standard input. They must have the key columns, if the collection has any."""
    kind = given or _ENDINGS.get(Path(file).suffix.lower())
    if kind is None:
        where = "standard input" if file == STDIN else file
        raise UsageError(f"{where} has no known suffix: add --format csv, json or parquet")
    source = RereadableInput(file)
    try:
        return _read(source, kind, schema)
    except UsageError as error:
        raise reword(error, f"{source.name}: {error_text(error)}") from None


def _read(source: RereadableInput, kind: FileFormat, schema: Schema) -> pa.Table:
    if kind is FileFormat.json:
        return read_json(source, schema)
    table = read_csv(source, schema) if kind is FileFormat.csv else _read_parquet(source, schema)
    check_names(table.column_names, schema, schema.system_names)
    missing = next((name for name in schema.key_names if name not in table.column_names), None)
    if schema.key and missing is not None:
        raise UsageError(f"there is no column {short_repr(missing)}, which is part of the key")
    return table


def _read_parquet(source: RereadableInput, schema: Schema) -> pa.Table:
    try:
        with pq.ParquetFile(source.arrow()) as file:
            table = file.read()
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"the Parquet file cannot be read: {error}") from None
    check_names(table.column_names, schema, schema.system_names)
    try:
        for place, name in enumerate(table.column_names):
            if name in schema.types:
                table = table.set_column(place, name, cast_column(name, table.column(name), schema.types[name]))
    except UsageError as error:
        raise reword(error, first_line_number(1, error)) from None
    return table

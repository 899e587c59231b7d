"""Read rows from CSV. Errors name the line; the header is line 1."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.csv as csv

from timespine.cli.error_wording import reword
from timespine.cli.input.find_wrong_row import find_first_wrong_row, header_of, line_of, without_row
from timespine.cli.input.rereadable_input import RereadableInput
from timespine.cli.input.value_codec import decode_json, from_json
from timespine.columnar.ingest.to_arrow import to_arrow
from timespine.columnar.schema.schema import Schema
from timespine.columnar.schema.types import is_nested, type_name
from timespine.errors import UsageError, short_repr

BLOCK_BYTES = 1 << 20
"""The bytes that Arrow parses at once. A row must fit, so the reader enlarges them if one does not."""

BLOCK_BYTES_MAX = 1 << 30

_FAILURES = (pa.ArrowException, UnicodeDecodeError)
_PLACE = re.compile(r"^(?:CSV parse error: )?(?:In CSV column #\d+: )?(?:Row #(?P<row>\d+): )?")
_COLUMN = re.compile(r"In CSV column #(\d+): ")


def read_csv(source: RereadableInput, schema: Schema) -> pa.Table:
    """Read all rows of a CSV."""
    types = {**schema.types, **dict.fromkeys(schema.system_names, pa.int64())}
    odd = {name: type for name, type in types.items() if is_nested(type) or pa.types.is_binary(type)}
    read = _Csv(source, {**types, **dict.fromkeys(odd, pa.string())}, single=len(schema.names) == 1)
    table = read.table()
    for name, type in odd.items():
        if name in table.column_names:
            column = _convert_cells(read, table.column(name).to_pylist(), name, type, schema)
            table = table.set_column(table.column_names.index(name), name, column)
    return table


class _Csv:
    """A CSV that can be read again, to find an error."""

    def __init__(self, source: RereadableInput, types: dict[str, pa.DataType], *, single: bool) -> None:
        self._source = source
        self._types = types
        self._single = single
        """Open a CSV. With a single column, an empty line is a null; with several, it is skipped."""

    def table(self) -> pa.Table:
        """Read all rows."""
        block = BLOCK_BYTES
        while True:
            try:
                return self._read(block, threads=True)
            except _FAILURES as error:
                if "straddling" not in str(error) or block >= BLOCK_BYTES_MAX:
                    raise self._locate_error(error, block) from None
            block *= 32

    def line(self, record: int) -> str:
        """Name the line of a record, for a message. The header is the first record."""
        with self._source.text() as lines:
            line = line_of(lines, record, empty_counts=self._single)
        return f"line {line}" if line is not None else f"row {record - 1}"

    def _read(self, block: int, *, threads: bool) -> pa.Table:
        return csv.read_csv(
            self._source.arrow(),
            csv.ReadOptions(use_threads=threads, block_size=block),
            csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=not self._single),
            csv.ConvertOptions(
                column_types=self._types,
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )

    def _locate_error(self, error: Exception, block: int) -> UsageError:
        """Describe an error with line and column. Arrow reports the row only to a reader with one thread."""
        try:
            self._read(block, threads=False)
        except _FAILURES as again:
            error = again
        text = str(error)
        found = _PLACE.match(text)
        if found is None or found["row"] is None:
            return UsageError(f"the CSV cannot be read: {text}")
        column = _COLUMN.search(text)
        named = f"column {short_repr(self._name(int(column[1])))}: " if column else ""
        return UsageError(f"{self.line(int(found['row']))}: {named}{text[found.end() :]}")

    def _name(self, place: int) -> str:
        with self._source.text() as lines:
            return header_of(lines)[place]


def _convert_cells(
    read: _Csv, texts: list[str | None], name: str, type: pa.DataType, schema: Schema
) -> pa.ChunkedArray:
    """Convert cells without a CSV form: the text of a list or struct, or base64."""
    convert = from_json(type)
    values: list[dict[str, Any]] = []
    for number, text in enumerate(texts, 2):
        try:
            value = decode_json(text) if is_nested(type) and text is not None else text
            values.append({name: convert(value)})
        except (msgspec.MsgspecError, RecursionError):
            raise UsageError(
                f"{read.line(number)}: column {short_repr(name)} is not the JSON of a {type_name(type)}"
            ) from None
        except UsageError as error:
            raise UsageError(f"{read.line(number)}: column {short_repr(name)} {error}") from None
    try:
        return to_arrow(values, schema).column(0)
    except UsageError:
        wrong = find_first_wrong_row(values, lambda some: to_arrow(some, schema))
        if wrong is None:
            raise
        place, why = wrong
        raise reword(why, f"{read.line(place + 2)}: {without_row(why)}") from None

"""Write the result of a verb: a stream of rows, a table or a document, as text, JSON, CSV or Parquet."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import msgspec
import pyarrow as pa
import pyarrow.csv as csv
from rich.console import Console
from rich.text import Text

from timespine.cli.error_report import ResultNotWritten, message
from timespine.cli.input.value_codec import to_flat, to_rows
from timespine.cli.output.destination import Destination, OutputFormat, OutputStream
from timespine.cli.output.format_text import SAMPLE_ROWS, Columns, one_line, type_text
from timespine.libraries import pq

# Rows.


class RowWriter(Protocol):
    """A writer of rows in one format."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Write some rows."""

    def close(self) -> None:
        """Finish the output after the last row."""


def write_rows(
    where: Destination,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    *,
    limit: int | None = None,
    told: Callable[[int], None] | None = None,
) -> int:
    """Write a stream of rows in bounded memory; return their number."""
    rows = 0
    with where.open() as stream:
        writer = writer_for(where, stream, schema)
        for batch in _limit_rows(batches, limit):
            writer.write(batch)
            rows += batch.num_rows
            if told is not None:
                told(rows)
        writer.close()
    return rows


def writer_for(where: Destination, stream: OutputStream, schema: pa.Schema) -> RowWriter:
    """Make the writer of a format."""
    plain = pa.schema([field.remove_metadata() for field in schema])
    if where.format is OutputFormat.json:
        return JsonRows(stream)
    if where.format is OutputFormat.csv:
        return CsvRows(stream, plain)
    if where.format is OutputFormat.parquet:
        return ParquetRows(stream, plain)
    return TextRows(stream, plain, where)


def _limit_rows(batches: Iterable[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    left = limit
    if left == 0:
        return
    for batch in batches:
        if left is None:
            yield batch
            continue
        yield batch.slice(0, left)
        left -= min(left, batch.num_rows)
        if left == 0:
            return


class JsonRows:
    """A writer of one JSON object per line."""

    def __init__(self, stream: OutputStream) -> None:
        self._stream = stream

    def write(self, batch: pa.RecordBatch) -> None:
        self._stream.write(_encoder.encode_lines(to_rows(batch)))

    def close(self) -> None:
        return None


class CsvRows:
    """A writer of comma-separated values, with the names of the columns in the first line."""

    def __init__(self, stream: OutputStream, schema: pa.Schema) -> None:
        self._stream = stream
        self._put(pa.RecordBatch.from_pylist([], schema=schema), header=True)

    def write(self, batch: pa.RecordBatch) -> None:
        self._put(batch, header=False)

    def close(self) -> None:
        return None

    def _put(self, batch: pa.RecordBatch, *, header: bool) -> None:
        # Write into memory first, because Arrow would close the stream.
        buffer = io.BytesIO()
        csv.write_csv(to_flat(batch), buffer, csv.WriteOptions(include_header=header, quoting_style="needed"))
        self._stream.write(buffer.getvalue())


class ParquetRows:
    """A writer of a Parquet file."""

    def __init__(self, stream: OutputStream, schema: pa.Schema) -> None:
        self._schema = schema
        self._writer = pq.ParquetWriter(_Counting(stream), schema, compression="zstd")

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=self._schema))

    def close(self) -> None:
        self._writer.close()


class TextRows:
    """A writer of aligned columns of text; the first rows decide their widths."""

    def __init__(self, stream: OutputStream, schema: pa.Schema, where: Destination) -> None:
        self._stream = stream
        self._names = schema.names
        self._where = where
        self._columns: Columns | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        rows = [list(row.values()) for row in to_rows(batch)]
        if self._columns is None:
            self._begin(rows[:SAMPLE_ROWS])
        assert self._columns is not None
        self.line("\n".join(map(self._columns.row, rows)))

    def line(self, text: str) -> None:
        """Write a line that is no row."""
        if text:
            self._stream.write(f"{text}\n".encode(self._where.encoding, "backslashreplace"))

    def close(self) -> None:
        if self._columns is None:
            self._begin([])

    def _begin(self, sample: Sequence[Sequence[Any]]) -> None:
        self._columns = Columns(self._names, sample, cut=self._where.is_terminal)
        self.line(_bold(self._columns.head()) if self._where.is_terminal else self._columns.head())


class _Counting:
    """A stream that counts its bytes for Parquet, since a pipe has no position."""

    closed = False

    def __init__(self, stream: OutputStream) -> None:
        self._stream = stream
        self._written = 0

    def write(self, data: Any) -> int:
        self._stream.write(data)
        self._written += len(data)
        return len(data)

    def tell(self) -> int:
        return self._written

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        return None

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


# Tables and documents, which are small.


def write_table(where: Destination, names: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    """Write a small table: as JSON it is one array."""
    if where.format is OutputFormat.json:
        write_document(where, rows, lambda: "")
        return
    table = pa.table({name: pa.array(_of_one_type([_cell(name, row.get(name)) for row in rows])) for name in names})
    write_rows(where, table.schema, table.to_batches())


def _of_one_type(cells: list[Any]) -> list[Any]:
    """Make all cells of a column text if one of them is: a column may have frontiers and plain times."""
    if any(isinstance(cell, str) for cell in cells):
        return [cell if cell is None or isinstance(cell, str) else str(cell) for cell in cells]
    return cells


def write_document(where: Destination, value: Any, text: Callable[[], str]) -> None:
    """Write a document, as JSON or as text."""
    if where.format is OutputFormat.json:
        data = msgspec.json.format(_encoder.encode(value), indent=2) + b"\n"
    else:
        data = text().encode(where.encoding, "backslashreplace")
    with where.open() as stream:
        stream.write(data)


def write_done(where: Destination, value: Any, text: Callable[[], str]) -> None:
    """Write the result of a verb that changed something. If that fails, the error contains the text of the result."""
    with done_document(text):
        write_document(where, value, text)


@contextmanager
def done_document(text: Callable[[], str]) -> Iterator[None]:
    """Turn an error in this block, which writes the result of a change, into one that contains the result."""
    try:
        yield
    except OSError as error:
        raise ResultNotWritten(
            f"this was done: {one_line(text())}; but it could not be written to {message(error)}"
        ) from error


def _cell(name: str, value: Any) -> Any:
    if name in _FRONTIERS and isinstance(value, list):
        return type_text(value)
    return msgspec.json.encode(value).decode() if isinstance(value, list | dict | tuple) else value


_FRONTIERS = frozenset({"lower", "upper", "since"})
"""The columns of tables with frontiers, which are written as a user types them."""


def _bold(text: str) -> str:
    """Make text bold, if the terminal can show it."""
    console = Console(highlight=False, soft_wrap=True)
    with console.capture() as captured:
        console.print(Text(text, style="bold"), end="")
    return captured.get()


_encoder = msgspec.json.Encoder()

"""Rows that live in the state itself: without their schema, in as few bytes as possible.

    00 message                   an Arrow record batch: the message as it is
    01 length message            4 bytes of length, least significant first, and the message compressed with zstd
    02 columns                   a few rows as MessagePack, decoded thousands at a time (`inline_msgpack`)

The message is that of the Arrow IPC format, encapsulated: a flatbuffer that says
where in the body the buffers of each column lie, and the body. The schema is that
of the run, so it is not repeated. Arrow's own way of compressing (buffer by buffer)
is not used: it costs 8 bytes per buffer and leaves the flatbuffer and the padding
alone, which are most of a small batch.

The bytes come out of a state that passed its checksum, and are not trusted: sizes
are checked before anything is allocated, and what is decoded is validated in full.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec
import pyarrow as pa

from timespine.columnar.parts.inline_msgpack import decode_columns, encode_columns
from timespine.columnar.parts.part_footer import hash_of
from timespine.columnar.parts.part_stats import PartMeta, describe_updates, diff_sum_of
from timespine.columnar.schema.schema import DIFF, Schema
from timespine.config import Config
from timespine.core.batch import Part
from timespine.errors import CorruptionError, UsageError
from timespine.libraries import pc

MESSAGE_BYTES_MAX = 1 << 20
"""The largest message that is compressed, and so the most that a few bytes can claim to expand to."""

INLINE_RATIO = 16
"""Rows of this many times the size of an inline part are tried: they may be compressed to fit."""

MARK_BYTES = 8
"""Bytes by which inline data that was built by hand says which collection it is for."""

_PLAIN, _ZSTD, _COLUMNS = 0, 1, 2
_LENGTH = struct.Struct("<I")
_CODEC = "zstd"

# Places in the flatbuffer of a message, see Message.fbs of the Arrow format.
_U16, _I32, _U32, _I64 = (struct.Struct(code) for code in ("<H", "<i", "<I", "<q"))
_PREFIX = struct.Struct("<Ii")
_CONTINUATION = 0xFFFFFFFF
_HEADER_TYPE, _HEADER = 1, 2
_RECORD_BATCH = 3
_BATCH_LENGTH, _BATCH_NODES, _BATCH_BUFFERS, _BATCH_COMPRESSION = 0, 1, 2, 3


class InlineRule(NamedTuple):
    """Decides which rows live in the state itself, and makes parts of them."""

    limit: int
    """Bytes of an inline part, at most."""
    room: int
    """Bytes that the state has room for."""
    describe: Callable[[pa.Table], bytes] | None = None
    """Gives the `meta` of a part. Most have none: it would take as much room as the rows, which are at hand."""

    def may_fit(self, table: pa.Table) -> bool:
        """Tell whether rows are so few that it is worth encoding them."""
        return bool(table.nbytes <= INLINE_RATIO * self.limit)

    def part_of(self, table: pa.Table) -> Part | None:
        """Make an inline part of a sorted table; None if it is too large."""
        if not self.may_fit(table):
            return None
        data = encode_inline(table)
        if len(data) > self.limit or len(data) > self.room:
            return None
        meta = self.describe(table) if self.describe is not None else b""
        return Part("", table.num_rows, len(data), diff_sum_of(table), data, meta=meta)


def describe_inline(table: pa.Table, schema: Schema, collection: str, config: Config) -> bytes:
    """Describe the rows of an inline part that was built by hand, and say which collection it is for."""
    # No statistics of columns: they would take as much room in the state as the rows.
    meta = describe_updates(table, schema, sorted=True, budget=0, bound_bytes=config.bound_bytes)
    return msgspec.structs.replace(meta, tail_hash=_mark(collection)).encode()


def is_inline_of(part: Part, collection: str) -> bool:
    """Tell whether inline data was built for this collection. A blob says so by its key; this has none."""
    return bool(part.meta) and PartMeta.decode(part.meta).tail_hash == _mark(collection)


def _mark(collection: str) -> bytes:
    return hash_of(collection.encode())[:MARK_BYTES]


def encode_inline(table: pa.Table) -> bytes:
    """Return the rows of an update table as inline data. Whether that is small enough, the caller sees by its
    length."""
    columns = encode_columns(table)
    if columns is not None:
        return bytes((_COLUMNS,)) + columns
    batches = table.combine_chunks().to_batches()
    if len(batches) > 1:
        raise UsageError(f"{table.num_rows} rows of {table.nbytes} bytes are too much for one inline batch")
    batch = batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)
    message = batch.serialize()
    if message.size <= MESSAGE_BYTES_MAX:
        compressed: bytes = pa.Codec(_CODEC, compression_level=1).compress(message, asbytes=True)
        if len(compressed) + _LENGTH.size < message.size:
            return bytes((_ZSTD,)) + _LENGTH.pack(message.size) + compressed
    plain: bytes = message.to_pybytes()
    return bytes((_PLAIN,)) + plain


def decode_inline(data: bytes, schema: Schema, rows: int, config: Config) -> pa.Table:
    """Return the update table that was encoded under this schema, or a CorruptionError."""
    return decode_together([(data, rows)], schema, config)


def decode_together(encoded: Sequence[tuple[bytes, int]], schema: Schema, config: Config) -> pa.Table:
    """Return the rows of some inline parts, given with their number, in any order; or a CorruptionError.

    What is checked of each, and what of all at once, makes no difference: one that is damaged fails all of them.
    """
    together = f"{len(encoded)} inline parts of {sum(len(data) for data, _ in encoded)} bytes"
    columns = [each for each in encoded if each[0][:1] == bytes((_COLUMNS,))]
    batches = []
    if columns:
        _check_size(max(len(data) for data, _ in columns), config)
        views = [memoryview(data)[1:] for data, _ in columns]
        batches.append(decode_columns(views, [rows for _, rows in columns], schema))
    if len(columns) < len(encoded):
        others = [each for each in encoded if each[0][:1] != bytes((_COLUMNS,))]
        batches.extend(_record_batch(data, schema, rows, config) for data, rows in others)
    table = pa.Table.from_batches(batches, schema=schema.update_arrow)
    try:
        table.validate(full=True)
    except (pa.ArrowException, ValueError) as error:
        # Not in words: what Arrow says may repeat a value.
        raise CorruptionError(f"{together} are not valid Arrow record batches") from error
    check_decoded_updates(table, schema, together)
    return table


def _record_batch(data: bytes, schema: Schema, rows: int, config: Config) -> pa.RecordBatch:
    """Return the record batch of one part. Its values are not validated yet."""
    return read_message(pa.py_buffer(_message(data, config)), schema.update_arrow, rows, "inline data")


def read_message(message: pa.Buffer, shape: pa.Schema, rows: int, what: str) -> pa.RecordBatch:
    """Read a record batch of that shape and number of rows without a copy. Its values are not validated yet."""
    if _shape(memoryview(message)) != (rows, *_nodes_and_buffers(shape)):
        raise CorruptionError(f"{what} of {message.size} bytes does not hold {rows} rows of its schema")
    try:
        return pa.ipc.read_record_batch(message, shape)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise CorruptionError(f"{what} of {message.size} bytes is not an Arrow record batch") from error


def _check_size(size: int, config: Config) -> None:
    if size > config.object_bytes_max:
        raise CorruptionError(f"inline data has {size} bytes, more than {config.object_bytes_max}")


def check_decoded_updates(table: pa.Table, schema: Schema, what: str) -> None:
    """Raise a CorruptionError unless the times and diffs that a decoded table has are those of updates."""
    for name in (*schema.time_names, DIFF):
        if name not in table.column_names:
            continue
        column = table.column(name)
        if column.null_count:
            raise CorruptionError(f"{what} has a row without {name}")
        if name != DIFF and table.num_rows and pc.min(column).as_py() < 0:
            raise CorruptionError(f"{what} has a time before 0")


def _message(data: bytes, config: Config) -> bytes:
    """Return the message, with a bound on what it takes before it is there."""
    _check_size(len(data), config)
    kind = data[0] if data else None
    if kind == _PLAIN:
        return data[1:]
    if kind != _ZSTD or len(data) < 1 + _LENGTH.size:
        raise CorruptionError(f"inline data of {len(data)} bytes is of no known kind")
    (size,) = _LENGTH.unpack_from(data, 1)
    if size > MESSAGE_BYTES_MAX:
        raise CorruptionError(f"inline data of {len(data)} bytes claims to be {size} bytes, over {MESSAGE_BYTES_MAX}")
    try:
        message: bytes = pa.decompress(data[1 + _LENGTH.size :], size, codec=_CODEC, asbytes=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptionError(f"inline data of {len(data)} bytes cannot be decompressed") from error
    return message


def _shape(message: memoryview) -> tuple[int, int, int]:
    """Return rows, nodes and buffers that a message says it has, if it is one of ours: a record batch, not compressed.

    SUBTLE: Arrow would decompress buffers to whatever size they claim, and ignore columns that
    the schema does not have. So the flatbuffer is looked at before Arrow gets it
    (test_compressed_buffers_are_refused, test_another_schema_or_number_of_rows_is_refused).
    """
    try:
        continuation, size = _PREFIX.unpack_from(message)
        if continuation != _CONTINUATION or not 0 < size <= len(message) - _PREFIX.size:
            raise ValueError("no message")
        flat = message[_PREFIX.size : _PREFIX.size + size]
        root = _U32.unpack_from(flat)[0]
        kind, header = _place(flat, root, _HEADER_TYPE), _place(flat, root, _HEADER)
        if kind is None or flat[kind] != _RECORD_BATCH or header is None:
            raise ValueError("no record batch")
        batch = header + _U32.unpack_from(flat, header)[0]
        if _place(flat, batch, _BATCH_COMPRESSION) is not None:
            raise ValueError("compressed")
        length = _place(flat, batch, _BATCH_LENGTH)
        rows = 0 if length is None else int(_I64.unpack_from(flat, length)[0])
        return rows, _vector_length(flat, batch, _BATCH_NODES), _vector_length(flat, batch, _BATCH_BUFFERS)
    except (struct.error, ValueError, IndexError) as error:
        raise CorruptionError(f"inline data is not a record batch of {len(message)} bytes as it is written") from error


def _vector_length(flat: memoryview, table: int, field: int) -> int:
    place = _place(flat, table, field)
    return 0 if place is None else int(_U32.unpack_from(flat, place + _U32.unpack_from(flat, place)[0])[0])


def _place(flat: memoryview, table: int, field: int) -> int | None:
    """Return where a field of a flatbuffer's table is; None if it is not set."""
    vtable = table - _I32.unpack_from(flat, table)[0]
    if vtable < 0:
        raise ValueError("outside")
    entry = 4 + 2 * field
    if entry + 2 > _U16.unpack_from(flat, vtable)[0]:
        return None
    offset = _U16.unpack_from(flat, vtable + entry)[0]
    return table + offset if offset else None


@lru_cache(maxsize=64)
def _nodes_and_buffers(shape: pa.Schema) -> tuple[int, int]:
    """Return how many of each a batch of a schema has."""
    counts = [_count_nodes_and_buffers(field.type) for field in shape]
    return sum(nodes for nodes, _ in counts), sum(buffers for _, buffers in counts)


def _count_nodes_and_buffers(type: pa.DataType) -> tuple[int, int]:
    if pa.types.is_nested(type):
        inside = [_count_nodes_and_buffers(type.field(index).type) for index in range(type.num_fields)]
        own = 1 if pa.types.is_struct(type) else 2
        return 1 + sum(nodes for nodes, _ in inside), own + sum(buffers for _, buffers in inside)
    return 1, 3 if pa.types.is_string(type) or pa.types.is_binary(type) else 2

"""A batch in a file: the buffers of its chunks as they are in memory, so that a mapped file is searched, not read.

    magic | chunk | chunk | ... | footer | length of the footer | magic

A chunk is one Arrow record batch message without its schema, at a multiple of 64 bytes. The footer says where each
chunk lies, its hash, and the facts that reads and merges need before they touch it. The manifest of a checkpoint holds
the hash of the footer. So no byte reaches Arrow before its hash was compared: that of the footer when a file is opened,
that of a chunk at its first touch. docs/format/arrangement.md describes every byte.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from timespine.arrangement.batch.batch import Batch, Location
from timespine.arrangement.batch.chunk import Chunk, Diffs
from timespine.arrangement.batch.layout import Layout
from timespine.columnar.kernels.comparable_words import Probes
from timespine.columnar.kernels.find_keys import WordIndex
from timespine.columnar.kernels.row_words import fixed_view
from timespine.columnar.parts.inline_part import read_message
from timespine.columnar.parts.part_footer import hash_of
from timespine.columnar.scan.visibility import Coordinates
from timespine.core.encoding.envelope import EnvelopeKind, decode_payload, unwrap_payload, wrap_payload
from timespine.errors import CorruptionError
from timespine.location.folder.durable import PRIVATE_FILE, SPACE, no_space, open_regular

MAGIC = b"TSARRAY\n"
ALIGNMENT = 64
"""Chunks begin at multiples of this: their buffers are then aligned for every type."""

_LENGTH = struct.Struct(">I")
_TAIL = _LENGTH.size + len(MAGIC)
_DIFF_TYPES = {"": None, "b": pa.int8(), "h": pa.int16(), "i": pa.int32(), "q": pa.int64()}
"""Types of the diffs by their letter; none if all are +1."""


class StoredChunk(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where a chunk lies in a file, and its facts."""

    offset: int
    length: int
    hash: bytes
    rows: int
    first: bytes
    """The encoded first key."""
    last: bytes
    """The encoded last key."""
    prefix: int
    """Bytes that the texts of the first arranged column begin with."""
    exact: bool
    """Whether words are exact."""
    time: tuple[int, ...] | None
    """The time of all updates, if they have one: then there are no columns of times."""
    diff: str
    """The letter of the type of the diffs: b, h, i, q; empty if all are +1, and then there is no column."""
    earliest: tuple[int, ...]
    latest: tuple[int, ...]
    negatives: int
    diff_sum: int
    nbytes: int


class FileFooter(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The contents of a file."""

    schema: bytes
    """The schema of the rows, encoded."""
    by: tuple[str, ...]
    """The columns that rows are arranged by."""
    chunks: tuple[StoredChunk, ...]
    """The chunks, in order."""


class FileFacts(NamedTuple):
    """What a manifest says of a file."""

    size: int
    """Its bytes."""
    footer_hash: bytes
    """The hash of its footer, envelope included."""


_decoder = msgspec.msgpack.Decoder(FileFooter)


class MappedChunk(Chunk):
    """A chunk of a file. What is not among its facts is mapped, and verified, at the first touch."""

    def __init__(self, stored: StoredChunk, load: Callable[[], Chunk]) -> None:
        self.rows = stored.rows
        self.time = stored.time
        self.first, self.last = stored.first, stored.last
        self.earliest, self.latest = stored.earliest, stored.latest
        self.negatives, self.diff_sum, self.nbytes = stored.negatives, stored.diff_sum, stored.nbytes
        self._load = load

    def may_have(self, probes: Probes) -> bool:
        """Return whether some of the keys may have rows here; one that is not mapped yet tells by its bounds."""
        if "columns" in vars(self):
            return True

        def is_not_before(place: int) -> bool:
            encoded = probes.key(place).encoded
            return encoded >= self.first or self.first.startswith(encoded)

        place = bisect_left(range(len(probes)), True, key=is_not_before)
        return place < len(probes) and self.covers(probes.key(place))

    def __getattr__(self, name: str) -> object:
        """Map the chunk: only attributes that are not there yet come here."""
        if name not in ("columns", "index", "times", "diffs"):
            raise AttributeError(name)
        loaded = self._load()
        self.columns, self.index = loaded.columns, loaded.index
        self.times, self.diffs = loaded.times, loaded.diffs
        return getattr(self, name)


def write_batch(path: str, batch: Batch, layout: Layout) -> FileFacts:
    """Write a batch to a new file, which is not durable yet."""
    try:
        fd = open_regular(path, os.O_WRONLY | os.O_CREAT, PRIVATE_FILE)
        with open(fd, "wb") as file:
            return _write(file, batch.chunks, layout)
    except OSError as error:
        if error.errno in SPACE:
            raise no_space(f"{path} was not written", os.strerror(error.errno)) from error
        raise


def _write(file: object, chunks: Sequence[Chunk], layout: Layout) -> FileFacts:
    write: Callable[[object], object] = file.write  # type: ignore[attr-defined]
    write(MAGIC)
    end = len(MAGIC)
    stored = []
    for chunk in chunks:
        write(bytes(-end % ALIGNMENT))
        end += -end % ALIGNMENT
        message = _record_batch(chunk, layout).serialize()
        write(message)
        stored.append(_stored(chunk, end, message))
        end += message.size
    footer = FileFooter(layout.schema.encode(), layout.by, tuple(stored))
    encoded = wrap_payload(EnvelopeKind.SORTED_BATCH, msgspec.msgpack.encode(footer))
    write(encoded + _LENGTH.pack(len(encoded)) + MAGIC)
    return FileFacts(end + len(encoded) + _TAIL, hash_of(encoded))


def _record_batch(chunk: Chunk, layout: Layout) -> pa.RecordBatch:
    arrays = [pa.array(chunk.index.words), *(chunk.columns[name] for name in layout.schema.names)]
    arrays += [pa.array(each) for each in chunk.times or ()]
    if chunk.diffs is not None:
        arrays.append(pa.array(chunk.diffs))
    return pa.RecordBatch.from_arrays(arrays, schema=_shape(layout, chunk.time is None, _letter(chunk)))


def _shape(layout: Layout, has_times: bool, letter: str) -> pa.Schema:
    """Return the columns of a message, which are known by their places, not their names."""
    fields = [pa.field("word", pa.uint64()), *layout.schema.arrow]
    fields += [pa.field(name, pa.int64()) for name in layout.schema.time_names if has_times]
    if _DIFF_TYPES[letter] is not None:
        fields.append(pa.field("diff", _DIFF_TYPES[letter]))
    return pa.schema(fields)


def _letter(chunk: Chunk) -> str:
    return "" if chunk.diffs is None else {1: "b", 2: "h", 4: "i", 8: "q"}[chunk.diffs.itemsize]


def _stored(chunk: Chunk, offset: int, message: pa.Buffer) -> StoredChunk:
    return StoredChunk(
        offset,
        message.size,
        hash_of(memoryview(message)),
        chunk.rows,
        chunk.first,
        chunk.last,
        chunk.index.prefix,
        chunk.index.exact,
        chunk.time,
        _letter(chunk),
        chunk.earliest,
        chunk.latest,
        chunk.negatives,
        chunk.diff_sum,
        chunk.nbytes,
    )


def open_batch(path: str, facts: FileFacts, layout: Layout) -> Batch:
    """Map a file. Raises CorruptionError if it is missing, or not what the manifest says; chunks are verified later."""
    name = os.path.basename(path)
    try:
        mapped = pa.memory_map(path, "r").read_buffer()
    except OSError as error:
        raise CorruptionError(f"file {name} of a checkpoint cannot be opened") from error
    if mapped.size != facts.size or mapped.size < len(MAGIC) + _TAIL:
        raise CorruptionError(f"file {name} of a checkpoint has {mapped.size} bytes, not {facts.size}")
    footer, begin = _footer(mapped, facts, name)
    if footer.schema != layout.schema.encode() or footer.by != layout.by:
        raise CorruptionError(f"file {name} is of another arrangement")
    end = len(MAGIC)
    for stored in footer.chunks:
        if stored.offset < end or stored.offset % ALIGNMENT or stored.length < 0 or stored.rows < 1:
            raise CorruptionError(f"chunks of file {name} overlap, or are empty")
        end = stored.offset + stored.length
    if end > begin or not footer.chunks:
        raise CorruptionError(f"chunks of file {name} do not end before its footer")
    chunks = [MappedChunk(each, _loader(mapped, each, layout, name)) for each in footer.chunks]
    return Batch(chunks, Location.STORAGE, name)


def _footer(mapped: pa.Buffer, facts: FileFacts, name: str) -> tuple[FileFooter, int]:
    """Return the footer of a file, and where it begins."""
    view = memoryview(mapped)
    (length,) = _LENGTH.unpack_from(view, mapped.size - _TAIL)
    begin = mapped.size - _TAIL - length
    if view[: len(MAGIC)] != MAGIC or view[-len(MAGIC) :] != MAGIC or begin < len(MAGIC):
        raise CorruptionError(f"file {name} of a checkpoint does not begin and end as one")
    encoded = bytes(view[begin : begin + length])
    if hash_of(encoded) != facts.footer_hash:
        raise CorruptionError(f"the footer of file {name} is not the one that its checkpoint names")
    return decode_payload(_decoder, unwrap_payload(EnvelopeKind.SORTED_BATCH, encoded)), begin


def _loader(mapped: pa.Buffer, stored: StoredChunk, layout: Layout, name: str) -> Callable[[], Chunk]:
    def load() -> Chunk:
        return _load(mapped.slice(stored.offset, stored.length), stored, layout, name)

    return load


def _load(message: pa.Buffer, stored: StoredChunk, layout: Layout, name: str) -> Chunk:
    """Verify a chunk, and make it of the mapped bytes."""
    if hash_of(memoryview(message)) != stored.hash:
        raise CorruptionError(f"a chunk of file {name} is not what was written")
    if stored.diff not in _DIFF_TYPES:
        raise CorruptionError(f"a chunk of file {name} has diffs of an unknown type")
    has_times = stored.time is None
    shape = _shape(layout, has_times, stored.diff)
    batch = read_message(message, shape, stored.rows, f"a chunk of file {name}")
    try:
        batch.validate(full=True)
    except (pa.ArrowException, ValueError) as error:
        # Not in words: what Arrow says may repeat a value.
        raise CorruptionError(f"a chunk of file {name} is not a valid Arrow record batch") from error
    names = layout.schema.names
    columns = dict(zip(names, batch.columns[1 : 1 + len(names)], strict=True))
    words = _values(batch.column(0), np.uint64)
    index = WordIndex([columns[each] for each in layout.by], words, stored.prefix, stored.exact)
    times: Coordinates | None = None
    if has_times:
        arity = layout.schema.arity
        times = tuple(_values(each, np.int64) for each in batch.columns[1 + len(names) : 1 + len(names) + arity])
    diffs: Diffs | None = _values(batch.columns[-1], np.dtype(stored.diff)) if stored.diff else None
    return Chunk(columns, index, stored.time, times, diffs)


def _values(column: pa.Array, kind: type | np.dtype[np.generic]) -> Diffs:
    return fixed_view(column.buffers()[1], kind, column.offset, len(column))

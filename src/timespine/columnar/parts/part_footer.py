"""The footer of a part, which its writer and its reader agree on.

A Parquet footer has a place for metadata of the writer. Ours is
JSON there, under one key. It says which part of which collection the file is, so
that no other one is taken for it, and what every piece of the file hashes to.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Annotated, Literal

import msgspec
import numpy as np
import pyarrow as pa
import xxhash
from pyarrow._parquet import ParquetReader  # what pq.ParquetFile reads with; a first lookup need not import all of pq

from timespine.columnar.parts.part_stats import BOUND_BYTES_MAX, PartMeta
from timespine.columnar.schema.schema import Schema
from timespine.config import Config
from timespine.core.batch import Count, Part
from timespine.errors import CorruptionError, VersionError
from timespine.libraries import pq

FORMAT_VERSION = 1
"""What a part is written with. A reader refuses a higher one."""

FOOTER_KEY = "timespine"
"""Under this key our part of the footer stands in the key-value metadata of the file."""

HASH_BYTES = 16
"""The bytes of a hash: all of an xxh3, and of a SHA-256 enough to make a collision among 2^64 files unlikely."""

PieceHash = Literal["xxh3", "sha256"]
"""The hash of the pieces and pages of a part. The hash of a tail, which names it, is always SHA-256."""

SIZE_BYTES = 4
"""Bytes of the length of a piece: a file has at most 2^31."""

MAGIC = b"PAR1"
"""How a Parquet file begins and ends."""

_FIELD_ID = b"PARQUET:field_id"

_BEGIN = b'{"version":'
"""How our part of the footer begins."""


class Footer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What we write into the footer, as JSON."""

    version: int
    """The version of the format."""
    collection: str
    """The collection that the part belongs to."""
    part: str
    """The name of its blob, the last segment of the key."""
    schema: Count
    """The number of the schema that its rows were written with."""
    rows: Count
    """How many there are."""
    sorted: bool
    """Whether rows are in the order of the schema."""
    decoded: tuple[Count, ...]
    """The bytes that each row group takes in memory, once decoded."""
    pieces: bytes
    """For every column chunk in the order of the file, then, if there are any, for the Bloom filters of each row
    group, then for the page indexes, then, if there are any, for the page tables of each row group: first all lengths,
    4 bytes each, least significant first; then all hashes."""
    blooms: bool = False
    """Whether there are Bloom filters."""
    nans: tuple[int, ...] = ()
    """The field ids of columns with a NaN somewhere: their largest value is not what the statistics say."""
    lowers: tuple[Annotated[bytes, msgspec.Meta(max_length=BOUND_BYTES_MAX)], ...] = ()
    """If sorted: at or before the first row of each row group, encoded by the order of columns and cut."""
    page_tables: bool = False
    """Whether there are page tables."""
    piece_hash: PieceHash = "sha256"
    """The hash of the pieces, and of the pages in page tables."""


class MissingBlob(Exception):
    """A blob that a state refers to is missing: the reader plans again from a newer state, or gives up."""

    def __init__(self, key: str) -> None:
        super().__init__(f"blob {key} is not there")
        self.key = key
        """The key of the blob."""


def hash_of(data: bytes | memoryview) -> bytes:
    """Return the hash of a tail, as it stands in a state."""
    return hashlib.sha256(data).digest()[:HASH_BYTES]


def piece_hasher(name: PieceHash) -> Callable[[bytes | memoryview], bytes]:
    """Return the function that hashes the pieces of a part, by the name in its footer."""
    return hash_of if name == "sha256" else xxhash.xxh3_128_digest


# What a file is made of.


def piece_count(groups: int, leaves: int, *, blooms: bool, page_tables: bool) -> int:
    """Return how many pieces of a file have a length and a hash in the footer."""
    return groups * (leaves + blooms + page_tables) + 1


def leaf_columns(type: pa.DataType, path: str) -> Iterator[tuple[str, pa.DataType]]:
    """Yield the columns that Parquet makes of a column: their paths and types. One, unless it is nested."""
    if pa.types.is_list(type):
        yield from leaf_columns(type.value_type, f"{path}.list.element")
    elif pa.types.is_struct(type):
        for index in range(type.num_fields):
            field = type.field(index)
            yield from leaf_columns(field.type, f"{path}.{field.name}")
    else:
        yield path, type


def leaf_counts(schema: pa.Schema) -> tuple[int, ...]:
    """Return how many column chunks each column is written as."""
    return tuple(sum(1 for _ in leaf_columns(field.type, field.name)) for field in schema)


def type_when_read(type: pa.DataType) -> pa.DataType:
    """Return the type that a column has when it is read back: Parquet keeps instants, and forgets the name of their
    zone."""
    if pa.types.is_timestamp(type) and type.tz is not None:
        return pa.timestamp("us", "UTC")
    if pa.types.is_list(type):
        return pa.list_(type_when_read(type.value_type))
    if pa.types.is_struct(type):
        fields = [type.field(index) for index in range(type.num_fields)]
        return pa.struct([(field.name, type_when_read(field.type)) for field in fields])
    return type


# What is checked before anything is decoded.


def check_claims(part: Part, meta: PartMeta, config: Config) -> None:
    """Check the claims of the state, before anything is read by them."""
    if part.size > config.object_bytes_max:
        raise CorruptionError(f"part {part.key} has {part.size} bytes, more than {config.object_bytes_max}")
    if part.rows > config.part_rows_max:
        raise CorruptionError(f"part {part.key} has {part.rows} rows, more than {config.part_rows_max}")
    if not 12 <= meta.tail <= min(config.footer_bytes_max, part.size - len(MAGIC)):
        raise CorruptionError(f"part {part.key} of {part.size} bytes cannot have a footer of {meta.tail}")


def parse_tail(tail: bytes, what: str) -> tuple[pq.FileMetaData, pa.Schema, Footer]:
    """Return what a tail says whose hash was compared."""
    if tail[-4:] != MAGIC or int.from_bytes(tail[-8:-4], "little") != len(tail) - 8:
        raise CorruptionError(f"{what} does not end with its footer")
    try:
        reader = ParquetReader()
        reader.open(
            pa.BufferReader(tail),
            pre_buffer=False,
            thrift_string_size_limit=len(tail),  # nothing in it can be larger than it
            thrift_container_size_limit=len(tail),
            arrow_extensions_enabled=False,
        )
        metadata, parsed = reader.metadata, reader.schema_arrow
        _ = parsed.names  # SUBTLE: they may be no text (test_any_byte_of_a_footer_may_be_hostile)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptionError(f"the footer of {what} cannot be parsed") from error
    return metadata, parsed, _footer(metadata, what)


def is_surely_current(tail: bytes) -> bool:
    """Tell, without parsing it, whether a tail whose hash was compared is of the format that we write.

    SUBTLE: statistics in the tail hold values of users, which may look like our part of the footer. So no is the answer
    unless one place in it looks so (test_a_footer_of_a_later_format_is_refused_by_its_check).
    """
    return tail.count(_BEGIN) == 1 and f"{_BEGIN.decode()}{FORMAT_VERSION},".encode() in tail


def _footer(metadata: pq.FileMetaData, what: str) -> Footer:
    """Return our part of the footer."""
    text = (metadata.metadata or {}).get(FOOTER_KEY.encode(), b"")
    try:
        version = _VERSION.decode(text).version
        if version > FORMAT_VERSION:
            raise VersionError(f"{what} is of format {version}, and this version knows {FORMAT_VERSION}: upgrade")
        if version < 1:
            raise CorruptionError(f"{what} is of format {version}")
        return _FOOTER.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CorruptionError(f"the footer of {what} does not say what it is") from error


def check_file_schema(parsed: pa.Schema, schema: Schema, what: str) -> None:
    """Check that the columns of the file are those of the schema, one by one: names, types, ids, and whether null."""
    wanted = schema.update_arrow
    same = len(parsed) == len(wanted) and all(
        (here.name, here.nullable, (here.metadata or {}).get(_FIELD_ID))
        == (there.name, there.nullable, there.metadata[_FIELD_ID])
        and here.type == type_when_read(there.type)
        for here, there in zip(parsed, wanted, strict=True)
    )
    if not same:
        raise CorruptionError(f"the columns of {what} are not those of its schema")


def check_groups(
    metadata: pq.FileMetaData, footer: Footer, schema: Schema, config: Config, what: str
) -> tuple[int, ...]:
    """Return the rows of every row group, if what the footer claims of them adds up and is within limits."""
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    rows = tuple(int(group.num_rows) for group in groups)
    sizes = [group.total_byte_size for group in groups]
    if min(rows, default=1) < 1 or sum(rows) != footer.rows or min(sizes, default=0) < 0:
        raise CorruptionError(f"the row groups of {what} do not have its {footer.rows} rows")
    row_bits = sum(_row_bits(field.type) for field in schema.update_arrow)
    claimed = max(sum(sizes), sum(footer.decoded), footer.rows * row_bits // 8)
    if claimed > config.part_decoded_bytes_max:
        raise CorruptionError(f"{what} claims to be {claimed} bytes, over {config.part_decoded_bytes_max}")
    if len(footer.decoded) != len(groups) or len(footer.lowers) != (len(groups) if footer.sorted else 0):
        raise CorruptionError(f"the footer of {what} does not describe its {len(groups)} row groups")
    if any(after < before for before, after in zip(footer.lowers, footer.lowers[1:], strict=False)):
        raise CorruptionError(f"the row groups of {what} are not in order")
    return rows


def _row_bits(type: pa.DataType) -> int:
    """Return what a value takes in memory, at least. A run of equal ones takes nearly nothing in the file."""
    if pa.types.is_struct(type):
        return sum(_row_bits(type.field(index).type) for index in range(type.num_fields))
    return int(type.bit_width) if pa.types.is_primitive(type) or pa.types.is_decimal(type) else 32


def piece_starts(footer: Footer, groups: int, leaves: int, end: int, what: str) -> tuple[list[int], bytes]:
    """Return where every piece of the file starts, with the end of the last one, and their hashes."""
    count = piece_count(groups, leaves, blooms=footer.blooms, page_tables=footer.page_tables)
    if len(footer.pieces) != count * (SIZE_BYTES + HASH_BYTES):
        raise CorruptionError(f"the footer of {what} does not list its {count} pieces")
    sizes = np.frombuffer(footer.pieces, dtype="<u4", count=count)
    starts = np.cumsum(np.concatenate(([len(MAGIC)], sizes.astype(np.int64))))
    if int(starts[-1]) != end:
        raise CorruptionError(f"the pieces of {what} end at {starts[-1]}, and its footer starts at {end}")
    return starts.tolist(), footer.pieces[SIZE_BYTES * count :]


class _OnlyVersion(msgspec.Struct):
    version: int


_VERSION = msgspec.json.Decoder(_OnlyVersion)
_FOOTER = msgspec.json.Decoder(Footer)

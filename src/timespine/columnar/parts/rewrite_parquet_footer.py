"""Take row groups out of the footer of a Parquet file, and write them into another one with other offsets.

A footer is a struct of Thrift's compact protocol, which has no lengths: to find a field, all fields before it are
walked over. Arrow parses footers, but has no way to change the offsets in them. So this module walks over one once,
notes where the offsets of each row group stand, and copies the bytes between them as they are.

    FileMetaData    1 version, 2 schema, 3 rows, 4 row groups, 5 key-value metadata, 6 created by, 7 column orders
    RowGroup        1 column chunks, 5 file offset, 7 ordinal
    ColumnChunk     2 file offset, 3 metadata, 4, 5 offset and length of the offset index, 6, 7 of the column index
    ColumnMetaData  9 offset of data pages, 10 of index pages, 11 of the dictionary page, 14 of the Bloom filter
    OffsetIndex     1 page locations, of which each has 1 the offset of its page, 2 its length, 3 its first row
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from timespine.libraries import pq

_I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 4, 5, 6, 7, 8, 9, 10, 12
_BYTE = 3
_LONG_LIST = 15
"""The count in the head of a list from which on the count follows."""

ThriftField = tuple[int, int, int]
"""The type of a field, and where its value starts and stops."""


class Offset(Enum):
    """What an offset in a row group points at."""

    PAGES = auto()
    """Pages, or the beginning of the row group."""
    BLOOM = auto()
    """A Bloom filter."""
    COLUMN_INDEX = auto()
    """The column index of a column chunk."""
    PAGE_INDEX = auto()
    """The offset index of a column chunk."""
    PAGE_INDEX_BYTES = auto()
    """No offset, but the length of the offset index, which changes with the offsets in it."""
    ORDINAL = auto()
    """No offset, but the place of the row group in the file."""


@dataclass(frozen=True, slots=True)
class StoredNumber:
    """Where a number stands in the bytes of a row group."""

    start: int
    stop: int
    what: Offset
    number: int
    """The number."""
    column: int
    """The column chunk that it is of."""


@dataclass(frozen=True, slots=True)
class RowGroupBytes:
    """A row group as the footer has it, and where the offsets in it stand."""

    data: bytes
    """The struct."""
    places: tuple[StoredNumber, ...]
    """The numbers that depend on where the file has what, ascending."""
    indexes: tuple[tuple[int, int, int, int], ...]
    """Of each column chunk: offset and length of its column index, or zeros, offset and length of its offset index."""

    def moved(self, numbers: Sequence[int]) -> bytes:
        """Return the struct with other numbers at its places."""
        pieces = []
        done = 0
        for place, number in zip(self.places, numbers, strict=True):
            pieces += [self.data[done : place.start], _zigzag(number)]
            done = place.stop
        return b"".join((*pieces, self.data[done:]))


@dataclass(frozen=True, slots=True)
class FileBytes:
    """The footer of a Parquet file, in pieces."""

    before: bytes
    """The fields before the number of rows: version and schema."""
    groups: tuple[RowGroupBytes, ...]
    """The row groups."""
    after: bytes
    """The fields after the key-value metadata, of which the first has its number in its head as after field 5."""


def parse_footer(data: bytes) -> FileBytes:
    """Return the pieces of a footer. A ValueError if it is laid out otherwise."""
    try:
        fields, _ = _fields(data, 0)
        if sorted(fields) != [1, 2, 3, 4, 5, 6, 7]:
            raise ValueError(f"the footer has the fields {sorted(fields)}")
        count, place = _list_head(data, fields[4][1])
        groups = []
        for _ in range(count):
            start = place
            place = _skip_struct(data, place)
            groups.append(_row_group(data[start:place]))
    except IndexError as error:
        raise ValueError("the footer ends too early") from error
    return FileBytes(data[: fields[2][2]], tuple(groups), data[fields[5][2] :])


def write_footer(file: FileBytes, rows: int, groups: Sequence[bytes], metadata: tuple[str, str]) -> bytes:
    """Return a footer like another one, with these row groups, and one pair of key and value as metadata."""
    key, value = (each.encode() for each in metadata)
    pair = b"\x18" + _varint(len(key)) + key + b"\x18" + _varint(len(value)) + value + b"\x00"
    return b"".join(
        (
            file.before,
            b"\x16" + _zigzag(rows),
            b"\x19" + _head_of_list(len(groups)),
            *groups,
            b"\x19" + _head_of_list(1) + pair,
            file.after,
        )
    )


def move_page_index(data: bytes, by: int) -> bytes:
    """Return an offset index whose pages are this number of bytes further on."""
    fields, _ = _fields(data, 0)
    count, place = _list_head(data, fields[1][1])
    pieces = []
    done = 0
    for _ in range(count):
        inside, place = _fields(data, place)
        _, start, stop = inside[1]
        pieces += [data[done:start], _zigzag(_number(data, start) + by)]
        done = stop
    return b"".join((*pieces, data[done:]))


def schema_bytes(footer: bytes) -> bytes:
    """Return how a footer begins: with its version and its schema."""
    return footer[: _place_of(footer, 0, 3) - 1]


def first_page_index(footer: bytes) -> int:
    """Return where the offset index of the first column chunk of the first row group is in the file."""
    _, group = _list_head(footer, _place_of(footer, 0, 4))
    _, chunk = _list_head(footer, _place_of(footer, group, 1))
    return _number(footer, _place_of(footer, chunk, 4))


def page_locations(data: bytes | memoryview, place: int) -> tuple[list[tuple[int, int, int]], int]:
    """Return the offset, the length and the first row of each page in an offset index, and where the index ends."""
    count, inside = _list_head(data, place + 1)
    located = []
    for _ in range(count):
        offset, inside = _unsigned(data, inside + 1)
        size, inside = _unsigned(data, inside + 1)
        row, inside = _unsigned(data, inside + 1)
        located.append((offset >> 1, size >> 1, row >> 1))
        inside += 1
    # What may follow in the struct is not about places.
    return located, _skip_struct(data, inside)


def write_row_group(columns: Sequence[tuple[pq.ColumnChunkMetaData, int, int, int]], rows: int) -> bytes:
    """Return the rest of a footer after its schema, with one row group and nothing else.

    Of each column: how it is stored in another file, where it starts in this one, and the lengths of its dictionary
    page, or 0, and of its data pages.
    """
    chunks = [_column_chunk(*column, rows) for column in columns]
    size = sum(dictionary + pages for _, _, dictionary, pages in columns)
    group = b"\x19" + _head_of_list(len(chunks)) + b"".join(chunks) + b"\x16" + _zigzag(size) + b"\x16" + _zigzag(rows)
    return b"\x16" + _zigzag(rows) + b"\x19" + _head_of_list(1) + group + b"\x00\x00"


def _column_chunk(chunk: pq.ColumnChunkMetaData, start: int, dictionary: int, pages: int, rows: int) -> bytes:
    """Return a column chunk of a top-level column. Encodings, which the pages repeat, are said to be plain."""
    name = chunk.path_in_schema.encode()
    size = _zigzag(dictionary + pages)
    stored = (
        b"\x15" + _zigzag(_PHYSICAL_TYPES[chunk.physical_type]),
        b"\x19\x15\x00",
        b"\x19\x18" + _varint(len(name)) + name,
        b"\x15" + _zigzag(_CODECS[chunk.compression]),
        b"\x16" + _zigzag(rows) + b"\x16" + size + b"\x16" + size,
        b"\x26" + _zigzag(start + dictionary) + (b"\x26" + _zigzag(start) if dictionary else b""),
    )
    return b"\x26" + _zigzag(start) + b"\x1c" + b"".join(stored) + b"\x00\x00"


_PHYSICAL_TYPES = {
    "BOOLEAN": 0,
    "INT32": 1,
    "INT64": 2,
    "INT96": 3,
    "FLOAT": 4,
    "DOUBLE": 5,
    "BYTE_ARRAY": 6,
    "FIXED_LEN_BYTE_ARRAY": 7,
}

_CODECS = {"UNCOMPRESSED": 0, "SNAPPY": 1, "GZIP": 2, "BROTLI": 4, "ZSTD": 6, "LZ4": 7}
"""As Arrow names them; its LZ4 is the codec that Parquet calls LZ4_RAW."""


def _row_group(data: bytes) -> RowGroupBytes:
    places: list[StoredNumber] = []
    indexes: list[tuple[int, int, int, int]] = []
    fields, _ = _fields(data, 0)
    count, place = _list_head(data, fields[1][1])
    for column in range(count):
        chunk, place = _fields(data, place)
        inside, _ = _fields(data, chunk[3][1])
        _note(places, data, chunk, {2: Offset.PAGES}, column)
        _note(places, data, inside, {9: Offset.PAGES, 10: Offset.PAGES, 11: Offset.PAGES, 14: Offset.BLOOM}, column)
        _note(places, data, chunk, _INDEXES, column)
        if not chunk.keys() >= {4, 5}:
            raise ValueError("a column chunk of the footer has no page index")
        # Without a smallest value, as where all are NaN, there is no column index.
        place_and_size = (_number(data, chunk[6][1]), _number(data, chunk[7][1])) if chunk.keys() >= {6, 7} else (0, 0)
        indexes.append((*place_and_size, _number(data, chunk[4][1]), _number(data, chunk[5][1])))
    _note(places, data, fields, {5: Offset.PAGES, 7: Offset.ORDINAL}, 0)
    return RowGroupBytes(data, tuple(places), tuple(indexes))


_INDEXES = {4: Offset.PAGE_INDEX, 5: Offset.PAGE_INDEX_BYTES, 6: Offset.COLUMN_INDEX}


def _note(
    places: list[StoredNumber], data: bytes, fields: dict[int, ThriftField], wanted: dict[int, Offset], column: int
) -> None:
    """Add the places of some fields, as far as they are there. They are in the order of their numbers."""
    for id, what in wanted.items():
        if id in fields:
            _, start, stop = fields[id]
            places.append(StoredNumber(start, stop, what, _number(data, start), column))


def _fields(data: bytes, place: int) -> tuple[dict[int, ThriftField], int]:
    """Return the fields of a struct by their ids, and where the struct ends."""
    found: dict[int, ThriftField] = {}
    id = 0
    while head := data[place]:
        id, place = _field_number(data, place, id)
        start = place
        place = _skip(data, place, head & 15)
        found[id] = (head & 15, start, place)
    return found, place + 1


def _field_number(data: bytes, place: int, before: int) -> tuple[int, int]:
    """Return the number of the field whose head is at a place, after another one, and where its value starts."""
    step = data[place] >> 4
    return (before + step, place + 1) if step else (_number(data, place + 1), _skip(data, place + 1, _I16))


def _place_of(data: bytes, place: int, wanted: int) -> int:
    """Return where the value of a field of a struct starts. Only the fields before it are walked over."""
    id = 0
    while head := data[place]:
        id, place = _field_number(data, place, id)
        if id == wanted:
            return place
        place = _skip(data, place, head & 15)
    raise ValueError(f"a struct of the footer has no field {wanted}")


def _skip_struct(data: bytes | memoryview, place: int) -> int:
    while head := data[place]:
        place += 1
        if head < 16:
            place = _skip(data, place, _I16)
        place = _skip(data, place, head & 15)
    return place + 1


def _skip(data: bytes | memoryview, place: int, type: int) -> int:
    """Return where a value ends. Of booleans in a struct, the type is the value."""
    if type in (_I64, _I32, _I16):
        while data[place] >= 0x80:
            place += 1
        return place + 1
    if type == _BINARY:
        size, place = _unsigned(data, place)
        return place + size
    if type == _STRUCT:
        return _skip_struct(data, place)
    if type in (_LIST, _SET):
        inside = data[place] & 15
        count, place = _list_head(data, place)
        if inside <= _BYTE:
            return place + count
        for _ in range(count):
            place = _skip(data, place, inside)
        return place
    if type == _DOUBLE:
        return place + 8
    if type == _BYTE:
        return place + 1
    if type > _BYTE or type == 0:
        raise ValueError(f"a footer has a field of type {type}")
    return place


def _list_head(data: bytes | memoryview, place: int) -> tuple[int, int]:
    """Return how many elements a list has, and where the first one starts."""
    count = data[place] >> 4
    return (count, place + 1) if count < _LONG_LIST else _unsigned(data, place + 1)


def _head_of_list(count: int) -> bytes:
    """Return the head of a list of structs."""
    return bytes((count << 4 | _STRUCT,)) if count < _LONG_LIST else bytes((0xF0 | _STRUCT,)) + _varint(count)


def _unsigned(data: bytes | memoryview, place: int) -> tuple[int, int]:
    number = shift = 0
    while (byte := data[place]) >= 0x80:
        number |= (byte & 0x7F) << shift
        shift += 7
        place += 1
    return number | byte << shift, place + 1


def _number(data: bytes, place: int) -> int:
    number, _ = _unsigned(data, place)
    return number >> 1 ^ -(number & 1)


def _zigzag(number: int) -> bytes:
    return _varint(number << 1 if number >= 0 else -number * 2 - 1)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)

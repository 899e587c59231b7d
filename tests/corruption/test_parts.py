"""Damaged, foreign and hostile parts: the rows that were written or a CorruptionError; never others, never a hang.

The format has no index of keys and no stored positions of rows (docs/design/0017), so there are no bytes of them to
flip.
`test_every_byte.py` flips those of larger parts, which have Bloom filters and dictionaries.
"""

import dataclasses
import time

import msgspec
import pyarrow as pa
import pytest
import thrift
from stored_part import KEY, SCHEMA, Bytes, check_same, encoded, opened, part_of, rows

from timespine.columnar.parts.copied_groups import join_row_groups, row_groups
from timespine.columnar.parts.part_footer import Footer, hash_of, piece_hasher
from timespine.columnar.parts.part_reader import check_footer, open_part
from timespine.config import DEFAULT
from timespine.errors import CorruptionError, UsageError, VersionError
from timespine.location.folder.local_blob import LocalBlob
from timespine.location.memory import MemoryBlob

CONFIG = dataclasses.replace(DEFAULT, row_group_rows=20, page_rows=5)
TABLE = rows(40)
MADE = encoded(TABLE, config=CONFIG)
TAIL = MADE.data[-MADE.meta.tail :]
PATIENCE_S = 20.0
"""No single attempt takes so long, however slow the machine is."""

PAGE = object()
"""Stands for one page of a row group."""

READS = {
    "whole": (None, None),
    "a page": (PAGE, ["_diff", "name"]),
    "a row group": ([1], None),
    "two columns": (None, ["_diff", "name"]),
}


def attempt(data, groups, columns, part=None):
    """Read a blob as the part that the state knows; whether it was refused."""
    started = time.monotonic()
    try:
        reader = open_part(part or part_of(MADE), "orders", SCHEMA, 3, Bytes(data), CONFIG)
        found = reader.read_page(1, 2, columns) if groups is PAGE else reader.read(groups, columns)
    except CorruptionError:
        return True
    finally:
        assert time.monotonic() - started < PATIENCE_S
    wanted = TABLE.slice(30, 5) if groups is PAGE else TABLE if groups is None else TABLE.slice(20, 20)
    check_same(found, wanted if columns is None else wanted.select(columns))
    return False


@pytest.mark.parametrize("read", READS)
def test_every_flipped_byte_is_found_or_does_not_matter(read):
    refused = 0
    for place in range(len(MADE.data)):
        broken = bytearray(MADE.data)
        broken[place] ^= 1 << place % 8
        refused += attempt(bytes(broken), *READS[read])
    assert refused > MADE.meta.tail


def test_every_flipped_byte_is_found_by_who_looks_at_all_of_them():
    for place in range(len(MADE.data)):
        broken = bytearray(MADE.data)
        broken[place] ^= 1 << place % 8
        with pytest.raises(CorruptionError):
            opened(MADE, config=CONFIG, fetch=Bytes(bytes(broken))).verify()


@pytest.mark.parametrize("read", READS)
def test_every_truncation_is_refused(read):
    for size in range(len(MADE.data)):
        assert attempt(MADE.data[:size], *READS[read])


def test_what_follows_a_part_does_not_matter():
    for more in (b"\x00", MADE.data, bytes(1000)):
        assert not attempt(MADE.data + more, None, None)
    for shifted in (MADE.data[1:] + b"\x00", b"\x00" + MADE.data):
        assert attempt(shifted, None, None)


@pytest.mark.parametrize("make", [lambda path: MemoryBlob(), LocalBlob])
def test_a_store_that_has_other_bytes_is_found_out(make, tmp_path):
    for place, data in enumerate((MADE.data[:-1], MADE.data[: len(MADE.data) // 2], b"")):
        blob = make(tmp_path / str(place))
        blob.put(KEY, data)
        with pytest.raises(CorruptionError):
            opened(MADE, config=CONFIG, fetch=lambda start, stop, blob=blob: blob.get_range(KEY, start, stop))


def test_a_part_is_not_taken_for_another_one():
    """Both are valid and of the same shape; their blobs are exchanged."""
    other = encoded(rows(40).set_column(0, SCHEMA.update_arrow.field(0), pa.array(range(40))), config=CONFIG, name="p2")
    assert (len(other.data), other.meta.tail) != (0, 0)
    for read in READS.values():
        assert attempt(other.data, *read)
    # Even if the state took over what it knows of the other one.
    for part in (part_of(other, KEY), msgspec.structs.replace(part_of(other, KEY), rows=40)):
        with pytest.raises(CorruptionError, match="says that it is"):
            open_part(part, "orders", SCHEMA, 3, Bytes(other.data), CONFIG)


@pytest.mark.parametrize(
    "foreign",
    [{"collection": "payments"}, {"name": "p9"}, {"schema_id": 4}],
    ids=str,
)
def test_a_foreign_part_is_refused(foreign):
    made = encoded(TABLE, config=CONFIG, **foreign)
    with pytest.raises(CorruptionError, match="says that it is"):
        open_part(part_of(made), "orders", SCHEMA, 3, Bytes(made.data), CONFIG)


def test_a_state_that_counts_other_rows_is_refused():
    with pytest.raises(CorruptionError, match="says that it is"):
        opened(MADE, config=CONFIG, part=msgspec.structs.replace(part_of(MADE), rows=41))


@pytest.mark.parametrize(
    "schema",
    [SCHEMA.rename("name", "nome"), SCHEMA.add("more", "int64"), SCHEMA.drop("total"), SCHEMA.drop("seen")],
    ids=["renamed", "added", "dropped", "dropped the last"],
)
def test_another_schema_is_refused(schema):
    with pytest.raises(CorruptionError, match="columns"):
        opened(MADE, schema, CONFIG)


def test_a_state_that_knows_nothing_of_a_part_cannot_read_it():
    for meta in (b"", b"\x00", MADE.meta.encode()[:-1]):
        with pytest.raises(CorruptionError):
            opened(MADE, config=CONFIG, part=msgspec.structs.replace(part_of(MADE), meta=meta))
    for changes in ({"tail": 0}, {"tail": 11}, {"tail": len(MADE.data)}, {"tail_hash": b""}, {"tail": 13}):
        with pytest.raises(CorruptionError):
            opened(MADE, config=CONFIG, part=part_of(MADE, meta=msgspec.structs.replace(MADE.meta, **changes)))
    with pytest.raises(UsageError):
        opened(MADE, config=CONFIG, part=part_of(MADE, "no key"))


# Somebody who can write to the store, state and all. What a footer claims is held against limits before it is used.


def forged(tail, body=None):
    """A blob with that tail, and the part of a state that agrees with it."""
    data = (MADE.data[: -MADE.meta.tail] if body is None else body) + tail
    meta = msgspec.structs.replace(MADE.meta, tail=len(tail), tail_hash=hash_of(tail))
    return data, msgspec.structs.replace(part_of(MADE, meta=meta), size=len(data))


def with_footer(change):
    """The tail with a changed Parquet footer."""
    footer = thrift.decode(TAIL[:-8])
    change(footer)
    encoded_footer = thrift.encode(footer)
    return encoded_footer + len(encoded_footer).to_bytes(4, "little") + b"PAR1"


def ours(footer):
    (entry,) = footer[5][1][1]
    return entry


def with_ours(change):
    """The tail with a change in what we wrote into the footer."""

    def apply(footer):
        entry = ours(footer)
        entry[2] = (thrift.BINARY, change(entry[2][1]))

    return with_footer(apply)


def replaced(**changes):
    return lambda text: msgspec.json.encode(msgspec.structs.replace(msgspec.json.decode(text, type=Footer), **changes))


def in_group(field, value):
    def change(footer):
        group = footer[4][1][1][1]
        group[field] = (group[field][0], value)

    return change


def in_chunk(field, value):
    def change(footer):
        chunk = footer[4][1][1][1][1][1][1][0][3][1]
        chunk[field] = (chunk[field][0], value)

    return change


def in_column(column, field, value):
    def change(footer):
        element = footer[2][1][1][column]
        element[field] = (element[field][0] if field in element else thrift.I32, value)

    return change


def set_field(field, value):
    def change(footer):
        footer[field] = (footer[field][0], value)

    return change


def twice(field):
    def change(footer):
        footer[field][1][1].append(footer[field][1][1][-1])

    return change


BIG = (1 << 62) - 1

FORGED = {
    "nothing of ours": with_footer(lambda footer: footer.pop(5)),
    "no JSON": with_ours(lambda text: b"{"),
    "no text": with_ours(lambda text: b"\xff" + text),
    "nothing": with_ours(lambda text: b""),
    "another shape": with_ours(lambda text: b"[1]"),
    "deep": with_ours(lambda text: b'{"version":1,"x":' + b"[" * 100_000),
    "format 0": with_ours(replaced(version=0)),
    "format -1": with_ours(replaced(version=-1)),
    "other rows": with_ours(replaced(rows=41)),
    "negative rows": with_ours(replaced(rows=-1)),
    "a hash that there is not": with_ours(replaced(piece_hash="md5")),
    "no pieces": with_ours(replaced(pieces=b"")),
    "more pieces": with_ours(replaced(pieces=bytes(4000))),
    "longer pieces": with_ours(
        lambda text: replaced(pieces=b"\xff" * len(msgspec.json.decode(text, type=Footer).pieces))(text)
    ),
    "filters that are not there": with_ours(replaced(blooms=True)),
    "much memory": with_ours(replaced(decoded=(BIG, 1))),
    "memory of other row groups": with_ours(replaced(decoded=(1, 1, 1))),
    "no lowers": with_ours(replaced(lowers=())),
    "lowers in disorder": with_ours(replaced(lowers=(b"b", b"a"))),
    "lowers of unsorted rows": with_ours(replaced(sorted=False)),
    "a long lower": with_ours(replaced(lowers=(b"a", b"b" * 5000))),
    "many rows in a row group": with_footer(in_group(3, BIG)),
    "negative rows in a row group": with_footer(in_group(3, -20)),
    "no rows in a row group": with_footer(in_group(3, 0)),
    "a large row group": with_footer(in_group(2, BIG)),
    "a negative row group": with_footer(in_group(2, -BIG)),
    "a row group more": with_footer(twice(4)),
    "a column more": with_footer(twice(2)),
    "many children": with_footer(in_column(0, 5, (1 << 31) - 1)),
    "negative children": with_footer(in_column(0, 5, -1)),
    "children of a column": with_footer(in_column(1, 5, 5)),
    "another name": with_footer(in_column(1, 4, b"ID")),
    "another type": with_footer(in_column(1, 1, 5)),
    "no such type": with_footer(in_column(1, 1, 99)),
    "another id": with_footer(in_column(1, 9, 77)),
    "never null": with_footer(in_column(1, 3, 0)),
    "repeated": with_footer(in_column(1, 3, 2)),
    "a time that may be null": with_footer(in_column(5, 3, 1)),
    "no columns": with_footer(set_field(2, (thrift.STRUCT, []))),
    "no footer at all": b"\x00\x01\x00\x00\x00PAR1",
    "not the end": TAIL[:-1] + b"X",
    "another length": TAIL[:-8] + b"\xff\xff\xff\x7fPAR1",
    "encrypted": TAIL[:-4] + b"PARE",
    "zeros": bytes(len(TAIL)),
}


@pytest.mark.parametrize("lie", FORGED)
def test_a_footer_that_lies_is_refused_before_anything_is_decoded(lie):
    data, part = forged(FORGED[lie])
    fetch = Bytes(data)
    started = time.monotonic()
    with pytest.raises(CorruptionError):
        open_part(part, "orders", SCHEMA, 3, fetch, CONFIG)
    assert len(fetch.reads) <= 1  # its tail
    assert time.monotonic() - started < PATIENCE_S


def test_the_way_in_which_footers_are_forged_can_also_be_honest():
    data, part = forged(with_footer(lambda footer: None))
    assert not attempt(data, None, None, part)
    assert data == MADE.data


def test_a_newer_format_is_refused_as_such():
    data, part = forged(with_ours(lambda text: b'{"version":2,"pieces":"elsewhere"}'))
    with pytest.raises(VersionError, match="upgrade"):
        open_part(part, "orders", SCHEMA, 3, Bytes(data), CONFIG)


def test_a_footer_of_a_later_format_is_refused_by_its_check():
    """Also if a value of a user looks like our part of a footer. The state has the hash of this footer."""
    check_footer(part_of(MADE), "orders", SCHEMA, 3, Bytes(MADE.data), CONFIG)
    for text in (b'{"version":2,"pieces":"elsewhere"}', b'{"version":2,"user":{"version":1,"pieces":""}}'):
        data, part = forged(with_ours(lambda _, text=text: text))
        with pytest.raises(VersionError, match="upgrade"):
            check_footer(part, "orders", SCHEMA, 3, Bytes(data), CONFIG)


def test_the_check_of_a_footer_finds_every_flipped_byte_of_it_without_parsing_it():
    end = len(MADE.data) - len(TAIL)
    for place in range(end, len(MADE.data)):
        data = MADE.data[:place] + bytes([MADE.data[place] ^ 1]) + MADE.data[place + 1 :]
        with pytest.raises(CorruptionError):
            check_footer(part_of(MADE), "orders", SCHEMA, 3, Bytes(data), CONFIG)


CHUNK_LIES = {
    "elsewhere": in_chunk(9, 4),
    "before the file": in_chunk(9, -5),
    "after the file": in_chunk(9, BIG),
    "larger": in_chunk(7, 100_000),
    "huge": in_chunk(7, BIG),
    "negative": in_chunk(7, -1),
    "many values": in_chunk(5, BIG),
    "few values": in_chunk(5, 1),
    "another codec": in_chunk(4, 1),
    "no such codec": in_chunk(4, 99),
    "another type": in_chunk(1, 6),
    "in another file": lambda footer: footer[4][1][1][1][1][1][1][0].update({1: (thrift.BINARY, b"/etc/passwd")}),
}


@pytest.mark.parametrize("lie", CHUNK_LIES)
def test_what_was_not_verified_is_not_decoded_whatever_the_footer_says(lie):
    data, part = forged(with_footer(CHUNK_LIES[lie]))
    fetch = Bytes(data)
    started = time.monotonic()
    try:
        found = open_part(part, "orders", SCHEMA, 3, fetch, CONFIG).read([1])
        check_same(found, TABLE.slice(20, 20))  # the decoder did not need what was wrong
    except CorruptionError:
        pass
    assert all(0 <= start <= stop <= len(data) for start, stop in fetch.reads)
    assert time.monotonic() - started < PATIENCE_S


def test_pieces_with_another_hash_than_their_footer_says_are_refused():
    assert CONFIG.piece_hash == "xxh3"
    data, part = forged(with_ours(replaced(piece_hash="sha256")))
    for groups, columns in READS.values():
        assert attempt(data, groups, columns, part)


def test_any_byte_of_a_footer_may_be_hostile():
    outcomes = {True: 0, False: 0}
    for place in range(len(TAIL)):
        broken = bytearray(TAIL)
        broken[place] ^= (1, 0xFF, 0x80, 0x40)[place % 4]
        data, part = forged(bytes(broken))
        try:
            outcomes[attempt(data, None, None, part)] += 1
        except VersionError:
            outcomes[True] += 1
    assert outcomes[True] > len(TAIL) / 3


def test_any_byte_of_a_column_chunk_may_be_hostile():
    """The hashes agree: what decodes is what somebody wrote. Here nothing may crash, or have another shape."""
    text = ours(thrift.decode(TAIL[:-8]))[2][1]
    footer = msgspec.json.decode(text, type=Footer)
    hasher = piece_hasher(footer.piece_hash)
    count = len(footer.pieces) // 20
    sizes = [int.from_bytes(footer.pieces[4 * piece : 4 * piece + 4], "little") for piece in range(count)]
    starts = [4 + sum(sizes[:piece]) for piece in range(count)]
    body = MADE.data[: -MADE.meta.tail]
    refused = 0
    for place in range(4, starts[-1]):
        broken = bytearray(body)
        broken[place] ^= (0xFF, 1, 0x40, 0x80)[place % 4]
        hashes = [hasher(bytes(broken[start : start + size])) for start, size in zip(starts, sizes, strict=True)]
        agreed = replaced(pieces=footer.pieces[: 4 * count] + b"".join(hashes))(text)
        data, part = forged(TAIL.replace(text, agreed), bytes(broken))
        started = time.monotonic()
        try:
            found = open_part(part, "orders", SCHEMA, 3, Bytes(data), CONFIG).read()
            assert (found.num_rows, found.schema) == (40, SCHEMA.update_arrow)
        except CorruptionError:
            refused += 1
        assert time.monotonic() - started < PATIENCE_S
    assert refused


@pytest.mark.parametrize("piece_hash", ["xxh3", "sha256"])
def test_every_flipped_byte_of_copied_row_groups_is_found(piece_hash):
    config = dataclasses.replace(CONFIG, piece_hash=piece_hash)
    first, second = (groups_of(encoded(rows(40), config=config), group, config) for group in (0, 1))
    made = join_row_groups([first, second], "orders", 3, "p1", config)
    check_same(opened(made, config=CONFIG).read(), TABLE)
    for place in range(len(made.data)):
        broken = bytearray(made.data)
        broken[place] ^= 1 << place % 8
        with pytest.raises(CorruptionError):
            opened(made, config=CONFIG, fetch=Bytes(bytes(broken))).verify()


def groups_of(made, group, config):
    """One row group of a part, to be copied."""
    return row_groups(opened(made, config=config), made.meta, config).take(range(group, group + 1))

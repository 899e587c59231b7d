"""Parts: what is written is read back, whole or in pieces, by us and by others, and only what is needed is read."""

import dataclasses
import re
import threading
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_part import KEY, SCHEMA, Bytes, check_same, encoded, opened, part_of, rows
from test_key_encoding import sorted_places
from test_part_stats import update_table, updates

from timespine.columnar.kernels.key_encoding import NULL, encode_row
from timespine.columnar.parts import part_reader
from timespine.columnar.parts import part_writer as parts
from timespine.columnar.parts.part_footer import FOOTER_KEY, Footer, hash_of
from timespine.columnar.parts.part_reader import GAP_BYTES, MissingBlob
from timespine.columnar.schema.schema import define
from timespine.config import DEFAULT
from timespine.core.batch import Part
from timespine.errors import CorruptionError, UsageError


def config(**changes):
    return dataclasses.replace(DEFAULT, **changes)


SMALL = config(row_group_rows=3)


# Written and read back.


@settings(max_examples=75)
@given(updates(), st.integers(1, 9), st.data())
def test_what_is_written_is_read_back_whole_and_in_pieces(drawn, group_rows, data):
    schema, table = drawn
    small = config(row_group_rows=group_rows)
    made = encoded(table, schema, small, is_sorted=False)
    reader = opened(made, schema, small)
    check_same(reader.read(), table)
    groups = sorted(data.draw(st.sets(st.integers(0, reader.groups - 1))))
    columns = data.draw(st.lists(st.sampled_from(table.column_names), min_size=1, unique=True))
    pieces = [table.slice(group * group_rows, group_rows) for group in groups]
    wanted = pa.concat_tables(pieces) if pieces else table.slice(0, 0)
    check_same(reader.read(groups, columns), wanted.select(columns))
    assert [reader.group_rows(group) for group in groups] == [piece.num_rows for piece in pieces]
    assert [reader.group_bytes(group) for group in groups] == [piece.nbytes for piece in pieces]
    assert made.rows == reader.rows == table.num_rows
    reader.verify()


@pytest.mark.parametrize("count", [0, 1, 3, 5000])
def test_a_part_of_any_size_is_read_back(count):
    table = rows(count)
    reader = opened(encoded(table))
    check_same(reader.read(), table)
    check_same(reader.read([]), table.slice(0, 0))
    assert reader.groups == (count > 0)


def test_a_table_of_many_chunks_is_written_as_one():
    table = pa.concat_tables([rows(7).slice(place, 1) for place in range(7)])
    made, wanted = encoded(table, config=SMALL), encoded(table.combine_chunks(), config=SMALL)
    assert made.data[: -made.meta.tail] == wanted.data[: -wanted.meta.tail]
    check_same(opened(made, config=SMALL).read(), table)


def test_diffs_are_summed_modulo_two_to_the_64():
    table = rows(5).set_column(5, "_diff", pa.array([2**63 - 1] * 5, pa.int64())).cast(SCHEMA.update_arrow)
    assert encoded(table).diff_sum == (5 * (2**63 - 1) + 2**63) % 2**64 - 2**63
    assert encoded(pa.concat_tables([table.slice(0, 2), table.slice(2)])).diff_sum == encoded(table).diff_sum


def test_names_of_columns_may_look_like_paths():
    schema = define(
        {"a.b": "int64", "l.list.element": "string"},
        {"a": "struct<b:string,c:int64>", "l": "list<double>", "..": "int8", "a.c": "binary", " ": "date"},
    )
    values = {
        "a.b": list(range(2000)),
        "l.list.element": [f"x{place % 5}" for place in range(2000)],
        "a": [{"b": "x", "c": place} for place in range(2000)],
        "l": [[place / 2] for place in range(2000)],
        "..": [1] * 2000,
        "a.c": [b"y"] * 2000,
        " ": [None] * 2000,
    }
    arrays = {name: pa.array(values[name], schema.arrow.field(name).type) for name in schema.names}
    table = update_table(schema, arrays)
    reader = opened(encoded(table, schema), schema)
    check_same(reader.read(), table)
    for name in schema.names:
        check_same(reader.read(columns=[name, "_diff"]), table.select([name, "_diff"]))


def test_types_may_be_as_deep_as_a_schema_allows():
    deep = "list<struct<a:" * 7 + "int64" + ">>" * 7
    schema = define({"k": "int64"}, {"v": deep})
    value = 1
    for _ in range(7):
        value = [{"a": value}, None]
    table = update_table(schema, {"k": pa.array([1, 2]), "v": pa.array([value, None], schema.arrow.field("v").type)})
    check_same(opened(encoded(table, schema), schema).read(), table)


def test_a_part_may_hold_a_copy_of_its_own_footer():
    """The place that is filled in last is looked for by its text, and rows and statistics can have the same text."""
    seen = []
    seal = parts._fill_hashes

    def look(written, metadata, footer, page_rows):
        seen.append(parts.msgspec.json.encode(footer).decode())
        return seal(written, metadata, footer, page_rows)

    schema = define({"s": "string"}, None)
    text = "x"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "_fill_hashes", look)
        for _ in range(4):  # lengths of texts are in the footer: until it does not change any more
            table = update_table(schema, {"s": [text] * 3})
            made = encoded(table, schema, is_sorted=False)
            text = seen[-1]
    table = update_table(schema, {"s": [text] * 3})
    made = encoded(table, schema, is_sorted=False)
    assert made.data.count(text.encode()) >= 1
    check_same(opened(made, schema).read(), table)


# Others can read it.


@settings(max_examples=40)
@given(updates())
def test_polars_and_pyarrow_see_the_same_rows(tmp_path_factory, drawn):
    schema, table = drawn
    path = tmp_path_factory.mktemp("part") / "p1"
    path.write_bytes(encoded(table, schema, SMALL, is_sorted=False).data)
    wanted = pl.DataFrame(pl.from_arrow(table))
    zones = [
        pl.col(name).dt.convert_time_zone(type.time_zone)
        for name, type in wanted.schema.items()
        if isinstance(type, pl.Datetime) and type.time_zone
    ]
    assert pl.read_parquet(path).with_columns(zones).equals(wanted)
    plain = pq.read_table(path, page_checksum_verification=True)
    assert pl.DataFrame(pl.from_arrow(plain)).with_columns(zones).equals(wanted)


def test_duckdb_sees_the_same_rows(tmp_path):
    schema = define(
        {"k": "int32", "s": "string"},
        {"b": "bool", "u": "uint64", "f": "float", "m": "decimal(30,3)", "d": "date", "t": "timestamp"}
        | {"z": "timestamp[UTC]", "x": "binary", "l": "list<int64>", "r": "struct<a:int64,b:string>"},
    )
    count = 5000
    values = {
        "k": list(range(count)),
        "s": [None if place % 5 == 0 else f"text {place % 90}" for place in range(count)],
        "b": [place % 2 == 0 for place in range(count)],
        "u": [2**64 - 1 - place for place in range(count)],
        "f": [place / 8 for place in range(count)],
        "m": [None if place % 4 == 0 else place for place in range(count)],
        "d": [place - 9000 for place in range(count)],
        "t": [place * 1_000_000_007 for place in range(count)],
        "z": [place * 1_000_000_007 for place in range(count)],
        "x": [bytes((place % 256,)) for place in range(count)],
        "l": [[place, None][: place % 3] for place in range(count)],
        "r": [None if place % 7 == 0 else {"a": place, "b": None} for place in range(count)],
    }
    arrays = {name: pa.array(values[name], schema.arrow.field(name).type) for name in schema.names}
    table = update_table(schema, arrays)
    path = tmp_path / "p1"
    path.write_bytes(encoded(table, schema, config(row_group_rows=2048)).data)
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        found = connection.execute(f"select * from read_parquet('{path}')").fetchall()
    wanted = list(zip(*(table.column(name).to_pylist() for name in table.column_names), strict=True))
    assert [tuple(map(_instant, row)) for row in found] == [tuple(map(_instant, row)) for row in wanted]


def _instant(value):
    """An instant, whoever names its zone."""
    return value.timestamp() if getattr(value, "tzinfo", None) is not None else value


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_the_file_is_an_ordinary_one_with_all_that_readers_can_use(compression):
    made = encoded(rows(5000), config=config(row_group_rows=2048, compression=compression))
    file = pq.ParquetFile(pa.BufferReader(made.data))
    assert list(file.metadata.metadata) == [FOOTER_KEY.encode()]
    assert [field.metadata[b"PARQUET:field_id"] for field in file.schema_arrow] == [
        field.metadata[b"PARQUET:field_id"] for field in SCHEMA.update_arrow
    ]
    group = file.metadata.row_group(1)
    assert group.num_rows == 2048
    assert [column.column_index for column in group.sorting_columns] == [0, 1, 2, 3, 4]
    assert all(column.nulls_first and not column.descending for column in group.sorting_columns)
    columns = {group.column(place).path_in_schema: group.column(place) for place in range(group.num_columns)}
    for column in columns.values():
        assert column.compression == compression.upper()
        assert column.has_offset_index
        assert column.has_column_index
        assert column.statistics.has_min_max
    deltas = {name for name, column in columns.items() if "DELTA_BINARY_PACKED" in column.encodings}
    assert deltas == {"id", "seen", "_time", "_diff"}
    assert [name for name, column in columns.items() if column.has_dictionary_page] == ["name"]
    assert [name for name, column in columns.items() if column.bloom_filter_offset] == ["id"]
    used = {encoding for column in columns.values() for encoding in column.encodings}
    assert used == {"RLE", "PLAIN", "RLE_DICTIONARY", "DELTA_BINARY_PACKED"}  # all that Spark's fast reader knows


def test_strings_that_hardly_repeat_get_no_dictionary():
    table = rows(5000).set_column(1, "name", pa.array([f"name {place}" for place in range(5000)]))
    file = pq.ParquetFile(pa.BufferReader(encoded(table.cast(SCHEMA.update_arrow)).data))
    assert not file.metadata.row_group(0).column(1).has_dictionary_page


def test_only_sorted_parts_say_that_they_are():
    made = encoded(rows(50).take(pa.array(range(49, -1, -1))), config=SMALL, is_sorted=False)
    reader = opened(made, config=SMALL)
    assert reader.key_index is None
    assert not pq.ParquetFile(pa.BufferReader(made.data)).metadata.row_group(0).sorting_columns
    assert reader.group_lowers[0] == encode_row(rows(50), 47, ["id"])


# Only what is needed is read.


def test_opening_reads_the_tail_and_nothing_else():
    made = encoded(rows(5000))
    fetch = Bytes(made.data)
    opened(made, fetch=fetch)
    assert fetch.reads == [(len(made.data) - made.meta.tail, len(made.data))]
    assert made.meta.tail < len(made.data) / 10


def test_row_groups_side_by_side_are_read_at_once():
    made = encoded(rows(100), config=SMALL)
    fetch = Bytes(made.data)
    reader = opened(made, config=SMALL, fetch=fetch)
    fetch.reads.clear()
    reader.read([4, 5, 6])
    assert len(fetch.reads) == 1
    whole = fetch.reads.pop()
    reader.read([5], ["id"])
    ((start, stop),) = fetch.reads
    assert whole[0] < start < stop < whole[1]


def test_what_lies_far_apart_is_not_read_along():
    text = pl.Series(range(40_000)).hash(1).cast(pl.String).to_arrow().cast(pa.string())  # does not compress
    table = rows(40_000).set_column(1, "name", text).cast(SCHEMA.update_arrow)
    made = encoded(table, config=config(row_group_rows=20_000))
    fetch = Bytes(made.data)
    reader = opened(made, config=config(row_group_rows=20_000), fetch=fetch)
    fetch.reads.clear()
    check_same(reader.read(columns=["_diff", "id"]), table.select(["_diff", "id"]))
    assert len(fetch.reads) >= 2
    assert sum(stop - start for start, stop in fetch.reads) < len(made.data) / 4
    assert all(stop[0] - start[1] > GAP_BYTES for start, stop in zip(fetch.reads, fetch.reads[1:], strict=False))


def test_a_blob_that_is_gone_is_missing_and_not_corrupt():
    made = encoded(rows(5000))
    with pytest.raises(MissingBlob, match=KEY) as caught:
        opened(made, fetch=Bytes(None))
    assert caught.value.key == KEY
    fetch = Bytes(made.data)
    reader = opened(made, fetch=fetch)
    fetch.data = None
    for call in (reader.read, lambda: reader.may_contain(0, "id", 1), reader.verify):
        with pytest.raises(MissingBlob):
            call()


def test_more_bytes_than_were_asked_for_are_refused():
    made = encoded(rows(50))
    longer = Bytes(made.data + b"more")
    with pytest.raises(CorruptionError, match="bytes"):
        opened(made, fetch=lambda start, stop: longer(start, stop + 1))
    reader = opened(made, fetch=lambda start, stop: longer(start, stop + (stop < len(made.data))))
    with pytest.raises(CorruptionError, match="bytes"):
        reader.read()


def test_threads_share_a_reader():
    table = rows(20_000)
    reader = opened(encoded(table, config=config(row_group_rows=1000)), config=config(row_group_rows=1000))
    failures = []

    def work(number):
        try:
            for group in range(number, reader.groups, 4):
                check_same(reader.read([group]), table.slice(1000 * group, 1000))
                assert reader.group_ranges(group)["id"].nulls == 0
                assert reader.may_contain(group, "id", 2000 * group)
            check_same(reader.read(), table)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_only_the_calling_thread_touches_what_is_read(monkeypatch):
    """With threads of Arrow, one process in five that read and ended at once was aborted on the way out."""
    threads = set()

    class Watched(part_reader._Spans):
        def read_buffer(self, size=-1):
            threads.add(threading.get_ident())
            return super().read_buffer(size)

    monkeypatch.setattr(part_reader, "_Spans", Watched)
    reader = opened(encoded(rows(20_000), config=config(row_group_rows=1000)), config=config(row_group_rows=1000))
    for _ in range(5):
        reader.read()
    assert threads == {threading.get_ident()}


# Where to look.


@settings(max_examples=75)
@given(updates(), st.integers(1, 4), st.integers(1, 40))
def test_the_ranges_of_a_row_group_hold_every_value(drawn, group_rows, bound_bytes):
    schema, table = drawn
    small = config(row_group_rows=group_rows, bound_bytes=bound_bytes)
    reader = opened(encoded(table, schema, small, is_sorted=False), schema, small)
    for group in range(reader.groups):
        piece = table.slice(group * group_rows, group_rows)
        ranges = reader.group_ranges(group)
        flat = [field.name for field in table.schema if not pa.types.is_nested(field.type)]
        assert list(ranges) == flat
        assert ranges.get("no such column") is None
        for name in flat:
            assert ranges[name].nulls == piece.column(name).null_count
            for place in range(piece.num_rows):
                value = encode_row(piece, place, [name])
                assert value == NULL or ranges[name].lower is None or ranges[name].lower <= value
                assert value == NULL or ranges[name].upper is None or value <= ranges[name].upper
        first = schema.order_names[0]
        if not pa.types.is_nested(table.schema.field(first).type):
            lower = reader.group_lowers[group]
            assert lower is None or all(lower <= encode_row(piece, place, [first]) for place in range(piece.num_rows))


def test_ranges_are_exact_where_they_can_be():
    schema = define({"k": "int64"}, {"f": "double", "n": "double", "s": "string", "u": "uint64", "t": "timestamp[UTC]"})
    values = {
        "k": [1, 2, 3],
        "f": [1.0, 0.0, 2.0],
        "n": [1.0, float("nan"), 2.0],
        "s": ["b", "a", None],
        "u": [2**64 - 1, 0, 1],
        "t": [2**62, 0, -(2**62)],
    }
    table = update_table(schema, {name: pa.array(values[name], schema.arrow.field(name).type) for name in schema.names})
    ranges = opened(encoded(table, schema), schema).group_ranges(0)
    for name, (least, largest) in {"k": (0, 2), "f": (1, 2), "s": (1, 0), "u": (1, 0), "t": (2, 0)}.items():
        wanted = (encode_row(table, least, [name]), encode_row(table, largest, [name]))
        assert (ranges[name].lower, ranges[name].upper) == wanted
    assert (ranges["n"].lower, ranges["n"].upper) == (encode_row(table, 0, ["n"]), None)


@settings(max_examples=75)
@given(updates(), st.integers(1, 3), st.integers(1, 30), st.data())
def test_every_row_group_that_has_a_key_is_found_by_it(drawn, group_rows, bound_bytes, data):
    schema, table = drawn
    table = table.take(pa.array(sorted_places(table, [*schema.order_names, *schema.time_names])))
    small = config(row_group_rows=group_rows, bound_bytes=bound_bytes)
    reader = opened(encoded(table, schema, small), schema, small)
    order = schema.order_names[: data.draw(st.integers(1, len(schema.order_names)))]
    keys = [encode_row(table, place, order) for place in range(table.num_rows)]
    low = data.draw(st.none() | st.sampled_from(keys) | st.binary(max_size=12))
    high = data.draw(st.just(low) | st.none() | st.sampled_from(keys) | st.binary(max_size=12))
    found = reader.key_index.find(low, high)
    rows_of = [encode_row(table, place, schema.order_names) for place in range(table.num_rows)]
    needed = {
        place // group_rows
        for place, row in enumerate(rows_of)
        if (low is None or row >= low) and (high is None or row <= high or row.startswith(high))
    }
    assert needed <= set(found) <= set(range(reader.groups))


@settings(max_examples=75)
@given(updates(), st.integers(1, 3), st.integers(1, 30), st.data())
def test_row_groups_of_many_keys_are_those_of_each(drawn, group_rows, bound_bytes, data):
    schema, table = drawn
    table = table.take(pa.array(sorted_places(table, [*schema.order_names, *schema.time_names])))
    small = config(row_group_rows=group_rows, bound_bytes=bound_bytes)
    index = opened(encoded(table, schema, small), schema, small).key_index
    order = schema.order_names[: data.draw(st.integers(1, len(schema.order_names)))]
    keys = sorted({encode_row(table, place, order) for place in range(table.num_rows) if data.draw(st.booleans())})
    assert index.find_each(keys) == sorted({group for key in keys for group in index.find(key, key)})


def test_a_key_is_looked_for_in_one_row_group():
    small = config(row_group_rows=10)
    table = rows(1000)
    reader = opened(encoded(table, config=small), config=small)
    for place in (0, 5, 437, 999):
        key = encode_row(table, place, ["id"])
        assert list(reader.key_index.find(key, key)) == [place // 10]
    assert list(reader.key_index.find(None, encode_row(table, 25, ["id"]))) == [0, 1, 2]
    assert list(reader.key_index.find(encode_row(table, 985, ["id"]), None)) == [98, 99]
    assert list(reader.key_index.find(b"\xff", None)) == [99]
    assert list(reader.key_index.find(None, b"")) == list(range(100))
    assert list(reader.key_index.find(None, b"\x00")) == []


# What is refused.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.drop_columns(["name"]), "columns"),
        (
            lambda table: table.cast(
                pa.schema([f.with_type(pa.float32()) if f.name == "total" else f for f in table.schema])
            ),
            "columns",
        ),
        (
            lambda table: table.set_column(4, table.schema.field(4), pa.array([None, 1, 2], pa.int64())),
            "without a time",
        ),
        (lambda table: table.set_column(4, table.schema.field(4), pa.array([-1, 1, 2], pa.int64())), "before 0"),
    ],
)
def test_what_is_no_update_table_is_not_written(change, message):
    with pytest.raises(UsageError, match=message):
        encoded(change(rows(3)))


@pytest.mark.parametrize(
    "limit", [{"part_rows_max": 99}, {"part_decoded_bytes_max": 999}, {"object_bytes_max": 999}], ids=str
)
def test_what_could_not_be_read_again_is_not_written(limit):
    with pytest.raises(UsageError):
        encoded(rows(100), config=config(**limit))


def test_what_is_not_there_cannot_be_read():
    reader = opened(encoded(rows(10), config=SMALL), config=SMALL)
    for groups in ([-1], [4], [1, 0], [1, 1]):
        with pytest.raises(UsageError):
            reader.read(groups)
    for columns in ([], ["nope"], ["id", "id"]):
        with pytest.raises(UsageError):
            reader.read([0], columns)
    for other in (Part("", 1, inline=b"x"), Part(KEY, 1, 100, hollow=True)):
        with pytest.raises(UsageError):
            opened(None, part=other, fetch=Bytes(b""))


def test_limits_hold_before_anything_is_read():
    made = encoded(rows(5000))
    fetch = Bytes(made.data)
    for limit in ({"object_bytes_max": 1000}, {"part_rows_max": 4999}, {"footer_bytes_max": 500}):
        with pytest.raises(CorruptionError):
            opened(made, config=config(**limit), fetch=fetch)
    assert fetch.reads == []
    with pytest.raises(CorruptionError, match="claims"):
        opened(made, config=config(part_decoded_bytes_max=10_000), fetch=fetch)


@pytest.mark.parametrize("piece_hash", ["xxh3", "sha256"])
def test_every_byte_has_its_hash(piece_hash):
    made = encoded(rows(2000), config=config(piece_hash=piece_hash))
    assert opened(made).footer.piece_hash == piece_hash
    reader = opened(made)
    reader.verify()
    for place in range(0, len(made.data) - made.meta.tail, 97):
        broken = bytearray(made.data)
        broken[place] ^= 1
        with pytest.raises(CorruptionError):
            opened(made, fetch=Bytes(bytes(broken))).verify()
    assert hash_of(made.data[-made.meta.tail :]) == made.meta.tail_hash
    assert part_of(made).size == len(made.data)


def test_every_field_of_the_footer_is_described():
    page = (Path(__file__).parents[3] / "docs" / "format" / "part.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == list(Footer.__struct_fields__)

"""A part of copied row groups has the rows, the bounds and the hashes that one has which was encoded."""

import dataclasses
import io
from itertools import pairwise

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stored_part import SCHEMA, Bytes, check_same, encoded, opened, part_of, rows

from timespine.columnar.kernels.key_encoding import encode_row
from timespine.columnar.parts.copied_groups import join_row_groups, row_groups
from timespine.columnar.parts.part_stats import describe_updates
from timespine.columnar.parts.rewrite_parquet_footer import parse_footer
from timespine.columnar.schema.schema import define
from timespine.config import DEFAULT
from timespine.errors import CorruptionError, UsageError

CONFIG = dataclasses.replace(DEFAULT, row_group_rows=20, page_rows=5, stats_bytes=1 << 20)
LONG = define({"k": "string"}, {"v": "double"})
some = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


def groups_of(made, schema=SCHEMA, config=CONFIG, **options):
    return row_groups(opened(made, schema, config, **options), made.meta, config)


def joined(spans, name="p1", config=CONFIG):
    return join_row_groups(spans, "orders", 3, name, config)


def test_all_row_groups_of_a_part_under_its_name_are_the_same_bytes():
    for table in (rows(5), rows(2000)):
        made = encoded(table, config=CONFIG)
        again = joined([groups_of(made)])
        assert again.data == made.data
        assert again.meta == msgspec.structs.replace(made.meta, row_bytes=again.meta.row_bytes)  # bits are rounded up
        assert (again.rows, again.diff_sum) == (made.rows, made.diff_sum)


@some
@given(st.integers(1, 200), st.data())
def test_row_groups_of_several_parts_make_one_that_reads_like_their_rows(count, data):
    table = rows(count)
    cuts = sorted({0, count, *data.draw(st.lists(st.integers(0, count), max_size=4))})
    spans, wanted = [], []
    for number, (start, stop) in enumerate(pairwise(cuts)):
        rows_of_group, rows_of_page = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 30))
        config = dataclasses.replace(CONFIG, row_group_rows=rows_of_group, page_rows=rows_of_page)
        piece = table.slice(start, stop - start).combine_chunks()
        made = encoded(piece, config=config, name=f"p{number}")
        whole = groups_of(made, config=config, part=part_of(made, f"orders/w1/p{number}"))
        first = data.draw(st.integers(0, whole.reader.groups - 1))
        last = data.draw(st.integers(first + 1, whole.reader.groups))
        spans.append(whole.take(range(first, last)))
        wanted.append(whole.reader.read(range(first, last)))
    made = joined(spans, "q", CONFIG)
    reader = opened(made, config=CONFIG, part=part_of(made, "orders/w1/q"))
    expected = pa.concat_tables(wanted).combine_chunks()
    check_same(reader.read(), expected)
    reader.verify()
    pages = [(span.reader, group) for span in spans for group in span.groups]
    for group, (source, its_group) in enumerate(pages):
        assert reader.page_table(group) == source.page_table(its_group)
        for page in range(reader.page_table(group).pages if reader.page_table(group) else 0):
            check_same(reader.read_page(group, page, ["name"]), source.read_page(its_group, page, ["name"]))
    known = describe_updates(expected, SCHEMA, sorted=True, budget=1 << 20)
    for name in ("lower", "upper", "min_time", "max_time", "min_diff", "max_diff", "columns"):
        assert getattr(made.meta, name) == getattr(known, name), name
    assert made.meta.negatives in (None, known.negatives)
    for group in range(reader.groups):
        for row in reader.read((group,)).column("id").to_pylist():
            assert reader.may_contain(group, "id", row)


@pytest.mark.parametrize("kept", ["xxh3", "sha256"])
def test_row_groups_with_another_hash_are_not_copied(kept):
    configs = {name: dataclasses.replace(CONFIG, piece_hash=name) for name in ("xxh3", "sha256")}
    made = encoded(rows(100), config=configs[kept])
    reader = opened(made, config=CONFIG)
    assert {name: row_groups(reader, made.meta, config) is not None for name, config in configs.items()} == {
        "xxh3": kept == "xxh3",
        "sha256": kept == "sha256",
    }
    again = joined([groups_of(made, config=configs[kept])], config=configs[kept])
    assert again.data == made.data


@some
@given(st.sets(st.text("ab", min_size=1, max_size=40), min_size=1, max_size=60), st.data())
def test_every_row_of_copied_row_groups_is_found_where_it_is(keys, data):
    """Keys share long beginnings, and bounds are short."""
    config = dataclasses.replace(CONFIG, row_group_rows=data.draw(st.integers(1, 5)), bound_bytes=4)
    columns = [sorted(keys), [1.0] * len(keys), [0] * len(keys), [1] * len(keys)]
    arrays = [pa.array(each, field.type) for each, field in zip(columns, LONG.update_arrow, strict=True)]
    table = pa.Table.from_arrays(arrays, schema=LONG.update_arrow)
    made = encoded(table, LONG, config)
    whole = groups_of(made, LONG, config)
    at = data.draw(st.integers(0, whole.reader.groups))
    spans = [whole.take(range(at))] if at else []
    if at < whole.reader.groups:
        # As a merge does: what lies in the range of a row group is encoded by itself, and comes after what is copied.
        rest = encoded(whole.reader.read(range(at, whole.reader.groups)).combine_chunks(), LONG, config, name="p2")
        spans.append(groups_of(rest, LONG, config, part=part_of(rest, "orders/w1/p2")))
    result = joined(spans, config=config)
    reader = opened(result, LONG, config)
    check_same(reader.read(), table)
    for group in range(reader.groups):
        inside = reader.read((group,))
        for row in range(inside.num_rows):
            place = encode_row(inside, row, ["k"])
            assert group in reader.key_index.find(place, place)


def test_other_readers_open_copied_row_groups_and_use_their_indexes(tmp_path):
    made = encoded(rows(3000), config=dataclasses.replace(DEFAULT, row_group_rows=500))
    config = dataclasses.replace(DEFAULT, row_group_rows=500)
    whole = groups_of(made, config=config)
    result = joined([whole.take(range(1, 3)), whole.take(range(4, 6))], "q", config)
    file = tmp_path / "part.parquet"
    file.write_bytes(result.data)
    ids = [2 * n for n in (*range(500, 1500), *range(2000, 3000))]
    assert pq.read_table(file, columns=["id"]).column("id").to_pylist() == ids
    assert pq.read_table(file, filters=[("id", "=", 4002)]).column("id").to_pylist() == [4002]
    assert duckdb.sql(f"select count(*), sum(id) from '{file}' where id >= 1000").fetchall() == [(2000, sum(ids))]
    assert duckdb.sql(f"select id from '{file}' where id = 4002").fetchall() == [(4002,)]
    metadata = pq.ParquetFile(file).metadata
    assert metadata.num_row_groups == 4
    assert all(metadata.row_group(group).column(0).has_offset_index for group in range(4))


def test_a_row_group_of_nulls_leaves_the_bounds_of_the_others():
    table = rows(60)
    nulls = pa.array([None] * 20 + [f"n{n}" for n in range(40)], pa.string())
    table = table.set_column(1, table.schema.field("name"), nulls)
    result = joined([groups_of(encoded(table, config=CONFIG))])
    assert result.meta.columns == encoded(table, config=CONFIG).meta.columns


def test_a_footer_that_is_laid_out_otherwise_is_not_copied():
    plain = io.BytesIO()
    pq.write_table(rows(10), plain)
    data = plain.getvalue()
    size = int.from_bytes(data[-8:-4], "little")
    with pytest.raises(ValueError, match="page index"):
        parse_footer(data[-8 - size : -8])
    made = encoded(rows(50), config=CONFIG)
    footer = made.data[-made.meta.tail : -8]
    for cut in range(1, len(footer), 7):
        with pytest.raises(ValueError, match="footer"):
            parse_footer(footer[:cut])


def test_a_damaged_byte_is_found_before_it_is_copied():
    made = encoded(rows(25), config=CONFIG)
    for place in range(4, len(made.data) - made.meta.tail):
        broken = bytearray(made.data)
        broken[place] ^= 1 << place % 8
        with pytest.raises(CorruptionError):
            joined([groups_of(made, fetch=Bytes(bytes(broken)))])


def test_a_part_that_would_be_too_large_is_refused():
    whole = groups_of(encoded(rows(60), config=CONFIG))
    for limits in ({"object_bytes_max": 100}, {"part_rows_max": 59}):
        with pytest.raises(UsageError, match="more than it may"):
            joined([whole], config=dataclasses.replace(CONFIG, **limits))

"""Pages: what a page table says of them, and that reading one by one gives the rows of the row group."""

import dataclasses

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_part import Bytes, check_same, encoded, opened, rows
from test_part_stats import update_table, updates

from timespine.columnar.parts.page_table import decode_page_table
from timespine.columnar.schema.schema import define
from timespine.columnar.schema.types import is_nested
from timespine.config import DEFAULT
from timespine.errors import CorruptionError, UsageError

CONFIG = dataclasses.replace(DEFAULT, row_group_rows=20, page_rows=5)


@settings(max_examples=75)
@given(updates(), st.integers(1, 9), st.integers(1, 5), st.sampled_from(["xxh3", "sha256"]), st.data())
def test_pages_read_one_by_one_are_the_row_group(drawn, group_rows, page_rows, piece_hash, data):
    schema, table = drawn
    compression = data.draw(st.sampled_from(["lz4", "zstd"]))
    small = dataclasses.replace(
        DEFAULT, row_group_rows=group_rows, page_rows=page_rows, compression=compression, piece_hash=piece_hash
    )
    reader = opened(encoded(table, schema, small, is_sorted=False), schema, small)
    is_paged = page_rows < group_rows and table.num_rows >= 4 * page_rows
    assert reader.footer.page_tables == (is_paged and not any(is_nested(field.type) for field in schema.update_arrow))
    columns = data.draw(st.lists(st.sampled_from(table.column_names), min_size=1, unique=True))
    for group in range(reader.groups if reader.footer.page_tables else 0):
        wanted = table.slice(group * group_rows, group_rows).select(columns)
        pages = reader.page_table(group)
        assert (pages.page_rows, pages.pages) == (page_rows, -(-wanted.num_rows // page_rows))
        for page in range(pages.pages):
            check_same(reader.read_page(group, page, columns), wanted.slice(page * page_rows, page_rows))
    reader.verify()


def test_a_page_is_read_without_the_others():
    made = encoded(rows(4000), config=dataclasses.replace(CONFIG, row_group_rows=2000, page_rows=100))
    fetch = Bytes(made.data)
    reader = opened(made, config=CONFIG, fetch=fetch)
    reader.page_table(1)
    fetch.reads.clear()
    check_same(reader.read_page(1, 3, ["total"]), rows(4000).select(["total"]).slice(2300, 100))
    assert sum(stop - start for start, stop in fetch.reads) < 2000


def test_a_page_with_a_dictionary_is_read_with_it():
    made = encoded(rows(4000), config=dataclasses.replace(CONFIG, row_group_rows=4000, page_rows=500))
    reader = opened(made, config=CONFIG)
    leaf = rows(1).column_names.index("name")
    start, stop, _ = reader.page_table(0).dictionary(leaf)
    assert stop > start
    check_same(reader.read_page(0, 7, ["name"]), rows(4000).select(["name"]).slice(3500, 500))


def test_a_page_that_there_is_not_is_refused():
    reader = opened(encoded(rows(40), config=CONFIG), config=CONFIG)
    for group, page in ((0, 4), (0, -1)):
        with pytest.raises(UsageError, match="has no page"):
            reader.read_page(group, page, ["name"])
    plain = opened(encoded(rows(40)))
    assert plain.page_table(0) is None
    with pytest.raises(UsageError, match="has no page"):
        plain.read_page(0, 0, ["name"])


def test_small_parts_and_nested_columns_have_one_page_per_row_group():
    assert not opened(encoded(rows(19), config=CONFIG), config=CONFIG).footer.page_tables
    schema = define({"k": "int64"}, {"v": "list<int64>"})
    arrays = {"k": pa.array(range(40)), "v": pa.array([[n, n] for n in range(40)], pa.list_(pa.int64()))}
    assert not opened(encoded(update_table(schema, arrays), schema, CONFIG), schema, CONFIG).footer.page_tables


def test_rows_too_large_for_a_page_leave_their_row_group_without_a_page_table():
    """The library ends a page at a mebibyte, after fewer rows than asked for."""
    schema = define({"k": "int64"}, {"v": "binary"})
    large = [(b"%d" % n) * (400 if n < 8000 else 1) for n in range(16_000)]
    table = update_table(schema, {"k": pa.array(range(16_000)), "v": pa.array(large, pa.binary())})
    wide = dataclasses.replace(CONFIG, row_group_rows=8000, page_rows=4000)
    reader = opened(encoded(table, schema, wide), schema, wide)
    assert (reader.page_table(0) is None, reader.page_table(1).pages) == (True, 2)
    check_same(reader.read(), table)
    reader.verify()


def test_others_read_a_part_with_pages(tmp_path):
    path = tmp_path / "part.parquet"
    path.write_bytes(encoded(rows(4000), config=dataclasses.replace(CONFIG, row_group_rows=1000, page_rows=100)).data)
    wanted = rows(4000).column("id").to_pylist()
    assert pq.read_table(path).column("id").to_pylist() == wanted
    assert pl.read_parquet(path)["id"].to_list() == wanted
    assert [row for (row,) in duckdb.sql(f"select id from '{path}'").fetchall()] == wanted


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: data[:3],
        lambda data: bytes(4) + data[4:],
        lambda data: (7).to_bytes(4, "little") + data[4:],
        lambda data: data[:4] + b"\xff" * 4 + data[8:],
        lambda data: data[:8] + (7).to_bytes(4, "little") + data[12:],
    ],
)
def test_a_page_table_that_does_not_fit_its_row_group_is_refused(damage):
    """Its hash may agree: who can write to the state too can make one."""
    reader = opened(encoded(rows(40), config=CONFIG), config=CONFIG)
    sizes = [stop for *_, stop in reader.page_table(0).starts]
    data = reader.fetch_page_table(0)
    assert decode_page_table(data, 20, sizes, "it") == reader.page_table(0)
    with pytest.raises(CorruptionError):
        decode_page_table(damage(data), 20, sizes, "it")

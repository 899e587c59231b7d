"""Bloom filters: what is there is never denied, most of what is not is, and others agree."""

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import example, given, settings
from hypothesis import strategies as st
from stored_part import encoded, opened, rows
from test_key_encoding import FLAT
from test_part_stats import update_table

from timespine.columnar.parts import part_writer
from timespine.columnar.parts.bloom_probe import may_hold, stored_bytes
from timespine.columnar.schema.schema import define

ASKED = [type for type in FLAT if not (pa.types.is_floating(type) or pa.types.is_boolean(type))]


@pytest.mark.parametrize(
    ("data", "hashed"),
    [
        (b"", 0xEF46DB3751D8E999),
        (b"a", 0xD24EC4F1A98C6E5B),
        (b"abc", 0x44BC2CF5AD770999),
        (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
    ],
)
def test_the_hash_is_xxh64(data, hashed):
    assert xxhash.xxh64_intdigest(data) == hashed


@pytest.mark.parametrize("type", ASKED, ids=str)
def test_no_value_of_a_row_group_is_denied(type, monkeypatch):
    monkeypatch.setattr(part_writer, "BLOOM_ROWS_MIN", 1)

    @settings(max_examples=25)
    @given(st.lists(FLAT[type], min_size=1, max_size=40))
    def check(values):
        schema = define({"k": type}, None)
        table = update_table(schema, {"k": pa.array(values, type)})
        reader = opened(encoded(table, schema, is_sorted=False), schema)
        assert all(reader.may_contain(0, "k", value) for value in values)
        assert reader.may_contain(0, "k", None)

    check()


def test_decimals_of_every_precision_are_stored_in_as_many_bytes_as_parquet_takes():
    for precision in range(1, 39):
        type = pa.decimal128(precision, 0)
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"k": pa.array([1], type)}), sink)
        size = pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema.column(0).length
        assert len(stored_bytes(pa.scalar(-1, type).as_py(), type)) == size


@pytest.mark.parametrize("name", ["id", "text"])
def test_most_of_what_is_not_there_is_denied(name):
    schema = define({"id": "int64", "text": "string"}, None)
    texts = [f"{place:040}" for place in range(10_000)]
    table = update_table(schema, {"id": pa.array(range(10_000)), "text": pa.array(texts)})
    reader = opened(encoded(table, schema), schema)
    asked = range(10_000, 12_000)
    found = sum(reader.may_contain(0, name, place if name == "id" else f"{place:040}") for place in asked)
    assert found < 0.12 * len(asked)


def test_duckdb_agrees(tmp_path):
    made = encoded(rows(5000))
    path = tmp_path / "p1"
    path.write_bytes(made.data)
    reader = opened(made)
    with duckdb.connect() as connection:
        for value in (*range(40), *range(9_990, 10_040)):
            probe = f"select bloom_filter_excludes from parquet_bloom_probe('{path}', 'id', {value})"
            assert connection.execute(probe).fetchall() == [(not reader.may_contain(0, "id", value),)]


def test_without_a_filter_anything_may_be_there():
    few = opened(encoded(rows(10)))
    many = opened(encoded(rows(5000)))
    assert few.may_contain(0, "id", -1)
    assert not many.may_contain(0, "id", -1)
    for column, value in (("name", "nobody"), ("total", 0.1), ("id", "not a number"), ("id", None), ("id", True)):
        assert many.may_contain(0, column, value)


def test_the_filters_of_a_row_group_are_read_once():
    made = encoded(rows(5000))
    reader = opened(made)
    reads = reader._fetch.reads
    reads.clear()
    for value in range(9):
        reader.may_contain(0, "id", value)
    assert len(reads) == 1


def test_all_columns_as_key_get_no_filter():
    schema = define(None, {"id": "int64"})
    table = update_table(schema, {"id": pa.array(range(2000))})
    reader = opened(encoded(table, schema), schema)
    assert not reader.footer.blooms
    assert reader.may_contain(0, "id", -1)


@given(st.binary(max_size=80))
@example(b"")
@example(b"\x15\x40\x1c\x1c\x00\x00\x1c\x1c\x00\x00\x1c\x1c\x00\x00\x00" + bytes(31))
@example(b"\x15\x00\x1c\x1c\x00\x00\x1c\x1c\x00\x00\x1c\x1c\x00\x00\x00")
def test_a_filter_of_another_form_denies_nothing(data):
    assert may_hold(data, b"x") or data.startswith(b"\x15\x40\x1c")


def test_an_empty_filter_denies_everything():
    assert not may_hold(b"\x15\x40\x1c\x1c\x00\x00\x1c\x1c\x00\x00\x1c\x1c\x00\x00\x00" + bytes(32), b"x")


def test_what_is_not_of_the_type_has_no_bytes():
    for value, type in (
        ("x", pa.int64()),
        (1, pa.string()),
        (b"x", pa.string()),
        ("x", pa.binary()),
        (1.5, pa.int64()),
    ):
        assert stored_bytes(value, type) is None
    assert stored_bytes("\ud800", pa.string()) is None
    assert stored_bytes(-1, pa.int32()) == b"\xff\xff\xff\xff"

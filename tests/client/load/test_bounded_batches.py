"""Rows of files, readers and large tables are taken over in bounded memory, whatever they decode to."""

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from load_memory import PART_BYTES

from timespine.client.load import bounded_batches as bounded_module
from timespine.client.load.bounded_batches import file_batches, split_to_bound
from timespine.client.load.parquet_or_delta import open_source
from timespine.config import DEFAULT
from timespine.errors import UsageError

ROWS = 300
"""Rows of a megabyte that the processes below take over."""

ROWS_WITH_DEFAULTS = 1200
"""The same for a store without a configuration, whose parts are larger."""


def memory(part_bytes):
    """The bound that `bulk_load` states, and what allocators keep of freed memory."""
    return int(1.6 * (8 * part_bytes + 5 * bounded_module.BATCH_BYTES))


@pytest.mark.parametrize("what", ["bomb", "categories", "reader", "table", "defaults"])
def test_memory_does_not_follow_what_is_decoded(tmp_path, what):
    script = Path(__file__).with_name("load_memory.py")
    rows, part_bytes = (ROWS_WITH_DEFAULTS, DEFAULT.part_bytes) if what == "defaults" else (ROWS, PART_BYTES)
    done = subprocess.run(
        [sys.executable, script, what, tmp_path, str(rows)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < memory(part_bytes) < rows << 20


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(bounded_module, "BATCH_BYTES", 1000)


def test_a_file_comes_in_batches_of_bounded_size_with_all_of_its_rows(tmp_path, small):
    values = ["x" * (n % 7 * 100) if n % 5 else None for n in range(500)]
    table = pa.table({"k": range(500), "v": values, "w": [str(n) for n in range(500)], "l": [[n] for n in range(500)]})
    for options in ({"use_dictionary": True}, {"use_dictionary": False}, {"row_group_size": 90}):
        pq.write_table(table, tmp_path / "a.parquet", **options)
        found = list(file_batches(tmp_path / "a.parquet"))
        assert pa.Table.from_batches(found).equals(table)
        assert all(batch.num_rows == 1 or batch.nbytes <= 4000 for batch in found)


def test_a_delta_table_comes_in_batches_of_bounded_size_with_all_of_its_rows(tmp_path, small):
    deltalake = pytest.importorskip("deltalake")
    rows = range(60)
    table = pa.table({"k": rows, "p": ["a b", "c/d", "50%"] * 20, "v": ["x" * 400 if n % 3 else None for n in rows]})
    deltalake.write_deltalake(tmp_path, table, partition_by=["p"])
    more = table.append_column("n", pa.array([n / 2 for n in rows]))
    deltalake.write_deltalake(tmp_path, more, mode="append", schema_mode="merge")
    schema, batches = open_source(tmp_path)
    found = list(batches)
    assert all(batch.num_rows == 1 or batch.nbytes <= 4000 for batch in found)
    expected = [*({**row, "n": None} for row in table.to_pylist()), *more.to_pylist()]
    order = sorted(schema.names)
    loaded = pa.Table.from_batches(found, schema).select(order).to_pylist()
    assert sorted(map(repr, loaded)) == sorted(repr({name: row[name] for name in order}) for row in expected)


def test_references_stay_what_they_are_if_the_file_says_that_they_are(tmp_path, small):
    table = pa.table({"v": pa.array(["a" * 300, "b" * 300] * 50).dictionary_encode()})
    pq.write_table(table, tmp_path / "a.parquet")
    found = list(file_batches(tmp_path / "a.parquet"))
    assert {batch.schema.field("v").type for batch in found} == {table.schema.field("v").type}
    assert max(batch.num_rows for batch in found) <= 3
    assert [value for batch in found for value in batch.column("v").to_pylist()] == table.column("v").to_pylist()


def test_a_batch_that_is_small_is_one_piece_and_an_empty_one_none():
    batch = pa.record_batch({"k": [1, 2, 3]})
    assert list(split_to_bound(batch)) == [batch]
    assert list(split_to_bound(batch.slice(0, 0))) == []


def test_values_that_are_too_large_are_refused_before_they_are_decoded(tmp_path, monkeypatch):
    monkeypatch.setattr(bounded_module, "VALUE_BYTES_MAX", 1000)
    pq.write_table(pa.table({"v": ["a" * 2000]}), tmp_path / "a.parquet", use_dictionary=False)
    with pytest.raises(UsageError, match="more than 1000 bytes"):
        list(file_batches(tmp_path / "a.parquet"))


def test_the_rows_of_a_reader_are_appended_as_they_come_and_appear_at_once(place):
    orders = place.open().create("orders", key={"k": "int64"}, timeline="counter")
    seen = []

    def batches():
        for k in range(5):
            seen.append(orders.count())
            yield pa.record_batch({"k": [k]})

    done = orders.append(pa.RecordBatchReader.from_batches(pa.schema([("k", pa.int64())]), batches()))
    assert (done.time, done.rows) == (0, 5)
    assert seen == [0] * 5
    assert orders.count() == 5
    assert orders.history()[-1].operation == "append"


def test_a_reader_with_times_or_at_a_time_is_appended_there(place):
    orders = place.open().create("orders", key={"k": "int64"}, timeline="counter")
    schema = pa.schema([("k", pa.int64()), ("_time", pa.int64())])
    rows = [pa.record_batch({"k": [1, 2], "_time": [3, 4]}, schema=schema)]
    orders.append(pa.RecordBatchReader.from_batches(schema, rows))
    bare = pa.record_batch({"k": [3]})
    done = orders.append(pa.RecordBatchReader.from_batches(bare.schema, [bare]), at=9)
    assert done.time == 9
    assert sorted((row["k"], row["_time"]) for row in orders.updates().to_pylist()) == [(1, 3), (2, 4), (3, 9)]

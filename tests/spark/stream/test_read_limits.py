"""Limits of a micro-batch: whole commits, as many as fit, counted with what is inside of hollow runs."""

import pyarrow as pa
import pytest

import timespine as ts

pytest.importorskip("pyspark", reason="needs timespine[spark]")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from timespine.spark.read.stream_reader import _batch_end

ROWS = 2000


@pytest.fixture
def state(tmp_path):
    """The state of a collection of four commits, each with hollow runs."""
    config = ts.Config(inline_part_bytes=1, part_bytes=1 << 12, run_parts=2)
    with ts.open(tmp_path / "store", maintenance=False, config=config) as store:
        items = store.create("items", key={"k": "int64"}, timeline="counter")
        for number in range(4):
            items.append(pa.table({"k": range(number * ROWS, (number + 1) * ROWS)}))
        state = items._handle.state()
        stored = sum(info.size for info in store._context.blob.list_keys(f"{items.id}/"))
    assert sum(part.hollow for part in state.parts()) >= 4
    assert sum(entry.size for entry in state.history) == stored
    return state


def test_a_batch_has_as_many_bytes_of_rows_as_fit_and_not_of_their_lists(state):
    sizes = [entry.size for entry in state.history]
    assert _batch_end(state, -1, 3, ReadMaxBytes(sum(sizes[:2]))) == 1
    assert _batch_end(state, -1, 3, ReadMaxBytes(sum(sizes[:2]) - 1)) == 0
    assert _batch_end(state, 1, 3, ReadMaxBytes(sum(sizes[2:]))) == 3
    assert _batch_end(state, -1, 3, ReadMaxBytes(1)) == 0


def test_a_batch_has_as_many_rows_as_fit_and_at_least_one_commit(state):
    assert _batch_end(state, -1, 3, ReadMaxRows(3 * ROWS)) == 2
    assert _batch_end(state, -1, 3, ReadMaxRows(1)) == 0
    assert _batch_end(state, -1, 3, ReadAllAvailable()) == 3

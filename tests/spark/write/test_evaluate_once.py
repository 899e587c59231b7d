"""A write evaluates the rows of a DataFrame once: what it checks is what it writes."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F

from timespine.spark import foreach_batch, foreach_batch_together
from timespine.spark.write import driver_or_tasks

BOTH = pytest.mark.parametrize("small_rows", [10_000, 1], ids=["driver", "executors"])


@pytest.fixture
def items(store):
    items = store.create("items", key={"id": "int64"}, value={"name": "string"}, timeline="counter")
    items.append([{"id": id, "name": "old"} for id in range(20)])
    return items


@pytest.fixture
def counted(spark):
    """A DataFrame of 40 rows that differ whenever they are evaluated, and how many rows were."""
    count = spark.sparkContext.accumulator(0)

    def seen(batches):
        for batch in batches:
            count.add(batch.num_rows)
            yield batch

    frame = spark.range(0, 40, 1, 3).mapInArrow(seen, "id long").withColumn("name", F.expr("uuid()"))
    return frame, count


WRITES = {
    "append": lambda store, items, frame: items.append(frame),
    "upsert": lambda store, items, frame: items.upsert(frame),
    "delete": lambda store, items, frame: items.delete(frame),
    "write": lambda store, items, frame: items.write(frame.withColumn("t", F.col("id") + 5), times="t", late="move"),
    "foreach_batch": lambda store, items, frame: foreach_batch(items, "upsert", sink="s")(frame, 0),
    "together": lambda store, items, frame: foreach_batch_together(
        store, lambda rows, _: {"items": ("upsert", rows)}, sink="s"
    )(frame, 0),
}


@BOTH
@pytest.mark.parametrize("how", WRITES)
def test_each_row_is_evaluated_once(store, items, counted, small_rows, how, monkeypatch):
    monkeypatch.setattr(driver_or_tasks, "SMALL_ROWS", small_rows)
    frame, count = counted
    WRITES[how](store, items, frame)
    assert count.value == 40
    if how == "write":
        items.seal(100)
    assert items.count() == {"append": 60, "write": 60, "delete": 0}.get(how, 40)
    assert not frame.storageLevel.useMemory


def test_an_upsert_that_is_computed_again_writes_the_same_rows(store, items, counted, monkeypatch):
    """Another process evolves the schema while tasks write: the whole delta is computed again."""
    monkeypatch.setattr(driver_or_tasks, "SMALL_ROWS", 1)
    frame, count = counted
    original, runs = driver_or_tasks.run_write_tasks, []

    def racing(*arguments, **options):
        answers = original(*arguments, **options)
        if not runs:
            items.evolve(add={"more": ("int64", 3)})
        runs.append(answers)
        return answers

    monkeypatch.setattr("timespine.spark.write.delta_by_tasks.run_write_tasks", racing)
    items.upsert(frame)
    assert (len(runs), count.value, items.count()) == (2, 40, 40)


def test_rows_that_the_caller_keeps_stay_kept(items, counted):
    frame, count = counted
    frame.persist()
    items.append(frame)
    assert frame.storageLevel.useMemory
    frame.unpersist()
    assert count.value == 40

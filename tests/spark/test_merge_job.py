"""Merges by executors give the runs that the engine of the process gives, and harm nothing when they fail."""

from __future__ import annotations

import random
from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from typer.testing import CliRunner

import timespine as ts
from timespine.cli.app import app
from timespine.columnar.scan.scan_request import ScanRequest
from timespine.config import DEFAULT
from timespine.spark import merge_job, merging_on

SMALL = replace(DEFAULT, part_bytes=4096, row_group_rows=64, run_parts=8, inline_part_bytes=64)
KINDS = {
    "int64": lambda draw: draw.choice([None, draw.randrange(-5, 5), draw.randrange(1 << 40)]),
    "string": lambda draw: draw.choice([None, "", "a\0", "é" * draw.randrange(9), str(draw.randrange(50))]),
    "double": lambda draw: draw.choice([None, float("nan"), 0.0, float("-inf"), draw.randrange(9) / 4]),
    "bool": lambda draw: draw.choice([None, True, False]),
}


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch):
    monkeypatch.setattr(merge_job, "TASK_ROWS", 200)


def filled(store, seed):
    """Batches of random types with nulls, ties, retractions, and a key that is everywhere if the seed is odd."""
    draw = random.Random(seed)
    key, value = draw.choice(list(KINDS)), draw.choice(list(KINDS))
    kinds = {"k": key}, {"v": value, "n": "int64"}
    items = store.create("items", key=kinds[0], value=kinds[1], timeline="counter")
    for _ in range(6):
        rows = []
        for _ in range(300):
            skewed = seed % 2 and draw.random() < 0.5
            row = {"k": KINDS[key](draw), "v": KINDS[value](draw), "n": draw.randrange(3)}
            row["k"] = KINDS[key](random.Random(7)) if skewed else row["k"]
            rows.append({**row, "_diff": draw.choice([1, -1, 2])})
        items.append(pa.Table.from_pylist(rows, pa.schema([*items.schema.arrow, pa.field("_diff", pa.int64())])))
    return items


def run_of(items):
    """The rows of the live run and of the past run, each in its order, with times and diffs."""
    state = items._handle.state()
    (batch,) = [batch for batch in state.trace.hollow_batches() if batch.runs]
    assert batch.is_sorted
    parts = items._handle.parts(state)
    id, schema = parts.schema(batch.runs[0])
    wanted = ScanRequest(schema, schema.names, keep_times=True)
    leaves = [part for run in batch.runs for part in parts.leaves(run.parts)]
    tables = [table for part in leaves for table in parts.tables(part, id, schema, wanted, 1 << 40)]
    return pa.concat_tables(tables).combine_chunks(), (batch.desc, [run.zero_from for run in batch.runs]), leaves


@pytest.mark.parametrize("seed", range(6))
def test_executors_and_the_process_make_the_same_run(tmp_path, spark, seed):
    found = []
    for name in ("process", "executors"):
        with ts.open(tmp_path / name, config=SMALL, maintenance=False) as store:
            items = filled(store, seed)
            asked = []
            if name == "executors":
                with merging_on(store, spark, least_rows=1):
                    asked.append(store._engine.delegate)
                    items.expire(before=3)
                    items.compact(wait=True)
            else:
                items.expire(before=3)
                items.compact(wait=True)
            assert store._engine.delegate is None
            found.append(run_of(items))
            assert items.count() == found[-1][0].column("_diff").to_numpy().sum()
            assert store.vacuum().blobs == []
    (one, one_desc, _), (other, other_desc, _) = found
    assert one_desc == other_desc
    assert str(one.to_pylist()) == str(other.to_pylist())


def test_small_merges_stay_in_the_process(tmp_path, spark, monkeypatch):
    monkeypatch.setattr(merge_job, "_merge_by_tasks", None)  # a call of it fails
    with ts.open(tmp_path / "store", config=SMALL, maintenance=False) as store:
        items = filled(store, 0)
        with merging_on(store, spark):
            items.compact(wait=True)
        assert run_of(items)[0].num_rows


def test_a_job_that_fails_harms_nothing_and_what_it_left_is_swept(tmp_path, spark, monkeypatch):
    original = merge_job.over_ranges

    def failing(work):
        merged = original(work)

        def fails(numbers):
            for answer in merged(numbers):
                if answer.column(0)[0].as_py() == 1:
                    raise RuntimeError("after its parts were put")
                yield answer

        return fails

    with ts.open(tmp_path / "store", config=SMALL, maintenance=False) as store:
        items = filled(store, 3)
        before = sorted(map(str, items.updates().to_pylist()))
        with merging_on(store, spark, least_rows=1):
            monkeypatch.setattr(merge_job, "over_ranges", failing)
            with pytest.raises((ts.errors.TimespineError, PySparkException)):
                items.compact(wait=True)
            assert sorted(map(str, items.updates().to_pylist())) == before
            assert store.vacuum().blobs
            store.vacuum(dry_run=False)
            assert store.vacuum().blobs == []
            monkeypatch.setattr(merge_job, "over_ranges", original)
            items.compact(wait=True)
        assert sorted(map(str, items.updates().to_pylist())) == before


def test_the_command_maintains_with_spark_round_after_round(tmp_path, spark, monkeypatch):
    import timespine.spark

    monkeypatch.setattr(merge_job, "LEAST_ROWS", 1)
    monkeypatch.setattr(timespine.spark, "session", lambda name: spark, raising=False)
    monkeypatch.setattr(spark, "stop", lambda: None)
    with ts.open(tmp_path / "store", config=SMALL, maintenance=False) as store:
        filled(store, 1)
    ran = CliRunner().invoke(app, ["maintain", str(tmp_path / "store"), "--spark", "--every", "0", "--rounds", "2"])
    assert ran.exit_code == 0, ran.output
    assert ran.stdout.count("merge") == 2
    with ts.open(tmp_path / "store", config=SMALL, maintenance=False) as store:
        assert store["items"].count()

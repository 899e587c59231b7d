"""The pipeline answers right on generated and on given logs, leaves the session alone, and says what is wrong."""

from __future__ import annotations

import argparse
import io
import json
import re
import sys

import polars as pl
import pytest
from rich.console import Console

import timespine as ts
from examples.spark_pipeline import pipeline
from examples.spark_pipeline.pipeline import NO_SPARK, NOT_UNDERSTOOD, RIGHT, WRONG, main


@pytest.fixture
def run():
    """The command: its exit code, and what it says."""

    def command(*arguments):
        told = io.StringIO()
        code = main([str(each) for each in arguments], Console(file=told, width=120))
        return code, told.getvalue()

    return command


def test_a_generated_log_goes_all_the_way(spark, tmp_path, run):
    code, told = run("--rows", 600, "--keep", tmp_path / "kept")
    assert code == RIGHT, told
    assert "BUG" not in told
    assert told.count("ok: ") == 14
    assert "batch 2: minutes 2, 9, 8, 1 of them late; complete up to 7 with" in told
    assert told.count("│ same │") == 3
    assert re.search(r"expiry: history is exact from \[2\] on; [1-9]", told)
    assert spark.range(3).count() == 3  # the session of others goes on
    with ts.open(tmp_path / "kept" / "store", read_only=True) as store:
        rows = store.collection("orders").snapshot().to_polars()
        sums = store.collection("by_customer").snapshot().to_polars()
    wanted = rows.group_by("customer").agg(pl.len().cast(pl.Int64).alias("count"), pl.col("cents").sum().alias("total"))
    assert sums.sort("customer").equals(wanted.sort("customer"))
    log = pl.concat(pl.read_ndjson(path) for path in (tmp_path / "kept" / "log" / "orders").iterdir())
    last = log.sort("_sequence").unique("id", keep="last").filter(pl.col("op") != "d")
    assert rows.sort("id").equals(last.select(rows.columns).sort("id"))
    code, told = run("--store", tmp_path / "kept" / "store", "--keep", tmp_path / "beside")
    assert (code, "has collections: name a new folder or prefix" in told) == (NOT_UNDERSTOOD, True)
    code, told = run("--log", tmp_path / "nowhere", "--keep", tmp_path / "other")
    assert (code, "no file and no folder" in told) == (NOT_UNDERSTOOD, True)
    with pytest.raises(SystemExit) as ended:
        run("--keep", tmp_path / "kept")
    assert ended.value.code == NOT_UNDERSTOOD


def test_any_log_will_do(spark, tmp_path, run):
    events = [
        {"before": None, "after": {"sku": f"s{n % 30}", "shelf": f"x{n % 4}", "price": n / 10}, "op": "u", "ts_ms": n}
        for n in range(90)
    ]
    events += [{"before": {"sku": "s3", "shelf": None, "price": None}, "after": None, "op": "d", "ts_ms": 99}]
    log = tmp_path / "changes.jsonl"
    log.write_text("".join(json.dumps({"payload": event}) + "\n" for event in events))
    code, told = run("--log", log, "--key", "sku")
    assert code == RIGHT, told
    assert "by_shelf: count and sum of price per shelf" in told
    assert "29 rows" in told
    code, told = run("--log", log)
    assert (code, told.splitlines()[-1]) == (
        NOT_UNDERSTOOD,
        "name the key columns; there are: price, shelf, sku",
    )


def test_an_answer_that_changed_is_a_bug(spark, tmp_path):
    told = io.StringIO()
    one = pipeline.Pipeline(spark, Console(file=told, width=120), tmp_path, argparse.Namespace())
    before, after = pipeline.Answer(1, 1, "a"), pipeline.Answer(1, 1, "b")
    one.prove([0], {0: before}, {0: before}, {0: before})
    assert one.is_right
    one.prove([0], {0: before}, {0: before}, {0: after})
    assert not one.is_right
    assert "A BUG" in told.getvalue()
    assert (RIGHT, WRONG, NOT_UNDERSTOOD, NO_SPARK) == (0, 1, 2, 3)


def test_without_spark_it_says_in_one_sentence_what_to_do(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark", None)
    for name in ("pyspark.sql", "pyspark.errors"):
        monkeypatch.setitem(sys.modules, name, None)
    assert run("--rows", 10) == (NO_SPARK, "Spark is not installed: pip install 'timespine[spark]'\n")

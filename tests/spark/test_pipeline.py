"""The pipeline answers right on a given log (`make soak`), leaves the session alone, and says what is wrong.

`test_object_store.py` runs it on a generated log.
"""

from __future__ import annotations

import argparse
import io
import json
import sys

import pytest
from rich.console import Console

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


@pytest.mark.slow
def test_any_log_will_do(spark, tmp_path, run):
    events = [
        {"before": None, "after": {"sku": f"s{n % 30}", "shelf": f"x{n % 4}", "price": n / 10}, "op": "u", "ts_ms": n}
        for n in range(90)
    ]
    events += [{"before": {"sku": "s3", "shelf": None, "price": None}, "after": None, "op": "d", "ts_ms": 99}]
    log = tmp_path / "changes.jsonl"
    log.write_text("".join(json.dumps({"payload": event}) + "\n" for event in events))
    code, told = run("--log", log, "--key", "sku", "--keep", tmp_path / "kept")
    assert code == RIGHT, told
    assert "BUG" not in told
    assert spark.range(3).count() == 3  # the session of others goes on
    assert "by_shelf: count and sum of price per shelf" in told
    assert "29 rows" in told
    code, told = run("--store", tmp_path / "kept" / "store", "--keep", tmp_path / "beside")
    assert (code, "has collections: name a new folder or prefix" in told) == (NOT_UNDERSTOOD, True)
    with pytest.raises(SystemExit) as ended:
        run("--keep", tmp_path / "kept")
    assert ended.value.code == NOT_UNDERSTOOD


def test_a_log_without_a_key_and_a_log_that_is_not_there_are_refused(spark, tmp_path, run):
    log = tmp_path / "changes.jsonl"
    log.write_text(json.dumps({"payload": {"before": None, "after": {"sku": "a", "price": 1}, "op": "c", "ts_ms": 1}}))
    code, told = run("--log", log)
    assert (code, told.splitlines()[-1]) == (NOT_UNDERSTOOD, "name the key columns; there are: price, sku")
    code, told = run("--log", tmp_path / "nowhere", "--keep", tmp_path / "other")
    assert (code, "no file and no folder" in told) == (NOT_UNDERSTOOD, True)


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

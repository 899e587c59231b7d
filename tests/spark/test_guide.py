"""The guide to Spark is true: its examples run, in order, and print what it says."""

from __future__ import annotations

from pathlib import Path

from pages import run_blocks

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"


def test_every_block_of_the_guide_runs(spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_blocks(PAGE)

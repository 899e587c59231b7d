"""The bench of Spark plans reads of very many parts: it runs, with few parts, and tells what a plan took."""

from __future__ import annotations

from bench import spark as bench_spark
from bench import spark_plans

OURS = bench_spark.OURS


def test_planning_is_measured_against_its_aim(tmp_path, spark, monkeypatch):
    for module in (spark_plans, bench_spark):
        monkeypatch.setattr(module, "PARTS", 100)
    bench = bench_spark.Bench(spark, tmp_path, 10_000, 1)
    bench_spark.planning(bench)
    ours = {each["work"]: each for each in bench.found if each["system"] == OURS}
    assert list(ours) == ["planning of 100 parts", "planning of 100 parts, a slice for each"]
    assert all(each["median"] > 0 for each in ours.values())
    assert "planning of 100 parts | the aim, 1 s |" in bench_spark.markdown(bench.found)

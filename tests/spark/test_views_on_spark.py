"""Views that Spark recomputes, and views that the process keeps, against the answers of Spark."""

import random
import sys
from collections import Counter
from pathlib import Path

import pytest

import timespine as ts

sys.path.insert(0, str(Path(__file__).parent.parent / "views"))
from shapes import SHAPES
from test_view_histories import counted, new_store, plain, step

SOME = ["correlated count", "full", "having", "not in", "except all", "top", "rank", "average", "text"]


def told(spark, store, sql, time):
    for name in ("a", "b"):
        store[name].snapshot(as_of=time).to_spark(spark).createOrReplaceTempView(name)
    return Counter(tuple(map(plain, row)) for row in spark.sql(sql).collect())


def test_what_has_no_rule_is_recomputed_on_spark_and_says_so(spark, tmp_path):
    sql = "SELECT g, regexp_replace(s, 'x', 'y') AS t, count(*) AS n FROM a GROUP BY 1, 2"
    rng = random.Random(3)
    with new_store(tmp_path / "store") as store:
        view = store.view("odd", sql=sql, key=["g", "t"], spark=spark)
        assert view.definition.mode == "spark"
        assert "regexp_replace" in view.explain()
        for _ in range(2):
            step(rng, store)
            done = view.refresh()
            assert (done.engine, "regexp_replace" in done.why) == ("spark", True)
            assert counted(view.snapshot(multiplicity="column")) == told(spark, store, sql, done.time)
        assert view.verify().is_exact
        before = view.upper
        step(rng, store)
        with pytest.raises(ts.UnsupportedView):
            store.view("strict", sql=sql, policy="incremental", spark=spark)
        assert view.upper == before


def test_views_of_the_process_are_what_spark_answers(spark, tmp_path):
    rng = random.Random(11)
    with new_store(tmp_path / "store") as store:
        views = {name: store.view(f"v{i}", sql=SHAPES[name], policy="incremental") for i, name in enumerate(SOME)}
        for _ in range(2):
            step(rng, store)
            (time,) = {each.time for each in store.refresh().values()}
            for name, view in views.items():
                assert counted(view.snapshot(multiplicity="column")) == told(spark, store, SHAPES[name], time), name

"""Views on Spark: changes from changes, first builds by tasks, the comparison at creation, functions of DataFrames."""

import random
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

import timespine as ts
from timespine.spark.write import driver_or_tasks
from timespine.views.refresh import choose_engine, compute_on_spark, refresh_one_view, refresh_views
from timespine.views.spark_engine import evaluate, source
from timespine.views.spark_engine.session import borrowed
from timespine.views.sql import from_sql

sys.path.insert(0, str(Path(__file__).parent.parent / "views"))
from test_view_histories import answer, counted, new_store, plain, step

GROUPS = "SELECT g, sum(v) AS s, count(*) AS n, min(v) AS lo FROM a GROUP BY g"
JOINED = "SELECT a.k, b.k AS bk, a.v FROM a LEFT JOIN b ON a.g = b.g"


def told(spark, store, sql, time):
    for name in ("a", "b"):
        store[name].snapshot(as_of=time).to_spark(spark).createOrReplaceTempView(name)
    return Counter(tuple(map(plain, row)) for row in spark.sql(sql).collect())


def stage_rows(store, view, time):
    stage = next(name for name in store.names(hidden=True) if name.startswith(f"timespine.stage.{view.id}"))
    return counted(store[stage].snapshot(as_of=time, multiplicity="column"))


def stages_rows(store, view, time):
    names = [name for name in store.names(hidden=True) if name.startswith(f"timespine.stage.{view.id}")]
    assert len(names) == 2
    return [counted(store[name].snapshot(as_of=time, multiplicity="column")) for name in sorted(names)]


# Changes from changes.


@pytest.mark.parametrize("lookup_rows", [50_000, 0])
def test_both_engines_make_the_same_changes_of_views_and_stages(spark, tmp_path, monkeypatch, lookup_rows):
    """With few changes the driver looks up what they touch; with many (here: more than none) rows stay on Spark."""
    monkeypatch.setattr(source, "LOOKUP_ROWS", lookup_rows)
    rng = random.Random(7)
    with new_store(tmp_path / "store") as store:
        sums = store.view("sums", sql=GROUPS)
        twin = store.view("twin", sql=GROUPS)
        joined = store.view("joined", sql=JOINED)
        for number in range(2):
            for _ in range(3):
                step(rng, store)
            on_spark = store.refresh(["sums", "joined"], spark=spark, engine="spark" if number else None)
            if number:
                assert {(each.engine, each.how) for each in on_spark.values()} == {("spark", "changes")}
            time = on_spark["sums"].time
            twin.refresh(engine="process")
            assert counted(sums.snapshot(multiplicity="column")) == answer(store, GROUPS, time)
            assert counted(joined.snapshot(multiplicity="column")) == answer(store, JOINED, time)
            assert stage_rows(store, sums, time) == stage_rows(store, twin, time)


def test_plans_do_not_double_with_every_join_and_nothing_stays_in_spark(spark, tmp_path, monkeypatch):
    """Each step of a join has the step below it twice: joined, and as the keys that restrict the next input."""
    monkeypatch.setattr(source, "LOOKUP_ROWS", 0)
    lengths = []
    whole = compute_on_spark.settled

    def settled(frame, keep):
        lengths.append(len(frame._jdf.queryExecution().logical().toString()))
        return whole(frame, keep)

    monkeypatch.setattr(compute_on_spark, "settled", settled)
    joins = " ".join(f"JOIN {'ba'[i % 2]} t{i} ON t{i - 1}.{'gk'[i % 2]} = t{i}.{'gk'[i % 2]}" for i in range(1, 4))
    sql = f"SELECT t0.g, t3.v, count(*) AS n FROM a t0 {joins} GROUP BY t0.g, t3.v"
    rng = random.Random(5)
    with new_store(tmp_path / "store") as store:
        view = store.view("chain", sql=sql)
        for _ in range(3):
            step(rng, store)
        kept = spark.sparkContext._jsc.getPersistentRDDs().size()
        done = view.refresh(engine="spark", spark=spark)
        assert (done.engine, done.how) == ("spark", "changes")
        assert counted(view.snapshot(multiplicity="column")) == answer(store, sql, done.time)
        assert spark.sparkContext._jsc.getPersistentRDDs().size() == kept
    assert max(lengths) < 10_000


def test_expressions_beyond_the_list_of_the_process_are_incremental_on_spark(spark, tmp_path):
    sql = "SELECT g, regexp_replace(s, 'x', 'y') AS t, count(*) AS n, stddev(v) AS d FROM a GROUP BY 1, 2"
    rng = random.Random(3)
    with new_store(tmp_path / "store") as store:
        view = store.view("odd", sql=sql, key=["g", "t"], policy="incremental_strict", spark=spark)
        assert view.definition.mode == "incremental"
        for _ in range(3):
            step(rng, store)
        done = view.refresh()
        assert (done.engine, done.how, "regexp_replace" in done.why) == ("spark", "changes", True)
        assert counted(view.snapshot(multiplicity="column")) == told(spark, store, sql, done.time)
        before = view.upper
        step(rng, store)
        again = store.view("odd")  # without a session: its plan is known all the same
        with pytest.raises(ts.UsageError, match="only Spark"):
            again.refresh(engine="process")
        assert view.upper == before


def test_the_driver_computes_what_is_on_the_list_below_what_only_spark_computes(spark, tmp_path, monkeypatch):
    """A join below a function that only Spark has, and a stage with such a function over a stage without."""
    joined = []
    whole = evaluate.join_frames
    monkeypatch.setattr(evaluate, "join_frames", lambda *given: joined.append(given[0]) or whole(*given))
    texts = {
        "pairs": "SELECT a.k, b.v, soundex(a.s) AS x FROM a JOIN b ON a.g = b.g",
        "groups": "SELECT n, min(soundex(s)) AS lo FROM (SELECT g, s, count(*) AS n FROM a GROUP BY g, s) GROUP BY n",
    }
    rng = random.Random(11)
    with new_store(tmp_path / "store") as store:
        for name, sql in texts.items():
            for engine in ("driver", "spark"):
                store.view(f"{name}_{engine}", sql=sql, policy="incremental", spark=spark, check=False)
        for _ in range(3):
            step(rng, store)
        joined.clear()
        done = store.refresh(["pairs_driver", "groups_driver"], spark=spark)
        assert {(each.engine, each.how, "soundex" in each.why) for each in done.values()} == {
            ("spark", "changes", True)
        }
        assert joined == []
        store.refresh(["pairs_spark", "groups_spark"], spark=spark, engine="spark")
        assert joined
        for name, sql in texts.items():
            one, two = store.view(f"{name}_driver"), store.view(f"{name}_spark")
            time = one.upper.time - 1
            expected = told(spark, store, sql, time)
            assert counted(one.snapshot(multiplicity="column")) == expected
            assert counted(two.snapshot(multiplicity="column")) == expected
            if name == "groups":
                assert stages_rows(store, one, time) == stages_rows(store, two, time)


def test_what_the_process_declines_goes_to_spark_and_says_so(spark, tmp_path):
    with ts.open(tmp_path / "store") as store:
        names = store.create("names", key={"k": "int64"}, value={"s": "string"}, timeline="counter")
        names.append([{"k": 1, "s": "ab"}])
        view = store.view("upper", sql="SELECT k, upper(s) AS u FROM names", policy="incremental")
        names.append([{"k": 2, "s": "straße"}])
        with pytest.raises(ts.UsageError, match="ASCII"):
            view.refresh(engine="process")
        done = view.refresh(spark=spark)
        assert (done.engine, done.how) == ("spark", "changes")
        assert "the process declined" in done.why
        assert {row["u"] for row in view.snapshot().to_pylist()} == {"AB", "STRASSE"}


def test_what_has_no_rule_is_recomputed_on_spark_and_says_so(spark, tmp_path):
    sql = "SELECT g, v, sum(v) OVER () AS n FROM a"
    rng = random.Random(3)
    with new_store(tmp_path / "store") as store:
        view = store.view("odd", sql=sql, spark=spark)
        assert view.definition.mode == "spark"
        step(rng, store)
        done = view.refresh()
        assert (done.engine, done.how, "PARTITION BY" in done.why) == ("spark", "whole", True)
        assert counted(view.snapshot(multiplicity="column")) == told(spark, store, sql, done.time)
        assert view.verify().is_exact
        with pytest.raises(ts.UnsupportedView):
            store.view("strict", sql=sql, policy="incremental", spark=spark)


def test_the_session_of_the_caller_keeps_its_settings_and_names(spark, tmp_path):
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        with new_store(tmp_path / "store") as store:
            before = {each.name for each in spark.catalog.listTables()}
            view = store.view("odd", sql="SELECT k, soundex(s) AS x FROM a", spark=spark)
            with pytest.raises(ts.UsageError, match="Spark says"):
                store.view("zero", sql="SELECT k, v / (v - v) AS h, soundex(s) AS x FROM a", spark=spark)
            assert len(view.snapshot().to_pylist()) == 2
            assert spark.conf.get("spark.sql.ansi.enabled") == "false"
            assert {each.name for each in spark.catalog.listTables()} == before
            with borrowed(spark) as inner:
                assert inner.conf.get("spark.sql.ansi.enabled") == "true"
    finally:
        spark.conf.set("spark.sql.ansi.enabled", "true")


# Many rows.


@pytest.fixture
def many(spark, tmp_path, monkeypatch):
    """A store with rows whose results are many: tasks write them."""
    monkeypatch.setattr(driver_or_tasks, "SMALL_ROWS", 20)
    monkeypatch.setattr(choose_engine, "_BASE_S", {"process": 1e6, "spark": 0.6})
    monkeypatch.setattr(refresh_one_view, "read_took", lambda *_: {})  # how busy the machine is decides nothing
    # A merge in the background could put changes and older rows into one part, and sizes are estimated by parts.
    with ts.open(tmp_path / "store", maintenance=False) as store:
        rows = store.create("a", key={"k": "int64"}, value={"g": "int64", "x": "double"}, timeline="counter")
        rows.append([{"k": k, "g": None if k % 50 == 0 else k % 40, "x": k / 7} for k in range(400)])
        yield store


MANY = "SELECT g, count(*) AS n, sum(x) AS s FROM a GROUP BY g"


def test_tasks_write_first_builds_and_changes_of_many_rows_with_null_keys(spark, many):
    view = many.view("sums", sql=MANY, key=["g"], spark=spark)
    assert len(view.snapshot().to_pylist()) == 41
    assert view.history()[-1].rows == 41
    assert many.view("same", sql=MANY, key=["g"]).snapshot().to_arrow().sort_by(
        "g"
    ) == view.snapshot().to_arrow().sort_by("g")
    many["a"].append([{"k": 1000 + k, "g": k % 41, "x": 0.5} for k in range(100)])
    done = many.refresh(spark=spark)["sums"]
    assert (done.engine, done.how, done.changes > 20) == ("spark", "changes", True)
    assert view.verify().is_exact
    many["a"].upsert([{"k": k, "g": k % 7, "x": 0.25} for k in range(400)])
    done = view.refresh()
    assert (done.engine, done.how, "computed whole" in done.why) == ("spark", "whole", True)
    assert view.verify().is_exact


def test_the_active_session_is_the_callers_after_a_refresh(spark, many):
    active = spark.getActiveSession()
    assert active is not None
    view = many.view("sums", sql=MANY, key=["g"], spark=spark)
    many["a"].append([{"k": 1000 + k, "g": k % 41, "x": 0.5} for k in range(100)])
    view.refresh()
    assert spark.getActiveSession() is active
    with borrowed(spark) as other:
        other.createDataFrame([(1,)], "n int")
        assert spark.getActiveSession() is other
    assert spark.getActiveSession() is active


def test_a_key_that_does_not_identify_many_rows_is_refused_and_leaves_nothing(spark, many):
    with pytest.raises(ts.UsageError, match="does not identify"):
        many.view("bad", sql="SELECT g, k FROM a", key=["g"], spark=spark)
    assert many.views() == []
    assert many.names(hidden=True) == ["a", "timespine.views"]


def test_a_view_that_was_created_and_not_built_is_built_by_its_next_refresh(spark, many, monkeypatch):
    from timespine.views import build

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "_fill", killed)
    monkeypatch.setattr(build, "drop_view", killed)
    with pytest.raises(KeyboardInterrupt):
        many.view("sums", sql=MANY, key=["g"], spark=spark)
    monkeypatch.undo()
    view = many.view("sums", spark=spark)
    assert view.upper.time == 0
    done = view.refresh()
    assert (done.how, done.why) == ("whole", "it was created and not built yet")
    assert len(view.snapshot().to_pylist()) == 41
    assert view.verify().is_exact


# The comparison at creation.


def test_a_plan_that_differs_from_sparks_answer_is_refused_with_both_counts(spark, tmp_path, monkeypatch):
    whole = from_sql.Builder._limit

    def one_less(self, limit):
        return whole(self, limit) - 1

    monkeypatch.setattr(from_sql.Builder, "_limit", one_less)
    sql = "SELECT k, v FROM a ORDER BY k, v LIMIT 2"
    with new_store(tmp_path / "store") as store:
        with pytest.raises(ts.UnsupportedView, match=r"its plan gives 1 rows, and Spark 2.*policy='full'"):
            store.view("top", sql=sql, spark=spark)
        assert store.views() == []
        assert len(store.view("top", sql=sql, spark=spark, check=False).snapshot().to_pylist()) == 1


def test_a_full_view_whose_plan_differs_is_computed_from_its_text_by_spark(spark, tmp_path, monkeypatch):
    whole = from_sql.Builder._limit
    monkeypatch.setattr(from_sql.Builder, "_limit", lambda self, limit: whole(self, limit) - 1)
    sql = "SELECT k, v FROM a ORDER BY k, v LIMIT 2"
    with new_store(tmp_path / "store") as store:
        view = store.view("top", sql=sql, policy="full", spark=spark)
        right = store.view("all", sql="SELECT k, v FROM a", policy="full", spark=spark)
        assert (view.definition.mode, right.definition.mode) == ("spark", "process")
        assert "its plan gives 1 rows, and Spark 2" in view.explain()
        assert len(view.snapshot().to_pylist()) == 2
        store["a"].append([{"k": 0, "g": 1, "v": 7, "s": None}])
        store.seal(["b"], store["a"].upper)
        done = store.refresh(spark=spark)["top"]
        assert (done.engine, done.how, "its plan gives" in done.why) == ("spark", "whole", True)
        assert sorted(row["k"] for row in view.snapshot().to_pylist()) == [0, 1]
        view.rebuild()
        assert view.definition.mode == "spark"
        assert len(view.snapshot().to_pylist()) == 2


def test_verify_compares_with_sparks_answer_to_the_text_and_not_with_the_plan(spark, tmp_path, monkeypatch):
    whole = from_sql.Builder._limit
    with new_store(tmp_path / "store") as store:
        store["a"].append([{"k": 3, "g": 1, "v": 2, "s": None}])
        store.seal(["b"], store["a"].upper)
        monkeypatch.setattr(from_sql.Builder, "_limit", lambda self, limit: whole(self, limit) - 1)
        for policy in ("incremental", "full"):
            sql = "SELECT k, v FROM a ORDER BY k, v LIMIT 2"
            view = store.view(f"top_{policy}", sql=sql, policy=policy, spark=spark, check=False)
            found = view.verify()
            assert (found.is_exact, found.missing, found.extra, found.rows) == (False, 1, 0, 1)
        tied = store.view("tied", sql="SELECT v, k FROM a ORDER BY v LIMIT 2", check=False, spark=spark)
        assert tied.verify().missing == 1, "the number of rows is decided"
        monkeypatch.undo()
        tied = store.view("tied2", sql="SELECT v, k FROM a ORDER BY v LIMIT 1", spark=spark)
        assert tied.verify().is_exact
        assert tied.snapshot().to_pylist() == [{"v": 2, "k": 2}]
        sums = store.view("sums", sql=GROUPS, spark=spark)
        assert sums.verify(spark=spark).is_exact


def test_sums_of_doubles_and_open_ties_are_no_difference(spark, tmp_path):
    with ts.open(tmp_path / "store") as store:
        rows = store.create("a", key={"k": "int64"}, value={"g": "int64", "x": "double"}, timeline="counter")
        rows.append([{"k": k, "g": k % 2, "x": 1e16 if k == 4 else 0.1} for k in range(20)])
        store.view("sums", sql="SELECT g, sum(x) AS s, avg(x) AS m FROM a GROUP BY g", spark=spark)
        store.view("top", sql="SELECT g, k FROM a ORDER BY g LIMIT 3", spark=spark)
        assert len(store.views()) == 2


# Functions of DataFrames.


def test_a_function_of_dataframes_is_a_view_that_spark_computes_whole(spark, tmp_path):
    def joined(tables):
        return tables["a"].join(tables["b"], "g").groupBy("g").count()

    with new_store(tmp_path / "store") as store:
        view = store.view("pairs", frame=joined, inputs=["a", "b"], key=["g"], spark=spark)
        store["b"].append([{"k": 9, "g": 1, "v": 1}])
        store.seal(["a", "b"], max(store["a"].upper.time, store["b"].upper.time), if_behind="ignore")
        done = view.refresh()
        assert (done.engine, done.how, done.changes) == ("spark", "whole", 2)
        assert view.snapshot().to_pylist() == [{"g": 1, "count": 3}]
        assert view.verify().is_exact
        store.view("sums", sql=GROUPS)
        with pytest.raises(ts.UsageError, match="is a SELECT"):
            store.view("sums", frame=joined)
        with pytest.raises(ts.UsageError, match="give sql"):
            store.view("both", sql=GROUPS, frame=joined)
    with ts.open(tmp_path / "store") as store:
        with pytest.raises(ts.UsageError, match="which this process does not know"):
            store.refresh(["pairs"], spark=spark)
        assert store.view("pairs", frame=joined, spark=spark).refresh().engine == "none"


def _last_of_chain(tables):
    return tables["sums"].selectExpr("g", "s * 2 AS twice", "n")


CHAIN = {
    "sums": "SELECT g, sum(v) AS s, count(*) AS n FROM a GROUP BY g",
    "shares": "SELECT g, s, sum(n) OVER () AS whole FROM sums",
    "above": "SELECT whole, count(*) AS n FROM shares GROUP BY whole",
    "other": "SELECT k, v FROM b",
}


@pytest.mark.parametrize("small_rows", [50_000, 0])
def test_a_chain_through_views_that_spark_computes_whole_is_one_commit_at_one_time(
    spark, tmp_path, monkeypatch, small_rows
):
    """Stored rows and pending changes of a view below, also where tasks hold these changes."""
    commits = []
    whole = refresh_views._commit
    monkeypatch.setattr(refresh_views, "_commit", lambda *given: commits.append(given[1]) or whole(*given))
    rng = random.Random(23)
    with new_store(tmp_path / "store") as store:
        views = {name: store.view(name, sql=sql, spark=spark) for name, sql in CHAIN.items()}
        views["last"] = store.view("last", frame=_last_of_chain, inputs=["sums"], spark=spark)
        assert [name for name, view in views.items() if view.definition.mode == "spark"] == ["shares", "last"]
        for engine in ("spark", None):
            step(rng, store)
            commits.clear()
            done = store.refresh(spark=spark) if engine is None else _refreshed_on_spark(store, spark)
            assert [len(works) for works in commits] == [5]
            (time,) = {each.time for each in done.values()}
            assert {view.upper.time for view in views.values()} == {time + 1}
            for name in ("a", "b", "sums", "shares"):
                store[name].snapshot(as_of=time).to_spark(spark).createOrReplaceTempView(name)
            for name, sql in {**CHAIN, "last": "SELECT g, s * 2 AS twice, n FROM sums"}.items():
                expected = Counter(tuple(map(plain, row)) for row in spark.sql(sql).collect())
                assert counted(views[name].snapshot(as_of=time, multiplicity="column")) == expected, name
            assert {done["shares"].how, done["last"].how} == {"whole"}


def _refreshed_on_spark(store, spark):
    return refresh_views.refresh_together(store, None, None, spark, "spark")


# The choice.


def test_sizes_decide_and_past_refreshes_correct(spark, tmp_path, monkeypatch):
    with new_store(tmp_path / "store") as store:
        view = store.view("sums", sql=GROUPS, spark=spark)
        store["a"].append([{"k": 100, "g": 1, "v": 1, "s": None}])
        store.seal(["a", "b"], store["a"].upper, if_behind="ignore")
        done = view.refresh()
        assert (done.engine, "in the process" in done.why) == ("process", True)
        monkeypatch.setattr(choose_engine, "_BASE_S", {"process": 1e6, "spark": 0.6})
        store["a"].append([{"k": 101, "g": 1, "v": 1, "s": None}])
        store.seal(["a", "b"], store["a"].upper, if_behind="ignore")
        done = view.refresh()
        assert (done.engine, done.how) == ("spark", "whole")  # one of three rows changed
        from timespine.views.refresh.refresh_costs import read_took

        assert set(read_took(store, view.id)) == {"process", "spark whole"}
        store.drop("sums")
        assert store.names(hidden=True) == ["a", "b", "timespine.views"]


def test_sums_of_doubles_on_spark_are_exact(spark, tmp_path):
    values = [5.0, 1e300, -1e300, 0.1, 0.2, 1e-300, None]
    with ts.open(tmp_path / "store") as store:
        rows = store.create("a", value={"g": "int64", "x": "double"}, timeline="counter")
        rows.append(pa.table({"g": [1] * 7 + [2] * 3, "x": [*values, float("nan"), 1.0, None]}))
        view = store.view("sums", sql="SELECT g, sum(x) AS s FROM a GROUP BY g", key=["g"])
        rows.append([{"g": 1, "x": 1e300}, {"g": 3, "x": float("inf")}])
        assert view.refresh(engine="spark", spark=spark).engine == "spark"
        got = {row["g"]: row["s"] for row in view.snapshot().to_pylist()}
        assert (got[1], got[3]) == (1e300, float("inf"))
        assert got[2] != got[2]
        rows.append([{"g": 1, "x": -1e300}])
        view.refresh(engine="spark", spark=spark)
        assert {row["g"]: row["s"] for row in view.snapshot().to_pylist()}[1] == 5.3


def test_exact_sums_of_doubles_are_the_same_on_both_engines(spark, tmp_path):
    sql = "SELECT g, sum(x) AS s, avg(x) AS m FROM a GROUP BY g"
    values = [0.1, 1e300, -1e300, 5e-324, -0.0, float("nan"), float("inf"), float("-inf"), None]
    rng = random.Random(29)
    with ts.open(tmp_path / "store") as store:
        rows = store.create("a", key={"k": "int64"}, value={"g": "int64", "x": "double"}, timeline="counter")
        rows.append([{"k": k, "g": k % 3, "x": rng.choice(values)} for k in range(12)])
        one, two = store.view("one", sql=sql, spark=spark, check=False), store.view("two", sql=sql)
        for engine in ("spark", "process", "spark"):
            rows.upsert([{"k": rng.randrange(14), "g": rng.randrange(4), "x": rng.choice(values)} for _ in range(3)])
            rows.delete([{"k": rng.randrange(14)}])
            assert one.refresh(engine=engine, spark=spark).how == "changes"
            time = two.refresh(engine="process").time
            assert repr(stage_rows(store, one, time)) != "Counter()"
            assert sorted(map(repr, stage_rows(store, one, time))) == sorted(map(repr, stage_rows(store, two, time)))
            assert sorted(map(repr, one.snapshot().to_pylist())) == sorted(map(repr, two.snapshot().to_pylist()))


def test_the_stream_source_and_dataframes_of_a_view_are_those_of_its_changes(spark, tmp_path):
    with new_store(tmp_path / "store") as store:
        view = store.view("sums", sql="SELECT g, sum(v) AS s FROM a GROUP BY g", key=["g"])
        got = []

        def run():
            stream = spark.readStream.format("timespine").option("readChangeFeed", "true")
            frame = stream.load(f"{store.location}/sums").select("g", "s", "_change_type")
            writer = frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            query = writer.trigger(availableNow=True).foreachBatch(
                lambda rows, _: got.extend(map(tuple, rows.collect()))
            )
            assert query.start().awaitTermination(300)

        run()
        assert sorted(got, key=repr) == [(1, 5, "insert"), (None, 2, "insert")]
        got.clear()
        store["a"].upsert([{"k": 3, "g": 1, "v": 4, "s": None}])
        store["a"].delete([{"k": 2}])
        store.seal(["a", "b"], store["a"].upper, if_behind="ignore")
        view.refresh()
        run()
        assert sorted(got, key=repr) == [(1, 5, "update_preimage"), (1, 9, "update_postimage"), (None, 2, "delete")]
        assert [tuple(row) for row in view.snapshot().to_spark(spark).collect()] == [(1, 9)]

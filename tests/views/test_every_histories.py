"""Views with times='every' are their queries at every time of their inputs, over random histories."""

import random

import pytest
from shapes import SHAPES
from test_view_histories import answer, counted, new_store, row, step

import timespine as ts

NAMES = sorted(SHAPES)


def check_all_times(store, views, since):
    for time in range(since, min(view.upper.time for view in views.values())):
        for name, view in views.items():
            got = counted(view.snapshot(as_of=time, multiplicity="column"))
            assert got == answer(store, SHAPES[name], time), (name, time)


def busy_step(rng, store):
    """Several commits at different times, some of which cancel out, and late rows between them."""
    for _ in range(rng.randrange(1, 4)):
        step(rng, store)
        if rng.random() < 0.5:
            gone = {**row(rng, False), "k": 99}
            store["b"].append([gone])
            store["b"].append([{**gone, "_diff": -1}])
    top = max(store[name].upper.time for name in ("a", "b"))
    store.seal(["a", "b"], top, if_behind="ignore")


@pytest.mark.parametrize("part", range(5))
def test_every_view_is_its_query_at_every_time(tmp_path, part):
    rng = random.Random(part + 50)
    with new_store(tmp_path / "store") as store:
        views = {name: store.view(f"v{i}", sql=SHAPES[name], times="every") for i, name in enumerate(NAMES[part::5])}
        since = max(view.since.time for view in views.values())
        for _ in range(3):
            busy_step(rng, store)
            done = store.refresh()
            assert {each.how for each in done.values()} == {"changes"}
        check_all_times(store, views, max(since, store["a"].since.time, store["b"].since.time))


def test_a_view_on_views_is_exact_at_every_time_where_these_are(tmp_path):
    rng = random.Random(3)
    flat = "SELECT b.k, x.s FROM b JOIN (SELECT g, sum(v) AS s FROM a GROUP BY g) x ON b.g = x.g WHERE x.s > 4"
    with new_store(tmp_path / "store") as store:
        store.view("sums", sql="SELECT g, sum(v) AS s FROM a GROUP BY g", key=["g"], times="every")
        store.view("points", sql="SELECT g, sum(v) AS s FROM a GROUP BY g", key=["g"])
        store.view("big", sql="SELECT g, s FROM sums WHERE s > 4", times="every")
        top = store.view(
            "top",
            sql="SELECT b.k, sums.s FROM b JOIN sums ON b.g = sums.g JOIN big ON big.g = b.g",
            times="every",
        )
        net = store.view("net", sql="SELECT g, s FROM sums WHERE s > 4")
        mixed = store.view("mixed", sql="SELECT b.k, points.s FROM b JOIN points ON b.g = points.g", times="every")
        since = top.since.time
        for number in range(6):
            busy_step(rng, store)
            if number % 3 == 1:
                store.refresh(["sums"])
            store.refresh()
            assert mixed.verify().is_exact
            assert net.verify().is_exact
        for time in range(max(since, store["a"].since.time, store["b"].since.time), top.upper.time):
            assert counted(top.snapshot(as_of=time, multiplicity="column")) == answer(store, flat, time), time
            assert top.verify(as_of=time).is_exact
            assert mixed.verify(as_of=time).is_exact
        assert counted(net.snapshot(multiplicity="column")) == counted(store["big"].snapshot(multiplicity="column"))


def test_sums_of_decimals_and_doubles_are_exact_at_every_time(tmp_path):
    from decimal import Decimal

    sql = "SELECT g, sum(d) AS d, avg(d) AS m, sum(x) AS x, min(d) AS low FROM t GROUP BY g"
    with ts.open(tmp_path / "store") as store:
        store.create(
            "t", key={"k": "int64"}, value={"g": "int64", "d": "decimal(12,2)", "x": "double"}, timeline="counter"
        )
        store["t"].append([{"k": 0, "g": 0, "d": Decimal("1.10"), "x": 5.0}])
        view = store.view("sums", sql=sql, key=["g"], times="every")
        for k, x in enumerate((1e300, -1e300, 0.1, 0.2, 0.3), start=1):
            store["t"].upsert([{"k": k % 4, "g": k % 2, "d": Decimal(f"{k}.37"), "x": x}])
        store["t"].delete({"k": 1})
        assert view.refresh().how == "changes"
        for time in range(view.upper.time):
            assert view.verify(as_of=time).is_exact, time
        assert len({each["_time"] for each in view.updates().to_pylist()}) == view.upper.time


def test_a_key_that_fails_to_identify_rows_for_a_while_is_refused(tmp_path):
    with new_store(tmp_path / "store") as store:
        view = store.view("keyed", sql="SELECT v, g FROM a WHERE v IS NOT NULL", key=["v"], times="every")
        before = view.upper
        store["a"].upsert([{"k": 5, "g": 3, "v": 5, "s": "xa"}])
        store["a"].delete({"k": 5})
        with pytest.raises(ts.UsageError, match="does not identify its rows as of 1"):
            view.refresh()
        assert view.upper == before
        same = store.view("net", sql="SELECT v, g FROM a WHERE v IS NOT NULL", key=["v"])
        assert same.refresh().engine == "none"


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"sql": "SELECT k FROM a", "policy": "full"}, "policy"),
        ({"sql": "SELECT g, skewness(v) AS d FROM a GROUP BY g"}, "skewness"),
    ],
)
def test_what_cannot_be_followed_at_every_time_is_refused(tmp_path, options, what):
    with new_store(tmp_path / "store") as store:
        with pytest.raises(ts.UsageError, match=what):
            store.view("bad", times="every", **options)
        assert store.views() == []


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT g, v FROM n ORDER BY v DESC, g LIMIT 1",
        "SELECT g FROM n EXCEPT ALL SELECT g FROM n WHERE v > 30",
        "SELECT g FROM n INTERSECT SELECT g FROM n",
        "SELECT g FROM n WHERE g IN (SELECT v FROM n)",
        "SELECT g, v, count(*) OVER (PARTITION BY g) AS c FROM n",
        "SELECT g, v, row_number() OVER (PARTITION BY g ORDER BY v) AS c FROM n",
    ],
)
def test_a_negative_count_at_a_time_in_between_is_refused(tmp_path, sql):
    with ts.open(tmp_path / "store", maintenance=False) as store:
        rows = store.create("n", value={"g": "int64", "v": "int64"}, timeline="counter")
        rows.append([{"g": 1, "v": 1}, {"g": 2, "v": 5}])
        view = store.view("v", sql=sql, times="every")
        before = view.snapshot().to_pylist()
        rows.append([{"g": 7, "v": 9, "_diff": -1}])
        rows.append([{"g": 7, "v": 9, "_diff": 1}])
        with pytest.raises(ts.UsageError, match="rows of n has a negative count"):
            view.refresh()
        assert view.snapshot().to_pylist() == before

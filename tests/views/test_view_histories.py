"""Views equal their queries at every refresh point, over random histories: DuckDB answers the same text."""

import functools
import random
from collections import Counter

import duckdb
import pytest
from shapes import SHAPES

import timespine as ts

NAMES = sorted(SHAPES)


def value(rng, limit):
    return None if rng.random() < 0.15 else rng.randrange(limit)


def row(rng, with_text):
    made = {"k": rng.randrange(8), "g": value(rng, 4), "v": value(rng, 7)}
    return {**made, "s": rng.choice([None, "xa", "xyz", "ay1", "b"])} if with_text else made


def step(rng, store):
    """Change the inputs at random: rows come, change, go, come late; history is expired and compacted."""
    a, b = store["a"], store["b"]
    with store.transaction() as tx:
        if rng.random() < 0.8:
            tx.upsert("a", list({r["k"]: r for r in (row(rng, True) for _ in range(rng.randrange(4)))}.values()))
        else:
            tx.delete("a", [{"k": rng.randrange(8)}])
        rows = [{**row(rng, False), "_diff": 1} for _ in range(rng.randrange(3))]
        tx.append("b", rows + [{**each, "_diff": -1} for each in b.snapshot().to_pylist()[: rng.randrange(2)]])
    if rng.random() < 0.4:
        late = b.upper.time + rng.randrange(2)
        b.write([row(rng, False)], at=late)
    top = max(a.upper.time, b.upper.time) + rng.randrange(2)
    store.seal(["a", "b"], top, if_behind="ignore")
    if rng.random() < 0.3:
        rng.choice([a, b]).compact(wait=True)
    if rng.random() < 0.3:
        a.expire(a.upper.time - 2)
        b.expire(b.upper.time - 2)
        store.maintain()


def answer(store, sql, time):
    tables = {name: store[name].snapshot(as_of=time).to_arrow() for name in ("a", "b")}
    return answer_over(tables, sql)


@functools.cache
def database():
    """A database in memory for all answers of this process: it takes longer to open than to answer."""
    return duckdb.connect(config={"threads": 1})


def answer_over(tables, sql):
    connection = database()
    for name, table in tables.items():
        connection.register(name, table)
    return Counter(tuple(map(plain, each)) for each in connection.execute(sql).fetchall())


def plain(value):
    return round(value, 9) if isinstance(value, float) else value


def counted(rows):
    """Return rows with their counts, each of which is positive; rows that differ in their last digits are added up."""
    names = [name for name in rows.schema.names if name != "_diff"]
    found = Counter()
    for each in rows.to_pylist():
        assert each["_diff"] > 0, each
        found[tuple(plain(each[name]) for name in names)] += each["_diff"]
    return found


def new_store(path):
    store = ts.open(path)
    columns = {"g": "int64", "v": "int64"}
    store.create("a", key={"k": "int64"}, value={**columns, "s": "string"}, timeline="counter")
    store.create("b", value={"k": "int64", **columns}, timeline="counter")
    with store.transaction() as tx:
        tx.append("a", [{"k": 1, "g": 1, "v": 5, "s": "xa"}, {"k": 2, "g": None, "v": 2, "s": None}])
        tx.append("b", [{"k": 1, "g": 1, "v": 3}, {"k": 1, "g": 1, "v": 3}])
    return store


@pytest.mark.parametrize("part", range(5))
def test_every_view_is_its_query_at_every_refresh_point(tmp_path, part):
    rng = random.Random(part)
    chosen = NAMES[part::5]
    with new_store(tmp_path / "store") as store:
        views = {name: store.view(f"v{i}", sql=SHAPES[name], policy="incremental") for i, name in enumerate(chosen)}
        points = {}
        for _ in range(4):
            step(rng, store)
            done = store.refresh()
            (time,) = {each.time for each in done.values()}
            assert {each.how for each in done.values()} == {"changes"}
            points[time] = {name: answer(store, SHAPES[name], time) for name in chosen}
            for name, view in views.items():
                assert counted(view.snapshot(as_of=time, multiplicity="column")) == points[time][name], (name, time)
        for time, answers in points.items():
            for name, view in views.items():
                assert counted(view.snapshot(as_of=time, multiplicity="column")) == answers[name], (name, time)
                assert view.verify(as_of=points and max(points)).is_exact


def test_views_refreshed_at_different_times_meet(tmp_path):
    """One view follows each step, another only now and then: both are their query."""
    rng = random.Random(99)
    sql = SHAPES["joined groups"]
    with new_store(tmp_path / "store") as store:
        often, seldom = store.view("often", sql=sql), store.view("seldom", sql=sql)
        whole = store.view("whole", sql=sql, policy="full")
        for number in range(12):
            step(rng, store)
            often.refresh()
            if number % 4 == 3:
                assert seldom.refresh().time == often.upper.time - 1
                assert whole.refresh().how == "whole"
                expected = answer(store, sql, often.upper.time - 1)
                for view in (often, seldom, whole):
                    assert counted(view.snapshot(multiplicity="column")) == expected


def test_a_view_on_views_is_handed_their_changes(tmp_path):
    rng = random.Random(5)
    with new_store(tmp_path / "store") as store:
        store.view("sums", sql="SELECT g, sum(v) AS s FROM a GROUP BY g", key=["g"])
        store.view("big", sql="SELECT g, s FROM sums WHERE s > 4")
        top = store.view("top", sql="SELECT b.k, sums.s FROM b JOIN sums ON b.g = sums.g JOIN big ON big.g = b.g")
        flat = "SELECT b.k, x.s FROM b JOIN (SELECT g, sum(v) AS s FROM a GROUP BY g) x ON b.g = x.g WHERE x.s > 4"
        for number in range(10):
            step(rng, store)
            if number % 3 == 1:
                store.refresh(["sums"])
            done = store.refresh()
            assert len({each.time for each in done.values()}) == 1
            assert counted(top.snapshot(multiplicity="column")) == answer(store, flat, done["top"].time)

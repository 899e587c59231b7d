"""Views over doubles with NaN, both zeros and nulls are their queries after random changes, worked out naively."""

import functools
import math
import random
from collections import Counter

import pytest

import timespine as ts

NAN, INF = float("nan"), math.inf
VALUES = [None, 0.0, -0.0, NAN, -NAN, 1.5, -2.5, INF, -INF]


@pytest.fixture
def store(tmp_path):
    with ts.open(tmp_path / "store") as made:
        columns = {"g": "int64", "x": "double", "y": "float"}
        made.create("a", key={"k": "int64"}, value=columns, timeline="counter")
        made.create(
            "n",
            key={"k": "int64"},
            value={"x": "double", "l": "array<double>", "t": "struct<u:double>"},
            timeline="counter",
        )
        made.seal(["a", "n"], 1)
        yield made


def order(one, other):
    """Compare as Spark does: NaN is the greatest number, and both zeros are equal."""
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) - math.isnan(other)
    return (one > other) - (one < other)


def shown(value):
    """Tell doubles apart as Spark groups them."""
    if isinstance(value, list | tuple):
        return tuple(map(shown, value))
    if isinstance(value, dict):
        return tuple(map(shown, value.values()))
    return str(value + 0.0) if isinstance(value, float) else value


def counted(view):
    found = Counter()
    for row in view.snapshot(multiplicity="column").to_pylist():
        found[tuple(shown(each) for name, each in row.items() if name != "_diff")] += row["_diff"]
    return found


def picked(pick, values):
    there = [each for each in values if each is not None]
    return pick(there, key=functools.cmp_to_key(order)) if there else None


def extremes(rows):
    groups = {}
    for row in rows:
        groups.setdefault(row["g"], []).append(row)
    found = Counter()
    for g, members in groups.items():
        xs, ys = [each["x"] for each in members], [each["y"] for each in members]
        big = [each["x"] for each in members if each["k"] > 2]
        made = (picked(min, xs), picked(max, xs), picked(min, ys), picked(max, ys), picked(max, big))
        found[(g, *map(shown, made))] += 1
    return found


@pytest.mark.parametrize("times", ["refresh", "every"])
@pytest.mark.parametrize("seed", range(4))
def test_the_least_and_the_greatest_of_doubles_are_those_of_spark(store, seed, times):
    rng = random.Random(seed)
    taken = "min(x) AS a, max(x) AS b, min(y) AS c, max(y) AS d, max(x) FILTER (WHERE k > 2) AS e"
    sql = f"SELECT g, {taken} FROM a GROUP BY g"
    view = store.view("v", sql=sql, policy="incremental", times=times)
    for _ in range(12):
        made = [{"k": k, "g": rng.randrange(3), "x": rng.choice(VALUES), "y": rng.choice(VALUES)} for k in range(6)]
        store["a"].upsert(rng.sample(made, rng.randrange(1, 4)))
        if rng.random() < 0.4:
            store["a"].delete([{"k": rng.randrange(6)}])
        assert view.refresh().how == "changes"
        assert counted(view) == extremes(store["a"].snapshot().to_pylist())
    assert view.verify().is_exact


def test_the_greatest_of_all_doubles_is_no_longer_nan_when_nan_is_retracted(store):
    view = store.view("v", sql="SELECT min(x) AS a, max(x) AS b, count(*) AS n FROM a")
    for x, told in [(NAN, ("nan", "nan", 1)), (2.0, ("2.0", "nan", 2)), (-0.0, ("0.0", "nan", 3))]:
        store["a"].append([{"k": told[-1], "g": 1, "x": x}])
        view.refresh()
        assert counted(view) == Counter([told])
    store["a"].delete([{"k": 1}])
    view.refresh()
    assert counted(view) == Counter([("0.0", "2.0", 2)])


@pytest.mark.parametrize("seed", range(4))
def test_union_all_keeps_doubles_and_nested_values_with_their_counts(store, seed):
    rng = random.Random(seed)
    view = store.view(
        "v", sql="SELECT x, l, t FROM n UNION ALL SELECT x, l, t FROM n WHERE k > 2", policy="incremental"
    )
    for _ in range(8):
        made = [
            {
                "k": k,
                "x": rng.choice(VALUES),
                "l": rng.choice([None, [], [1.5], [NAN, None]]),
                "t": rng.choice([None, {"u": NAN}, {"u": None}]),
            }
            for k in range(6)
        ]
        store["n"].upsert(rng.sample(made, 3))
        store["n"].delete([{"k": rng.randrange(6)}])
        assert view.refresh().how == "changes"
        rows = store["n"].snapshot().to_pylist()
        both = [(row["x"], row["l"], row["t"]) for row in [*rows, *(row for row in rows if row["k"] > 2)]]
        assert counted(view) == Counter(map(shown, both))
    assert view.verify().is_exact

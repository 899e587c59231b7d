"""Variances and their like: compared with fractions, and the same bits for every order and every way that rows came."""

import math
import random
import struct
from fractions import Fraction

import polars as pl
import pyarrow as pa
import pytest

import timespine as ts
from timespine.views.engine import accumulators
from timespine.views.engine.accumulators import Grouping
from timespine.views.engine.exact_spreads import PAIRED, SPREADS, spread_of, spread_parts
from timespine.views.engine.lowering import WEIGHT, Declined
from timespine.views.plan.algebra import Aggregate, AggregateCall, InputScan
from timespine.views.plan.expressions import Call, PlanColumn

DOUBLE = pa.float64()
EDGES = [0.0, -0.0, 5e-324, -5e-324, 2.0**-1022, 1e149, -1e149, 1e16, 1e16 + 2, 1.0, 0.1, -0.1, 1 / 3]
SPECIAL = [math.nan, math.inf, -math.inf]
PAIR = pa.struct([("a0", DOUBLE), ("a1", DOUBLE)])


def bits(value):
    return None if value is None else "nan" if math.isnan(value) else struct.pack("<d", value)


def quotient(value):
    """Return the double that is nearest to a fraction."""
    try:
        return value.numerator / value.denominator
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def told(function, rows):
    """Work an aggregate of rows (x, y, count) out in fractions, by its definition: distances from the mean."""
    there = [(x, y, count) for x, y, count in rows if x is not None and y is not None and count]
    n = sum(count for *_, count in there)
    if n < (1 if function.endswith("_pop") else 2):
        return None
    if not all(math.isfinite(value) for x, y, _ in there for value in (x, y)):
        return math.nan
    x_mean, y_mean = (sum(Fraction(row[at]) * row[2] for row in there) / n for at in (0, 1))
    off = [(Fraction(x) - x_mean, Fraction(y) - y_mean, count) for x, y, count in there]
    together = sum(x * y * count for x, y, count in off)
    if function == "corr":
        of_x, of_y = sum(x * x * count for x, _, count in off), sum(y * y * count for _, y, count in off)
        product = quotient(of_x) * quotient(of_y)
        if not product > 0:
            return None  # so does Spark, which divides by the root of this product
        size = 0.0 if math.isinf(product) else math.sqrt(quotient(together * together / (of_x * of_y)))
        return size if together >= 0 else -size
    made = quotient(together / (n if function.endswith("_pop") else n - 1))
    return math.sqrt(made) if function.startswith("stddev") else made


def grouping_of(function):
    g, x, y = PlanColumn("g", pa.int64()), PlanColumn("x", DOUBLE), PlanColumn("y", DOUBLE)
    argument = Call("struct", (x, y), PAIR) if function in PAIRED else x
    scan = InputScan("t", tuple((each, each.name) for each in (g, x, y)))
    return Grouping(Aggregate(scan, (g,), ((PlanColumn("s", DOUBLE), AggregateCall(function, argument, DOUBLE)),)))


def some_rows(rng, special):
    pool = EDGES + (SPECIAL if special else []) if rng.random() < 0.4 else [rng.uniform(-9, 9) for _ in range(4)]
    pool = [*pool, *pool, None]
    return [(rng.choice(pool), rng.choice(pool), rng.choice([1, 1, 2, 1 << 40])) for _ in range(rng.randrange(1, 12))]


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("function", [*SPREADS, *PAIRED])
def test_a_spread_is_that_of_fractions_in_every_order(function, special):
    rng = random.Random(1)
    grouping = grouping_of(function)
    types = {"g": pl.Int64, "x": pl.Float64, "y": pl.Float64, WEIGHT: pl.Int64}
    for _ in range(60):
        groups = [some_rows(rng, special) for _ in range(3)]
        if function in SPREADS:
            groups = [[(x, x, count) for x, _, count in each] for each in groups]
        data = [(g, *row) for g, each in enumerate(groups) for row in each]
        # A count is as many equal rows; rows that a change retracts are as if they had not been.
        data += [(*row[:3], sign) for row in data[:3] for sign in (1, -1)]
        for _ in range(3):
            rng.shuffle(data)
            shown = grouping.show(grouping.accumulate(pl.DataFrame(data, schema=types, orient="row")))
            got = dict(shown.select("g", "s").rows())
            assert {g: bits(got[g]) for g in got} == {g: bits(told(function, each)) for g, each in enumerate(groups)}


@pytest.mark.parametrize("function", [*SPREADS, *PAIRED])
def test_parts_add_up_however_rows_are_parted(function):
    """Tasks of Spark sum the parts of their own rows."""
    rng = random.Random(2)
    for _ in range(60):
        rows = some_rows(rng, special=False)
        rows = rows if function in PAIRED else [(x, x, count) for x, _, count in rows]
        schema = {"_x": pl.Float64, "_y": pl.Float64, WEIGHT: pl.Int64}
        frame, place = pl.DataFrame(rows, schema=schema, orient="row"), rng.randrange(len(rows))
        parts = pl.concat([spread_parts(each, [], function in PAIRED) for each in (frame[:place], frame[place:])])
        got = spread_of(function, *(parts[name].to_list() for name in ("_t", "_e", "_sum")))
        assert bits(got) == bits(told(function, rows))


QUERIES = {
    "stddev": "SELECT g, stddev(x) AS m FROM t GROUP BY g",
    "var_pop": "SELECT g, var_pop(x) AS m FROM t GROUP BY g",
    "covar": "SELECT g, covar_samp(x, y) AS m FROM t GROUP BY g",
    "corr": "SELECT g, corr(x, y) AS m FROM t GROUP BY g",
    "total": "SELECT stddev_pop(x) AS m, corr(x, y) AS c FROM t",
    "grouped above": "SELECT count(*) AS n, sum(m) AS m FROM (SELECT g, stddev(x) AS m FROM t GROUP BY g) z",
}


@pytest.mark.parametrize("options", [{"times": "refresh"}, {"times": "every"}], ids=lambda each: each["times"])
@pytest.mark.parametrize("seed", range(3))
def test_views_of_spreads_have_no_phantom_rows_and_are_verified(tmp_path, options, seed):
    rng = random.Random(seed)

    def row(k):
        values = {
            "x": rng.choice([0.1, 0.2, 0.7, 1 / 3, rng.random()]),
            "y": rng.choice([0.1, 0.2, None, rng.random()]),
        }
        return {"k": k, "g": rng.randrange(3), **values}

    with ts.open(tmp_path / "store", maintenance=False) as store:
        value = {"g": "int64", "x": "double", "y": "double"}
        t = store.create("t", key={"k": "int64"}, value=value, timeline="counter")
        t.append([row(k) for k in range(40)])
        views = {name: store.view(f"v{at}", sql=sql, **options) for at, (name, sql) in enumerate(QUERIES.items())}
        for _ in range(12):
            for _ in range(rng.choice([1, 3])):
                t.upsert([row(rng.randrange(42))])
            t.delete([{"k": rng.randrange(42)}])
            store.refresh()
            rows = t.snapshot().to_pylist()
            for name, view in views.items():
                got = view.snapshot(multiplicity="column").to_pylist()
                assert all(each["_diff"] == 1 for each in got), (name, got)
                assert view.verify().is_exact, name
            for name, function in (("stddev", "stddev_samp"), ("var_pop", "var_pop"), ("corr", "corr")):
                for each in views[name].snapshot().to_pylist():
                    of = [row for row in rows if row["g"] == each["g"]]
                    values = [(row["x"], row["y"] if name == "corr" else row["x"], 1) for row in of]
                    assert bits(each["m"]) == bits(told(function, values))


def test_changes_of_a_group_are_not_taken_for_its_rows(tmp_path, monkeypatch):
    computed = []
    real = accumulators.exact_spreads
    monkeypatch.setattr(accumulators, "exact_spreads", lambda *each: computed.append(each) or real(*each))
    with ts.open(tmp_path / "store", maintenance=False) as store:
        t = store.create("t", key={"k": "int64"}, value={"g": "int64", "x": "double", "y": "double"})
        t.append([{"k": 0, "g": 1, "x": -3e100, "y": 3e-140}])
        view = store.view("v", sql="SELECT g, corr(x, y) AS c, max(x) AS m FROM t GROUP BY g")
        t.delete([{"k": 0}])
        t.append([{"k": 1, "g": 1, "x": -1e-140, "y": 3e100}, {"k": 2, "g": 1, "x": 1e-80, "y": -1e-140}])
        t.append([{"k": 3, "g": 1, "x": -3e100, "y": 1e100}])
        computed.clear()
        view.refresh()
        assert len(computed) == 1
        assert view.verify().is_exact


def test_a_correlation_of_negative_counts_that_is_too_large_is_declined():
    rows = [(-3e100, 3e-140, -1), (-1e-140, 3e100, 1), (1e-80, -1e-140, 1), (-3e100, 1e100, 1)]
    frame = pl.DataFrame(rows, schema={"_x": pl.Float64, "_y": pl.Float64, WEIGHT: pl.Int64}, orient="row")
    parts = spread_parts(frame, [], True)
    with pytest.raises(Declined, match="negative count"):
        spread_of("corr", *(parts[name].to_list() for name in ("_t", "_e", "_sum")))

"""Exact sums of doubles: compared with fractions, and kept by changes as by all rows."""

import math
import random
import struct
from fractions import Fraction

import polars as pl
import pytest

import timespine as ts
from timespine.views.engine.exact_sums import ExactSum, exact_sums, folded_sums
from timespine.views.engine.lowering import WEIGHT

EDGES = [0.0, -0.0, 5e-324, -5e-324, 2.0**-1022, 1.7976931348623157e308, -1.7976931348623157e308, 1e16, 1.0, 0.1, -0.1]
SPECIAL = [math.nan, math.inf, -math.inf]


def any_double(rng, special):
    if rng.random() < 0.3:
        return rng.choice(EDGES + (SPECIAL if special else []))
    if rng.random() < 0.5:
        return rng.uniform(-1e3, 1e3)
    value = struct.unpack("<d", rng.randbytes(8))[0]
    return value if math.isfinite(value) else 1.5


def told(rows):
    """Return the sum of rows with counts, rounded once."""
    values = [value for value, count in rows if count]
    if any(map(math.isnan, values)) or {math.inf, -math.inf} <= set(values):
        return math.nan
    if any(map(math.isinf, values)):
        return next(value for value in values if math.isinf(value))
    total = sum((Fraction(value) * count for value, count in rows), Fraction())
    try:
        return total.numerator / total.denominator
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def summed(rows):
    frame = pl.DataFrame(
        {"x": [value for value, _ in rows], WEIGHT: [count for _, count in rows]},
        schema={"x": pl.Float64, WEIGHT: pl.Int64},
    )
    return exact_sums(frame, [], "x", "exact", "shown")


@pytest.mark.parametrize("special", [False, True])
def test_a_sum_is_that_of_fractions_rounded_once_and_changes_lead_to_it(special):
    rng = random.Random(1)
    for _ in range(400):
        rows = [(any_double(rng, special), rng.choice([1, 1, 2, 1 << 40])) for _ in range(rng.randrange(1, 12))]
        place = rng.randrange(len(rows))
        gone = [(value, -count) for value, count in rows[place:]]
        one, two, left = summed(rows), summed(gone), summed(rows[:place])
        assert repr(one["shown"][0]) == repr(told(rows) + 0.0)
        number = pl.Series([sum(count for _, count in rows[:place])])
        exact, shown = folded_sums(two["exact"], one["exact"], number, "exact", "shown")
        assert exact.to_list() == left["exact"].to_list(), "the same rows have the same bytes"
        assert repr(shown[0]) == repr(left["shown"][0])


def test_a_sum_is_what_was_encoded():
    rng = random.Random(2)
    for _ in range(300):
        total = rng.choice([0, 1, -1, rng.getrandbits(rng.randrange(1, 2200)), -rng.getrandbits(70) << 1000])
        made = ExactSum(total, *(rng.choice([0, 0, 3]) for _ in range(3)))
        assert ExactSum.decode(made.encode()) == made
    assert len(ExactSum(3 << 1080).encode()) == 4


SUMS = "SELECT g, sum(x) AS s, avg(x) AS m FROM a GROUP BY g"


@pytest.mark.parametrize("times", ["refresh", "every"])
def test_a_sum_of_doubles_follows_changes_without_the_other_rows_of_its_group(tmp_path, times):
    values = [*EDGES[:5], 1e300, -1e300, 0.1, 0.2, None, *SPECIAL]
    rng = random.Random(3)
    with ts.open(tmp_path / "store", maintenance=False) as store:
        rows = store.create("a", key={"k": "int64"}, value={"g": "int64", "x": "double"}, timeline="counter")
        rows.append([{"k": k, "g": k % 2, "x": 0.1} for k in range(2000)])
        view = store.view("sums", sql=SUMS, key=["g"], times=times)
        for _ in range(30):
            rows.upsert([{"k": rng.randrange(2003), "g": rng.randrange(3), "x": rng.choice(values)} for _ in range(2)])
            rows.delete([{"k": rng.randrange(2003)}])
            done = view.refresh()
            assert times == "every" or done.fetched < 30
            assert view.verify().is_exact
        everything = rows.snapshot().to_pylist()
        for row in view.snapshot().to_pylist():
            found = [each["x"] for each in everything if each["g"] == row["g"] and each["x"] is not None]
            assert repr(row["s"]) == repr(told([(value, 1) for value in found]) if found else None)

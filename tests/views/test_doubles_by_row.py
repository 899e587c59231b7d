"""What a row gives does not depend on the rows beside it: doubles are those of Python, to the last bit."""

import math
import random
import struct
from fractions import Fraction

import polars as pl
import pyarrow as pa
import pytest

import timespine as ts
from timespine.views.engine.lowering import evaluate_columns
from timespine.views.plan.expressions import Call, Literal, PlanColumn

DOUBLE, BOOL = pa.float64(), pa.bool_()
X, Y, B = PlanColumn("x", DOUBLE), PlanColumn("y", DOUBLE), PlanColumn("b", BOOL)


def bits(value):
    return None if value is None else struct.pack("<d", value)


def case(condition, value, other):
    return Call("case", (condition, Literal(value, DOUBLE), Literal(other, DOUBLE)), DOUBLE)


OPERANDS = {
    "column": lambda d: Y,
    "constant": lambda d: Literal(d, DOUBLE),
    "whole constant": lambda d: Call("cast", (Literal(int(d), pa.int64()),), DOUBLE),
    "case of one branch": lambda d: case(B, d, 2.0),
    "case of a constant": lambda d: case(Literal(True, BOOL), d, 2.0),
    "coalesce": lambda d: Call("coalesce", (Literal(None, DOUBLE), Literal(d, DOUBLE)), DOUBLE),
    "product": lambda d: Call("*", (Literal(d, DOUBLE), Literal(1.0, DOUBLE)), DOUBLE),
}
PYTHON = {
    "+": lambda one, two: one + two,
    "-": lambda one, two: one - two,
    "*": lambda one, two: one * two,
    "/": lambda one, two: one / two,
}


@pytest.mark.parametrize("rows", [1, 2, 3, 1000])
@pytest.mark.parametrize("operand", OPERANDS)
def test_an_operation_is_that_of_python_whatever_the_frame(operand, rows):
    rng = random.Random(rows)
    for _ in range(3 if rows == 1000 else 40):
        xs = [rng.choice([0.0, -0.0, rng.uniform(-1e3, 1e3), float(rng.randrange(100))]) for _ in range(rows)]
        d = float(rng.choice([3, 7, 10, 49]))
        plain = pl.DataFrame({"x": xs}).with_columns(pl.repeat(True, rows, eager=True).alias("b"))
        frames = [
            plain.with_columns(pl.lit(d).alias("y")),
            plain.join(pl.DataFrame({"y": [d]}), how="cross"),
            pl.concat([plain.slice(at, 1).with_columns(pl.lit(d).alias("y")) for at in range(min(rows, 5))]),
        ]
        for frame in frames:
            for function, told in PYTHON.items():
                for flipped in (False, True):
                    if function == "/" and flipped and 0.0 in xs:
                        continue  # a division by zero is declined
                    args = (OPERANDS[operand](d), X) if flipped else (X, OPERANDS[operand](d))
                    got = evaluate_columns(frame, [("r", Call(function, args, DOUBLE))], ["x"])["r"].to_list()
                    wanted = [told(d, x) if flipped else told(x, d) for x in frame["x"]]
                    assert list(map(bits, got)) == list(map(bits, wanted)), (function, flipped)


def exact_mean(values):
    """Return the sum rounded once, over the number."""
    total = sum(map(Fraction, values), Fraction())
    return (total.numerator / total.denominator) / len(values)


QUERIES = {
    "mean": "SELECT g, avg(v) AS m FROM t GROUP BY g",
    "mean of doubles": "SELECT g, avg(x) AS m FROM t GROUP BY g",
    "ratio": "SELECT g, sum(v) / count(*) AS m FROM t GROUP BY g",
    "share": "SELECT k, v / (SELECT count(*) FROM t) AS m FROM t",
    "constant": "SELECT k, x / 49 AS m FROM t",
    "one branch": "SELECT k, x / CASE WHEN v >= 0 THEN 7.0D ELSE 3.0D END AS m FROM t",
    "joined": "SELECT t.k, t.x / u.y AS m FROM t JOIN u ON t.g = u.g",
    "left": "SELECT t.k, t.v / coalesce(u.y, 3.0D) AS m FROM t LEFT JOIN u ON t.g = u.g",
    "rows": "SELECT k, v / w AS m FROM t",
}


def told(name, rows, others):
    """Work an answer out in Python."""
    groups = {}
    for row in rows:
        groups.setdefault(row["g"], []).append(row)
    if name == "mean":
        return {g: sum(row["v"] for row in each) / len(each) for g, each in groups.items()}
    if name == "mean of doubles":
        return {g: exact_mean([row["x"] for row in each]) for g, each in groups.items()}
    if name == "ratio":
        return {g: float(sum(row["v"] for row in each)) / len(each) for g, each in groups.items()}
    sides = {row["g"]: row["y"] for row in others}
    of_row = {
        "share": lambda row: row["v"] / len(rows),
        "constant": lambda row: row["x"] / 49.0,
        "one branch": lambda row: row["x"] / 7.0,
        "joined": lambda row: row["x"] / sides[row["g"]] if row["g"] in sides else None,
        "left": lambda row: row["v"] / sides.get(row["g"], 3.0),
        "rows": lambda row: row["v"] / row["w"],
    }[name]
    found = {row["k"]: of_row(row) for row in rows}
    return {k: value for k, value in found.items() if value is not None}


@pytest.mark.parametrize("times", ["refresh", "every"])
@pytest.mark.parametrize("seed", range(4))
def test_views_of_quotients_are_exact_after_every_refresh(tmp_path, times, seed):
    rng = random.Random(seed)
    groups = rng.choice([1, 2, 3])

    def row(k):
        values = {"v": rng.randrange(100), "w": rng.choice([3, 7, 49]), "x": rng.uniform(0, 99)}
        return {"k": k, "g": k % groups, **values}

    with ts.open(tmp_path / "store", maintenance=False) as store:
        value = {"g": "int64", "v": "int64", "w": "int64", "x": "double"}
        t = store.create("t", key={"k": "int64"}, value=value, timeline="counter")
        u = store.create("u", key={"g": "int64"}, value={"y": "double"}, timeline="counter")
        t.append([row(k) for k in range(groups * rng.choice([1, 3, 7]))])
        u.append([{"g": 0, "y": 7.0}])
        store.seal(["t", "u"], max(t.upper.time, u.upper.time), if_behind="ignore")
        views = {name: store.view(f"v{at}", sql=sql, times=times) for at, (name, sql) in enumerate(QUERIES.items())}
        for _ in range(8):
            for _ in range(rng.choice([1, 2])):
                if rng.random() < 0.8:
                    t.upsert([row(k) for k in rng.sample(range(8), rng.choice([1, 1, 2]))])
                else:
                    u.upsert([{"g": rng.randrange(groups), "y": rng.choice([3.0, 7.0, 49.0])}])
                store.seal(["t", "u"], max(t.upper.time, u.upper.time), if_behind="ignore")
            store.refresh()
            for name, view in views.items():
                got = view.snapshot(multiplicity="column").to_pylist()
                assert all(each["_diff"] == 1 for each in got), (name, got)
                key = "g" if "g" in got[0] else "k"
                wanted = told(name, t.snapshot().to_pylist(), u.snapshot().to_pylist())
                found = {each[key]: each["m"] for each in got}
                assert len(found) == len(got)
                assert {k: bits(v) for k, v in found.items()} == {k: bits(v) for k, v in wanted.items()}, name
                assert view.verify().is_exact, name


def test_parts_of_a_union_of_one_row_each_divide_as_any_rows(tmp_path):
    with ts.open(tmp_path / "store", maintenance=False) as store:
        for name in "ab":
            store.create(name, key={"k": "int64"}, value={"x": "int64", "y": "int64"}, timeline="counter")
        store.seal(["a", "b"], 1)
        both = "SELECT k, x, y FROM a UNION ALL SELECT k, x, y FROM b"
        view = store.view("q", sql=f"SELECT k, x / y AS q FROM ({both}) t")
        with store.transaction() as tx:
            tx.append("a", [{"k": 1, "x": 5, "y": 49}])
            tx.append("b", [{"k": 1, "x": 7, "y": 49}])
        view.refresh()
        with store.transaction() as tx:
            tx.delete("a", [{"k": 1}])
            tx.seal("b", 3)
        view.refresh()
        (left,) = view.snapshot(multiplicity="column").to_pylist()
        assert left["_diff"] == 1
        assert math.copysign(1.0, left["q"]) > 0
        assert bits(left["q"]) == bits(7 / 49)

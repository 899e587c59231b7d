"""Conditions and values of a merge, against Polars on the join of random rows."""

import datetime
import operator

import polars as pl
import pyarrow as pa
from assertions import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory_store import MemoryStore

from timespine.columnar.predicate.where import col

COLUMNS = {"n": "int64", "m": "int64", "v": "string", "d": "date"}
VALUES = {
    "n": st.none() | st.integers(-2, 2),
    "m": st.none() | st.integers(-2, 2),
    "v": st.none() | st.sampled_from(["", "a", "ab", "b"]),
    "d": st.none() | st.dates(datetime.date(2020, 1, 1), datetime.date(2020, 1, 3)),
}
ROWS = st.dictionaries(st.integers(0, 4), st.fixed_dictionaries(VALUES), max_size=5)
SIGNS = {"=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
LIKE = {"n": "n", "m": "n", "v": "v", "d": "d"}
"""Columns that can be compared with each other, by what they hold."""


def constant(value):
    """A constant as text."""
    if isinstance(value, datetime.date):
        return f"DATE '{value}'"
    return f"'{value}'" if isinstance(value, str) else str(value)


@st.composite
def comparisons(draw, sides):
    """A comparison: as text, and as an expression of Polars."""
    name = draw(st.sampled_from(list(COLUMNS)))
    left = f"{draw(st.sampled_from(sides))}.{name}"
    kind = draw(st.integers(0, 3))
    if kind == 0:
        return f"{left} IS NULL", pl.col(left).is_null()
    sign = draw(st.sampled_from(list(SIGNS)))
    if kind == 1:
        other = draw(st.sampled_from([each for each in COLUMNS if LIKE[each] == LIKE[name]]))
        right = f"{draw(st.sampled_from(sides))}.{other}"
        return f"{left} {sign} {right}", SIGNS[sign](pl.col(left), pl.col(right))
    value = draw(VALUES[name].filter(lambda each: each is not None))
    if kind == 2:
        return f"{left} IN ({constant(value)})", pl.col(left) == pl.lit(value)
    return f"{left} {sign} {constant(value)}", SIGNS[sign](pl.col(left), pl.lit(value))


def conditions(*sides):
    """Conditions on columns of some sides, up to a few comparisons."""
    both = lambda inside: st.tuples(inside, inside)  # noqa: E731
    return st.recursive(
        comparisons(sides),
        lambda inside: st.one_of(
            inside.map(lambda one: (f"NOT ({one[0]})", ~one[1])),
            both(inside).map(lambda two: (f"({two[0][0]}) AND ({two[1][0]})", two[0][1] & two[1][1])),
            both(inside).map(lambda two: (f"({two[0][0]}) OR ({two[1][0]})", two[0][1] | two[1][1])),
        ),
        max_leaves=4,
    )


def frame(rows, side):
    """Rows as a frame whose columns are named by their side."""
    types = {"k": pl.Int64, "n": pl.Int64, "m": pl.Int64, "v": pl.String, "d": pl.Date}
    listed = [{f"{side}.{name}": value for name, value in {"k": k, **row}.items()} for k, row in rows.items()]
    return pl.DataFrame(listed, {f"{side}.{name}": type for name, type in types.items()})


def keys(found, side):
    return set(found[f"{side}.k"].to_list())


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(
    target=ROWS,
    source=ROWS,
    gone=conditions("target", "source"),
    changed=conditions("source", "target"),
    inserted=conditions("source"),
    left=conditions("target"),
)
def test_every_merge_takes_the_rows_that_polars_takes(target, source, gone, changed, inserted, left):
    ours, theirs = frame(target, "target"), frame(source, "source")
    matched = ours.join(theirs, left_on="target.k", right_on="source.k", coalesce=False)
    deleted = keys(matched.filter(gone[1]), "target")
    updated = keys(matched.filter(changed[1]), "target") - deleted
    added = keys(theirs.filter(inserted[1]), "source") - set(target)
    dropped = keys(ours.filter(left[1]), "target") - set(source)
    expected = {k: row for k, row in target.items() if k not in deleted | dropped}
    expected |= {k: {**target[k], "n": source[k]["m"], "v": "set"} for k in updated}
    expected |= {k: source[k] for k in added}
    with MemoryStore() as place:
        table = place.open().create("t", key={"k": "int64"}, value=COLUMNS, timeline="counter")
        table.upsert([{"k": k, **row} for k, row in target.items()])
        rows = theirs.rename({name: name.removeprefix("source.") for name in theirs.columns})
        (
            table.merge(pa.table(rows))
            .when_matched_delete(where=gone[0])
            .when_matched_update({"n": col("source.m"), "v": "set"}, where=changed[0])
            .when_not_matched_insert(where=inserted[0])
            .when_not_matched_by_source_delete(where=left[0])
            .execute()
        )
        found = {row.pop("k"): row for row in table.snapshot().to_pylist()}
    assert found == expected

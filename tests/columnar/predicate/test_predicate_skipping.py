"""Predicates skip no part that has a matching row, and polars expressions mean the same."""

import math

import polars as pl
import pyarrow as pa
import pytest
from predicate_cases import ORDERS, known

from timespine.columnar.parts.part_stats import Range
from timespine.columnar.predicate.predicate import Native
from timespine.columnar.predicate.where import as_predicate, col
from timespine.errors import UsageError

# skipping


@pytest.mark.parametrize(
    ("text", "may"),
    [
        ("i = 9", False),
        ("i = 10", True),
        ("i > 20", False),
        ("i >= 20", True),
        ("i < 10", False),
        ("i < 10.5", True),
        ("i > 19.5", True),
        ("i > 20.5", False),
        ("i = 10.5", False),
        ("i != 15", True),
        ("i < 99999999999999999999", True),
        ("i > 99999999999999999999", False),
        ("NOT i <= 20", False),
        ("NOT i < 20", True),
        ("i IN (1, 2, 30)", False),
        ("i IN (1, 15, 30)", True),
        ("i NOT IN (10, 20)", True),
        ("i BETWEEN 12 AND 13", True),
        ("i BETWEEN 21 AND 30", False),
        ("i NOT BETWEEN 0 AND 30", False),
        ("i IS NULL", False),
        ("i IS NOT NULL", True),
        ("NOT (i < 5 OR i IS NULL)", True),
        ("NOT (i >= 5 OR i IS NULL)", False),
        ("i > 20 OR s = 'b'", True),
        ("i > 20 OR s = 'z'", False),
        ("i > 15 AND s = 'z'", False),
        ("NOT (i > 5 AND one = 8)", True),
        ("NOT (i > 5 AND one = 7)", False),
        ("NOT (i > 5 OR one = 8)", False),
        ("NOT (i > 15 OR one = 8)", True),
        ("one = 7", True),
        ("one != 7", False),
        ("one NOT IN (6, 7)", False),
        ("NOT one = 7", False),
        ("s LIKE 'a%'", True),
        ("s LIKE 'c%'", True),
        ("s LIKE 'd%'", False),
        ("s LIKE 'A%'", False),
        ("s LIKE '%d'", True),
        ("s LIKE 'd_'", False),
        ("p LIKE 'pre%'", True),
        ("NOT p LIKE 'pre%'", False),
        ("NOT p LIKE 'pre_%'", True),
        ("NOT p LIKE '%'", False),
        ("empty = 1", False),
        ("NOT empty = 1", False),
        ("empty IN (1)", False),
        ("empty IS NULL", True),
        ("empty IS NOT NULL", False),
        ("f = DOUBLE 'nan'", False),
        ("f < DOUBLE 'nan'", True),
        ("n > DOUBLE 'inf'", True),
        ("free = 1", True),
        ("NOT free = 1", True),
        ("free IS NULL AND i > 20", False),
        ("i = one", True),
        ("FALSE", False),
        ("FALSE OR i = 10", True),
    ],
)
def test_statistics_skip_what_they_can(text, may):
    types = dict.fromkeys(["i", "one", "empty", "free"], pa.int64())
    types |= {"s": pa.string(), "p": pa.string(), "f": pa.float64(), "n": pa.float64()}
    ranges = {
        "i": known(pa.int64(), 10, 20),
        "one": known(pa.int64(), 7, 7, nulls=3),
        "empty": Range(None, None, 100),
        "s": known(pa.string(), "a", "c"),
        "p": known(pa.string(), "prefix1", "prefix9"),
        "f": known(pa.float64(), 0.0, math.inf),
        "n": known(pa.float64(), 0.0, math.nan),
    }
    assert as_predicate(text).may_match(ranges, types, 100) is may


def test_key_points_are_the_keys_that_are_asked_for():
    types = {"a": pa.int64(), "b": pa.string(), "c": pa.int64()}
    ask = lambda text, *names: as_predicate(text).key_points(names, types)  # noqa: E731
    assert ask("a = 5", "a") == [(5,)]
    assert ask("a = 5.0", "a") == [(5,)]
    assert ask("a = 5.5", "a") == []
    assert ask("a IN (1, 2, 2) AND b = 'x' AND c > 7", "a", "b") == [(1, "x"), (2, "x")]
    assert ask("(a = 1 AND b = 'x') OR (a = 2 AND b IS NULL)", "a", "b") == [(1, "x"), (2, None)]
    assert ask("c = 1 AND (a = 1 OR a = 2)", "a") == [(1,), (2,)]
    assert ask("a = 1 OR c = 2", "a") is None
    assert ask("NOT a = 1", "a") is None
    assert ask("a > 1", "a") is None
    assert ask("a = 1", "a", "b") is None
    assert ask("a = c", "a") is None
    assert ask("TRUE", "a") is None
    assert (col("a").is_in(range(1000)) & col("c").is_in(range(1000))).key_points(["a", "c"], types) is None


# polars expressions


def test_a_polars_expression_is_used_as_it_is_and_skips_nothing():
    predicate = as_predicate((pl.col("id") > 5) & pl.col("customer").str.contains("x"))
    predicate.check(ORDERS)
    assert predicate.columns == ("id", "customer")
    table = pa.table({"id": pa.array([6, 6, 1, None]), "customer": pa.array(["x", "y", "x", "x"])})
    assert predicate.mask(table).to_pylist() == [True, False, False, False]
    assert predicate.may_match({"id": known(pa.int64(), 0, 1)}, {}, 10)
    assert predicate.key_points(["id"], {}) is None
    both = (col("id") == 1) | predicate | (pl.col("customer") == "y")
    assert both.mask(table).to_pylist() == [True, True, True, False]
    assert (~predicate).mask(table).to_pylist() == [False, True, True, False]
    assert isinstance(predicate, Native)
    assert "id" in repr(predicate)


@pytest.mark.parametrize(
    "expression",
    [
        pl.col("id") > pl.col("id").mean(),
        pl.col("id").shift() > 1,
        pl.col("id").is_in(pl.Series([1, 2])),
        pl.len() > 3,
        pl.all() > 1,
        pl.col("^i.*$") > 1,
        pl.lit(True),
        pl.col("id").is_unique(),
    ],
    ids=str,
)
def test_a_polars_expression_that_needs_more_than_its_row_is_refused(expression):
    with pytest.raises(UsageError, match="polars expression"):
        as_predicate(expression)


def test_a_polars_that_cannot_tell_is_not_trusted(monkeypatch):
    monkeypatch.delattr(type(pl.col("id").meta), "is_row_separable")
    with pytest.raises(UsageError, match="upgrade"):
        as_predicate(pl.col("id") > 1)


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        (pl.col("nope") > 1, "no column 'nope'"),
        (pl.col("id") + 1, "not truth values"),
        (pl.col("customer").dt.year() > 1, "cannot be evaluated"),
    ],
    ids=str,
)
def test_a_polars_expression_is_checked_against_the_schema(expression, reason):
    with pytest.raises(UsageError, match=reason):
        as_predicate(expression).check(ORDERS)


def test_a_polars_expression_that_fails_or_drops_rows_does_not_repeat_values():
    table = pa.table({"s": pa.array(["secret", "1"]), "b": pa.array([True, False])})
    with pytest.raises(UsageError) as caught:
        as_predicate(pl.col("s").cast(pl.Int64) > 0).mask(table)
    assert "secret" not in str(caught.value)
    with pytest.raises(UsageError, match="one truth value per row"):
        as_predicate(pl.col("s").filter(pl.col("b")) == "secret").mask(table)


def test_a_character_that_begins_nothing_is_named_once_and_where_it_is():
    for text, position in (("1=1; drop", 4), ("a ; b", 3), ("'x';", 4), ("a = -;", 6)):
        with pytest.raises(UsageError) as error:
            as_predicate(text)
        assert str(error.value) == f"predicate, position {position}: ';' is no part of the language"

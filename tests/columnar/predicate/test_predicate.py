"""Predicates: they keep the rows that SQL keeps, skip only what has none, and survive any text."""

import datetime
import functools
import math
import operator

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from predicate_cases import (
    COLUMNS,
    FLAT,
    NUMBERS,
    OPS,
    ORDERS,
    TYPES,
    D,
    constants_of,
    known,
    naive,
    predicates,
    rows_of,
    tables,
    value_key,
)

from timespine.columnar.kernels.key_encoding import encode_scalar
from timespine.columnar.parts.part_stats import Range, column_range
from timespine.columnar.predicate.comparisons import PATTERN_MAX, VALUES_MAX
from timespine.columnar.predicate.parser import TEXT_MAX
from timespine.columnar.predicate.predicate import DEPTH_MAX, TERMS_MAX, any_of
from timespine.columnar.predicate.where import as_predicate, col
from timespine.columnar.schema.schema import define
from timespine.errors import UsageError

NUMBERS += [
    0.1,
    5.5,
    -0.5,
    1e300,
    -1e300,
    1e-320,
    3.4028235677973366e38,
    math.inf,
    -math.inf,
    math.nan,
    2**64,
    -(2**80),
]


# what SQL says, one row at a time


@pytest.mark.parametrize("name", FLAT)
def test_every_comparison_of_a_column_with_a_constant_is_exact(name):
    type, values, _ = COLUMNS[name]
    table = pa.table({name: pa.array([*values, None], type)})
    rows = [{name: value} for value in [*values, None]]
    tests = [getattr(operator, op.__name__)(col(name), value) for op in OPS.values() for value in constants_of(name)]
    tests += [col(name).is_in([value]) for value in constants_of(name)]
    for test in [*tests, *(~test for test in tests)]:
        assert test.mask(table).to_pylist() == [naive(test, row) is True for row in rows], str(test)


@pytest.mark.parametrize("name", FLAT)
def test_every_comparison_skips_exactly_what_the_two_bounds_allow(name):
    type, values, _ = COLUMNS[name]
    ordered = sorted(values, key=lambda value: value_key(value, type))
    spans = [(low, high) for at, low in enumerate(ordered) for high in ordered[at:]]
    ranges = [{name: known(type, low, high)} for low, high in spans]
    for comparison, constant in ((comparison, constant) for comparison in OPS for constant in constants_of(name)):
        test = OPS[comparison](col(name), constant)
        for (low, high), its in zip(spans, ranges, strict=True):
            found = [naive(test, {name: value}) for value in (low, high)]
            # What lies between the bounds may be equal to a constant, but no more extreme than they are.
            may = test.may_match(its, TYPES, 2)
            assert may or True not in found, (str(test), low, high)
            assert may == (True in found) or comparison == "=", (str(test), low, high)
            negated = (~test).may_match(its, TYPES, 2)
            assert negated or False not in found, (str(test), low, high)
            assert negated == (False in found) or comparison == "!=", (str(test), low, high)


@settings(max_examples=300)
@given(tables(), predicates)
def test_rows_are_kept_exactly_where_sql_says_true(table, predicate):
    mask = predicate.mask(table)
    assert mask.type == pa.bool_()
    assert mask.null_count == 0
    assert mask.to_pylist() == [naive(predicate, row) is True for row in rows_of(table)]


@settings(max_examples=300)
@given(tables(), predicates, st.integers(1, 24), st.data())
def test_nothing_is_skipped_that_has_a_matching_row(table, predicate, bound_bytes, data):
    ranges = {}
    for name in (
        data.draw(st.lists(st.sampled_from(list(COLUMNS)), unique=True)) if data.draw(st.booleans()) else COLUMNS
    ):
        known = column_range(table.column(name), bound_bytes)
        forget = data.draw(st.sampled_from([0, 0, 0, 1, 2]))
        ranges[name] = Range(None if forget == 1 else known.lower, None if forget == 2 else known.upper, known.nulls)
    matches = any(naive(predicate, row) is True for row in rows_of(table))
    assert predicate.may_match(ranges, TYPES, table.num_rows) or not matches


@settings(max_examples=300)
@given(predicates)
def test_a_predicate_is_the_same_after_it_was_written_and_read(predicate):
    again = as_predicate(str(predicate))
    assert again == predicate
    assert str(again) == str(predicate)
    assert hash(again) == hash(predicate)


@settings(max_examples=300)
@given(
    tables(), predicates, st.lists(st.sampled_from(["i8", "f32", "s", "t", "d"]), min_size=1, max_size=2, unique=True)
)
def test_every_matching_row_has_one_of_the_key_points(table, predicate, names):
    points = predicate.key_points(names, TYPES)
    if points is None:
        return
    keys = {
        tuple(encode_scalar(value, TYPES[name]) for value, name in zip(point, names, strict=True)) for point in points
    }
    for at, kept in enumerate(predicate.mask(table).to_pylist()):
        key = tuple(encode_scalar(table.column(name)[at], TYPES[name]) for name in names)
        assert not kept or key in keys


# meaning


def test_the_text_of_the_manual_means_what_it_says():
    text = (
        "total > 5 AND (customer LIKE 'ab%' OR customer IN ('x', 'y')) AND note IS NOT NULL "
        "AND d BETWEEN DATE '2020-01-01' AND DATE '2021-01-01' AND ts >= TIMESTAMP '2020-01-01 00:00:00'"
    )
    built = (
        (col("total") > 5)
        & (col("customer").starts_with("ab") | col("customer").is_in(["x", "y"]))
        & col("note").is_not_null()
        & col("d").between(datetime.date(2020, 1, 1), datetime.date(2021, 1, 1))
        & (col("ts") >= datetime.datetime(2020, 1, 1))
    )
    predicate = as_predicate(text)
    assert predicate == built
    assert predicate.columns == ("total", "customer", "note", "d", "ts")
    predicate.check(ORDERS)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("a=1", "a = 1"),
        ("a == 1", "a = 1"),
        ("a <> 1", "a != 1"),
        ("1 < a", "a > 1"),
        ("a AND b OR c", "a = TRUE AND b = TRUE OR c = TRUE"),
        ("a = 1 or (b = 2 or c = 3) and true", "a = 1 OR (b = 2 OR c = 3) AND TRUE"),
        ("not not a is null", "a IS NULL"),
        ("not a is null", "a IS NOT NULL"),
        ("not a = 1 and b = 2", "NOT a = 1 AND b = 2"),
        ("not (a = 1 and b = 2)", "NOT (a = 1 AND b = 2)"),
        ("a not in (1, 2)", "NOT a IN (1, 2)"),
        ("a not like 'x'", "NOT a LIKE 'x'"),
        ("a not between 1 and 2", "NOT (a >= 1 AND a <= 2)"),
        ("a between b and c", "a >= b AND a <= c"),
        ('"and" = 1', '"and" = 1'),
        ("`a b` = 1", '"a b" = 1'),
        ('"say ""x""" = 1', '"say ""x""" = 1'),
        ("date > date '2020-01-01'", "date > DATE '2020-01-01'"),
        ("x = 1", "x = 1"),
        ("x = X'00FF'", "x = X'00ff'"),
        ("a = 'it''s'", "a = 'it''s'"),
        ("a > -1.50", "a > -1.50"),
        ("a > +.5", "a > 0.5"),
        ("a > 1e3", "a > 1000.0e0"),
        ("a = double 'nan'", "a = DOUBLE 'nan'"),
        ("ts < timestamp '2020-01-01T12:30:00.5+02:00'", "ts < TIMESTAMP '2020-01-01 10:30:00.500000+00:00'"),
        ("grün = 1", '"grün" = 1'),
        ("TRUE", "TRUE"),
        ("TRUE = a", "a = TRUE"),
        ("a\n=\t1", "a = 1"),
    ],
)
def test_text_has_one_canonical_form(text, same):
    assert str(as_predicate(text)) == same
    assert as_predicate(same) == as_predicate(text)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", 1),
        ("   ", 4),
        ("a >", 4),
        ("a = 1 b", 7),
        ("a = 1 AND", 10),
        ("(a = 1", 7),
        ("a = 1)", 6),
        ("a = 'open", 5),
        ("a = 1; DROP TABLE x", 6),
        ("a -- 1", 3),
        ("a IN ()", 7),
        ("a IN (b)", 7),
        ("a IN (1", 8),
        ("a = NULL", 5),
        ("a IN (1, NULL)", 10),
        ("a LIKE 5", 8),
        ("a LIKE 'x\\'", 8),
        ("a BETWEEN 1 OR 2", 13),
        ("a IS 5", 6),
        ("a NOT 5", 7),
        ("1 = 2", 1),
        ("1 IS NULL", 3),
        ("5", 2),
        ("d > DATE '2020-13-01'", 5),
        ("d > DATE '20200101'", 5),
        ("ts > TIMESTAMP '2020-01-01 00:00:00.0000001'", 6),
        ("x = X'0'", 5),
        ("a = 1e999", 5),
        ("a = " + "9" * 81, 5),
        ("a = " + "9" * 10_000, 5),
        ("a = 0." + "0" * 100 + "1", 5),
        ("a = - b", 5),
        ("a.b.c = 1", 4),
        ("a. = 1", 4),
        ("a.5 = 1", 2),
        ("a = $1", 5),
        ("AND", 1),
        ("a = 1 OR NOT", 13),
    ],
)
def test_a_wrong_text_says_where(text, position):
    with pytest.raises(UsageError, match=rf"position {position}: "):
        as_predicate(text)


def test_messages_do_not_repeat_constants():
    for text in ("a = 'secret' 'secret'", "a LIKE 'secret\\'", "'secret' = 'secret'", "a IN ('secret' 'secret')"):
        with pytest.raises(UsageError) as caught:
            as_predicate(text)
        assert "secret" not in str(caught.value)


TOKENS = ["(", ")", "AND", "OR", "NOT", "IN", "LIKE", "BETWEEN", "IS", "NULL", "TRUE", "DATE", "'2020-01-01'"]


TOKENS += ["a", "1", "-1.5", "'x'", ",", "=", "<", "`", '"', "'", "\\"]


@settings(max_examples=300)
@given(
    st.lists(
        st.sampled_from(TOKENS) | st.text(max_size=2),
        max_size=12,
    ).map(" ".join)
)
def test_any_text_is_a_predicate_or_a_usage_error(text):
    try:
        predicate = as_predicate(text)
    except UsageError:
        return
    assert as_predicate(str(predicate)) == predicate


@pytest.mark.parametrize(
    "text",
    [
        "(" * 100_000,
        "NOT " * 100_000,
        "(" * 65 + "a" + ")" * 65,
        " OR ".join(["a = 1"] * (TERMS_MAX + 1)),
        "a IN (" + ",".join(["1"] * (VALUES_MAX + 1)) + ")",
        "a = '" + "x" * TEXT_MAX + "'",
        "a LIKE '" + "%" * (PATTERN_MAX + 1) + "'",
        "'" * 100_001,
        " " * 100_000 + "$",
    ],
    ids=lambda text: f"{text[:12]}...",
)
def test_hostile_text_is_refused_soon(text):
    with pytest.raises(UsageError):
        as_predicate(text)


def test_what_is_just_within_the_limits_works():
    table = pa.table({"a": pa.array([1, 2, None]), "s": pa.array(["x", "y" * 1000, None])})
    many = as_predicate(" OR ".join(f"a = {at}" for at in range(2, TERMS_MAX + 2)))
    assert many.mask(table).to_pylist() == [False, True, False]
    assert many.may_match({"a": Range(None, None, 0)}, {"a": pa.int64()}, 3)
    deep = as_predicate("NOT (TRUE AND " * (DEPTH_MAX // 2 - 1) + "a = 1" + ")" * (DEPTH_MAX // 2 - 1))
    assert sum(deep.mask(table).to_pylist()) == 1
    long = col("a").is_in(range(2, VALUES_MAX + 2))
    assert long.mask(table).to_pylist() == [False, True, False]
    for pattern in ("_" * PATTERN_MAX, "%y" * (PATTERN_MAX // 2), "y%_" * (PATTERN_MAX // 3)):
        assert col("s").like(pattern).mask(table).to_pylist() == [False, True, False]


def test_built_predicates_have_the_same_limits():
    nested = col("a") == 1
    for at in range(DEPTH_MAX - 1):
        nested = (nested | (col("b") == at)) if at % 2 else (nested & (col("b") == at))
    with pytest.raises(UsageError, match="deep"):
        nested | (col("c") == 1)
    with pytest.raises(UsageError, match="comparisons"):
        any_of([col("a") == at for at in range(TERMS_MAX + 1)])
    flat = functools.reduce(operator.or_, [col("a") == at for at in range(200)])
    assert flat.depth == 2


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nope = 1", "^there is no column 'nope'"),
        ("nope IS NULL", "^there is no column 'nope'"),
        ("id = nope", "^there is no column 'nope'"),
        ("id = 'abc'", "column 'id': a text cannot be compared with type int64"),
        ("id IN (1, 'abc')", "column 'id': a text"),
        ("id = TRUE", "truth value"),
        ("paid = 1", "a number cannot be compared with type bool"),
        ("id", "truth value"),
        (col("id").is_true(), "truth value"),
        ("total > 'x'", "text"),
        ("customer = 5", "number"),
        ("customer = X'00'", "binary"),
        ("id LIKE 'x%'", "LIKE needs a string"),
        ("d > '2020-01-01'", "text"),
        ("d > 5", "number"),
        ("ts > TIMESTAMP '2020-01-01 00:00:00Z'", "timestamp"),
        ("id > DATE '2020-01-01'", "date"),
        ("id = customer", "cannot be compared"),
        ("d = ts", "cannot be compared"),
        ("FALSE AND nope = 1", "no column"),
    ],
)
def test_check_refuses_unknown_columns_and_other_types(text, reason):
    predicate = as_predicate(text)
    with pytest.raises(UsageError, match=reason):
        predicate.check(ORDERS)


def test_nested_columns_can_only_be_asked_whether_they_are_null():
    schema = define(None, {"xs": "list<int64>", "s": "struct<a:int64>"})
    as_predicate("xs IS NULL OR s IS NOT NULL").check(schema)
    for text in ("xs = 1", "xs = xs", "s = 's'", "xs IN (1)", "xs LIKE 'x'"):
        with pytest.raises(UsageError):
            as_predicate(text).check(schema)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: col("a") == None,  # noqa: E711
        lambda: col("a") > [1],
        lambda: col("a").is_in("abc"),
        lambda: col("a").is_in([1, None]),
        lambda: col("a").like(5),
        lambda: col("a").starts_with(b"x"),
        lambda: col("a") == "\ud800",
        lambda: col("a") == D("NaN"),
        lambda: col("a") == D("1e100"),
        lambda: col("a") == 10**100,
        lambda: col(5),
        lambda: (col("a") == 1) and (col("b") == 2),
        lambda: 1 < col("a") < 5,
        lambda: (col("a") == 1) & "b = 2",
        lambda: bool(col("a")),
        lambda: col("a") > datetime.datetime(1, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=5))),
        lambda: col("a").is_in(range(VALUES_MAX + 1)),
        lambda: as_predicate(pl.col("a").map_batches(lambda each: each > 1)),
        lambda: (col("a") > datetime.datetime(2020, 1, 1)).to_polars({"a": pa.timestamp("us", tz="Not/AZone")}),
        lambda: as_predicate(5),
        lambda: as_predicate(col("a")),
        lambda: as_predicate(None),
    ],
)
def test_a_wrong_call_is_a_usage_error(wrong):
    with pytest.raises(UsageError):
        wrong()


def test_constants_of_numpy_and_pandas_are_taken_as_what_they_are():
    pandas = pytest.importorskip("pandas")
    assert str(col("a") > np.int64(5)) == "a > 5"
    assert str(col("a") > np.float32(0.5)) == "a > 0.5e0"
    assert str(col("a") > pandas.Timestamp("2020-01-01")) == "a > TIMESTAMP '2020-01-01 00:00:00'"
    for wrong in (pandas.NaT, pandas.Timestamp("2020-01-01 00:00:00.000000001")):
        with pytest.raises(UsageError):
            col("a") > wrong  # noqa: B015


def test_a_column_shows_what_it_is():
    assert repr(col("total")) == "col('total')"
    assert repr(col("total") > 5) == "<where total > 5>"
    assert str(col("paid").is_true()) == "paid = TRUE"


def test_names_that_polars_takes_for_patterns_are_just_names():
    table = pa.table({"^a$": pa.array([1, 2]), "a": pa.array([3, 3]), "*": pa.array([None, 5])})
    assert as_predicate('"^a$" > 1').mask(table).to_pylist() == [False, True]
    assert as_predicate('"*" = 5 AND "*" IS NOT NULL').mask(table).to_pylist() == [False, True]


def test_columns_of_signed_and_unsigned_integers_compare_exactly():
    table = pa.table({"i": pa.array([2**63 - 1, -1], pa.int64()), "u": pa.array([2**63, 2**64 - 1], pa.uint64())})
    assert as_predicate("i = u").mask(table).to_pylist() == [False, False]
    assert as_predicate("i < u").mask(table).to_pylist() == [True, True]


def test_a_predicate_of_constants_answers_for_every_row():
    table = pa.table({"a": pa.array([1, None])})
    assert as_predicate("TRUE").mask(table).to_pylist() == [True, True]
    assert as_predicate("NOT TRUE OR FALSE").mask(table).to_pylist() == [False, False]
    assert col("a").is_in([]).mask(table).to_pylist() == [False, False]
    assert as_predicate("a = 1").mask(table.slice(0, 0)).to_pylist() == []

"""Predicates: they keep the rows that SQL keeps, skip only what has none, and survive any text."""

import datetime
import decimal
import functools
import math
import operator
import zoneinfo
from fractions import Fraction

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timespine.columnar.kernels.key_encoding import encode_scalar
from timespine.columnar.parts.part_stats import Range, column_range
from timespine.columnar.predicate.column import as_predicate, col
from timespine.columnar.predicate.conditions import PATTERN_MAX, VALUES_MAX, Compare, CompareColumns, In, IsNull, Like
from timespine.columnar.predicate.parser import TEXT_MAX
from timespine.columnar.predicate.predicate import DEPTH_MAX, TERMS_MAX, Constant, Junction, Native, Not, all_of, any_of
from timespine.columnar.schema.schema import define
from timespine.errors import UsageError

D = decimal.Decimal
BERLIN = "Europe/Berlin"
EPOCH = datetime.datetime(1970, 1, 1)
US = datetime.timedelta(microseconds=1)

# ---------------------------------------------------------------- tables and predicates at random

MOMENTS = [0, 1, -1, 1577836800000000, 1577836800000001, 1577833200000000, 2**62, -(2**62)]
words = st.text(st.sampled_from("a%_\\b\x00\né'"), max_size=3)
WORDS = ["", "a", "ab", "b", "a%", "a_b", "\\", "\x00", "a\nb", "é", "'", "aa", "%"]
NUMBERS = [0, 1, -1, 5, 127, -128, 2**63 - 1, -(2**63), 2**64 - 1, D("0.1"), D("5.25"), D("-5.005"), D(10) ** 40]
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
DATES = [datetime.date(1970, 1, 1), datetime.date(2020, 1, 1), datetime.date(1969, 12, 31), datetime.date(9999, 12, 31)]
NAIVE = [datetime.datetime(2020, 1, 1), datetime.datetime(1970, 1, 1, 0, 0, 0, 1), datetime.datetime(1, 1, 1)]
AWARE = [
    datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC),
    datetime.datetime(2020, 1, 1, tzinfo=zoneinfo.ZoneInfo(BERLIN)),
]
numbers = st.sampled_from(NUMBERS) | st.integers(-130, 130)

SMALL = [-2, -1, 0, 1, 2, 3, 4, 5, 6]
FLOATS = [0.0, 0.5, math.inf, -math.inf, math.nan]

COLUMNS = {
    "i8": (pa.int8(), [*SMALL, -128, 127], numbers),
    "i64": (pa.int64(), [*SMALL, -(2**63), 2**63 - 1], numbers),
    "u64": (pa.uint64(), [*SMALL[2:], 2**64 - 1], numbers),
    "f32": (pa.float32(), [*FLOATS, np.float32(0.1).item()], numbers),
    "f64": (pa.float64(), [*FLOATS, 0.1, 5.5, -1e300, 1e-320], numbers),
    "dec": (pa.decimal128(5, 2), [D("0.10"), D("5.25"), D("-5.01"), D("999.99"), D("0.00")], numbers),
    "s": (pa.string(), WORDS, st.sampled_from(WORDS) | words),
    "b": (pa.binary(), [word.encode() for word in WORDS], st.binary(max_size=2)),
    "t": (pa.bool_(), [False, True], st.booleans()),
    "d": (pa.date32(), DATES[:3], st.sampled_from(DATES + NAIVE)),
    "ts": (pa.timestamp("us"), MOMENTS, st.sampled_from(DATES + NAIVE)),
    "tz": (pa.timestamp("us", tz=BERLIN), MOMENTS, st.sampled_from(DATES[:3] + NAIVE[:1] + AWARE)),
    "in": (pa.list_(pa.int8()), [[], [0], [1, 0]], None),
}
"""Types, values of rows, and constants to compare them with."""

TYPES = {name: type for name, (type, _, _) in COLUMNS.items()}
FLAT = [name for name in COLUMNS if name != "in"]
PAIRS = [(a, b) for a in FLAT for b in FLAT if a == b or {a, b} <= {"i8", "i64", "u64", "f32", "f64"}]
OPS = {"=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


@st.composite
def tables(draw):
    """Few rows, and in each column few values that lie together, so that statistics say something."""
    rows = draw(st.integers(0, 6))
    choices = iter(draw(st.binary(min_size=(rows + 2) * len(COLUMNS), max_size=(rows + 2) * len(COLUMNS))))
    arrays = {}
    for name, (type, values, _) in COLUMNS.items():
        first, width = next(choices) % len(values), next(choices) % 4
        pool = [*values[first : first + width], None] if width else [*values, None]
        arrays[name] = pa.array([pool[next(choices) % len(pool)] for _ in range(rows)], type)
    return pa.table(arrays)


@st.composite
def leaves(draw):
    kind = draw(st.sampled_from(["compare", "compare", "in", "null", "like", "columns", "constant"]))
    name = draw(st.sampled_from(FLAT))
    literal = COLUMNS[name][2]
    if kind == "compare":
        return getattr(operator, OPS[draw(st.sampled_from(list(OPS)))].__name__)(col(name), draw(literal))
    if kind == "in":
        return col(name).is_in(draw(st.lists(literal, max_size=3)))
    if kind == "null":
        column = col(draw(st.sampled_from(list(COLUMNS))))
        return column.is_null() if draw(st.booleans()) else column.is_not_null()
    if kind == "like":
        if draw(st.booleans()):
            return col("s").starts_with(draw(words))
        return col("s").like(draw(words.filter(lambda text: not text.replace("\\\\", "").endswith("\\"))))
    if kind == "columns":
        left, right = draw(st.sampled_from(PAIRS))
        return CompareColumns(left, draw(st.sampled_from(list(OPS))), right)
    return Constant(draw(st.booleans()))


predicates = st.recursive(
    leaves(),
    lambda inner: st.lists(inner, min_size=1, max_size=3).flatmap(
        lambda terms: st.sampled_from([all_of(terms), any_of(terms), ~terms[0]])
    ),
    max_leaves=6,
)

# ---------------------------------------------------------------- what SQL says, one row at a time


def number_key(value):
    """Numbers of all kinds in one exact order."""
    if isinstance(value, float) and not math.isfinite(value):
        return (3, 0) if math.isnan(value) else (1, 0) if value > 0 else (-1, 0)
    return (0, Fraction(value))


def literal_key(value, type):
    if pa.types.is_floating(type):
        with np.errstate(over="ignore"):
            rounded = float(np.float32(float(value))) if type == pa.float32() else float(value)
        if math.isinf(rounded) and not (isinstance(value, float) and math.isinf(value)):
            return (0.5, 0) if value > 0 else (-0.5, 0)
        return number_key(rounded)
    if isinstance(value, float) and math.isfinite(value):
        return number_key(D(repr(value)))
    if pa.types.is_integer(type) or pa.types.is_decimal(type):
        return number_key(value)
    return value_key(value, type)


def value_key(value, type):
    if pa.types.is_temporal(type):
        if isinstance(value, int):
            return value
        if not isinstance(value, datetime.datetime):
            value = datetime.datetime.combine(value, datetime.time())
        zone = getattr(type, "tz", None)
        if zone is not None:
            value = value if value.tzinfo else value.replace(tzinfo=zoneinfo.ZoneInfo(zone))
            value = value.astimezone(datetime.UTC).replace(tzinfo=None)
        return (value - EPOCH) // US
    if isinstance(value, str):
        return value.encode()
    return value if isinstance(value, bytes | bool) else number_key(value)


def like(pieces, text):
    """Whether a text has a pattern, by trying everything."""
    if not pieces:
        return text == ""
    head, *rest = pieces
    if head == "%":
        return any(like(rest, text[at:]) for at in range(len(text) + 1))
    return (
        bool(text) and head in ("_", "\\" + text[0], text[0] if text[0] not in "%_\\" else "") and like(rest, text[1:])
    )


def split(pattern):
    pieces = []
    while pattern:
        size = 2 if pattern[0] == "\\" else 1
        pieces.append(pattern[:size] if size == 1 or pattern[1] in "%_\\" else pattern[1])
        pattern = pattern[size:]
    return pieces


def naive(predicate, row):
    """True, False or None."""
    match predicate:
        case Constant(value):
            return value
        case IsNull(column, negated):
            return (row[column] is None) != negated
        case Compare(column, comparison, value):
            if row[column] is None:
                return None
            return OPS[comparison](value_key(row[column], TYPES[column]), literal_key(value, TYPES[column]))
        case In(column, values):
            if row[column] is None:
                return None
            return value_key(row[column], TYPES[column]) in [literal_key(value, TYPES[column]) for value in values]
        case Like(column, pattern):
            return None if row[column] is None else like(split(pattern), row[column])
        case CompareColumns(left, comparison, right):
            if row[left] is None or row[right] is None:
                return None
            one, other = row[left], row[right]
            if {"f32", "f64"} & {left, right} and left != right:
                one, other = float(one), float(other)
            return OPS[comparison](value_key(one, TYPES[left]), value_key(other, TYPES[right]))
        case Not(term):
            inner = naive(term, row)
            return None if inner is None else not inner
        case Junction(every, inside):
            found = [naive(term, row) for term in inside]
            return (not every) if (not every) in found else None if None in found else every
    raise AssertionError(predicate)


def rows_of(table):
    """Rows as Python has them; timestamps as integers, since Python has no year 10000."""
    plain = {
        name: table.column(name).cast(pa.int64()) if pa.types.is_timestamp(type) else table.column(name)
        for name, type in TYPES.items()
    }
    return pa.table(plain).to_pylist()


def known(type, low, high, nulls=0):
    return Range(encode_scalar(low, type), encode_scalar(high, type), nulls)


def constants_of(name):
    """Constants to compare a column with: its own values, and what lies beside them."""
    type, values, _ = COLUMNS[name]
    if pa.types.is_timestamp(type):
        return [*DATES[:3], *(AWARE + NAIVE[:1] if type.tz else NAIVE)]
    if pa.types.is_date(type):
        return DATES + NAIVE
    number = pa.types.is_integer(type) or pa.types.is_floating(type) or pa.types.is_decimal(type)
    return [*values, *NUMBERS] if number else values


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


# ---------------------------------------------------------------- meaning

ORDERS = define(
    {"id": "int64"},
    {"customer": "string", "total": "double", "note": "string", "d": "date", "ts": "timestamp", "paid": "bool"},
)


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
        ("nope = 1", "no column 'nope'"),
        ("nope IS NULL", "no column 'nope'"),
        ("id = nope", "no column 'nope'"),
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


# ---------------------------------------------------------------- skipping


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


# ---------------------------------------------------------------- polars expressions


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

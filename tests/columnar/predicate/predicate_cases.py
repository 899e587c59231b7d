"""Random tables and predicates, and what SQL says of them, one row at a time."""

import datetime
import decimal
import math
import operator
import zoneinfo
from fractions import Fraction

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from timespine.columnar.kernels.key_encoding import encode_scalar
from timespine.columnar.parts.part_stats import Range
from timespine.columnar.predicate.comparisons import Compare, CompareColumns, In, IsNull, Like
from timespine.columnar.predicate.predicate import Constant, Junction, Not, all_of, any_of
from timespine.columnar.predicate.where import col
from timespine.columnar.schema.schema import define

D = decimal.Decimal


BERLIN = "Europe/Berlin"


EPOCH = datetime.datetime(1970, 1, 1)


US = datetime.timedelta(microseconds=1)


MOMENTS = [0, 1, -1, 1577836800000000, 1577836800000001, 1577833200000000, 2**62, -(2**62)]


words = st.text(st.sampled_from("a%_\\b\x00\né'"), max_size=3)


WORDS = ["", "a", "ab", "b", "a%", "a_b", "\\", "\x00", "a\nb", "é", "'", "aa", "%"]


NUMBERS = [0, 1, -1, 5, 127, -128, 2**63 - 1, -(2**63), 2**64 - 1, D("0.1"), D("5.25"), D("-5.005"), D(10) ** 40]


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


ORDERS = define(
    {"id": "int64"},
    {"customer": "string", "total": "double", "note": "string", "d": "date", "ts": "timestamp", "paid": "bool"},
)

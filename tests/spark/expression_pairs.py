"""Every function of views with every pair of types, as texts of SQL over one table of edge values.

The table has, for each type, a column `a_...` and a column `b_...`; its rows are the cross product of their values. So
each pair of types meets with each pair of edge values.
"""

import decimal
import math

import pyarrow as pa

D = decimal.Decimal

DAYS = [None, 0, -1, 19782, -719162, 2932896, -141427, -141428, 10957, 3_000_000, -800_000]
"""Days since 1970: a leap day, 0001-01-01, 9999-12-31, both sides of the calendar's gap, and years of other lengths."""

MICROS = [None, 0, -1, 1_709_209_815_123_456, -62_135_596_800_000_000, 253_402_300_799_999_999, -86_400_000_000]
MICROS += [951_782_399_000_001, 253_402_300_800_000_000, -70_000_000_000_000_000, 59_000_000]

DOUBLES = [None, 0.0, -0.0, 1.5, -2.5, 0.1, 1.7976931348623157e308, 5e-324, math.inf, -math.inf, math.nan]
TEXTS = [None, "", "a", "aB ", "  a%_", "é", "e\u0301", "ß\u00a0", "日本\n", "😀x", "\\", "7", "\ta"]

TYPES = {
    "byte": (pa.int8(), [None, 0, 1, -1, 7, 127, -128]),
    "short": (pa.int16(), [None, 0, 1, -1, 7, 32767, -32768]),
    "int": (pa.int32(), [None, 0, 1, -1, 7, 46341, 2**31 - 1, -(2**31)]),
    "long": (pa.int64(), [None, 0, 1, -1, 7, 2**53 + 1, 3037000500, 2**63 - 1, -(2**63)]),
    "dec2": (pa.decimal128(15, 2), [None, *map(D, ("0", "1", "-1.05", "2.50", "-2.50", "0.01", "9999999999999.99"))]),
    "dec6": (pa.decimal128(27, 6), [None, *map(D, ("0", "1.5", "-0.000001", "2.500000", "999999999999999999999.9"))]),
    "frac": (pa.decimal128(5, 5), [None, *map(D, ("0", "0.5", "-0.00001", "0.99999"))]),
    "wide": (pa.decimal128(38, 0), [None, *map(D, ("0", "1", "-7", "99999999999999999999999999999999999999"))]),
    "deep": (pa.decimal128(38, 18), [None, *map(D, ("0", "1.5", "-0.000000000000000001", "99999999999999999999.5"))]),
    "float": (pa.float32(), DOUBLES[:6] + DOUBLES[8:]),
    "double": (pa.float64(), DOUBLES),
    "text": (pa.string(), TEXTS),
    "date": (pa.date32(), DAYS),
    "truth": (pa.bool_(), [None, True, False]),
    "moment": (pa.timestamp("us", "UTC"), MICROS),
    "local": (pa.timestamp("us"), MICROS),
    "bytes": (pa.binary(), [None, b"", b"a", b"\xff\x00"]),
}

WIDTH = max(len(values) for _, values in TYPES.values())


def edge_table() -> pa.Table:
    """Return the table of all pairs of edge values."""
    columns = {}
    for name, (kind, values) in TYPES.items():
        padded = [values[place % len(values)] for place in range(WIDTH)]
        columns[f"a_{name}"] = pa.array([padded[row // WIDTH] for row in range(WIDTH**2)], kind)
        columns[f"b_{name}"] = pa.array([padded[row % WIDTH] for row in range(WIDTH**2)], kind)
    return pa.table(columns)


NUMBERS = ("byte", "short", "int", "long", "dec2", "dec6", "frac", "wide", "deep", "double")
TIMES = ("date", "moment", "local", "text")
RELATED = [(one, two) for group in (NUMBERS, TIMES) for one in group for two in group]
RELATED += [(each, each) for each in TYPES if each not in (*NUMBERS, *TIMES)]
RELATED += [("date", "int"), ("date", "byte"), ("date", "long"), ("moment", "short"), ("text", "int"), ("truth", "int")]
"""Pairs of types that functions might take; others must be refused, as `UNRELATED` shows."""

COMPARED = ["=", "<>", "<", "<=", ">", ">=", "<=>"]
OF_TWO = [f"{{a}} {sign} {{b}}" for sign in COMPARED]
OF_TWO += ["coalesce({a}, {b})", "nullif({a}, {b})", "if({a} is null, {b}, {a})", "case {a} when {b} then 1 end"]
OF_TWO += ["case when {a} = {b} then {a} else {b} end", "{a} between {b} and {a}", "{a} in ({b}, {a})"]
OF_TWO += ["greatest({a}, {b})", "least({a}, {b})", "greatest({a}, {b}, {a})", "least({b}, null, {a})"]
OF_NUMBERS = [f"{{a}} {sign} {{b}}" for sign in ("+", "-", "*", "/", "%", "div")]
OF_NUMBERS += ["{a} * {b} * {a}", "({a} + {b}) * ({a} - {b})", "-({a} * {b})", "abs({a} - {b}) > {b}"]
OF_NUMBERS += ["{a} / 3 + {b} / 7", "case when {a} > {b} then {a} * 2 else {b} end", "{a} in (1.5, {b}, 7)"]
OF_OTHERS = ["concat({a}, {b})", "{a} || {b}", "datediff({a}, {b})", "date_add({a}, {b})", "date_sub({a}, {b})"]
OF_OTHERS += ["startswith({a}, {b})", "{a} like {b}", "{a} and {b}", "{a} or {b}", "not ({a} < {b} or {a} is null)"]
UNRELATED = ["{a} = {b}", "{a} < {b}", "coalesce({a}, {b})", "{a} + {b}", "concat({a}, {b})"]

OF_ONE = ["{a} is null", "{a} is not null", "not {a}", "-{a}", "abs({a})", "upper({a})", "lower({a})", "length({a})"]
OF_ONE += [f"{part}({{a}})" for part in ("year", "month", "day", "quarter", "dayofyear", "hour", "minute", "second")]
OF_ONE += [f"extract({part} from {{a}})" for part in ("year", "month", "day", "quarter", "doy", "hour", "minute")]
OF_ONE += ["trim({a})", "ltrim({a})", "rtrim({a})", "date({a})", "to_date({a})", "{a}", "{a} is true", "{a} is false"]
OF_ONE += ["{a} <=> true", "{a} / 3", "{a} / 0.7e0", "0 - {a}", "{a} + 0", "{a} - 0", "{a} * 1", "{a} * 0"]

OF_TIMES = [f"{{a}} {sign} interval {span}" for sign in "+-" for span in ("3 day", "1 week", "1 month", "2 year")]
UNITS = ("year", "quarter", "month", "MM", "week", "day", "hour", "minute", "second", "century")
OF_TIMES += [f"date_trunc('{unit}', {{a}})" for unit in UNITS] + [f"trunc({{a}}, '{unit}')" for unit in UNITS]
OF_TIMES += ["{a} + interval 100000 month", "{a} - interval 100000 month", "{a} + interval 3 hour"]

PATTERNS = ["a%", "%", "%b%", "_", "", "%a", "a", "a_", "\\\\%", "%\\\\_%", "é", "日_", "😀%", "%\\n", "\\\\"]
PATTERNS += [".*", "[a]", "^a$", "_%_", "%%", "(a|b)"]
PARTS = ["a", "", "é", "😀", ".", "\\n", "%", "e"]
OF_TEXTS = [f"substring({{a}}, {bounds})" for bounds in ("1, 2", "2", "0, 2", "0", "3, 0", "2, 100", "-1", "1, -1")]
OF_TEXTS += [f"{{a}} like '{each}'" for each in PATTERNS] + ["{a} not like 'a%'", "{a} like '!%' escape '!'"]
OF_TEXTS += [f"left({{a}}, {number})" for number in (0, 1, 2, 100, -1)]
OF_TEXTS += [f"{name}({{a}}, '{part}')" for name in ("startswith", "endswith", "contains") for part in PARTS]
OF_TEXTS += [f"replace({{a}}, {parts})" for parts in ("'a', 'X'", "'a', ''", "'', 'X'", "'é', '$1'", "'.', 'x'", "' '")]

CASTS = ["tinyint", "smallint", "int", "bigint", "decimal(15,2)", "decimal(20,4)", "decimal(38,18)", "decimal(38,0)"]
CASTS += ["decimal(5,5)", "decimal(3,1)", "float", "double", "string", "date", "timestamp", "timestamp_ntz", "boolean"]
CASTS += ["binary"]

CONSTANTS = ["0", "-1", "7", "128", "300.5", "2147483648", "-2147483648", "9223372036854775807", "9223372036854775808"]
CONSTANTS += ["-9223372036854775808", "0.5", "-0.01", "12345678901234567890.5", "1.5e300", "0.1e0", "7L", "3Y", "1.5BD"]
CONSTANTS += ["-(2147483648)", "(1 + 1)", "null"]
WITH_NUMBER = [f"{{a}} {sign} {{c}}" for sign in ("+", "*", "/", "%", "=", "<")]
WITH_NUMBER += ["{c} - {a}", "{c} / {a}", "{c} < {a}", "coalesce({a}, {c})", "{a} not in ({c}, 7)"]
WITH_NUMBER += ["greatest({a}, {c})", "least({c}, {a})", "greatest({c}, 0, {a})"]
WITH_NUMBER += ["case when {a} > {c} then {c} end"]
OTHERS = ["''", "'a'", "'é'", "'😀'", "'7'", "'2024-02-29'", "date'2024-02-29'", "date'0001-01-01'", "true", "null"]
OTHERS += ["timestamp'2024-02-29 12:30:15.123456'", "timestamp'2020-01-01'", "timestamp_ntz'2020-01-01 00:00:59'"]
OTHERS += ["timestamp'0001-01-01'", "3", "-1"]
WITH_OTHER = ["{a} = {c}", "{c} < {a}", "{a} <=> {c}", "coalesce({a}, {c})", "nullif({a}, {c})", "{a} in ({c}, null)"]
WITH_OTHER += ["greatest({a}, {c})", "least({c}, {a})"]
WITH_OTHER += ["date_add({a}, {c})", "concat({a}, {c})", "datediff({a}, {c})", "{a} between {c} and {a}"]


def expression_texts() -> list[str]:
    """List all texts: also those that the list of functions does not have."""
    texts = [each.format(a="a_text") for each in OF_TEXTS]
    texts += [each.format(a=f"a_{one}") for each in OF_TIMES for one in TIMES]
    for one in TYPES:
        texts += [each.format(a=f"a_{one}") for each in OF_ONE] + [f"cast(a_{one} as {to})" for to in CASTS]
        with_constant, constants = (WITH_NUMBER, CONSTANTS) if one in NUMBERS else (WITH_OTHER, OTHERS)
        texts += [each.format(a=f"a_{one}", c=c) for each in with_constant for c in constants]
        for two in TYPES:
            used = UNRELATED
            if (one, two) in RELATED:
                used = [*OF_TWO, *(OF_NUMBERS if one in NUMBERS else OF_OTHERS)]
            texts += [each.format(a=f"a_{one}", b=f"b_{two}") for each in used]
    return list(dict.fromkeys(texts))


# Aggregates and windows, over groups of two edge values each, and one of all of them.

AGGREGATES = [f"{name}({{x}})" for name in ("sum", "avg", "min", "max", "count", "stddev", "stddev_pop", "variance")]
AGGREGATES += [f"{name}({{x}})" for name in ("var_pop", "bool_and", "bool_or")]
AGGREGATES += ["count_if({x} is null)", "sum({x}) filter (where m > 0)", "min({x}) filter (where m > 0)"]
AGGREGATES += [f"{name}({{x}}, {{y}})" for name in ("covar_samp", "covar_pop", "corr")]
AGGREGATES += [f"{name}({args})" for name in ("min_by", "max_by") for args in ("{x}, m", "m, {x}")]

DISTINCTS = [f"{name}(distinct {{x}})" for name in ("count", "sum", "min", "max")]
COUNTED = ("int", "dec2", "wide", "text", "date")
"""Types whose different values are counted; each of them is all rows once more for Spark."""

WINDOWS = [f"{name}({{x}}) over (partition by g order by m)" for name in ("lag", "lead", "count", "sum", "min", "max")]
WINDOWS += ["lag({x}, 2) over (partition by g order by m)"]
WINDOWS += [f"{name}({{x}}) over (partition by g)" for name in ("count", "sum", "min", "max", "avg")]
WINDOWS += ["sum({x}) over (partition by g order by m rows between unbounded preceding and current row)"]

ORDERS = [
    f"{name}() over (partition by g order by {{x}} {way})" for name in ("rank", "dense_rank") for way in ("", "desc")
]
ORDERS += ["row_number() over (partition by g order by {x} nulls last, m)", "count(*) over (partition by {x})"]
ORDERS += ["sum({x}) over (partition by g order by {x})", "min(m) over (partition by {x})"]
ORDERED = ("int", "dec2", "wide", "float", "double", "text", "date", "truth", "moment", "bytes")
"""Types by which windows order rows; each of them is a sort of its own for Spark."""


def member_table() -> pa.Table:
    """Return groups g of members m: each pair of edge values is a group, and all values of a type are one."""
    groups = [place for place in range(WIDTH**2) for _ in range(2)] + [WIDTH**2] * WIDTH
    columns = {"g": pa.array(groups, pa.int32()), "m": pa.array(range(len(groups)), pa.int32())}
    for name, (kind, values) in TYPES.items():
        padded = [values[place % len(values)] for place in range(WIDTH)]
        pairs = [(padded[row // WIDTH], padded[row % WIDTH]) for row in range(WIDTH**2)]
        columns[f"x_{name}"] = pa.array([each for pair in pairs for each in pair] + padded, kind)
        columns[f"y_{name}"] = pa.array([each for pair in pairs for each in reversed(pair)] + padded[::-1], kind)
    return pa.table(columns)

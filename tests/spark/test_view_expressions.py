# ruff: noqa: E501
"""The functions of views against Spark: types and values of each, on edge values, in one job."""

import datetime
import decimal
import math

import polars as pl
import pyarrow as pa
import pytest

from timespine.spark.quoted_names import quoted
from timespine.spark.type_mapping import arrow_columns
from timespine.views.engine.lowering import evaluate_columns, to_memory
from timespine.views.plan.algebra import InputScan, Project
from timespine.views.spark_engine.scalar_text import expression_text
from timespine.views.sql import functions
from timespine.views.sql.from_sql import Builder
from timespine.views.sql.parse import parse_query, qualified

D = decimal.Decimal
MOMENTS = [
    (1970, 1, 1, 0, 0, 0),
    (1969, 12, 31, 23, 59, 59),
    (2024, 2, 29, 12, 30, 15, 123456),
    (2023, 12, 31, 0, 0, 0),
    (1600, 3, 1, 6, 7, 8),
    (2999, 12, 31, 23, 59, 59, 999999),
    (2000, 1, 31, 1, 2, 3),
    (2021, 3, 1, 5, 0, 0),
]
COLUMNS = {
    "i": (pa.int32(), [None, 0, 1, -1, 7, -8, 1_000_000, -46_340, 2]),
    "j": (pa.int32(), [3, None, 1, 5, -2, 4, 9, 1, 46_340]),
    "b": (pa.int64(), [None, 0, 1, -1, 2**53 + 1, -(2**40), 10, 3, 5]),
    "d": (
        pa.decimal128(15, 2),
        [None, D("0.00"), D("1.00"), D("-1.05"), D("9999999999999.99"), D("2.50"), D("0.01"), D("-2.50"), D("3.33")],
    ),
    "e": (
        pa.decimal128(15, 2),
        [D("1.00"), None, D("3.00"), D("7.00"), D("-0.03"), D("0.07"), D("2.00"), D("6.00"), D("0.30")],
    ),
    "x": (pa.float64(), [None, 0.0, -0.0, 1.5, -2.5, 1e300, math.inf, math.nan, 0.1]),
    "y": (pa.float64(), [1.0, None, 2.5, 3.0, -7.0, 1e-300, 2.0, 5.0, 3.0]),
    "s": (pa.string(), [None, "", "a", "abc", " ab ", "%b_", "Abc\\d", "é", "xyz\n"]),
    "u": (pa.string(), ["a", None, "b", "abc", "ab", "", "zz", "é", "q"]),
    "t": (
        pa.date32(),
        [
            None,
            *(
                datetime.date.fromisoformat(each)
                for each in (
                    "1970-01-01",
                    "1969-12-31",
                    "2024-02-29",
                    "2023-12-31",
                    "1582-10-15",
                    "9990-12-31",
                    "2000-01-31",
                    "2021-03-01",
                )
            ),
        ],
    ),
    "o": (pa.bool_(), [None, True, False, True, True, False, False, None, True]),
    "w": (
        pa.timestamp("us", "UTC"),
        [None, *(datetime.datetime(*each, tzinfo=datetime.UTC) for each in MOMENTS)],
    ),
    "h": (pa.int16(), [None, 0, 1, -1, 300, -32768, 32767, 5, 7]),
    "c": (
        pa.decimal128(27, 6),
        [None, *(D(each) for each in ("0", "1.5", "-2.000001", "99999999999", "7", "3", "-1", "0.5"))],
    ),
    "z": (
        pa.struct([("p", pa.decimal128(7, 2)), ("q", pa.string()), ("r", pa.struct([("n", pa.int64())]))]),
        [None, {}, *({"p": D(each), "q": str(each), "r": {"n": each} if each else None} for each in range(7))],
    ),
}
TABLE = pa.table({name: pa.array(values, kind) for name, (kind, values) in COLUMNS.items()})

EXPRESSIONS = """
i = j | i <> j | i < j | i <= j | i > j | i >= j | i <=> j | i is null | i is not null | not (i > 0) | o and i > 0 | o or i > 0
i > 0 and j is null | coalesce(i, j, 5) | coalesce(i, b) | nullif(i, j) | if(i > 0, j, i) | i in (1, 2, 7) | i in (1, null)
i not in (0, 7) | i between -1 and 7 | case when i > 0 then 'p' when i < 0 then 'n' end | case i when 1 then 'one' else 'other' end
case when i = 1 then 1 else 0 end | cast(i as bigint) * j | i + 1 | i - j | b + i | b * 2 | -i | abs(i) | abs(b) | i % 5 | b % 3 | i div 2 | b div 7
i / 4 | b / 3 | cast(i as double) | cast(i as string) | cast(b as string) | cast(i as decimal(12,2)) | cast(b as decimal(20,0))
d + e | d - e | d * e | d * 2 | d * 0.5 | i * 0.5 | d + i | d - 1 | 1 - d | d * (1 - e) | d * (1 - e) * (1 + d) | d > e | d = e | d < 2.5 | d = i | d >= 0
-d | abs(d) | cast(d as double) | cast(d as decimal(20,4)) | coalesce(d, 0) | case when d > 2 then d else 0 end | d in (1.00, 2.5) | d / 7 | 100.00 * d / 3.0
x + y | x - y | x * y | x / 3 | x / 3.0D | y / 7 | x > y | x = y | x < 1.5 | x <=> y | x + i | i = x | abs(x) | -x | coalesce(x, 0) | d * y | d > y
s = u | s <> u | s < u | s > 'a' | s like 'a%' | s like '%b%' | s like '_' | s not like 'a%' | not (s not like '%b%') | s like '%' | s like 'Abc%' | length(s) | trim(s) | ltrim(s) | rtrim(s)
concat(s, u) | s || u | substring(s, 1, 2) | substring(s, 2) | substring(s, 0, 2) | replace(s, 'b', 'X') | s in ('a', 'abc') | coalesce(s, '?')
startswith(s, 'a') | endswith(s, 'c') | contains(s, 'b') | nullif(s, '')
t = t | t < date'2000-01-01' | t >= '2021-03-01' | t + interval 3 day | t - interval 3 day | t - interval 1 month | t - interval 2 year | date_add(t, 1) | date_sub(t, 1)
datediff(t, date'2020-01-01') | year(t) | month(t) | day(t) | quarter(t) | dayofyear(t) | extract(year from t) | extract(month from t)
year(t) * 100 + month(t) | cast(t as string) | t between date'1970-01-01' and date'2025-01-01'
w = w | w is null | year(w) | month(w) | day(w) | quarter(w) | hour(w) | minute(w) | cast(w as date) | datediff(w, t) | coalesce(w, w) | dayofyear(t)
h + i | h * b | h > i | h = b | cast(h as bigint) | h % 7 | h div 3 | coalesce(h, i) | h in (1, 300) | c + d | c * 2 | c > d | c - e | c = i | -c | abs(c) | cast(c as decimal(30,8)) | cast(h as string) | i between h and b
array(i, j) | array(d, e, d) | array(s, 'x', null) | array(b, i) | array(x) | array(i, 2.5) | z.p | z.q | z.P * 2 | z.r.n | coalesce(z.q, s)
t < date'1994-01-01' + interval '1' year | case when t is null then date'2000-01-01' else t end
greatest(i, j) | least(i, b, 3) | greatest(x, y) | least(x, 1.5) | greatest(s, u) | least(d, i) | left(s, 2) | cast(d as string) | cast(e as string)
trunc(t, 'MM') | trunc(t, 'year') | date_trunc('quarter', t) | date_trunc('WEEK', w) | date_trunc('hour', w) | w > timestamp'2000-01-01' | w = t
"""
TEXTS = [
    each.strip().replace("<pipes>", "||") for each in EXPRESSIONS.replace("||", "<pipes>").replace("\n", "|").split("|")
]
TEXTS = [each for each in TEXTS if each]

# What a session of Spark refuses on these rows, or what needs rows that this process declines.
ASCII = ["upper(u)", "lower(u)"]


def typed(texts):
    """The typed expressions of texts, and the columns that they are over."""
    sql = "SELECT " + ", ".join(f"{text} AS c{place}" for place, text in enumerate(texts)) + " FROM edges"
    inputs = {"edges": TABLE.schema}
    builder = Builder(inputs)
    plan, named = builder.query(qualified(parse_query(sql), inputs), {}, None)
    assert not builder.reasons, "\n".join(map(str, builder.reasons))
    assert isinstance(plan, Project)
    assert isinstance(plan.child, InputScan)
    outputs = {column.name: each for column, each in plan.outputs}
    return plan.child, [outputs[column.name] for _, column in named]


def plain(value):
    if isinstance(value, list):
        return list(map(plain, value))
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return value


@pytest.fixture(scope="module")
def answers(spark):
    """What Spark says, in one job."""
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.createDataFrame(TABLE).createOrReplaceTempView("edges")
    frame = spark.sql("SELECT " + ", ".join(f"{text} AS c{place}" for place, text in enumerate(TEXTS)) + " FROM edges")
    return arrow_columns(frame.schema), frame.toArrow()


def test_every_function_has_the_types_and_the_values_of_spark(answers):
    schema, table = answers
    scan, expressions = typed(TEXTS)
    rows = to_memory(
        pl.DataFrame(pl.from_arrow(TABLE)).rename({source: column.name for column, source in scan.outputs})
    )
    wrong = []
    for place, (text, expression) in enumerate(zip(TEXTS, expressions, strict=True)):
        got = evaluate_columns(rows, [("value", expression)], [rows.columns[0]])["value"].to_list()
        told = table.column(place).to_pylist()
        if schema.field(place).type != expression.type:
            wrong.append((text, "type", str(schema.field(place).type), str(expression.type)))
        differ = [(want, have) for want, have in zip(map(plain, told), map(plain, got), strict=True) if want != have]
        if differ:
            wrong.append((text, "values", *differ[:2]))
    assert not wrong, "\n".join(map(str, wrong))


def test_every_function_of_the_list_is_compared():
    used = set()

    def walk(expression):
        if hasattr(expression, "function"):
            used.add(expression.function)
            for each in expression.args:
                walk(each)

    for each in typed([*TEXTS, *ASCII])[1]:
        walk(each)
    folded = {"nullif"}  # becomes another
    assert set(functions.names()) - used <= folded, set(functions.names()) - used


def test_typed_expressions_as_text_of_spark_give_the_types_and_values_of_the_written_ones(spark, answers):
    """What the engine on Spark evaluates: every expression of the list, printed again from its types."""
    schema, table = answers
    scan, expressions = typed(TEXTS)
    rows = spark.table("edges").selectExpr(*(f"{source} AS {quoted(column.name)}" for column, source in scan.outputs))
    frame = rows.selectExpr(*(f"{expression_text(each)} AS c{n}" for n, each in enumerate(expressions)))
    got = frame.toArrow()
    wrong = []
    for place, text in enumerate(TEXTS):
        told, have = (list(map(plain, each.column(place).to_pylist())) for each in (table, got))
        if told != have or arrow_columns(frame.schema).field(place).type != schema.field(place).type:
            wrong.append((text, expression_text(expressions[place]), told, have))
    assert not wrong, "\n".join(map(str, wrong))

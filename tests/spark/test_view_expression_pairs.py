"""The process against Spark: each function with each pair of types, on all pairs of edge values.

The process says first which rows it answers; what it declines is Spark's in a refresh too. Spark then answers the same
rows, in a few jobs, and must raise no error there. Types and values have to be the same, to the last bit.
"""

import polars as pl
import pyarrow as pa
from expression_pairs import edge_table, expression_texts

from timespine.spark.type_mapping import arrow_columns
from timespine.views.engine.lowering import Declined, evaluate_columns, to_memory
from timespine.views.plan.algebra import InputScan, Project
from timespine.views.plan.expressions import columns_of
from timespine.views.spark_engine.session import borrowed
from timespine.views.sql.from_sql import Builder
from timespine.views.sql.parse import parse_query, qualified

TABLE = edge_table()
FAST = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Settings for thousands of expressions over few rows: they change no answers."""

AT_ONCE = 800
"""Texts that Spark answers in one job: it analyses many more at once in more than their share of time."""

TOGETHER = 200
"""Texts that are parsed as one SELECT."""


def listed(texts):
    """Return the typed expressions of those texts that the list of functions has."""
    found = {}
    for start in range(0, len(texts), TOGETHER):
        part = texts[start : start + TOGETHER]
        sql = "SELECT " + ", ".join(f"{text} AS c{place}" for place, text in enumerate(part)) + " FROM edges"
        inputs = {"edges": TABLE.schema}
        plan, named = Builder(inputs).query(qualified(parse_query(sql), inputs), {}, None)
        assert isinstance(plan, Project)
        assert isinstance(plan.child, InputScan)
        outputs = {column.name: each for column, each in plan.outputs}
        sources = {column.name: source for column, source in plan.child.outputs}
        for name, column in named:
            found[part[int(name[1:])]] = (outputs[column.name], sources)
    return found


def answered(rows, expression):
    """Return the values of an expression, and for which rows: those that are not declined, found by halving."""
    places = rows["_place"].to_list()
    try:
        value = evaluate_columns(rows, [("value", expression)], ["_place"])["value"]
        return [(places, value)]
    except Declined:
        if len(rows) == 1:
            return []
        half = len(rows) // 2
        return [*answered(rows[:half], expression), *answered(rows[half:], expression)]


def plain(column, kind):
    """Values that compare bit by bit: dates and times as numbers, doubles as text."""
    if pa.types.is_temporal(kind):
        column = column.cast(kind).cast(pa.int32() if pa.types.is_date(kind) else pa.int64())
    values = column.to_pylist()
    return [repr(each) if isinstance(each, float) else each for each in values]


def ours(expressions):
    """What the process says: for each text the rows that it answers, and their values."""
    frame = to_memory(pl.DataFrame(pl.from_arrow(TABLE))).with_row_index("_place")
    said = {}
    for text, (expression, sources) in expressions.items():
        used = {sources[name]: name for name in columns_of(expression)}
        rows = frame.unique(list(used) or ["a_truth"], keep="first", maintain_order=True).rename(used)
        known = {}
        for places, value in answered(rows, expression):
            known.update(zip(places, plain(value.to_arrow(), expression.type), strict=True))
        said[text] = known
    return said


def theirs(spark, said):
    """What Spark says about the rows that the process answers: types and values, in a few jobs."""
    with borrowed(spark) as inner:
        before = {key: inner.conf.get(key) for key in FAST}
        for key, value in FAST.items():
            inner.conf.set(key, value)
        try:
            texts = list(said)
            parts = [texts[start : start + AT_ONCE] for start in range(0, len(texts), AT_ONCE)]
            return [pair for part in parts for pair in asked(inner, {text: said[text] for text in part})]
        finally:
            for key, value in before.items():
                inner.conf.set(key, value)


def asked(spark, said):
    """What a session says."""
    texts = list(said)
    bits = ["".join("1" if row in said[text] else "0" for text in texts) for row in range(len(TABLE))]
    frame = spark.createDataFrame(TABLE.append_column("_bits", pa.array(bits)))
    for name in ("a_local", "b_local"):  # times without a zone come as times in the zone of the session
        frame = frame.withColumn(name, frame[name].cast("timestamp_ntz"))
    frame.createOrReplaceTempView("pairs")
    chosen = [f"CASE WHEN substr(_bits, {n}, 1) = '1' THEN {text} END AS c{n}" for n, text in enumerate(texts, 1)]
    frame = spark.sql(f"SELECT {', '.join(chosen)} FROM pairs")
    schema, table = arrow_columns(frame.schema), frame.toArrow()
    return [(field.type, column.combine_chunks()) for field, column in zip(schema, table.columns, strict=True)]


def test_the_process_answers_as_spark_does_on_all_pairs_of_types_and_edge_values(spark):
    expressions = listed(expression_texts())
    said = ours(expressions)
    wrong = []
    for (text, known), (their_kind, column) in zip(said.items(), theirs(spark, said), strict=True):
        kind = expressions[text][0].type
        if their_kind != kind:
            wrong.append((text, "type", str(their_kind), str(kind)))
            continue
        told = plain(column, kind)
        differ = [(row, told[row], value) for row, value in known.items() if told[row] != value]
        if differ:
            wrong.append((text, f"{len(differ)} of {len(known)} rows", *differ[:2]))
    assert not wrong, "\n".join(map(str, wrong))
    assert len(said) > 2500
    unanswered = [text for text, known in said.items() if not known]
    assert len(unanswered) < len(said) // 20, unanswered


def test_an_answer_does_not_depend_on_the_other_rows():
    """A frame of one row, and one without nulls, go other ways in Polars."""
    expressions = listed([f"a_double {sign} {c}" for sign in "+-*/" for c in ("3", "0.7e0", "b_double")])
    frame = to_memory(pl.DataFrame(pl.from_arrow(TABLE))).with_row_index("_place")
    for text, (expression, sources) in expressions.items():
        used = {sources[name]: name for name in columns_of(expression)}
        rows = frame.drop_nulls(["a_double", "b_double"]).filter(pl.col("b_double") != 0).rename(used)
        ((_, whole),) = answered(rows, expression)
        for place in range(0, len(rows), 7):
            ((_, alone),) = answered(rows[place : place + 1], expression)
            assert repr(alone.item()) == repr(whole[place]), (text, rows[place])

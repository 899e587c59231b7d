"""Filters are taken only where the session's Spark pushes them correctly, and then every row is the right one."""

from __future__ import annotations

import datetime
import itertools

import pytest
from pyspark.sql import functions as F
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)
from pyspark.sql.readwriter import DataFrameReader

from timespine.columnar.scan.worker_slice import Slice
from timespine.spark.data_source import FilteringSource, TimespineSource
from timespine.spark.options import READ, Options
from timespine.spark.read.pushed_filters import TEXT_MAX
from timespine.spark.read.read_plan import read_schema
from timespine.spark.read.read_task import read_partition
from timespine.spark.setup import filter_probe
from timespine.spark.setup.filter_probe import PUSHDOWN, pushes_filters_correctly
from timespine.spark.setup.session import prepare
from timespine.spark.type_mapping import struct_type

NUMBERS = (None, 0, 1, -1, 2**31 - 1, -(2**31))
TEXTS = (None, "", "a", "ab", "a%b", "a_b", "a\\b", "it's", "é", "e\u0301", "😀", "line\nline", "Ab")
DAYS = (None, datetime.date(1, 1, 1), datetime.date(1969, 12, 31), datetime.date(9999, 12, 31))
VALUES = {"number": "int32", "text": "string", "day": "date", "flag": "bool", "real": "float64", "at": "timestamp[ns]"}
COLUMNS = {"number": NUMBERS, "text": TEXTS, "day": DAYS, "flag": (None, True, False)}
ORDER = {
    EqualTo: lambda a, b: a == b,
    GreaterThan: lambda a, b: a > b,
    GreaterThanOrEqual: lambda a, b: a >= b,
    LessThan: lambda a, b: a < b,
    LessThanOrEqual: lambda a, b: a <= b,
    EqualNullSafe: lambda a, b: a == b,
    StringStartsWith: lambda a, b: a.startswith(b),
    In: lambda a, b: a in b,
}


@pytest.fixture
def items(store):
    made = store.create("items", key={"id": "int64"}, value=VALUES, timeline="counter")
    rows = [
        {"id": id, "real": float("nan") if id % 2 else -0.0, "at": None, **dict(zip(COLUMNS, values, strict=True))}
        for id, values in enumerate(itertools.product(NUMBERS, TEXTS, DAYS, COLUMNS["flag"]))
    ]
    made.append(rows)
    return made


@pytest.fixture
def reader_of(items):
    """Make the reader of a session that pushes filters, with options."""

    def make(**given):
        asked = {"path": f"{items._handle.context.location}/items", **given}
        options = Options(asked, READ) if "readChangeFeed" not in given else Options(asked, "spark.read of changes")
        return FilteringSource(asked).reader(struct_type(read_schema(items, options)))

    return make


@pytest.fixture
def pushing(spark):
    """A session whose Spark pushes filters, prepared anew before and after."""
    spark.conf.set(PUSHDOWN, "true")
    yield spark
    spark.conf.unset(PUSHDOWN)
    prepare(spark)


def rows_of(reader):
    return [row for each in reader.partitions() for batch in read_partition(each) for row in batch.to_pylist()]


def is_true(given, row):
    """Tell whether a filter is true for a row, as SQL has it: None if that is unknown."""
    if isinstance(given, Not):
        found = is_true(given.child, row)
        return None if found is None else not found
    value = row[given.attribute[0]]
    if isinstance(given, IsNull | IsNotNull):
        return (value is None) is isinstance(given, IsNull)
    return None if value is None else ORDER[type(given)](value, given.value)


def exact_filters():
    """Yield every filter that a reader takes, over every kind of column that it takes."""
    for name, values in COLUMNS.items():
        yield from (IsNull((name,)), IsNotNull((name,)), Not(IsNull((name,))))
        known = tuple(value for value in values if value is not None)
        yield from (In((name,), known[:2]), Not(In((name,), known[1:])))
        for kind in (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual):
            yield from (kind((name,), value) for value in known)
            if kind is not EqualNullSafe:
                yield Not(kind((name,), known[0]))
    yield from (StringStartsWith(("text",), text) for text in ("", "a", "a%", "a_", "a\\", "it'", "é", "line\n"))
    yield Not(StringStartsWith(("text",), "a"))


def test_every_filter_that_is_taken_keeps_the_rows_for_which_it_is_true(items, reader_of):
    every = items.snapshot(columns=["id", *COLUMNS]).to_pylist()
    assert len(every) == 6 * 13 * 4 * 3
    for given in exact_filters():
        reader = reader_of(columns=",".join(["id", *COLUMNS]))
        assert reader.pushFilters([given]) == []
        wanted = [row for row in every if is_true(given, row)]
        assert sorted(row["id"] for row in rows_of(reader)) == sorted(row["id"] for row in wanted), given


@pytest.mark.parametrize(
    "given",
    [
        EqualTo(("real",), 0.0),  # NaN and -0.0 have another order
        GreaterThan(("at",), datetime.datetime(2026, 1, 1)),  # Spark has microseconds of it
        IsNull(("at",)),
        EqualTo(("text", "inside"), "a"),
        EqualTo(("unknown",), 1),
        EqualTo(("_diff",), 1),
        EqualTo(("number",), None),
        EqualNullSafe(("number",), None),
        Not(EqualNullSafe(("number",), 1)),  # true for null
        In(("number",), (1, None)),
        Not(In(("number",), (1, None))),
        In(("number",), ()),
        StringContains(("text",), "a"),
        StringEndsWith(("text",), "a"),
        EqualTo(("text",), "x" * (TEXT_MAX + 1)),
        EqualTo(("text",), "\ud800"),
        StringStartsWith(("text",), "x" * TEXT_MAX),
    ],
)
def test_other_filters_are_left_to_spark_and_the_read_gives_all_rows(reader_of, given):
    reader = reader_of()
    taken = GreaterThanOrEqual(("id",), 930)
    assert reader.pushFilters([given, taken]) == [given]
    assert sorted(row["id"] for row in rows_of(reader)) == list(range(930, 936))


def test_conditions_of_the_option_and_of_spark_hold_together_and_skip_what_they_rule_out(reader_of):
    reader = reader_of(where="id < 5 OR id > 930")
    assert reader.pushFilters([GreaterThanOrEqual(("id",), 3), IsNotNull(("id",))]) == []
    (partition,) = reader.partitions()
    assert Slice.decode(partition.value[1]).where == "(id < 5 OR id > 930) AND id >= 3 AND id IS NOT NULL"
    assert sorted(row["id"] for row in rows_of(reader)) == [3, 4, *range(931, 936)]


def test_a_change_feed_takes_no_filters(reader_of):
    reader, given = reader_of(readChangeFeed="true"), EqualTo(("number",), 1)
    assert reader.pushFilters([given]) == [given]
    assert reader._pushed is None


def test_this_spark_does_not_push_filters_correctly(pushing):
    """If this fails, Spark has changed: filters are then pushed, and docs/design/0011-spark.md can say so."""
    assert pushes_filters_correctly(pushing) is False


def test_a_probe_runs_once_per_session_and_only_where_filters_are_pushed(spark, monkeypatch):
    probes, registered = [], []
    monkeypatch.setattr(filter_probe, "_verdicts", {})
    monkeypatch.setattr(filter_probe, "_probe", lambda session: probes.append(session) or True)
    monkeypatch.setattr(type(spark.dataSource), "register", lambda _, source: registered.append(source))
    prepare(spark)
    assert (probes, registered) == ([], [TimespineSource])
    spark.conf.set(PUSHDOWN, "true")
    try:
        prepare(spark)
        prepare(spark)
    finally:
        spark.conf.unset(PUSHDOWN)
    prepare(spark)
    assert probes == [spark]
    assert registered == [TimespineSource, FilteringSource, FilteringSource, TimespineSource]


def test_a_probe_that_fails_is_a_no(spark, monkeypatch):
    monkeypatch.setattr(filter_probe, "_verdicts", {})
    monkeypatch.setattr(DataFrameReader, "load", lambda *_: spark.range(3).select(F.raise_error(F.lit("x")).alias("n")))
    assert pushes_filters_correctly(spark) is False


def test_without_a_good_verdict_filtered_and_other_queries_of_one_frame_give_the_right_rows(items, pushing):
    """The reader must not even have the method: its presence makes these rows wrong."""
    prepare(pushing)
    frame = pushing.read.format("timespine").load(f"{items._handle.context.location}/items")
    some = frame.where("id >= 930")
    assert some.count() == 6
    assert frame.count() == 936
    assert some.unionAll(frame).count() == 942
    reader = TimespineSource({"path": "/a/b"}).reader(frame.schema)
    assert type(reader).pushFilters is DataSourceReader.pushFilters


def test_with_a_good_verdict_spark_hands_filters_over_and_applies_the_others(items, pushing, monkeypatch):
    """Each query has a DataFrame of its own, so that the fault of this Spark does not show."""
    monkeypatch.setattr(filter_probe, "_verdicts", {pushing: True})
    prepare(pushing)
    conditions = (
        "id >= 900 and text = 'line\nline'",
        "number != -1 and text like 'a\\\\%%' and id % 2 = 0",
        "flag and day < DATE '1969-12-31' and (number = 1 or text = '')",
        "real <=> -0.0D and number <=> 0 and text is null",
        "not flag and text in ('Ab', 'it\\'s') and day is not null",
    )
    plain, path = items.snapshot().to_spark(pushing), f"{items._handle.context.location}/items"
    applies = []
    for condition in conditions:
        wanted = sorted(row["id"] for row in plain.where(condition).select("id").collect())
        frame = pushing.read.format("timespine").load(path).where(condition)
        assert wanted == sorted(row["id"] for row in frame.collect()), condition
        assert wanted
        applies.append("Filter (" in frame._jdf.queryExecution().executedPlan().toString())
    assert applies == [False, True, True, True, False]

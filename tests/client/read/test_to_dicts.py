"""Rows as dictionaries: what Python has no value for is a typed error, and other ways to read it work."""

import datetime

import pyarrow as pa
import pytest

from timespine.errors import UsageError

EXTREMES = {
    "date": pa.array([-(1 << 31), (1 << 31) - 1], pa.int32()).cast(pa.date32()),
    "timestamp": pa.array([-(1 << 63) + 1, (1 << 63) - 1], pa.int64()).cast(pa.timestamp("us")),
}


@pytest.mark.parametrize("kind", EXTREMES)
def test_dates_beyond_those_of_python_are_a_typed_error_that_names_the_column(place, kind):
    days = place.open().create("days", key={"k": "int64"}, value={"n": "int64", "at": kind}, timeline="counter")
    days.append(pa.table({"k": [1, 2], "n": [1, 2], "at": EXTREMES[kind]}))
    with pytest.raises(UsageError, match=r"column at .*to_arrow"):
        days.snapshot().to_pylist()
    assert days.lookup({"k": 1}).column("at").combine_chunks().equals(EXTREMES[kind][:1])
    assert days.snapshot().to_arrow().column("at").combine_chunks().equals(EXTREMES[kind])
    assert days.snapshot(columns=["k", "n"]).to_pylist() == [{"k": 1, "n": 1}, {"k": 2, "n": 2}]


def test_dates_that_python_has_are_given(place):
    days = place.open().create("days", key={"at": "date"}, timeline="counter")
    held = [datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]
    days.append([{"at": each} for each in held])
    assert [row["at"] for row in days.snapshot().to_pylist()] == held


def test_dates_that_a_frame_of_pandas_cannot_hold_are_a_typed_error_too(place):
    days = place.open().create("days", key={"k": "int64"}, value={"at": "date"}, timeline="counter")
    days.append(pa.table({"k": [1, 2], "at": EXTREMES["date"]}))
    with pytest.raises(UsageError, match=r"column at .*to_arrow"):
        days.snapshot().to_pandas()
    assert days.snapshot(columns=["k"]).to_pandas()["k"].tolist() == [1, 2]

"""Times and durations as people give them."""

import datetime
import decimal
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timespine.client.arguments.time_args import parse_duration_ms, parse_time, unwrap_time
from timespine.errors import UsageError
from timespine.model.time import INT64_MAX

UTC = datetime.UTC


@pytest.mark.parametrize("time", [0, 1, 17, INT64_MAX])
def test_an_integer_is_itself(time):
    assert parse_time(time, 1) == (time,)
    assert unwrap_time((time,)) == time


@pytest.mark.parametrize("given", [np.int64(5), np.int32(5), np.uint8(5), np.uint64(5)])
def test_integers_of_numpy_are_integers(given):
    (time,) = parse_time(given, 1)
    assert time == 5
    assert type(time) is int
    assert parse_time((given, given), 2) == (5, 5)


def test_one_integer_per_coordinate_is_a_time_of_several():
    assert parse_time((3, 4), 2) == (3, 4)
    assert unwrap_time((3, 4)) == (3, 4)


def test_a_datetime_is_milliseconds_since_1970_whatever_its_zone():
    moment = datetime.datetime(2024, 2, 29, 12, 30, 45, 678_000, tzinfo=UTC)
    assert parse_time(moment, 1) == (1709209845678,)
    assert parse_time(moment.astimezone(ZoneInfo("America/New_York")), 1) == (1709209845678,)


@given(st.integers(0, 253402300799999))
def test_every_millisecond_comes_back_as_itself(milliseconds):
    moment = datetime.datetime(1970, 1, 1, tzinfo=UTC) + datetime.timedelta(milliseconds=milliseconds)
    assert parse_time(moment, 1) == (milliseconds,)


def test_a_datetime_is_no_time_of_a_counter():
    with pytest.raises(UsageError, match="its time line is a counter"):
        parse_time(datetime.datetime(2024, 2, 29, tzinfo=UTC), 1, "counter")
    assert parse_time(7, 1, "counter") == (7,)


def test_parts_of_a_millisecond_are_dropped():
    assert parse_time(datetime.datetime(1970, 1, 1, 0, 0, 0, 1999, tzinfo=UTC), 1) == (1,)


@pytest.mark.parametrize(
    ("time", "arity"),
    [
        (-1, 1),
        (INT64_MAX + 1, 1),
        (True, 1),
        (1.0, 1),
        ("7", 1),
        (None, 1),
        ((1, 2), 1),
        (1, 2),
        ((1,), 2),
        ((1, -1), 2),
        ((1, True), 2),
        ((1, 2.0), 2),
        ([1], 1),
        (np.float64(1), 1),
        (datetime.date(2024, 1, 1), 1),
        (datetime.datetime(2024, 1, 1), 1),
        (datetime.datetime(1969, 1, 1, tzinfo=UTC), 1),
        (datetime.datetime(2024, 1, 1, tzinfo=UTC), 2),
    ],
)
def test_what_is_no_time_is_refused(time, arity):
    with pytest.raises(UsageError):
        parse_time(time, arity)


@pytest.mark.parametrize(
    ("given", "milliseconds"),
    [
        ("1 ms", 1),
        ("90 s", 90_000),
        ("90s", 90_000),
        (" 1.5 Sec ", 1_500),
        ("10 min", 600_000),
        ("10 Minutes", 600_000),
        ("2 m", 120_000),
        ("12 hours", 43_200_000),
        ("1 h", 3_600_000),
        ("7 days", 604_800_000),
        ("7d", 604_800_000),
        ("2 weeks", 1_209_600_000),
        (3, 3_000),
        (0.25, 250),
        (datetime.timedelta(days=1, milliseconds=1), 86_400_001),
    ],
)
def test_durations_are_said_as_people_say_them(given, milliseconds):
    assert parse_duration_ms(given) == milliseconds


@pytest.mark.parametrize(
    "given",
    [
        "",
        "7",
        "days",
        "7 fortnights",
        "-7 days",
        "7 days 2 hours",
        "7 dayss s",
        "1e3 s",
        "0 s",
        "0.0001 ms",
        "9" * 400 + " days",
        0,
        -1,
        0.0,
        float("nan"),
        float("inf"),
        10**30,
        True,
        None,
        [7],
        decimal.Decimal(7),
        datetime.timedelta(0),
        datetime.timedelta(days=-1),
    ],
)
def test_what_is_no_duration_is_refused(given):
    with pytest.raises(UsageError):
        parse_duration_ms(given)

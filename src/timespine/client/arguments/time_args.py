"""Times from callers: integers, datetimes, tuples; and durations such as "7 days"."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from numbers import Integral

from timespine.errors import UsageError, short_repr
from timespine.model.frontier import Frontier, check_arity_of
from timespine.model.time import INT64_MAX, Time, check_time

TimeLike = int | datetime.datetime | Time
"""A time of one coordinate, a point of the wall clock, or one value per coordinate."""

FrontierLike = TimeLike | list[TimeLike] | list[Time] | Frontier
"""A frontier to seal or expire up to: a time; with several coordinates also a list of times, none before another."""

DurationLike = str | float | datetime.timedelta
"""A duration: "10 min", "7 days", a timedelta, or seconds as a number."""

PlainFrontier = int | list[list[int]] | None
"""A frontier in JSON: a time; with several coordinates a list of times; None when closed."""

_UNITS_MS = {
    "ms": 1,
    "millisecond": 1,
    "s": 1000,
    "sec": 1000,
    "second": 1000,
    "m": 60_000,
    "min": 60_000,
    "minute": 60_000,
    "h": 3_600_000,
    "hour": 3_600_000,
    "d": 86_400_000,
    "day": 86_400_000,
    "w": 604_800_000,
    "week": 604_800_000,
}

CLOCK_MAX_S = (1 << 52) // 1000
"""The latest time in seconds that a clock may give: the limit of the core."""

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND = datetime.timedelta(milliseconds=1)
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.IGNORECASE)


def parse_time(given: TimeLike, arity: int, timeline: str = "clock") -> Time:
    """Convert a time that a caller gave. Raise a UsageError for a datetime if the time line is a counter."""
    if isinstance(given, datetime.datetime):
        if timeline == "counter":
            raise UsageError(
                f"{given} is not a time of this collection: its time line is a counter, 0, 1, 2, and so on"
            )
        if given.tzinfo is None:
            raise UsageError("a datetime without a zone could be anywhere: give it one, such as datetime.timezone.utc")
        # Integer arithmetic: a float of seconds may round to the millisecond before.
        return check_time(((given - _EPOCH) // _MILLISECOND,), arity)
    if isinstance(given, tuple):
        return check_time(tuple(_plain(each) for each in given), arity)
    if isinstance(given, Integral) and not isinstance(given, bool):
        return check_time((int(given),), arity)
    raise UsageError(
        f"{short_repr(given)} is not a time: give an integer, a datetime with a zone, or one integer per coordinate"
    )


def parse_frontier(given: FrontierLike, arity: int, timeline: str = "clock") -> Frontier:
    """Convert a frontier that a caller gave. An empty list is none: `finish` ends a collection."""
    if isinstance(given, Frontier):
        return check_arity_of(given, arity, "the frontier")
    if not isinstance(given, list):
        return Frontier((parse_time(given, arity, timeline),))
    times = {parse_time(each, arity, timeline) for each in given}
    frontier = Frontier(tuple(times))
    if not times or len(frontier.elements) < len(times):
        raise UsageError(f"{short_repr(given)} is no frontier: give at least one time, and none that is before another")
    return frontier


def _plain(coordinate: object) -> object:
    """Convert an integer of any kind, such as those of numpy, to an int; return anything else unchanged."""
    is_integer = isinstance(coordinate, Integral) and not isinstance(coordinate, bool)
    return int(coordinate) if is_integer else coordinate  # type: ignore[call-overload]


def check_clock(clock: Callable[[], float]) -> Callable[[], float]:
    """Wrap a clock: raise a UsageError for text, NaN, infinity, and times before 1970 or absurdly late."""

    def seconds() -> float:
        now = clock()
        if not isinstance(now, int | float) or isinstance(now, bool) or not 0 <= now <= CLOCK_MAX_S:
            raise UsageError(
                f"the clock gave {short_repr(now)}: it must give seconds since 1970, as time.time does; "
                "nothing was changed"
            )
        return now

    return seconds


def unwrap_time(time: Time) -> int | Time:
    """Return a time as users see it: an integer if there is one coordinate."""
    return time[0] if len(time) == 1 else time


def parse_duration_ms(given: DurationLike) -> int:
    """Convert a duration to milliseconds: "10 min", "7 days", a timedelta, or seconds as a number."""
    try:
        milliseconds = _milliseconds(given)
    except (OverflowError, ValueError):  # NaN or infinity
        milliseconds = None
    if milliseconds is None:
        raise UsageError(f"{short_repr(given)} is not a duration: say '90 s', '10 min', '12 hours' or '7 days'")
    if not 0 < milliseconds <= INT64_MAX:
        raise UsageError(f"{short_repr(given)} is not a duration: it must be longer than nothing")
    return milliseconds


def _milliseconds(given: object) -> int | None:
    if isinstance(given, datetime.timedelta):
        return given // _MILLISECOND
    if isinstance(given, int | float) and not isinstance(given, bool):
        return int(given * 1000)
    found = _DURATION.fullmatch(given) if isinstance(given, str) else None
    if found is None:
        return None
    name = found[2].lower()
    unit = _UNITS_MS.get(name) or _UNITS_MS.get(name.removesuffix("s"))
    return None if unit is None else int(float(found[1]) * unit)


def plain_frontier(frontier: Frontier) -> PlainFrontier:
    """Return a frontier as users write it: a number, a list of tuples, or None when closed."""
    if frontier.is_closed:
        return None
    if len(frontier.elements) == 1 and len(frontier.elements[0]) == 1:
        return frontier.time
    return [list(element) for element in frontier.elements]

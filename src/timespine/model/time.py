"""Times: tuples of one or more non-negative int64 coordinates.

They are ordered coordinate by coordinate: `(1, 2) <= (1, 3)`, while `(1, 2)` and
`(2, 1)` cannot be compared. One coordinate is a total order; two make a partial
order. Python compares tuples lexicographically, so `<=` on the tuples
themselves is *not* the order of times: use the functions below.
"""

from __future__ import annotations

from operator import le

from timespine.errors import UsageError, short_repr

Time = tuple[int, ...]

INT64_MAX = (1 << 63) - 1
INT64_MIN = -(1 << 63)

ARITY_MAX = 8
"""Coordinates in one time, at most: far more than any use we know, small enough to bound every loop."""


def check_time(time: object, arity: int | None = None) -> Time:
    """Return the time if it is one (of `arity` coordinates, if given), or raise UsageError."""
    if type(time) is tuple and len(time) == 1 and arity in (None, 1):
        (coordinate,) = time
        if type(coordinate) is int and 0 <= coordinate <= INT64_MAX:
            return time
    if type(time) is not tuple or not 1 <= len(time) <= ARITY_MAX:
        raise UsageError(f"{short_repr(time)} is not a time: a tuple of 1 to {ARITY_MAX} integers")
    for coordinate in time:
        # bool is an int in Python; True as a time is a mistake, not a 1.
        if type(coordinate) is not int or not 0 <= coordinate <= INT64_MAX:
            what, such = ("time", "times") if len(time) == 1 else ("coordinate of a time", "coordinates")
            raise UsageError(f"{short_repr(coordinate)} is not a {what}: {such} are integers from 0 to 2^63 - 1")
    if arity is not None and len(time) != arity:
        raise UsageError(f"time {time} has {len(time)} coordinates where {arity} are needed")
    return time


def check_arity(arity: object) -> int:
    """Return the number of coordinates if it is valid, or raise UsageError."""
    if type(arity) is not int or not 1 <= arity <= ARITY_MAX:
        raise UsageError(f"{short_repr(arity)} is not a number of coordinates: an integer from 1 to {ARITY_MAX}")
    return arity


def minimum(arity: int) -> Time:
    """Return the time before all others."""
    return (0,) * check_arity(arity)


def less_equal(left: Time, right: Time) -> bool:
    """Tell whether every coordinate of `left` is at most that of `right`."""
    if len(left) == 1 == len(right):
        return left[0] <= right[0]
    _same_arity(left, right)
    return all(map(le, left, right))


def less_than(left: Time, right: Time) -> bool:
    """Tell whether `less_equal` holds for two different times."""
    return left != right and less_equal(left, right)


def join(left: Time, right: Time) -> Time:
    """Return the earliest time that is at or after both."""
    _same_arity(left, right)
    return tuple(map(max, left, right))


def meet(left: Time, right: Time) -> Time:
    """Return the latest time that is at or before both."""
    _same_arity(left, right)
    return tuple(map(min, left, right))


def _same_arity(left: Time, right: Time) -> None:
    if len(left) != len(right):
        raise UsageError(f"times {left} and {right} have different numbers of coordinates")

"""Times: a lattice, coordinate by coordinate, and nothing else is a time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timespine.errors import UsageError
from timespine.model import time as times
from timespine.model.time import ARITY_MAX, INT64_MAX, check_arity, check_time
from timespine.testing import strategies as ts


class Hostile:
    """An object that cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


def some_times(count: int) -> st.SearchStrategy[tuple[times.Time, ...]]:
    """That many times of the same arity, extremes among them."""
    return ts.arities().flatmap(lambda arity: st.tuples(*[ts.times(arity, extreme=True)] * count))


@given(some_times(3))
def test_less_equal_is_a_partial_order(abc: tuple[times.Time, ...]) -> None:
    a, b, c = abc
    assert times.less_equal(a, a)
    assert not (times.less_equal(a, b) and times.less_equal(b, a)) or a == b
    assert not (times.less_equal(a, b) and times.less_equal(b, c)) or times.less_equal(a, c)
    assert times.less_than(a, b) == (times.less_equal(a, b) and a != b)


@given(some_times(3))
def test_join_is_the_earliest_time_after_both_and_meet_the_latest_before_both(abc: tuple[times.Time, ...]) -> None:
    a, b, c = abc
    join, meet = times.join(a, b), times.meet(a, b)
    assert times.less_equal(a, join)
    assert times.less_equal(b, join)
    assert times.less_equal(meet, a)
    assert times.less_equal(meet, b)
    assert (times.less_equal(a, c) and times.less_equal(b, c)) == times.less_equal(join, c)
    assert (times.less_equal(c, a) and times.less_equal(c, b)) == times.less_equal(c, meet)


@given(some_times(3))
def test_times_are_a_distributive_lattice(abc: tuple[times.Time, ...]) -> None:
    a, b, c = abc
    for up, down in ((times.join, times.meet), (times.meet, times.join)):
        assert up(a, a) == a
        assert up(a, b) == up(b, a)
        assert up(a, up(b, c)) == up(up(a, b), c)
        assert up(a, down(a, b)) == a
        assert up(a, down(b, c)) == down(up(a, b), up(a, c))


@given(some_times(1))
def test_the_minimum_is_before_every_time(a: tuple[times.Time, ...]) -> None:
    assert times.less_equal(times.minimum(len(a[0])), a[0])


def test_the_order_is_not_that_of_tuples() -> None:
    assert times.less_equal((1, 2), (1, 3))
    assert not times.less_equal((1, 2), (2, 1))
    assert not times.less_equal((2, 1), (1, 2))
    assert times.less_than((3,), (4,))
    assert not times.less_than((4,), (4,))
    assert not times.less_than((5,), (4,))


def test_what_is_a_time_is_given_back() -> None:
    assert check_time((0,)) == (0,)
    assert check_time((0, INT64_MAX), 2) == (0, INT64_MAX)
    assert check_time((1,) * ARITY_MAX) == (1,) * ARITY_MAX
    assert check_arity(ARITY_MAX) == ARITY_MAX
    assert times.minimum(3) == (0, 0, 0)


@pytest.mark.parametrize(
    "wrong",
    [(), (1,) * (ARITY_MAX + 1), [1], 1, None, "1", {1}, Hostile(), 10**5000, [Hostile()]],
    ids=lambda wrong: type(wrong).__name__,
)
def test_what_is_no_tuple_of_a_few_is_no_time(wrong: object) -> None:
    with pytest.raises(UsageError, match="is not a time"):
        check_time(wrong)


@pytest.mark.parametrize(
    "wrong",
    [-1, INT64_MAX + 1, 10**5000, True, False, 1.0, "1", None, b"1", Hostile(), (1,), float("nan")],
    ids=lambda wrong: type(wrong).__name__,
)
def test_what_is_no_int64_from_zero_on_is_no_coordinate(wrong: object) -> None:
    for time in ((wrong,), (0, wrong), (wrong, 0)):
        with pytest.raises(
            UsageError, match=r"is not a (coordinate of a )?time: (times|coordinates) are integers from 0 to 2\^63 - 1$"
        ):
            check_time(time)


def test_messages_stay_short_whatever_they_are_about() -> None:
    with pytest.raises(UsageError) as raised:
        check_time("x" * 10_000)
    assert len(str(raised.value)) < 300


def test_a_time_of_another_arity_is_refused() -> None:
    with pytest.raises(UsageError, match="2 coordinates where 1 are needed"):
        check_time((1, 2), 1)


@pytest.mark.parametrize("function", [times.less_equal, times.less_than, times.join, times.meet])
def test_times_of_different_arity_cannot_be_compared(function: object) -> None:
    for left, right in (((1,), (1, 2)), ((1, 2), (1,)), ((1, 2), (1, 2, 3))):
        with pytest.raises(UsageError, match="different numbers of coordinates"):
            function(left, right)  # type: ignore[operator]


@pytest.mark.parametrize(
    "wrong", [0, -1, ARITY_MAX + 1, True, 1.0, "1", None, Hostile(), 10**5000], ids=lambda wrong: type(wrong).__name__
)
def test_what_is_no_number_of_coordinates_is_refused(wrong: object) -> None:
    with pytest.raises(UsageError, match="is not a number of coordinates"):
        check_arity(wrong)
    with pytest.raises(UsageError, match="is not a number of coordinates"):
        times.minimum(wrong)  # type: ignore[arg-type]

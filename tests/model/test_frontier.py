"""Frontiers: antichains, their order and lattice, and what compaction rests on."""

from __future__ import annotations

from itertools import product

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timespine.errors import UsageError
from timespine.model import CLOSED, Frontier, advance_by
from timespine.model import time as times
from timespine.model.frontier import ELEMENTS_MAX, check_arity_of
from timespine.model.time import INT64_MAX
from timespine.testing import strategies as ts

at = Frontier.at


def some_frontiers(count: int) -> st.SearchStrategy[tuple[Frontier, ...]]:
    """That many frontiers of the same arity, closed ones and extremes among them."""
    return ts.arities().flatmap(lambda arity: st.tuples(*[ts.frontiers(arity, extreme=True)] * count))


def with_times(count: int) -> st.SearchStrategy[tuple[tuple[Frontier, ...], times.Time]]:
    """That many frontiers, and a time of the same arity."""
    return ts.arities().flatmap(
        lambda arity: st.tuples(st.tuples(*[ts.frontiers(arity, extreme=True)] * count), ts.times(arity, extreme=True))
    )


@given(some_frontiers(1))
def test_elements_are_sorted_and_none_is_before_another(drawn: tuple[Frontier, ...]) -> None:
    elements = drawn[0].elements
    assert list(elements) == sorted(elements)
    assert not any(times.less_equal(a, b) for a in elements for b in elements if a is not b)


@given(ts.arities().flatmap(lambda arity: st.lists(ts.times(arity), max_size=6)), st.randoms())
def test_a_frontier_is_the_same_however_it_is_made(elements: list[times.Time], random: object) -> None:
    frontier = Frontier(tuple(elements))
    shuffled = sorted(elements, key=lambda _: random.random())  # type: ignore[attr-defined]
    grown = CLOSED
    for element in shuffled:
        grown = grown.insert(element)
    assert grown == frontier == Frontier(tuple(shuffled)) == Frontier(shuffled)  # type: ignore[arg-type]
    assert hash(grown) == hash(frontier)
    assert len(frontier) == len(list(frontier)) == len(frontier.elements)


@given(with_times(1))
def test_a_time_is_at_or_after_a_frontier_if_it_is_for_some_element(drawn: tuple[tuple[Frontier], times.Time]) -> None:
    (frontier,), time = drawn
    assert frontier.less_equal(time) == any(times.less_equal(element, time) for element in frontier)
    assert frontier.less_than(time) == any(times.less_than(element, time) for element in frontier)
    assert frontier.insert(time).less_equal(time)
    assert (frontier.insert(time) == frontier) == frontier.less_equal(time)


@given(some_frontiers(3))
def test_the_order_is_partial(fgh: tuple[Frontier, ...]) -> None:
    f, g, h = fgh
    assert f <= f
    assert not f < f
    assert not (f <= g and g <= f) or f == g
    assert not (f <= g and g <= h) or f <= h
    assert (f < g) == (f <= g and f != g) == (g > f)
    assert (f <= g) == (g >= f)
    assert f <= CLOSED
    assert (f >= CLOSED) == (f == CLOSED)


@given(with_times(2))
def test_the_order_says_which_times_are_still_to_come(drawn: tuple[tuple[Frontier, Frontier], times.Time]) -> None:
    (f, g), time = drawn
    if f <= g and g.less_equal(time):
        assert f.less_equal(time)
    if not f <= g:
        assert any(not f.less_equal(element) for element in g)


@given(with_times(2))
def test_join_and_meet_are_intersection_and_union_of_what_is_to_come(
    drawn: tuple[tuple[Frontier, Frontier], times.Time],
) -> None:
    (f, g), time = drawn
    assert f.join(g).less_equal(time) == (f.less_equal(time) and g.less_equal(time))
    assert f.meet(g).less_equal(time) == (f.less_equal(time) or g.less_equal(time))


@given(some_frontiers(3))
def test_join_and_meet_are_the_nearest_bounds(fgh: tuple[Frontier, ...]) -> None:
    f, g, h = fgh
    assert (f <= h and g <= h) == (f.join(g) <= h)
    assert (h <= f and h <= g) == (h <= f.meet(g))


@given(some_frontiers(3))
def test_frontiers_are_a_distributive_lattice(fgh: tuple[Frontier, ...]) -> None:
    f, g, h = fgh
    for up, down in ((Frontier.join, Frontier.meet), (Frontier.meet, Frontier.join)):
        assert up(f, f) == f
        assert up(f, g) == up(g, f)
        assert up(f, up(g, h)) == up(up(f, g), h)
        assert up(f, down(f, g)) == f
        assert up(f, down(g, h)) == down(up(f, g), up(f, h))


@given(with_times(1))
def test_no_reader_at_or_after_since_can_tell_a_time_from_the_advanced_one(
    drawn: tuple[tuple[Frontier], times.Time],
) -> None:
    """For every u with since <= u: t <= u iff advance_by(t, since) <= u."""
    (since,), time = drawn
    advanced = advance_by(time, since)
    for reader in product(range(ts.COORDINATE_MAX + 2), repeat=len(time)):
        if since.less_equal(reader):
            assert times.less_equal(time, reader) == times.less_equal(advanced, reader)


@given(with_times(1))
def test_advancing_goes_forward_and_once_is_enough(drawn: tuple[tuple[Frontier], times.Time]) -> None:
    (since,), time = drawn
    advanced = advance_by(time, since)
    assert times.less_equal(time, advanced)
    assert advance_by(advanced, since) == advanced
    if since.less_equal(time):
        assert advanced == time


@given(with_times(2))
def test_advancing_by_since_after_since_is_advancing_by_the_later_one(
    drawn: tuple[tuple[Frontier, Frontier], times.Time],
) -> None:
    (f, g), time = drawn
    later = f.join(g)
    if not later.is_closed:
        assert advance_by(advance_by(time, f), later) == advance_by(time, later)


@given(ts.arities().flatmap(lambda arity: st.tuples(*[ts.times(arity)] * 2, ts.open_frontiers(arity))))
def test_advancing_is_the_best_possible(drawn: tuple[times.Time, times.Time, Frontier]) -> None:
    """Two times that no reader at or after since can tell apart become the same time."""
    a, b, since = drawn
    readers = [u for u in product(range(ts.COORDINATE_MAX + 1), repeat=len(a)) if since.less_equal(u)]
    if all(times.less_equal(a, u) == times.less_equal(b, u) for u in readers):
        assert advance_by(a, since) == advance_by(b, since)


def test_a_closed_since_leaves_times_as_they_are() -> None:
    assert advance_by((1, 2), CLOSED) == (1, 2)


def test_frontiers_of_two_coordinates_by_example() -> None:
    f, g = Frontier(((1, 4), (4, 1))), Frontier(((2, 2),))
    assert f.join(g) == Frontier(((2, 4), (4, 2)))
    assert f.meet(g) == Frontier(((1, 4), (2, 2), (4, 1)))
    assert advance_by((0, 0), f) == (1, 1)
    assert not f <= g
    assert not g <= f
    assert not f < g


def test_join_and_meet_of_frontiers_one_after_the_other() -> None:
    early, late = at(1, 1), Frontier(((1, 4), (4, 1)))
    for f, g in ((early, late), (late, early)):
        assert f.join(g) == late
        assert f.meet(g) == early
        assert f.join(CLOSED) == CLOSED.join(f) == CLOSED
        assert f.meet(CLOSED) == CLOSED.meet(f) == f


@pytest.mark.parametrize("wrong", [True, 1.0, 0, 9, None, [1], "1"])
def test_the_minimum_is_for_a_number_of_coordinates(wrong: object) -> None:
    assert Frontier.minimum(1) == at(0)
    with pytest.raises(UsageError, match="is not a number of coordinates"):
        Frontier.minimum(wrong)  # type: ignore[arg-type]


def test_the_small_words() -> None:
    assert CLOSED.is_closed
    assert CLOSED.arity is None
    assert not Frontier.at(3).is_closed
    assert Frontier.at(3, 4).arity == 2
    assert Frontier.minimum(2) == Frontier.at(0, 0)
    assert str(CLOSED) == "[]"
    assert str(Frontier.at(3)) == "[3]"
    assert str(Frontier(((2, 1), (1, 2)))) == "[(1, 2), (2, 1)]"
    assert repr(Frontier.at(3)) == "Frontier([3])"


@given(st.integers(0, INT64_MAX))
def test_the_last_complete_time_is_the_last_that_is_not_at_or_after_a_frontier(time: int) -> None:
    frontier = Frontier.at(time)
    assert frontier.time == time
    last = frontier.last_complete()
    assert (last is None) == (time == 0)
    if last is not None:
        assert not frontier.less_equal((last,))
        assert frontier.less_equal((last + 1,))


def test_below_a_closed_frontier_every_time_is_complete() -> None:
    assert CLOSED.last_complete() == INT64_MAX


@pytest.mark.parametrize("partial", [CLOSED, Frontier.at(3, 4), Frontier(((2, 1), (1, 2)))])
def test_only_a_totally_ordered_frontier_has_a_time(partial: Frontier) -> None:
    with pytest.raises(ValueError, match="to unpack"):
        _ = partial.time


def test_a_decoded_frontier_is_checked_like_any_other() -> None:
    frontier = Frontier(((2, 1), (1, 2)))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(frontier), type=Frontier) == frontier
    for wrong in ([[[-1]]], [[[1, 2], [3]]], [[[]]], [[[1 << 63]]]):
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(msgspec.msgpack.encode(wrong), type=Frontier)


@pytest.mark.parametrize(
    "wrong", [((-1,),), ((True,),), (1,), ((1,), (-1,)), ([1], [2]), ((),), ((1 << 63, 0),), ("ab", "cd"), "abc"]
)
def test_what_is_not_made_of_times_is_no_frontier(wrong: object) -> None:
    with pytest.raises(UsageError, match="is not a"):
        Frontier(wrong)  # type: ignore[arg-type]


def test_mixed_arity_is_refused_everywhere() -> None:
    one, two = Frontier.at(1), Frontier.at(1, 2)
    for action in (
        lambda: Frontier(((1,), (1, 2))),
        lambda: one.insert((1, 2)),
        lambda: one.less_equal((1, 2)),
        lambda: one.less_than((1, 2)),
        lambda: one <= two,
        lambda: one < two,
        lambda: one >= two,
        lambda: one > two,
        lambda: one.join(two),
        lambda: one.meet(two),
        lambda: advance_by((1, 2), one),
    ):
        with pytest.raises(UsageError, match="different numbers of coordinates"):
            action()


def test_a_time_that_is_none_cannot_be_inserted() -> None:
    with pytest.raises(UsageError):
        CLOSED.insert((-1,))
    with pytest.raises(UsageError):
        CLOSED.insert(1)  # type: ignore[arg-type]


def test_a_frontier_has_a_bounded_number_of_elements() -> None:
    staircase = [(i, ELEMENTS_MAX - i) for i in range(ELEMENTS_MAX + 1)]
    assert len(Frontier(tuple(staircase[1:]))) == ELEMENTS_MAX
    with pytest.raises(UsageError, match=f"at most {ELEMENTS_MAX} elements"):
        Frontier(tuple(staircase))
    with pytest.raises(UsageError, match="is too large"):
        Frontier(((1,),) * (ELEMENTS_MAX * ELEMENTS_MAX + 1))


def test_the_arity_of_a_frontier_can_be_asked_for() -> None:
    assert check_arity_of(CLOSED, 2, "since") is CLOSED
    assert check_arity_of(Frontier.at(1, 2), 2, "since") == Frontier.at(1, 2)
    with pytest.raises(UsageError, match=r"since \[1\] has 1 coordinates per time where 2 are needed"):
        check_arity_of(Frontier.at(1), 2, "since")
    with pytest.raises(UsageError, match="since must be a frontier, not int"):
        check_arity_of(1, 2, "since")  # type: ignore[arg-type]


@pytest.mark.parametrize("elements", [5, None, object()])
def test_what_is_not_some_times_is_no_frontier(elements: object) -> None:
    with pytest.raises(UsageError, match="not a frontier"):
        Frontier(elements)  # type: ignore[arg-type]

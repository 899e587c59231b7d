"""Descriptions: half-open ranges of times, and from when on a batch is exact."""

from __future__ import annotations

import pytest
from hypothesis import given

from timespine.errors import UsageError
from timespine.model import CLOSED, Description, Frontier
from timespine.model.time import Time
from timespine.testing import strategies as ts


@given(ts.arities().flatmap(lambda arity: ts.frontiers(arity).map(lambda f: (arity, f))))
def test_nothing_lies_between_a_frontier_and_itself(drawn: tuple[int, Frontier]) -> None:
    arity, frontier = drawn
    desc = Description(frontier, frontier, CLOSED)
    assert desc.is_empty_interval
    assert not desc.contains((1,) * arity)


@given(ts.descriptions(2), ts.times(2))
def test_a_time_is_contained_if_it_is_at_or_after_lower_and_not_at_or_after_upper(
    desc: Description, time: Time
) -> None:
    assert not desc.is_empty_interval
    assert desc.contains(time) == (desc.lower.less_equal(time) and not desc.upper.less_equal(time))
    assert desc.contains(desc.lower.elements[0]) or desc.upper.less_equal(desc.lower.elements[0])


@given(ts.descriptions(2), ts.times(2))
def test_neighbours_tile(first: Description, time: Time) -> None:
    second = Description(first.upper, CLOSED, first.since)
    whole = Description(first.lower, CLOSED, first.since)
    assert first.contains(time) + second.contains(time) == whole.contains(time)


def test_it_is_shown_as_its_three_frontiers() -> None:
    assert str(Description(Frontier.at(1), CLOSED, Frontier.at(0))) == "[1][][0]"


@pytest.mark.parametrize(
    ("lower", "upper"),
    [(Frontier.at(2), Frontier.at(1)), (CLOSED, Frontier.at(1)), (Frontier.at(1, 2), Frontier.at(2, 1))],
)
def test_a_batch_that_ends_before_it_begins_is_refused(lower: Frontier, upper: Frontier) -> None:
    with pytest.raises(UsageError, match="cannot begin at"):
        Description(lower, upper, CLOSED)


def test_bounds_of_different_arity_are_refused() -> None:
    with pytest.raises(UsageError, match="different numbers of coordinates"):
        Description(Frontier.at(0), Frontier.at(1, 1), CLOSED)

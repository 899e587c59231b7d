"""Times of several coordinates: uppers and sinces that are several times, none before another."""

from __future__ import annotations

from functools import partial

import pytest

from timespine.errors import NotSealed, SinceError, UpperMismatch, UsageError
from timespine.model.frontier import Frontier

STAIRS = [(3, 0), (0, 3)]
"""Complete are the times that are before 3 in both coordinates."""


@pytest.fixture
def store(place):
    return place.open()


@pytest.fixture
def prices(store):
    return store.create("prices", key={"id": "int64"}, time_coordinates=2, timeline="counter")


def ids(collection, as_of):
    return sorted(row["id"] for row in collection.snapshot(as_of, timeout=0).to_pylist())


@pytest.mark.parametrize("given", [STAIRS, Frontier(tuple(STAIRS))], ids=["list", "frontier"])
def test_an_append_and_a_seal_complete_up_to_several_times(prices, given):
    assert prices.append([{"id": 1}], at=(1, 2), upper=given).upper == Frontier(tuple(STAIRS))
    assert ids(prices, (2, 2)) == [1]
    assert ids(prices, (2, 1)) == []
    for open_yet in ((3, 0), (0, 3), (5, 5)):
        with pytest.raises(NotSealed):
            ids(prices, open_yet)
    prices.write([{"id": 2, "_time_0": 4, "_time_1": 0}])
    assert prices.seal([(5, 0), (0, 3)]).upper == Frontier(((5, 0), (0, 3)))
    assert ids(prices, (4, 2)) == [1, 2]
    assert prices.seal([(5, 1), (0, 4)]).upper == Frontier(((5, 1), (0, 4)))


def test_rows_at_or_after_one_of_the_times_of_an_upper_are_refused(prices):
    for beyond in ((3, 0), (0, 3), (4, 1)):
        with pytest.raises(UsageError, match="at or after"):
            prices.append([{"id": 1}], at=beyond, upper=STAIRS)
    assert prices.upper == Frontier.minimum(2)


def test_an_append_expects_an_upper_of_several_times(prices):
    prices.seal(STAIRS)
    with pytest.raises(UpperMismatch):
        prices.append([{"id": 1}], at=(3, 3), upper=(4, 4), expected_upper=[(2, 0), (0, 3)])
    done = prices.append([{"id": 1}], at=(3, 3), upper=(4, 4), expected_upper=list(reversed(STAIRS)))
    assert done.upper == Frontier.at(4, 4)


def test_a_seal_that_goes_back_in_one_coordinate_is_refused(prices):
    prices.seal(STAIRS)
    assert prices.seal(STAIRS).upper == Frontier(tuple(STAIRS))
    with pytest.raises(UsageError, match="cannot seal"):
        prices.seal([(4, 0), (0, 2)])


def test_a_store_and_a_transaction_seal_and_expire_up_to_several_times(store, prices):
    costs = store.create("costs", key={"id": "int64"}, time_coordinates=2, timeline="counter")
    store.seal(["prices", "costs"], STAIRS)
    with store.transaction() as tx:
        tx.expect("prices", STAIRS)
        tx.append("prices", [{"id": 1}], at=(3, 3), upper=[(9, 0), (0, 9)])
        tx.seal("costs", [(4, 0), (0, 4)])
        tx.expire("costs", [(1, 0), (0, 1)])
    assert (prices.upper, costs.upper) == (Frontier(((9, 0), (0, 9))), Frontier(((4, 0), (0, 4))))
    assert costs.since == Frontier(((1, 0), (0, 1)))
    assert ids(prices, (3, 3)) == [1]


def test_history_is_let_go_up_to_several_times(prices):
    prices.append([{"id": 1}], at=(1, 2), upper=(9, 9))
    reply = prices.expire([(2, 0), (0, 2)])
    assert reply.asked == reply.since == prices.since == Frontier(((2, 0), (0, 2)))
    assert (ids(prices, (1, 2)), ids(prices, (2, 0))) == ([1], [])
    with pytest.raises(SinceError):
        ids(prices, (1, 1))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "no frontier"),
        ([(1, 1), (2, 2)], "none that is before another"),
        ([(1, 1), (1, 1, 1)], "coordinates"),
        ([(1, "x")], "is not"),
        (Frontier.at(1), "coordinates per time"),
    ],
)
def test_what_is_no_antichain_of_the_collection_is_refused(prices, given, said):
    for call in (
        prices.seal,
        partial(prices.seal, if_behind="ignore"),
        prices.expire,
        lambda upper: prices.append([{"id": 1}], at=(0, 0), upper=upper),
    ):
        with pytest.raises(UsageError, match=said):
            call(given)
    assert prices.upper == Frontier.minimum(2)


def test_one_coordinate_takes_a_list_of_one_time(store):
    counted = store.create("counted", key={"id": "int64"}, timeline="counter")
    counted.append([{"id": 1}], at=1, upper=[4])
    assert counted.seal([7]).upper == Frontier.at(7)
    assert counted.append([{"id": 2}], expected_upper=[7]).time == 7
    with pytest.raises(UsageError, match="none that is before another"):
        counted.seal([8, 9])

"""Forests of unsealed batches: in order, cheap to ask by time, compared by what they share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timespine.core.batch import Part
from timespine.core.unsealed_index import UnsealedBatch, UnsealedIndex
from timespine.model.frontier import CLOSED, Frontier

at = Frontier.at


def batch(seqno: int, *times: tuple[int, ...]) -> UnsealedBatch:
    latest = tuple(map(max, *times)) if len(times) > 1 else times[0]
    return UnsealedBatch(seqno, Frontier(times), latest, len(times), (Part(f"c/w/p{seqno}", len(times)),))


def spread(count: int) -> list[UnsealedBatch]:
    return [batch(number, (number * 7 % 50,), (number * 7 % 50 + number % 3,)) for number in range(count)]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 100])
def test_batches_come_back_in_order(count: int) -> None:
    batches = spread(count)
    index = UnsealedIndex.of(batches)
    assert list(index) == batches
    assert len(index) == count
    assert index.last == (batches[-1] if batches else None)
    one_by_one = UnsealedIndex()
    for each in batches:
        one_by_one = one_by_one.append(each)
    assert one_by_one == index
    assert hash(one_by_one) == hash(index)


def test_trees_are_as_few_as_a_number_has_digits() -> None:
    assert [tree.size for tree in UnsealedIndex.of(spread(100)).trees] == [64, 32, 4]


def test_forests_with_other_batches_are_not_equal() -> None:
    assert (UnsealedIndex.of(spread(3)) != UnsealedIndex.of(spread(3))) is False
    assert UnsealedIndex.of(spread(3)) != UnsealedIndex.of(spread(4))
    assert UnsealedIndex() != ()


@given(st.integers(0, 60), st.integers(0, 60))
def test_asking_by_time_finds_all_that_meet_and_passes_over_whole_trees(lower: int, width: int) -> None:
    batches = spread(90)
    found = list(UnsealedIndex.of(batches).between(at(lower), at(lower + width)))
    expected = [b for b in batches if b.has_times_below(at(lower + width)) and not b.is_wholly_below(at(lower))]
    assert found == expected


def test_asking_by_time_works_for_partial_orders() -> None:
    batches = [batch(0, (0, 5), (5, 0)), batch(1, (6, 6)), batch(2, (1, 1))]
    index = UnsealedIndex.of(batches)
    assert list(index.between(at(0, 0), Frontier(((0, 5), (5, 0))))) == [batches[2]]
    assert list(index.between(at(6, 6), CLOSED)) == [batches[1]]


def test_asking_looks_at_few_of_many_batches() -> None:
    ahead = [batch(number, (1_000 + number,)) for number in range(4096)]
    index = UnsealedIndex.of([batch(9999, (0,), (5_000,)), *ahead])
    looked_at = 0

    class Counting(Frontier, frozen=True):
        def less_equal(self, time: tuple[int, ...]) -> bool:
            nonlocal looked_at
            looked_at += 1
            return super().less_equal(time)

    assert [each.seqno for each in index.between(Counting(((0,),)), Counting(((1,),)))] == [9999]
    assert looked_at < 60


def test_what_two_forests_share_is_not_looked_at() -> None:
    old = UnsealedIndex.of(spread(96))
    more = [batch(100 + number, (number,)) for number in range(3)]
    assert old.changes(old.extend(more)) == ([], more)


def test_batches_that_are_gone_or_changed_are_found() -> None:
    batches = spread(10)
    old, changed = UnsealedIndex.of(batches), batch(3, (40,))
    new = UnsealedIndex.of([*batches[1:3], changed, *batches[4:]])
    gone, fresh = old.changes(new)
    assert batches[0] in gone
    assert batches[3] in gone
    assert changed in fresh

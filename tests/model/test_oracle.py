"""The oracle, and the equation that compaction must keep."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timespine.errors import NotSealed, SinceError, UpperMismatch, UsageError
from timespine.model import CLOSED, Description, Frontier
from timespine.model.oracle import (
    Oracle,
    Update,
    accumulate,
    check_diff,
    compact,
    consolidate,
    difference,
    restrict,
)
from timespine.model.time import INT64_MAX, INT64_MIN, Time
from timespine.testing import strategies as ts

at = Frontier.at


class Hostile:
    """An object that cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


def history_and_frontier() -> st.SearchStrategy[tuple[list[Update], Frontier]]:
    return ts.arities().flatmap(lambda arity: st.tuples(ts.updates(arity), ts.frontiers(arity)))


def readers(arity: int, since: Frontier) -> list[Time]:
    """All times at or after `since`, as far as the strategies reach."""
    return [u for u in product(range(ts.COORDINATE_MAX + 2), repeat=arity) if since.less_equal(u)]


@given(history_and_frontier())
def test_compaction_changes_nothing_for_readers_at_or_after_since(drawn: tuple[list[Update], Frontier]) -> None:
    """accumulate(compact(X, since), t) == accumulate(X, t) for every t >= since."""
    history, since = drawn
    compacted = compact(history, since)
    assert len(compacted) <= len(history)
    for reader in readers(since.arity, since) if since.arity else []:
        assert accumulate(compacted, reader) == accumulate(history, reader)


@given(history_and_frontier())
def test_compacting_twice_is_compacting_once(drawn: tuple[list[Update], Frontier]) -> None:
    history, since = drawn
    once = compact(history, since)
    assert compact(once, since) == once


@given(ts.arities().flatmap(lambda arity: st.tuples(ts.updates(arity), ts.frontiers(arity), ts.frontiers(arity))))
def test_compacting_further_forgets_that_it_was_compacted_before(
    drawn: tuple[list[Update], Frontier, Frontier],
) -> None:
    history, first, second = drawn
    later = first.join(second)
    if not later.is_closed:
        assert sorted(compact(compact(history, first), later)) == sorted(compact(history, later))


@given(ts.updates(2), ts.descriptions(2))
def test_a_compacted_batch_keeps_the_guarantee_of_its_description(history: list[Update], desc: Description) -> None:
    inside = restrict(history, desc)
    batch = compact(inside, desc.since)
    for reader in readers(2, desc.since):
        assert accumulate(batch, reader) == accumulate(inside, reader)


@given(ts.updates(2))
def test_consolidation_leaves_one_update_per_row_and_time(history: list[Update]) -> None:
    consolidated = consolidate(history)
    assert len({(row, time) for row, time, _ in consolidated}) == len(consolidated)
    assert all(diff != 0 for _, _, diff in consolidated)
    for reader in readers(2, Frontier.minimum(2)):
        assert accumulate(consolidated, reader) == accumulate(history, reader)


@given(ts.updates(1), ts.updates(1), ts.times(1))
def test_a_difference_leads_from_the_one_to_the_other(before: list[Update], after: list[Update], as_of: Time) -> None:
    a, b = accumulate(before, as_of), accumulate(after, as_of)
    changes = difference(a, b)
    assert 0 not in changes.values()
    reached = {row: a.get(row, 0) + changes.get(row, 0) for row in a.keys() | changes.keys()}
    assert {row: count for row, count in reached.items() if count} == b


@given(st.data(), ts.arities())
@settings(max_examples=40)
def test_an_oracle_answers_for_every_readable_time_what_accumulation_says(data: st.DataObject, arity: int) -> None:
    oracle = Oracle(arity)
    for _ in range(data.draw(st.integers(0, 4))):
        upper = data.draw(ts.frontiers_after(oracle.upper))
        desc = Description(oracle.upper, upper, CLOSED)
        oracle.append(restrict(data.draw(ts.updates(arity)), desc), oracle.upper, upper)
    oracle.downgrade_since(data.draw(ts.frontiers(arity)))
    readable = []
    for time in product(range(ts.COORDINATE_MAX + 2), repeat=arity):
        if not oracle.since.less_equal(time):
            with pytest.raises(SinceError):
                oracle.snapshot(time)
        elif oracle.upper.less_equal(time):
            with pytest.raises(NotSealed):
                oracle.snapshot(time)
        else:
            assert oracle.snapshot(time) == accumulate(oracle.updates, time)
            readable.append(time)
    for until in readable[:3]:
        assert oracle.changes(None, until) == oracle.snapshot(until)
        for after in readable[-3:]:
            assert oracle.changes(after, until) == difference(oracle.snapshot(after), oracle.snapshot(until))


def test_an_oracle_by_example() -> None:
    oracle = Oracle()
    oracle.append([("a", (0,), 1), ("b", (1,), 2)], at(0), at(2))
    oracle.append([("a", (3,), -1)], at(2), at(4))
    assert oracle.snapshot((1,)) == {"a": 1, "b": 2}
    assert oracle.snapshot((3,)) == {"b": 2}
    assert oracle.changes((1,), (3,)) == {"a": -1}
    assert oracle.changes((0,), (1,)) == {"b": 2}
    oracle.downgrade_since(at(3))
    oracle.downgrade_since(at(1))
    assert oracle.since == at(3)
    with pytest.raises(SinceError) as forgotten:
        oracle.changes((2,), (3,))
    assert (forgotten.value.asked, forgotten.value.since) == ((2,), at(3))
    with pytest.raises(NotSealed) as early:
        oracle.snapshot((4,))
    assert (early.value.asked, early.value.upper) == ((4,), at(4))


def test_a_closed_oracle_can_be_read_at_any_time_and_written_no_more() -> None:
    oracle = Oracle()
    oracle.append([("a", (INT64_MAX,), 1)], at(0), CLOSED)
    assert oracle.snapshot((INT64_MAX,)) == {"a": 1}
    with pytest.raises(UpperMismatch):
        oracle.append([], at(0), CLOSED)


def test_an_append_at_another_upper_is_told_the_true_one() -> None:
    oracle = Oracle()
    oracle.append([], at(0), at(5))
    with pytest.raises(UpperMismatch) as raised:
        oracle.append([("a", (5,), 1)], at(4), at(6))
    assert (raised.value.expected, raised.value.actual) == (at(4), at(5))


@pytest.mark.parametrize(
    ("updates", "upper"),
    [
        ([("a", (0,), 1), ("a", (5,), 1)], at(5)),
        ([("a", (0,), 1), ("a", (-1,), 1)], at(5)),
        ([("a", (0,), 1), ("a", (True,), 1)], at(5)),
        ([("a", (0,), 1), ("a", (1, 1), 1)], at(5)),
        ([("a", (0,), 1), ("a", 1, 1)], at(5)),
        ([("a", (0,), 1), ("a", (1,), 1 << 63)], at(5)),
        ([("a", (0,), 1), ("a", (1,), True)], at(5)),
        ([("a", (0,), 1), ("a", (1,), Hostile())], at(5)),
        ([("a", (0,), 1)], at(5, 5)),
    ],
)
def test_a_refused_append_changes_nothing(updates: list[Update], upper: Frontier) -> None:
    oracle = Oracle()
    with pytest.raises(UsageError):
        oracle.append(updates, at(0), upper)
    assert oracle.updates == []
    assert oracle.upper == at(0)


def test_an_append_that_ends_before_the_upper_is_refused() -> None:
    oracle = Oracle()
    oracle.append([], at(0), at(5))
    with pytest.raises(UsageError, match="cannot begin at"):
        oracle.append([], at(5), at(4))
    assert oracle.upper == at(5)


@pytest.mark.parametrize(
    "wrong", [INT64_MAX + 1, INT64_MIN - 1, 10**5000, True, 1.0, "1", None, Hostile()], ids=lambda w: type(w).__name__
)
def test_what_is_no_int64_is_no_diff(wrong: object) -> None:
    with pytest.raises(UsageError, match="is not a diff"):
        check_diff(wrong)
    with pytest.raises(UsageError, match="is not a diff"):
        consolidate([("a", (0,), wrong)])  # type: ignore[list-item]


def test_sums_that_do_not_fit_are_refused_and_not_wrapped() -> None:
    twice = [("a", (0,), INT64_MAX), ("a", (0,), 1)]
    for action in (
        lambda: consolidate(twice),
        lambda: compact([("a", (0,), INT64_MIN), ("a", (1,), -1)], at(1)),
        lambda: accumulate(twice, (0,)),
        lambda: difference({"a": INT64_MIN}, {"a": INT64_MAX}),
    ):
        with pytest.raises(UsageError, match="is not a diff"):
            action()


def test_sums_that_fit_in_the_end_are_fine() -> None:
    assert consolidate([("a", (0,), INT64_MAX), ("a", (0,), 1), ("a", (0,), -1)]) == [("a", (0,), INT64_MAX)]
    assert check_diff(INT64_MIN) == INT64_MIN


@pytest.mark.parametrize("arity", [0, 9, True, "1", None])
def test_an_oracle_needs_a_number_of_coordinates(arity: object) -> None:
    with pytest.raises(UsageError, match="is not a number of coordinates"):
        Oracle(arity)  # type: ignore[arg-type]


@pytest.mark.parametrize("as_of", [(-1,), (True,), (1, 2), 1, None, Hostile()], ids=lambda w: type(w).__name__)
def test_an_oracle_is_read_at_times_only(as_of: object) -> None:
    with pytest.raises(UsageError):
        Oracle().snapshot(as_of)  # type: ignore[arg-type]


def test_since_of_another_arity_is_refused() -> None:
    with pytest.raises(UsageError, match="different numbers of coordinates"):
        Oracle().downgrade_since(at(1, 1))

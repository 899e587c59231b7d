"""Write and seal: updates ahead of the upper, and their way into the trace.

Every step is compared with the oracle before and after it: none of them may be
noticed by a reader.
"""

from __future__ import annotations

from typing import Any

import pytest
from state_harness import StateHarness, at, bounds_of, inline_part, up
from unsealed_state_cases import numbers

from timespine.core.batch import Order, Part
from timespine.core.state import HistoryEntry
from timespine.core.transitions import Drain, Evict, Finalize, Retain, Seal, Write
from timespine.core.unsealed_index import UnsealedBatch
from timespine.errors import ClosedError, Fenced, InlineBudgetExceeded, UsageError
from timespine.model import CLOSED, Frontier

# Writing.


def test_write_is_durable_and_not_visible_before_it_is_sealed() -> None:
    scene = StateHarness()
    assert scene.write(up("a", 3)) == 0
    assert scene.write(up("b", 1)) == 1
    assert scene.state.upper == at(0)
    scene.agree()
    scene.do(Seal(at(2)))
    assert scene.snapshot(1) == {"b": 1}
    scene.agree()
    scene.do(Seal(at(4)))
    assert scene.snapshot(3) == {"a": 1, "b": 1}
    scene.agree()


def test_write_keeps_the_least_and_latest_times_of_updates_in_any_order() -> None:
    scene = StateHarness()
    scene.write(up("a", 3), up("b", 2), up("c", 5))
    (written,) = scene.state.unsealed
    assert (written.lower, written.max, written.rows) == (at(2), (5,), 3)


def test_write_keeps_all_minimal_times_where_times_are_partially_ordered() -> None:
    scene = StateHarness(arity=2)
    scene.write(up("a", (3, 0)), up("b", (0, 3)), up("c", (4, 4)))
    (written,) = scene.state.unsealed
    assert (written.lower, written.max) == (Frontier(((0, 3), (3, 0))), (4, 4))


def test_write_is_remembered_and_counts_its_inline_bytes() -> None:
    scene = StateHarness()
    scene.evolve(3)
    part = inline_part([up("a", 3)])
    scene.do(Write(at(3), (3,), (part,), schema=2), now_ms=9)
    assert scene.state.history == (HistoryEntry(at(0), 9, "write", 1, part.size),)
    assert scene.state.inline_bytes == part.size
    assert list(scene.state.unsealed) == [UnsealedBatch(0, at(3), (3,), 1, (part,), 2)]


@pytest.mark.parametrize(("when", "accepted"), [(1, False), (2, True), (3, True)])
def test_write_below_the_upper_is_refused_and_at_it_is_fine(when: int, accepted: bool) -> None:
    scene = StateHarness()
    scene.append(at(2), up("k", 1))
    committed, reply = scene.attempt(Write(at(when), (when,), (inline_part([up("k", when)]),)))
    assert committed is accepted
    assert accepted or isinstance(reply, UsageError)


def test_write_of_nothing_changes_nothing() -> None:
    scene = StateHarness()
    scene.write(up("a", 3))
    assert scene.declined(Write(at(3), (3,), ())) == 1
    assert scene.declined(Write(at(3), (3,), (inline_part([]),))) == 1


def test_write_to_a_closed_or_finalized_collection_is_refused() -> None:
    scene = StateHarness()
    scene.do(Seal(CLOSED))
    command = Write(at(3), (3,), (inline_part([up("a", 3)]),))
    assert isinstance(scene.declined(command), ClosedError)
    scene.do(Retain(CLOSED))
    scene.do(Finalize())
    assert isinstance(scene.declined(command), ClosedError)


def test_write_of_an_unregistered_writer_is_fenced() -> None:
    assert isinstance(StateHarness().declined(Write(at(3), (3,), (Part("c/w9/p", 1),))), Fenced)


@pytest.mark.parametrize(("lower", "latest"), [(CLOSED, (3,)), (at(4), (3,))])
def test_write_whose_bounds_cannot_be_is_a_usage_error(lower: Frontier, latest: tuple[int, ...]) -> None:
    assert isinstance(StateHarness().declined(Write(lower, latest, (inline_part([up("a", 3)]),))), UsageError)


def test_write_whose_latest_time_is_not_after_all_of_its_least_times_is_a_usage_error() -> None:
    scene = StateHarness(arity=2)
    updates = [up("a", (0, 5)), up("b", (5, 0))]
    lower, _ = bounds_of(updates)
    assert isinstance(scene.declined(Write(lower, (0, 6), (inline_part(updates),))), UsageError)


def test_write_of_a_rewritten_part_is_a_usage_error() -> None:
    scene = StateHarness()
    part = inline_part([up("a", 1)], rewrite=at(5))
    committed, reply = scene.attempt(Write(at(1), (1,), (part,)))
    if committed:
        scene.oracle.updates.append(up("a", 5))
        scene.do(Seal(at(3)))
        scene.do(Drain())
        scene.do(Seal(at(9)))
        scene.do(Drain())
        scene.agree()
    assert isinstance(reply, UsageError)


@pytest.mark.parametrize(("lower", "latest"), [(at(1, 1), (3,)), (at(1), (3, 3)), (at(1), 3), ((1,), (3,))])
def test_write_at_times_of_another_shape_is_a_usage_error(lower: Any, latest: Any) -> None:
    assert isinstance(StateHarness().declined(lambda: Write(lower, latest, (inline_part([up("a", 3)]),))), UsageError)


def test_write_over_the_inline_budget_is_refused_with_the_numbers() -> None:
    scene = StateHarness()
    part = inline_part([up("a", 3)])
    scene.do(Write(at(3), (3,), (part,)))
    reply = scene.declined(Write(at(3), (3,), (part,), inline_total_bytes=2 * part.size - 1))
    assert isinstance(reply, InlineBudgetExceeded)
    assert (reply.asked, reply.used) == (part.size, part.size)
    assert scene.do(Write(at(3), (3,), (part,), inline_total_bytes=2 * part.size)) == 1


def test_write_of_a_blob_needs_no_inline_budget() -> None:
    scene = StateHarness()
    part = scene.blob_part("c/w1/p1", [up("a", 3)])
    scene.do(Write(at(3), (3,), (part,), inline_total_bytes=0))
    assert scene.state.inline_bytes == 0


# Sealing.


def test_seal_moves_the_upper_and_no_data() -> None:
    scene = StateHarness()
    scene.write(up("a", 1))
    assert scene.do(Seal(at(11)), now_ms=4) == at(11)
    assert scene.state.trace.upper == at(0)
    assert numbers(scene) == [0]
    assert scene.state.history[-1] == HistoryEntry(at(11), 4, "seal", 0, 0)
    scene.agree()


def test_seal_where_it_is_sealed_already_changes_nothing() -> None:
    scene = StateHarness()
    scene.do(Seal(at(11)))
    assert scene.declined(Seal(at(11))) == at(11)


def test_seal_going_back_is_a_usage_error() -> None:
    scene = StateHarness()
    scene.do(Seal(at(11)))
    reply = scene.declined(Seal(at(10)))
    assert isinstance(reply, UsageError)
    assert "[11]" in str(reply)


def test_seal_at_an_incomparable_frontier_is_a_usage_error() -> None:
    scene = StateHarness(arity=2)
    scene.do(Seal(at(0, 3)))
    assert isinstance(scene.declined(Seal(at(3, 0))), UsageError)


def test_seal_at_a_frontier_of_another_shape_is_a_usage_error() -> None:
    assert isinstance(StateHarness().declined(Seal(at(1, 1))), UsageError)


def test_seal_of_a_finalized_collection_is_refused() -> None:
    scene = StateHarness()
    scene.do(Seal(CLOSED))
    assert scene.declined(Seal(CLOSED)) == CLOSED
    scene.do(Retain(CLOSED))
    scene.do(Finalize())
    assert isinstance(scene.declined(Seal(CLOSED)), ClosedError)


# Draining.


def test_drain_lets_the_trace_catch_up_by_reference() -> None:
    scene = StateHarness()
    scene.write(up("a", 1), key="c/w1/p1")
    scene.write(up("b", 2), up("c", 7), key="c/w1/p2")
    scene.write(up("d", 8), key="c/w1/p3")
    scene.do(Seal(at(5)))
    scene.agree()
    assert scene.do(Drain()) == at(5)
    scene.agree()
    (drained,) = scene.state.hollow_batches()
    assert [run.order for run in drained.runs] == [Order.UNORDERED, Order.UNORDERED]
    whole, cut = drained.parts
    assert (whole.key, whole.is_truncated) == ("c/w1/p1", False)
    assert (cut.key, cut.lower, cut.upper) == ("c/w1/p2", at(0), at(5))
    assert numbers(scene) == [0, 1, 2], "what is drained is evicted later"


def test_a_write_of_a_schema_that_the_collection_does_not_have_is_refused() -> None:
    scene = StateHarness()
    scene.evolve(1)
    reply = scene.declined(Write(at(1), (1,), (inline_part([up("a", 1)]),), schema=1))
    assert isinstance(reply, UsageError)
    assert "schema 1" in str(reply)


def test_drain_keeps_the_schema_of_each_write() -> None:
    scene = StateHarness()
    scene.evolve(5)
    scene.do(Write(at(1), (1,), (inline_part([up("a", 1)]),), schema=4))
    scene.do(Seal(at(2)))
    scene.do(Drain())
    (drained,) = scene.state.hollow_batches()
    assert [run.schema for run in drained.runs] == [4]


def test_drain_of_a_trace_that_does_not_lag_changes_nothing() -> None:
    scene = StateHarness()
    assert scene.declined(Drain()) == at(0)
    scene.append(at(3), up("a", 1))
    scene.write(up("b", 5))
    assert scene.declined(Drain()) == at(3)


def test_drain_of_an_empty_range_pushes_an_empty_batch_that_fuses() -> None:
    scene = StateHarness()
    for upper in (3, 5, 9):
        scene.do(Seal(at(upper)))
        assert scene.do(Drain()) == at(upper)
    (only,) = scene.state.hollow_batches()
    assert only.is_empty
    assert scene.state.trace.batch_count == 1


def test_drain_takes_every_update_once_however_often_it_is_sealed() -> None:
    scene = StateHarness()
    scene.write(*[up("a", when) for when in range(8)])
    for upper in range(1, 10):
        scene.do(Seal(at(upper)))
        scene.agree()
        scene.do(Drain())
        scene.agree()
    assert scene.snapshot(8) == {"a": 8}


def test_drain_counts_inline_bytes_that_are_referred_to_twice() -> None:
    scene = StateHarness()
    scene.write(up("a", 1))
    once = scene.state.inline_bytes
    scene.do(Seal(at(2)))
    scene.do(Drain())
    assert scene.state.inline_bytes == 2 * once
    scene.do(Evict())
    assert scene.state.inline_bytes == once


def test_drain_after_closing_takes_all_that_is_left() -> None:
    scene = StateHarness()
    scene.write(up("a", 1), up("b", 10**12))
    scene.do(Seal(CLOSED))
    scene.agree()
    assert scene.do(Drain()) == CLOSED
    assert scene.do(Evict()) == 1
    scene.agree()


# Evicting.


def test_evict_drops_exactly_what_is_wholly_in_the_trace() -> None:
    scene = StateHarness()
    scene.write(up("k", 0))
    scene.write(up("k", 1))
    scene.write(up("k", 0), up("k", 1))
    assert scene.declined(Evict()) == 0
    scene.do(Seal(at(1)))
    assert scene.declined(Evict()) == 0, "sealed is not drained"
    scene.do(Drain())
    scene.agree()
    assert scene.do(Evict()) == 1
    assert numbers(scene) == [1, 2]
    scene.agree()
    assert scene.declined(Evict()) == 0
    scene.do(Seal(at(2)))
    scene.do(Drain())
    scene.agree()
    assert scene.do(Evict()) == 2
    assert numbers(scene) == []
    assert scene.declined(Evict()) == 0
    scene.agree()


def test_evict_keeps_what_may_still_be_ahead_where_times_are_partially_ordered() -> None:
    scene = StateHarness(arity=2)
    scene.write(up("a", (0, 1)), up("b", (1, 0)))
    scene.do(Seal(Frontier(((0, 2), (1, 1)))))
    scene.do(Drain())
    assert scene.declined(Evict()) == 0, "(1, 1) is at or after both updates, and not sealed"
    scene.agree()
    scene.do(Seal(at(2, 2)))
    scene.do(Drain())
    assert scene.do(Evict()) == 1
    scene.agree()


def test_numbers_of_evicted_writes_are_not_given_again() -> None:
    scene = StateHarness()
    scene.write(up("a", 0))
    scene.do(Seal(at(1)))
    scene.do(Drain())
    scene.do(Evict())
    assert scene.write(up("a", 1)) == 1


def test_many_writes_are_kept_in_order_and_evicted_in_one_go() -> None:
    scene = StateHarness()
    for when in range(300):
        scene.write(up("a", when))
    assert numbers(scene) == list(range(300))
    scene.do(Seal(at(280)))
    scene.do(Drain())
    assert scene.do(Evict()) == 280
    assert numbers(scene) == list(range(280, 300))
    scene.write(up("a", 300))
    assert numbers(scene) == list(range(280, 301))

"""Appends: exactly once, fenced by the upper, all or nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from state_harness import TERM_MS, WRITER, StateHarness, at, batch, inline_part, up

from timespine.config import DEFAULT
from timespine.core.batch import HollowBatch, Part, Run
from timespine.core.encoding.codec import encode_diff
from timespine.core.encoding.state_diff import diff
from timespine.core.state import Commit, HistoryEntry, Status
from timespine.core.transitions import (
    AdvanceUpper,
    Append,
    AppendResult,
    ClaimMerge,
    CompareAndAppend,
    ExpireWriter,
    Finalize,
    RegisterWriter,
    Retain,
    RollUpAll,
    Seal,
    apply,
)
from timespine.core.transitions.trace_push import remember
from timespine.errors import ClosedError, Fenced, InlineBudgetExceeded, UpperMismatch, UsageError
from timespine.model import CLOSED, Description, Frontier


def caa(lower: int, upper: int, *parts: Part, **changes: Any) -> CompareAndAppend:
    """An append of one batch with these parts."""
    command = CompareAndAppend((batch(at(lower), at(upper), *parts),), at(lower), at(upper))
    return msgspec.structs.replace(command, **changes)


# What goes through.


def test_append_moves_upper_and_trace_together() -> None:
    scene = StateHarness()
    assert scene.append(at(5), up("a", 0), up("b", 4)) == at(5)
    assert scene.state.upper == scene.state.trace.upper == at(5)
    assert scene.snapshot(3) == {"a": 1}
    assert scene.snapshot(4) == {"a": 1, "b": 1}
    scene.agree()


def test_append_of_several_batches_is_one_batch_of_their_runs() -> None:
    scene = StateHarness()
    first, second = [up("a", 0)], [up("a", 1), up("b", 1)]
    batches = (batch(at(0), at(2), inline_part(first)), batch(at(0), at(2), inline_part(second)))
    scene.do(CompareAndAppend(batches, at(0), at(2)))
    scene.oracle.updates.extend([*first, *second])
    (only,) = scene.state.hollow_batches()
    assert (len(only.runs), only.len) == (2, 3)
    scene.agree()


def test_append_without_updates_moves_the_upper() -> None:
    scene = StateHarness()
    assert scene.do(CompareAndAppend((), at(0), at(7))) == at(7)
    assert scene.state.trace.upper == at(7)
    assert scene.snapshot(6) == {}


def test_append_until_closed_ends_the_collection() -> None:
    scene = StateHarness()
    scene.append(CLOSED, up("a", 10**9))
    assert scene.state.upper.is_closed
    assert scene.snapshot(10**9) == {"a": 1}


def test_append_of_partially_ordered_times_agrees_with_the_oracle() -> None:
    scene = StateHarness(arity=2)
    scene.append(Frontier(((0, 2), (2, 0))), up("a", (0, 0)), up("b", (1, 1)), up("c", (0, 1)))
    scene.append(Frontier(((0, 3), (3, 0))), up("a", (2, 0)), up("a", (2, 2), -1), up("c", (0, 2)))
    scene.agree()
    scene.append(at(3, 3), up("d", (0, 3)), up("d", (3, 2)))
    scene.agree()


def test_append_is_remembered_in_history() -> None:
    scene = StateHarness()
    part = inline_part([up("a", 0), up("b", 1)])
    scene.do(caa(0, 3, part, operation="upsert"), now_ms=77)
    assert scene.state.history == (HistoryEntry(at(3), 77, "upsert", 2, part.size),)


def test_append_counts_its_inline_bytes_and_a_blob_counts_none() -> None:
    scene = StateHarness()
    part = inline_part([up("a", 0)])
    scene.do(caa(0, 1, part))
    assert scene.state.inline_bytes == part.size
    scene.append(at(2), up("a", 1), key="c/w1/p1")
    assert scene.state.inline_bytes == part.size
    assert list(scene.state.keys()) == ["c/w1/p1"]


def test_append_with_only_empty_parts_refers_to_none_of_them() -> None:
    scene = StateHarness()
    scene.do(caa(0, 1, inline_part([])))
    assert list(scene.state.parts()) == []
    assert scene.state.inline_bytes == 0


def test_append_drops_claims_on_what_it_merges_further() -> None:
    scene = StateHarness()
    scene.append(at(1), up("a", 0))
    scene.append(at(2), up("a", 1))
    scene.do(RollUpAll())
    (request,) = scene.state.trace.requests()
    scene.do(ClaimMerge(request.id, WRITER, TERM_MS))
    scene.append(at(3), up("a", 2), up("b", 2))
    assert set(scene.state.claims) == {request.id}, "a claim stays while its batch does"
    for when in range(3, 12):
        scene.append(at(when + 1), up("a", when))
    assert scene.state.claims == {}


def test_append_on_a_lagging_trace_drains_in_the_same_commit() -> None:
    scene = StateHarness()
    scene.write(up("a", 1), up("b", 6))
    scene.do(Seal(at(3)))
    assert scene.state.trace.upper == at(0)
    scene.append(at(5), up("c", 4))
    assert [each.desc.upper for each in scene.state.hollow_batches()] == [at(3), at(5)]
    scene.agree()


def test_append_whose_range_contains_unsealed_updates_takes_them_along() -> None:
    scene = StateHarness()
    scene.write(up("a", 1), up("b", 6))
    scene.write(up("c", 2))
    scene.append(at(5), up("d", 4))
    assert scene.snapshot(4) == {"a": 1, "c": 1, "d": 1}
    scene.agree()
    scene.append(at(8), up("e", 7))
    assert scene.snapshot(7) == {"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}
    scene.agree()


# What is refused, and what the caller is told.


def test_append_at_another_upper_is_told_the_true_one() -> None:
    scene = StateHarness()
    scene.append(at(5))
    reply = scene.declined(caa(3, 6, inline_part([up("a", 3)])))
    assert isinstance(reply, UpperMismatch)
    assert (reply.expected, reply.actual) == (at(3), at(5))


def test_append_of_an_expired_writer_is_fenced_before_it_is_told_of_a_mismatch() -> None:
    scene = StateHarness()
    part = scene.blob_part("c/w1/p1", [up("a", 3)])
    scene.append(at(5))
    scene.do(ExpireWriter(WRITER))
    assert isinstance(scene.declined(caa(3, 6, part)), Fenced)


def test_append_with_one_fenced_batch_among_good_ones_appends_none() -> None:
    good, bad = batch(at(0), at(1), inline_part([up("a", 0)])), batch(at(0), at(1), Part("c/w9/p", 1))
    assert isinstance(StateHarness().declined(CompareAndAppend((good, bad), at(0), at(1))), Fenced)


def test_append_whose_new_upper_is_before_the_expected_one_is_a_usage_error() -> None:
    scene = StateHarness()
    scene.append(at(5))
    assert isinstance(scene.declined(CompareAndAppend((), at(5), at(3))), UsageError)


def test_append_to_an_incomparable_upper_is_a_usage_error() -> None:
    scene = StateHarness(arity=2)
    scene.append(at(0, 2))
    assert isinstance(scene.declined(CompareAndAppend((), at(0, 2), at(2, 0))), UsageError)


@pytest.mark.parametrize(
    "filled",
    [
        HollowBatch(Description(at(0), at(0), at(0)), 1),
        HollowBatch(Description(at(0), at(0), at(0)), 0, (Run((Part("", 0, inline=b""),)),)),
    ],
)
def test_updates_in_an_empty_interval_are_a_usage_error(filled: HollowBatch) -> None:
    reply = StateHarness().declined(CompareAndAppend((filled,), at(0), at(0)))
    assert isinstance(reply, UsageError)
    assert "empty" in str(reply)


def test_nothing_in_an_empty_interval_is_fine_and_changes_nothing() -> None:
    scene = StateHarness()
    scene.append(at(5))
    assert scene.declined(CompareAndAppend((batch(at(5), at(5)),), at(5), at(5))) == at(5)


def test_append_to_a_closed_collection_is_refused() -> None:
    scene = StateHarness()
    scene.append(CLOSED)
    assert isinstance(scene.declined(CompareAndAppend((), CLOSED, CLOSED)), ClosedError)
    reply = scene.declined(caa(3, 6, inline_part([up("a", 3)])))
    assert isinstance(reply, UpperMismatch)
    assert reply.actual == CLOSED


def test_append_to_a_finalized_collection_is_refused() -> None:
    scene = StateHarness()
    scene.append(CLOSED)
    scene.do(Retain(CLOSED))
    scene.do(Finalize())
    assert scene.state.status is Status.FINALIZED
    reply = scene.declined(CompareAndAppend((), CLOSED, CLOSED))
    assert isinstance(reply, ClosedError)
    assert "finalized" in str(reply)


@pytest.mark.parametrize(("lower", "upper"), [(1, 4), (0, 3), (1, 3)])
def test_batch_that_does_not_cover_the_append_is_a_usage_error(lower: int, upper: int) -> None:
    narrow = batch(at(lower), at(upper), inline_part([up("a", 2)]))
    assert isinstance(StateHarness().declined(CompareAndAppend((narrow,), at(0), at(4))), UsageError)


def test_batch_exact_only_after_since_is_a_usage_error() -> None:
    scene = StateHarness()
    compacted = batch(at(0), at(4), inline_part([up("a", 2)]), since=at(2))
    command = CompareAndAppend((compacted,), at(0), at(4))
    assert isinstance(scene.declined(command), UsageError)
    scene.do(Retain(at(2)))
    scene.do(command)
    scene.oracle.updates.append(up("a", 2))
    assert [each.desc.since for each in scene.state.hollow_batches()] == [at(2)]
    scene.agree()


def test_batches_of_one_append_are_exact_from_where_all_are() -> None:
    scene = StateHarness()
    scene.do(Retain(at(2)))
    exact, compacted = (
        batch(at(0), at(4), inline_part([up(row, 2)]), since=since) for row, since in (("a", at(0)), ("b", at(2)))
    )
    scene.do(CompareAndAppend((exact, compacted), at(0), at(4)))
    scene.oracle.updates += [up("a", 2), up("b", 2)]
    assert [each.desc for each in scene.state.hollow_batches()] == [Description(at(0), at(4), at(2))]
    scene.agree()


def test_since_of_another_arity_is_a_usage_error() -> None:
    wrong = batch(at(0), at(4), inline_part([up("a", 2)]), since=Frontier(((0, 0),)))
    assert isinstance(StateHarness().declined(CompareAndAppend((wrong,), at(0), at(4))), UsageError)


def test_batch_that_promises_more_updates_than_its_parts_have_is_a_usage_error() -> None:
    lying = HollowBatch(Description(at(0), at(1), at(0)), 2, (Run((inline_part([up("a", 0)]),)),))
    assert isinstance(StateHarness().declined(CompareAndAppend((lying,), at(0), at(1))), UsageError)


def test_inline_updates_over_the_budget_are_refused_with_the_numbers() -> None:
    scene = StateHarness()
    part = inline_part([up("a", 0)])
    scene.do(caa(0, 1, part))
    reply = scene.declined(caa(1, 2, part, inline_total_bytes=2 * part.size - 1))
    assert isinstance(reply, InlineBudgetExceeded)
    assert (reply.asked, reply.used, reply.budget) == (part.size, part.size, 2 * part.size - 1)
    scene.do(caa(1, 2, part, inline_total_bytes=2 * part.size))


def test_append_of_a_blob_is_never_over_the_inline_budget() -> None:
    scene = StateHarness()
    scene.do(caa(0, 1, inline_part([up("a", 0)])))
    scene.do(caa(1, 2, scene.blob_part("c/w1/p1", [up("a", 1)]), inline_total_bytes=1))


@pytest.mark.parametrize("wrong", [at(1, 1), (1,), None, 5])
def test_frontiers_of_another_shape_are_usage_errors(wrong: Any) -> None:
    scene = StateHarness()
    for command in (
        lambda: CompareAndAppend((), wrong, at(5)),
        lambda: CompareAndAppend((), at(0), wrong),
        lambda: AdvanceUpper(wrong),
    ):
        assert isinstance(scene.declined(command), UsageError), command


def test_batch_of_times_of_another_shape_is_a_usage_error() -> None:
    flat = batch(at(0, 0), at(5, 5), inline_part([up("a", (0, 0))]))
    scene = StateHarness()
    assert isinstance(scene.declined(CompareAndAppend((flat,), at(0), at(5))), UsageError)
    assert isinstance(scene.declined(Append(flat)), UsageError)


@pytest.mark.parametrize("field", ["lower", "upper", "rewrite"])
def test_part_of_times_of_another_shape_is_a_usage_error(field: str) -> None:
    part = inline_part([up("a", 0)], **{field: at(0, 0)})
    assert isinstance(StateHarness().declined(caa(0, 5, part)), UsageError)


@pytest.mark.parametrize(
    "changes",
    [
        {"rows": (1 << 62) + 1},
        {"rows": -1},
        {"size": -1},
        {"size": None},
        {"diff_sum": 1 << 64},
        {"meta": "text"},
    ],
    ids=str,
)
def test_part_that_cannot_be_stored_is_a_usage_error(changes: dict[str, Any]) -> None:
    part = inline_part([up("a", 0)], **changes)
    lower_than_parts = HollowBatch(Description(at(0), at(5), at(0)), -1, (Run((part,)),))
    reply = StateHarness().declined(lambda: CompareAndAppend((lower_than_parts,), at(0), at(5)))
    assert isinstance(reply, UsageError)


# Append for replicated writers.


def test_replicated_append_takes_only_what_is_not_there_yet() -> None:
    scene = StateHarness()
    updates = [up("a", 0), up("b", 3), up("c", 6)]
    one, two = batch(at(0), at(4), inline_part(updates[:2])), batch(at(0), at(8), inline_part(updates))
    assert scene.do(Append(one)) == AppendResult(at(4), True)
    assert scene.do(Append(two)) == AppendResult(at(8), True)
    scene.oracle.updates.extend(updates)
    scene.agree()


def test_replicated_append_that_is_there_already_changes_nothing() -> None:
    scene = StateHarness()
    once = Append(batch(at(0), at(4), inline_part([up("a", 0)])))
    assert scene.do(once) == AppendResult(at(4), True)
    assert scene.declined(once) == AppendResult(at(4), False)
    assert scene.declined(Append(batch(at(0), at(2), inline_part([up("a", 0)])))) == AppendResult(at(4), False)


def test_replicated_append_that_leaves_a_gap_is_told_the_true_upper() -> None:
    scene = StateHarness()
    scene.append(at(2))
    reply = scene.declined(Append(batch(at(3), at(5), inline_part([up("a", 4)]))))
    assert isinstance(reply, UpperMismatch)
    assert reply.actual == at(2)


def test_replicated_append_is_refused_for_the_reasons_of_any_append() -> None:
    assert isinstance(StateHarness().declined(Append(batch(at(0), at(5), Part("c/w9/p", 1)))), Fenced)


def test_replicated_append_to_an_incomparable_upper_is_a_usage_error() -> None:
    scene = StateHarness(arity=2)
    scene.append(at(0, 2))
    assert isinstance(scene.declined(Append(batch(at(0, 0), at(2, 0)))), UsageError)


# Advancing the upper.


def test_advance_moves_upper_and_trace_and_is_remembered() -> None:
    scene = StateHarness()
    assert scene.do(AdvanceUpper(at(4))) == at(4)
    assert scene.state.trace.upper == at(4)
    assert scene.state.history[-1].operation == "advance"
    scene.agree()


@pytest.mark.parametrize("upper", [0, 3, 4])
def test_advance_to_what_is_sealed_already_changes_nothing(upper: int) -> None:
    scene = StateHarness()
    scene.append(at(4))
    assert scene.declined(AdvanceUpper(at(upper))) == at(4)


def test_advance_to_an_incomparable_upper_is_a_usage_error() -> None:
    scene = StateHarness(arity=2)
    scene.append(at(0, 2))
    assert isinstance(scene.declined(AdvanceUpper(at(2, 0))), UsageError)


def test_advance_of_a_closed_collection_changes_nothing() -> None:
    scene = StateHarness()
    scene.append(CLOSED)
    assert scene.declined(AdvanceUpper(CLOSED)) == CLOSED
    assert scene.declined(AdvanceUpper(at(9))) == CLOSED


# History stays bounded.


def _full(scene: StateHarness, uppers: range) -> None:
    entries = tuple(HistoryEntry(at(upper), 0, "append", 0, 0) for upper in uppers)
    scene.state = msgspec.structs.replace(scene.state, history=entries)
    scene.follower = msgspec.structs.replace(scene.follower, history=entries)


def test_full_history_first_loses_what_is_before_since() -> None:
    scene = StateHarness()
    scene.append(at(2000))
    scene.do(Retain(at(1001)))
    _full(scene, range(1, DEFAULT.history_entries + 1))
    scene.append(at(2001))
    assert [entry.upper for entry in scene.state.history] == [*map(at, range(1002, 1025)), at(2001)]


def test_full_history_loses_its_oldest_quarter_if_all_of_it_is_readable() -> None:
    scene = StateHarness()
    scene.append(at(2000))
    _full(scene, range(1, DEFAULT.history_entries + 1))
    scene.append(at(2001))
    assert [entry.upper for entry in scene.state.history] == [*map(at, range(257, 1025)), at(2001)]


def test_history_with_room_loses_nothing() -> None:
    scene = StateHarness()
    scene.append(at(2000))
    _full(scene, range(1, DEFAULT.history_entries))
    grown = remember(scene.state, HistoryEntry(at(2000), 0, "write", 0, 0))
    assert len(grown.history) == DEFAULT.history_entries


# Commands are data: anything else is refused like any other mistake.


@pytest.mark.parametrize("command", [None, "append", object(), RegisterWriter, 7])
def test_what_is_not_a_command_is_a_usage_error(command: Any) -> None:
    assert isinstance(StateHarness().declined(command), UsageError)


def test_append_costs_a_diff_of_its_own_size() -> None:
    scene = StateHarness()
    for when in range(200):
        scene.append(at(when + 1), up("a", when))
    outcome = apply(scene.state, caa(200, 201, inline_part([up("a", 200)])), 0)
    assert isinstance(outcome, Commit)
    new = msgspec.structs.replace(outcome.state, seqno=scene.state.seqno + 1)
    assert len(encode_diff(diff(scene.state, new))) < 500

"""Appends at the next free time: writers that only add never lose to each other."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from state_harness import WRITER, StateHarness, at, batch, inline_part, up

from timespine.core.batch import HollowBatch, Order, Part, Run
from timespine.core.encoding.codec import decode_run, encode_run
from timespine.core.group import CommandTransaction, Evaluated, Group, Refused, evaluate
from timespine.core.read_plan import Plan, apply_parent_bounds, plan_changes, plan_snapshot
from timespine.core.state import HistoryEntry
from timespine.core.transitions import (
    AdvanceUpper,
    Append,
    AppendNext,
    AppendNextResult,
    AppendResult,
    CompareAndAppend,
    ExpireWriter,
    Finalize,
    Retain,
    RollUpAll,
    Seal,
)
from timespine.errors import ClosedError, Fenced, InlineBudgetExceeded, UsageError
from timespine.model import CLOSED, Description, Frontier
from timespine.model.time import INT64_MAX


def upcoming(
    row: str, when: int, key: str | None = None, scene: StateHarness | None = None, **changes: Any
) -> AppendNext:
    """An append of one row at a time, or the next free one."""
    part = scene.blob_part(key, [up(row, when)]) if scene and key else inline_part([up(row, when)])
    return AppendNext(batch(at(0), at(0), part), when, **changes)


def complete_to(upper: int, **changes: Any) -> StateHarness:
    """A collection that is complete up to there."""
    scene = StateHarness(**changes)
    scene.append(at(upper), up("there", 0))
    return scene


# Where it stands.


@pytest.mark.parametrize(("asked", "time"), [(0, 5), (4, 5), (5, 5), (6, 6), (9, 9)])
def test_append_stands_at_the_time_asked_for_or_the_next_free_one(asked: int, time: int) -> None:
    scene = complete_to(5)
    assert scene.do(upcoming("a", asked)) == AppendNextResult(time, at(time + 1))
    assert scene.state.upper == scene.state.trace.upper == at(time + 1)
    scene.oracle.updates.append(up("a", time))
    assert "a" not in scene.snapshot(time - 1)
    assert scene.snapshot(time) == {"there": 1, "a": 1}
    scene.agree()


def test_append_at_a_free_time_is_not_rewritten() -> None:
    scene = complete_to(5)
    scene.do(upcoming("a", 5))
    scene.do(upcoming("b", 8))
    assert [part.rewrite for part in scene.state.parts()] == [None, None, None]


def test_append_at_a_sealed_time_is_rewritten_by_metadata_alone() -> None:
    scene = complete_to(5)
    command = upcoming("a", 2)
    scene.do(command)
    *_, newest = scene.state.hollow_batches()
    (part,) = newest.parts
    (asked,) = command.batch.parts
    assert (part.rewrite, part.lower, part.upper) == (at(5), None, None)
    assert (part.inline, part.rows, part.diff_sum) == (asked.inline, asked.rows, asked.diff_sum)
    assert newest.desc == Description(at(5), at(6), at(0))
    assert newest.diff_sum == 1, "a rewritten part is seen whole"


def test_every_part_of_every_run_is_rewritten_and_keeps_its_order_and_schema() -> None:
    scene = complete_to(5)
    scene.evolve(3)
    runs = (
        Run((inline_part([up("a", 1)]), inline_part([up("b", 1)])), Order.SORTED, schema=2),
        Run((inline_part([up("c", 1)]),), Order.UNORDERED),
    )
    scene.do(AppendNext(HollowBatch(Description(at(0), at(0), at(0)), 3, runs), 1))
    *_, newest = scene.state.hollow_batches()
    assert [(run.order, run.schema) for run in newest.runs] == [(Order.SORTED, 2), (Order.UNORDERED, None)]
    assert {part.rewrite for part in newest.parts} == {at(5)}
    scene.oracle.updates.extend(up(row, 5) for row in "abc")
    scene.agree()


@pytest.mark.parametrize("desc", [(at(0), at(1)), (at(7), at(9)), (CLOSED, CLOSED), (at(0), CLOSED)])
def test_description_of_the_batch_does_not_matter(desc: tuple[Frontier, Frontier]) -> None:
    scene = complete_to(5)
    given = HollowBatch(Description(*desc, since=at(8)), 1, (Run((inline_part([up("a", 2)]),)),))
    assert scene.do(AppendNext(given, 2)).time == 5
    *_, newest = scene.state.hollow_batches()
    assert newest.desc == Description(at(5), at(6), at(0))


@pytest.mark.parametrize(("upper", "reached"), [(None, 6), (0, 6), (5, 6), (6, 6), (7, 7), (20, 20)])
def test_append_completes_the_collection_as_far_as_asked(upper: int | None, reached: int) -> None:
    scene = complete_to(5)
    assert scene.do(upcoming("a", 3, upper=upper)) == AppendNextResult(5, at(reached))
    scene.oracle.updates.append(up("a", 5))
    assert scene.state.upper == at(reached)
    scene.agree()


def test_appends_one_after_the_other_get_one_time_each() -> None:
    scene = StateHarness()
    times = [scene.do(upcoming(row, 0)).time for row in "abcde"]
    scene.oracle.updates.extend(up(row, time) for row, time in zip("abcde", times, strict=True))
    assert times == [0, 1, 2, 3, 4]
    scene.agree()


def test_append_without_updates_completes_its_time() -> None:
    scene = complete_to(5)
    assert scene.do(AppendNext(HollowBatch(Description(at(0), at(0), at(0)), 0), 7)) == AppendNextResult(7, at(8))
    scene.agree()


def test_append_is_remembered_in_history_with_what_it_is_called() -> None:
    scene = complete_to(5)
    command = upcoming("a", 3, operation="insert")
    (part,) = command.batch.parts
    scene.do(command, now_ms=77)
    assert scene.state.history[-1] == HistoryEntry(at(6), 77, "insert", 1, part.size)


def test_append_takes_along_what_was_written_ahead_up_to_its_time() -> None:
    scene = complete_to(5)
    scene.write(up("b", 5), up("c", 7), up("d", 9))
    assert scene.do(upcoming("a", 7)) == AppendNextResult(7, at(8))
    scene.oracle.updates.append(up("a", 7))
    assert scene.snapshot(7) == {"there": 1, "a": 1, "b": 1, "c": 1}
    scene.agree()


def test_append_on_a_lagging_trace_drains_in_the_same_commit() -> None:
    scene = complete_to(2)
    scene.write(up("b", 3))
    scene.do(Seal(at(5)))
    assert scene.do(upcoming("a", 1)).time == 5
    scene.oracle.updates.append(up("a", 5))
    assert [each.desc.upper for each in scene.state.hollow_batches()] == [at(2), at(5), at(6)]
    scene.agree()


def test_append_before_since_counts_as_soon_as_anything_can_be_read() -> None:
    scene = complete_to(2)
    scene.do(Retain(at(9)))
    assert scene.do(upcoming("a", 0)).time == 2
    scene.oracle.updates.append(up("a", 2))
    scene.append(at(12))
    scene.agree()


def test_two_appends_of_one_group_stand_one_after_the_other() -> None:
    scene = complete_to(5)
    first, second = (CommandTransaction((("c", upcoming(row, 4)),)) for row in "ab")
    judged = evaluate({"c": scene.state}, Group((first, second)), 0)
    assert isinstance(judged, Evaluated)
    assert judged.replies == ((AppendNextResult(5, at(6)),), (AppendNextResult(6, at(7)),))
    scene.advance(judged.changed["c"])
    scene.oracle.updates.extend([up("a", 5), up("b", 6)])
    scene.agree()


def test_append_that_was_lost_is_judged_again_at_a_later_time() -> None:
    scene = complete_to(5)
    group = Group((CommandTransaction((("c", upcoming("a", 5)),)),))
    early = evaluate({"c": scene.state}, group, 0)
    scene.append(at(9), up("theirs", 6))
    late = evaluate({"c": scene.state}, group, 0)
    assert isinstance(early, Evaluated)
    assert isinstance(late, Evaluated)
    assert [each.replies[0][0].time for each in (early, late) if not isinstance(each.replies[0], Refused)] == [5, 9]


# What becomes of it: it counts from its time on, whatever happens around it.


def rewritten() -> StateHarness:
    """Two rows that were written at 1 and 2, and stand at 5 and 6; one in a blob."""
    scene = complete_to(5)
    assert scene.do(upcoming("a", 1)).time == 5
    assert scene.do(upcoming("b", 2, f"c/{WRITER}/p1", scene)).time == 6
    scene.oracle.updates.extend([up("a", 5), up("b", 6)])
    scene.agree()
    return scene


def test_it_survives_appends_of_every_kind() -> None:
    scene = rewritten()
    scene.append(at(8), up("c", 7))
    scene.agree()
    wide = batch(at(0), at(12), inline_part([up("a", 1), up("d", 9), up("e", 11)]))
    assert scene.do(Append(wide)) == AppendResult(at(12), True)
    scene.oracle.updates.extend([up("d", 9), up("e", 11)])
    scene.agree()
    scene.do(AdvanceUpper(at(14)))
    scene.do(upcoming("f", 0))
    scene.oracle.updates.append(up("f", 14))
    scene.agree()


def test_it_survives_merges_before_and_after_since_moves() -> None:
    scene = rewritten()
    scene.do(RollUpAll())
    assert scene.merge_all() == 1
    assert all(part.rewrite is None for part in scene.state.parts()), "the merge wrote the times down"
    scene.agree()
    scene.do(upcoming("a", 3))
    scene.oracle.updates.append(up("a", 7))
    scene.do(Retain(at(6)))
    scene.do(RollUpAll())
    assert scene.merge_all() == 1
    scene.agree()
    assert scene.snapshot(6) == {"there": 1, "a": 1, "b": 1}


def test_its_changes_are_those_of_its_own_time() -> None:
    scene = rewritten()
    for after, until, expected in ((0, 4, {}), (4, 5, {"a": 1}), (5, 6, {"b": 1}), (2, 6, {"a": 1, "b": 1})):
        found = plan_changes(scene.state, (after,), (until,))
        assert isinstance(found, Plan)
        assert scene.read(found) == expected


def test_retraction_of_a_rewritten_row_nets_to_nothing_from_its_time_on() -> None:
    scene = rewritten()
    assert scene.do(AppendNext(batch(at(0), at(0), inline_part([up("a", 0, -1)])), 0)).time == 7
    scene.oracle.updates.append(up("a", 7, -1))
    assert (scene.snapshot(6), scene.snapshot(7)) == ({"there": 1, "a": 1, "b": 1}, {"there": 1, "b": 1})
    scene.do(RollUpAll())
    scene.merge_all()
    scene.agree()


def test_it_is_rewritten_inside_a_hollow_run() -> None:
    scene = complete_to(5)
    children = tuple(scene.blob_part(f"c/{WRITER}/x{row}", [up(row, 2)]) for row in "ab")
    run = Part(f"c/{WRITER}/run", 2, 10, 2, hollow=True)
    scene.do(AppendNext(batch(at(0), at(0), run), 2))
    plan = plan_snapshot(scene.state, (5,))
    assert isinstance(plan, Plan)
    *_, reference = plan.parts
    assert (reference.key, reference.rewrite) == (run.key, at(5))
    for child in decode_run(run.key, encode_run(run.key, children)):
        seen = apply_parent_bounds(reference, child)
        assert scene.visible(seen) == [up(child.key[-1], 5)]
        assert plan.counts(seen, (2,))
        assert not msgspec.structs.replace(plan, until=(4,)).counts(seen, (2,)), "not before its time"


def test_hollow_run_that_holds_rewritten_parts_is_rewritten_once_more() -> None:
    child = Part(f"c/{WRITER}/x", 1, rewrite=at(3))
    scene = complete_to(5)
    scene.do(AppendNext(batch(at(0), at(0), Part(f"c/{WRITER}/run", 1, hollow=True)), 3))
    *_, reference = scene.state.parts()
    assert apply_parent_bounds(reference, child).rewrite == at(5)


# What is refused, and what the caller is told.


def test_append_to_partially_ordered_times_is_a_usage_error() -> None:
    scene = StateHarness(arity=2)
    part = inline_part([up("a", (0, 0))])
    reply = scene.declined(AppendNext(batch(at(0, 0), at(0, 0), part), 0))
    assert isinstance(reply, UsageError)
    assert "2 coordinates" in str(reply)


def test_append_to_a_closed_collection_is_refused() -> None:
    scene = StateHarness()
    scene.append(CLOSED)
    assert isinstance(scene.declined(upcoming("a", 3)), ClosedError)
    scene.do(Retain(CLOSED))
    scene.do(Finalize())
    assert isinstance(scene.declined(upcoming("a", 3)), ClosedError)


@pytest.mark.parametrize("wrong", [-1, INT64_MAX + 1, 1 << 70, None, "3", 1.5, True, (3,)])
def test_append_at_what_is_no_time_is_a_usage_error(wrong: Any) -> None:
    scene = complete_to(5)
    part = inline_part([up("a", 0)])
    assert isinstance(scene.declined(lambda: AppendNext(batch(at(0), at(0), part), wrong)), UsageError)
    if wrong is not None:
        assert isinstance(scene.declined(lambda: AppendNext(batch(at(0), at(0), part), 0, wrong)), UsageError)


def test_append_at_the_last_time_is_a_usage_error() -> None:
    reply = complete_to(5).declined(upcoming("a", INT64_MAX))
    assert isinstance(reply, UsageError)
    assert "the last there is" in str(reply)
    assert isinstance(complete_to(INT64_MAX).declined(upcoming("a", 0)), UsageError)


def test_append_at_the_time_before_the_last_leaves_only_closing() -> None:
    scene = complete_to(5)
    assert scene.do(upcoming("a", INT64_MAX - 1)) == AppendNextResult(INT64_MAX - 1, at(INT64_MAX))
    scene.oracle.updates.append(up("a", INT64_MAX - 1))
    assert isinstance(scene.declined(upcoming("b", 0)), UsageError)
    scene.do(CompareAndAppend((), at(INT64_MAX), CLOSED))
    assert scene.snapshot(INT64_MAX) == {"there": 1, "a": 1}


def test_append_can_complete_all_times_but_the_last() -> None:
    scene = complete_to(5)
    assert scene.do(upcoming("a", 3, upper=INT64_MAX)) == AppendNextResult(5, at(INT64_MAX))


@pytest.mark.parametrize(
    "changes", [{"rewrite": at(2)}, {"rewrite": CLOSED}, {"lower": at(0)}, {"upper": at(9)}], ids=str
)
@pytest.mark.parametrize("asked", [2, 7])
def test_rewritten_or_truncated_batch_is_a_usage_error(changes: dict[str, Any], asked: int) -> None:
    good, bad = inline_part([up("a", asked)]), inline_part([up("b", asked)], **changes)
    reply = complete_to(5).declined(AppendNext(batch(at(0), at(0), good, bad), asked))
    assert isinstance(reply, UsageError)
    assert "rewritten or truncated" in str(reply)


def test_batch_that_promises_more_updates_than_its_parts_have_is_a_usage_error() -> None:
    lying = HollowBatch(Description(at(0), at(0), at(0)), 2, (Run((inline_part([up("a", 0)]),)),))
    assert isinstance(complete_to(5).declined(AppendNext(lying, 0)), UsageError)


def test_blob_of_a_writer_that_is_not_registered_is_fenced() -> None:
    scene = complete_to(5)
    command = upcoming("a", 2, f"c/{WRITER}/p1", scene)
    scene.do(ExpireWriter(WRITER))
    assert isinstance(scene.declined(command), Fenced)


def test_inline_updates_over_the_budget_are_refused_with_the_numbers() -> None:
    scene = StateHarness()
    command = upcoming("a", 0)
    (part,) = command.batch.parts
    scene.do(command)
    reply = scene.declined(upcoming("b", 0, inline_total_bytes=2 * part.size - 1))
    assert isinstance(reply, InlineBudgetExceeded)
    assert (reply.asked, reply.used, reply.budget) == (part.size, part.size, 2 * part.size - 1)
    scene.do(upcoming("b", 0, inline_total_bytes=2 * part.size))
    assert scene.state.inline_bytes == 2 * part.size


@given(st.lists(st.tuples(st.integers(0, 12), st.none() | st.integers(0, 16), st.booleans()), max_size=8))
def test_times_are_those_of_a_counter_that_is_never_behind_the_clock(asked: list[tuple[int, int | None, bool]]) -> None:
    scene, free = StateHarness(), 0
    for number, (when, further, seal) in enumerate(asked):
        if seal:
            scene.do(Seal(at(free := free + 1)))
        placed = scene.do(upcoming(f"r{number}", when, upper=further))
        assert placed.time == max(when, free)
        free = max(placed.time + 1, further or 0)
        assert placed.upper == scene.state.upper == at(free)
        scene.oracle.updates.append(up(f"r{number}", placed.time))
    scene.agree()

"""Which parts a read has to read, and what of them is visible."""

from __future__ import annotations

from typing import Any

import pytest
from state_harness import WRITER, StateHarness, at, inline_part, up

from timespine.core.batch import Order, Part, Run
from timespine.core.read_plan import (
    NewestTime,
    Plan,
    apply_parent_bounds,
    newest_time,
    plan_ahead,
    plan_changes,
    plan_snapshot,
    plan_unsealed,
)
from timespine.core.transitions import Drain, Evict, Retain, RollUpAll, Seal, Trim
from timespine.core.transitions.trace_push import truncate_batch
from timespine.errors import NotSealed, SinceError, UsageError
from timespine.model import CLOSED, Frontier
from timespine.model.time import INT64_MAX


def plan(until: int, after: int | None = None) -> Plan:
    return Plan(0, at(0), None if after is None else (after,), (until,), (), at(until + 1))


def keys(found: Any) -> list[str]:
    assert isinstance(found, Plan), found
    return [part.key for part in found.parts]


# Past runs.

PAST = Run((Part("c/w/p", 2),), zero_from=(4,))


@pytest.mark.parametrize(("until", "is_read"), [(3, True), (4, False), (9, False)])
def test_past_run_is_read_for_a_sum_before_its_last_time(until: int, is_read: bool) -> None:
    live = Run((Part("c/w/q", 2),))
    read = Plan(0, at(0), None, (until,), (live, PAST), at(10)).summed().runs
    assert read == ((live, PAST) if is_read else (live,))


@pytest.mark.parametrize(("after", "until", "is_read"), [(3, 9, True), (2, 3, True), (4, 9, False)])
def test_past_run_is_read_for_changes_unless_it_is_over_at_both_ends(after: int, until: int, is_read: bool) -> None:
    plan = Plan(0, at(0), (after,), (until,), (PAST,), at(10))
    assert plan.summed().runs == ((PAST,) if is_read else ())
    assert (plan.summed() is plan) is is_read


@pytest.mark.parametrize("part", [Part("c/w/p", 2, lower=at(1)), Part("c/w/p", 2, rewrite=at(1))])
def test_past_run_that_is_not_seen_as_it_was_written_is_read(part: Part) -> None:
    run = Run((part,), zero_from=(4,))
    assert Plan(0, at(0), None, (9,), (run,), at(10)).summed().runs == (run,)


def test_past_run_of_two_coordinates_is_over_when_both_are() -> None:
    run = Run((Part("c/w/p", 2),), zero_from=(4, 2))
    assert Plan(0, at(0), None, (9, 1), (run,), at(10)).summed().runs == (run,)
    assert Plan(0, at(0), None, (4, 2), (run,), at(10)).summed().runs == ()


@pytest.fixture
def scene() -> StateHarness:
    """Blobs p0 to p4, one per time, and p5 and p7 unsealed at those times."""
    scene = StateHarness()
    for when in range(5):
        scene.append(at(when + 1), up("a", when), key=f"c/{WRITER}/p{when}")
    for when in (5, 7):
        scene.write(up("a", when), key=f"c/{WRITER}/p{when}")
    return scene


# The newest complete time.


def test_newest_time_is_the_last_one_below_the_upper(scene: StateHarness) -> None:
    assert newest_time(StateHarness().state) == NewestTime(None, is_readable=False, is_final=False)
    assert newest_time(scene.state) == NewestTime((4,), is_readable=True, is_final=False)
    scene.do(Retain(at(4)))
    assert newest_time(scene.state) == NewestTime((4,), is_readable=True, is_final=False)


def test_newest_time_cannot_be_read_if_times_were_expired_ahead(scene: StateHarness) -> None:
    scene.do(Retain(at(5)))
    assert newest_time(scene.state) == NewestTime((4,), is_readable=False, is_final=False)
    scene.do(Retain(CLOSED))
    assert newest_time(scene.state) == NewestTime((4,), is_readable=False, is_final=True)


def test_every_time_of_a_closed_collection_is_complete(scene: StateHarness) -> None:
    scene.do(Seal(CLOSED))
    assert newest_time(scene.state) == NewestTime((INT64_MAX,), is_readable=True, is_final=False)


@pytest.mark.parametrize("after", [None, 0, 1, 2])
@pytest.mark.parametrize("until", [2, 3, 4])
def test_plan_has_the_batches_that_reach_into_its_times_oldest_first(
    scene: StateHarness, after: int | None, until: int
) -> None:
    first = 0 if after is None else after + 1
    found = plan_snapshot(scene.state, (until,)) if after is None else plan_changes(scene.state, (after,), (until,))
    assert keys(found) == [f"c/{WRITER}/p{when}" for when in range(first, until + 1)]


# What counts.


@pytest.mark.parametrize(("when", "counts"), [(0, True), (5, True), (6, False)])
def test_update_counts_up_to_and_including_until(when: int, counts: bool) -> None:
    assert plan(5).counts(Part("", 1), (when,)) is counts


@pytest.mark.parametrize(("when", "counts"), [(2, False), (3, False), (4, True), (5, True), (6, False)])
def test_update_counts_strictly_after_after(when: int, counts: bool) -> None:
    assert plan(5, after=3).counts(Part("", 1), (when,)) is counts


@pytest.mark.parametrize(("when", "counts"), [(1, False), (2, True), (3, True), (4, False)])
def test_update_counts_only_inside_the_truncation_of_its_part(when: int, counts: bool) -> None:
    assert plan(9).counts(Part("", 1, lower=at(2), upper=at(4)), (when,)) is counts


def test_rewriting_is_applied_after_truncation() -> None:
    part = Part("", 1, upper=at(4), rewrite=at(6))
    assert plan(6).counts(part, (3,))
    assert not plan(5).counts(part, (3,)), "it is seen at 6"
    assert not plan(9).counts(part, (4,)), "it is cut off by the time it was written with"
    assert not plan(9, after=6).counts(part, (3,))


def test_part_of_a_hollow_run_is_seen_through_the_reference_to_the_run() -> None:
    child = Part("c/w1/x", 1, lower=at(1), upper=at(9), rewrite=at(2))
    assert apply_parent_bounds(Part("c/w1/run", 1, hollow=True), child) == child
    run = Part("c/w1/run", 1, hollow=True, lower=at(3), upper=at(5), rewrite=at(4))
    seen = apply_parent_bounds(run, child)
    assert (seen.lower, seen.upper, seen.rewrite) == (at(3), at(5), at(4))


def test_part_of_a_hollow_run_is_seen_at_the_later_of_two_rewritings() -> None:
    child, run = Part("c/w1/x", 1, rewrite=at(4)), Part("c/w1/run", 1, hollow=True, rewrite=at(2))
    assert not plan(3).counts(apply_parent_bounds(run, child), (0,))


@pytest.mark.parametrize(
    ("lower", "upper", "expected"),
    [
        (None, None, (None, None)),
        (at(2), None, (at(2), None)),
        (None, at(7), (None, at(7))),
        (at(2), at(7), (at(2), at(7))),
    ],
)
def test_truncation_of_a_whole_part_is_what_was_asked(lower: Any, upper: Any, expected: Any) -> None:
    cut = truncate_batch(Part("", 1), lower, upper)
    assert (cut.lower, cut.upper) == expected


@pytest.mark.parametrize(
    ("lower", "upper", "expected"),
    [
        (None, None, (at(3), at(6))),
        (at(2), at(7), (at(3), at(6))),
        (at(4), at(5), (at(4), at(5))),
        (at(4), CLOSED, (at(4), at(6))),
    ],
)
def test_truncation_of_a_truncated_part_only_narrows_it(lower: Any, upper: Any, expected: Any) -> None:
    cut = truncate_batch(Part("", 1, lower=at(3), upper=at(6)), lower, upper)
    assert (cut.lower, cut.upper) == expected


# Snapshots.


def test_snapshot_reads_only_what_began_by_then(scene: StateHarness) -> None:
    assert keys(plan_snapshot(scene.state, (2,))) == ["c/w1/p0", "c/w1/p1", "c/w1/p2"]


def test_snapshot_of_a_lagging_trace_reads_unsealed_parts_from_the_trace_on(scene: StateHarness) -> None:
    scene.do(Seal(at(7)))
    found = plan_snapshot(scene.state, (6,))
    assert keys(found)[-1] == "c/w1/p5"
    assert isinstance(found, Plan)
    last = list(found.parts)[-1]
    assert (last.lower, last.upper) == (at(5), None)
    assert "c/w1/p7" not in keys(found)


def test_snapshot_reads_what_is_drained_once(scene: StateHarness) -> None:
    scene.do(Seal(at(7)))
    scene.do(Drain())
    assert keys(plan_snapshot(scene.state, (6,))).count("c/w1/p5") == 1
    scene.agree()


def test_snapshot_says_which_state_and_since_it_was_planned_from(scene: StateHarness) -> None:
    scene.do(Retain(at(2)))
    found = plan_snapshot(scene.state, (3,))
    assert isinstance(found, Plan)
    assert (found.seqno, found.since, found.after, found.until) == (scene.state.seqno, at(2), None, (3,))


def test_snapshot_before_since_is_a_since_error_with_the_since(scene: StateHarness) -> None:
    scene.do(Retain(at(3)))
    refused = plan_snapshot(scene.state, (2,))
    assert isinstance(refused, SinceError)
    assert (refused.asked, refused.since) == ((2,), at(3))
    assert isinstance(plan_snapshot(scene.state, (3,)), Plan)


def test_snapshot_at_the_upper_is_not_sealed(scene: StateHarness) -> None:
    refused = plan_snapshot(scene.state, (5,))
    assert isinstance(refused, NotSealed)
    assert (refused.asked, refused.upper) == ((5,), at(5))
    assert isinstance(plan_snapshot(scene.state, (4,)), Plan)


def test_since_comes_before_the_upper_in_what_a_reader_is_told() -> None:
    scene = StateHarness()
    scene.do(Retain(at(9)))
    assert isinstance(plan_snapshot(scene.state, (3,)), SinceError)
    assert isinstance(plan_snapshot(scene.state, (9,)), NotSealed)


def test_closed_collection_is_readable_at_every_time_from_since_on(scene: StateHarness) -> None:
    scene.do(Seal(CLOSED))
    assert isinstance(plan_snapshot(scene.state, (1 << 62,)), Plan)
    scene.agree()


@pytest.mark.parametrize("as_of", [(1, 1), 3, (-1,), (1.5,), (True,), None, ()])
def test_snapshot_at_what_is_not_a_time_is_a_usage_error(scene: StateHarness, as_of: Any) -> None:
    with pytest.raises(UsageError):
        plan_snapshot(scene.state, as_of)


# Changes.


def test_changes_skip_batches_that_are_wholly_before(scene: StateHarness) -> None:
    assert keys(plan_changes(scene.state, (1,), (3,))) == ["c/w1/p2", "c/w1/p3"]


def test_changes_of_an_empty_interval_are_none(scene: StateHarness) -> None:
    found = plan_changes(scene.state, (3,), (3,))
    assert isinstance(found, Plan)
    assert scene.read(found) == {}


def test_changes_read_compacted_batches_that_reach_beyond_after(scene: StateHarness) -> None:
    scene.do(RollUpAll())
    scene.merge_all()
    scene.agree()
    found = plan_changes(scene.state, (1,), (3,))
    assert isinstance(found, Plan)
    assert scene.read(found) == {"a": 2}


def test_changes_after_a_time_that_is_forgotten_are_a_since_error(scene: StateHarness) -> None:
    scene.do(Retain(at(2)))
    assert isinstance(plan_changes(scene.state, (1,), (3,)), SinceError)
    assert isinstance(plan_changes(scene.state, (2,), (3,)), Plan)


def test_changes_until_a_time_that_is_open_are_not_sealed(scene: StateHarness) -> None:
    assert isinstance(plan_changes(scene.state, (1,), (5,)), NotSealed)


def test_changes_that_end_before_they_begin_are_a_usage_error(scene: StateHarness) -> None:
    with pytest.raises(UsageError):
        plan_changes(scene.state, (3,), (2,))


@pytest.mark.parametrize(("after", "until"), [((1, 1), (2,)), ((1,), (2, 2)), (1, (2,)), ((1,), None)])
def test_changes_between_what_are_not_times_are_a_usage_error(scene: StateHarness, after: Any, until: Any) -> None:
    with pytest.raises(UsageError):
        plan_changes(scene.state, after, until)


def test_changes_of_closed_batches_are_read_whatever_after_is() -> None:
    scene = StateHarness()
    scene.append(CLOSED, up("a", 2), up("b", 9))
    scene.agree()
    found = plan_changes(scene.state, (5,), (20,))
    assert isinstance(found, Plan)
    assert scene.read(found) == {"b": 1}


def test_changes_of_partially_ordered_times_agree_with_the_oracle() -> None:
    scene = StateHarness(arity=2)
    scene.append(Frontier(((0, 2), (2, 0))), up("a", (0, 1)), up("b", (1, 1)))
    scene.append(at(4, 4), up("a", (0, 3), -1), up("c", (3, 0)), up("b", (2, 2)))
    scene.agree()
    with pytest.raises(UsageError):
        plan_changes(scene.state, (0, 1), (1, 0))


# What is there by now, as of a time that is not complete.


def test_a_plan_ahead_counts_what_was_written_up_to_its_time(scene: StateHarness) -> None:
    for until, counts in ((4, 5), (5, 6), (6, 6), (7, 7)):
        found = plan_ahead(scene.state, (until,))
        assert isinstance(found, Plan)
        assert scene.read(found) == {"a": counts}


def test_a_plan_ahead_after_a_time_counts_what_is_later(scene: StateHarness) -> None:
    for after in range(7):
        for until in range(after, 8):
            before, found = plan_ahead(scene.state, (after,)), plan_ahead(scene.state, (until,), (after,))
            whole = plan_ahead(scene.state, (until,))
            assert isinstance(before, Plan)
            assert isinstance(found, Plan)
            assert isinstance(whole, Plan)
            counts = [scene.read(each).get("a", 0) for each in (before, found, whole)]
            assert counts[0] + counts[1] == counts[2]


def test_a_plan_ahead_cannot_be_before_since(scene: StateHarness) -> None:
    scene.do(Retain(at(3)))
    assert isinstance(plan_ahead(scene.state, (2,)), SinceError)
    assert isinstance(plan_ahead(scene.state, (4,), (2,)), SinceError)
    assert isinstance(plan_ahead(scene.state, (4,), (3,)), Plan)


# Unsealed updates by time.


def unsealed(scene: StateHarness, lower: Frontier, upper: Frontier) -> list[tuple[Any, Any, int]]:
    runs = plan_unsealed(scene.state, lower, upper)
    return sorted(update for run in runs for part in run.parts for update in scene.visible(part))


def test_unsealed_updates_are_read_by_the_times_they_stand_at(scene: StateHarness) -> None:
    assert unsealed(scene, at(0), CLOSED) == [up("a", 5), up("a", 7)]
    assert unsealed(scene, at(6), CLOSED) == [up("a", 7)]
    assert unsealed(scene, at(0), at(6)) == [up("a", 5)]
    assert unsealed(scene, at(6), at(7)) == []
    assert unsealed(scene, at(7), at(7)) == []


def test_only_parts_that_may_have_such_updates_are_read(scene: StateHarness) -> None:
    runs = plan_unsealed(scene.state, at(6), CLOSED)
    assert [part.key for run in runs for part in run.parts] == [f"c/{WRITER}/p7"]
    assert plan_unsealed(scene.state, at(3), at(3)) == plan_unsealed(scene.state, at(0), at(5)) == ()


@pytest.mark.parametrize("tidying", [[], [Drain()], [Drain(), Evict()], [Drain(), Trim(2)]])
def test_a_sealed_update_is_no_longer_unsealed_drained_or_not(scene: StateHarness, tidying: list[Any]) -> None:
    scene.write(up("b", 5), up("b", 9))
    scene.do(Seal(at(6)))
    for command in tidying:
        scene.do(command)
    assert unsealed(scene, at(0), CLOSED) == [up("a", 7), up("b", 9)]
    assert unsealed(scene, at(0), at(8)) == [up("a", 7)]
    assert unsealed(scene, at(2), at(6)) == []


def test_an_append_that_seals_unsealed_updates_takes_them_out(scene: StateHarness) -> None:
    scene.append(at(6), up("c", 5))
    assert unsealed(scene, at(0), CLOSED) == [up("a", 7)]


def test_unsealed_updates_of_partially_ordered_times_are_those_not_below_the_upper() -> None:
    scene = StateHarness(arity=2)
    scene.write(up("a", (0, 3)), up("b", (3, 0)), up("c", (4, 4)))
    scene.do(Seal(Frontier(((0, 2), (4, 0)))))
    assert unsealed(scene, at(0, 0), CLOSED) == [up("a", (0, 3)), up("c", (4, 4))]
    assert unsealed(scene, at(0, 0), at(4, 4)) == [up("a", (0, 3))]


def test_unsealed_runs_keep_their_schema_and_claim_no_order(scene: StateHarness) -> None:
    (run,) = plan_unsealed(scene.state, at(6), CLOSED)
    assert (run.order, run.schema) == (Order.UNORDERED, None)


def test_inline_part_holds_what_it_was_made_from() -> None:
    assert StateHarness().visible(inline_part([up("a", 3)], rewrite=at(5))) == [up("a", 5)]

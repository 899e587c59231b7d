"""Merging by level: two of a level become one of the next, once both have expired, and never before."""

from __future__ import annotations

import random
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_commands import RandomCommands, close
from state_harness import TERM_MS, WRITER, StateHarness, at, up

from timespine.core.batch import HollowBatch, Order, Part, Run
from timespine.core.encoding.codec import decode_state, encode_state
from timespine.core.encoding.flat_spine import (
    FlatSpine,
    SpineBatchHeader,
    SpineMergeHeader,
    flatten,
    unflatten,
    validate_deep,
)
from timespine.core.invariants import identity_stays
from timespine.core.spine.layers import Layer, MergePolicyKind, MergeProgress
from timespine.core.spine.merge_result import MergeApplication, apply_merge_result
from timespine.core.spine.spine import Spine, empty_spine
from timespine.core.state import Status, new_state
from timespine.core.transitions import (
    ApplyMerge,
    ClaimMerge,
    CompareAndAppend,
    Drain,
    Exert,
    Refresh,
    RegisterWriter,
    Retain,
    RollUpAll,
)
from timespine.errors import CorruptionError
from timespine.model import Description
from timespine.testing import strategies as ts

BY_LEVEL = MergePolicyKind.BY_LEVEL

Row = tuple[int, int, int, int]
"""A batch for people: lower, upper, since, level."""


def hollow(lower: int, upper: int, length: int, since: int = 0) -> HollowBatch:
    runs = (Run((Part(f"c/w1/{lower}-{upper}-{since}-{length}", length),)),) if length else ()
    return HollowBatch(Description(at(lower), at(upper), at(since)), length, runs)


def spine_of(*lengths: int, since: int = 0) -> Spine:
    """A spine with batches of these sizes, at times 0, 1, 2, ..."""
    spine = empty_spine(1, BY_LEVEL).downgrade_since(at(since))
    for time, length in enumerate(lengths):
        spine = spine.insert(hollow(time, time + 1, length))
    return spine


def levels(spine: Spine) -> list[int]:
    """The level of every batch, oldest first."""
    return [level for level in reversed(range(len(spine.layers))) for _ in spine.layers[level].batches]


def rows(spine: Spine) -> list[Row]:
    bounds = [(each.desc.lower, each.desc.upper, each.desc.since) for each in spine.batches()]
    (*numbers,) = (tuple(frontier.elements[0][0] for frontier in each) for each in bounds)
    return [(lower, upper, since, level) for (lower, upper, since), level in zip(numbers, levels(spine), strict=True)]


def answered(spine: Spine, length: int | None = None) -> Spine:
    """The oldest request answered, with as many updates as there were, or so many."""
    request = spine.requests()[0]
    desc = request.desc
    count = request.rope.len if length is None else length
    (lower,), (upper,), (since,) = desc.lower.elements[0], desc.upper.elements[0], desc.since.elements[0]
    replacement = apply_merge_result(spine, hollow(lower, upper, count, since))
    assert replacement.applied is MergeApplication.EXACT
    return replacement.spine


def settled(spine: Spine) -> Spine:
    """All requests answered, and those that they made due."""
    while spine.requests():
        spine = answered(spine)
        validate_deep(spine, 1)
    return spine


# What is due, and what comes of it.


def test_two_expired_batches_become_one_a_level_up_and_a_result_no_larger_than_a_parent_stays() -> None:
    scene = StateHarness(merging=BY_LEVEL)
    scene.append(at(1), up("k", 0), up("k2", 0))
    scene.append(at(3), up("k", 2), up("k3", 2))
    scene.append(at(9), up("k", 5))
    assert scene.state.trace.requests() == []

    scene.do(Retain(at(3)))
    (request,) = scene.state.trace.requests()
    assert [each.desc for each in request.inputs] == [
        Description(at(0), at(1), at(0)),
        Description(at(1), at(3), at(0)),
    ]
    assert request.desc == Description(at(0), at(3), at(3))
    assert scene.merge_all() == 1
    assert scene.merge_all() == 0
    assert rows(scene.state.trace) == [(0, 3, 3, 1), (3, 9, 0, 0)]
    assert [each.len for each in scene.state.hollow_batches()] == [3, 1]
    scene.agree()

    scene.append(at(10), up("k", 9))
    scene.do(Retain(at(10)))
    (request,) = scene.state.trace.requests()
    assert [(each.desc.lower, each.desc.upper) for each in request.inputs] == [(at(3), at(9)), (at(9), at(10))]
    assert scene.merge_all() == 1
    # Both said the same of one row: one update is left, no more than either had.
    assert rows(scene.state.trace) == [(0, 3, 3, 1), (3, 10, 10, 0)]
    assert [each.len for each in scene.state.hollow_batches()] == [3, 1]
    assert scene.merge_all() == 0
    scene.agree()


def test_since_beyond_the_upper_is_fine_and_reads_agree_before_and_after_merging() -> None:
    scene = StateHarness(merging=BY_LEVEL)
    scene.append(at(2), up("k1", 0), up("k2", 1))
    scene.write(up("k3", 10), up("k4", 11))
    scene.do(Retain(at(30)))
    assert scene.state.since == at(30)
    assert scene.state.trace.requests() == []
    scene.agree()
    scene.append(at(40), up("k5", 39))
    assert scene.snapshot(39) == dict.fromkeys(("k1", "k2", "k3", "k4", "k5"), 1)
    assert scene.merge_all() == 0  # the newer one has not expired
    scene.do(Retain(at(100)))
    assert scene.merge_all() == 1
    assert rows(scene.state.trace) == [(0, 40, 100, 1)]
    # What is appended now has expired already when it comes in.
    scene.append(at(50), up("k6", 45))
    scene.append(at(60), up("k7", 55))
    (request,) = scene.state.trace.requests()
    assert request.desc == Description(at(40), at(60), at(100))
    scene.merge_all()
    scene.merge_all()
    scene.append(at(200), up("k8", 199))
    scene.agree()
    assert rows(scene.state.trace)[:1] == [(0, 60, 100, 2)]


def test_nothing_is_merged_that_has_not_expired() -> None:
    spine = spine_of(*[5] * 20)
    assert levels(spine) == [0] * 20
    assert spine.requests() == []
    assert spine.exert(1 << 40).requests() == []
    spine = spine.downgrade_since(at(1))
    assert spine.requests() == []  # only the older of the first two has
    assert [(each.id, each.desc.since) for each in spine.downgrade_since(at(2)).requests()] == [((0, 2), at(2))]


def test_the_oldest_two_come_first_and_only_one_request_is_there_at_a_time() -> None:
    spine = spine_of(*[1] * 8).downgrade_since(at(8))
    asked = []
    while spine.requests():
        (request,) = spine.requests()
        asked.append(request.id)
        spine = answered(spine)
    assert asked == [(0, 2), (2, 4), (0, 4), (4, 6), (6, 8), (4, 8), (0, 8)]
    assert levels(spine) == [3]


def test_a_request_at_one_level_is_answered_before_another_level_gets_one() -> None:
    spine = answered(answered(spine_of(1, 1, 1, 1, since=9)))
    assert [each.id for each in spine.requests()] == [(0, 4)]
    for time in (4, 5):
        spine = spine.insert(hollow(time, time + 1, 1))
    assert [each.id for each in spine.requests()] == [(0, 4)]
    assert [each.id for each in answered(spine).requests()] == [(4, 6)]


def test_a_request_is_not_made_twice_and_keeps_the_since_it_was_made_with() -> None:
    spine = spine_of(1, 1, 1, 1).downgrade_since(at(2))
    later = spine.downgrade_since(at(4))
    assert later.layers is spine.layers
    inserted = later.insert(hollow(4, 5, 1))
    assert [(each.id, each.desc.since) for each in inserted.requests()] == [((0, 2), at(2))]
    assert [(each.id, each.desc.since) for each in answered(inserted).requests()] == [((2, 4), at(4))]


def test_an_insertion_that_has_expired_when_it_comes_is_due_at_once() -> None:
    spine = spine_of(1, since=9).insert(hollow(1, 2, 1))
    assert [each.id for each in spine.requests()] == [(0, 2)]


def test_results_that_stay_at_their_level_are_merged_with_the_next_of_it() -> None:
    spine = spine_of(4, 4, 4).downgrade_since(at(3))
    spine = answered(spine, 4)
    assert levels(spine.exert(0)) == [0]
    assert [each.id for each in spine.requests()] == [(0, 3)]
    assert rows(answered(spine, 0)) == [(0, 3, 3, 0)]
    assert rows(answered(spine, 5)) == [(0, 3, 3, 1)]


# Empty batches.


def test_an_empty_batch_is_fused_with_the_newest_if_that_is_empty_too() -> None:
    spine = spine_of(0, 0, 0)
    assert rows(spine) == [(0, 3, 0, 0)]
    assert [each.id for each in spine_of(2, 0, 0, 3, 0).batches()] == [(0, 1), (1, 3), (3, 4), (4, 5)]
    emptied = answered(spine_of(1, 1, since=9), 0).insert(hollow(2, 3, 0))
    assert rows(emptied) == [(0, 3, 9, 0)]


def test_two_empty_batches_need_no_request() -> None:
    spine = answered(spine_of(1, 1, 1, 0, since=9), 0)
    # What the first two came to is nothing; it was waiting beside the third.
    assert [each.id for each in spine.requests()] == [(0, 3)]
    spine = answered(spine, 0)
    assert spine.requests() == []
    assert rows(spine) == [(0, 4, 9, 0)]
    assert spine.update_count == 0


# Answers that come late, or to something else.


def test_an_answer_that_was_overtaken_is_dropped_and_changes_nothing() -> None:
    spine = spine_of(2, 2).downgrade_since(at(2))
    after = answered(spine, 3)
    late = apply_merge_result(after, hollow(0, 2, 4, 2))
    assert late.applied is MergeApplication.TOO_MANY_UPDATES
    assert late.spine is after
    for stranger in (hollow(0, 3, 1, 2), hollow(1, 2, 1, 2), hollow(0, 2, 1, 3)):
        refused = apply_merge_result(after, stranger)
        assert not refused.applied.is_applied
        assert refused.spine is after


def test_a_better_answer_may_come_late_and_does_not_raise_the_level_again() -> None:
    spine = answered(spine_of(2, 2).downgrade_since(at(2)), 4)
    assert rows(spine) == [(0, 2, 2, 1)]
    better = apply_merge_result(spine, hollow(0, 2, 3, 1))
    assert better.applied is MergeApplication.EXACT
    assert rows(better.spine) == [(0, 2, 1, 1)]
    # It is exact from earlier on than it might be, so it may be merged again.
    assert better.spine.stale() == [(0, 2)]


def test_an_answer_to_what_was_rolled_up_meanwhile_replaces_its_part() -> None:
    spine = spine_of(1, 1, 1, 1).downgrade_since(at(2)).roll_up_all()
    assert [each.id for each in spine.requests()] == [(0, 4)]
    some = apply_merge_result(spine, hollow(0, 2, 2, 2))
    assert some.applied is MergeApplication.SUBSET
    assert levels(some.spine) == [1]
    validate_deep(some.spine, 1)
    assert rows(answered(some.spine, 3)) == [(0, 4, 2, 2)]
    assert rows(answered(some.spine, 2)) == [(0, 4, 2, 1)]  # as many as the part had already


def test_output_of_a_stale_answer_is_refused_and_its_blobs_stay_the_callers() -> None:
    scene = StateHarness(merging=BY_LEVEL)
    for time in range(2):
        scene.append(at(time + 1), up("a", time), up(f"b{time}", time), key=f"c/{WRITER}/p{time}")
    scene.do(Retain(at(2)))
    (request,) = scene.state.trace.requests()
    scene.do(RegisterWriter("m1", TERM_MS))
    scene.do(RegisterWriter("m2", TERM_MS))
    assert scene.do(ClaimMerge(request.id, "m1", TERM_MS))
    assert not scene.declined(ClaimMerge(request.id, "m2", TERM_MS))
    first, second = scene.merged(request, "c/m1/x"), scene.merged(request, "c/m2/y")
    assert scene.do(ApplyMerge(first, "m1")) is MergeApplication.EXACT
    assert scene.state.claims == {}
    slow = msgspec.structs.replace(second, desc=Description(at(0), at(2), at(3)))
    assert scene.declined(ApplyMerge(slow, "m2")) is MergeApplication.NO_MATCH
    scene.append(at(3), up("c", 2))
    scene.do(Retain(at(3)))
    scene.do(RollUpAll())
    scene.merge_all()
    assert scene.declined(ApplyMerge(second, "m2")) is MergeApplication.NO_MATCH
    assert set(scene.state.keys()) == set()
    scene.agree()


# Merging by hand.


def test_a_batch_is_refreshed_once_when_it_has_expired_and_not_with_every_since() -> None:
    spine = spine_of(3, 2, 1).downgrade_since(at(1))
    assert spine.stale() == [(0, 1)]
    assert spine.refresh((1, 2)) is None
    refreshed = spine.refresh((0, 1))
    assert refreshed is not None
    assert [(each.id, each.desc.since) for each in refreshed.requests()] == [((0, 1), at(1))]
    spine = answered(refreshed)
    assert rows(spine) == [(0, 1, 1, 0), (1, 2, 0, 0), (2, 3, 0, 0)]
    assert spine.stale() == []
    assert settled(spine.downgrade_since(at(3))).stale() == [(2, 3)]
    assert spine_of(0).downgrade_since(at(3)).stale() == []


def test_what_is_refreshed_is_waited_for_before_it_is_merged_with_its_neighbour() -> None:
    spine = spine_of(3, 2).downgrade_since(at(1)).refresh((0, 1))
    assert spine is not None
    spine = spine.downgrade_since(at(2))
    assert [each.id for each in spine.requests()] == [(0, 1)]
    spine = answered(spine, 3)
    assert [(each.id, each.desc.since) for each in spine.requests()] == [((0, 2), at(2))]


def test_a_batch_in_no_order_is_stale_though_nothing_has_expired() -> None:
    scene = StateHarness(merging=BY_LEVEL)
    scene.append(at(1), up("a", 0))
    scene.write(up("b", 1))
    scene.write(up("c", 1))
    scene.do(CompareAndAppend((), at(1), at(2)))
    scene.attempt(Drain())
    (stale,) = scene.state.trace.stale()
    scene.do(Refresh(stale))
    scene.merge_all()
    assert scene.state.trace.stale() == []
    assert all(run.order is Order.SORTED for each in scene.state.hollow_batches() for run in each.runs)
    assert levels(scene.state.trace) == [0, 0]
    scene.agree()


@pytest.mark.parametrize(
    ("lengths", "since", "level"),
    [((1,), 1, 0), ((1, 1), 0, 1), ((1,) * 3, 0, 1), ((1,) * 8, 0, 3), ((1,) * 15, 0, 3), ((1,) * 8, 8, 3)],
)
def test_rolling_up_leaves_one_batch_at_the_level_that_merging_would_have_reached(
    lengths: tuple[int, ...], since: int, level: int
) -> None:
    for spine in (spine_of(*lengths), settled(spine_of(*lengths).downgrade_since(at(since)))):
        rolled = spine.downgrade_since(at(max(since, 1))).roll_up_all()
        validate_deep(rolled, 1)
        assert rolled.batch_count == 1
        done = settled(rolled)
        assert levels(done) == [level]
        assert done.roll_up_all() is done


def test_compacting_after_every_append_does_not_raise_the_level_with_every_call() -> None:
    spine = empty_spine(1, BY_LEVEL)
    for time in range(200):
        spine = spine.insert(hollow(time, time + 1, 1))
        spine = settled(spine.roll_up_all())
    assert levels(spine) == [7]


def test_exerting_is_a_command_that_changes_nothing() -> None:
    scene = StateHarness(merging=BY_LEVEL)
    for time in range(4):
        scene.append(at(time + 1), up("a", time))
    assert scene.declined(Exert(1000)) == 4
    scene.do(Retain(at(2)))
    assert scene.declined(Exert(1000)) == 3


# Bounds.


@pytest.mark.parametrize("cancels", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("behind", [0, 10])
def test_bounds_hold_for_batches_of_about_the_same_size(cancels: float, behind: int) -> None:
    chance = random.Random(f"{cancels} {behind}")
    largest, work = 8, 0
    spine = empty_spine(1, BY_LEVEL)
    for time in range(300):
        spine = spine.insert(hollow(time, time + 1, chance.randint(4, largest)))
        spine = spine.downgrade_since(at(max(time + 1 - behind, 0)))
        while spine.requests():
            (request,) = spine.requests()
            work += request.rope.len
            parents = [leaf.len for leaf in spine.leaves() if request.id[0] <= leaf.lo < request.id[1]]
            spine = answered(spine, max(parents) if chance.random() < cancels else None)
            validate_deep(spine, 1)
        inserted = time + 1
        expired = [each for each in spine.batches() if each.desc.upper <= spine.since]
        assert len(expired) <= inserted.bit_length()
        assert spine.batch_count <= len(expired) + behind
        for level, layer in enumerate(spine.layers):
            assert all(each.len <= largest << level for each in layer.batches)
        assert work <= 2 * inserted.bit_length() * largest * inserted


def test_waiting_for_a_larger_request_saves_nothing() -> None:
    assert empty_spine(1).coalesces_requests
    assert not empty_spine(1, BY_LEVEL).coalesces_requests


# Whatever happens.


@given(st.data(), ts.arities())
@settings(max_examples=60)
def test_whatever_happens_levels_never_rise_and_what_is_due_is_asked_for(data: st.DataObject, arity: int) -> None:
    spine = empty_spine(arity, BY_LEVEL)
    for step in data.draw(st.lists(st.sampled_from(ts.STEPS), max_size=24)):
        before = flatten(spine)
        changed = step(data.draw, spine)
        assert flatten(spine) == before
        assert (changed.merging, spine.upper <= changed.upper) == (BY_LEVEL, True)
        spine = changed
        validate_deep(spine, arity)
        assert all(older >= newer for older, newer in pairwise(levels(spine)))
        assert sum(each.rope.count > 1 for each in spine.batches()) <= 1
        if not spine.requests():
            for layer in spine.layers:
                assert not any(newer.desc.upper <= spine.since for newer in layer.batches[1:])
        again = unflatten(flatten(spine), arity, BY_LEVEL)
        assert (again, again.describe()) == (spine, spine.describe())


@given(st.data(), st.integers(1, 2))
@settings(max_examples=40)
def test_walk_over_all_commands_keeps_followers_reads_and_invariants(data: st.DataObject, arity: int) -> None:
    walk = RandomCommands(lambda n: data.draw(st.integers(0, n - 1)) if n > 1 else 0, arity, BY_LEVEL)
    assert walk.run(30).state.trace.merging is BY_LEVEL


@pytest.mark.parametrize("seed", range(6))
def test_long_walk_keeps_followers_reads_and_invariants(seed: int) -> None:
    walk = RandomCommands(random.Random(seed).randrange, 1 + seed % 2, BY_LEVEL)
    scene = walk.run(250, agree_every=25)
    assert scene.state.trace.batch_count <= 1


# What is stored.


def test_the_rule_is_stored_if_it_is_not_the_usual_one_and_comes_back() -> None:
    assert b"merging" not in encode_state(new_state("c"))
    data = encode_state(new_state("c", 1, BY_LEVEL))
    assert b"by level" in data
    assert decode_state(data).trace.merging is BY_LEVEL
    assert decode_state(encode_state(new_state("c"))).trace.merging is MergePolicyKind.FUELED


def test_a_collection_keeps_its_rule() -> None:
    old, other = new_state("c", 1, BY_LEVEL), msgspec.structs.replace(new_state("c"), seqno=1)
    assert identity_stays(old, msgspec.structs.replace(old, seqno=1)) is None
    assert "by level" in str(identity_stays(old, other))
    assert old.trace != other.trace
    scene = StateHarness(merging=BY_LEVEL)
    scene.append(at(1), up("a", 0))
    close(scene)
    assert scene.state.status is Status.FINALIZED
    assert scene.state.trace.merging is BY_LEVEL


def flat(*batches: tuple[int, int, int, bool]) -> FlatSpine:
    """The tables of a spine with these batches: lo, hi, level, fueled; a fueled one has a hollow batch per id."""
    inside: dict[tuple[int, int], HollowBatch] = {}
    for lo, hi, _, fueled in batches:
        for begin, end in ((each, each + 1) for each in range(lo, hi)) if fueled else ((lo, hi),):
            inside[begin, end] = hollow(begin, end, 1)
    thin = {(lo, hi): SpineBatchHeader(level, at(0), fueled) for lo, hi, level, fueled in batches}
    return FlatSpine(at(0), inside, thin, {})


def test_many_batches_of_a_level_are_fine() -> None:
    spine = unflatten(flat((0, 4, 2, True), *[(n, n + 1, 0, False) for n in range(4, 20)]), 1, BY_LEVEL)
    assert levels(spine) == [2] + [0] * 16


@pytest.mark.parametrize(
    ("tables", "why"),
    [
        (flat((0, 1, 0, False), (1, 3, 1, False)), "at level 1 is newer than one at a lower level"),
        (flat((0, 4, 2, False), (4, 5, 0, False), (5, 7, 1, False)), "at level 1 is newer than one at a lower level"),
        (flat((0, 3, 2, False)), "0-3 stands for too few insertions for level 2"),
        (flat((0, 2, 1, False), (2, 4, 1, True)), "2-4 waits to be merged and is not the oldest at level 1"),
        (
            msgspec.structs.replace(
                flat((0, 1, 0, False), (1, 2, 0, False)), merges={(0, 2): SpineMergeHeader(at(0), 1)}
            ),
            "1 merges left over",
        ),
    ],
)
def test_tables_that_no_merging_by_level_leaves_are_corrupt(tables: FlatSpine, why: str) -> None:
    with pytest.raises(CorruptionError, match=why):
        unflatten(tables, 1, BY_LEVEL)


def test_a_merge_in_progress_has_no_place_here() -> None:
    spine = spine_of(1)
    layers = (Layer(spine.layers[0].batches, MergeProgress(at(0), 1)),)
    with pytest.raises(CorruptionError, match="merging by level needs no fuel"):
        validate_deep(msgspec.structs.replace(spine, layers=layers), 1)


def test_what_one_rule_leaves_the_other_may_not_take() -> None:
    with pytest.raises(CorruptionError, match="more than 2 batches at level 0"):
        unflatten(flatten(spine_of(1, 1, 1)), 1)

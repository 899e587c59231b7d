"""Merging as seen by the state: claims, results, and the ways to ask for more."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from state_harness import TERM_MS, WRITER, StateHarness, at, batch, inline_part, up

from timespine.config import DEFAULT
from timespine.core.batch import HollowBatch, Order, Part, Run
from timespine.core.spine.layers import MergeRequest
from timespine.core.spine.merge_result import MergeApplication
from timespine.core.spine.spine import SpineMetrics
from timespine.core.transitions import (
    ApplyMerge,
    ClaimMerge,
    CompareAndAppend,
    Drain,
    Exert,
    ExpireWriter,
    Refresh,
    RegisterWriter,
    Retain,
    RollUpAll,
    Seal,
)
from timespine.errors import Fenced, InlineBudgetExceeded, UsageError
from timespine.model import Description, Frontier


def fueled(appends: int = 2) -> tuple[StateHarness, MergeRequest]:
    """A scene with appends in blobs p0, p1, ... that wait to be merged, and the request."""
    scene = StateHarness()
    for when in range(appends):
        scene.append(at(when + 1), up("a", when), key=f"c/w1/p{when}")
    scene.do(RollUpAll())
    scene.do(RegisterWriter("m1", TERM_MS))
    (request,) = scene.state.trace.requests()
    return scene, request


def keys(scene: StateHarness) -> list[str]:
    return list(scene.state.keys())


# Claims.


def test_claim_on_a_fueled_batch_is_granted_with_its_term() -> None:
    scene, request = fueled()
    assert scene.do(ClaimMerge(request.id, "m1", 300), now_ms=50) is True
    claim = scene.state.claims[request.id]
    assert (claim.claimant, claim.until_ms) == ("m1", 350)


def test_claim_of_another_is_respected_until_its_term_is_over() -> None:
    scene, request = fueled()
    scene.do(ClaimMerge(request.id, "m1", 300))
    assert scene.declined(ClaimMerge(request.id, "m2", 300), now_ms=300) is False
    assert scene.do(ClaimMerge(request.id, "m2", 300), now_ms=301) is True
    assert scene.state.claims[request.id].claimant == "m2"


def test_claim_of_a_process_that_has_left_may_be_taken_over() -> None:
    scene, request = fueled()
    scene.do(ClaimMerge(request.id, "m1", 300))
    scene.do(ExpireWriter("m1"))
    assert scene.state.claims[request.id].claimant == "m1"
    assert scene.do(ClaimMerge(request.id, "m2", 300), now_ms=1) is True
    assert scene.state.claims[request.id].claimant == "m2"


def test_own_claim_is_renewed() -> None:
    scene, request = fueled()
    scene.do(ClaimMerge(request.id, "m1", 300))
    assert scene.declined(ClaimMerge(request.id, "m1", 300)) is True
    assert scene.do(ClaimMerge(request.id, "m1", 300), now_ms=10) is True
    assert scene.state.claims[request.id].until_ms == 310


@pytest.mark.parametrize("id", [(0, 1), (1, 2), (7, 9)])
def test_claim_on_what_is_not_fueled_is_not_granted(id: tuple[int, int]) -> None:
    scene = StateHarness()
    scene.append(at(1), up("a", 0))
    assert scene.declined(ClaimMerge(id, "m1", 300)) is False


@pytest.mark.parametrize(("claimant", "term_ms"), [("m1", "300"), ("m1", 1 << 70), ("m1", -5), ("A/B", 300), (None, 1)])
def test_claim_with_a_bad_name_or_term_is_a_usage_error(claimant: Any, term_ms: Any) -> None:
    scene, request = fueled()
    assert isinstance(scene.declined(ClaimMerge(request.id, claimant, term_ms)), UsageError)


def test_claim_keeps_no_process_from_applying_a_result() -> None:
    scene, request = fueled()
    scene.do(ClaimMerge(request.id, "m2", TERM_MS))
    assert scene.do(ApplyMerge(scene.merged(request), "m1")) is MergeApplication.EXACT
    assert scene.state.claims == {}


# Results.


def test_result_replaces_exactly_the_batch_it_was_made_from() -> None:
    scene, request = fueled()
    scene.agree()
    assert scene.do(ApplyMerge(scene.merged(request, "c/m1/out"), "m1")) is MergeApplication.EXACT
    assert keys(scene) == ["c/m1/out"]
    assert scene.state.trace.requests() == []
    scene.agree()


def test_result_for_a_piece_of_a_fueled_batch_replaces_that_piece() -> None:
    scene, request = fueled(4)
    first, second, *_ = request.inputs
    desc = Description(first.desc.lower, second.desc.upper, first.desc.since)
    part = scene.blob_part("c/m1/out", [up("a", 0), up("a", 1)])
    assert scene.do(ApplyMerge(HollowBatch(desc, 2, (Run((part,)),)), "m1")) is MergeApplication.SUBSET
    assert keys(scene) == ["c/m1/out", "c/w1/p2", "c/w1/p3"]
    (left,) = scene.state.trace.requests()
    assert left.id == request.id
    scene.agree()


def test_claim_on_a_fueled_batch_outlives_a_result_for_a_piece_of_it() -> None:
    scene, request = fueled(4)
    scene.do(ClaimMerge(request.id, "m1", TERM_MS))
    first, *_ = request.inputs
    scene.do(ApplyMerge(batch(first.desc.lower, first.desc.upper, inline_part([up("a", 0)])), "m2"))
    assert set(scene.state.claims) == {request.id}


def test_result_counts_inline_bytes_it_adds_and_removes() -> None:
    scene = StateHarness()
    scene.append(at(1), up("a", 0))
    scene.append(at(2), up("a", 1, -1))
    scene.do(Retain(at(1)))
    scene.do(RollUpAll())
    (request,) = scene.state.trace.requests()
    assert scene.do(ApplyMerge(scene.merged(request), WRITER)) is MergeApplication.EXACT
    assert scene.state.inline_bytes == 0, "the two updates cancel out"
    scene.agree()


def test_result_in_the_state_of_blobs_counts_as_inline() -> None:
    scene, request = fueled()
    merged = scene.merged(request)
    scene.do(ApplyMerge(merged, "m1"))
    assert scene.state.inline_bytes == merged.inline_bytes > 0


def test_result_over_the_inline_budget_is_refused_and_one_that_just_fits_is_not() -> None:
    scene, request = fueled()
    scene.append(at(3), up("b", 2))
    used = scene.state.inline_bytes
    merged = scene.merged(request)
    asked = merged.inline_bytes
    assert min(used, asked) > 0
    reply = scene.declined(ApplyMerge(merged, "m1", used + asked - 1))
    assert isinstance(reply, InlineBudgetExceeded)
    assert (reply.asked, reply.used, reply.budget) == (asked, used, used + asked - 1)
    assert len(scene.state.trace.requests()) == 1
    assert scene.do(ApplyMerge(merged, "m1", used + asked)) is MergeApplication.EXACT
    assert scene.state.inline_bytes == used + asked
    scene.agree()


def test_result_has_the_inline_budget_of_an_append_unless_it_says_otherwise() -> None:
    scene, request = fueled()
    budget = DEFAULT.inline_total_bytes
    assert ApplyMerge(scene.merged(request), "m1").inline_total_bytes == budget
    part = Part("", 2, budget + 1, 2, bytes(budget + 1))
    reply = scene.declined(ApplyMerge(HollowBatch(request.desc, 2, (Run((part,)),)), "m1"))
    assert isinstance(reply, InlineBudgetExceeded)


def test_result_in_blobs_or_with_no_more_inline_than_it_replaces_needs_no_budget() -> None:
    scene, request = fueled()
    assert scene.do(ApplyMerge(scene.merged(request, "c/m1/out"), "m1", 0)) is MergeApplication.EXACT
    scene = StateHarness()
    scene.append(at(1), up("a", 0))
    scene.append(at(2), up("b", 1))
    scene.do(RollUpAll())
    (request,) = scene.state.trace.requests()
    merged = scene.merged(request)
    assert 0 < merged.inline_bytes <= scene.state.inline_bytes
    assert scene.do(ApplyMerge(merged, WRITER, 0)) is MergeApplication.EXACT
    scene.agree()


def test_result_that_comes_too_late_changes_nothing() -> None:
    scene, request = fueled()
    late = scene.merged(request, "c/m1/late")
    for when in range(2, 9):
        scene.append(at(when + 1), up("a", when))
    scene.do(RollUpAll())
    scene.merge_all()
    assert scene.declined(ApplyMerge(late, "m1")) is MergeApplication.NO_MATCH


def test_result_with_more_updates_than_what_it_replaces_changes_nothing() -> None:
    scene, request = fueled()
    fat = batch(at(0), at(2), inline_part([up("a", 0)] * 3))
    assert scene.declined(ApplyMerge(fat, "m1")) is MergeApplication.TOO_MANY_UPDATES
    assert request.rope.len == 2


def test_result_whose_diffs_do_not_add_up_changes_nothing() -> None:
    scene, _ = fueled()
    wrong = batch(at(0), at(2), inline_part([up("a", 0), up("a", 1, 5)]))
    assert scene.declined(ApplyMerge(wrong, "m1")) is MergeApplication.DIFF_SUM


def test_result_exact_only_from_later_on_than_asked_changes_nothing() -> None:
    scene, request = fueled()
    scene.do(Retain(at(1)))
    late = msgspec.structs.replace(scene.merged(request), desc=Description(at(0), at(2), at(1)))
    assert scene.declined(ApplyMerge(late, "m1")) is MergeApplication.NO_MATCH


def test_result_may_pass_through_what_it_replaces_by_reference() -> None:
    scene, request = fueled()
    runs = tuple(run for each in request.inputs for run in each.runs)
    same = HollowBatch(request.desc, 2, runs)
    scene.do(ExpireWriter(WRITER))
    assert scene.do(ApplyMerge(same, "m1")) is MergeApplication.EXACT, (
        "blobs that are there already need no writer any more"
    )
    scene.agree()


def test_late_result_that_passes_through_a_part_another_merge_dropped_is_refused() -> None:
    # SUBTLE: the blob of p0 may be deleted by now. Its writer is registered still, so
    # only the rule that old blobs must be replaced ones keeps it from coming back.
    scene, request = fueled()
    p0 = next(part for part in scene.state.parts() if part.key == "c/w1/p0")
    scene.do(RegisterWriter("m2", TERM_MS))
    assert scene.do(ApplyMerge(scene.merged(request, "c/m2/out"), "m2")) is MergeApplication.EXACT
    assert keys(scene) == ["c/m2/out"]
    late = HollowBatch(request.desc, 2, (Run((p0,)), Run((scene.blob_part("c/m1/half", [up("a", 1)]),))))
    reply = scene.declined(ApplyMerge(late, "m1"))
    assert isinstance(reply, Fenced)
    assert "c/w1/p0" in str(reply)
    assert keys(scene) == ["c/m2/out"]


def test_late_result_that_takes_parts_out_of_a_dropped_run_is_refused() -> None:
    # SUBTLE: the result lists a run of its own writer and nothing else. Only what it says it took parts from shows
    # that something inside of that run may be deleted already.
    scene, request = fueled()
    scene.do(RegisterWriter("m2", TERM_MS))
    assert scene.do(ApplyMerge(scene.merged(request, "c/m2/out"), "m2")) is MergeApplication.EXACT
    late = HollowBatch(request.desc, 2, (Run((Part("c/m1/list", 2, 9, 2, hollow=True),)),))
    reply = scene.declined(ApplyMerge(late, "m1", passed=("c/w1/p0",)))
    assert isinstance(reply, Fenced)
    assert "c/w1/p0" in str(reply)
    assert keys(scene) == ["c/m2/out"]


def test_result_may_take_parts_out_of_a_run_that_it_replaces() -> None:
    scene, request = fueled()
    passed = tuple(key for each in request.inputs for key in each.keys)
    moved = HollowBatch(request.desc, 2, (Run((Part("c/m1/list", 2, 9, 2, hollow=True),)),))
    assert scene.do(ApplyMerge(moved, "m1", passed=passed)) is MergeApplication.EXACT
    assert keys(scene) == ["c/m1/list"]


def test_late_result_for_a_piece_that_passes_through_a_dropped_part_is_refused() -> None:
    scene, request = fueled(4)
    first, second, *_ = request.inputs
    desc = Description(first.desc.lower, second.desc.upper, first.desc.since)
    scene.do(ApplyMerge(HollowBatch(desc, 2, (Run((inline_part([up("a", 0), up("a", 1)]),)),)), "m1"))
    p0 = Part("c/w1/p0", 1, diff_sum=1)
    late = HollowBatch(desc, 2, (Run((p0, inline_part([up("a", 1)]))),))
    assert isinstance(scene.declined(ApplyMerge(late, "m1")), Fenced)


def test_result_with_blobs_of_an_expired_writer_is_fenced() -> None:
    scene, request = fueled()
    merged = scene.merged(request, "c/m1/out")
    scene.do(ExpireWriter("m1"))
    assert isinstance(scene.declined(ApplyMerge(merged, "m1")), Fenced)


def test_result_with_blobs_of_another_collection_is_a_usage_error() -> None:
    scene, request = fueled()
    foreign = HollowBatch(request.desc, 2, (Run((Part("d/m1/out", 2, diff_sum=2),)),))
    assert isinstance(scene.declined(ApplyMerge(foreign, "m1")), UsageError)


def test_result_with_a_malformed_blob_key_is_a_usage_error() -> None:
    scene, request = fueled()
    foreign = HollowBatch(request.desc, 2, (Run((Part("nonsense", 2, diff_sum=2),)),))
    assert isinstance(scene.declined(ApplyMerge(foreign, "m1")), UsageError)


def test_result_part_without_any_data_is_a_usage_error() -> None:
    scene, request = fueled()
    hollow = HollowBatch(request.desc, 2, (Run((Part("", 2, diff_sum=2),)),))
    assert isinstance(scene.declined(ApplyMerge(hollow, "m1")), UsageError)


def test_result_part_without_any_data_is_a_usage_error_in_the_place_of_inline_parts_too() -> None:
    scene = StateHarness()
    scene.append(at(1), up("a", 0))
    scene.append(at(2), up("a", 1))
    scene.do(RollUpAll())
    hollow = batch(at(0), at(2), Part("", 2, diff_sum=2))
    assert isinstance(scene.declined(ApplyMerge(hollow, WRITER)), UsageError)


@pytest.mark.parametrize("length", [0, 3])
def test_result_whose_length_is_not_that_of_its_parts_is_a_usage_error(length: int) -> None:
    scene, request = fueled(4)
    part = inline_part([up("a", 0), up("a", 1)], diff_sum=None)
    lying = HollowBatch(request.desc, length, (Run((part,)),))
    assert isinstance(scene.declined(ApplyMerge(lying, "m1")), UsageError)


def test_result_of_times_of_another_shape_is_a_usage_error() -> None:
    scene, _ = fueled()
    assert isinstance(scene.declined(ApplyMerge(batch(at(0, 0), at(2, 2)), "m1")), UsageError)


def test_merges_of_partially_ordered_times_agree_with_the_oracle() -> None:
    scene = StateHarness(arity=2)
    scene.append(Frontier(((0, 2), (2, 0))), up("a", (0, 1)), up("b", (1, 0)))
    scene.append(at(2, 2), up("a", (0, 3), -1), up("b", (3, 0)), up("c", (1, 1)))
    scene.append(at(5, 5), up("a", (2, 2)), up("c", (2, 3)))
    scene.do(Retain(Frontier(((1, 3), (3, 1)))))
    scene.agree()
    scene.do(RollUpAll())
    scene.merge_all()
    scene.agree()


# Exert.


def test_exert_on_an_idle_trace_leads_to_one_batch() -> None:
    scene = StateHarness()
    for when in range(7):
        scene.append(at(when + 1), up("a", when))
    steps = 0
    while scene.state.trace.batch_count > 1:
        assert scene.do(Exert(4)) == scene.state.trace.batch_count
        scene.merge_all()
        scene.agree()
        steps += 1
        assert steps < 50
    assert scene.declined(Exert(4)) == 1


def test_exert_without_fuel_or_without_work_changes_nothing() -> None:
    scene = StateHarness()
    assert scene.declined(Exert(100)) == 0
    scene.append(at(1), up("a", 0))
    assert scene.declined(Exert(100)) == 1
    scene.append(at(2), up("b", 1), up("c", 1))
    assert scene.declined(Exert(0)) == 2


@pytest.mark.parametrize("fuel", [-1, 1.5, None, True, "8"])
def test_exert_of_no_fuel_is_a_usage_error(fuel: Any) -> None:
    assert isinstance(StateHarness().declined(Exert(fuel)), UsageError)


def test_exert_drops_claims_on_what_it_merges_further() -> None:
    scene, request = fueled()
    scene.do(ClaimMerge(request.id, "m1", TERM_MS))
    scene.append(at(3), up("a", 2), up("b", 2))
    while scene.state.trace.batch_count > 1:
        scene.do(Exert(100))
    assert scene.state.claims == {}


# Refresh.


def test_refresh_lets_an_idle_collection_lose_what_was_expired() -> None:
    scene, _ = fueled()
    scene.merge_all()
    scene.append(at(3), up("a", 2, -2))
    scene.do(RollUpAll())
    scene.merge_all()
    scene.do(Retain(at(2)))
    ((lo, hi),) = scene.state.trace.stale()
    assert scene.do(Refresh((lo, hi))) is True
    (request,) = scene.state.trace.requests()
    assert request.desc.since == at(2)
    scene.merge_all()
    assert [each.len for each in scene.state.hollow_batches()] == [0]
    scene.agree()


def test_refresh_of_what_is_fresh_or_fueled_or_not_there_changes_nothing() -> None:
    scene, request = fueled()
    assert scene.declined(Refresh(request.id)) is False
    scene.merge_all()
    assert scene.declined(Refresh(request.id)) is False
    assert scene.declined(Refresh((8, 9))) is False


def test_refresh_makes_a_batch_of_several_runs_one_run() -> None:
    scene = StateHarness()
    two = (batch(at(0), at(1), inline_part([up("a", 0)])), batch(at(0), at(1), inline_part([up("b", 0)])))
    scene.do(CompareAndAppend(two, at(0), at(1)))
    scene.oracle.updates.extend([up("a", 0), up("b", 0)])
    assert scene.do(Refresh((0, 1))) is True
    scene.merge_all()
    assert [len(each.runs) for each in scene.state.hollow_batches()] == [1]
    scene.agree()


def test_unordered_run_is_stale() -> None:
    scene = StateHarness()
    run = Run((inline_part([up("b", 0)]), inline_part([up("a", 0)])), Order.UNORDERED)
    scene.do(CompareAndAppend((HollowBatch(Description(at(0), at(1), at(0)), 2, (run,)),), at(0), at(1)))
    assert scene.do(Refresh((0, 1))) is True


def test_refresh_inside_a_merge_in_progress_keeps_the_trace_valid() -> None:
    scene = StateHarness()
    many = [up(f"k{i}", 0) for i in range(64)]
    scene.append(at(1), *many)
    scene.append(at(2), *[(row, (1,), -1) for row, _, _ in many])
    assert scene.state.trace.layers[-1].merge is not None
    scene.do(Retain(at(2)))
    scene.do(Refresh((0, 1)))
    scene.merge_all()
    while scene.state.trace.batch_count > 1:
        scene.do(Exert(1000))
    scene.merge_all()
    scene.agree()


# Roll up all.


def test_roll_up_all_asks_for_one_run() -> None:
    scene = StateHarness()
    for when in range(9):
        scene.append(at(when + 1), up("a", when))
    assert scene.do(RollUpAll()) == scene.state.trace.hollow_count
    (request,) = scene.state.trace.requests()
    assert (request.desc.lower, request.desc.upper) == (at(0), at(9))
    scene.merge_all()
    assert [len(each.runs) for each in scene.state.hollow_batches()] == [1]
    scene.agree()


def test_roll_up_all_of_one_fresh_run_changes_nothing() -> None:
    scene, _ = fueled()
    scene.merge_all()
    assert scene.declined(RollUpAll()) == 1


def test_roll_up_all_takes_what_was_drained_along() -> None:
    scene, _ = fueled()
    scene.write(up("b", 5))
    scene.do(Seal(at(6)))
    scene.do(Drain())
    assert scene.do(RollUpAll()) == 3
    scene.merge_all()
    scene.agree()


def test_roll_up_all_drops_claims_on_what_it_merges_further() -> None:
    scene, request = fueled()
    scene.do(ClaimMerge(request.id, "m1", TERM_MS))
    scene.append(at(3), up("a", 2))
    scene.do(RollUpAll())
    assert scene.state.claims == {}


def test_roll_up_all_of_an_empty_collection_changes_nothing() -> None:
    assert StateHarness().declined(RollUpAll()) == 0


def test_roll_up_all_again_changes_nothing() -> None:
    scene, _ = fueled()
    assert scene.declined(RollUpAll()) == 2


# How compact a trace is.


def test_metrics_count_batches_that_are_compact_that_are_to_be_merged_and_that_have_several_runs() -> None:
    scene, request = fueled()
    assert scene.state.trace.metrics() == SpineMetrics(0, 1, 0)
    scene.do(ApplyMerge(scene.merged(request), "m1"))
    assert scene.state.trace.metrics() == SpineMetrics(1, 0, 0)
    runs = (inline_part([up(row, 2)]) for row in "ab")
    scene.do(CompareAndAppend((batch(at(2), at(3), *runs),), at(2), at(3)))
    assert scene.state.trace.metrics() == SpineMetrics(1, 0, 1)
    assert StateHarness().state.trace.metrics() == SpineMetrics(0, 0, 0)


@pytest.mark.parametrize("appends", range(1, 12))
def test_metrics_count_every_spine_batch_once(appends: int) -> None:
    scene = StateHarness()
    for when in range(appends):
        scene.append(at(when + 1), up("a", when), up("b", when))
    trace = scene.state.trace
    metrics = trace.metrics()
    assert sum(msgspec.structs.astuple(metrics)) == trace.batch_count
    assert msgspec.structs.astuple(metrics)[1] == len(trace.requests())

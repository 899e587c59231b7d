"""Merging as seen by the state: claims, results, and the ways to ask for more."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from merge_cases import fueled
from state_harness import TERM_MS, WRITER, StateHarness, at, batch, inline_part, up

from timespine.config import DEFAULT
from timespine.core.batch import HollowBatch, Part, Run
from timespine.core.spine.merge_result import MergeApplication
from timespine.core.transitions import ApplyMerge, ClaimMerge, ExpireWriter, RegisterWriter, Retain, RollUpAll
from timespine.errors import Fenced, InlineBudgetExceeded, UsageError
from timespine.model import Description, Frontier


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
    assert isinstance(scene.declined(lambda: ClaimMerge(request.id, claimant, term_ms)), UsageError)


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

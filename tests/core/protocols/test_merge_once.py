"""The merge protocol: claimed, merged, applied, or dropped with its blobs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from maintain_cases import asked_for_a_merge, merged_blobs, mergers, raising
from protocol_harness import CONFIG, FAILURES, Fault, ProtocolHarness, at, up

from timespine.config import DEFAULT
from timespine.core.batch import HollowBatch, Part, Run
from timespine.core.effects import CompareAndSet, DeleteBlobs, Effect, FreshId, GetBlob, MergeOutput, MergeRuns, PutBlob
from timespine.core.protocols.garbage import references, sweep
from timespine.core.protocols.maintain import expire_lapsed_leases, merge_once
from timespine.core.protocols.session import Session
from timespine.core.spine.merge_result import MergeApplication
from timespine.core.transitions import ClaimMerge, ExpireWriter, Refresh, RegisterWriter, Retain, RollUpAll
from timespine.errors import CorruptionError, Fenced, TimespineError, UsageError
from timespine.model.time import INT64_MAX


def test_merge_replaces_what_was_asked_for_and_leaves_no_writer_behind() -> None:
    stage, session, _ = asked_for_a_merge()
    assert stage.run(merge_once(session, "c")) is MergeApplication.EXACT
    head = stage.head()
    assert head.trace.requests() == []
    assert (head.trace.batch_count, head.trace.hollow_count) == (1, 1)
    assert mergers(stage) == []
    assert head.claims == {}
    assert session.counters["merges applied"] == 1
    stage.agree()


def test_merge_is_claimed_and_its_writer_registered_before_it_begins() -> None:
    stage, session, _ = asked_for_a_merge()
    seen: list[Any] = []
    stage.before(MergeRuns, lambda: seen.append((dict(stage.head().claims), mergers(stage))))
    stage.run(merge_once(session, "c"))
    ((claims, writers),) = seen
    ((id, claim),) = claims.items()
    assert [claim.claimant] == writers
    assert claim.until_ms == stage.now_ms + CONFIG.claim_ms
    assert id == (0, 4)


def test_merge_result_is_put_under_the_prefix_of_its_own_writer() -> None:
    stage, session, _ = asked_for_a_merge()
    stage.run(merge_once(session, "c"))
    (effect,) = stage.of(MergeRuns)
    assert effect.writer != session.writer
    assert {put.key.split("/")[1] for put in stage.of(PutBlob)} == {effect.writer}


def test_nothing_to_merge_is_none_and_writes_nothing() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    stage.append(session, 1, up("a", 0))
    assert stage.run(merge_once(session, "c")) is None
    assert not stage.of(CompareAndSet, MergeRuns)


def test_merge_in_a_collection_that_is_not_there_is_none() -> None:
    stage = ProtocolHarness()
    assert stage.run(merge_once(stage.stranger(), "nowhere")) is None


def test_smallest_merge_comes_first() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    for upper, rows in ((1, 16), (2, 2)):
        stage.append(session, upper, *(up(f"r{upper}-{index}", upper - 1) for index in range(rows)))
    stage.append(session, 3)
    stage.commit(session, Retain(at(2)))
    large, small = stage.head().trace.stale()[:2]
    stage.commit(session, Refresh(large), Refresh(small))
    assert [request.rope.len for request in stage.head().trace.requests()] == [16, 2]
    stage.run(merge_once(session, "c"))
    (effect,) = stage.of(MergeRuns)
    assert effect.request.id == small


def test_merge_that_another_process_claimed_is_left_alone_until_the_claim_lapses() -> None:
    stage, session, other = asked_for_a_merge()
    (request,) = stage.head().trace.requests()
    stage.commit(other, ClaimMerge(request.id, "m99", CONFIG.claim_ms))
    assert stage.run(merge_once(session, "c")) is None
    assert not stage.of(CompareAndSet)
    stage.now_ms += CONFIG.claim_ms
    assert stage.run(merge_once(session, "c")) is None
    assert not stage.of(CompareAndSet)
    stage.now_ms += 1
    assert stage.run(merge_once(session, "c")) is MergeApplication.EXACT


def test_merge_that_another_process_claims_first_is_left_to_it() -> None:
    stage, session, other = asked_for_a_merge()
    (request,) = stage.head().trace.requests()
    claim = ClaimMerge(request.id, "m99", CONFIG.claim_ms)
    stage.before(CompareAndSet, lambda: stage.commit(other, RegisterWriter("m99", CONFIG.writer_lease_ms), claim))
    assert stage.run(merge_once(session, "c")) is None
    assert not stage.of(MergeRuns)
    assert mergers(stage) == ["m99"]
    assert stage.head().claims[request.id].claimant == "m99"


def test_merge_that_another_process_finishes_first_is_not_begun() -> None:
    stage, session, other = asked_for_a_merge()
    stage.before(CompareAndSet, lambda: stage.run(merge_once(other, "c")))
    assert stage.run(merge_once(session, "c")) is None
    assert not stage.of(MergeRuns)
    assert mergers(stage) == []


def test_named_merge_is_begun_though_it_failed_before_but_not_while_another_process_claims_it() -> None:
    stage, session, other = asked_for_a_merge()
    (request,) = stage.head().trace.requests()
    stage.commit(other, RegisterWriter("m99", CONFIG.writer_lease_ms), ClaimMerge(request.id, "m99", CONFIG.claim_ms))
    assert stage.run(merge_once(session, "c", request.id)) is None
    assert not stage.of(MergeRuns)
    stage.commit(other, ExpireWriter("m99"))
    assert stage.run(merge_once(session, "c")) is None
    assert not stage.of(MergeRuns)
    assert stage.run(merge_once(session, "c", request.id)) is MergeApplication.EXACT
    stage.agree()


def test_merge_whose_writer_cannot_be_registered_is_not_begun() -> None:
    stage, session, _ = asked_for_a_merge()
    stage.answer(FreshId, lambda effect: "Not an id")
    assert stage.run(merge_once(session, "c")) is None
    assert not stage.of(MergeRuns)
    assert stage.head().claims == {}


def test_merge_whose_inputs_are_gone_leaves_no_writer_behind() -> None:
    stage, session, _ = asked_for_a_merge()
    stage.answer(GetBlob, lambda effect: None)
    assert stage.run(merge_once(session, "c")) is None
    assert mergers(stage) == []
    assert merged_blobs(stage) == []
    assert len(stage.head().trace.requests()) == 1


@pytest.mark.parametrize("fault", FAILURES)
def test_merge_whose_engine_is_unavailable_is_counted_and_left_to_be_swept(fault: Fault) -> None:
    stage, session, _ = asked_for_a_merge()
    stage.fail(MergeRuns, fault)
    assert stage.run(merge_once(session, "c")) is None
    assert session.counters["merges failed"] == 1
    assert mergers(stage) == []
    left = merged_blobs(stage)
    assert bool(left) is (fault is Fault.DONE)
    assert stage.run(sweep(session, "c")) == len(left)
    assert merged_blobs(stage) == []
    stage.agree()


def test_merge_that_failed_is_done_by_others_when_the_claim_lapses() -> None:
    stage, session, other = asked_for_a_merge()
    stage.fail(PutBlob, Fault.NOT_DONE)
    assert stage.run(merge_once(session, "c")) is None
    stage.now_ms += CONFIG.claim_ms + 1
    assert stage.run(merge_once(other, "c")) is MergeApplication.EXACT
    stage.agree()


@pytest.mark.parametrize("error", [UsageError("overflow"), CorruptionError("nonsense"), Fenced("gone")], ids=repr)
def test_merge_whose_engine_fails_in_whatever_way_is_skipped_until_its_claim_lapses(error: TimespineError) -> None:
    stage, session, other = asked_for_a_merge()
    (request,) = stage.head().trace.requests()
    stage.answer(MergeRuns, raising(error))
    assert stage.run(merge_once(session, "c")) is None
    assert session.counters["merges failed"] == 1
    assert "merges dropped" not in session.counters
    assert mergers(stage) == []
    (claim,) = stage.head().claims.values()
    assert claim.until_ms == stage.now_ms + CONFIG.claim_ms
    for each in (session, other):
        assert stage.run(merge_once(each, "c")) is None
        assert not stage.of(MergeRuns, CompareAndSet)
    stage.append(session, 5, up("r4", 4))  # it disturbs nothing else
    assert [each.id for each in stage.head().trace.requests()] == [request.id]
    stage.now_ms += CONFIG.claim_ms + 1
    assert stage.run(merge_once(other, "c")) is MergeApplication.EXACT
    stage.agree()


def test_merge_of_a_count_that_overflows_is_skipped_and_nothing_else_is() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    for when in range(2):
        stage.append(session, when + 1, up("much", when, INT64_MAX))
    stage.commit(session, Retain(at(1)))
    stage.commit(session, RollUpAll())
    assert stage.run(merge_once(session, "c")) is None
    assert session.counters["merges failed"] == 1
    assert mergers(stage) == []
    assert merged_blobs(stage) == []
    assert len(stage.head().claims) == len(stage.head().trace.requests()) == 1
    stage.append(session, 3, up("much", 2, -INT64_MAX))
    stage.commit(session, Retain(at(2)))
    stage.commit(session, RollUpAll())
    assert stage.run(merge_once(session, "c")) is MergeApplication.EXACT
    assert stage.rows(2) == {"much": INT64_MAX}


def test_part_that_does_not_decode_fails_its_merge_and_nothing_else() -> None:
    stage, session, _ = asked_for_a_merge()
    stage.answer(GetBlob, lambda effect: b"nonsense")
    assert stage.run(merge_once(session, "c")) is None
    assert session.counters["merges failed"] == 1
    assert mergers(stage) == []


def test_error_of_the_engine_that_is_none_of_ours_is_passed_on() -> None:
    stage, session, _ = asked_for_a_merge()
    stage.answer(MergeRuns, raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        stage.run(merge_once(session, "c"))
    assert "merges failed" not in session.counters


def test_result_that_another_process_gave_first_is_just_as_good() -> None:
    stage, session, other = asked_for_a_merge()

    def faster() -> None:
        stage.now_ms += CONFIG.claim_ms + 1
        assert stage.run(merge_once(other, "c")) is MergeApplication.EXACT

    # Just before the result is offered: the first compare-and-set is the claim.
    stage.before(CompareAndSet, faster, nth=2)
    assert stage.run(merge_once(session, "c")) is MergeApplication.EXACT
    assert mergers(stage) == []
    stage.agree()


def test_result_that_no_longer_fits_is_dropped_and_deletes_only_its_own_blobs() -> None:
    stage, session, other = asked_for_a_merge()
    untouched = list(stage.head().keys())[-1]

    def rebuild() -> None:
        stage.append(other, 5, up("r4", 4), up("all", 4))
        stage.commit(other, RollUpAll())
        assert stage.run(merge_once(other, "c")) is MergeApplication.EXACT

    stage.before(CompareAndSet, rebuild, nth=2)
    assert stage.run(merge_once(session, "c")) is MergeApplication.NO_MATCH
    (effect,) = stage.of(MergeRuns)
    (deletion,) = stage.of(DeleteBlobs)
    assert {key.split("/")[1] for key in deletion.keys} == {effect.writer}
    assert untouched in stage.world.blobs  # both results passed it through
    assert untouched in references(stage.head())
    assert mergers(stage) == []
    assert session.counters["merges dropped"] == 1
    stage.agree()


def test_result_of_a_writer_that_was_expired_meanwhile_is_refused_and_dropped() -> None:
    stage, session, other = asked_for_a_merge()

    def fence() -> None:
        (merger,) = mergers(stage)
        stage.commit(other, ExpireWriter(merger))

    stage.before(CompareAndSet, fence, nth=2)
    assert stage.run(merge_once(session, "c")) is None
    assert session.counters["merges dropped"] == 1
    assert merged_blobs(stage) == []
    assert len(stage.head().trace.requests()) == 1
    stage.agree()


def test_result_that_passes_through_what_another_merge_dropped_is_refused_and_leaves_no_writer_behind() -> None:
    stage, session, other = asked_for_a_merge(rows=2, since=1)
    untouched = list(stage.head().keys())[-1]

    def rewrite(effect: MergeRuns) -> MergeOutput:
        rows = [up("r0", 1), up("r1", 1), up("all", 1, 2), up("own", 2)]
        return MergeOutput(HollowBatch(effect.request.desc, 4, (Run((stage.put(f"c/{effect.writer}/p1", *rows),)),)))

    def faster() -> None:
        stage.now_ms += CONFIG.claim_ms + 1
        stage.answer(MergeRuns, rewrite)
        assert stage.run(merge_once(other, "c")) is MergeApplication.EXACT

    stage.before(CompareAndSet, faster, nth=2)
    assert stage.run(merge_once(session, "c")) is None
    assert untouched not in references(stage.head())
    assert mergers(stage) == []
    assert session.counters["merges dropped"] == 1
    stage.agree()


def test_result_whose_diffs_do_not_add_up_is_dropped() -> None:
    stage, session, _ = asked_for_a_merge()
    writers: list[str] = []

    def wrong(effect: MergeRuns) -> MergeOutput:
        writers.append(effect.writer)
        part = msgspec.structs.replace(stage.put(f"c/{effect.writer}/p1", up("all", 2)), diff_sum=99)
        (inputs, *_) = effect.request.inputs
        return MergeOutput(
            HollowBatch(effect.request.desc, 1, (msgspec.structs.replace(inputs.runs[0], parts=(part,)),))
        )

    stage.answer(MergeRuns, wrong)
    assert stage.run(merge_once(session, "c")) is MergeApplication.DIFF_SUM
    assert f"c/{writers[0]}/p1" not in stage.world.blobs
    stage.agree()


def dropped(rows: int = 3) -> tuple[ProtocolHarness, Session]:
    """A merge whose result will be dropped: its writer is expired just before it is offered."""
    stage, session, other = asked_for_a_merge(rows, rows - 1)

    def fence() -> None:
        (merger,) = mergers(stage)
        stage.commit(other, ExpireWriter(merger))

    stage.before(CompareAndSet, fence, nth=2)
    return stage, session


def test_dropped_run_is_deleted_after_the_parts_inside_of_it() -> None:
    stage, session = dropped(rows=6)
    assert stage.run(merge_once(session, "c")) is None
    deletions = [[key.split("/")[2][0] for key in each.keys] for each in stage.of(DeleteBlobs)]
    assert deletions == [["p", "p"], ["p", "p"], ["h"]]
    (effect,) = stage.of(MergeRuns)
    assert {key.split("/")[1] for each in stage.of(DeleteBlobs) for key in each.keys} == {effect.writer}
    assert merged_blobs(stage) == []
    assert "left to the sweep" not in session.counters
    assert stage.run(sweep(session, "c")) == 0
    stage.agree()


@pytest.mark.parametrize("fault", FAILURES)
@pytest.mark.parametrize(("kind", "nth"), [(GetBlob, 8), (DeleteBlobs, 1), (DeleteBlobs, 3)])
def test_dropped_result_whose_deletion_fails_once_is_deleted(kind: type[Effect], nth: int, fault: Fault) -> None:
    stage, session = dropped(rows=6)
    stage.fail(kind, fault, nth=nth)
    assert stage.run(merge_once(session, "c")) is None
    assert merged_blobs(stage) == []
    assert "left to the sweep" not in session.counters


@pytest.mark.parametrize(("kind", "nth", "left"), [(GetBlob, 8, 5), (DeleteBlobs, 1, 5), (DeleteBlobs, 3, 1)])
def test_dropped_run_that_cannot_be_deleted_is_left_to_the_sweep(kind: type[Effect], nth: int, left: int) -> None:
    stage, session = dropped(rows=6)
    stage.fail(kind, Fault.DETERMINATE, nth=nth, times=CONFIG.storage_attempts)
    assert stage.run(merge_once(session, "c")) is None
    assert session.counters["merges dropped"] == session.counters["left to the sweep"] == 1  # the run
    assert mergers(stage) == []
    assert len(merged_blobs(stage)) == left
    assert any(key.split("/")[2][0] == "h" for key in merged_blobs(stage))
    assert stage.run(sweep(session, "c")) == left
    assert merged_blobs(stage) == []
    stage.agree()


def test_dropped_result_that_cannot_be_deleted_is_swept() -> None:
    stage, session = dropped()
    stage.fail(DeleteBlobs, Fault.DETERMINATE, times=CONFIG.storage_attempts)
    assert stage.run(merge_once(session, "c")) is None
    assert session.counters["left to the sweep"] == len(merged_blobs(stage)) == 2
    assert stage.run(sweep(session, "c")) == 2
    assert merged_blobs(stage) == []


def test_merger_that_dies_while_it_deletes_what_was_dropped_never_leaves_parts_without_their_run() -> None:
    stage, session = dropped(rows=6)
    stage.run(merge_once(session, "c"))
    begin, end = stage.effects.index(stage.of(DeleteBlobs)[0]), len(stage.effects)
    left = []
    for after in range(begin, end + 1):
        stage, session = dropped(rows=6)
        assert stage.crash(merge_once(session, "c"), after) is (after < end)
        left.append(sorted(key.split("/")[2][0] for key in merged_blobs(stage)))
    assert left == [["h", "p", "p", "p", "p"], ["h", "p", "p"], ["h"], []]


def test_result_with_too_much_inline_is_refused_and_dropped() -> None:
    stage, session, _ = asked_for_a_merge()

    def large(effect: MergeRuns) -> MergeOutput:
        data = b"x" * (DEFAULT.inline_total_bytes + 1)
        part = Part("", 1, len(data), sum(part.diff_sum or 0 for part in stage.head().parts()), data)
        return MergeOutput(HollowBatch(effect.request.desc, 1, (Run((part,)),)))

    before = stage.head().trace
    stage.answer(MergeRuns, large)
    assert stage.run(merge_once(session, "c")) is None
    assert session.counters["merges dropped"] == 1
    assert not stage.of(DeleteBlobs)
    assert mergers(stage) == []
    assert stage.head().trace == before
    stage.agree()


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("nth", [1, 2])
def test_merge_is_applied_once_whichever_of_its_commits_fails(nth: int, fault: Fault) -> None:
    stage, session, _ = asked_for_a_merge()
    stage.fail(CompareAndSet, fault, nth=nth)
    assert stage.run(merge_once(session, "c")) is MergeApplication.EXACT
    assert mergers(stage) == []
    stage.agree()


def test_merge_of_a_named_request_leaves_all_others_as_they_are() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    for when in range(12):
        stage.append(session, when + 1, up(f"r{when}", when))
    named = max(stage.head().trace.requests(), key=lambda request: request.rope.len)
    others = [request.id for request in stage.head().trace.requests() if request.id != named.id]
    assert others
    assert stage.run(merge_once(session, "c", named.id)) is MergeApplication.EXACT
    assert [request.id for request in stage.head().trace.requests()] == others
    assert stage.run(merge_once(session, "c", named.id)) is None
    stage.agree()


def test_merge_holds_up_no_append() -> None:
    stage, session, other = asked_for_a_merge()
    stage.before(CompareAndSet, lambda: stage.append(other, 5, up("r4", 4)), nth=2)
    assert stage.run(merge_once(session, "c")) is MergeApplication.EXACT
    assert len(stage.of(MergeRuns)) == 1  # nothing is merged again for it
    stage.agree()


def test_merger_that_dies_at_any_point_leaves_nothing_that_the_sweep_does_not_find() -> None:
    for after in range(100):
        stage, session, other = asked_for_a_merge(rows=3, since=2)
        if not stage.crash(merge_once(session, "c"), after):
            break
        stage.agree()
        stage.now_ms += CONFIG.writer_lease_ms + 1
        heir = stage.session()
        stage.run(expire_lapsed_leases(heir, "c"))
        stage.run(merge_once(heir, "c"))
        stage.run(sweep(heir, "c"))
        assert stage.head().trace.requests() == []
        stage.check_storage()
        stage.agree()
        assert other.committer not in stage.head().committers
    assert after > 10

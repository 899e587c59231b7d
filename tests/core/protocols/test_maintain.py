"""Maintenance: merges, rollups, expiry and finalizing, by anybody, at any time, at nobody's cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from protocol_harness import CONFIG, FAILURES, Fault, ProtocolHarness, at, configured, up

from timespine.config import DEFAULT
from timespine.core.batch import HollowBatch, Part, Run
from timespine.core.effects import CompareAndSet, DeleteBlobs, Effect, FreshId, GetBlob, MergeOutput, MergeRuns, PutBlob
from timespine.core.protocols.garbage import collect_garbage, references, sweep
from timespine.core.protocols.maintain import (
    expire_lapsed_leases,
    finalize_if_released,
    is_rollup_due,
    merge_once,
    rewrite_unsealed,
    roll_up,
    tidy_unsealed,
)
from timespine.core.protocols.session import Session
from timespine.core.spine.merge_result import MergeApplication
from timespine.core.state import Rollup, Status, new_state
from timespine.core.transitions import (
    ClaimMerge,
    CompareAndAppend,
    Drain,
    ExpireCommitter,
    ExpireWriter,
    Refresh,
    RegisterWriter,
    Retain,
    RollUpAll,
    Seal,
    Trim,
    Write,
)
from timespine.errors import CorruptionError, Fenced, TimespineError, Unavailable, UsageError
from timespine.model import CLOSED
from timespine.model.time import INT64_MAX
from timespine.testing.formats.naive import data_of
from timespine.testing.simulator.core_reads import take_lease
from timespine.testing.simulator.core_writes import compare_and_append_data, write_data


def asked_for_a_merge(rows: int = 3, since: int = 2) -> tuple[ProtocolHarness, Session, Session]:
    """A collection whose parts are to be merged up to since, the last one untouched; and two sessions."""
    stage = ProtocolHarness()
    other, session = stage.session(), stage.session()
    for when in range(rows):
        stage.append(session, when + 1, up(f"r{when}", when), up("all", when))
    stage.append(session, rows + 1, up("own", rows))
    stage.commit(session, Retain(at(since)))
    stage.commit(session, RollUpAll())
    assert len(stage.head().trace.requests()) == 1
    return stage, session, other


def mergers(stage: ProtocolHarness) -> list[str]:
    """The writers that are registered for merges."""
    return [writer for writer in stage.head().writers if writer.startswith("m")]


def merged_blobs(stage: ProtocolHarness) -> list[str]:
    """The blobs that merges have put."""
    return [key for key in stage.there() if key.split("/")[1].startswith("m")]


# Merging.


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


def raising(error: Exception) -> Callable[[object], object]:
    """An answer that is an error."""

    def answer(effect: object) -> object:
        raise error

    return answer


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


# Rollups.


def test_rollup_is_due_after_enough_commits() -> None:
    session = Session("k", "w", configured(rollup_seqnos=8))
    state = new_state("c")
    assert not is_rollup_due(session.config, msgspec.structs.replace(state, seqno=7))
    assert is_rollup_due(session.config, msgspec.structs.replace(state, seqno=8))
    rolled = msgspec.structs.replace(state, rollups={3: Rollup("c/w/s3", 1), 5: Rollup("c/w/s5", 1)})
    assert not is_rollup_due(session.config, msgspec.structs.replace(rolled, seqno=12))
    assert is_rollup_due(session.config, msgspec.structs.replace(rolled, seqno=13))


def test_large_state_waits_longer_for_its_rollup() -> None:
    stage = ProtocolHarness()
    session = stage.session(config=configured(rollup_seqnos=1))
    for when in range(12):
        stage.append(session, when + 1, up(f"r{when}", when))
    state = stage.head()
    assert state.trace.hollow_count == 12
    rolled = msgspec.structs.replace(state, rollups={state.seqno - 2: Rollup("c/w/s", 1)})
    assert not is_rollup_due(session.config, rolled)
    assert is_rollup_due(session.config, msgspec.structs.replace(rolled, seqno=state.seqno + 1))


def test_rollup_is_put_and_then_recorded() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    stage.append(session, 1, up("a", 0))
    seqno = stage.head().seqno
    assert stage.run(roll_up(session, "c")) is True
    ((recorded, rollup),) = stage.head().rollups.items()
    assert recorded == seqno
    assert rollup.size == len(stage.world.blobs[rollup.key])
    assert [type(each) for each in stage.of(PutBlob, CompareAndSet)] == [PutBlob, CompareAndSet]


def test_rollup_of_a_collection_that_is_not_there_is_none() -> None:
    stage = ProtocolHarness()
    assert stage.run(roll_up(stage.stranger(), "nowhere")) is False


def test_rollup_that_lost_to_a_newer_one_is_deleted() -> None:
    stage = ProtocolHarness()
    other, session = stage.session(), stage.session()
    stage.before(CompareAndSet, lambda: stage.run(roll_up(other, "c")))
    assert stage.run(roll_up(session, "c")) is False
    (rollup,) = stage.head().rollups.values()
    assert stage.there() == {rollup.key}
    assert rollup.key.split("/")[1] == other.writer


def test_rollup_of_a_writer_that_was_expired_is_refused_and_deleted() -> None:
    stage = ProtocolHarness()
    other, session = stage.session(), stage.session()
    stage.before(CompareAndSet, lambda: stage.commit(other, ExpireWriter(session.writer)))
    assert stage.run(roll_up(session, "c")) is False
    assert stage.there() == set()


def test_rollup_of_a_committer_that_was_expired_is_deleted_if_it_is_not_recorded() -> None:
    stage = ProtocolHarness()
    other, session = stage.session(), stage.session()
    stage.before(CompareAndSet, lambda: stage.commit(other, ExpireCommitter(session.committer)))
    with pytest.raises(Fenced) as raised:
        stage.run(roll_up(session, "c"))
    assert not raised.value.in_doubt
    assert stage.there() == set()


def test_rollup_that_was_recorded_before_its_committer_was_expired_is_kept() -> None:
    stage = ProtocolHarness()
    other, session = stage.session(), stage.session()
    stage.fail(CompareAndSet, Fault.DONE)
    stage.before(CompareAndSet, lambda: stage.commit(other, ExpireCommitter(session.committer)), nth=2)
    assert stage.run(roll_up(session, "c")) is True
    assert stage.there() == {rollup.key for rollup in stage.head().rollups.values()} != set()


def test_rollup_in_doubt_is_left_to_the_sweep() -> None:
    stage = ProtocolHarness()
    other, session = stage.session(), stage.session()

    def expire_and_cut() -> None:
        stage.commit(other, ExpireCommitter(session.committer))
        stage.run(roll_up(other, "c"))
        stage.run(collect_garbage(other, "c"))

    stage.fail(CompareAndSet, Fault.NOT_DONE)
    stage.before(CompareAndSet, expire_and_cut, nth=2)
    with pytest.raises(Fenced) as raised:
        stage.run(roll_up(session, "c"))
    assert raised.value.in_doubt
    recorded = {rollup.key for rollup in stage.head().rollups.values()}
    (left,) = stage.there() - recorded
    assert left.split("/")[1] == session.writer
    stage.commit(other, ExpireWriter(session.writer))
    assert stage.run(sweep(other, "c")) == 1
    assert stage.there() == recorded


def test_rollup_of_a_state_that_moved_on_is_still_of_use() -> None:
    stage = ProtocolHarness()
    other, session = stage.session(), stage.session()
    seqno = stage.head().seqno
    stage.before(CompareAndSet, lambda: stage.append(other, 1, up("a", 0)))
    assert stage.run(roll_up(session, "c")) is True
    assert list(stage.head().rollups) == [seqno]
    stage.agree()


# Expiry.


def test_leases_that_lapsed_by_the_clock_are_removed_and_counted() -> None:
    stage = ProtocolHarness()
    gone = stage.session()
    stage.run(take_lease(gone, "c", (0,)))
    stage.now_ms += CONFIG.writer_lease_ms
    assert stage.run(expire_lapsed_leases(stage.session(), "c")) == 1  # the reader's term is shorter
    stage.now_ms += 1
    session = stage.session()
    assert stage.run(expire_lapsed_leases(session, "c")) == 2
    assert gone.committer not in stage.head().committers
    assert gone.writer not in stage.head().writers
    assert stage.run(expire_lapsed_leases(session, "c")) == 0


def test_expiry_in_a_collection_that_is_not_there_removes_nothing() -> None:
    stage = ProtocolHarness()
    assert stage.run(expire_lapsed_leases(stage.session(), "nowhere")) == 0


# Unsealed updates.


def test_tidying_drains_what_is_sealed_and_evicts_what_is_drained() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    stage.run(write_data(session, "c", data_of([up("a", 0), up("b", 1)]), at(0), (1,)))
    stage.run(write_data(session, "c", data_of([up("c", 5)]), at(5), (5,)))
    stage.commit(session, Seal(at(3)))
    stage.run(tidy_unsealed(session, "c"))
    head = stage.head()
    assert head.trace.upper == at(3)
    assert [batch.seqno for batch in head.unsealed] == [1]
    stage.commit(session, Seal(at(6)))
    stage.agree()


def test_tidying_twice_or_by_another_process_changes_nothing() -> None:
    stage = ProtocolHarness()
    other, session = stage.session(), stage.session()
    stage.run(write_data(session, "c", data_of([up("a", 0)]), at(0), (0,)))
    stage.commit(session, Seal(at(1)))
    stage.before(CompareAndSet, lambda: stage.run(tidy_unsealed(other, "c")))
    stage.run(tidy_unsealed(session, "c"))
    seqno = stage.head().seqno
    stage.run(tidy_unsealed(session, "c"))
    assert stage.head().seqno == seqno
    stage.agree()


def test_tidying_keeps_what_is_only_partly_drained() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    stage.run(write_data(session, "c", data_of([up("a", 0), up("b", 4)]), at(0), (4,)))
    stage.commit(session, Seal(at(2)))
    stage.run(tidy_unsealed(session, "c"))
    assert len(stage.head().unsealed) == 1
    stage.commit(session, Trim(0))
    stage.commit(session, Seal(at(5)))
    stage.run(tidy_unsealed(session, "c"))
    assert len(stage.head().unsealed) == 0
    stage.agree()


def half_drained() -> tuple[ProtocolHarness, Session]:
    """A write at 0 to 5, of which 0 to 3 is in the trace, merged and no longer referred to there."""
    stage = ProtocolHarness()
    session = stage.session()
    stage.run(write_data(session, "c", data_of([up(f"r{when}", when) for when in range(6)]), at(0), (5,)))
    stage.commit(session, Seal(at(4)))
    stage.run(tidy_unsealed(session, "c"))
    stage.commit(session, RollUpAll())
    stage.run(merge_once(session, "c"))
    return stage, session


def test_tidying_narrows_what_is_partly_drained() -> None:
    stage, _ = half_drained()
    (batch,) = stage.head().unsealed
    assert (batch.lower, batch.max) == (at(4), (5,))


def test_rewriting_keeps_only_what_is_not_drained_in_a_blob_of_its_own_writer() -> None:
    stage, session = half_drained()
    (before,) = stage.head().unsealed
    assert stage.run(rewrite_unsealed(session, "c", before.seqno))
    (after,) = stage.head().unsealed
    assert (after.seqno, after.lower, after.max, after.rows) == (before.seqno, at(4), (5,), 2)
    assert {part.key for part in after.parts}.isdisjoint(part.key for part in before.parts)
    assert mergers(stage) == []
    stage.commit(session, Seal(at(6)))
    stage.run(tidy_unsealed(session, "c"))
    assert len(stage.head().unsealed) == 0
    stage.agree()


def test_rewriting_what_is_gone_or_wholly_drained_does_nothing() -> None:
    stage, session = half_drained()
    assert not stage.run(rewrite_unsealed(stage.stranger(), "nowhere", 0))
    assert not stage.run(rewrite_unsealed(session, "c", 7))
    stage.commit(session, Seal(at(6)), Drain())
    assert not stage.run(rewrite_unsealed(session, "c", 0))
    assert not stage.of(MergeRuns)[1:]
    stage.agree()


@pytest.mark.parametrize("answer", [lambda effect: None, raising(Unavailable("away"))], ids=["gone", "away"])
def test_rewriting_that_cannot_be_done_leaves_no_writer_behind(answer: Any) -> None:
    stage, session = half_drained()
    (before,) = stage.head().unsealed
    stage.answer(MergeRuns, answer)
    assert not stage.run(rewrite_unsealed(session, "c", 0))
    assert mergers(stage) == []
    assert tuple(stage.head().unsealed) == (before,)


def test_rewriting_that_comes_too_late_deletes_what_it_wrote() -> None:
    stage, session = half_drained()
    other = stage.session()
    blobs = merged_blobs(stage)

    def sealed() -> None:
        stage.commit(other, Seal(at(6)))
        stage.run(tidy_unsealed(other, "c"))

    stage.before(CompareAndSet, sealed, nth=2)
    assert not stage.run(rewrite_unsealed(session, "c", 0))
    assert merged_blobs(stage) == blobs
    assert mergers(stage) == []
    stage.agree()


def test_rewriting_whose_writer_was_expired_deletes_what_it_wrote() -> None:
    stage, session = half_drained()
    other = stage.session()
    blobs = merged_blobs(stage)
    (before,) = stage.head().unsealed
    stage.before(CompareAndSet, lambda: stage.commit(other, *map(ExpireWriter, mergers(stage))), nth=2)
    assert not stage.run(rewrite_unsealed(session, "c", 0))
    assert merged_blobs(stage) == blobs
    assert tuple(stage.head().unsealed) == (before,)
    stage.agree()


def test_rewriting_of_what_cancels_out_leaves_nothing_of_it() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    stage.run(write_data(session, "c", data_of([up("a", 0), up("b", 5), up("b", 5, -1)]), at(0), (5,)))
    stage.commit(session, Seal(at(4)))
    stage.run(tidy_unsealed(session, "c"))
    assert stage.run(rewrite_unsealed(session, "c", 0))
    (batch,) = stage.head().unsealed
    assert (batch.rows, batch.parts) == (0, ())
    stage.commit(session, Seal(at(6)))
    stage.run(tidy_unsealed(session, "c"))
    stage.agree()


# The end of a collection.


def test_closed_and_released_collection_becomes_a_tombstone() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    stage.append(session, 1, up("a", 0))
    stage.run(compare_and_append_data(session, "c", None, at(1), CLOSED))
    stage.commit(session, Retain(CLOSED))
    assert stage.run(finalize_if_released(session, "c")) is True
    assert stage.head().status is Status.FINALIZED
    assert list(stage.head().parts()) == []
    assert stage.run(finalize_if_released(session, "c")) is True  # it is one


def test_collection_that_has_writers_or_readers_is_not_finalized() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    assert stage.run(finalize_if_released(session, "c")) is False
    stage.run(compare_and_append_data(session, "c", None, at(0), CLOSED))
    assert stage.run(finalize_if_released(session, "c")) is False
    assert stage.head().status is Status.OPEN


# Whoever is fenced.


@pytest.mark.parametrize("protocol", [roll_up, expire_lapsed_leases, tidy_unsealed, finalize_if_released, merge_once])
def test_maintenance_by_a_session_that_was_expired_is_fenced(protocol: Any) -> None:
    stage, session, other = asked_for_a_merge()
    stage.commit(other, ExpireCommitter(session.committer), ExpireWriter(session.writer))
    with pytest.raises(Fenced):
        stage.run(protocol(session, "c"))


def test_maintenance_leaves_appends_and_writes_alone() -> None:
    stage, session, other = asked_for_a_merge()
    stage.before(MergeRuns, lambda: stage.commit(other, CompareAndAppend((), at(4), at(7))))
    stage.run(merge_once(session, "c"))
    stage.commit(other, Write(at(8), (8,), (stage.put(f"c/{other.writer}/p0", up("w", 8)),)), Seal(at(9)))
    stage.agree()

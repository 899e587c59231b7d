"""Rollups, expiry, unsealed updates and the end of a collection, as protocols."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from maintain_cases import asked_for_a_merge, merged_blobs, mergers, raising
from protocol_harness import CONFIG, Fault, ProtocolHarness, at, configured, up

from timespine.core.effects import CompareAndSet, MergeRuns, PutBlob
from timespine.core.protocols.garbage import collect_garbage, sweep
from timespine.core.protocols.maintain import (
    expire_lapsed_leases,
    is_rollup_due,
    merge_once,
    next_rollup_seqno,
    rewrite_unsealed,
    roll_up,
    tidy_unsealed,
)
from timespine.core.protocols.session import Session
from timespine.core.state import Rollup, new_state
from timespine.core.transitions import (
    CompareAndAppend,
    Drain,
    ExpireCommitter,
    ExpireWriter,
    RollUpAll,
    Seal,
    Trim,
    Write,
)
from timespine.errors import Fenced, Unavailable
from timespine.testing.formats.naive import data_of
from timespine.testing.simulator.core_reads import take_lease
from timespine.testing.simulator.core_writes import write_data

# Rollups.


def test_rollup_is_due_after_enough_commits() -> None:
    session = Session("k", "w", configured(rollup_seqnos=8))
    state = new_state("c")
    assert not is_rollup_due(session.config, msgspec.structs.replace(state, seqno=7))
    assert is_rollup_due(session.config, msgspec.structs.replace(state, seqno=8))
    rolled = msgspec.structs.replace(state, rollups={3: Rollup("c/w/s3", 1), 5: Rollup("c/w/s5", 1)})
    assert not is_rollup_due(session.config, msgspec.structs.replace(rolled, seqno=12))
    assert is_rollup_due(session.config, msgspec.structs.replace(rolled, seqno=13))


def test_no_rollup_is_due_before_the_next_number() -> None:
    config = configured(rollup_seqnos=8)
    for rollups, times, number in (({}, 1, 8), ({}, 2, 16), ({3: Rollup("c/w/s3", 1), 5: Rollup("c/w/s5", 1)}, 1, 13)):
        state = msgspec.structs.replace(new_state("c"), rollups=rollups)
        assert next_rollup_seqno(config, state, times) == number
        assert not is_rollup_due(config, msgspec.structs.replace(state, seqno=number - 1), times)
        assert is_rollup_due(config, msgspec.structs.replace(state, seqno=number), times)


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


def test_parts_come_with_the_schemas_of_their_runs_and_unsealed_batches() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    stage.append(session, 1, up("a", 0))
    stage.run(write_data(session, "c", data_of([up("b", 5)]), at(5), (5,)))
    head = stage.head()
    assert [part for _, part in head.parts_with_schemas()] == list(head.parts())
    assert len(head.unsealed) == 1


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


# Fenced sessions.


@pytest.mark.parametrize("protocol", [roll_up, expire_lapsed_leases, tidy_unsealed, merge_once])
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

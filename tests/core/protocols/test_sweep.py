"""Garbage collection that crashes or fails, and the sweep."""

from __future__ import annotations

import pytest
from garbage_cases import compacted, deleted, littered, opened, settle
from protocol_harness import CONFIG, Fault, ProtocolHarness, at, up

from timespine.core.effects import CompareAndSet, DeleteBlobs, Effect, GetBlob, ListBlobs, Now, Scan, Truncate
from timespine.core.protocols.garbage import collect_garbage, sweep
from timespine.core.protocols.session import Session
from timespine.core.transitions import ExpireWriter, RegisterWriter, Retain, Seal
from timespine.errors import Unavailable, UsageError
from timespine.testing.formats.naive import data_of
from timespine.testing.simulator.core_reads import take_lease
from timespine.testing.simulator.core_writes import compare_and_append_data, put_part

# Crashes and failures.


def effects_of_a_collection() -> list[Effect]:
    stage, session = littered()
    stage.run(collect_garbage(session, "c"))
    return list(stage.effects)


COLLECTION = effects_of_a_collection()


@pytest.mark.parametrize("after", range(len(COLLECTION)))
def test_collector_that_dies_after_any_effect_leaves_nothing_to_the_next_one_that_it_cannot_find(after: int) -> None:
    stage, session = littered()
    assert stage.crash(collect_garbage(session, "c"), after)
    stage.agree()
    heir = stage.session()
    stage.run(collect_garbage(heir, "c"))
    stage.check_storage()
    stage.agree()
    settle(stage, heir)
    stage.check_storage()
    assert len(stage.world.logs["c"]) - stage.world.first["c"] < 6


@pytest.mark.parametrize("after", range(0, len(COLLECTION), 3))
def test_collectors_that_die_one_after_the_other_lose_sight_of_nothing(after: int) -> None:
    stage, session = littered()
    stage.crash(collect_garbage(session, "c"), after)
    for later in range(2, 14, 4):
        heir = stage.session()
        stage.crash(collect_garbage(heir, "c"), max(after - later, 3))
        stage.agree()
    stage.run(collect_garbage(stage.session(), "c"))
    stage.check_storage()


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("nth", [n for n, effect in enumerate(COLLECTION) if not isinstance(effect, Now)])
def test_collection_ends_the_same_whichever_effect_fails_in_whichever_way(nth: int, fault: Fault) -> None:
    stage, session = littered()
    stage.fail(Effect, fault, nth=nth + 1)
    stage.run(collect_garbage(session, "c"))
    stage.check_storage()
    assert len(stage.head().rollups) == 1
    stage.agree()


@pytest.mark.parametrize("kind", [Scan, GetBlob, DeleteBlobs, Truncate, CompareAndSet])
def test_collection_gives_up_when_storage_stays_away_and_the_next_one_finishes(kind: type[Effect]) -> None:
    stage, session = littered()
    stage.fail(kind, Fault.NOT_DONE, times=CONFIG.storage_attempts + (kind is CompareAndSet))
    with pytest.raises(Unavailable):
        stage.run(collect_garbage(session, "c"))
    stage.agree()
    stage.run(collect_garbage(stage.session(), "c"))
    stage.check_storage()


# The sweep.


def test_unreferenced_blob_of_a_writer_that_is_gone_is_swept() -> None:
    stage, session, other = opened()
    leaked = [stage.run(put_part(other, "c", data_of([up("x", 0)]))).key for _ in range(3)]
    stage.append(other, 1, up("a", 0))
    stage.commit(session, ExpireWriter(other.writer))
    assert stage.run(sweep(session, "c")) == 3
    assert sorted(deleted(stage)) == sorted(leaked)
    assert max(len(each.keys) for each in stage.of(DeleteBlobs)) == CONFIG.delete_batch
    stage.check_storage()
    stage.agree()


def test_blob_of_a_registered_writer_is_not_swept() -> None:
    stage, session, other = opened()
    part = stage.run(put_part(other, "c", data_of([up("a", 0)])))
    assert stage.run(sweep(session, "c")) == 0
    stage.append_parts(other, 1, part)
    stage.agree()


def test_what_the_newest_state_or_any_state_of_the_log_refers_to_is_not_swept() -> None:
    stage, session = littered()
    stage.commit(stage.session(), ExpireWriter(session.writer))
    before = stage.there()
    assert stage.run(sweep(stage.session(), "c")) == 0
    assert stage.there() == before
    stage.agree()


def test_what_only_the_rollup_before_the_log_refers_to_is_not_swept() -> None:
    stage, session, other = compacted()
    stage.run(collect_garbage(session, "c"))
    stage.append(session, 5, up("r4", 4))
    reader = stage.run(take_lease(other, "c", (4,)))
    held = {part.key for part in stage.head().parts()}
    stage.compact(session, 4)
    assert not held <= {part.key for part in stage.head().parts()}
    stage.commit(other, ExpireWriter(session.writer))
    assert stage.run(sweep(other, "c")) == 0
    assert held <= stage.there()
    assert reader in stage.head().readers


def test_parts_inside_of_live_runs_are_not_swept_though_their_writer_is_gone() -> None:
    stage, session = littered()
    settle(stage, session)
    (run,) = [part.key for part in stage.head().parts() if part.hollow]
    merger = run.split("/")[1]
    assert merger not in stage.head().writers
    stage.world.blobs[f"c/{merger}/p-leaked"] = b""
    before = stage.there()
    assert stage.run(sweep(stage.session(), "c")) == 1
    assert before - stage.there() == {f"c/{merger}/p-leaked"}
    stage.agree()


def test_sweep_after_a_collection_leaves_exactly_what_is_referred_to() -> None:
    stage, session = littered()
    stage.world.blobs["c/w999/p1"] = b""
    settle(stage, session)
    assert stage.run(sweep(session, "c")) == 1
    stage.check_storage()


def test_writer_that_commits_and_leaves_during_the_sweep_loses_nothing() -> None:
    stage, session, other = opened()

    def come_and_go() -> None:
        visitor = stage.session()
        stage.append(visitor, 1, up("a", 0))
        stage.commit(other, ExpireWriter(visitor.writer))

    for kind in (ListBlobs, Scan):
        stage.before(kind, come_and_go if kind is Scan else lambda: None)
    stage.run(sweep(session, "c"))
    stage.check_storage()
    stage.agree()


def test_writer_that_commits_what_the_sweep_has_listed_loses_nothing() -> None:
    stage, session, other = opened()
    writer = stage.fresh("w")
    stage.commit(other, RegisterWriter(writer, 1000))
    part = stage.put(f"c/{writer}/p1", up("a", 0))

    def commit_and_leave() -> None:
        stage.append_parts(other, 1, part)
        stage.commit(other, ExpireWriter(writer))

    stage.before(Scan, commit_and_leave)
    assert stage.run(sweep(session, "c")) == 0
    stage.agree()


@pytest.mark.parametrize("moment", ["after the state", "after the log"])
def test_sweep_while_others_collect_deletes_nothing(moment: str) -> None:
    stage, session, other = compacted()

    def faster() -> None:
        stage.append(other, 9)
        settle(stage, other)

    if moment == "after the state":
        stage.before(Scan, faster, nth=2)
    else:
        settle(stage, other)
        stage.before(GetBlob, faster)
    assert stage.run(sweep(session, "c")) == 0
    assert not stage.of(DeleteBlobs)
    stage.agree()


def test_blob_whose_name_is_not_ours_stops_the_sweep_before_it_deletes_anything() -> None:
    stage, session, _ = opened()
    stage.world.blobs.update({"c/w999/p1": b"", "c/README": b""})
    with pytest.raises(UsageError, match="README"):
        stage.run(sweep(session, "c"))
    assert len(stage.there()) == 2


def sweepable() -> tuple[ProtocolHarness, Session]:
    """A collection with live runs, and with leaks of several writers."""
    stage, session = littered()
    for number in range(5):
        stage.world.blobs[f"c/w99{number}/p1"] = b""
    return stage, session


def effects_of_a_sweep() -> list[Effect]:
    stage, session = sweepable()
    stage.run(sweep(session, "c"))
    return list(stage.effects)


SWEEP = effects_of_a_sweep()


@pytest.mark.parametrize("after", range(len(SWEEP)))
def test_sweep_that_dies_after_any_effect_is_finished_by_the_next_one(after: int) -> None:
    stage, session = sweepable()
    assert stage.crash(sweep(session, "c"), after)
    stage.agree()
    stage.run(sweep(stage.session(), "c"))
    stage.check_storage()
    stage.agree()


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("nth", range(len(SWEEP)))
def test_sweep_ends_the_same_whichever_effect_fails_in_whichever_way(nth: int, fault: Fault) -> None:
    stage, session = sweepable()
    stage.fail(Effect, fault, nth=nth + 1)
    assert stage.run(sweep(session, "c")) == 5
    stage.check_storage()
    stage.agree()


def test_expired_writer_cannot_commit_what_the_sweep_may_have_deleted() -> None:
    stage, session, other = opened()
    stage.commit(session, ExpireWriter(other.writer))
    stage.before(CompareAndSet, lambda: stage.run(sweep(session, "c")))
    reply = stage.run(compare_and_append_data(other, "c", data_of([up("x", 0)]), at(0), at(1)))
    assert "is not registered" in str(reply)
    stage.commit(session, Retain(at(0)), Seal(at(1)))
    stage.check_storage()
    stage.agree()

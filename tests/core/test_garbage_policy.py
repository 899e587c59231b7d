"""When garbage is collected, one run is described anew, and expired history is rewritten."""

from __future__ import annotations

from typing import Any

import msgspec
from maintenance_policy_cases import answered, grow
from protocol_harness import ProtocolHarness
from state_harness import WRITER, StateHarness, at, up

from timespine.core.batch import HollowBatch, Run
from timespine.core.effects import CompareAndSet, MergeRuns
from timespine.core.maintenance_policy import (
    GARBAGE_MIN,
    ROLLUPS,
    CollectStep,
    garbage_max,
    is_forgetting_due,
    next_collect_step,
)
from timespine.core.protocols.garbage import collect_garbage
from timespine.core.protocols.maintain import merge_once, rewrite_unsealed, roll_up
from timespine.core.spine.merge_result import MergeApplication
from timespine.core.state import Forgetting, Rollup, State
from timespine.core.totals import Totals
from timespine.core.transitions import (
    AddRollup,
    ApplyMerge,
    Drain,
    Forget,
    RegisterReader,
    RemoveRollups,
    Retain,
    RollUpAll,
    Seal,
)
from timespine.errors import UsageError
from timespine.testing.formats.naive import data_of
from timespine.testing.simulator.core_writes import write_data

TERM_MS = 60_000


# Garbage.


def with_totals(state: State, rollups: dict[int, Rollup], **totals: int) -> State:
    return msgspec.structs.replace(state, totals=Totals(**totals), rollups=rollups)


def test_garbage_is_collected_when_there_is_as_much_as_half_of_what_is_live() -> None:
    scene = StateHarness()
    for _ in range(9):
        grow(scene, 1)
    live = 4 * GARBAGE_MIN
    few = {"appended_bytes": live + GARBAGE_MIN, "dropped_bytes": GARBAGE_MIN}
    assert next_collect_step(with_totals(scene.state, {}, **few)) is CollectStep.NOTHING
    many = {"appended_bytes": live + 2 * GARBAGE_MIN, "dropped_bytes": 2 * GARBAGE_MIN}
    assert next_collect_step(with_totals(scene.state, {}, **many)) is CollectStep.ROLL_UP
    old = {2: Rollup("c/w1/s2", 10, GARBAGE_MIN)}
    assert next_collect_step(with_totals(scene.state, old, **many)) is CollectStep.ROLL_UP
    useful = {4: Rollup("c/w1/s4", 10, 2 * GARBAGE_MIN)}
    assert next_collect_step(with_totals(scene.state, useful, **many)) is CollectStep.COLLECT
    reading = msgspec.structs.replace(scene.state, seqno=3)
    scene.state = scene.follower = reading
    scene.attempt(RegisterReader("r", None, TERM_MS))
    held = msgspec.structs.replace(scene.state, seqno=9)
    assert next_collect_step(with_totals(held, useful, **many)) is CollectStep.WAIT


def test_a_large_rollup_is_written_only_for_much_garbage() -> None:
    state = with_totals(StateHarness().state, {1: Rollup("c/w1/s", GARBAGE_MIN)}, dropped_bytes=2 * GARBAGE_MIN)
    assert garbage_max(state) == ROLLUPS * GARBAGE_MIN
    assert next_collect_step(state) is CollectStep.NOTHING


def test_a_rollup_cannot_say_that_more_was_dropped_than_was() -> None:
    scene = StateHarness()
    grow(scene, 1)
    assert isinstance(scene.declined(AddRollup(1, f"c/{WRITER}/s", 9, dropped_bytes=1)), UsageError)


def test_collecting_again_after_a_crash_says_that_it_is_done() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    for when in range(3):
        stage.append(session, when + 1, up(f"r{when}", when), up("all", when))
    stage.commit(session, Retain(at(2)), RollUpAll())
    assert stage.run(merge_once(session, "c")) is MergeApplication.EXACT
    stage.run(roll_up(session, "c"))
    for effects in range(60):
        if not stage.crash(collect_garbage(session, "c"), after=effects):
            break
        session = stage.session()
    assert stage.run(collect_garbage(session, "c")) >= 0
    totals = stage.head().totals
    assert 0 < totals.collected_bytes == totals.dropped_bytes


# One run beside empty batches.


def test_empty_batches_beside_one_run_are_merged_without_writing_it_again() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    stage.append(session, 1, up("a", 0), up("b", 0))
    for upper in (2, 3):
        stage.append(session, upper)
    stage.commit(session, RollUpAll())
    assert stage.run(merge_once(session, "c")) is MergeApplication.EXACT
    assert not stage.of(MergeRuns)
    assert (stage.head().totals.merged_rows, stage.head().trace.hollow_count) == (0, 1)
    stage.agree()


def test_a_result_without_blobs_that_comes_too_late_changes_nothing() -> None:
    stage = ProtocolHarness()
    session, other = stage.session(), stage.session()
    stage.append(session, 1, up("a", 0))
    stage.append(session, 2)
    stage.commit(session, RollUpAll())
    request: Any = stage.head().trace.requests()[0]
    stage.append(other, 3, up("b", 2))
    stage.commit(other, RollUpAll())
    assert stage.run(merge_once(other, "c")) is MergeApplication.EXACT
    assert stage.run(merge_once(session, "c", request.id)) is None
    stage.agree()


def test_a_part_of_the_own_writer_that_another_merge_dropped_is_not_brought_back() -> None:
    stage = ProtocolHarness()
    session, other = stage.session(), stage.session()
    stage.append(session, 1, up("a", 0), up("b", 0))
    stage.append(session, 2)
    stage.commit(session, RollUpAll())
    (dropped,) = stage.head().keys()

    def faster() -> None:
        (request,) = stage.head().trace.requests()
        part = stage.put(f"c/{other.writer}/again", up("a", 0), up("b", 0))
        stage.commit(other, ApplyMerge(HollowBatch(request.desc, 2, (Run((part,)),)), other.writer, rows=2))

    stage.before(CompareAndSet, faster)
    assert stage.run(merge_once(session, "c")) is None
    assert dropped not in list(stage.head().keys())
    stage.agree()


# Expired history.


def expiring() -> StateHarness:
    scene = StateHarness()
    for when in range(4):
        scene.append(at(when + 1), up("a", when, 1 if when % 2 == 0 else -1), key=f"c/{WRITER}/e{when}")
    scene.do(Retain(at(2)), now_ms=1000)
    return scene


def test_the_state_keeps_when_since_first_moved_past_history() -> None:
    scene = StateHarness()
    scene.do(Seal(at(3)))
    scene.do(Retain(at(1)))
    assert scene.state.forgetting is None  # there is nothing to forget
    scene = expiring()
    assert scene.state.forgetting == Forgetting(1000)
    scene.do(Retain(at(3)), now_ms=2000)
    assert scene.state.forgetting == Forgetting(1000)
    assert not is_forgetting_due(scene.state, 1999, 1000)
    assert is_forgetting_due(scene.state, 2000, 1000)


def test_what_expired_is_gone_after_two_collections_from_clean_rollups() -> None:
    scene = expiring()
    assert scene.do(Forget(0, scene.state.since), now_ms=5000) is True
    assert scene.declined(Forget(0, scene.state.since), now_ms=6000) is True
    assert scene.state.forgetting == Forgetting(1000, 5000, 4)
    assert next_collect_step(scene.state) is CollectStep.NOTHING  # it is not rewritten yet
    scene.do(AddRollup(scene.state.seqno, f"c/{WRITER}/s1", 9))
    scene.merge_all()
    assert next_collect_step(scene.state) is CollectStep.ROLL_UP
    scene.do(AddRollup(scene.state.seqno, f"c/{WRITER}/s2", 9, rewritten_ms=5000))
    assert next_collect_step(scene.state) is CollectStep.COLLECT
    first = max(scene.state.rollups)
    scene.do(RemoveRollups(first))
    assert scene.state.forgetting == Forgetting(1000, 5000, 4, clean=first)
    assert next_collect_step(scene.state) is CollectStep.ROLL_UP
    scene.do(AddRollup(scene.state.seqno, f"c/{WRITER}/s3", 9, rewritten_ms=5000, is_last=True))
    scene.do(RemoveRollups(max(scene.state.rollups)))
    assert scene.state.forgetting is None
    assert scene.declined(Forget(0, scene.state.since)) is False


def test_a_rewrite_that_was_worked_out_by_an_older_since_is_worked_out_again() -> None:
    for lo in (0, None):
        scene = expiring()
        older = scene.state.since
        scene.do(Retain(at(3)), now_ms=2000)
        assert scene.declined(Forget(lo, older), now_ms=5000) is True
        assert scene.state.forgetting == Forgetting(1000)


def test_what_expires_during_a_rewrite_gets_a_deadline_from_then_on() -> None:
    scene = expiring()
    scene.do(Forget(0, scene.state.since), now_ms=5000)
    scene.do(Retain(at(3)), now_ms=5500)
    assert scene.state.forgetting == Forgetting(1000, 5000, 4, moved=True)
    scene.do(Retain(at(4)), now_ms=5600)
    scene.merge_all()
    for number, last in enumerate((False, True)):
        key = f"c/{WRITER}/s{number}"
        scene.do(AddRollup(scene.state.seqno, key, 9, rewritten_ms=5000, is_last=last))
        scene.do(RemoveRollups(max(scene.state.rollups)))
    assert scene.state.forgetting == Forgetting(5000)


def test_a_rollup_of_an_earlier_rewrite_says_nothing_about_this_one() -> None:
    scene = expiring()
    scene.do(Forget(0, scene.state.since), now_ms=5000)
    scene.merge_all()
    scene.do(AddRollup(scene.state.seqno, f"c/{WRITER}/s1", 9, rewritten_ms=4000, is_last=True))
    assert next_collect_step(scene.state) is CollectStep.ROLL_UP
    scene.attempt(RemoveRollups(max(scene.state.rollups)))
    assert scene.state.forgetting == Forgetting(1000, 5000, 4)


def test_nothing_is_rewritten_if_no_batch_can_hold_anything() -> None:
    scene = expiring()
    for request in scene.state.trace.requests():
        answered(scene, request, 1)
    assert scene.state.totals.garbage_bytes > 0
    assert scene.do(Forget(None, scene.state.since), now_ms=5000) is True  # garbage may
    clean = StateHarness()
    grow(clean, 3)
    clean.do(Retain(at(1)), now_ms=1000)
    assert clean.do(Forget(None, clean.state.since), now_ms=5000) is False
    assert clean.state.forgetting is None


def test_rewriting_without_a_budget_is_not_begun() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    data = data_of([up(f"r{when}", when) for when in range(6)])
    stage.run(write_data(session, "c", data, at(0), (5,)))
    stage.commit(session, Seal(at(1)), Drain())
    stage.commit(session, RollUpAll(extra=True))  # it spends all that there is
    assert stage.head().totals.budget_rows == 0
    assert stage.run(rewrite_unsealed(session, "c", 0)) is False
    assert not stage.of(MergeRuns)

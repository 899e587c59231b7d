"""A store that keeps what it deletes: every state of that time can be rebuilt, and afterwards the bytes are gone."""

from __future__ import annotations

import msgspec
import pytest
from garbage_cases import compacted, opened
from protocol_harness import ProtocolHarness, at, up

from timespine.core.effects import CompareAndSet, DeleteBlobs, Scan
from timespine.core.encoding.codec import encode_state
from timespine.core.maintenance_policy import (
    GARBAGE_MIN,
    KEPT_ROLLUPS,
    CollectStep,
    excess_rollups,
    is_kept_long_enough,
    next_collect_step,
)
from timespine.core.protocols.commit import commit
from timespine.core.protocols.garbage import collect_garbage, references
from timespine.core.protocols.load_state import apply_newer_diffs, load_state, refresh_state, states_of
from timespine.core.protocols.maintain import roll_up
from timespine.core.state import Forgetting, Rollup, State
from timespine.core.transitions import RegisterReader, RemoveRollups, ThinRollups
from timespine.errors import ClosedError, StoreFenced

KEEP_MS = 800


def place(stage: ProtocolHarness, state: State) -> State:
    """Put a whole state after the newest one, as a restore does."""
    newest = stage.head()
    totals = newest.totals.plus(appended_bytes=state.totals.live_bytes, dropped_bytes=newest.totals.live_bytes)
    nobody: dict[str, dict[str, object]] = {"readers": {}, "writers": {}, "committers": {}}
    placed = msgspec.structs.replace(state, seqno=newest.seqno + 1, rollups=newest.rollups, totals=totals, **nobody)
    stage.world.perform[CompareAndSet](CompareAndSet((("c", newest.seqno, encode_state(placed)),)))
    return placed


def test_garbage_waits_until_its_rollup_is_old_enough() -> None:
    stage, session, _ = compacted()
    there = stage.there()
    assert stage.run(collect_garbage(session, "c", KEEP_MS)) == 0
    assert stage.there() == there
    stage.now_ms += KEEP_MS
    assert stage.run(collect_garbage(session, "c", KEEP_MS)) == 3
    assert stage.there() < there
    stage.agree()


def test_rollups_before_the_base_go_at_once_and_end_the_forgetting() -> None:
    stage, session, _ = compacted()
    old = stage.head().rollups
    stage.append(session, 9, up("r9", 8))
    stage.run(roll_up(session, "c"))
    stage.now_ms += KEEP_MS
    stage.run(collect_garbage(session, "c", KEEP_MS))
    assert not {rollup.key for rollup in old.values()} & stage.there()
    assert len(stage.head().rollups) == 1


def test_rollups_before_the_base_go_where_no_history_expired() -> None:
    stage, session, _ = opened()
    for when in range(3):
        stage.append(session, when + 1, up(f"r{when}", when))
        stage.run(roll_up(session, "c"))
    stage.now_ms += KEEP_MS
    assert stage.head().forgetting is None
    before = stage.head().rollups
    stage.run(collect_garbage(session, "c", KEEP_MS))
    assert [*stage.head().rollups] == [max(before)]
    stage.agree()


def test_a_reader_that_holds_old_states_keeps_them_beyond_the_time() -> None:
    stage, session, other = opened()
    stage.append(session, 1, up("r0", 0))
    stage.run(commit(other, "c", RegisterReader("slow", None, 1 << 30)))
    for when in range(1, 4):
        stage.append(session, when + 1, up(f"r{when}", when))
    stage.compact(session, 3)
    stage.run(roll_up(session, "c"))
    stage.now_ms += KEEP_MS
    assert stage.run(collect_garbage(session, "c", KEEP_MS)) == 0


def many_rollups(stage: ProtocolHarness, session, pause_ms: int) -> None:
    for when in range(KEPT_ROLLUPS + 6):
        stage.append(session, when + 1, up(f"r{when}", when))
        stage.run(roll_up(session, "c"))
        stage.now_ms += pause_ms


def test_rollups_that_are_close_to_each_other_are_thinned_out() -> None:
    stage, session, _ = opened()
    many_rollups(stage, session, 1)
    before = stage.head().rollups
    assert stage.run(collect_garbage(session, "c", KEEP_MS)) == len(before) - 2
    after = stage.head().rollups
    assert [*after] == [min(before), max(before)]
    assert {rollup.key for rollup in before.values()} & stage.there() == {rollup.key for rollup in after.values()}
    assert stage.run(collect_garbage(session, "c", KEEP_MS)) == 0
    stage.agree()


def test_rollups_far_apart_and_one_that_a_reader_needs_stay() -> None:
    stage, session, _ = opened()
    many_rollups(stage, session, KEEP_MS // KEPT_ROLLUPS)
    assert excess_rollups(stage.head(), stage.now_ms, KEEP_MS) == []
    stage, session, other = opened()
    stage.world.keep_for(1, lambda: stage.now_ms)
    for when in range(4):
        stage.append(session, when + 1, up(f"r{when}", when))
        stage.run(roll_up(session, "c"))
    stage.run(commit(other, "c", RegisterReader("slow", None, 1 << 30)))
    held = max(stage.head().rollups)
    many_rollups_after = stage.head().seqno
    for when in range(4, KEPT_ROLLUPS + 8):
        stage.append(session, when + 1, up(f"r{when}", when))
        stage.run(roll_up(session, "c"))
    assert many_rollups_after < stage.head().seqno
    stage.run(collect_garbage(session, "c", KEEP_MS))
    assert held in stage.head().rollups
    assert stage.run(commit(session, "c", ThinRollups((held, 99))))[0] == ()


def test_rollups_stay_if_the_commit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stage, session, _ = opened()
    many_rollups(stage, session, 1)
    there = stage.there()
    session.committer = "stranger"
    with pytest.raises(Exception, match="stranger"):
        stage.run(collect_garbage(session, "c", KEEP_MS))
    assert (stage.there(), stage.of(DeleteBlobs)) == (there, [])


def test_a_placed_state_is_read_replayed_and_its_blobs_are_kept() -> None:
    stage, _, _ = compacted()
    old = stage.world.states["c"][-3]  # before the merge: its blobs are garbage of the present state
    needed = set(references(old)) - {rollup.key for rollup in old.rollups.values()}
    placed = place(stage, old)
    loaded = stage.run(load_state(stage.stranger(), "c"))
    assert loaded is not None
    assert (loaded.seqno, loaded.upper, loaded.trace) == (placed.seqno, placed.upper, placed.trace)
    entries = stage.run(_scan())
    assert [state.seqno for state in states_of(entries)][-1] == placed.seqno
    again = stage.session()
    stage.run(collect_garbage(again, "c"))
    assert needed <= stage.there()


def _scan():
    return (yield Scan("c", 0))


def test_a_process_that_knows_later_commits_is_fenced_by_a_placed_state() -> None:
    stage, session, _ = opened()
    stage.append(session, 1, up("r0", 0))
    early = stage.head()
    stage.append(session, 2, up("r1", 1))
    late = stage.head()
    place(stage, early)
    with pytest.raises(StoreFenced, match="restored"):
        stage.run(refresh_state(session, "c"))
    fresh = stage.stranger()
    assert stage.run(refresh_state(fresh, "c")).upper == early.upper  # type: ignore[union-attr]
    assert stage.run(apply_newer_diffs(fresh, "c", late.seqno, 9)) is None
    stage.world.first["c"] = stage.head().seqno  # and if its own entries are gone
    with pytest.raises(StoreFenced, match="restored"):
        stage.run(refresh_state(session, "c"))


def test_a_commit_to_a_log_that_is_gone_is_refused() -> None:
    stage, session, _ = opened()
    stage.append(session, 1, up("r0", 0))
    del stage.world.logs["c"]
    with pytest.raises(ClosedError, match="was dropped, or never created"):
        stage.append(session, 2, up("r1", 1))


def with_rollups(state: State, *rollups: Rollup, dropped: int = 0) -> State:
    totals = state.totals.plus(dropped_bytes=dropped)
    return msgspec.structs.replace(state, rollups=dict(enumerate(rollups)), totals=totals)


def test_the_step_about_kept_garbage_follows_the_age_of_rollups() -> None:
    stage, _, _ = opened()
    much = 4 * GARBAGE_MIN
    young = Rollup("c/w/s1", 1, much, added_ms=1_000)
    state = with_rollups(stage.head(), young, dropped=much)
    assert next_collect_step(state, 1_100, KEEP_MS) is CollectStep.KEEP
    assert next_collect_step(state, 1_000 + KEEP_MS, KEEP_MS) is CollectStep.COLLECT
    assert next_collect_step(state) is CollectStep.COLLECT
    more = with_rollups(stage.head(), young, dropped=2 * much)
    assert next_collect_step(more, 1_001, KEEP_MS) is CollectStep.KEEP
    assert next_collect_step(more, 1_000 + KEEP_MS // KEPT_ROLLUPS, KEEP_MS) is CollectStep.ROLL_UP
    assert not is_kept_long_enough(Rollup("c/w/s1", 1), 1 << 40, KEEP_MS), "of an unknown age"


def test_forgetting_ends_with_the_collection_that_deletes_older_rollups() -> None:
    stage, session, _ = opened()
    stage.append(session, 1, up("r0", 0))
    state = stage.head()
    rollup = Rollup("c/w/s1", 1, 0, rewritten_ms=7, added_ms=1)
    forgetting = Forgetting(1, asked_ms=7)
    from timespine.core.transitions import apply

    known = msgspec.structs.replace(state, rollups={0: rollup}, forgetting=forgetting)
    first = apply(known, RemoveRollups(0), 9).state  # type: ignore[union-attr]
    assert first.forgetting == msgspec.structs.replace(forgetting, clean=0)
    assert apply(first, RemoveRollups(0, True), 9).state.forgetting is None  # type: ignore[union-attr]
    assert at(1) == state.upper

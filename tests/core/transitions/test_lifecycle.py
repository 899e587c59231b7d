"""Rollups, schemas, and the end of a collection."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from random_commands import close, seeded
from state_harness import TERM_MS, StateHarness, at, batch, inline_part, up

from timespine.core.encoding.codec import encode_state
from timespine.core.state import Commit, Rollup, Status, new_state
from timespine.core.transitions import (
    AddRollup,
    AddSchema,
    AdvanceUpper,
    Append,
    ApplyMerge,
    ClaimMerge,
    CommitSink,
    CompareAndAppend,
    DowngradeReader,
    Drain,
    Evict,
    Exert,
    ExpireLeases,
    Finalize,
    HeartbeatWriter,
    RegisterCommitter,
    RegisterHold,
    RegisterReader,
    RemoveRollups,
    Retain,
    RollUpAll,
    Seal,
    Trim,
    apply,
)
from timespine.core.transitions.lifecycle import SCHEMA_BYTES_MAX, SCHEMAS_MAX
from timespine.errors import Fenced, SchemaConflict, UsageError
from timespine.model import CLOSED, Frontier


def scene_at(seqno: int) -> StateHarness:
    """A scene after that many commits."""
    scene = StateHarness()
    while scene.state.seqno < seqno:
        scene.append(at(scene.state.seqno + 1))
    return scene


# A new collection.


@pytest.mark.parametrize("arity", [1, 2, 8])
def test_new_collection_is_empty_and_complete_nowhere(arity: int) -> None:
    state = new_state("c", arity)
    minimum = Frontier.minimum(arity)
    assert (state.seqno, state.arity, state.status) == (0, arity, Status.OPEN)
    assert state.upper == state.since == state.retention == state.trace.upper == minimum
    assert [*state.parts(), *state.keys(), *state.hollow_batches()] == []
    assert list(state.holders()) == [("retention", minimum)]


@pytest.mark.parametrize(
    ("name", "arity"), [("", 1), ("C", 1), ("a/b", 1), ("c", 0), ("c", 9), ("c", True), ("c", "1")]
)
def test_collection_without_a_well_formed_name_or_arity_is_a_usage_error(name: str, arity: Any) -> None:
    with pytest.raises(UsageError):
        new_state(name, arity)


def test_holders_are_named_by_what_they_are() -> None:
    scene = scene_at(4)
    scene.do(RegisterReader("r1", at(1), TERM_MS))
    scene.do(RegisterHold("h1", at(2), "t"))
    assert list(scene.state.holders()) == [("retention", at(0)), ("reader r1", at(1)), ("hold h1", at(2))]


# Rollups.


def test_rollup_of_a_past_state_is_recorded() -> None:
    scene = scene_at(5)
    assert scene.do(AddRollup(4, "c/w1/s1", 99)) is True
    assert scene.state.rollups == {4: Rollup("c/w1/s1", 99, added_ms=scene.now_ms)}
    assert list(scene.state.keys()) == ["c/w1/s1"]


def test_rollup_not_newer_than_the_newest_is_of_no_use() -> None:
    scene = scene_at(5)
    scene.do(AddRollup(4, "c/w1/s1", 99))
    assert scene.declined(AddRollup(4, "c/w1/s2", 99)) is False
    assert scene.declined(AddRollup(2, "c/w1/s2", 99)) is False


@pytest.mark.parametrize("seqno", [-1, 6, True, 1.0, None])
def test_rollup_of_a_state_that_is_not_there_is_a_usage_error(seqno: Any) -> None:
    assert isinstance(scene_at(5).declined(lambda: AddRollup(seqno, "c/w1/s1", 99)), UsageError)


@pytest.mark.parametrize(("key", "refusal"), [("c/w9/s1", Fenced), ("d/w1/s1", UsageError), ("s1", UsageError)])
def test_rollup_of_an_unregistered_writer_is_refused(key: str, refusal: type) -> None:
    assert isinstance(scene_at(5).declined(AddRollup(4, key, 99)), refusal)


@pytest.mark.parametrize("size", [-1, None, "99", 1 << 63])
def test_rollup_of_no_size_is_a_usage_error(size: Any) -> None:
    assert isinstance(scene_at(5).declined(lambda: AddRollup(4, "c/w1/s1", size)), UsageError)


def with_rollups(scene: StateHarness, *seqnos: int) -> StateHarness:
    for seqno in seqnos:
        scene.do(AddRollup(seqno, f"c/w1/s{seqno}", 9))
    return scene


def test_rollups_before_the_newest_needed_one_are_removed() -> None:
    scene = with_rollups(scene_at(5), 1, 3, 5)
    assert scene.do(RemoveRollups(5)) == 2
    assert list(scene.state.rollups) == [5]
    assert scene.declined(RemoveRollups(5)) == 0


def test_rollups_that_the_log_still_needs_are_kept() -> None:
    scene = with_rollups(scene_at(5), 1, 3, 5)
    assert scene.declined(RemoveRollups(1)) == 0
    assert scene.do(RemoveRollups(3)) == 1
    assert list(scene.state.rollups) == [3, 5]


def test_rollup_that_a_reader_may_need_is_kept() -> None:
    scene = scene_at(4)
    held = scene.do(RegisterReader("r1", None, TERM_MS)).seqno
    scene.append(at(10))
    with_rollups(scene, 1, held - 1, held + 1)
    assert scene.do(RemoveRollups(held + 1)) == 1
    assert list(scene.state.rollups) == [held - 1, held + 1]


def test_no_rollup_is_removed_while_readers_need_the_first_state() -> None:
    scene = scene_at(4)
    assert scene.declined(RemoveRollups(4)) == 0
    scene.do(RegisterReader("r1", None, TERM_MS))
    scene.append(at(10))
    with_rollups(scene, scene.state.seqno)
    assert scene.declined(RemoveRollups(scene.state.seqno)) == 0


# Schemas.


def test_schemas_are_numbered_from_zero() -> None:
    scene = StateHarness()
    assert scene.do(AddSchema(None, b"one")) == 0
    assert scene.do(AddSchema(0, b"two")) == 1
    assert scene.state.schemas == (b"one", b"two")


def test_adding_the_newest_schema_again_gives_its_id() -> None:
    scene = StateHarness()
    scene.do(AddSchema(None, b"one"))
    assert scene.declined(AddSchema(None, b"one")) == 0
    assert scene.declined(AddSchema(7, b"one")) == 0


@pytest.mark.parametrize("expected", [None, 0, 2])
def test_schema_added_to_another_than_the_newest_is_told_the_newest(expected: int | None) -> None:
    scene = StateHarness()
    scene.do(AddSchema(None, b"one"))
    scene.do(AddSchema(0, b"two"))
    refused = scene.declined(AddSchema(expected, b"three"))
    assert isinstance(refused, SchemaConflict)
    assert (refused.expected, refused.actual) == (expected, 1)


def test_first_schema_expects_none() -> None:
    refused = StateHarness().declined(AddSchema(0, b"one"))
    assert isinstance(refused, SchemaConflict)
    assert refused.actual is None
    assert str(refused).startswith("there is no schema, not 0")


def test_schema_over_the_limit_of_bytes_is_a_usage_error() -> None:
    scene = StateHarness()
    assert isinstance(scene.declined(AddSchema(None, b"x" * (SCHEMA_BYTES_MAX + 1))), UsageError)
    assert scene.do(AddSchema(None, b"x" * SCHEMA_BYTES_MAX)) == 0


def test_schema_over_the_limit_of_schemas_is_a_usage_error() -> None:
    state = msgspec.structs.replace(new_state("c"), schemas=(b"",) * SCHEMAS_MAX)
    assert isinstance(apply(state, AddSchema(SCHEMAS_MAX - 1, b"x"), 0).reply, UsageError)
    almost = msgspec.structs.replace(new_state("c"), schemas=(b"",) * (SCHEMAS_MAX - 1))
    assert isinstance(apply(almost, AddSchema(SCHEMAS_MAX - 2, b"x"), 0), Commit)


@pytest.mark.parametrize("schema", [None, 7, "text"])
def test_schema_that_is_not_bytes_is_a_usage_error(schema: Any) -> None:
    assert isinstance(StateHarness().declined(lambda: AddSchema(None, schema)), UsageError)


# The end.


def busy_scene() -> StateHarness:
    """A scene with something of everything in it."""
    scene = seeded(3, 120).scene
    scene.now_ms = 0
    scene.attempt(RegisterCommitter("k9", TERM_MS))
    scene.attempt(AddSchema(len(scene.state.schemas) - 1 if scene.state.schemas else None, b"the last one"))
    scene.attempt(CommitSink("s9", 4))
    (top,) = scene.state.upper
    scene.write(up("a", top[0] + 5))
    scene.append(at(top[0] + 2), *[up(f"k{i}", top) for i in range(9)])
    return scene


def test_finalize_needs_upper_and_since_closed() -> None:
    scene = scene_at(3)
    assert isinstance(scene.declined(Finalize()), UsageError)
    scene.do(Seal(CLOSED))
    reply = scene.declined(Finalize())
    assert isinstance(reply, UsageError)
    assert "[0]" in str(reply)


def test_finalize_of_a_collection_that_is_only_released_is_a_usage_error() -> None:
    scene = scene_at(3)
    scene.do(Retain(CLOSED))
    assert isinstance(scene.declined(Finalize()), UsageError)


def test_finalize_waits_for_the_last_hold() -> None:
    scene = scene_at(3)
    scene.do(RegisterReader("r1", None, TERM_MS))
    scene.do(Seal(CLOSED))
    assert scene.do(Retain(CLOSED)).held_by == ("reader r1",)
    assert isinstance(scene.declined(Finalize()), UsageError)
    scene.do(DowngradeReader("r1", CLOSED, None))
    assert scene.do(Finalize()) is None
    assert scene.state.readers == {}


def test_finalize_leaves_a_tombstone_that_is_small_and_empty() -> None:
    scene = busy_scene()
    before = len(encode_state(scene.state))
    close(scene)
    state = scene.state
    assert (state.upper, state.since, state.retention) == (CLOSED, CLOSED, CLOSED)
    assert list(state.parts()) == []
    assert state.inline_bytes == len(state.unsealed) == 0
    assert (state.schemas, state.sinks, state.history, state.claims, state.holds) == ((), {}, (), {}, {})
    assert len(encode_state(state)) < 1000 < before
    scene.agree()


def test_finalize_keeps_who_committed_and_the_rollups_that_old_states_need() -> None:
    scene = busy_scene()
    rollups, writers, committers = scene.state.rollups, scene.state.writers, scene.state.committers
    close(scene)
    assert (scene.state.rollups, scene.state.writers, scene.state.committers) == (rollups, writers, committers)


def test_finalize_forgets_unsealed_updates_and_reuses_no_number() -> None:
    scene = StateHarness()
    scene.write(up("a", 5))
    close(scene)
    assert len(scene.state.unsealed) == 0
    assert scene.state.unsealed_next == 1


def test_finalize_of_a_collection_that_was_never_used_works() -> None:
    scene = StateHarness()
    close(scene)
    assert scene.state.trace.next_id == 1


def test_finalize_again_changes_nothing() -> None:
    scene = StateHarness()
    close(scene)
    assert scene.declined(Finalize()) is None


@pytest.mark.parametrize(
    "command",
    [
        AdvanceUpper(CLOSED),
        Append(batch(at(0), at(9), inline_part([up("a", 1)]))),
        CompareAndAppend((), at(9), CLOSED),
        Seal(CLOSED),
        Drain(),
        Evict(),
        Trim(0),
        Exert(1000),
        RollUpAll(),
        Retain(at(9)),
        ClaimMerge((0, 1), "w1", TERM_MS),
    ],
    ids=lambda command: type(command).__name__,
)
def test_tombstone_stays_what_it_is_whatever_is_asked_of_it(command: Any) -> None:
    scene = StateHarness()
    scene.append(at(5), up("a", 1))
    close(scene)
    scene.declined(command)
    assert scene.state.status is Status.FINALIZED


def test_leases_of_a_tombstone_still_lapse() -> None:
    scene = StateHarness()
    close(scene)
    scene.do(HeartbeatWriter("w1"), now_ms=TERM_MS)
    assert scene.do(ExpireLeases(), now_ms=3 * TERM_MS) == 1
    assert scene.state.writers == {}


@pytest.mark.parametrize(
    "command",
    [
        AddSchema(None, b"x" * 1000),
        CommitSink("s1", 1),
        ApplyMerge(batch(at(0), CLOSED, inline_part([up("a", 1)], rows=0, diff_sum=None)), "w1"),
    ],
    ids=lambda command: type(command).__name__,
)
def test_tombstone_stays_small_whatever_is_asked_of_it(command: Any) -> None:
    scene = StateHarness()
    close(scene)
    scene.declined(command)

"""Writers, committers and sinks: who may commit what, and how often."""

from __future__ import annotations

from typing import Any

import pytest
from state_harness import TERM_MS, WRITER, StateHarness, at, batch

from timespine.core.batch import Part
from timespine.core.state import Committer, Lease
from timespine.core.transitions import (
    AlreadyCommitted,
    CommitSink,
    CompareAndAppend,
    DropSink,
    ExpireCommitter,
    ExpireLeases,
    ExpireWriter,
    HeartbeatWriter,
    RegisterCommitter,
    RegisterReader,
    RegisterWriter,
)
from timespine.errors import Fenced, UsageError

BAD_NAMES: list[Any] = ["", "Upper", "a/b", "..", "-x", "x" * 65, "é", None, 7]
BAD_TERMS: list[Any] = [0, -1, (1 << 40) + 1, True, 1.5]
NO_NUMBERS: list[Any] = [None, "1000", [], b""]


def test_registered_writer_has_a_lease_of_its_term_from_now_on() -> None:
    scene = StateHarness()
    assert scene.do(RegisterWriter("w2", 500), now_ms=70) is None
    assert scene.state.writers["w2"] == Lease(570, 500)


def test_registering_a_writer_again_later_extends_its_lease() -> None:
    scene = StateHarness()
    scene.do(RegisterWriter("w2", 500), now_ms=0)
    scene.do(RegisterWriter("w2", 500), now_ms=1)
    assert scene.state.writers["w2"].until_ms == 501


@pytest.mark.parametrize("now_ms", [0, 10])
def test_registering_a_writer_again_never_shortens_its_lease(now_ms: int) -> None:
    scene = StateHarness()
    scene.do(RegisterWriter("w2", 500), now_ms=10)
    assert scene.declined(RegisterWriter("w2", 500), now_ms) is None


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_outside_the_grammar_are_usage_errors(name: Any) -> None:
    scene = StateHarness()
    assert isinstance(scene.declined(lambda: RegisterWriter(name, TERM_MS)), UsageError)
    assert isinstance(scene.declined(lambda: RegisterCommitter(name, TERM_MS)), UsageError)
    assert isinstance(scene.declined(lambda: CommitSink(name, 0)), UsageError)


@pytest.mark.parametrize("term_ms", BAD_TERMS)
def test_terms_out_of_range_are_usage_errors(term_ms: Any) -> None:
    scene = StateHarness()
    assert isinstance(scene.declined(lambda: RegisterWriter("w2", term_ms)), UsageError)
    assert isinstance(scene.declined(lambda: RegisterCommitter("k1", term_ms)), UsageError)
    assert isinstance(scene.declined(lambda: RegisterReader("r1", None, term_ms)), UsageError)


@pytest.mark.parametrize("term_ms", NO_NUMBERS)
@pytest.mark.parametrize("register", [RegisterWriter, RegisterCommitter])
def test_terms_that_are_no_numbers_are_usage_errors(register: Any, term_ms: Any) -> None:
    assert isinstance(StateHarness().declined(lambda: register("w2", term_ms)), UsageError)


def test_heartbeat_extends_the_lease_once_a_quarter_of_the_term_has_passed() -> None:
    scene = StateHarness()
    assert scene.do(HeartbeatWriter(WRITER), now_ms=TERM_MS // 4) is None
    assert scene.state.writers[WRITER].until_ms == TERM_MS // 4 + TERM_MS


@pytest.mark.parametrize("now_ms", [-5, 0, 1, TERM_MS // 4 - 1])
def test_heartbeat_soon_after_the_last_one_changes_nothing(now_ms: int) -> None:
    assert StateHarness().declined(HeartbeatWriter(WRITER), now_ms) is None


def test_heartbeat_of_a_tiny_term_at_the_same_time_changes_nothing() -> None:
    scene = StateHarness()
    scene.do(RegisterWriter("w2", 3))
    scene.declined(HeartbeatWriter("w2"))


def test_heartbeat_of_an_unknown_writer_is_fenced() -> None:
    reply = StateHarness().declined(HeartbeatWriter("w9"))
    assert isinstance(reply, Fenced)
    assert "w9" in str(reply)


def test_a_writer_is_kept_for_longer_than_its_term_and_is_never_cut_short() -> None:
    scene = StateHarness()
    began = scene.now_ms
    assert scene.do(HeartbeatWriter(WRITER, 10 * TERM_MS)) is None
    assert scene.state.writers[WRITER] == Lease(began + 10 * TERM_MS, TERM_MS)
    assert scene.declined(HeartbeatWriter(WRITER, 5 * TERM_MS)) is None
    scene.now_ms += TERM_MS
    assert scene.declined(HeartbeatWriter(WRITER)) is None
    scene.now_ms = began + 10 * TERM_MS
    scene.attempt(ExpireLeases())
    assert WRITER in scene.state.writers
    scene.now_ms += 1
    scene.do(ExpireLeases())
    assert WRITER not in scene.state.writers


@pytest.mark.parametrize("term_ms", BAD_TERMS)
def test_a_writer_cannot_be_kept_for_a_term_that_is_none(term_ms: Any) -> None:
    assert isinstance(StateHarness().declined(lambda: HeartbeatWriter(WRITER, term_ms)), UsageError)


def test_expired_writer_is_gone_whatever_its_lease_says() -> None:
    scene = StateHarness()
    assert scene.do(ExpireWriter(WRITER)) is None
    assert scene.state.writers == {}
    assert isinstance(scene.declined(HeartbeatWriter(WRITER)), Fenced)


def test_expiring_an_unknown_writer_changes_nothing() -> None:
    assert StateHarness().declined(ExpireWriter("w9")) is None


def test_lapsed_leases_of_all_kinds_go_together_and_live_ones_stay() -> None:
    scene = StateHarness()
    scene.do(RegisterWriter("w2", 2 * TERM_MS))
    scene.do(RegisterCommitter("k1", TERM_MS))
    scene.do(RegisterCommitter("k2", 2 * TERM_MS))
    scene.do(RegisterReader("r1", None, TERM_MS))
    scene.do(RegisterReader("r2", None, 2 * TERM_MS))
    assert scene.declined(ExpireLeases(), now_ms=TERM_MS) == 0
    assert scene.do(ExpireLeases(), now_ms=TERM_MS + 1) == 3
    assert [*scene.state.writers, *scene.state.committers, *scene.state.readers] == ["w2", "k2", "r2"]


def test_committer_begins_at_group_zero() -> None:
    scene = StateHarness()
    assert scene.do(RegisterCommitter("k1", 500), now_ms=20) is None
    assert scene.state.committers["k1"].group == 0
    assert scene.state.committers["k1"].until_ms == 520


def test_registering_a_committer_again_changes_nothing() -> None:
    scene = StateHarness()
    scene.do(RegisterCommitter("k1", TERM_MS))
    assert scene.declined(RegisterCommitter("k1", TERM_MS), now_ms=TERM_MS) is None


def test_expired_committer_is_gone() -> None:
    scene = StateHarness()
    scene.do(RegisterCommitter("k1", TERM_MS))
    assert scene.do(ExpireCommitter("k1")) == Committer(0, TERM_MS, TERM_MS)
    assert scene.state.committers == {}
    assert scene.declined(ExpireCommitter("k1")) is None


def test_sink_batch_is_recorded_once() -> None:
    scene = StateHarness()
    assert scene.do(CommitSink("s1", 0)) is None
    assert scene.declined(CommitSink("s1", 0)) == AlreadyCommitted(0)


def test_sink_batch_older_than_the_last_is_already_committed() -> None:
    scene = StateHarness()
    scene.do(CommitSink("s1", 7))
    assert scene.declined(CommitSink("s1", 3)) == AlreadyCommitted(7)
    scene.do(CommitSink("s1", 9))
    assert scene.state.sinks == {"s1": 9}


@pytest.mark.parametrize("number", [-1, True, 1.0, "1", None])
def test_sink_batch_must_be_a_number_from_zero_on(number: Any) -> None:
    assert isinstance(StateHarness().declined(lambda: CommitSink("s1", number)), UsageError)


def test_sink_batch_beyond_64_bits_is_a_usage_error() -> None:
    assert isinstance(StateHarness().declined(lambda: CommitSink("s1", 1 << 64)), UsageError)


def test_sinks_are_counted_apart_and_never_expire() -> None:
    scene = StateHarness()
    scene.do(CommitSink("s1", 5))
    scene.do(CommitSink("s2", 0))
    scene.do(ExpireLeases(), now_ms=1 << 50)
    assert scene.state.sinks == {"s1": 5, "s2": 0}


def test_dropped_sink_may_begin_again() -> None:
    scene = StateHarness()
    scene.do(CommitSink("s1", 5))
    assert scene.do(DropSink("s1")) is None
    assert scene.declined(DropSink("s1")) is None
    assert scene.do(CommitSink("s1", 0)) is None


def _append(scene: StateHarness, part: Part) -> Any:
    return scene.declined(CompareAndAppend((batch(at(0), at(1), part),), at(0), at(1)))


def test_blob_of_an_unregistered_writer_is_fenced() -> None:
    reply = _append(StateHarness(), Part("c/w9/p", 1))
    assert isinstance(reply, Fenced)
    assert "w9" in str(reply)


def test_blob_of_an_expired_writer_is_fenced() -> None:
    scene = StateHarness()
    scene.do(ExpireWriter(WRITER))
    assert isinstance(_append(scene, Part("c/w1/p", 1)), Fenced)


def test_blob_of_another_collection_is_a_usage_error() -> None:
    assert isinstance(_append(StateHarness(), Part("d/w1/p", 1)), UsageError)


@pytest.mark.parametrize("key", ["", "c/w1", "c/w1/p/q", "c/../p", "/c/w1/p", "C/w1/p"])
def test_part_without_a_well_formed_blob_key_is_a_usage_error(key: str) -> None:
    assert isinstance(_append(StateHarness(), Part(key, 1)), UsageError)


def test_key_of_an_inline_part_is_checked_if_it_has_one() -> None:
    assert isinstance(_append(StateHarness(), Part("c/w9/p", 1, inline=b"x")), Fenced)

"""Turns: a change that keeps losing asks the other processes to wait, for a bounded time and not again at once."""

from __future__ import annotations

from typing import Any

import pytest
from state_harness import TERM_MS, WRITER, StateHarness, at, batch, inline_part, up

from timespine.config import TURN_MS_MAX
from timespine.core.group import Answers, CommandTransaction, Evaluated, Group, Refused, evaluate
from timespine.core.protocols.commit import raise_refusal
from timespine.core.state import Turn
from timespine.core.transitions import (
    AddSchema,
    AdvanceUpper,
    Append,
    AppendNext,
    ClaimTurn,
    Command,
    CommitSink,
    CompareAndAppend,
    Drain,
    ExpireLeases,
    ExpireWriter,
    HeartbeatWriter,
    RegisterCommitter,
    RegisterReader,
    RegisterWriter,
    ReleaseTurn,
    Retain,
    RollUpAll,
    Seal,
    TurnTaken,
    Write,
)
from timespine.core.transitions.turns import RESPECTS_TURNS, REST_MS, free_from, waits_for
from timespine.errors import Determinate, Fenced, UsageError

CHANGER = "w2"
BATCH = batch(at(0), at(1), inline_part([up("a", 0)]))

WAITING: list[Command] = [
    CompareAndAppend((BATCH,), at(0), at(1)),
    Append(BATCH),
    AppendNext(BATCH, 0),
    AdvanceUpper(at(1)),
    Seal(at(1)),
    Write(at(0), (0,), (inline_part([up("a", 0)]),)),
    AddSchema(None, b"schema"),
]

GOING_ON: list[Command] = [
    RegisterReader("r1", None, TERM_MS),
    HeartbeatWriter(WRITER),
    CommitSink("s1", 1),
    Retain(at(0)),
    Drain(),
    RollUpAll(),
    ExpireLeases(),
]


def scene_with_two() -> StateHarness:
    scene = StateHarness()
    scene.do(RegisterWriter(CHANGER, TERM_MS))
    scene.do(RegisterCommitter("k1", TERM_MS))
    return scene


def offered(scene: StateHarness, command: Command, now_ms: int, writer: str | None = WRITER, **options: Any) -> Any:
    """The reply to a command that a process with a writer commits."""
    group = Group((CommandTransaction((("c", command),), **options),), "k1", 1, writer)
    judged = evaluate({"c": scene.state}, group, now_ms)
    assert isinstance(judged, Evaluated)
    return judged.replies[0]


def test_the_turn_of_a_writer_begins_now_and_ends_by_itself() -> None:
    scene = scene_with_two()
    assert scene.do(ClaimTurn(CHANGER, 400), now_ms=1000) is None
    assert scene.state.turn == Turn(CHANGER, 1000, 1400)
    assert waits_for(scene.state, WRITER, 999 - 400) is None
    assert waits_for(scene.state, WRITER, 1000 - 400) == TurnTaken(1400, 400)
    assert waits_for(scene.state, WRITER, 1399) == TurnTaken(1400, 400)
    assert waits_for(scene.state, WRITER, 1400) is None


@pytest.mark.parametrize("command", WAITING, ids=lambda each: type(each).__name__)
def test_what_would_invalidate_the_change_waits_in_other_processes_and_only_there(command: Command) -> None:
    scene = scene_with_two()
    scene.do(ClaimTurn(CHANGER, 400), now_ms=0)
    for writer in (WRITER, None):
        reply = offered(scene, command, 399, writer)
        assert isinstance(reply, Refused)
        assert reply.reason == TurnTaken(400, 400)
    assert isinstance(offered(scene, command, 399, CHANGER), Answers)
    assert isinstance(offered(scene, command, 399, respects_turns=False), Answers), "it has waited for long enough"
    assert isinstance(offered(scene, command, 400), Answers)


@pytest.mark.parametrize("command", GOING_ON, ids=lambda each: type(each).__name__)
def test_leases_merges_and_the_like_go_on_in_a_turn(command: Command) -> None:
    scene = scene_with_two()
    scene.do(ClaimTurn(CHANGER, 400), now_ms=0)
    assert isinstance(offered(scene, command, 0), Answers)


def test_every_command_that_respects_turns_is_tested() -> None:
    assert {type(each) for each in WAITING} == RESPECTS_TURNS


def test_a_transaction_that_waits_in_one_collection_changes_none() -> None:
    scene, other = scene_with_two(), StateHarness(collection="d")
    other.do(RegisterCommitter("k1", TERM_MS))
    scene.do(ClaimTurn(CHANGER, 400), now_ms=0)
    both = CommandTransaction((("d", Seal(at(1))), ("c", Seal(at(1)))))
    alone = CommandTransaction((("d", Seal(at(2))),))
    judged = evaluate({"c": scene.state, "d": other.state}, Group((both, alone), "k1", 1, WRITER), 0)
    assert isinstance(judged, Evaluated)
    refused, answers = judged.replies
    assert isinstance(refused, Refused)
    assert isinstance(refused.reason, TurnTaken)
    assert answers == (at(2),), "its neighbour is not disturbed"
    assert set(judged.changed) == {"d"}


def test_no_process_claims_a_turn_in_the_turn_of_another_or_right_after_it_and_neither_does_its_holder() -> None:
    for claimant in (WRITER, CHANGER):
        scene = scene_with_two()
        scene.do(ClaimTurn(CHANGER, 400), now_ms=0)
        assert scene.declined(ClaimTurn(claimant, 400), now_ms=399) == TurnTaken(800, 800)
        assert scene.declined(ClaimTurn(claimant, 400), now_ms=799) == TurnTaken(800, 800)
        assert scene.do(ClaimTurn(claimant, 500), now_ms=800) is None
        assert scene.state.turn == Turn(claimant, 800, 1300)


def test_a_turn_that_was_given_back_is_over_for_all_and_others_have_as_much_time_as_it_took() -> None:
    scene = scene_with_two()
    scene.do(ClaimTurn(CHANGER, 900), now_ms=0)
    assert scene.do(ReleaseTurn(CHANGER), now_ms=300) is None
    assert scene.state.turn == Turn("", 0, 300)
    assert waits_for(scene.state, WRITER, 0) is None, "also for a clock that is late"
    assert free_from(scene.state, 599) == TurnTaken(600, 600)
    assert free_from(scene.state, 600) is None


def test_after_a_short_turn_others_have_at_least_the_shortest_rest() -> None:
    scene = scene_with_two()
    scene.do(ClaimTurn(CHANGER, 900), now_ms=50)
    scene.do(ReleaseTurn(CHANGER), now_ms=0)  # its clock went back
    assert scene.state.turn == Turn("", 50, 50)
    assert free_from(scene.state, 49 + REST_MS) == TurnTaken(50 + REST_MS, 2 * REST_MS)
    assert free_from(scene.state, 50 + REST_MS) is None


def test_a_turn_that_is_given_back_too_late_ended_by_its_deadline() -> None:
    scene = scene_with_two()
    scene.do(ClaimTurn(CHANGER, 400), now_ms=0)
    scene.do(ReleaseTurn(CHANGER), now_ms=5000)
    assert scene.state.turn == Turn("", 0, 400)


def test_only_its_holder_gives_a_turn_back_and_only_once() -> None:
    scene = scene_with_two()
    assert scene.declined(ReleaseTurn(CHANGER)) is None
    scene.do(ClaimTurn(CHANGER, 400), now_ms=0)
    assert scene.declined(ReleaseTurn(WRITER)) is None
    scene.do(ReleaseTurn(CHANGER))
    assert scene.declined(ReleaseTurn(CHANGER)) is None
    assert scene.declined(ReleaseTurn("")) is None


def test_the_turn_of_a_writer_that_was_expired_ends() -> None:
    scene = scene_with_two()
    scene.do(ClaimTurn(CHANGER, 400), now_ms=0)
    scene.do(ExpireWriter(CHANGER))
    assert waits_for(scene.state, WRITER, 0) is None
    assert scene.do(ClaimTurn(WRITER, 400), now_ms=0) is None


def test_a_turn_that_a_wrong_clock_claimed_in_the_future_holds_up_no_process() -> None:
    scene = scene_with_two()
    scene.do(ClaimTurn(CHANGER, 400), now_ms=1_000_000)
    assert waits_for(scene.state, WRITER, 0) is None
    assert scene.do(ClaimTurn(WRITER, 400), now_ms=0) is None


@pytest.mark.parametrize("term_ms", [0, -1, TURN_MS_MAX + 1])
def test_a_turn_is_bounded(term_ms: int) -> None:
    assert isinstance(scene_with_two().declined(ClaimTurn(CHANGER, term_ms)), UsageError)


def test_a_writer_that_is_not_registered_gets_no_turn() -> None:
    assert isinstance(StateHarness().declined(ClaimTurn(CHANGER, 400)), Fenced)


def test_a_caller_that_does_not_wait_is_told_that_nothing_happened() -> None:
    with pytest.raises(Determinate, match="has its turn"):
        raise_refusal(Refused(TurnTaken(1, 1), ()))

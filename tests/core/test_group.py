"""Transactions over several collections, and groups of them that commit together."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from group_cases import Stage, append, tx
from state_harness import TERM_MS, WRITER, StateHarness, at, batch, inline_part, up

from timespine.core.batch import Part
from timespine.core.group import (
    Answers,
    CommandTransaction,
    Evaluated,
    Group,
    Origin,
    Refused,
    StaleOrigins,
    evaluate,
)
from timespine.core.state import Commit, NoOp, new_state
from timespine.core.transitions import (
    NOW_MAX,
    AddSchema,
    AlreadyCommitted,
    Append,
    ApplyMerge,
    ClaimMerge,
    CommitSink,
    CompareAndAppend,
    Drain,
    ExpireCommitter,
    HeartbeatWriter,
    RegisterCommitter,
    RegisterWriter,
    Retain,
    Seal,
    apply,
    command,
)
from timespine.errors import Fenced, SchemaConflict, UpperMismatch, UsageError
from timespine.model.frontier import Frontier

# One transaction.


def test_transaction_changes_all_of_its_collections_by_one_commit_each() -> None:
    stage = Stage("a", "b", "c")
    before = stage.seqnos()
    judged = stage.commit(tx(append("a", 0, 5, "x"), append("b", 0, 7, "y")))
    assert judged.replies == ((at(5), at(7)),)
    assert set(judged.changed) == {"a", "b"}
    assert stage.seqnos() == {"a": before["a"] + 1, "b": before["b"] + 1, "c": before["c"]}
    assert stage.scenes["a"].snapshot(4) == {"x": 1}
    assert stage.scenes["b"].snapshot(6) == {"y": 1}


def test_answers_say_by_collection_which_commit_they_are_of() -> None:
    stage = Stage("a", "b", "c")
    before = stage.seqnos()
    judged = stage.commit(
        CommandTransaction((append("a", 0, 1, "x"),)),
        CommandTransaction((append("a", 1, 2, "y"), ("b", Seal(at(0)))), reads=(("c", at(0)),)),
        CommandTransaction((("a", Seal(at(9))), ("a", Seal(at(1))))),
    )
    first, second, refused = judged.replies
    assert isinstance(first, Answers)
    assert isinstance(second, Answers)
    assert first == (at(1),)
    assert first.seqno("a") == second.seqno("a") == before["a"] + 1 == stage.seqnos()["a"]
    assert second.seqno("b") == before["b"] == stage.seqnos()["b"], "nothing was changed there"
    assert second.seqno("c") == before["c"] + 1, "what was relied on is committed too"
    assert isinstance(refused, Refused)


def test_transaction_with_one_refused_command_changes_nothing() -> None:
    stage = Stage("a", "b")
    judged = stage.commit(tx(append("a", 0, 5, "x"), append("b", 3, 7, "y")))
    assert judged.changed == {}
    (refused,) = judged.replies
    assert isinstance(refused, Refused)
    assert isinstance(refused.reason, UpperMismatch)
    assert refused.reason.actual == at(0)
    assert dict(refused.seqnos) == stage.seqnos()


def test_several_commands_of_a_transaction_for_one_collection_see_each_other() -> None:
    stage = Stage("a")
    judged = stage.commit(tx(append("a", 0, 1, "x"), append("a", 1, 2, "y"), ("a", Retain(at(1)))))
    assert judged.changed["a"].upper == at(2)
    assert stage.scenes["a"].state.since == at(1)
    assert stage.scenes["a"].snapshot(1) == {"x": 1, "y": 1}


def test_seal_and_release_of_many_collections_is_atomic() -> None:
    stage = Stage("a", "b")
    stage.commit(tx(("a", Seal(at(5))), ("b", Seal(at(5))), ("a", Retain(at(4))), ("b", Retain(at(3)))))
    assert [scene.state.upper for scene in stage.scenes.values()] == [at(5), at(5)]
    assert [scene.state.since for scene in stage.scenes.values()] == [at(4), at(3)]
    judged = stage.commit(tx(("a", Seal(at(9))), ("b", Seal(at(2)))))
    assert isinstance(judged.replies[0], Refused)
    assert stage.scenes["a"].state.upper == at(5)


def test_reads_that_still_hold_let_the_transaction_through() -> None:
    stage = Stage("a", "b")
    stage.commit(tx(append("b", 0, 3, "y"), reads=(("a", at(0)), ("b", at(0)))))
    assert stage.scenes["b"].state.upper == at(3)


def test_what_was_only_read_is_committed_unchanged_so_that_it_cannot_move_meanwhile() -> None:
    stage = Stage("a", "b")
    before = stage.scenes["a"].state
    judged = stage.commit(tx(append("b", 0, 3, "y"), reads=(("a", at(0)),)))
    assert set(judged.changed) == {"a", "b"}
    after = stage.scenes["a"].state
    assert after.seqno == before.seqno + 1
    assert after.committers["k1"].group == 1
    assert (after.upper, after.trace) == (before.upper, before.trace)


def test_reads_of_a_refused_transaction_are_not_committed() -> None:
    stage = Stage("a", "b")
    judged = stage.commit(tx(append("b", 0, 1, "y")), tx(append("b", 7, 8, "late"), reads=(("a", at(0)),)))
    assert set(judged.changed) == {"b"}


def test_reads_of_a_group_that_changes_nothing_are_not_committed() -> None:
    stage = Stage("a", "b")
    assert stage.commit(tx(("b", Drain()), reads=(("a", at(0)),))).changed == {}


def test_read_moved_by_its_own_group_is_committed_as_it_was_moved() -> None:
    stage = Stage("a", "b")
    judged = stage.commit(tx(append("b", 0, 1, "y"), reads=(("a", at(0)),)), tx(append("a", 0, 5, "x")))
    assert judged.changed["a"].upper == at(5)
    assert stage.seqnos()["a"] == judged.changed["a"].seqno


def test_read_that_moved_refuses_the_transaction_with_the_true_upper() -> None:
    stage = Stage("a", "b")
    stage.commit(tx(("a", Seal(at(2)))))
    judged = stage.commit(tx(append("b", 0, 3, "y"), reads=(("a", at(0)),)))
    (refused,) = judged.replies
    assert isinstance(refused, Refused)
    assert isinstance(refused.reason, UpperMismatch)
    assert (refused.reason.expected, refused.reason.actual) == (at(0), at(2))
    assert dict(refused.seqnos) == stage.seqnos()
    assert judged.changed == {}


def test_read_moved_by_an_earlier_transaction_of_the_group_refuses_the_later_one() -> None:
    stage = Stage("a", "b")
    judged = stage.commit(tx(append("a", 0, 1, "x")), tx(append("b", 0, 1, "y"), reads=(("a", at(0)),)))
    assert judged.replies[0] == (at(1),)
    assert isinstance(judged.replies[1], Refused)
    assert set(judged.changed) == {"a"}


def test_read_or_command_of_an_unknown_collection_refuses_the_transaction() -> None:
    stage = Stage("a")
    for bad in (tx(append("a", 0, 1, "x"), append("z", 0, 1, "y")), tx(append("a", 0, 1), reads=(("z", at(0)),))):
        judged = evaluate({"a": stage.scenes["a"].state}, stage.group(bad), 0)
        assert isinstance(judged, Evaluated)
        (refused,) = judged.replies
        assert isinstance(refused, Refused)
        assert isinstance(refused.reason, UsageError)
        assert [name for name, _ in refused.seqnos] == ["a"]
        assert judged.changed == {}


def test_answers_that_are_no_refusals_let_the_transaction_through() -> None:
    stage = Stage("a")
    stage.commit(tx(append("a", 0, 5, "x")))
    result = ApplyMerge(batch(at(1), at(2)), WRITER)
    late = Append(batch(at(0), at(3), inline_part([up("x", 0)])))
    judged = stage.commit(tx(("a", ClaimMerge((0, 9), "m", 1)), ("a", result), ("a", late), append("a", 5, 6, "y")))
    assert set(judged.changed) == {"a"}
    assert judged.replies[0][0] is False  # type: ignore[index]


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (CommitSink("s", 0), AlreadyCommitted),
        (AddSchema(4, b"x"), SchemaConflict),
        (HeartbeatWriter("w9"), Fenced),
        ("nonsense", UsageError),
        (CompareAndAppend((batch(at(1), at(2), Part("a/w9/p", 1)),), at(1), at(2)), Fenced),
    ],
    ids=lambda each: str(getattr(each, "__name__", type(each).__name__)),
)
def test_every_kind_of_refusal_takes_back_the_whole_transaction(command: Any, reason: type) -> None:
    stage = Stage("a")
    stage.commit(tx(("a", CommitSink("s", 0))))
    judged = stage.commit(tx(append("a", 0, 1, "x"), ("a", command)))
    (refused,) = judged.replies
    assert isinstance(refused, Refused)
    assert isinstance(refused.reason, reason)
    assert judged.changed == {}


def test_sink_batch_and_its_rows_commit_together_and_once() -> None:
    stage = Stage("a")
    stage.commit(tx(("a", CommitSink("s", 7)), append("a", 0, 1, "x")))
    judged = stage.commit(tx(("a", CommitSink("s", 7)), append("a", 1, 2, "x")))
    (refused,) = judged.replies
    assert isinstance(refused, Refused)
    assert refused.reason == AlreadyCommitted(7)
    assert stage.scenes["a"].snapshot(0) == {"x": 1}
    assert stage.scenes["a"].state.upper == at(1)


# Neighbours in a group.


def test_refused_transaction_does_not_disturb_its_neighbours() -> None:
    stage = Stage("a", "b")
    good = tx(append("a", 0, 1, "x"))
    bad = tx(append("a", 1, 2, "bad"), append("b", 5, 6, "bad"))
    after = tx(append("a", 1, 3, "y"), append("b", 0, 1, "y"))
    judged = stage.commit(good, bad, after)
    assert judged.replies[0] == (at(1),)
    assert isinstance(judged.replies[1], Refused)
    assert judged.replies[2] == (at(3), at(1))
    assert stage.scenes["a"].snapshot(2) == {"x": 1, "y": 1}
    assert stage.scenes["b"].snapshot(0) == {"y": 1}


def test_refused_transaction_is_told_the_seqno_of_the_states_it_was_judged_at() -> None:
    stage = Stage("a", "b")
    before = stage.seqnos()
    judged = stage.commit(tx(append("a", 0, 1, "x")), tx(append("a", 0, 1, "late")))
    (_, refused) = judged.replies
    assert isinstance(refused, Refused)
    assert refused.seqnos == (("a", before["a"]),)
    assert judged.changed["a"].seqno == before["a"] + 1


def test_group_of_many_transactions_is_one_commit_per_collection() -> None:
    stage = Stage("a")
    before = stage.seqnos()["a"]
    stage.commit(*[tx(append("a", when, when + 1, "x")) for when in range(5)])
    assert stage.seqnos()["a"] == before + 1
    assert stage.scenes["a"].snapshot(4) == {"x": 5}


def test_group_that_changes_nothing_commits_nothing() -> None:
    stage = Stage("a")
    judged = stage.commit(tx(("a", Drain())), tx(append("a", 4, 5, "x")), tx())
    assert judged.changed == {}
    assert judged.replies[0] == (at(0),)
    assert isinstance(judged.replies[1], Refused)
    assert judged.replies[2] == ()


def test_collections_of_a_group_are_each_named_once_in_order() -> None:
    group = Group((tx(append("b", 0, 1), append("a", 0, 1)), tx(append("b", 1, 2), reads=(("c", at(0)),))))
    assert group.collections() == ["a", "b", "c"]


def test_judging_leaves_the_states_it_was_given_alone() -> None:
    stage = Stage("a")
    states = {"a": stage.scenes["a"].state}
    copy = dict(states)
    evaluate(states, stage.group(tx(append("a", 0, 1, "x"))), 0)
    assert states == copy
    assert states["a"] is copy["a"]


@pytest.mark.parametrize("name", ["z", "", 7, None, ("a",), ["a"], {}], ids=repr)
def test_transaction_that_names_what_is_no_collection_is_refused_by_itself(name: Any) -> None:
    stage = Stage("a")
    bad = (tx((name, Seal(at(9)))), tx(("a", Seal(at(9))), (name, Seal(at(9)))), tx(reads=((name, at(0)),)))
    judged = stage.commit(tx(append("a", 0, 1, "x")), *bad, tx(append("a", 1, 2, "y")))
    first, *refusals, last = judged.replies
    assert (first, last) == ((at(1),), (at(2),))
    assert all(isinstance(each, Refused) and isinstance(each.reason, UsageError) for each in refusals)
    assert [[known for known, _ in each.seqnos] for each in refusals if isinstance(each, Refused)] == [[], ["a"], []]
    assert set(judged.changed) == {"a"}
    assert stage.scenes["a"].snapshot(1) == {"x": 1, "y": 1}


def test_name_that_is_no_string_is_no_collection_of_the_group() -> None:
    odd: Any = ((7, Seal(at(1))), (["a"], Seal(at(1))))
    assert Group((tx(append("b", 0, 1), *odd, reads=((None, at(0)),)),)).collections() == ["b"]  # type: ignore[arg-type]


def test_group_of_nothing_but_unknown_collections_is_refused_and_not_fenced() -> None:
    stage = Stage("a")
    judged = stage.judge(stage.group(tx(append("z", 0, 1)), tx(append("y", 0, 1))))
    assert isinstance(judged, Evaluated)
    assert judged.changed == {}
    assert all(isinstance(each, Refused) and isinstance(each.reason, UsageError) for each in judged.replies)


def test_transaction_where_the_committer_is_not_registered_is_refused_by_itself() -> None:
    stage = Stage("a", "b")
    stage.scenes["b"].do(ExpireCommitter("k1"))
    judged = stage.commit(
        tx(append("a", 0, 1, "x")),
        tx(append("b", 0, 1, "y")),
        tx(append("a", 1, 2, "no"), append("b", 0, 1, "no")),
        tx(append("a", 1, 2, "no"), reads=(("b", at(0)),)),
        tx(append("a", 1, 2, "z")),
    )
    first, *refusals, last = judged.replies
    assert (first, last) == ((at(1),), (at(2),))
    for each in refusals:
        assert isinstance(each, Refused)
        assert isinstance(each.reason, Fenced)
        assert str(each.reason) == "committer k1 is not registered in b"
    assert set(judged.changed) == {"a"}
    assert stage.scenes["a"].snapshot(1) == {"x": 1, "z": 1}


def test_committer_that_leaves_in_the_middle_of_a_group_is_refused_from_there_on() -> None:
    stage = Stage("a", "b")
    judged = stage.commit(tx(("a", ExpireCommitter("k1"))), tx(("a", Seal(at(5)))), tx(("b", Seal(at(5)))))
    assert isinstance(judged.replies[1], Refused)
    assert isinstance(judged.replies[1].reason, Fenced)
    assert judged.replies[2] == (at(5),)
    assert (stage.scenes["a"].state.upper, stage.scenes["b"].state.upper) == (at(0), at(5))


# Commands one by one.


@pytest.mark.parametrize("now_ms", [None, 1.0, "1", True, NOW_MAX + 1, -NOW_MAX - 1, 1 << 70, float("nan")], ids=repr)
def test_time_that_is_not_in_milliseconds_is_a_usage_error(now_ms: Any) -> None:
    scene = StateHarness()
    for each in (Seal(at(1)), RegisterWriter("w2", TERM_MS)):
        outcome = apply(scene.state, each, now_ms)
        assert isinstance(outcome, NoOp)
        assert isinstance(outcome.reply, UsageError)
        assert "milliseconds" in str(outcome.reply)


@pytest.mark.parametrize("now_ms", [NOW_MAX, -NOW_MAX, -1, 0])
def test_every_time_that_a_clock_may_say_is_one_to_commit_at(now_ms: int) -> None:
    assert NOW_MAX == 1 << 52
    scene = StateHarness()
    scene.do(RegisterCommitter("k1", TERM_MS), now_ms=now_ms)
    assert scene.state.committers["k1"].until_ms == now_ms + TERM_MS


def test_group_at_a_time_that_is_none_is_refused_and_changes_nothing() -> None:
    stage = Stage("a")
    judged = stage.judge(stage.group(tx(append("a", 0, 1, "x"))), now_ms=NOW_MAX + 1)
    (refused,) = judged.replies
    assert isinstance(refused.reason, UsageError)
    assert judged.changed == {}


def test_command_over_the_limit_cannot_be_made() -> None:
    with pytest.raises(UsageError, match=f"is over {command.COMMAND_BYTES_MAX}"):
        AddSchema(None, bytes(command.COMMAND_BYTES_MAX))


def test_command_is_measured_as_it_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(msgspec.msgpack.encode(AddSchema(None, b"x" * 50)))
    monkeypatch.setattr(command, "COMMAND_BYTES_MAX", size)
    assert isinstance(apply(new_state("c"), AddSchema(None, b"x" * 50), 0), Commit)
    with pytest.raises(UsageError, match=f"AddSchema of {size + 1} bytes is over {size}"):
        AddSchema(None, b"x" * 51)


# Transactions of other processes.


def relayed(*commands: tuple[str, Any], number: int = 1, committer: str = "k2", before: int = 1) -> CommandTransaction:
    return CommandTransaction(commands, origins=(Origin(committer, number, f"w-{committer}", before),))


def relaying(*names: str) -> Stage:
    stage = Stage(*names)
    for scene in stage.scenes.values():
        scene.do(RegisterCommitter("k2", TERM_MS))
        scene.do(RegisterWriter("w-k2", TERM_MS))
    return stage


def test_commit_for_another_process_records_the_number_of_its_group_beside_the_own_one() -> None:
    stage = relaying("a", "b")
    stage.commit(relayed(append("a", 0, 5, "x"), number=7, before=2), tx(append("b", 0, 1, "y")), now_ms=TERM_MS // 2)
    a, b = (stage.scenes[name].state for name in "ab")
    assert (a.committers["k1"].group, a.committers["k2"].group) == (1, 7)
    assert (a.committers["k1"].relayed, a.committers["k2"].relayed) == (None, (a.seqno, 3))
    assert (b.committers["k1"].group, b.committers["k2"].group) == (1, 0), "nothing of it is there"
    assert {a.committers["k2"].until_ms, a.writers["w-k2"].until_ms} == {TERM_MS // 2 + TERM_MS}
    assert b.writers["w-k2"].until_ms == TERM_MS


def test_own_commit_after_one_by_another_process_forgets_where_that_is() -> None:
    stage = relaying("a")
    stage.commit(relayed(append("a", 0, 5, "x")))
    judged = evaluate({"a": stage.scenes["a"].state}, Group((tx(append("a", 5, 6)),), "k2", 2, "w-k2"), 0)
    assert isinstance(judged, Evaluated)
    assert judged.changed["a"].committers["k2"].relayed is None


@pytest.mark.parametrize("number", [6, 7])
def test_group_of_another_process_that_is_recorded_is_not_committed_again(number: int) -> None:
    stage = relaying("a")
    stage.commit(relayed(append("a", 0, 5, "x"), number=7))
    judged = stage.commit(relayed(append("a", 5, 6, "x"), number=number), tx(append("a", 5, 6, "y")))
    refused, answered = judged.replies
    assert isinstance(refused, Refused)
    assert refused.reason == StaleOrigins(("k2",))
    assert answered == (at(6),)
    assert stage.scenes["a"].snapshot(5) == {"x": 1, "y": 1}


def test_late_commit_for_a_process_that_has_looked_is_refused() -> None:
    stage = relaying("a", "b")
    stage.scenes["b"].do(ExpireCommitter("k2"))
    judged = stage.judge(stage.group(relayed(append("a", 0, 5, "x"), append("b", 0, 5, "x"))))
    assert judged.changed == {}
    assert judged.replies[0].reason == StaleOrigins(("k2",))


def test_commit_for_another_process_to_a_collection_that_it_closes_records_no_time() -> None:
    stage = relaying("a")
    stage.commit(relayed(("a", Seal(Frontier()))))
    state = stage.scenes["a"].state
    assert state.committers["k2"].relayed == (state.seqno, 0)

"""Commits: judged on the newest state, in once or not at all, and never in doubt for long."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from protocol_harness import CONFIG, Fault, ProtocolHarness, accepted, at, configured, refused, up

from timespine.config import Config
from timespine.core import transitions
from timespine.core.effects import CompareAndSet, GetBlob, Now, PutBlob, Scan, Sleep
from timespine.core.encoding.codec import encode_state
from timespine.core.group import CommandTransaction, Group, Refused, StaleOrigins
from timespine.core.protocols.commit import (
    SideLogMoved,
    commit,
    commit_group,
    commit_repeatable,
    commit_transactions,
    is_repeatable,
    pending_state,
    raise_refusal,
    register_session,
    resolve,
    with_session_registered,
)
from timespine.core.protocols.garbage import collect_garbage
from timespine.core.protocols.load_state import create_or_find, refresh_state
from timespine.core.protocols.maintain import expire_lapsed_leases, roll_up
from timespine.core.protocols.session import Session, pause_ms, retry_determinate
from timespine.core.state import State, new_state
from timespine.core.transitions import (
    AddSchema,
    AlreadyCommitted,
    AppendNextResult,
    CommitSink,
    CompareAndAppend,
    DowngradeReader,
    ExpireCommitter,
    ExpireReader,
    RegisterCommitter,
    RegisterHold,
    RegisterReader,
    Retain,
    Seal,
)
from timespine.errors import (
    BatchAlreadyCommitted,
    Determinate,
    Fenced,
    Indeterminate,
    NoSpace,
    UpperMismatch,
    UsageError,
)
from timespine.testing.formats.naive import data_of
from timespine.testing.simulator import core_writes
from timespine.testing.simulator.core_writes import append_data_to_many, compare_and_append_data


def append(session: Session, expected: int = 0, upper: int = 1) -> Any:
    """Append a row from one upper to another."""
    data = data_of([up(f"{session.writer}-{expected}", expected)])
    return compare_and_append_data(session, "c", data, at(expected), at(upper))


def frozen_append(fault: Fault, config: Config = CONFIG) -> tuple[ProtocolHarness, Session]:
    """A session whose append lost its reply, and storage did not answer ever since."""
    stage = ProtocolHarness()
    session = stage.session(config=config)
    stage.fail(CompareAndSet, fault)
    stage.fail(CompareAndSet, Fault.DETERMINATE, nth=2, times=config.storage_attempts)
    with pytest.raises(Indeterminate, match="may or may not be committed"):
        stage.run(append(session))
    assert session.frozen is not None
    assert len(stage.of(Sleep)) == session.counters["retries"] == config.storage_attempts
    return stage, session


# Winning and losing.


def test_a_full_disk_is_not_tried_again() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    protocol = retry_determinate(session, Now())
    assert isinstance(next(protocol), Now)
    with pytest.raises(NoSpace):
        protocol.throw(NoSpace("full"))
    assert session.counters.get("retries", 0) == 0


def test_commit_on_the_newest_state_costs_one_clock_reading_and_one_compare_and_set() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    assert stage.commit(session, Seal(at(3))) == (at(3),)
    assert [type(each) for each in stage.effects] == [Now, CompareAndSet]
    assert session.counters["commits"] == 2  # with entering
    assert session.state("c") == stage.head()


def test_compare_and_set_lost_to_somebody_else_is_judged_again_without_reading_or_writing_data() -> None:
    stage = ProtocolHarness()
    other, session = stage.session(), stage.session()
    stage.before(CompareAndSet, lambda: stage.disturb(other))
    assert stage.run(append(session)) == at(1)
    assert [type(each) for each in stage.of(CompareAndSet, Scan, PutBlob, GetBlob)] == [
        PutBlob,
        CompareAndSet,
        Scan,
        CompareAndSet,
    ]
    assert session.counters["lost"] == 1
    stage.agree()


def test_append_that_lost_to_another_append_is_told_the_true_upper() -> None:
    stage = ProtocolHarness()
    other, session = stage.session(), stage.session()
    stage.before(CompareAndSet, lambda: stage.append(other, 5, up("theirs", 3)))
    reason = refused(stage.run(append(session)))
    assert isinstance(reason, UpperMismatch)
    assert (reason.expected, reason.actual) == (at(0), at(5))
    assert stage.rows(4) == {"theirs": 1}


def test_refusal_names_the_state_that_it_was_judged_by() -> None:
    stage = ProtocolHarness()
    other, session = stage.session(), stage.session()
    stage.disturb(other)
    reply = stage.run(append(session, expected=7, upper=8))
    assert isinstance(reply, Refused)
    assert reply.seqnos == (("c", stage.head().seqno),)


def test_refusal_by_an_old_state_is_judged_again_on_the_newest_one() -> None:
    stage = ProtocolHarness()
    other, session = stage.session(), stage.session()
    stage.append(other, 5)
    assert session.state("c").upper == at(0)
    assert stage.run(append(session, expected=5, upper=6)) == at(6)


def test_refusal_by_the_newest_state_costs_one_scan_and_no_compare_and_set() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    assert isinstance(refused(stage.run(commit(session, "c", Seal(at(1)), Seal(at(0))))), UsageError)
    assert [type(each) for each in stage.effects] == [Now, Scan]
    assert stage.head().upper == at(0)


def test_commit_that_changes_nothing_is_not_stored() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    before = stage.head().seqno
    assert stage.commit(session, Seal(at(0))) == (at(0),)
    assert stage.head().seqno == before


def test_commit_gives_up_as_determinate_after_losing_a_bounded_number_of_times() -> None:
    stage = ProtocolHarness()
    other, session = stage.session(), stage.session()
    stage.before(CompareAndSet, lambda: stage.disturb(other), times=CONFIG.commit_attempts)
    with pytest.raises(Determinate, match="lost 4 compare-and-sets in a row"):
        stage.run(append(session))
    assert len(stage.of(CompareAndSet)) == CONFIG.commit_attempts
    assert session.counters["lost"] == CONFIG.commit_attempts
    assert stage.head().upper == at(0)
    assert stage.run(append(session)) == at(1)  # progress, once nobody is in the way


def test_refusals_on_states_that_keep_moving_are_bounded_too() -> None:
    stage = ProtocolHarness()
    other, session = stage.session(), stage.session()
    stage.before(Scan, lambda: stage.disturb(other), times=CONFIG.commit_attempts)
    with pytest.raises(Determinate):
        stage.run(commit(session, "c", Seal(at(1)), Seal(at(0))))
    assert not stage.of(CompareAndSet)


def test_commit_to_a_collection_that_the_session_has_not_seen_reads_it_first() -> None:
    stage = ProtocolHarness()
    session = stage.stranger()
    stage.run(commit_group(session, Group((CommandTransaction((("c", RegisterCommitter(session.committer, 1000)),)),))))
    assert [type(each) for each in stage.effects] == [Scan, Now, CompareAndSet]
    assert session.committer in stage.head().committers


def test_commit_to_a_collection_that_is_not_there_is_refused() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    reason = refused(stage.run(commit(session, "nowhere", Seal(at(1)))))
    assert isinstance(reason, UsageError)
    assert "nowhere" in str(reason)


def test_state_that_vanishes_while_a_commit_is_judged_again_is_not_forgotten() -> None:
    stage = ProtocolHarness()
    other, session = stage.session(), stage.session()
    stage.before(CompareAndSet, lambda: stage.disturb(other))
    stage.answer(Scan, lambda effect: [(99, b"")])
    stage.answer(Scan, lambda effect: [], nth=2)
    assert stage.run(append(session)) == at(1)
    assert session.counters["reloads"] == 1


# Transactions and groups.


def test_group_commits_its_transactions_together_and_refuses_one_alone() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    before = stage.head().seqno
    replies = stage.run(
        commit_transactions(
            session,
            CommandTransaction((("c", Seal(at(2))),)),
            CommandTransaction((("c", Retain(at(1))), ("c", Seal(at(1))))),
            CommandTransaction((("c", Seal(at(3))),)),
        )
    )
    assert replies[0] == (at(2),)
    assert isinstance(refused(replies[1]), UsageError)
    assert replies[2] == (at(3),)
    head = stage.head()
    assert (head.seqno, head.upper, head.retention) == (before + 1, at(3), at(0))
    assert head.committers[session.committer].group == session.group == 1


def test_transaction_over_two_collections_is_lost_and_won_as_a_whole() -> None:
    stage = ProtocolHarness("c", "d")
    other, session = stage.session("d"), stage.session("c", "d")
    stage.before(CompareAndSet, lambda: stage.commit(other, Seal(at(1)), name="d"))
    transaction = CommandTransaction((("c", Seal(at(4))), ("d", Seal(at(5)))))
    assert stage.run(commit_transactions(session, transaction)) == ((at(4), at(5)),)
    assert (stage.head("c").upper, stage.head("d").upper) == (at(4), at(5))
    assert len(stage.world.logs["c"]) == 3  # created, entered, sealed: nothing of it came in alone


def test_transaction_is_refused_if_an_upper_that_it_relied_on_had_moved() -> None:
    stage = ProtocolHarness("c", "d")
    session = stage.session("c", "d")
    stage.append(session, 2, name="d")
    transaction = CommandTransaction((("c", Seal(at(4))),), reads=(("d", at(1)),))
    (reply,) = stage.run(commit_transactions(session, transaction))
    assert isinstance(refused(reply), UpperMismatch)
    assert stage.head("c").upper == at(0)


def test_transaction_is_refused_if_an_upper_that_it_relied_on_moved_without_its_knowledge() -> None:
    stage = ProtocolHarness("c", "d")
    other, session = stage.session("d"), stage.session("c", "d")
    stage.append(other, 2, name="d")
    assert session.state("d").upper == at(0)
    transaction = CommandTransaction((("c", Seal(at(4))),), reads=(("d", at(0)),))
    (reply,) = stage.run(commit_transactions(session, transaction))
    assert isinstance(reply, Refused)


def test_refusal_beside_a_transaction_that_commits_is_judged_on_the_newest_state_too() -> None:
    stage = ProtocolHarness("c", "d")
    other, session = stage.session("d"), stage.session("c", "d")
    stage.append(other, 5, name="d")
    replies = stage.run(
        commit_transactions(
            session,
            CommandTransaction((("c", Seal(at(1))),)),
            CommandTransaction((("d", CompareAndAppend((), at(5), at(6))),)),
        )
    )
    assert replies == ((at(1),), (at(6),))


def test_upper_that_was_only_read_is_guarded_by_the_same_compare_and_set() -> None:
    stage = ProtocolHarness("c", "d")
    other, session = stage.session("d"), stage.session("c", "d")
    stage.before(CompareAndSet, lambda: stage.append(other, 2, name="d"))
    transaction = CommandTransaction((("c", Seal(at(4))),), reads=(("d", at(0)),))
    (reply,) = stage.run(commit_transactions(session, transaction))
    reason = refused(reply)
    assert isinstance(reason, UpperMismatch)
    assert reason.actual == at(2)
    assert stage.head("c").upper == at(0)


def test_transaction_that_only_reads_is_judged_on_the_newest_states_and_stores_nothing() -> None:
    stage = ProtocolHarness("c", "d")
    other, session = stage.session("d"), stage.session("c", "d")
    stage.append(other, 2, name="d")
    (reply,) = stage.run(commit_transactions(session, CommandTransaction((), reads=(("c", at(0)), ("d", at(0))))))
    assert isinstance(refused(reply), UpperMismatch)
    assert not stage.of(CompareAndSet)
    assert stage.run(commit_transactions(session, CommandTransaction((), reads=(("d", at(2)),)))) == ((),)


def test_refusal_beside_a_transaction_that_commits_is_not_asked_of_storage_twice() -> None:
    stage = ProtocolHarness("c", "d")
    session = stage.session("c", "d")
    transactions = (
        CommandTransaction((("c", Seal(at(1))),)),
        CommandTransaction((("d", Seal(at(1))), ("d", Seal(at(0))))),
    )
    replies = stage.run(commit_transactions(session, *transactions))
    assert replies[0] == (at(1),)
    assert isinstance(refused(replies[1]), UsageError)
    assert [type(each) for each in stage.effects] == [Now, Scan, CompareAndSet]


def test_answer_that_changes_nothing_beside_a_transaction_that_commits_is_that_of_now() -> None:
    stage = ProtocolHarness("c", "d")
    other, session = stage.session("d"), stage.session("c", "d")
    stage.append(other, 5, name="d")
    transactions = (
        CommandTransaction((("c", Seal(at(1))),)),
        CommandTransaction((("d", CompareAndAppend((), at(0), at(0))),)),
    )
    replies = stage.run(commit_transactions(session, *transactions))
    assert isinstance(replies[1], Refused)  # the upper is 5, and has been since before the call


@pytest.mark.parametrize("name", ["nowhere", "Not a name", 7, None, b"c", ("c",), ["c"]], ids=repr)
def test_transaction_that_names_what_is_no_collection_disturbs_no_neighbour(name: Any) -> None:
    stage = ProtocolHarness()
    session = stage.session()
    transactions = [
        CommandTransaction((("c", Seal(at(1))),)),
        CommandTransaction((("c", Seal(at(5))), (name, Seal(at(5))))),
        CommandTransaction((("c", Seal(at(5))),), ((name, at(0)),)),
        CommandTransaction((("c", Seal(at(2))),)),
    ]
    first, by_command, by_read, last = stage.run(commit_transactions(session, *transactions))
    assert (first, last) == ((at(1),), (at(2),))
    for each in (by_command, by_read):
        reason = refused(each)
        assert isinstance(reason, UsageError)
        assert "there is no collection" in str(reason)
        assert [known for known, _ in each.seqnos] == ["c"]
    assert stage.head().upper == at(2)
    assert len(stage.of(CompareAndSet)) == 1


def test_command_that_is_too_large_disturbs_no_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = ProtocolHarness()
    session = stage.session()
    monkeypatch.setattr(transitions, "COMMAND_BYTES_MAX", 100)
    transactions = [CommandTransaction((("c", each),)) for each in (AddSchema(None, b"x" * 100), Seal(at(1)))]
    large, small = stage.run(commit_transactions(session, *transactions))
    assert isinstance(refused(large), UsageError)
    assert small == (at(1),)


# Failures that are determinate.


def test_compare_and_set_that_surely_failed_is_tried_again_with_growing_pauses() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    stage.fail(CompareAndSet, Fault.DETERMINATE, times=2)
    assert stage.run(append(session)) == at(1)
    assert stage.of(Sleep) == [Sleep(1), Sleep(2)]
    assert session.counters["retries"] == 2
    assert stage.head().seqno == 2


def test_commit_that_surely_failed_for_good_has_not_happened_and_freezes_nothing() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    stage.fail(CompareAndSet, Fault.DETERMINATE, times=CONFIG.storage_attempts)
    with pytest.raises(Determinate, match="scripted"):
        stage.run(append(session))
    assert session.frozen is None
    assert stage.head().upper == at(0)
    assert stage.run(append(session)) == at(1)


def test_single_attempt_is_one_attempt() -> None:
    stage = ProtocolHarness()
    session = stage.session(config=configured(storage_attempts=1))
    stage.fail(CompareAndSet, Fault.DETERMINATE)
    with pytest.raises(Determinate):
        stage.run(commit(session, "c", Seal(at(1))))
    stage.fail(Scan, Fault.NOT_DONE)
    with pytest.raises(Indeterminate):
        stage.run(refresh_state(session, "c"))
    assert not stage.of(Sleep)
    assert "retries" not in session.counters


def test_reading_that_keeps_failing_is_tried_a_bounded_number_of_times() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    stage.fail(Scan, Fault.NOT_DONE, times=CONFIG.storage_attempts)
    with pytest.raises(Indeterminate):
        stage.run(refresh_state(session, "c"))
    assert [type(each) for each in stage.effects] == [Scan, Sleep, Scan, Sleep, Scan]
    assert session.counters["retries"] == 2


def test_loss_is_in_doubt_until_the_states_can_be_read_again() -> None:
    stage = ProtocolHarness()
    other, session = stage.session(), stage.session()
    stage.before(CompareAndSet, lambda: stage.disturb(other))
    stage.fail(Scan, Fault.DETERMINATE, times=CONFIG.storage_attempts)
    with pytest.raises(Indeterminate, match="may or may not be committed"):
        stage.run(append(session))
    assert stage.head().upper == at(0)
    assert stage.run(resolve(session)) is False
    assert stage.run(append(session)) == at(1)


def test_pause_doubles_up_to_its_maximum() -> None:
    config = configured(retry_pause_ms=3, retry_pause_max_ms=20)
    assert [pause_ms(config, attempt) for attempt in range(5)] == [3, 6, 12, 20, 20]
    assert pause_ms(config, 1_000) == 20


# Lost replies.


@pytest.mark.parametrize("fault", [Fault.DONE, Fault.NOT_DONE])
def test_append_retried_after_a_lost_reply_commits_once(fault: Fault) -> None:
    stage = ProtocolHarness()
    session = stage.session()
    before = stage.head().seqno
    stage.fail(CompareAndSet, fault)
    assert stage.run(append(session)) == at(1)
    first, second = stage.of(CompareAndSet)
    assert first == second  # byte for byte
    assert stage.head().seqno == before + 1
    assert session.frozen is None
    assert session.state("c").seqno == before + 1
    assert session.counters["indeterminate"] == 1
    stage.agree()


def test_group_that_is_in_and_could_not_be_learned_is_in_doubt_and_then_found_committed() -> None:
    """As when another thread holds the lock of the session for too long."""
    stage = ProtocolHarness()
    session = stage.session()
    before = stage.head().seqno

    def refuse(state: State) -> None:
        raise Indeterminate("busy")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "remember_state", lambda self, state: refuse(state))
        with pytest.raises(Indeterminate, match="busy"):
            stage.run(append(session))
    assert session.frozen is not None
    assert stage.run(resolve(session)) is True
    assert stage.head().seqno == session.state("c").seqno == before + 1
    stage.agree()


def test_lost_reply_is_resolved_by_the_recorded_group_even_after_others_committed() -> None:
    stage = ProtocolHarness()
    other, session = stage.session(), stage.session()
    stage.fail(CompareAndSet, Fault.DONE)
    stage.before(CompareAndSet, lambda: stage.append(other, 5, up("theirs", 3)), nth=2)
    assert stage.run(append(session)) == at(1)  # what it asked for, not what is there by now
    assert session.state("c").upper == at(5)
    stage.agree()


def test_lost_reply_is_resolved_by_the_recorded_group_even_after_the_log_was_cut() -> None:
    stage = ProtocolHarness()
    other, session = stage.session(), stage.session()

    def cut() -> None:
        stage.append(other, 5, up("theirs", 3))
        stage.run(roll_up(other, "c"))
        stage.run(collect_garbage(other, "c"))

    stage.fail(CompareAndSet, Fault.DONE)
    stage.before(CompareAndSet, cut, nth=2)
    assert stage.run(append(session)) == at(1)
    assert session.counters["reloads"] == 1
    stage.agree()


def test_group_whose_slot_somebody_else_took_is_judged_again() -> None:
    stage = ProtocolHarness()
    other, session = stage.session(), stage.session()
    stage.fail(CompareAndSet, Fault.NOT_DONE)
    stage.before(CompareAndSet, lambda: stage.disturb(other), nth=2)
    assert stage.run(append(session)) == at(1)
    assert session.group == 1  # still the same group
    assert stage.head().committers[session.committer].group == 1
    stage.agree()


def test_group_whose_slot_another_append_took_is_told_so() -> None:
    stage = ProtocolHarness()
    other, session = stage.session(), stage.session()
    stage.fail(CompareAndSet, Fault.NOT_DONE)
    stage.before(CompareAndSet, lambda: stage.append(other, 5, up("theirs", 3)), nth=2)
    reason = refused(stage.run(append(session)))
    assert isinstance(reason, UpperMismatch)
    assert reason.actual == at(5)
    assert stage.rows(4) == {"theirs": 1}


def test_did_not_happen_is_no_answer_while_an_earlier_try_may_have() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    stage.fail(CompareAndSet, Fault.DONE)
    stage.fail(CompareAndSet, Fault.DETERMINATE, nth=2)
    assert stage.run(append(session)) == at(1)
    assert len(stage.of(CompareAndSet)) == 3
    stage.agree()


def test_reading_that_fails_while_a_group_is_resolved_is_tried_again_with_it() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    stage.fail(CompareAndSet, Fault.DONE)
    stage.fail(Scan, Fault.DETERMINATE, times=CONFIG.storage_attempts)
    assert stage.run(append(session)) == at(1)
    assert len(stage.of(CompareAndSet)) == 3


@pytest.mark.parametrize("fault", [Fault.DONE, Fault.NOT_DONE])
def test_lost_reply_of_a_commit_to_two_collections_is_resolved_for_both(fault: Fault) -> None:
    stage = ProtocolHarness("c", "d")
    other, session = stage.session("d"), stage.session("c", "d")
    appends = [("c", data_of([up("x", 0)]), at(0), at(1)), ("d", data_of([up("y", 0)]), at(0), at(2))]
    stage.fail(CompareAndSet, fault)
    stage.before(CompareAndSet, lambda: stage.disturb(other, "d"), nth=2)
    assert stage.run(append_data_to_many(session, appends)) == (at(1), at(2))
    assert stage.rows(0, "c") == {"x": 1}
    assert stage.rows(1, "d") == {"y": 1}


# Frozen sessions.


# Storage that reports its own success as a conflict.


def append_next(session: Session, at: int) -> Any:
    """Append a row at the next free time: nothing but its group's number tells whether it is in."""
    return core_writes.append_data_next(session, "c", data_of([up(f"{session.writer}-{at}", at)]), at)


def test_group_that_is_in_though_storage_reports_a_conflict_is_a_success_with_the_replies_of_that_try() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    stage.fail(CompareAndSet, Fault.MISREPORTED)
    assert stage.run(append_next(session, 7)) == AppendNextResult(7, at(8))
    assert len(stage.of(CompareAndSet)) == 1
    assert session.counters["found committed"] == 1
    assert "lost" not in session.counters
    assert stage.rows(7) == {f"{session.writer}-7": 1}
    stage.agree()


def test_group_that_lost_and_then_won_with_a_reported_conflict_is_answered_by_the_try_that_won() -> None:
    stage = ProtocolHarness()
    other, session = stage.session(), stage.session()
    stage.before(CompareAndSet, lambda: stage.append(other, 10))
    stage.fail(CompareAndSet, Fault.MISREPORTED, nth=2)
    assert stage.run(append_next(session, 7)) == AppendNextResult(10, at(11))
    assert stage.rows(10) == {f"{session.writer}-7": 1}


def test_group_over_two_collections_that_storage_reports_as_lost_is_in_once() -> None:
    stage = ProtocolHarness("c", "d")
    session = stage.session("c", "d")
    commands = (("c", Seal(at(3))), ("d", Seal(at(4))))
    stage.fail(CompareAndSet, Fault.MISREPORTED)
    assert stage.run(commit_transactions(session, CommandTransaction(commands))) == ((at(3), at(4)),)
    assert (stage.head("c").upper, stage.head("d").upper) == (at(3), at(4))


def test_group_reported_as_lost_is_found_though_its_committer_was_expired_where_it_is_in() -> None:
    stage = ProtocolHarness("c", "d")
    other, session = stage.session("c", "d"), stage.session("c", "d")
    group = (CommandTransaction((("c", Seal(at(3))),)), CommandTransaction((("d", Seal(at(0))),)))
    stage.fail(CompareAndSet, Fault.MISREPORTED)
    stage.before(Scan, lambda: stage.commit(other, ExpireCommitter(session.committer)), nth=2)
    first, _ = stage.run(commit_transactions(session, *group))
    assert first == (at(3),)
    assert stage.head("c").upper == at(3)


def test_group_reported_as_lost_is_in_doubt_if_nothing_tells_any_more() -> None:
    stage = ProtocolHarness()
    other, session = stage.session(), stage.session()
    stage.fail(CompareAndSet, Fault.MISREPORTED)
    stage.before(Scan, lambda: take_over(stage, other, session))
    with pytest.raises(Fenced, match="expired before it knew whether group 1 is in") as raised:
        stage.run(append(session))
    assert raised.value.in_doubt
    assert stage.head().upper == at(1)


def test_group_reported_as_lost_stays_in_doubt_until_storage_can_be_read() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    stage.fail(CompareAndSet, Fault.MISREPORTED)
    stage.fail(Scan, Fault.DETERMINATE, times=CONFIG.storage_attempts)
    with pytest.raises(Indeterminate, match="may or may not be committed"):
        stage.run(append(session))
    assert stage.run(resolve(session)) is True
    assert stage.rows(0) == {f"{session.writer}-0": 1}


def test_frozen_group_that_is_sent_again_and_reported_as_lost_is_in() -> None:
    stage, session = frozen_append(Fault.NOT_DONE)
    stage.fail(CompareAndSet, Fault.MISREPORTED)
    assert stage.run(resolve(session)) is True
    assert stage.head().upper == at(1)


def test_conflict_that_is_reported_though_nothing_is_there_is_tried_again() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    stage.answer(CompareAndSet, lambda effect: {"c": effect.writes[0][1]})
    assert stage.run(append(session)) == at(1)
    assert session.counters["lost"] == 1


def test_sink_batch_that_storage_reports_as_lost_is_in_once_and_not_refused_as_known() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    stage.fail(CompareAndSet, Fault.MISREPORTED)
    assert stage.run(commit(session, "c", CommitSink("s", 0), Seal(at(3)))) == (None, at(3))
    assert stage.head().sinks == {"s": 0}


def test_nothing_frozen_is_nothing_to_resolve() -> None:
    stage = ProtocolHarness()
    assert stage.run(resolve(stage.session())) is None
    assert not stage.effects


@pytest.mark.parametrize("fault", [Fault.DONE, Fault.NOT_DONE])
def test_frozen_group_is_in_before_the_next_commit(fault: Fault) -> None:
    stage, session = frozen_append(fault)
    (sent,) = set(stage.of(CompareAndSet))
    assert stage.run(append(session, expected=1, upper=2)) == at(2)
    assert stage.of(CompareAndSet)[0] == sent
    assert session.frozen is None
    assert stage.rows(1) == {f"{session.writer}-0": 1, f"{session.writer}-1": 1}


@pytest.mark.parametrize("fault", [Fault.DONE, Fault.NOT_DONE])
def test_frozen_group_that_is_in_is_resolved_as_true(fault: Fault) -> None:
    stage, session = frozen_append(fault)
    assert stage.run(resolve(session)) is True
    assert session.state("c").upper == at(1)
    assert stage.head().seqno == 2


def test_frozen_group_whose_slot_was_taken_is_resolved_as_false_and_never_comes_in() -> None:
    stage, session = frozen_append(Fault.NOT_DONE)
    other = stage.session()
    assert stage.run(resolve(session)) is False
    assert session.frozen is None
    assert stage.run(append(other)) == at(1)
    assert stage.rows(0) == {f"{other.writer}-0": 1}


def test_session_stays_frozen_while_storage_does_not_answer() -> None:
    stage, session = frozen_append(Fault.DONE)
    frozen = session.frozen
    stage.fail(CompareAndSet, Fault.NOT_DONE, times=CONFIG.storage_attempts)
    with pytest.raises(Indeterminate):
        stage.run(append(session, expected=1, upper=2))
    assert session.frozen is frozen
    assert session.group == 1  # the next group has not even begun
    assert stage.run(append(session, expected=1, upper=2)) == at(2)


def test_frozen_group_is_resolved_before_the_session_enters_another_collection() -> None:
    stage, session = frozen_append(Fault.NOT_DONE)
    stage.run(create_or_find(stage.stranger(), "d"))
    stage.run(register_session(session, "d"))
    assert stage.of(CompareAndSet)[0].writes[0][0] == "c"
    assert session.frozen is None
    assert stage.head("c").upper == at(1)


# Fencing.


def take_over(stage: ProtocolHarness, other: Session, session: Session) -> None:
    """Expire a session's committer, and cut the log beyond that: nothing tells which groups of it are in."""
    stage.commit(other, ExpireCommitter(session.committer))
    stage.run(roll_up(other, "c"))
    stage.run(collect_garbage(other, "c"))


def test_committer_expired_while_its_group_is_unknown_is_fenced_and_not_told_a_mismatch() -> None:
    stage = ProtocolHarness()
    other, session = stage.session(), stage.session()

    stage.fail(CompareAndSet, Fault.DONE)
    stage.before(CompareAndSet, lambda: take_over(stage, other, session), nth=2)
    with pytest.raises(Fenced, match="expired before it knew whether group 1 is in") as raised:
        stage.run(append(session))
    assert raised.value.in_doubt
    assert session.frozen is None
    with pytest.raises(Fenced, match="no longer registered"):
        stage.run(append(session, expected=1, upper=2))
    assert stage.head().upper == at(1)


@pytest.mark.parametrize("fault", [Fault.DONE, Fault.NOT_DONE])
@pytest.mark.parametrize("expired_by", ["c", "d"])
def test_collection_that_still_knows_the_committer_resolves_the_group_for_all(expired_by: str, fault: Fault) -> None:
    stage = ProtocolHarness("c", "d")
    other, session = stage.session("c", "d"), stage.session("c", "d")
    appends = [("c", data_of([up("x", 0)]), at(0), at(1)), ("d", data_of([up("y", 0)]), at(0), at(2))]
    stage.fail(CompareAndSet, fault)
    stage.before(CompareAndSet, lambda: stage.commit(other, ExpireCommitter(session.committer), name=expired_by), nth=2)
    reply = stage.run(append_data_to_many(session, appends))
    if fault is Fault.DONE:
        assert reply == (at(1), at(2))
    else:
        reason = refused(reply)
        assert isinstance(reason, Fenced)
        assert str(reason) == f"committer {session.committer} is not registered in {expired_by}"
        assert (stage.head("c").upper, stage.head("d").upper) == (at(0), at(0))
    assert session.frozen is None


@pytest.mark.parametrize("expired_by", ["c", "d"])
def test_committer_expired_in_one_collection_commits_to_the_others(expired_by: str) -> None:
    stage = ProtocolHarness("c", "d")
    other, session = stage.session("c", "d"), stage.session("c", "d")
    stage.commit(other, ExpireCommitter(session.committer), name=expired_by)
    seals = [CommandTransaction(((name, Seal(at(3))),)) for name in ("c", "d")]
    both = CommandTransaction((("c", Seal(at(4))), ("d", Seal(at(4)))))
    replies = stage.run(commit_transactions(session, seals[0], both, seals[1]))
    (fenced, atomic, done) = (replies[0], replies[1], replies[2]) if expired_by == "c" else replies[::-1]
    assert isinstance(refused(fenced), Fenced)
    assert isinstance(refused(atomic), Fenced)
    assert done == (at(3),)
    left = "d" if expired_by == "c" else "c"
    assert (stage.head(expired_by).upper, stage.head(left).upper) == (at(0), at(3))
    with pytest.raises(Fenced, match=f"of {expired_by} is no longer registered"):
        stage.run(commit(session, expired_by, Seal(at(3))))
    assert session.committer not in stage.head(expired_by).committers


def test_committer_expired_everywhere_is_fenced_with_its_whole_group() -> None:
    stage = ProtocolHarness("c", "d")
    other, session = stage.session("c", "d"), stage.session("c", "d")
    for name in ("c", "d"):
        stage.commit(other, ExpireCommitter(session.committer), name=name)
    with pytest.raises(Fenced, match="of c, d is no longer registered"):
        stage.run(commit_transactions(session, *(CommandTransaction(((name, Seal(at(3))),)) for name in ("c", "d"))))
    assert (stage.head("c").upper, stage.head("d").upper) == (at(0), at(0))


def test_committer_expired_while_frozen_is_fenced_by_its_next_commit() -> None:
    stage, session = frozen_append(Fault.NOT_DONE)
    stage.commit(stage.session(), ExpireCommitter(session.committer))
    with pytest.raises(Fenced, match="no longer registered") as raised:
        stage.run(append(session))
    assert not raised.value.in_doubt
    assert stage.head().upper == at(0)


@pytest.mark.parametrize(("fault", "is_in"), [(Fault.DONE, True), (Fault.NOT_DONE, False)])
def test_group_of_an_expired_committer_is_known_by_its_slot_while_the_log_has_it(fault: Fault, is_in: bool) -> None:
    stage, session = frozen_append(fault)
    stage.commit(stage.session(), ExpireCommitter(session.committer))
    assert stage.run(resolve(session)) is is_in
    assert session.frozen is None


def test_committer_that_was_expired_while_frozen_does_not_come_back_by_entering_again() -> None:
    stage, session = frozen_append(Fault.DONE)
    take_over(stage, stage.session(), session)
    with pytest.raises(Fenced):
        stage.run(register_session(session, "c"))
    assert session.committer not in stage.head().committers


def test_committer_whose_lease_lapsed_is_fenced_and_never_registers_itself_again() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    stage.now_ms += CONFIG.writer_lease_ms + 1
    assert stage.run(expire_lapsed_leases(stage.session(), "c")) == 2
    for _ in range(2):
        with pytest.raises(Fenced, match=session.committer):
            stage.run(append(session))
    assert session.committer not in stage.head().committers


def test_committer_keeps_its_lease_by_committing() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    for number in range(1, 4):
        stage.now_ms += CONFIG.writer_lease_ms // 2
        stage.commit(session, Seal(at(number)))
    assert stage.head().committers[session.committer].until_ms == stage.now_ms + CONFIG.writer_lease_ms


def test_session_that_commits_regularly_is_never_fenced_however_long_it_lives() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    for number in range(40):
        stage.now_ms += CONFIG.writer_lease_ms - 1
        assert stage.run(append(session, number, number + 1)) == at(number + 1)
        stage.run(expire_lapsed_leases(stage.session(), "c"))
    until = stage.now_ms + CONFIG.writer_lease_ms
    assert stage.head().writers[session.writer].until_ms == until
    assert stage.head().committers[session.committer].until_ms == until
    assert len(list(stage.head().keys())) > 1  # of its own writer, the last of them as good as the first
    stage.agree()


def test_commit_to_one_collection_extends_the_lease_of_the_writer_there_alone() -> None:
    stage = ProtocolHarness("c", "d")
    session = stage.session("c", "d")
    before = stage.head("d").writers[session.writer]
    stage.now_ms += CONFIG.writer_lease_ms // 2
    stage.commit(session, Seal(at(1)))
    assert stage.head("c").writers[session.writer].until_ms == stage.now_ms + CONFIG.writer_lease_ms
    assert stage.head("d").writers[session.writer] == before


def test_writer_that_was_expired_does_not_come_back_by_commits_of_its_session() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    stage.expire_writer(stage.session(), session.writer)
    stage.commit(session, Seal(at(1)))
    assert session.writer not in stage.head().writers
    assert isinstance(refused(stage.run(append(session, 1, 2))), Fenced)


@pytest.mark.parametrize("fault", [Fault.DONE, Fault.MISREPORTED])
def test_committer_that_removes_itself_by_its_own_clock_is_told_so(fault: Fault) -> None:
    stage = ProtocolHarness()
    session = stage.session()
    stage.now_ms += CONFIG.writer_lease_ms + 1
    stage.fail(CompareAndSet, fault)
    assert stage.run(expire_lapsed_leases(session, "c")) == 2
    assert not stage.head().committers


def test_group_that_somebody_else_committed_under_the_same_name_is_fenced() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    twin = Session(session.committer, stage.fresh("w"), CONFIG)
    stage.commit(session, Seal(at(1)))
    with pytest.raises(Fenced, match="committed by another session of that id"):
        stage.run(commit(twin, "c", Seal(at(2))))


def test_collection_that_the_session_never_entered_is_closed_to_it() -> None:
    stage = ProtocolHarness()
    with pytest.raises(Fenced):
        stage.run(commit(stage.stranger(), "c", Seal(at(1))))


# Entering.


def test_entering_registers_committer_and_writer_in_one_commit() -> None:
    stage = ProtocolHarness()
    session = stage.stranger()
    stage.run(register_session(session, "c"))
    assert session.state("c") == stage.head()
    assert stage.head().seqno == 1
    lease = stage.now_ms + CONFIG.writer_lease_ms
    assert stage.head().writers[session.writer].until_ms == lease
    assert stage.head().committers[session.committer].until_ms == lease
    assert session.group == 0


def test_entering_many_collections_is_one_commit() -> None:
    stage = ProtocolHarness("a", "b", "c")
    session = stage.stranger()
    stage.run(register_session(session, "c", "a", "b"))
    assert [len(each.writes) for each in stage.effects if isinstance(each, CompareAndSet)] == [3]
    assert all(session.writer in stage.head(name).writers for name in "abc")


@pytest.mark.parametrize("fault", list(Fault))
def test_entering_survives_a_lost_reply(fault: Fault) -> None:
    stage = ProtocolHarness()
    session = stage.stranger()
    stage.fail(CompareAndSet, fault)
    stage.run(register_session(session, "c"))
    assert session.frozen is None
    assert session.committer in stage.head().committers
    assert stage.run(append(session)) == at(1)


def test_entering_whose_slot_was_taken_is_done_again() -> None:
    stage = ProtocolHarness()
    session, other = stage.stranger(), stage.session()
    stage.fail(CompareAndSet, Fault.NOT_DONE)
    stage.before(CompareAndSet, lambda: stage.disturb(other), nth=2)
    stage.run(register_session(session, "c"))
    assert session.committer in stage.head().committers


def test_entering_a_collection_that_is_not_there_is_a_usage_error() -> None:
    stage = ProtocolHarness()
    with pytest.raises(UsageError):
        stage.run(register_session(stage.stranger(), "nowhere"))


# Without a committer.


def of_reader(*commands: transitions.Command) -> CommandTransaction:
    return CommandTransaction(tuple(("c", each) for each in commands))


def test_a_reader_registers_moves_and_ends_its_lease_without_a_committer() -> None:
    stage = ProtocolHarness()
    session = stage.stranger()
    (granted,) = stage.run(commit_repeatable(session, of_reader(RegisterReader("r", None, 1000))))
    assert (granted[0].since, granted[0].seqno) == (at(0), 0)
    stage.run(commit_repeatable(session, of_reader(DowngradeReader("r", at(3), None))))
    assert stage.head().readers["r"].since == at(3)
    stage.run(commit_repeatable(session, of_reader(ExpireReader("r"))))
    assert (stage.head().seqno, stage.head().readers) == (3, {})
    assert (stage.head().committers, stage.head().writers, session.group) == ({}, {}, 0)


@pytest.mark.parametrize("fault", list(Fault))
def test_a_lease_is_registered_once_though_the_reply_was_lost(fault: Fault) -> None:
    stage = ProtocolHarness()
    session = stage.stranger()
    stage.fail(CompareAndSet, fault)
    stage.run(commit_repeatable(session, of_reader(RegisterReader("r", None, 1000))))
    assert session.frozen is None
    assert list(stage.head().readers) == ["r"]
    assert stage.head().seqno == 1


def test_only_commands_that_may_be_repeated_need_no_committer() -> None:
    lease = RegisterReader("r", None, 1000)
    assert is_repeatable(of_reader(lease, ExpireReader("q"), DowngradeReader("q", None, None)))
    assert not is_repeatable(of_reader(lease, Retain(at(1))))
    assert not is_repeatable(CommandTransaction((("c", lease),), (("c", at(0)),))), "what it has read may have moved"


# What a session keeps.


def test_session_keeps_the_newest_state_it_has_seen() -> None:
    session = Session("k", "w")
    old = new_state("c")
    new = msgspec.structs.replace(old, seqno=3)
    for state in (old, new, old):
        session.remember_state(state)
    assert session.state("c") is new


def test_session_counts_what_happens() -> None:
    session = Session("k", "w")
    session.count("one")
    session.count("one", 4)
    assert session.counters == {"one": 5}


def test_hold_registered_by_a_lost_reply_is_granted_once() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    stage.fail(CompareAndSet, Fault.DONE)
    (granted,) = accepted(stage.run(commit(session, "c", RegisterHold("h", at(0), "t"))))
    assert granted.since == at(0)
    assert list(stage.head().holds) == ["h"]


def test_a_batch_of_a_sink_that_is_in_is_an_error_of_its_own() -> None:
    with pytest.raises(BatchAlreadyCommitted, match="number 7"):
        raise_refusal(Refused(AlreadyCommitted(7), ()))


def test_refusal_of_rows_that_their_own_process_looks_for_changes_nothing() -> None:
    with pytest.raises(Determinate, match="looks for them itself"):
        raise_refusal(Refused(StaleOrigins(("k2",)), ()))


# Collections that are born with a group.


NAMES = encode_state(new_state("names"))
"""The entry of another log that appears with it."""


def born(session: Session, *, head: int | None = None) -> Any:
    """Create a collection `n` together with an entry of another log, and an append to `c`."""
    session.states["n"] = with_session_registered(pending_state(new_state("n")), session, 0)
    commands = (("n", AddSchema(None, b"s")), ("n", Seal(at(5))), ("c", Seal(at(3))))
    return commit_transactions(session, CommandTransaction(commands), extra_writes=(("names", head, NAMES),))


def test_collection_is_born_together_with_its_name_and_what_else_was_committed() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    stage.run(born(session))
    assert len(stage.of(CompareAndSet)) == 1
    other = stage.session()
    state = stage.run(refresh_state(other, "n"))
    assert state is not None
    assert (state.seqno, state.upper, state.schemas) == (0, at(5), (b"s",))
    assert stage.head().upper == at(3)
    assert stage.run(commit(session, "n", Seal(at(6)))) == (at(6),), "and the session is registered with it"
    assert stage.run(refresh_state(other, "n")) == session.state("n")


def test_nothing_is_born_beside_a_head_that_has_moved() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    stage.run(born(session))
    before = stage.head()
    with pytest.raises(SideLogMoved):
        stage.run(born(session))
    assert stage.head() == before


def test_nothing_is_born_if_the_transaction_is_refused() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    stage.run(commit(session, "c", Seal(at(4))))
    (reply,) = stage.run(born(session))
    assert isinstance(reply, Refused)
    assert stage.run(refresh_state(stage.session(), "n")) is None


@pytest.mark.parametrize("fault", [Fault.NOT_DONE, Fault.DONE, Fault.MISREPORTED])
def test_birth_whose_reply_was_lost_happens_once(fault: Fault) -> None:
    stage = ProtocolHarness()
    session = stage.session()
    stage.fail(CompareAndSet, fault)
    stage.run(born(session))
    state = stage.run(refresh_state(session, "n"))
    assert state is not None
    assert (state.seqno, state.upper) == (0, at(5))
    assert stage.head().upper == at(3)


def test_collection_that_was_to_be_born_tells_that_its_group_is_not_in() -> None:
    stage = ProtocolHarness()
    session = stage.session()

    def somebody_else() -> Any:
        yield CompareAndSet((("names", None, NAMES),))

    stage.fail(CompareAndSet, Fault.NOT_DONE)
    stage.before(CompareAndSet, lambda: stage.run(somebody_else()), nth=2)
    with pytest.raises(SideLogMoved):
        stage.run(born(session))
    assert session.frozen is None
    assert stage.run(refresh_state(stage.session(), "n")) is None
    assert stage.head().upper == at(0)


def test_entry_beside_a_group_that_is_not_there_tells_that_the_group_is_not_in() -> None:
    stage = ProtocolHarness()
    other, session = stage.session(), stage.session()
    stage.before(CompareAndSet, lambda: stage.commit(other, ExpireCommitter(session.committer)))
    with pytest.raises(Fenced, match="no longer registered") as raised:
        stage.run(
            commit_transactions(
                session, CommandTransaction((("c", Seal(at(3))),)), extra_writes=(("names", None, NAMES),)
            )
        )
    assert not raised.value.in_doubt

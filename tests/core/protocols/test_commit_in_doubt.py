"""Groups in doubt: lost replies, frozen sessions, and storage that reports its own success as a conflict."""

from __future__ import annotations

from typing import Any

import pytest
from commit_cases import append, frozen_append, take_over
from protocol_harness import CONFIG, Fault, ProtocolHarness, at, refused, up

from timespine.core.effects import CompareAndSet, Scan
from timespine.core.group import CommandTransaction
from timespine.core.protocols.commit import commit, commit_transactions, register_session, resolve
from timespine.core.protocols.garbage import collect_garbage
from timespine.core.protocols.maintain import roll_up
from timespine.core.protocols.session import Session
from timespine.core.state import State
from timespine.core.transitions import AppendNextResult, CommitSink, ExpireCommitter, Seal
from timespine.errors import Fenced, Indeterminate, StoreFenced, UpperMismatch
from timespine.testing.create_or_find import create_or_find
from timespine.testing.formats.naive import data_of
from timespine.testing.simulator import core_writes
from timespine.testing.simulator.core_writes import append_data_to_many

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


@pytest.mark.parametrize("fault", [Fault.DONE, Fault.NOT_DONE])
def test_group_in_doubt_is_looked_for_once_the_store_is_fenced(fault: Fault) -> None:
    """It cannot be sent again: what the log has decides."""
    stage, session = frozen_append(fault)

    def refuse(effect: CompareAndSet) -> None:
        raise StoreFenced("the epoch is higher")

    stage.answer(CompareAndSet, refuse)
    assert stage.run(resolve(session)) is (fault is Fault.DONE)
    assert session.frozen is None


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


def test_group_whose_slot_another_process_took_is_judged_again() -> None:
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


def test_group_reported_as_lost_is_in_doubt_if_the_log_was_cut() -> None:
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

"""Commits: judged on the newest state, in once or not at all, and never in doubt for long."""

from __future__ import annotations

from typing import Any

import pytest
from commit_cases import append
from protocol_harness import CONFIG, Fault, ProtocolHarness, at, configured, refused, up

from timespine.core.effects import CompareAndSet, GetBlob, Now, PutBlob, Scan, Sleep
from timespine.core.group import CommandTransaction, Group, Refused
from timespine.core.protocols.commit import commit, commit_group, commit_transactions, register_session, resolve
from timespine.core.protocols.load_state import refresh_state
from timespine.core.protocols.session import pause_ms, retry_determinate
from timespine.core.transitions import CompareAndAppend, RegisterCommitter, Retain, Seal
from timespine.errors import Determinate, Indeterminate, NoSpace, UpperMismatch, UsageError

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


def test_lost_compare_and_set_is_judged_again_without_reading_or_writing_data() -> None:
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

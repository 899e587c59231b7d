"""Sessions that are fenced, commits without a committer, and collections that a group creates."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from commit_cases import append, frozen_append, take_over
from protocol_harness import CONFIG, Fault, ProtocolHarness, accepted, at, refused, up

from timespine.core import transitions
from timespine.core.effects import CompareAndSet
from timespine.core.encoding.codec import encode_state
from timespine.core.group import CommandTransaction, Refused, StaleOrigins
from timespine.core.protocols.commit import (
    SideLogMoved,
    commit,
    commit_repeatable,
    commit_transactions,
    is_repeatable,
    pending_state,
    raise_refusal,
    register_session,
    resolve,
    with_session_registered,
)
from timespine.core.protocols.load_state import refresh_state
from timespine.core.protocols.maintain import expire_lapsed_leases
from timespine.core.protocols.session import Session
from timespine.core.state import new_state
from timespine.core.transitions import (
    AddSchema,
    AlreadyCommitted,
    DowngradeReader,
    ExpireCommitter,
    ExpireReader,
    RegisterHold,
    RegisterReader,
    Retain,
    Seal,
)
from timespine.errors import BatchAlreadyCommitted, Determinate, Fenced
from timespine.testing.formats.naive import data_of
from timespine.testing.simulator.core_writes import append_data_to_many

# Fencing.


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


def test_group_that_another_process_committed_under_the_same_name_is_fenced() -> None:
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


# Collections that a group creates.


NAMES = encode_state(new_state("names"))
"""The entry of another log that appears with it."""


def create_in_group(session: Session, *, head: int | None = None) -> Any:
    """Create a collection `n` together with an entry of another log, and an append to `c`."""
    session.states["n"] = with_session_registered(pending_state(new_state("n")), session, 0)
    commands = (("n", AddSchema(None, b"s")), ("n", Seal(at(5))), ("c", Seal(at(3))))
    return commit_transactions(session, CommandTransaction(commands), extra_writes=(("names", head, NAMES),))


def test_collection_is_created_together_with_its_name_and_the_rest_of_the_commit() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    stage.run(create_in_group(session))
    assert len(stage.of(CompareAndSet)) == 1
    other = stage.session()
    state = stage.run(refresh_state(other, "n"))
    assert state is not None
    assert (state.seqno, state.upper, state.schemas) == (0, at(5), (b"s",))
    assert stage.head().upper == at(3)
    assert stage.run(commit(session, "n", Seal(at(6)))) == (at(6),), "and the session is registered with it"
    assert stage.run(refresh_state(other, "n")) == session.state("n")


def test_nothing_is_created_beside_a_head_that_has_moved() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    stage.run(create_in_group(session))
    before = stage.head()
    with pytest.raises(SideLogMoved):
        stage.run(create_in_group(session))
    assert stage.head() == before


def test_nothing_is_created_if_the_transaction_is_refused() -> None:
    stage = ProtocolHarness()
    session = stage.session()
    stage.run(commit(session, "c", Seal(at(4))))
    (reply,) = stage.run(create_in_group(session))
    assert isinstance(reply, Refused)
    assert stage.run(refresh_state(stage.session(), "n")) is None


@pytest.mark.parametrize("fault", [Fault.NOT_DONE, Fault.DONE, Fault.MISREPORTED])
def test_birth_whose_reply_was_lost_happens_once(fault: Fault) -> None:
    stage = ProtocolHarness()
    session = stage.session()
    stage.fail(CompareAndSet, fault)
    stage.run(create_in_group(session))
    state = stage.run(refresh_state(session, "n"))
    assert state is not None
    assert (state.seqno, state.upper) == (0, at(5))
    assert stage.head().upper == at(3)


def test_missing_pending_collection_shows_that_its_group_is_not_committed() -> None:
    stage = ProtocolHarness()
    session = stage.session()

    def another_process() -> Any:
        yield CompareAndSet((("names", None, NAMES),))

    stage.fail(CompareAndSet, Fault.NOT_DONE)
    stage.before(CompareAndSet, lambda: stage.run(another_process()), nth=2)
    with pytest.raises(SideLogMoved):
        stage.run(create_in_group(session))
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

"""How anything gets committed: judge, compare-and-set the diffs, and never be in doubt.

A compare-and-set that is lost to somebody else is judged again on the new state;
nothing is read or written but the logs. One whose reply was lost freezes the
session: the same bytes are sent again until it is known whether they are in. The
slot decides: our entry goes to one sequence number, so once somebody else's is
there, ours can never be.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

import msgspec

from timespine.core.codec import encode_diff, encode_state
from timespine.core.diff import diff
from timespine.core.effects import CompareAndSet, Now, Protocol, Sleep
from timespine.core.group import Answers, CommittedBefore, Group, Judged, Refused, Transaction, judge
from timespine.core.protocols.fetch import refresh
from timespine.core.protocols.session import Frozen, Session, determinately_retried, pause_ms
from timespine.core.state import UNBORN, Commit, State
from timespine.core.transitions import AlreadyCommitted, Command, RegisterCommitter, RegisterWriter, apply
from timespine.errors import AlreadyIn, Determinate, Fenced, Indeterminate, TimespineError, Unavailable, UsageError

Replies = tuple[Answers | Refused, ...]

Beside = tuple[tuple[str, int | None, bytes], ...]
"""Entries of other logs that must appear together with a group: (key, the head they follow, bytes)."""


class Moved(Determinate):
    """What was to appear beside a group follows a head that is not the newest any more. Nothing was committed."""


def enter(session: Session, *collections: str) -> Protocol[None]:
    """Register the session's committer and writer with some collections at once, once per session.

    SUBTLE: a session that was expired must not come back under the same id, or a
    group of it whose outcome is unknown could be applied twice. So this is done
    only before the first commit (tests/core/test_commit.py).
    """
    yield from resolve(session)
    term = session.config.writer_lease_ms
    commands = (RegisterCommitter(session.committer, term), RegisterWriter(session.writer, term))
    group = Group(tuple(Transaction(tuple((name, each) for each in commands)) for name in collections))
    for reply in (yield from commit_group(session, group)):
        if isinstance(reply, Refused):
            raise_refusal(reply)


def raise_refusal(refused: Refused) -> NoReturn:
    """Raise what a caller that cannot go on was refused for."""
    if isinstance(refused.reason, AlreadyCommitted):
        last = refused.reason.last
        error: TimespineError = AlreadyIn(f"this batch was committed before: the last one that was has number {last}")
    else:
        error = refused.reason if isinstance(refused.reason, TimespineError) else UsageError(str(refused.reason))
    error.seqnos = refused.seqnos
    raise error


def commit(session: Session, collection: str, *commands: Command) -> Protocol[Answers | Refused]:
    """Commit some commands to one collection, all or nothing; their replies."""
    replies = yield from commit_transactions(session, Transaction(tuple((collection, each) for each in commands)))
    return replies[0]


def commit_transactions(session: Session, *transactions: Transaction, beside: Beside = ()) -> Protocol[Replies]:
    """Commit transactions as the session's next group; their replies in order."""
    yield from resolve(session)
    session.group += 1
    group = Group(transactions, session.committer, session.group, session.writer)
    return (yield from commit_group(session, group, beside))


def unborn(first: State) -> State:
    """The first state of a collection that is not there yet: it is born with the group that names it."""
    return msgspec.structs.replace(first, seqno=UNBORN)


def entered(state: State, session: Session, now_ms: int) -> State:
    """The state of a collection that is not there yet, with the session registered: nobody else can be."""
    term = session.config.writer_lease_ms
    for command in (RegisterCommitter(session.committer, term), RegisterWriter(session.writer, term)):
        outcome = apply(state, command, now_ms)
        assert isinstance(outcome, Commit)  # nobody had these ids before
        state = outcome.state
    return state


def commit_group(session: Session, group: Group, beside: Beside = ()) -> Protocol[Replies]:
    """Judge and compare-and-set until the group is in, or has nothing to put in.

    What is to appear beside it does so if the group changes anything. Moved, if that is stale by now.
    """
    states = yield from _known_states(session, group)
    for _ in range(session.config.commit_attempts):
        judged = judge(states, group, (yield Now()))
        if isinstance(judged, Fenced):
            raise judged
        if isinstance(judged, CommittedBefore):
            raise Fenced(f"group {group.number} of {group.committer} was committed by somebody else")
        # Every answer must be that of now: a state that no compare-and-set will check is read again.
        unchecked = [name for name in states if name not in judged.changed]
        newest = yield from _refreshed(session, states, unchecked)
        if any(newest[name] is not states[name] for name in unchecked):
            states = newest
            continue
        if not judged.changed or (yield from _store(session, group, judged, states, beside)):
            return judged.replies
        states = yield from _refreshed(session, states, states)
    raise Determinate(f"lost {session.config.commit_attempts} compare-and-sets in a row: try again later")


def resolve(session: Session) -> Protocol[bool | None]:
    """Find out what became of the frozen group: True, in; False, not in; None if nothing is frozen.

    Raises Indeterminate if storage still does not say; the group stays frozen.
    """
    frozen = session.frozen
    if frozen is None:
        return None
    for attempt in range(session.config.storage_attempts):
        try:
            mismatch = yield CompareAndSet(frozen.writes)
            happened = mismatch is None or (yield from _is_recorded(session, frozen))
        except Unavailable:
            # SUBTLE: also "did not happen" is no answer here: an earlier try may have
            # (test_commit.py).
            session.count("retries")
            yield Sleep(pause_ms(session.config, attempt))
            continue
        session.frozen = None
        if mismatch is None:
            _learn(session, frozen.judged)
        return happened
    raise Indeterminate(
        f"group {frozen.group.number} of {frozen.group.committer} may or may not be committed: "
        "storage does not answer; it will be resolved before the next commit"
    )


def _store(session: Session, group: Group, judged: Judged, states: dict[str, State], beside: Beside) -> Protocol[bool]:
    """Compare-and-set all diffs at once, and what appears beside them; whether they are in."""
    writes = (*beside, *(_entry(states[name], state) for name, state in judged.changed.items()))
    try:
        mismatch = yield from determinately_retried(session, CompareAndSet(writes))
    except Indeterminate:
        session.count("indeterminate")
        session.frozen = Frozen(group, judged, writes)
        return bool((yield from resolve(session)))
    if mismatch is not None:
        session.count("lost")
        if any(key in mismatch for key, _, _ in beside):
            raise Moved("somebody else was first: look again, and try again")
        return False
    session.count("commits")
    _learn(session, judged)
    return True


def _entry(old: State, new: State) -> tuple[str, int | None, bytes]:
    """What a commit stores of one collection: a diff, or all of it if it was not there."""
    if old.seqno == UNBORN:
        return old.collection, None, encode_state(new)
    return old.collection, old.seqno, encode_diff(diff(old, new))


def _is_recorded(session: Session, frozen: Frozen) -> Protocol[bool]:
    """Whether the group's number is in the states by now. All have it or none has: one will do."""
    committer, number = frozen.group.committer, frozen.group.number
    known: list[bool] = []
    for collection in frozen.judged.changed:
        state = yield from refresh(session, collection)
        if state is not None and committer in state.committers:
            # One that was to be born with the group and is not there says that it is not in.
            known.append(state.seqno != UNBORN and state.committers[committer].group >= number)
    if committer is None:
        return False  # only commands that may be repeated come without a committer: judge them again
    if not known:
        session.frozen = None
        raise Fenced(
            f"committer {committer} was expired before it knew whether group {number} is in: reopen", in_doubt=True
        )
    return any(known)


def _learn(session: Session, judged: Judged) -> None:
    """Keep the states that were just committed."""
    for state in judged.changed.values():
        session.learn(state)


def _known_states(session: Session, group: Group) -> Protocol[dict[str, State]]:
    """The states to judge by: cached ones are good enough, since the compare-and-set checks them."""
    states: dict[str, State] = {}
    for collection in group.collections():
        state = session.states.get(collection)
        if state is None:
            state = yield from refresh(session, collection)
        if state is not None:
            states[collection] = state
    return states


def _refreshed(session: Session, states: dict[str, State], names: Iterable[str]) -> Protocol[dict[str, State]]:
    """The states with those of some names read again."""
    newest = dict(states)
    for collection in list(names):
        state = yield from refresh(session, collection)
        newest[collection] = states[collection] if state is None else state
    return newest

"""How anything gets committed: judge, compare-and-set the diffs, and never be in doubt.

A compare-and-set that is lost to somebody else is judged again on the new state;
nothing is read or written but the logs. One whose reply was lost freezes the
session: the same bytes are sent again until it is known whether they are in. The
slot decides: our entry goes to one sequence number, so once somebody else's is
there, ours can never be. That a compare-and-set was lost is believed only if the
logs say so too: a group of this session that they have is a success.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NoReturn

import msgspec

from timespine.core.effects import CompareAndSet, Now, Protocol, Scan, Sleep
from timespine.core.encoding.codec import encode_diff, encode_state
from timespine.core.encoding.state_diff import diff
from timespine.core.group import Answers, CommittedBefore, Group, Judged, Refused, Transaction, judge
from timespine.core.protocols.load_state import refresh
from timespine.core.protocols.session import Frozen, Session, determinately_retried, pause_ms, retried
from timespine.core.state import UNBORN, Commit, State
from timespine.core.transitions import (
    AlreadyCommitted,
    Command,
    DowngradeReader,
    ExpireReader,
    RegisterCommitter,
    RegisterReader,
    RegisterWriter,
    TurnTaken,
    apply,
)
from timespine.errors import BatchAlreadyCommitted, Determinate, Fenced, Indeterminate, TimespineError, Unavailable

Replies = tuple[Answers | Refused, ...]

Beside = tuple[tuple[str, int | None, bytes], ...]
"""Entries of other logs that must appear together with a group: (key, the head they follow, bytes)."""


class Moved(Determinate):
    """What was to appear beside a group follows a head that is not the newest any more. Nothing was committed."""


def enter(session: Session, *collections: str) -> Protocol[None]:
    """Register the session's committer and writer with some collections at once, once per session.

    SUBTLE: a session that was expired must not come back under the same id, or a
    group of it whose outcome is unknown could be applied twice. So this is done
    only before the first commit (tests/core/protocols/test_commit.py).
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
        error: TimespineError = BatchAlreadyCommitted(
            f"this batch was committed before: the last one that was has number {last}"
        )
    elif isinstance(refused.reason, TurnTaken):
        error = Determinate("nothing was committed: a change of another process has its turn; try again")
    else:
        error = refused.reason
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


REPEATABLE = (RegisterReader, DowngradeReader, ExpireReader)
"""Commands that need no committer: to apply them twice is to apply them once."""


def is_repeatable(transaction: Transaction) -> bool:
    """Whether a transaction may be committed without a committer: by a process that only reads."""
    return not transaction.reads and all(isinstance(command, REPEATABLE) for _, command in transaction.commands)


def commit_repeatable(session: Session, *transactions: Transaction) -> Protocol[Replies]:
    """Commit repeatable transactions without registering anything; their replies in order.

    If a reply is lost, and storage does not tell the outcome, they are judged again: a lease that is there is
    granted as it is. A lease that was expired before it is judged again is registered once more. Both are harmless:
    a lease that has no owner lasts for its term (tests/client/read/test_read_path.py).
    """
    yield from resolve(session)
    return (yield from commit_group(session, Group(transactions)))


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
    has_looked = False
    for _ in range(session.config.commit_attempts):
        now_ms: int = yield Now()
        if not has_looked and _has_lapsed(states, group.committer, now_ms):
            # SUBTLE: a committer that slept past its lease looks before it sends anything: if it was expired, it is
            # fenced without doubt, however far the logs were cut meanwhile (test_group_commit.py).
            states, has_looked = (yield from _refreshed(session, states, states)), True
            continue
        judged = judge(states, group, now_ms)
        if isinstance(judged, Fenced):
            raise judged
        if isinstance(judged, CommittedBefore):
            raise Fenced(f"group {group.number} of {group.committer} was committed by another session of that id")
        # Every answer must be that of now: a state that no compare-and-set will check is read again.
        unchecked = [name for name in states if name not in judged.changed]
        newest = yield from _refreshed(session, states, unchecked)
        if any(newest[name] is not states[name] for name in unchecked):
            states = newest
            continue
        if not judged.changed:
            return judged.replies
        entries = (_entry(states[name], state) for name, state in judged.changed.items())
        sent = Frozen(group, judged, (*beside, *entries))
        lost = yield from _store(session, sent)
        if lost is None:
            return judged.replies
        states, is_in = yield from _looked_up(session, sent, states)
        if is_in:
            return judged.replies
        if any(key in lost for key, _, _ in beside):
            raise Moved("somebody else was first: look again, and try again")
    raise Determinate(f"lost {session.config.commit_attempts} compare-and-sets in a row: try again later")


def _has_lapsed(states: Mapping[str, State], committer: str | None, now_ms: int) -> bool:
    """Whether others may have expired a committer, by some of the states that are known."""
    leases = [state.committers.get(committer) for state in states.values()] if committer is not None else []
    return any(lease is not None and lease.until_ms < now_ms for lease in leases)


def resolve(session: Session) -> Protocol[bool | None]:
    """Find out what became of the frozen group: True, in; False, not in; None if nothing is frozen.

    Raises Indeterminate if storage still does not say; the group stays frozen.
    """
    frozen = session.frozen
    if frozen is None:
        return None
    reason = ""
    for attempt in range(session.config.storage_attempts):
        try:
            mismatch = yield CompareAndSet(frozen.writes)
            if mismatch is None:
                _learn(session, frozen.judged)
                happened = True
            else:
                newest = yield from _newest(session, frozen.judged.changed)
                happened = yield from _is_in(session, frozen, newest)
        except Unavailable as error:
            reason = str(error)
            # SUBTLE: also "did not happen" is no answer here: an earlier try may have
            # (test_commit.py).
            session.count("retries")
            yield Sleep(pause_ms(session.config, attempt))
            continue
        session.frozen = None
        return happened
    raise _in_doubt(frozen, reason)


def _in_doubt(frozen: Frozen, reason: str) -> Indeterminate:
    return Indeterminate(
        f"group {frozen.group.number} of {frozen.group.committer or 'a registration'} may or may not be committed: "
        f"storage does not say ({reason}); it will be resolved before the next commit"
    )


def _store(session: Session, sent: Frozen) -> Protocol[Mapping[str, int | None] | None]:
    """Compare-and-set all diffs at once, and what appears beside them.

    None: they are in. Otherwise the heads that differ, as storage says; none are named if a reply was lost.
    """
    try:
        mismatch: Mapping[str, int | None] | None
        mismatch = yield from determinately_retried(session, CompareAndSet(sent.writes))
    except Indeterminate:
        session.count("indeterminate")
        session.frozen = sent
        return None if (yield from resolve(session)) else {}
    if mismatch is None:
        session.count("commits")
        _learn(session, sent.judged)
    return mismatch


def _looked_up(session: Session, sent: Frozen, states: dict[str, State]) -> Protocol[tuple[dict[str, State], bool]]:
    """Read the states again after a loss; whether the group was lost only to itself.

    SUBTLE: a client library that sends a request again after a lost reply reports its own success as a conflict.
    So a loss is believed only when the states say the same, and until they were read the group is in doubt
    (test_commit.py, planted bug own_success_taken_for_a_conflict_is_committed_again).
    """
    session.frozen = sent
    try:
        newest = yield from _refreshed(session, states, states)
        is_in = yield from _is_in(session, sent, newest)
    except Unavailable as error:
        raise _in_doubt(sent, str(error)) from error
    session.frozen = None
    session.count("found committed" if is_in else "lost")
    return newest, is_in


def _entry(old: State, new: State) -> tuple[str, int | None, bytes]:
    """What a commit stores of one collection: a diff, or all of it if it was not there."""
    if old.seqno == UNBORN:
        return old.collection, None, encode_state(new)
    return old.collection, old.seqno, encode_diff(diff(old, new))


def _is_in(session: Session, sent: Frozen, states: Mapping[str, State]) -> Protocol[bool]:
    """Whether a group that was sent is in, by states that were read since.

    All collections that it changes have its number or none has, so one that knows the committer decides.
    """
    committer, number = sent.group.committer, sent.group.number
    if committer is None:
        return False  # only commands that may be repeated come without a committer: judge them again
    changed = [states[name] for name in sent.judged.changed if name in states]
    known = [
        # One that was to be born with the group and is not there says that it is not in.
        state.seqno != UNBORN and state.committers[committer].group >= number
        for state in changed
        if committer in state.committers
    ]
    return any(known) if known else (yield from _is_in_its_slot(session, sent))


def _is_in_its_slot(session: Session, sent: Frozen) -> Protocol[bool]:
    """Whether the entries of a group are where they were to go: all that tells if its committer was expired since.

    Fenced, in doubt, if the logs were cut beyond that.
    """
    for key, expected, data in sent.writes:
        slot = 0 if expected is None else expected + 1
        entries: list[tuple[int, bytes]] = yield from retried(session, Scan(key, slot, 1))
        if not entries:
            return False
        if entries[0][0] == slot and key in sent.judged.changed:
            return entries[0][1] == data
    session.frozen = None
    raise Fenced(
        f"committer {sent.group.committer} was expired before it knew whether group {sent.group.number} is in: reopen",
        in_doubt=True,
    )


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
    return {**states, **(yield from _newest(session, names))}


def _newest(session: Session, names: Iterable[str]) -> Protocol[dict[str, State]]:
    """The newest states of some collections, of those that are there."""
    found: dict[str, State] = {}
    for collection in list(names):
        state = yield from refresh(session, collection)
        if state is not None:
            found[collection] = state
    return found

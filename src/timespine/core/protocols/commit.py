"""The commit protocol: evaluate a group, compare-and-set the diffs, and never be in doubt.

After a compare-and-set that was lost to another process, the session evaluates the
group again on the new states, and reads and writes nothing but the logs. After a lost
reply the session is frozen: it sends the same bytes again until it knows whether they
are in. The slot decides: an entry goes to one sequence number, so once the entry of
another process is there, it can never be in. The session believes that it lost a
compare-and-set only if the logs agree: a group of this session in the logs is a success.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NoReturn

import msgspec

from timespine.core.effects import CompareAndSet, Now, Protocol, Scan, Sleep
from timespine.core.encoding.codec import encode_diff, encode_state
from timespine.core.encoding.state_diff import diff
from timespine.core.group import (
    AlreadyCommittedGroup,
    Answers,
    CommandTransaction,
    Evaluated,
    Group,
    Refused,
    StaleOrigins,
    evaluate,
)
from timespine.core.protocols.load_state import refresh_state
from timespine.core.protocols.session import InDoubt, Session, pause_ms, retry, retry_determinate
from timespine.core.state import SEQNO_NOT_CREATED, Commit, State
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
from timespine.errors import (
    BatchAlreadyCommitted,
    ClosedError,
    Contention,
    Determinate,
    Fenced,
    Indeterminate,
    StoreFenced,
    TimespineError,
    Unavailable,
)

Replies = tuple[Answers | Refused, ...]
"""The replies of a group: one per transaction, in order."""

ExtraWrites = tuple[tuple[str, int | None, bytes], ...]
"""Entries of other logs that must appear together with a group: (key, the head they follow, bytes)."""


class SideLogMoved(Determinate):
    """An extra write follows a head that is no longer the newest. Nothing was committed."""


def register_session(session: Session, *collections: str) -> Protocol[None]:
    """Register the session's committer and writer with collections at once, once per session.

    SUBTLE: an expired session must not register again under the same id, or a group of it whose outcome is unknown
    could be applied twice. So this runs only before the first commit (tests/core/protocols/test_commit.py).
    """
    yield from resolve(session)
    term = session.config.writer_lease_ms
    commands = (RegisterCommitter(session.committer, term), RegisterWriter(session.writer, term))
    group = Group(tuple(CommandTransaction(tuple((name, each) for each in commands)) for name in collections))
    for reply in (yield from commit_group(session, group)):
        if isinstance(reply, Refused):
            raise_refusal(reply)


def raise_refusal(refused: Refused) -> NoReturn:
    """Raise the error of a refusal, for a caller that cannot go on."""
    if isinstance(refused.reason, AlreadyCommitted):
        last = refused.reason.last
        error: TimespineError = BatchAlreadyCommitted(
            f"this batch was committed before: the last committed one has number {last}"
        )
    elif isinstance(refused.reason, TurnTaken):
        error = Determinate("nothing was committed: a change of another process has its turn; try again")
    elif isinstance(refused.reason, StaleOrigins):
        error = Determinate("nothing was committed: a process that handed its rows over looks for them itself")
    else:
        error = refused.reason
    error.seqnos = refused.seqnos
    raise error


def commit(session: Session, collection: str, *commands: Command) -> Protocol[Answers | Refused]:
    """Commit commands to one collection, all or nothing; return their replies."""
    replies = yield from commit_transactions(
        session, CommandTransaction(tuple((collection, each) for each in commands))
    )
    return replies[0]


def commit_transactions(
    session: Session, *transactions: CommandTransaction, extra_writes: ExtraWrites = ()
) -> Protocol[Replies]:
    """Commit transactions as the session's next group; return their replies in order."""
    yield from resolve(session)
    session.group += 1
    group = Group(transactions, session.committer, session.group, session.writer)
    return (yield from commit_group(session, group, extra_writes))


REPEATABLE = (RegisterReader, DowngradeReader, ExpireReader)
"""Commands that need no committer: to apply them twice is to apply them once."""


def is_repeatable(transaction: CommandTransaction) -> bool:
    """Tell whether a transaction may be committed without a committer: by a process that only reads."""
    return not transaction.reads and all(isinstance(command, REPEATABLE) for _, command in transaction.commands)


def commit_repeatable(session: Session, *transactions: CommandTransaction) -> Protocol[Replies]:
    """Commit repeatable transactions without registering anything; return their replies in order.

    If a reply is lost and storage does not tell the outcome, the session evaluates them again: it grants an existing
    lease as it is, and registers an expired lease once more. Both are harmless: a lease without an owner lasts for its
    term (tests/client/read/test_read_path.py).
    """
    yield from resolve(session)
    return (yield from commit_group(session, Group(transactions)))


def pending_state(first: State) -> State:
    """Return the first state of a collection that the group creates."""
    return msgspec.structs.replace(first, seqno=SEQNO_NOT_CREATED)


def with_session_registered(state: State, session: Session, now_ms: int) -> State:
    """Return the state of a collection that the group creates, with the session registered: it has no other yet."""
    term = session.config.writer_lease_ms
    for command in (RegisterCommitter(session.committer, term), RegisterWriter(session.writer, term)):
        outcome = apply(state, command, now_ms)
        assert isinstance(outcome, Commit)  # the ids are fresh
        state = outcome.state
    return state


def commit_group(session: Session, group: Group, extra_writes: ExtraWrites = ()) -> Protocol[Replies]:
    """Evaluate and compare-and-set until the group is in, or changes nothing.

    The extra writes appear together with a group that changes something. Raise SideLogMoved if they are stale.
    """
    states = yield from _known_states(session, group)
    has_looked = False
    for _ in range(session.config.commit_attempts):
        now_ms: int = yield Now()
        if not has_looked and _has_lapsed(states, group.committer, now_ms):
            # SUBTLE: a committer that slept past its lease reads the states before it sends anything: if it was
            # expired, it is fenced without doubt, however far the logs were cut meanwhile (test_group_commit.py).
            states, has_looked = (yield from _refresh_states(session, states, states)), True
            continue
        judged = evaluate(states, group, now_ms)
        if isinstance(judged, Fenced):
            raise judged
        if isinstance(judged, AlreadyCommittedGroup):
            raise Fenced(f"group {group.number} of {group.committer} was committed by another session of that id")
        # Answers must be current: read a state again if no compare-and-set will check it.
        unchecked = [name for name in states if name not in judged.changed]
        newest = yield from _refresh_states(session, states, unchecked)
        if any(newest[name] is not states[name] for name in unchecked):
            states = newest
            continue
        if not judged.changed:
            return judged.replies
        entries = (_entry(states[name], state, now_ms) for name, state in judged.changed.items())
        sent = InDoubt(group, judged, (*extra_writes, *entries))
        lost = yield from _store(session, sent)
        if lost is None:
            return judged.replies
        _refuse_removed(states, lost)
        states, is_in = yield from _read_after_loss(session, sent, states)
        if is_in:
            return judged.replies
        if any(key in lost for key, _, _ in extra_writes):
            raise SideLogMoved("another process was first: read again, and retry")
    raise Contention(f"lost {session.config.commit_attempts} compare-and-sets in a row: try again later")


def _has_lapsed(states: Mapping[str, State], committer: str | None, now_ms: int) -> bool:
    """Tell whether other processes may have expired a committer, by the known states."""
    leases = [state.committers.get(committer) for state in states.values()] if committer is not None else []
    return any(lease is not None and lease.until_ms < now_ms for lease in leases)


def resolve(session: Session) -> Protocol[bool | None]:
    """Find out whether the frozen group is in: True or False, or None if nothing is frozen.

    Raise Indeterminate if storage still does not tell; the group stays frozen.
    """
    frozen = session.frozen
    if frozen is None:
        return None
    reason = ""
    for attempt in range(session.config.storage_attempts):
        try:
            try:
                mismatch = yield CompareAndSet(frozen.writes)
            except StoreFenced:
                mismatch = {}  # it cannot be sent again, and may be in
            if mismatch is None:
                _remember_states(session, frozen.judged)
                happened = True
            else:
                newest = yield from _newest(session, frozen.judged.changed)
                happened = yield from _is_in(session, frozen, newest)
        except Unavailable as error:
            reason = str(error)
            # SUBTLE: "did not happen" is no answer here either: an earlier attempt may have
            # happened (test_commit_in_doubt.py).
            session.count("retries")
            yield Sleep(pause_ms(session.config, attempt))
            continue
        session.frozen = None
        return happened
    raise _in_doubt(frozen, reason)


def _in_doubt(frozen: InDoubt, reason: str) -> Indeterminate:
    return Indeterminate(
        f"group {frozen.group.number} of {frozen.group.committer or 'a registration'} may or may not be committed: "
        f"storage does not say ({reason}); it will be resolved before the next commit"
    )


def _store(session: Session, sent: InDoubt) -> Protocol[Mapping[str, int | None] | None]:
    """Compare-and-set all diffs at once, together with the extra writes.

    Return None if they are in. Otherwise return the heads that differ, or an empty mapping if a reply was lost.
    """
    try:
        mismatch: Mapping[str, int | None] | None
        mismatch = yield from retry_determinate(session, CompareAndSet(sent.writes))
    except Indeterminate:
        session.count("indeterminate")
        session.frozen = sent
        return None if (yield from resolve(session)) else {}
    if mismatch is None:
        # SUBTLE: it is in, but in doubt for the caller until the session has learned of it: what fails in between must
        # not pass for a refusal (test_commit_in_doubt.py).
        session.frozen = sent
        session.remember_commit(sent.judged.changed.values())
        session.frozen = None
    return mismatch


def _refuse_removed(states: Mapping[str, State], lost: Mapping[str, int | None]) -> None:
    """Raise ClosedError if the log of a collection is gone: it was dropped, and maintenance has purged it."""
    for name, head in lost.items():
        if head is None and name in states and states[name].seqno != SEQNO_NOT_CREATED:
            raise ClosedError(f"collection {name} is not there: it was dropped, or never created")


def _read_after_loss(
    session: Session, sent: InDoubt, states: dict[str, State]
) -> Protocol[tuple[dict[str, State], bool]]:
    """Read the states again after a loss; return whether the group lost only to itself.

    SUBTLE: a client library that sends a request again after a lost reply reports its own success as a conflict. So a
    loss is believed only when the states confirm it, and until then the group is in doubt (test_commit_in_doubt.py,
    planted bug own_success_taken_for_a_conflict_is_committed_again).
    """
    session.frozen = sent
    try:
        newest = yield from _refresh_states(session, states, states)
        is_in = yield from _is_in(session, sent, newest)
    except Unavailable as error:
        raise _in_doubt(sent, str(error)) from error
    session.frozen = None
    session.count("found committed" if is_in else "lost")
    return newest, is_in


def _entry(old: State, new: State, now_ms: int) -> tuple[str, int | None, bytes]:
    """Encode what a commit stores of one collection: a diff with its time, or the whole state of a new one."""
    if old.seqno == SEQNO_NOT_CREATED:
        return old.collection, None, encode_state(new)
    return old.collection, old.seqno, encode_diff(msgspec.structs.replace(diff(old, new), k=now_ms))


def _is_in(session: Session, sent: InDoubt, states: Mapping[str, State]) -> Protocol[bool]:
    """Tell whether a group that was sent is in, by states that were read since.

    Either all collections that it changes have its number or none has, so one that knows the committer decides.
    """
    committer, number = sent.group.committer, sent.group.number
    if committer is None:
        return False  # without a committer there are only repeatable commands: evaluate them again
    changed = [states[name] for name in sent.judged.changed if name in states]
    known = [
        # If a collection that the group creates is missing, the group is not in.
        state.seqno != SEQNO_NOT_CREATED and state.committers[committer].group >= number
        for state in changed
        if committer in state.committers
    ]
    return any(known) if known else (yield from _is_in_its_slot(session, sent))


def _is_in_its_slot(session: Session, sent: InDoubt) -> Protocol[bool]:
    """Tell whether the entries of a group are in their slots: the only evidence once its committer was expired.

    Raise Fenced, in doubt, if the logs were cut beyond the slots.
    """
    for key, expected, data in sent.writes:
        slot = 0 if expected is None else expected + 1
        entries: list[tuple[int, bytes]] = yield from retry(session, Scan(key, slot, 1))
        if not entries:
            return False
        if entries[0][0] == slot and key in sent.judged.changed:
            return entries[0][1] == data
    session.frozen = None
    raise Fenced(
        f"committer {sent.group.committer} was expired before it knew whether group {sent.group.number} is in: reopen",
        in_doubt=True,
    )


def _remember_states(session: Session, judged: Evaluated) -> None:
    """Keep the states of the last commit."""
    for state in judged.changed.values():
        session.remember_state(state)


def _known_states(session: Session, group: Group) -> Protocol[dict[str, State]]:
    """Return the states to evaluate the group on: cached ones suffice, since the compare-and-set checks them."""
    states: dict[str, State] = {}
    for collection in group.collections():
        state = session.states.get(collection)
        if state is None:
            state = yield from refresh_state(session, collection)
        if state is not None:
            states[collection] = state
    return states


def _refresh_states(session: Session, states: dict[str, State], names: Iterable[str]) -> Protocol[dict[str, State]]:
    """Return the states, with those of some names read again."""
    return {**states, **(yield from _newest(session, names))}


def _newest(session: Session, names: Iterable[str]) -> Protocol[dict[str, State]]:
    """Return the newest states of those collections that exist."""
    found: dict[str, State] = {}
    for collection in list(names):
        state = yield from refresh_state(session, collection)
        if state is not None:
            found[collection] = state
    return found

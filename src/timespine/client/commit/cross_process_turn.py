"""Turns: a change of one process commits beside appends of the others, which wait for it.

A change that lost its place a few times claims a turn (`core.transitions.turns`):
the committers of the other processes hold back commits that would invalidate it. It
claims the turn under the commit lock of its own process, judges the commits in between,
and commits and releases the turn by one compare-and-set. So it needs one judgement
per turn, and a turn that is long enough is the last one.

`Patience` is the other side: a transaction that gets `TurnTaken` is offered again,
after short pauses, and regardless of turns once it has waited twice as long as the
longest of them. The clock of another process cannot make it wait longer than that.

A commit costs nothing more while no process claims a turn. One in a turn costs a second
compare-and-set, which claims it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from timespine.client.commit.effect_driver import Driver
from timespine.client.commit.replies import is_turn_taken
from timespine.client.commit.retry_limits import RETRY
from timespine.config import TURN_MS_MAX
from timespine.core.effects import Protocol, Sleep
from timespine.core.group import Answers, CommandTransaction, Refused
from timespine.core.protocols.commit import Replies, is_repeatable
from timespine.core.state import SEQNO_NOT_CREATED
from timespine.core.transitions import ClaimTurn, ReleaseTurn, TurnTaken
from timespine.core.transitions.turns import free_from
from timespine.errors import Contention, Indeterminate, TimespineError

if TYPE_CHECKING:
    from timespine.client.commit.group_commit import GroupCommitter

PAUSE_MS = 2
"""The first pause of a transaction that waits for a turn; it doubles up to `PAUSE_MAX_MS`."""

PAUSE_MAX_MS = 32
"""The longest pause: at most a third of the time that others have between two turns."""

CLAIM_WAITS = 8
"""Longest wait of a change for a turn, in terms of a turn. Then it is placed without one."""

CommandTransactions = tuple[CommandTransaction, ...]

CommitGroup = Callable[[CommandTransactions], Replies]
"""A function that commits transactions as one group."""

MakeTransaction = Callable[[], CommandTransaction]
"""A function that makes the transaction for the states known at that moment."""


class Patience:
    """The bounded wait of a transaction for turns of other processes, measured by its own pauses."""

    def __init__(self, driver: Driver, count: Callable[[str], None]) -> None:
        self._driver = driver
        self._count = count
        self.slept_ms = 0
        """The sum of all pauses."""
        self._most_ms = 0
        self._pause_ms = PAUSE_MS

    def offer(
        self, transaction: CommandTransaction, offer: Callable[[CommandTransaction], Answers | Refused]
    ) -> Answers | Refused:
        """Offer a transaction until no turn of another process is in its way."""
        while self.looks_again(reply := offer(self.apply(transaction))):
            pass
        return reply

    def apply(self, transaction: CommandTransaction) -> CommandTransaction:
        """Return the transaction to offer now: one that ignores turns, after it has waited for long enough."""
        if self._most_ms and self.slept_ms >= self._most_ms:
            return msgspec.structs.replace(transaction, respects_turns=False)
        return transaction

    def looks_again(self, reply: Answers | Refused) -> bool:
        """Pause if a transaction was refused because of a turn; return whether to offer it again."""
        if not is_turn_taken(reply):
            return False
        assert isinstance(reply.reason, TurnTaken)
        if not self.slept_ms:
            self._count("waits for turns")
        self._most_ms = max(self._most_ms, 2 * reply.reason.term_ms)
        self.pause()
        return True

    def pause(self) -> None:
        """Wait for one pause, longer than the last."""
        self._driver.run(_pause(self._pause_ms))
        self.slept_ms += self._pause_ms
        self._pause_ms = min(2 * self._pause_ms, PAUSE_MAX_MS)


class TurnCommit:
    """The commit of a change that lost its place: in a turn of its own after a few losses."""

    def __init__(self, committer: GroupCommitter, collections: Sequence[str]) -> None:
        self._committer = committer
        self._collections = tuple(
            id for id in dict.fromkeys(collections) if committer.known(id).seqno != SEQNO_NOT_CREATED
        )
        self._term_ms = committer.config.turn_ms
        self._writer = ""
        """The writer under which the change has a turn, or may have one; empty if it has none."""
        self._is_offered = False
        """Whether the change was offered in its turn, so that an error may mean that it is committed."""

    def commit(self, losses: int, commit: Callable[[MakeTransaction], Answers], place: MakeTransaction) -> Answers:
        """Commit what `place` makes with `commit`, which calls it when no other thread of the process commits."""
        if losses < RETRY.quick_losses or not self._collections:
            return commit(place)
        self._is_offered = False
        # SUBTLE: one for all lost claims, so that they end too (test_cross_process_turn.py).
        patience = Patience(self._committer.driver, self._committer.session.count)
        try:
            while self._is_free_in_time(patience):
                try:
                    return commit(lambda: self._claim_and_place(place))
                except _TurnWasTaken:
                    patience.pause()
            return commit(place)
        except Exception as error:
            # A change that may be committed keeps its turn, which ends by the deadline.
            if not (isinstance(error, Indeterminate) and self._is_offered):
                self._release()
            raise

    def _is_free_in_time(self, patience: Patience) -> bool:
        """Wait until a turn can be claimed; return False if that takes too long."""
        while patience.slept_ms <= CLAIM_WAITS * self._term_ms:
            now_ms = self._committer.driver.now_ms()
            if not any(free_from(self._committer.state(id), now_ms) for id in self._collections):
                return True
            patience.pause()
        return False

    def _claim_and_place(self, place: MakeTransaction) -> CommandTransaction:
        """Claim the turn of all collections at once, and then make the transaction, which releases it."""
        if not self._writer:
            self._claim()
        transaction = place()
        self._is_offered = True
        if not self._writer:
            return transaction
        given_back = tuple((id, ReleaseTurn(self._writer)) for id in self._collections)
        return msgspec.structs.replace(transaction, commands=(*transaction.commands, *given_back))

    def _claim(self) -> None:
        """Claim the turn. If the claim fails for another reason than a turn, go on without one."""
        writer = self._committer.session.writer
        claim = CommandTransaction(tuple((id, ClaimTurn(writer, self._term_ms)) for id in self._collections))
        try:
            reply = self._committer.commit_alone(claim)
        except Indeterminate:
            self._writer = writer  # the claim may be committed: the commit of the change releases it
            return
        except TimespineError:
            return
        if is_turn_taken(reply):
            raise _TurnWasTaken
        if not isinstance(reply, Refused):
            self._writer = writer
            self._committer.session.count("turns taken")

    def _release(self) -> None:
        """Release a turn in which the change did not commit. The next one may take twice as long."""
        if self._writer:
            writer, self._writer = self._writer, ""
            self._term_ms = min(2 * self._term_ms, TURN_MS_MAX)
            with contextlib.suppress(TimespineError):  # it ends by its deadline
                self._committer.commit(*((id, ReleaseTurn(writer)) for id in self._collections))

    def commit_group(self, transactions: CommandTransactions, commit: CommitGroup) -> Replies:
        """Commit a group in a turn of its collections; raise Contention if it gets none.

        Caller holds the commit lock, and no other thread of this process can commit meanwhile.
        """
        if self._collections:
            self._claim()
        if not self._writer:
            raise Contention("no turn was given to this group")
        given_back = CommandTransaction(tuple((id, ReleaseTurn(self._writer)) for id in self._collections))
        try:
            *replies, _ = commit((*transactions, given_back))
        except Exception:
            # SUBTLE: a commit in doubt may be behind any error. The next commit would settle it, and the caller would
            # take the group for one that is not committed (test_cross_process_turn.py).
            if self._committer.session.frozen is None:
                with contextlib.suppress(TimespineError):  # it ends by its deadline
                    self._committer.commit_alone(given_back)
            raise
        return tuple(replies)


def commit_or_take_turn(committer: GroupCommitter, commit: CommitGroup, transactions: CommandTransactions) -> Replies:
    """Commit a group, and once more in a turn if other processes were first on every try. Caller holds the commit lock.

    A process that commits faster would be first for ever: each try reads what it committed.
    """
    try:
        return commit(transactions)
    except Contention as outrun:
        if all(map(is_repeatable, transactions)):
            raise  # a process that only reads claims no turn
        names = [id for each in transactions for id, _ in each.commands]
        try:
            return TurnCommit(committer, names).commit_group(transactions, commit)
        except (Contention, _TurnWasTaken):
            raise outrun from None


class _TurnWasTaken(Exception):
    """Another process claimed the turn first."""


def _pause(ms: int) -> Protocol[None]:
    yield Sleep(ms)

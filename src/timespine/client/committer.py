"""One committer per process and store: what arrives while a commit is under way goes into the next one.

There is no thread for it. Whoever comes first leads: it takes all that waits,
commits it as one group, hands out the replies, and the next one leads. So a lone
caller pays nothing for it, and eight callers share one durable write.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from timespine.client.driver import Driver, fresh_id
from timespine.config import Config
from timespine.core.effects import Protocol
from timespine.core.group import Refused, Transaction
from timespine.core.protocols.commit import commit_transactions, enter, raise_refusal
from timespine.core.protocols.fetch import refresh
from timespine.core.protocols.session import Session
from timespine.core.state import State
from timespine.core.transitions import Command, ExpireCommitter, ExpireWriter
from timespine.errors import Fenced, UsageError

T = TypeVar("T")

Replies = tuple[tuple[Any, ...] | Refused, ...]

GROUP_MAX = 256
"""Transactions in one group: an entry of the log has a bound, and so has the wait of the last in line."""


class _Waiting:
    """A transaction in line."""

    __slots__ = ("error", "reply", "transaction")

    def __init__(self, transaction: Transaction) -> None:
        self.transaction = transaction
        self.reply: tuple[Any, ...] | Refused | None = None
        self.error: Exception | None = None

    @property
    def is_done(self) -> bool:
        return self.reply is not None or self.error is not None


class Committer:
    """Commits for all threads of a process. Renews itself when it was expired while it slept."""

    def __init__(self, driver: Driver, config: Config, *, read_only: bool = False) -> None:
        self.driver = driver
        self._read_only = read_only
        self.config = config
        self._turn = threading.Lock()
        self._line: deque[_Waiting] = deque()
        self._entered: set[str] = set()
        self.told: list[Callable[[set[str]], None]] = []
        """Called after every commit, with the collections that it was about."""
        self.session = self._new_session()
        """Whoever commits holds the turn; whoever only reads states may use it at any time."""

    def _new_session(self) -> Session:
        session = Session(fresh_id("k"), fresh_id("w"), self.config)
        known = getattr(self, "session", None)
        if known is not None:
            session.states, session.counters = known.states, known.counters
        return session

    @property
    def counters(self) -> dict[str, int]:
        """How often what happened."""
        return self.session.counters

    def writer(self, collection: str) -> str:
        """The registered writer under whose prefix this process puts blobs."""
        if collection not in self._entered:
            with self._turn:
                self._enter(collection)
        return self.session.writer

    def commit(self, *commands: tuple[str, Command], reads: tuple[tuple[str, Any], ...] = ()) -> tuple[Any, ...]:
        """Commit (collection, command) pairs, all or nothing; their replies. A refusal is raised."""
        reply = self.offer(Transaction(commands, reads))
        if isinstance(reply, Refused):
            raise_refusal(reply)
        return reply

    def offer(self, transaction: Transaction) -> tuple[Any, ...] | Refused:
        """Commit one transaction together with whatever else waits; its replies, or why it was refused."""
        if self._read_only:
            raise UsageError("this store is open for reading only")
        waiting = _Waiting(transaction)
        self._line.append(waiting)
        while not waiting.is_done:
            with self._turn:
                if not waiting.is_done:
                    self._lead()
        if waiting.error is not None:
            raise waiting.error
        assert waiting.reply is not None
        return waiting.reply

    def run(self, collection: str, make: Callable[[Session], Protocol[T]]) -> T:
        """Run a protocol that commits by itself, alone, with this committer's session."""
        with self._turn:
            try:
                self._enter(collection)
                return self.driver.run(make(self.session))
            except Fenced as fenced:
                self._renew()
                if fenced.in_doubt:
                    raise
            self._enter(collection)
            return self.driver.run(make(self.session))

    def state(self, collection: str) -> State:
        """The newest state."""
        found = self.driver.run(refresh(self.session, collection))
        if found is None:
            raise UsageError(f"there is no collection with the id {collection} any more")
        return found

    def known(self, collection: str) -> State:
        """The newest state that this process knows of, without asking."""
        known = self.session.states.get(collection)
        return known if known is not None else self.state(collection)

    def forget(self, collection: str) -> None:
        """Drop what is cached of a collection that is gone."""
        self.session.states.pop(collection, None)
        self._entered.discard(collection)

    def close(self) -> None:
        """Give up the ids of this process everywhere: what it left behind need not wait to expire."""
        with self._turn:
            writer, committer = self.session.writer, self.session.committer
            ends = [
                Transaction(((name, ExpireWriter(writer)), (name, ExpireCommitter(committer))))
                for name in sorted(self._entered)
            ]
            self._entered.clear()
            if ends:
                self.driver.run(commit_transactions(self.session, *ends))

    def _lead(self) -> None:
        """Commit what waits as one group. Holds the turn."""
        group = [self._line.popleft() for _ in range(min(len(self._line), GROUP_MAX))]
        try:
            replies = self._commit_group(tuple(each.transaction for each in group))
        except Exception as error:
            for each in group:
                each.error = error
            return
        self.session.count("grouped", len(group) - 1)
        for each, reply in zip(group, replies, strict=True):
            each.reply = reply
        about = {name for each in group for name, _ in each.transaction.commands}
        for tell in self.told:
            tell(about)

    def _commit_group(self, transactions: tuple[Transaction, ...]) -> Replies:
        """Commit, and once more under a new id if the committer slept past its lease."""
        try:
            replies = self._committed(transactions)
        except Fenced as fenced:
            # SUBTLE: under a new id the same transactions may be tried again only if it is sure that
            # they did not happen under the old one (tests/client/test_committer.py).
            self._renew()
            if fenced.in_doubt:
                raise
            return self._committed(transactions)
        fenced_off = [i for i, reply in enumerate(replies) if _is_fenced(reply)]
        if not fenced_off:
            return replies
        self._renew()
        again = self._committed(tuple(transactions[i] for i in fenced_off))
        answered = dict(zip(fenced_off, again, strict=True))
        return tuple(answered.get(i, reply) for i, reply in enumerate(replies))

    def _committed(self, transactions: tuple[Transaction, ...]) -> Replies:
        self._enter_all(transactions)
        return self.driver.run(commit_transactions(self.session, *transactions))

    def _renew(self) -> None:
        self.session = self._new_session()
        self._entered.clear()
        self.session.count("renewed")

    def _enter_all(self, transactions: tuple[Transaction, ...]) -> None:
        for transaction in transactions:
            for collection, _ in transaction.commands:
                self._enter(collection)

    def _enter(self, collection: str) -> None:
        """Register committer and writer with a collection, once. Holds the turn."""
        if collection in self._entered:
            return
        self.driver.run(enter(self.session, collection))
        self._entered.add(collection)


def _is_fenced(reply: tuple[Any, ...] | Refused) -> bool:
    return isinstance(reply, Refused) and isinstance(reply.reason, Fenced)

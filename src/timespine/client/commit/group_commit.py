"""One committer per process and store: what arrives while a commit is under way goes into the next one.

The leading thread takes all that waits (`timespine.client.commit.leader_queue`) and commits it as one
group: eight callers share one durable write.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, TypeVar

from timespine.client.commit.driver import Driver
from timespine.client.commit.frees_space import is_freeing
from timespine.client.commit.leader_queue import Line, Waiting
from timespine.client.commit.refusals import accepted, is_fenced, is_taken
from timespine.client.commit.schema_check import Judge, judged
from timespine.client.commit.session import SharedSession
from timespine.client.commit.turn import Patience
from timespine.config import Config
from timespine.core.effects import Protocol
from timespine.core.group import Answers, Refused, Transaction
from timespine.core.protocols.commit import (
    Beside,
    Moved,
    commit_repeatable,
    commit_transactions,
    enter,
    entered,
    is_repeatable,
    resolve,
    unborn,
)
from timespine.core.protocols.load_state import refresh
from timespine.core.protocols.session import Session
from timespine.core.state import UNBORN, State
from timespine.core.transitions import Command, ExpireCommitter, ExpireWriter, HeartbeatWriter
from timespine.errors import (
    ClosedError,
    CorruptionError,
    Determinate,
    Fenced,
    Indeterminate,
    LeaseExpired,
    NoSpace,
    ReadOnlyStore,
    StoreClosed,
    TimespineError,
    UsageError,
    VersionError,
    WrongProcess,
)
from timespine.hints import Hint
from timespine.locks import Lock

T = TypeVar("T")

Replies = tuple[Answers | Refused, ...]

ENTER_MAX = 1024
"""Collections that are registered with in one commit."""

NAMED = (ClosedError, Fenced, LeaseExpired, UsageError)
"""Errors that speak of collections: people know those by their names, not by their ids."""

STORE_CLOSED = "this store is closed: open it again"

OTHER_PROCESS = "this store was opened before the process was forked: open it again in this process"

TURN_S = 600.0
"""How long a thread waits for a commit of another one. Storage gives up long before that, but a merge may not."""

CLOSE_S = 60.0
"""How long closing waits for a commit that is under way."""


class Committer:
    """Commits for all threads of a process. Renews itself when it was expired while it slept."""

    def __init__(
        self, driver: Driver, config: Config, *, read_only: bool = False, session: SharedSession | None = None
    ) -> None:
        self.driver = driver
        self._read_only = read_only
        self.config = config
        self._turn = Lock("the committer of this process", TURN_S, is_reentrant=True)
        # Reentrant, because what is placed in its turn may have to put rows, which may have to register a writer.
        self._pid = os.getpid()
        self._line: Line[Transaction] = Line()
        self._entered: dict[tuple[str, str], str] = {}
        # By writer and collection, the committer that was registered with it. SUBTLE: by writer, so that whoever
        # reads the session and then looks here sees both of one moment (test_group_commit.py).
        self._reserving: dict[str, Callable[[], None]] = {}
        """By collections that are not there yet: what reserves their ids, and checks that they still are reserved."""
        self._kept: set[tuple[str, str]] = set()
        """Writers and collections whose leases outlive this process: what they put was handed to another one."""
        self._closed = False
        self.told: list[Callable[[set[str]], None]] = []
        """Called after every commit, with the collections that it was about."""
        self.name_of: Callable[[str], str] = str
        """What people call a collection: errors speak of it by its name."""
        self.session = session if session is not None else SharedSession(config)
        """Whoever commits holds the turn; whoever only reads states may use it at any time."""

    @property
    def counters(self) -> dict[str, int]:
        """How often what happened."""
        return self.session.counters

    def writer(self, collection: str) -> str:
        """The registered writer under whose prefix this process puts blobs."""
        self.check_process()
        session = self.session
        is_entered = (session.writer, collection) in self._entered
        if is_entered and collection not in self._reserving and not self._closed:
            return session.writer
        with self._turn:
            self._settle()
            reserve = self._reserving.get(collection)
            if reserve is not None:
                # SUBTLE: before anything is put, every time. Otherwise what a transaction leaves that dies would be
                # under an id that the catalog does not have, or that maintenance has given up (test_transaction.py).
                reserve()
            self._enter(collection)
            return self.session.writer

    def keep_writer(self, collection: str, writer: str, term_ms: int) -> None:
        """Keep a writer registered for so long at least, also when this process closes the store before."""
        self._kept.add((writer, collection))
        self.commit((collection, HeartbeatWriter(writer, term_ms)))

    def commit(self, *commands: tuple[str, Command], reads: tuple[tuple[str, Any], ...] = ()) -> Answers:
        """Commit (collection, command) pairs, all or nothing; their replies. A refusal is raised."""
        transaction = Transaction(commands, reads)
        try:
            return accepted(judged(transaction, self.offer, self.state))
        except NAMED as error:
            raise self._named(error, transaction) from error

    def offer(self, transaction: Transaction) -> Answers | Refused:
        """Commit one transaction together with whatever else waits; its replies, or why it was refused.

        While a change of another process has its turn, this waits, and holds up no other thread.
        """
        self.check_writable()
        if any(_is_unborn(self.session, name) for name, _ in transaction.commands):
            # SUBTLE: another thread may just have committed the transaction that creates it. The catalog shows its
            # name before this process has learned of that, so wait for that commit (test_group_commit.py).
            with self._turn:
                self._settle()
                for name, _ in transaction.commands:
                    self._refuse_unborn(name)
        patience = Patience(self.driver, self.session.count)
        return patience.offer(transaction, lambda each: self._line.offer(each, self._lead))

    def _refuse_unborn(self, collection: str) -> None:
        # SUBTLE: it would be there, and nobody could find it (test_transaction.py).
        if _is_unborn(self.session, collection):
            raise UsageError(f"{self.name_of(collection)} is not there before its transaction is committed: use that")

    def expect(self, first: State, reserve: Callable[[], None]) -> None:
        """Know a collection that is not there yet: it is born with the first transaction that names it.

        Every time before this process puts anything for it, it calls `reserve`.
        """
        with self._turn:
            self._settle()
            self.session.states[first.collection] = unborn(first)
            self._reserving[first.collection] = reserve

    def forget_unborn(self, collection: str) -> bool:
        """It was not born, and never will be; False if it was."""
        with self._turn:
            self._reserving.pop(collection, None)
            if not _is_unborn(self.session, collection):
                return False
            self._forget(collection)
            return True

    def forget(self, collections: Iterable[str]) -> None:
        """They are gone for good: there is nothing to say goodbye to."""
        with self._turn:
            for collection in set(collections):
                self._forget(collection)

    def _forget(self, collection: str) -> None:
        self.session.states.pop(collection, None)
        for key in [key for key in self._entered if key[1] == collection]:
            del self._entered[key]

    def commit_placed(self, place: Callable[[], Transaction], beside: Callable[[], Beside] = tuple) -> Answers:
        """Commit by itself what `place` makes when its turn has come: no other thread of this process is in between.

        Entries of other logs may appear `beside` it: they are made anew until they fit.
        """
        self.check_writable()
        judge, patience = Judge(self.state), Patience(self.driver, self.session.count)
        transaction, reply = self._place(place, beside, judge, patience)
        while patience.looks_again(reply):
            transaction, reply = self._place(place, beside, judge, patience)
        self._count(transaction, failed=isinstance(reply, Refused))
        try:
            answers = accepted(reply)
        except NAMED as error:
            raise self._named(error, transaction) from error
        self._tell({name for name, _ in transaction.commands})
        return answers

    def commit_alone(self, transaction: Transaction) -> Answers | Refused:
        """Commit one transaction by itself, from inside of `commit_placed`. Holds the turn."""
        return self._committed((transaction,))[0]

    def _place(
        self, place: Callable[[], Transaction], beside: Callable[[], Beside], judge: Judge, patience: Patience
    ) -> tuple[Transaction, Answers | Refused]:
        """Commit what `place` makes in a turn of this process; what it made, and the reply."""
        with self._turn:
            for _ in range(self.config.commit_attempts):
                transaction = self._judged_by(judge, patience.apply(place()))
                try:
                    (reply,) = self._committed((transaction,), beside())
                    if judge.looks_again(reply):
                        continue
                    self._born(transaction, reply)
                    break
                except Moved:
                    continue
                except Fenced:
                    self._renew()
                    raise
            else:
                raise Determinate("nothing was committed: others keep changing what was to change with it")
            if is_fenced(reply) and not self._is_registered(transaction):
                self._renew()  # the caller puts its blobs again, under a new writer, and tries again
        return transaction, reply

    def _judged_by(self, judge: Judge, transaction: Transaction) -> Transaction:
        """A transaction whose rows were judged by the newest schemas; what was dropped is said by names."""
        try:
            return judge.apply(transaction)
        except NAMED as error:
            raise self._named(error, transaction) from error

    def _born(self, transaction: Transaction, reply: Answers | Refused) -> None:
        """What is there by now is not to be announced any more. Holds the turn.

        SUBTLE: at once. Whoever puts the first blob for it, in another thread, would announce what is there, and
        what was announced and does not come is deleted some day (test_transaction.py).
        """
        if not isinstance(reply, Refused):
            for name, _ in transaction.commands:
                self._reserving.pop(name, None)

    def run(self, collection: str, make: Callable[[Session], Protocol[T]], *, frees_space: bool = True) -> T:
        """Run a protocol of maintenance, alone, with this committer's session. What frees space may use the reserve."""
        with self._turn:
            self._settle()
            self._refuse_unborn(collection)
            try:
                self._enter(collection, frees_space=frees_space)
                return self.driver.run(make(self.session), frees_space=frees_space)
            except Fenced as fenced:
                self._renew()
                if fenced.in_doubt:
                    raise
            self._enter(collection, frees_space=frees_space)
            return self.driver.run(make(self.session), frees_space=frees_space)

    def look(self, make: Callable[[Session], Protocol[T]]) -> T:
        """Run a protocol that only reads: it needs no registration, and a store that is open for reading may."""
        self.check_open()
        return self.driver.run(make(self.session))

    def state(self, collection: str) -> State:
        """The newest state."""
        self.check_open()
        found = self.driver.run(refresh(self.session, collection))
        if found is None:
            raise UsageError(f"there is no collection with the id {collection} any more")
        return found

    def is_there(self, collection: str) -> bool:
        """Whether there ever was a collection with this id."""
        self.check_open()
        found = self.driver.run(refresh(self.session, collection))
        return found is not None and found.seqno != UNBORN

    def known(self, collection: str) -> State:
        """The newest state that this process knows of, without asking."""
        if self._closed or self._pid != os.getpid():  # in place: every write asks some ten times
            self.check_open()
        known = self.session.states.get(collection)
        return known if known is not None else self.state(collection)

    def check_open(self) -> None:
        """StoreClosed if the store was closed, WrongProcess if the parent of this process opened it."""
        self.check_process()
        if self._closed:
            raise StoreClosed(STORE_CLOSED)

    def check_process(self) -> None:
        """WrongProcess in a forked child. SUBTLE: before any lock, whose owner may not exist here (test_fork.py)."""
        if not self.is_own:
            raise WrongProcess(OTHER_PROCESS)

    @property
    def is_own(self) -> bool:
        """Whether this process opened it: a forked child did not."""
        return self._pid == os.getpid()

    def check_writable(self, why: str = "", hint: Hint | None = None) -> None:
        """StoreClosed, or ReadOnlyStore with why it matters and what to do instead."""
        self.check_open()
        if self._read_only:
            raise ReadOnlyStore(f"this store is open for reading only{why}", hint=hint)

    def close(self) -> None:
        """Give up the ids of this process everywhere: what it left behind need not wait to expire. Twice is fine."""
        with self._turn.within(CLOSE_S):
            if self._closed:
                return
            try:
                self._give_up()
            finally:
                self._closed = True

    def _named(self, error: TimespineError, transaction: Transaction) -> TimespineError:
        """An error in the words of people, who know collections by their names."""
        text = error.message
        for id in {each for each, _ in (*transaction.commands, *transaction.reads)}.intersection(self.session.states):
            text = text.replace(id, self.name_of(id))
        named = copy.copy(error)
        named.args = (f"{text}: it was dropped, or closed for good" if isinstance(error, ClosedError) else text,)
        return named

    def _give_up(self) -> None:
        """End every id that this process ever had, those from before a renewal included. Holds the turn."""
        if not self._entered:
            return
        self._settle()
        ids: dict[str, list[Command]] = {}
        for (writer, collection), committer in self._entered.items():
            if _is_unborn(self.session, collection):
                continue
            ids.setdefault(collection, []).extend(self._ends(collection, writer, committer))
        self._enter(*ids)
        for collection in ids:
            current = self._ends(collection, self.session.writer, self.session.committer)
            ids[collection].extend(each for each in current if each not in ids[collection])
        ends = [Transaction(tuple((name, each) for each in commands)) for name, commands in sorted(ids.items())]
        self._entered.clear()
        for start in range(0, len(ends), ENTER_MAX):
            self.driver.run(commit_transactions(self.session, *ends[start : start + ENTER_MAX]))

    def _ends(self, collection: str, writer: str, committer: str) -> list[Command]:
        """What ends the ids of this process in a collection: not a writer whose batches another process may commit."""
        kept = (writer, collection) in self._kept
        return [ExpireCommitter(committer)] if kept else [ExpireWriter(writer), ExpireCommitter(committer)]

    def _lead(self, group: list[Waiting[Transaction]]) -> None:
        """Commit what waits as one group."""
        with self._turn:
            self._answer(group)
        self.session.count("grouped", len(group) - 1)
        for each in (each for each in group if not is_taken(each.reply)):
            self._count(each.item, failed=each.error is not None or isinstance(each.reply, Refused))
        about = {name for each in group for name, _ in each.item.commands}
        self._tell(about)

    def _tell(self, about: set[str]) -> None:
        """Tell whoever wants to know which collections were committed to."""
        for tell in self.told:
            tell(about)

    def _count(self, transaction: Transaction, *, failed: bool) -> None:
        """Count the commands of a transaction by their kinds, and those that failed: all of them did, or none."""
        for _, command in transaction.commands:
            self.session.count(f"commands {_kind(type(command).__name__)}")
        if failed:
            self.session.count("commands failed", len(transaction.commands))

    def _answer(self, group: list[Waiting[Transaction]]) -> None:
        """Commit a group, and give each its reply or its error."""
        try:
            replies = self._commit_group(tuple(each.item for each in group))
        except (UsageError, CorruptionError, VersionError) as error:
            # One of them cannot be committed at all: there is no such collection, its log is damaged, or all
            # together are too large. Unless something is in doubt, each is tried alone, to disturb nobody.
            if len(group) > 1 and self.session.frozen is None:
                for each in group:
                    self._answer([each])
                return
            for each in group:
                each.error = error
        except NoSpace as error:
            # Appends must not use the reserve. What frees space may, so it is committed without them.
            freeing = [each for each in group if is_freeing(each.item)]
            if len(freeing) == len(group):
                freeing = []  # it did
            for each in group:
                each.error = None if each in freeing else error
            if freeing:
                self._answer(freeing)
        except Exception as error:
            for each in group:
                each.error = error
        else:
            for each, reply in zip(group, replies, strict=True):
                each.reply = reply

    def _commit_group(self, transactions: tuple[Transaction, ...]) -> Replies:
        """Commit, and once more under a new id if the committer slept past its lease."""
        try:
            replies = self._committed(transactions)
        except Fenced as fenced:
            # SUBTLE: under a new id the same transactions may be tried again only if it is sure that
            # they did not happen under the old one (tests/client/commit/test_group_commit.py).
            self._renew()
            if fenced.in_doubt:
                raise
            return self._committed(transactions)
        fenced_off = [
            i for i, reply in enumerate(replies) if is_fenced(reply) and not self._is_registered(transactions[i])
        ]
        if not fenced_off:
            return replies
        self._renew()
        try:
            again = self._committed(tuple(transactions[i] for i in fenced_off))
        except TimespineError as error:
            # SUBTLE: their neighbours are committed, and must not be told of it (test_group_commit.py).
            again = tuple(Refused(error, ()) for _ in fenced_off)
        answered = dict(zip(fenced_off, again, strict=True))
        return tuple(answered.get(i, reply) for i, reply in enumerate(replies))

    def _committed(self, transactions: tuple[Transaction, ...], beside: Beside = ()) -> Replies:
        """Commit transactions as one group. Indeterminate only if they themselves may be in."""
        try:
            self._settle()
            frees_space = all(map(is_freeing, transactions))
            names = [name for each in transactions for name, _ in (*each.commands, *each.reads)]
            has_entered = all((self.session.writer, name) in self._entered for name in names)
            if not beside and not has_entered and all(map(is_repeatable, transactions)):
                commit = commit_repeatable(self.session, *transactions)
            else:
                self._enter(*names, frees_space=frees_space)
                commit = commit_transactions(self.session, *transactions, beside=beside)
            return self.driver.run(commit, frees_space=frees_space)
        except Indeterminate as error:
            frozen = self.session.frozen
            if frozen is not None and frozen.group.transactions == transactions:
                raise
            raise Determinate(f"this was not committed, because an earlier commit is in doubt: {error}") from error

    def _settle(self) -> None:
        """Learn what became of a group whose outcome was unknown; whoever waited for it was told so. Holds the turn."""
        self.check_writable()
        if self.session.frozen is not None:
            try:
                self.driver.run(resolve(self.session))
            except Fenced:  # it will never be known: go on under a new id
                self._renew()

    def _renew(self) -> None:
        self.session = self.session.renewed()
        self.session.count("renewed")

    def _is_registered(self, transaction: Transaction) -> bool:
        """Whether this committer and its writer are registered wherever a transaction goes, as far as is known."""
        states = (self.session.states.get(name) for name, _ in (*transaction.commands, *transaction.reads))
        committer, writer = self.session.committer, self.session.writer
        return all(state is None or (committer in state.committers and writer in state.writers) for state in states)

    def _enter(self, *collections: str, frees_space: bool = False) -> None:
        """Register committer and writer with collections, once. Holds the turn."""
        session = self.session
        new = [name for name in dict.fromkeys(collections) if (session.writer, name) not in self._entered]
        for name in [name for name in new if _is_unborn(session, name)]:
            # SUBTLE: entering it as others are would create it without its name (test_transaction.py).
            session.states[name] = entered(session.states[name], session, self.driver.now_ms())
            self._entered[session.writer, name] = session.committer
            new.remove(name)
        for start in range(0, len(new), ENTER_MAX):
            some = new[start : start + ENTER_MAX]
            self.driver.run(enter(session, *some), frees_space=frees_space)
            self._entered.update(((session.writer, name), session.committer) for name in some)


def _is_unborn(session: Session, collection: str) -> bool:
    known = session.states.get(collection)
    return known is not None and known.seqno == UNBORN


@cache
def _kind(command: str) -> str:
    """What people call a command: "append next" for AppendNext."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", command).lower()

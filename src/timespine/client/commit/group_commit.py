"""One committer per process and store: calls that arrive during a commit are committed together by the next one.

The leading thread commits the whole queue (`leader_queue`) as one group: eight callers share one durable write.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from timespine.client.commit.accept_older_schema import SchemaCheck, offer_checked
from timespine.client.commit.commit_and_answer import Offer, answer_group
from timespine.client.commit.cross_process_turn import MakeTransaction, Patience, commit_or_take_turn
from timespine.client.commit.effect_driver import Driver
from timespine.client.commit.frees_space import is_freeing
from timespine.client.commit.leader_queue import CallReply, LeaderQueue
from timespine.client.commit.queued_append import QueuedAppend, QueuedCalls, is_transaction, stage_by_kind
from timespine.client.commit.relay import Relay
from timespine.client.commit.replies import is_fenced, is_turn_taken, require_accepted, with_names
from timespine.client.commit.shared_session import SharedSession
from timespine.config import Config
from timespine.core.effects import Protocol
from timespine.core.group import Answers, CommandTransaction, Origin, Refused
from timespine.core.protocols.commit import (
    ExtraWrites,
    Replies,
    SideLogMoved,
    commit_repeatable,
    commit_transactions,
    is_repeatable,
    pending_state,
    register_session,
    resolve,
    with_session_registered,
)
from timespine.core.protocols.load_state import refresh_state
from timespine.core.protocols.session import Session
from timespine.core.state import SEQNO_NOT_CREATED, State
from timespine.core.transitions import Command, ExpireCommitter, ExpireWriter, HeartbeatWriter
from timespine.errors import (
    ClosedError,
    Determinate,
    Fenced,
    Indeterminate,
    LeaseExpired,
    ReadOnlyStore,
    StoreClosed,
    TimespineError,
    UsageError,
    WrongProcess,
)
from timespine.hints import Hint
from timespine.locks import Lock
from timespine.model.frontier import Frontier

T = TypeVar("T")

Reply = Answers | Refused

ENTER_MAX = 1024
"""Most collections that one commit registers the process with."""

NAMED = (ClosedError, Fenced, LeaseExpired, UsageError)
"""Errors that mention collections: messages use their names, not their ids."""

STORE_CLOSED = "this store is closed: open it again"
OTHER_PROCESS = "this store was opened before the process was forked: open it again in this process"

TURN_S = 600.0
"""Seconds that a thread waits for a commit of another one. Storage gives up long before that, but a merge may not."""

CLOSE_S = 60.0
"""Seconds that `close` waits for a running commit."""


class GroupCommitter:
    """The committer of all threads of a process. It takes new ids after its lease expired."""

    def __init__(
        self, driver: Driver, config: Config, *, read_only: bool = False, session: SharedSession | None = None
    ) -> None:
        self.driver = driver
        self._read_only = read_only
        self.config = config
        self._turn = Lock("the committer of this process", TURN_S, is_reentrant=True)
        # Reentrant: placing a transaction may put rows, which may register a writer.
        self._pid = os.getpid()
        self._queue: LeaderQueue[CommandTransaction | QueuedAppend] = LeaderQueue()
        self._entered: dict[tuple[str, str], str] = {}
        # By writer and collection, the committer that was registered with it. SUBTLE: by writer, so that a thread that
        # reads the session and then looks here sees both of one moment (test_group_commit.py).
        self._reserving: dict[str, Callable[[], None]] = {}
        """By id of a collection to be created: a function that reserves the id, and checks the reservation."""
        self._kept: set[tuple[str, str]] = set()
        """Writers and collections whose leases outlive this process: it transmitted their batches to another one."""
        self._closed = False
        self.relay: Relay | None = None
        """The relay of the processes of this machine, if there is one."""
        self.on_commit: list[Callable[[set[str]], None]] = []
        """Functions to call after every commit, with the collections that it changed."""
        self.name_of: Callable[[str], str] = str
        """The function that returns the name of a collection, for messages."""
        self.session = session if session is not None else SharedSession(config)
        """The session of the committer: a thread that commits holds the commit lock, one that reads needs no lock."""

    @property
    def counters(self) -> dict[str, int]:
        """Counters of events."""
        return self.session.counters

    def writer(self, collection: str) -> str:
        """Return the registered writer under whose prefix this process puts blobs."""
        self.check_process()
        session = self.session
        is_entered = (session.writer, collection) in self._entered
        if is_entered and collection not in self._reserving and not self._closed:
            return session.writer
        with self._turn:
            self._settle()
            reserve = self._reserving.get(collection)
            if reserve is not None:
                # SUBTLE: before every put. Otherwise the orphaned blobs of a transaction that dies would have an id
                # that the catalog lacks, or whose reservation maintenance has cancelled (test_transaction_creates.py).
                reserve()
            self._enter(collection)
            return self.session.writer

    def keep_writer(self, collection: str, writer: str, term_ms: int) -> None:
        """Keep a writer registered for at least `term_ms`, also if this process closes the store before."""
        self._kept.add((writer, collection))
        self.commit((collection, HeartbeatWriter(writer, term_ms)))

    def commit(
        self,
        *commands: tuple[str, Command],
        reads: tuple[tuple[str, Frontier], ...] = (),
        patience: Patience | None = None,
    ) -> Answers:
        """Commit (collection, command) pairs, all or nothing; return their replies, or raise a refusal."""
        transaction = CommandTransaction(commands, reads)
        patience = patience or self.patience()
        try:
            return require_accepted(offer_checked(transaction, lambda each: self.offer(each, patience), self.state))
        except NAMED as error:
            raise self.with_collection_names(error, transaction) from error

    def patience(self) -> Patience:
        """Return a bound on how long one transaction waits for turns of other processes, over all its offers."""
        return Patience(self.driver, self.session.count)

    def offer(self, transaction: CommandTransaction, patience: Patience | None = None) -> Reply:
        """Commit one transaction together with the rest of the queue; return its replies, or why it was refused.

        While a change of another process has its turn, this waits, and holds up no other thread.
        """
        self._check_collections([name for name, _ in transaction.commands])
        patience = patience or self.patience()
        return patience.offer(transaction, lambda each: self._queue.offer(each, self._lead))

    def offer_append(self, append: QueuedAppend, collection: str) -> CallReply:
        """Stage and commit an append together with the rest of the queue; return its reply, or raise its error."""
        self._check_collections([collection])
        return self._queue.offer(append, self._lead)

    def _check_collections(self, collections: list[str]) -> None:
        """Raise a UsageError for a commit to collections that are not created yet."""
        self.check_writable()
        if any(_is_pending(self.session, name) for name in collections):
            # SUBTLE: another thread may just have committed the transaction that creates it. The catalog shows its
            # name before this process has learned of that, so wait for that commit (test_group_commit_failures.py).
            with self._turn:
                self._settle()
                for name in collections:
                    self._refuse_pending(name)

    def _refuse_pending(self, collection: str) -> None:
        # SUBTLE: the commit would create the collection without its name in the catalog (test_transaction_creates.py).
        if _is_pending(self.session, collection):
            raise UsageError(f"{self.name_of(collection)} does not exist until its transaction is committed: use that")

    def add_pending(self, first: State, reserve: Callable[[], None]) -> None:
        """Register a collection to be created: the first transaction that names it creates it.

        This process calls `reserve` every time before it puts a blob for it.
        """
        with self._turn:
            self._settle()
            self.session.states[first.collection] = pending_state(first)
            self._reserving[first.collection] = reserve

    def forget_pending(self, collection: str) -> bool:
        """Forget a collection whose transaction was given up; return False if it was created."""
        with self._turn:
            self._reserving.pop(collection, None)
            if not _is_pending(self.session, collection):
                return False
            self._forget(collection)
            return True

    def forget(self, collections: Iterable[str]) -> None:
        """Forget purged collections: there is no registration to end."""
        with self._turn:
            for collection in set(collections):
                self._forget(collection)

    def _forget(self, collection: str) -> None:
        self.session.states.pop(collection, None)
        for key in [key for key in self._entered if key[1] == collection]:
            del self._entered[key]

    def commit_placed(
        self, place: MakeTransaction, patience: Patience, extra_writes: Callable[[], ExtraWrites] = tuple
    ) -> Answers:
        """Commit alone what `place` makes under the commit lock: no other thread of this process commits in between.

        `extra_writes` are entries for other logs in the same commit: they are made again until they fit.
        """
        self.check_writable()
        check = SchemaCheck(self.state)
        transaction, reply = self._place(place, extra_writes, check, patience)
        while patience.looks_again(reply):
            transaction, reply = self._place(place, extra_writes, check, patience)
        self.session.count_commands(transaction, failed=isinstance(reply, Refused))
        try:
            answers = require_accepted(reply)
        except NAMED as error:
            raise self.with_collection_names(error, transaction) from error
        self._notify({name for name, _ in transaction.commands})
        return answers

    def as_next_group(self, collection: str, carry_out: Callable[[Origin], None]) -> None:
        """Let another process commit the next group of this committer, while no thread of this one commits."""
        with self._turn:
            self._settle()
            self._enter(collection)
            self.session.group += 1
            carry_out(Origin(self.session.committer, self.session.group, self.session.writer))
        self._notify({collection})

    def commit_alone(self, transaction: CommandTransaction) -> Reply:
        """Commit one transaction alone, from inside of `commit_placed`. Caller holds the commit lock."""
        return self._commit_transactions((transaction,))[0]

    def _place(
        self, place: MakeTransaction, extra_writes: Callable[[], ExtraWrites], check: SchemaCheck, patience: Patience
    ) -> tuple[CommandTransaction, Reply]:
        """Commit what `place` makes under the commit lock; return the transaction and the reply."""
        with self._turn:
            for _ in range(self.config.commit_attempts):
                transaction = self._check_schemas(check, patience.apply(place()))
                try:
                    (reply,) = self._commit_transactions((transaction,), extra_writes())
                    if check.looks_again(reply):
                        continue
                    self._forget_reservations(transaction, reply)
                    break
                except SideLogMoved:
                    continue
                except Fenced:
                    self.renew()
                    raise
            else:
                changing = "other processes keep changing the catalog, or a schema of this transaction"
                raise Determinate(f"nothing was committed: {changing}")
            if is_fenced(reply) and not self._is_registered(transaction):
                self.renew()  # the caller puts its blobs again, under a new writer, and tries again
        return transaction, reply

    def _check_schemas(self, check: SchemaCheck, transaction: CommandTransaction) -> CommandTransaction:
        """Judge the rows of a transaction by the newest schemas; return it with them. Errors name dropped columns."""
        try:
            return check.apply(transaction)
        except NAMED as error:
            raise self.with_collection_names(error, transaction) from error

    def _forget_reservations(self, transaction: CommandTransaction, reply: Reply) -> None:
        """Drop the reservations of collections that this transaction created. Caller holds the commit lock.

        SUBTLE: at once. Another thread that puts a blob for a created collection would reserve its id again, and
        maintenance deletes the blobs of a reservation that is not used in time (test_transaction_creates.py).
        """
        if not isinstance(reply, Refused):
            for name, _ in transaction.commands:
                self._reserving.pop(name, None)

    def run(self, collection: str, make: Callable[[Session], Protocol[T]], *, frees_space: bool = True) -> T:
        """Run a protocol of maintenance, alone, with the session of this committer. It may use the reserve."""
        with self._turn:
            self._settle()
            self._refuse_pending(collection)
            try:
                self._enter(collection, frees_space=frees_space)
                return self.driver.run(make(self.session), frees_space=frees_space)
            except Fenced as fenced:
                self.renew()
                if fenced.in_doubt:
                    raise
            self._enter(collection, frees_space=frees_space)
            return self.driver.run(make(self.session), frees_space=frees_space)

    def look(self, make: Callable[[Session], Protocol[T]]) -> T:
        """Run a protocol that only reads: it needs no registration, so a store that is open for reading may run it."""
        self.check_open()
        return self.driver.run(make(self.session))

    def state(self, collection: str) -> State:
        """Read the newest state."""
        self.check_open()
        found = self.driver.run(refresh_state(self.session, collection))
        if found is None:
            raise ClosedError(f"collection {self.name_of(collection)} is not there: it was dropped, or never created")
        return found

    def is_there(self, collection: str) -> bool:
        """Return whether a collection with this id was ever created."""
        self.check_open()
        found = self.driver.run(refresh_state(self.session, collection))
        return found is not None and found.seqno != SEQNO_NOT_CREATED

    def known(self, collection: str) -> State:
        """Return the newest state that this process knows, without a read."""
        if self._closed or self._pid != os.getpid():  # inline: every write calls this some ten times
            self.check_open()
        known = self.session.states.get(collection)
        return known if known is not None else self.state(collection)

    def check_open(self) -> None:
        """Raise StoreClosed if the store was closed, WrongProcess if the parent of this process opened it."""
        self.check_process()
        if self._closed:
            raise StoreClosed(STORE_CLOSED)

    def check_process(self) -> None:
        """Raise WrongProcess in a forked child. SUBTLE: before any lock, whose owner may not exist (test_fork.py)."""
        if not self.is_own:
            raise WrongProcess(OTHER_PROCESS)

    @property
    def is_own(self) -> bool:
        """Whether this process opened the store: a forked child did not."""
        return self._pid == os.getpid()

    def check_writable(self, why: str = "", hint: Hint | None = None) -> None:
        """Raise StoreClosed, or ReadOnlyStore with the reason and a hint."""
        self.check_open()
        if self._read_only:
            raise ReadOnlyStore(f"this store is open for reading only{why}", hint=hint)

    def close(self) -> None:
        """End the registrations of this process, so that its orphaned blobs need not wait for expiry. Twice is fine."""
        with self._turn.within(CLOSE_S):
            if self._closed:
                return
            try:
                self._give_up()
            finally:
                self._closed = True

    def with_collection_names(self, error: TimespineError, transaction: CommandTransaction) -> TimespineError:
        """Return an error that names collections by their names."""
        return with_names(error, transaction, self.session.states, self.name_of)

    def _give_up(self) -> None:
        """End every id that this process ever had, also from before a renewal: the sweep can then delete blobs."""
        if not self._entered:
            return
        self._settle()
        ids: dict[str, list[Command]] = {}
        for (writer, collection), committer in self._entered.items():
            if _is_pending(self.session, collection):
                continue
            ids.setdefault(collection, []).extend(self._ends(collection, writer, committer))
        self._enter(*ids, frees_space=True)
        for collection in ids:
            current = self._ends(collection, self.session.writer, self.session.committer)
            ids[collection].extend(each for each in current if each not in ids[collection])
        ends = [CommandTransaction(tuple((name, each) for each in commands)) for name, commands in sorted(ids.items())]
        self._entered.clear()
        for start in range(0, len(ends), ENTER_MAX):
            self.driver.run(commit_transactions(self.session, *ends[start : start + ENTER_MAX]), frees_space=True)

    def _ends(self, collection: str, writer: str, committer: str) -> list[Command]:
        """List the commands that end the ids of this process in a collection; keep a writer of transmitted batches."""
        kept = (writer, collection) in self._kept
        return [ExpireCommitter(committer)] if kept else [ExpireWriter(writer), ExpireCommitter(committer)]

    def _lead(self, group: QueuedCalls) -> None:
        """Commit the queue as one group, queued appends first: no transaction of the group can take their times.

        Answered callers leave before appends are staged again.
        """
        group = group if self.relay is None else self.relay.hand_over(self, group)
        appends = stage_by_kind(group)
        offers: Sequence[Offer] = [*appends, *filter(is_transaction, group)]
        self.session.count("grouped", max(len(group) - 1, 0))
        while offers:
            self._commit_offers(offers)
            offers = appends = [each for each in appends if each.advance()]
            if appends:
                self._queue.notify([each for each in group if each.is_done])

    def _commit_offers(self, offers: Sequence[Offer]) -> None:
        """Commit some transactions as one group, and give each its reply or its error."""
        with self._turn:
            answer_group(offers, self._commit_group, lambda: self.session.frozen is not None)
        for each in (each for each in offers if not is_turn_taken(each.reply)):
            self.session.count_commands(each.item, failed=each.error is not None or isinstance(each.reply, Refused))
        self._notify({name for each in offers for name, _ in each.item.commands})

    def _notify(self, about: set[str]) -> None:
        """Call the functions of `on_commit` with the changed collections."""
        for notify in self.on_commit:
            notify(about)

    def _commit_group(self, transactions: tuple[CommandTransaction, ...]) -> Replies:
        """Commit a group, and once more under a new id if the lease of the committer expired."""
        try:
            replies = commit_or_take_turn(self, self._commit_transactions, transactions)
        except Fenced as fenced:
            # SUBTLE: under a new id the same transactions may be tried again only if it is certain that
            # they did not happen under the old one (tests/client/commit/test_group_commit.py).
            self.renew()
            if fenced.in_doubt:
                raise
            return self._commit_transactions(transactions)
        if Refused not in map(type, replies):
            return replies
        fenced_off = [
            i for i, each in enumerate(replies) if is_fenced(each) and not self._is_registered(transactions[i])
        ]
        if not fenced_off:
            return replies
        self.renew()
        try:
            again = self._commit_transactions(tuple(transactions[i] for i in fenced_off))
        except TimespineError as error:
            # SUBTLE: their neighbours are committed, and must not get this error (test_group_commit.py).
            again = tuple(Refused(error, ()) for _ in fenced_off)
        answered = dict(zip(fenced_off, again, strict=True))
        return tuple(answered.get(i, reply) for i, reply in enumerate(replies))

    def _commit_transactions(
        self, transactions: tuple[CommandTransaction, ...], extra_writes: ExtraWrites = ()
    ) -> Replies:
        """Commit transactions as one group. Raise Indeterminate only if these transactions may be committed."""
        try:
            self._settle()
            frees_space = all(map(is_freeing, transactions))
            names = [name for each in transactions for name, _ in (*each.commands, *each.reads)]
            has_entered = all((self.session.writer, name) in self._entered for name in names)
            if not extra_writes and not has_entered and all(map(is_repeatable, transactions)):
                commit = commit_repeatable(self.session, *transactions)
            else:
                self._enter(*names, frees_space=frees_space)
                commit = commit_transactions(self.session, *transactions, extra_writes=extra_writes)
            return self.driver.run(commit, frees_space=frees_space)
        except Indeterminate as error:
            frozen = self.session.frozen
            if frozen is not None and frozen.group.transactions == transactions:
                raise
            raise Determinate(f"this was not committed, because an earlier commit is in doubt: {error}") from error

    def _settle(self) -> None:
        """Resolve a group in doubt, whose callers got Indeterminate. Caller holds the commit lock."""
        self.check_writable()
        if self.session.frozen is not None:
            try:
                self.driver.run(resolve(self.session))
            except Fenced:  # its outcome stays unknown: go on under a new id
                self.renew()

    def renew(self) -> None:
        """Go on under new ids: those of before are expired, or never used again. Caller holds the commit lock."""
        self.session = self.session.renewed()
        self.session.count("renewed")

    def _is_registered(self, transaction: CommandTransaction) -> bool:
        """Return whether the known states have this committer and its writer, in all collections of a transaction."""
        states = (self.session.states.get(name) for name, _ in (*transaction.commands, *transaction.reads))
        committer, writer = self.session.committer, self.session.writer
        return all(state is None or (committer in state.committers and writer in state.writers) for state in states)

    def _enter(self, *collections: str, frees_space: bool = False) -> None:
        """Register committer and writer with collections, once. Caller holds the commit lock."""
        session = self.session
        new = [name for name in dict.fromkeys(collections) if (session.writer, name) not in self._entered]
        for name in [name for name in new if _is_pending(session, name)]:
            # SUBTLE: a registration in the log would create it without its name (test_transaction_creates.py).
            session.states[name] = with_session_registered(session.states[name], session, self.driver.now_ms())
            self._entered[session.writer, name] = session.committer
            new.remove(name)
        for start in range(0, len(new), ENTER_MAX):
            some = new[start : start + ENTER_MAX]
            self.driver.run(register_session(session, *some), frees_space=frees_space)
            self._entered.update(((session.writer, name), session.committer) for name in some)


def _is_pending(session: Session, collection: str) -> bool:
    return (known := session.states.get(collection)) is not None and known.seqno == SEQNO_NOT_CREATED

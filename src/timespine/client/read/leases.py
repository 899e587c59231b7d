"""The leases of one process: few, shared by all its reads, renewed by one heartbeat per collection.

A lease from `since` on, granted at some state, covers every read at a later time
planned on that state or a newer one. So most reads register no lease: they share
an existing one, and write nothing.

A lease knows the reads that refer to it by weak references. A read that is closed,
dropped or interrupted at any point stops counting, and no finalizer has to run.

A lease without reads lingers for the next one, and is then returned, so that an
idle process holds no history. An old lease takes no new reads, so that a busy
process does not hold history either.

Registering a lease needs neither a writer nor a committer, and may be repeated: its
id is fresh, so the same command again finds the registered lease. A lease whose
reply was lost has no owner. It expires at the end of its term.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Iterator

from timespine.client.commit.effect_driver import fresh_id
from timespine.client.commit.group_commit import GroupCommitter
from timespine.core.group import CommandTransaction, Refused
from timespine.core.state import State
from timespine.core.transitions import Command, DowngradeReader, ExpireReader, RegisterReader
from timespine.errors import LeaseExpired, NoSpace, Unavailable
from timespine.locks import Lock
from timespine.model.frontier import Frontier
from timespine.model.time import INT64_MAX, Time

LINGER_S = 5.0
"""Seconds that a lease without reads is kept for the next one."""


BEATS = 4
"""Heartbeats in the term of a lease: the process may miss three."""

ROTATE_S = 30.0
"""Age in seconds from which on a lease takes no new reads: the next read registers another one."""


class SharedLease:
    """A claim on history that is registered in the state of a collection."""

    def __init__(self, collection: str, reader: str, since: Frontier, now: float, term_s: float, *, own: bool) -> None:
        self.collection = collection
        self.reader = reader
        """The id of the lease in the state."""
        self.since = since
        """The frontier from which on it covers reads."""
        self.own = own
        """Whether it belongs to one feed, stream or hold, and no read shares it."""
        self.users: weakref.WeakSet[LeasedState] = weakref.WeakSet()
        """The reads that refer to it."""
        self.term_s = term_s
        """Seconds that it lives without a heartbeat."""
        self.beaten = now
        """The time of its last heartbeat."""
        self.taken = now
        """The time of its registration."""
        self.used = now
        """The last time at which a read was known to refer to it."""
        self.pin: int | None = None
        """The sequence number that the owner is reading at: blobs of that state must stay until it ends."""
        self.cursor: int | None = None
        """The sequence number of the last commit that a listener has read: blobs of later states must stay."""
        self.seqno = 0
        """The sequence number from which on this lease keeps the blobs of states."""
        self.is_ending = False
        """Whether the process is about to return it: no new read may use it."""
        self.lost = False
        """Whether the newest state lacks it."""


class LeasedState:
    """A state to read, and the lease that keeps its blobs.

    It refers to the lease until it is closed or garbage collected.
    """

    def __init__(self, leases: Leases, lease: SharedLease | None, state: State) -> None:
        self._leases = leases
        self._lease = lease
        self.state = state
        """The state that reads are planned on."""
        if lease is not None:
            lease.users.add(self)

    @property
    def lease(self) -> SharedLease:
        """The lease."""
        assert self._lease is not None
        return self._lease

    @property
    def is_leased(self) -> bool:
        """Whether there is a lease: a state without blobs needs none, and a store that may not write takes none."""
        return self._lease is not None

    def check(self) -> None:
        """Raise LeaseExpired if the lease is gone, or if there never was one: blobs may be deleted."""
        if not self.is_leased:
            raise LeaseExpired(
                "the blobs of this read were deleted: a store that is open for reading only, or that cannot write now, "
                "takes no lease; read again"
            )
        if self._leases.is_lost(self.lease):
            raise LeaseExpired(f"the lease of a reader of {self._leases.name_of(self.lease)} expired: read again")

    def share(self) -> LeasedState:
        """Refer to the same lease and state by another leased state, until that one is closed."""
        return LeasedState(self._leases, self._lease, self.state)

    def close(self) -> None:
        """Stop referring to the lease. Twice is fine."""
        if self.is_leased and self in self.lease.users and self._leases.is_own:
            self._leases.release(self)


class close_on_error:
    """A context manager that closes a leased state if the block fails. Otherwise a reader has taken the state over.

    SUBTLE: not by GeneratorExit. An interrupted generator is finalized anywhere, also while its thread holds
    a lock of the leases; the weak reference ends without a call (test_leases.py).
    """

    def __init__(self, leased: LeasedState) -> None:
        self._leased = leased

    def __enter__(self) -> LeasedState:
        return self._leased

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: object) -> None:
        if kind is not None and not issubclass(kind, GeneratorExit):
            self._leased.close()


class Leases:
    """All leases of one process on one store."""

    def __init__(
        self, committer: GroupCommitter, *, read_only: bool = False, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._committer = committer
        self._read_only = read_only
        self._monotonic = monotonic
        self._lock = Lock("the leases of this store")
        self._leases: dict[str, list[SharedLease]] = {}

    @property
    def is_own(self) -> bool:
        """Whether this process took the leases: a forked child leaves those of its parent alone."""
        return self._committer.is_own

    def hold(self, state: State, as_of: Time | None) -> LeasedState:
        """Lease a state that the caller has just read: from `as_of` on, or from its since; later if that expired.

        Share a lease that covers it. Otherwise register one, and return the state that has it.
        """
        if self._read_only:
            return self.unleased(state)
        wanted = state.since if as_of is None else Frontier((as_of,))
        with self._lock:
            for lease in self._leases.get(state.collection, ()):
                if self._may_share(lease, state, wanted):
                    return LeasedState(self, lease, state)
        try:
            return self.take(state.collection, wanted, own=False)
        except Unavailable as error:
            # A lease is a write. If the log can be read but not written, because the disk is full or an earlier
            # commit is in doubt, the process reads without a lease, as a store that is open for reading only.
            if not isinstance(error, NoSpace) and self._committer.session.frozen is None:
                raise
            self._committer.session.count("reads without a lease")
            return self.unleased(state)

    def unleased(self, state: State) -> LeasedState:
        """Return a state without a lease: it has no blobs to keep, or the store may not write."""
        return LeasedState(self, None, state)

    def _may_share(self, lease: SharedLease, state: State, wanted: Frontier) -> bool:
        """Return whether a lease covers reads of a state from a frontier on. Caller holds the lock."""
        is_fresh = self._monotonic() - lease.taken < ROTATE_S
        is_open = is_fresh and not lease.own and not lease.is_ending
        return is_open and lease.since <= wanted and lease.reader in state.readers

    def take(
        self, collection: str, since: Frontier | None, *, own: bool, term_ms: int | None = None, listens: bool = False
    ) -> LeasedState:
        """Register a lease from `since` on, or from the since of the collection. Only its owner moves an `own` one."""
        reader = fresh_id("r")
        term = term_ms if term_ms is not None else self._committer.config.reader_lease_ms
        (granted,) = self._committer.commit((collection, RegisterReader(reader, since, term)))
        lease = SharedLease(collection, reader, granted.since, self._monotonic(), term / 1000, own=own)
        leased = LeasedState(self, lease, self._committer.known(collection))
        lease.seqno = granted.seqno
        # SUBTLE: before the heartbeat sees it, which would release states up to the newest (test_leases.py).
        lease.cursor = granted.seqno if listens else None
        with self._lock:
            self._leases.setdefault(collection, []).append(lease)
        return leased

    def listen(self, state: State) -> LeasedState:
        """Lease states and no history, for a commit stream: from the state that has the lease on."""
        if self._read_only:
            return self.unleased(state)
        return self.take(state.collection, Frontier(((INT64_MAX,) * state.arity,)), own=True, listens=True)

    def advance_cursor(self, lease: SharedLease, seqno: int) -> None:
        """Record that a listener has read all commits up to a state."""
        with self._lock:
            lease.cursor = seqno

    def release_states(self, lease: SharedLease) -> None:
        """Release the states that a listener has read; raise LeaseExpired if its lease is gone."""
        with self._lock:
            assert lease.cursor is not None
            lease.seqno = lease.cursor
        self._committer.commit((lease.collection, DowngradeReader(lease.reader, None, lease.seqno)))

    def advance(self, lease: SharedLease, since: Time) -> None:
        """Move an own lease forward, and release older states; raise LeaseExpired if it is gone."""
        lease.seqno = self._committer.known(lease.collection).seqno
        command = DowngradeReader(lease.reader, Frontier((since,)), lease.seqno)
        (granted,) = self._committer.commit((lease.collection, command))
        lease.since = granted.since

    def release(self, leased: LeasedState) -> None:
        """End a reference to a lease; return an own lease at once."""
        lease = leased.lease
        with self._lock:
            lease.users.discard(leased)
            lease.used = self._monotonic()
            if not lease.own or lease.users or lease not in self._leases.get(lease.collection, ()):
                return  # shared, still used, or returned when the store was closed
            self._forget(lease)
        self._give_back(lease.collection, [lease])

    def name_of(self, lease: SharedLease) -> str:
        """Return the name of the collection of a lease."""
        return self._committer.name_of(lease.collection)

    def is_lost(self, lease: SharedLease) -> bool:
        """Return whether the newest state lacks a lease."""
        if not lease.lost:
            lease.lost = lease.reader not in self._committer.state(lease.collection).readers
            if lease.lost:
                with self._lock:
                    self._forget(lease)
        return lease.lost

    def idle(self, collection: str) -> list[Command]:
        """List the commands that return every lease without reads: to be committed together with an expiry."""
        with self._lock:
            unused = [lease for lease in self._leases.get(collection, ()) if not lease.users]
            for lease in unused:
                # SUBTLE: not forgotten before the commit. A commit that fails, as on a full disk, would leave leases
                # that hold history until they expire (test_disk_full.py).
                lease.is_ending = True
            registered = self._committer.known(collection).readers if unused else ()
            return [ExpireReader(lease.reader) for lease in unused if lease.reader in registered]

    def heartbeat(self) -> int:
        """Renew the leases that reads use, return the others; return how many commits this took."""
        now = self._monotonic()
        commits = 0
        with self._lock:
            collections = list(self._leases)
        for collection in collections:
            with self._lock:
                leases = list(self._leases.get(collection, ()))
                stale = [lease for lease in leases if self._is_idle(lease, now) or self._is_behind(lease)]
                for lease in stale:
                    self._forget(lease)
            kept = [lease for lease in leases if lease not in stale]
            commits += self._beat(collection, kept) + (self._give_back(collection, stale) if stale else 0)
        return commits

    def _is_idle(self, lease: SharedLease, now: float) -> bool:
        if lease.users:
            lease.used = now
            return False
        return lease.is_ending or now - lease.used >= LINGER_S

    def _is_behind(self, lease: SharedLease) -> bool:
        """Return whether a listener is further behind than the configuration allows."""
        if lease.cursor is None:
            return False
        return self._committer.known(lease.collection).seqno - lease.cursor > self._committer.config.listener_seqnos

    def close(self) -> None:
        """Return all leases."""
        with self._lock:
            leases, self._leases = self._leases, {}
        for collection, held in leases.items():
            self._give_back(collection, held)

    def _beat(self, collection: str, leases: list[SharedLease]) -> int:
        """Renew all leases of a collection in one commit; return 0 if it is too early for another."""
        now = self._monotonic()
        if not any(now - lease.beaten >= lease.term_s / BEATS for lease in leases):
            return 0
        for lease in leases:
            lease.beaten = now
        before = self._committer.state(collection).seqno
        for lease in leases:
            self.is_lost(lease)
        alive = [
            DowngradeReader(lease.reader, None, self._releasable_seqno(lease, before))
            for lease in leases
            if not lease.lost
        ]
        reply = self._committer.offer(CommandTransaction(tuple((collection, each) for each in alive))) if alive else ()
        if isinstance(reply, Refused):
            return 0  # one lease expired in between: the next beat finds out which
        return int(self._committer.known(collection).seqno != before)

    def _releasable_seqno(self, lease: SharedLease, newest: int) -> int | None:
        """Return the state up to which an own lease releases along with a beat; None: no further.

        An idle feed that held the state of its last look would keep garbage from being collected.
        SUBTLE: not past the state that its feed is reading at this moment, nor past the cursor of its listener
        (tests/client/read/test_leases.py).
        """
        with self._lock:
            target = min(each for each in (newest, lease.pin, lease.cursor) if each is not None)
            if not lease.own or target <= lease.seqno:
                return None
            lease.seqno = target
            return target

    @contextlib.contextmanager
    def pinned(self, lease: SharedLease, state: State) -> Iterator[State]:
        """Keep the blobs of a state while its owner reads it. Gives a newer state if this one was released."""
        while not self._pin(lease, state.seqno):
            state = self._committer.state(lease.collection)
        try:
            yield state
        finally:
            lease.pin = None

    def _pin(self, lease: SharedLease, seqno: int) -> bool:
        with self._lock:
            lease.pin = seqno
            return lease.seqno <= seqno

    def _give_back(self, collection: str, leases: list[SharedLease]) -> int:
        registered = self._committer.known(collection).readers
        commands = [ExpireReader(lease.reader) for lease in leases if not lease.lost and lease.reader in registered]
        if commands:
            self._committer.offer(CommandTransaction(tuple((collection, each) for each in commands)))
        return int(bool(commands))

    def _forget(self, lease: SharedLease) -> None:
        """Drop a lease from the list. Caller holds the lock."""
        held = self._leases.get(lease.collection, [])
        if lease in held:
            held.remove(lease)
        if not held:
            self._leases.pop(lease.collection, None)

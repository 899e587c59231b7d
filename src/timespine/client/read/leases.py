"""The leases of one process: few, shared by all its readers, kept alive by one heartbeat per collection.

A lease from `since` on, granted at some state, covers every read at a later time
planned on that state or a newer one. So most reads register no lease: they refer
to one that is there, and write nothing.

A lease knows the reads that refer to it by weak references. A read that is closed,
dropped or interrupted at any point stops counting, and no finalizer has to run.

A lease that no read refers to lingers for a little, for the next reader, and is
then given back, so that an idle process holds no history. One that is old takes no
new readers, so that a busy process does not hold history either.

Registering a lease needs neither a writer nor a committer, and may be repeated: its
id is fresh, so the same command again finds the lease that is there. A lease whose
reply was lost for good has no owner. It expires at the end of its term.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Iterator

from timespine.client.commit.driver import fresh_id
from timespine.client.commit.group_commit import Committer
from timespine.core.group import Refused, Transaction
from timespine.core.state import State
from timespine.core.transitions import Command, DowngradeReader, ExpireReader, RegisterReader
from timespine.errors import LeaseExpired, NoSpace, Unavailable
from timespine.locks import Lock
from timespine.model.frontier import Frontier
from timespine.model.time import INT64_MAX, Time

LINGER_S = 5.0
"""How long a lease that nobody uses is kept for the next reader."""


BEATS = 4
"""Heartbeats in the term of a lease: three may be missed."""

ROTATE_S = 30.0
"""How old a lease may be for a new reader to count on it: then the next one is taken, and the old one runs out."""


class Lease:
    """A claim on history that is registered in the state of a collection."""

    def __init__(self, collection: str, reader: str, since: Frontier, now: float, term_s: float, *, own: bool) -> None:
        self.collection = collection
        self.reader = reader
        """Its id in the state."""
        self.since = since
        """It covers reads from here on."""
        self.own = own
        """Whether it moves with one feed and is not shared."""
        self.users: weakref.WeakSet[LeasedState] = weakref.WeakSet()
        """The reads that refer to it."""
        self.term_s = term_s
        """How long it lives without a heartbeat."""
        self.beaten = now
        """When it was last heard of."""
        self.taken = now
        """When it was registered."""
        self.used = now
        """When a read was last known to refer to it."""
        self.pin: int | None = None
        """The state that an own lease is being read at: nothing that it refers to may go meanwhile."""
        self.cursor: int | None = None
        """The state that a listener has heard up to: nothing that came after it may go before that is heard too."""
        self.seqno = 0
        """Nothing that this state or a later one refers to is deleted, as far as this lease is asked."""
        self.is_ending = False
        """Whether it is to be given back: no read may count on it any more."""
        self.lost = False
        """Whether it was found to be gone from the state."""


class LeasedState:
    """A state to read, and the lease that keeps what the state refers to.

    It refers to the lease until it is closed or garbage collected.
    """

    def __init__(self, leases: Leases, lease: Lease | None, state: State) -> None:
        self._leases = leases
        self._lease = lease
        self.state = state
        """The state that reads are planned on."""
        if lease is not None:
            lease.users.add(self)

    @property
    def lease(self) -> Lease:
        """The lease."""
        assert self._lease is not None
        return self._lease

    @property
    def is_leased(self) -> bool:
        """Whether there is one: a store that is open for reading only, or whose disk is full, takes none."""
        return self._lease is not None

    def check(self) -> None:
        """Raise LeaseExpired if the lease is gone, or if there never was one: what it read may be gone."""
        if not self.is_leased:
            raise LeaseExpired(
                "what was being read is gone: a store that is open for reading only, or that cannot write now, "
                "holds nothing back; read again"
            )
        if self._leases.is_lost(self.lease):
            raise LeaseExpired(f"the lease of a reader of {self._leases.name_of(self.lease)} expired: read again")

    def share(self) -> LeasedState:
        """Refer to the same lease and state once more, until that is closed."""
        return LeasedState(self._leases, self._lease, self.state)

    def close(self) -> None:
        """Stop referring to the lease. Twice is fine."""
        if self.is_leased and self in self.lease.users and self._leases.is_own:
            self._leases.release(self)


class closed_on_error:
    """Closes a leased state if the block fails. If it does not, the block has handed the state to a reader.

    SUBTLE: not by GeneratorExit. A generator that was interrupted is finalized anywhere, also while its thread holds
    a lock of the leases; the weak reference goes by itself (test_leases.py).
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
        self, committer: Committer, *, read_only: bool = False, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._committer = committer
        self._read_only = read_only
        self._monotonic = monotonic
        self._lock = Lock("the leases of this store")
        self._leases: dict[str, list[Lease]] = {}

    @property
    def is_own(self) -> bool:
        """Whether this process took them: a forked child did not, and leaves them alone."""
        return self._committer.is_own

    def hold(self, state: State, as_of: Time | None) -> LeasedState:
        """Lease a state that was just read: from `as_of` on, or from its since if None. May be later if that is gone.

        A lease that is there is shared. Otherwise one is registered, and the state is the one that has it.
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
            # A lease is a write. Where the log can be read and not be written, because the disk is full or an earlier
            # commit is in doubt, it is read as a store that is open for reading only does it.
            if not isinstance(error, NoSpace) and self._committer.session.frozen is None:
                raise
            self._committer.session.count("reads without a lease")
            return self.unleased(state)

    def unleased(self, state: State) -> LeasedState:
        """Give a state that no lease keeps: there is nothing to read in it, or nothing may be written."""
        return LeasedState(self, None, state)

    def _may_share(self, lease: Lease, state: State, wanted: Frontier) -> bool:
        """Whether a lease covers reads of a state from a frontier on. Holds the lock."""
        is_fresh = self._monotonic() - lease.taken < ROTATE_S
        is_open = is_fresh and not lease.own and not lease.is_ending
        return is_open and lease.since <= wanted and lease.reader in state.readers

    def take(
        self, collection: str, since: Frontier | None, *, own: bool, term_ms: int | None = None, listens: bool = False
    ) -> LeasedState:
        """Register a lease from `since` on, or from the collection's. An `own` one is moved by its owner alone."""
        reader = fresh_id("r")
        term = term_ms if term_ms is not None else self._committer.config.reader_lease_ms
        (granted,) = self._committer.commit((collection, RegisterReader(reader, since, term)))
        lease = Lease(collection, reader, granted.since, self._monotonic(), term / 1000, own=own)
        leased = LeasedState(self, lease, self._committer.known(collection))
        lease.seqno = granted.seqno
        # SUBTLE: before the heartbeat sees it, which would let go of states up to the newest (test_leases.py).
        lease.cursor = granted.seqno if listens else None
        with self._lock:
            self._leases.setdefault(collection, []).append(lease)
        return leased

    def listen(self, state: State) -> LeasedState:
        """Lease states and no history, for a commit stream: from the state that has the lease on."""
        if self._read_only:
            return self.unleased(state)
        return self.take(state.collection, Frontier(((INT64_MAX,) * state.arity,)), own=True, listens=True)

    def follow(self, lease: Lease, seqno: int) -> None:
        """A listener has heard what there is up to a state."""
        with self._lock:
            lease.cursor = seqno

    def let_go(self, lease: Lease) -> None:
        """Release the states that a listener has heard already; LeaseExpired if its lease is gone."""
        with self._lock:
            assert lease.cursor is not None
            lease.seqno = lease.cursor
        self._committer.commit((lease.collection, DowngradeReader(lease.reader, None, lease.seqno)))

    def advance(self, lease: Lease, since: Time) -> None:
        """Move an own lease forward, and release older states; LeaseExpired if it is gone."""
        lease.seqno = self._committer.known(lease.collection).seqno
        command = DowngradeReader(lease.reader, Frontier((since,)), lease.seqno)
        (granted,) = self._committer.commit((lease.collection, command))
        lease.since = granted.since

    def release(self, leased: LeasedState) -> None:
        """End a reference to a lease; an own lease is given back at once."""
        lease = leased.lease
        with self._lock:
            lease.users.discard(leased)
            lease.used = self._monotonic()
            if not lease.own or lease.users or lease not in self._leases.get(lease.collection, ()):
                return  # shared, still used, or given back when the store was closed
            self._forget(lease)
        self._give_back(lease.collection, [lease])

    def name_of(self, lease: Lease) -> str:
        """What people call the collection of a lease."""
        return self._committer.name_of(lease.collection)

    def is_lost(self, lease: Lease) -> bool:
        """Whether a lease is gone from the newest state."""
        if not lease.lost:
            lease.lost = lease.reader not in self._committer.state(lease.collection).readers
            if lease.lost:
                with self._lock:
                    self._forget(lease)
        return lease.lost

    def idle(self, collection: str) -> list[Command]:
        """The commands that give back every lease that no read refers to: to be committed along with an expire."""
        with self._lock:
            unused = [lease for lease in self._leases.get(collection, ()) if not lease.users]
            for lease in unused:
                # SUBTLE: not forgotten before that is committed. A commit that fails, as on a full disk, would leave
                # leases behind that hold history until they expire (test_disk_full.py).
                lease.is_ending = True
            registered = self._committer.known(collection).readers if unused else ()
            return [ExpireReader(lease.reader) for lease in unused if lease.reader in registered]

    def heartbeat(self) -> int:
        """Keep what is used alive, give back what is not; the commits that this took."""
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

    def _is_idle(self, lease: Lease, now: float) -> bool:
        if lease.users:
            lease.used = now
            return False
        return lease.is_ending or now - lease.used >= LINGER_S

    def _is_behind(self, lease: Lease) -> bool:
        """Whether a listener has not listened for so long that nobody waits for it any more."""
        if lease.cursor is None:
            return False
        return self._committer.known(lease.collection).seqno - lease.cursor > self._committer.config.listener_seqnos

    def close(self) -> None:
        """Give back all leases."""
        with self._lock:
            leases, self._leases = self._leases, {}
        for collection, held in leases.items():
            self._give_back(collection, held)

    def _beat(self, collection: str, leases: list[Lease]) -> int:
        """One commit for all leases of a collection; none if it is too early for another."""
        now = self._monotonic()
        if not any(now - lease.beaten >= lease.term_s / BEATS for lease in leases):
            return 0
        for lease in leases:
            lease.beaten = now
        before = self._committer.state(collection).seqno
        for lease in leases:
            self.is_lost(lease)
        alive = [
            DowngradeReader(lease.reader, None, self._released(lease, before)) for lease in leases if not lease.lost
        ]
        reply = self._committer.offer(Transaction(tuple((collection, each) for each in alive))) if alive else ()
        if isinstance(reply, Refused):
            return 0  # one went meanwhile: the next beat finds out which
        return int(self._committer.known(collection).seqno != before)

    def _released(self, lease: Lease, newest: int) -> int | None:
        """Up to which state an own lease lets go along with a beat; None: no further.

        An idle feed that held on to the state it last looked at would keep garbage from being collected.
        SUBTLE: not past the state that its feed is reading at this moment, nor past what its listener has heard
        (tests/client/read/test_leases.py).
        """
        with self._lock:
            target = min(each for each in (newest, lease.pin, lease.cursor) if each is not None)
            if not lease.own or target <= lease.seqno:
                return None
            lease.seqno = target
            return target

    @contextlib.contextmanager
    def pinned(self, lease: Lease, state: State) -> Iterator[State]:
        """Keep what a state refers to while it is read under an own lease. Gives a newer one if it was let go."""
        while not self._pin(lease, state.seqno):
            state = self._committer.state(lease.collection)
        try:
            yield state
        finally:
            lease.pin = None

    def _pin(self, lease: Lease, seqno: int) -> bool:
        with self._lock:
            lease.pin = seqno
            return lease.seqno <= seqno

    def _give_back(self, collection: str, leases: list[Lease]) -> int:
        registered = self._committer.known(collection).readers
        commands = [ExpireReader(lease.reader) for lease in leases if not lease.lost and lease.reader in registered]
        if commands:
            self._committer.offer(Transaction(tuple((collection, each) for each in commands)))
        return int(bool(commands))

    def _forget(self, lease: Lease) -> None:
        """Drop a lease from the list. Holds the lock."""
        held = self._leases.get(lease.collection, [])
        if lease in held:
            held.remove(lease)
        if not held:
            self._leases.pop(lease.collection, None)

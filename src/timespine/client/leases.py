"""The leases of one process: few, shared by all its readers, kept alive by one heartbeat per collection.

A lease from `since` on, granted at some state, covers every read at a later time
planned on that state or a newer one. So most reads take no lease of their own:
they count themselves in on one that is there, and no write is needed for it.

A lease that nobody counts on any more lingers for a little, for the next reader,
and is then given back, so that an idle process holds no history. One that is old
takes no new readers, so that a busy process does not hold it either.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator

from timespine.client.committer import Committer
from timespine.client.driver import fresh_id
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
        self.users = 0
        """How many reads count on it."""
        self.term_s = term_s
        """How long it lives without a heartbeat."""
        self.beaten = now
        """When it was last heard of."""
        self.taken = now
        """When it was registered."""
        self.used = now
        """When the last read ended."""
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


class Held:
    """One read that counts on a lease, and the state it was planned on."""

    def __init__(self, leases: Leases, lease: Lease | None, state: State) -> None:
        self._leases = leases
        self._lease = lease
        self.state = state
        self._closed = False

    @property
    def lease(self) -> Lease:
        """The lease it counts on."""
        assert self._lease is not None
        return self._lease

    @property
    def is_leased(self) -> bool:
        """Whether there is one: a store that is open for reading only, or whose disk is full, takes none."""
        return self._lease is not None

    def check(self) -> None:
        """LeaseExpired if the lease is gone, or if there never was one: what it read may be gone."""
        if not self.is_leased:
            raise LeaseExpired(
                "what was being read is gone: a store that is open for reading only, or that cannot write now, "
                "holds nothing back; read again"
            )
        if self._leases.is_lost(self.lease):
            raise LeaseExpired(f"the lease of a reader of {self._leases.name_of(self.lease)} expired: read again")

    def again(self) -> Held:
        """Another read that counts on the same lease and state, and goes on when this one is closed."""
        if self.is_leased:
            self._leases.count_in(self.lease)
        return Held(self._leases, self._lease, self.state)

    def abandon(self) -> None:
        """Nobody will ever close this: the next heartbeat gives the lease back. Writes nothing, and never waits."""
        if not self._closed and self.is_leased and self._leases.is_own:
            self._closed = True
            self._leases.count_out(self.lease)

    def close(self) -> None:
        """Count this read out. Twice is fine."""
        if not self._closed:
            self._closed = True
            if self.is_leased and self._leases.is_own:
                self._leases.release(self.lease)


class Leases:
    """All leases of one process on one store."""

    def __init__(
        self, committer: Committer, *, read_only: bool = False, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._committer = committer
        self._read_only = read_only
        self._monotonic = monotonic
        self._lock = Lock("the leases of this store")
        self._abandoned: deque[tuple[Lease, float]] = deque()
        """Leases that dropped reads counted on, and when. SUBTLE: a finalizer runs anywhere, so it takes no lock."""
        self._leases: dict[str, list[Lease]] = {}

    @property
    def is_own(self) -> bool:
        """Whether this process took them: a forked child did not, and leaves them alone."""
        return self._committer.is_own

    def hold(self, collection: str, as_of: Time | None) -> Held:
        """Count a read in: from `as_of` on, or from the collection's since if None. May be later if that is gone."""
        state = self._committer.state(collection)
        if self._read_only:
            return Held(self, None, state)
        with self._lock:
            wanted = state.since if as_of is None else Frontier((as_of,))
            for lease in self._leases.get(collection, ()):
                fresh = self._monotonic() - lease.taken < ROTATE_S
                if (
                    fresh
                    and not lease.own
                    and not lease.is_ending
                    and lease.since <= wanted
                    and lease.reader in state.readers
                ):
                    lease.users += 1
                    return Held(self, lease, state)
        try:
            return self.take(collection, wanted, own=False)
        except Unavailable as error:
            # A lease is a write. Where the log can be read and not be written, because the disk is full or an earlier
            # commit is in doubt, it is read as a store that is open for reading only does it.
            if not isinstance(error, NoSpace) and self._committer.session.frozen is None:
                raise
            self._committer.session.count("reads without a lease")
            return Held(self, None, state)

    def take(
        self, collection: str, since: Frontier, *, own: bool, term_ms: int | None = None, listens: bool = False
    ) -> Held:
        """Register a lease, clamped to the collection's since. An `own` one is moved by its owner alone."""
        reader = fresh_id("r")
        term = term_ms if term_ms is not None else self._committer.config.reader_lease_ms
        (granted,) = self._committer.commit((collection, RegisterReader(reader, since, term)))
        lease = Lease(collection, reader, granted.since, self._monotonic(), term / 1000, own=own)
        lease.users = 1
        lease.seqno = granted.seqno
        # SUBTLE: before the heartbeat sees it, which would let go of states up to the newest (test_leases.py).
        lease.cursor = granted.seqno if listens else None
        with self._lock:
            self._leases.setdefault(collection, []).append(lease)
        return Held(self, lease, self._committer.known(collection))

    def listen(self, collection: str, arity: int) -> Held:
        """A lease on states and not on history, for a listener: from the state that it is given on."""
        if self._read_only:
            return Held(self, None, self._committer.state(collection))
        return self.take(collection, Frontier(((INT64_MAX,) * arity,)), own=True, listens=True)

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

    def count_in(self, lease: Lease) -> None:
        """One read more counts on a lease."""
        with self._lock:
            lease.users += 1

    def count_out(self, lease: Lease) -> None:
        """One read less does; the next heartbeat counts it, and gives the lease back in time."""
        self._abandoned.append((lease, self._monotonic()))

    def _count_abandoned(self) -> None:
        """Count reads out that were dropped. Holds the lock."""
        while self._abandoned:
            lease, dropped = self._abandoned.popleft()
            lease.users -= 1
            lease.used = max(lease.used, dropped)

    def release(self, lease: Lease) -> None:
        """Count a read out; an own lease is given back at once."""
        with self._lock:
            self._count_abandoned()
            lease.users -= 1
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
        """The commands that give back every lease that nobody uses: to be committed along with an expire."""
        with self._lock:
            self._count_abandoned()
            unused = [lease for lease in self._leases.get(collection, ()) if lease.users == 0]
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
            self._count_abandoned()
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
        return lease.users == 0 and (lease.is_ending or now - lease.used >= LINGER_S)

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
        (tests/client/test_leases.py).
        """
        with self._lock:
            target = min(each for each in (newest, lease.pin, lease.cursor) if each is not None)
            if not lease.own or target <= lease.seqno:
                return None
            lease.seqno = target
            return target

    @contextlib.contextmanager
    def pinned(self, lease: Lease, seqno: int) -> Iterator[bool]:
        """What a state refers to stays while it is read under an own lease. False if it was let go before."""
        covered = self._pin(lease, seqno)
        try:
            yield covered
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

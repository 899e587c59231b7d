"""Holds that a user takes: a lease that this process keeps alive, or a critical hold that outlives it."""

from __future__ import annotations

from timespine.client.arguments.time_args import TimeLike, unwrap_time
from timespine.client.commit.effect_driver import fresh_id
from timespine.client.inner_handles import CollectionHandle
from timespine.client.read.leases import LeasedState, close_on_error
from timespine.client.refuse_pickle import OneProcess
from timespine.core.transitions import CompareAndDowngrade, RegisterHold, ReleaseHold
from timespine.errors import SinceError, UsageError, short_repr
from timespine.model.frontier import Frontier
from timespine.model.time import Time

TERM_MIN_MS = 10_000
"""The shortest term of a hold: the heartbeat comes every two seconds, and four beats must fit in."""


class Hold(OneProcess):
    """A hold that ends with its process. Leave its `with` to release it."""

    def __init__(self, handle: CollectionHandle, leased: LeasedState) -> None:
        self._handle = handle
        self._leased = leased

    @property
    def since(self) -> Frontier:
        """The frontier from which on history is readable."""
        return self._leased.lease.since

    def release_before(self, time: TimeLike) -> None:
        """Release history before a time."""
        self._handle.context.leases.advance(self._leased.lease, self._handle.time_of(time))

    def release(self) -> None:
        """Release all history of the hold. Twice is fine."""
        self._leased.close()

    def __enter__(self) -> Hold:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<hold of {self._handle.name} from {self.since} on>"


class CriticalHold(OneProcess):
    """A hold that never expires. Any process that knows its token may move or release it.

    Leave its `with` to release it; without a `with` it outlives its process.
    """

    def __init__(self, handle: CollectionHandle, name: str, token: str, since: Frontier) -> None:
        self._handle = handle
        self.name = name
        """The name of the hold, unique in its collection."""
        self.token = token
        """The secret that moves and releases it. Keep it where the next process finds it."""
        self.since = since
        """The frontier from which on history is readable."""
        self._offered = ""

    def release_before(self, time: TimeLike) -> None:
        """Release history before a time; raise Fenced if another process took the hold over."""
        handle = self._handle
        since = Frontier((handle.time_of(time),))
        command = CompareAndDowngrade(self.name, self.token, self.token, since)
        (granted,) = handle.committer.commit((handle.id, command))
        self.since = granted.since

    def take_over(self) -> None:
        """Change the token, so that processes with the old one are fenced. May be repeated after Indeterminate."""
        handle = self._handle
        # SUBTLE: after a try whose outcome is unknown, the hold may already have this token (test_user_holds.py).
        self._offered = self._offered or fresh_id("t")
        handle.committer.commit((handle.id, CompareAndDowngrade(self.name, self.token, self._offered, self.since)))
        self.token, self._offered = self._offered, ""

    def release(self) -> None:
        """Release all history of the hold. Twice is fine."""
        self._handle.committer.commit((self._handle.id, ReleaseHold(self.name, self.token)))

    def __enter__(self) -> CriticalHold:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<critical hold {self.name} of {self._handle.name} from {self.since} on>"


def take_hold(handle: CollectionHandle, as_of: Time | None, ttl_ms: int | None) -> Hold:
    """Take a lease from a time on that this process renews; it ends `ttl_ms` after the process does."""
    wanted = Frontier((as_of,)) if as_of is not None else None
    term_ms = max(ttl_ms, TERM_MIN_MS) if ttl_ms is not None else None
    with close_on_error(handle.context.leases.take(handle.id, wanted, own=True, term_ms=term_ms)) as leased:
        if as_of is not None and not leased.lease.since.less_equal(as_of):
            # SUBTLE: not the since of the lease. With several coordinates that is the join with the time asked for,
            # which is later than the since of the collection (test_user_holds.py).
            raise SinceError(unwrap_time(as_of), leased.state.since)
        return Hold(handle, leased)


def take_critical(handle: CollectionHandle, name: str, as_of: Time | None, token: str | None) -> CriticalHold:
    """Register a critical hold, or find it again by its token."""
    if not isinstance(name, str):
        raise UsageError(f"the name of a hold is a text, not {short_repr(name)}")
    if token is not None and (not isinstance(token, str) or not token):
        raise UsageError("the token of a hold is a text that is kept secret: leave it out to get a fresh one")
    token = token if token is not None else fresh_id("t")
    since = Frontier((as_of,)) if as_of is not None else None
    is_new = name not in handle.state().holds
    (granted,) = handle.committer.commit((handle.id, RegisterHold(name, since, token)))
    if as_of is not None and not granted.since.less_equal(as_of):
        # SUBTLE: a hold that existed before stays, also if it does not cover this time (test_user_holds.py).
        if not is_new:
            error = SinceError(unwrap_time(as_of), granted.since)
            error.args = (
                f"hold {name} keeps history from {granted.since} on: for {unwrap_time(as_of)} take another one",
            )
            raise error
        handle.committer.commit((handle.id, ReleaseHold(name, token)))
        raise SinceError(unwrap_time(as_of), handle.known().since)
    return CriticalHold(handle, name, token, granted.since)

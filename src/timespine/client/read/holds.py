"""Holds that a user takes: a lease that this process keeps alive, or a critical hold that outlives it."""

from __future__ import annotations

from timespine.client.commit.driver import fresh_id
from timespine.client.context import Access
from timespine.client.process_guard import OneProcess
from timespine.client.read.leases import LeasedState, closed_on_error
from timespine.client.time_args import Moment, to_user
from timespine.core.transitions import CompareAndDowngrade, RegisterHold, ReleaseHold
from timespine.errors import SinceError, UsageError, shown
from timespine.model.frontier import Frontier
from timespine.model.time import Time

TERM_MIN_MS = 10_000
"""The shortest term of a hold: leases are looked after every two seconds, and four beats must fit in."""


class Hold(OneProcess):
    """History from a time on stays readable while this is open."""

    def __init__(self, access: Access, leased: LeasedState) -> None:
        self._access = access
        self.leased = leased
        """The lease."""

    @property
    def since(self) -> Frontier:
        """Reading is possible from here on."""
        return self.leased.lease.since

    def advance(self, to: Moment) -> None:
        """Release history before a time."""
        self._access.shared.leases.advance(self.leased.lease, self._access.time_of(to))

    def close(self) -> None:
        """Release all of it."""
        self.leased.close()

    def __enter__(self) -> Hold:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class CriticalHold(OneProcess):
    """A hold that never expires. Any process that knows its token may move or release it."""

    def __init__(self, access: Access, name: str, token: str, since: Frontier) -> None:
        self._access = access
        self.name = name
        """Its name: one per collection."""
        self.token = token
        """What moves and releases it. Keep it where the next process finds it."""
        self.since = since
        """Reading is possible from here on."""
        self._offered = ""

    def advance(self, to: Moment) -> None:
        """Release history before a time; Fenced if somebody else took the hold over."""
        access = self._access
        since = Frontier((access.time_of(to),))
        command = CompareAndDowngrade(self.name, self.token, self.token, since)
        (granted,) = access.committer.commit((access.id, command))
        self.since = granted.since

    def take_over(self) -> None:
        """Change the token, so that whoever had it before is fenced off. It may be repeated after Indeterminate."""
        access = self._access
        # SUBTLE: the token of a try whose outcome is unknown may be that of the hold by now (test_holds.py).
        self._offered = self._offered or fresh_id("t")
        access.committer.commit((access.id, CompareAndDowngrade(self.name, self.token, self._offered, self.since)))
        self.token, self._offered = self._offered, ""

    def release(self) -> None:
        """End the hold."""
        self._access.committer.commit((self._access.id, ReleaseHold(self.name, self.token)))

    def __repr__(self) -> str:
        return f"<critical hold {self.name} of {self._access.name} from {self.since} on>"


def take_hold(access: Access, as_of: Time | None, ttl_ms: int | None) -> Hold:
    """A lease from a time on, kept alive by this process; it ends `ttl_ms` after the process does."""
    wanted = Frontier((as_of,)) if as_of is not None else None
    term_ms = max(ttl_ms, TERM_MIN_MS) if ttl_ms is not None else None
    with closed_on_error(access.shared.leases.take(access.id, wanted, own=True, term_ms=term_ms)) as leased:
        if as_of is not None and not leased.lease.since.less_equal(as_of):
            # SUBTLE: not the since of the lease. Of several coordinates that is the join with what was asked for,
            # which is later than the since of the collection (test_holds.py).
            raise SinceError(to_user(as_of), leased.state.since)
        return Hold(access, leased)


def take_critical(access: Access, name: str, as_of: Time | None, token: str | None) -> CriticalHold:
    """A critical hold: registered, or found again by its token."""
    if not isinstance(name, str):
        raise UsageError(f"critical is the name of a hold, a text, not {shown(name)}")
    if token is not None and (not isinstance(token, str) or not token):
        raise UsageError("the token of a hold is a text that nobody else has: leave it out, and one is made up")
    token = token if token is not None else fresh_id("t")
    since = Frontier((as_of,)) if as_of is not None else None
    is_new = name not in access.state().holds
    (granted,) = access.committer.commit((access.id, RegisterHold(name, since, token)))
    if as_of is not None and not granted.since.less_equal(as_of):
        # SUBTLE: one that was there before stays, whatever is asked of it now (test_holds.py).
        if not is_new:
            error = SinceError(to_user(as_of), granted.since)
            error.args = (f"hold {name} keeps history from {granted.since} on: for {to_user(as_of)} take another one",)
            raise error
        access.committer.commit((access.id, ReleaseHold(name, token)))
        raise SinceError(to_user(as_of), access.known().since)
    return CriticalHold(access, name, token, granted.since)

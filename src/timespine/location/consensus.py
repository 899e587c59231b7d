"""The port for truth: per key a contiguous log of versioned bytes.

Contract, checked for every adapter by `timespine.testing.conformance`:

- The log of a key has entries at sequence numbers without gaps: first, ..., head.
  A key that was never written has none. The first entry ever has number 0.
- `compare_and_set` takes one write or many, for distinct keys. Each write says
  the head it expects (None: the key must be new) and appends one entry at
  expected + 1. All are appended if every expectation holds; otherwise none is,
  and the answer names the head of each key that differed.
- The data of one `compare_and_set` are at most ENTRY_BYTES_MAX bytes together, so
  that it is one request of bounded size to any storage. More is a UsageError.
- It is linearizable, also against `head` and `scan`, and durable when it returns.
- `truncate` drops entries below a number, never the head. A dropped entry
  cannot be written again.
- Failures are `Determinate` (nothing happened) or `Indeterminate` (may have,
  or may still): the caller finds out by reading.
- An adapter may have `heads(keys)`, which returns the newest number of many keys as of one moment, by one call.
  Callers use `read_heads`, which reads one head after the other where an adapter has no such method.
- An adapter on a disk may keep some space in reserve. `release_reserve` frees it, for
  a commit that gets space back; `restore_reserve` keeps it again. Neither changes a
  log. An adapter without a reserve answers False, and does nothing.
- An adapter may have the methods of `FencingConsensus`. Then every call that changes a log fails with `StoreFenced`,
  and changes nothing, from the moment that another process has raised the epoch.
- An adapter may have the method of `ForgettingConsensus`, which removes a log for good.
- An adapter may have a method `role(name)` that returns a `Role`, so that one process does
  some work for all of them (`timespine.location.machine.role`). Without it, each does its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from timespine.errors import Contention, StoreFenced

ENTRY_BYTES_MAX = 64 << 20
"""The most bytes of all entries of one compare-and-set: every adapter accepts these and no more.
`core.encoding.envelope` states it again: neither of the two layers may import the other. `tests/test_names.py`
compares them."""

WRITES_MAX = 4096
"""The most keys of one compare-and-set."""


EPOCH = "epoch"
"""The key of the log whose length is the epoch, where logs are no rows of a database. No collection can have it."""

LOOKS_MAX = 64
"""Looks at all logs that a reader of one moment takes, at most, where an adapter reads one log at a time."""


class LogEntry(NamedTuple):
    """One entry of the log of a key."""

    seqno: int
    """Its place in the log: without gaps, from 0."""
    data: bytes
    """The bytes that were written there, for ever."""


class LogWrite(NamedTuple):
    """One key of a compare-and-set."""

    key: str
    """The key of the log: one segment of the grammar in `timespine.ids`."""
    expected: int | None
    """The head that the log must have; None if the key must not exist."""
    data: bytes
    """The bytes of the new head, at expected + 1 (or 0)."""

    @property
    def seqno(self) -> int:
        """The place of the new head."""
        return 0 if self.expected is None else self.expected + 1


def differing_heads(writes: Sequence[LogWrite], heads: Mapping[str, int | None]) -> dict[str, int | None] | None:
    """Return the answer of a compare-and-set that found these heads: None to append, or the heads that differ."""
    return {write.key: heads[write.key] for write in writes if heads[write.key] != write.expected} or None


@runtime_checkable
class ListeningConsensus(Protocol):
    """What an adapter has beyond `Consensus` if its storage tells a process about commits of others."""

    def listen(self, ring: Callable[[], None]) -> None:
        """Call `ring` from another thread when another process may have committed, until the adapter is closed."""
        ...


@runtime_checkable
class FencingConsensus(Protocol):
    """What an adapter has beyond `Consensus` if it can lock out all processes that opened it before."""

    @property
    def epoch(self) -> int:
        """The epoch in which this process opened the logs."""
        ...

    def fence(self) -> int:
        """Raise the epoch, and go on in the new one; return it. Raise StoreFenced if another process was first."""
        ...


@runtime_checkable
class ForgettingConsensus(Protocol):
    """What an adapter has beyond `Consensus` if it can remove a log for good."""

    def forget(self, key: str, expected: int) -> bool:
        """Remove a log that has this head; return whether it did. The key is then as if it was never written."""
        ...


class Consensus(Protocol):
    """Linearizable logs, several of which can be extended at once."""

    def head(self, key: str) -> LogEntry | None:
        """Return the newest entry, or None if the key was never written."""
        ...

    def scan(self, key: str, from_seqno: int = 0, limit: int | None = None) -> list[LogEntry]:
        """Return the entries at or above `from_seqno`, oldest first, as of one moment; at most `limit`."""
        ...

    def compare_and_set(self, writes: Sequence[LogWrite]) -> Mapping[str, int | None] | None:
        """Append all entries or none; return None if done, otherwise the true heads of the keys that differed."""
        ...

    def truncate(self, key: str, below: int) -> int:
        """Drop entries with a number below `below`, but never the head; return how many were dropped."""
        ...

    def list_keys(self, prefix: str = "") -> list[str]:
        """Return all keys that begin with `prefix` (any text), in order."""
        ...

    def release_reserve(self) -> bool:
        """Free the space that is reserved for a full disk; return whether that freed any."""
        ...

    def restore_reserve(self) -> None:
        """Reserve that space again if there is enough. Never an error: logs work without it."""
        ...

    def close(self) -> None:
        """Release the adapter's resources. Twice is fine."""
        ...


def store_fenced(opened: int, found: int) -> StoreFenced:
    """Make the error for a process that opened a store in an earlier epoch."""
    return StoreFenced(
        f"this process opened the store in epoch {opened}, and it is in epoch {found}: it was fenced or restored; "
        "close it and open it again (if it is still refused, a fence was interrupted: run `timespine fence` again)"
    )


def read_heads(consensus: Consensus, keys: Sequence[str]) -> Mapping[str, int | None]:
    """Return the newest number of each key, None for those never written: by one call if the adapter can."""
    at_once: Callable[[Sequence[str]], Mapping[str, int | None]] | None = getattr(consensus, "heads", None)
    if at_once is not None:
        return at_once(keys)
    newest = {key: consensus.head(key) for key in keys}
    return {key: None if entry is None else entry.seqno for key, entry in newest.items()}


def read_heads_at_once(consensus: Consensus, keys: Sequence[str]) -> Mapping[str, int | None]:
    """Return the newest number of each key as of one moment.

    Where an adapter has no `heads`, two looks in a row that agree tell: numbers only grow, so all of them were the
    newest ones between the two looks.
    """
    found = read_heads(consensus, keys)
    if getattr(consensus, "heads", None) is not None:
        return found
    for _ in range(LOOKS_MAX):
        again = read_heads(consensus, keys)
        if again == found:
            return found
        found = again
    raise Contention(f"other processes committed between {LOOKS_MAX} looks at {len(keys)} logs: try again later")


def append_epoch(logs: Consensus, opened: int) -> int:
    """Append to the log of epochs, for adapters that keep one; return the new epoch, or raise StoreFenced."""
    if logs.compare_and_set([LogWrite(EPOCH, opened - 1 if opened else None, b"")]) is not None:
        raise store_fenced(opened, opened + 1)
    return opened + 1

"""Both ports with faults, for tests: storage that fails, hangs, and misreports what it did.

The wrappers decide nothing and know no clock: a function of the test names the fault of every call, so a seed replays a
run exactly. A fault does the same to an operation that only reads, without the effect.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from timespine.errors import Determinate, Indeterminate, Unavailable, UsageError
from timespine.location.blob import BLOB_BYTES_MAX, Blob, BlobInfo
from timespine.location.checks import check_writes
from timespine.location.consensus import Consensus, LogEntry, LogWrite
from timespine.locks import Lock

T = TypeVar("T")


class Fault(enum.Enum):
    """The fate of one call."""

    NONE = "none"
    """It works."""
    DETERMINATE = "determinate"
    """Nothing is done, and the caller gets Determinate."""
    INDETERMINATE_DONE = "indeterminate, done"
    """It is done, but the reply is lost."""
    INDETERMINATE_NOT = "indeterminate, not done"
    """The request is lost, and the caller cannot know."""
    SLOW = "slow"
    """It works after the injected pause, during which anything may happen."""
    LATE = "late"
    """The reply is lost now, and the write takes effect later: when ghosts are released, if it still can."""
    CONFLICT_DONE = "conflict, done"
    """A compare-and-set is done, and reported as lost to the entries that it wrote itself; all else works.

    Client libraries do so: after a lost reply they send the request again, and find what they wrote."""


Decide = Callable[[str, str], Fault]
"""The fault of a call, from the name of the operation and its key (a prefix; or all keys, joined by commas)."""


class _Faults:
    """The shared part of both wrappers: the decision, the pause, the counts and the ghosts."""

    def __init__(self, decide: Decide, pause: Callable[[], None]) -> None:
        self._decide = decide
        self._pause = pause
        self._lock = Lock("the faults")
        self._ghosts: list[Callable[[], object]] = []
        self.counts: Counter[Fault] = Counter()
        """The number of calls that met each fault."""

    def release_ghosts(self) -> int:
        """Apply the writes that were late, oldest first; return how many had an effect.

        A late compare-and-set is still one: it loses if its expectation no longer holds. No caller is left to learn of
        a refusal.
        """
        with self._lock:
            ghosts, self._ghosts = self._ghosts, []
        applied = 0
        for ghost in ghosts:
            try:
                outcome = ghost()
                applied += outcome is None or (isinstance(outcome, int) and outcome > 0)
            except (Unavailable, UsageError):
                continue
        return applied

    def _run(self, operation: str, key: str, action: Callable[[], T], *, writes: bool = False) -> T:
        return self._decided(operation, key, action, writes=writes)[1]

    def _decided(self, operation: str, key: str, action: Callable[[], T], *, writes: bool = False) -> tuple[Fault, T]:
        """Carry out a call with its fault; return that fault, and the answer if there is one."""
        fault = self._decide(operation, str(key))
        with self._lock:
            self.counts[fault] += 1
            if fault is Fault.LATE and writes:
                self._ghosts.append(action)
        if fault is Fault.SLOW:
            self._pause()
        if fault in (Fault.NONE, Fault.SLOW, Fault.CONFLICT_DONE):
            return fault, action()
        if fault is Fault.DETERMINATE:
            raise Determinate(f"injected: {operation} {key!s:.200} did not happen")
        if fault is Fault.INDETERMINATE_DONE:
            action()
        raise Indeterminate(f"injected: {operation} {key!s:.200} may have happened")


def _no_pause() -> None:
    return None


class UnreliableBlob(_Faults):
    """A Blob adapter with faults."""

    def __init__(self, inner: Blob, decide: Decide, pause: Callable[[], None] = _no_pause) -> None:
        super().__init__(decide, pause)
        self._inner = inner

    def put(self, key: str, value: bytes) -> None:
        self._run("put", key, lambda: self._inner.put(key, value), writes=True)

    def get(self, key: str, *, max_bytes: int = BLOB_BYTES_MAX) -> bytes | None:
        return self._run("get", key, lambda: self._inner.get(key, max_bytes=max_bytes))

    def get_range(self, key: str, start: int, stop: int) -> bytes | None:
        return self._run("get_range", key, lambda: self._inner.get_range(key, start, stop))

    def delete(self, key: str) -> bool | None:
        return self._run("delete", key, lambda: self._inner.delete(key), writes=True)

    def list_keys(self, prefix: str = "") -> Iterator[BlobInfo]:
        return self._run("list_keys", prefix, lambda: self._inner.list_keys(prefix))

    def close(self) -> None:
        self._inner.close()


class UnreliableConsensus(_Faults):
    """A Consensus adapter with faults."""

    def __init__(self, inner: Consensus, decide: Decide, pause: Callable[[], None] = _no_pause) -> None:
        super().__init__(decide, pause)
        self._inner = inner

    def head(self, key: str) -> LogEntry | None:
        return self._run("head", key, lambda: self._inner.head(key))

    def scan(self, key: str, from_seqno: int = 0, limit: int | None = None) -> list[LogEntry]:
        return self._run("scan", key, lambda: self._inner.scan(key, from_seqno, limit))

    def compare_and_set(self, writes: Sequence[LogWrite]) -> Mapping[str, int | None] | None:
        checked = check_writes(writes)  # a copy: a ghost must not change when the caller's list does
        keys = ",".join(write.key for write in checked)
        conflict = {write.key: 0 if write.expected is None else write.expected + 1 for write in checked}

        def action() -> Mapping[str, int | None] | None:
            return self._inner.compare_and_set(checked)

        fault, mismatch = self._decided("compare_and_set", keys, action, writes=True)
        return conflict if fault is Fault.CONFLICT_DONE and mismatch is None else mismatch

    def truncate(self, key: str, below: int) -> int:
        return self._run("truncate", key, lambda: self._inner.truncate(key, below), writes=True)

    def list_keys(self, prefix: str = "") -> list[str]:
        return self._run("list_keys", prefix, lambda: self._inner.list_keys(prefix))

    def release_reserve(self) -> bool:
        return self._inner.release_reserve()

    def restore_reserve(self) -> None:
        self._inner.restore_reserve()

    def close(self) -> None:
        self._inner.close()

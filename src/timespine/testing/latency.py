"""Storage that takes time on a clock of its own, and counts requests: what a program waits for, without waiting.

One thread, and pools whose tasks overlap on that clock. So a figure depends on the requests alone, and never on the
machine.
"""

from __future__ import annotations

import contextlib
import heapq
import unittest.mock
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any

from timespine.client import store as store_module
from timespine.client.store import Store
from timespine.config import DEFAULT, Config, at_remote_place
from timespine.location.blob import BLOB_BYTES_MAX, BlobInfo
from timespine.location.bucket.consensus import BucketConsensus
from timespine.location.bucket.effects import StoredObject, Unchanged
from timespine.location.consensus import Consensus, LogEntry, LogWrite
from timespine.location.memory import MemoryBlob, MemoryConsensus
from timespine.location.opening.place import OpenedPorts
from timespine.location.remote.read_ahead import REQUESTS_MAX, ReadAheadBlob
from timespine.testing.memory_objects import MemoryObjects


@dataclass(frozen=True, slots=True)
class Latency:
    """How long requests take, in milliseconds."""

    put: float = 20.0
    """A write of a blob or object."""
    get: float = 15.0
    """A read of one, whole or in part, or a request that deletes many."""
    list: float = 40.0
    """A listing."""
    log: float = 1.0
    """A call of logs that are no objects."""


S3 = Latency()
"""An object store in the same region, and a database beside it."""

OPEN_STATEMENTS = 5
"""Statements by which a process opens the logs of a store in PostgreSQL (tests/location/test_open_requests.py)."""


class VirtualClock:
    """Milliseconds that only storage spends."""

    def __init__(self) -> None:
        self.now = 0.0


class _Task(Future[Any]):
    """A task that was done when it was submitted. A thread that waits for it waits until its end on the clock."""

    def __init__(self, clock: VirtualClock, end: float, result: Any, error: BaseException | None) -> None:
        super().__init__()
        self._clock, self._end, self._value, self._failure = clock, end, result, error

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._clock.now = max(self._clock.now, self._end)
        return self._failure

    def result(self, timeout: float | None = None) -> Any:
        failure = self.exception()
        if failure is not None:
            raise failure
        return self._value

    def cancel(self) -> bool:
        return False


class VirtualPool(Executor):
    """A pool of some threads on the clock: a task begins when it is submitted, or when a thread is free."""

    def __init__(self, clock: VirtualClock, threads: int) -> None:
        self._clock = clock
        self._free = [0.0] * threads
        self.tasks = 0

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        clock, submitted = self._clock, self._clock.now
        self.tasks += 1
        clock.now = max(submitted, heapq.heappop(self._free))
        result, error = None, None
        try:
            result = work(*args, **kwargs)
        except BaseException as raised:
            error = raised
        end, clock.now = clock.now, submitted
        heapq.heappush(self._free, end)
        return _Task(clock, end, result, error)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False, limit_s: float = 0.0) -> None:
        """Do nothing: there are no threads."""


@dataclass
class _Requests:
    """The requests of one place, by kind, and the clock that they move."""

    clock: VirtualClock
    latency: Latency
    calls: Counter[str] = field(default_factory=Counter)

    def spend(self, kind: str, ms: float) -> None:
        self.calls[kind] += 1
        self.clock.now += ms


class SlowBlob(MemoryBlob):
    """Blobs in memory that count requests and take time."""

    def __init__(self, clock: VirtualClock, latency: Latency = S3) -> None:
        super().__init__()
        self.clock = clock
        self._requests = _Requests(clock, latency)
        self.calls = self._requests.calls
        """The requests by kind."""

    def close(self) -> None:
        """Stay open: the next process uses it."""

    def put(self, key: str, value: bytes) -> None:
        self._requests.spend("put", self._requests.latency.put)
        super().put(key, value)

    def get(self, key: str, *, max_bytes: int = BLOB_BYTES_MAX) -> bytes | None:
        self._requests.spend("get", self._requests.latency.get)
        return super().get(key, max_bytes=max_bytes)

    def get_range(self, key: str, start: int, stop: int) -> bytes | None:
        self._requests.spend("get", self._requests.latency.get)
        return super().get_range(key, start, stop)

    def delete(self, key: str) -> bool:
        self._requests.spend("delete", self._requests.latency.put)
        return super().delete(key)

    def list_keys(self, prefix: str = "") -> Iterator[BlobInfo]:
        self._requests.spend("list", self._requests.latency.list)
        return super().list_keys(prefix)


class BulkSlowBlob(SlowBlob):
    """The same, with deletions of many blobs by one request."""

    def delete_many(self, keys: Sequence[str]) -> None:
        """Delete blobs, a thousand in one request."""
        for start in range(0, len(keys), 1000):
            self._requests.spend("delete", self._requests.latency.get)
            for key in keys[start : start + 1000]:
                MemoryBlob.delete(self, key)


class SlowConsensus(MemoryConsensus):
    """Logs in memory that count calls and take time."""

    def __init__(self, clock: VirtualClock, latency: Latency = S3) -> None:
        super().__init__()
        self.clock = clock
        self._requests = _Requests(clock, latency)
        self.calls = self._requests.calls
        """The calls by kind."""

    def close(self) -> None:
        """Stay open: the next process uses it."""

    def head(self, key: str) -> LogEntry | None:
        self._requests.spend("head", self._requests.latency.log)
        return super().head(key)

    def scan(self, key: str, from_seqno: int = 0, limit: int | None = None) -> list[LogEntry]:
        self._requests.spend("scan", self._requests.latency.log)
        return super().scan(key, from_seqno, limit)

    def compare_and_set(self, writes: Sequence[LogWrite]) -> Mapping[str, int | None] | None:
        self._requests.spend("compare_and_set", self._requests.latency.log)
        return super().compare_and_set(writes)


class SlowObjects(MemoryObjects):
    """Objects in memory that count requests and take time. Those that are read at once take the time of one."""

    def __init__(self, clock: VirtualClock, latency: Latency = S3) -> None:
        super().__init__()
        self._requests = _Requests(clock, latency)
        self.calls = self._requests.calls
        """The requests by kind."""

    def get(self, name: str, unless: str | None = None) -> StoredObject | Unchanged | None:
        self._requests.spend("get", self._requests.latency.get)
        return super().get(name, unless)

    def get_many(self, names: Sequence[str]) -> list[StoredObject | None]:
        self._requests.spend("get", self._requests.latency.get)
        self.calls["get"] += len(names) - 1
        return super().get_many(names)

    def get_range(self, name: str, start: int, stop: int) -> bytes | None:
        self._requests.spend("get", self._requests.latency.get)
        return super().get_range(name, start, stop)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        self._requests.spend("put", self._requests.latency.put)
        return super().put_if_absent(name, data)

    def put_if_match(self, name: str, data: bytes, tag: str) -> bool:
        self._requests.spend("put", self._requests.latency.put)
        return super().put_if_match(name, data, tag)

    def delete(self, names: Sequence[str]) -> None:
        self._requests.spend("delete", self._requests.latency.get)
        super().delete(names)

    def list_names(self, prefix: str) -> list[str]:
        self._requests.spend("list", self._requests.latency.list)
        return super().list_names(prefix)


class SlowPlace:
    """A place that takes time, and the processes that open a store there."""

    def __init__(self, latency: Latency = S3, *, is_bucket: bool = False, is_remote: bool = True) -> None:
        self.clock = VirtualClock()
        self._latency = latency
        self.blob = BulkSlowBlob(self.clock, latency)
        self.objects = SlowObjects(self.clock, latency)
        self.log = SlowConsensus(self.clock, latency)
        self._measured_ms = 0.0
        self._is_bucket = is_bucket
        """Whether the logs are in the bucket."""
        self._is_remote = is_remote
        """Whether blobs are read ahead, as those of a bucket are."""

    @property
    def log_calls(self) -> Counter[str]:
        """The calls of the logs, or the requests for their objects."""
        return self.objects.calls if self._is_bucket else self.log.calls

    def open(self, config: Config = DEFAULT, **options: Any) -> Store:
        """Open a store as another process does that knows nothing."""
        blob = ReadAheadBlob(self.blob, VirtualPool(self.clock, REQUESTS_MAX)) if self._is_remote else self.blob
        logs = self._open_logs(read_only=options.get("read_only", False))
        chosen = at_remote_place(config) if self._is_remote else config
        store = Store(blob, logs, config=chosen, maintenance=False, **options)
        store._context.look_s = OpenedPorts(blob, logs, is_remote=self._is_remote).look_s
        return store

    def _open_logs(self, *, read_only: bool) -> Consensus:
        """Open the logs as the place does: a remote one reads its descriptor first, and checks conditions beside it."""
        if self._is_remote:
            self._count(self.blob.calls, "get", self._latency.get)
        checked_ms = self.clock.now
        if self._is_remote and not read_only:
            self.blob.calls["put"] += 2
            checked_ms += self._latency.put
        logs: Consensus = BucketConsensus(self.objects, read_only=read_only) if self._is_bucket else self.log
        for _ in range(OPEN_STATEMENTS if self._is_remote and not self._is_bucket else 0):
            self._count(self.log.calls, "open", self._latency.log)
        self.clock.now = max(self.clock.now, checked_ms)
        return logs

    def _count(self, calls: Counter[str], kind: str, ms: float) -> None:
        calls[kind] += 1
        self.clock.now += ms

    def measured(self) -> tuple[float, dict[str, int], dict[str, int]]:
        """Return the time, and the requests for blobs and to logs, since the last look."""
        seen = (self.clock.now - self._measured_ms, dict(self.blob.calls), dict(self.log_calls))
        self._measured_ms = self.clock.now  # the clock goes on: the pools of open stores have times of it
        self.blob.calls.clear()
        self.log_calls.clear()
        return seen


@contextlib.contextmanager
def pools_on(clock: VirtualClock) -> Iterator[None]:
    """Let stores that are opened meanwhile use pools on the clock."""
    with unittest.mock.patch.object(store_module, "Pool", lambda threads, *_: VirtualPool(clock, threads)):
        yield

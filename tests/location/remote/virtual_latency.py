"""Storage that takes time on a clock of the test: one thread, and pools whose tasks overlap on that clock."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import Any

from timespine.location.blob import BLOB_BYTES_MAX, BlobInfo
from timespine.location.consensus import LogEntry, LogWrite
from timespine.location.memory import MemoryBlob, MemoryConsensus

PUT_MS, GET_MS, LIST_MS, CONSENSUS_MS = 20.0, 15.0, 40.0, 1.0


class VirtualClock:
    """Milliseconds that only storage spends."""

    def __init__(self) -> None:
        self.now = 0.0


class _Task(Future):
    """A task that was done when it was submitted; whoever waits for it waits until its end on the clock."""

    def __init__(self, clock: VirtualClock, end: float, result: Any, error: BaseException | None) -> None:
        super().__init__()
        self._clock, self._end, self._value, self._failure = clock, end, result, error

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._clock.now = max(self._clock.now, self._end)
        return self._failure

    def result(self, timeout: float | None = None) -> Any:
        if self.exception() is not None:
            raise self._failure
        return self._value

    def cancel(self) -> bool:
        return False


class VirtualPool(Executor):
    """A pool of some threads on the clock of a test: a task begins when it is submitted, or when a thread is free."""

    def __init__(self, clock: VirtualClock, threads: int) -> None:
        self._clock = clock
        self._free = [0.0] * threads
        self.tasks = 0

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
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
        return None


class SlowBlob(MemoryBlob):
    """Blobs in memory that count requests and take time."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self.clock = clock
        self.calls: Counter[str] = Counter()

    def close(self) -> None:
        """Stay open: the next process of the test uses it."""

    def _request(self, kind: str, ms: float) -> None:
        self.calls[kind] += 1
        self.clock.now += ms

    def put(self, key: str, value: bytes) -> None:
        self._request("put", PUT_MS)
        super().put(key, value)

    def get(self, key: str, *, max_bytes: int = BLOB_BYTES_MAX) -> bytes | None:
        self._request("get", GET_MS)
        return super().get(key, max_bytes=max_bytes)

    def get_range(self, key: str, start: int, stop: int) -> bytes | None:
        self._request("get", GET_MS)
        return super().get_range(key, start, stop)

    def delete(self, key: str) -> bool:
        self._request("delete", PUT_MS)
        return super().delete(key)

    def list_keys(self, prefix: str = "") -> Iterator[BlobInfo]:
        self._request("list", LIST_MS)
        return super().list_keys(prefix)


class SlowConsensus(MemoryConsensus):
    """Logs in memory that count calls and take time."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self.clock = clock
        self.calls: Counter[str] = Counter()

    def close(self) -> None:
        """Stay open: the next process of the test uses it."""

    def _request(self, kind: str) -> None:
        self.calls[kind] += 1
        self.clock.now += CONSENSUS_MS

    def head(self, key: str) -> LogEntry | None:
        self._request("head")
        return super().head(key)

    def scan(self, key: str, from_seqno: int = 0, limit: int | None = None) -> list[LogEntry]:
        self._request("scan")
        return super().scan(key, from_seqno, limit)

    def compare_and_set(self, writes: list[LogWrite]) -> dict[str, int | None] | None:
        self._request("compare_and_set")
        return super().compare_and_set(writes)

"""A cache bounded by bytes, for what is immutable and costs I/O or decoding: footers, row groups, lists of parts.

Blobs never change under their key, so nothing here ever has to be invalidated:
what is in the cache is right, and what is not is loaded. The least recently used
goes first. Two threads that miss the same key load it once.
"""

from __future__ import annotations

import enum
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from timespine.errors import Determinate, UsageError, short_repr
from timespine.locks import LOCK_S, TICK_MAX_S, Flag, Lock, QueueSlot


class CacheHint(enum.Enum):
    """Whether what is loaded may be kept."""

    MAY_ADD = "may add"
    """Keep it for later reads."""
    NEVER_ADD = "never add"
    """A scan that reads everything once must not push out what others come back to."""


@dataclass(slots=True)
class _Load:
    """A pending load, for which later callers wait instead of loading too."""

    place: QueueSlot
    """The call that loads."""
    done: Flag = field(default_factory=Flag)
    """Set when there is a result, or when there will be none."""
    result: tuple[Any, int] | None = None
    """The value and its bytes; None if the load failed."""


class PartCache:
    """Values by key, at most `limit_bytes` of them, shared by threads."""

    def __init__(self, limit_bytes: int) -> None:
        if type(limit_bytes) is not int or limit_bytes < 0:
            raise UsageError(f"the limit of a cache must be a number of bytes, not {short_repr(limit_bytes)}")
        self.limit_bytes = limit_bytes
        """What is kept, at most."""
        self.hits = 0
        """The number of requests whose value was cached, or was being loaded by another thread."""
        self.misses = 0
        """Times that it was not."""
        self.evictions = 0
        """Values that had to go for others."""
        self.bytes = 0
        """What is kept now."""
        self._lock = Lock("the cache")
        self._kept: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._loads: dict[Hashable, _Load] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: Hashable) -> bool:
        """Tell whether a value is kept, without counting that as a request."""
        return key in self._kept

    def get(self, key: Hashable) -> Any | None:
        """Return the value, or None if it is not kept."""
        with self._lock:
            return self._found(key)

    def put(self, key: Hashable, value: Any, nbytes: int) -> None:
        """Keep a value of `nbytes` bytes, unless it is larger than the limit."""
        if type(nbytes) is not int or nbytes < 0:
            raise UsageError(f"the bytes of a value must be a number, not {short_repr(nbytes)}")
        with self._lock:
            self._keep(key, value, nbytes)

    def get_or_load(
        self, key: Hashable, load: Callable[[], tuple[Any, int]], hint: CacheHint = CacheHint.MAY_ADD
    ) -> Any:
        """Return the value; if it is not kept, what `load` gives: a value and its bytes.

        `load` runs without any lock, so it may use the cache for other keys. If it
        fails, the caller gets its error, and each waiting thread loads the value itself.
        """
        while True:
            with self._lock:
                # The common case first: it is there.
                value = self._found(key, count_miss=False)
                if value is not None:
                    return value
                under_way = self._loads.get(key)
                if under_way is None:
                    self.misses += 1
                    mine = self._loads[key] = _Load(QueueSlot(sys._getframe()))
                    break
            self._wait_for(key, under_way)
            if under_way.result is not None:
                value, nbytes = under_way.result
                with self._lock:
                    self.hits += 1
                    if hint is CacheHint.MAY_ADD and key not in self._kept:
                        self._keep(key, value, nbytes)
                return value
        try:
            mine.result = value, nbytes = load()
            if hint is CacheHint.MAY_ADD:
                self.put(key, value, nbytes)
            return value
        finally:
            self._forget(key, mine)

    def _wait_for(self, key: Hashable, under_way: _Load) -> None:
        """Wait until the load of another thread is over; Determinate if that takes too long."""
        left = LOCK_S  # in ticks: a process that was suspended did not wait
        while not under_way.done.is_set():
            if under_way.place.is_gone():  # it was interrupted before it could say so
                self._forget(key, under_way)
            elif under_way.place.thread == threading.get_ident():
                raise UsageError(f"loading {short_repr(key)} needs {short_repr(key)}: this would wait for itself")
            elif left <= 0:
                raise Determinate(
                    f"another thread has been loading {short_repr(key)} for {LOCK_S:.0f} s: try again later"
                )
            elif not under_way.done.wait(TICK_MAX_S):
                left -= TICK_MAX_S

    def _forget(self, key: Hashable, load: _Load) -> None:
        """Forget a load that is over: the next one that misses begins another."""
        with self._lock:
            if self._loads.get(key) is load:
                del self._loads[key]
        load.done.set()
        load.place.frame = None  # which has the load among its variables

    def get_or_load_all(
        self,
        keys: Sequence[Hashable],
        load: Callable[[list[Hashable]], list[tuple[Any, int]]],
        hint: CacheHint = CacheHint.MAY_ADD,
    ) -> list[Any]:
        """Return the values of some keys; those that are not kept and that no other thread loads are loaded together.

        `load` is given these keys, in order, and gives a value and its bytes for each. No thread waits for
        another one before it has loaded what is its own, so none waits for ever.
        """
        found: dict[Hashable, Any] = {}
        mine: dict[Hashable, _Load] = {}
        with self._lock:
            for key in keys:
                value = self._found(key, count_miss=False)
                if value is not None:
                    found[key] = value
                elif key not in self._loads:
                    self.misses += 1
                    mine[key] = self._loads[key] = _Load(QueueSlot(sys._getframe()))
        if mine:
            try:
                for key, result in zip(mine, load(list(mine)), strict=True):
                    mine[key].result = result
                    found[key] = result[0]
                    if hint is CacheHint.MAY_ADD:
                        self.put(key, *result)
            finally:
                for key, each in mine.items():
                    self._forget(key, each)
        for key in keys:
            if key not in found:
                found[key] = self.get_or_load(key, lambda key=key: load([key])[0], hint)  # type: ignore[misc]
        return [found[key] for key in keys]

    def clear(self) -> None:
        """Forget everything; the counters stay."""
        with self._lock:
            self._kept.clear()
            self.bytes = 0

    def _found(self, key: Hashable, *, count_miss: bool = True) -> Any | None:
        kept = self._kept.get(key)
        if kept is None:
            self.misses += count_miss
            return None
        self.hits += 1
        self._kept.move_to_end(key)
        return kept[0]

    def _keep(self, key: Hashable, value: Any, nbytes: int) -> None:
        before = self._kept.pop(key, None)
        if before is not None:
            self.bytes -= before[1]
        if nbytes > self.limit_bytes:
            return
        self._kept[key] = (value, nbytes)
        self.bytes += nbytes
        while self.bytes > self.limit_bytes:
            _, (_, freed) = self._kept.popitem(last=False)
            self.bytes -= freed
            self.evictions += 1

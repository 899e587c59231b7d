"""Locks, conditions, events, threads and pools that wait in a scheduler instead of in the operating system.

Inside of `virtual_threads(scheduler)` the modules of `timespine.client`, `timespine.columnar` and `timespine.views`
find these under the name `threading`, and pools and futures of the standard library are
made of them. Taking a lock is a switch point; giving it back, waking others and starting
a thread are not.
"""

from __future__ import annotations

import concurrent.futures._base
import concurrent.futures.thread
import contextlib
import gc
import itertools
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace, TracebackType
from typing import Any

import timespine
import timespine.pool
from timespine.errors import UsageError
from timespine.testing.stores.thread_scheduler import ScheduledThread, Scheduler

PACKAGES = (
    "timespine.arrangement.",
    "timespine.client.",
    "timespine.columnar.",
    "timespine.views.",
    "timespine.locks",
    "timespine.pool",
)
"""The packages whose modules wait in the scheduler."""


class Virtual:
    """The shared part of all primitives: the scheduler, and the waiting threads."""

    scheduler: Scheduler
    """The scheduler of the running history."""

    def __init__(self) -> None:
        self._waiting: list[ScheduledThread] = []

    def _wait(self, reason: str, timeout_s: float | None = None) -> bool:
        """Wait to be woken; return False after the timeout."""
        task = self.scheduler.current
        assert task is not None
        self._waiting.append(task)
        try:
            return self.scheduler.park(reason, timeout_s)
        finally:
            if task in self._waiting:
                self._waiting.remove(task)

    def _wake(self, most: int | None = None) -> None:
        woken = self._waiting[:most]
        del self._waiting[: len(woken)]
        for task in woken:
            self.scheduler.wake(task)

    def _is_dying(self) -> bool:
        """Tell whether this thread unwinds: then a lock that it releases may not be its own."""
        task = self.scheduler.current
        return task is None or task.process.is_dead


class _Locking(Virtual):
    """A primitive that threads take and release."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        raise NotImplementedError

    def release(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.release()

    def _is_free(self) -> bool:
        """Tell whether a thread can take it now."""
        raise NotImplementedError

    def _holder_name(self) -> str:
        """Name what a thread waits for, for people."""
        raise NotImplementedError

    def _taken(self, blocking: bool, timeout: float) -> bool:
        """Wait until it is free; return False after the timeout."""
        scheduler = self.scheduler
        if scheduler.current is None:
            return True
        if not blocking or timeout == 0:
            scheduler.check_alive()
            return self._is_free()
        scheduler.switch("takes a lock")
        if self._is_free():
            return True
        deadline = scheduler.now + timeout if timeout > 0 else None
        while not self._is_free():
            left = None if deadline is None else deadline - scheduler.now
            if not self._wait(f"waits for {self._holder_name()}", left) and not self._is_free():
                return False
        return True


class VirtualLock(_Locking):
    """threading.Lock."""

    def __init__(self) -> None:
        super().__init__()
        self._holder: ScheduledThread | None = None
        self._is_held = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if not self._taken(blocking, timeout):
            return False
        self._is_held, self._holder = True, self.scheduler.current
        return True

    def _is_free(self) -> bool:
        return not self._is_held

    def _holder_name(self) -> str:
        return f"a lock of {self._holder}"

    def release(self) -> None:
        if not self._is_held and not self._is_dying():
            raise RuntimeError("release unlocked lock")
        self._is_held, self._holder = False, None
        self._wake()

    def locked(self) -> bool:
        return self._is_held

    def _release_save(self) -> int:
        self.release()
        return 1

    def _acquire_restore(self, count: int) -> None:
        self.acquire()


class RLock(_Locking):
    """threading.RLock."""

    def __init__(self) -> None:
        super().__init__()
        self._owner: ScheduledThread | None = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = self.scheduler.current
        if self._count and self._owner is me:
            self._count += 1
            return True
        if not self._taken(blocking, timeout):
            return False
        self._owner, self._count = me, 1
        return True

    def _is_free(self) -> bool:
        return self._count == 0

    def _holder_name(self) -> str:
        return f"a lock of {self._owner}"

    def release(self) -> None:
        if (self._owner is not self.scheduler.current or not self._count) and not self._is_dying():
            raise RuntimeError("cannot release un-acquired lock")
        self._count = max(self._count - 1, 0)
        if not self._count:
            self._owner = None
            self._wake()

    def _release_save(self) -> int:
        count, self._count = self._count, 1
        self.release()
        return count

    def _acquire_restore(self, count: int) -> None:
        self.acquire()
        self._count = count


class Condition(Virtual):
    """threading.Condition."""

    def __init__(self, lock: VirtualLock | RLock | None = None) -> None:
        super().__init__()
        self._lock = lock if lock is not None else RLock()
        self.acquire = self._lock.acquire
        self.release = self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        count = self._lock._release_save()
        try:
            return self._wait("waits for a condition", timeout)
        finally:
            self._lock._acquire_restore(count)

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        deadline = None if timeout is None else self.scheduler.now + timeout
        while not (found := predicate()):
            left = None if deadline is None else deadline - self.scheduler.now
            if left is not None and left <= 0:
                break
            self.wait(left)
        return found

    def notify(self, n: int = 1) -> None:
        self._wake(n)

    def notify_all(self) -> None:
        self._wake()


class Event(Virtual):
    """threading.Event."""

    def __init__(self) -> None:
        super().__init__()
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._wake()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        self.scheduler.switch("event")
        if not self._is_set:
            self._wait("waits for an event", timeout)
        return self._is_set


class Semaphore(_Locking):
    """threading.Semaphore."""

    def __init__(self, value: int = 1) -> None:
        super().__init__()
        self._value = value

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        if not self._taken(blocking, -1 if timeout is None else timeout):
            return False
        self._value -= 1
        return True

    def _is_free(self) -> bool:
        return self._value > 0

    def _holder_name(self) -> str:
        return "a semaphore"

    def release(self, n: int = 1) -> None:
        self._value += n
        self._wake(n)


class SimpleQueue(Virtual):
    """queue.SimpleQueue."""

    def __init__(self) -> None:
        super().__init__()
        self._items: deque[Any] = deque()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        self._items.append(item)
        self._wake(1)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        self.scheduler.check_alive()
        while not self._items:
            if not block or not self._wait("waits for work", timeout):
                raise queue.Empty
        return self._items.popleft()

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def empty(self) -> bool:
        return not self._items


class Thread(Virtual):
    """threading.Thread. Ordered by number, so that sets of threads have the same order in every run."""

    numbers: Iterator[int]
    """The numbers of the threads of one history."""
    running: dict[ScheduledThread, Thread]
    """The running threads by task."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        super().__init__()
        self._number = next(self.numbers)
        self._work = (target, args, kwargs or {})
        self._task: ScheduledThread | None = None
        self.name = name or f"Thread-{self._number}"
        self.daemon = bool(daemon)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other

    def start(self) -> None:
        self.scheduler.check_alive()
        current = self.scheduler.current
        assert current is not None, "a thread of a history is started by one of its threads"
        self._task = self.scheduler.spawn(current.process, self.name, self._bootstrap)
        self.running[self._task] = self

    def _bootstrap(self) -> None:
        self.run()

    def run(self) -> None:
        target, args, kwargs = self._work
        if target is not None:
            target(*args, **kwargs)

    def join(self, timeout: float | None = None) -> None:
        task = self._task
        if task is None:
            raise RuntimeError("cannot join thread before it is started")
        self.scheduler.switch("join")
        deadline = None if timeout is None else self.scheduler.now + timeout
        while not task.is_done:
            left = None if deadline is None else deadline - self.scheduler.now
            if not self.scheduler.wait_for_end([task], left):
                return

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.is_done


def current_thread() -> Thread:
    """threading.current_thread."""
    task = Virtual.scheduler.current
    assert task is not None
    if task not in Thread.running:
        Thread.running[task] = thread = Thread(name=task.name)
        thread._task = task
    return Thread.running[task]


THREADING = SimpleNamespace(
    Lock=VirtualLock,
    RLock=RLock,
    Condition=Condition,
    Event=Event,
    Semaphore=Semaphore,
    Thread=Thread,
    current_thread=current_thread,
    get_ident=threading.get_ident,
    local=threading.local,
    TIMEOUT_MAX=threading.TIMEOUT_MAX,
)
"""The module `threading` of the patched modules while a history runs."""

TIME = SimpleNamespace(
    time=lambda: Virtual.scheduler.now,
    monotonic=lambda: Virtual.scheduler.now,
    perf_counter=lambda: Virtual.scheduler.now,
    sleep=lambda seconds: Virtual.scheduler.sleep(seconds),
)
"""Their module `time`."""

REPLACED = (("threading", threading, THREADING), ("time", time, TIME), ("clock", time, TIME))
"""Names in the patched modules, what they name, and what stands for it."""


@contextlib.contextmanager
def virtual_threads(scheduler: Scheduler) -> Iterator[None]:
    """Run the threads of the client in a scheduler until the end of the block. One history at a time.

    Raise UsageError if a store of this process is open: its threads would use locks of the history, and run in no
    scheduler.
    """
    _refuse_open_stores()
    _load_client()
    Virtual.scheduler = scheduler
    Thread.numbers, Thread.running = itertools.count(1), {}
    replaced: list[tuple[ModuleType, str, Any]] = []

    def put(module: ModuleType, name: str, value: object) -> None:
        replaced.append((module, name, getattr(module, name)))
        setattr(module, name, value)

    try:
        for module, attribute, ours in _named_primitives():
            put(module, attribute, ours)
        put(timespine.pool, "queue", SimpleNamespace(SimpleQueue=SimpleQueue, Empty=queue.Empty))
        put(concurrent.futures.thread, "threading", THREADING)
        put(concurrent.futures.thread, "queue", SimpleNamespace(SimpleQueue=SimpleQueue, Empty=queue.Empty))
        put(concurrent.futures._base, "threading", THREADING)
        yield
        late = [module.__name__ for module, _, _ in _named_primitives()]
        assert not late, f"a history imported {', '.join(late)}, whose locks and clock are real: load it before"
    finally:
        for module, name, value in replaced:
            setattr(module, name, value)
        scheduler.current = None


def _load_client() -> None:
    """Import all that programs can name of the client: what a thread imported later would wait on real locks."""
    for name in timespine.__all__:
        getattr(timespine, name)


def _named_primitives() -> list[tuple[ModuleType, str, object]]:
    """Find where modules of the packages name real threads or clocks: the module, the name, and what stands for it."""
    return [
        (module, attribute, ours)
        for name, module in sorted(sys.modules.items())
        if name.startswith(PACKAGES)
        for attribute, real, ours in REPLACED
        if getattr(module, attribute, None) is real
    ]


def _refuse_open_stores() -> None:
    """Raise UsageError if threads of a store run."""
    if _store_threads():
        gc.collect()  # a store that a program forgot ends its threads
        if running := _store_threads():
            raise UsageError(
                f"a history cannot begin beside an open store, whose threads are {', '.join(running)}: close it"
            )


def _store_threads() -> list[str]:
    """Name the threads of stores of this process."""
    return sorted({thread.name for thread in threading.enumerate() if thread.name.startswith("timespine-")})

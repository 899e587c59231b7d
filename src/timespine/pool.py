"""Threads that work for other threads, and that an interrupt of those cannot stop.

`concurrent.futures` waits on conditions that are written in Python: a KeyboardInterrupt inside `submit` or `result` can
leave one locked, and a thread of the pool, or every later caller, waits for it for ever. Here one atomic operation
hands a task over, and another one its outcome (`timespine.locks`).
"""

from __future__ import annotations

import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future
from typing import Any, ParamSpec, TypeVar

from timespine.errors import Determinate, StoreClosed, WrongProcess
from timespine.locks import Flag

P = ParamSpec("P")
R = TypeVar("R")

TASK_S = 3600.0
"""How long the outcome of a task is waited for. A task reads or puts parts, or reads a share of a scan, and may stand
behind others. Storage gives up on a call after seconds, so a task that takes an hour hangs."""

SLICE_S = TASK_S / 2
"""Seconds of one look for the outcome of a task: a process that was suspended past the limit looks once more."""

LAST_S = 60.0
"""How long the end of the process waits for running tasks."""


def usable_cores() -> int:
    """Return how many cores of the machine this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class PoolTask(Future[R]):
    """A call that a thread of the pool makes, and its outcome."""

    def __init__(self, work: Callable[[], R]) -> None:
        super().__init__()
        self._work: Callable[[], R] | None = work
        self._outcome: tuple[R] | None = None
        self._error: BaseException | None = None
        self._is_cancelled = False
        self._begun = threading.Lock()
        """The lock that the thread takes which runs or cancels the task: the first one wins."""
        self._over = Flag()
        self._pid = os.getpid()

    def run(self) -> None:
        """Run the task, unless it was cancelled."""
        work = self._work
        if work is None or not self._begun.acquire(blocking=False):
            return
        try:
            self._outcome = (work(),)
        except BaseException as error:
            self._error = error
        self._work = None
        self._over.set()

    def cancel(self) -> bool:
        """Cancel the task; return False if it has begun."""
        if self._begun.acquire(blocking=False):
            self._is_cancelled = True
            self._work = None
            self._over.set()
        return self._is_cancelled

    def cancelled(self) -> bool:
        """Tell whether the task was cancelled."""
        return self._is_cancelled

    def running(self) -> bool:
        """Tell whether a thread runs the task."""
        return self._begun.locked() and not self.done()

    def done(self) -> bool:
        """Tell whether the task has an outcome."""
        return self._over.is_set()

    def result(self, timeout: float | None = None) -> R:
        """Wait for the outcome, and return it or raise its error."""
        error = self.exception(timeout)
        if error is not None:
            try:
                raise error
            finally:
                error = None  # break the cycle: its traceback refers to this call, which refers to it
        assert self._outcome is not None
        return self._outcome[0]

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the outcome; return its error, or None."""
        if self._pid != os.getpid():
            raise WrongProcess("this was begun before the process was forked: open the store again in this process")
        if not self._over.wait(TASK_S if timeout is None else timeout):
            raise TimeoutError
        if self._is_cancelled:
            raise CancelledError
        return self._error


def outcome(future: Future[R], limit_s: float = TASK_S) -> R:
    """Wait for the outcome of a task, or raise what it raised; Determinate if it takes longer than the limit."""
    error = failure(future, limit_s)
    if error is not None:
        try:
            raise error
        finally:
            error = None  # its traceback has this call, which has it
    return future.result(0)


def failure(future: Future[Any], limit_s: float = TASK_S) -> BaseException | None:
    """Wait for a task; what it raised, if anything. Determinate is raised if it takes longer than the limit."""
    left_s = limit_s
    while True:
        try:
            return future.exception(min(left_s, SLICE_S))
        except TimeoutError:
            left_s -= SLICE_S  # a process that was suspended did not wait: the next slice sees what came meanwhile
        if left_s <= 0:
            raise Determinate(f"a task of this process is still at work after {limit_s:.0f} s: try again later")


class Pool(Executor):
    """Threads for tasks, started when there is a task for them."""

    def __init__(self, threads_max: int, name: str, closed: str) -> None:
        self._threads_max = threads_max
        self._name = name
        self._closed = closed
        self._is_shut = False
        self._tasks: queue.SimpleQueue[PoolTask[Any] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        weakref.finalize(self, _end, self._tasks, self._threads, os.getpid(), LAST_S)

    def submit(self, work: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Hand a call to the next free thread; raise StoreClosed once the pool is shut."""
        if self._is_shut:
            raise StoreClosed(self._closed)
        task = PoolTask(lambda: work(*args, **kwargs))
        self._tasks.put(task)
        if self._is_shut and task.cancel():  # it was shut meanwhile, and no thread may be left
            raise StoreClosed(self._closed)
        if len(self._threads) < self._threads_max:
            name = f"{self._name}-{len(self._threads)}"
            thread = threading.Thread(target=_work, args=(self._tasks,), name=name, daemon=True)
            thread.start()
            self._threads.append(thread)
        return task

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False, limit_s: float = LAST_S) -> None:
        """Refuse new tasks, and wait for the submitted ones; raise Determinate after the limit."""
        self._is_shut = True
        if wait and not _end(self._tasks, self._threads, os.getpid(), limit_s):
            raise Determinate(f"threads of {self._name} are still at work after {limit_s:.0f} s")


def _work(tasks: queue.SimpleQueue[PoolTask[Any] | None]) -> None:
    """Run tasks until the end marker comes."""
    while (task := tasks.get()) is not None:
        task.run()
        del task  # nothing may hold its outcome while the thread waits for the next task
    tasks.put(None)  # for the next thread


def _end(
    tasks: queue.SimpleQueue[PoolTask[Any] | None], threads: list[threading.Thread], pid: int, limit_s: float
) -> bool:
    """End the threads after the submitted tasks; return whether they ended.

    Do nothing in a forked child: it has none.
    """
    if pid != os.getpid():
        return True
    tasks.put(None)
    others = [thread for thread in threads if thread is not threading.current_thread()]
    slice_s = limit_s / 2
    left_s = limit_s
    for thread in others:
        while True:
            began = time.monotonic()
            thread.join(min(left_s, slice_s))
            left_s -= min(time.monotonic() - began, slice_s)  # a process that was suspended looks once more
            if left_s <= 0 or not thread.is_alive():
                break
    return not any(thread.is_alive() for thread in others)

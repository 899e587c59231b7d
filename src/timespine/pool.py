"""Threads that work for others, and that an interrupt of those others cannot stop.

`concurrent.futures` waits on conditions that are written in Python: a KeyboardInterrupt inside `submit` or `result`
can leave one locked, and a thread of the pool, or every later caller, waits for it for ever. Here a task is handed
over by one atomic operation, and its outcome by another (`timespine.locks`).
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

LAST_S = 60.0
"""How long the end of the process waits for tasks that are under way."""


class Task(Future[R]):
    """Some work, and what comes of it."""

    def __init__(self, work: Callable[[], R]) -> None:
        super().__init__()
        self._work: Callable[[], R] | None = work
        self._outcome: tuple[R] | None = None
        self._error: BaseException | None = None
        self._is_cancelled = False
        self._begun = threading.Lock()
        """Taken by the thread that does it, or that cancels it: the first one wins."""
        self._over = Flag()
        self._pid = os.getpid()

    def run(self) -> None:
        """Do it, unless it was cancelled."""
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
        """Do not do it; False if it was begun."""
        if self._begun.acquire(blocking=False):
            self._is_cancelled = True
            self._work = None
            self._over.set()
        return self._is_cancelled

    def cancelled(self) -> bool:
        """Whether it will not be done."""
        return self._is_cancelled

    def running(self) -> bool:
        """Whether it is under way."""
        return self._begun.locked() and not self.done()

    def done(self) -> bool:
        """Whether there is an outcome."""
        return self._over.is_set()

    def result(self, timeout: float | None = None) -> R:
        """Wait for the outcome, or raise what was raised."""
        error = self.exception(timeout)
        if error is not None:
            try:
                raise error
            finally:
                error = None  # its traceback has this call, which has it
        assert self._outcome is not None
        return self._outcome[0]

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the outcome; what was raised, if anything was."""
        if self._pid != os.getpid():
            raise WrongProcess("this was begun before the process was forked: open the store again in this process")
        if not self._over.wait(float("inf") if timeout is None else timeout):
            raise TimeoutError
        if self._is_cancelled:
            raise CancelledError
        return self._error


class Pool(Executor):
    """Some threads, started when there is work for them."""

    def __init__(self, threads_max: int, name: str, closed: str) -> None:
        self._threads_max = threads_max
        self._name = name
        self._closed = closed
        self._is_shut = False
        self._tasks: queue.SimpleQueue[Task[Any] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        weakref.finalize(self, _end, self._tasks, self._threads, os.getpid(), LAST_S)

    def submit(self, work: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Have some work done by the next thread that is free; StoreClosed once the pool is shut."""
        if self._is_shut:
            raise StoreClosed(self._closed)
        task = Task(lambda: work(*args, **kwargs))
        self._tasks.put(task)
        if self._is_shut and task.cancel():  # it was shut just now, and no thread may be left
            raise StoreClosed(self._closed)
        if len(self._threads) < self._threads_max:
            name = f"{self._name}-{len(self._threads)}"
            thread = threading.Thread(target=_work, args=(self._tasks,), name=name, daemon=True)
            thread.start()
            self._threads.append(thread)
        return task

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False, limit_s: float = LAST_S) -> None:
        """Take no more work, and wait for what was given; Determinate if that takes longer than the limit."""
        self._is_shut = True
        if wait and not _end(self._tasks, self._threads, os.getpid(), limit_s):
            raise Determinate(f"threads of {self._name} are still at work after {limit_s:.0f} s")


def _work(tasks: queue.SimpleQueue[Task[Any] | None]) -> None:
    """Do what comes, until the end comes."""
    while (task := tasks.get()) is not None:
        task.run()
        del task  # nothing may hold its outcome while the next one is waited for
    tasks.put(None)  # for the next thread


def _end(tasks: queue.SimpleQueue[Task[Any] | None], threads: list[threading.Thread], pid: int, limit_s: float) -> bool:
    """End the threads after the tasks that were given; whether they ended. Nothing in a forked child: it has none."""
    if pid != os.getpid():
        return True
    tasks.put(None)
    deadline = time.monotonic() + limit_s
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(max(deadline - time.monotonic(), 0))
    return not any(thread.is_alive() for thread in threads if thread is not threading.current_thread())

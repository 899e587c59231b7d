"""Threads that merge the spines of a process, in turns.

A task is the merge of one level of one spine: a generator that asks for effects (`core/protocols/merge_spine.py`). It
runs until it takes a turn, and goes to the end of the queue. Merges hold the interpreter for a few percent of their
time, so one thread serves all spines. There is no thread while there is no task. A forked child starts its own.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from timespine.columnar.kernels.background_flag import background_work
from timespine.core.effects import Effect, Protocol, Sleep, TakeTurn
from timespine.locks import Bell, Lock
from timespine.pool import Pool

logger = logging.getLogger(__name__)

IDLE_S = 30.0
"""The longest wait of a merging thread that has only sleeping tasks, before it looks again."""


class LevelTask:
    """The merge of a level, as far as it has run."""

    def __init__(
        self, protocol: Protocol[None], perform: Callable[[Effect], Any], ended: Callable[[BaseException | None], None]
    ) -> None:
        self._protocol = protocol
        self._perform = perform
        self._ended = ended
        self._pending: Effect | None = None
        self.wake_at = 0.0
        """The time of the monotonic clock before which it sleeps."""

    def run(self) -> bool:
        """Run until the next turn or sleep; return False once it has ended."""
        answer, failure = (None, None) if self._pending is None else self._carry_out(self._pending)
        while True:
            try:
                effect = self._protocol.send(answer) if failure is None else self._protocol.throw(failure)
            except StopIteration:
                self._ended(None)
                return False
            except BaseException as error:
                self._ended(error)
                return False
            self._pending = effect
            if isinstance(effect, Sleep):
                self.wake_at = time.monotonic() + effect.ms / 1000
                return True
            if isinstance(effect, TakeTurn):
                self.wake_at = 0.0
                return True
            answer, failure = self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> tuple[Any, Exception | None]:
        """Return the result of an effect, or its error: the protocol decides what to do about it."""
        if isinstance(effect, Sleep):
            return None, None  # the queue has waited
        try:
            return self._perform(effect), None
        except Exception as error:
            logger.warning("a step of a merge failed: %s", error)
            return None, error


class Mergers:
    """A queue of tasks, and threads that run them. Without threads, callers run the tasks (`run_ready`, `run_next`)."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        """Threads, at most."""
        self._begin()

    def _begin(self) -> None:
        """Begin without tasks: when the queue is made, and in a forked child, which has no thread of its parent."""
        self._pid = os.getpid()
        self._pool = Pool(self.threads, "timespine-merge", "this process ends")
        self._lock = Lock("the queue of merges")
        self._bell = Bell()
        self._ready: deque[LevelTask] = deque()
        self._sleeping: list[LevelTask] = []
        self._serving = 0
        self._wakes = 0
        """How often tasks that sleep were woken."""

    def start(self, task: LevelTask) -> None:
        """Add a task to the end of the queue."""
        if self._pid != os.getpid():
            self._begin()
        with self._lock:
            self._ready.append(task)
            starts = self._serving < self.threads
            self._serving += starts
        self._bell.ring()
        if starts:
            self._pool.submit(self._serve)

    @property
    def waiting(self) -> int:
        """Return how many tasks wait for their turn."""
        return len(self._ready)

    def wake(self) -> None:
        """Let tasks that sleep go on at once: their spine may be closed, or their disk may have space again."""
        with self._lock:
            self._ready.extend(self._sleeping)
            self._sleeping = []
            self._wakes += 1
        self._bell.ring()

    def run_ready(self) -> None:
        """Run tasks in the thread of the caller until all that are left sleep."""
        while (task := self._next()[0]) is not None:
            self._run(task)

    def run_next(self, limit_s: float) -> None:
        """Run the next task in the thread of the caller; wait up to a limit for one that sleeps."""
        task, wait_s = self._next()
        if task is not None:
            self._run(task)
        else:
            time.sleep(min(limit_s, IDLE_S if wait_s is None else wait_s))

    def _serve(self) -> None:
        """Run tasks until there is none."""
        while True:
            heard = self._bell.count
            task, wait_s = self._next(ends=True)
            if task is not None:
                with background_work():
                    self._run(task)
                del task  # nothing may hold its spine while the thread waits
            elif wait_s is None:
                return
            else:
                self._bell.wait(heard, min(wait_s, IDLE_S))

    def _next(self, ends: bool = False) -> tuple[LevelTask | None, float | None]:
        """Take the next task; else return how long all of them sleep; None if there is none, and a thread may end."""
        with self._lock:
            now = time.monotonic()
            self._ready.extend(task for task in self._sleeping if task.wake_at <= now)
            self._sleeping = [task for task in self._sleeping if task.wake_at > now]
            if self._ready:
                return self._ready.popleft(), None
            if self._sleeping:
                return None, min(task.wake_at for task in self._sleeping) - now
            self._serving -= ends
            return None, None

    def _run(self, task: LevelTask) -> None:
        """Run a task until its next turn or sleep, and put it back; one that missed a call to wake does not sleep."""
        wakes = self._wakes
        if task.run():
            with self._lock:
                sleeps = task.wake_at > time.monotonic() and wakes == self._wakes
                (self._sleeping if sleeps else self._ready).append(task)


_shared: list[Mergers] = []


def shared_mergers() -> Mergers:
    """Return the thread that all spines of this process share."""
    if not _shared:
        _shared.append(Mergers(1))
    return _shared[0]

"""Threads that merge the spines of a process, in turns.

A task is the merge of one level of one spine: a generator that asks for effects (`core/protocols/merge_spine.py`). It
runs until it takes a turn, and goes to the end of the queue. Merges hold the interpreter for a few percent of their
time, so one thread serves all spines. There is no thread while there is no task.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any

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
    """A queue of tasks, and threads that run them."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool = Pool(threads, "timespine-merge", "this process ends")
        self._lock = Lock("the queue of merges")
        self._bell = Bell()
        self._ready: deque[LevelTask] = deque()
        self._sleeping: list[LevelTask] = []
        self._serving = 0

    def start(self, task: LevelTask) -> None:
        """Add a task to the end of the queue."""
        with self._lock:
            self._ready.append(task)
            starts = self._serving < self._threads
            self._serving += starts
        self._bell.ring()
        if starts:
            self._pool.submit(self._serve)

    @property
    def waiting(self) -> int:
        """Return how many tasks wait for their turn."""
        return len(self._ready)

    def _serve(self) -> None:
        """Run tasks until there is none."""
        while True:
            heard = self._bell.count
            task, wait_s = self._next()
            if task is not None:
                if task.run():
                    self._put_back(task)
            elif wait_s is None:
                return
            else:
                self._bell.wait(heard, min(wait_s, IDLE_S))

    def _next(self) -> tuple[LevelTask | None, float | None]:
        """Take the next task; else return how long all of them sleep; None if there is none, and this thread ends."""
        with self._lock:
            now = time.monotonic()
            self._ready.extend(task for task in self._sleeping if task.wake_at <= now)
            self._sleeping = [task for task in self._sleeping if task.wake_at > now]
            if self._ready:
                return self._ready.popleft(), None
            if self._sleeping:
                return None, min(task.wake_at for task in self._sleeping) - now
            self._serving -= 1
            return None, None

    def _put_back(self, task: LevelTask) -> None:
        with self._lock:
            (self._sleeping if task.wake_at > time.monotonic() else self._ready).append(task)


_shared: dict[int, Mergers] = {}
"""The threads of this process, by its id: those of a parent are not in a forked child."""


def shared_mergers() -> Mergers:
    """Return the threads that all spines of this process share."""
    pid = os.getpid()
    return _shared.get(pid) or _shared.setdefault(pid, Mergers(1))

"""The leader queue: what waits while a thread is at work is done together, by one of the threads that wait.

There is no thread for it. The first in the queue leads: it takes all that waits,
does it as one, and hands out the answers; then the next one is the first, and
leads. So a lone caller pays nothing for it, and many share the work. A thread that
was answered goes its way at once: it does not wait for the next leader.

Leading is not a mark that is handed over, which an interrupt could lose. It
follows from the queue: the first whose call is still running leads
(`timespine.locks`). A thread that waits longer than a tick asks whether the
leader's call still runs. If it was interrupted, also inside its cleanup, then the
next one leads: it tells all that the leader had begun with that they may have
happened, and goes on with the rest.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any, Generic, TypeVar

from timespine.errors import Determinate, Indeterminate, UsageError
from timespine.locks import TICK_MAX_S, TICK_S, Place

T = TypeVar("T")

GROUP_MAX = 256
"""How many are done together: an entry of the log has a bound, and so has the wait of the last in line."""

WAIT_S = 600.0
"""How long a thread waits for a leader that is at work. Storage gives up long before that."""

INTERRUPTED = "the thread at work on this was interrupted: it may have happened"


class Waiting(Place, Generic[T]):
    """Something that waits for its answer."""

    __slots__ = ("begun", "error", "is_answered", "item", "reply")

    def __init__(self, item: T, frame: FrameType) -> None:
        super().__init__(frame)
        self.item = item
        self.reply: Any = None
        self.error: BaseException | None = None
        self.is_answered = False
        """Whether its thread may go."""
        self.begun = threading.Lock()
        """Taken by the leader that does it, or by its own thread, which then withdraws it: the first one wins."""

    @property
    def is_done(self) -> bool:
        """Whether there is an answer."""
        return self.reply is not None or self.error is not None

    def begin(self) -> bool:
        """Take it, to do it or to withdraw it; whether nobody had."""
        return self.begun.acquire(blocking=False)

    def answer(self) -> Any:
        """The reply; or the error is raised."""
        if self.error is not None:
            raise self.error
        assert self.reply is not None
        return self.reply


Answer = Callable[[list[Waiting[T]]], None]
"""Does what some wait for, and gives each its reply or its error."""


class Line(Generic[T]):
    """Where the threads of a process wait for one kind of work."""

    def __init__(self) -> None:
        self._queue: deque[Waiting[T]] = deque()
        self._is_crowded = False
        """Whether the last leader was not alone."""

    def __len__(self) -> int:
        """How many wait that no leader has begun with."""
        return sum(not each.begun.locked() for each in self._standing(len(self._queue)))

    def offer(self, item: T, answer: Answer[T]) -> Any:
        """The reply to something, once it was done with whatever else waits; or its error."""
        waiting = Waiting(item, sys._getframe())
        try:
            self._queue.append(waiting)
            if self._leads(waiting):
                self._lead(waiting, answer)
        finally:
            self._leave(waiting)
        return waiting.answer()

    def _leads(self, waiting: Waiting[T]) -> bool:
        """Wait until it is the first or is answered; whether it leads."""
        left = WAIT_S  # in ticks: a process that was suspended did not wait
        tick = TICK_S
        while not waiting.is_answered:
            first = self._first()
            if first is None:
                # SUBTLE: the leader answered this one after the look above, and left too (test_leader_queue.py).
                continue
            if first is waiting:
                return True
            if first.is_gone():
                self._leave(first)
            elif first.thread == waiting.thread:
                waiting.begin()
                raise UsageError("this thread commits already: do not call a store from a signal handler")
            elif left <= 0:
                raise self._late(waiting)
            elif not waiting.sleep(tick):
                left -= tick
                tick = min(tick * 1.5, TICK_MAX_S)
        return False

    def _first(self) -> Waiting[T] | None:
        """The first in the queue; None if the queue is empty."""
        if self._queue:
            with contextlib.suppress(IndexError):  # it left just now
                return self._queue[0]
        return None

    def _late(self, waiting: Waiting[T]) -> Exception:
        """What to tell a thread that waited too long."""
        if waiting.begin():
            return Determinate(f"nothing was done: another thread has been at work for {WAIT_S:.0f} s; try again later")
        return Indeterminate(f"another thread has been at work on this for {WAIT_S:.0f} s: it may have happened")

    def _lead(self, waiting: Waiting[T], answer: Answer[T]) -> None:
        """Do what waits; the first of it is the leader's own."""
        self._recover()
        if waiting.is_done:
            return
        if self._is_crowded and len(self._queue) < GROUP_MAX:
            time.sleep(0)  # those who were just answered may have more: let them stand in line first
        group = [each for each in self._standing(GROUP_MAX) if each.begin()]
        self._is_crowded = len(group) > 1 or len(self._queue) > len(group)
        try:
            answer(group)
        finally:
            self._tell(group)

    def _recover(self) -> None:
        """Answer what an earlier leader had begun with: there is one leader at a time, so it was interrupted."""
        self._tell([each for each in self._standing(GROUP_MAX) if each.begun.locked()])

    def _tell(self, group: list[Waiting[T]]) -> None:
        """Let all go that have an answer, and tell the others that they may have happened. The first one leads."""
        for each in group:
            if not each.is_done:
                each.error = Indeterminate(INTERRUPTED)
        for each in group[1:] if group and group[0] is self._first() else group:
            # SUBTLE: in this order. An interrupt in between must not leave out of the queue what has no answer
            # (test_leader_queue.py).
            each.is_answered = True
            self._remove(each)
            each.wake()

    def _standing(self, limit: int) -> list[Waiting[T]]:
        """The first in the queue, as it is at one moment."""
        while True:
            try:
                return [each for each, _ in zip(self._queue, range(limit), strict=False)]
            except RuntimeError:
                continue  # another thread joined or left meanwhile

    def _leave(self, waiting: Waiting[T]) -> None:
        """Leave the queue: what no leader has begun with is not done, and the next one leads."""
        waiting.begin()
        self._remove(waiting)
        waiting.frame = None  # which has it among its variables: nothing may hold its rows from now on
        first = self._first()
        if first is not None:
            first.wake()

    def _remove(self, waiting: Waiting[T]) -> None:
        with contextlib.suppress(ValueError):  # it has left
            self._queue.remove(waiting)

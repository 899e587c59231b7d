"""The leader queue: calls that wait while a thread works are done together, by one of the waiting threads.

There is no thread of its own for it. The first in the queue leads: it takes the whole
queue, does it as one, and gives each call its answer; then the next one is the first,
and leads. So a lone caller pays nothing for it, and many share the work. A thread whose
call is answered returns at once: it does not wait for the next leader.

Leadership is not a flag, which an interrupt could lose. It follows from the queue: the
first whose call is still running leads (`timespine.locks`). A thread that waits longer
than a tick checks whether the call of the leader still runs. If the leader was
interrupted, also inside its cleanup, the next one leads: calls that the leader had begun
get an error which says that they may have happened, and the others are done.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any, Generic, TypeAlias, TypeVar

from timespine.errors import Determinate, Indeterminate, UsageError
from timespine.locks import TICK_MAX_S, TICK_S, QueueSlot

T = TypeVar("T")

GROUP_MAX = 256
"""Most calls that are done together: it bounds an entry of the log, and the wait of the last in the queue."""

CallReply: TypeAlias = Any
"""The reply to a call. Each kind of call has its own, and only its caller knows it."""

WAIT_S = 600.0
"""Seconds that a thread waits for a working leader. Storage gives up long before that."""

INTERRUPTED = "the thread at work on this was interrupted: it may have happened"


class PendingCall(QueueSlot, Generic[T]):
    """A call that waits for its answer."""

    __slots__ = ("begun", "error", "is_answered", "item", "reply")

    def __init__(self, item: T, frame: FrameType) -> None:
        super().__init__(frame)
        self.item = item
        self.reply: CallReply = None
        self.error: BaseException | None = None
        self.is_answered = False
        """Whether its thread may return."""
        self.begun = threading.Lock()
        """The lock that the leader takes to do the call, or its own thread to withdraw it: the first one wins."""

    @property
    def is_done(self) -> bool:
        """Whether there is an answer."""
        return self.reply is not None or self.error is not None

    def begin(self) -> bool:
        """Take the call, to do it or to withdraw it; return False if another thread has it."""
        return self.begun.acquire(blocking=False)

    def answer(self) -> CallReply:
        """Return the reply, or raise the error."""
        if self.error is not None:
            raise self.error
        assert self.reply is not None
        return self.reply


AnswerCalls = Callable[[list[PendingCall[T]]], None]
"""A function that does some calls, and gives each its reply or its error."""


class LeaderQueue(Generic[T]):
    """The queue of the threads of a process for one kind of work."""

    def __init__(self) -> None:
        self._queue: deque[PendingCall[T]] = deque()
        self._had_company = False
        """Whether the last leader had other calls beside its own."""

    def __len__(self) -> int:
        """Count the calls that no leader has begun."""
        return sum(not each.begun.locked() for each in self._standing(len(self._queue)))

    def offer(self, item: T, answer: AnswerCalls[T]) -> CallReply:
        """Do a call together with the rest of the queue; return its reply, or raise its error."""
        waiting = PendingCall(item, sys._getframe())
        try:
            self._queue.append(waiting)
            if self._leads(waiting):
                self._lead(waiting, answer)
        finally:
            self._leave(waiting)
        return waiting.answer()

    def _leads(self, waiting: PendingCall[T]) -> bool:
        """Wait until a call is the first in the queue or is answered; return whether it leads."""
        left = WAIT_S  # counted in ticks: a suspended process did not wait
        tick = TICK_S
        while not waiting.is_answered:
            first = self._first()
            if first is None:
                # SUBTLE: the leader answered this call after the look above, and left too (test_leader_queue.py).
                continue
            if first is waiting:
                return True
            if first.is_gone():
                self._leave(first)
            elif first.thread == waiting.thread:
                waiting.begin()
                raise UsageError("this thread is committing already: do not call a store from a signal handler")
            elif left <= 0:
                raise self._timeout_error(waiting)
            elif not waiting.sleep(tick):
                left -= tick
                tick = min(tick * 1.5, TICK_MAX_S)
        return False

    def _first(self) -> PendingCall[T] | None:
        """Return the first in the queue; None if the queue is empty."""
        if self._queue:
            with contextlib.suppress(IndexError):  # it left just now
                return self._queue[0]
        return None

    def _timeout_error(self, waiting: PendingCall[T]) -> Exception:
        """Make the error for a thread that waited too long."""
        if waiting.begin():
            return Determinate(f"nothing was done: another thread has worked for {WAIT_S:.0f} s; try again later")
        return Indeterminate(f"another thread has worked on this for {WAIT_S:.0f} s: it may have happened")

    def _lead(self, waiting: PendingCall[T], answer: AnswerCalls[T]) -> None:
        """Do the calls of the queue; the first is that of the leader."""
        self._recover()
        if waiting.is_done:
            return
        if self._had_company and len(self._queue) < GROUP_MAX:
            time.sleep(0)  # let threads that were just answered join the queue again
        group = [each for each in self._standing(GROUP_MAX) if each.begin()]
        self._had_company = len(group) > 1 or len(self._queue) > len(group)
        try:
            answer(group)
        finally:
            self.notify(group)

    def _recover(self) -> None:
        """Answer the calls that an earlier leader had begun: there is one leader at a time, so it was interrupted."""
        self.notify([each for each in self._standing(GROUP_MAX) if each.begun.locked()])

    def notify(self, group: list[PendingCall[T]]) -> None:
        """Release all answered calls, and give the others an Indeterminate. The first in the queue stays: it leads."""
        for each in group:
            if not each.is_done:
                each.error = Indeterminate(INTERRUPTED)
        for each in group[1:] if group and group[0] is self._first() else group:
            # SUBTLE: in this order. An interrupt in between must not remove a call without an answer from the queue
            # (test_leader_queue.py).
            each.is_answered = True
            self._remove(each)
            each.wake()

    def _standing(self, limit: int) -> list[PendingCall[T]]:
        """List the first calls of the queue, as it is at one moment."""
        while True:
            try:
                return [each for each, _ in zip(self._queue, range(limit), strict=False)]
            except RuntimeError:
                continue  # another thread joined or left during the iteration

    def _leave(self, waiting: PendingCall[T]) -> None:
        """Leave the queue: withdraw a call that no leader has begun, and wake the next one."""
        waiting.begin()
        self._remove(waiting)
        waiting.frame = None  # the frame refers to the call: from now on nothing may keep its rows alive
        first = self._first()
        if first is not None:
            first.wake()

    def _remove(self, waiting: PendingCall[T]) -> None:
        with contextlib.suppress(ValueError):  # it has left
            self._queue.remove(waiting)

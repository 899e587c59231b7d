"""Standing in line: what waits while somebody is at work is done together, by one of those who wait.

There is no thread for it. Whoever finds nobody at work leads: it takes all that
waits, does it as one, and hands out the answers; then the first of those who came
meanwhile leads. So a lone caller pays nothing for it, and many share the work. Who
was answered goes its way at once: it does not wait for whoever leads next.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from timespine.errors import Indeterminate

T = TypeVar("T")

GROUP_MAX = 256
"""How many are done together: an entry of the log has a bound, and so has the wait of the last in line."""


class Waiting(Generic[T]):
    """Something that waits for its answer."""

    __slots__ = ("error", "item", "leads", "reply", "woken")

    def __init__(self, item: T) -> None:
        self.item = item
        self.reply: Any = None
        self.error: BaseException | None = None
        self.leads = False
        """Whether it is its turn to do what waits."""
        self.woken = threading.Lock()
        """Free when it is answered, or has to lead."""
        self.woken.acquire()

    @property
    def is_done(self) -> bool:
        """Whether there is an answer."""
        return self.reply is not None or self.error is not None

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
        self._mutex = threading.Lock()
        self._waiting: deque[Waiting[T]] = deque()
        self._is_led = False
        self._is_crowded = False
        """Whether the last one who led was not alone."""

    def __len__(self) -> int:
        return len(self._waiting)

    def offer(self, item: T, answer: Answer[T]) -> Any:
        """The reply to something, once it was done with whatever else waits; or its error."""
        waiting = Waiting(item)
        try:
            self._join(waiting)
            if not waiting.leads:
                waiting.woken.acquire()
            if waiting.leads:
                self._lead(waiting, answer)
        except BaseException:
            self._leave(waiting)
            raise
        return waiting.answer()

    def _join(self, waiting: Waiting[T]) -> None:
        with self._mutex:
            self._waiting.append(waiting)
            if not self._is_led:
                self._is_led = waiting.leads = True

    def _leave(self, waiting: Waiting[T]) -> None:
        """Interrupted: what nobody has begun with is not done, and somebody else leads.

        SUBTLE: it may have to lead without knowing, and all behind it would wait for ever (test_line.py).
        """
        with self._mutex:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
        self._hand_over(waiting)

    def _lead(self, waiting: Waiting[T], answer: Answer[T]) -> None:
        """Do what waits; the first in line is whoever leads."""
        if self._is_crowded and len(self._waiting) < GROUP_MAX:
            time.sleep(0)  # those who were just answered may have more: let them stand in line first
        with self._mutex:
            group = [self._waiting.popleft() for _ in range(min(len(self._waiting), GROUP_MAX))]
            self._is_crowded = len(group) > 1 or len(self._waiting) > 0
        try:
            answer(group)
        finally:
            for each in group:
                if not each.is_done:
                    each.error = Indeterminate("whoever was at work on this was interrupted: it may have happened")
            for each in group:
                if each is not waiting:
                    each.woken.release()
            self._hand_over(waiting)

    def _hand_over(self, waiting: Waiting[T]) -> None:
        """Let the first in line lead, if this one did."""
        with self._mutex:
            if not waiting.leads:
                return
            waiting.leads = False
            if self._waiting:
                self._is_crowded = True
                self._waiting[0].leads = True
                self._waiting[0].woken.release()
            else:
                self._is_led = False

"""Locks that survive an exception at any bytecode, and bells that never lose a listener.

A KeyboardInterrupt can be raised between taking a lock and entering the `try` that gives it back, or inside
the cleanup itself. CPython looks for signals after calls, at the start of functions and at backward jumps:

- `lock.acquire(timeout=...)` and then `try:` leaks the lock: the interpreter looks for signals in between.
- `with lock:` on a lock of C is safe from 3.11 to 3.13: one instruction (BEFORE_WITH) calls `__enter__` and
  enters the block. From 3.14 on an ordinary call is made before the block begins, and the window is there.
- `threading.Condition`, `Event`, `Semaphore` and `queue.Queue` take their lock in functions written in
  Python, so they can leak it in every version.

So nothing here depends on cleanup. Whoever wants a lock stands in a queue, with the frame of the call that
holds it. The lock belongs to the first in the queue. That is one atomic operation each: appending joins,
removing leaves. A thread that waits longer than a tick asks whether the call of the first is still running.
If it is not, it was interrupted, and the waiting thread removes it. `frame.clear()` answers that exactly and at
once: it refuses a frame that is executing, whatever the frame's thread does at that moment.

SUBTLE: the call that holds a lock must be a plain function. A generator is suspended while its caller works.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import os
import sys
import threading
import time
from collections import deque
from types import FrameType, TracebackType

from timespine.errors import Determinate, UsageError, WrongProcess

TICK_S = 0.05
"""How long a thread waits before it asks, for the first time, whether the first in the queue is still at work."""

TICK_MAX_S = 0.5
"""How long it waits between two such questions, at most; they become rarer while the first works on."""

MISSED_S = 30.0
"""How long a thread sleeps at most before it looks again by itself: an interrupted thread may not have woken it."""

_SUSPENDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def can_hold(frame: FrameType) -> bool:
    """Whether a call can hold a lock: a plain function, which runs until it ends."""
    return not frame.f_code.co_flags & _SUSPENDS


class Place:
    """The place of a thread in a queue, from a call that is under way."""

    __slots__ = ("frame", "thread", "woken")

    def __init__(self, frame: FrameType) -> None:
        if not can_hold(frame):
            raise TypeError(f"{frame.f_code.co_name} is a generator, and only a plain function can hold a lock")
        self.frame: FrameType | None = frame
        """The call: when it ends, however it ends, this place is free. None: it has ended."""
        self.thread = threading.get_ident()
        """The thread that makes it."""
        self.woken = threading.Lock()
        """Free when the thread has to look again."""
        self.woken.acquire()

    def is_gone(self) -> bool:
        """Whether the call is over. SUBTLE: this empties the frame of a call that is, which only a debugger sees."""
        frame = self.frame
        if frame is not None:
            try:
                frame.clear()
            except RuntimeError:
                return False
        return True

    def wake(self) -> None:
        """Let its thread look again."""
        with contextlib.suppress(RuntimeError):  # it was told before, and has not looked yet
            self.woken.release()

    def sleep(self, limit_s: float) -> bool:
        """Wait to be woken; whether that came to pass."""
        return self.woken.acquire(timeout=max(limit_s, 0))


class Lock:
    """Mutual exclusion for calls, in the order in which they come."""

    def __init__(self, what: str, limit_s: float | None = None, *, is_reentrant: bool = False) -> None:
        self._what = what
        self._is_reentrant = is_reentrant
        """Whether a call that holds it may make another one that takes it."""
        self._limit_s = limit_s
        """How long it is waited for, unless a caller says otherwise; None: as long as its owner works."""
        self._queue: deque[Place] = deque()
        self._pid = os.getpid()

    def __enter__(self) -> None:
        self.take(Place(sys._getframe(1)), self._limit_s)

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.leave()

    def within(self, limit_s: float) -> Limited:
        """The lock for a `with`, or Determinate after a while."""
        return Limited(self, limit_s, None)

    def held_by(self, frame: FrameType) -> Limited:
        """The lock for an ExitStack, whose own calls end at once: it is held by another call."""
        return Limited(self, self._limit_s, frame)

    @property
    def is_held(self) -> bool:
        """Whether a call that is under way holds it or waits for it."""
        return any(not place.is_gone() for place in list(self._queue))

    def take(self, place: Place, limit_s: float | None) -> None:
        """Wait until a place is the first."""
        if self._is_reentrant and self._is_held_by(place.thread):
            self._queue.appendleft(place)  # this thread has the lock: no other thread takes the first place
            return
        self._queue.append(place)
        if self._queue[0] is not place:
            try:
                self._wait(place, limit_s)
            except BaseException:
                self._remove(place)
                raise

    def _is_held_by(self, thread: int) -> bool:
        """Tell whether a thread holds the lock.

        SUBTLE: between two looks at the queue its owner may leave it empty (test_locks.py).
        """
        if not self._queue:
            return False
        try:
            first = self._queue[0]
        except IndexError:
            return False  # its owner left just now
        return first.thread == thread and not first.is_gone()

    def leave(self) -> None:
        """Give the lock back. The caller holds it, so its place is the first."""
        self._queue.popleft()
        self._wake_first()

    def _wait(self, place: Place, limit_s: float | None) -> None:
        if self._pid != os.getpid():  # a thread of the parent may hold it, which does not exist here
            raise WrongProcess(f"{self._what} was in use while this process was forked: open the store again in it")
        left = float("inf") if limit_s is None else limit_s  # in ticks: a process that was suspended did not wait
        tick = TICK_S
        while (first := self._queue[0]) is not place:
            if first.frame is place.frame or first.is_gone():
                self._remove(first)
            elif first.thread == place.thread:
                raise UsageError(f"this thread is at work on {self._what}: do not call it from a signal handler")
            elif left <= 0:
                raise Determinate(f"{self._what} was busy for {limit_s} s: try again later")
            elif not place.sleep(min(tick, left)):
                left -= tick
                tick = min(tick * 1.5, TICK_MAX_S)

    def _remove(self, place: Place) -> None:
        """Take a place out of the queue, if it is in it."""
        try:
            self._queue.remove(place)
        except ValueError:
            return
        self._wake_first()

    def _wake_first(self) -> None:
        if self._queue:
            with contextlib.suppress(IndexError):  # it left just now
                self._queue[0].wake()


class Limited:
    """A lock that is waited for until a limit."""

    __slots__ = ("_frame", "_limit_s", "_lock")

    def __init__(self, lock: Lock, limit_s: float | None, frame: FrameType | None) -> None:
        self._lock = lock
        self._limit_s = limit_s
        self._frame = frame

    def __enter__(self) -> None:
        self._lock.take(Place(self._frame or sys._getframe(1)), self._limit_s)

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._lock.leave()


class Bell:
    """Wakes all threads that wait for it, and counts how often it rang. Ringing takes no lock."""

    def __init__(self) -> None:
        self.count = 0
        """Another one after every ring: read it before looking, and wait only while it is the same."""
        self._counting = itertools.count(1)
        self._waiting: deque[threading.Lock] = deque()

    def ring(self) -> None:
        """Wake all that wait."""
        self.count = next(self._counting)
        while self._waiting:
            try:
                self._waiting.popleft().release()
            except IndexError:
                return  # another thread rings, too

    def wait(self, heard: int, timeout_s: float) -> bool:
        """Wait until it rings; at once if it did since `heard` was its count. False if the time is over."""
        deadline = time.monotonic() + timeout_s
        while self.count == heard:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            woken = threading.Lock()
            woken.acquire()
            self._waiting.append(woken)
            if self.count == heard:
                woken.acquire(timeout=min(left, MISSED_S))
            with contextlib.suppress(ValueError):  # it rang
                self._waiting.remove(woken)
        return True


class Flag:
    """Something that is so or is not, and that threads can wait for."""

    def __init__(self) -> None:
        self._is_set = False
        self._bell = Bell()

    def is_set(self) -> bool:
        """Whether it is so."""
        return self._is_set

    def set(self) -> None:
        """Make it so, and wake all that wait."""
        self._is_set = True
        self._bell.ring()

    def clear(self) -> None:
        """Make it not so."""
        self._is_set = False

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is so; False if the time is over.

        SUBTLE: look at the flag again after MISSED_S. A thread that is interrupted between setting the flag and ringing
        wakes no waiting thread (test_locks.py).
        """
        deadline = time.monotonic() + timeout_s
        while True:
            heard = self._bell.count
            if self._is_set:
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._bell.wait(heard, min(left, MISSED_S))

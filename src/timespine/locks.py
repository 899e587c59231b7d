"""Locks that survive an exception at any bytecode, and bells that never lose a listener.

A KeyboardInterrupt can be raised between taking a lock and entering the `try` that gives it back, or inside
the cleanup itself. CPython looks for signals after calls, at the start of functions and at backward jumps:

- `lock.acquire(timeout=...)` and then `try:` leaks the lock: the interpreter looks for signals in between.
- `with lock:` on a lock of C is safe from 3.11 to 3.13: one instruction (BEFORE_WITH) calls `__enter__` and
  enters the block. From 3.14 on an ordinary call is made before the block begins, and the window is there.
- `threading.Condition`, `Event`, `Semaphore` and `queue.Queue` take their lock in functions written in
  Python, so they can leak it in every version.

So nothing here depends on cleanup. A thread that wants a lock stands in a queue, with the frame of the call that
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

from timespine.errors import Determinate, Indeterminate, Unavailable, UsageError, WrongProcess

TICK_S = 0.05
"""How long a thread waits before it first checks whether the call of the first in the queue still runs."""

TICK_MAX_S = 0.5
"""The longest wait between two such checks; the waits grow while the first works on."""

MISSED_S = 30.0
"""The longest sleep of a thread before it looks again by itself: an interrupted thread may not have woken it."""

LOCK_S = 600.0
"""How long a lock is waited for, unless it has a limit of its own. The call that holds such a lock computes, or makes a
few calls of storage, each of which gives up after seconds (`location.sqlite.sqlite_consensus.WAIT_S`). So a lock that
is held for ten minutes belongs to a thread that hangs: an error helps its callers more than to hang as well."""

_SUSPENDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def can_hold(frame: FrameType) -> bool:
    """Tell whether a call can hold a lock: only a plain function can, which runs until it ends."""
    return not frame.f_code.co_flags & _SUSPENDS


class QueueSlot:
    """The place of a thread in a queue, taken by a call that is running."""

    __slots__ = ("frame", "thread", "woken")

    def __init__(self, frame: FrameType) -> None:
        if not can_hold(frame):
            raise TypeError(f"{frame.f_code.co_name} is a generator, and only a plain function can hold a lock")
        self.frame: FrameType | None = frame
        """The call: when it ends, however it ends, this place is free. None: it has ended."""
        self.thread = threading.get_ident()
        """The thread that makes the call."""
        self.woken = threading.Lock()
        """A lock that is free when the thread has to look again."""
        self.woken.acquire()

    def is_gone(self) -> bool:
        """Tell whether the call is over.

        SUBTLE: this clears the frame of a call that is over, which only a debugger sees.
        """
        frame = self.frame
        if frame is not None:
            try:
                frame.clear()
            except RuntimeError:
                return False
        return True

    def wake(self) -> None:
        """Wake the thread, so that it looks again."""
        with contextlib.suppress(RuntimeError):  # it was woken before, and has not looked yet
            self.woken.release()

    def sleep(self, limit_s: float) -> bool:
        """Wait to be woken; return False if the limit passed first."""
        return self.woken.acquire(timeout=max(limit_s, 0))


class Lock:
    """Mutual exclusion for calls, in the order of their arrival."""

    def __init__(
        self, what: str, limit_s: float = LOCK_S, *, is_reentrant: bool = False, follows_commit: bool = False
    ) -> None:
        self._what = what
        self._is_reentrant = is_reentrant
        """Whether a call that holds the lock may make another call that takes it."""
        self._limit_s = limit_s
        """How long a call waits, unless it gives its own limit."""
        self._follows_commit = follows_commit
        """Whether calls take the lock after commits too: the commit has happened, and no error may deny it."""
        self._queue: deque[QueueSlot] = deque()
        self._pid = os.getpid()

    def __enter__(self) -> None:
        self.take(QueueSlot(sys._getframe(1)), self._limit_s)

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.leave()

    def within(self, limit_s: float) -> Limited:
        """Return the lock for a `with` that waits until a limit, and raises Determinate after it."""
        return Limited(self, limit_s, None)

    def held_by(self, frame: FrameType) -> Limited:
        """Return the lock for an ExitStack: another call holds it, since those of the stack end at once."""
        return Limited(self, self._limit_s, frame)

    @property
    def is_held(self) -> bool:
        """Whether a running call holds the lock or waits for it."""
        return any(not place.is_gone() for place in list(self._queue))

    def take(self, place: QueueSlot, limit_s: float) -> None:
        """Wait until a place is the first in the queue."""
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
        """Release the lock. The caller holds it, so its place is the first."""
        self._queue.popleft()
        self._wake_first()

    def _wait(self, place: QueueSlot, limit_s: float) -> None:
        if self._pid != os.getpid():  # a thread of the parent may hold it, which does not exist here
            raise WrongProcess(f"{self._what} was in use while this process was forked: open the store again in it")
        left = limit_s  # in ticks: a process that was suspended did not wait
        tick = TICK_S
        while (first := self._queue[0]) is not place:
            if first.frame is place.frame or first.is_gone():
                self._remove(first)
            elif first.thread == place.thread:
                raise UsageError(f"this thread is at work on {self._what}: do not call it from a signal handler")
            elif left <= 0:
                raise self._busy(limit_s)
            elif not place.sleep(min(tick, left)):
                left -= tick
                tick = min(tick * 1.5, TICK_MAX_S)

    def _busy(self, limit_s: float) -> Unavailable:
        """Make the error for a lock that another thread has held for too long."""
        if self._follows_commit:
            return Indeterminate(f"{self._what} was busy for {limit_s} s: what this call was about may have happened")
        return Determinate(f"{self._what} was busy for {limit_s} s: try again later")

    def _remove(self, place: QueueSlot) -> None:
        """Remove a place from the queue, if it is there."""
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
    """A lock whose callers wait until a limit."""

    __slots__ = ("_frame", "_limit_s", "_lock")

    def __init__(self, lock: Lock, limit_s: float, frame: FrameType | None) -> None:
        self._lock = lock
        self._limit_s = limit_s
        self._frame = frame

    def __enter__(self) -> None:
        self._lock.take(QueueSlot(self._frame or sys._getframe(1)), self._limit_s)

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._lock.leave()


class Bell:
    """A bell that wakes all waiting threads, and counts how often it rang. Ringing takes no lock."""

    def __init__(self) -> None:
        self.count = 0
        """A number that changes with every ring: read it before looking, and wait only while it is the same."""
        self._counting = itertools.count(1)
        self._waiting: deque[threading.Lock] = deque()

    def ring(self) -> None:
        """Wake all waiting threads."""
        self.count = next(self._counting)
        while self._waiting:
            try:
                self._waiting.popleft().release()
            except IndexError:
                return  # another thread rings, too

    def wait(self, heard: int, timeout_s: float) -> bool:
        """Wait for a ring after the one with the count `heard`; return False if the time is over."""
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
    """A boolean that threads can wait for."""

    def __init__(self) -> None:
        self._is_set = False
        self._bell = Bell()

    def is_set(self) -> bool:
        """Tell whether the flag is set."""
        return self._is_set

    def set(self) -> None:
        """Set the flag, and wake all waiting threads."""
        self._is_set = True
        self._bell.ring()

    def clear(self) -> None:
        """Clear the flag."""
        self._is_set = False

    def wait(self, timeout_s: float) -> bool:
        """Wait until the flag is set; return False if the time is over.

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

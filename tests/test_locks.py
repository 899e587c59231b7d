"""Locks and flags between two looks at them: another thread may leave, or may be interrupted, in between."""

import sys
import threading
from collections import deque

import pytest
from assertions import until

from timespine import locks
from timespine.locks import Flag, Lock, QueueSlot

OTHER = -1
"""The id of a thread that is not this one."""


class Departing(deque):
    """A queue whose first thread leaves after another thread has looked whether the queue is empty, or at last when
    that thread joins."""

    def __bool__(self):
        was_full = len(self) > 0
        self._depart()
        return was_full

    def append(self, place):
        self._depart()
        super().append(place)

    def _depart(self):
        if len(self) and self[0].thread == OTHER:
            self.popleft()


@pytest.mark.parametrize("is_reentrant", [False, True])
def test_a_lock_whose_owner_leaves_between_two_looks_is_taken(is_reentrant):
    lock = Lock("a lock", 60, is_reentrant=is_reentrant)
    lock._queue = Departing([QueueSlot(sys._getframe())])
    lock._queue[0].thread = OTHER
    taken = QueueSlot(sys._getframe())
    lock.take(taken, 60)
    assert list(lock._queue) == [taken]


def test_a_thread_that_holds_a_reentrant_lock_takes_it_again():
    lock = Lock("a lock", 60, is_reentrant=True)

    def inner():
        with lock:
            return lock.is_held

    with lock:
        assert inner()
        assert lock.is_held
    assert not lock.is_held


def test_a_flag_that_was_set_by_a_thread_that_was_interrupted_is_seen(monkeypatch):
    """The thread was interrupted between setting the flag and waking the threads that wait for it."""
    monkeypatch.setattr(locks, "MISSED_S", 0.01)
    flag = Flag()
    found = []
    thread = threading.Thread(target=lambda: found.append(flag.wait(float("inf"))), daemon=True)
    thread.start()
    until(lambda: flag._bell._waiting)

    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(flag._bell, "ring", interrupted)
    with pytest.raises(KeyboardInterrupt):
        flag.set()
    until(lambda: found == [True])
    thread.join(60)


def test_a_flag_that_is_not_set_is_waited_for_until_the_limit():
    assert not Flag().wait(0)

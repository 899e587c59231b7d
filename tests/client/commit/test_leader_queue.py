"""Standing in line: who leads, who is answered, and what becomes of the others when somebody is interrupted."""

import sys
import threading
from collections import deque

import pytest
from memory_store import until

from timespine.client.commit import leader_queue as lines
from timespine.client.commit.leader_queue import LeaderQueue
from timespine.errors import Indeterminate


class Work:
    """Answers with what it was asked; can be held back, and can fail."""

    def __init__(self):
        self.groups = []
        self.free = threading.Event()
        self.raises = {}

    def __call__(self, group):
        number = len(self.groups)
        self.groups.append([each.item for each in group])
        if number == 0:
            assert self.free.wait(60)
        if number in self.raises:
            raise self.raises[number]
        for each in group:
            each.reply = each.item


class Crowd:
    """Threads that offer something to a line, in order; the first leads and is held back."""

    def __init__(self, items):
        self.line, self.work = LeaderQueue(), Work()
        self.results = {}
        self.threads = [threading.Thread(target=self._offer, args=(item,)) for item in items]
        self.threads[0].start()
        until(lambda: len(self.work.groups) == 1)
        for place, thread in enumerate(self.threads[1:], 1):
            thread.start()
            until(lambda place=place: len(self.line) == place)

    def _offer(self, item):
        try:
            self.results[item] = self.line.offer(item, self.work)
        except BaseException as error:
            self.results[item] = error

    def ended(self):
        self.work.free.set()
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive(), "somebody waits for ever"
        return self.results


def test_what_waits_is_done_together_and_each_gets_its_own_answer():
    crowd = Crowd("abcd")
    assert crowd.ended() == {each: each for each in "abcd"}
    assert crowd.work.groups == [["a"], ["b", "c", "d"]]


def test_a_lone_caller_leads_and_does_not_wait():
    line, work = LeaderQueue(), Work()
    work.free.set()
    assert [line.offer(each, work) for each in "ab"] == ["a", "b"]
    assert work.groups == [["a"], ["b"]]


def test_a_group_has_a_bound_and_the_next_in_line_leads_the_rest(monkeypatch):
    monkeypatch.setattr(lines, "GROUP_MAX", 2)
    crowd = Crowd("abcde")
    crowd.ended()
    assert crowd.work.groups == [["a"], ["b", "c"], ["d", "e"]]


def test_an_error_of_the_leader_is_raised_for_it_and_in_doubt_for_the_others():
    crowd = Crowd("abc")
    crowd.work.raises[1] = KeyboardInterrupt()
    results = crowd.ended()
    assert results["a"] == "a"
    assert isinstance(results["b"], KeyboardInterrupt)
    assert isinstance(results["c"], Indeterminate)
    assert crowd.line.offer("d", crowd.work) == "d"


def test_a_caller_that_was_answered_does_not_wait_for_a_later_leader(monkeypatch):
    monkeypatch.setattr(lines, "GROUP_MAX", 2)
    crowd = Crowd("abcd")
    second = threading.Event()
    inner = crowd.work.__call__

    class Held(Work):
        def __call__(self, group):
            if group[0].item == "d":
                assert second.wait(60)
            inner(group)

    crowd.work.__class__ = Held
    crowd.work.free.set()
    until(lambda: {"a", "b", "c"} <= crowd.results.keys())  # while whoever leads the last is still at work
    assert "d" not in crowd.results
    second.set()
    assert crowd.ended()["d"] == "d"


class Interruptible:
    """A lock whose owner is interrupted while it waits for it."""

    def __init__(self):
        self.told = threading.Event()

    def acquire(self, timeout):
        assert self.told.wait(60)
        raise KeyboardInterrupt

    def release(self):
        self.told.set()


@pytest.mark.parametrize("leads", [False, True], ids=["while it waits", "when it is to lead"])
def test_a_waiting_call_that_is_interrupted_is_not_done_and_holds_up_no_other(monkeypatch, leads):
    lock = Interruptible()

    class Other(lines.PendingCall):
        def __init__(self, item, frame):
            super().__init__(item, frame)
            self.woken = lock if item == "b" else self.woken

    monkeypatch.setattr(lines, "PendingCall", Other)
    crowd = Crowd("abc")
    if not leads:
        lock.told.set()
        until(lambda: "b" in crowd.results)
    results = crowd.ended()
    assert isinstance(results["b"], KeyboardInterrupt)
    assert (results["a"], results["c"]) == ("a", "c")
    assert crowd.work.groups == [["a"], ["c"]]


def test_a_leader_that_is_interrupted_while_it_tells_others_leaves_none_without_an_answer():
    class Interrupted(deque):
        def remove(self, value):
            super().remove(value)
            raise KeyboardInterrupt

    line = LeaderQueue()
    frame = sys._getframe()
    group = [lines.PendingCall(each, frame) for each in range(3)]
    line._queue = Interrupted(group)
    for each in group:
        each.reply = "done"
    with pytest.raises(KeyboardInterrupt):
        line.notify(group)
    assert all(each.is_answered or each in line._queue for each in group)


def test_what_is_answered_between_two_looks_at_an_empty_queue_is_answered():
    """The leader answers, and leaves the queue empty, after a thread has seen that it has no answer yet."""

    class Departing(deque):
        def append(self, waiting):
            waiting.reply, waiting.is_answered = "done", False
            self.waiting = waiting

        def __bool__(self):
            self.waiting.is_answered = True
            return True

    line = LeaderQueue()
    line._queue = Departing()
    assert line.offer("a", None) == "done"

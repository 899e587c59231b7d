"""Threads that merge spines: none is missed, blocked or left running, and a forked child starts its own."""

import contextlib
import os
import threading
from unittest import mock

import pytest
from assertions import until
from test_arrangement_spine import TINY, ids
from test_view_as_of import ORDERS, orders

from timespine.arrangement.spine import sliced_merge
from timespine.arrangement.spine.merge_threads import Mergers, shared_mergers
from timespine.arrangement.spine.spine import Spine
from timespine.core.protocols import merge_spine
from timespine.errors import Determinate, StoreClosed

STEP = sliced_merge.SlicedMerge.step


class Gate:
    """Stops every slice until it is opened, or lets it fail."""

    def __init__(self):
        self.is_open = threading.Event()
        self.stopped = threading.Event()
        self.failures = []
        self.threads = set()

    def step(self, merge, rows):
        self.threads.add(threading.current_thread().name)
        self.stopped.set()
        assert self.is_open.wait(60)
        if self.failures:
            raise self.failures.pop()
        return STEP(merge, rows)


@pytest.fixture
def gate():
    gate = Gate()
    with mock.patch.object(sliced_merge.SlicedMerge, "step", lambda merge, rows: gate.step(merge, rows)):
        yield gate
        gate.is_open.set()


def fill(spine, *numbers):
    for number in numbers:
        assert spine.insert(orders([(number, "")]), wait=False)


def figure(spine, name):
    return sum(level[name] for level in spine.metrics()["levels"])


def test_one_thread_serves_all_spines_of_a_process(gate):
    assert shared_mergers() is shared_mergers()
    gate.is_open.set()
    with contextlib.ExitStack() as stack:
        spines = [stack.enter_context(Spine(ORDERS, rules=TINY)) for _ in range(4)]
        for number in range(20):
            for spine in spines:
                spine.insert(orders([(number, "")]))
        for spine in spines:
            until(spine.is_settled)
            assert ids(spine) == list(range(20))
    assert len(gate.threads) == 1
    assert gate.threads.pop().startswith("timespine-merge")


def test_metrics_count_the_time_of_merges(gate):
    gate.is_open.set()
    with Spine(ORDERS, rules=TINY) as spine:
        fill(spine, 1, 2)
        until(spine.is_settled)
        assert spine.metrics()["levels"][0]["seconds"] > 0
        assert spine.metrics()["levels"][8]["seconds"] == 0


def test_a_level_that_is_due_when_its_task_ends_gets_a_new_one(gate):
    """The task sees that nothing is due; then a batch comes; then the task leaves."""
    gate.is_open.set()
    with Spine(ORDERS, rules=TINY) as spine:
        driver, entered, go_on = spine._driver, threading.Event(), threading.Event()
        ended = driver._level_ended

        def late(level, error):
            entered.set()
            assert go_on.wait(60)
            ended(level, error)

        driver._level_ended = late
        fill(spine, 1, 2)
        assert entered.wait(60)
        fill(spine, 3)  # due again, and the old task is still counted
        assert figure(spine, "merges") == 1
        go_on.set()
        until(lambda: figure(spine, "merges") == 2)
        until(spine.is_settled)


def test_a_fork_of_a_full_spine_makes_room_by_itself(gate):
    two = mock.patch("timespine.arrangement.spine.spine.shared_mergers", mock.Mock(return_value=Mergers(2)))
    with two, Spine(ORDERS, rules=TINY) as spine:
        fill(spine, *range(TINY.batches_max))
        until(gate.stopped.is_set)
        assert spine.insert(orders([(99, "")]), wait=False) is False
        with spine.fork() as fork:
            gate.is_open.set()
            fork.insert(orders([(99, "")]))
            assert 99 in ids(fork)
        assert 99 not in ids(spine)


def test_an_inserter_that_waits_is_woken_when_the_spine_closes(gate):
    spine = Spine(ORDERS, rules=TINY)
    fill(spine, *range(TINY.batches_max))
    until(gate.stopped.is_set)
    outcomes = []

    def insert():
        try:
            outcomes.append(spine.insert(orders([(99, "")])))
        except StoreClosed as error:
            outcomes.append(error)

    waiting = threading.Thread(target=insert)
    waiting.start()
    closing = threading.Thread(target=spine.close)
    closing.start()
    waiting.join(60)  # though the slice still stands
    assert isinstance(outcomes[0], StoreClosed)
    gate.is_open.set()
    closing.join(60)
    assert ids(spine) == list(range(TINY.batches_max))


def test_closing_ends_tasks_that_pause_after_a_failure(gate, monkeypatch):
    monkeypatch.setattr(merge_spine, "PAUSE_MS", 3_600_000)
    gate.failures.append(OSError("broken"))
    gate.is_open.set()
    spine = Spine(ORDERS, rules=TINY)
    fill(spine, 1, 2)
    until(lambda: figure(spine, "failures"))
    spine.close()
    until(lambda: not spine._driver._busy_levels)
    assert ids(spine) == [1, 2]


def test_without_threads_a_merge_that_keeps_failing_does_not_hold_up_insertions(gate, monkeypatch):
    monkeypatch.setattr(merge_spine, "PAUSE_MS", 3_600_000)
    gate.failures += [OSError("broken")] * 100
    gate.is_open.set()
    with Spine(ORDERS, rules=TINY, threads=False) as spine:
        fill(spine, *range(TINY.batches_max))
        assert figure(spine, "failures") == 1
        with (
            mock.patch.object(merge_spine.insert, "__defaults__", (None, 1)),
            pytest.raises(Determinate, match="full for"),
        ):
            spine.insert(orders([(99, "")]))
        assert ids(spine) == list(range(TINY.batches_max))


def test_a_forked_child_goes_on_with_what_its_parent_had(gate, tmp_path):
    with Spine(ORDERS, rules=TINY, folder=str(tmp_path / "spine")) as spine:
        fill(spine, *range(8))
        until(gate.stopped.is_set)  # a thread is at work, and is not in the child
        pid = os.fork()
        if pid == 0:
            is_right = False
            with contextlib.suppress(BaseException):
                gate.is_open.set()
                for number in range(8, 40):
                    spine.insert(orders([(number, "")]))
                until(spine.is_settled)
                is_right = ids(spine) == list(range(40))
            os._exit(0 if is_right else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        gate.is_open.set()
        until(spine.is_settled)
        assert ids(spine) == list(range(8))
        spine.save()

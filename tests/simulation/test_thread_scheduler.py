"""The scheduler of simulated stores: one thread at a time, virtual time, deaths, and no thread that is left behind."""

import sys
import threading as real
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import ModuleType

import pytest

from timespine.testing.stores.thread_scheduler import START_S, Scheduler, VirtualProcess
from timespine.testing.stores.virtual_threads import THREADING as threading
from timespine.testing.stores.virtual_threads import Virtual, virtual_threads


def run(work, seed=0, **options):
    """Run some work in a scheduler; the scheduler."""
    scheduler = Scheduler(seed, **options)
    escaped = []
    scheduler.on_escape = lambda task, error: escaped.append(error)
    before = real.active_count()
    with virtual_threads(scheduler):
        scheduler.run(work)
    assert real.active_count() == before
    if escaped:
        raise escaped[0]
    return scheduler


def order_of(seed):
    told = []

    def work():
        lock = threading.Lock()

        def count(name):
            for _ in range(4):
                with lock:
                    told.append(name)

        threads = [threading.Thread(target=count, args=(name,)) for name in "abc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    run(work, seed)
    return "".join(told)


def test_the_seed_decides_the_order_of_threads_and_nothing_else_does():
    orders = [order_of(seed) for seed in range(8)]
    assert orders == [order_of(seed) for seed in range(8)]
    assert len(set(orders)) > 1
    assert {"".join(sorted(order)) for order in orders} == {"aaaabbbbcccc"}


def test_time_is_virtual_and_jumps_to_the_next_timer():
    times = []

    def work():
        event = threading.Event()
        assert not event.wait(3600)
        times.append(Virtual.scheduler.now)
        Virtual.scheduler.sleep(100)
        times.append(Virtual.scheduler.now)

    run(work)
    assert [round(time - START_S) for time in times] == [3600, 3700]


def test_a_deadlock_ends_the_history_and_says_who_waits_for_what():
    def work():
        first, second = threading.Lock(), threading.Lock()

        def take(one, other):
            with one:
                Virtual.scheduler.sleep(1)
                with other:
                    raise AssertionError("both cannot be taken")

        threads = [threading.Thread(target=take, args=each) for each in ((first, second), (second, first))]
        for thread in threads:
            thread.start()
        threads[0].join()

    scheduler = run(work)
    assert len(scheduler.deadlock) == 3
    assert all("waits for" in each for each in scheduler.deadlock)


def test_a_killed_process_does_nothing_more_and_all_its_threads_end():
    done = []

    def work():
        scheduler, victim = Virtual.scheduler, VirtualProcess("victim")

        def forever():
            event, lock = threading.Event(), threading.Lock()
            helper = threading.Thread(target=event.wait)
            helper.start()
            try:
                helper.join()
            finally:
                done.append("unwinds")
                with lock:
                    done.append("takes a lock though it is dead")

        task = scheduler.spawn(victim, "main", forever)
        scheduler.sleep(1)
        scheduler.kill(victim)
        assert task.is_done
        assert victim.tasks == []

    run(work)
    assert done == ["unwinds"]


def test_a_paused_process_goes_on_later():
    told = []

    def work():
        scheduler, process = Virtual.scheduler, VirtualProcess("paused")
        process.paused_until = scheduler.now + 10
        task = scheduler.spawn(process, "main", lambda: told.append(scheduler.now))
        scheduler.wait_for_any([task])

    run(work)
    assert told[0] >= START_S + 10


def test_conditions_and_semaphores_wait_and_are_woken():
    told = []

    def work():
        condition, free = threading.Condition(), threading.Semaphore(1)

        def listen(name):
            with condition:
                told.append((name, condition.wait(5)))
            with free:
                told.append(name)

        threads = [threading.Thread(target=listen, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
        Virtual.scheduler.sleep(1)
        with condition:
            condition.notify_all()
            assert condition.wait_for(lambda: False, 1) is False
        for thread in threads:
            thread.join(100)
        assert not any(thread.is_alive() for thread in threads)

    run(work)
    assert {("a", True), ("b", True), "a", "b"} == set(told)


def test_pools_of_the_standard_library_run_in_the_scheduler():
    results = []

    def work():
        def add(one, other):
            Virtual.scheduler.sleep(1)
            if other == 3:
                raise ValueError("no")
            return one + other

        with ThreadPoolExecutor(2) as pool:
            futures = [pool.submit(add, 1, other) for other in range(4)]
            wait(futures)
            results.extend(each.exception() or each.result() for each in futures)
        with pytest.raises(RuntimeError, match="shutdown"):
            pool.submit(add, 1, 1)
        assert isinstance(futures[0], Future)

    run(work)
    assert results[:3] == [1, 2, 3]
    assert isinstance(results[3], ValueError)


def test_an_error_that_ends_a_thread_is_noticed():
    def work():
        threading.Thread(target=lambda: 1 / 0).start()
        Virtual.scheduler.sleep(1)

    with pytest.raises(ZeroDivisionError):
        run(work)


def test_locks_refuse_what_the_real_ones_refuse():
    def work():
        with pytest.raises(RuntimeError):
            threading.Lock().release()
        with pytest.raises(RuntimeError):
            threading.RLock().release()
        lock = threading.Lock()
        assert lock.acquire()
        assert not lock.acquire(blocking=False)
        assert not lock.acquire(timeout=2)
        assert lock.locked()
        again = threading.RLock()
        with again, again:
            assert threading.current_thread() is threading.current_thread()

    run(work)


def test_a_history_that_imports_a_module_with_real_locks_is_refused(monkeypatch):
    late = ModuleType(".".join(("timespine", "client", "late")))
    late.threading = real

    def work():
        monkeypatch.setitem(sys.modules, late.__name__, late)

    with pytest.raises(AssertionError, match=r"imported timespine\.client\.late, whose locks and clock are real"):
        run(work)

"""Handles in another process: a forked child and a pickle are refused at once; a store opened there works."""

import contextlib
import copy
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import warnings
from types import SimpleNamespace

import pytest
from assertions import until

import timespine as ts
from timespine.errors import WrongProcess
from timespine.first_use import Library

KEY = {"n": "int64"}


def in_child(action, seconds=60):
    """Run something in a forked child, which is killed after a while; what it returned or raised, as text."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer versions warn of forks beside threads
        pid = os.fork()
    if pid == 0:
        signal.alarm(seconds)
        try:
            said = repr(action())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode()[:4000])
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        said = pipe.read().decode()
    assert os.waitpid(pid, 0)[1] == 0, "the child hung"
    return said


@contextlib.contextmanager
def busy(store, numbers):
    """Threads that append, read and upsert all the time, so that a fork finds locks taken."""
    done, failures = threading.Event(), []

    def work(call):
        n = 0
        while not done.is_set():
            n += 1
            try:
                call(n)
            except BaseException as error:
                failures.append(error)
                raise

    calls = (lambda n: numbers.append([{"n": n}]), lambda n: numbers.count(), lambda n: numbers.upsert([{"n": -n}]))
    threads = [threading.Thread(target=work, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join(60)
    assert failures == []


def test_a_child_that_uses_a_handle_of_its_parent_is_refused_at_once_though_threads_are_at_work(tmp_path):
    with ts.open(tmp_path) as store:
        numbers = store.create("numbers", key=KEY, timeline="counter")
        numbers.append([{"n": 0}])
        snapshot, feed, listener = numbers.snapshot(), numbers.subscribe(), numbers.listen()
        writer = numbers.writer()
        uses = {
            "append": lambda: numbers.append([{"n": 1}]),
            "count": numbers.count,
            "upsert": lambda: numbers.upsert([{"n": 1}]),
            "create": lambda: store.create("others", key=KEY),
            "names": store.names,
            "a transaction": lambda: store.transaction().append("numbers", [{"n": 1}]),
            "a snapshot": snapshot.to_arrow,
            "a feed": feed.poll,
            "a listener": listener.poll,
            "a writer": lambda: writer.builder(lower=1),
            "maintain": store.maintain,
        }
        with busy(store, numbers):
            for what, use in uses.items():
                assert in_child(use).startswith("WrongProcess"), what
        assert {each["n"] for each in numbers.snapshot().to_pylist()} >= {0}


def test_a_store_that_a_child_opens_works_beside_its_parent(tmp_path):
    with ts.open(tmp_path) as store:
        numbers = store.create("numbers", key=KEY, timeline="counter")

        def append():
            with ts.open(tmp_path) as own:
                return own["numbers"].append([{"n": 1_000_000}]).rows

        with busy(store, numbers):
            assert [in_child(append) for _ in range(3)] == ["1", "1", "1"]
        assert numbers.count(where="n = 1000000") == 3


FORKED_EARLY = """
import os, signal, sys, threading
import timespine as ts

with ts.open(sys.argv[1], maintenance=False) as store:
    numbers = store.create("numbers", key={"n": "int64"}, timeline="counter")
    thread = threading.Thread(target=numbers.append, args=([{"n": 1}],))
    thread.start()
    while thread.is_alive() and "pandas" not in sys.modules:
        pass
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        with ts.open(sys.argv[1], maintenance=False) as own:
            own["numbers"].append([{"n": 2}])
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, "the child hung"
    thread.join()
    assert numbers.count() == 2
"""


def test_a_child_forked_while_the_first_rows_are_converted_does_not_wait_for_the_import_of_its_parent(tmp_path):
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED_EARLY, str(tmp_path)], check=True)


def test_what_a_child_drops_or_closes_changes_nothing_for_its_parent(tmp_path):
    with ts.open(tmp_path, config=ts.Config(inline_part_bytes=1)) as store:
        numbers = store.create("numbers", key=KEY, timeline="counter")
        numbers.append([{"n": 1}])
        held = [numbers.snapshot(), numbers.subscribe()]
        before = store._committer.session.committer

        def drop():
            for each in held:
                each.close()
            held.clear()
            store.close()
            gc.collect()
            return "dropped"

        assert in_child(drop) == "'dropped'"
        state = numbers._handle.state()
        assert before in state.committers, "the committer of the parent is still registered"
        assert len(state.readers) == 2, "and so are its leases"
        numbers.append([{"n": 2}])
        assert numbers.count() == 2


def test_a_handle_that_is_pickled_says_what_to_do_instead(tmp_path):
    with ts.open(tmp_path, maintenance=False) as store:
        numbers = store.create("numbers", key=KEY, timeline="counter")
        numbers.append([{"n": 1}])
        handles = [
            *(store, numbers, numbers.snapshot(), numbers.updates(), numbers.subscribe(), numbers.listen()),
            *(numbers.writer(), numbers.hold(), numbers.critical_hold("c"), store.transaction()),
            *(store.snapshot(["numbers"]), numbers.merge([{"n": 1}]), numbers.arrange()),
        ]
        for handle in handles:
            for pickled in (pickle.dumps, copy.copy):
                with pytest.raises(WrongProcess, match=r"open the store in the other process.*to_spark.*transmit"):
                    pickled(handle)
        with numbers.writer().builder(lower=1) as builder:
            for pickled in (pickle.dumps, copy.copy):
                with pytest.raises(WrongProcess, match=r"finish its batch.*transmit"):
                    pickled(builder)


def test_a_fork_waits_for_the_first_use_of_a_library_in_another_thread(tmp_path, monkeypatch):
    events = SimpleNamespace(begun=threading.Event(), go=threading.Event())
    (tmp_path / "slow_library.py").write_text(
        "import slow_events\nslow_events.begun.set()\nslow_events.go.wait(60)\nx = 1\n"
    )
    monkeypatch.setitem(sys.modules, "slow_events", events)
    monkeypatch.syspath_prepend(tmp_path)
    forking = threading.get_ident()

    def names_of_calls():
        frame = sys._current_frames()[forking]
        while frame is not None:
            yield frame.f_code.co_name
            frame = frame.f_back

    def end_import_when_the_fork_waits():
        until(lambda: "_before_fork" in names_of_calls())
        events.go.set()

    threads = [
        threading.Thread(target=lambda: Library("slow_library").x),
        threading.Thread(target=end_import_when_the_fork_waits),
    ]
    threads[0].start()
    assert events.begun.wait(60)
    threads[1].start()
    assert in_child(lambda: Library("slow_library").x) == "1"
    for thread in threads:
        thread.join(60)
    monkeypatch.delitem(sys.modules, "slow_library")

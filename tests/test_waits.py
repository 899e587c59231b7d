"""Every wait has a limit: no call of the library waits for another thread for ever."""

import ast
import threading
import time
from concurrent.futures import Future
from pathlib import Path

import pytest
from assertions import until

import timespine
from timespine import locks, pool
from timespine.client.catalog.catalog_log import first_state
from timespine.client.commit.shared_session import SharedSession
from timespine.columnar.parts.part_cache import PartCache
from timespine.columnar.write.upload import Uploads
from timespine.config import DEFAULT
from timespine.errors import Determinate, Indeterminate
from timespine.locks import Lock
from timespine.pool import Pool, outcome

SOURCE = Path(timespine.__file__).parent

WAITS = {"acquire", "as_completed", "exception", "get", "join", "result", "wait"}
"""Methods that wait for another thread, for ever if they are called without arguments."""

PRIMITIVES = {"Barrier", "Condition", "Event", "Lock", "Queue", "RLock", "Semaphore", "SimpleQueue", "Thread"}
"""What the standard library has to wait for: `timespine.locks` and `timespine.pool` stand in for them."""

UNLIMITED = {
    ("locks.py", "acquire"): "takes a lock that was just made, and that no other thread has",
    ("first_use.py", "acquire"): "an import holds the lock only for the moment in which it begins",
    ("pool.py", "get"): "an idle thread of a pool waits for work; it is a daemon, and `shutdown` ends it",
    ("columnar/kernels/background_flag.py", "get"): "reads a variable of this thread, and waits for nothing",
    ("columnar/kernels/take_rows.py", "join"): "the thread copies as many rows as its caller did meanwhile",
    ("views/sql/parse.py", "acquire"): "the thread parses or translates a text, and waits for nothing itself",
    ("hints.py", "get"): "reads how this thread words hints, and waits for nothing",
    ("cli/output/row_writers.py", "get"): "reads a captured text, and waits for nothing",
    ("spark/write/data_source_writer.py", "get"): "asks Spark for the context of this task, and waits for nothing",
}
"""Calls without a limit, by file and method, and why each may be one."""

RAW = {
    ("locks.py", "Lock"): "what locks and bells are made of; they wait with a limit",
    ("first_use.py", "Lock"): "held while a process forks, and for the moment in which an import begins",
    ("pool.py", "Lock"): "taken without waiting: the first thread that takes it does or cancels the task",
    ("pool.py", "SimpleQueue"): "hands tasks to the threads of the pool",
    ("pool.py", "Thread"): "the threads of the pool",
    (
        "client/commit/leader_queue.py",
        "Lock",
    ): "taken without waiting: the first thread that takes it leads or withdraws",
    ("client/maintenance/maintenance_thread.py", "Thread"): "is joined with a limit",
    ("client/maintenance/heartbeat.py", "Thread"): "is joined with a limit",
    ("location/machine/socket_channel.py", "Thread"): "are joined with a limit",
    (
        "client/read/follow/commit_stream.py",
        "Thread",
    ): "runs a callback of the user, and ends with its stream; is never joined",
    ("columnar/kernels/take_rows.py", "Thread"): "see above",
    ("arrangement/arrangement.py", "Thread"): "is joined with a limit",
    ("views/follow/follow_thread.py", "Thread"): "is joined with a limit",
    (
        "client/maintenance/merge_process/serve_merges.py",
        "Thread",
    ): "reads the orders of the other process, and ends this one with it; is never joined",
    (
        "client/maintenance/merge_process/serve_merges.py",
        "SimpleQueue",
    ): "hands orders to the main thread, with a limit",
}
"""Uses of what the standard library has to wait for, by file and name, and why each may be one."""


def calls():
    """All calls of attributes in the library, with file and node. The simulator brings its own threads."""
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if not name.startswith("testing/"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    yield name, node


def test_no_call_waits_without_a_limit_but_for_a_reason():
    found = {
        (name, node.func.attr)
        for name, node in calls()
        if node.func.attr in WAITS and not node.args and not node.keywords
    }
    assert found == UNLIMITED.keys()


def test_no_lock_or_queue_of_the_standard_library_is_used_but_for_a_reason():
    modules = {"threading", "queue", "multiprocessing"}
    found = {
        (name, node.func.attr)
        for name, node in calls()
        if node.func.attr in PRIMITIVES and isinstance(node.func.value, ast.Name) and node.func.value.id in modules
    }
    assert found == RAW.keys()


def held(lock):
    """Start a thread that holds a lock until the returned event is set."""
    release = threading.Event()

    def hold():
        with lock:
            release.wait(60)

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    until(lambda: lock._queue)
    return release


def test_lock_has_a_limit_though_none_was_given(monkeypatch):
    monkeypatch.setattr(locks, "TICK_S", 0.0)
    lock = Lock("the lock")
    assert lock._limit_s == locks.LOCK_S
    lock._limit_s = 0.0  # as if that had passed
    release = held(lock)
    with pytest.raises(Determinate, match="the lock was busy"), lock:
        pass
    release.set()


def test_lock_that_is_taken_after_commits_does_not_say_that_nothing_happened():
    session = SharedSession(DEFAULT)
    session._learning._limit_s = 0.0
    release = held(session._learning)
    with pytest.raises(Indeterminate, match="may have happened"):
        session.remember_state(first_state("c", 1, b""))
    release.set()


def test_task_that_hangs_is_waited_for_until_the_limit(monkeypatch):
    release = threading.Event()
    threads = Pool(1, "test", "closed")
    task = threads.submit(release.wait, 60)
    with pytest.raises(Determinate, match="still at work after 0 s"):
        outcome(task, 0.0)
    monkeypatch.setattr(pool, "TASK_S", 0.0)
    with pytest.raises(TimeoutError):
        task.result()
    release.set()
    threads.shutdown()


def test_task_that_ended_while_the_process_was_suspended_past_the_limit_has_its_outcome(monkeypatch):
    future: Future[int] = Future()
    real = future.exception

    def suspended(timeout):
        monkeypatch.setattr(future, "exception", real)
        future.set_result(7)
        raise TimeoutError

    monkeypatch.setattr(future, "exception", suspended)
    assert outcome(future) == 7


def test_error_of_a_task_that_ran_out_of_time_itself_is_the_error():
    future = Future()
    future.set_exception(TimeoutError("of the task"))
    with pytest.raises(TimeoutError, match="of the task"):
        outcome(future)


def test_upload_that_hangs_fails_its_run_and_does_not_hold_up_its_end(monkeypatch):
    release = threading.Event()
    threads = Pool(1, "test", "closed")
    monkeypatch.setattr(pool.failure, "__defaults__", (0.0,))
    uploads = Uploads(4, threads, {}, time.monotonic)
    uploads.start(lambda: release.wait(60) and None)
    with pytest.raises(Determinate, match="still at work"):
        uploads.drain()
    uploads.cancel()
    release.set()
    threads.shutdown()


def test_cache_waits_for_the_load_of_another_thread_until_the_limit(monkeypatch):
    monkeypatch.setattr("timespine.columnar.parts.part_cache.LOCK_S", 0.0)
    cache = PartCache(100)
    release = threading.Event()
    thread = threading.Thread(target=lambda: cache.get_or_load("key", lambda: (release.wait(60), 1)), daemon=True)
    thread.start()
    until(lambda: cache._loads)
    with pytest.raises(Determinate, match="another thread has been loading"):
        cache.get_or_load("key", lambda: (1, 1))
    release.set()
    thread.join(60)

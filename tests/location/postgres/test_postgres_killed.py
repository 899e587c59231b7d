"""A PostgreSQL server that is killed in the middle of appends loses nothing acknowledged, and doubles nothing."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
from collections import Counter
from pathlib import Path

import pytest
from assertions import until
from servers.postgres_server import PostgresServer, run_postgres, start_postgres
from servers.shared_process import stop

import timespine as ts
from timespine.errors import Indeterminate, Unavailable, UsageError
from timespine.location.postgres.migration import migrate

THREADS, KILLS, APPENDS = 4, 3, 10


@pytest.fixture
def own_server():
    """A server of this test alone: a function that kills it, and starts it again on the same files."""
    folder = Path(tempfile.mkdtemp(prefix="timespine-killed-"))
    server = PostgresServer(start_postgres(folder))

    def killed(*settings):
        os.kill(server.pid, signal.SIGKILL)
        stop({"pid": server.pid, "folder": str(folder / "nothing")})
        # Sessions of the dead server end by themselves, and the new one waits for them.
        until(lambda: started_again(settings))

    def started_again(settings):
        try:
            server.pid = run_postgres(folder, server.port, *settings)["pid"]
        except RuntimeError:
            return False
        return True

    server.killed = killed
    yield server
    stop({"pid": server.pid, "folder": str(folder), "signal": "SIGQUIT"})
    shutil.rmtree(folder, ignore_errors=True)


def test_kill_of_the_server_loses_nothing_acknowledged_and_doubles_nothing(own_server, moto):
    database = own_server.make_database()
    migrate(own_server.conninfo(database))
    done, doubtful, refused = Counter(), Counter(), Counter()
    stopping = threading.Event()

    def append(collection, thread):
        number = 0
        while not stopping.is_set():
            row = thread * 1_000_000 + number
            number += 1
            try:
                collection.append([{"k": row}])
                done[row] += 1
            except Indeterminate:
                doubtful[row] += 1
            except Unavailable:
                refused[row] += 1

    with ts.open(moto.url(), consensus=own_server.conninfo(database), storage=moto.storage, maintenance=False) as store:
        made = store.create("c", key={"k": "int64"}, timeline="counter")
        threads = [threading.Thread(target=append, args=(made, number)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for _ in range(KILLS):
            before = len(done)
            until(lambda before=before: len(done) >= before + APPENDS)
            own_server.killed()
        before = len(done)
        until(lambda: len(done) >= before + APPENDS)
        stopping.set()
        for thread in threads:
            thread.join(120)
        rows = {row["k"]: row["_diff"] for row in made.snapshot(multiplicity="column").to_pylist()}
    assert set(rows.values()) == {1}
    assert set(done) <= set(rows)
    assert not set(refused) & set(rows)
    assert set(rows) <= set(done) | set(doubtful)


def test_a_server_that_does_not_sync_is_refused(own_server, moto):
    database = own_server.make_database()
    migrate(own_server.conninfo(database))
    own_server.killed("fsync=off")
    with pytest.raises(UsageError, match="fsync"):
        ts.open(moto.url(), consensus=own_server.conninfo(database), storage=moto.storage)

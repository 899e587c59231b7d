"""A PostgreSQL server that is killed in the middle of appends loses nothing acknowledged, and doubles nothing."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from assertions import until
from servers.killable import killable_postgres

import timespine as ts
from timespine.errors import Indeterminate, Unavailable, UsageError
from timespine.location.postgres.migration import migrate

THREADS, KILLS, APPENDS = 4, 3, 10


@pytest.fixture
def own_server():
    """A server of this test alone."""
    with killable_postgres() as server:
        yield server


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
            own_server.kill()
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
    own_server.kill("fsync=off")
    with pytest.raises(UsageError, match="fsync"):
        ts.open(moto.url(), consensus=own_server.conninfo(database), storage=moto.storage)

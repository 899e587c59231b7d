"""Logs in PostgreSQL behind pgbouncer in transaction mode, where the next statement may go to another session.

The tests need the program pgbouncer, which no package of PyPI has: apt-get install pgbouncer.
"""

from __future__ import annotations

import threading
import uuid
from pathlib import Path

import psycopg
import pytest
from assertions import until
from servers.pgbouncer import pgbouncer, program

import timespine as ts
from timespine.errors import UsageError
from timespine.location.consensus import Consensus, LogEntry, LogWrite
from timespine.location.postgres.postgres_consensus import PostgresConsensus
from timespine.testing.conformance import ConsensusConformance
from timespine.testing.conformance.consensus import fill

pytestmark = pytest.mark.skipif(program() is None, reason="there is no pgbouncer: apt-get install pgbouncer")

LEFT = """SELECT (SELECT count(*) FROM pg_prepared_statements), (SELECT count(*) FROM pg_listening_channels()),
    (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),
    current_setting('idle_session_timeout'), current_setting('statement_timeout')"""


@pytest.fixture(scope="module")
def pooler(postgres):
    """The port of a pooler that all tests of this file share."""
    with pgbouncer(postgres.port) as port:
        yield port


class TestBehindAPooler(ConsensusConformance):
    @pytest.fixture(autouse=True)
    def _server(self, make_log, pooler):
        self.make_log, self.pooler, self.stores = make_log, pooler, {}

    def make(self, tmp_path: Path) -> Consensus:
        self.stores[tmp_path] = str(uuid.uuid4())
        return self.make_log(self.stores[tmp_path], self.pooler)

    def reopen(self, tmp_path: Path) -> Consensus | None:
        return self.make_log(self.stores[tmp_path], self.pooler)

    def make_pair(self, tmp_path: Path) -> tuple[Consensus, Consensus]:
        """One behind the pooler, and one beside it: they see the same logs."""
        store = str(uuid.uuid4())
        return self.make_log(store, self.pooler), self.make_log(store)


def test_processes_that_share_sessions_leave_nothing_in_them(make_log, pooler, postgres, database):
    store = str(uuid.uuid4())
    logs = [make_log(store, pooler) for _ in range(4)]
    fill(logs[0], "a", 1)
    for log in logs:
        log.listen(lambda: None)

    def write(log):
        for _ in range(10):
            head = log.head("a").seqno
            while (lost := log.compare_and_set([LogWrite("a", head, b"x")])) is not None:
                head = lost["a"]

    threads = [threading.Thread(target=write, args=(log,)) for log in logs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(logs[0].scan("a")) == 41
    for _ in range(3):
        assert logs[0].compare_and_set([LogWrite("a", None, b"late")]) == {"a": 40}  # no ticket is taken
    sessions = [psycopg.connect(postgres.conninfo(database, port=pooler)) for _ in range(2)]
    try:  # each has begun a transaction, so each has one of the two sessions of the pooler
        found = {session.execute(LEFT + ", pg_backend_pid()", prepare=False).fetchone() for session in sessions}
    finally:
        for session in sessions:
            session.close()
    assert len(found) == 2
    assert {row[:-1] for row in found} == {(0, 0, 0, "0", "0")}


def test_a_commit_behind_a_pooler_wakes_a_reader_beside_it(make_log, pooler):
    store = str(uuid.uuid4())
    behind, beside = make_log(store, pooler), make_log(store)
    rung = []
    beside.listen(lambda: rung.append(1))
    until(lambda: rung)  # it listens
    before = len(rung)
    assert behind.compare_and_set([LogWrite("a", None, b"x")]) is None
    until(lambda: len(rung) > before)


def test_a_store_behind_a_pooler_is_the_store_beside_it(moto, postgres, database, pooler):
    url = moto.url()
    where = {"storage": moto.storage, "maintenance": False}
    with (
        ts.open(url, consensus=postgres.conninfo(database, port=pooler), **where) as behind,
        ts.open(url, consensus=postgres.conninfo(database), **where) as beside,
    ):
        made = behind.create("c", key={"k": "int64"}, value={"v": "int64"}, timeline="counter")
        for number in range(5):
            made.upsert([{"k": 1, "v": number}])
            beside["c"].upsert([{"k": 2, "v": number}])
        behind.maintain()
        assert beside["c"].snapshot(as_of=9, timeout=60).to_pylist() == [{"k": 1, "v": 4}, {"k": 2, "v": 4}]


def test_a_pooler_that_refuses_settings_is_named(make_log, postgres, database):
    store = str(uuid.uuid4())
    make_log(store)
    with (
        pgbouncer(postgres.port, ignored="extra_float_digits") as port,
        pytest.raises(UsageError, match="ignore_startup_parameters"),
    ):
        PostgresConsensus(postgres.conninfo(database, port=port), store)


def test_a_log_that_is_read_through_the_pooler_is_the_log(make_log, pooler):
    store = str(uuid.uuid4())
    fill(make_log(store), "a", 3)
    assert make_log(store, pooler).scan("a", 1) == [LogEntry(1, b"1"), LogEntry(2, b"2")]

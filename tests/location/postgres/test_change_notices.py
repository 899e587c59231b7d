"""Processes that wait are woken by commits of others, which pay for few notices."""

from __future__ import annotations

import threading

import psycopg
import pytest
from assertions import until

import timespine as ts
from timespine.location.consensus import LogWrite
from timespine.location.postgres.change_notices import ChangeNotices
from timespine.location.postgres.connections import LimitedConnection


@pytest.fixture
def stores(moto, postgres, database):
    """Two stores for one location, as two processes have them."""
    where = {"storage": moto.storage, "maintenance": False}
    url = moto.url()
    with (
        ts.open(url, consensus=postgres.conninfo(database), **where) as first,
        ts.open(url, consensus=postgres.conninfo(database), **where) as second,
    ):
        yield first, second


def test_a_reader_that_waits_is_woken_by_a_commit_of_another_process(stores, monkeypatch):
    # Without a notice a reader would look again after an hour.
    monkeypatch.setattr("timespine.client.read.follow.commit_signal.POLL_MIN_S", 3600.0)
    first, second = stores
    second._context.look_s = 3600.0
    made = first.create("c", key={"k": "int64"}, timeline="counter")
    found = []

    def read():
        found.append(second["c"].snapshot(as_of=0, timeout=3000).to_pylist())

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    until(lambda: second._driver.consensus._notices._is_heard)
    made.append([{"k": 1}])
    reader.join(60)
    assert found == [[{"k": 1}]]


def test_many_commits_send_few_notices(make_log, monkeypatch):
    log = make_log()
    sent = []
    execute = LimitedConnection.execute

    def counted(self, statement, *args, **options):
        if log._channel in repr(statement):
            sent.append(statement)
        return execute(self, statement, *args, **options)

    monkeypatch.setattr(LimitedConnection, "execute", counted)
    later = threading.Event()
    log._notices._monotonic = lambda: 0.0  # no time passes
    log._notices._sleep = lambda _: later.wait(60)
    for seqno in range(20):
        log.compare_and_set([LogWrite("a", seqno - 1 if seqno else None, b"x")])
    later.set()
    until(lambda: sent and not log._notices._is_pending)
    assert len(sent) in (1, 2)


def test_a_commit_itself_sends_no_notice(make_log, postgres, database, monkeypatch):
    """It would take a lock of the whole server at its commit. The notices come in the order of their commits."""
    monkeypatch.setattr(ChangeNotices, "announce", lambda *args: None)
    log = make_log()
    with psycopg.connect(postgres.conninfo(database), autocommit=True) as session:
        session.execute(f"LISTEN {log._channel}")
        log.compare_and_set([LogWrite("a", None, b"x"), LogWrite("b", None, b"x")])
        log.compare_and_set([LogWrite("a", 0, b"y")])
        log.truncate("a", 1)
        log.forget("b", 0)
        log.fence()
        session.execute("SELECT pg_notify(%s, 'after all of them')", (log._channel,))
        (found,) = session.notifies(timeout=60, stop_after=1)
    assert found.payload == "after all of them"


def test_a_listener_that_lost_its_connection_listens_again(make_log, postgres, database):
    log = make_log()
    log._notices._sleep = lambda _: None
    rung = []
    log.listen(lambda: rung.append(1))
    until(lambda: rung)
    listening = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND query LIKE 'LISTEN%%'"
    before = len(rung)  # SUBTLE: before the session ends; the next one may listen at once
    until(lambda: postgres.execute(database, listening, database))
    until(lambda: len(rung) > before)
    log.close()

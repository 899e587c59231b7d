"""Processes that keep losing to each other take turns by tickets, which decide nothing and never hold up a process."""

from __future__ import annotations

import threading
import uuid

import psycopg
import pytest
from assertions import until

from timespine.location.consensus import LogEntry, LogWrite
from timespine.location.postgres import tickets
from timespine.location.postgres.connections import LimitedConnection
from timespine.testing.conformance.consensus import fill

HELD = "SELECT granted FROM pg_locks WHERE locktype = 'advisory' AND classid = %s ORDER BY granted"


@pytest.fixture
def pair(make_log, monkeypatch):
    """Two adapters of one store, with a log that has one entry. Nothing but a commit ends a ticket."""
    monkeypatch.setattr(tickets, "HOLD_MS", 600_000)
    monkeypatch.setattr(tickets, "WAIT_MS", 600_000)
    store = str(uuid.uuid4())
    one, two = make_log(store), make_log(store)
    fill(one, "a", 1)
    return one, two


@pytest.fixture
def held(postgres, database):
    """Tell which tickets of an adapter's store are waited for (False) and held (True)."""
    return lambda log: [granted for (granted,) in postgres.execute(database, HELD, log._store)]


def lose(log, times, key="a"):
    for _ in range(times):
        assert log.compare_and_set([LogWrite(key, None, b"late")]) is not None


def test_a_ticket_is_taken_after_two_losses_and_given_back_by_the_commit(pair, held):
    one, _ = pair
    lose(one, 1)
    assert held(one) == []
    lose(one, 1)
    assert held(one) == [True]
    assert one.compare_and_set([LogWrite("a", 0, b"mine")]) is None
    assert held(one) == []


def test_a_log_without_contention_costs_one_statement_for_each_commit(pair, monkeypatch):
    one, _ = pair
    seen = []
    execute = LimitedConnection.execute
    monkeypatch.setattr(LimitedConnection, "execute", lambda *a, **k: seen.append(a[1]) or execute(*a, **k))
    one._notices.announce = lambda channel: None
    lose(one, 1)
    for head in range(3):
        one.compare_and_set([LogWrite("a", head, b"x")])
    seen = [each for each in seen if b"pg_backend_pid" not in each]  # of a connection that is made first
    assert len(seen) == 4
    assert all(b"compare_and_set" in each for each in seen)


def test_the_loser_waits_until_the_one_with_the_ticket_has_committed(pair, held):
    one, two = pair
    lose(one, 2)
    reported = []

    def try_beside():
        lose(two, 2)
        reported.append(two.head("a"))

    thread = threading.Thread(target=try_beside)
    thread.start()
    until(lambda: held(one) == [False, True])
    assert not reported
    assert one.compare_and_set([LogWrite("a", 0, b"one")]) is None
    thread.join(60)
    assert reported == [LogEntry(1, b"one")]  # what it judges next is what the other one committed
    assert two.compare_and_set([LogWrite("a", 1, b"two")]) is None
    assert held(one) == []


def test_a_ticket_of_one_log_holds_up_no_other_log(pair, held):
    one, two = pair
    fill(one, "b", 1)
    lose(one, 2)
    lose(two, 2, "b")
    assert held(one) == [True, True]


def test_no_process_waits_longer_than_the_limit(pair, held, monkeypatch, make_log):
    one, _ = pair
    lose(one, 2)
    monkeypatch.setattr(tickets, "WAIT_MS", 1)
    other = make_log(store_of(one))
    lose(other, 3)
    assert other.compare_and_set([LogWrite("a", 0, b"without a ticket")]) is None
    assert held(one) == [True]
    lose(one, 1)
    assert one.compare_and_set([LogWrite("a", 1, b"later")]) is None


def test_the_server_takes_a_ticket_back_from_a_process_that_is_silent(make_log, held, monkeypatch):
    monkeypatch.setattr(tickets, "HOLD_MS", 50)
    log = make_log()
    fill(log, "a", 1)
    lose(log, 2)
    until(lambda: held(log) == [])
    assert log.compare_and_set([LogWrite("a", 0, b"mine")]) is None
    lose(log, 2)
    until(lambda: held(log) == [])


def test_a_ticket_that_cannot_be_had_changes_no_answer(pair, monkeypatch, held):
    one, _ = pair

    connect = LimitedConnection.connect

    def refuse(*args, **options):
        if f"lock_timeout={tickets.WAIT_MS}ms" in options["options"]:
            raise psycopg.OperationalError("too many connections")
        return connect(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(LimitedConnection, "connect", refuse)
        lose(one, 3)
    assert one.compare_and_set([LogWrite("a", 0, b"mine")]) is None
    monkeypatch.setattr(tickets, "VERSION_MIN", 10**9)
    lose(one, 3)
    assert held(one) == []


def test_processes_that_lost_commit_one_after_the_other_and_lose_no_more(pair, make_log):
    """Each reads, thinks and writes while the others wait for the ticket, so that what it read is still true."""
    writers = [*pair, *(make_log(store_of(pair[0])) for _ in range(2))]
    refused = []

    def write(log):
        for _ in range(5):
            lose(log, 2)
            head = log.head("a").seqno
            refused.append(log.compare_and_set([LogWrite("a", head, b"x")]))

    threads = [threading.Thread(target=write, args=(each,)) for each in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert refused == [None] * 20
    assert len(pair[0].scan("a")) == 21


def store_of(log):
    """The id of the store of an adapter."""
    return log._roles._store

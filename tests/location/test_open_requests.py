"""What it costs to open a store: real requests, counted, and the same that `python -m bench.places` counts."""

from __future__ import annotations

import threading
from collections import Counter

import obstore
import pytest

import timespine as ts
from timespine.location.postgres.connections import LimitedConnection
from timespine.location.postgres.migration import migrate
from timespine.testing.latency import OPEN_STATEMENTS, SlowPlace

WRITING, READING = {"maintenance": False}, {"read_only": True}


def of_the_bench(options, **place):
    """The requests of an opening of a store that exists, and their virtual time."""
    made = SlowPlace(**place)
    made.open().close()
    made.measured()
    with made.open(read_only="read_only" in options):
        ms, blobs, logs = made.measured()
    return Counter(blobs), Counter(logs), ms


@pytest.mark.parametrize(
    ("options", "requests", "ms"), [(WRITING, {"GET": 2, "PUT": 2}, 35), (READING, {"GET": 1}, 15)]
)
def test_a_bucket_alone(options, requests, ms, moto, proxy):
    url = moto.url()
    ts.open(url, storage=moto.storage, maintenance=False).close()
    with ts.open(url, storage=moto.via(proxy.endpoint), **options):
        seen = list(proxy.seen)
    assert (Counter(seen), seen[0]) == (requests, "GET")
    blobs, logs, virtual_ms = of_the_bench(options, is_bucket=True)
    assert ({kind.upper(): count for kind, count in (blobs + logs).items()}, virtual_ms) == (requests, ms)


@pytest.mark.parametrize(("options", "requests"), [(WRITING, {"GET": 1, "PUT": 2}), (READING, {"GET": 1})])
def test_a_bucket_with_postgresql(options, requests, moto, proxy, postgres, monkeypatch):
    database, url, statements = postgres.make_database(), moto.url(), []
    migrate(postgres.conninfo(database))
    ts.open(url, storage=moto.storage, consensus=postgres.conninfo(database), maintenance=False).close()
    execute = LimitedConnection.execute

    def counted(self, statement, *args, **rest):
        statements.append(statement)
        return execute(self, statement, *args, **rest)

    monkeypatch.setattr(LimitedConnection, "execute", counted)
    with ts.open(url, storage=moto.via(proxy.endpoint), consensus=postgres.conninfo(database), **options):
        assert (Counter(proxy.seen), len(statements)) == (requests, OPEN_STATEMENTS)
    blobs, logs, _ = of_the_bench(options)
    assert {kind.upper(): count for kind, count in blobs.items()} == requests
    assert logs == {"open": OPEN_STATEMENTS}


def test_both_conditions_are_checked_at_once(moto, monkeypatch):
    url, together, put = moto.url(), threading.Barrier(2), obstore.put
    ts.open(url, storage=moto.storage, maintenance=False).close()

    def waiting(*args, **options):
        together.wait(60)  # the other probe is under way too
        return put(*args, **options)

    monkeypatch.setattr(obstore, "put", waiting)
    ts.open(url, storage=moto.storage, maintenance=False).close()
    assert not together.broken

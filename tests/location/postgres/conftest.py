"""Databases with the tables of the logs, and adapters for new stores in them."""

from __future__ import annotations

import contextlib
import uuid

import pytest

from timespine.location.postgres.migration import migrate
from timespine.location.postgres.postgres_consensus import PostgresConsensus, register_store


@pytest.fixture(scope="session")
def database(postgres):
    """The name of a database that tests of this process share, each with stores of its own."""
    name = postgres.make_database()
    migrate(postgres.conninfo(name))
    return name


@pytest.fixture
def make_log(postgres, database):
    """Make adapters; without a store, for a new one. They are closed at the end."""
    with contextlib.ExitStack() as opened:

        def made(store=None, port=None, **options):
            store = store or str(uuid.uuid4())
            register_store(postgres.conninfo(database), store)
            adapter = PostgresConsensus(postgres.conninfo(database, port=port), store, **options)
            opened.callback(adapter.close)
            return adapter

        yield made

"""What a failed statement says about the logs, by its SQLSTATE, and how statements travel."""

from __future__ import annotations

import uuid

import pytest
from servers.fault_proxy import StreamFaults

from timespine.errors import Determinate, Indeterminate, StoreFenced, TimespineError, UsageError
from timespine.location.consensus import LogEntry, LogWrite
from timespine.location.postgres.connections import LimitedConnection
from timespine.location.postgres.migration import migrate
from timespine.location.postgres.postgres_consensus import CONFLICT_ATTEMPTS, PostgresConsensus, register_store

ROLLED_BACK = ["40001", "40P01", "55P03", "57014", "53000", "53100", "53200", "53300", "53400", "25006"]
IN_DOUBT = ["08000", "08003", "08006", "08007", "57P01", "57P02", "58000", "58030", "XX000", "XX001", "40003", "22000"]
REPEATED = ("40001", "40P01")

STATES: list[tuple[str, type[TimespineError]]] = [
    *((state, Determinate) for state in ROLLED_BACK),
    *((state, Indeterminate) for state in IN_DOUBT),
    ("42501", UsageError),
    ("42P01", UsageError),
    ("42883", UsageError),
    ("3F000", UsageError),
    ("TS001", StoreFenced),
    ("TS002", UsageError),
]


@pytest.fixture(scope="module")
def failing(postgres):
    """A log in a database of its own, whose changes fail with the SQLSTATE that the test sets, once counted."""
    database, store = postgres.make_database(), str(uuid.uuid4())
    migrate(postgres.conninfo(database))
    register_store(postgres.conninfo(database), store)
    log = PostgresConsensus(postgres.conninfo(database), store)
    log.compare_and_set([LogWrite("a", None, b"0")])
    postgres.execute(database, "CREATE SEQUENCE timespine.tries")
    postgres.execute(database, "GRANT ALL ON SEQUENCE timespine.tries TO PUBLIC")

    def fail_with(state):
        postgres.execute(database, "ALTER SEQUENCE timespine.tries RESTART")
        postgres.execute(
            database,
            f"""CREATE OR REPLACE FUNCTION timespine.begin_change(of_store int, in_epoch bigint, alone boolean)
            RETURNS void LANGUAGE plpgsql AS $$ BEGIN
                PERFORM nextval('timespine.tries');
                RAISE EXCEPTION 'it fails' USING ERRCODE = '{state}';
            END $$""",
        )

    def tries():
        return postgres.execute(database, "SELECT last_value FROM timespine.tries")[0][0]

    yield log, fail_with, tries
    log.close()


@pytest.mark.parametrize(("state", "kind"), STATES)
def test_a_change_that_the_server_refuses_is_what_its_sqlstate_says(state, kind, failing):
    log, fail_with, tries = failing
    fail_with(state)
    for call in (lambda: log.compare_and_set([LogWrite("a", 0, b"1")]), lambda: log.truncate("a", 0)):
        with pytest.raises(kind) as found:
            call()
        assert isinstance(found.value, kind)
    assert tries() == 2 * (CONFLICT_ATTEMPTS if state in REPEATED else 1)
    assert log.scan("a") == [LogEntry(0, b"0")]


def test_entries_travel_as_bytes_in_both_directions(make_log, postgres, monkeypatch):
    """As text they would take twice the room, and be decoded on both sides."""
    data, sent, formats = bytes(range(256)), [], []
    proxy = StreamFaults(postgres.port)
    log = make_log(port=proxy.port)
    execute = LimitedConnection.execute

    def recorded(self, *args, **options):
        cursor = execute(self, *args, **options)
        if cursor.pgresult is not None:
            formats.extend(cursor.pgresult.fformat(column) for column in range(cursor.pgresult.nfields))
        return cursor

    proxy.mode, proxy.when = "drop request", lambda packet: sent.append(packet)  # all of them pass
    monkeypatch.setattr(LimitedConnection, "execute", recorded)
    log.compare_and_set([LogWrite("a", None, data)])
    assert log.scan("a") == [LogEntry(0, data)]
    assert log.heads(["a"]) == {"a": 0}
    packets = b"".join(sent)
    assert data in packets
    assert data.hex().encode() not in packets
    assert set(formats) == {1}
    proxy.close()

"""Logs in PostgreSQL: who may do what, which database belongs to which store, and what the adapter notices."""

from __future__ import annotations

import threading
import uuid

import psycopg
import pytest
from assertions import until
from psycopg import sql

from timespine.errors import (
    CorruptionError,
    Determinate,
    Fenced,
    Indeterminate,
    ReadOnlyStore,
    StoreClosed,
    UsageError,
    VersionError,
)
from timespine.location.consensus import LogEntry, LogWrite
from timespine.location.postgres import migration
from timespine.location.postgres.change_notices import ChangeNotices
from timespine.location.postgres.connections import LimitedConnection
from timespine.location.postgres.migration import migrate, migration_sql
from timespine.location.postgres.postgres_consensus import PostgresConsensus, register_store
from timespine.location.postgres.schema import VERSION
from timespine.testing.conformance.consensus import fill

SESSIONS = "FROM pg_stat_activity WHERE application_name = 'timespine' AND datname = %s"


@pytest.fixture
def own(postgres):
    """A database of this test alone, with tables: a function that runs a statement in it."""
    name = postgres.make_database()
    migrate(postgres.conninfo(name))

    def execute(statement, *params):
        return postgres.execute(name, statement, *params)

    execute.name, execute.conninfo = name, postgres.conninfo(name)
    return execute


@pytest.fixture
def log(own):
    store = str(uuid.uuid4())
    register_store(own.conninfo, store)
    adapter = PostgresConsensus(own.conninfo, store)
    adapter.name = store
    yield adapter
    adapter.close()


def test_a_compare_and_set_is_one_statement_for_any_number_of_keys(log, monkeypatch):
    calls = []
    execute = LimitedConnection.execute
    monkeypatch.setattr(LimitedConnection, "execute", lambda *a, **k: calls.append(a[1]) or execute(*a, **k))
    monkeypatch.setattr(ChangeNotices, "announce", lambda *args: None)  # it comes later, and beside the commit
    log.compare_and_set([LogWrite(f"k{number}", None, b"x") for number in range(100)])
    log.compare_and_set([LogWrite("k1", 0, b"x")])
    log.scan("k1")
    assert log.heads([f"k{number}" for number in range(101)]) == {
        **{f"k{n}": 0 for n in range(100)},
        "k1": 1,
        "k100": None,
    }
    assert len(calls) == 4


@pytest.mark.parametrize("isolation", ["serializable", "repeatable read"])
def test_the_adapter_sets_its_own_isolation(isolation, own, log):
    own(sql.SQL("ALTER DATABASE {} SET default_transaction_isolation = {}").format(
        sql.Identifier(own.name), sql.Literal(isolation)))  # fmt: skip
    fill(log, "a", 1)
    writers = [PostgresConsensus(own.conninfo, log.name) for _ in range(4)]

    def write(writer):
        for _ in range(10):
            head = writer.head("a").seqno
            while (lost := writer.compare_and_set([LogWrite("a", head, b"x")])) is not None:
                head = lost["a"]
        writer.close()

    threads = [threading.Thread(target=write, args=(writer,)) for writer in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(log.scan("a")) == 41


def without_settings(monkeypatch):
    """Make connections as a pooler makes them: without the settings of the adapter."""
    connect = LimitedConnection.connect
    monkeypatch.setattr(LimitedConnection, "connect", lambda *a, options, **k: connect(*a, **k))


def test_commits_are_durable_where_a_pooler_drops_settings(own, log):
    own(sql.SQL("ALTER DATABASE {} SET synchronous_commit = off").format(sql.Identifier(own.name)))
    arguments = (log._store, ["a"], [None], [b"x"], [0])
    call = "SELECT * FROM timespine.compare_and_set(%s, 0, %s, %s::bigint[], %s, %s)"
    settings = "SELECT current_setting('synchronous_commit'), current_setting('lock_timeout')"
    with psycopg.connect(own.conninfo) as connection:
        assert connection.execute(settings).fetchone() == ("off", "0")
        for change, more in (
            (call, arguments),
            ("SELECT timespine.truncate_log(%s, 0, 'a', 0)", arguments[:1]),
            ("SELECT timespine.forget_log(%s, 0, 'a', 0)", arguments[:1]),
            ("SELECT timespine.fence_store(%s, 0)", arguments[:1]),
        ):
            connection.execute(change, more)
            assert connection.execute(settings).fetchone() == ("on", "10s")
            connection.commit()
            assert connection.execute(settings).fetchone() == ("off", "0")
        connection.execute("SELECT timespine.register_store(%s)", (uuid.uuid4(),))
        assert connection.execute(settings).fetchone() == ("on", "0")


@pytest.mark.parametrize("isolation", ["serializable", "repeatable read"])
def test_another_isolation_than_the_logs_need_is_refused_and_changes_nothing(isolation, own, log, monkeypatch):
    fill(log, "a", 2)
    own(sql.SQL("ALTER DATABASE {} SET default_transaction_isolation = {}").format(
        sql.Identifier(own.name), sql.Literal(isolation)))  # fmt: skip
    without_settings(monkeypatch)
    other = PostgresConsensus(own.conninfo, log.name)
    for call in (
        lambda: other.compare_and_set([LogWrite("a", 1, b"x")]),
        lambda: other.truncate("a", 1),
        lambda: other.forget("a", 1),
        other.fence,
    ):
        with pytest.raises(UsageError, match="read committed"):
            call()
    assert other.scan("a") == [LogEntry(0, b"0"), LogEntry(1, b"1")]
    other.close()


def test_roles_can_do_what_they_need_and_nothing_else(postgres, own, log):
    fill(log, "a", 3)
    suffix = uuid.uuid4().hex[:8]
    writer, reader, stranger = (f"{name}_{suffix}" for name in ("writer", "reader", "stranger"))
    for role in (writer, reader, stranger):
        own(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(role)))
    migrate(own.conninfo, writers=[writer], readers=[reader])

    def at(role):
        return postgres.conninfo(own.name, user=role)

    made = PostgresConsensus(at(writer), log.name)
    made.compare_and_set([LogWrite("a", 2, b"more"), LogWrite("b", None, b"")])
    assert made.truncate("a", 2) == 2
    register_store(at(writer), str(uuid.uuid4()))
    made.close()
    read = PostgresConsensus(at(reader), log.name, read_only=True)
    assert read.head("a") == LogEntry(3, b"more")
    assert (read.list_keys(), len(read.scan("a"))) == (["a", "b"], 2)
    with pytest.raises(ReadOnlyStore):
        read.compare_and_set([LogWrite("a", 3, b"x")])
    read.close()
    write = PostgresConsensus(at(reader), log.name)
    with pytest.raises(UsageError, match="--writer"):
        write.compare_and_set([LogWrite("a", 3, b"x")])
    with pytest.raises(UsageError, match="--writer"):
        write.truncate("a", 3)
    write.close()
    with pytest.raises(UsageError, match="migrate"):
        PostgresConsensus(at(stranger), log.name)
    for role in (writer, reader, stranger):
        for statement in (
            "UPDATE timespine.entries SET data = ''",
            "DELETE FROM timespine.entries",
            "INSERT INTO timespine.entries VALUES (1, 'a', 9, 0, '')",
            "UPDATE timespine.logs SET head = 0",
            "UPDATE timespine.stores SET epoch = 1",
            "DROP TABLE timespine.entries",
            "CREATE TABLE timespine.more ()",
        ):
            with psycopg.connect(at(role)) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)
    assert [entry.seqno for entry in log.scan("a")] == [2, 3]


def test_a_migration_can_be_repeated_raced_and_read_beforehand(postgres):
    name = postgres.make_database()
    found = []
    threads = [threading.Thread(target=lambda: found.append(migrate(postgres.conninfo(name)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(found) == [(0, VERSION), *[(VERSION, VERSION)] * 3]
    other = postgres.make_database()
    postgres.execute(other, migration_sql())
    tables = (
        "SELECT table_name, column_name, data_type FROM information_schema.columns WHERE table_schema = 'timespine'"
    )
    assert sorted(postgres.execute(other, tables)) == sorted(postgres.execute(name, tables))
    assert migrate(postgres.conninfo(other)) == (VERSION, VERSION)
    with pytest.raises(UsageError, match="create the role first"):
        migrate(postgres.conninfo(other), readers=['no "such" role'])
    postgres.execute(other, "UPDATE timespine.format SET version = %s", VERSION + 1)
    newer = postgres.conninfo(other)
    for call in (lambda: migrate(newer), lambda: register_store(newer, str(uuid.uuid4()))):
        with pytest.raises(VersionError, match=str(VERSION + 1)):
            call()


def test_a_migration_brings_tables_of_an_older_version_to_the_newest(own, log, monkeypatch):
    fill(log, "a", 2)
    later = {**migration.MIGRATIONS, VERSION + 1: "ALTER TABLE timespine.stores ADD COLUMN more int DEFAULT 7;"}
    monkeypatch.setattr(migration, "MIGRATIONS", later)
    monkeypatch.setattr(migration, "VERSION", VERSION + 1)
    assert "CREATE SCHEMA" not in migration_sql(VERSION)
    assert migrate(own.conninfo) == (VERSION, VERSION + 1)
    assert migrate(own.conninfo) == (VERSION + 1, VERSION + 1)
    assert own("SELECT version, more FROM timespine.format, timespine.stores") == [(VERSION + 1, 7)]
    assert log.scan("a") == [LogEntry(0, b"0"), LogEntry(1, b"1")]


def test_a_database_without_tables_or_without_the_store_is_refused(postgres, own):
    empty = postgres.make_database()
    with pytest.raises(UsageError, match="timespine migrate"):
        register_store(postgres.conninfo(empty), str(uuid.uuid4()))
    with pytest.raises(UsageError, match="does not have the logs"):
        PostgresConsensus(own.conninfo, str(uuid.uuid4()))
    with pytest.raises(Determinate, match="no connection"):
        PostgresConsensus("postgresql://owner@127.0.0.1:1/x", str(uuid.uuid4()))


def test_a_raised_epoch_fences_who_opened_before_it(own, log):
    fill(log, "a", 1)
    own("UPDATE timespine.stores SET epoch = 1")
    for call in (lambda: log.compare_and_set([LogWrite("a", 0, b"late")]), lambda: log.truncate("a", 1)):
        with pytest.raises(Fenced, match="epoch"):
            call()
    with pytest.raises(UsageError, match="epoch"):
        PostgresConsensus(own.conninfo, log.name, 0)
    again = PostgresConsensus(own.conninfo, log.name, 1)
    assert again.scan("a") == [LogEntry(0, b"0")]
    again.close()


def test_a_log_that_goes_back_is_found_by_every_call(own, log):
    fill(log, "a", 3)
    own("DELETE FROM timespine.entries WHERE seqno = 2")
    own("UPDATE timespine.logs SET head = 1")
    for call in (
        lambda: log.head("a"),
        lambda: log.scan("a"),
        lambda: log.scan("a", 2),
        lambda: log.heads(["a", "b"]),
        lambda: log.compare_and_set([LogWrite("a", 2, b"x")]),
    ):
        with pytest.raises(CorruptionError, match="went back"):
            call()
    own("DELETE FROM timespine.logs")
    with pytest.raises(CorruptionError, match="went back"):
        log.scan("a")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ("UPDATE timespine.entries SET data = 'x' WHERE seqno = 1", "not what was written"),
        ("UPDATE timespine.entries SET checksum = 0 WHERE seqno = 1", "not what was written"),
        ("DELETE FROM timespine.entries WHERE seqno = 1", "gaps"),
        ("DELETE FROM timespine.entries WHERE seqno = 2", "gaps"),
        ("DELETE FROM timespine.entries WHERE seqno = 0", "gaps"),
        ("UPDATE timespine.entries SET key = 'b' WHERE seqno = 1", "gaps"),
    ],
)
def test_a_damaged_log_is_corrupt(damage, says, own, log):
    fill(log, "a", 3)
    own(damage)
    with pytest.raises(CorruptionError, match=says):
        log.scan("a")


def test_a_session_that_the_server_ends_is_replaced(own, log):
    log._notices.announce = lambda channel: None  # it would find the lost session first
    fill(log, "a", 2)
    ended = f"SELECT pg_terminate_backend(pid) {SESSIONS}"
    own(ended, own.name)
    assert log.head("a") == LogEntry(1, b"1")  # a read is repeated
    own(ended, own.name)
    with pytest.raises(Indeterminate):
        log.compare_and_set([LogWrite("a", 1, b"mine")])
    assert log.compare_and_set([LogWrite("a", 1, b"mine")]) is None


def test_a_session_that_is_ended_while_it_waits_is_in_doubt(own, log):
    fill(log, "a", 2)
    with psycopg.connect(own.conninfo) as holder:
        holder.execute("SELECT * FROM timespine.logs FOR UPDATE")
        found = []

        def write():
            try:
                log.compare_and_set([LogWrite("a", 1, b"mine")])
            except Indeterminate as error:
                found.append(error)

        thread = threading.Thread(target=write)
        thread.start()
        waiting = f"SELECT pg_terminate_backend(pid) {SESSIONS} AND wait_event_type = 'Lock'"
        until(lambda: own(waiting, own.name))
        thread.join(60)
    assert len(found) == 1
    assert len(log.scan("a")) == 2


def test_a_warning_about_a_commit_leaves_it_in_doubt(own, log):
    own("""CREATE FUNCTION warn() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE WARNING 'not replicated'; RETURN NULL; END $$""")
    own("CREATE TRIGGER warns AFTER INSERT ON timespine.entries EXECUTE FUNCTION warn()")
    with pytest.raises(Indeterminate, match="standby"):
        log.compare_and_set([LogWrite("a", None, b"1")])
    assert log.head("a") == LogEntry(0, b"1")


def test_more_threads_than_connections_wait_for_their_turn(own, log):
    def write(number):
        for seqno in range(5):
            assert log.compare_and_set([LogWrite(f"k{number}", seqno - 1 if seqno else None, b"x")]) is None

    threads = [threading.Thread(target=write, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    sessions = own(f"SELECT count(*) {SESSIONS}", own.name)
    for thread in threads:
        thread.join(60)
    assert sessions[0][0] <= 8
    assert {len(log.scan(f"k{number}")) for number in range(24)} == {5}


def test_closing_while_other_threads_commit_ends_their_calls_and_no_process(make_log):
    for _ in range(5):
        log = make_log()
        ended = []

        def write(number, log=log, ended=ended):
            seqno = 0
            try:
                while True:
                    log.compare_and_set([LogWrite(f"k{number}", seqno - 1 if seqno else None, b"x" * 100_000)])
                    seqno += 1
            except StoreClosed:
                ended.append(number)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        until(lambda log=log: len(log.list_keys()) == 4)
        log.close()
        for thread in threads:
            thread.join(60)
        assert sorted(ended) == [0, 1, 2, 3]

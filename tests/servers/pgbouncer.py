"""A pooler before the PostgreSQL server of the tests, if the system has one: pgbouncer in transaction mode."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from servers.postgres_server import OWNER, as_user
from servers.shared_process import clean_environment, free_port, stop, wait_until

SETTINGS = """\
[databases]
* = host=127.0.0.1 port={server}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = {sessions}
ignore_startup_parameters = {ignored}
"""


def program() -> str | None:
    """The path of pgbouncer; None if the system has none. Debian keeps it beside the programs of root."""
    return shutil.which("pgbouncer", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))


@contextlib.contextmanager
def pgbouncer(server: int, *, sessions: int = 2, ignored: str = "options") -> Iterator[int]:
    """Start a pooler with few sessions, so that clients share them; give its port."""
    folder, port = Path(tempfile.mkdtemp(prefix="timespine-pgbouncer-")), free_port()
    (folder / "users").write_text(f'"{OWNER}" ""\n')
    settings = SETTINGS.format(server=server, port=port, folder=folder, sessions=sessions, ignored=ignored)
    (folder / "pgbouncer.ini").write_text(settings)
    folder.chmod(0o755)
    with (folder / "log").open("ab") as output:
        process = subprocess.Popen(
            [str(program()), str(folder / "pgbouncer.ini")],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd="/",
            env=clean_environment(),
            **as_user(folder),
        )
    try:
        wait_until(lambda: socket.create_connection(("127.0.0.1", port), 1).close() or True, process, folder / "log")
        yield port
    finally:
        stop({"pid": process.pid, "folder": str(folder)})

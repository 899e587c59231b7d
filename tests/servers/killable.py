"""Servers of one test alone, which it kills with -9 and starts again on the same files and ports."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from assertions import until
from servers.object_servers import ObjectServer, run_seaweed
from servers.postgres_server import PostgresServer, run_postgres, start_postgres
from servers.shared_process import free_port, stop


class KillablePostgres(PostgresServer):
    """PostgreSQL in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(start_postgres(folder))
        self.folder = folder
        self.kills = 0

    def kill(self, *settings: str, while_dead: Callable[[], object] = bool) -> None:
        """Kill the server, and start it again. Sessions of the dead one end by themselves; the new one waits for it."""
        os.kill(self.pid, signal.SIGKILL)
        stop({"pid": self.pid, "folder": str(self.folder / "nothing")})
        self.kills += 1
        while_dead()
        until(lambda: self._started(settings))

    def _started(self, settings: tuple[str, ...]) -> bool:
        try:
            self.pid = run_postgres(self.folder, self.port, *settings)["pid"]
        except RuntimeError:
            return False
        return True


class KillableSeaweed(ObjectServer):
    """SeaweedFS in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ports = [free_port() for _ in range(8)]
        self.kills = 0
        started = run_seaweed(folder, self._ports)
        self.pid = started["pid"]
        super().__init__(started)

    def kill(self, while_dead: Callable[[], object] = bool) -> None:
        """Kill the server, and start it again."""
        os.kill(self.pid, signal.SIGKILL)
        stop({"pid": self.pid, "folder": str(self.folder / "nothing")})
        self.kills += 1
        while_dead()
        self.pid = run_seaweed(self.folder, self._ports)["pid"]


@contextlib.contextmanager
def killable_postgres() -> Iterator[KillablePostgres]:
    """Start PostgreSQL for one test."""
    folder = Path(tempfile.mkdtemp(prefix="timespine-killed-"))
    server = KillablePostgres(folder)
    try:
        yield server
    finally:
        stop({"pid": server.pid, "folder": str(folder), "signal": "SIGQUIT"})
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def killable_seaweed() -> Iterator[KillableSeaweed]:
    """Start SeaweedFS for one test."""
    folder = Path(tempfile.mkdtemp(prefix="timespine-killed-"))
    server = KillableSeaweed(folder)
    try:
        yield server
    finally:
        stop({"pid": server.pid, "folder": str(folder), "signal": "SIGKILL"})
        shutil.rmtree(folder, ignore_errors=True)

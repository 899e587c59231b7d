"""Servers that several test processes share: the first to need one starts it, the last to leave stops it by its pid."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SITE = Path(sysconfig.get_paths()["purelib"])
SCRIPTS = Path(sysconfig.get_paths()["scripts"])

START_S = 90.0
"""How long a server may take to start on a busy machine."""

Started = dict[str, Any]
"""What tells how to reach a server: its port, its pid and its folder."""


def free_port() -> int:
    """A free port below the range that the system hands out by itself."""
    while True:
        port = random.SystemRandom().randrange(15000, 32000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def clean_environment(**more: str) -> dict[str, str]:
    """An environment without variables that a server would take for its own settings."""
    return {"PATH": os.environ.get("PATH", ""), "HOME": tempfile.gettempdir(), "LC_ALL": "C", **more}


_started: dict[int, subprocess.Popen[bytes]] = {}
"""The servers that this process started, by pid: another process may stop them."""


def wait_until(is_up: Callable[[], object], process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a server answers; fail with the end of its log if it ends first."""
    _started[process.pid] = process
    deadline = time.monotonic() + START_S
    while True:
        with contextlib.suppress(OSError):
            if is_up():
                return
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise RuntimeError(f"the server did not start: {log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.05)


@contextlib.contextmanager
def shared_server(folder: Path, name: str, start: Callable[[Path], Started]) -> Iterator[Started]:
    """Give a server that the test processes with this folder share."""
    state, lock = folder / f"{name}.json", folder / f"{name}.lock"
    with locked(lock):
        found = json.loads(state.read_text()) if state.exists() else None
        if found is None:
            root = Path(tempfile.mkdtemp(prefix=f"timespine-{name}-"))
            found = {**start(root), "folder": str(root), "users": 0}
        found["users"] += 1
        state.write_text(json.dumps(found))
    try:
        yield found
    finally:
        process = _started.get(found["pid"])
        with locked(lock):
            left = json.loads(state.read_text())
            left["users"] -= 1
            state.write_text(json.dumps(left))
            if left["users"] == 0:
                state.unlink()
                stop(left)
            elif process is not None:
                process.returncode = 0  # another process uses it on, and stops it: no warning that it is still running


def stop(started: Started) -> None:
    """Stop a server, which has nothing to save, and remove its files."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(started["pid"], getattr(signal, started.get("signal", "SIGKILL")))
    if started["pid"] in _started:
        _started.pop(started["pid"]).wait(60)
    shutil.rmtree(started["folder"], ignore_errors=True)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

"""A process of a test that is going to be killed, and the lines that it has said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any


class Worker:
    """A process that runs a script of this folder with one argument, in JSON."""

    def __init__(self, script: str, **arguments: Any) -> None:
        self.lines: list[list[str]] = []
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, str(Path(__file__).with_name(script)), json.dumps(arguments)]
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (the process writes to it until it is killed)
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._errors, text=True, env=environment
        )
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.split())

    @property
    def acknowledged(self) -> int:
        return sum(line[0] == "ack" for line in self.lines)

    def kill(self) -> str:
        """Kill the process; return what it said if it had ended by itself."""
        ended = self.process.poll() is not None
        self.process.kill()
        errors = self.join()
        return errors if ended else ""

    def join(self) -> str:
        """Wait for the end of the process; return the end of its errors."""
        self.process.wait(60)
        self._thread.join(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        with self._errors:
            self._errors.seek(0)
            return self._errors.read()[-2000:]

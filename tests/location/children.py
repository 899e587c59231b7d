"""Other processes, which say on stdout how far they are."""

from __future__ import annotations

import subprocess
import sys


def start(script: str, *args: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", script, *map(str, args)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def line_of(child: subprocess.Popen[bytes]) -> bytes:
    return child.stdout.readline() if child.stdout else b""


def tell(child: subprocess.Popen[bytes], line: bytes) -> None:
    if child.stdin:
        child.stdin.write(line)
        child.stdin.flush()

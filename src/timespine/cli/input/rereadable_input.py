"""The bytes of a file, or of standard input, which can be read again to find an error."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import BinaryIO, TextIO

import pyarrow as pa

from timespine.errors import UsageError

STDIN = "-"
PIECE_BYTES = 1 << 20


class RereadableInput:
    """A file on disk, or a pipe that was read into memory.

    SUBTLE: Arrow reads with threads of its own. A thread that accesses a Python object while the process ends
    aborts it, so Arrow gets no stream and no bytes of Python (test_cli_processes.py).
    """

    def __init__(self, file: str) -> None:
        self.name = "standard input" if file == STDIN else file
        """The name of the file in messages."""
        self._path = Path(file)
        self._data: pa.Buffer | None = None
        if file == STDIN:
            if sys.stdin is None:
                raise UsageError("standard input is closed: give a file, or something to read from")
            self._data = _all(sys.stdin.buffer)
        elif self._path.is_dir() or not self._path.exists():
            raise UsageError(f"{file}: there is no such file")
        elif not self._path.is_file():
            with self._path.open("rb") as stream:
                self._data = _all(stream)

    def arrow(self) -> pa.NativeFile:
        """Open the input from the beginning, for Arrow."""
        return pa.OSFile(str(self._path)) if self._data is None else pa.BufferReader(self._data)

    def text(self) -> TextIO:
        """Open the input from the beginning as text. Replace invalid bytes."""
        stream = self._path.open("rb") if self._data is None else io.BytesIO(self._data)
        return io.TextIOWrapper(stream, "utf-8-sig", "replace", newline="")

    def bytes(self) -> bytes:
        """Read all bytes."""
        return self._path.read_bytes() if self._data is None else bytes(self._data)


def _all(stream: BinaryIO) -> pa.Buffer:
    taken = pa.BufferOutputStream()
    while piece := stream.read(PIECE_BYTES):
        taken.write(piece)
    return taken.getvalue()

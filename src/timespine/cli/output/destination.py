"""Where results go, and as what. What cannot work is refused here, before anything is done."""

from __future__ import annotations

import enum
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from timespine.cli.error_report import OutputClosed
from timespine.client.open_store import BLOBS, CONSENSUS
from timespine.errors import UsageError

STDOUT = "standard output"


class Format(enum.StrEnum):
    """How results are written."""

    text = "text"
    json = "json"
    csv = "csv"
    parquet = "parquet"


_ENDINGS = {
    ".json": Format.json,
    ".jsonl": Format.json,
    ".ndjson": Format.json,
    ".csv": Format.csv,
    ".parquet": Format.parquet,
    ".pq": Format.parquet,
}


class Sink:
    """A stream that takes bytes, and says what it is called when it cannot."""

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self._stream = stream
        self._name = name

    def write(self, data: Any) -> None:
        """Take some bytes."""
        with self._named():
            self._stream.write(data)

    def flush(self) -> None:
        """Hand on what was taken."""
        with self._named():
            self._stream.flush()

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if self._name == STDOUT:
                silence_stdout()
            raise OSError(error.errno, error.strerror, self._name) from None


@dataclass(frozen=True, slots=True)
class Destination:
    """Where results go, and as what."""

    format: Format
    path: Path | None = None
    """A file; None: standard output."""

    @property
    def is_terminal(self) -> bool:
        """Whether a person reads it as it comes."""
        return self.path is None and sys.stdout.isatty()

    @property
    def encoding(self) -> str:
        """How text becomes bytes."""
        return sys.stdout.encoding if self.path is None else "utf-8"

    @contextmanager
    def open(self) -> Iterator[Sink]:
        """The stream. A file appears when all is written, or not at all."""
        if self.path is None:
            sink = Sink(sys.stdout.buffer, STDOUT)
            sink.flush()
            yield sink
            sink.flush()
            return
        target = _target(self.path)
        if _is_special(target):  # a pipe or a device is written to, never replaced
            with _written(target, "wb", str(self.path)) as sink:
                yield sink
            return
        unfinished = _unfinished(target)
        try:
            with _written(unfinished, "xb", str(self.path)) as sink:
                yield sink
            os.replace(unfinished, target)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise


def destination(output: Format | None, to: Path | None) -> Destination:
    """Where to write rows and as what: as told, or as the name of the file says."""
    chosen = output
    if chosen is None:
        chosen = _ENDINGS.get(to.suffix.lower(), Format.text) if to is not None else Format.text
    if to is not None:
        _check_writable(to)
    elif sys.stdout is None:
        raise OutputClosed(f"{STDOUT} is closed, and nothing was done: send it to a file, or to /dev/null")
    found = Destination(chosen, to)
    if chosen is Format.parquet and found.is_terminal:
        raise UsageError("Parquet is not for a terminal: add --to FILE, or send it into a pipe")
    return found


def for_document(output: Format | None, to: Path | None = None) -> Destination:
    """Where to write one thing that has no rows, and as what."""
    found = destination(output, to)
    if found.format in (Format.csv, Format.parquet):
        raise UsageError(f"this has no rows that could be {found.format}: use --output text or json")
    return found


def silence_stdout() -> None:
    """Whoever read our output is gone: what is still buffered goes nowhere, and nobody complains about it."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError, AttributeError):
        return


@contextmanager
def _written(path: Path, mode: str, name: str) -> Iterator[Sink]:
    """A file that is written under another name."""
    stream = cast(BinaryIO, path.open(mode))
    sink = Sink(stream, name)
    try:
        yield sink
        sink.flush()
    except BaseException:
        with suppress(OSError):  # what could not be written cannot be on the way out either
            stream.close()
        raise
    stream.close()


def _target(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _is_special(target: Path) -> bool:
    return target.exists() and not target.is_file()


def _unfinished(target: Path) -> Path:
    return target.with_name(f".{secrets.token_hex(8)}.unfinished")


def _check_writable(path: Path) -> None:
    """Refuse a file that cannot be written. Tried, not asked for: permissions say less than a try does."""
    target = _target(path)
    try:
        if target.is_dir() or not target.parent.is_dir():
            raise UsageError(f"{path} cannot be written: give the name of a file in a folder that is there")
        if any((above / CONSENSUS).is_file() and (above / BLOBS).is_dir() for above in target.parents):
            raise UsageError(f"{path} cannot be written: it lies inside of a store")
        if not _is_special(target):
            trial = _unfinished(target)
            trial.open("xb").close()
            trial.unlink()
        elif not os.access(target, os.W_OK):
            raise UsageError(f"{path} cannot be written: permission denied")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None

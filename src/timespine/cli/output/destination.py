"""The destination and format of results. It refuses impossible ones before the verb does anything."""

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
from timespine.errors import UsageError
from timespine.location.opening.folder_place import BLOBS, CONSENSUS

STDOUT = "standard output"


class OutputFormat(enum.StrEnum):
    """The formats of results."""

    text = "text"
    json = "json"
    csv = "csv"
    parquet = "parquet"


_ENDINGS = {
    ".json": OutputFormat.json,
    ".jsonl": OutputFormat.json,
    ".ndjson": OutputFormat.json,
    ".csv": OutputFormat.csv,
    ".parquet": OutputFormat.parquet,
    ".pq": OutputFormat.parquet,
}


class OutputStream:
    """A stream of bytes whose errors contain its name."""

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self._stream = stream
        self._name = name

    def write(self, data: Any) -> None:
        """Write some bytes."""
        with self._name_errors():
            self._stream.write(data)

    def flush(self) -> None:
        """Flush the stream."""
        with self._name_errors():
            self._stream.flush()

    @contextmanager
    def _name_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if self._name == STDOUT:
                silence_stdout()
            raise OSError(error.errno, error.strerror, self._name) from None


@dataclass(frozen=True, slots=True)
class Destination:
    """The destination and format of results."""

    format: OutputFormat
    path: Path | None = None
    """A file, or None for standard output."""

    @property
    def is_terminal(self) -> bool:
        """Return whether the output goes to a terminal."""
        return self.path is None and sys.stdout.isatty()

    @property
    def encoding(self) -> str:
        """Return the encoding of text."""
        return sys.stdout.encoding if self.path is None else "utf-8"

    @contextmanager
    def open(self) -> Iterator[OutputStream]:
        """Open the stream. A file appears when it is complete, or not at all."""
        if self.path is None:
            sink = OutputStream(sys.stdout.buffer, STDOUT)
            sink.flush()
            yield sink
            sink.flush()
            return
        target = _target(self.path)
        if _is_special(target):  # write to a pipe or a device, and never replace it
            with _write_and_rename(target, "wb", str(self.path)) as sink:
                yield sink
            return
        unfinished = _temporary_name(target)
        try:
            with _write_and_rename(unfinished, "xb", str(self.path)) as sink:
                yield sink
            os.replace(unfinished, target)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise


def destination(output: OutputFormat | None, to: Path | None) -> Destination:
    """Choose the destination and format of rows: those of the options, or the format of the suffix."""
    chosen = output
    if chosen is None:
        chosen = _ENDINGS.get(to.suffix.lower(), OutputFormat.text) if to is not None else OutputFormat.text
    if to is not None:
        _check_writable(to)
    elif sys.stdout is None:
        raise OutputClosed(f"{STDOUT} is closed, and nothing was done: send it to a file, or to /dev/null")
    found = Destination(chosen, to)
    if chosen is OutputFormat.parquet and found.is_terminal:
        raise UsageError("Parquet is not for a terminal: add --to FILE, or send it into a pipe")
    return found


def for_document(output: OutputFormat | None, to: Path | None = None) -> Destination:
    """Choose the destination and format of a document, which has no rows."""
    found = destination(output, to)
    if found.format in (OutputFormat.csv, OutputFormat.parquet):
        raise UsageError(f"this result has no rows to write as {found.format}: use --output text or json")
    return found


def silence_stdout() -> None:
    """Discard buffered output after its reader has closed it, without an error at exit."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError, AttributeError):
        return


@contextmanager
def _write_and_rename(path: Path, mode: str, name: str) -> Iterator[OutputStream]:
    """Write a file under a temporary name, and rename it at the end."""
    stream = cast(BinaryIO, path.open(mode))
    sink = OutputStream(stream, name)
    try:
        yield sink
        sink.flush()
    except BaseException:
        with suppress(OSError):  # a flush that failed fails again when the stream closes
            stream.close()
        raise
    stream.close()


def _target(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _is_special(target: Path) -> bool:
    return target.exists() and not target.is_file()


def _temporary_name(target: Path) -> Path:
    return target.with_name(f".{secrets.token_hex(8)}.unfinished")


def _check_writable(path: Path) -> None:
    """Refuse a file that cannot be written. Try it, because permissions do not tell everything."""
    target = _target(path)
    try:
        if target.is_dir() or not target.parent.is_dir():
            raise UsageError(f"{path} cannot be written: give the name of a file in an existing folder")
        if any((above / CONSENSUS).is_file() and (above / BLOBS).is_dir() for above in target.parents):
            raise UsageError(f"{path} cannot be written: it is inside of a store")
        if not _is_special(target):
            trial = _temporary_name(target)
            trial.open("xb").close()
            trial.unlink()
        elif not os.access(target, os.W_OK):
            raise UsageError(f"{path} cannot be written: permission denied")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None

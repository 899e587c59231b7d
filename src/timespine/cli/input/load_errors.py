"""What is loaded: how many rows there are, for a bar, and which file a mistake is in."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from timespine.cli.hints import describe
from timespine.cli.input.row_errors import counted_from
from timespine.errors import UsageError


class LoadedFiles:
    """The Parquet files at a path, in the order in which they are read."""

    def __init__(self, path: Path) -> None:
        self._files = _counted(path)

    @property
    def rows(self) -> int | None:
        """How many rows there are; None if that is not easily known."""
        return sum(rows for _, rows in self._files) if self._files else None

    def blamed(self, taken: int, error: UsageError) -> str:
        """What went wrong after so many rows were taken, with the file it is in; before that, it is not a file."""
        before = 0
        for file, rows in self._files:
            if 0 < taken < before + rows:
                return f"{file}: {counted_from(taken - before + 1, error)}"
            before += rows
        return describe(error)


def _counted(path: Path) -> list[tuple[Path, int]]:
    """The files and their rows; nothing if that is not easily known."""
    if (path / "_delta_log").is_dir():
        return []
    files = [path] if path.is_file() else sorted(path.rglob("*.parquet"))
    try:
        return [(file, int(pq.read_metadata(file).num_rows)) for file in files if _is_read(path, file)]
    except (pa.ArrowException, OSError):
        return []


def _is_read(path: Path, file: Path) -> bool:
    return file.is_file() and not any(part.startswith(("_", ".")) for part in file.relative_to(path).parts)

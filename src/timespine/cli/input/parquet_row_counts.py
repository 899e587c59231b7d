"""Count the rows of each Parquet file of a load: for a progress bar, and to name the file of an error."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from timespine.cli.error_wording import error_text
from timespine.cli.input.find_wrong_row import first_line_number
from timespine.errors import UsageError
from timespine.libraries import pq


class RowsPerFile:
    """The Parquet files at a path, in the order of the load."""

    def __init__(self, path: Path) -> None:
        self._files = _rows_by_file(path)

    @property
    def rows(self) -> int | None:
        """Return the number of rows; None if it is unknown, as for a Delta table."""
        return sum(rows for _, rows in self._files) if self._files else None

    def with_file_name(self, taken: int, error: UsageError) -> str:
        """Describe an error after `taken` rows with the name of its file; an error before the first row has no file."""
        before = 0
        for file, rows in self._files:
            if 0 < taken < before + rows:
                return f"{file}: {first_line_number(taken - before + 1, error)}"
            before += rows
        return error_text(error)


def _rows_by_file(path: Path) -> list[tuple[Path, int]]:
    """List the files and their numbers of rows; empty if the numbers are unknown, as for a Delta table."""
    if (path / "_delta_log").is_dir():
        return []
    files = [path] if path.is_file() else sorted(path.rglob("*.parquet"))
    try:
        return [(file, int(pq.read_metadata(file).num_rows)) for file in files if _is_read(path, file)]
    except (pa.ArrowException, OSError):
        return []


def _is_read(path: Path, file: Path) -> bool:
    return file.is_file() and not any(part.startswith(("_", ".")) for part in file.relative_to(path).parts)

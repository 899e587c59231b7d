"""Find the row of an error. The search runs only after an error."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from timespine.cli.error_wording import error_text
from timespine.errors import InvalidRows, UsageError

R = TypeVar("R")


def find_first_wrong_row(rows: Sequence[R], convert: Callable[[Sequence[R]], object]) -> tuple[int, UsageError] | None:
    """Find by bisection the first row that cannot be converted, and its error; None if each can be by itself."""
    low, high = 0, len(rows)
    while high - low > 1:
        middle = (low + high) // 2
        if _error_of(rows[low:middle], convert) is None:
            low = middle
        else:
            high = middle
    error = _error_of(rows[low:high], convert)
    return None if error is None else (low, error)


def _error_of(rows: Sequence[R], convert: Callable[[Sequence[R]], object]) -> UsageError | None:
    try:
        convert(rows)
    except UsageError as error:
        return error
    return None


def without_row(error: UsageError) -> str:
    """Describe an error of a row that was converted alone, without its number."""
    return error_text(error, "it")


def first_line_number(first: int, error: UsageError) -> str:
    """Describe an error of rows, with row numbers that begin at `first`."""
    row = error.row if isinstance(error, InvalidRows) else None
    return error_text(error, None if row is None else f"row {first + row}")


def line_of(lines: Iterable[str], record: int, *, empty_counts: bool) -> int | None:
    """Return the first line of a record of a CSV. The header is record 1; cells may have line breaks."""
    reader = csv.reader(lines)
    begins = 1
    try:
        for cells in reader:
            if cells or empty_counts:
                record -= 1
                if record == 0:
                    return begins
            begins = reader.line_num + 1
    except csv.Error:
        return None
    return None


def header_of(lines: Iterable[str]) -> list[str]:
    """Read the names of the columns of a CSV."""
    return next(cells for cells in csv.reader(lines) if cells)

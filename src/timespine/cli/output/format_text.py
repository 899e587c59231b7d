"""Format text for people: aligned columns, and no control characters from data."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.cells import cell_len, set_cell_size

from timespine.client.arguments.time_args import plain_frontier
from timespine.client.diagnostics.amplification import Amplification
from timespine.model.frontier import Frontier

CELL_MAX = 60
"""The widest cell on a terminal. Other output is not cut."""

SAMPLE_ROWS = 1000
"""The number of first rows that decide the widths of the columns of a stream."""


def printable(text: str) -> str:
    """Escape the control and invisible characters of a text."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def one_line(text: str) -> str:
    """Remove line breaks from a text, and escape its control characters."""
    return printable(" ".join(text.split()))


def cell(value: Any) -> str:
    """Format a value as a cell of a table."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list | dict | tuple):
        return printable(msgspec.json.encode(value).decode())
    return str(value)


class Columns:
    """Lines of aligned cells; the first rows decide the widths. Numbers are right-aligned."""

    def __init__(self, names: Sequence[str], sample: Sequence[Sequence[Any]], *, cut: bool) -> None:
        self._names = [printable(name) for name in names]
        self._cut = cut
        columns = list(zip(*sample, strict=True)) if sample else [() for _ in names]
        self._right = [_is_numbers(column) for column in columns]
        self._widths = [
            max(cell_len(name), *(cell_len(self._cell(value)) for value in column), 1)
            for name, column in zip(self._names, columns, strict=True)
        ]

    def head(self) -> str:
        """Format the names, and a line below them."""
        return f"{self._line(self._names)}\n{'  '.join('-' * width for width in self._widths)}"

    def row(self, values: Sequence[Any]) -> str:
        """Return one row."""
        return self._line([self._cell(value) for value in values])

    def _cell(self, value: Any) -> str:
        text = cell(value)
        if self._cut and cell_len(text) > CELL_MAX:
            return set_cell_size(text, CELL_MAX - 1).rstrip() + "…"
        return text

    def _line(self, cells: Sequence[str]) -> str:
        padded = []
        for text, width, right in zip(cells, self._widths, self._right, strict=True):
            space = " " * (width - cell_len(text))
            padded.append(space + text if right else text + space)
        return "  ".join(padded).rstrip()


def fields(pairs: Sequence[tuple[str, Any]]) -> str:
    """Format names and values, one pair per line."""
    width = max((len(name) for name, _ in pairs), default=0)
    return "".join(f"{name + ':':{width + 1}} {cell(value)}\n" for name, value in pairs)


def type_text(value: Any) -> str:
    """Format a time or a frontier as a user types it: 3, or 0,3; several times separated by "and"."""
    if isinstance(value, Frontier):
        value = plain_frontier(value)
    if value is None:
        return "closed"
    if isinstance(value, list):
        return " and ".join(map(type_text, map(tuple, value)))
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def size(count: int) -> str:
    """Format a number of bytes with a unit."""
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, 4)
    return f"{count / (1 << 10 * power):.1f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"


def clock(time_ms: Any) -> str:
    """Format a time of the wall clock, in milliseconds, as a number and as a date."""
    if not isinstance(time_ms, int):
        return type_text(time_ms)
    try:
        moment = datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return str(time_ms)
    return f"{time_ms} ({moment.isoformat(timespec='milliseconds').replace('+00:00', 'Z')})"


def count_text(count: int, what: str) -> str:
    """Format a number with its noun."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _is_numbers(column: Sequence[Any]) -> bool:
    given = [value for value in column if value is not None]
    return bool(given) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in given)


def amplification_text(found: Amplification) -> str:
    """Format write, read and space amplification."""
    return f"write {found.write:.2f}, read {found.read}, space {found.space:.2f}"

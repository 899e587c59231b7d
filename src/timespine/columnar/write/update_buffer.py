"""A buffer of updates for the next part."""

from __future__ import annotations

import pyarrow as pa

LOOSE_MAX = 1024
"""The most separate tables. More are joined: a table of one row takes kilobytes as an object."""

OVER = 16
"""Rows of up to one part and one of this many shares stay one part: what is left of a cut would be a tiny part."""


class Buffer:
    """The tables of the next part."""

    def __init__(self, bytes_max: int) -> None:
        self.rows = 0
        """The number of buffered updates."""
        self._bytes_max = bytes_max
        self._full_bytes = bytes_max + bytes_max // OVER
        self._bytes = 0
        self._gathered: list[pa.Table] = []
        self._loose: list[pa.Table] = []

    def push(self, table: pa.Table) -> list[pa.Table]:
        """Add updates; return the tables of full parts."""
        self.rows += table.num_rows
        self._bytes += table.nbytes
        self._loose.append(table)
        if self._bytes < self._full_bytes:
            if len(self._loose) >= LOOSE_MAX:
                self._gathered.append(pa.concat_tables(self._loose).combine_chunks())
                self._loose = []
            return []
        full = []
        rest = self.drain()
        # SUBTLE: a table without rows has some bytes too, those of the first offset of its strings.
        while rest.num_rows and rest.nbytes >= self._full_bytes:
            rows = _rows_within(rest, self._bytes_max)
            full.append(rest.slice(0, rows))
            rest = rest.slice(rows)
        if rest.num_rows:
            self.push(rest)
        return full

    def drain(self) -> pa.Table:
        """Remove and return all updates. Not for an empty buffer."""
        table = pa.concat_tables([*self._gathered, *self._loose])
        self.rows, self._bytes, self._gathered, self._loose = 0, 0, [], []
        return table


def _rows_within(table: pa.Table, bytes_max: int) -> int:
    """Return how many of the first rows fit into this number of bytes, and at least one."""
    fit, over = 1, table.num_rows + 1
    while over - fit > 1:
        middle = (fit + over) // 2
        if table.slice(0, middle).nbytes <= bytes_max:
            fit = middle
        else:
            over = middle
    return fit

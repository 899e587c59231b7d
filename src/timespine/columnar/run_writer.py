"""A sorted run on its way to storage: rows are cut into parts, and encoded and uploaded in the background."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial

import pyarrow as pa

from timespine.columnar.schema import DIFF
from timespine.columnar.upload import Sent, Target, Uploads
from timespine.core.hollow import Part

OVER = 16
"""A part may have more rows than a full one by one of so many shares."""


class RunWriter:
    """Takes rows, and parts that are passed through, in order."""

    def __init__(self, target: Target, uploads: Uploads, fresh: Callable[[str], str]) -> None:
        self._target = target
        self._uploads = uploads
        self._fresh = fresh
        self._gathered: list[pa.Table] = []
        self._bytes = 0
        self._parts: list[Part | Future[Sent]] = []
        self._names: list[str] = []

    def add(self, tables: Iterable[pa.Table]) -> None:
        """Rows, ascending and after everything before."""
        limit = self._target.config.part_bytes
        for table in tables:
            if table.num_rows == 0:
                continue
            self._gathered.append(table)
            self._bytes += table.nbytes
            # A little more than a full part stays one: what is left of a cut would be a tiny part.
            while self._bytes >= limit + limit // OVER:
                self._cut(limit)

    def refer(self, part: Part) -> None:
        """A part that is passed through."""
        self._flush()
        self._parts.append(part)

    def small(self) -> pa.Table | None:
        """All rows, if they are few and nothing was uploaded or passed through yet."""
        few = self._bytes <= 16 * self._target.config.inline_part_bytes
        return pa.concat_tables(self._gathered) if few and self._gathered and not self._parts else None

    def clear(self) -> None:
        """Forget the rows that were not uploaded."""
        self._gathered, self._bytes = [], 0

    def finish(self) -> list[Part]:
        """All parts in order."""
        self._flush()
        self._uploads.drain()
        sent = [each if isinstance(each, Part) else each.result().part for each in self._parts]
        return [part for part in sent if part is not None]

    def abort(self) -> list[str]:
        """Stop; the keys of what may have been uploaded."""
        self._uploads.cancel()
        return [self._target.key(name) for name in self._names]

    def _cut(self, limit: int) -> None:
        """Send the first rows that make up a part, and keep the rest."""
        table = pa.concat_tables(self._gathered)
        rows = max(int(table.num_rows * limit / max(self._bytes, 1)), 1)
        self._send(table.slice(0, rows))
        rest = table.slice(rows)
        self._gathered = [rest] if rest.num_rows else []
        self._bytes = self._bytes * rest.num_rows // table.num_rows

    def _flush(self) -> None:
        if self._gathered:
            table = pa.concat_tables(self._gathered)
            self.clear()
            self._send(table)

    def _send(self, table: pa.Table) -> None:
        name = self._fresh("p")
        self._names.append(name)
        self._parts.append(self._uploads.start(partial(self._target.send_part, name, [table], is_consolidated=True)))


def inline_part(table: pa.Table, data: bytes) -> Part:
    """Rows that travel in the state itself."""
    return Part("", table.num_rows, len(data), diff_sum_of(table), data)


def diff_sum_of(table: pa.Table) -> int:
    """The sum of the diffs modulo 2^64."""
    column = table.column(DIFF)
    return int(column.to_numpy().sum()) if len(column) else 0  # numpy wraps

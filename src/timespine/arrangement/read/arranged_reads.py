"""Reads that give rows as often as they count: of an arrangement that follows a collection, and of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from timespine.arrangement.read.view_as_of import ArrangementView, repeated
from timespine.client.api_for_engines import REPEATED_MAX
from timespine.columnar.schema.schema import shown_names
from timespine.errors import UsageError

R = TypeVar("R")


class ArrangedReads:
    """Rows by key, by many keys, and by ranges."""

    def _view(self) -> ArrangementView:
        """Return the rows to read."""
        raise NotImplementedError

    def _read(self, read: Callable[[ArrangementView], R]) -> R:
        """Read."""
        return read(self._view())

    def get(self, key: object) -> list[dict[str, Any]]:
        """Return the rows of a key.

        A key is a dictionary of the arranged columns, or the first of them, which stands for all keys that begin with
        it. A tuple has their values in order, and any other value is that of the first arranged column.
        """

        def read(view: ArrangementView) -> list[dict[str, Any]]:
            counted = view.get(key_of(key, view.layout.by))
            if any(count < 0 for _, count in counted):
                raise UsageError("a row of this key has a negative count: use `fetch` with counts")
            if sum(count for _, count in counted) > REPEATED_MAX:
                raise UsageError("rows of this key count too often to be given one by one: use `fetch` with counts")
            return [dict(row) for row, count in counted for _ in range(count)]

        return self._read(read)

    def get_one(self, key: object) -> dict[str, Any] | None:
        """Return the row of a key that has at most one; None if it has none."""
        found = self.get(key)
        if len(found) > 1:
            raise UsageError(f"this key has {len(found)} rows: use `get`")
        return found[0] if found else None

    def fetch(self, keys: object, *, columns: Sequence[str] | None = None, counts: bool = False) -> pa.Table:
        """Return the rows of many keys, in order; with `columns`, only these of them.

        With `counts`, each row comes once, with its count in `_diff`. `keys` is one key as a dictionary, many in any
        form that rows have, or values of the first arranged column.
        """
        found = self._read(lambda view: view.fetch(keys_of(keys, view.layout.by), columns))
        return found if counts else repeated(found)

    def scan(self, lower: object = None, upper: object = None, *, inclusive: bool = False) -> Iterator[pa.Table]:
        """Give the rows from one key to before another, in order; with `inclusive` also those of the second."""
        view = self._view()
        low, high = (None if each is None else key_of(each, view.layout.by) for each in (lower, upper))
        return (repeated(table) for table in view.scan(low, high, inclusive=inclusive))


def key_of(given: object, by: Sequence[str]) -> Mapping[str, Any]:
    """Return a key by column: of a dictionary, of a tuple of values in order, or of a value of the first column."""
    if isinstance(given, Mapping):
        return given
    values = given if isinstance(given, tuple | list) else (given,)
    if not 1 <= len(values) <= len(by):
        raise UsageError(f"a key has values of {shown_names(by)} or the first of them, not {len(values)} values")
    return dict(zip(by, values, strict=False))


def keys_of(given: object, by: Sequence[str]) -> object:
    """Return keys as rows: values and tuples become dictionaries, an array becomes a column."""
    if isinstance(given, Mapping | str | bytes | pa.Table | pa.RecordBatch):
        return key_of(given, by) if isinstance(given, str | bytes) else given
    if isinstance(given, pa.Array | pa.ChunkedArray):
        return pa.table({by[0]: given})
    if isinstance(given, np.ndarray):
        return pa.table({by[0]: pa.array(given)})
    if isinstance(given, list | tuple | range | set | frozenset):
        listed = list(given)
        if any(not isinstance(each, Mapping) for each in listed):
            return [key_of(each, by) for each in listed]
        return listed
    return given if isinstance(given, Iterable) or hasattr(given, "__arrow_c_stream__") else key_of(given, by)

"""Reads of some batches as of one time. Batches are immutable, so a view never changes.

for every row:   count in the view == sum(diff of its updates in all batches at times <= as of)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from timespine.arrangement.batch.batch import Batch
from timespine.arrangement.batch.combine_chunks import SortedUpdates, net_as_of, piece_at, piece_between, rows_of_chunk
from timespine.arrangement.batch.key_filters import FilterCounts
from timespine.arrangement.batch.layout import Layout
from timespine.arrangement.batch.walk_batches import Walk
from timespine.arrangement.read.cursor import Cursor, items
from timespine.arrangement.read.find_key import (
    SUMMED_MAX,
    Courtesy,
    Hit,
    KeySearch,
    needs_no_sum,
    settled_rows,
    summed_rows,
)
from timespine.arrangement.read.key_window import WindowSource
from timespine.client.api_for_engines import REPEATED_MAX, repeat_by_diff
from timespine.columnar.ingest.cast import cast_column
from timespine.columnar.ingest.to_arrow import to_arrow
from timespine.columnar.kernels.comparable_words import Key, Probes
from timespine.columnar.kernels.consolidate import consolidate
from timespine.columnar.kernels.row_words import Index, single
from timespine.columnar.schema.schema import DIFF, shown_names
from timespine.errors import UsageError
from timespine.model.frontier import Frontier
from timespine.model.time import Time, check_time, less_equal
from timespine.pool import Pool, outcome, usable_cores

SHARE_KEYS = 1 << 14
"""The fewest keys of a fetch that are worth a thread of their own."""

THREADS_MAX = 4
"""The most threads of a fetch."""

SCAN_ROWS = 1 << 17
"""Updates that one step of a scan puts together."""

_SAMPLES = 64
"""Rows that are looked at for each partition."""


class ArrangementView:
    """The rows of some batches as of a time."""

    def __init__(
        self,
        layout: Layout,
        batches: Sequence[Batch],
        as_of: Time,
        counts: FilterCounts | None = None,
        courtesy: Courtesy | None = None,
    ) -> None:
        self.layout = layout
        """The columns, and those that rows are arranged by."""
        self.batches = tuple(batches)
        """What is read."""
        self.as_of = check_time(as_of, layout.schema.arity)
        """The time of the rows."""
        self._counts = counts if counts is not None else FilterCounts()
        self._search = KeySearch(self.batches, self._counts)
        self._courtesy = courtesy if courtesy is not None else Courtesy()

    def get(self, key: Mapping[str, Any]) -> list[tuple[dict[str, Any], int]]:
        """Return the rows of a key in order, each with its count. It may name only the first arranged columns."""
        self._courtesy.pause()
        hits = self._search.find(self._key_of(key))
        if not hits:
            return []
        try:
            return self._rows_of(hits)
        except UsageError:
            raise  # a ValueError too: a row counts too much
        except (OverflowError, ValueError) as error:
            # Python has no year 10000.
            raise UsageError("a row of this key has a value that Python cannot hold: use `fetch`") from error

    def _rows_of(self, hits: Sequence[Hit]) -> list[tuple[dict[str, Any], int]]:
        """Return the rows that updates of one key add up to."""
        if needs_no_sum(hits, self.as_of):
            return settled_rows(hits[0])
        if sum(upper - lower for _, lower, upper in hits) <= SUMMED_MAX:
            return summed_rows(hits, self.layout.order, self.as_of)
        netted = net_as_of([piece_between(*hit) for hit in hits], self.layout, self.as_of)
        if netted is None:
            return []
        rows = pa.table(netted.columns).to_pylist()
        return list(zip(rows, netted.diff_array().tolist(), strict=True))

    def lookup(self, key: Mapping[str, Any]) -> pa.Table:
        """Return the rows of one key as a table, in order, each as often as it counts."""
        self._courtesy.pause()
        hits = self._search.find(self._key_of(key))
        schema = self.layout.schema
        if needs_no_sum(hits, self.as_of) and hits[0][0].diffs is None:
            chunk, lower, upper = hits[0]
            columns = [chunk.columns[name].slice(lower, upper - lower) for name in schema.names]
            return pa.Table.from_arrays(columns, schema=schema.arrow)
        netted = net_as_of([piece_between(*hit) for hit in hits], self.layout, self.as_of)
        return repeated(self._table([] if netted is None else [netted]))

    def fetch(self, keys: object, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows of many keys, in order, with their counts in `_diff`.

        `keys` has the arranged columns, or the first of them: then a key stands for all that begin with it. With
        `columns`, the rows have only these, and rows that differ in others stay apart.
        """
        probes = self._probes(keys)
        names = self.layout.schema.names if columns is None else tuple(columns)
        for name in names:
            self.layout.schema.field(name)
        shares = min(usable_cores(), THREADS_MAX, len(probes) // SHARE_KEYS)
        if shares < 2:
            return self._table(self._fetched(probes, names), columns)
        cuts = [len(probes) * share // shares for share in range(shares + 1)]
        parts = [probes.slice(start, stop) for start, stop in pairwise(cuts)]
        # A pool of its own: a shared one does not survive a fork.
        pool = Pool(shares - 1, "timespine-fetch", "the fetch is over")
        try:
            others = [pool.submit(self._fetched, part, names) for part in parts[1:]]
            found = [*self._fetched(parts[0], names), *(each for other in others for each in outcome(other))]
        finally:
            pool.shutdown(wait=False)
        return self._table(found, columns)

    def scan(
        self,
        lower: Mapping[str, Any] | None = None,
        upper: Mapping[str, Any] | None = None,
        *,
        inclusive: bool = False,
        rows: int = SCAN_ROWS,
    ) -> Iterator[pa.Table]:
        """Give the rows from one key to before another, in order, with their counts in `_diff`.

        A bound may name only the first arranged columns: it stands for the first of the keys that begin with it.
        With `inclusive`, `upper` and all keys that begin with it are given too.
        """
        low, high = (None if bound is None else self._key_of(bound) for bound in (lower, upper))
        walk = Walk(self.batches, low, high, inclusive=inclusive, alone_rows=rows)
        return self._scanned(walk, rows)

    def _scanned(self, walk: Walk, rows: int) -> Iterator[pa.Table]:
        while walk.left:
            alone = walk.step_alone()
            pieces = walk.step(rows) if alone is None else [piece_between(alone, 0, alone.rows)]
            netted = net_as_of(pieces, self.layout, self.as_of)
            if netted is not None:
                yield self._table([netted])

    def cursor(self) -> Cursor:
        """Return a cursor at the first key: rows in order, one at a time, with their counts as weights.

        Every row has one time, that of the view. Bulk work is faster with `fetch` and `scan`.
        """
        never = Frontier.minimum(self.layout.schema.arity)
        return Cursor(WindowSource(self.layout, self.batches, self.as_of, never, self._counts))

    def items(
        self, lower: Mapping[str, Any] | None = None, upper: Mapping[str, Any] | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[dict[str, Any], list[tuple[dict[str, Any], int]]]]:
        """Give the keys from one to before another in order, or the other way round, each with its values and counts.

        A bound may name only the first arranged columns: it stands for the first of the keys that begin with it.
        """
        low, high = (None if bound is None else self._key_of(bound) for bound in (lower, upper))
        return items(self.cursor(), low, high, reverse=reverse)

    def keys(self) -> Iterator[pa.Table]:
        """Give the keys that have rows, in order, each once."""
        for table in self.scan():
            yield _distinct(table.select(self.layout.by))

    def sample_keys(self, count: int, seed: int = 0) -> pa.Table:
        """Choose at most `count` different keys that have rows, in order; all if there are not more updates' keys.

        Each batch gives keys in proportion to how many it has; those whose updates cancel are dropped.
        """
        total = sum(batch.keys for batch in self.batches)
        if count >= total:
            return pa.concat_tables([self._no_keys(), *self.keys()]).combine_chunks()
        draw = np.random.default_rng(seed)
        chosen = [self._no_keys()]
        for batch in self.batches:
            wanted = np.sort(draw.choice(batch.keys, batch.keys * max(count, 0) // total, replace=False))
            chosen.extend(self._keys_of(batch, wanted))
        sampled = _distinct(pa.concat_tables(chosen))
        if not sampled.num_rows:
            return sampled
        return _distinct(self.fetch(sampled).select(self.layout.by))

    def partition_keys(self, count: int) -> pa.Table:
        """Return at most `count - 1` keys, in order, that cut the updates into about equal shares."""
        if count < 1:
            raise UsageError(f"rows are cut into at least one share, not {count}")
        total = sum(batch.rows for batch in self.batches)
        wanted = min(total, count * _SAMPLES)
        picked = [self._no_keys()]
        for batch in self.batches:
            share = max(batch.rows * wanted // total, 1)
            places = (np.arange(share) * 2 + 1) * batch.rows // (2 * share)
            start = 0
            for chunk in batch.chunks:
                inside = places[(places >= start) & (places < start + chunk.rows)] - start
                picked.append(_key_table(chunk.index.columns, inside, self.layout))
                start += chunk.rows
        samples = pa.concat_tables(picked)
        counted = consolidate(_counted(samples), self.layout.by)
        if not counted.num_rows:
            return self._no_keys()
        before = np.cumsum(counted.column(DIFF).to_numpy()) - counted.column(DIFF).to_numpy()
        cuts = np.searchsorted(before, np.arange(1, count) * samples.num_rows / count)
        inner = np.unique(cuts[(cuts > 0) & (cuts < counted.num_rows)])
        return counted.select(self.layout.by).take(pa.array(inner))

    def _key_of(self, values: Mapping[str, Any]) -> Key:
        """Make a key of values by column: the arranged columns, or the first of them."""
        depth = self._depth(values)
        by, types = self.layout.by, self.layout.by_types
        if depth == 1:
            return Key.of((values[by[0]],), types[:1])
        return Key.of([values[name] for name in by[:depth]], types[:depth])

    def _depth(self, names: Mapping[str, Any] | Sequence[str]) -> int:
        """Return how many arranged columns are named, if these are the first ones."""
        by = self.layout.by
        depth = len(names)
        if not 1 <= depth <= len(by) or any(name not in names for name in by[:depth]):
            raise UsageError(
                f"a key has the columns {shown_names(by)} or the first of them, not {shown_names([*names])}"
            )
        return depth

    def _probes(self, keys: object) -> Probes:
        """Make distinct keys in order of what a caller gives."""
        if isinstance(keys, Mapping):
            keys = [keys]
        table = keys if isinstance(keys, pa.Table) else to_arrow(keys, self.layout.schema)
        if not table.num_rows:
            table = self._no_keys()
        names = self.layout.by[: self._depth(table.column_names)]
        types = self.layout.schema.types
        distinct = _distinct(pa.table({name: cast_column(name, table.column(name), types[name]) for name in names}))
        return Probes([single(distinct.column(name)) for name in names])

    def _fetched(self, probes: Probes, names: Sequence[str]) -> list[SortedUpdates]:
        """Find the rows of keys, in order; at least some columns of them."""
        if not len(probes):
            return []
        found = [rows for batch in self.batches if (rows := batch.locate(probes))]
        if len(found) == 1 and len({chunk.time for chunk, _ in found[0]}) == 1 and found[0][0][0].time is not None:
            # The chunks of one batch do not overlap. SUBTLE: updates of one row may be in two of them, at two times.
            is_seen = less_equal(found[0][0][0].latest, self.as_of)
            return [rows_of_chunk(chunk, rows, names) for chunk, rows in found[0]] if is_seen else []
        pieces = [piece_at(chunk, rows) for each in found for chunk, rows in each]
        together = net_as_of(pieces, self.layout, self.as_of)
        return [] if together is None else [together]

    def _table(self, found: Sequence[SortedUpdates], columns: Sequence[str] | None = None) -> pa.Table:
        """Return rows as a table, with their counts: all columns, or some."""
        shape = self.layout.counted_arrow
        names = self.layout.schema.names if columns is None else columns
        if columns is not None:
            shape = pa.schema([shape.field(name) for name in (*columns, DIFF)])
        columns = [pa.chunked_array([each.columns[name] for each in found], shape.field(name).type) for name in names]
        diffs = pa.chunked_array([pa.array(each.diff_array()) for each in found], pa.int64())
        return pa.Table.from_arrays([*columns, diffs], schema=shape)

    def _no_keys(self) -> pa.Table:
        return pa.schema([self.layout.schema.arrow.field(name) for name in self.layout.by]).empty_table()

    def _keys_of(self, batch: Batch, wanted: Index) -> Iterator[pa.Table]:
        """Give the keys of a batch by their numbers. A key in two chunks counts in the first."""
        start, before = 0, b""
        for chunk in batch.chunks:
            starts = np.arange(chunk.rows) if chunk.key_starts is None else chunk.key_starts
            starts = starts[1:] if chunk.first == before else starts
            inside = wanted[(wanted >= start) & (wanted < start + len(starts))] - start
            yield _key_table(chunk.index.columns, starts[inside], self.layout)
            start, before = start + len(starts), chunk.last


def repeated(table: pa.Table) -> pa.Table:
    """Return rows as often as they count, without the counts. Raise a UsageError if that is more than memory holds."""
    return pa.concat_tables(list(repeat_by_diff(table, DIFF, REPEATED_MAX))).drop_columns([DIFF])


def _key_table(columns: Sequence[pa.Array], rows: Index, layout: Layout) -> pa.Table:
    places = pa.array(rows)
    shape = pa.schema([layout.schema.arrow.field(name) for name in layout.by])
    return pa.Table.from_arrays([column.take(places) for column in columns], schema=shape)


def _counted(keys: pa.Table) -> pa.Table:
    return keys.append_column(pa.field(DIFF, pa.int64()), pa.array(np.ones(keys.num_rows, np.int64)))


def _distinct(keys: pa.Table) -> pa.Table:
    """Return different keys in order."""
    return consolidate(_counted(keys), keys.column_names).select(keys.column_names)

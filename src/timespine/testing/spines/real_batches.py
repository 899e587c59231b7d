"""Batches of a simulated spine with real chunks, real files and real merges, beside what they must hold.

A row is a number here. Its key is a third of it, so that keys have several values.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa

from timespine.arrangement.batch import chunk
from timespine.arrangement.batch.batch import Batch, batch_of
from timespine.arrangement.batch.batch_file import FileFacts, open_batch, write_batch
from timespine.arrangement.batch.layout import Layout
from timespine.arrangement.read import cursor
from timespine.arrangement.read.view_as_of import ArrangementView
from timespine.arrangement.spine.retention_filters import RetentionFilters
from timespine.arrangement.spine.sliced_merge import SlicedMerge
from timespine.columnar.schema.schema import DIFF, TIME, define
from timespine.core.arrangement.level_transitions import MergePlan
from timespine.core.effects import SliceResult
from timespine.model.frontier import Frontier
from timespine.model.oracle import Update
from timespine.model.time import Time
from timespine.testing.spines.naive_batches import BatchKind, NaiveBatch

LAYOUT = Layout.of(define({"key": "int64"}, {"value": "int64"}))
VALUES = 3
"""Rows of a key."""


@dataclass(frozen=True, eq=False)
class RealBatch(NaiveBatch):
    """A batch of an arrangement, and its updates as the checks know them."""

    real: Batch | None = None
    """The chunks; None if it is empty."""
    folder: str = ""
    facts: FileFacts | None = None
    """What a manifest would say of its file."""

    def stored(self, file: str, in_memory: bool) -> RealBatch:
        """Write the batch to a file if it has none, and map it unless it stays in memory."""
        assert self.real is not None
        path = os.path.join(self.folder, file)
        facts = self.facts if self.facts is not None and os.path.exists(path) else None
        facts = write_batch(path, self.real, LAYOUT) if facts is None else facts
        real = self.real.with_file(file) if in_memory else open_batch(path, facts, LAYOUT)
        return replace(self, file=file, in_memory=in_memory, real=real, facts=facts)

    def deleted(self) -> None:
        """Delete the file. What is mapped stays readable."""
        os.unlink(os.path.join(self.folder, self.file or ""))


@contextlib.contextmanager
def small_pieces() -> Iterator[None]:
    """Make chunks and windows of a few rows, so that few rows make many."""
    with mock.patch.multiple(chunk, CHUNK_ROWS=5), mock.patch.multiple(cursor, WINDOW_ROWS=4, WINDOW_ROWS_MAX=8):
        yield


class RealMerge:
    """A real merge of real batches."""

    def __init__(self, plan: MergePlan[Any], bound: int, folder: str) -> None:
        self.plan = plan
        self.file: str | None = None
        """The file of the output, once it has one."""
        self._folder = folder
        filters = RetentionFilters(lambda keys: keys.column("key").to_numpy() >= bound // VALUES)
        inputs = [batch.real for batch in plan.inputs]
        since = plan.since or Frontier.at(0)
        self._merge = SlicedMerge(inputs, LAYOUT, since, filters if bound else RetentionFilters())

    def slice(self, rows: int | None) -> SliceResult:
        """Merge the next keys."""
        taken = self._merge.step(self._merge.left if rows is None else rows)
        while rows is None and not self._merge.is_done:
            taken += self._merge.step(self._merge.left)
        return SliceResult(taken, self._merge.is_done)

    def output(self, id: int) -> RealBatch | None:
        """Return the merged batch, or None if nothing is left."""
        merged = self._merge.finish()
        if merged is None:
            return None
        origins = frozenset[int]().union(*(batch.origins for batch in self.plan.inputs))
        return _batch(id, merged, origins, True, self._folder)


class RealBatches(BatchKind):
    """Makes batches in chunks of a few rows, with files in a folder that goes with the history."""

    name = "real"

    def __init__(self) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="timespine-spines-")

    def fresh(self, id: int, updates: Iterable[Update]) -> NaiveBatch:
        """Return a batch of updates as an inserter has them."""
        found = list(updates)
        rows = np.array([row for row, _, _ in found], np.int64)
        table = pa.table(
            {
                "key": rows // VALUES,
                "value": rows % VALUES,
                TIME: np.array([time[0] for _, time, _ in found], np.int64),
                DIFF: np.array([diff for _, _, diff in found], np.int64),
            }
        ).cast(LAYOUT.schema.update_arrow)
        made = batch_of(table, LAYOUT)
        if made is None:
            return NaiveBatch(id, (), frozenset({id}))
        return _batch(id, made, frozenset({id}), False, self._temporary.name)

    def open_merge(self, plan: MergePlan[Any], bound: int) -> RealMerge:
        """Begin a merge that drops the keys below that of a row."""
        return RealMerge(plan, bound, self._temporary.name)

    def steps(self, batches: Sequence[Any], as_of: Time, *, forwards: bool) -> Iterator[tuple[int, int]]:
        """Step through the rows with a cursor: each with its count."""
        place = ArrangementView(LAYOUT, [batch.real for batch in batches], as_of).cursor()
        if not forwards:
            place.fast_forward_keys()
        while place.key_valid:
            if not forwards:
                place.fast_forward_vals()
            while place.val_valid:
                yield place.key()["key"] * VALUES + place.val()["value"], place.weight()
                (place.step_val if forwards else place.step_val_reverse)()
            (place.step_key if forwards else place.step_key_reverse)()

    def end(self) -> None:
        """Delete the folder."""
        self._temporary.cleanup()


def _batch(id: int, made: Batch, origins: frozenset[int], is_merged: bool, folder: str) -> RealBatch:
    updates: list[Update] = []
    for part in made.chunks:
        keys, values = (part.columns[name].to_numpy() for name in ("key", "value"))
        times = [part.time] * part.rows if part.times is None else [(time,) for time in part.times[0].tolist()]
        diffs = [1] * part.rows if part.diffs is None else part.diffs.tolist()
        rows = (keys * VALUES + values).tolist()
        updates += zip(rows, times, diffs, strict=True)  # type: ignore[arg-type]
    return RealBatch(id, tuple(updates), origins, is_merged, real=made, folder=folder)

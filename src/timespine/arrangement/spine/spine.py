"""A spine: batches of updates that merge themselves in the background, and reads of all of them.

    what a view reads  ==  the sum of all batches that were inserted before it was taken, less what filters dropped

Inserting adds a batch; it waits only while there are too many. Threads merge batches of similar size
(`core/arrangement/levels.py` decides which), and never block a reader: a view keeps the batches that it was taken with.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any

import pyarrow as pa

from timespine.arrangement.batch.batch import Batch, batch_of
from timespine.arrangement.batch.key_filters import FilterCounts
from timespine.arrangement.batch.layout import Layout
from timespine.arrangement.checkpoint import CheckpointFolder
from timespine.arrangement.read.cursor import Cursor
from timespine.arrangement.read.key_window import WindowSource
from timespine.arrangement.read.view_as_of import ArrangementView
from timespine.arrangement.spine.merge_threads import Mergers, shared_mergers
from timespine.arrangement.spine.retention_filters import Keep, RetentionFilters, RowFilter, ValueFilter
from timespine.arrangement.spine.spine_driver import SpineDriver, batch_bytes
from timespine.arrangement.spine.spine_metrics import spine_metrics
from timespine.columnar.ingest.update_table import to_update_table
from timespine.columnar.predicate.where import Where, as_predicate
from timespine.columnar.schema.schema import Schema, shown_names
from timespine.core.arrangement import level_transitions, levels, save_transitions
from timespine.core.arrangement.levels import LevelRules, SpineLevels
from timespine.core.protocols import merge_spine, save_spine
from timespine.errors import SinceError, UsageError
from timespine.model.frontier import Frontier, check_arity_of
from timespine.model.time import INT64_MAX, Time, check_time

RowCondition = Where | Callable[[pa.Table], object]
"""A condition on rows, or a function of a table to a flag per row."""


class Spine:
    """Updates of any stream, arranged by some columns."""

    def __init__(
        self,
        schema: Schema,
        by: Sequence[str] | None = None,
        *,
        folder: str | os.PathLike[str] | CheckpointFolder | None = None,
        restores: bool = True,
        threads: bool = True,
        memory_bytes: int | None = None,
        rules: LevelRules | None = None,
    ) -> None:
        """Make an empty spine, or restore the newest checkpoint of its folder.

        Unless it `restores`, it is empty, and the checkpoints of the folder go once newer ones are there.
        Without `threads`, merges run inside of `insert`. `memory_bytes` is what the batches in memory of all spines of
        this process may take before they go to the folder. By default it is half of the memory of the machine, and
        everything else that the process holds counts too.
        """
        self.layout = Layout.of(schema, by)
        """The columns of the updates, and those that they are arranged by."""
        stored = CheckpointFolder(os.fspath(folder), self.layout) if isinstance(folder, str | os.PathLike) else folder
        empty: SpineLevels[Batch] = SpineLevels(rules or LevelRules())
        self._options: dict[str, Any] = {"threads": threads, "memory_bytes": memory_bytes, "rules": rules}
        self._driver = SpineDriver(
            self.layout,
            empty,
            shared_mergers() if threads else Mergers(0),
            stored,
            memory_bytes,
        )
        self._counts = FilterCounts()
        self._newest: tuple[SpineLevels[Batch], ArrangementView] | None = None
        if stored is not None:
            try:
                if restores:
                    self._driver.start_from(self._driver.run(save_spine.restore(empty.rules)))
                else:
                    numbers, names = tuple(stored.numbers()), tuple(stored.listed())
                    self._driver.start_from(save_transitions.begun_anew(empty.rules, numbers, names))
            except BaseException:
                if stored is not folder:  # otherwise the caller may begin another spine there
                    self._driver.close()
                raise

    # Inserting.

    def insert(self, updates: object, *, upper: Frontier | None = None, wait: bool = True) -> bool:
        """Add updates, and move the upper with them at once; return False if the spine is full and `wait` is not set.

        `updates` is a batch, which is shared and not copied, or an update table, consolidated or not. While there are
        too many batches this waits for merges; if that takes too long, it raises Determinate, and nothing is added.
        """
        thread = threading.get_ident()
        self._driver.courtesy.busy.add(thread)
        try:
            batch = updates if isinstance(updates, Batch) else self._batch(updates)
        finally:
            self._driver.courtesy.busy.discard(thread)
        if not wait:
            return bool(self._driver.run(merge_spine.try_insert(batch, upper)))
        self._driver.run(merge_spine.insert(batch, upper))
        return True

    def _batch(self, updates: object) -> Batch:
        table = to_update_table(updates, self.layout.schema, None, None)
        return batch_of(table, self.layout) or Batch(())

    def advance_since(self, since: Frontier) -> None:
        """Let later merges fold times before a frontier. Reads before it are a SinceError from now on."""
        check_arity_of(since, self.layout.schema.arity, "since")
        if since.is_closed:
            raise UsageError("since cannot be closed: no time would be readable")
        self._driver.swap(partial(level_transitions.advance_since, since=since))

    def retain_keys(self, where: RowCondition) -> None:
        """Drop keys that a condition rejects, when they are merged. It must only ever reject more."""
        self._driver.retention = RetentionFilters(_filter(where), self._driver.retention.values)

    def retain_values(
        self, where: RowCondition, *, last: int | None = None, top: int | None = None, bottom: int | None = None
    ) -> None:
        """Drop rows that a condition rejects, when they are merged. It must only ever reject more.

        Of each key, some that it rejects can be kept: the `last` before the first that it accepts, the `top` largest
        or the `bottom` smallest, by the order of rows. These are counted over updates of all times, so use them only
        where one time is read: keep since at the upper.
        """
        chosen = [(keep, n) for keep, n in ((Keep.LAST, last), (Keep.TOP, top), (Keep.BOTTOM, bottom)) if n is not None]
        if len(chosen) > 1:
            raise UsageError("give one of last, top and bottom")
        keep, count = chosen[0] if chosen else (None, 0)
        self._driver.retention = RetentionFilters(self._driver.retention.keys, ValueFilter(_filter(where), keep, count))

    @property
    def key_filter(self) -> RowFilter | None:
        """Return the filter of keys, if one is set."""
        return self._driver.retention.keys

    @property
    def value_filter(self) -> ValueFilter | None:
        """Return the filter of rows, if one is set."""
        return self._driver.retention.values

    # Reading.

    def view(self, as_of: Time | None = None) -> ArrangementView:
        """Return the rows as of a time, or of all updates. It never changes, and needs no closing."""
        state, batches = self._driver.state_and_batches()
        time = (INT64_MAX,) * self.layout.schema.arity if as_of is None else check_time(as_of, self.layout.schema.arity)
        if state.since is not None and not state.since.less_equal(time):
            raise SinceError(time, state.since)
        return ArrangementView(self.layout, batches, time, self._counts, self._driver.courtesy)

    def newest_view(self) -> ArrangementView:
        """Return the rows as of the last time before the upper: times have one coordinate, and inserts moved it.

        It is made once per state: reads are more frequent than inserts and merges.
        """
        state, batches = self._driver.state_and_batches()
        known = self._newest
        if known is None or known[0] is not state:
            last = None if state.upper is None else state.upper.last_complete()
            view = ArrangementView(self.layout, batches, (last or 0,), self._counts, self._driver.courtesy)
            known = self._newest = (state, view)
        return known[1]

    def cursor(self) -> Cursor:
        """Return a cursor at the first key, over all updates with their times.

        Times before since are advanced to it, whether merges have done so yet or not.
        """
        state = self._driver.levels
        since = state.since or Frontier.minimum(self.layout.schema.arity)
        return Cursor(WindowSource(self.layout, state.batches, None, since, self._counts))

    @property
    def since(self) -> Frontier | None:
        """Return the frontier from which on reads are exact; None if all are."""
        return self._driver.levels.since

    @property
    def upper(self) -> Frontier | None:
        """Return the frontier that the last insert moved to."""
        return self._driver.levels.upper

    @property
    def batches(self) -> tuple[Batch, ...]:
        """Return the batches as they are now."""
        return self._driver.levels.batches

    def __len__(self) -> int:
        """Return the number of updates in all batches. Some may cancel each other out."""
        return sum(batch.rows for batch in self.batches)

    @property
    def key_count(self) -> int:
        """Return the number of keys of all batches. Those in several batches count several times."""
        return sum(batch.keys for batch in self.batches)

    @property
    def nbytes(self) -> int:
        """Return the bytes of all batches."""
        return sum(batch.nbytes for batch in self.batches)

    # Merging.

    def pause(self, *, wait: bool = True) -> None:
        """Let no merge start; wait for those under way unless told otherwise. Reads and inserts go on."""
        self._driver.run(merge_spine.pause(wait))

    def resume(self) -> None:
        """Let merges start again."""
        self._driver.run(merge_spine.resume())

    def complete_merges(self) -> None:
        """Merge everything that is there into one batch, with filters applied, while others read and insert."""
        self._driver.run(merge_spine.compact_spine(rewrites=True))

    def consolidate(self) -> Batch | None:
        """Merge everything into one batch, and return it; None if nothing is left."""
        self.complete_merges()
        found = self.batches
        if len(found) > 1:
            raise UsageError("batches were inserted meanwhile: stop inserting before you consolidate")
        return found[0] if found else None

    @property
    def is_compaction_complete(self) -> bool:
        """Return whether everything is in one batch, or there is none."""
        return levels.is_compaction_complete(self._driver.levels)

    def is_settled(self) -> bool:
        """Return whether no merge is under way, and none is due."""
        return levels.is_settled(self._driver.levels, self._driver.resources())

    def relieve_memory(self) -> None:
        """Let levels merge early, to files, if memory became short while nothing changed here.

        Every change of a spine looks at the memory of all spines of the process; this is for those that rest, while
        other things of the process grow.
        """
        self._driver.wake_if_memory_is_short(batch_bytes())

    # Keeping.

    def save(self, *, origin: bytes | None = None) -> int:
        """Save a checkpoint to the folder, and return its number. Only batches that have no file yet are written.

        `origin` is kept with it: what the rows are of.
        """
        if origin is not None:
            self._driver.set_origin(origin)
        manifest = self._driver.run(save_spine.save())
        return int(manifest.number)

    def release_folder(self) -> None:
        """Go on without the folder, so that another spine may have it. What was written there stays readable."""
        self._driver.release_folder()

    @property
    def is_dirty(self) -> bool:
        """Return whether updates were inserted since the flag was cleared."""
        return self._driver.levels.is_dirty

    def clear_dirty_flag(self) -> None:
        """Forget that updates were inserted."""
        self._driver.swap(level_transitions.clear_dirty)

    def fork(self) -> Spine:
        """Return a spine of its own with the same batches. Filters are not copied, and it has no folder."""
        other = Spine(self.layout.schema, self.layout.by, **self._options)
        other._driver.start_from(level_transitions.fork(self._driver.levels))
        return other

    def metrics(self) -> dict[str, Any]:
        """Return figures of batches, merges, waiting, memory and filters by their names; those of levels as a list."""
        return spine_metrics(self._driver, self._counts)

    def level_metrics(self) -> pa.Table:
        """Return the figures of the levels as a table, a row for each level."""
        return pa.Table.from_pylist(self.metrics()["levels"])

    def __repr__(self) -> str:
        counts = "/".join(str(len(slot.entries)) for slot in self._driver.levels.slots)
        return f"Spine({len(self)} updates by {shown_names(self.layout.by)}, batches by level {counts})"

    def close(self) -> None:
        """End merging. Merges under way are given up: their inputs are still there, and nothing is lost."""
        self._driver.run(merge_spine.close())
        self._driver.close()

    def __enter__(self) -> Spine:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _filter(where: RowCondition) -> RowFilter:
    return where if callable(where) and not isinstance(where, str) else as_predicate(where)

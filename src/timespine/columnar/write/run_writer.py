"""The single path of rows into storage: buffer them, cut parts, encode, upload, and list them as sorted runs.

Appends, loads, batches that are built by hand, Spark tasks and merges all write through `RunWriter`. How rows come
decides how many runs there are.

- In order: ascending in (row, time) across all tables, no update twice, no diff 0. All parts are one run. Of a long
  run most parts are listed in hollow runs, which are put while further rows come.
- In any order: each part is consolidated and sorted by itself, in the thread that encodes it. So it is a sorted run
  of one part, which can be merged as a stream and searched by its bounds. A part left as it came would have to be
  sorted by every reader, whole, in memory. At the end, parts that do not overlap are chained into one run: if rows
  came by ranges, or in order, there are few runs, or one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from types import TracebackType

import pyarrow as pa

from timespine.columnar.kernels.consolidate import consolidate
from timespine.columnar.parts.copied_groups import RowGroups
from timespine.columnar.parts.inline_part import InlineRule
from timespine.columnar.parts.part_list_tree import Counters, Levels, add_to_counter, delete_keys
from timespine.columnar.write.chain_runs import chain_non_overlapping
from timespine.columnar.write.update_buffer import OVER, Buffer
from timespine.columnar.write.upload import StoredPart, Upload, Uploads, UploadTarget
from timespine.core.batch import Order, Part, Run
from timespine.errors import UsageError
from timespine.pool import outcome

NO_LISTS = sys.maxsize
"""The value of `run_parts` with which a run of any number of parts is not spilled."""


class RunWriter:
    """A writer of the rows of one batch as few sorted runs. Not for several threads at once.

    Memory, at most about

        table + part_bytes * (1 + 1/OVER) + outstanding_parts * part_bytes * 3

    is in use: the table that is being added, the rows that are gathered, and of each part under way its rows, their
    sorted copy, and their encoding. Nothing of it grows with the number of rows, but a reference per part.

    Parts are encoded and uploaded in `pool`; without one, in the thread that adds rows. Once an upload failed for
    good, or a call was interrupted, every call raises and only `abort` is left. As a context manager it aborts when
    an exception leaves the block.
    """

    def __init__(
        self,
        target: UploadTarget,
        fresh: Callable[[str], str],
        counters: Counters,
        pool: Executor | None = None,
        *,
        is_sorted: bool = True,
        run_parts: int | None = None,
    ) -> None:
        config = target.config
        self._target = target
        self._fresh = fresh
        self._counters = counters
        self._is_sorted = is_sorted
        self._uploads = Uploads(config.outstanding_parts, pool, counters, target.clock)
        self._buffer = Buffer(config.part_bytes)
        self._mixed: list[pa.Table | RowGroups] = []
        """What the next part is made of if it has row groups that are copied; then the buffer is empty."""
        self._mixed_bytes = 0
        self._levels: Levels[Upload | StoredPart] = Levels(run_parts or config.run_parts, self._put_list)
        self._pieces: list[Upload | list[StoredPart]] = []
        self._part_keys: list[str] = []
        self._list_keys: list[str] = []
        self._has_parts = False
        self._has_hidden = False

    @property
    def rows(self) -> int:
        """Return the number of buffered updates whose upload has not begun."""
        return self._buffer.rows + sum(int(each.num_rows) for each in self._mixed if isinstance(each, pa.Table))

    @property
    def keys(self) -> list[str]:
        """Return the keys of blobs that this writer may have put, in the order for deleting them.

        They include failed puts, which may have happened. Lists come after their parts, outer lists last.
        """
        return [*self._part_keys, *self._list_keys]

    def check(self) -> None:
        """Raise the failure of an upload or a call, if there was one."""
        self._uploads.check()

    def add(self, table: pa.Table) -> bool:
        """Add rows, and send full parts; return whether there was one. Wait while too many uploads are pending."""
        if table.num_rows == 0:
            return False
        with self._all_or_failed():
            if self._mixed and self._mixed_bytes + table.nbytes <= self._target.config.part_bytes:
                self._mixed.append(table)
                self._mixed_bytes += table.nbytes
                return False
            self._send_mixed()
            full = self._buffer.push(table)
            for part in full:
                self._send(part)
        return bool(full)

    def add_groups(self, groups: RowGroups) -> None:
        """Add row groups of a stored part, which come after the added rows, and whose bytes are copied."""
        assert self._is_sorted, "rows in any order are sorted part by part"
        with self._all_or_failed():
            if self._buffer.rows:
                rest = self._buffer.drain()
                self._mixed, self._mixed_bytes = [rest], rest.nbytes
            part_bytes = self._target.config.part_bytes
            while self._mixed_bytes + sum(groups.sizes) > part_bytes + part_bytes // OVER:
                ends = accumulate(groups.sizes, initial=self._mixed_bytes)
                count = max(sum(end <= part_bytes for end in ends) - 1, 0 if self._mixed else 1)
                self._mixed += [groups.take(groups.groups[:count])] if count else []
                self._send_mixed()
                if count == len(groups.groups):
                    return
                groups = groups.take(groups.groups[count:])
            self._mixed.append(groups)
            self._mixed_bytes += sum(groups.sizes)

    def refer(self, parts: Sequence[Part], *, is_hidden: bool = False) -> None:
        """Append references to stored parts, which are sorted and come after the added rows.

        SUBTLE: hidden parts are those that a merge passes through from a hollow run. Their writer may be gone, so no
        state may begin to list them; a new hollow run may, since the result names its run (`MergeOutput.passed`).
        """
        with self._all_or_failed():
            self._flush()
            self._has_parts = True
            self._has_hidden |= is_hidden
            stored = [StoredPart.of(part) for part in parts]
            if self._is_sorted:
                for each in stored:
                    self._levels.push(each)
            elif stored:
                self._pieces.append(stored)

    def finish(self, inline: InlineRule | None = None) -> tuple[Run, ...]:
        """Return everything as runs, once it is durable: inline, if nothing was sent and the rule allows it."""
        with self._all_or_failed():
            if inline is not None and self._buffer.rows and not self._has_parts:
                part = self._inline_part(inline)
                if part is not None:
                    return (Run((part,), Order.SORTED, self._target.schema_id),)
            self._flush()
            if self._is_sorted:
                lists = [self._finish_run()]
            else:
                lists = [self._list(chain) for chain in self._chains()]
        return tuple(Run(parts, Order.SORTED, self._target.schema_id) for parts in lists if parts)

    def abort(self) -> int:
        """Stop, and delete the blobs of this writer; return how many could not be deleted."""
        self._buffer = Buffer(self._target.config.part_bytes)
        self._mixed, self._mixed_bytes = [], 0
        self._uploads.cancel()
        # Not in the pool, whose shutdown may be the cause of the abort.
        left = delete_keys(self.keys, self._target.blob, None)
        add_to_counter(self._counters, "left to the sweep", left)
        return left

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        if value is not None:
            self.abort()

    @contextmanager
    def _all_or_failed(self) -> Iterator[None]:
        """Fail the writer on every error inside, an interrupt too, so that only `abort` works.

        SUBTLE: rows that were taken out of the buffer and not sent are lost. A writer that went on would finish
        runs without them (test_a_batch_whose_building_was_interrupted_can_only_be_aborted).
        """
        try:
            yield
        except BaseException as error:
            if self._uploads.failure is None:
                interrupted = UsageError("building the batch was interrupted: abort it")
                self._uploads.failure = error if isinstance(error, Exception) else interrupted
            raise

    def _flush(self) -> None:
        """Send the buffered rows."""
        self._send_mixed()
        if self._buffer.rows:
            self._send(self._buffer.drain())

    def _send_mixed(self) -> None:
        """Begin to upload a part with row groups that are copied, if there are any."""
        held, self._mixed, self._mixed_bytes = self._mixed, [], 0
        if any(isinstance(each, RowGroups) for each in held):
            self._begin(lambda name: partial(self._target.send_groups, name, held))
        elif held:
            self._send(pa.concat_tables(held))

    def _send(self, table: pa.Table, *, is_consolidated: bool = False) -> None:
        """Begin to upload a part."""
        held = [table]
        del table
        is_consolidated |= self._is_sorted
        self._begin(lambda name: partial(self._target.send_part, name, held, is_consolidated=is_consolidated))

    def _begin(self, work: Callable[[str], Callable[[], StoredPart | None]]) -> None:
        """Begin to upload a part, given what does it for the name of the part."""
        name = self._fresh("p")
        self._part_keys.append(self._target.key(name))
        self._has_parts = True
        upload = self._uploads.start(work(name))
        if self._is_sorted:
            self._levels.push(upload)
        else:
            self._pieces.append(upload)
        self._uploads.check()

    def _inline_part(self, inline: InlineRule) -> Part | None:
        """Make an inline part of all rows; send them and return None if they are too many, or none is left."""
        rest = self._buffer.drain()
        if not inline.may_fit(rest):
            self._send(rest)
            return None
        if not self._is_sorted:
            rest = consolidate(rest, self._target.order)
        part = inline.part_of(rest) if rest.num_rows else None
        if part is None and rest.num_rows:
            self._send(rest, is_consolidated=True)
        return part

    def _chains(self) -> list[list[StoredPart]]:
        """Chain the parts of rows in any order into few sorted runs."""
        self._uploads.drain()
        pieces: list[list[StoredPart]] = []
        for each in self._pieces:
            if isinstance(each, list):
                pieces.append(each)
            elif (stored := outcome(each)) is not None:
                pieces.append([stored])
        chains = chain_non_overlapping((piece[0].first, piece[-1].last, piece) for piece in pieces)
        return [[stored for piece in chain for stored in piece] for chain in chains]

    def _list(self, stored: Sequence[StoredPart]) -> tuple[Part, ...]:
        """List the parts of one run."""
        for each in stored:
            self._levels.push(each)
        return self._finish_run()

    def _finish_run(self) -> tuple[Part, ...]:
        """List the parts of the pushed run: few, the others inside hollow runs; one hollow run for hidden parts."""
        top = self._levels.finish()
        if self._has_hidden and top:
            top = [self._put_list(top)]
        self._uploads.drain()
        return tuple(stored.part for each in top if (stored := self._wait_stored(each)) is not None)

    def _put_list(self, children: list[Upload | StoredPart]) -> Upload:
        """Begin to upload a list of parts. Wait for the parts, since the list contains their statistics."""
        stored = [each for child in children if (each := self._wait_stored(child)) is not None]
        name = self._fresh("h")
        self._list_keys.append(self._target.key(name))
        return self._uploads.start(partial(self._target.send_list, name, stored))

    def _wait_stored(self, part: Upload | StoredPart) -> StoredPart | None:
        return part if isinstance(part, StoredPart) else self._uploads.wait(part)

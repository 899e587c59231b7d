"""Batches, built table by table within a bound of memory.

A builder gathers updates until they fill a part, and then encodes and uploads
the part beside whoever adds the next ones. What comes out is a hollow batch: a
description, and references to the parts. Nothing of it is part of a collection
until it is committed; what is never committed is deleted by `abort`, by
`delete_batch`, or by the sweep once the writer is gone.

How the rows come decides how many runs there are.

- SORTED: ascending in (row, time) across all tables, no update twice, no diff 0.
  All parts are one run. If there are many, most are listed in hollow runs.
- UNORDERED: in any order. Each part is consolidated and sorted by itself before it
  is written, in the same thread that encodes it. So it is a sorted run of one
  part, which can be merged as a stream and searched by its bounds. A part left as
  it came would have to be sorted by every reader, whole, in memory; and it would
  be a multiple of the size, which costs storage more than sorting costs us.
  (Runs with `Order.UNORDERED` exist all the same: drained data is pushed by
  reference, and nobody has sorted it across writers.) Parts that do not overlap
  are then put one after the other into one run: if the rows came by ranges, or
  were sorted all along without anybody saying so, there are few runs, or one.
"""

from __future__ import annotations

import enum
import heapq
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from timespine.columnar.buffer import Buffer, Latest, check_ascending, check_not_before, check_updates, times_of
from timespine.columnar.consolidate import consolidate
from timespine.columnar.inline import decode_inline, encode_inline
from timespine.columnar.part_footer import hash_of
from timespine.columnar.runs import Counters, Levels, count, delete_keys, spill
from timespine.columnar.schema import DIFF, Schema
from timespine.columnar.stats import PartMeta, describe
from timespine.columnar.upload import Sent, Target, Uploads
from timespine.config import Config
from timespine.core.hollow import HollowBatch, Order, Part, Run, wrap_int64
from timespine.errors import UsageError
from timespine.ids import check_segment
from timespine.location.blob import Blob
from timespine.model.description import Description
from timespine.model.frontier import Frontier, check_arity_of

T = TypeVar("T")

MARK_BYTES = 8
"""Bytes by which inline data that was built by hand says which collection it is for."""

INLINE_RATIO = 16
"""Rows of so many times the size of an inline part are tried: they may be compressed to fit."""


class Added(enum.Enum):
    """What came of adding updates."""

    ROWS = "rows"
    """They wait for more."""
    ROWS_AND_PARTS = "rows and parts"
    """At least one part is full, and on its way to storage."""


class _Phase(enum.Enum):
    OPEN = "open"
    FINISHED = "finished"
    ABORTED = "aborted"


class BatchBuilder:
    """Makes one batch [lower, upper) of updates. Not for several threads at once.

    Parts are encoded and uploaded in `pool`; without one, by whoever adds. An upload
    that fails for good is raised by the next call; then there is nothing left to
    do but `abort`. As a context manager it aborts unless it was finished.
    """

    def __init__(
        self,
        collection: str,
        writer: str,
        schema: Schema,
        schema_id: int,
        lower: Frontier,
        since: Frontier,
        blob: Blob,
        config: Config,
        *,
        fresh: Callable[[str], str],
        order: Order = Order.UNORDERED,
        counters: Counters | None = None,
        pool: Executor | None = None,
        finished: Callable[[HollowBatch], None] = lambda batch: None,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._phase = _Phase.ABORTED  # until everything is checked: there is nothing to warn of
        check_segment(collection, "collection id")
        check_segment(writer, "writer id")
        check_arity_of(lower, schema.arity, "lower")
        check_arity_of(since, schema.arity, "since")
        self.lower = lower
        """No update may be before this."""
        self.since = since
        """The batch is exact from here on."""
        self.order = order
        """How the rows come."""
        self.counters: Counters = {} if counters is None else counters
        """What is counted, by name: see `columnar.upload`."""
        self._target = Target(collection, writer, schema, schema_id, blob, config, clock, sleep)
        self._fresh = fresh
        self._finished = finished
        self._pool = pool
        self._uploads = Uploads(config.outstanding_parts, pool, self.counters, clock)
        self._buffer = Buffer(config.part_bytes)
        self._latest = Latest(schema.arity)
        self._last: pa.Table | None = None
        self._pieces: list[Future[Sent]] = []
        self._part_keys: list[str] = []
        self._run_keys: list[str] = []
        # Not a method of this builder: a cycle would keep it alive, and its warning from being seen, for a while.
        gather = partial(_gathered, self._target, self._uploads, fresh, self._run_keys)
        self._levels: Levels[Future[Sent]] = Levels(config.run_parts, gather)
        self._phase = _Phase.OPEN

    def add(self, table: pa.Table) -> Added:
        """Add an update table. A UsageError changes nothing; waits while too many parts are under way."""
        self._check_open()
        target = self._target
        table = check_updates(table, target.schema)
        if table.num_rows == 0:
            return Added.ROWS
        times = times_of(table, target.schema)
        check_not_before(times, self.lower)
        if self.order is Order.SORTED:
            check_ascending(self._last, table, target.order)
        with self._all_or_failed():
            if self.order is Order.SORTED:
                self._last = table.take([table.num_rows - 1])
            self._latest.see(times)
            full = self._buffer.push(table)
            for part in full:
                self._send(part)
        return Added.ROWS_AND_PARTS if full else Added.ROWS

    def finish(self, upper: Frontier) -> HollowBatch:
        """The batch, when everything of it is durable. A UsageError about the upper changes nothing."""
        self._check_open()
        check_arity_of(upper, self._target.schema.arity, "upper")
        if not self.lower <= upper:
            raise UsageError(f"a batch cannot begin at {self.lower} and end before, at {upper}")
        # Compacted updates (since past the lower) were advanced, perhaps to beyond the upper: nothing
        # can be said of their times. All others must be where the batch says.
        if self.since <= self.lower:
            self._latest.check_before(upper)
        with self._all_or_failed():
            runs = self._finish_runs()
        self._phase = _Phase.FINISHED
        rows = sum(part.rows for run in runs for part in run.parts)
        batch = HollowBatch(Description(self.lower, upper, self.since), rows, runs)
        self._finished(batch)
        return batch

    def abort(self) -> int:
        """Give up, and delete what was uploaded; how many blobs could not be. Again is fine."""
        if self._phase is _Phase.FINISHED:
            raise UsageError("the batch is finished: delete it with delete_batch, if it is not committed")
        if self._phase is _Phase.ABORTED:
            return 0
        self._phase = _Phase.ABORTED
        self._buffer = Buffer(self._target.config.part_bytes)
        self._uploads.cancel()
        blob = self._target.blob
        # Also what failed: it may have happened. Lists go after what they list, outer ones last.
        left = delete_keys(self._part_keys, blob, self._pool)
        left += delete_keys(self._run_keys, blob, None)
        count(self.counters, "left to the sweep", left)
        return left

    def __enter__(self) -> BatchBuilder:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        if self._phase is _Phase.OPEN:
            self.abort()

    def __del__(self) -> None:
        if self._phase is _Phase.OPEN and (self._buffer.rows or self._part_keys):
            count(self.counters, "builders dropped")
            warnings.warn(
                f"a batch of collection {self._target.collection} was neither finished nor aborted: "
                f"{self._buffer.rows} updates are lost, and {len(self._part_keys)} parts are left to the sweep",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    def _check_open(self) -> None:
        if self._phase is not _Phase.OPEN:
            raise UsageError(f"the batch is {self._phase.value} already: build another one")
        self._uploads.check()

    @contextmanager
    def _all_or_failed(self) -> Iterator[None]:
        """Whatever goes wrong inside, an interrupt too, leaves nothing but `abort`.

        SUBTLE: rows that were taken out of the buffer and not sent are lost. A builder that
        went on would finish a batch without them.
        """
        try:
            yield
        except BaseException as error:
            if self._uploads.failure is None:
                interrupted = UsageError("building the batch was interrupted: abort it")
                self._uploads.failure = error if isinstance(error, Exception) else interrupted
            raise

    def _send(self, table: pa.Table, *, is_consolidated: bool | None = None) -> None:
        """Begin to upload a part."""
        name = self._fresh("p")
        self._part_keys.append(self._target.key(name))
        known = self.order is Order.SORTED if is_consolidated is None else is_consolidated
        held = [table]
        del table
        future = self._uploads.start(partial(self._target.send_part, name, held, is_consolidated=known))
        if self.order is Order.SORTED:
            self._levels.push(future)
        else:
            self._pieces.append(future)
        self._uploads.check()

    def _finish_runs(self) -> tuple[Run, ...]:
        """Everything that was added, as runs."""
        target = self._target
        if self._buffer.rows:
            rest = self._buffer.drain()
            if not self._part_keys and rest.nbytes <= INLINE_RATIO * target.config.inline_part_bytes:
                if self.order is not Order.SORTED:
                    rest = consolidate(rest, target.order)
                if rest.num_rows == 0:
                    return ()
                inline = self._inline(rest)
                if inline is not None:
                    return (Run((inline,), Order.SORTED, target.schema_id),)
                self._send(rest, is_consolidated=True)
            else:
                self._send(rest)
        if self.order is Order.SORTED:
            futures = self._levels.finish()
            self._uploads.drain()
            chains = [[part for future in futures if (part := future.result().part) is not None]]
        else:
            self._uploads.drain()
            pieces = [future.result() for future in self._pieces]
            chains = chained((each.first, each.last, each.part) for each in pieces if each.part is not None)
        limit = target.config.run_parts
        lists = [spill(chain, self._list_key, self._put_list, limit=limit) for chain in chains if chain]
        return tuple(Run(parts, Order.SORTED, target.schema_id) for parts in lists)

    def _inline(self, table: pa.Table) -> Part | None:
        """The rows as a part that lives in the state, if they are few enough."""
        config = self._target.config
        data = encode_inline(table)
        if len(data) > config.inline_part_bytes:
            return None
        # No statistics of columns: they would take as much room in the state as the rows, which are at hand.
        meta = describe(table, self._target.schema, sorted=True, budget=0, bound_bytes=config.bound_bytes)
        meta = msgspec.structs.replace(meta, tail_hash=_mark(self._target.collection))
        diff_sum = wrap_int64(pc.sum(table.column(DIFF)).as_py())
        count(self.counters, "inline parts")
        count(self.counters, "inline bytes", len(data))
        return Part("", table.num_rows, len(data), diff_sum, inline=data, meta=meta.encode())

    def _list_key(self) -> str:
        return self._target.key(self._fresh("h"))

    def _put_list(self, key: str, data: bytes) -> None:
        """Put the list of a hollow run, at once."""
        self._run_keys.append(key)
        retries = self._target.put(key, data)
        for what, by in (("runs spilled", 1), ("run bytes", len(data)), ("put retries", retries)):
            count(self.counters, what, by)


def _gathered(
    target: Target, uploads: Uploads, fresh: Callable[[str], str], keys: list[str], children: list[Future[Sent]]
) -> Future[Sent]:
    """Begin to upload a list of parts. Waits for them: a list says what is true of what it lists."""
    parts = [part for child in children if (part := uploads.wait(child).part) is not None]
    name = fresh("h")
    keys.append(target.key(name))
    return uploads.start(partial(target.send_run, name, parts))


def chained(pieces: Iterable[tuple[bytes, bytes, T]]) -> list[list[T]]:
    """Sorted pieces (first update, last update, piece) as few sorted runs: those that do not overlap one after another.

    They are taken by their first update, and each goes to the run that ends first, if it ends
    before. That gives as many runs as pieces overlap in one place, which is the least there can be.
    """
    chains: list[list[T]] = []
    ends: list[tuple[bytes, int]] = []
    for first, last, piece in sorted(pieces, key=lambda each: each[0]):
        if ends and ends[0][0] < first:
            _, chain = heapq.heappop(ends)
        else:
            chain = len(chains)
            chains.append([])
        chains[chain].append(piece)
        heapq.heappush(ends, (last, chain))
    return chains


def is_inline_of(part: Part, collection: str) -> bool:
    """Whether inline data was built for this collection. A blob says so by its key; this has none."""
    return bool(part.meta) and PartMeta.decode(part.meta).tail_hash == _mark(collection)


def _mark(collection: str) -> bytes:
    return hash_of(collection.encode())[:MARK_BYTES]


def flush_to_blob(
    batch: HollowBatch,
    collection: str,
    writer: str,
    schema_of: Callable[[int], Schema],
    blob: Blob,
    config: Config,
    *,
    fresh: Callable[[str], str],
    counters: Counters,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> HollowBatch:
    """The same batch with its inline parts in blobs, for a state that has no room for them.

    Parts stay in their place, with their truncation and rewriting, under the schema of their run.
    """
    put: list[str] = []

    def flushed(part: Part, run: Run) -> Part:
        if part.inline is None:
            return part
        if run.schema is None:
            raise UsageError("an inline part whose run names no schema cannot be put into a blob")
        target = Target(collection, writer, schema_of(run.schema), run.schema, blob, config, clock, sleep)
        table = decode_inline(part.inline, target.schema, part.rows, config)
        name = fresh("p")
        put.append(target.key(name))
        is_sorted = run.order is Order.SORTED
        sent = target.send_part(name, [table], is_consolidated=True, is_sorted=is_sorted)
        for what, by in sent.counts.items():
            count(counters, what, by)
        if sent.part is None:
            raise UsageError("an inline part without updates cannot be put into a blob")
        return msgspec.structs.replace(sent.part, lower=part.lower, upper=part.upper, rewrite=part.rewrite)

    try:
        runs = tuple(
            msgspec.structs.replace(run, parts=tuple(flushed(part, run) for part in run.parts)) for run in batch.runs
        )
    except Exception:
        count(counters, "left to the sweep", delete_keys(put, blob, None))
        raise
    return msgspec.structs.replace(batch, runs=runs)

"""Build batches table by table: the builder checks added updates, and a `RunWriter` writes them.

The result is a hollow batch: a description, and references to parts. It is part of a collection only after its
commit. `abort`, `delete_batch`, or the sweep after the end of the writer delete the blobs of a batch that is never
committed.
"""

from __future__ import annotations

import enum
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from types import TracebackType
from typing import NoReturn, SupportsIndex

import pyarrow as pa

from timespine.columnar.parts.inline_part import InlineRule, describe_inline
from timespine.columnar.parts.part_list_tree import Counters, add_to_counter
from timespine.columnar.schema.schema import Schema
from timespine.columnar.write.run_writer import RunWriter
from timespine.columnar.write.update_checks import MaxTimes, check_ascending, check_not_before, check_updates, times_of
from timespine.columnar.write.upload import UploadTarget
from timespine.config import Config
from timespine.core.batch import HollowBatch, Order, rows_in
from timespine.errors import UsageError, WrongProcess
from timespine.ids import check_segment
from timespine.location.blob import Blob
from timespine.model.description import Description
from timespine.model.frontier import Frontier, check_arity_of


class AddResult(enum.Enum):
    """The result of adding updates."""

    ROWS = "rows"
    """The buffer keeps the updates."""
    ROWS_AND_PARTS = "rows and parts"
    """At least one part is full, and its upload has begun."""


class _Phase(enum.Enum):
    OPEN = "open"
    FINISHED = "finished"
    ABORTED = "aborted"


class BatchBuilder:
    """A builder of one batch [lower, upper) of updates, in order or in any order. Not for several threads at once.

    Memory and uploads are those of `RunWriter`. The call after an upload that failed for good raises its error; then
    only `abort` works. As a context manager it aborts unless it was finished.
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
        """The order of the rows."""
        self.counters: Counters = {} if counters is None else counters
        """The counters by name: see `columnar.write.upload`."""
        self._target = UploadTarget(collection, writer, schema, schema_id, blob, config, clock, sleep)
        self._writer = RunWriter(self._target, fresh, self.counters, pool, is_sorted=order is Order.SORTED)
        self._finished = finished
        self._max_times = MaxTimes(schema.arity)
        self._last: pa.Table | None = None
        self._phase = _Phase.OPEN

    def add(self, table: pa.Table) -> AddResult:
        """Add an update table. A UsageError changes nothing. Wait while too many uploads are pending."""
        self._check_open()
        target = self._target
        table = check_updates(table, target.schema)
        if table.num_rows == 0:
            return AddResult.ROWS
        times = times_of(table, target.schema)
        check_not_before(times, self.lower)
        if self.order is Order.SORTED:
            check_ascending(self._last, table, target.order)
            self._last = table.take([table.num_rows - 1])
        self._max_times.see(times)
        return AddResult.ROWS_AND_PARTS if self._writer.add(table) else AddResult.ROWS

    def finish(self, upper: Frontier) -> HollowBatch:
        """Return the batch when all of it is durable. A UsageError about the upper changes nothing."""
        self._check_open()
        check_arity_of(upper, self._target.schema.arity, "upper")
        if not self.lower <= upper:
            raise UsageError(f"a batch cannot begin at {self.lower} and end before, at {upper}")
        # Compacted updates (since past the lower) were advanced, perhaps to beyond the upper: nothing
        # can be said of their times. All others must be where the batch says.
        if self.since <= self.lower:
            self._max_times.check_before(upper)
        target = self._target
        limit = target.config.inline_part_bytes
        describe = partial(describe_inline, schema=target.schema, collection=target.collection, config=target.config)
        runs = self._writer.finish(InlineRule(limit, limit, describe))
        self._phase = _Phase.FINISHED
        batch = HollowBatch(Description(self.lower, upper, self.since), rows_in(runs), runs)
        if batch.inline_bytes:
            add_to_counter(self.counters, "inline parts")
            add_to_counter(self.counters, "inline bytes", batch.inline_bytes)
        self._finished(batch)
        return batch

    def abort(self) -> int:
        """Abort, and delete uploaded blobs; return how many could not be deleted. A second call does nothing."""
        if self._phase is _Phase.FINISHED:
            raise UsageError("the batch is finished: delete it with delete_batch, if it is not committed")
        if self._phase is _Phase.ABORTED:
            return 0
        self._phase = _Phase.ABORTED
        return self._writer.abort()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise WrongProcess(
            "a BatchBuilder belongs to the process that made it and cannot be pickled: finish its batch, and send that "
            "with Writer.transmit"
        )

    def __enter__(self) -> BatchBuilder:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        if self._phase is _Phase.OPEN:
            self.abort()

    def __del__(self) -> None:
        if self._phase is _Phase.OPEN and (self._writer.rows or self._writer.keys):
            parts = len(self._writer.keys)
            add_to_counter(self.counters, "builders dropped")
            warnings.warn(
                f"a batch of collection {self._target.collection} was neither finished nor aborted: "
                f"{self._writer.rows} updates are lost, and {parts} blobs are left to the sweep",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    def _check_open(self) -> None:
        if self._phase is not _Phase.OPEN:
            raise UsageError(f"the batch is {self._phase.value} already: build another one")
        self._writer.check()

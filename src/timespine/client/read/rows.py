"""Rows of a read: planned under a lease, read on request, whole or piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa

from timespine.client.lazy_spark import load_spark_module
from timespine.client.read.to_dicts import to_dicts, to_pandas_frame
from timespine.client.refuse_pickle import OneProcess
from timespine.columnar.kernels.consolidate import RowOverflow, consolidate
from timespine.columnar.parts.part_reader import MissingBlob
from timespine.columnar.scan.parallel_scan import scan_in_shares
from timespine.columnar.scan.part_access import Parts, ScanStats
from timespine.columnar.scan.row_count import count_rows
from timespine.columnar.scan.scan import parts_readable_as_is, scan
from timespine.columnar.scan.scan_request import ScanRequest, empty_table
from timespine.columnar.scan.split_keys import split_keys
from timespine.columnar.scan.worker_slice import Slice, cut_slices
from timespine.columnar.schema.schema import DIFF, Schema
from timespine.core.batch import Part, Run
from timespine.core.read_plan import REPLANS, Plan, plan_changes, plan_snapshot
from timespine.errors import CorruptionError, HandleExpired, LeaseExpired, UsageError, short_repr
from timespine.hints import Hint
from timespine.libraries import pl
from timespine.model.time import INT64_MAX, Time

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

    from timespine.client.arguments.argument_types import Row
    from timespine.client.inner_handles import CollectionHandle
    from timespine.client.read.leases import LeasedState
    from timespine.columnar.predicate.key_set import KeySet
    from timespine.columnar.predicate.predicate import Predicate
    from timespine.core.state import State
    from timespine.model.frontier import Frontier

T = TypeVar("T")

BATCH_ROWS = 65_536
"""Most rows of one record batch of a stream."""


ScanFunction = Callable[[Parts, Sequence[Run], ScanRequest, int], Iterator[pa.Table]]
"""A function that reads runs."""

REPEATED_MAX = 1 << 31
"""Most rows that one table of a scan may become when each occurs as often as it counts. Streams have no limit."""


class Rows(OneProcess):
    """A planned read. It holds history until it is closed or garbage collected.

    Reading twice gives the same rows twice.
    """

    def __init__(
        self,
        handle: CollectionHandle,
        leased: LeasedState,
        plan: Plan | None,
        request: ScanRequest,
        multiplicity: str,
        *,
        state: State | None = None,
        one_state: bool = False,
    ) -> None:
        self._handle = handle
        """The collection of the read."""
        self._leased = leased
        """The lease that keeps the blobs of the read; none if there are no blobs, or in a store that may not write."""
        self._plan = plan
        """The plan of the read; None if no time is complete."""
        self._request = request
        """The rows and columns to read."""
        self.multiplicity = multiplicity
        """How rows occur: each as often as it counts ("rows"), or once with its count in `_diff` ("column")."""
        self._state = state if state is not None else leased.state
        self._one_state = one_state
        """Whether only this state has just these rows, so that no read of them is planned on a newer one."""
        self._tally = ScanStats()
        """Statistics of the last read: parts and row groups read and skipped, bytes fetched."""

    @property
    def seqno(self) -> int | None:
        """The sequence number of the state of the plan."""
        return self._plan.seqno if self._plan is not None else None

    @property
    def since(self) -> Frontier | None:
        """The since of the collection at the time of planning."""
        return self._plan.since if self._plan is not None else None

    @property
    def upper(self) -> Frontier | None:
        """The upper of the collection at the time of planning."""
        return self._plan.upper if self._plan is not None else None

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the result."""
        return self._empty().schema

    @property
    def _collection_schema(self) -> Schema:
        """The schema of the collection under which the rows are read."""
        return self._request.schema

    def to_arrow(self) -> pa.Table:
        """Read all rows as an Arrow table. Large results come in any order; `batches` keeps the order of rows."""
        return self._read(self._whole_table)

    def _read(self, read: Callable[[], T]) -> T:
        """Read by the plan. Without a lease, plan on a newer state if a merge replaced the batches of the plan."""
        for _ in range(REPLANS):
            try:
                with self._explain_failures():
                    return read()
            except LeaseExpired:
                if not self._plan_again():
                    raise
        raise LeaseExpired("merges keep deleting the blobs of this read: open the store for writing to get a lease")

    @contextmanager
    def _explain_failures(self) -> Iterator[None]:
        """Turn a missing blob into LeaseExpired, or into CorruptionError if the lease is still held."""
        try:
            yield
        except RowOverflow as error:
            schema = self._collection_schema
            raise error.explain(self._handle.name, schema.key_names or schema.names) from error
        except MissingBlob as error:
            self._leased.check()
            raise CorruptionError(f"blob {error.key} is missing though a live lease holds it") from error

    def _plan_again(self) -> bool:
        """Plan on a newer state; return False if a lease keeps the old one, or only that one has these rows."""
        if self._one_state or self._leased.is_leased or self._plan is None:
            return False
        after, until = self._plan.after, self._plan.until
        newest = self._handle.state()
        if newest.seqno == self._plan.seqno:
            raise CorruptionError(f"a blob of {self._handle.name} is missing though its newest state refers to it")
        plan = plan_snapshot(newest, until) if after is None else plan_changes(newest, after, until)
        if not isinstance(plan, Plan):
            raise plan
        check_columns_unchanged(self._request, self._handle.schema(newest)[1], f"a read of {self._handle.name}")
        if self._request.window.since is not None:
            self._request = replace(self._request, window=replace(self._request.window, since=plan.since))
        self._plan, self._state = plan, newest
        return True

    def _whole_table(self) -> pa.Table:
        tables = list(self._tables(self._handle.config.merge_bytes, scan_in_shares))
        if not tables:
            return self._empty()
        table = pa.concat_tables(tables)
        if self.multiplicity == "column" and self._request.is_narrow:
            table = consolidate(table, [name for name in table.column_names if name != DIFF]).select(table.column_names)
        return table

    def to_polars(self) -> pl.DataFrame:
        """Read all rows as a Polars frame, with views of their text where they need no merge."""
        if self.multiplicity == "column":
            return pl.DataFrame(pl.from_arrow(self.to_arrow()))
        return self._read(self._whole_frame)

    def _whole_frame(self) -> pl.DataFrame:
        """Read all rows, each as often as it counts, table by table as frames."""
        request, self._request = self._request, replace(self._request, views=True)
        try:
            tables = list(self._tables(self._handle.config.merge_bytes, scan_in_shares)) or [self._empty()]
        finally:
            self._request = request
        # Some have views of text, others text.
        alike = [pa.concat_tables(group) for _, group in groupby(tables, key=lambda table: table.schema.types)]
        return pl.concat([pl.DataFrame(pl.from_arrow(table, rechunk=False)) for table in alike], rechunk=False)

    def to_pandas(self) -> pd.DataFrame:
        """Read all rows as a pandas frame; pandas must be installed.

        Raise a UsageError if Python has no value for a date.
        """
        return to_pandas_frame(self.to_arrow())

    def to_pylist(self) -> list[Row]:
        """Read all rows as dictionaries. Raise a UsageError if Python has no value for a date or timestamp."""
        return to_dicts(self.to_arrow())

    def batches(self, memory_bytes: int | None = None) -> Iterator[pa.RecordBatch]:
        """Read the rows piece by piece, in bounded memory, in the order of rows.

        Memory must hold all rows of one key, if columns are left out. After `evolve` dropped the first ordered column,
        memory must hold all older rows too, until they are compacted.
        """
        self._check_pieces()
        if memory_bytes is not None and (type(memory_bytes) is not int or memory_bytes < 1):
            raise UsageError(f"memory_bytes is a number of bytes, not {short_repr(memory_bytes)}")
        with self._explain_failures():
            for table in self._tables(memory_bytes or self._handle.config.merge_bytes // 4, scan, limit=None):
                yield from table.to_batches(max_chunksize=BATCH_ROWS)

    def to_reader(self, memory_bytes: int | None = None) -> pa.RecordBatchReader:
        """Read the rows as an Arrow reader (for DuckDB, Polars, pyarrow.dataset)."""
        return pa.RecordBatchReader.from_batches(self.schema, self.batches(memory_bytes))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def count(self) -> int:
        """Count the rows, each as often as it counts: from metadata alone where that is exact.

        The result is the sum of all counts, negative ones included.
        """
        if self._plan is None:
            return 0
        return self._read(lambda: count_rows(self._parts(), self._runs(), self._request))

    def split(self, n: int) -> list[Rows]:
        """Split the read into n disjoint pieces of about equal size, one for each thread."""
        if type(n) is not int or n < 1:
            raise UsageError(f"rows are split into 1 or more pieces, not {n!r:.40}")
        self._check_pieces()
        if self._plan is None or n == 1:
            return [self]
        cuts = self._read(lambda: split_keys(self._parts(), self._runs(), self._request, n))
        return [self._piece(*ends) for ends in pairwise([self._request.lower, *cuts, self._request.upper])]

    def _slices(self, n: int) -> list[Slice]:
        """Split the read into at most n pieces for other processes, which need only the blobs.

        The pieces can be read while this read is open.
        """
        self._check_pieces()
        if self._plan is None:
            return []
        return self._read(lambda: cut_slices(self._parts(), self._state.schemas, self._runs(), self._request, n))

    def _untouched(self) -> list[Part] | None:
        """Return the parts whose files hold exactly these rows; None if there are no such parts."""
        if self._plan is None or self.multiplicity != "rows":
            return None
        return self._read(lambda: parts_readable_as_is(self._parts(), self._runs(), self._request))

    def _extent(self) -> tuple[int, int]:
        """Return upper bounds for the updates and bytes to read."""
        if self._plan is None:
            return 0, 0
        found = [part for run in self._runs() for part in run.parts]
        return sum(part.rows for part in found), sum(part.total_bytes for part in found)

    def to_spark(self, spark: SparkSession, *, partitions: int | None = None, native: bool | str = True) -> DataFrame:
        """Return the rows as a DataFrame of Spark that executors read. A lease holds them while the session lives.

        `partitions` is the number of pieces; with `native=False` Spark does not read the files itself. The name of a
        scheme, such as `native="s3a"`, lets it read those of a bucket too, by a Hadoop filesystem of the session.
        `timespine.spark.release(spark)` releases them earlier.
        """
        to_spark: Callable[..., DataFrame] = load_spark_module("read.to_spark").to_spark
        return to_spark(self, spark, partitions=partitions, native=native)

    def _check_pieces(self) -> None:
        """Raise a UsageError if the result is right only as a whole."""
        if self.multiplicity == "column" and self._request.is_narrow:
            raise UsageError(
                "without the key columns, equal rows come from the whole collection: "
                "read the key columns too, or read it whole"
            )

    def _piece(self, lower: bytes | None, upper: bytes | None) -> Rows:
        """Return a read of a range of the rows. It holds history until it is closed or garbage collected."""
        piece = type(self).__new__(type(self))
        piece.__dict__.update(self.__dict__)
        piece._request = replace(self._request, lower=lower, upper=upper)
        piece._leased = self._leased.share()
        return piece

    def _only(self, keys: KeySet) -> None:
        """Restrict the read to some keys."""
        self._request = replace(self._request, keys=keys)

    def _restrict_to(self, condition: Predicate) -> None:
        """Restrict the read to rows that satisfy a condition."""
        known = self._request.where
        self._request = replace(self._request, where=condition if known is None else known & condition)

    def close(self) -> None:
        """Release history. Reads may fail afterwards."""
        self._leased.close()

    def __enter__(self) -> Rows:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _parts(self) -> Parts:
        """Return the parts of the state of the plan."""
        parts = self._handle.parts(self._state)
        self._tally = parts.scan_stats
        return parts

    def _runs(self) -> tuple[Run, ...]:
        """Return the runs to read. A reader that sums over times needs no run that adds nothing."""
        if self._plan is None:
            return ()
        return (self._plan if self._request.keep_times else self._plan.summed()).runs

    def _tables(self, memory_bytes: int, scan: ScanFunction, limit: int | None = REPEATED_MAX) -> Iterator[pa.Table]:
        """Read, merge, and shape. Raise a UsageError if rows repeated by their counts exceed the limit."""
        if self._plan is None:
            return
        names, runs = list(self.names), self._runs()
        for table in scan(self._parts(), runs, self._request, memory_bytes):
            if table.num_rows == 0:
                continue
            if self.multiplicity == "column":
                yield table.select([*names, DIFF])
            else:
                for piece in repeat_by_diff(table, DIFF, limit):
                    yield piece.select(names)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of the result, without `_diff`."""
        return self._request.columns

    def _empty(self) -> pa.Table:
        names = [*self.names, DIFF] if self.multiplicity == "column" else list(self.names)
        return empty_table(replace(self._request, columns=self._request.schema.names)).select(names)


class Snapshot(Rows):
    """The rows of a collection as of one time."""

    as_of: int | Time | None = None
    """The time; None if no time of the collection is complete yet."""

    def __repr__(self) -> str:
        return f"<snapshot of {self._handle.name} as of {self.as_of}, state {self.seqno}>"


class Updates(Rows):
    """Updates with their times, not accumulated."""

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of the result, without `_diff`."""
        return (*self._request.columns, *self._request.schema.time_names)

    def count(self) -> int:
        """Count the updates."""
        return int(self.to_arrow().num_rows)

    def __repr__(self) -> str:
        return f"<updates of {self._handle.name}, state {self.seqno}>"


def repeat_by_diff(table: pa.Table, diff: str, limit: int | None = None) -> Iterator[pa.Table]:
    """Repeat each row as often as its diff says, in tables of bounded size."""
    counts = table.column(diff).to_numpy()
    if len(counts) == 0 or (counts.min() == 1 and counts.max() == 1):
        yield table
        return
    if counts.min() < 0:
        raise UsageError(
            "some rows have a negative count at this time, so they cannot be repeated as rows", hint=Hint("read-counts")
        )
    total = int(counts.astype(object).sum())
    if limit is not None and total > limit:
        raise UsageError("rows count too often to be given one by one", hint=Hint("read-counts-or-pieces"))
    if total > INT64_MAX:
        raise UsageError("rows count too often to be given one by one", hint=Hint("read-counts"))
    ends = counts.cumsum()
    for start in range(0, total, BATCH_ROWS):
        # The output row at a place, counted from 0, is the first input row whose cumulated count exceeds the place.
        places = np.arange(start, min(start + BATCH_ROWS, total))
        yield table.take(pa.array(np.searchsorted(ends, places, side="right")))


def check_columns_unchanged(wanted: ScanRequest, newest: Schema, what: str) -> None:
    """Raise HandleExpired if a column of the read was dropped or has another type: rows would differ."""
    for name in wanted.read:
        field = wanted.schema.field(name)
        if not newest.has_id(field.id) or newest.by_id(field.id).type != field.type:
            raise HandleExpired(f"column {name} was dropped or widened, so {what} cannot go on: begin again")

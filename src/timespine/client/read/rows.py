"""Rows that a user asked for: planned under a lease, read when they are wanted, whole or piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa

from timespine.client.context import Access
from timespine.client.process_guard import OneProcess
from timespine.client.read.leases import LeasedState
from timespine.client.read.to_dicts import to_dicts
from timespine.client.spark_bridge import handed
from timespine.columnar.kernels.consolidate import consolidate
from timespine.columnar.parts.part_reader import MissingBlob
from timespine.columnar.predicate.keyset import KeySet
from timespine.columnar.predicate.predicate import Predicate
from timespine.columnar.scan.parallel import scan_in_shares
from timespine.columnar.scan.part_set import Parts, Tally
from timespine.columnar.scan.request import Wanted, empty_table
from timespine.columnar.scan.row_count import counted
from timespine.columnar.scan.scan import scan, untouched_parts
from timespine.columnar.scan.slice import Slice, cut
from timespine.columnar.scan.splits import split_keys
from timespine.columnar.schema.schema import DIFF, Schema
from timespine.core.batch import Part, Run
from timespine.core.read_plan import Plan, plan_changes, plan_snapshot
from timespine.core.state import State
from timespine.errors import CorruptionError, DiffOverflow, HandleExpired, LeaseExpired, UsageError, shown
from timespine.hints import Hint
from timespine.model.frontier import Frontier
from timespine.model.time import INT64_MAX, Time

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")

BATCH_ROWS = 65_536
"""Rows of one record batch that a stream gives, at most."""


Scan = Callable[[Parts, Sequence[Run], Wanted, int], Iterator[pa.Table]]
"""How runs are read."""

REPLANS = 16
"""How often a read without a lease is planned again because what it was reading was merged away."""

REPEATED_MAX = 1 << 31
"""Rows that one table of a scan may become when each is given as often as it counts. As a stream there is no limit."""


class Rows(OneProcess):
    """What was asked for, not read yet. It holds history until it is closed or garbage collected.

    Reading twice gives the same rows twice.
    """

    def __init__(
        self,
        access: Access,
        leased: LeasedState,
        plan: Plan | None,
        request: Wanted,
        multiplicity: str,
        *,
        state: State | None = None,
        one_state: bool = False,
    ) -> None:
        self.access = access
        """The collection that is read."""
        self.leased = leased
        """The lease that keeps what is read; or none, in a store that may not write."""
        self.plan = plan
        """What to read; None if no time is complete."""
        self.request = request
        """Which rows and columns are read, and how."""
        self.multiplicity = multiplicity
        """How rows are given: each as often as it counts ("rows"), or once with its count in `_diff` ("column")."""
        self._state = state if state is not None else leased.state
        self._one_state = one_state
        """Whether only this state has just these rows, so that no read of them is planned again on a newer one."""
        self.tally = Tally()
        """What the last read did: parts and row groups read and skipped, bytes fetched."""

    @property
    def seqno(self) -> int | None:
        """The number of the state that this was planned on."""
        return self.plan.seqno if self.plan is not None else None

    @property
    def since(self) -> Frontier | None:
        """History was exact from here on when this was planned."""
        return self.plan.since if self.plan is not None else None

    @property
    def upper(self) -> Frontier | None:
        """The collection was complete below this when this was planned."""
        return self.plan.upper if self.plan is not None else None

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of what is given."""
        return self._empty().schema

    @property
    def columns_of(self) -> Schema:
        """The schema of the collection that this is read under."""
        return self.request.schema

    def to_arrow(self) -> pa.Table:
        """All rows as an Arrow table, in any order if they are many. In the order of rows: `batches`."""
        return self._read(self._whole_table)

    def _read(self, read: Callable[[], T]) -> T:
        """Read by the plan. Without a lease, plan again on a newer state if what was planned was merged away."""
        for _ in range(REPLANS):
            try:
                with self._explain_failures():
                    return read()
            except LeaseExpired:
                if not self._plan_again():
                    raise
        raise LeaseExpired("what was being read keeps going away: read with a lease")

    @contextmanager
    def _explain_failures(self) -> Iterator[None]:
        """Turn a blob that is not there into LeaseExpired, or CorruptionError if the lease is still held."""
        try:
            yield
        except DiffOverflow as error:
            raise DiffOverflow(
                f"a row of {self.access.name} counts more than 64 bits can as of this time: look for it with "
                "updates(), which gives every diff by itself, and append the opposite of some of them; other keys can "
                "be read with `where`"
            ) from error
        except MissingBlob as error:
            self.leased.check()
            raise CorruptionError(f"blob {error.key} is missing though a live lease holds it") from error

    def _plan_again(self) -> bool:
        """Plan on a newer state; False if a lease should have kept the last one, or if only that has these rows."""
        if self._one_state or self.leased.is_leased or self.plan is None:
            return False
        after, until = self.plan.after, self.plan.until
        newest = self.access.state()
        if newest.seqno == self.plan.seqno:
            raise CorruptionError(f"a blob of {self.access.name} is missing though its newest state refers to it")
        plan = plan_snapshot(newest, until) if after is None else plan_changes(newest, after, until)
        if not isinstance(plan, Plan):
            raise plan
        check_schema(self.request, self.access.schema(newest)[1], f"a read of {self.access.name}")
        if self.request.window.since is not None:
            self.request = replace(self.request, window=replace(self.request.window, since=plan.since))
        self.plan, self._state = plan, newest
        return True

    def _whole_table(self) -> pa.Table:
        tables = list(self._tables(self.access.config.merge_bytes, scan_in_shares))
        if not tables:
            return self._empty()
        table = pa.concat_tables(tables)
        if self.multiplicity == "column" and self._is_narrow():
            table = consolidate(table, [name for name in table.column_names if name != DIFF]).select(table.column_names)
        return table

    def to_polars(self) -> pl.DataFrame:
        """All rows as a Polars frame."""
        return pl.DataFrame(pl.from_arrow(self.to_arrow()))

    def to_pandas(self) -> pd.DataFrame:
        """All rows as a pandas frame; pandas must be installed."""
        frame: pd.DataFrame = self.to_arrow().to_pandas()
        return frame

    def to_pylist(self) -> list[dict[str, Any]]:
        """All rows as dictionaries: for small results. A UsageError if Python has no value for a date or timestamp."""
        return to_dicts(self.to_arrow())

    def batches(self, memory_bytes: int | None = None) -> Iterator[pa.RecordBatch]:
        """The rows piece by piece, in bounded memory, in the order of rows.

        What must be in memory at once is all of one key, where columns are left out; and all of what was
        written in another order, from when the first ordered column was dropped until it is compacted.
        """
        self._check_pieces()
        if memory_bytes is not None and (type(memory_bytes) is not int or memory_bytes < 1):
            raise UsageError(f"memory_bytes is a number of bytes, not {shown(memory_bytes)}")
        with self._explain_failures():
            for table in self._tables(memory_bytes or self.access.config.merge_bytes // 4, scan, limit=None):
                yield from table.to_batches(max_chunksize=BATCH_ROWS)

    def to_reader(self, memory_bytes: int | None = None) -> pa.RecordBatchReader:
        """The same as an Arrow reader, for whoever takes one (DuckDB, Polars, pyarrow.dataset)."""
        return pa.RecordBatchReader.from_batches(self.schema, self.batches(memory_bytes))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def count(self) -> int:
        """How many rows there are, as often as each counts: from metadata alone where that is exact.

        It is the sum of all counts: what counts less than zero is taken off.
        """
        if self.plan is None:
            return 0
        return self._read(lambda: counted(self.parts(), self._runs(), self.request))

    def split(self, n: int) -> list[Rows]:
        """The same rows as n disjoint pieces of about equal size, each to be read by its own thread."""
        if type(n) is not int or n < 1:
            raise UsageError(f"rows are split into 1 or more pieces, not {n!r:.40}")
        self._check_pieces()
        if self.plan is None or n == 1:
            return [self]
        cuts = self._read(lambda: split_keys(self.parts(), self._runs(), self.request, n))
        return [self._piece(*ends) for ends in pairwise([self.request.lower, *cuts, self.request.upper])]

    def slices(self, n: int) -> list[Slice]:
        """The same rows as at most n pieces for other processes to read, which need the blobs and nothing else.

        They are whole for as long as this is open.
        """
        self._check_pieces()
        if self.plan is None:
            return []
        return self._read(lambda: cut(self.parts(), self._state.schemas, self._runs(), self.request, n))

    def untouched(self) -> list[Part] | None:
        """The parts whose rows are exactly these, as they stand in their files; None if there are no such parts."""
        if self.plan is None or self.multiplicity != "rows":
            return None
        return self._read(lambda: untouched_parts(self.parts(), self._runs(), self.request))

    def extent(self) -> tuple[int, int]:
        """About how many updates and bytes there are to read, at most."""
        if self.plan is None:
            return 0, 0
        found = [part for run in self.plan.runs for part in run.parts]
        return sum(part.rows for part in found), sum(part.total_bytes for part in found)

    def to_spark(self, spark: Any, **options: Any) -> Any:
        """The rows as a DataFrame of Spark, read by its executors. They are held for as long as the session lives.

        `partitions` says in how many pieces, `native=False` that Spark is not to read the files by itself. To let
        go of them earlier: `timespine.spark.release(spark)`.
        """
        return handed("read.to_spark").to_spark(self, spark, **options)

    def _check_pieces(self) -> None:
        """A UsageError if what is asked for is only right as a whole."""
        if self.multiplicity == "column" and self._is_narrow():
            raise UsageError(
                "rows that are told apart by some columns only come from all over the collection: "
                "ask for the key columns too, or read it whole"
            )

    def _piece(self, lower: bytes | None, upper: bytes | None) -> Rows:
        """Some of the rows. It holds history by itself, until it is closed or garbage collected."""
        piece = type(self).__new__(type(self))
        piece.__dict__.update(self.__dict__)
        piece.request = replace(self.request, lower=lower, upper=upper)
        piece.leased = self.leased.share()
        return piece

    def only(self, keys: KeySet) -> None:
        """Restrict this to the rows of some keys."""
        self.request = replace(self.request, keys=keys)

    def restrict_to(self, condition: Predicate) -> None:
        """Restrict this to the rows for which a condition holds."""
        known = self.request.where
        self.request = replace(self.request, where=condition if known is None else known & condition)

    def close(self) -> None:
        """Let history go. Reading afterwards may fail."""
        self.leased.close()

    def __enter__(self) -> Rows:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def parts(self) -> Parts:
        """The parts of the state that this was planned on."""
        parts = self.access.parts(self._state)
        self.tally = parts.tally
        return parts

    def _runs(self) -> tuple[Run, ...]:
        return self.plan.runs if self.plan is not None else ()

    def _tables(self, memory_bytes: int, scan: Scan, limit: int | None = REPEATED_MAX) -> Iterator[pa.Table]:
        """Read, merge, and shape. More rows than the limit, each as often as it counts, are too many."""
        if self.plan is None:
            return
        names = list(self.names)
        for table in scan(self.parts(), self._runs(), self.request, memory_bytes):
            if table.num_rows == 0:
                continue
            if self.multiplicity == "column":
                yield table.select([*names, DIFF])
            else:
                for piece in repeated(table, DIFF, limit):
                    yield piece.select(names)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are given, without `_diff`."""
        return self.request.columns

    def _is_narrow(self) -> bool:
        """Whether fewer columns are given than rows were told apart by."""
        return set(self.request.read) != set(self.request.columns)

    def _empty(self) -> pa.Table:
        names = [*self.names, DIFF] if self.multiplicity == "column" else list(self.names)
        return empty_table(replace(self.request, columns=self.request.schema.names)).select(names)


class Snapshot(Rows):
    """The collection as of one time."""

    as_of: int | Time | None = None
    """The time; None if no time of the collection is complete yet."""

    def __repr__(self) -> str:
        return f"<snapshot of {self.access.name} as of {self.as_of}, state {self.seqno}>"


class Updates(Rows):
    """Updates with their times: not accumulated."""

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are given, without `_diff`."""
        return (*self.request.columns, *self.request.schema.time_names)

    def count(self) -> int:
        """How many updates there are."""
        return int(self.to_arrow().num_rows)

    def __repr__(self) -> str:
        return f"<updates of {self.access.name}, state {self.seqno}>"


def repeated(table: pa.Table, diff: str, limit: int | None = None) -> Iterator[pa.Table]:
    """Each row as often as its diff says, not too many of them at once."""
    counts = table.column(diff).to_numpy()
    if len(counts) == 0 or (counts.min() == 1 and counts.max() == 1):
        yield table
        return
    if counts.min() < 0:
        raise UsageError(
            "some rows count less than zero at this time, so they cannot be given as rows", hint=Hint("read-counts")
        )
    total = int(counts.astype(object).sum())
    if limit is not None and total > limit:
        raise UsageError("rows count too often to be given one by one", hint=Hint("read-counts-or-pieces"))
    if total > INT64_MAX:
        raise UsageError("rows count too often to be given one by one", hint=Hint("read-counts"))
    ends = counts.cumsum()
    for start in range(0, total, BATCH_ROWS):
        # Of the rows that are given, counted from 0, the one at a place comes from the first that ends after it.
        places = np.arange(start, min(start + BATCH_ROWS, total))
        yield table.take(pa.array(np.searchsorted(ends, places, side="right")))


def check_schema(wanted: Wanted, newest: Schema, what: str) -> None:
    """HandleExpired if a column that is read was dropped or has another type: rows would not be the same rows."""
    for name in wanted.read:
        field = wanted.schema.field(name)
        if not newest.has_id(field.id) or newest.by_id(field.id).type != field.type:
            raise HandleExpired(f"column {name} was dropped or widened, so {what} cannot go on: begin again")

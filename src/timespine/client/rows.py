"""Rows that a user asked for: planned under a lease, read when they are wanted, whole or piece by piece."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa

from timespine.client.access import Access
from timespine.client.handing import handed
from timespine.client.leases import Held
from timespine.client.moments import to_user
from timespine.columnar.consolidate import consolidate
from timespine.columnar.keyset import KeySet
from timespine.columnar.part_reader import MissingBlob
from timespine.columnar.parts import Parts, Tally
from timespine.columnar.predicate import Predicate
from timespine.columnar.scan import scan, untouched_parts
from timespine.columnar.schema import DIFF, Schema
from timespine.columnar.shares import scan_in_shares
from timespine.columnar.slice import Slice, cut
from timespine.columnar.splits import split_keys
from timespine.columnar.tally import counted
from timespine.columnar.wanted import Wanted, empty_table
from timespine.core.hollow import Part, Run
from timespine.core.plan import Plan, plan_changes, plan_snapshot
from timespine.core.state import State
from timespine.errors import CorruptionError, LeaseExpired, Reopen, UsageError, shown
from timespine.model.frontier import Frontier
from timespine.model.time import INT64_MAX, Time

if TYPE_CHECKING:
    import pandas as pd

BATCH_ROWS = 65_536
"""Rows of one record batch that a stream gives, at most."""


Scan = Callable[[Parts, Sequence[Run], Wanted, int], Iterator[pa.Table]]
"""How runs are read."""

REPLANS = 16
"""How often a read without a lease is planned again because what it was reading was merged away."""

REPEATED_MAX = 1 << 31
"""Rows that one table of a scan may become when each is given as often as it counts. As a stream there is no limit."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How rows are given to the user."""

    multiplicity: str = "rows"
    """Each row as often as it counts ("rows"), or once with its count in `_diff` ("column")."""


class Rows:
    """What was asked for, not read yet. It holds history until it is closed or garbage collected.

    Reading twice gives the same rows twice.
    """

    def __init__(
        self,
        access: Access,
        held: Held | None,
        plan: Plan | None,
        wanted: Wanted,
        shape: Shape,
        *,
        state: State | None = None,
        owned: bool = True,
    ) -> None:
        self._access = access
        self._held = held
        self._state = state if state is not None or held is None else held.state
        self._plan = plan
        self._wanted = wanted
        self._shape = shape
        self.tally = Tally()
        """What the last read did: parts and row groups read and skipped, bytes fetched."""
        if held is not None and owned:
            weakref.finalize(self, held.close)

    @property
    def seqno(self) -> int | None:
        """The number of the state that this was planned on."""
        return self._plan.seqno if self._plan is not None else None

    @property
    def since(self) -> Frontier | None:
        """History was exact from here on when this was planned."""
        return self._plan.since if self._plan is not None else None

    @property
    def upper(self) -> Frontier | None:
        """The collection was complete below this when this was planned."""
        return self._plan.upper if self._plan is not None else None

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of what is given."""
        return self._empty().schema

    @property
    def columns_of(self) -> Schema:
        """The schema of the collection that this is read under."""
        return self._wanted.schema

    def to_arrow(self) -> pa.Table:
        """All rows as an Arrow table, in any order if they are many. In the order of rows: `batches`."""
        for _ in range(REPLANS):
            try:
                return self._whole_table()
            except LeaseExpired:
                if not self._replanned():
                    raise
        return self._whole_table()

    def _replanned(self) -> bool:
        """Plan again from a newer state, if there was no lease to keep what was planned on the last one."""
        if self._held is None or self._held.is_leased or self._plan is None:
            return False
        after, until = self._plan.after, self._plan.until
        newest = self._access.state()
        if newest.seqno == self._plan.seqno:
            raise CorruptionError(f"a blob of {self._access.name} is missing though its newest state refers to it")
        plan = plan_snapshot(newest, until) if after is None else plan_changes(newest, after, until)
        if not isinstance(plan, Plan):
            raise plan
        check_schema(self._wanted, self._access.schema(newest)[1], f"a read of {self._access.name}")
        if self._wanted.window.since is not None:
            self._wanted = replace(self._wanted, window=replace(self._wanted.window, since=plan.since))
        self._plan, self._state = plan, newest
        return True

    def _whole_table(self) -> pa.Table:
        tables = list(self._tables(self._access.config.merge_bytes, scan_in_shares))
        if not tables:
            return self._empty()
        table = pa.concat_tables(tables)
        if self._shape.multiplicity == "column" and self._is_narrow():
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
        """All rows as dictionaries: for small results."""
        return as_dictionaries(self.to_arrow())

    def batches(self, memory_bytes: int | None = None) -> Iterator[pa.RecordBatch]:
        """The rows piece by piece, in bounded memory, in the order of rows.

        What must be in memory at once is all of one key, where columns are left out; and all of what was
        written in another order, from when the first ordered column was dropped until it is compacted.
        """
        self._check_pieces()
        if memory_bytes is not None and (type(memory_bytes) is not int or memory_bytes < 1):
            raise UsageError(f"memory_bytes is a number of bytes, not {shown(memory_bytes)}")
        for table in self._tables(memory_bytes or self._access.config.merge_bytes // 4, scan, limit=None):
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
        if self._plan is None:
            return 0
        for _ in range(REPLANS):
            try:
                with _missing(self):
                    return counted(self._parts(), self._plan.runs, self._wanted)
            except LeaseExpired:
                if not self._replanned():
                    raise
        raise LeaseExpired("what was being counted keeps going away: read with a lease")

    def split(self, n: int) -> list[Rows]:
        """The same rows as n disjoint pieces of about equal size, each to be read by its own thread."""
        if type(n) is not int or n < 1:
            raise UsageError(f"rows are split into 1 or more pieces, not {n!r:.40}")
        self._check_pieces()
        if self._plan is None or n == 1:
            return [self]
        cuts = self._cuts(self._plan, n)
        return [self._piece(*ends) for ends in pairwise([self._wanted.lower, *cuts, self._wanted.upper])]

    def slices(self, n: int) -> list[Slice]:
        """The same rows as at most n pieces for other processes to read, which need the blobs and nothing else.

        They are whole for as long as this is open.
        """
        self._check_pieces()
        if self._plan is None or self._state is None:
            return []
        with _missing(self):
            return cut(self._parts(), self._state.schemas, self._plan.runs, self._wanted, n)

    def untouched(self) -> list[Part] | None:
        """The parts whose rows are exactly these, as they stand in their files; None if there are no such parts."""
        if self._plan is None or self._shape.multiplicity != "rows":
            return None
        with _missing(self):
            return untouched_parts(self._parts(), self._plan.runs, self._wanted)

    def extent(self) -> tuple[int, int]:
        """About how many updates and bytes there are to read, at most."""
        if self._plan is None:
            return 0, 0
        found = [part for run in self._plan.runs for part in run.parts]
        return sum(part.rows for part in found), sum(part.total_bytes for part in found)

    def to_spark(self, spark: Any, **options: Any) -> Any:
        """The rows as a DataFrame of Spark, read by its executors. They are held for as long as the session lives.

        `partitions` says in how many pieces, `native=False` that Spark is not to read the files by itself. To let
        go of them earlier: `timespine.spark.release(spark)`.
        """
        return handed("reading").to_spark(self, spark, **options)

    def _check_pieces(self) -> None:
        """A UsageError if what is asked for is only right as a whole."""
        if self._shape.multiplicity == "column" and self._is_narrow():
            raise UsageError(
                "rows that are told apart by some columns only come from all over the collection: "
                "ask for the key columns too, or read it whole"
            )

    def _cuts(self, plan: Plan, n: int) -> list[bytes]:
        for _ in range(REPLANS):
            try:
                with _missing(self):
                    return split_keys(self._parts(), plan.runs, self._wanted, n)
            except LeaseExpired:
                if not self._replanned():
                    raise
                assert self._plan is not None
                plan = self._plan
        raise LeaseExpired("what was to be split keeps going away: read with a lease")

    def _piece(self, lower: bytes | None, upper: bytes | None) -> Rows:
        """Some of the rows. It holds history by itself, until it is closed or garbage collected."""
        piece = type(self).__new__(type(self))
        piece.__dict__.update(self.__dict__)
        piece._wanted = replace(self._wanted, lower=lower, upper=upper)
        if self._held is not None:
            piece._held = self._held.again()
            weakref.finalize(piece, piece._held.close)
        return piece

    def only(self, keys: KeySet) -> None:
        """Restrict this to the rows of some keys."""
        self._wanted = replace(self._wanted, keys=keys)

    def restrict_to(self, condition: Predicate) -> None:
        """Restrict this to the rows for which a condition holds."""
        known = self._wanted.where
        self._wanted = replace(self._wanted, where=condition if known is None else known & condition)

    def close(self) -> None:
        """Let history go. Reading afterwards may fail."""
        if self._held is not None:
            self._held.close()

    def __enter__(self) -> Rows:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _parts(self) -> Parts:
        assert self._state is not None
        parts = self._access.parts(self._state)
        self.tally = parts.tally
        return parts

    def _tables(self, memory_bytes: int, scan: Scan, limit: int | None = REPEATED_MAX) -> Iterator[pa.Table]:
        """Read, merge, and shape. More rows than the limit, each as often as it counts, are too many."""
        if self._plan is None:
            return
        runs: tuple[Run, ...] = self._plan.runs
        names = list(self._names())
        with _missing(self):
            for table in scan(self._parts(), runs, self._wanted, memory_bytes):
                if table.num_rows == 0:
                    continue
                if self._shape.multiplicity == "column":
                    yield table.select([*names, DIFF])
                else:
                    for piece in repeated(table, DIFF, limit):
                        yield piece.select(names)

    def _names(self) -> tuple[str, ...]:
        return self._wanted.columns

    def _is_narrow(self) -> bool:
        """Whether fewer columns are given than rows were told apart by."""
        return set(self._wanted.read) != set(self._wanted.columns)

    def _empty(self) -> pa.Table:
        names = [*self._names(), DIFF] if self._shape.multiplicity == "column" else list(self._names())
        return empty_table(replace(self._wanted, columns=self._wanted.schema.names)).select(names)


class Snapshot(Rows):
    """The collection as of one time."""

    as_of: int | Time | None = None
    """The time; None if no time of the collection is complete yet."""

    def __repr__(self) -> str:
        return f"<snapshot of {self._access.name} as of {self.as_of}, state {self.seqno}>"


class Updates(Rows):
    """Updates with their times: not accumulated."""

    def _names(self) -> tuple[str, ...]:
        return (*self._wanted.columns, *self._wanted.schema.time_names)

    def count(self) -> int:
        """How many updates there are."""
        return int(self.to_arrow().num_rows)

    def __repr__(self) -> str:
        return f"<updates of {self._access.name}, state {self.seqno}>"


class UpdatesOfState(Updates):
    """Updates that only one state has just so: a read of them is never planned again on a newer one."""

    def _replanned(self) -> bool:
        return False


def as_of_of(plan: Plan) -> int | Time:
    """The time that a plan is for."""
    return to_user(plan.until)


def repeated(table: pa.Table, diff: str, limit: int | None = None) -> Iterator[pa.Table]:
    """Each row as often as its diff says, not too many of them at once."""
    counts = table.column(diff).to_numpy()
    if len(counts) == 0 or (counts.min() == 1 and counts.max() == 1):
        yield table
        return
    if counts.min() < 0:
        raise UsageError(
            "some rows count less than zero at this time, so they cannot be given as rows: "
            "read with multiplicity='column' to see them with their counts"
        )
    total = int(counts.astype(object).sum())
    if limit is not None and total > limit:
        raise UsageError(
            "rows count too often to be given one by one: read with multiplicity='column', or piece by piece"
        )
    if total > INT64_MAX:
        raise UsageError("rows count too often to be given one by one: read with multiplicity='column'")
    ends = counts.cumsum()
    for start in range(0, total, BATCH_ROWS):
        # Of the rows that are given, counted from 0, the one at a place comes from the first that ends after it.
        places = np.arange(start, min(start + BATCH_ROWS, total))
        yield table.take(pa.array(np.searchsorted(ends, places, side="right")))


def check_schema(wanted: Wanted, newest: Schema, what: str) -> None:
    """Reopen if a column that is read is not there any more, or is of another type: rows would not be the same rows."""
    for name in wanted.read:
        field = wanted.schema.field(name)
        if not newest.has_id(field.id) or newest.by_id(field.id).type != field.type:
            raise Reopen(f"column {name} was dropped or widened, so {what} cannot go on: begin again")


class _missing:
    """Turns a blob that is not there into LeaseExpired, or CorruptionError if the lease is still held."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: object) -> None:
        if isinstance(value, MissingBlob):
            held = self._rows._held
            if held is not None:
                held.check()
            raise CorruptionError(f"blob {value.key} is missing though a live lease holds it") from value


def as_dictionaries(table: pa.Table) -> list[dict[str, Any]]:
    """Rows as dictionaries; a UsageError if Python has no object for a value, such as a date after the year 9999."""
    try:
        rows: list[dict[str, Any]] = table.to_pylist()
    except (OverflowError, ValueError) as error:
        raise UsageError(
            "some dates or times are before the year 1 or after 9999, for which Python has no objects: "
            "read the rows with to_arrow() or to_polars()"
        ) from error
    return rows

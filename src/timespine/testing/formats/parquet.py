"""The real format, for simulated histories: Parquet parts, Arrow inline data, the columnar engine and scan.

Rows are the same strings as in the naive format, in a column of their own. Further
columns come and go beside it, and their values follow from the row, so that a
retraction is equal to the row that it retracts. Every read happens twice: by the scan
that users read with, and by adding up the rows that any Parquet reader finds in the
files. Both must agree.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import count, pairwise

import pyarrow as pa
import pyarrow.parquet as pq

from timespine.columnar.ingest.update_table import to_update_table as updates_of
from timespine.columnar.kernels.consolidate import consolidate
from timespine.columnar.merge.merge_engine import Engine
from timespine.columnar.parts.inline_part import decode_inline, encode_inline
from timespine.columnar.parts.part_cache import PartCache
from timespine.columnar.parts.part_stats import diff_sum_of
from timespine.columnar.parts.part_writer import encode_part
from timespine.columnar.predicate.key_set import KeySet
from timespine.columnar.predicate.where import col
from timespine.columnar.scan import row_count
from timespine.columnar.scan.parallel_scan import scan_in_shares
from timespine.columnar.scan.part_access import Parts
from timespine.columnar.scan.scan import scan
from timespine.columnar.scan.scan_request import ScanRequest
from timespine.columnar.scan.settled_run import settled_parts
from timespine.columnar.scan.settled_run_with_changes import changed_run
from timespine.columnar.scan.split_keys import split_keys
from timespine.columnar.scan.visibility import Window
from timespine.columnar.schema.schema import DIFF, Field, Schema, define
from timespine.core.batch import Order, Part, Run
from timespine.core.effects import FreshId, MergeOutput, MergeRuns, Output, Protocol
from timespine.core.read_plan import Plan
from timespine.core.state import State
from timespine.location.blob import Blob
from timespine.location.memory import MemoryBlob
from timespine.model.oracle import OracleRow, Update
from timespine.testing.formats.naive import CONFIG as NAIVE
from timespine.testing.formats.naive import StoredUpdate, counts_of
from timespine.testing.formats.replayed_blob import replay_as_protocol
from timespine.testing.latency import VirtualClock, VirtualPool
from timespine.testing.simulator.core_writes import Data
from timespine.testing.simulator.violation import BrokenPromise

CONFIG = replace(
    NAIVE,
    inline_part_bytes=24,
    inline_total_bytes=72,
    part_bytes=120,
    row_group_rows=2,
    page_rows=1,
    merge_bytes=1024,
    run_parts=2,
    bound_bytes=12,
    any_order_rows=1,
)
"""Limits so small that a handful of rows is several row groups, parts, hollow runs and rounds of a merge, and that few
changes pass any settled run."""

COLUMNS_MAX = 3
"""Columns beside that of the row: at this number one goes before another one comes."""

TYPES = (("int32", 7), ("string", None), ("double", -0.5), ("string", "some"))
"""The types and defaults of columns that histories add."""

INTEGERS = (None, -1, 0, 1 << 30)
VALUES = {
    "int32": INTEGERS,
    "int64": INTEGERS,
    "string": (None, "", "some", "\u00e9" * 9),
    "float64": (None, float("nan"), 0.0, -0.5),
}
"""Their values. An integer stays the same when its column gets wider."""

PATHS = (
    "merges",
    "merges of several parts",
    "merges in rounds",
    "parts passed through",
    "hollow runs",
    "inline results",
    "parts read",
    "parts skipped",
    "row groups skipped",
    "pages read",
    "rows copied",
    "settled runs read",
    "settled runs with changes read",
)
"""The counted paths, to see that histories reach all of them."""


class ParquetData(Data, frozen=True, kw_only=True):
    """Updates as an Arrow table: inline as it is, Parquet as a blob."""

    table: pa.Table
    written: Schema

    def sealed(self, key: str) -> tuple[bytes, bytes]:
        collection, _, name = key.split("/")
        assert self.schema is not None
        is_sorted = self.order is Order.SORTED
        part = encode_part(self.table, self.written, self.schema, collection, name, CONFIG, is_sorted=is_sorted)
        return part.data, part.meta.encode()


class ParquetFormat:
    """The format of the columnar layer."""

    config = CONFIG
    writes_inline = True
    favours: Mapping[str, int] = {"schema": 4, "trim": 2}

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.cache = PartCache(16 << 20)
        """The decoded row groups of readers: one cache for all processes, so only good for one history."""
        self.lookup_cache = PartCache(16 << 20)
        """What lookups decoded: by readers who never read whole row groups before, so that they read pages."""
        self.columns: dict[tuple[str, OracleRow], int] = {}
        """The column id below which columns existed when a row of a collection was first written."""

    def first_schema(self, arity: int) -> bytes | None:
        """Return a schema with a key; without one if times are partially ordered, so that histories meet both."""
        row = {"row": "string"}
        return (define(row, None) if arity == 1 else define(None, row, arity=arity)).encode()

    def next_schema(self, state: State, name: str) -> bytes:
        """Add, drop, rename or widen a column."""
        newest = _newest(state)
        choice = zlib.crc32(name.encode())
        others = newest.names[1:]
        type, default = TYPES[choice % len(TYPES)]
        if len(others) >= COLUMNS_MAX or (others and choice % 5 == 0):
            return newest.drop(others[choice % len(others)]).encode()
        if others and choice % 5 == 1:
            return newest.rename(others[0], f"renamed_{name}").encode()
        narrow = [each for each in others if newest.field(each).type == "int32"]
        if narrow and choice % 5 == 2:
            return newest.widen(narrow[0], "int64").encode()
        return newest.add(f"added_{name}", type, default).encode()

    def loses(self, state: State, written: int) -> bool:
        """Tell whether a column was dropped."""
        newest = _newest(state)
        return any(not newest.has_id(field.id) for field in Schema.decode(state.schemas[written]).fields)

    def retractable(self, rows: Sequence[OracleRow], state: State) -> Sequence[OracleRow]:
        """Leave out rows with a value in a column that the writer does not know yet: it would retract another row."""
        known, collection = _newest(state).next_id, state.collection
        return [row for row in rows if self.columns.get((collection, row), 0) <= known]

    def data_of(self, updates: Sequence[Update], state: State) -> Data:
        """Encode updates mostly in order; sometimes in order of arrival, as unsealed updates are."""
        table = self._table(updates, state)
        if _is_shuffled(updates):
            return _data(table, state, Order.UNORDERED)
        return _data(_consolidated(table, state), state, Order.SORTED)

    def pieces_of(self, updates: Sequence[Update], state: State) -> list[Data]:
        table = self._table(updates, state)
        order = Order.UNORDERED if _is_shuffled(updates) else Order.SORTED
        if order is Order.SORTED:
            table = _consolidated(table, state)
        middle = (table.num_rows + 1) // 2
        pieces = [table.slice(0, middle), table.slice(middle)]
        return [_data(piece, state, order) for piece in pieces if piece.num_rows]

    def _table(self, updates: Sequence[Update], state: State) -> pa.Table:
        """Build a table of updates. Times with too few coordinates, of a call that is to be refused, get some more."""
        schema, collection = _newest(state), state.collection
        padding = (0,) * schema.arity
        columns: dict[str, pa.Array] = {"row": pa.array([row for row, _, _ in updates], pa.string())}
        for row, _, _ in updates:
            self.columns.setdefault((collection, row), schema.next_id)
        for field in schema.fields[1:]:
            values = [self.value_of(collection, row, field) for row, _, _ in updates]
            columns[field.name] = pa.array(values, field.arrow_type)
        for index, name in enumerate(schema.time_names):
            columns[name] = pa.array([(*time, *padding)[index] for _, time, _ in updates], pa.int64())
        columns[DIFF] = pa.array([diff for _, _, diff in updates], pa.int64())
        return updates_of(pa.table(columns), schema, None)

    def value_of(self, collection: str, row: OracleRow, field: Field) -> object:
        """Return the value of a row in another column: the default if the column came later."""
        if field.id >= self.columns[collection, row]:
            return field.default_scalar().as_py()
        values = VALUES[field.type]
        return values[zlib.crc32(f"{row} {field.id}".encode()) % len(values)]

    def rows_of(self, part: Part, data: bytes, schema: bytes | None) -> Sequence[StoredUpdate]:
        """Decode the updates as any Parquet reader does; inline data as the columnar layer does."""
        assert schema is not None
        return _stored(data, part.rows, schema, part.inline is not None)

    def counted(self, plan: Plan, fetched: Sequence[tuple[Part, bytes]], state: State) -> dict[OracleRow, int]:
        """Count by the scan; raise BrokenPromise if the parts themselves have other rows."""
        runs = _with_leaves(plan, fetched)
        leaves = [(part, run.schema) for run in runs for part in run.parts]
        stored = [
            (part, self.rows_of(part, data, state.schemas[schema or 0]))
            for (part, schema), (_, data) in zip(leaves, fetched, strict=True)
        ]
        _check_order(runs, iter(stored))
        expected = counts_of(plan, stored)
        reading = _Reading(runs, fetched, state, plan, self)
        found = reading.all()
        if found != expected:
            raise BrokenPromise(f"the scan of state {plan.seqno} finds {found}, its parts have {expected}")
        reading.check_settled(expected)
        names = sorted({row for _, updates in stored for row, _, _ in updates})
        reading.check(expected, names or ["missing"], plan.seqno)
        self.counts["parts read"] += reading.parts.scan_stats.parts
        self.counts["parts skipped"] += reading.parts.scan_stats.parts_skipped
        self.counts["row groups skipped"] += reading.parts.scan_stats.groups_skipped
        self.counts["pages read"] += reading.parts.scan_stats.pages
        return expected

    def merge_runs(self, effect: MergeRuns, state: State) -> Protocol[Output]:
        """Merge by the engine. Its names follow from one id, so that it chooses the same ones when it runs again."""
        id = (yield FreshId("p"))[1:]
        known = [Schema.decode(each) for each in state.schemas]
        counters: dict[str, float] = {}

        def merge(blob: Blob) -> Output:
            numbers = count()
            counters.clear()
            engine = Engine(
                blob,
                lambda collection: known,
                CONFIG,
                fresh=lambda prefix: f"{prefix}{id}-{next(numbers)}",
                cache=PartCache(1 << 20),
                counters_of=lambda collection: counters,
                monotonic=lambda: 0.0,
            )
            return engine.merge(effect)

        merged = yield from replay_as_protocol(merge)
        if merged is not None:
            self._count(effect, merged, counters)
        return merged

    def _count(self, effect: MergeRuns, output: MergeOutput, counters: dict[str, float]) -> None:
        """Count the kinds of results."""
        merged = output.batch
        self.counts["merges"] += 1
        self.counts["parts passed through"] += int(counters.get("merge parts passed", 0))
        self.counts["hollow runs"] += sum(part.hollow for part in merged.parts)
        self.counts["inline results"] += sum(part.inline is not None for part in merged.parts)
        self.counts["rows copied"] += int(counters.get("merge rows copied", 0))
        self.counts["merges of several parts"] += counters.get("parts", 0) > 1
        self.counts["merges in rounds"] += counters.get("rows", 0) > output.rows


class _Reading:
    """The reads of users, over the parts of one plan."""

    def __init__(
        self,
        runs: Sequence[Run],
        fetched: Sequence[tuple[Part, bytes]],
        state: State,
        plan: Plan,
        format: ParquetFormat,
    ) -> None:
        blob = MemoryBlob()
        for part, data in fetched:
            if part.inline is None:
                blob.put(part.key, data)
        known = [Schema.decode(each) for each in state.schemas]
        # Every skipped part is read too, to see that skipping it was right.
        self.parts = Parts(blob, state.collection, known.__getitem__, CONFIG, format.cache, audit=1.0)
        self.with_pool = replace(self.parts, pool=VirtualPool(VirtualClock(), 1))
        self.with_lookups = replace(self.parts, cache=format.lookup_cache)
        self.memory_bytes = CONFIG.cache_bytes if plan.seqno % 3 == 0 else CONFIG.merge_bytes
        self.collection = state.collection
        self.format = format
        self.runs = runs
        self.wanted = ScanRequest(known[-1], known[-1].names, Window(plan.after, plan.until))

    def all(self) -> dict[OracleRow, int]:
        """Return every row."""
        return self._rows(self._scan(self.wanted))

    def check_settled(self, expected: dict[OracleRow, int]) -> None:
        """Check the answers for a caller who takes all rows of a settled run and its changes at once, twice."""
        parts, runs, wanted, counts = self.with_pool, self.runs, self.wanted, self.format.counts
        is_settled = settled_parts(parts, runs, wanted) is not None
        has_changes = changed_run(parts, runs, wanted, self.memory_bytes) is not None
        counts["settled runs read"] += is_settled
        counts["settled runs with changes read"] += has_changes
        for reading in ("first", "second") if is_settled or has_changes else ():
            found = self._rows(scan_in_shares(parts, runs, wanted, self.memory_bytes))
            if found != expected:
                raise BrokenPromise(f"a {reading} read of a settled run finds {found}, not {expected}")

    def check(self, expected: dict[OracleRow, int], names: Sequence[OracleRow], choice: int) -> None:
        """Check the number of rows, and the answers for two of these rows or for ranges that are all rows together."""
        said = row_count.count_rows(self.parts, self.runs, self.wanted)
        if said != sum(expected.values()):
            raise BrokenPromise(f"{sum(expected.values())} rows are counted as {said}")
        if choice % 2:
            row, other = names[choice % len(names)], names[choice // 2 % len(names)]
            self.check_lookup(self.parts, row, expected)
            self.check_lookup(self.with_lookups, row, expected)
            self.check_lookup(self.with_lookups, other, expected)
            return
        cuts = [None, *split_keys(self.parts, self.runs, self.wanted, 3), None]
        halves: Counter[OracleRow] = Counter()
        for lower, upper in pairwise(cuts):
            halves.update(self._rows(self._scan(replace(self.wanted, lower=lower, upper=upper))))
        if dict(halves) != expected:
            raise BrokenPromise(f"{len(cuts) - 1} readers find {dict(halves)} together, not {expected}")

    def check_lookup(self, parts: Parts, row: OracleRow, expected: dict[OracleRow, int]) -> None:
        """Check the answer for one row."""
        found = self._rows(scan(parts, self.runs, self._only(row), self.memory_bytes))
        alone = {each: diff for each, diff in expected.items() if each == row}
        if found != alone:
            raise BrokenPromise(f"a lookup of {row} finds {found}, not {alone}")

    def _only(self, row: OracleRow) -> ScanRequest:
        if self.wanted.schema.key:
            return replace(self.wanted, keys=KeySet(pa.table({"row": [row]})))
        return replace(self.wanted, where=col("row") == row)

    def _scan(self, wanted: ScanRequest) -> Iterator[pa.Table]:
        return scan(self.parts, self.runs, wanted, self.memory_bytes)

    def _rows(self, tables: Iterator[pa.Table]) -> dict[OracleRow, int]:
        found: dict[OracleRow, int] = {}
        for table in tables:
            for values in table.to_pylist():
                row = values["row"]
                if row in found:
                    raise BrokenPromise(f"a scan gives {row} twice")
                found[row] = values[DIFF]
                others = self.wanted.schema.fields[1:]
                meant = {each.name: self.format.value_of(self.collection, row, each) for each in others}
                wrong = {name: values[name] for name in meant if repr(values[name]) != repr(meant[name])}
                if wrong:
                    raise BrokenPromise(f"a scan gives {row} with {wrong}, not {meant}")
        return found


def _is_shuffled(updates: Sequence[Update]) -> bool:
    return zlib.crc32(repr(updates[:1]).encode()) % 3 == 0


def _newest(state: State) -> Schema:
    return Schema.decode(state.schemas[-1])


def _consolidated(table: pa.Table, state: State) -> pa.Table:
    schema = _newest(state)
    return consolidate(table, (*schema.order_names, *schema.time_names))


def _data(table: pa.Table, state: State, order: Order) -> Data:
    return ParquetData(
        encode_inline(table),
        table.num_rows,
        diff_sum_of(table),
        order,
        len(state.schemas) - 1,
        table=table,
        written=_newest(state),
    )


@lru_cache(maxsize=1024)
def _stored(data: bytes, rows: int, schema: bytes, is_inline: bool) -> Sequence[StoredUpdate]:
    """Decode bytes once: histories read the same bytes often."""
    written = Schema.decode(schema)
    if is_inline:
        table = decode_inline(data, written, rows, CONFIG)
    else:
        table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
    times = zip(*(table[name].to_pylist() for name in written.time_names), strict=True)
    return list(zip(table["row"].to_pylist(), times, table[DIFF].to_pylist(), strict=True))


def _with_leaves(plan: Plan, fetched: Sequence[tuple[Part, bytes]]) -> list[Run]:
    """Return the runs of a plan, with hollow runs replaced by their parts."""
    leaves: Iterator[Part] = (part for part, _ in fetched)
    runs = []
    for run in plan.runs:
        inside: list[Part] = []
        for part in run.parts:
            inside.append(next(leaves))
            if part.hollow:
                rows = inside[-1].rows
                while rows < part.rows:
                    inside.append(next(leaves))
                    rows += inside[-1].rows
        runs.append(Run(tuple(inside), run.order, run.schema))
    return runs


def _check_order(runs: Sequence[Run], stored: Iterator[tuple[Part, Sequence[StoredUpdate]]]) -> None:
    """Raise BrokenPromise if a sorted run is not sorted, or has something twice."""
    for run in runs:
        inside = [(row.encode(), time) for _ in run.parts for row, time, _ in next(stored)[1]]
        wrong = next((pair for pair in pairwise(inside) if not pair[0] < pair[1]), None)
        if run.order is Order.SORTED and wrong is not None:
            raise BrokenPromise(f"a sorted run has {wrong[0]} before {wrong[1]}")

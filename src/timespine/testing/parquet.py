"""The real format, for simulated histories: Parquet parts, Arrow inline data, the columnar engine and scan.

Rows are the same strings as in the naive format, in a column of their own; schemas
come and go beside it, and since nothing but defaults is ever in their columns, rows
keep their identity. What is read is read twice: by the scan that users read with,
and by adding up what any Parquet reader finds in the files. Both must agree.
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

from timespine.columnar import tally
from timespine.columnar.cache import PartCache
from timespine.columnar.consolidate import consolidate
from timespine.columnar.engine import Engine
from timespine.columnar.inline import decode_inline, encode_inline
from timespine.columnar.keyset import KeySet
from timespine.columnar.part import encode_part
from timespine.columnar.parts import Parts
from timespine.columnar.rows import updates as updates_of
from timespine.columnar.run_writer import diff_sum_of
from timespine.columnar.scan import scan
from timespine.columnar.schema import DIFF, Schema, define
from timespine.columnar.splits import split_keys
from timespine.columnar.visible import Window
from timespine.columnar.wanted import Wanted
from timespine.columnar.where import col
from timespine.core.effects import FreshId, MergeRuns, Protocol
from timespine.core.hollow import HollowBatch, Order, Part, Run
from timespine.core.plan import Plan
from timespine.core.protocols.write import Data
from timespine.errors import CorruptionError
from timespine.location.blob import Blob
from timespine.location.memory import MemoryBlob
from timespine.model.oracle import Row, Update
from timespine.testing.engine import CONFIG as NAIVE
from timespine.testing.engine import Schemas, StoredUpdate, counts_of
from timespine.testing.overlay import carried_out

CONFIG = replace(
    NAIVE,
    inline_part_bytes=160,
    inline_total_bytes=480,
    part_bytes=120,
    row_group_rows=2,
    merge_bytes=1024,
    run_parts=2,
    bound_bytes=12,
)
"""Limits so small that a handful of rows is several row groups, parts, hollow runs and rounds of a merge."""

COLUMNS_MAX = 3
"""Columns beside that of the row: from here on one goes before another one comes."""

TYPES = (("int32", 7), ("string", None), ("double", -0.5), ("string", "some"))
"""Columns that are added: their types and defaults."""

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
)
"""What is counted, to see that histories get everywhere."""


class Rows(Data, frozen=True, kw_only=True):
    """Updates as an Arrow table: inline as it is, Parquet as a blob."""

    table: pa.Table
    written: Schema

    def sealed(self, key: str) -> tuple[bytes, bytes]:
        collection, _, name = key.split("/")
        assert self.schema is not None
        is_sorted = self.order is Order.SORTED
        part = encode_part(self.table, self.written, self.schema, collection, name, CONFIG, is_sorted=is_sorted)
        return part.data, part.meta.encode()


class Parquet:
    """What the columnar layer makes of rows."""

    config = CONFIG
    writes_inline = True
    favours: Mapping[str, int] = {"schema": 4, "trim": 2}

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.cache = PartCache(16 << 20)
        """What readers have decoded: one for all processes, and so only good for one history."""

    def first_schema(self, arity: int) -> bytes | None:
        """With a key, or without one if times are partially ordered: there both ways are met."""
        row = {"row": "string"}
        return (define(row, None) if arity == 1 else define(None, row, arity=arity)).encode()

    def next_schema(self, schemas: Schemas, name: str) -> bytes:
        """One column more, or less, or renamed, or of a wider type."""
        newest = Schema.decode(schemas[-1])
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

    def data_of(self, updates: Sequence[Update], schemas: Schemas) -> Data:
        """Mostly in order; sometimes as they came, which is what unsealed updates are."""
        table = _table(updates, Schema.decode(schemas[-1]))
        if _is_shuffled(updates):
            return _data(table, schemas, Order.UNORDERED)
        return _data(_consolidated(table, schemas), schemas, Order.SORTED)

    def pieces_of(self, updates: Sequence[Update], schemas: Schemas) -> list[Data]:
        table = _table(updates, Schema.decode(schemas[-1]))
        order = Order.UNORDERED if _is_shuffled(updates) else Order.SORTED
        if order is Order.SORTED:
            table = _consolidated(table, schemas)
        middle = (table.num_rows + 1) // 2
        pieces = [table.slice(0, middle), table.slice(middle)]
        return [_data(piece, schemas, order) for piece in pieces if piece.num_rows]

    def rows_of(self, part: Part, data: bytes, schema: bytes | None) -> Sequence[StoredUpdate]:
        """As anybody who can read Parquet sees them; of inline data, as we do."""
        assert schema is not None
        return _stored(data, part.rows, schema, part.inline is not None)

    def counted(self, plan: Plan, fetched: Sequence[tuple[Part, bytes]], schemas: Schemas) -> dict[Row, int]:
        """By the scan; a CorruptionError if the parts themselves say something else."""
        runs = _with_leaves(plan, fetched)
        leaves = [(part, run.schema) for run in runs for part in run.parts]
        stored = [
            (part, self.rows_of(part, data, schemas[schema or 0]))
            for (part, schema), (_, data) in zip(leaves, fetched, strict=True)
        ]
        _check_order(runs, iter(stored))
        expected = counts_of(plan, stored)
        reading = _Reading(runs, fetched, schemas, plan, self.cache)
        found = reading.all()
        if found != expected:
            raise CorruptionError(f"the scan of state {plan.seqno} finds {found}, its parts have {expected}")
        names = sorted({row for _, updates in stored for row, _, _ in updates})
        reading.check(expected, names[plan.seqno % len(names)] if names else "nobody", plan.seqno)
        self.counts["parts read"] += reading.parts.tally.parts
        self.counts["parts skipped"] += reading.parts.tally.parts_skipped
        self.counts["row groups skipped"] += reading.parts.tally.groups_skipped
        return expected

    def merge_runs(self, effect: MergeRuns, schemas: Schemas) -> Protocol[HollowBatch | None]:
        """By the engine. Its names follow from one id, so that it chooses the same ones when it is run again."""
        id = (yield FreshId("p"))[1:]
        known = [Schema.decode(each) for each in schemas]
        counters: dict[str, float] = {}

        def merge(blob: Blob) -> HollowBatch | None:
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

        merged = yield from carried_out(merge)
        if merged is not None:
            self._count(effect, merged, counters)
        return merged

    def _count(self, effect: MergeRuns, merged: HollowBatch, counters: dict[str, float]) -> None:
        """What kinds of results there are."""
        written = sum(part.key.split("/")[1] == effect.writer for part in merged.parts if part.key)
        self.counts["merges"] += 1
        self.counts["parts passed through"] += sum(bool(part.key) for part in merged.parts) - written
        self.counts["hollow runs"] += sum(part.hollow for part in merged.parts)
        self.counts["inline results"] += sum(part.inline is not None for part in merged.parts)
        self.counts["merges of several parts"] += counters.get("parts", 0) > 1
        self.counts["merges in rounds"] += counters.get("rows", 0) > merged.len


class _Reading:
    """The reads that users do, over the parts of one plan."""

    def __init__(
        self,
        runs: Sequence[Run],
        fetched: Sequence[tuple[Part, bytes]],
        schemas: Schemas,
        plan: Plan,
        cache: PartCache,
    ) -> None:
        blob = MemoryBlob()
        for part, data in fetched:
            if part.inline is None:
                blob.put(part.key, data)
        known = [Schema.decode(each) for each in schemas]
        (collection,) = {part.key.split("/")[0] for part, _ in fetched if part.key} or {"none"}
        # Every part that is skipped is read all the same, to see that skipping it was right.
        self.parts = Parts(blob, collection, known.__getitem__, CONFIG, cache, audit=1.0)
        self.runs = runs
        self.wanted = Wanted(known[-1], known[-1].names, Window(plan.after, plan.until))

    def all(self) -> dict[Row, int]:
        """Every row."""
        return self._rows(self.wanted)

    def check(self, expected: dict[Row, int], row: str, choice: int) -> None:
        """What a reader of one row, of one half, or of the number of rows is told."""
        said = tally.counted(self.parts, self.runs, self.wanted)
        if said != sum(expected.values()):
            raise CorruptionError(f"{sum(expected.values())} rows are counted as {said}")
        if choice % 2:
            found = self._rows(self._only(row))
            alone = {each: diff for each, diff in expected.items() if each == row}
            if found != alone:
                raise CorruptionError(f"a lookup of {row} finds {found}, not {alone}")
            return
        cuts = [None, *split_keys(self.parts, self.runs, self.wanted, 3), None]
        halves: Counter[Row] = Counter()
        for lower, upper in pairwise(cuts):
            halves.update(self._rows(replace(self.wanted, lower=lower, upper=upper)))
        if dict(halves) != expected:
            raise CorruptionError(f"{len(cuts) - 1} readers find {dict(halves)} together, not {expected}")

    def _only(self, row: str) -> Wanted:
        if self.wanted.schema.key:
            return replace(self.wanted, keys=KeySet(pa.table({"row": [row]})))
        return replace(self.wanted, where=col("row") == row)

    def _rows(self, wanted: Wanted) -> dict[Row, int]:
        found: dict[Row, int] = {}
        for table in scan(self.parts, self.runs, wanted, CONFIG.merge_bytes):
            for row, diff in zip(table["row"].to_pylist(), table[DIFF].to_pylist(), strict=True):
                if row in found:
                    raise CorruptionError(f"a scan gives {row} twice")
                found[row] = diff
        return found


def _is_shuffled(updates: Sequence[Update]) -> bool:
    return zlib.crc32(repr(updates[:1]).encode()) % 3 == 0


def _table(updates: Sequence[Update], schema: Schema) -> pa.Table:
    """Updates as a table. Times with too few coordinates, of a call that is to be refused, get some more."""
    columns = [pa.array([row for row, _, _ in updates], pa.string())]
    padding = (0,) * schema.arity
    columns += [pa.array([(*time, *padding)[i] for _, time, _ in updates], pa.int64()) for i in range(schema.arity)]
    columns.append(pa.array([diff for _, _, diff in updates], pa.int64()))
    return updates_of(pa.Table.from_arrays(columns, names=["row", *schema.system_names]), schema, None)


def _consolidated(table: pa.Table, schemas: Schemas) -> pa.Table:
    schema = Schema.decode(schemas[-1])
    return consolidate(table, (*schema.order_names, *schema.time_names))


def _data(table: pa.Table, schemas: Schemas, order: Order) -> Data:
    return Rows(
        encode_inline(table),
        table.num_rows,
        diff_sum_of(table),
        order,
        len(schemas) - 1,
        table=table,
        written=Schema.decode(schemas[-1]),
    )


@lru_cache(maxsize=1024)
def _stored(data: bytes, rows: int, schema: bytes, is_inline: bool) -> Sequence[StoredUpdate]:
    """The same bytes are read often, and always hold the same."""
    written = Schema.decode(schema)
    if is_inline:
        table = decode_inline(data, written, rows, CONFIG)
    else:
        table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
    times = zip(*(table[name].to_pylist() for name in written.time_names), strict=True)
    return list(zip(table["row"].to_pylist(), times, table[DIFF].to_pylist(), strict=True))


def _with_leaves(plan: Plan, fetched: Sequence[tuple[Part, bytes]]) -> list[Run]:
    """The runs of a plan, with what is inside hollow runs in their place."""
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
    """A CorruptionError if a sorted run is not sorted, or has something twice."""
    for run in runs:
        inside = [(row.encode(), time) for _ in run.parts for row, time, _ in next(stored)[1]]
        wrong = next((pair for pair in pairwise(inside) if not pair[0] < pair[1]), None)
        if run.order is Order.SORTED and wrong is not None:
            raise CorruptionError(f"a sorted run has {wrong[0]} before {wrong[1]}")

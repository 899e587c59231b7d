"""A whole read of a settled run and of few changes to it: rows of other keys pass, row group by row group.

After an upsert, a collection is a large run of rows that are there once (`settled_run`), and small runs that retract
some of them and add others. Only rows whose key the small runs have can change. So the small runs are merged first, and
each task decodes a stretch of row groups of the large one and splits it by the keys of the changes:

    rows of other keys                  are given out as they are, in any order
    rows of these keys                  are the ones that the changes retract, mostly; if not, both are consolidated

No row of the large run is sorted, compared with a neighbour or moved next to others, and its times are not decoded.

Which rows of the large run pass, and what the changes make of the others, is kept for the next read of the same runs
(`NetChanges`): that one decodes the large run and leaves the others out.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from timespine.columnar.kernels.consolidate import consolidate
from timespine.columnar.kernels.consolidate_shared_keys import FEW
from timespine.columnar.parts.part_cache import CacheHint
from timespine.columnar.parts.row_memory_pool import row_pool
from timespine.columnar.predicate.key_set import KeySet
from timespine.columnar.scan.part_access import ROW_BYTES, Parts, meta_of
from timespine.columnar.scan.scan_request import ScanRequest, empty_table
from timespine.columnar.scan.settled_run import decode_settled, run_bytes, settled_parts, with_diffs_of_one
from timespine.columnar.schema.schema import DIFF
from timespine.columnar.schema.types import is_nested
from timespine.core.batch import Part, Run
from timespine.libraries import pc, pl
from timespine.model.time import Time, less_equal


class ScanShares(Protocol):
    """A function that reads runs by several threads, and makes something of each table there, in the order of rows."""

    def __call__(
        self,
        parts: Parts,
        runs: Sequence[Run],
        request: ScanRequest,
        memory_bytes: int,
        then: Callable[[pa.Table], SplitChanges],
    ) -> Iterator[SplitChanges]:
        """Yield what the function makes of the tables."""


class SplitChanges(NamedTuple):
    """Changes to a settled run, each row once, in the order of rows."""

    retracted: pa.Table
    """Rows that count -1, without their diffs: after an upsert, those that it met."""
    others: pa.Table
    """The other rows, with their diffs: after an upsert, those that it added."""
    are_ones: bool
    """Whether all diffs of the others are 1."""

    @staticmethod
    def of(table: pa.Table) -> SplitChanges:
        """Split a table of changes."""
        diffs = table.column(DIFF)
        is_retracted = pc.equal(diffs, -1)
        retracted = pc.filter(table.drop_columns([DIFF]), is_retracted, memory_pool=row_pool())
        others = pc.filter(table, pc.invert(is_retracted), memory_pool=row_pool())
        return SplitChanges(retracted, others, pc.all(pc.equal(others.column(DIFF), 1), min_count=0).as_py())

    @staticmethod
    def join(some: Sequence[SplitChanges]) -> SplitChanges:
        """Put changes together, of which there is at least one."""
        retracted, others, are_ones = zip(*some, strict=True)
        return SplitChanges(pa.concat_tables(retracted), pa.concat_tables(others), all(are_ones))

    def keys(self, names: Sequence[str]) -> KeySet:
        """Return the keys of all rows, put in order: otherwise each thread that asks first does that."""
        keys = KeySet(pa.concat_tables([self.retracted.select(names), self.others.select(names)]))
        len(keys)
        return keys


class ChangedRun(NamedTuple):
    """A settled run, and what changes it."""

    base: Run
    """The settled run."""
    inside: list[Part]
    """Its parts."""
    others: list[Run]
    """The runs with changes."""


@dataclass(frozen=True, slots=True)
class NetChanges:
    """What changes make of a settled run."""

    passes: list[pa.BooleanArray | None]
    """Which rows of each table of the settled run pass; None if all of them do."""
    rows: pa.Table
    """The rows that are there instead of the others, with their diffs."""

    @property
    def nbytes(self) -> int:
        """The bytes that they take in memory."""
        return sum(int(each.nbytes) for each in (self.rows, *self.passes) if each is not None)


def changed_run(parts: Parts, runs: Sequence[Run], request: ScanRequest, memory_bytes: int) -> ChangedRun | None:
    """Return the runs as a settled run and few changes; None if they are anything else.

    The caller takes all rows at once, so changes may take a part of the memory that the settled run takes, however much
    that is.

    SUBTLE: keys of which two that are equal have other bits (0.0 and -0.0) are left to the merge
    (test_settled_run_with_changes.py).
    """
    types = [request.schema.types[name] for name in request.schema.key_names]
    if len(runs) < 2 or not request.schema.key or any(is_nested(kind) or pa.types.is_floating(kind) for kind in types):
        return None
    sizes = [sum(part.rows for part in run.parts) for run in runs]
    largest = max(range(len(runs)), key=sizes.__getitem__)
    if sizes[largest] < parts.config.any_order_rows or (sum(sizes) - sizes[largest]) * FEW > sizes[largest]:
        return None
    base, others = runs[largest], [run for place, run in enumerate(runs) if place != largest]
    changes_bytes = sum(map(_row_bytes, others))
    if changes_bytes > memory_bytes // 4 and changes_bytes * FEW > _row_bytes(base):
        return None
    inside = settled_parts(parts, [base], request)
    return None if inside is None else ChangedRun(base, inside, others)


def scan_changed(
    parts: Parts, found: ChangedRun, request: ScanRequest, memory_bytes: int, pool: Executor, scan_shares: ScanShares
) -> Iterator[pa.Table]:
    """Yield all rows of a settled run and of its changes, with their diffs, in any order."""
    name = _name(parts, found, request)
    known: NetChanges | None = parts.cache.get(name)
    if known is not None:
        yield from _scan_known(parts, found, request, pool, known)
        return
    names = [*request.read, DIFF]
    in_order = replace(request, any_order=False, hint=CacheHint.NEVER_ADD)
    none = SplitChanges.of(empty_table(request).select(names))
    read = scan_shares(parts, found.others, in_order, memory_bytes, lambda table: SplitChanges.of(table.select(names)))
    changes = SplitChanges.join([none, *read])
    keys = changes.keys(request.schema.key_names)
    touched = _Touched(changes.retracted)
    passes: list[pa.BooleanArray | None] = []

    def split(_: int, table: pa.Table) -> tuple[pa.Table, pa.Table, pa.BooleanArray | None]:
        """Return the rows of other keys, those of the keys of the changes, and which ones the first are."""
        mask = keys.mask(table)
        if not mask.true_count:
            return with_diffs_of_one(table, request), table.slice(0, 0), None
        others = pc.invert(mask)
        return _filter(table, others, request), pc.filter(table, mask, memory_pool=row_pool()), others

    for passed, others, mask in decode_settled(parts, found.base, found.inside, request, pool, split):
        yield passed
        passes.append(mask)
        touched.add(others)
    net = NetChanges(passes, _changed_rows(touched, changes, request))
    if request.hint is CacheHint.MAY_ADD:
        _keep(parts, name, net, run_bytes(parts, found.base, found.inside))
    yield net.rows


def _scan_known(
    parts: Parts, found: ChangedRun, request: ScanRequest, pool: Executor, known: NetChanges
) -> Iterator[pa.Table]:
    """Yield the same rows, if it is known which ones of the settled run pass."""

    def leave_out(number: int, table: pa.Table) -> pa.Table:
        mask = known.passes[number]
        return with_diffs_of_one(table, request) if mask is None else _filter(table, mask, request)

    yield from decode_settled(parts, found.base, found.inside, request, pool, leave_out)
    yield known.rows


def _name(parts: Parts, found: ChangedRun, request: ScanRequest) -> Hashable:
    """Return what net changes are kept under: runs never change, and only the columns and the time of a read differ.

    The time does not matter if all changes are at or before it.
    """
    until = request.window.until
    is_after_all = until is not None and all(_ends_by(part, until) for run in found.others for part in run.parts)
    return (
        "net changes",
        parts.collection,
        found.base,
        tuple(found.others),
        request.read,
        None if is_after_all else until,
    )


def _ends_by(part: Part, until: Time) -> bool:
    """Tell whether all rows of a part are surely seen at or before a time.

    SUBTLE: a rewrite shows them at later times than those that the part has (test_settled_run_with_changes.py).
    """
    meta = None if part.hollow or part.rewrite is not None else meta_of(part)
    return meta is not None and less_equal(meta.max_time, until)


def _keep(parts: Parts, name: Hashable, net: NetChanges, base_bytes: int) -> None:
    """Keep net changes for the next read.

    SUBTLE: not if the settled run fits the cache and both do not. Then every read would push out what its own next row
    groups are (test_settled_run_with_changes.py).
    """
    limit = parts.cache.limit_bytes
    if base_bytes > limit or base_bytes + net.nbytes <= limit:
        parts.cache.put(name, net, net.nbytes)


def _filter(table: pa.Table, mask: pa.BooleanArray, request: ScanRequest) -> pa.Table:
    """Return some rows of a settled run, with their diffs; with views of the text, if the caller takes them."""
    if not request.views:
        return with_diffs_of_one(pc.filter(table, mask, memory_pool=row_pool()), request)
    # Arrow has no filter that makes views, Polars has.
    frame = pl.DataFrame(pl.from_arrow(table, rechunk=False)).filter(pl.Series(mask))
    return with_diffs_of_one(frame.to_arrow(compat_level=pl.CompatLevel.newest()), request)


class _Touched:
    """The rows of a settled run that have a key of the changes, in order. As long as they are the ones that the changes
    retract, they are not kept."""

    def __init__(self, retracted: pa.Table) -> None:
        self._retracted = retracted
        self._same = 0
        """The rows that were the same as the retracted ones."""
        self._others: list[pa.Table] = []
        """The rows since."""

    def add(self, rows: pa.Table) -> None:
        """Add the next rows."""
        if not self._others and rows.equals(self._retracted.slice(self._same, rows.num_rows)):
            self._same += rows.num_rows
        else:
            self._others.append(rows)

    @property
    def are_all_retracted(self) -> bool:
        """Whether these rows are the retracted ones, all of them."""
        return not self._others and self._same == self._retracted.num_rows

    @property
    def table(self) -> pa.Table:
        """All rows."""
        return pa.concat_tables([self._retracted.slice(0, self._same), *self._others])


def _changed_rows(touched: _Touched, changes: SplitChanges, request: ScanRequest) -> pa.Table:
    """Return what is left of some rows, each there once, after some changes."""
    if changes.are_ones and touched.are_all_retracted:
        return changes.others  # as an upsert leaves it: every row that it met is retracted
    retracted = changes.retracted
    minus = pa.array(np.full(retracted.num_rows, -1, np.int64))
    gone = retracted.append_column(changes.others.schema.field(DIFF), minus)
    return consolidate(
        pa.concat_tables([with_diffs_of_one(touched.table, request), gone, changes.others]), request.order
    )


def _row_bytes(run: Run) -> int:
    """Estimate how many bytes the rows of a run take in memory."""
    metas = [(part, meta_of(part)) for part in run.parts]
    return sum((meta.row_bytes if meta is not None else 0) or part.rows * ROW_BYTES for part, meta in metas)

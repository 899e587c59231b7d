"""Batches of a spine as tuples of updates, and merges of them in plain Python."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from timespine.columnar.cached_property import cached_property
from timespine.core.arrangement.level_transitions import MergePlan
from timespine.core.effects import SliceResult
from timespine.model.oracle import Update, accumulate, compact, consolidate
from timespine.model.time import Time

ROW_BYTES = 1 << 20
"""Bytes that a row counts: some batches then are large enough for files."""

MASK = (1 << 64) - 1


def fingerprint(updates: Iterable[Update]) -> int:
    """Return a number that is the same for the same sums of rows, and that adds up over batches.

    Each row has a pseudo-random factor, so updates that do not sum up to the same give the same number by chance only.
    """
    return sum(_factor(row) * diff for row, _, diff in updates) & MASK


def _factor(row: object) -> int:
    assert isinstance(row, int)
    mixed = (row + 1) * 0x9E3779B97F4A7C15 & MASK
    mixed = (mixed ^ mixed >> 31) * 0xBF58476D1CE4E5B9 & MASK
    return mixed ^ mixed >> 29


@dataclass(frozen=True, eq=False)
class NaiveBatch:
    """A batch: consolidated updates of rows, which are numbers here, in order."""

    id: int
    """A number that the batch keeps when it is written to a file."""
    updates: tuple[Update, ...]
    origins: frozenset[int]
    """The fresh batches whose updates it has."""
    is_merged: bool = False
    in_memory: bool = True
    file: str | None = None

    @property
    def rows(self) -> int:
        """The number of updates."""
        return len(self.updates)

    @cached_property
    def negatives(self) -> int:
        """The number of retractions."""
        return sum(diff < 0 for _, _, diff in self.updates)

    @property
    def nbytes(self) -> int:
        """The size that the policy sees."""
        return self.rows * ROW_BYTES

    @cached_property
    def fingerprint(self) -> int:
        """The fingerprint of the updates."""
        return fingerprint(self.updates)

    def fingerprint_from(self, floor: int) -> int:
        """Return the fingerprint of the updates of rows from one on."""
        if not floor:
            return self.fingerprint
        if floor not in self._fingerprints:
            self._fingerprints[floor] = fingerprint(update for update in self.updates if _is_from(update, floor))
        return self._fingerprints[floor]

    @cached_property
    def _fingerprints(self) -> dict[int, int]:
        return {}

    def stored(self, file: str, in_memory: bool) -> NaiveBatch:
        """Return the same batch with a file."""
        return replace(self, file=file, in_memory=in_memory)

    def deleted(self) -> None:
        """Do nothing: there is no file."""


def _is_from(update: Update, floor: int) -> bool:
    row = update[0]
    assert isinstance(row, int)
    return row >= floor


class BatchKind:
    """Makes batches, merges and cursors: naive ones here."""

    name = "naive"

    def fresh(self, id: int, updates: Iterable[Update]) -> NaiveBatch:
        """Return a batch of updates as an inserter has them."""
        return NaiveBatch(id, _in_order(consolidate(updates)), frozenset({id}))

    def open_merge(self, plan: MergePlan[Any], bound: int) -> Any:
        """Begin a merge that drops the rows below one."""
        return NaiveMerge(plan, bound)

    def steps(self, batches: Sequence[Any], as_of: Time, *, forwards: bool) -> Iterator[tuple[int, int]]:
        """Step through the rows in order: each with its count."""
        counts = accumulate((update for batch in batches for update in batch.updates), as_of)
        yield from sorted(counts.items(), reverse=not forwards)  # type: ignore[misc]

    def end(self) -> None:
        """Do nothing: there is no folder."""


class NaiveMerge:
    """A merge in slices: each takes the next rows in order out of all inputs."""

    def __init__(self, plan: MergePlan[NaiveBatch], bound: int) -> None:
        self.plan = plan
        self._bound = bound
        self._waiting = list(_in_order(update for batch in plan.inputs for update in batch.updates))
        self._merged: list[Update] = []
        self.file: str | None = None
        """The file of the output, once it has one."""

    def slice(self, rows: int | None) -> SliceResult:
        """Merge the next updates: about as many as given, and all of one row."""
        end = len(self._waiting) if rows is None else min(rows, len(self._waiting))
        while 0 < end < len(self._waiting) and self._waiting[end][0] == self._waiting[end - 1][0]:
            end += 1
        taken, self._waiting = self._waiting[:end], self._waiting[end:]
        self._merged += consolidate(taken) if self.plan.since is None else compact(taken, self.plan.since)
        return SliceResult(len(taken), not self._waiting)

    def output(self, id: int) -> NaiveBatch | None:
        """Return the merged batch, or None if nothing is left."""
        assert not self._waiting
        self._merged = [update for update in self._merged if _is_from(update, self._bound)]
        if not self._merged:
            return None
        origins = frozenset[int]().union(*(batch.origins for batch in self.plan.inputs))
        return NaiveBatch(id, _in_order(self._merged), origins, is_merged=True)


def _in_order(updates: Iterable[Update]) -> tuple[Update, ...]:
    return tuple(sorted(updates, key=lambda update: (update[0], update[1])))

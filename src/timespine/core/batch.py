"""Hollow structures: descriptions that point at data instead of holding it.

The state of a collection stores thousands of them, so they are small immutable structs that encode as arrays. Key
bounds, statistics and checksums, which only the columnar layer understands, are the opaque `meta`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from typing import Annotated

import msgspec

from timespine.model.description import Description
from timespine.model.frontier import Frontier
from timespine.model.time import Time

Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 62))]
"""Rows, bytes and the like: never negative, and sums of them still fit."""

_WRAP = 1 << 64
_HALF = 1 << 63


def wrap_int64(value: int) -> int:
    """Return the signed 64-bit integer that is equal modulo 2^64."""
    return (value + _HALF) % _WRAP - _HALF


class Part(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One immutable piece of data, and the bounds within which this reference shows it."""

    key: str
    """The blob that holds the data; empty for inline data."""
    rows: Count
    """Updates in the data, visible or not."""
    size: Count = 0
    """Bytes of the data."""
    diff_sum: Int64 | None = None
    """The sum of all diffs modulo 2^64, if known."""
    inline: bytes | None = None
    """The data itself, when it is tiny."""
    hollow: bool = False
    """Whether the blob is a hollow run: a list of further parts instead of rows."""
    lower: Frontier | None = None
    """Truncation: rows at times not at or after this are invisible through this reference."""
    upper: Frontier | None = None
    """Truncation: rows at times at or after this are invisible through this reference."""
    rewrite: Frontier | None = None
    """The frontier by which readers advance times, after truncation (`rewrite_ts`); None: they do not."""
    meta: bytes = b""
    """What the columnar layer needs to read it: key bounds, statistics, checksum, schema."""
    inside_bytes: Count = 0
    """Bytes of all blobs inside a hollow run, at any depth; 0 for any other part."""

    @property
    def total_bytes(self) -> int:
        """Bytes of the data: those of the blob or the inline data, and of everything inside a hollow run."""
        return self.size + self.inside_bytes

    @property
    def is_truncated(self) -> bool:
        """Whether some rows may be invisible through this reference."""
        return self.lower is not None or self.upper is not None

    @property
    def visible_diff_sum(self) -> int | None:
        """The sum of the diffs that a reader sees; unknown if truncated."""
        return None if self.is_truncated else self.diff_sum


class Order(enum.IntEnum):
    """How the rows of a run are ordered."""

    UNORDERED = 0
    """In order of arrival: a merge takes every part for a run of its own."""
    SORTED = 1
    """By (key, value, time) and consolidated, across all parts of the run."""


class Run(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A sequence of parts with one order and one schema."""

    parts: tuple[Part, ...]
    """The parts, in order of the rows, if there is one."""
    order: Order = Order.SORTED
    """How the rows are ordered."""
    schema: int | None = None
    """The id of the schema that its rows were written with."""
    zero_from: Time | None = None
    """If it is a past run: a time at or after all its times. The diffs of every row in the run add up to zero, so from
    this time on the run adds nothing to a sum. None: nothing is claimed."""


class HollowBatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The description of a batch whose rows are in blobs."""

    desc: Description
    """The interval of times that it describes, and the frontier from which on it is exact."""
    len: Count
    """Updates in it, at most (truncation may hide some)."""
    runs: tuple[Run, ...] = ()
    """The runs that hold them."""

    @property
    def is_empty(self) -> bool:
        """Whether it has no updates."""
        return self.len == 0

    @property
    def parts(self) -> Iterator[Part]:
        """All parts of all runs, in order."""
        for run in self.runs:
            yield from run.parts

    @property
    def keys(self) -> Iterator[str]:
        """Yield the blobs that it refers to directly."""
        return (part.key for part in self.parts if part.key)

    @property
    def is_sorted(self) -> bool:
        """Whether it is one sorted run, with a past run beside it or not, or empty: merging it alone gains nothing."""
        past = sum(run.zero_from is not None for run in self.runs)
        return past <= 1 and len(self.runs) - past <= 1 and all(run.order is Order.SORTED for run in self.runs)

    @property
    def inline_bytes(self) -> int:
        """Bytes that it keeps in the state itself."""
        return sum(len(part.inline) for part in self.parts if part.inline is not None)

    @property
    def diff_sum(self) -> int | None:
        """The sum of all visible diffs modulo 2^64, if it is known for every part."""
        total = 0
        for part in self.parts:
            visible = part.visible_diff_sum
            if visible is None:
                return None
            total += visible
        return wrap_int64(total)


def rows_in(runs: Iterable[Run]) -> int:
    """Count the updates in some runs, visible or not."""
    return sum(part.rows for run in runs for part in run.parts)


def empty_batch(desc: Description) -> HollowBatch:
    """Return the batch without updates for these times."""
    return HollowBatch(desc, 0)

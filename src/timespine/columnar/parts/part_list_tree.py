"""Long runs: lists of parts kept in blobs instead of in the state, as a balanced tree.

The state of a collection is part of every commit and every rollup, so a run of
thousands of parts must not be listed there. Its parts are gathered, `limit` at a
time, into hollow runs: blobs that list parts. Hollow runs are parts themselves,
so they are gathered in the same way one level up. With n parts

    a list, in the state or in a blob, has at most `limit` parts
    no part is deeper than about log(n) / log(limit)

and to enumerate a run one list per level is in memory, never all of them.

A reference to a hollow run speaks for everything inside of it: rows, the sum of
diffs, and bounds of rows, times and columns, so that a reader can skip it whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping, Sequence
from concurrent.futures import Executor
from typing import Generic, TypeVar

from timespine.columnar.parts.part_stats import PartMeta, Range
from timespine.core.batch import HollowBatch, Part, wrap_int64
from timespine.core.encoding.codec import decode_run
from timespine.core.encoding.envelope import ENTRY_BYTES_MAX
from timespine.errors import CorruptionError, TimespineError, UsageError
from timespine.ids import check_segment, parse_blob_key
from timespine.location.blob import Blob, BulkBlob, delete_blobs
from timespine.pool import outcome

LIMIT_MIN = 2
"""Parts per list, at least: gathering one part at a time would never come to an end."""

T = TypeVar("T")

Counters = MutableMapping[str, float]
"""How often what happened, and how long it took, by name."""


def add_to_counter(counters: Counters, what: str, by: float = 1) -> None:
    """Count an event. What did not happen leaves no trace."""
    if by:
        counters[what] = counters.get(what, 0) + by


class Levels(Generic[T]):
    """A run under construction.

    `levels[0]` has the newest things, each further level lists of the level below,
    older ones. When a level has more than `limit`, its oldest `limit` are gathered
    into one thing of the next level.
    """

    def __init__(self, limit: int, gather: Callable[[list[T]], T]) -> None:
        self.limit = max(limit, LIMIT_MIN)
        """Things in one list, at most."""
        self.levels: list[list[T]] = [[]]
        """What has not been gathered yet, by level."""
        self._gather = gather

    def push(self, thing: T, level: int = 0) -> None:
        """Add to the end of the run."""
        while True:
            if level == len(self.levels):
                self.levels.append([])
            things = self.levels[level]
            things.append(thing)
            if len(things) <= self.limit:
                return
            oldest, self.levels[level] = things[: self.limit], things[self.limit :]
            thing = self._gather(oldest)
            level += 1

    def finish(self) -> list[T]:
        """Return the whole run, in order, as one list of at most `limit` things."""
        level = 0
        # SUBTLE: a higher level is older, so what is left of a lower one goes to its end, and that may
        # add a level. Look at the number of levels every time.
        while level + 1 < len(self.levels):
            rest, self.levels[level] = self.levels[level], []
            for thing in rest:
                self.push(thing, level + 1)
            level += 1
        things = self.levels.pop()
        self.levels = [[]]
        return things


def is_written_by(collection: str, writer: str) -> Callable[[Part], bool]:
    """Return whether a part is a blob of this writer: not inline, and not of another writer."""
    prefix = f"{check_segment(collection, 'collection id')}/{check_segment(writer, 'writer id')}/"
    return lambda part: part.key.startswith(prefix)


def hollow_part(key: str, children: Sequence[Part], size: int, meta: PartMeta | None) -> Part:
    """Refer to a hollow run of these parts, whose list has `size` bytes and whose rows are as `meta` says."""
    sums = [part.visible_diff_sum for part in children]
    known = [each for each in sums if each is not None]
    return Part(
        key,
        rows=sum(part.rows for part in children),
        size=size,
        diff_sum=wrap_int64(sum(known)) if len(known) == len(sums) else None,
        hollow=True,
        meta=b"" if meta is None else meta.encode(),
        inside_bytes=sum(part.total_bytes for part in children),
    )


def cover(children: Sequence[Part], described: Sequence[PartMeta | None]) -> PartMeta | None:
    """Describe the rows of all these parts by what is known of each; None if nothing is known of one of them.

    Times are as they were written: truncation and rewriting are those of the references.
    """
    metas = [meta for meta in described if meta is not None]
    if not metas or len(metas) < len(children):
        return None
    shared = set(metas[0].columns).intersection(*(meta.columns for meta in metas[1:]))
    return PartMeta(
        tail=0,
        tail_hash=b"",
        lower=_least([meta.lower for meta in metas]),
        upper=_greatest([meta.upper for meta in metas]),
        min_time=tuple(map(min, zip(*(meta.min_time for meta in metas), strict=True))),
        max_time=tuple(map(max, zip(*(meta.max_time for meta in metas), strict=True))),
        min_diff=min(meta.min_diff for meta in metas),
        max_diff=max(meta.max_diff for meta in metas),
        columns={
            id: _unite([(part.rows, meta.columns[id]) for part, meta in zip(children, metas, strict=True)])
            for id in sorted(shared)
        },
        row_bytes=sum(meta.row_bytes for meta in metas) if all(meta.row_bytes for meta in metas) else 0,
        repeats=_sum([meta.repeats for meta in metas]),
        negatives=_sum([meta.negatives for meta in metas]),
    )


def _sum(counts: Sequence[int | None]) -> int | None:
    """Return what there is in all; None if one count is unknown."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _unite(ranges: Sequence[tuple[int, Range]]) -> Range:
    """Return the range of a column over several parts, each with its number of rows."""
    # A part with nothing but nulls has no bounds either, and is no reason to know less of the others.
    valued = [each for rows, each in ranges if each.nulls < rows]
    return Range(
        lower=_least([each.lower for each in valued]),
        upper=_greatest([each.upper for each in valued]),
        nulls=sum(each.nulls for _, each in ranges),
    )


def _least(bounds: Sequence[bytes | None]) -> bytes | None:
    """Return the smallest bound; None if there is none, or one is unknown."""
    known = [bound for bound in bounds if bound is not None]
    return min(known) if known and len(known) == len(bounds) else None


def _greatest(bounds: Sequence[bytes | None]) -> bytes | None:
    """Return the largest bound; None if there is none, or one is unknown."""
    known = [bound for bound in bounds if bound is not None]
    return max(known) if known and len(known) == len(bounds) else None


def read_run(part: Part, blob: Blob) -> tuple[Part, ...] | None:
    """Return the parts inside a hollow run, checked against the reference to it; None if the blob is gone."""
    data = blob.get(part.key, max_bytes=ENTRY_BYTES_MAX)
    if data is None:
        return None
    if len(data) != part.size:
        raise CorruptionError(f"hollow run {part.key} has {len(data)} bytes, not {part.size}")
    children = decode_run(part.key, data)
    rows = sum(child.rows for child in children)
    if not children or rows != part.rows:
        raise CorruptionError(f"hollow run {part.key} lists {len(children)} parts of {rows} updates, not {part.rows}")
    inside_bytes = sum(child.total_bytes for child in children)
    if inside_bytes != part.inside_bytes:
        raise CorruptionError(f"hollow run {part.key} lists {inside_bytes} bytes, not {part.inside_bytes}")
    collection = parse_blob_key(part.key).collection
    for child in children:
        _check_child(part.key, collection, child)
    return children


def _check_child(run: str, collection: str, child: Part) -> None:
    """Raise a CorruptionError if a hollow run lists what is not a part of its own collection."""
    if not child.key and child.inline is not None and not child.hollow:
        return
    try:
        foreign = parse_blob_key(child.key).collection != collection
    except UsageError as error:
        raise CorruptionError(f"hollow run {run} lists a part without a proper key") from error
    if foreign:
        raise CorruptionError(f"hollow run {run} lists {child.key}, of another collection")


def delete_batch(
    batch: HollowBatch,
    blob: Blob,
    *,
    owned: Callable[[Part], bool],
    counters: Counters,
    pool: Executor | None = None,
) -> int:
    """Delete the blobs of a batch that was not, and will never be, committed; how many were left behind.

    Only what is `owned` (`is_written_by`) is touched: a merge result may pass on parts of others. The
    best that can be done is done: what storage refuses to delete is counted, and found by the
    sweep once the writer is gone.
    """
    left = _delete_below(batch.parts, blob, owned, pool, set())
    add_to_counter(counters, "left to the sweep", left)
    return left


def _delete_below(
    parts: Iterable[Part],
    blob: Blob,
    owned: Callable[[Part], bool],
    pool: Executor | None,
    seen: set[str],
) -> int:
    """Delete parts, and before a hollow run what is inside of it; how many are left.

    SUBTLE: the run last, and only if nothing inside is left. While it exists it names the blobs
    that are still to be deleted; without it nothing does.
    """
    mine = [part for part in parts if part.key and part.key not in seen and owned(part)]
    seen.update(part.key for part in mine)
    left = delete_keys([part.key for part in mine if not part.hollow], blob, pool)
    for run in (part for part in mine if part.hollow):
        try:
            inside = _delete_below(read_run(run, blob) or (), blob, owned, pool, seen)
        except TimespineError:
            left += 1
            continue
        left += inside + 1 if inside else delete_keys([run.key], blob, None)
    return left


def delete_keys(keys: Sequence[str], blob: Blob, pool: Executor | None) -> int:
    """Delete blobs, in any order; how many of them could not be."""

    def is_left(key: str) -> bool:
        try:
            blob.delete(key)
        except TimespineError:
            return True
        return False

    if isinstance(blob, BulkBlob):
        try:
            delete_blobs(blob, keys, pool)
        except TimespineError:
            return len(keys)
        return 0
    if pool is None or len(keys) < 2:
        return sum(map(is_left, keys))
    return sum(outcome(each) for each in [pool.submit(is_left, key) for key in keys])

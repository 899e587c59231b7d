"""How many rows there are, without merging them.

The count of a collection is the sum of its diffs, whichever rows they belong to.
So a part of which everything is visible counts with the sum that the state
knows, and of any other only times, diffs and the filtered columns are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from timespine.columnar.parts.part_cache import CacheHint
from timespine.columnar.scan.part_access import Parts, meta_of
from timespine.columnar.scan.scan import scan
from timespine.columnar.scan.scan_request import ScanRequest, filter_rows
from timespine.columnar.scan.visibility import Window
from timespine.columnar.schema.schema import DIFF
from timespine.core.batch import Part, Run
from timespine.model.time import INT64_MAX

SEEN_BYTES = 512
"""What the two numbers and the bounds of a part that is cut take in memory, about."""


def count_rows(parts: Parts, runs: Sequence[Run], request: ScanRequest) -> int:
    """Return the sum of the diffs of all updates that are wanted."""
    if request.lower is not None or request.upper is not None:
        return sum(_sum(table) for table in scan(parts, runs, request, parts.config.merge_bytes))
    narrow = replace(request, columns=(), keys_only=True)
    total = weight = 0
    for run in runs:
        id, schema = parts.schema(run)
        for part in run.parts:
            if is_whole(part, request):
                total += part.diff_sum or 0
                weight += _weight(part) or 0
                continue
            for leaf in parts.matching((part,), run, narrow):
                if is_whole(leaf, request):
                    total += leaf.diff_sum or 0
                    weight += _weight(leaf) or 0
                    continue
                for table in parts.tables(leaf, id, schema, narrow, parts.config.merge_bytes // 4):
                    chosen = filter_rows(table, narrow)
                    total += _sum(chosen)
                    weight += chosen.num_rows * _largest(chosen.column(DIFF).to_numpy())
    if weight > INT64_MAX:
        # The count of one row may not fit. Then a snapshot says so, and so must this: it reads what a snapshot reads.
        return sum(_sum(table) for table in scan(parts, runs, request, parts.config.merge_bytes))
    return total


def count_within_bounds(parts: Parts, run: Run, part: Part) -> tuple[int, int]:
    """Return how many updates of a part are visible through its bounds, and the sum of their diffs. Exact.

    No statistics say how many updates lie before a time, so times and diffs of a part that is cut are read: once
    per cut, since neither the part nor its bounds ever change.
    """
    if not part.is_truncated:
        return part.rows, part.diff_sum or 0
    if part.inline is not None:
        return _count_within_bounds(parts, run, part)

    def load() -> tuple[tuple[int, int], int]:
        return _count_within_bounds(parts, run, part), SEEN_BYTES

    seen: tuple[int, int] = parts.known.get_or_load(("seen", part.key, part.lower, part.upper), load)
    return seen


def _count_within_bounds(parts: Parts, run: Run, part: Part) -> tuple[int, int]:
    id, schema = parts.schema(run)
    updates = diffs = 0
    request = ScanRequest(schema, (), keys_only=True, hint=CacheHint.NEVER_ADD)
    for leaf in parts.leaves((part,)):
        for table in parts.tables(leaf, id, schema, request, parts.config.merge_bytes // 4):
            updates += table.num_rows
            diffs += _sum(table)
    return updates, diffs


def _sum(table: pa.Table) -> int:
    """Return the sum of all diffs, however large."""
    diffs = table.column(DIFF).to_numpy()
    if len(diffs) == 0:
        return 0
    return int(diffs.sum() if _largest(diffs) <= INT64_MAX // len(diffs) else diffs.astype(object).sum())


def _largest(diffs: NDArray[np.int64]) -> int:
    """Return the largest diff, whatever its sign."""
    return max(-int(diffs.min()), int(diffs.max())) if len(diffs) else 0


def is_whole(part: Part, request: ScanRequest) -> bool:
    """Tell whether surely every update of a part is wanted, and their sum is known."""
    if part.diff_sum is None or part.is_truncated or request.where is not None or request.keys is not None:
        return False
    return is_within(part, request.window) and not _may_wrap(part)


def _may_wrap(part: Part) -> bool:
    """Tell whether the sum that is known of a part may be another one modulo 2^64."""
    weight = _weight(part)
    return weight is None or weight > INT64_MAX


def _weight(part: Part) -> int | None:
    """Return no row of a part counts more than this, whatever its sign; None if that is not known."""
    meta = meta_of(part)
    return None if meta is None else part.rows * max(-meta.min_diff, meta.max_diff)


def is_within(part: Part, window: Window) -> bool:
    """Tell whether surely every time of a part lies in the window. Of one coordinate only; else unknown."""
    if window.until is None and window.after is None:
        return True
    meta = meta_of(part)
    if meta is None or len(meta.min_time) != 1:
        return False
    least, latest = meta.min_time[0], meta.max_time[0]
    if part.rewrite is not None:
        if part.rewrite.is_closed:
            return False
        least, latest = max(least, part.rewrite.time), max(latest, part.rewrite.time)
    below = window.until is None or latest <= window.until[0]
    return below and (window.after is None or least > window.after[0])

"""Figures of a spine, for people and for monitoring.

Every figure is a number, but for the pressure of memory and the list of levels. Those of levels are a row for each, so
the list is a table. Filters are counted once they are made: a chunk that was never asked for a key has none.
"""

from __future__ import annotations

import resource
from collections.abc import Iterable
from typing import Any

from timespine.arrangement.batch.batch import Batch
from timespine.arrangement.batch.key_filters import FilterCounts
from timespine.arrangement.spine.spine_driver import SpineDriver
from timespine.core.arrangement import levels
from timespine.core.arrangement.levels import LevelSlot

KINDS = ("set", "bitmap", "bloom")
"""The kinds of filters."""


def spine_metrics(driver: SpineDriver, counts: FilterCounts) -> dict[str, Any]:
    """Return all figures of a spine."""
    state = driver.levels
    batches = state.batches
    rows = [_level(number, slot, driver.seconds.get(number, 0.0)) for number, slot in enumerate(state.slots)]
    read, written = (sum(row[name] for row in rows) for name in ("rows read", "rows written"))
    on_disk = sum(batch.nbytes for batch in batches if not batch.in_memory)
    nbytes = sum(batch.nbytes for batch in batches)
    return {
        "batches": levels.count(state),
        "batches being merged": sum(row["merging"] for row in rows),
        "rows": sum(batch.rows for batch in batches),
        "bytes": nbytes,
        "bytes in memory": nbytes - on_disk,
        "bytes on disk": on_disk,
        "bytes being merged": sum(row["merging bytes"] for row in rows),
        "rows read by merges": read,
        "rows written by merges": written,
        "reduction percent": _percent(read - written, read),
        "seconds waited for merges": driver.waited_s,
        "memory pressure": driver.resources().pressure.name.lower(),
        "memory used bytes": driver.used_bytes(),
        "memory limit bytes": driver.limit_bytes,
        "major faults": resource.getrusage(resource.RUSAGE_SELF).ru_majflt,
        **_filters(batches, counts),
        "levels": rows,
    }


def _level(number: int, slot: LevelSlot[Batch], seconds: float) -> dict[str, Any]:
    """Return the figures of a level."""
    merging = (*slot.merging, *slot.compacting)
    figures = slot.figures
    return {
        "level": number,
        "batches": len(slot.entries),
        "loose": len(slot.loose),
        "merging": len(merging),
        "rows in memory": _rows(slot.batches, in_memory=True),
        "rows on disk": _rows(slot.batches, in_memory=False),
        "merging rows in memory": _rows(merging, in_memory=True),
        "merging rows on disk": _rows(merging, in_memory=False),
        "merging bytes": sum(batch.nbytes for batch in merging),
        "negatives": sum(batch.negatives for batch in slot.batches),
        **{name.replace("_", " "): getattr(figures, name) for name in figures.__slots__},
        "seconds": seconds,
        "seconds per slice": seconds / figures.slices if figures.slices else 0.0,
    }


def _rows(batches: Iterable[Batch], *, in_memory: bool) -> int:
    return sum(batch.rows for batch in batches if batch.in_memory is in_memory)


def _filters(batches: Iterable[Batch], counts: FilterCounts) -> dict[str, Any]:
    """Return the figures of the filters that were made, and how often they were asked."""
    made, rows = [], 0
    for batch in batches:
        there = batch.filters()
        made += there
        rows += batch.rows if len(there) == len(batch.chunks) else 0
    nbytes = sum(each.nbytes for each in made)
    return {
        "range filter bytes": sum(len(batch.first) + len(batch.last) for batch in batches),
        "member filter bytes": nbytes,
        "member filter bits per row": 8 * nbytes / rows if rows else 0.0,
        **{f"{kind} filters": sum(each.kind == kind for each in made) for kind in KINDS},
        **{name.replace("_", " "): getattr(counts, name) for name in FilterCounts.__slots__},
        "range hit percent": _percent(counts.range_hits, counts.range_hits + counts.range_misses),
        "member hit percent": _percent(counts.member_hits, counts.member_hits + counts.member_misses),
    }


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0

"""Figures of the open arrangements of a store, for `store.metrics()` and Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from timespine.client.inner_handles import StoreContext
from timespine.errors import StoreClosed

FIGURES = {
    "rows": "Updates that an arrangement holds.",
    "batches": "Batches of an arrangement.",
    "batches being merged": "Batches that merges have now.",
    "bytes being merged": "Bytes of the batches that merges have now.",
    "bytes in memory": "Bytes of batches in memory.",
    "bytes on disk": "Bytes of batches in mapped files.",
    "times behind": "Complete times of the newest known state that the arrangement has not taken yet.",
    "updates taken": "Updates that it took from the feed of its collection.",
    "restarts": "How often it began again: a lost lease, another schema, a damaged checkpoint.",
    "reads of the collection": "How often it read the whole collection.",
    "checkpoints saved": "Checkpoints that it saved.",
    "checkpoints failed": "Checkpoints that it could not save.",
    "checkpoints restored": "Checkpoints that it went on from.",
    "checkpoints refused": "Checkpoints that were damaged, or did not fit.",
    "seconds saving checkpoints": "Seconds that saving took.",
    "seconds waited for merges": "Seconds that inserts waited because there were too many batches.",
    "rows read by merges": "Updates that merges read.",
    "rows written by merges": "Updates that merges left.",
    "reduction percent": "Updates that merges left out, per hundred that they read.",
    "memory used bytes": "Bytes that count against the limit of memory.",
    "memory limit bytes": "Bytes from which on batches go to files, and levels merge early.",
    "major faults": "Pages of mapped files, and others of this process, that were read from the disk.",
    "range filter bytes": "Bytes of the bounds of batches.",
    "member filter bytes": "Bytes of the filters of words that were made.",
    "member filter bits per row": "Bits of the filters of words, per row.",
    "range hits": "Keys within the bounds of a batch.",
    "range misses": "Keys outside of the bounds of a batch.",
    "member hits": "Keys that the filter of a chunk does not rule out.",
    "member misses": "Keys that the filter of a chunk rules out.",
    "range hit percent": "Keys that lie within the bounds of a batch, per hundred.",
    "member hit percent": "Keys within the bounds that the filter of a batch does not rule out, per hundred.",
}
"""The figures that are exported, and what they say."""

LEVEL_FIGURES = {
    "batches": "Batches of a level.",
    "loose": "Batches of a level that no merge has.",
    "merging": "Batches of a level that merges have.",
    "rows in memory": "Updates of a level in memory.",
    "rows on disk": "Updates of a level in mapped files.",
    "merging rows in memory": "Updates in memory that merges have.",
    "merging rows on disk": "Updates in mapped files that merges have.",
    "negatives": "Updates of a level with a diff below zero.",
    "merges": "Merges of a level that ended.",
    "inputs": "Batches that these merges had.",
    "slices": "Slices that these merges took.",
    "rows read": "Updates that these merges read.",
    "rows written": "Updates that these merges left.",
    "failures": "Merges of a level that failed, and were tried again.",
    "put off": "How often a merge waited for space on the disk.",
    "seconds": "Seconds that the merges of a level took.",
}
"""The figures of each level that are exported to Prometheus."""


def arrangement_metrics(context: StoreContext) -> Iterator[tuple[str, str, dict[str, float]]]:
    """Give the collection, the arranged columns and the figures of each open arrangement. Reads no storage."""
    for arrangement in list(context.arrangements):
        with suppress(StoreClosed):
            found = arrangement.metrics()
            figures = {name: float(str(found[name])) for name in FIGURES if name in found}
            yield arrangement.collection_name, arrangement.label, figures


def level_metrics(context: StoreContext) -> Iterator[tuple[str, str, str, dict[str, float]]]:
    """Give the collection, the arranged columns, the level and the figures of each level of each open arrangement."""
    for arrangement in list(context.arrangements):
        with suppress(StoreClosed):
            rows = arrangement.metrics()["levels"]
            assert isinstance(rows, list)
            for row in rows:
                figures = {name: float(row[name]) for name in LEVEL_FIGURES}
                yield arrangement.collection_name, arrangement.label, str(row["level"]), figures


def figure_name(name: str) -> str:
    """Return the name of a figure for Prometheus."""
    return f"timespine_arrangement_{name.replace(' ', '_')}"

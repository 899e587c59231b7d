"""Figures of the open arrangements of a store, for `store.metrics()` and Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from timespine.client.inner_handles import StoreContext
from timespine.errors import StoreClosed

FIGURES = {
    "rows": "Updates that an arrangement holds.",
    "batches": "Batches of an arrangement.",
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
    "range hit percent": "Keys that lie within the bounds of a batch, per hundred.",
    "member hit percent": "Keys within the bounds that the filter of a batch does not rule out, per hundred.",
}
"""The figures that are exported, and what they say."""


def arrangement_metrics(context: StoreContext) -> Iterator[tuple[str, str, dict[str, float]]]:
    """Give the collection, the arranged columns and the figures of each open arrangement. Reads no storage."""
    for arrangement in list(context.arrangements):
        with suppress(StoreClosed):
            found = arrangement.metrics()
            figures = {name: float(str(found[name])) for name in FIGURES if name in found}
            yield arrangement.collection_name, arrangement.label, figures


def figure_name(name: str) -> str:
    """Return the name of a figure for Prometheus."""
    return f"timespine_arrangement_{name.replace(' ', '_')}"

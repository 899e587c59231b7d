"""Figures of an open store, as a dictionary or for Prometheus.

Amplification, per collection:

    write   bytes written (appends and merges) per byte appended
    read    runs that a snapshot of now has to merge
    space   updates stored per row that counts now
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from timespine.client.access import Access
from timespine.core.state import State
from timespine.errors import TimespineError

if TYPE_CHECKING:
    from timespine.client.store import Store

GAUGES = {
    "seqno": "Commits so far.",
    "batches": "Hollow batches in the trace.",
    "runs": "Runs that a snapshot has to merge: read amplification.",
    "parts": "Parts that the state lists.",
    "updates": "Updates stored, at most.",
    "rows": "Rows that count now, as often as they count.",
    "bytes": "Bytes of all parts.",
    "inline_bytes": "Bytes of parts in the state itself.",
    "unsealed": "Batches written ahead of the seal.",
    "merges_due": "Merges that somebody should do.",
    "readers": "Leased readers.",
    "holds": "Critical holds.",
    "writers": "Registered writers.",
    "rollup_lag": "Commits since the last rollup.",
    "write_amplification": "Bytes written by this process per byte it appended.",
    "space_amplification": "Updates stored per row that counts.",
}


def of_collection(access: Access) -> dict[str, float]:
    """The figures of one collection. Read from its state: no data is touched."""
    state = access.state()
    batches = list(state.hollow_batches())
    parts = [part for batch in batches for part in batch.parts]
    rows = sum(part.diff_sum or 0 for part in parts)
    written = access.shared.counters_of(access.id)
    appended = written.get("append bytes", 0)
    merged = written.get("merge bytes out", 0) + written.get("merge bytes inline", 0)
    return {
        "seqno": state.seqno,
        "batches": len(batches),
        "runs": sum(len(batch.runs) for batch in batches) + len(state.unsealed),
        "parts": len(parts),
        "updates": state.trace.update_count,
        "rows": rows,
        "bytes": sum(part.size for part in parts),
        "inline_bytes": state.inline_bytes,
        "unsealed": len(state.unsealed),
        "merges_due": len(state.trace.requests()),
        "readers": len(state.readers),
        "holds": len(state.holds),
        "writers": len(state.writers),
        "rollup_lag": _rollup_lag(state),
        "write_amplification": (appended + merged) / appended if appended else 0.0,
        "space_amplification": state.trace.update_count / rows if rows > 0 else 0.0,
    }


def of_process(store: Store) -> dict[str, float]:
    """What this process counted, over all collections."""
    shared = store._shared
    # Copies: others count while we look.
    figures: dict[str, float] = dict(shared.committer.counters)
    figures.update({f"upkeep {name}": value for name, value in dict(store._upkeep.counters).items()})
    for counters in (shared.counters, *dict(shared.by_collection).values()):
        for name, value in dict(counters).items():
            figures[name] = figures.get(name, 0) + value
    cache = shared.cache
    figures.update({"cache hits": cache.hits, "cache misses": cache.misses, "cache evictions": cache.evictions})
    figures["cache bytes"] = cache.bytes
    report = store.maintenance.report
    for name in ("merges", "rollups", "collected", "swept", "leases", "failures"):
        figures[f"maintenance {name}"] = getattr(report, name)
    return figures


class StoreCollector(Collector):
    """Gives the figures of a store to Prometheus whenever it asks."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        """All figures, labelled by collection."""
        families = {
            name: GaugeMetricFamily(f"timespine_{name}", text, labels=["collection"]) for name, text in GAUGES.items()
        }
        for label, access in self._current():
            try:
                figures = of_collection(access)
            except TimespineError:
                continue  # dropped, or storage is away: say nothing rather than something old
            for name, value in figures.items():
                families[name].add_metric([label], value)
        yield from families.values()
        counted = CounterMetricFamily("timespine_events", "What this process did.", labels=["event"])
        for name, value in of_process(self._store).items():
            counted.add_metric([name], value)
        yield counted

    def _current(self) -> list[tuple[str, Access]]:
        """The open collections by the names that they have now; not those that were dropped."""
        try:
            names = {entry.id: name for name, entry in self._store._catalog.read().entries.items()}
        except TimespineError:
            return []
        return [(names[access.id], access) for access in self._store._opened() if access.id in names]

    def describe(self) -> list[Metric]:
        """Nothing: what there is depends on the collections."""
        return []


def register(store: Store, registry: CollectorRegistry = REGISTRY) -> StoreCollector:
    """Let Prometheus see a store; unregister the collector before the store is closed."""
    collector = StoreCollector(store)
    registry.register(collector)
    return collector


def _rollup_lag(state: State) -> int:
    return state.seqno - max(state.rollups, default=0)

"""Figures of an open store for Prometheus. Needs `timespine[metrics]`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from timespine.client.context import Access
from timespine.client.diagnostics.metrics import GAUGES, of_collection, of_process
from timespine.errors import TimespineError

try:
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "prometheus-client is not installed: pip install 'timespine[metrics]'", name=missing.name
    ) from None

if TYPE_CHECKING:
    from timespine.client.store import Store


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
        return [(names[access.id], access) for access in self._store.handles.all() if access.id in names]

    def describe(self) -> list[Metric]:
        """Nothing: what there is depends on the collections."""
        return []


def register(store: Store, registry: CollectorRegistry = REGISTRY) -> StoreCollector:
    """Let Prometheus see a store; unregister the collector before the store is closed."""
    collector = StoreCollector(store)
    registry.register(collector)
    return collector

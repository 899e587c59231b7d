"""Figures of an open store for Prometheus. Needs `timespine[metrics]`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from timespine.client.diagnostics.arrangement_metrics import (
    FIGURES,
    LEVEL_FIGURES,
    arrangement_metrics,
    figure_name,
    level_metrics,
)
from timespine.client.diagnostics.metrics import GAUGES, collection_metrics, process_metrics
from timespine.client.inner_handles import CollectionHandle
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
    """A collector that gives the figures of a store to Prometheus on request."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        """Give all figures, labelled by collection."""
        families = {
            name: GaugeMetricFamily(f"timespine_{name}", text, labels=["collection"]) for name, text in GAUGES.items()
        }
        for label, handle in self._current():
            try:
                figures = collection_metrics(handle)
            except TimespineError:
                continue  # dropped, or storage is unavailable: give no figure rather than an old one
            for name, value in figures.items():
                families[name].add_metric([label], value)
        yield from families.values()
        yield from self._arrangements()
        counted = CounterMetricFamily("timespine_events", "What this process did.", labels=["event"])
        for name, value in process_metrics(self._store).items():
            counted.add_metric([name], value)
        yield counted

    def _arrangements(self) -> Iterator[Metric]:
        """Give the figures of the open arrangements by collection and arranged columns, and those of their levels."""
        context = self._store._context
        whole = {name: (figure_name(name), text) for name, text in FIGURES.items()}
        yield from _families(
            whole, ["collection", "by"], (([name, by], found) for name, by, found in arrangement_metrics(context))
        )
        levels = {name: (figure_name(f"level {name}"), text) for name, text in LEVEL_FIGURES.items()}
        yield from _families(
            levels,
            ["collection", "by", "level"],
            (([name, by, level], found) for name, by, level, found in level_metrics(context)),
        )

    def _current(self) -> list[tuple[str, CollectionHandle]]:
        """List the open collections by their newest names, without dropped ones."""
        try:
            names = {entry.id: name for name, entry in self._store._catalog.read().entries.items()}
        except TimespineError:
            return []
        return [(names[handle.id], handle) for handle in self._store._handles.all() if handle.id in names]

    def describe(self) -> list[Metric]:
        """Return nothing: the metrics depend on the collections."""
        return []


def _families(
    named: Mapping[str, tuple[str, str]], labels: Sequence[str], measured: Iterable[tuple[list[str], dict[str, float]]]
) -> Iterator[Metric]:
    """Give one family for each named figure, with what was measured under its labels."""
    families = {each: GaugeMetricFamily(name, text, labels=labels) for each, (name, text) in named.items()}
    for values, figures in measured:
        for name, value in figures.items():
            families[name].add_metric(values, value)
    yield from families.values()


def register_collector(store: Store, registry: CollectorRegistry = REGISTRY) -> StoreCollector:
    """Register a store with Prometheus; unregister the collector before the store is closed."""
    collector = StoreCollector(store)
    registry.register(collector)
    return collector

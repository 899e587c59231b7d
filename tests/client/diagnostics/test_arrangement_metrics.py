"""Figures of open arrangements are in `store.metrics()` and in Prometheus."""

from __future__ import annotations

import pytest
from assertions import until

import timespine as ts
from timespine.client.diagnostics.arrangement_metrics import FIGURES, LEVEL_FIGURES, figure_name
from timespine.config import LEVELS


@pytest.fixture
def orders(tmp_path):
    with ts.open(str(tmp_path / "store")) as store:
        made = store.create("orders", key={"id": "int64"}, value={"customer": "string"}, timeline="counter")
        made.append([{"id": n, "customer": "ab"[n % 2]} for n in range(10)])
        yield made


def test_every_figure_of_an_open_arrangement_is_there_and_goes_with_it(orders, tmp_path):
    store = orders._store
    assert not [name for name in store.metrics() if name.startswith("arrangement")]
    with orders.arrange(by=["customer", "id"], folder=tmp_path / "index") as index:
        orders.append([{"id": 20, "customer": "c"}])
        index.get("c")
        index.save()
        figures = store.metrics()
        for name in FIGURES:
            assert f"arrangement {name} of orders by customer, id" in figures, name
        assert figures["arrangement rows of orders by customer, id"] == 11
        assert figures["arrangement times behind of orders by customer, id"] == 0
        assert figures["arrangement checkpoints saved of orders by customer, id"] >= 1
    assert not [name for name in store.metrics() if name.startswith("arrangement")]


def test_prometheus_has_them_by_collection_and_columns(orders):
    client = pytest.importorskip("prometheus_client")
    from timespine.client.diagnostics.prometheus import register_collector

    registry = client.CollectorRegistry()
    register_collector(orders._store, registry)
    with orders.arrange() as by_id, orders.arrange(by=["customer"]):
        by_id.get(3)
        shown = client.generate_latest(registry).decode()
        assert 'timespine_arrangement_rows{by="id",collection="orders"} 10.0' in shown
        assert 'timespine_arrangement_rows{by="customer",collection="orders"} 10.0' in shown
        assert "timespine_arrangement_times_behind" in shown
    assert 'timespine_arrangement_rows{by="id"' not in client.generate_latest(registry).decode()


def test_prometheus_has_the_figures_of_every_level(orders):
    client = pytest.importorskip("prometheus_client")
    from timespine.client.diagnostics.prometheus import register_collector

    registry = client.CollectorRegistry()
    register_collector(orders._store, registry)
    with orders.arrange() as by_id:
        for n in range(20, 30):
            orders.append([{"id": n, "customer": "c"}])
            assert by_id.get_one(n) is not None

        def shown(name, level):
            labels = {"collection": "orders", "by": "id", "level": str(level)}
            return registry.get_sample_value(figure_name(f"level {name}"), labels)

        for level in range(LEVELS):
            assert all(shown(name, level) is not None for name in LEVEL_FIGURES)
        until(by_id._current.spine.is_settled)
        table = by_id.metrics()["levels"]
        for name in LEVEL_FIGURES:
            assert [shown(name, level) for level in range(LEVELS)] == [row[name] for row in table], name
        assert shown("merges", 0) >= 1
        assert shown("seconds", 0) > 0
        assert sum(shown("rows in memory", level) for level in range(LEVELS)) == 20
    assert shown("batches", 0) is None

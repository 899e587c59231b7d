"""Figures: right on a history that is known, and always in a form that Prometheus takes."""

import threading

import pytest
from places import BLOBS, QUICK, Place, Script, in_threads
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from timespine.client.metrics import GAUGES, of_collection, register
from timespine.config import Config
from timespine.location.unreliable import Fault

OFTEN = Config(inline_part_bytes=1, rollup_seqnos=1000, retry_pause_ms=1, storage_attempts=2)


@pytest.fixture
def place():
    with Place() as made:
        yield made


def create(store, name="orders", **options):
    options = {"key": {"k": "int64"}, "value": {"v": "string"}, "timeline": "counter", **options}
    return store.create(name, **options)


def figures(collection):
    return of_collection(collection._access)


def exposed(registry):
    """What Prometheus would read: values by name and labels."""
    text = generate_latest(registry).decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    return found


def test_the_figures_of_a_collection_are_those_of_its_history(place):
    orders = create(place.open(config=OFTEN))
    assert figures(orders)["write_amplification"] == 0
    for k in (1, 2, 3):
        orders.append([{"k": k, "v": "a"}])
    orders.upsert([{"k": 1, "v": "b"}])
    state = orders._access.state()
    sizes = [part.size for part in state.parts()]
    found = figures(orders)
    assert found["seqno"] == state.seqno
    assert (found["batches"], found["runs"], found["parts"]) == (4, 4, 4)
    assert (found["updates"], found["rows"]) == (5, 3)
    assert found["space_amplification"] == 5 / 3
    assert found["bytes"] == sum(sizes) == sum(info.size for info in place.blob.list_keys(f"{orders.id}/"))
    assert found["inline_bytes"] == 0
    assert found["write_amplification"] == 1.0
    assert (found["readers"], found["holds"], found["writers"]) == (1, 0, 1)  # the lease of the upsert lingers
    assert found["rollup_lag"] == state.seqno
    assert found["unsealed"] == 0


def test_merges_raise_write_amplification_and_lower_the_others(place):
    store = place.open(config=OFTEN)
    orders = create(store)
    for n in range(5):
        orders.upsert([{"k": 1, "v": f"v{n}"}])
    appended = sum(part.size for part in orders._access.state().parts())
    assert figures(orders)["space_amplification"] == 9.0
    orders.compact()
    assert figures(orders)["merges_due"] == 1
    orders.compact(wait=True)
    (first,) = orders._access.state().parts()
    found = figures(orders)
    assert (found["runs"], found["updates"], found["merges_due"]) == (1, 9, 0)
    assert found["write_amplification"] == (appended + first.size) / appended
    orders.expire(before=9)
    orders.compact(wait=True)
    (second,) = orders._access.state().parts()
    found = figures(orders)
    assert (found["runs"], found["updates"], found["rows"], found["space_amplification"]) == (1, 1, 1, 1.0)
    assert found["write_amplification"] == (appended + first.size + second.size) / appended


def test_a_merge_whose_result_lives_in_the_state_counts_as_written_too(place):
    orders = create(place.open(config=QUICK))
    for n in range(5):
        orders.upsert([{"k": 1, "v": f"v{n}"}])
    appended = orders._access.state().inline_bytes
    orders.compact(wait=True)
    (merged,) = orders._access.state().parts()
    assert merged.inline is not None
    assert figures(orders)["write_amplification"] == (appended + len(merged.inline)) / appended > 1


def test_runs_are_what_a_snapshot_has_to_merge(place):
    store = place.open(config=OFTEN)
    orders = create(store)
    for n in range(10):
        orders.append([{"k": n, "v": "x"}])
        assert figures(orders)["runs"] == len(orders.snapshot()._plan.runs)
    store.maintain()
    assert figures(orders)["runs"] == len(orders.snapshot()._plan.runs) == 1


def test_inline_rows_holds_and_rollups_are_counted(place):
    store = place.open(config=QUICK)
    orders = create(store)
    orders.append([{"k": 1, "v": "a", "_diff": 3}])
    orders.hold(0, critical="backup")
    found = figures(orders)
    assert found["inline_bytes"] == found["bytes"] > 0
    assert (found["holds"], found["rows"]) == (1, 3)
    store.maintain()
    assert figures(orders)["rollup_lag"] <= 3


def test_collections_without_rows_or_with_debts_have_figures_too(place):
    orders = create(place.open(config=OFTEN))
    assert figures(orders)["space_amplification"] == 0.0
    orders.append([{"k": 1, "v": "a", "_diff": -5}])
    found = figures(orders)
    assert (found["rows"], found["space_amplification"]) == (-5, 0.0)


def test_what_was_loaded_counts_as_appended(place, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"k": list(range(100))}), tmp_path / "x.parquet")
    orders = place.open(config=OFTEN).load("orders", tmp_path / "x.parquet", key=["k"])
    found = figures(orders)
    assert (found["rows"], found["write_amplification"]) == (100, 1.0)


def test_the_process_counts_what_it_did(place):
    store = place.open(config=OFTEN)
    orders = create(store)
    for n in range(10):
        orders.append([{"k": n, "v": "x"}])
    store.maintain()
    counted = store.metrics()
    assert counted["append rows"] == 10
    assert counted["commits"] >= 10
    assert counted["maintenance merges"] > 0
    assert counted["upkeep merges applied"] == counted["maintenance merges"]
    assert counted["maintenance failures"] == 0
    assert counted["merge rows out"] >= 10
    assert all(isinstance(value, int | float) for value in counted.values())
    orders.snapshot().to_arrow()
    orders.snapshot().to_arrow()
    assert store.metrics()["cache hits"] > 0


# Prometheus.


def test_prometheus_can_read_all_of_it(place):
    store = place.open(config=OFTEN)
    left, right = create(store, "left"), create(store, "right.2-x")
    left.append([{"k": 1, "v": "a"}])
    registry = CollectorRegistry()
    collector = register(store, registry)
    found = exposed(registry)
    for name in GAUGES:
        assert (f"timespine_{name}", (("collection", "left"),)) in found
        assert (f"timespine_{name}", (("collection", "right.2-x"),)) in found
    assert found["timespine_rows", (("collection", "left"),)] == 1
    assert found["timespine_events_total", (("event", "append rows"),)] == 1
    right.append([{"k": 1, "v": "a"}])
    assert exposed(registry)["timespine_rows", (("collection", "right.2-x"),)] == 1
    registry.unregister(collector)
    assert exposed(registry) == {}


def test_collections_are_labelled_by_the_names_that_they_have_now(place):
    store, other = place.open(config=OFTEN), place.open(config=OFTEN)
    registry = CollectorRegistry()
    register(store, registry)
    create(store, "a").append([{"k": 1, "v": "a"}])
    create(store, "b")
    create(store, "a", replace=True)
    other.rename("b", "c")
    create(store, "d")
    store.drop("d")
    found = exposed(registry)
    labels = {labels[0][1] for name, labels in found if name == "timespine_rows"}
    assert labels == {"a", "c"}
    assert found["timespine_rows", (("collection", "a"),)] == 0


def test_storage_that_is_away_or_a_store_that_was_closed_gives_no_figures_and_no_error(place):
    script = Script()
    store = place.open(config=OFTEN, script=script)
    create(store)
    registry = CollectorRegistry()
    register(store, registry)
    script.add("scan", Fault.DETERMINATE, times=2)  # the catalog
    assert not any(name == "timespine_rows" for name, _ in exposed(registry))
    assert script.is_done
    script.add("scan", Fault.DETERMINATE, key="orders", times=2)  # the collection
    assert not any(name == "timespine_rows" for name, _ in exposed(registry))
    assert any(name == "timespine_rows" for name, _ in exposed(registry))
    store.close()
    exposed(registry)


def test_figures_can_be_asked_for_while_everybody_is_at_work(place):
    store = place.open(config=BLOBS)
    registry = CollectorRegistry()
    register(store, registry)
    stop = threading.Event()

    def work(who):
        for n in range(10):
            orders = create(store, f"c{who}-{n}")
            orders.append([{"k": n, "v": "x"}])
            orders.snapshot().to_arrow()

    def all_of_them():
        try:
            in_threads(*(lambda who=who: work(who) for who in range(3)))
        finally:
            stop.set()

    def ask():
        while not stop.is_set():
            store.metrics()
            exposed(registry)

    in_threads(all_of_them, ask)
    assert store.metrics()["append rows"] == 30

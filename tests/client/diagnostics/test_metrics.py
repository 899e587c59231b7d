"""Figures: right on a history that is known, and always in a form that Prometheus takes."""

import threading

import pytest
from key_value_cases import create
from memory_store import BLOBS, QUICK, Script, in_threads
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from timespine.client.diagnostics.metrics import GAUGES, collection_metrics
from timespine.client.diagnostics.prometheus import register_collector
from timespine.config import Config
from timespine.core.batch import Part
from timespine.core.state import State
from timespine.core.transitions import AdvanceUpper, Write
from timespine.errors import Unavailable, UpperMismatch
from timespine.model.frontier import Frontier
from timespine.testing.unreliable import Fault

OFTEN = Config(inline_part_bytes=1, rollup_seqnos=1000, retry_pause_ms=1, storage_attempts=2)


def figures(collection):
    return collection_metrics(collection._handle)


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
    state = orders._handle.state()
    sizes = [part.size for part in state.parts()]
    found = figures(orders)
    assert found["seqno"] == state.seqno
    assert (found["batches"], found["runs"], found["parts"]) == (4, 4, 4)
    assert (found["updates"], found["rows"]) == (5, 3)
    assert found["update_amplification"] == 5 / 3
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
    appended = sum(part.size for part in orders._handle.state().parts())
    assert figures(orders)["update_amplification"] == 9.0
    orders.compact()
    assert figures(orders)["merges_due"] == 1
    orders.compact(wait=True)
    (first,) = orders._handle.state().parts()
    found = figures(orders)
    assert (found["runs"], found["updates"], found["merges_due"]) == (1, 9, 0)
    assert found["write_amplification"] == (appended + first.size) / appended
    orders.expire(before=9)
    orders.compact(wait=True)
    (second,) = orders._handle.state().parts()
    found = figures(orders)
    assert (found["runs"], found["updates"], found["rows"], found["update_amplification"]) == (1, 1, 1, 1.0)
    assert found["write_amplification"] == (appended + first.size + second.size) / appended


def test_a_merge_whose_result_lives_in_the_state_counts_as_written_too(place):
    orders = create(place.open(config=QUICK))
    for n in range(5):
        orders.upsert([{"k": 1, "v": f"v{n}"}])
    appended = orders._handle.state().inline_bytes
    orders.compact(wait=True)
    (merged,) = orders._handle.state().parts()
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
    orders.critical_hold("backup", 0)
    found = figures(orders)
    assert found["inline_bytes"] == found["bytes"] > 0
    assert (found["holds"], found["rows"]) == (1, 3)
    store.maintain()
    assert figures(orders)["rollup_lag"] <= 3


def test_collections_without_rows_or_with_debts_have_figures_too(place):
    orders = create(place.open(config=OFTEN))
    assert figures(orders)["update_amplification"] == 0.0
    orders.append([{"k": 1, "v": "a", "_diff": -5}])
    found = figures(orders)
    assert (found["rows"], found["update_amplification"]) == (-5, 0.0)


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


# Commands, and where the data lies.


def test_commands_are_counted_by_kind_and_those_that_failed(place):
    store = place.open(config=OFTEN)
    orders = create(store)
    before = store.metrics()
    assert before["commands failed"] == 0
    orders.append([{"k": 1, "v": "a"}])
    orders.append([{"k": 2, "v": "a"}], at=5)
    orders.seal(20, if_behind="ignore")
    orders.seal(30)
    counted = store.metrics()
    assert counted["commands append next"] == 1
    assert counted["commands compare and append"] == 1
    assert counted["commands advance upper"] == counted["commands seal"] == 1
    with pytest.raises(UpperMismatch):
        orders.append([{"k": 3, "v": "a"}], at=40, expected_upper=7)
    assert store.metrics()["commands compare and append"] == 2
    assert store.metrics()["commands failed"] == 1


def test_commands_of_a_commit_that_storage_refused_have_failed_all_of_them(place):
    script = Script()
    store = place.open(config=OFTEN, script=script)
    left, right = create(store, "left"), create(store, "right")
    store.seal_idle(1)
    script.add("compare_and_set", Fault.DETERMINATE, times=99)
    commands = [(each.id, AdvanceUpper(Frontier.at(9))) for each in (left, right)]
    with pytest.raises(Unavailable):
        store._committer.commit(*commands)
    assert store.metrics()["commands failed"] == store.metrics()["commands advance upper"] == 2
    assert left.upper == right.upper == Frontier.at(0)


def unsealed(collection, key, time, size=100):
    """A batch ahead of the seal."""
    part = Part(f"{collection.id}/{collection._handle.committer.writer(collection.id)}/{key}", 1, size, 1)
    collection._handle.committer.commit((collection.id, Write(Frontier.at(time), (time,), (part,), 0)))


def test_blobs_and_bytes_are_counted_where_they_lie(place):
    store = place.open(config=OFTEN)
    left, right = create(store, "left"), create(store, "right")
    for n in range(3):
        left.append([{"k": n, "v": "x"}])
    right.append([{"k": 1, "v": "y"}])
    unsealed(left, "p-one", 7)
    unsealed(left, "p-two", 8, 50)
    sizes = {
        each: [part.size for batch in each._handle.state().hollow_batches() for part in batch.parts]
        for each in (left, right)
    }
    found = figures(left)
    assert (found["trace_blobs"], found["trace_blob_bytes"]) == (3, sum(sizes[left]))
    assert (found["unsealed_blobs"], found["unsealed_blob_bytes"]) == (2, 150)
    counted = store.metrics()
    assert (counted["trace blobs"], counted["trace blob bytes"]) == (4, sum(sizes[left]) + sum(sizes[right]))
    assert (counted["unsealed blobs"], counted["unsealed blob bytes"]) == (2, 150)
    store.drop("left")
    store._leases.close()
    store.maintain()
    assert store.metrics()["unsealed blobs"] == 0
    assert store.metrics()["trace blobs"] == 1


def test_rows_that_live_in_the_state_are_no_blobs(place):
    store = place.open(config=QUICK)
    orders = create(store)
    orders.append([{"k": 1, "v": "a"}])
    found = figures(orders)
    assert (found["trace_blobs"], found["trace_blob_bytes"], found["inline_bytes"] > 0) == (0, 0, True)


def test_blobs_are_added_up_once_per_state_and_only_on_request(place, monkeypatch):
    store = place.open(config=OFTEN)
    orders = create(store)
    walks = []
    real = State.hollow_batches

    def walked(state):
        walks.append(state.seqno)
        return real(state)

    for n in range(5):
        orders.append([{"k": n, "v": "x"}])
    monkeypatch.setattr(State, "hollow_batches", walked)
    orders.append([{"k": 9, "v": "x"}])
    assert walks == []  # no commit walks over all batches
    assert (store.metrics()["trace blobs"], len(walks)) == (6, 1)
    for _ in range(5):
        assert store.metrics()["trace blobs"] == 6
    assert len(walks) == 1


def test_the_figures_of_a_store_read_logs_and_no_blob(place):
    script = Script()
    store = place.open(config=OFTEN, script=script)
    for name in ("a", "b"):
        create(store, name).append([{"k": 1, "v": "a"}])
    before = dict(script.calls)
    assert store.metrics()["trace blobs"] == 2
    asked = {name: count - before.get(name, 0) for name, count in script.calls.items() if count != before.get(name, 0)}
    assert asked == {"scan": 4}, "two scans for each collection: what is new, and the whole log"


def test_a_store_without_storage_counts_what_it_knows_and_asks_for_one_collection_only(place):
    script = Script()
    store = place.open(config=OFTEN, script=script)
    for name in ("a", "b", "c"):
        create(store, name).append([{"k": 1, "v": "a"}])
    script.add("scan", Fault.DETERMINATE, times=OFTEN.storage_attempts)
    found = store.metrics()
    assert (found["trace blobs"], found["append rows"]) == (3, 3)
    assert not any("amplification" in name for name in found)
    assert script.is_done
    assert "space amplification of c" in store.metrics()


# Prometheus.


def test_prometheus_can_read_all_of_it(place):
    store = place.open(config=OFTEN)
    left, right = create(store, "left"), create(store, "right.2-x")
    left.append([{"k": 1, "v": "a"}])
    registry = CollectorRegistry()
    collector = register_collector(store, registry)
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
    register_collector(store, registry)
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
    register_collector(store, registry)
    script.add("scan", Fault.DETERMINATE, times=2)  # the catalog
    assert not any(name == "timespine_rows" for name, _ in exposed(registry))
    assert script.is_done
    script.add("scan", Fault.DETERMINATE, key="orders", times=2)  # the collection
    assert not any(name == "timespine_rows" for name, _ in exposed(registry))
    assert any(name == "timespine_rows" for name, _ in exposed(registry))
    store.close()
    exposed(registry)


def test_figures_can_be_asked_for_while_all_threads_work(place):
    store = place.open(config=BLOBS)
    registry = CollectorRegistry()
    register_collector(store, registry)
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


def test_amplification_is_the_same_in_every_process_and_counts_garbage_rollups_and_log(place):
    writer, maintainer = place.open(config=OFTEN), place.open(config=OFTEN)
    orders = create(writer)
    for number in range(20):
        orders.append([{"k": n * 100 + number, "v": f"{number} {n}"} for n in range(50)])
    theirs = maintainer["orders"]
    theirs.compact(wait=True)
    found, other = figures(orders), figures(theirs)
    names = [name for name in found if name.endswith(("amplification", "_bytes", "_rows")) and name != "cache bytes"]
    assert {name: found[name] for name in names} == {name: other[name] for name in names}
    assert found["write_amplification"] > 1.05  # many small blobs became a large one, which takes less
    assert found["garbage_bytes"] > 0
    assert found["log_bytes"] == sum(len(data) for _, data in place.consensus.scan(orders.id))
    stored = found["live_bytes"] + found["garbage_bytes"] + found["rollup_bytes"] + found["log_bytes"]
    assert found["space_amplification"] == stored / found["live_bytes"]
    assert (found["read_amplification"], found["spine_compact"], found["spine_compacting"]) == (1, 1, 0)
    told = writer.metrics()
    assert told["write amplification of orders"] == found["write_amplification"]
    assert told["read amplification of orders"] == 1
    assert told["space amplification of orders"] == found["space_amplification"]
    assert orders.inspect().amplification.space == found["space_amplification"]
    assert (told["stream count"], told["compaction seconds"] >= 0) == (1, True)
    assert orders.inspect().amplification.write == found["write_amplification"]
    assert orders.inspect().spine == {"compact": 1, "compacting": 0, "noncompact": 0}

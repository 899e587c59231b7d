"""How a collection is stored, as people are told: every figure is that of its state."""

import json

import pyarrow as pa
import pytest
from memory_store import BLOBS, QUICK

from timespine.client.arguments.time_args import plain_frontier
from timespine.config import Config
from timespine.core.batch import Part
from timespine.core.transitions import Seal, Write
from timespine.model.frontier import CLOSED, Frontier

SPILLED = Config(part_bytes=600, row_group_rows=4, run_parts=2, inline_part_bytes=1, storage_attempts=3)
"""A handful of rows makes several parts, listed in a blob of their own."""


def orders_of(store, **options):
    options = {"key": {"id": "int64"}, "value": {"name": "string"}, "timeline": "counter", **options}
    return store.create("orders", **options)


def fill(orders, times):
    for id in range(times):
        orders.append([{"id": id, "name": "x"}])


def test_an_empty_collection_has_nothing_to_show(place):
    orders = orders_of(place.open())
    found = orders.inspect(parts=True)
    assert (found.name, found.id, found.seqno) == ("orders", orders.id, orders._handle.state().seqno)
    assert (found.since, found.upper) == (0, 0)
    assert (found.rows, found.size, found.inline_bytes, found.batches) == (0, 0, 0, [])
    assert (found.merges_due, found.unsealed, found.history) == (0, 0, 0)
    assert (found.readers, found.holds, found.writers, found.schemas, found.rollups) == ({}, {}, 0, 1, [])


def test_every_append_is_a_batch_until_they_are_merged(place):
    orders = orders_of(place.open(config=BLOBS))
    fill(orders, 5)
    found = orders.inspect()
    assert [(batch.lower, batch.upper, batch.rows, batch.runs, batch.parts) for batch in found.batches] == [
        (time, time + 1, 1, 1, 1) for time in range(5)
    ]
    assert all(batch.sorted and batch.detail == [] and batch.since == 0 for batch in found.batches)
    assert (found.rows, found.history, found.writers) == (5, 5, 1)
    sizes = {info.key: info.size for info in place.blob.list_keys(f"{orders.id}/")}
    assert found.size == sum(batch.size for batch in found.batches) == sum(sizes.values())
    assert sum(batches for batches, _ in found.levels) == orders._handle.state().trace.batch_count
    assert sum(updates for _, updates in found.levels) == 5
    orders.compact()
    assert orders.inspect().merges_due == 1
    orders.compact(wait=True)
    found = orders.inspect()
    assert [(batch.lower, batch.upper, batch.rows) for batch in found.batches] == [(0, 5, 5)]
    assert (found.merges_due, found.rows) == (0, 5)


def test_parts_are_described_when_asked_for(place):
    store = place.open(config=BLOBS)
    orders = orders_of(store)
    orders.append([{"id": n, "name": "x", "_time": n} for n in range(3)])
    (batch,) = orders.inspect(parts=True).batches
    (part,) = batch.detail
    assert part.key in place.blobs()
    assert (part.rows, part.size) == (3, len(place.blob.get(part.key)))
    assert (part.inline, part.hollow, part.truncated, part.rewritten) == (False, False, False, False)
    assert part.times == [[0, 2]]


def test_a_part_in_the_state_is_said_to_be_inline(place):
    orders = orders_of(place.open(config=QUICK))
    fill(orders, 3)
    found = orders.inspect(parts=True)
    parts = [part for batch in found.batches for part in batch.detail]
    assert [(part.key, part.inline) for part in parts] == [("", True)] * 3
    assert found.inline_bytes == found.size == sum(part.size for part in parts) > 0
    assert place.blobs(f"{orders.id}/") == []


def test_a_list_of_parts_in_a_blob_of_its_own_is_said_to_be_hollow(place):
    orders = orders_of(place.open(config=SPILLED))
    orders.append([{"id": n, "name": "x" * 50} for n in range(100)])
    (batch,) = orders.inspect(parts=True).batches
    hollow = [part for part in batch.detail if part.hollow]
    assert hollow
    assert batch.rows == sum(part.rows for part in batch.detail) == 100


def test_a_batch_that_was_moved_in_time_is_said_to_be_rewritten(place):
    orders = orders_of(place.open(config=BLOBS))
    writer = orders.writer()
    builder = writer.builder(0)
    builder.add(pa.table({"id": [1], "name": ["x"], "_time": [0], "_diff": [1]}))
    batch = writer.rewrite(builder.finish(Frontier.at(1)), 5, 6)
    writer.compare_and_append([batch], 0, 6)
    (found,) = orders.inspect(parts=True).batches
    assert [(part.rewritten, part.times) for part in found.detail] == [(True, [[0, 0]])]


def test_who_reads_and_holds_is_named_with_what_they_hold(place):
    store = place.open(config=BLOBS)
    orders = orders_of(store)
    fill(orders, 9)
    orders.critical_hold("backup", 3)
    with orders.hold(5):
        orders.expire(before=7)
        found = orders.inspect()
        assert found.holds == {"backup": 3}
        assert list(found.readers.values()) == [5]
        assert found.since == 3
        ((who, since),) = found.held_by
        assert ("backup" in who, since) == (True, 3)
    assert orders.inspect().readers == {}


def test_unsealed_updates_count_and_are_numbered(place):
    store = place.open(config=QUICK)
    orders = orders_of(store)
    fill(orders, 1)
    (part,) = orders._handle.state().parts()
    ahead = Part("", part.rows, part.size, part.diff_sum, part.inline)
    store._committer.commit((orders.id, Write(Frontier.at(1), (1,), (ahead,), 0)))
    found = orders.inspect()
    assert (found.unsealed, found.rows, found.upper) == (1, 2, 1)
    assert found.size == 2 * part.size
    store._committer.commit((orders.id, Seal(Frontier.at(2))))
    assert orders.inspect().upper == 2


def test_schemas_rollups_and_history_are_counted(place):
    store = place.open(config=Config(inline_part_bytes=1, rollup_seqnos=4, storage_attempts=3))
    orders = orders_of(store)
    fill(orders, 6)
    orders.evolve(add={"more": "int64"})
    store.maintain()
    found = orders.inspect()
    assert (found.schemas, found.history) == (2, 6)
    assert found.rollups == sorted(orders._handle.state().rollups)
    assert found.rollups


def test_the_name_is_the_one_that_it_has_now(place):
    store = place.open()
    orders = orders_of(store)
    store.rename("orders", "sales")
    assert orders.inspect().name == "sales"


def test_a_closed_collection_has_no_upper(place):
    orders = orders_of(place.open())
    fill(orders, 1)
    orders.finish()
    assert orders.inspect().upper is None


def test_times_of_several_coordinates_are_lists(place):
    pairs = orders_of(place.open(config=BLOBS), time_coordinates=2)
    pairs.append([{"id": 1, "name": "x"}], at=(1, 2), upper=(3, 4))
    found = pairs.inspect(parts=True)
    assert (found.since, found.upper) == ([[0, 0]], [[3, 4]])
    assert found.batches[0].detail[0].times == [[1, 1], [2, 2]]


def test_everything_is_plain_enough_for_json(place):
    store = place.open(config=BLOBS)
    orders = orders_of(store)
    fill(orders, 4)
    orders.critical_hold("backup", 1)
    store.maintain()
    found = orders.inspect(parts=True)
    again = json.loads(json.dumps(found.to_dict()))
    assert again["batches"][0]["detail"][0]["key"] == found.batches[0].detail[0].key
    assert again["levels"] == [list(level) for level in found.levels]
    assert (again["since"], again["upper"], again["holds"]) == (found.since, found.upper, {"backup": 1})


@pytest.mark.parametrize(
    ("frontier", "shown"),
    [
        (Frontier.at(7), 7),
        (CLOSED, None),
        (Frontier(((1, 2),)), [[1, 2]]),
        (Frontier(((1, 4), (2, 3))), [[1, 4], [2, 3]]),
    ],
)
def test_a_frontier_is_shown_as_people_write_it(frontier, shown):
    assert plain_frontier(frontier) == shown

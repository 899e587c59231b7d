"""Collections whose spine merges by level (no option of a store: docs/design/0012) are like all others to readers."""

import functools

import pytest
from key_value_cases import fill
from memory_store import counted

from timespine.client.catalog import catalog_log
from timespine.client.maintenance.maintenance import REST_S
from timespine.config import Config
from timespine.core.spine.layers import MergePolicyKind
from timespine.core.state import new_state
from timespine.errors import SinceError

OFTEN = Config(retry_pause_ms=1, storage_attempts=3, inline_part_bytes=1, rollup_seqnos=16)
"""Everything in blobs, and rollups after a few commits."""

KEY = {"k": "int64"}


@pytest.fixture(autouse=True)
def by_level(monkeypatch):
    """Every collection that a test creates is merged by level."""
    monkeypatch.setattr(catalog_log, "new_state", functools.partial(new_state, merging=MergePolicyKind.BY_LEVEL))


def create(store, name="orders", **options):
    options = {"key": KEY, "value": {"v": "string"}, "timeline": "counter", **options}
    return store.create(name, **options)


def as_of(collection, time):
    return counted(collection.snapshot(as_of=time, multiplicity="column").to_pylist(), "k", "v")


def levels(collection):
    """Batches per level, from 0 up."""
    return [batches for batches, _ in collection.inspect().levels]


def parts_of(place, collection):
    return {key for key in place.blobs(f"{collection.id}/") if key.split("/")[2][0] in "ph"}


def test_maintenance_merges_what_expired_and_nothing_else_and_no_snapshot_changes(place):
    store = place.open(config=OFTEN)
    orders = create(store)
    fill(orders, 16)
    store.maintain()
    assert levels(orders) == [16]
    before = {time: as_of(orders, time) for time in range(16)}

    orders.expire(before=12)
    report = store.maintain()
    # 0 to 7 as one of level 3, 8 to 11 as one of level 2; what can be read at its own time is as it was written.
    assert report.merges == 7 + 3
    assert levels(orders) == [4, 0, 1, 1]
    assert [(batch.upper, batch.since) for batch in orders.inspect().batches[:2]] == [(8, 12), (12, 12)]
    assert {time: as_of(orders, time) for time in range(12, 16)} == {time: before[time] for time in range(12, 16)}
    with pytest.raises(SinceError):
        as_of(orders, 11)
    assert len(parts_of(place, orders)) == 6
    assert store.maintain().merges == 0

    other = place.open(config=OFTEN)["orders"]
    assert (other._handle.state().trace.merging, levels(other)) == (MergePolicyKind.BY_LEVEL, [4, 0, 1, 1])
    fill(other, 4, first=16)
    other.expire(before=20)
    store.maintain()
    # The newest time can always be read: the last batch never expires before there is another.
    assert levels(orders) == [2, 1, 0, 0, 1]
    assert as_of(orders, 19) == {(n, f"v{n}"): 1 for n in range(20)}


def test_rows_that_came_and_went_go_with_their_first_merge(place):
    store = place.open(config=OFTEN)
    orders = create(store)
    for n in range(8):
        orders.upsert([{"k": 1, "v": f"v{n}"}])
    orders.expire(before=7)
    store.maintain()
    # Everything before is one row by now, however often it changed; the last change can still be read as one.
    assert [batch.rows for batch in orders.inspect().batches] == [1, 2]
    assert as_of(orders, 7) == {(1, "v7"): 1}


def test_merges_need_not_wait_for_many_batches_or_for_writers_to_stop(place):
    store = place.open(config=OFTEN)
    orders = create(store)
    for n in range(32):
        fill(orders, 1, first=n)
        if n:
            orders.expire(before=n)
        place.clock.advance(REST_S / 10)  # nobody ever pauses for long enough to be idle
        while store._maintenance.round():
            pass
    assert sum(levels(orders)) <= 6 + 1
    assert len(as_of(orders, 31)) == 32


@pytest.mark.parametrize("expired", [0, 3, 8])
def test_compact_makes_one_run_of_all_that_is_there_expired_or_not(place, expired):
    store = place.open(config=OFTEN)
    orders = create(store)
    fill(orders, 9)
    if expired:
        orders.expire(before=expired)
    readable = range(expired, 9)
    before = [as_of(orders, time) for time in readable]
    orders.compact(wait=True)
    assert [(batch.runs, batch.rows) for batch in orders.inspect().batches] == [(1, 9)]
    assert [as_of(orders, time) for time in readable] == before
    assert levels(orders) == [0, 0, 0, 1]
    fill(orders, 1, first=9)
    assert levels(orders) == [1, 0, 0, 1]


def test_the_output_of_an_answer_that_came_too_late_is_deleted(place, monkeypatch):
    store, rival = place.open(config=OFTEN), place.open(config=OFTEN)
    orders = create(store)
    fill(orders, 3)
    orders.expire(before=2)
    assert [request.id for request in orders._handle.state().trace.requests()] == [(0, 2)]
    merge, written = store._engine.merge, set()

    def overtaken(effect):
        output = merge(effect)
        if not written:
            written.update(part.key for part in output.batch.parts)
            assert written <= set(place.blobs(f"{orders.id}/"))
            theirs = rival["orders"]
            theirs.compact()
            rival.maintain()  # everything is one run before the answer to a part of it is offered
        return output

    monkeypatch.setattr(store._engine, "merge", overtaken)
    store.maintain()
    assert written
    assert not written & set(place.blobs(f"{orders.id}/"))
    assert store._upkeep.session.counters["merges dropped"] == 1
    assert as_of(orders, 2) == {(n, f"v{n}"): 1 for n in range(3)}


def test_a_dropped_collection_is_purged_under_either_merge_policy(place):
    store = place.open(config=OFTEN)
    orders = create(store)
    fill(orders, 3)
    store.drop("orders")
    store.maintain()
    assert parts_of(place, orders) == set()

"""Inline parts are merged before they fill the state: commits of a few rows do not come to put a blob each."""

from dataclasses import replace

import pytest
from memory_store import Script

from timespine.client.maintenance import due_merges
from timespine.client.maintenance.due_merges import is_nearly_full
from timespine.config import Config
from timespine.testing.maintenance_bound import written_rows_max
from timespine.testing.unreliable import Fault

FEW = Config(inline_part_bytes=200, inline_total_bytes=2000, retry_pause_ms=1, storage_attempts=2)
"""About a hundred small commits fill the state."""


def create(store):
    return store.create("orders", key={"k": "int64"}, value={"v": "string"}, timeline="counter")


def fill(orders, commits, seen=lambda: None):
    for number in range(commits):
        orders.append([{"k": 7919 * number % 4001, "v": f"value {number}"}])
        seen()


def blobs_of_parts(orders):
    return [part for batch in orders._handle.state().hollow_batches() for part in batch.parts if part.key]


@pytest.mark.parametrize("rounds", [False, True], ids=["no background", "a step per commit"])
def test_small_commits_put_no_blob_each_however_many_there_are(place, rounds):
    store = place.open(config=FEW)
    orders = create(store)
    sizes = []

    def seen():
        if rounds:
            store._maintenance.round()
        sizes.append(orders._handle.state().inline_bytes)

    fill(orders, 600, seen)
    state = orders._handle.state()
    assert max(sizes) <= FEW.inline_total_bytes
    assert len(blobs_of_parts(orders)) < 12
    assert orders._handle.context.counters_of(orders.id).get("parts", 0) < 60
    assert state.totals.merged_rows <= written_rows_max(state.totals.appended_rows)
    assert orders.count() == 600
    assert set(orders.snapshot().to_arrow().column("v").to_pylist()) == {f"value {number}" for number in range(600)}


def test_a_fold_that_fails_fails_no_commit_and_is_left_alone_for_a_while(place):
    script = Script()
    store = place.open(config=FEW, script=script)
    orders = create(store)
    script.add("put", Fault.DETERMINATE, key="/m", times=1000)
    fill(orders, 100)
    assert not script.is_done
    assert orders._handle.state().totals.merged_rows == 0
    assert orders.count() == 100


def test_nothing_is_folded_that_would_keep_an_append_waiting(place, monkeypatch):
    monkeypatch.setattr(due_merges, "FOLD_ROWS", 1)
    store = place.open(config=FEW)
    orders = create(store)
    fill(orders, 200)
    assert orders._handle.state().totals.merged_rows == 0
    assert is_nearly_full(orders._handle.state(), FEW)
    assert orders.count() == 200


def test_a_state_with_room_is_not_folded(place):
    store = place.open(config=replace(FEW, inline_total_bytes=1 << 20))
    orders = create(store)
    fill(orders, 100)
    assert orders._handle.state().totals.merged_rows == 0


def test_appends_fold_while_the_maintenance_thread_is_in_a_long_merge(place):
    """The thread never gets to it: its process is the maintainer, and no round runs."""
    store = place.open(config=FEW)
    store._maintenance._thread.is_maintainer = True
    orders = create(store)
    sizes = []
    fill(orders, 600, lambda: sizes.append(orders._handle.state().inline_bytes))
    assert max(sizes) <= FEW.inline_total_bytes
    assert len(blobs_of_parts(orders)) < 12
    assert orders._handle.context.counters_of(orders.id).get("parts", 0) < 60
    assert orders.count() == 600

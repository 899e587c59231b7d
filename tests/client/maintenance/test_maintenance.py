"""Upkeep: what others left is made compact, what was expired goes, and nobody notices but by the space that is free."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import polars as pl
import pyarrow as pa
import pytest
from assertions import until
from memory_store import BLOBS, Clock, Script, counted, in_threads

import timespine as ts
from timespine.client.maintenance.due import BLOB_WEIGHT, GATHER, SPARE_BYTES
from timespine.client.maintenance.idle_tracker import IDLE_S
from timespine.client.maintenance.report import SKIPPED_MAX
from timespine.client.maintenance.scheduler import EXPIRE_S, OVERDUE, REST_S, SWEEP_S, VAIN_MAX
from timespine.config import Config
from timespine.core import maintenance_policy
from timespine.core.batch import Part
from timespine.core.transitions import ClaimMerge, RegisterWriter, RollUpAll, Seal, Write
from timespine.errors import (
    CorruptionError,
    DiffOverflow,
    SinceError,
    TimespineError,
    Unavailable,
    UsageError,
)
from timespine.location.consensus import LogWrite as Entry
from timespine.location.unreliable import Fault
from timespine.model.frontier import Frontier
from timespine.model.time import INT64_MAX

OFTEN = Config(retry_pause_ms=1, storage_attempts=3, inline_part_bytes=1, rollup_seqnos=16)
"""Everything in blobs, and rollups after a few commits."""


def create(store, name="orders", **options):
    options = {"key": {"k": "int64"}, "value": {"v": "string"}, "timeline": "counter", **options}
    return store.create(name, **options)


def fill(collection, times, *, first=0):
    for n in range(first, first + times):
        collection.append([{"k": n, "v": f"v{n}"}])


def now(collection):
    return counted(collection.snapshot(multiplicity="column").to_pylist(), "k", "v")


def runs(collection):
    return sum(len(batch.runs) for batch in collection._handle.state().hollow_batches())


def parts_of(place, collection):
    return {key for key in place.blobs(f"{collection.id}/") if key.split("/")[2][0] in "ph"}


def background(store, clock, seconds=10.0, *, step=REST_S):
    """What the background does in so many seconds in which nobody writes."""
    while seconds > 0:
        while store._maintenance.round():
            pass
        clock.advance(step)
        seconds -= step
    while store._maintenance.round():
        pass


@pytest.fixture
def tidy(monkeypatch):
    """Garbage is collected from a tiny collection as it is from a large one."""
    monkeypatch.setattr(maintenance_policy, "GARBAGE_MIN", 0)
    monkeypatch.setattr(maintenance_policy, "ROLLUPS", 0)


# Becoming compact.


@pytest.mark.parametrize("opened", [True, False])
def test_small_writes_of_a_process_that_exited_are_made_compact_by_the_next_that_comes_along(place, tidy, opened):
    writer = place.open(config=OFTEN)
    fill(create(writer), 40)
    expected = now(writer["orders"])
    writer.close()
    store = place.open(config=OFTEN)
    if opened:
        store["orders"]
    background(store, place.clock, 3 * EXPIRE_S, step=EXPIRE_S / 2)
    other = place.open()["orders"]
    assert runs(other) == 1
    assert now(other) == expected
    assert len(parts_of(place, other)) == 1


def test_the_background_thread_makes_a_collection_compact_by_itself(place):
    writer = place.open(config=OFTEN)
    fill(create(writer), 20)
    writer.close()
    store = place.open(config=OFTEN, maintenance=True)
    orders = store["orders"]

    def is_compact():
        place.clock.advance(1)
        store._maintenance.wake()
        return runs(orders) == 1

    until(is_compact)
    assert orders.count() == 20


def test_an_idle_collection_becomes_one_run_and_loses_what_was_expired(place):
    store = place.open(config=OFTEN)
    orders = create(store)
    for n in range(20):
        orders.upsert([{"k": 1, "v": f"v{n}"}])
    orders.expire(before=99)
    background(store, place.clock, 120)
    assert runs(orders) == 1
    assert orders.inspect().rows == 1
    assert now(orders) == {(1, "v19"): 1}
    orders.upsert([{"k": 1, "v": "last"}])
    background(store, place.clock, 120)
    orders.expire(before=99)  # nothing was written since: it is lost all the same, by its deadline
    background(store, place.clock, 25 * 3600, step=600)
    assert orders.inspect().rows == 1
    assert len(parts_of(place, orders)) == 1


@pytest.mark.parametrize(("config", "gather"), [(OFTEN, GATHER // BLOB_WEIGHT), (Config(), GATHER)])
def test_a_collection_that_is_being_written_to_is_merged_when_enough_has_gathered(place, config, gather):
    store = place.open(config=config)
    orders = create(store)
    merges = []
    for n in range(8 * gather):
        orders.append([{"k": n, "v": "x"}])
        store._maintenance.round()
        merges.append(store._maintenance.report.merges)
    assert merges[gather - 2] == 0
    assert 0 < merges[-1] < 16
    assert runs(orders) < 4 * gather


def test_maintain_does_it_all_at_once_and_says_what_it_did(place):
    store = place.open(config=OFTEN)
    orders = create(store)
    fill(orders, 30)
    report = store.maintain()
    assert report.merges > 0
    assert report.rollups > 0
    assert report.collected > 0
    assert (report.failures, report.skipped) == (0, [])
    assert runs(orders) == 1
    assert len(parts_of(place, orders)) == 1
    again = store.maintain()
    assert (again.merges, again.collected, again.swept) == (0, 0, 0)
    seqno = orders._handle.state().seqno
    store.maintain()
    assert orders._handle.state().seqno == seqno  # and then there is nothing to write either


def test_maintain_looks_after_the_collections_that_are_named(place):
    store = place.open(config=OFTEN)
    left, right = create(store, "left"), create(store, "right")
    fill(left, 10)
    fill(right, 10)
    store.maintain("left")
    assert runs(left) == 1
    assert runs(right) == 10


def test_the_log_is_cut_and_a_newcomer_reads_the_same(place):
    store = place.open(config=OFTEN)
    orders = create(store)
    fill(orders, 100)
    for _ in range(2):
        store.maintain()
    assert len(place.consensus.scan(orders.id)) < 16
    assert now(place.open()["orders"]) == {(n, f"v{n}"): 1 for n in range(100)}


def test_garbage_of_an_idle_collection_goes_even_if_a_reader_was_in_the_way(place, tidy):
    store = place.open(config=OFTEN)
    orders = create(store)
    fill(orders, 12)
    reading = place.open()["orders"].snapshot()
    background(store, place.clock, 90)
    assert runs(orders) == 1
    assert len(parts_of(place, orders)) > 1
    assert len(reading.to_pylist()) == 12  # it reads what it planned on
    place.stores[-1].close()
    background(store, place.clock, 2 * EXPIRE_S)
    assert len(parts_of(place, orders)) == 1


def test_unsealed_updates_are_drained_and_dropped(place):
    store = place.open()
    orders = create(store)
    orders.append([{"k": 1, "v": "a"}])
    (part,) = orders._handle.state().parts()
    commit = store._committer.commit
    inline = Part("", part.rows, part.size, part.diff_sum, part.inline)
    commit((orders.id, Write(Frontier.at(1), (1,), (inline,), 0)))
    commit((orders.id, Seal(Frontier.at(2))))
    background(store, place.clock, 5)
    state = orders._handle.state()
    assert (len(state.unsealed), state.trace.upper) == (0, Frontier.at(2))
    # What an append drained on its way is dropped too.
    commit((orders.id, Write(Frontier.at(2), (2,), (inline,), 0)))
    orders.append([{"k": 2, "v": "b"}], at=3)
    assert len(orders._handle.state().unsealed) == 1
    background(store, place.clock, 5)
    assert len(orders._handle.state().unsealed) == 0


# Compact, on demand.


def test_compact_leaves_one_run(place):
    store = place.open(config=OFTEN)
    orders = create(store)
    fill(orders, 17)
    orders.compact(wait=True)
    assert runs(orders) == 1
    fill(orders, 3, first=17)
    orders.compact(wait=True)
    assert runs(orders) == 1
    assert orders.count() == 20
    orders.compact(wait=True)


def test_compact_waits_for_somebody_else_who_is_at_work_on_it(place):
    other = place.open(config=OFTEN)
    waited = []

    def wait(seconds):
        waited.append(seconds)
        if len(waited) == 3:  # they are done at last: their claim is given up with the merge
            place.clock.advance(OFTEN.claim_ms / 1000 + 1)

    store = place.open(config=OFTEN, sleep=wait)
    orders = create(store)
    fill(orders, 10)
    other._committer.commit((orders.id, RollUpAll()))
    (request,) = other["orders"]._handle.state().trace.requests()
    other._committer.commit(
        (orders.id, RegisterWriter("theirs", 3_600_000)), (orders.id, ClaimMerge(request.id, "theirs", OFTEN.claim_ms))
    )
    orders.compact(wait=True)
    assert len(waited) == 3
    assert runs(orders) == 1


def never(seconds):
    raise AssertionError("it waits for somebody who is not at work")


@pytest.mark.parametrize("who", ["itself", "another process"])
@pytest.mark.parametrize("how", ["failed", "dropped", "inputs gone"])
def test_compact_does_not_wait_for_a_merge_that_came_to_nothing(place, who, how):
    store = place.open(config=OFTEN, sleep=never)
    orders = create(store)
    fill(orders, 10)
    orders.compact()
    culprit = store if who == "itself" else place.open(config=OFTEN)
    real = culprit._engine.merge

    def merge(effect):
        if how == "failed":
            raise MemoryError
        output = real(effect)
        return None if how == "inputs gone" else wrong(output)

    culprit._engine.merge = merge
    assert culprit.maintain().merges == 0
    culprit._engine.merge = real
    assert orders._handle.state().claims
    assert store.maintain().merges == 0  # nobody else tries again for a while
    orders.compact(wait=True)
    assert runs(orders) == 1
    assert orders.count() == 10
    assert orders._handle.state().claims == {}


def wrong(output):
    """A result whose diffs do not add up."""
    (run,) = output.runs
    (part,) = run.parts
    part = msgspec.structs.replace(part, diff_sum=part.diff_sum + 1)
    return msgspec.structs.replace(output, runs=(msgspec.structs.replace(run, parts=(part,)),))


def test_compact_gives_up_if_no_result_ever_fits(place):
    store = place.open(config=OFTEN, sleep=never)
    orders = create(store)
    fill(orders, 10)
    real = store._engine.merge
    merges = []

    def merge(effect):
        merges.append(effect)
        output = real(effect)
        return msgspec.structs.replace(output, batch=wrong(output.batch))

    store._engine.merge = merge
    with pytest.raises(Unavailable, match="could not be applied"):
        orders.compact(wait=True)
    assert len(merges) == VAIN_MAX
    assert orders.count() == 10
    store._engine.merge = real
    orders.compact(wait=True)
    assert runs(orders) == 1


def test_compact_comes_to_an_end_though_others_go_on_writing(place):
    store, other = place.open(config=OFTEN), place.open(config=OFTEN)
    orders = create(store)
    fill(orders, 10)
    theirs = other["orders"]
    real = store._engine.merge
    merges = []

    def merge(effect):
        merges.append(effect)
        fill(theirs, 5, first=100 * len(merges))
        return real(effect)

    store._engine.merge = merge
    orders.compact(wait=True)
    assert len(merges) < 5
    first = next(iter(orders._handle.state().hollow_batches()))
    assert len(first.runs) == 1
    assert Frontier.at(10) <= first.desc.upper


def test_compact_says_why_it_cannot(place):
    store = place.open(config=OFTEN, free_bytes=lambda: 1000)
    orders = create(store)
    fill(orders, 10)
    with pytest.raises(Unavailable, match="free space"):
        orders.compact(wait=True)
    assert orders.count() == 10


# What cannot be done.


def test_a_merge_that_does_not_fit_the_disk_is_skipped_remembered_and_done_later(place):
    free = [1]
    store = place.open(config=OFTEN, free_bytes=lambda: free[0])
    orders = create(store)
    fill(orders, 20)
    background(store, place.clock, 30)
    assert runs(orders) == 20
    report = store._maintenance.report
    assert report.merges == 0
    assert 0 < report.failures <= 2  # remembered: not tried again and again
    assert "free space" in report.skipped[-1]
    assert store.maintain().failures > 0
    free[0] = SPARE_BYTES + (1 << 30)
    background(store, place.clock, 2 * EXPIRE_S)
    assert runs(orders) == 1


def test_a_disk_whose_free_space_nobody_knows_is_no_obstacle(place):
    def fail():
        raise OSError("no such thing")

    for free_bytes in (lambda: None, fail):
        store = place.open(config=OFTEN, free_bytes=free_bytes)
        orders = create(store, replace=True)
        fill(orders, 10)
        store.maintain()
        assert runs(orders) == 1


def overflowing(collection):
    """Two appends that are fine each, and cannot be merged."""
    collection.append([{"k": 1, "v": "a", "_diff": INT64_MAX}])
    collection.append([{"k": 1, "v": "a", "_diff": INT64_MAX}])
    collection.expire(before=99)


def test_a_merge_that_overflows_a_count_is_skipped_and_nothing_else_stops(place):
    store = place.open(config=OFTEN)
    bad, good = create(store, "bad"), create(store, "good")
    fill(bad, 3, first=100)
    overflowing(bad)
    fill(good, 20)
    report = store.maintain(sweep=True)
    assert report.failures == 1
    assert "bad" in report.skipped[0]
    assert "DiffOverflow" in report.skipped[0]
    assert runs(good) == 1
    assert store.vacuum().blobs == []  # nothing of the failed merge stays
    # The collection itself goes on.
    bad.append([{"k": 2, "v": "b"}])
    assert bad.lookup({"k": 2}).to_pylist() == [{"k": 2, "v": "b"}]
    with pytest.raises(DiffOverflow):
        bad.snapshot(multiplicity="column").to_arrow()
    with pytest.raises(Unavailable, match="DiffOverflow"):
        bad.compact(wait=True)
    # And when the count is right again, so is everything.
    bad.append([{"k": 1, "v": "a", "_diff": -INT64_MAX}])
    assert counted(bad.snapshot(multiplicity="column").to_pylist(), "k")[1,] == INT64_MAX


@pytest.mark.parametrize("error", [ValueError("odd"), MemoryError(), pa.ArrowInvalid("odd"), OSError("odd")])
def test_a_merge_that_fails_for_whatever_reason_is_skipped(place, error):
    store = place.open(config=OFTEN)
    orders, other = create(store), create(store, "other")
    fill(orders, 10)
    fill(other, 10)
    real = store._engine.merge

    def merge(effect):
        if effect.collection == orders.id:
            raise error
        return real(effect)

    store._engine.merge = merge
    report = store.maintain()
    assert report.failures > 0
    assert type(error).__name__ in report.skipped[-1]
    assert runs(other) == 1
    assert orders.count() == 10
    store._engine.merge = real
    place.clock.advance(OFTEN.claim_ms / 1000 + 1)
    store.maintain()
    assert runs(orders) == 1


def test_a_damaged_collection_does_not_keep_the_others_from_being_looked_after(place):
    store = place.open(config=OFTEN)
    names = ["a", "bad", "c"]
    for name in names:
        fill(create(store, name), 10)
    bad = store["bad"]
    head = place.consensus.head(bad.id)
    place.consensus.compare_and_set([Entry(bad.id, head.seqno, b"damage")])
    store._upkeep.session.states.clear()
    with pytest.raises(CorruptionError):
        store.maintain()
    assert runs(store["a"]) == runs(store["c"]) == 1
    before = store["c"]._handle.state().totals.merged_rows
    fill(store["c"], 10)
    background(store, place.clock, 10)
    assert store["c"]._handle.state().totals.merged_rows > before
    assert store._maintenance.report.failures > 0
    assert any("bad" in each for each in store._maintenance.report.skipped)


def test_what_could_not_be_done_is_remembered_within_bounds(place):
    store = place.open(config=OFTEN, free_bytes=lambda: 0)
    for n in range(2 * SKIPPED_MAX):
        fill(create(store, f"c{n}"), 9)
    report = store.maintain()
    assert report.failures >= 2 * SKIPPED_MAX
    assert 0 < len(report.skipped) <= SKIPPED_MAX
    assert len(store._maintenance.report.skipped) <= SKIPPED_MAX


def test_the_background_survives_storage_that_is_away(place):
    script = Script()
    store = place.open(config=OFTEN, script=script, maintenance=True)
    orders = create(store)
    fill(orders, 20)
    script.add("scan", Fault.DETERMINATE, times=200)
    until(lambda: store._maintenance.report.failures > 3 or not store._maintenance.wake())
    until(lambda: _poked(store, script))
    assert store._maintenance._thread.is_alive()
    until(lambda: (place.clock.advance(EXPIRE_S), store._maintenance.wake(), runs(orders) == 1)[-1])


def _poked(store, script):
    store._maintenance.wake()
    return script.is_done


# Claims, leases, leaks.


def test_the_claim_of_a_process_that_was_killed_is_taken_over_when_it_lapses(place):
    store, killed = place.open(config=OFTEN), place.open(config=OFTEN)
    orders = create(store)
    fill(orders, 10)
    killed._committer.commit((orders.id, RollUpAll()))
    (request,) = orders._handle.state().trace.requests()
    killed._committer.commit(
        (orders.id, RegisterWriter("killed", OFTEN.writer_lease_ms)),
        (orders.id, ClaimMerge(request.id, "killed", OFTEN.claim_ms)),
    )
    place.blob.put(f"{orders.id}/killed/p1", b"half a part")
    assert store.maintain(sweep=True).merges == 0
    assert runs(orders) == 10
    assert f"{orders.id}/killed/p1" in place.blobs()  # it might be alive
    place.clock.advance(OFTEN.claim_ms / 1000 + 1)
    assert store.maintain(sweep=True).merges > 0
    assert runs(orders) == 1
    place.clock.advance(OFTEN.writer_lease_ms / 1000 + 1)
    assert store.maintain(sweep=True).leases > 0
    assert f"{orders.id}/killed/p1" not in place.blobs()
    assert orders.count() == 10


def test_two_processes_do_not_do_the_same_merge(place):
    store, other = place.open(config=OFTEN), place.open(config=OFTEN)
    orders = create(store)
    fill(orders, 10)
    real = store._engine.merge
    theirs = []

    def merge(effect):
        theirs.append(other.maintain().merges)
        return real(effect)

    store._engine.merge = merge
    assert store.maintain().merges > 0
    assert theirs
    assert set(theirs) == {0}
    assert runs(orders) == 1


def test_a_merge_that_takes_long_says_that_it_is_still_at_work(place):
    store, other = place.open(config=OFTEN), place.open(config=OFTEN)
    orders = create(store)
    fill(orders, 10)
    real = store._engine.merge
    theirs = []

    def merge(effect):
        for _ in range(30):  # half an hour
            place.clock.advance(60)
            store._heartbeat_thread.heartbeat_once()
            theirs.append(other.maintain(sweep=True).merges)
        return real(effect)

    store._engine.merge = merge
    real_work = store._engine._at_work

    def watched(effect):
        real_work[effect.writer] = (effect, store._engine._monotonic())
        return merge(effect)

    store._engine.merge = watched
    orders._handle.committer.commit((orders.id, RollUpAll()))
    assert store.maintain().merges == 1
    assert set(theirs) == {0}
    assert runs(orders) == 1


def test_blobs_of_dead_writers_are_swept_and_those_of_live_ones_never(place):
    store, live, dead = (place.open(config=BLOBS) for _ in range(3))
    orders = create(store)
    fill(orders, 3)
    alive = f"{orders.id}/{live['orders'].writer().id}/p-alive"
    leaked = f"{orders.id}/{dead['orders'].writer().id}/p-leaked"
    for key in (alive, leaked):
        place.blob.put(key, b"rows")
    assert store.maintain(sweep=True).swept == 0
    assert store.vacuum().blobs == []
    for _ in range(4):
        place.clock.advance(1800)
        live["orders"].append([{"k": -1, "v": "heartbeat"}])
        store.maintain(sweep=True)
    assert alive in place.blobs()
    assert leaked not in place.blobs()
    assert orders.count() == 7


def test_the_sweep_comes_now_and_then_by_itself(place):
    store, dead = place.open(config=BLOBS), place.open(config=BLOBS)
    orders = create(store)
    fill(orders, 3)
    store.maintain()
    leaked = f"{orders.id}/{dead['orders'].writer().id}/p-leaked"
    place.blob.put(leaked, b"rows")
    dead.close()
    background(store, place.clock, 10)
    assert leaked in place.blobs()
    place.clock.advance(SWEEP_S)
    background(store, place.clock, 10)
    assert leaked not in place.blobs()
    assert store._maintenance.report.swept == 1


def test_leases_that_lapsed_are_removed_and_history_follows(place):
    store, gone = place.open(config=BLOBS), place.open(config=BLOBS)
    orders = create(store)
    fill(orders, 5)
    snapshot = gone["orders"].snapshot(1)
    assert orders.expire(before=4).since == Frontier.at(1)
    place.clock.advance(BLOBS.reader_lease_ms / 1000 + 1)
    store["orders"]
    background(store, place.clock, 2 * EXPIRE_S)
    assert orders.since == Frontier.at(4)
    assert store._maintenance.report.leases > 0
    assert snapshot is not None


# Retention.

DAY = 86_400


def test_retention_moves_since_with_the_clock(place):
    store = place.open(config=BLOBS)
    orders = create(store, timeline="clock", retain="7 days")
    times = []
    for n in range(12):
        times.append(orders.append([{"k": n, "v": "x"}]).time)
        store.maintain()
        place.clock.advance(DAY)
    since = orders.since.elements[0][0]
    assert times[3] < since <= times[4]
    with pytest.raises(SinceError):
        orders.snapshot(times[2])
    assert orders.count(times[6]) == 7
    assert orders.count() == 12


def test_a_policy_of_the_store_is_that_of_collections_without_their_own(place):
    store = place.open(config=BLOBS)
    plain, patient = create(store, timeline="clock"), create(store, "patient", timeline="clock", retain="100 days")
    counting = create(store, "counting", timeline="counter")
    store.retain("7 days")
    everything = (plain, patient, counting)
    first = [collection.append([{"k": 1, "v": "a"}]).time for collection in everything]
    place.clock.advance(30 * DAY)
    for collection in everything:
        collection.append([{"k": 1, "v": "b"}])
    place.open(config=BLOBS).maintain()
    assert (patient.count(first[1]), counting.count(first[2])) == (1, 1)
    with pytest.raises(SinceError):
        plain.snapshot(first[0])
    store.retain(None)
    since = plain.since
    place.clock.advance(30 * DAY)
    plain.append([{"k": 1, "v": "c"}])
    store.maintain()
    assert plain.since == since


def test_a_collection_that_keeps_history_for_ever_is_exempt_from_the_policy_of_the_store(place):
    store = place.open(config=BLOBS)
    audit, born = create(store, "audit", timeline="clock"), create(store, "born", timeline="clock", retain="for ever")
    store.retain("1 hour")
    audit.retain(None)
    first = [each.append([{"k": 1, "v": "a"}]).time for each in (audit, born)]
    place.clock.advance(DAY)
    for each in (audit, born):
        each.append([{"k": 1, "v": "b"}])
    place.open(config=BLOBS).maintain()
    store.maintain()
    assert [audit.count(first[0]), born.count(first[1])] == [1, 1]
    audit.retain("store")
    store.maintain()
    with pytest.raises(SinceError):
        audit.snapshot(first[0])
    assert born.count(first[1]) == 1


def test_a_collection_says_how_long_history_is_kept_and_by_which_policy(place):
    store = place.open(config=BLOBS)
    orders, counting = create(store, timeline="clock"), create(store, "counting", timeline="counter")
    assert str(orders.retention) == "for ever, by no policy"
    store.retain("7 days")
    other = place.open(config=BLOBS, read_only=True)
    for each in (orders, other["orders"]):
        assert str(each.retention) == "for 7 days, by the policy of the store"
    assert (counting.retention.duration_ms, counting.retention.by) == (None, "none")
    orders.retain(1.5)
    assert str(other["orders"].retention) == "for 1,500 milliseconds, by its own policy"
    orders.retain("1 hour")
    assert str(orders.retention) == "for 1 hour, by its own policy"
    for for_ever in (None, "for ever"):
        for each in (orders, counting):
            each.retain(for_ever)
            assert str(each.retention) == "for ever, by its own policy"
    orders.retain("store")
    assert orders.retention.by == "store"
    store.retain("for ever")
    assert orders.retention.by == "none"
    with pytest.raises(UsageError, match="no other policy"):
        store.retain("store")
    with pytest.raises(UsageError, match="is not a duration"):
        orders.retain("a while")


def test_retention_never_goes_past_the_newest_time(place):
    store = place.open(config=BLOBS)
    orders = create(store, timeline="clock", retain="1 h")
    first = orders.append([{"k": 1, "v": "a"}]).time
    last = orders.upsert([{"k": 1, "v": "b"}]).time
    place.clock.advance(1000 * DAY)
    background(store, place.clock, 3 * EXPIRE_S)
    assert orders.since == Frontier.at(last)
    assert now(orders) == {(1, "b"): 1}
    with pytest.raises(SinceError):
        orders.snapshot(first)
    assert orders.inspect().rows == 1  # and what was expired is gone from storage too
    empty = create(store, "empty", timeline="clock", retain="1 h")
    background(store, place.clock, 3 * EXPIRE_S)
    assert empty.count() == 0
    assert empty.append([{"k": 1, "v": "a"}]).rows == 1


def test_retention_is_held_back_by_those_who_read_and_can_be_taken_back(place):
    store = place.open(config=BLOBS)
    orders = create(store, timeline="clock", retain="1 day")
    first = orders.append([{"k": 1, "v": "a"}]).time
    hold = orders.critical_hold("audit", first)
    for _ in range(3):
        place.clock.advance(2 * DAY)
        orders.append([{"k": 1, "v": "b"}])
        store.maintain()
    assert orders.count(first) == 1
    hold.release()
    store.maintain()
    with pytest.raises(SinceError):
        orders.snapshot(first)
    orders.retain(None)
    since = orders.since
    place.clock.advance(100 * DAY)
    orders.append([{"k": 1, "v": "c"}])
    store.maintain()
    assert orders.since == since


def test_a_policy_that_another_process_took_back_is_not_carried_out_any_more(place):
    store, other = place.open(config=BLOBS), place.open(config=BLOBS)
    orders = create(store, timeline="clock", retain="1 day")
    first = orders.append([{"k": 1, "v": "a"}]).time
    background(store, place.clock, 1)
    other["orders"].retain(None)
    background(store, place.clock, 2 * EXPIRE_S)
    place.clock.advance(10 * DAY)
    orders.append([{"k": 1, "v": "b"}])
    background(store, place.clock, 2 * EXPIRE_S)
    assert orders.count(first) == 1


# Nothing that a user does fails because of it.


def test_writers_readers_and_maintenance_do_not_disturb_each_other(place):
    stores = [place.open(config=OFTEN, clock=Clock(), sleep=time.sleep) for _ in range(2)]
    orders = create(stores[0])
    orders.append([{"k": 0, "v": "counter"}])
    stop = threading.Event()
    finished = []

    def append(store, who):
        for n in range(25):
            store["orders"].append([{"k": 1000 * who + n, "v": "x"}])
        finished.append(who)

    def change(store, who):
        for n in range(12):
            store["orders"].upsert([{"k": -who, "v": str(n)}])
            store["orders"].update(where=f"k = {-who}", set={"v": pl.col("v") + "!"})
        finished.append(who)

    def read(store):
        while not stop.is_set():
            with store["orders"].snapshot() as snapshot:
                rows = snapshot.to_pylist()
            assert len({row["k"] for row in rows}) == len(rows)
            store["orders"].lookup({"k": 1001})

    def maintain(store):
        while not stop.is_set():
            store.maintain(sweep=True)
            store["orders"].compact(wait=True)

    writers = [
        lambda: append(stores[0], 1),
        lambda: append(stores[1], 2),
        lambda: change(stores[0], 3),
        lambda: change(stores[1], 4),
    ]

    def all_of_them():
        try:
            in_threads(*writers)
        finally:
            stop.set()

    in_threads(
        all_of_them,
        lambda: read(stores[0]),
        lambda: read(stores[1]),
        lambda: maintain(stores[0]),
        lambda: maintain(stores[1]),
    )
    assert sorted(finished) == [1, 2, 3, 4]
    expected = {(1000 * who + n, "x"): 1 for who in (1, 2) for n in range(25)}
    assert now(orders) == {**expected, (0, "counter"): 1, (-3, "11!"): 1, (-4, "11!"): 1}
    for store in stores:
        store.maintain(sweep=True)
    assert now(orders) == {**expected, (0, "counter"): 1, (-3, "11!"): 1, (-4, "11!"): 1}
    orders.compact(wait=True)
    assert runs(orders) == 1


WORKER = """
import json, sys, threading
import timespine as ts
from timespine.config import Config

root, who, turns = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
config = Config(inline_part_bytes=200, rollup_seqnos=16)
failures = []
stop = threading.Event()

def guarded(work):
    def run():
        try:
            work()
        except BaseException as error:
            failures.append(f"{work.__name__}: {type(error).__name__}: {error}")
    return run

with ts.open(root, config=config) as store:
    orders = store["orders"]

    def write():
        for n in range(turns):
            orders.append([{"k": 1000 * who + n, "v": "x" * (n % 7)}])
            if n % 5 == 0:
                orders.upsert([{"k": who, "v": str(n)}])

    def read():
        while not stop.is_set():
            rows = orders.snapshot().to_pylist()
            if len({row["k"] for row in rows}) != len(rows):
                failures.append("a key twice")

    def maintain():
        while not stop.is_set():
            store.maintain(sweep=True)
            if who % 2:
                orders.compact(wait=True)

    others = [threading.Thread(target=guarded(work)) for work in (read, maintain)]
    for thread in others:
        thread.start()
    guarded(write)()
    stop.set()
    for thread in others:
        thread.join()
    print(json.dumps({"failures": failures, "background": store._maintenance.report.skipped}))
"""


def test_processes_that_write_read_and_maintain_do_not_disturb_each_other(tmp_path):
    turns = 25
    with ts.open(tmp_path, maintenance=False) as store:
        create(store)
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(tmp_path), str(who), str(turns)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "src")},
        )
        for who in (1, 2)
    ]
    ended = []
    try:
        for worker in workers:
            ended.append((*worker.communicate(timeout=240), worker.returncode))
    finally:
        for worker in workers:
            with worker:
                worker.kill()
    for out, err, code in ended:
        assert code == 0, err
        assert json.loads(out) == {"failures": [], "background": []}, err
    with ts.open(tmp_path, maintenance=False) as store:
        orders = store["orders"]
        expected = {(1000 * who + n, "x" * (n % 7)): 1 for who in (1, 2) for n in range(turns)}
        assert now(orders) == {**expected, (1, str(turns - 5)): 1, (2, str(turns - 5)): 1}
        store.maintain(sweep=True)
        assert now(orders) == {**expected, (1, str(turns - 5)): 1, (2, str(turns - 5)): 1}
        assert store.vacuum().blobs == []
        state = orders._handle.state()
        assert len(state.writers) <= 2  # those of this store: the others gave up theirs


def test_maintenance_of_a_closed_store_is_refused(place):
    store = place.open()
    create(store)
    store.close()
    with pytest.raises(UsageError, match="closed"):
        store.maintain()
    with pytest.raises(TimespineError):
        store.vacuum()


def test_processes_that_only_come_by_for_a_moment_do_their_share(place):
    most = 0
    for number in range(100):
        store = place.open(config=BLOBS, maintenance=True)
        numbers = create(store, if_exists="open")
        numbers.append([{"k": number, "v": "x"}])
        store.close()
        with place.open(read_only=True) as other:
            most = max(most, runs(other["orders"]))
    assert most < 40, "as many as a few levels have, not as many as there were processes"
    with place.open() as last:
        assert last["orders"].count() == 100
        assert last["orders"]._handle.state().rollups, "and the next one need not replay everything"


def test_a_store_without_a_background_rolls_up_what_is_long_overdue(place):
    config = Config(rollup_seqnos=4, retry_pause_ms=1)
    orders = create(place.open(config=config))
    fill(orders, 200)
    state = orders._handle.state()
    assert state.rollups
    replayed = state.seqno - max(state.rollups)
    assert replayed <= max(OVERDUE * config.rollup_seqnos, state.trace.hollow_count // 4) + 2
    assert orders.count() == 200
    assert place.open(config=config)["orders"].count() == 200


# Many collections.


def looks(store, monkeypatch):
    """The names of the collections that maintenance looks at, as it does."""
    seen = []
    step = store._maintenance._step
    monkeypatch.setattr(
        store._maintenance, "_step", lambda upkeep, **how: seen.append(upkeep.handle.name) or step(upkeep, **how)
    )
    return seen


def settled(place, store):
    """Rounds until there is nothing to do."""
    while store._maintenance.round():
        pass
    place.clock.advance(REST_S)
    while store._maintenance.round():
        pass


def test_a_round_looks_at_what_was_written_to_however_many_collections_are_open(place, monkeypatch):
    store, other = place.open(), place.open()
    handles = {name: create(store, name) for name in "abc"}
    settled(place, store)
    seen = looks(store, monkeypatch)
    store._maintenance.round()
    assert seen == []
    fill(handles["b"], 1)
    settled(place, store)
    assert set(seen) == {"b"}
    # Whatever others did is found after a while.
    seen.clear()
    fill(other["c"], 2 * GATHER)
    place.clock.advance(IDLE_S)
    settled(place, store)
    assert set(seen) == {"c"}
    assert runs(handles["c"]) == 1


def test_what_is_committed_while_a_collection_is_looked_at_is_looked_at_again(place, monkeypatch):
    store = place.open()
    orders = create(store)
    settled(place, store)
    fill(place.open()["orders"], 1)
    place.clock.advance(IDLE_S)
    step, late = store._maintenance._step, []

    def meanwhile(upkeep, **how):
        did = step(upkeep, **how)
        if not late:
            late.append(orders.append([{"k": 1, "v": "late"}]))
        return did

    monkeypatch.setattr(store._maintenance, "_step", meanwhile)
    store._maintenance.round()
    seen = looks(store, monkeypatch)
    store._maintenance.round()
    assert seen == ["orders"]

"""What maintenance cannot do, and claims, leases and leaks that it settles."""

import pyarrow as pa
import pytest
from assertions import until
from key_value_cases import create, fill
from maintenance_cases import OFTEN, background, runs
from memory_store import BLOBS, Script, counted

from timespine.client.maintenance.due_merges import SPARE_BYTES
from timespine.client.maintenance.maintenance import EXPIRE_S, SWEEP_S
from timespine.client.maintenance.maintenance_report import SKIPPED_MAX
from timespine.core.transitions import ClaimMerge, RegisterWriter, RollUpAll
from timespine.errors import CorruptionError, DiffOverflow, Unavailable
from timespine.location.consensus import LogWrite as Entry
from timespine.model.frontier import Frontier
from timespine.model.time import INT64_MAX
from timespine.testing.unreliable import Fault

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


def test_a_disk_of_unknown_free_space_is_no_obstacle(place):
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

"""What maintenance costs, on a clock that the test moves: rows written, bytes stored, calls when idle, deadlines.

The background does between two steps of the clock what its thread would do in that time.
"""

import functools
import random
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory_store import BLOBS, MemoryStore, Script

from timespine.client.catalog import catalog_log
from timespine.client.maintenance.maintenance import REST_S
from timespine.columnar.parts.inline_part import decode_inline
from timespine.config import Config
from timespine.core.encoding.codec import decode_diff, decode_state
from timespine.core.encoding.envelope import EnvelopeKind, envelope_kind
from timespine.core.maintenance_policy import GARBAGE_MIN, run_count
from timespine.core.spine.layers import MergePolicyKind
from timespine.core.state import Forgetting, new_state
from timespine.testing.maintenance_bound import written_rows_max

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S

SMALL = Config(
    retry_pause_ms=1,
    storage_attempts=3,
    inline_part_bytes=1,
    part_bytes=2000,
    run_parts=4,
    row_group_rows=16,
)
"""A few dozen rows are several parts, and a few parts a hollow run."""


def create(store, name="c", **options):
    return store.create(name, key={"id": "int64"}, value={"v": "string"}, **options)


def rows(number, of=1 << 40, seed=None):
    chosen = random.Random(seed)
    keys = sorted(chosen.sample(range(of), number))
    return pa.table({"id": keys, "v": [f"{chosen.getrandbits(64):x}" for _ in keys]})


def passing(store, clock, seconds, step=5.0):
    """Let time pass, and the background do what it does in it."""
    while True:
        while store._maintenance.round():
            pass
        if seconds <= 0:
            return
        clock.advance(min(step, seconds))
        seconds -= step


def totals(collection):
    return collection._handle.state().totals


def check_bound(collection, *, more=0):
    found = totals(collection)
    assert found.merged_rows <= written_rows_max(found.appended_rows) + more
    assert found.extra_rows <= found.appended_rows


def check_storage(place, collection):
    """At rest, with no lease: blobs and log are 2.2 times what is live, and the constant of tiny collections."""
    state = collection._handle.state()
    assert not state.readers
    stored = sum(info.size for info in place.blob.list_keys(f"{collection.id}/"))
    stored += sum(len(data) for _, data in place.consensus.scan(collection.id))
    rollup = max((each.size for each in state.rollups.values()), default=0)
    assert stored <= 2.2 * (state.totals.live_bytes + rollup) + GARBAGE_MIN
    referred = sum({part.key: part.total_bytes for part in state.parts() if part.key}.values())
    assert state.totals.live_bytes == referred + state.inline_bytes


# Rows written.

GAPS = {
    "burst": lambda chosen: 0.01,
    "one per second": lambda chosen: 1.0,
    "one every two seconds": lambda chosen: 2.0,
    "one per minute": lambda chosen: 60.0,
    "random gaps": lambda chosen: chosen.choice((0.01, 1.0, 15.0, 120.0)),
}


@pytest.mark.parametrize("config", [BLOBS, SMALL], ids=["large parts", "hollow runs"])
@pytest.mark.parametrize("gaps", GAPS)
def test_rows_written_per_row_appended_stay_within_the_bound(place, gaps, config):
    store = place.open(config=config)
    collection = create(store)
    chosen = random.Random(7)
    for number in range(60):
        collection.append(rows(20, seed=number))
        passing(store, place.clock, GAPS[gaps](chosen), step=30.0)
        check_bound(collection)
    passing(store, place.clock, 120.0)
    check_bound(collection)
    check_storage(place, collection)
    assert run_count(collection._handle.state()) <= 8
    assert collection.count() == 1200


@pytest.mark.parametrize("size", [100, 130], ids=["inline", "blobs"])
def test_storage_at_rest_is_bounded_by_what_is_live_if_that_is_more_than_the_constant(place, size):
    store = place.open()
    collection = create(store)
    for number in range(250):
        collection.append(rows(size, seed=number))
        passing(store, place.clock, 1.0)
    passing(store, place.clock, 120.0)
    assert totals(collection).live_bytes > 5 * GARBAGE_MIN
    check_storage(place, collection)


def test_the_log_of_commits_without_rows_is_cut(place):
    """No merge drops a part here, so there is no garbage: the rollups of the log alone let it be cut."""
    store = place.open()
    collection = create(store, timeline="counter")
    collection.append(rows(2000, seed=1))
    for number in range(1000):
        collection.seal(10 + number)
        if number % 20 == 0:
            passing(store, place.clock, 1.0)
    passing(store, place.clock, 120.0)
    assert totals(collection).garbage_bytes == 0
    assert len(place.consensus.scan(collection.id)) < 500
    check_storage(place, collection)


@pytest.mark.parametrize("retain", [None, "10 min"])
@pytest.mark.parametrize("merging", MergePolicyKind)
def test_upserts_stay_within_the_bound(place, retain, merging, monkeypatch):
    monkeypatch.setattr(catalog_log, "new_state", functools.partial(new_state, merging=merging))
    store = place.open(config=BLOBS)
    collection = create(store, retain=retain)
    for number in range(40):
        collection.upsert(rows(20, of=100, seed=number))
        passing(store, place.clock, 60.0, step=30.0)
        check_bound(collection)
    passing(store, place.clock, 1200.0, step=30.0)
    check_bound(collection)
    check_storage(place, collection)


def test_tiny_appends_to_a_large_collection_do_not_rewrite_it(place):
    store = place.open(config=BLOBS)
    collection = create(store)
    collection.append(rows(20_000, seed=0))
    for number in range(1, 31):
        collection.append(rows(1, seed=number))
        passing(store, place.clock, 60.0, step=30.0)
    assert totals(collection).merged_rows < 1000
    assert run_count(collection._handle.state()) <= 4
    check_storage(place, collection)


def test_many_small_collections_stay_within_the_bound_and_then_cost_nothing(place):
    script = Script()
    store = place.open(script=script)
    collections = [create(store, f"c{number}") for number in range(20)]
    for number in range(12):
        for collection in collections:
            collection.append(rows(3, seed=number))
        passing(store, place.clock, 30.0, step=15.0)
    passing(store, place.clock, 3 * HOUR_S, step=30.0)  # the leases of the writers lapse
    for collection in collections:
        check_bound(collection)
    assert idle_calls(store, place, script, 3 * HOUR_S) == Counter()


def test_an_idle_collection_of_insertions_is_not_rewritten_because_since_moves(place):
    store = place.open(config=BLOBS)
    collection = create(store, retain="1 hour")
    for number in range(60):
        collection.append(rows(30, seed=number))
        passing(store, place.clock, 60.0, step=30.0)
    passing(store, place.clock, 60.0)
    before = totals(collection).merged_rows
    passing(store, place.clock, 3 * DAY_S, step=60.0)
    assert collection.since.elements[0][0] > place.clock.ms - int(4 * DAY_S * 1000)
    assert totals(collection).merged_rows == before


def test_to_seal_an_idle_collection_again_and_again_rewrites_nothing(place):
    store = place.open(config=BLOBS)
    collection = create(store)
    collection.append(rows(50, seed=1))
    for _ in range(40):
        place.clock.advance(60.0)
        store.seal_idle()
        passing(store, place.clock, 30.0, step=15.0)
    assert totals(collection).merged_rows == 0


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(1, 40), st.sampled_from([0.01, 1.0, 15.0, 70.0]), st.booleans()), max_size=25))
def test_any_arrival_pattern_stays_within_the_bound(arrivals):
    with MemoryStore() as place:
        store = place.open(config=SMALL)
        collection = create(store, retain="1 min")
        for number, (count, gap, upsert) in enumerate(arrivals):
            (collection.upsert if upsert else collection.append)(rows(count, of=200, seed=number))
            passing(store, place.clock, gap, step=10.0)
            check_bound(collection)
        passing(store, place.clock, 300.0, step=30.0)
        check_bound(collection)
        check_storage(place, collection)


# An idle store.


def idle_calls(store, place, script, seconds):
    """What the background asks of storage that changes something, while nobody writes."""
    before = Counter(script.calls)
    passing(store, place.clock, seconds, step=30.0)
    found = Counter(script.calls) - before
    return Counter({name: found[name] for name in ("put", "compare_and_set", "delete", "truncate") if found[name]})


def test_an_idle_store_puts_nothing_and_commits_nothing(place):
    script = Script()
    store = place.open(config=BLOBS, script=script)
    plain, kept = create(store, "plain"), create(store, "kept", retain="10 min")
    for number in range(30):
        plain.append(rows(30, seed=number))
        kept.upsert(rows(30, of=60, seed=number))
        passing(store, place.clock, 20.0, step=10.0)
    passing(store, place.clock, 3 * HOUR_S, step=30.0)  # leases lapse, retention catches up, garbage goes
    assert script.calls["compare_and_set"] > 0
    assert idle_calls(store, place, script, 10 * HOUR_S) == Counter()


# Garbage.


def test_garbage_of_a_large_merge_goes_right_after_it(place):
    store = place.open(config=BLOBS)
    collection = create(store)
    for number in range(8):
        collection.append(rows(3000, seed=number))
    collection.compact()
    while store._maintenance.round():
        pass
    stored = sum(info.size for info in place.blob.list_keys(f"{collection.id}/"))
    assert stored < 1.3 * totals(collection).live_bytes
    check_storage(place, collection)


def test_garbage_waits_for_a_reader_and_no_rollup_is_written_twice_for_it(place):
    script = Script()
    store = place.open(config=BLOBS, script=script)
    collection = create(store)
    for number in range(8):
        collection.append(rows(3000, seed=number))
    reading = collection.snapshot()
    passing(store, place.clock, 60.0)
    waiting = totals(collection).garbage_bytes
    assert waiting > totals(collection).live_bytes // 2
    rollups = totals(collection).rollup_bytes
    passing(store, place.clock, 300.0)
    assert (totals(collection).garbage_bytes, totals(collection).rollup_bytes) == (waiting, rollups)
    assert len(reading.to_pylist()) == 24_000
    reading.close()
    passing(store, place.clock, 120.0)
    assert totals(collection).garbage_bytes < waiting
    check_storage(place, collection)


# Expired history is physically gone by its deadline.


def is_stored(place, collection, secret):
    """Whether a value is in any blob or log entry of a collection, in parts or inside of states and diffs."""
    blobs = [place.blob.get(info.key) for info in place.blob.list_keys(f"{collection.id}/")]
    entries = [entry[1] for entry in place.consensus.scan(collection.id)]
    schema = collection.schema
    for data in (*blobs, *entries):
        if secret.encode() in data:
            return True
        for part in inline_parts(data):
            if secret in decode_inline(part.inline, schema, part.rows, Config()).column("v").to_pylist():
                return True
    return False


def inline_parts(data):
    """The data that a rollup or a log entry holds itself."""
    if data[:2] != b"TS" or envelope_kind(data) not in (EnvelopeKind.STATE, EnvelopeKind.DIFF):
        return []
    if envelope_kind(data) is EnvelopeKind.STATE:
        parts = list(decode_state(data).parts())
    else:
        change = decode_diff(data)
        batches = [*(change.t.a.values() if change.t is not None else ()), *change.y]
        parts = [part for batch in batches for part in batch.parts]
    return [part for part in parts if part.inline is not None]


@pytest.mark.parametrize("config", [BLOBS, Config(retry_pause_ms=1, storage_attempts=3)], ids=["blobs", "inline"])
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_deleted_values_are_in_no_blob_after_the_deadline(place, config, busy):
    store = place.open(config=config)
    collection = create(store, forget_within="2 hours")
    secret = "a-secret-that-nobody-may-find-later"
    collection.append([{"id": 1, "v": secret}])
    for number in range(2, 40):
        collection.append([{"id": number, "v": f"kept {number}"}])
    passing(store, place.clock, 60.0)
    collection.delete([{"id": 1}])
    collection.append([{"id": 99, "v": "one more"}])
    collection.expire(before=place.clock.ms + 10)
    assert is_stored(place, collection, secret)
    for number in range(130):
        if busy:
            collection.append([{"id": 1000 + number, "v": "later"}])
        passing(store, place.clock, 60.0, step=30.0)
    assert not is_stored(place, collection, secret)
    assert collection._handle.state().forgetting is None
    assert collection.count() == 39 + (130 if busy else 0)


def test_what_expires_after_a_rewrite_has_a_deadline_of_its_own(place):
    store = place.open(config=BLOBS)
    collection = create(store, forget_within="1 hour", retain="5 min")
    for number in range(300):
        collection.upsert(rows(5, of=10, seed=number))
        passing(store, place.clock, 60.0, step=30.0)
    state = collection._handle.state()
    assert isinstance(state.forgetting, Forgetting)
    assert place.clock.ms - state.forgetting.expired_ms <= HOUR_S * 1000 + 120_000
    # Once per hour, for five hours, what may hold some is rewritten: at most everything.
    check_bound(collection, more=5 * 400)


def test_the_deadline_is_that_of_the_collection_or_the_store_or_the_configuration(place):
    store = place.open()
    own, plain = create(store, "own", forget_within="1 min"), create(store, "plain")
    assert own._handle.forget_within_ms == 60_000
    assert plain._handle.forget_within_ms == Config().forget_within_ms == 86_400_000
    store.forget_within("2 hours")
    assert (own._handle.forget_within_ms, plain._handle.forget_within_ms) == (60_000, 7_200_000)
    plain.forget_within("3 min")
    own.forget_within(None)
    assert (own._handle.forget_within_ms, plain._handle.forget_within_ms) == (7_200_000, 180_000)
    store.forget_within(None)
    other = place.open()
    assert other["own"]._handle.forget_within_ms == 86_400_000
    assert other["plain"]._handle.forget_within_ms == 180_000


def test_expire_and_compact_forget_at_once(place):
    store = place.open(config=BLOBS)
    collection = create(store)
    collection.append([{"id": 1, "v": "a-secret-value"}, {"id": 2, "v": "kept"}])
    collection.delete([{"id": 1}])
    collection.append([{"id": 3, "v": "kept too"}])
    collection.expire(before=place.clock.ms + 10)
    collection.compact(wait=True)
    store.maintain()
    assert not is_stored(place, collection, "a-secret-value")


def test_a_collection_is_at_rest_only_after_a_while(place):
    store = place.open(config=BLOBS)
    collection = create(store)
    for number in range(3):
        collection.append(rows(2, seed=number))
        passing(store, place.clock, REST_S / 2, step=1.0)
    assert totals(collection).merged_rows == 0
    passing(store, place.clock, REST_S, step=1.0)
    assert run_count(collection._handle.state()) == 1

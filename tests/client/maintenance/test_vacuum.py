"""Vacuum: what nobody can reach is found, and deleted only when told; what anybody can reach never is."""

import pytest
from key_value_cases import now
from memory_store import BLOBS, Script

import timespine as ts
from timespine.config import Config
from timespine.errors import Unavailable, UsageError
from timespine.testing.unreliable import Fault

PARTS = Config(
    part_bytes=2000, row_group_rows=16, inline_part_bytes=1, run_parts=2, retry_pause_ms=1, storage_attempts=2
)


def create(store, name="orders"):
    return store.create(name, key={"k": "int64"}, value={"v": "string"}, timeline="counter")


def leak(place, store, name="orders", number=0):
    """A blob that a process put and never committed, and that is not there any more to do so."""
    crashed = place.open(config=BLOBS)
    writer = crashed[name].writer()
    key = f"{store[name].id}/{writer.id}/pleaked{number}"
    place.blob.put(key, b"leaked" * (number + 1))
    crashed.close()
    return key


def test_vacuum_finds_what_leaked_and_deletes_it_only_when_told(place):
    store = place.open(config=BLOBS)
    for name in ("left", "right"):
        create(store, name).append([{"k": 1, "v": "a"}])
    leaked = sorted([leak(place, store, "left", 1), leak(place, store, "right", 2), leak(place, store, "right", 3)])
    before = place.blobs()
    found = store.vacuum()
    assert sorted(found.blobs) == leaked
    assert found.bytes == len(b"leaked") * (2 + 3 + 4)
    assert not found.deleted
    assert place.blobs() == before
    done = store.vacuum(dry_run=False)
    assert (sorted(done.blobs), done.bytes, done.deleted) == (leaked, found.bytes, True)
    assert set(place.blobs()) == set(before) - set(leaked)
    assert store.vacuum().blobs == []
    assert now(store["left"]) == now(store["right"]) == {(1, "a"): 1}


def test_vacuum_of_a_store_in_which_nothing_leaked_finds_nothing(place):
    store = place.open(config=PARTS)
    assert store.vacuum().blobs == []
    orders = create(store)
    orders.append([{"k": n, "v": "value" * 10} for n in range(300)])
    orders.append([{"k": n, "v": "other" * 10} for n in range(300)])
    orders.compact(wait=True)
    before = now(orders)
    found = store.vacuum(dry_run=False)
    assert (found.blobs, found.bytes) == ([], 0)
    # Merged away, but states that somebody may still read refer to it: that is for garbage collection.
    assert now(orders) == before
    store.maintain()
    assert now(place.open(config=PARTS)["orders"]) == before


def test_vacuum_leaves_alone_what_belongs_to_a_live_writer(place):
    store, live = place.open(config=BLOBS), place.open(config=BLOBS)
    orders = create(store)
    writer = live["orders"].writer()
    key = f"{orders.id}/{writer.id}/punderway"
    place.blob.put(key, b"under way")
    assert store.vacuum(dry_run=False).blobs == []
    assert key in place.blobs()
    place.clock.advance(2 * 3600)
    store.maintain()  # its lease lapsed: it can never be committed any more
    assert key not in place.blobs() or store.vacuum().blobs == [key]


def test_history_that_was_not_expired_survives_any_vacuum(place):
    store = place.open(config=PARTS)
    orders = create(store)
    for n in range(20):
        orders.upsert([{"k": k, "v": f"{n}" * 30} for k in range(5)])
        if n % 4 == 3:
            store.maintain(sweep=True)
            store.vacuum(dry_run=False)
    for n in range(20):
        assert {row["v"] for row in orders.snapshot(n).to_pylist()} == {f"{n}" * 30}


def test_a_dry_run_writes_nothing_at_all(place):
    store = place.open(config=BLOBS)
    orders = create(store)
    orders.append([{"k": 1, "v": "a"}])
    leaked = leak(place, store)
    seqno = orders._handle.state().seqno
    for looking in (place.open(), place.open(read_only=True)):
        assert looking.vacuum().blobs == [leaked]
    with pytest.raises(UsageError, match="reading only"):
        place.open(read_only=True).vacuum(dry_run=False)
    assert orders._handle.state().seqno == seqno


def test_storage_that_is_away_is_unavailable_and_nothing_is_lost(place):
    script = Script()
    store = place.open(config=BLOBS, script=script)
    orders = create(store)
    orders.append([{"k": 1, "v": "a"}])
    leaked = leak(place, store)
    script.add("list_keys", Fault.DETERMINATE, times=99)
    with pytest.raises(Unavailable):
        store.vacuum(dry_run=False)
    script.rules.clear()
    script.add("delete", Fault.DETERMINATE, times=99)
    with pytest.raises(Unavailable):
        store.vacuum(dry_run=False)
    script.rules.clear()
    assert store.vacuum(dry_run=False).blobs == [leaked]
    assert now(orders) == {(1, "a"): 1}


def test_foreign_files_in_the_folder_are_never_deleted(tmp_path):
    with ts.open(tmp_path, maintenance=False, config=BLOBS) as store:
        orders = create(store)
        orders.append([{"k": 1, "v": "a"}])
        (folder,) = (tmp_path / "blobs" / orders.id).iterdir()
        foreign = [folder / ".DS_Store", folder / "Thumbs.db", tmp_path / "blobs" / orders.id / "notes.TXT"]
        for file in foreign:
            file.write_text("not ours")
        orphan = tmp_path / "blobs" / orders.id / "wgone"
        orphan.mkdir()
        (orphan / "pleaked").write_text("ours")
        assert store.vacuum(dry_run=False).blobs == [f"{orders.id}/wgone/pleaked"]
        assert store.maintain(sweep=True).failures == 0
        assert all(file.exists() for file in foreign)
        assert now(orders) == {(1, "a"): 1}

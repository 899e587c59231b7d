"""A copy is one moment of a store, verified; the next run copies what is new; what is interrupted says so."""

import threading

import pytest

import timespine as ts
from timespine.client.backup import copy_blobs, copy_target, store_cut
from timespine.client.backup.copy_store import identify
from timespine.client.backup.store_cut import newest_cut
from timespine.config import Config
from timespine.core.protocols import garbage
from timespine.core.transitions import ExpireReader
from timespine.errors import Contention, CorruptionError, IncompleteCopy, ReadOnlyStore, UsageError
from timespine.location.folder.local_blob import LocalBlob

KEY = {"id": "int64"}
VALUE = {"n": "int64"}
BLOBS = Config(inline_part_bytes=1, rollup_seqnos=4)


def rows_of(location, name="orders", **options):
    with ts.open(location, read_only=True, create=False) as store:
        return sorted(row["id"] for row in store[name].snapshot(**options).to_pylist())


def numbered(*numbers):
    return [{"id": number, "n": number} for number in numbers]


@pytest.fixture
def store(tmp_path):
    with ts.open(tmp_path / "origin", config=BLOBS, maintenance=False) as opened:
        opened.create("orders", key=KEY, value=VALUE, timeline="counter")
        yield opened


@pytest.fixture
def puts(monkeypatch):
    """The keys of blobs that were put below a folder named copy."""
    found = []
    real = LocalBlob.put

    def put(self, key, value):
        if "copy" in str(self._root):
            found.append(key)
        real(self, key, value)

    monkeypatch.setattr(LocalBlob, "put", put)
    return found


def test_a_copy_has_all_collections_views_and_history_and_an_id_of_its_own(store, tmp_path):
    orders = store["orders"]
    orders.append(numbered(1, 2))
    orders.append(numbered(3))
    store.view("large", sql="SELECT id FROM orders WHERE n > 1")
    store.refresh()
    store.retain("7 days")
    done = ts.copy(store, tmp_path / "copy", verify="full")
    assert done.collections == len(store.names(hidden=True)) == 3
    assert (done.copied_blobs, done.deleted_blobs) == (done.blobs, 0)
    assert done.origin == identify(store) != done.store
    assert rows_of(tmp_path / "copy") == [1, 2, 3]
    assert rows_of(tmp_path / "copy", as_of=0) == [1, 2]
    assert rows_of(tmp_path / "copy", "large") == [2, 3]
    with ts.open(tmp_path / "copy", read_only=True) as copied:
        assert copied.names(hidden=True) == store.names(hidden=True)
        assert ts.examine(copied).is_sound
        assert not copied["orders"]._handle.state().writers
        assert copied._catalog.read().retain_ms == 7 * 86_400_000


def test_the_next_run_copies_only_what_is_new_and_deletes_what_is_gone(store, tmp_path, puts):
    orders = store["orders"]
    for number in range(5):
        orders.append(numbered(number))
    first = ts.copy(store, tmp_path / "copy")
    assert len(puts) == first.copied_blobs == 5
    puts.clear()
    again = ts.copy(store, tmp_path / "copy")
    assert (puts, again.copied_blobs, again.blobs, again.store) == ([], 0, 5, first.store)
    orders.append(numbered(5))
    assert ts.copy(store, tmp_path / "copy").copied_blobs == len(puts) == 1
    puts.clear()
    orders.compact(wait=True)
    merged = ts.copy(store, tmp_path / "copy", verify="full")
    assert (merged.copied_blobs, merged.blobs, merged.deleted_blobs) == (1, 1, 6)
    assert len(list((tmp_path / "copy" / "blobs").rglob("p*"))) <= 1
    assert rows_of(tmp_path / "copy") == [0, 1, 2, 3, 4, 5]
    store.drop("orders")
    assert ts.copy(store, tmp_path / "copy").collections == 0
    with ts.open(tmp_path / "copy", read_only=True) as copied:
        assert copied.names() == []


def test_a_reader_of_the_copy_sees_the_next_one(store, tmp_path):
    store["orders"].append(numbered(1))
    ts.copy(store, tmp_path / "copy")
    with ts.open(tmp_path / "copy", read_only=True) as copied:
        assert copied["orders"].snapshot().to_arrow().num_rows == 1
        store["orders"].append(numbered(2))
        store["orders"].compact(wait=True)
        ts.copy(store, tmp_path / "copy")
        assert copied["orders"].snapshot().to_arrow().num_rows == 2


def test_transactions_are_not_torn_while_writers_write(store, tmp_path):
    store.create("audit", key=KEY, value=VALUE, timeline="counter")
    stop = threading.Event()

    def write():
        number = 0
        while not stop.is_set() and number < 10_000:
            with store.transaction() as transaction:
                for name in ("orders", "audit"):
                    transaction.append(name, numbered(number))
            number += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(4):
            ts.copy(store, tmp_path / "copy")
            assert rows_of(tmp_path / "copy") == rows_of(tmp_path / "copy", "audit")
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()


def test_leases_keep_what_is_being_copied(store, tmp_path):
    orders = store["orders"]
    for number in range(4):
        orders.append(numbered(number))
    with newest_cut(store) as cut:
        needed = copy_blobs.reachable_blobs(cut, store._context.blob)
        orders.compact(wait=True)
        orders.append(numbered(9))
        for _ in range(3):
            store._leases.heartbeat()
            store.maintain()
        there = {info.key for info in store._context.blob.list_keys()}
        assert needed.keys() <= there
    store.maintain()
    store._upkeep.run(orders.id, lambda session: garbage.collect_garbage(session, orders.id))
    assert not needed.keys() <= {info.key for info in store._context.blob.list_keys()}


def test_a_copy_without_leases_begins_again_if_a_blob_went(store, tmp_path, monkeypatch):
    orders = store["orders"]
    for number in range(4):
        orders.append(numbered(number))
    real, went = copy_blobs.copy_missing, []

    def copy_missing(needed, *rest):
        if not went:
            went.append(True)
            orders.compact(wait=True)
            for _ in range(3):
                store.maintain()
        return real(needed, *rest)

    monkeypatch.setattr("timespine.client.backup.copy_store.copy_missing", copy_missing)
    done = ts.copy(tmp_path / "origin", tmp_path / "copy", read_only=True) if identify(store) else None
    assert (went, done.blobs) == ([True], 1)
    assert rows_of(tmp_path / "copy") == [0, 1, 2, 3]


@pytest.mark.parametrize("read_only", [True, False])
def test_a_cut_begins_again_if_the_log_was_cut_beside_it(store, tmp_path, monkeypatch, read_only):
    """A process that slept has lost its lease; one that only reads has none."""
    identify(store)
    orders, real, went = store["orders"], store_cut.read_heads_at_once, []

    def read_heads_at_once(consensus, keys):
        if not went:
            went.append(True)
            known = orders._handle.state()
            for reader in known.readers:
                store._committer.commit((orders.id, ExpireReader(reader)))
            for number in range(3 * BLOBS.rollup_seqnos):
                orders.append(numbered(number))
            for _ in range(3):
                store.maintain()
            assert store._driver.consensus.scan(orders.id)[0].seqno > known.seqno + 1
        return real(consensus, keys)

    monkeypatch.setattr(store_cut, "read_heads_at_once", read_heads_at_once)
    ts.copy(tmp_path / "origin", tmp_path / "copy", read_only=read_only)
    assert rows_of(tmp_path / "copy") == sorted(range(3 * BLOBS.rollup_seqnos))


@pytest.mark.parametrize("fails_at", ["put", "place", "prune"])
def test_an_interrupted_copy_is_the_old_one_or_says_that_it_is_incomplete(store, tmp_path, monkeypatch, fails_at):
    store["orders"].append(numbered(1))

    def broken(*args, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(copy_target.CopyTarget, "place", broken)
        with pytest.raises(KeyboardInterrupt):
            ts.copy(store, tmp_path / "new")
    for read_only in (True, False):
        with (
            ts.open(tmp_path / "new", read_only=read_only) as opened,
            pytest.raises(IncompleteCopy, match="copy again"),
        ):
            opened.names()
    with pytest.raises(UsageError, match="not complete"):
        ts.promote(tmp_path / "new")
    ts.copy(store, tmp_path / "new")
    assert rows_of(tmp_path / "new") == [1]
    store["orders"].append(numbered(2))
    store["orders"].compact(wait=True)
    target = copy_blobs if fails_at == "put" else copy_target.CopyTarget
    with monkeypatch.context() as patch:
        patch.setattr(target, {"put": "verify_blob"}.get(fails_at, fails_at), broken)
        with pytest.raises(BaseException):  # noqa: B017, PT011 (a thread of the pool may turn it into another error)
            ts.copy(store, tmp_path / "new")
    assert rows_of(tmp_path / "new") == ([1, 2] if fails_at == "prune" else [1])
    assert ts.copy(store, tmp_path / "new").blobs == 1
    assert rows_of(tmp_path / "new") == [1, 2]


def test_states_that_do_not_fit_one_commit_are_incomplete_in_between(store, tmp_path, monkeypatch):
    for name in "abc":
        store.create(name, key=KEY, timeline="counter").append([{"id": 1}])
    ts.copy(store, tmp_path / "copy")
    store["a"].append([{"id": 2}])
    monkeypatch.setattr(copy_target, "WRITES_MAX", 2)
    seen = []
    real = copy_target.CopyTarget._store

    def note(self, names, more=()):
        real(self, names, more)
        seen.append((names.copied.is_complete, len(more)))

    monkeypatch.setattr(copy_target.CopyTarget, "_store", note)
    ts.copy(store, tmp_path / "copy")
    assert seen == [(True, 0), (False, 1), (False, 1), (False, 1), (True, 1)]
    assert rows_of(tmp_path / "copy", "a") == [1, 2]


def test_of_two_runs_at_once_the_later_one_wins(store, tmp_path, monkeypatch):
    store["orders"].append(numbered(1))
    ts.copy(store, tmp_path / "copy")
    store["orders"].append(numbered(2))
    real = copy_target.CopyTarget.place

    def place(self, cut):
        monkeypatch.setattr(copy_target.CopyTarget, "place", real)
        store["orders"].append(numbered(3))
        ts.copy(store, tmp_path / "copy")  # begins and ends while the first one is about to place its states
        real(self, cut)

    monkeypatch.setattr(copy_target.CopyTarget, "place", place)
    with pytest.raises(Contention, match="another run"):
        ts.copy(store, tmp_path / "copy")
    assert rows_of(tmp_path / "copy") == [1, 2, 3]


def test_a_copy_is_written_only_after_it_is_promoted(store, tmp_path):
    store["orders"].append(numbered(1))
    done = ts.copy(store, tmp_path / "copy")
    with ts.open(tmp_path / "copy", maintenance=False) as copied, pytest.raises(ReadOnlyStore, match="promote"):
        copied["orders"].append(numbered(2))
    assert ts.promote(tmp_path / "copy") == done.origin
    with ts.open(tmp_path / "copy") as copied:
        copied["orders"].append(numbered(2))
        copied.maintain()
        assert ts.examine(copied).is_sound
        assert identify(copied) == done.store
    assert rows_of(tmp_path / "copy") == [1, 2]
    with pytest.raises(UsageError, match="store of its own"):
        ts.copy(store, tmp_path / "copy")
    with pytest.raises(UsageError, match="store of its own"):
        ts.promote(tmp_path / "copy")


def test_a_copy_is_refused_where_it_would_mix_stores(store, tmp_path):
    store["orders"].append(numbered(1))
    ts.copy(store, tmp_path / "copy")
    with ts.open(tmp_path / "other") as other:
        other.create("orders", key=KEY)
        with pytest.raises(UsageError, match="not of"):
            ts.copy(other, tmp_path / "copy")
        with pytest.raises(UsageError, match="store of its own"):
            ts.copy(store, tmp_path / "other")
    with pytest.raises(UsageError, match="the store itself"):
        ts.copy(store, tmp_path / "origin")
    with pytest.raises(UsageError, match="there is no store"):
        ts.copy(tmp_path / "nowhere", tmp_path / "third")
    with pytest.raises(UsageError, match="verify"):
        ts.copy(store, tmp_path / "third", verify="yes")
    ts.fence(tmp_path / "origin")
    with ts.open(tmp_path / "origin") as fenced, pytest.raises(UsageError, match="epoch 1"):
        ts.copy(fenced, tmp_path / "copy")


def test_damage_in_the_origin_and_in_the_copy_is_found(store, tmp_path):
    store["orders"].append(numbered(*range(100)))
    ts.copy(store, tmp_path / "copy")
    (part,) = [path for path in (tmp_path / "copy" / "blobs").rglob("*") if path.is_file()]
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.chmod(0o600)
    part.write_bytes(data)
    with pytest.raises(CorruptionError):
        ts.copy(store, tmp_path / "copy", verify="full")
    part.write_bytes(data[:-1])  # of another size: copied again
    assert ts.copy(store, tmp_path / "copy", verify="full").copied_blobs == 1
    (part,) = [path for path in (tmp_path / "origin" / "blobs").rglob("*") if path.is_file()]
    part.chmod(0o600)
    part.write_bytes(data)
    with pytest.raises(CorruptionError):
        ts.copy(store, tmp_path / "fresh")
    with ts.open(tmp_path / "fresh", read_only=True) as opened, pytest.raises(IncompleteCopy):
        opened.names()


def test_progress_counts_the_bytes_of_what_is_copied(store, tmp_path):
    for number in range(3):
        store["orders"].append(numbered(number))
    told = []
    done = ts.copy(store, tmp_path / "copy", progress=lambda *each: told.append(each))
    assert (told[0], told[-1]) == ((0, done.copied_bytes), (done.copied_bytes, done.copied_bytes))


def test_a_store_in_memory_is_copied_there_and_back(tmp_path):
    with ts.open("memory://origin") as store:
        store.create("orders", key=KEY, timeline="counter").append([{"id": 1}])
        ts.copy(store, "memory://copy")
        ts.copy(store, tmp_path / "copy")
    assert rows_of("memory://copy") == rows_of(tmp_path / "copy") == [1]
    ts.promote("memory://copy")
    ts.copy("memory://copy", tmp_path / "third")
    assert rows_of(tmp_path / "third") == [1]

"""Every commit of the time that a store keeps deleted data can be restored; afterwards the bytes are gone."""

import pytest
from memory_store import Clock

import timespine as ts
from timespine.client.backup.past_cut import PastCommit, PastLog, PastStore, read_past
from timespine.client.catalog.catalog import CatalogEntry, Names
from timespine.config import Config
from timespine.errors import StoreFenced, UsageError

KEY = {"id": "int64"}
BLOBS = Config(inline_part_bytes=1, rollup_seqnos=4)
HOUR_S = 3600


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def place(tmp_path, clock, monkeypatch):
    """A store in a folder whose processes share a clock."""
    real = ts.open

    def open_at(location, **options):
        return real(location, clock=clock, config=BLOBS, **{"maintenance": False, **options})

    for module in ("copy_store", "restore_to_commit"):
        monkeypatch.setattr(f"timespine.client.backup.{module}.open", open_at)
    return lambda name="store": open_at(tmp_path / name)


def rows(store, name="orders", **options):
    return sorted(row["id"] for row in store[name].snapshot(**options).to_pylist())


def append(store, *numbers, name="orders"):
    store[name].append([{"id": number} for number in numbers])


def tidy(store, clock):
    """All that maintenance would do, and some time for it."""
    for _ in range(3):
        store.maintain(sweep=True)
        clock.advance(1)
    store.vacuum(dry_run=False)


def test_a_dropped_collection_is_restored_after_vacuum_and_gone_after_the_window(place, clock, tmp_path):
    store = place()
    store.keep_deleted("1 hour")
    store.create("orders", key=KEY, timeline="counter")
    append(store, 1, 2)
    append(store, 3)
    kept = {info.key for info in store._context.blob.list_keys()}
    clock.advance(1)
    before = clock.ms
    clock.advance(1)
    store.drop("orders")
    tidy(store, clock)
    done = ts.restore(tmp_path / "store", before, into=tmp_path / "into")
    assert done.collections.keys() == {"orders"}
    with ts.open(tmp_path / "into") as into:
        assert (rows(into), rows(into, as_of=0)) == ([1, 2, 3], [1, 2])
        assert ts.examine(into).is_sound
        append(into, 4)
    clock.advance(HOUR_S)
    for _ in range(2):
        tidy(store, clock)
        clock.advance(86_400)  # the lease of its own writer ends too
    assert kept.isdisjoint(info.key for info in store._context.blob.list_keys())
    with pytest.raises(UsageError, match="that commit is older than the oldest commit"):
        ts.restore(tmp_path / "store", before, into=tmp_path / "late")
    store.close()


def test_a_wrong_expire_is_undone_in_place_and_old_handles_are_fenced(place, clock, tmp_path):
    store = place()
    store.keep_deleted("1 hour")
    orders = store.create("orders", key=KEY, timeline="counter")
    for number in range(6):
        append(store, number)
    clock.advance(1)
    before = clock.ms
    clock.advance(1)
    append(store, 99)
    orders.expire(5)
    orders.compact(wait=True)
    tidy(store, clock)
    store.create("later", key=KEY)
    with pytest.raises(ts.SinceError):
        rows(store, as_of=0)
    done = ts.restore(tmp_path / "store", before)
    assert done.epoch == 1
    with pytest.raises(StoreFenced, match="open it again"):
        append(store, 7)
    with pytest.raises(StoreFenced, match="restored"):
        rows(store)  # what it has read is undone
    store.close()
    with place() as again:
        assert again.names() == ["orders"]
        assert [rows(again, as_of=number) for number in (0, 3, 5)] == [[0], [0, 1, 2, 3], [0, 1, 2, 3, 4, 5]]
        append(again, 6)
        again["orders"].compact(wait=True)
        tidy(again, clock)
        assert (rows(again), ts.examine(again).is_sound) == ([0, 1, 2, 3, 4, 5, 6], True)
        clock.advance(HOUR_S + 1)
        tidy(again, clock)
        clock.advance(HOUR_S + 1)
        tidy(again, clock)
        assert (rows(again), ts.examine(again).is_sound) == ([0, 1, 2, 3, 4, 5, 6], True)


def test_a_restore_is_itself_undone_by_another_one(place, clock, tmp_path):
    with place() as store:
        store.keep_deleted("1 hour")
        store.create("orders", key=KEY, timeline="counter")
        append(store, 1)
        clock.advance(1)
        first = clock.ms
        clock.advance(1)
        append(store, 2)
        clock.advance(1)
        second = clock.ms
        clock.advance(1)
    ts.restore(tmp_path / "store", first)
    clock.advance(1)
    with place() as store:
        assert rows(store) == [1]
    clock.advance(1)
    assert ts.restore(tmp_path / "store", second).epoch == 2
    with place() as store:
        assert rows(store) == [1, 2]


def test_every_commit_of_the_window_gives_the_rows_that_it_gave(place, clock, tmp_path):
    store = place()
    store.keep_deleted("1 hour")
    orders = store.create("orders", key=KEY, timeline="counter")
    seen = {}
    for number in range(24):
        append(store, number)
        if number % 5 == 4:
            orders.compact(wait=True)
            store.maintain()
        clock.advance(60)
        seen[clock.ms] = (orders._handle.state().seqno, rows(store))
        clock.advance(60)
    for place_number, (moment, (seqno, expected)) in enumerate(list(seen.items())[::5]):
        by_time = ts.restore(tmp_path / "store", moment, into=tmp_path / f"time{place_number}")
        by_number = ts.restore(tmp_path / "store", ("orders", seqno), into=tmp_path / f"number{place_number}")
        for done in (by_time, by_number):
            with ts.open(done.location, read_only=True) as restored:
                assert rows(restored) == expected
    store.close()


def test_what_cannot_be_restored_is_refused_and_changes_nothing(place, clock, tmp_path):
    store = place()
    store.create("orders", key=KEY, timeline="counter")
    append(store, 1)
    head = store["orders"]._handle.state().seqno
    for to, match in (
        (0, "that commit is older than the oldest commit"),
        (("orders", 99), "no commit 99"),
        (("nothing", 0), "no commit 0"),
        ("yesterday", "milliseconds since 1970"),
        (clock.ms, "keeps no deleted data"),
    ):
        with pytest.raises(UsageError, match=match):
            ts.restore(tmp_path / "store", to)
    store.keep_deleted("1 minute")
    clock.advance(3600)
    with pytest.raises(UsageError, match="older than the time"):
        ts.restore(tmp_path / "store", clock.ms - 120_000)
    with pytest.raises(UsageError, match="give an empty place"):
        ts.restore(tmp_path / "store", clock.ms, into=tmp_path / "store")
    assert store["orders"]._handle.state().seqno == head
    append(store, 2)  # it is not fenced
    assert (store.kept_deleted_ms(), rows(store)) == (60_000, [1, 2])
    store.keep_deleted(None)
    assert store.kept_deleted_ms() is None
    store.close()


def test_a_process_that_does_not_know_the_setting_deletes_nothing_early(place, clock):
    first, second = place(), place()
    orders = first.create("orders", key=KEY, timeline="counter")
    for number in range(4):
        append(first, number)
    there = {info.key for info in first._context.blob.list_keys()}
    second["orders"]._handle.state()
    first.keep_deleted("1 hour")
    orders.compact(wait=True)
    second._maintenance._collect_garbage(second["orders"]._handle)
    tidy(second, clock)
    assert there <= {info.key for info in first._context.blob.list_keys()}
    first.close()
    second.close()


def test_expired_history_is_gone_after_forget_within_and_keep_deleted(place, clock):
    store = place()
    store.keep_deleted("1 hour")
    orders = store.create("orders", key=KEY, value={"secret": "string"}, timeline="counter", forget_within="10 minutes")
    orders.append([{"id": 1, "secret": "ada-lovelace"}])
    orders.delete({"id": 1})
    orders.append([{"id": 2, "secret": "none"}])
    orders.expire(2)
    store._leases.close()

    def holds_it():
        blobs = [store._context.blob.get(info.key) for info in store._context.blob.list_keys()]
        entries = [entry.data for entry in store._driver.consensus.scan(orders.id)]
        keys = {info.key for info in store._context.blob.list_keys()}
        return any(b"ada-lovelace" in data for data in (*blobs, *entries)), keys

    _, before = holds_it()
    clock.advance(601)
    tidy(store, clock)
    assert before & holds_it()[1], "kept for an hour more"
    clock.advance(HOUR_S)
    tidy(store, clock)
    is_there, after = holds_it()
    assert not is_there
    assert not before & after
    assert orders._handle.state().forgetting is None
    store.close()


def test_a_torn_transaction_is_cut_before_all_of_it():
    """The clock of one process is late: by time alone, its transaction would be in one collection alone."""

    def log(*commits):
        return PastLog([], {}, tuple(PastCommit(*each) for each in commits))

    both = frozenset({("late", 1)})
    names = Names({"a": CatalogEntry("a-1"), "b": CatalogEntry("b-1")}, changed_ms=1, seqno=0)
    past = PastStore(
        [names],
        {
            "a-1": log((0, 1, frozenset()), (1, 100, frozenset({("right", 1)})), (2, 100, both)),
            "b-1": log((0, 1, frozenset()), (1, 95, both), (2, 96, frozenset({("late", 2)}))),
        },
    )
    assert past.cut_at(97)[1] == {"a-1": 0, "b-1": 0}
    assert past.cut_at(100)[1] == {"a-1": 2, "b-1": 2}
    with pytest.raises(UsageError, match="that the catalog keeps"):
        past.cut_at(0)


def test_a_transaction_that_created_a_collection_is_cut_before_all_of_it():
    """It writes the catalog at 10 and the rows at 12, by two looks at the clock."""

    def log(*commits):
        return PastLog([], {}, tuple(PastCommit(*each) for each in commits))

    both = frozenset({("one", 1)})
    first = Names({"a": CatalogEntry("a-1")}, changed_ms=1, seqno=0)
    second = Names({"a": CatalogEntry("a-1"), "b": CatalogEntry("b-1")}, changed_ms=10, seqno=1)
    logs = {"a-1": log((0, 1, frozenset()), (1, 12, both)), "b-1": log((0, 0, both), (1, 20, frozenset()))}
    past = PastStore([first, second], logs)
    assert past.cut_at(11) == (first, {"a-1": 0})
    assert past.cut_at(12) == (second, {"a-1": 1, "b-1": 0})
    logs["b-1"] = log((7, 0, both), (8, 20, frozenset()))  # its log was cut, and does not begin with its creation
    with pytest.raises(UsageError, match="that the log of b-1 keeps"):
        past.cut_at(11)


def test_a_transaction_over_a_collection_that_was_dropped_later_is_not_torn(place, clock, tmp_path):
    store = place()
    store.keep_deleted("1 hour")
    for name in ("orders", "extra"):
        store.create(name, key=KEY, timeline="counter")
    clock.advance(1)
    with store.transaction() as transaction:
        for name in ("orders", "extra"):
            transaction.append(name, [{"id": 1}])
    clock.advance(1)
    between = clock.ms
    clock.advance(1)
    store.drop("extra")
    append(store, 2)
    store.close()
    ts.restore(tmp_path / "store", clock.ms, into=tmp_path / "now")
    with place("now") as restored:
        assert restored.names() == ["orders"]
        assert rows(restored) == [1, 2]
    ts.restore(tmp_path / "store", between, into=tmp_path / "before")
    with place("before") as restored:
        assert (rows(restored), rows(restored, "extra")) == ([1], [1])


def test_the_logs_say_when_each_commit_was_made(place, clock):
    with place() as store:
        store.create("orders", key=KEY, timeline="counter")
        for number in range(3):
            clock.advance(10)
            append(store, number)
        (log,) = read_past(store).logs.values()
        assert [commit.at_ms for commit in log.commits][-1] == clock.ms
        assert sorted(commit.at_ms for commit in log.commits) == [commit.at_ms for commit in log.commits]

"""The end of a store: what waits is answered, what is held is let go, and whoever comes later is told so."""

import os
import threading

import calls
import pytest
from assertions import check, until
from memory_store import BLOBS, QUICK, Gate, Script, in_line, in_threads

import timespine as ts
from timespine.errors import Indeterminate, TimespineError, Unavailable, UsageError
from timespine.location.folder.local_blob import LocalBlob
from timespine.location.opening import folder_place
from timespine.location.sqlite.sqlite_consensus import SqliteConsensus
from timespine.model.frontier import Frontier
from timespine.testing.unreliable import Fault

CLOSED = "this store is closed: open it again"


def create(store, name="orders"):
    orders = store.create(name, **calls.SHAPE)
    for n in range(4):
        orders.append([{"id": n, "name": f"v{n}"}])
    return orders


def ids(store, name="orders"):
    return sorted(row["id"] for row in store[name].snapshot().to_pylist())


# Afterwards.


@pytest.mark.parametrize("read_only", [False, True], ids=["writing", "reading"])
def test_every_later_call_of_a_store_and_its_collections_says_that_it_is_closed(tmp_path, read_only):
    root = tmp_path / "store"
    with ts.open(root, config=BLOBS) as store:
        create(store)
    store = ts.open(root, config=BLOBS, read_only=read_only)
    orders = store["orders"]
    orders.count()
    store.close()
    for target, (changes, reads, _) in ((store, calls.of_store(tmp_path)), (orders, calls.of_collection())):
        for name, each in {**changes, **reads}.items():
            for call in each:
                with pytest.raises(UsageError) as raised:
                    call(target)
                assert str(raised.value) == CLOSED, name
    assert (orders.name, store.metrics()["cache misses"] >= 0) == ("orders", True)
    store._heartbeat_thread.heartbeat_once()
    with ts.open(root, read_only=True) as again:
        assert again["orders"].count() == 4


def test_every_handle_that_was_taken_before_says_that_the_store_is_closed(place):
    store = place.open(config=BLOBS)
    orders = create(store)
    writer, feed, waiting = orders.writer(), orders.subscribe(), orders.subscribe(snapshot=False)
    with writer.builder(lower=4) as builder:
        builder.add(
            orders.snapshot().to_reader().read_all().append_column("_time", [[4] * 4]).append_column("_diff", [[1] * 4])
        )
        batch = builder.finish(Frontier.at(5))
    hold, critical = orders.hold(1), orders.critical_hold("backup", 1)
    snapshot, changes = orders.snapshot(), orders.changes(1)
    assert next(feed).kind == "snapshot"
    store.close()
    for use in (
        lambda: writer.builder(lower=4),
        lambda: writer.compare_and_append([batch], 4, 5),
        lambda: writer.append(batch),
        lambda: writer.seal(9),
        lambda: writer.transmit(batch),
        lambda: writer.delete(batch),
        lambda: orders.writer(),
        lambda: next(feed),
        waiting.poll,
        snapshot.to_arrow,
        snapshot.count,
        lambda: list(snapshot.batches()),
        changes.to_arrow,
        lambda: hold.release_before(2),
        lambda: critical.release_before(2),
        critical.release,
        critical.take_over,
    ):
        with pytest.raises(UsageError, match=CLOSED):
            use()
    for done in (snapshot, changes, feed, waiting):
        done.close()  # giving back what was given back is fine
    hold.release()
    assert ids(place.open()) == [0, 1, 2, 3]
    writer._loose.clear()  # what was built and never committed is swept, and warned of: here it is meant


def test_a_feed_that_waits_is_told_when_the_store_is_closed(place):
    store = place.open()
    feed = create(store).subscribe(snapshot=False)
    begun = threading.Event()
    outcome = []

    def wait():
        begun.set()
        try:
            outcome.append(next(feed))
        except BaseException as error:
            outcome.append(error)

    def close():
        check(begun.wait(60))
        store.close()

    in_threads(wait, close)
    assert isinstance(outcome[0], UsageError)
    assert CLOSED in str(outcome[0])


def test_closing_twice_is_fine_also_by_many_threads_at_once(place):
    store = place.open(maintenance=True)
    create(store)
    together = threading.Barrier(4)

    def close():
        together.wait(60)
        store.close()

    in_threads(*[close] * 4)
    store.close()
    with pytest.raises(UsageError, match=CLOSED):
        store.names()


# What waits.


def test_an_append_while_the_store_is_closed_has_either_succeeded_for_good_or_raises(place):
    gate = Gate(place.consensus)
    store = place.open(consensus=gate)
    orders = create(store)
    outcomes = {}
    gate.waiting.clear()
    gate.free.clear()

    def append(n):
        try:
            orders.append([{"id": n, "name": "x"}])
            outcomes[n] = True
        except BaseException as error:
            outcomes[n] = error

    writers = [threading.Thread(target=append, args=(n,)) for n in range(100, 116)]
    writers[0].start()
    check(gate.waiting.wait(60), "nobody commits")
    for place_in_line, thread in enumerate(writers[1:], 1):
        thread.start()
        until(lambda at_least=place_in_line: in_line(store) >= at_least)
    closing = threading.Thread(target=store.close)
    closing.start()
    until(lambda: store._closing.is_held)  # it is being closed, while one commits and fifteen stand in line
    gate.free.set()
    for thread in (*writers, closing):
        thread.join(60)
        check(not thread.is_alive(), "somebody waits for ever")
    assert len(outcomes) == 16
    there = set(ids(place.open()))
    for n, outcome in outcomes.items():
        if outcome is True:
            assert n in there
        else:
            assert isinstance(outcome, UsageError)
            assert str(outcome) == CLOSED
            assert n not in there
    assert outcomes[100] is True  # what was under way is finished


def test_threads_that_append_on_and_on_are_all_told_and_what_they_were_told_is_true(place):
    store = place.open(maintenance=True)
    orders = create(store)
    together = threading.Barrier(5)
    done, ends = set(), []

    def work(first):
        together.wait(60)
        n = first
        while True:
            try:
                orders.append([{"id": n, "name": "x"}])
            except TimespineError as error:
                ends.append((n, error))
                return
            done.add(n)
            n += 10

    def close():
        together.wait(60)
        until(lambda: len(done) > 8)
        store.close()

    in_threads(*(lambda first=first: work(first) for first in range(1000, 1004)), close)
    assert len(ends) == 4
    there = set(ids(place.open())) - {0, 1, 2, 3}
    assert done <= there
    in_doubt = {n for n, error in ends if isinstance(error, Indeterminate)}
    assert there - done <= in_doubt
    assert all(isinstance(error, UsageError) and CLOSED in str(error) for n, error in ends if n not in in_doubt)


def test_what_is_overdue_and_small_is_done_before_the_end(place):
    store = place.open(config=BLOBS, maintenance=True)
    store._maintenance.round = lambda: False  # the background has had no time
    orders = store.create("orders", **calls.SHAPE)
    for n in range(40):
        orders.append([{"id": n, "name": "x"}])
    store.close()
    state = place.open()["orders"]._handle.state()
    assert sum(len(batch.runs) for batch in state.hollow_batches()) < 40
    assert (state.writers, state.committers, state.readers) == ({}, {}, {})


# Storage that is away.


@pytest.mark.parametrize("fault", [Fault.DETERMINATE, Fault.INDETERMINATE_NOT, Fault.INDETERMINATE_DONE], ids=str)
def test_a_store_is_closed_though_storage_is_away(place, fault):
    script = Script()
    store = place.open(script=script, config=BLOBS, maintenance=True)
    orders = create(store)
    snapshot = orders.snapshot()
    for operation in ("compare_and_set", "scan", "head", "put", "get", "get_range", "delete", "truncate", "list_keys"):
        script.add(operation, fault, times=10**6)
    before = threading.active_count()
    store.close()
    store.close()
    assert threading.active_count() < before
    with pytest.raises(UsageError, match=CLOSED):
        snapshot.to_arrow()
    with pytest.raises(UsageError, match=CLOSED):
        orders.append([{"id": 9, "name": "x"}])
    # What it could not give back expires by itself.
    other = place.open()
    assert ids(other) == [0, 1, 2, 3]
    place.clock.advance(2 * 3600)
    other.maintain(sweep=True)
    assert set(other["orders"]._handle.state().writers) <= {
        other._committer.session.writer,
        other._upkeep.session.writer,
    }


@pytest.mark.parametrize("heals", [True, False], ids=["storage is back", "storage is away"])
def test_an_append_in_doubt_when_the_store_is_closed_is_in_once_or_not_at_all(place, heals):
    script = Script()
    store = place.open(script=script)
    orders = create(store)
    script.add("compare_and_set", Fault.LATE, key=orders.id, times=99)
    with pytest.raises(Indeterminate):
        orders.append([{"id": 7, "name": "x"}])
    if heals:
        script.rules.clear()
    store.close()
    first = ids(place.open())
    store.ghosts()
    second = ids(place.open())
    assert [each for each in second if each != 7] == [0, 1, 2, 3]
    if heals:
        assert first == second  # it was found out before the end: what comes late loses
    assert second.count(7) <= 1


# A folder.


def open_files(root):
    """Files below a folder that this process has open."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            continue  # the one of the listing
    return [path for path in found if path.startswith(str(root))]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="open files are listed by Linux only")
def test_closing_lets_go_of_every_file_so_that_the_folder_can_be_moved_and_opened_again(tmp_path):
    root, moved = tmp_path / "store", tmp_path / "moved"
    store = ts.open(root, config=BLOBS)
    orders = create(store)
    feed, writer = orders.subscribe(), orders.writer()
    assert open_files(root)
    store.close()
    assert open_files(root) == []
    root.rename(moved)
    with ts.open(moved) as again:
        assert ids(again) == [0, 1, 2, 3]
        again["orders"].append([{"id": 9, "name": "x"}])
        assert again["orders"]._handle.state().readers.keys() == {
            lease.reader for leases in again._leases._leases.values() for lease in leases
        }
    assert not root.exists()
    assert (feed, writer) is not None


class Recorded(LocalBlob):
    """Blobs that know whether they were closed."""

    opened: list = []

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.closed = 0
        self.opened.append(self)

    def close(self):
        self.closed += 1
        super().close()


class RecordedLogs(SqliteConsensus):
    """The same of logs."""

    opened: list = []
    close_calls = 0

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.opened.append(self)

    def close(self):
        self.close_calls += 1
        super().close()


@pytest.fixture
def recorded(monkeypatch):
    monkeypatch.setattr(folder_place, "LocalBlob", Recorded)
    monkeypatch.setattr(folder_place, "SqliteConsensus", RecordedLogs)
    monkeypatch.setattr(Recorded, "opened", [])
    monkeypatch.setattr(RecordedLogs, "opened", [])


def test_a_failed_opening_closes_the_blobs_if_the_logs_cannot_be_read(tmp_path, monkeypatch, recorded):
    class Unreadable(RecordedLogs):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self.close()
            raise Unavailable("the first read failed")

    monkeypatch.setattr(folder_place, "SqliteConsensus", Unreadable)
    with pytest.raises(Unavailable, match="first read"):
        ts.open(tmp_path / "store")
    assert [blob.closed for blob in Recorded.opened] == [1]


@pytest.mark.parametrize("wrong", [{"audit": 7}, {"config": "none"}], ids=str)
def test_a_failed_opening_closes_both_ports(tmp_path, recorded, wrong):
    threads = set(threading.enumerate())
    with pytest.raises((UsageError, AttributeError)):
        ts.open(tmp_path / "store", **wrong)
    assert [blob.closed for blob in Recorded.opened] == [1]
    assert [logs.close_calls for logs in RecordedLogs.opened] == [1]
    assert set(threading.enumerate()) == threads
    with ts.open(tmp_path / "store", config=QUICK) as store:
        create(store)
    assert [blob.closed for blob in Recorded.opened] == [1, 1]
    assert [logs.close_calls for logs in RecordedLogs.opened] == [1, 1]


def test_closing_closes_both_ports_even_if_one_of_them_fails_to(tmp_path, recorded):
    store = ts.open(tmp_path / "store")
    (blob,), (logs,) = Recorded.opened, RecordedLogs.opened

    def fail():
        raise OSError("no")

    blob.close = fail
    with pytest.raises(OSError, match="no"):
        store.close()
    assert logs.close_calls == 1
    store.close()


@pytest.mark.parametrize("creates", [False, True], ids=["an append", "a transaction that creates"])
def test_what_was_committed_is_acknowledged_and_stays_though_the_store_is_closed_right_after(place, creates):
    store = place.open(config=BLOBS)
    create(store)
    store._committer.on_commit.insert(0, lambda collections: store._committer.close())
    if creates:
        with store.transaction() as tx:
            tx.append(tx.create("more", **calls.SHAPE), [{"id": 7, "name": "in"}])
    else:
        store["orders"].append([{"id": 7, "name": "in"}])
    assert 7 in ids(place.open(), "more" if creates else "orders")

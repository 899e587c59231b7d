"""A dropped collection leaves nothing behind: no blob, no log, and no list of the whole store by every process."""

import pytest
from memory_store import Clock

import timespine as ts
from timespine.client.maintenance.sweep_claim import SWEEPS, take_sweep_turn
from timespine.location.consensus import LogWrite
from timespine.location.memory import MemoryConsensus
from timespine.location.sqlite.sqlite_consensus import FORGOTTEN, SqliteConsensus

DAY_S = 86_400


def test_a_dropped_collection_leaves_nothing_but_its_blocked_name(tmp_path):
    clock = Clock()
    with ts.open(tmp_path, clock=clock, maintenance=False) as store:
        for number in range(3):
            name = f"orders{number}"
            store.create(name, key={"id": "int64"}).append([{"id": 1}])
            store.drop(name)
        for _ in range(4):
            store.maintain(sweep=True)
            clock.advance(DAY_S)
        assert list(store._context.blob.list_keys()) == []
        assert set(store._driver.consensus.list_keys()) <= {"catalog", SWEEPS}
        names = store._catalog.read()
        assert (names.dropped, names.purged) == ((), {})
        with pytest.raises(ts.NameBlocked):
            store.create("orders0", key={"id": "int64"})
    with ts.open(tmp_path, clock=clock) as store:  # the mark agrees with the logs
        store.create("orders9", key={"id": "int64"}).append([{"id": 1}])
    with ts.open(tmp_path, clock=clock) as store:
        assert store["orders9"].snapshot().to_arrow().num_rows == 1


@pytest.mark.parametrize("dies_after", [1, 2])
def test_a_log_is_removed_though_processes_die_in_between(tmp_path, monkeypatch, dies_after):
    path = tmp_path / "logs.db"
    logs = SqliteConsensus(path)
    for key in ("a", "b"):
        logs.compare_and_set([LogWrite(key, None, b"0")])
        logs.compare_and_set([LogWrite(key, 0, b"1")])
    real, calls = type(logs._file).write, []

    def write(self, work):
        found = real(self, work)
        calls.append(work)
        if len(calls) == dies_after:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(type(logs._file), "write", write)
    with pytest.raises(KeyboardInterrupt):
        logs.forget("b", 1)
    monkeypatch.setattr(type(logs._file), "write", real)
    logs.close()
    logs = SqliteConsensus(path)  # nothing is reported as lost
    assert logs.forget("b", 1) == (dies_after == 1)
    assert (logs.head("b"), logs.list_keys(), logs.head("a").seqno) == (None, ["a"], 1)
    logs.close()
    SqliteConsensus(path).close()


@pytest.mark.parametrize("make", [MemoryConsensus, None])
def test_only_the_log_that_is_meant_is_removed(tmp_path, make):
    logs = make() if make else SqliteConsensus(tmp_path / "logs.db")
    logs.compare_and_set([LogWrite("a", None, b"0")])
    assert (logs.forget("a", 1), logs.forget("b", 0)) == (False, False)
    assert logs.compare_and_set([LogWrite("a", 0, b"1")]) is None
    assert logs.forget("a", 1)
    assert (logs.scan("a"), logs.list_keys(), logs.heads(["a"])) == ([], [], {"a": None})
    assert logs.compare_and_set([LogWrite("a", 1, b"2")]) == {"a": None}
    if not make:
        for number in range(5):
            logs.compare_and_set([LogWrite(f"k{number}", None, b"0")])
            assert logs.forget(f"k{number}", 0)
        count = logs._file.read(lambda connection: connection.execute("SELECT count(*) FROM entries").fetchone())
        assert count == (1,), "one row counts all that went"
        assert logs.head(FORGOTTEN).seqno > 6
    logs.close()


def test_one_process_in_an_hour_lists_the_store():
    logs = MemoryConsensus()
    hour = 3_600_000
    assert take_sweep_turn(logs, 0, hour)
    assert not take_sweep_turn(logs, hour - 1, hour)
    assert take_sweep_turn(logs, hour, hour)
    assert not take_sweep_turn(logs, hour + 1, hour)
    assert take_sweep_turn(logs, -hour, hour)  # a clock that went back is not waited for
    assert len(logs.scan(SWEEPS)) == 1


def test_short_lived_processes_do_not_list_the_store_again(tmp_path, monkeypatch):
    from timespine.location.folder.local_blob import LocalBlob

    lists = []
    real = LocalBlob.list_keys
    monkeypatch.setattr(LocalBlob, "list_keys", lambda self, prefix="": lists.append(prefix) or real(self, prefix))
    clock = Clock()
    with ts.open(tmp_path, maintenance=False, clock=clock) as store:
        for name in "abc":
            store.create(name, key={"id": "int64"}).append([{"id": 1}])
    for _ in range(5):
        with ts.open(tmp_path, maintenance=False, clock=clock) as store:
            store.maintain()
    assert len(lists) == 3
    clock.advance(3601)
    with ts.open(tmp_path, maintenance=False, clock=clock) as store:
        store.maintain()
        assert len(lists) == 6
        store.maintain(sweep=True)  # a caller who asks gets it
        assert len(lists) == 9

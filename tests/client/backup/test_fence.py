"""After a fence no process that opened the store before can commit, whatever it was about to do."""

import subprocess
import sys
import threading

import pytest

import timespine as ts
from timespine.errors import Indeterminate, StoreFenced, UsageError
from timespine.location.consensus import LogWrite
from timespine.location.memory import MemoryConsensus
from timespine.location.sqlite.sqlite_consensus import SqliteConsensus

CHILD = """
import sys, timespine as ts
store = ts.open(sys.argv[1], maintenance=False)
orders = store["orders"]
orders.append([{"id": 1}])
print("ready", flush=True)
sys.stdin.readline()
try:
    orders.append([{"id": 2}])
    print("committed", flush=True)
except ts.StoreFenced as error:
    print("fenced", flush=True)
store.close()
with ts.open(sys.argv[1]) as store:
    store["orders"].append([{"id": 3}])
print("again", flush=True)
"""


def test_a_process_that_opened_the_store_before_is_fenced_until_it_opens_it_again(tmp_path):
    with ts.open(tmp_path / "store") as store:
        store.create("orders", key={"id": "int64"}, timeline="counter")
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, tmp_path / "store"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout.readline() == "ready\n"
        assert ts.fence(tmp_path / "store") == 1
        out, _ = child.communicate("go\n", timeout=120)
    assert out.split() == ["fenced", "again"]
    with ts.open(tmp_path / "store", read_only=True) as store:
        assert sorted(row["id"] for row in store["orders"].snapshot().to_pylist()) == [1, 3]


@pytest.fixture(params=["memory", "sqlite"])
def reopen(request, tmp_path):
    """Open the same logs again, as another process would."""
    if request.param == "memory":
        return MemoryConsensus().share
    return lambda: SqliteConsensus(tmp_path / "logs.db")


def test_every_change_of_a_log_is_refused_and_reads_are_not(reopen):
    old, other = reopen(), reopen()
    old.compare_and_set([LogWrite("a", None, b"0")])
    old.compare_and_set([LogWrite("a", 0, b"1")])
    assert (old.epoch, other.fence(), other.epoch) == (0, 1, 1)
    for change in (
        lambda: old.compare_and_set([LogWrite("a", 1, b"2")]),
        lambda: old.compare_and_set([LogWrite("b", None, b"0"), LogWrite("a", 1, b"2")]),
        lambda: old.truncate("a", 1),
        lambda: old.forget("a", 1),
        old.fence,
    ):
        with pytest.raises(StoreFenced, match="epoch 0, and it is in epoch 1"):
            change()
    assert [entry.data for entry in old.scan("a")] == [b"0", b"1"]
    assert old.heads(["a", "b"]) == {"a": 1, "b": None}
    assert other.compare_and_set([LogWrite("a", 1, b"2")]) is None
    third = reopen()
    assert (third.epoch, third.fence()) == (1, 2)
    with pytest.raises(StoreFenced):
        other.truncate("a", 1)


def test_of_many_fences_at_once_each_number_is_given_once(reopen):
    given = []

    def fence():
        for _ in range(20):
            logs = reopen()
            try:
                given.append(logs.fence())
            except StoreFenced:
                continue

    threads = [threading.Thread(target=fence) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(given) == list(range(1, len(given) + 1))


def test_a_commit_in_doubt_is_settled_by_the_logs_after_a_fence(tmp_path, monkeypatch):
    with ts.open(tmp_path / "store", maintenance=False) as store:
        orders = store.create("orders", key={"id": "int64"}, timeline="counter")
        orders.append([{"id": 1}])
        consensus = store._driver.consensus
        real = SqliteConsensus.compare_and_set

        def lose_the_reply(self, writes):
            monkeypatch.setattr(SqliteConsensus, "compare_and_set", real)
            real(self, writes)
            ts.fence(tmp_path / "store")
            raise Indeterminate("the reply was lost")

        monkeypatch.setattr(SqliteConsensus, "compare_and_set", lose_the_reply)
        orders.append([{"id": 2}])  # it is in, and the logs say so
        assert consensus.epoch == 0
        with pytest.raises(StoreFenced):
            orders.append([{"id": 3}])
    with ts.open(tmp_path / "store", read_only=True) as store:
        assert sorted(row["id"] for row in store["orders"].snapshot().to_pylist()) == [1, 2]


def test_a_store_that_is_not_there_is_not_fenced(tmp_path):
    with pytest.raises(UsageError, match="there is no store"):
        ts.fence(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()

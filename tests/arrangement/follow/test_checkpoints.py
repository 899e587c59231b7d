"""An arrangement goes on from its last checkpoint. Losing or damaging one costs a read, never an answer."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import polars as pl
import pyarrow as pa
import pytest
from assertions import until

import timespine as ts
from timespine.arrangement.follow.save_checkpoints import Saving
from timespine.arrangement.spine.spine import Spine
from timespine.client.read.follow.change_feed import ChangeFeed
from timespine.core.arrangement.checkpoint_policy import PAUSE_S
from timespine.errors import Determinate, NoSpace, UsageError

KEY = {"id": "int64"}
VALUE = {"customer": "string", "total": "double"}


@pytest.fixture
def place(tmp_path):
    return str(tmp_path / "store")


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path / "index")


def some(first, last, customer="a"):
    return [{"id": n, "customer": customer, "total": float(n)} for n in range(first, last)]


def create(place, rows=100):
    with ts.open(place) as store:
        orders = store.create("orders", key=KEY, value=VALUE, timeline="counter")
        orders.append(some(0, rows))


def everything(index):
    tables = list(index.scan())
    return sorted(pa.concat_tables(tables).to_pylist(), key=str) if tables else []


def check(orders, index):
    assert everything(index) == sorted(orders.snapshot().to_arrow().to_pylist(), key=str)


def begins_at(index):
    counts = index.metrics()
    return [counts[f"checkpoints {each}"] for each in ("restored", "refused")] + [counts["reads of the collection"]]


def test_the_next_process_reads_only_what_is_new(place, folder):
    create(place)
    with ts.open(place) as store:
        with store["orders"].arrange(folder=folder) as index:
            assert begins_at(index) == [0, 0, 1]
        store["orders"].upsert(some(3, 5, "b"))
        store["orders"].delete({"id": 9})
        changes = store["orders"].upper.time
    with ts.open(place) as store:
        orders = store["orders"]
        reads = []
        real = ChangeFeed._read

        def read(self, state, until):
            rows = real(self, state, until)
            reads.append(rows.num_rows)
            return rows

        with mock.patch.object(ChangeFeed, "_read", read), orders.arrange(folder=folder) as index:
            check(orders, index)
            assert begins_at(index) == [1, 0, 0]
            assert index.upper.time == changes
            assert sum(reads) == 5  # two rows replaced, one gone
        orders.append(some(200, 201))
        with orders.arrange(folder=folder) as index:
            check(orders, index)
            assert begins_at(index) == [1, 0, 0]


def test_many_restarts_with_changes_in_between_give_what_the_collection_has(place, folder):
    create(place, 5)
    draw = random.Random(3)
    for _ in range(12):
        with ts.open(place) as store:
            orders = store["orders"]
            with orders.arrange(by=["customer", "id"], where="total < 900", folder=folder) as index:
                for _ in range(draw.randrange(4)):
                    orders.upsert(some(draw.randrange(20), draw.randrange(20, 40), draw.choice("abc")))
                    if draw.random() < 0.5:
                        index.save()
                    if draw.random() < 0.3:
                        orders.delete({"id": draw.randrange(40)})
                check(orders, index)
                assert begins_at(index)[1] == 0
            if draw.random() < 0.5:
                orders.upsert(some(3, 9, draw.choice("abc")))


@pytest.mark.parametrize("history", ["latest", "all"])
def test_the_readable_times_are_restored(place, folder, history):
    create(place)
    with ts.open(place) as store:
        orders = store["orders"]
        with orders.arrange(folder=folder, history=history) as index:
            orders.upsert(some(1, 2, "b"))
            assert index.get_one(1)["customer"] == "b"
        with orders.arrange(folder=folder, history=history) as index:
            assert (index.since.time, index.upper.time) == ((1, 2) if history == "latest" else (0, 2))
            if history == "all":
                assert [row["customer"] for row, _ in index.at(0).get({"id": 1})] == ["a"]
            orders.upsert(some(1, 2, "c"))
            assert index.get_one(1)["customer"] == "c"


# What is saved, and when.


def test_nothing_is_saved_while_nothing_changes(place, folder):
    create(place)
    with ts.open(place) as store, store["orders"].arrange(folder=folder) as index:
        until(lambda: index.metrics()["checkpoints saved"] == 1)  # by the thread, at once: all rows are new
        before = sorted(os.listdir(folder))
        assert index.save() is False
        assert sorted(os.listdir(folder)) == before
        store["orders"].append(some(200, 201))
        assert index.save() is True
        assert sorted(os.listdir(folder)) != before
    assert len([name for name in os.listdir(folder) if name.startswith("manifest-")]) == 2


def test_a_checkpoint_of_few_changes_writes_few_bytes(place, folder):
    create(place, 50_000)
    with ts.open(place) as store, store["orders"].arrange(folder=folder) as index:
        until(lambda: index.metrics()["checkpoints saved"] == 1)
        before = {name: os.stat(f"{folder}/{name}").st_size for name in os.listdir(folder)}
        store["orders"].upsert(some(7, 8, "b"))
        index.save()
        new = {name: os.stat(f"{folder}/{name}").st_size for name in os.listdir(folder) if name not in before}
        assert sum(new.values()) < 0.02 * sum(before.values())


def test_few_changes_wait_for_the_pause_and_many_do_not(place, folder):
    create(place)
    with ts.open(place) as store, store["orders"].arrange(folder=folder) as index:
        until(lambda: index.metrics()["checkpoints saved"] == 1)
        saving, context = index._saving, store["orders"]._handle.context
        store["orders"].append(some(200, 201))
        index.get(200)
        assert not saving.save_if_due(index._takes)
        now = context.monotonic()
        with mock.patch.object(context, "monotonic", return_value=now + PAUSE_S + 1):
            assert saving.save_if_due(index._takes)
        saving._cost_s, saving._saved_at = 0.0, now
        store["orders"].append(some(300, 500))
        index.get(300)
        until(lambda: not saving.is_changed)


def test_a_checkpoint_that_cannot_be_written_is_said_and_tried_again_later(place, folder, caplog):
    create(place)
    with ts.open(place) as store:
        failing = mock.patch.object(Spine, "save", side_effect=OSError(5, "Input/output error"))
        with failing, store["orders"].arrange(folder=folder) as index:
            until(lambda: index.metrics()["checkpoints failed"] == 1)
            with pytest.raises(Determinate, match="no checkpoint was written"):
                index.save()
            assert index.get_one(3)["total"] == 3.0
        assert "was not saved" in caplog.text
        with mock.patch.object(Spine, "save", side_effect=NoSpace("full")), store["orders"].arrange(folder=folder):
            pass
        with store["orders"].arrange(folder=folder) as index:
            assert begins_at(index) == [0, 0, 1]
            check(store["orders"], index)


# When a checkpoint is of no use.


def test_history_that_is_gone_is_read_again_and_said(place, folder, caplog):
    create(place)
    with ts.open(place) as store:
        with store["orders"].arrange(folder=folder):
            pass
        for n in range(3):
            store["orders"].upsert(some(n, n + 1, "b"))
        store["orders"].expire(3)
    with ts.open(place) as store, store["orders"].arrange(folder=folder) as index:
        assert begins_at(index) == [0, 1, 1]
        assert "the history since then is gone" in caplog.text
        check(store["orders"], index)


def test_an_open_arrangement_holds_only_the_history_that_it_has_not_taken(place, folder):
    create(place)
    with ts.open(place) as store, store["orders"].arrange(folder=folder) as index:
        for n in range(3):
            store["orders"].upsert(some(n, n + 1, "b"))
        index.get(1)

        def released():
            index.get(1)
            return store["orders"].expire(3).since.time == 3

        until(released)
        check(store["orders"], index)


def test_a_changed_schema_is_read_again(place, folder, caplog):
    create(place)
    with ts.open(place) as store:
        orders = store["orders"]
        with orders.arrange(folder=folder) as index:
            orders.evolve(add={"note": "string"})
            check(orders, index)
            assert begins_at(index) == [0, 0, 2]
            index.save()
            orders.evolve(add={"more": "string"})
        orders.evolve(rename={"customer": "buyer"})
        with orders.arrange(folder=folder) as index:
            assert begins_at(index) == [0, 1, 1]
            assert "the schema of the collection changed" in caplog.text
            check(orders, index)
        with orders.arrange(folder=folder) as index:
            assert begins_at(index) == [1, 0, 0]
            check(orders, index)


def test_a_store_that_was_put_back_is_read_again(tmp_path, place, folder, caplog):
    create(place)
    with ts.open(place) as store:
        store["orders"].append(some(100, 110))
    shutil.copytree(place, tmp_path / "backup")
    with ts.open(place) as store:
        store["orders"].append(some(110, 120))
        with store["orders"].arrange(folder=folder):
            pass
    shutil.rmtree(place)
    shutil.copytree(tmp_path / "backup", place)
    with ts.open(place) as store, store["orders"].arrange(folder=folder) as index:
        assert begins_at(index) == [0, 1, 1]
        assert "complete up to [2] only" in caplog.text
        check(store["orders"], index)
    shutil.rmtree(place)
    shutil.copytree(tmp_path / "backup", place)
    with ts.open(place) as store:
        store["orders"].append(some(1000, 1010))  # another commit at the same time
        store["orders"].append(some(2000, 2010))
        with store["orders"].arrange(folder=folder) as index:
            check(store["orders"], index)
    shutil.rmtree(place)
    shutil.copytree(tmp_path / "backup", place)
    with ts.open(place) as store:
        for n in range(3):
            store["orders"].append(some(5000 + n, 5001 + n))
        with store["orders"].arrange(folder=folder) as index:
            assert begins_at(index) == [0, 1, 1]
            assert "put back from a backup" in caplog.text
            check(store["orders"], index)


def test_a_folder_of_another_arrangement_is_left_alone(place, folder):
    create(place)
    with ts.open(place) as store:
        with store["orders"].arrange(folder=folder):
            pass
        before = sorted(os.listdir(folder))
        other = store.create("other", key=KEY, value=VALUE, timeline="counter")
        for wrong in (other.arrange, lambda **options: store["orders"].arrange(by=["customer"], **options)):
            with pytest.raises(UsageError, match="another arrangement: use another folder"):
                wrong(folder=folder)
        with pytest.raises(UsageError, match="another arrangement: use another folder"):
            store["orders"].arrange(folder=folder, where="total > 1")
        with pytest.raises(UsageError, match="write the condition as text"):
            store["orders"].arrange(folder=folder, where=pl.col("total") > 1)
        assert sorted(os.listdir(folder)) == before
        assert not store["orders"]._handle.context.arrangements
        with store["orders"].arrange(folder=folder) as index, store["orders"].arrange(folder=Path(folder)) as same:
            assert same is index
            with pytest.raises(UsageError, match="another process or spine writes"):
                store["orders"].arrange(by=["customer"], folder=folder)


def test_a_finished_collection_is_restored(place, folder):
    create(place)
    with ts.open(place) as store:
        store["orders"].finish()
        with store["orders"].arrange(folder=folder):
            pass
        with store["orders"].arrange(folder=folder) as index:
            assert begins_at(index) == [1, 0, 0]
            check(store["orders"], index)


def test_a_collection_without_a_complete_time_has_no_checkpoint(place, folder):
    with ts.open(place) as store:
        empty = store.create("empty", key=KEY, timeline="counter")
        with empty.arrange(folder=folder) as index:
            assert index.save() is False
        assert not [name for name in os.listdir(folder) if name.startswith("manifest-")]
        with empty.arrange(folder=folder) as index:
            empty.append([{"id": 1}])
            assert index.get(1) == [{"id": 1}]


# Damage.


def damaged_files(folder):
    return sorted(path for path in Path(folder).iterdir() if path.suffix == ".batch" or "manifest" in path.name)


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "delete"])
def test_any_damage_costs_a_read_and_never_an_answer(place, folder, damage):
    """Every file in turn, at several places: whatever is damaged, all answers are those of the collection."""
    create(place, 2000)
    with ts.open(place) as store, store["orders"].arrange(folder=folder) as index:
        index.save()
        store["orders"].upsert(some(5, 1500, "b"))
    shutil.copytree(folder, f"{folder}-whole")
    draw = random.Random(5)
    refused = 0
    with ts.open(place) as store:
        orders = store["orders"]
        for number in range(len(damaged_files(folder))):
            for _ in range(4 if damage == "flip" else 1):
                shutil.rmtree(folder)
                shutil.copytree(f"{folder}-whole", folder)
                path = damaged_files(folder)[number]
                data = bytearray(path.read_bytes())
                if damage == "delete":
                    path.unlink()
                else:
                    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
                    cut = {"flip": data, "cut": data[: len(data) // 2], "empty": b""}[damage]
                    path.write_bytes(cut)
                with orders.arrange(folder=folder) as index:
                    key = {"id": draw.randrange(2000)}
                    assert orders.lookup(key).to_pylist() == [index.get_one(key)]
                    assert index.fetch(range(2000)).sort_by("id") == orders.snapshot().to_arrow().sort_by("id")
                    until(lambda: not index._saving.verify_some() and index._doubt is None)
                    check(orders, index)
                    refused += begins_at(index) != [1, 0, 0]
    assert refused >= 2


def test_a_damaged_chunk_is_found_by_reads_and_by_changes(place, folder):
    create(place, 2000)
    with ts.open(place) as store, store["orders"].arrange(folder=folder):
        pass
    (path,) = [path for path in damaged_files(folder) if path.suffix == ".batch"]
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    for how in ("get", "fetch", "lookup", "upsert", "rows"):
        path.write_bytes(data)
        with ts.open(place) as store, mock.patch.object(Saving, "verify_some", return_value=False):
            orders = store["orders"]
            shutil.rmtree(f"{folder}-copy", ignore_errors=True)
            shutil.copytree(folder, f"{folder}-copy")
            with orders.arrange(folder=f"{folder}-copy") as index:
                if how == "get":
                    assert index.get_one(7)["customer"] == "a"
                elif how == "fetch":
                    assert index.fetch([7, 8]).num_rows == 2
                elif how == "lookup":
                    assert orders.lookup({"id": 7}).num_rows == 1
                elif how == "upsert":
                    orders.upsert(some(7, 8))
                else:
                    assert index.rows_as_of(0, pa.table({"id": [7]}), 0) is None
                check(orders, index)
                assert begins_at(index) == [1, 0, 1]
                assert orders.count() == 2000


# Dying.

SAVER = """
import sys, timespine as ts
store = ts.open(sys.argv[1])
orders = store["orders"]
index = orders.arrange(folder=sys.argv[2])
print("ready", flush=True)
for n in range(1000000):
    orders.upsert([{"id": i, "customer": str(n), "total": float(n)} for i in range(n % 40, n % 40 + 200)])
    index.save()
"""


def test_a_process_that_is_killed_while_it_saves_leaves_a_checkpoint_that_fits(place, folder):
    create(place)
    draw = random.Random(11)
    for _ in range(6):
        saver = subprocess.Popen([sys.executable, "-c", SAVER, place, folder], stdout=subprocess.PIPE)
        try:
            assert saver.stdout.readline() == b"ready\n"
            before = len(os.listdir(folder))
            until(lambda before=before: len(os.listdir(folder)) != before)
            with contextlib.suppress(subprocess.TimeoutExpired):
                saver.wait(draw.random() * 0.4)
        finally:
            saver.send_signal(signal.SIGKILL)
            saver.wait(60)
            saver.stdout.close()
        with ts.open(place) as store, store["orders"].arrange(folder=folder) as index:
            assert begins_at(index) == [1, 0, 0]
            check(store["orders"], index)
            with ts.arrangement.open(folder) as opened:
                assert opened.number >= 1
    manifests = [name for name in os.listdir(folder) if name.startswith("manifest-")]
    with ts.arrangement.open(folder) as opened:
        assert len(manifests) <= 2
        assert len(damaged_files(folder)) <= 2 + 2 * max(len(opened.batches), 8)

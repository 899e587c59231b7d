"""Bulk load: files become a collection in one commit, in bounded memory, or nothing does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from memory_store import BLOBS, QUICK, Script, counted

from timespine.config import Config
from timespine.core.transitions import ExpireWriter
from timespine.errors import Fenced, Indeterminate, TimespineError, Unavailable, UsageError
from timespine.model.frontier import Frontier
from timespine.testing.unreliable import Fault

PARTS = Config(
    part_bytes=4000, row_group_rows=64, inline_part_bytes=1, run_parts=2, retry_pause_ms=1, storage_attempts=3
)


@pytest.fixture
def file(tmp_path):
    return written(tmp_path / "orders.parquet", range(1000))


def written(path, numbers, **more):
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {"k": pa.array(numbers, pa.int64()), "v": pa.array([f"v{n}" for n in numbers], pa.string())}
    pq.write_table(pa.table({**columns, **more}), path, row_group_size=100)
    return path


def keys_of(collection):
    return sorted(row["k"] for row in collection.snapshot(columns=["k"]).to_pylist())


def nothing_left(place, store):
    assert store.names() == []
    store.maintain()
    return [key for key in place.blobs() if key.split("/")[2][0] in "ph"] == []


@pytest.mark.parametrize("config", [QUICK, BLOBS, PARTS], ids=["small", "blob", "parts"])
def test_a_file_becomes_a_collection_at_one_time_in_one_commit(place, file, config):
    store = place.open(config=config)
    orders = store.load("orders", file, key=["k"], timeline="counter")
    assert orders.upper == Frontier.at(1)
    assert [entry.operation for entry in orders.history()] == ["load"]
    assert orders.schema.key_names == ("k",)
    assert orders.snapshot().to_arrow().equals(pq.read_table(file))
    assert orders.lookup({"k": 17}).to_pylist() == [{"k": 17, "v": "v17"}]
    orders.compact(wait=True)
    assert keys_of(place.open()["orders"]) == list(range(1000))


def test_on_the_clock_rows_are_loaded_at_now(place, file):
    orders = place.open().load("orders", str(file), cluster=["v"])
    assert orders.upper == Frontier.at(place.clock.ms + 1)
    assert orders.schema.cluster_names == ("v",)
    assert orders.schema.key == ()


def test_progress_is_told_as_rows_are_taken_over(place, file, monkeypatch):
    monkeypatch.setattr("timespine.client.load.bounded_batches.BATCH_ROWS", 300)
    told = []
    place.open().load("orders", file, progress=told.append)
    assert told[-1] == 1000
    assert told == sorted(told)
    assert len(told) >= 4


def test_a_folder_of_files_becomes_one_collection(place, tmp_path):
    for part in range(3):
        written(tmp_path / "in" / ("below" if part else "") / f"{part}.parquet", range(part * 10, part * 10 + 10))
    written(tmp_path / "in" / "_temporary" / "half.parquet", [666])
    written(tmp_path / "in" / ".hidden.parquet", [667])
    (tmp_path / "in" / "_SUCCESS").write_text("")
    (tmp_path / "in" / "notes.txt").write_text("not data")
    orders = place.open(config=PARTS).load("orders", tmp_path / "in", key=["k"], timeline="counter")
    assert keys_of(orders) == list(range(30))


def test_columns_in_the_names_of_folders_are_columns(place, tmp_path):
    written(tmp_path / "year=2023" / "day=a%20b" / "x.parquet", [1])
    written(tmp_path / "year=2024" / "day=__HIVE_DEFAULT_PARTITION__" / "x.parquet", [2, 3])
    orders = place.open().load("orders", tmp_path, key=["k"], timeline="counter")
    assert counted(orders.snapshot().to_pylist(), "k", "year", "day") == {
        (1, 2023, "a b"): 1,
        (2, 2024, None): 1,
        (3, 2024, None): 1,
    }
    written(tmp_path / "elsewhere" / "x.parquet", [4])
    with pytest.raises(UsageError, match="everywhere"):
        place.open().load("again", tmp_path)


def test_rows_that_repeat_count_as_often_as_they_come(place, tmp_path):
    file = written(tmp_path / "x.parquet", [1, 1, 1, 2])
    orders = place.open().load("orders", file, timeline="counter")
    assert counted(orders.snapshot(multiplicity="column").to_pylist(), "k", "v") == {(1, "v1"): 3, (2, "v2"): 1}


def test_counts_in_the_file_are_counts_and_times_are_refused(place, tmp_path):
    store = place.open()
    file = written(tmp_path / "x.parquet", [1, 2], _diff=pa.array([2, -1]))
    orders = store.load("orders", file, timeline="counter")
    assert counted(orders.snapshot(multiplicity="column").to_pylist(), "k") == {(1,): 2, (2,): -1}
    timed = written(tmp_path / "y.parquet", [1, 2], _time=pa.array([2, 1]))
    with pytest.raises(UsageError, match="has a column _time, and a load puts all rows at one time"):
        store.load("timed", timed)
    assert store.names() == ["orders"]


def test_a_file_without_rows_is_a_collection_without_rows(place, tmp_path):
    orders = place.open().load("orders", written(tmp_path / "x.parquet", []), key=["k"], timeline="counter")
    assert orders.count() == 0
    orders.append([{"k": 1, "v": "a"}])
    assert keys_of(orders) == [1]


def test_types_are_taken_as_the_collection_has_them(place, tmp_path):
    frame = pd.DataFrame(
        {
            "category": pd.Categorical(["a", "b", None]),
            "when": pd.to_datetime(["2024-01-01", "2024-01-02", None]),
            "list": [[1, 2], [], None],
        }
    )
    frame.to_parquet(tmp_path / "x.parquet")
    loaded = place.open().load("t", tmp_path / "x.parquet", timeline="counter")
    rows = sorted(loaded.snapshot().to_pylist(), key=lambda row: str(row["category"]))
    assert [row["category"] for row in rows] == [None, "a", "b"]
    assert [row["list"] for row in rows] == [None, [1, 2], []]


# What cannot be loaded.


def test_what_is_not_there_or_not_parquet_is_refused_and_nothing_is_created(place, tmp_path):
    store = place.open(config=BLOBS)
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.parquet").write_text("no parquet at all")
    (tmp_path / "none.parquet").write_bytes(b"")
    for path in ("missing", "missing.parquet", "empty", "text.parquet", "none.parquet"):
        with pytest.raises(UsageError):
            store.load("orders", tmp_path / path)
    with pytest.raises(UsageError):
        store.load("a b", written(tmp_path / "fine.parquet", [1]))
    with pytest.raises(UsageError, match="nothing"):
        store.load("orders", tmp_path / "fine.parquet", key=["nothing"])
    assert nothing_left(place, store)


def damaged(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 4 : len(data) // 2] = os.urandom(len(data) // 2 - len(data) // 4)
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("wrong", ["garbage", "truncated", "schema", "damaged"])
def test_a_load_that_fails_in_the_middle_leaves_nothing_and_takes_nothing_away(place, tmp_path, wrong, replace):
    store = place.open(config=PARTS)
    if replace:
        store.create("orders", key={"k": "int64"}, timeline="counter").append([{"k": 7}])
    written(tmp_path / "a.parquet", range(1000))
    bad = written(tmp_path / "b.parquet", range(1000))
    if wrong == "garbage":
        bad.write_text("no parquet at all")
    elif wrong == "truncated":
        bad.write_bytes(bad.read_bytes()[:-100])
    elif wrong == "damaged":
        damaged(bad)
    else:
        pq.write_table(pa.table({"k": [1], "other": [1]}), bad)
    with pytest.raises(UsageError):
        store.load("orders", tmp_path, key=["k"], timeline="counter", replace=replace)
    if replace:
        assert store.names() == ["orders"]
        assert keys_of(store["orders"]) == [7]
    else:
        assert nothing_left(place, store)
        # And it can be tried again.
        bad.unlink()
        assert store.load("orders", tmp_path, key=["k"], timeline="counter").count() == 1000


def test_replacing_shows_all_new_rows_at_once_or_the_old_ones(place, tmp_path):
    store, other = place.open(config=PARTS), place.open()
    store.create("orders", key={"k": "int64"}, timeline="counter").append([{"k": 7}])
    seen = []

    def look(rows):
        seen.append(keys_of(other["orders"]))

    written(tmp_path / "a.parquet", range(500))
    written(tmp_path / "b.parquet", range(500, 900))
    orders = store.load("orders", tmp_path, key=["k"], timeline="counter", replace=True, progress=look)
    assert len(seen) >= 2
    assert all(each == [7] for each in seen)
    assert orders.name == "orders"
    assert keys_of(other["orders"]) == list(range(900))
    assert store.names() == ["orders"]
    assert len(store._catalog.read().dropped) == 1
    # There need not be one to replace.
    store.load("fresh", tmp_path, key=["k"], timeline="counter", replace=True)
    assert store.names() == ["fresh", "orders"]


def test_loading_into_a_name_that_is_taken_is_refused_or_adds(place, file):
    store = place.open()
    orders = store.load("orders", file, key=["k"], timeline="counter")
    with pytest.raises(UsageError, match="exists"):
        store.load("orders", file, key=["k"], timeline="counter")
    again = store.load("orders", file, key=["k"], timeline="counter", if_exists="open")
    assert again.id == orders.id
    assert orders.count() == 2000
    bad = file.with_name("bad.parquet")
    pq.write_table(pa.table({"k": [1], "v": ["a"], "_time": [5]}), bad)
    with pytest.raises(UsageError):
        store.load("orders", bad, key=["k"], timeline="counter", if_exists="open")
    assert orders.count() == 2000  # what was there is not dropped with what failed


def test_storage_that_goes_away_while_loading_leaves_nothing(place, file):
    script = Script()
    store = place.open(config=PARTS, script=script)
    script.add("put", Fault.DETERMINATE, skip=3, times=999)
    with pytest.raises(Unavailable):
        store.load("orders", file, key=["k"])
    script.rules.clear()
    assert nothing_left(place, store)


def test_a_loader_whose_writer_was_expired_is_told_and_leaves_nothing(place, file, monkeypatch):
    monkeypatch.setattr("timespine.client.load.bounded_batches.BATCH_ROWS", 300)
    store, other = place.open(config=PARTS), place.open()

    def expire(rows):
        if rows >= 900:
            orders = other["orders"]
            for writer in orders._handle.state().writers:
                other._committer.commit((orders.id, ExpireWriter(writer)))

    with pytest.raises(Fenced):
        store.load("orders", file, key=["k"], progress=expire)
    assert nothing_left(place, store)


def test_a_long_load_keeps_its_writer_alive(place, file, monkeypatch):
    monkeypatch.setattr("timespine.client.load.bounded_batches.BATCH_ROWS", 100)
    store, other = place.open(config=PARTS), place.open()

    def take_long(rows):
        place.clock.advance(1200)
        other.maintain(sweep=True)

    orders = store.load("orders", file, key=["k"], progress=take_long)
    assert keys_of(orders) == list(range(1000))


@pytest.mark.parametrize("fault", [Fault.INDETERMINATE_DONE, Fault.INDETERMINATE_NOT, Fault.LATE])
def test_a_load_whose_reply_was_lost_is_there_once(place, file, fault):
    script = Script()
    store = place.open(config=PARTS, script=script)
    seen = []
    script.add("compare_and_set", fault, key="orders", skip=2)  # the first ones create and register
    orders = store.load("orders", file, key=["k"], timeline="counter", progress=seen.append)
    store.ghosts()
    assert script.is_done
    assert keys_of(orders) == list(range(1000))


@pytest.mark.parametrize(("fault", "there"), [(Fault.INDETERMINATE_DONE, [10, 11]), (Fault.INDETERMINATE_NOT, [1])])
def test_a_load_that_takes_over_a_name_and_is_never_told_so_leaves_the_old_rows_or_the_new_ones(
    place, tmp_path, fault, there
):
    script = Script()
    store = place.open(script=script)
    store.create("orders", key={"k": "int64"}, value={"v": "string"}, timeline="counter").append([{"k": 1, "v": "a"}])
    script.add("compare_and_set", Fault.NONE, key="catalog")  # a name until all rows are there
    script.add("compare_and_set", fault, key="catalog")
    script.add("compare_and_set", Fault.INDETERMINATE_NOT, key="catalog", times=QUICK.storage_attempts)
    with pytest.raises(Indeterminate):
        store.load("orders", written(tmp_path / "x.parquet", [10, 11]), key=["k"], timeline="counter", replace=True)
    assert script.is_done
    for other in (store, place.open()):
        other.maintain(sweep=True)
        assert other.names() == ["orders"]
        assert keys_of(other["orders"]) == there


def test_rows_that_fit_the_state_but_find_no_room_go_to_a_blob(place, tmp_path):
    store = place.open(config=Config(inline_total_bytes=1))
    orders = store.load("orders", written(tmp_path / "x.parquet", [1, 2]), timeline="counter")
    assert orders._handle.state().inline_bytes == 0
    assert keys_of(orders) == [1, 2]


# Delta.


def test_a_delta_table_is_loaded_as_of_its_newest_version(place, tmp_path):
    deltalake = pytest.importorskip("deltalake")
    table = pa.table({"k": pa.array(range(100), pa.int64()), "v": [f"v{n}" for n in range(100)]})
    deltalake.write_deltalake(str(tmp_path / "t"), table)
    deltalake.DeltaTable(str(tmp_path / "t")).delete("k >= 50")
    deltalake.write_deltalake(str(tmp_path / "t"), table.slice(0, 1), mode="append")
    orders = place.open(config=PARTS).load("orders", tmp_path / "t", key=["k"], timeline="counter")
    assert keys_of(orders) == [0, *range(50)]
    assert orders.schema.arrow.names == ["k", "v"]


def test_a_partitioned_delta_table_keeps_its_columns(place, tmp_path):
    deltalake = pytest.importorskip("deltalake")
    table = pa.table({"k": pa.array(range(10), pa.int64()), "p": [n % 2 for n in range(10)]})
    deltalake.write_deltalake(str(tmp_path / "t"), table, partition_by=["p"])
    orders = place.open().load("orders", tmp_path / "t", key=["k"], timeline="counter")
    assert counted(orders.snapshot().to_pylist(), "k", "p") == {(n, n % 2): 1 for n in range(10)}


def test_a_damaged_delta_table_is_refused_and_leaves_nothing(place, tmp_path):
    deltalake = pytest.importorskip("deltalake")
    store = place.open(config=PARTS)
    (tmp_path / "empty" / "_delta_log").mkdir(parents=True)
    with pytest.raises(UsageError, match="Delta"):
        store.load("orders", tmp_path / "empty")
    deltalake.write_deltalake(str(tmp_path / "t"), pa.table({"k": list(range(100))}))
    for data in (tmp_path / "t").glob("*.parquet"):
        data.unlink()
    with pytest.raises(UsageError, match="Delta"):
        store.load("orders", tmp_path / "t")
    assert nothing_left(place, store)


# Memory.

CHILD = """
import json, sys
import pyarrow as pa
import timespine as ts
from timespine.config import Config

def peak():
    # Of this program, since it began: what getrusage says includes that of its parent.
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))

config = Config(part_bytes=1 << 20, merge_bytes=8 << 20, cache_bytes=1 << 20)

def loaded(name):
    with ts.open(f"{sys.argv[1]}/{name}-store", maintenance=False, config=config) as store:
        collection = store.load(name, f"{sys.argv[1]}/{name}.parquet", key=["k"])
        state = collection._handle.state()
        return {
            "rows": collection.count(),
            "parts": sum(1 for part in collection._handle.parts(state).leaves(state.parts())),
            "peak": peak(),
            "arrow": pa.default_memory_pool().max_memory(),
        }

print(json.dumps({name: loaded(name) for name in ("small", "large")}))
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs Linux to know the peak of a process")
def test_memory_stays_within_a_few_parts_however_large_the_file_is(tmp_path):
    rows = 1 << 18
    keys, text = pa.array(range(rows), pa.int64()), pa.array([f"{n:032d}" for n in range(rows)])
    table = pa.table({"k": keys, "v": text})
    copies = {"small": 4, "large": 14}
    for name, times in copies.items():
        path = tmp_path / f"{name}.parquet"
        with pq.ParquetWriter(path, table.schema, compression="none", use_dictionary=False) as writer:
            for _ in range(times):
                writer.write_table(table, row_group_size=1 << 16)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "src")},
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert {name: each["rows"] for name, each in figures.items()} == {
        name: times * rows for name, times in copies.items()
    }
    assert figures["large"]["parts"] > 50
    # Three and a half times the rows; what is held of them at once must not depend on how many there are.
    more = (copies["large"] - copies["small"]) * table.nbytes
    assert figures["large"]["arrow"] - figures["small"]["arrow"] < more / 6
    assert figures["large"]["peak"] - figures["small"]["peak"] < more / 2


def test_errors_of_loading_are_ours(place, tmp_path):
    with pytest.raises(TimespineError):
        place.open().load("orders", tmp_path / "nothing")


def test_what_cannot_be_loaded_is_said_in_plain_words(place, file):
    store = place.open()
    for path in (None, 5, "a\0b"):
        with pytest.raises(UsageError, match="is not a path"):
            store.load("orders", path)
    assert nothing_left(place, store)


def test_a_file_among_others_that_lacks_a_column_of_the_key_is_refused(place, tmp_path):
    written(tmp_path / "rows" / "a.parquet", [1, 2])
    pq.write_table(pa.table({"v": ["no key"]}), tmp_path / "rows" / "b.parquet")
    store = place.open()
    with pytest.raises(UsageError, match="the rows lack the key column 'k'"):
        store.load("orders", tmp_path / "rows", key=["k"])
    assert nothing_left(place, store)

"""A full disk: nothing is lost or half done, the cause is named, reading goes on, and expiring frees space."""

import contextlib
import os
import shutil
import subprocess
import sys

import pytest
from memory_store import Script

import timespine as ts
from timespine.client.commit.leader_queue import PendingCall
from timespine.core.group import CommandTransaction
from timespine.core.transitions import AdvanceUpper, Retain
from timespine.errors import Determinate, Indeterminate, NoSpace, StoreClosed
from timespine.location.folder.reserve import RESERVE_BYTES
from timespine.location.sqlite.sqlite_consensus import SqliteConsensus
from timespine.model.frontier import Frontier
from timespine.testing.unreliable import Fault

ROW = {"k": 0, "v": b"x" * 100}
BLOBS = ts.Config(inline_part_bytes=1)
"""Every row goes to a blob: a read of rows that are in the state takes no lease."""


@pytest.fixture
def disk(tmp_path):
    """A file system of 8 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    tool = shutil.which("mount")
    if tool is None or os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    command = [tool, "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"no small file system can be mounted here: {mounted.stderr.decode()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place, leave=0):
    """Leave nothing free, or this number of bytes."""
    with open(place / "fill", "ab", buffering=0) as file:
        with contextlib.suppress(OSError):
            while True:
                file.write(b"z" * 4096)
        file.truncate(max(file.tell() - leave, 0))


def free(place):
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize


def reserve_of(place):
    return place / "store" / "consensus.db.reserve"


def test_a_full_disk_is_named_and_reading_goes_on_and_the_reserve_is_not_for_rows(disk):
    with ts.open(disk / "store", maintenance=False, config=BLOBS) as store:
        orders = store.create("orders", key={"k": "int64"}, value={"v": "binary"}, timeline="counter")
        for n in range(12):
            orders.append([{"k": n, "v": b"%d" % n}])
    # A rollup is overdue now, and each append tries to write it.
    with ts.open(disk / "store", maintenance=False, config=ts.Config(rollup_seqnos=1)) as store:
        orders = store["orders"]
        fill(disk)
        writes = (
            lambda: orders.append([ROW]),
            lambda: orders.append([{"k": 3, "v": os.urandom(100_000)}]),
            lambda: orders.write([ROW], at=100),
            lambda: orders.update(set={"v": b"new"}),
            lambda: orders.seal(100),
            lambda: store.create("more", key={"k": "int64"}),
        )
        for write in writes:
            with pytest.raises(NoSpace, match="No space left on device; free some space on the disk") as caught:
                write()
            assert "may or may not" not in str(caught.value)
        assert orders.count() == 12
        assert {each["k"] for each in orders.snapshot().to_pylist()} == set(range(12))
        assert orders.lookup({"k": 2}).to_pylist()[0]["v"] == b"2"
        assert store.metrics()["reads without a lease"] > 0
        assert free(disk) == 0
        assert reserve_of(disk).stat().st_size == RESERVE_BYTES
        (disk / "fill").unlink()


def test_a_disk_without_a_free_byte_gets_space_back_by_expiring_and_maintenance(disk):
    """A merge needs what it reads, and as much again: here that fits into the reserve, one collection at a time."""
    config = ts.Config(inline_part_bytes=1)
    with ts.open(disk / "store", maintenance=False, config=config) as store:
        made = [
            store.create(f"orders{n}", key={"k": "int64"}, value={"v": "binary"}, timeline="counter") for n in range(9)
        ]
        for orders in made:
            for _ in range(4):
                orders.upsert([{"k": 1, "v": os.urandom(60_000)}])
            assert orders.count() == 1, "a lease that is not used stays for a while"
        fill(disk)
        assert free(disk) == 0
        for orders in made:
            orders.expire(before=3)
        assert not reserve_of(disk).exists(), "the first one took it"
        assert store.maintain().skipped == []
        assert reserve_of(disk).stat().st_size == RESERVE_BYTES, "it is back"
        assert free(disk) > 1_000_000, "versions that expired are gone"
        made[0].append([ROW])
        assert made[0].count() == 2
        assert all(len(orders.snapshot().to_pylist()) == 1 for orders in made[1:])


def test_a_disk_without_a_free_byte_gets_space_back_by_dropping(disk):
    with ts.open(disk / "store", maintenance=False, config=ts.Config(inline_part_bytes=1)) as store:
        orders, old = (store.create(name, key={"k": "int64"}, value={"v": "binary"}) for name in ("orders", "old"))
        orders.append([ROW])
        old.append([{"k": 1, "v": os.urandom(2_000_000)}])
        fill(disk)
        assert free(disk) == 0
        assert store.drop("old")
        assert store.names() == ["orders"]
        store.maintain()
        assert free(disk) > 1_000_000
        assert reserve_of(disk).stat().st_size == RESERVE_BYTES, "it is back"
        orders.append([ROW])
        assert orders.count() == 2


@pytest.mark.parametrize("has_read", [False, True])
def test_closing_on_a_disk_without_a_free_byte_gives_back_all_leases(disk, has_read):
    store = ts.open(disk / "store", maintenance=False, config=BLOBS)
    orders = store.create("orders", key={"k": "int64"}, value={"v": "binary"}, timeline="counter")
    orders.append([ROW])
    if has_read:
        assert orders.count() == 1
    fill(disk)
    assert free(disk) == 0
    store.close()
    assert not reserve_of(disk).exists()
    with ts.open(disk / "store", read_only=True) as store:
        state = store["orders"]._handle.state()
        assert not state.readers
        assert not state.writers
        assert not state.committers


def test_closing_on_a_full_disk_without_a_reserve_leaves_the_leases_to_expire(disk):
    store = ts.open(disk / "store", maintenance=False, config=BLOBS)
    orders = store.create("orders", key={"k": "int64"}, value={"v": "binary"}, timeline="counter")
    orders.append([ROW])
    assert orders.count() == 1
    reserve_of(disk).unlink()
    fill(disk)
    store.close()
    store.close()
    with pytest.raises(StoreClosed):
        orders.count()
    with ts.open(disk / "store", read_only=True) as store:
        assert len(store["orders"]._handle.state().readers) == 1
        assert store["orders"].count() == 1
    (disk / "fill").unlink()
    with ts.open(disk / "store", maintenance=False) as store:
        store["orders"].append([ROW])
        assert store["orders"].count() == 2


def test_maintenance_says_which_merge_does_not_fit(disk):
    with ts.open(disk / "store", maintenance=False, config=ts.Config(inline_part_bytes=1)) as store:
        orders = store.create("orders", key={"k": "int64"}, value={"v": "binary"}, timeline="counter")
        for _ in range(4):
            orders.upsert([{"k": 1, "v": os.urandom(200_000)}])
        fill(disk)
        orders.expire(before=3)
        (skipped,) = store.maintain().skipped
        assert skipped.startswith("orders: not enough free space for a merge of ")
        (disk / "fill").unlink()


def test_garbage_goes_before_a_rollup_that_does_not_fit_although_the_reserve_is_gone(disk):
    with ts.open(disk / "store", maintenance=False, config=ts.Config(inline_part_bytes=1, rollup_seqnos=8)) as store:
        orders = store.create("orders", key={"k": "int64"}, value={"v": "binary"}, timeline="counter")
        for _ in range(4):
            orders.upsert([{"k": 1, "v": os.urandom(200_000)}])
        orders.expire(before=3)
        orders.compact(wait=True)
        store._maintenance._roll_up(orders._handle)
        for _ in range(8):
            orders.append([ROW])
        reserve_of(disk).unlink()
        fill(disk)
        report = store.maintain()
        assert (report.rollups, report.collected) == (1, 4)
        assert free(disk) > 1_000_000


def test_maintenance_uses_the_reserve_for_the_rollup_that_garbage_is_collected_from(disk):
    with ts.open(disk / "store", maintenance=False, config=ts.Config(inline_part_bytes=1)) as store:
        orders = store.create("orders", key={"k": "int64"}, value={"v": "binary"}, timeline="counter")
        for _ in range(4):
            orders.upsert([{"k": 1, "v": os.urandom(300_000)}])
        orders.expire(before=3)
        orders.compact(wait=True)
        fill(disk)
        report = store.maintain()
        assert report.collected >= 4
        assert free(disk) > 1_000_000
        assert reserve_of(disk).stat().st_size == RESERVE_BYTES, "it is back"


def test_of_a_group_only_what_frees_space_uses_the_reserve(disk):
    with ts.open(disk / "store", maintenance=False) as store:
        orders = store.create("orders", key={"k": "int64"}, timeline="counter")
        for k in range(4):
            orders.append([{"k": k}])
        fill(disk)
        frame = sys._getframe()
        seals = PendingCall(CommandTransaction(((orders.id, AdvanceUpper(Frontier.at(100))),)), frame)
        expires = PendingCall(CommandTransaction(((orders.id, Retain(Frontier.at(2))),)), frame)
        store._committer._lead([seals, expires])
        with pytest.raises(NoSpace):
            seals.answer()
        (expired,) = expires.answer()
        assert expired.since == Frontier.at(2)
        assert orders.upper == Frontier.at(4)
        assert not reserve_of(disk).exists()


def test_what_frees_space_fails_like_any_write_if_the_reserve_is_gone(disk):
    with ts.open(disk / "store", maintenance=False) as store:
        orders = store.create("orders", key={"k": "int64"}, timeline="counter")
        for k in range(4):
            orders.append([{"k": k}])
        reserve_of(disk).unlink()
        fill(disk)
        with pytest.raises(NoSpace):
            orders.expire(before=2)
        (disk / "fill").unlink()
        orders.expire(before=2)
        assert not reserve_of(disk).exists()
    ts.open(disk / "store").close()
    assert reserve_of(disk).stat().st_size == RESERVE_BYTES, "the next process that opens the store makes it"


def test_a_full_disk_is_found_at_the_first_try(disk, monkeypatch):
    """Trying again in a moment does not help, so the call does not wait."""
    with ts.open(disk / "store", maintenance=False) as store:
        orders = store.create("orders", key={"k": "int64"}, value={"v": "binary"}, timeline="counter")
        orders.append([ROW])
        fill(disk)
        calls = []
        real = SqliteConsensus.compare_and_set

        def counted(log, writes):
            calls.append(writes)
            return real(log, writes)

        monkeypatch.setattr(SqliteConsensus, "compare_and_set", counted)
        with pytest.raises(NoSpace):
            orders.append([ROW])
        assert len(calls) == 1
        (disk / "fill").unlink()


def test_reading_goes_on_while_a_commit_is_in_doubt(place):
    script = Script()
    store = place.open(script=script)
    orders = store.create("orders", key={"k": "int64"}, timeline="counter")
    orders.append([{"k": 1}])
    script.add("compare_and_set", Fault.INDETERMINATE_NOT, times=1000)
    with pytest.raises(Indeterminate, match="may or may not be committed"):
        orders.append([{"k": 2}])
    assert orders.snapshot().to_pylist() == [{"k": 1}]
    with pytest.raises(Determinate, match="this was not committed, because an earlier commit is in doubt"):
        orders.append([{"k": 3}])
    script.rules.clear()
    orders.append([{"k": 4}])
    assert {each["k"] for each in orders.snapshot().to_pylist()} == {1, 2, 4}, "the frozen group is sent again"

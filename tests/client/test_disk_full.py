"""A full disk: nothing is lost or half done, the cause is named, reading goes on, and expiring frees space."""

import contextlib
import os
import shutil
import subprocess

import pytest
from places import Script

import timespine as ts
from timespine.errors import Determinate, Indeterminate, NoSpace
from timespine.location.sqlite import SqliteConsensus
from timespine.location.unreliable import Fault

ROW = {"k": 0, "v": b"x" * 100}


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
    """Leave nothing free, or so many bytes."""
    with open(place / "fill", "ab", buffering=0) as file:
        with contextlib.suppress(OSError):
            while True:
                file.write(b"z" * 4096)
        file.truncate(max(file.tell() - leave, 0))


def free(place):
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize


def test_a_full_disk_is_named_reading_goes_on_and_expiring_frees_space(disk):
    config = ts.Config(inline_part_bytes=1, rollup_seqnos=4)
    with ts.open(disk / "store", maintenance=False, config=config) as store:
        orders = store.create("orders", key={"k": "int64"}, value={"v": "binary"}, timeline="counter")
        for n in range(12):
            orders.upsert([{"k": 1, "v": os.urandom(100_000)}, {"k": 2, "v": b"%d" % n}])
        fill(disk)
        for write in (
            lambda: orders.append([ROW]),
            lambda: orders.append([{"k": 3, "v": os.urandom(100_000)}]),
            lambda: orders.expire(before=10),
        ):
            with pytest.raises(NoSpace, match="No space left on device; free some space on the disk") as caught:
                write()
            assert "may or may not" not in str(caught.value)
        assert orders.count() == 2
        assert {each["k"] for each in orders.snapshot().to_pylist()} == {1, 2}
        assert orders.lookup({"k": 2})[0]["v"] == b"11"
        assert store.metrics()["reads without a lease"] > 0
        fill(disk, leave=3_500_000)  # a commit needs little; a merge what it reads, and as much again
        before = free(disk)
        orders.expire(before=11)
        for _ in range(3):
            store.maintain()
        assert free(disk) > before + 1_000_000, "versions that expired are gone"
        orders.append([ROW])
        assert orders.count() == 3


def test_a_full_disk_is_found_at_the_first_try(disk, monkeypatch):
    """Trying again in a moment does not help, so nobody waits for it."""
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

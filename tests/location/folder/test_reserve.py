"""The reserve: it takes up space, is private, is made only where there is room, and never fails."""

import errno
import os
import stat
from types import SimpleNamespace

import pytest

from timespine.location.folder import reserve
from timespine.location.folder.reserve import RESERVE_BYTES, SPARE_BYTES
from timespine.location.sqlite.sqlite_consensus import SqliteConsensus


@pytest.fixture
def path(tmp_path):
    """A database beside which there is no reserve yet."""
    made = tmp_path / "log.db"
    made.touch(0o640)
    made.chmod(0o640)
    return made


def of(path):
    return path.with_name(f"{path.name}.reserve")


def leave_free(monkeypatch, free):
    monkeypatch.setattr(os, "statvfs", lambda folder: SimpleNamespace(f_bavail=free, f_frsize=1))


@pytest.mark.parametrize("by_zeros", [False, True], ids=["allocated", "zeros"])
def test_the_reserve_takes_up_its_space_and_has_the_mode_of_the_database(path, monkeypatch, by_zeros):
    if by_zeros:
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
    reserve.restore_reserve(str(path))
    info = of(path).stat()
    assert info.st_size == RESERVE_BYTES
    assert info.st_blocks * 512 >= RESERVE_BYTES
    assert stat.S_IMODE(info.st_mode) == 0o640


def test_a_release_deletes_it_and_only_the_first_one_says_so(path):
    reserve.restore_reserve(str(path))
    assert reserve.release_reserve(str(path))
    assert not of(path).exists()
    assert not reserve.release_reserve(str(path))


@pytest.mark.parametrize(("missing", "is_made"), [(1, False), (0, True)])
def test_it_is_made_only_if_as_much_stays_free(path, monkeypatch, missing, is_made):
    leave_free(monkeypatch, RESERVE_BYTES + SPARE_BYTES - missing)
    reserve.restore_reserve(str(path))
    assert of(path).exists() is is_made


def test_a_copy_that_takes_up_no_space_is_made_whole(path):
    with open(of(path), "wb") as file:
        file.truncate(RESERVE_BYTES)
    assert of(path).stat().st_blocks * 512 < RESERVE_BYTES
    reserve.restore_reserve(str(path))
    assert of(path).stat().st_blocks * 512 >= RESERVE_BYTES


def test_a_disk_that_fills_up_meanwhile_leaves_nothing_behind(path, monkeypatch):
    def fail(fd, start, size):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "posix_fallocate", fail, raising=False)
    reserve.restore_reserve(str(path))
    assert not of(path).exists()


def test_a_link_in_its_place_is_not_followed(path, tmp_path):
    target = tmp_path / "target"
    target.write_bytes(b"mine")
    of(path).symlink_to(target)
    reserve.restore_reserve(str(path))
    assert target.read_bytes() == b"mine"


def test_a_database_has_one_unless_it_is_only_read(tmp_path):
    path = tmp_path / "log.db"
    SqliteConsensus(path).close()
    assert of(path).stat().st_size == RESERVE_BYTES
    assert stat.S_IMODE(of(path).stat().st_mode) == 0o600
    reader = SqliteConsensus(path, read_only=True)
    assert not reader.release_reserve()
    of(path).unlink()
    reader.restore_reserve()
    reader.close()
    assert not of(path).exists()


def test_what_one_process_released_another_one_makes_again(tmp_path):
    path = tmp_path / "log.db"
    first, second = SqliteConsensus(path), SqliteConsensus(path)
    assert first.release_reserve()
    assert not second.release_reserve()
    second.restore_reserve()
    assert first.release_reserve()
    first.close()
    second.close()

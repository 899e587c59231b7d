"""The folder adapter: the contract, and what only a folder can get wrong."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from timespine.errors import CorruptionError, Indeterminate, UsageError
from timespine.location.blob import BLOB_BYTES_MAX, BlobInfo
from timespine.location.folder.durable_folders import HELD_MAX
from timespine.location.folder.local_blob import TEMPORARY, LocalBlob
from timespine.testing.conformance import BlobConformance


class TestLocalBlob(BlobConformance):
    def make(self, tmp_path: Path) -> LocalBlob:
        return LocalBlob(tmp_path / "made" / "root")

    def reopen(self, tmp_path: Path) -> LocalBlob:
        return LocalBlob(tmp_path / "made" / "root")


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The inodes that are synced from now on, and links between them."""
    steps: list[object] = []
    fsync, link = os.fsync, os.link

    def record_fsync(fd: int) -> None:
        steps.append(os.fstat(fd).st_ino)
        fsync(fd)

    def record_link(*args: Any, **kwargs: Any) -> None:
        steps.append("link")
        link(*args, **kwargs)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "link", record_link)
    return steps


def inodes(root: Path, *paths: str) -> list[int]:
    return [os.stat(root / path).st_ino for path in paths]


def test_put_syncs_the_file_then_links_then_syncs_every_folder(
    root: Path, blob: LocalBlob, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = recorded(monkeypatch)
    blob.put("a/b/c", b"value")
    file, writer, collection, top = inodes(root, "a/b/c", "a/b", "a", ".")
    assert steps == [file, "link", writer, collection, top]
    steps.clear()
    blob.put("a/b/c", b"value")
    assert steps[1:] == ["link", file, writer]


def test_folders_whose_entries_are_durable_are_not_synced_again(
    root: Path, blob: LocalBlob, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob.put("a/b/c", b"value")
    steps = recorded(monkeypatch)
    blob.put("a/b/d", b"value")
    assert steps == [*inodes(root, "a/b/d"), "link", *inodes(root, "a/b")]
    steps.clear()
    blob.put("a/x/c", b"value")
    assert steps[2:] == inodes(root, "a/x", "a"), "another writer has a folder of its own"


def test_what_another_process_found_durable_is_synced_by_this_one(
    root: Path, blob: LocalBlob, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob.put("a/b/c", b"value")
    steps = recorded(monkeypatch)
    LocalBlob(root).put("a/b/d", b"value")
    assert steps[-3:] == inodes(root, "a/b", "a", ".")


def test_folders_are_synced_again_if_they_were_removed_and_made_anew(
    root: Path, blob: LocalBlob, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = LocalBlob(root)
    for number in range(20):  # a file system that gives a new folder the inode of the last one must not confuse it
        blob.put("a/b/c", b"value")
        assert other.delete("a/b/c")
        assert not (root / "a").exists()
        if number % 2:
            other.put("a/b/other", b"value")
        with monkeypatch.context() as patch:
            steps = recorded(patch)
            blob.put("a/b/d", b"value")
        assert steps[-3:] == inodes(root, "a/b", "a", ".")
        assert blob.delete("a/b/d")
        other.delete("a/b/other")


def test_a_folder_whose_entry_could_not_be_synced_is_synced_by_the_next_put(
    root: Path, blob: LocalBlob, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def fail_for_root(fd: int) -> None:
        if os.path.samestat(os.fstat(fd), os.stat(root)):
            raise OSError(5, "broken")
        fsync(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail_for_root)
        with pytest.raises(Indeterminate):
            blob.put("a/b/c", b"value")
    steps = recorded(monkeypatch)
    blob.put("a/b/d", b"value")
    assert steps[2:] == inodes(root, "a/b", ".")


def test_few_folders_are_kept_open_and_none_after_close(root: Path, blob: LocalBlob) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    for number in range(3 * HELD_MAX):
        blob.put(f"a/w{number}/c", b"value")
    assert before < descriptors() <= before + HELD_MAX
    blob.close()
    assert descriptors() == before


def test_put_works_where_no_folder_can_be_kept_open(
    root: Path, blob: LocalBlob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(fd: int) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(os, "dup", none_left)
    steps = recorded(monkeypatch)
    for name in "cd":
        steps.clear()
        blob.put(f"a/b/{name}", b"value")
        assert steps[-3:] == inodes(root, "a/b", "a", ".")


def test_new_root_folders_are_synced_into_their_parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_ino))
    LocalBlob(tmp_path / "x" / "y").close()
    assert {tmp_path.stat().st_ino, (tmp_path / "x").stat().st_ino} <= set(synced)


@pytest.mark.parametrize("linked", ["a", "a/b", "a/b/c"])
def test_a_symbolic_link_is_never_followed(tmp_path: Path, root: Path, blob: LocalBlob, linked: str) -> None:
    target = tmp_path / "outside"
    (target / "a" / "b").mkdir(parents=True)
    (target / "a" / "b" / "c").write_bytes(b"secret")
    (root / linked).parent.mkdir(parents=True, exist_ok=True)
    (root / linked).symlink_to(target / linked)
    calls: list[Callable[[], object]] = [
        lambda: blob.get("a/b/c"),
        lambda: blob.get_range("a/b/c", 0, 1),
        lambda: blob.put("a/b/c", b"secret"),
        lambda: blob.delete("a/b/c"),
    ]
    for call in calls:
        with pytest.raises(CorruptionError):
            call()
    assert list(blob.list_keys()) == [], "a link is nothing of ours"
    assert blob.links() == [linked]
    assert (target / "a" / "b" / "c").read_bytes() == b"secret"
    assert os.listdir(target / "a" / "b") == ["c"]


def test_a_linked_temporary_folder_is_refused(tmp_path: Path, root: Path, blob: LocalBlob) -> None:
    (root / TEMPORARY).rmdir()
    (root / TEMPORARY).symlink_to(tmp_path)
    for call in (lambda: blob.put("a/b/c", b""), lambda: blob.sweep_temporary(0, 2e9)):
        with pytest.raises(CorruptionError):
            call()


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_no_regular_file_is_corrupt(root: Path, blob: LocalBlob, make: Callable[[Path], None]) -> None:
    blob.put("a/b/other", b"1")
    make(root / "a/b/c")
    with pytest.raises(CorruptionError):
        blob.get_range("a/b/c", 0, 0)
    for call in (lambda: blob.get("a/b/c"), lambda: blob.put("a/b/c", b""), lambda: blob.delete("a/b/c")):
        with pytest.raises(CorruptionError):
            call()
    assert [info.key for info in blob.list_keys()] == ["a/b/other"]


def test_a_file_where_a_folder_should_be_is_corrupt(root: Path, blob: LocalBlob) -> None:
    (root / "a").write_bytes(b"")
    for call in (lambda: blob.get("a/b/c"), lambda: blob.put("a/b/c", b""), lambda: blob.delete("a/b/c")):
        with pytest.raises(CorruptionError):
            call()
    assert list(blob.list_keys()) == []


def test_files_of_others_are_not_listed(root: Path, blob: LocalBlob) -> None:
    blob.put("a/b/c", b"1")
    for path in ("README.md", "consensus.db", "a/.hidden", "a/note", "a/b/c.bak", "a/b/C", ".tmp/left"):
        (root / path).write_bytes(b"x")
    (root / "Upper" / "b").mkdir(parents=True)
    (root / "Upper" / "b" / "c").write_bytes(b"x")
    assert list(blob.list_keys()) == [BlobInfo("a/b/c", 1)]


def test_traversal_reaches_nothing_outside(tmp_path: Path, blob: LocalBlob) -> None:
    (tmp_path / "victim").write_bytes(b"mine")
    for key in ("../victim", "../../victim", "a/../../victim", "a/b/../../../victim", "//victim", "a/b/c/../../../v"):
        for call in (blob.get, blob.delete, lambda key: blob.put(key, b"x"), lambda key: blob.get_range(key, 0, 1)):
            with pytest.raises(UsageError):
                call(key)
    assert (tmp_path / "victim").read_bytes() == b"mine"


def test_an_oversized_file_is_refused_before_it_is_read(root: Path, blob: LocalBlob) -> None:
    blob.put("a/b/c", b"1")
    os.truncate(root / "a/b/c", BLOB_BYTES_MAX + 1)  # sparse: reading it would need the memory
    for max_bytes in (BLOB_BYTES_MAX, BLOB_BYTES_MAX + 10):
        with pytest.raises(CorruptionError):
            blob.get("a/b/c", max_bytes=max_bytes)
    with pytest.raises(CorruptionError):
        blob.get_range("a/b/c", 0, 1)
    with pytest.raises(UsageError):
        blob.put("a/b/c", b"1")


def test_a_range_is_read_without_the_rest_of_the_file(
    root: Path, blob: LocalBlob, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob.put("a/b/c", b"1")
    os.truncate(root / "a/b/c", 1 << 30)
    monkeypatch.setattr(os, "read", lambda fd, size: pytest.fail("all of it is read"))
    assert blob.get_range("a/b/c", (1 << 30) - 4, 1 << 30) == bytes(4)


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError):
        LocalBlob(tmp_path / "file")


def test_delete_removes_folders_that_it_leaves_empty(root: Path, blob: LocalBlob) -> None:
    for key in ("a/b/c", "a/b/d", "a/e/f"):
        blob.put(key, b"")
    for key, left in (("a/b/c", ["b", "e"]), ("a/b/d", ["e"])):
        blob.delete(key)
        assert sorted(os.listdir(root / "a")) == left
    blob.delete("a/e/f")
    assert os.listdir(root) == [TEMPORARY]


def test_sweep_removes_only_old_temporary_files(root: Path, blob: LocalBlob) -> None:
    for name, age in (("old", 100), ("young", 10)):
        (root / TEMPORARY / name).write_bytes(b"")
        os.utime(root / TEMPORARY / name, (5000 - age, 5000 - age))
    blob.put("a/b/c", b"1")
    assert blob.sweep_temporary(60, now=5000.0) == 1
    assert (os.listdir(root / TEMPORARY), blob.get("a/b/c")) == (["young"], b"1")
    with pytest.raises(UsageError):
        blob.sweep_temporary(-1, now=5000.0)


# For reading only.


def test_for_reading_only_nothing_is_made_and_a_folder_that_is_not_there_is_empty(tmp_path: Path) -> None:
    blob = LocalBlob(tmp_path / "none", read_only=True)
    assert blob.get("a/b/c") is None
    assert blob.get_range("a/b/c", 0, 1) is None
    assert list(blob.list_keys()) == []
    assert os.listdir(tmp_path) == []


def test_for_reading_only_blobs_are_read_and_changes_refused(
    root: Path, blob: LocalBlob, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob.put("a/b/c", b"value")
    os.rmdir(root / TEMPORARY)
    monkeypatch.setattr(os, "fsync", lambda fd: pytest.fail("something is synced"))
    reading = LocalBlob(root, read_only=True)
    assert (reading.get("a/b/c"), reading.get_range("a/b/c", 1, 3)) == (b"value", b"al")
    assert list(reading.list_keys()) == [BlobInfo("a/b/c", 5)]
    for change in (
        lambda: reading.put("a/b/d", b""),
        lambda: reading.delete("a/b/c"),
        lambda: reading.sweep_temporary(0, 1e12),
    ):
        with pytest.raises(UsageError, match="for reading only"):
            change()
    assert not (root / TEMPORARY).exists()


@pytest.mark.parametrize(("mode", "file"), [(0o700, 0o600), (0o770, 0o660), (0o755, 0o644)])
@pytest.mark.parametrize("umask", [0o022, 0o077, 0o000])
def test_what_is_made_has_the_permissions_of_the_root_whatever_the_umask_is(
    tmp_path: Path, mode: int, file: int, umask: int
) -> None:
    before = os.umask(umask)
    try:
        with contextlib.closing(LocalBlob(tmp_path / "x" / "root", mode=mode)) as blob:
            blob.put("a/b/c", b"value")
    finally:
        os.umask(before)
    root = tmp_path / "x" / "root"
    assert {path.stat().st_mode & 0o777 for path in (root, root / "a", root / "a" / "b", root / TEMPORARY)} == {mode}
    assert (root / "a" / "b" / "c").stat().st_mode & 0o777 == file


def test_a_new_root_is_for_its_owner_alone(tmp_path: Path) -> None:
    LocalBlob(tmp_path / "root").close()
    assert (tmp_path / "root").stat().st_mode & 0o777 == 0o700

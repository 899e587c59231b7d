"""The folder adapter: the contract, and what only a folder can get wrong."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from timespine.errors import CorruptionError, Determinate, Indeterminate, TimespineError, UsageError
from timespine.location.blob import BLOB_BYTES_MAX, BlobInfo
from timespine.location.local import ATTEMPTS_MAX, TEMPORARY, LocalBlob
from timespine.testing.conformance import BlobConformance


class TestLocalBlob(BlobConformance):
    def make(self, tmp_path: Path) -> LocalBlob:
        return LocalBlob(tmp_path / "made" / "root")

    def reopen(self, tmp_path: Path) -> LocalBlob:
        return LocalBlob(tmp_path / "made" / "root")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def blob(root: Path) -> Iterator[LocalBlob]:
    adapter = LocalBlob(root)
    yield adapter
    adapter.close()


def failing(code: int) -> Callable[..., Any]:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def temporaries(root: Path) -> list[str]:
    return os.listdir(root / TEMPORARY)


def test_a_blob_is_a_file_with_the_permissions_of_the_umask(root: Path, blob: LocalBlob) -> None:
    before = os.umask(0o027)
    try:
        blob.put("a/b/c", b"value")
    finally:
        os.umask(before)
    assert (root / "a/b/c").read_bytes() == b"value"
    assert stat.S_IMODE((root / "a/b/c").stat().st_mode) == 0o640
    assert stat.S_IMODE((root / "a/b").stat().st_mode) == 0o750
    assert temporaries(root) == []


def test_put_syncs_the_file_then_links_then_syncs_every_folder(
    root: Path, blob: LocalBlob, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    blob.put("a/b/c", b"value")
    file, writer, collection, top = (os.stat(root / path).st_ino for path in ("a/b/c", "a/b", "a", "."))
    assert steps == [file, "link", writer, collection, top]
    steps.clear()
    blob.put("a/b/c", b"value")
    assert steps[1:] == ["link", file, writer, collection, top]


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
        lambda: blob.put("a/b/c", b"secret"),
        lambda: blob.delete("a/b/c"),
        lambda: list(blob.list_keys()),
    ]
    for call in calls:
        with pytest.raises(CorruptionError):
            call()
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
        for call in (blob.get, blob.delete, lambda key: blob.put(key, b"x")):
            with pytest.raises(UsageError):
                call(key)
    assert (tmp_path / "victim").read_bytes() == b"mine"


def test_an_oversized_file_is_refused_before_it_is_read(root: Path, blob: LocalBlob) -> None:
    blob.put("a/b/c", b"1")
    os.truncate(root / "a/b/c", BLOB_BYTES_MAX + 1)  # sparse: reading it would need the memory
    for max_bytes in (BLOB_BYTES_MAX, BLOB_BYTES_MAX + 10):
        with pytest.raises(CorruptionError):
            blob.get("a/b/c", max_bytes=max_bytes)
    with pytest.raises(UsageError):
        blob.put("a/b/c", b"1")


@pytest.mark.parametrize("read", [lambda fd, size: b"", lambda fd, size: b"x" * size])
def test_a_file_that_changes_its_size_is_corrupt(
    blob: LocalBlob, monkeypatch: pytest.MonkeyPatch, read: Callable[[int, int], bytes]
) -> None:
    blob.put("a/b/c", b"12345")
    monkeypatch.setattr(os, "read", read)
    with pytest.raises(CorruptionError):
        blob.get("a/b/c")


def test_partial_reads_and_writes_are_continued(blob: LocalBlob, monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.read, os.write
    monkeypatch.setattr(os, "read", lambda fd, size: read(fd, min(size, 3)))
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:2]))
    blob.put("a/b/c", b"1234567")
    blob.put("a/b/c", b"1234567")
    assert blob.get("a/b/c") == b"1234567"


@pytest.mark.parametrize(
    ("call", "code", "kind"),
    [
        ("write", errno.ENOSPC, Determinate),
        ("fsync", errno.EIO, Determinate),
        ("mkdir", errno.EACCES, Determinate),
        ("link", errno.ENOSPC, Determinate),
        ("link", errno.EIO, Indeterminate),
        ("link", errno.EXDEV, UsageError),
        ("link", errno.EPERM, UsageError),
    ],
)
def test_a_put_that_fails_leaves_nothing(
    root: Path, blob: LocalBlob, monkeypatch: pytest.MonkeyPatch, call: str, code: int, kind: type[TimespineError]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing(code))
        with pytest.raises(kind):
            blob.put("a/b/c", b"value")
    assert blob.get("a/b/c") is None
    assert temporaries(root) == []
    blob.put("a/b/c", b"value")


def test_a_folder_that_cannot_be_synced_makes_the_put_indeterminate(
    blob: LocalBlob, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def fail_on_folders(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EIO, "no luck")
        fsync(fd)

    for _ in range(2):  # the second finds its own value, which is still not known to be durable
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail_on_folders)
            with pytest.raises(Indeterminate):
                blob.put("a/b/c", b"value")
    blob.put("a/b/c", b"value")
    assert blob.get("a/b/c") == b"value"


def test_a_delete_that_fails_says_whether_it_may_have_happened(
    blob: LocalBlob, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob.put("a/b/c", b"value")
    for code, kind in ((errno.EACCES, Determinate), (errno.EIO, Indeterminate)):
        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", failing(code))
            with pytest.raises(kind):
                blob.delete("a/b/c")
    assert blob.delete("a/b/c")


def test_reads_that_fail_are_determinate(blob: LocalBlob, monkeypatch: pytest.MonkeyPatch) -> None:
    blob.put("a/b/c", b"value")
    monkeypatch.setattr(os, "read", failing(errno.EIO))
    monkeypatch.setattr(os, "scandir", failing(errno.EIO))
    with pytest.raises(Determinate):
        blob.get("a/b/c")
    with pytest.raises(Determinate):
        list(blob.list_keys())


def test_put_starts_again_when_its_folder_vanishes(
    root: Path, blob: LocalBlob, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, tries = os.link, [0]

    def link_late(*args: Any, **kwargs: Any) -> None:
        tries[0] += 1
        if tries[0] == 1:
            os.rmdir(root / "a" / "b")
        if tries[0] == 2:
            for name in temporaries(root):
                os.unlink(root / TEMPORARY / name)
        link(*args, **kwargs)

    monkeypatch.setattr(os, "link", link_late)
    blob.put("a/b/c", b"value")
    assert (tries, blob.get("a/b/c")) == ([3], b"value")
    monkeypatch.setattr(os, "link", failing(errno.ENOENT))
    with pytest.raises(Determinate, match=str(ATTEMPTS_MAX)):
        blob.put("a/b/d", b"value")


def test_a_root_that_is_gone_is_no_empty_store(root: Path, blob: LocalBlob) -> None:
    (root / TEMPORARY).rmdir()
    root.rmdir()
    for call in (lambda: blob.get("a/b/c"), lambda: blob.put("a/b/c", b""), lambda: list(blob.list_keys())):
        with pytest.raises(Determinate):
            call()
    assert not root.exists()


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
    assert (temporaries(root), blob.get("a/b/c")) == (["young"], b"1")
    with pytest.raises(UsageError):
        blob.sweep_temporary(-1, now=5000.0)


STOP_AT = """
import os, signal, sys
from timespine.location.local import LocalBlob
blob = LocalBlob(sys.argv[1])
blob.put("a/b/before", b"b" * 100_000)
def stop():
    print("here", flush=True)
    signal.pause()
write, fsync, link = os.write, os.fsync, os.link
def stop_after(action):
    def run(*args, **kwargs):
        action(*args, **kwargs)
        stop()
    return run
match sys.argv[2]:
    case "half written": os.write = stop_after(lambda fd, data: write(fd, data[: len(data) // 2]))
    case "written": os.fsync = lambda fd: stop()
    case "synced": os.link = lambda *args, **kwargs: stop()
    case "linked": os.link = stop_after(link)
blob.put("a/b/c", b"c" * 100_000)
"""


@pytest.mark.parametrize("stage", ["half written", "written", "synced", "linked"])
def test_a_put_killed_at_any_stage_leaves_the_whole_value_or_none(root: Path, stage: str) -> None:
    with subprocess.Popen([sys.executable, "-c", STOP_AT, str(root), stage], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"here\n"
        os.kill(child.pid, signal.SIGKILL)
    blob = LocalBlob(root)
    whole = stage == "linked"
    assert blob.get("a/b/c") == (b"c" * 100_000 if whole else None)
    assert [info.key for info in blob.list_keys()] == ["a/b/before"] + ["a/b/c"] * whole
    assert blob.sweep_temporary(0, now=2**40) == 1
    blob.put("a/b/c", b"c" * 100_000)
    assert blob.get("a/b/before") == b"b" * 100_000


PUT_FOR_EVER = """
import itertools, sys
from timespine.location.local import LocalBlob
blob = LocalBlob(sys.argv[1])
for number in itertools.count():
    blob.put(f"a/b/{number}", b"%d," % number * 10_000)
    print(number, flush=True)
"""


def test_acknowledged_puts_survive_kill_9(root: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", PUT_FOR_EVER, str(root)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        acknowledged = [int(child.stdout.readline()) for _ in range(30)]
        os.kill(child.pid, signal.SIGKILL)
    blob = LocalBlob(root)
    found = {int(info.key.split("/")[-1]) for info in blob.list_keys()}
    assert set(acknowledged) <= found
    for number in found:
        assert blob.get(f"a/b/{number}") == b"%d," % number * 10_000

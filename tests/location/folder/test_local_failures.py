"""A folder whose system calls fail, or whose process is killed: the whole value or none, and the truth about it."""

from __future__ import annotations

import errno
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from children import line_of, start
from faults import failing

from timespine.errors import CorruptionError, Determinate, Indeterminate, TimespineError, UsageError
from timespine.location.folder.local_blob import ATTEMPTS_MAX, TEMPORARY, LocalBlob


@pytest.mark.parametrize("read", [lambda fd, size: b"", lambda fd, size: b"x" * size])
def test_a_file_that_changes_its_size_is_corrupt(
    blob: LocalBlob, monkeypatch: pytest.MonkeyPatch, read: Callable[[int, int], bytes]
) -> None:
    blob.put("a/b/c", b"12345")
    monkeypatch.setattr(os, "read", read)
    with pytest.raises(CorruptionError):
        blob.get("a/b/c")


def test_a_file_that_ends_while_a_range_of_it_is_read_is_corrupt(
    blob: LocalBlob, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob.put("a/b/c", b"12345")
    monkeypatch.setattr(os, "pread", lambda fd, size, at: b"4" if at == 3 else b"")
    with pytest.raises(CorruptionError):
        blob.get_range("a/b/c", 3, 5)


def test_partial_reads_and_writes_are_continued(blob: LocalBlob, monkeypatch: pytest.MonkeyPatch) -> None:
    read, write, pread = os.read, os.write, os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, min(size, 2), at))
    monkeypatch.setattr(os, "read", lambda fd, size: read(fd, min(size, 3)))
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:2]))
    blob.put("a/b/c", b"1234567")
    blob.put("a/b/c", b"1234567")
    assert blob.get("a/b/c") == b"1234567"
    assert blob.get_range("a/b/c", 1, 6) == b"23456"


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
    assert os.listdir(root / TEMPORARY) == []
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
    monkeypatch.setattr(os, "pread", failing(errno.EIO))
    monkeypatch.setattr(os, "scandir", failing(errno.EIO))
    with pytest.raises(Determinate):
        blob.get_range("a/b/c", 0, 5)
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
            for name in os.listdir(root / TEMPORARY):
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


STOP_AT = """
import os, signal, sys
from timespine.location.folder.local_blob import LocalBlob
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
    with start(STOP_AT, root, stage) as child:
        assert line_of(child) == b"here\n"
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
from timespine.location.folder.local_blob import LocalBlob
blob = LocalBlob(sys.argv[1])
for number in itertools.count():
    blob.put(f"a/b/{number}", b"%d," % number * 10_000)
    print(number, flush=True)
"""


def test_acknowledged_puts_survive_kill_9(root: Path) -> None:
    with start(PUT_FOR_EVER, root) as child:
        acknowledged = [int(line_of(child)) for _ in range(30)]
        os.kill(child.pid, signal.SIGKILL)
    blob = LocalBlob(root)
    found = {int(info.key.split("/")[-1]) for info in blob.list_keys()}
    assert set(acknowledged) <= found
    for number in found:
        assert blob.get(f"a/b/{number}") == b"%d," % number * 10_000

"""The folders of the checkpoints of a history: real files and locks, of which processes lose what dying ones lose.

Every write, sync, rename and deletion is a switch point, so another process may go on there, or this one may die. The
locks of a process that died are released, and what it has not synced may be cut, as after a crash of its machine.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

from timespine.arrangement import checkpoint, manifest, opened_checkpoint
from timespine.arrangement.batch import batch_file
from timespine.arrangement.manifest import BATCH_FILE, manifest_name, manifest_numbers, read_manifest
from timespine.core.arrangement.spine_files import MANIFESTS_KEPT
from timespine.errors import CorruptionError
from timespine.location.folder import durable
from timespine.testing.stores.history import StoreHistory
from timespine.testing.stores.thread_scheduler import VirtualProcess

CUT_CHANCE = 0.5
"""The chance that a file which a dead process did not sync is cut."""

CRASH_CHANCE = 0.06
"""The chance that a process dies at a switch point of a checkpoint, in histories with crashes."""

_LISTING = re.compile(r"files-([0-9]{16})\.json")


class CheckpointFolders:
    """The folders of one history."""

    def __init__(self, history: StoreHistory, root: str) -> None:
        self.history = history
        self.scheduler = history.scheduler
        self.root = root
        self.questions: dict[str, tuple[str, list[str] | None, str]] = {}
        """By path: the collection, the arranged columns and the history of the arrangement."""
        self._held: list[tuple[VirtualProcess, Any]] = []
        """What holds locks, by process."""
        self._unsynced: dict[str, VirtualProcess] = {}
        """Paths of files that were written and not synced."""
        self._written: dict[int, str] = {}
        """Paths of files that are open for writing."""

    def path(self, collection: str, by: list[str] | None, history: str) -> str:
        """Return the folder of a question: each has one, whichever process asks it."""
        path = os.path.join(self.root, f"{collection}-{'-'.join(by or ['key'])}-{history}")
        self.questions[path] = (collection, by, history)
        return path

    # Dying.

    def reap(self) -> None:
        """Release the locks of dead processes, and cut what they did not sync."""
        for _, held in [each for each in self._held if each[0].is_dead]:
            held.close()
        self._held = [each for each in self._held if not each[0].is_dead]
        for path, process in list(self._unsynced.items()):
            if process.is_dead:
                del self._unsynced[path]
                if os.path.exists(path) and self.scheduler.random.random() < CUT_CHANCE:
                    self.history.world.counts["files cut"] += 1
                    os.truncate(path, os.path.getsize(path) // 2)

    def _process(self) -> VirtualProcess:
        assert self.scheduler.current is not None
        return self.scheduler.current.process

    def act(self, where: str) -> None:
        """Pass a switch point of a checkpoint, at which processes die more often than at others."""
        self.scheduler.switch(where)
        history, process = self.history, self._process()
        if not history.is_calm and history.faults.crash and self.scheduler.random.random() < CRASH_CHANCE:
            history.world.counts["crashes"] += 1
            history.note("crashes")
            self.scheduler.kill(process)

    # Checking.

    def check(self, path: str) -> str | None:
        """Return what is wrong with a folder: each manifest names files that are there and whole, at any moment."""
        self.reap()
        if not os.path.isdir(path):
            return None
        for number in manifest_numbers(path):
            try:
                files = read_manifest(path, number).files
            except CorruptionError as error:
                return f"{manifest_name(number)} is damaged: {error}"
            for each in files:
                there = os.path.join(path, each.name)
                if not os.path.exists(there) or os.path.getsize(there) != each.size:
                    return f"{manifest_name(number)} names a file that is missing or cut"
        return None

    def check_reclaimed(self, path: str) -> str | None:
        """Return what is left in a folder that no process uses, right after a checkpoint, and should not be."""
        numbers, names = manifest_numbers(path), os.listdir(path)
        if len(numbers) > MANIFESTS_KEPT:
            return f"{len(numbers)} checkpoints are left"
        named = {each.name for number in numbers for each in read_manifest(path, number).files}
        batches = {name for name in names if BATCH_FILE.fullmatch(name)}
        if batches != named:
            return f"{len(batches - named)} files are left that no checkpoint names"
        listed = {int(match[1]) for name in names if (match := _LISTING.fullmatch(name))}
        left = [name for name in names if name.endswith(".tmp")]
        return f"lists or temporary files are left: {listed} {left}" if listed != set(numbers) or left else None

    # Acting.

    @contextlib.contextmanager
    def simulated(self) -> Iterator[None]:
        """Let the modules of checkpoints act in these folders until the end of the block."""
        here, scheduler = self, self.scheduler
        real_init, real_pin = checkpoint.CheckpointFolder.__init__, manifest.pin_manifest

        def init(self: Any, *args: Any, **options: Any) -> None:
            here.reap()
            self._lock = None
            here._held.append((here._process(), self))
            real_init(self, *args, **options)

        def pin(folder: str, number: int | None = None) -> manifest.PinnedManifest:
            here.reap()
            scheduler.switch("open a checkpoint")
            pinned = real_pin(folder, number)
            here._held.append((here._process(), pinned))
            return pinned

        def write_batch(path: str, *args: Any) -> Any:
            here.act("write a batch")
            here._unsynced[path] = here._process()
            facts = batch_file.write_batch(path, *args)
            here.act("wrote a batch")
            return facts

        def open_regular(path: str, flags: int, *args: Any) -> int:
            fd = durable.open_regular(path, flags, *args)
            if flags & os.O_WRONLY:
                here._unsynced[path], here._written[fd] = here._process(), path
            return fd

        def sync(fd: int) -> None:
            here.act("sync a file of a checkpoint")
            here._unsynced.pop(here._written.pop(fd), None)

        def sync_path(path: str) -> None:
            here.act("sync a path of a checkpoint")
            here._unsynced.pop(path, None)

        fresh = SimpleNamespace(uuid4=lambda: SimpleNamespace(hex=f"{scheduler.random.getrandbits(128):032x}"))
        acting = _ActingFiles(self)
        with contextlib.ExitStack() as stack:
            for module, name, value in (
                *((checkpoint, "os", acting), (manifest, "os", acting), (checkpoint, "uuid", fresh)),
                *((checkpoint, "write_batch", write_batch), (checkpoint, "open_regular", open_regular)),
                *(
                    (checkpoint, "sync", sync),
                    (checkpoint, "sync_path", sync_path),
                    (opened_checkpoint, "pin_manifest", pin),
                ),
                (checkpoint.CheckpointFolder, "__init__", init),
            ):
                stack.enter_context(mock.patch.object(module, name, value))
            try:
                yield
            finally:
                for _, held in self._held:
                    held.close()


class _ActingFiles:
    """The module `os`, whose changes of folders are switch points: a dead process changes nothing."""

    def __init__(self, folders: CheckpointFolders) -> None:
        self._folders = folders

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def unlink(self, path: str) -> None:
        """Delete a file."""
        self._folders.act("delete a file of a checkpoint")
        os.unlink(path)

    def rename(self, old: str, new: str) -> None:
        """Rename a file: what is not synced is not under its new name either."""
        self._folders.act("rename a file of a checkpoint")
        os.rename(old, new)
        unsynced = self._folders._unsynced
        if old in unsynced:
            unsynced[new] = unsynced.pop(old)

"""The folder of the checkpoints of an arrangement: files of batches, and manifests that name them.

    <id>.batch              a batch (`file`)
    manifest-<number>       a checkpoint: an envelope with the files, their sizes and the hashes of their footers
    files-<number>.json     the names of its files, for people and programs that copy them
    lock                    held by the process that writes here

A file is durable before a manifest names it, and a manifest is written whole or not at all. Losing a checkpoint costs a
read of the collection, never an answer.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import uuid
from collections.abc import Sequence

import msgspec

from timespine.arrangement.batch.batch import Batch
from timespine.arrangement.batch.batch_file import FileFacts, open_batch, write_batch
from timespine.arrangement.batch.layout import Layout
from timespine.arrangement.manifest import (
    BATCH_FILE,
    ListedFile,
    StoredCheckpoint,
    delete_unless_pinned,
    manifest_name,
    manifest_numbers,
    read_manifest,
)
from timespine.core.effects import KeptFiles
from timespine.core.encoding.envelope import EnvelopeKind, wrap_payload
from timespine.errors import CorruptionError, Determinate, UsageError
from timespine.location.folder.durable import (
    PRIVATE_FILE,
    SPACE,
    make_folders,
    no_space,
    open_regular,
    sync,
    sync_path,
)
from timespine.model.frontier import Frontier

_LISTING = re.compile(r"files-([0-9]{16})\.json")
_TEMPORARY = re.compile(r"\.(manifest-[0-9]{16}|files-[0-9]{16}\.json)\.tmp")


class CheckpointFolder:
    """A folder of checkpoints of one arrangement. One process at a time may write to it; others read."""

    def __init__(self, path: str, layout: Layout, origin: bytes | None = None, *, is_read_only: bool = False) -> None:
        self.path = os.path.abspath(path)
        """Where it is."""
        self.origin = origin
        """What the next manifests say of the collection that the rows are of."""
        self._layout = layout
        self._facts: dict[str, FileFacts] = {}
        self._lock: int | None = None
        if is_read_only:
            if not os.path.isdir(self.path):
                raise UsageError(f"there is no folder {self.path}: save a checkpoint there first")
            return
        make_folders(self.path)
        self._lock = open_regular(self._at("lock"), os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise UsageError(
                f"another process or spine writes to {self.path}: use another folder, or read it with "
                "`timespine.arrangement.open`"
            ) from None
        self._sweep()

    def _sweep(self) -> None:
        """Delete what a process left that ended while it wrote or deleted a manifest: lists and files without one."""
        there = set(os.listdir(self.path))
        for name in there:
            listing = _LISTING.fullmatch(name)
            if _TEMPORARY.fullmatch(name) or (listing and f"manifest-{listing[1]}" not in there):
                self._remove(name)

    def close(self) -> None:
        """Let another process write."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def write(self, batch: Batch, *, frees_memory: bool = False) -> Batch:
        """Write a batch to a new file, which is not durable yet; return it with its file.

        With `frees_memory`, the result is only mapped.
        """
        name = f"{uuid.uuid4().hex}.batch"
        try:
            self._facts[name] = write_batch(self._at(name), batch, self._layout)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(self._at(name))
            raise
        return self.open(name) if frees_memory else batch.with_file(name)

    def open(self, name: str) -> Batch:
        """Map a file that was written here, or that a manifest names."""
        facts = self._facts.get(name)
        if facts is None:
            raise CorruptionError(f"no checkpoint of this folder names the file {name}")
        return open_batch(self._at(name), facts, self._layout)

    def sync(self, names: Sequence[str]) -> None:
        """Make files durable, and their names."""
        for name in names:
            sync_path(self._at(name))
        sync_path(self.path)

    def write_manifest(
        self, number: int, names: Sequence[str], is_dirty: bool, since: Frontier | None, upper: Frontier | None
    ) -> None:
        """Make a checkpoint of durable files, whole or not at all."""
        files = tuple(ListedFile(name, *self._facts[name]) for name in names)
        schema = self._layout.schema.encode()
        stored = StoredCheckpoint(number, schema, self._layout.by, files, is_dirty, since, upper, self.origin)
        listing = {"number": number, "files": {each.name: each.size for each in files}}
        self._put(f"files-{number:016}.json", json.dumps(listing, indent=1).encode() + b"\n")
        self._put(manifest_name(number), wrap_payload(EnvelopeKind.CHECKPOINT, msgspec.msgpack.encode(stored)))

    def manifests(self) -> list[StoredCheckpoint]:
        """Return the checkpoints, the newest first. One that is damaged is a CorruptionError.

        The newest must be of this arrangement. Older ones may be of the same under an older schema.
        """
        return [self._manifest(number, is_newest=not place) for place, number in enumerate(self.numbers())]

    def numbers(self) -> list[int]:
        """Return the numbers of the checkpoints, the newest first."""
        return manifest_numbers(self.path)

    def listed(self) -> list[str]:
        """Return the names of all files of batches."""
        return sorted(name for name in os.listdir(self.path) if BATCH_FILE.fullmatch(name))

    def delete(self, manifests: Sequence[int], names: Sequence[str]) -> KeptFiles:
        """Delete manifests, then files of batches; return what stays because readers of other processes need it.

        Those that are missing are no error.
        """
        try:
            pinned = [number for number in manifests if not delete_unless_pinned(self.path, number)]
            for number in set(manifests) - set(pinned):
                self._remove(f"files-{number:016}.json")
            if manifests:
                # SUBTLE: a manifest that comes back after a crash must find its files.
                sync_path(self.path)
            needed = {file.name for number in pinned for file in self._files_of(number)}
            for name in set(names) - needed:
                self._remove(name)
                self._facts.pop(name, None)
            return KeptFiles(tuple(pinned), tuple(name for name in names if name in needed))
        except OSError as error:
            raise Determinate(f"a file of {self.path} could not be deleted: {error.strerror}") from error

    def _files_of(self, number: int) -> tuple[ListedFile, ...]:
        """Return the files of a manifest that a reader pins; none if it is damaged: that reader had an error."""
        try:
            return read_manifest(self.path, number).files
        except (CorruptionError, FileNotFoundError):
            return ()

    def _manifest(self, number: int, *, is_newest: bool) -> StoredCheckpoint:
        stored = read_manifest(self.path, number)
        if not is_newest:
            return stored
        if stored.schema != self._layout.schema.encode() or stored.by != self._layout.by:
            raise UsageError(f"{self.path} has checkpoints of another arrangement: use another folder")
        for each in stored.files:
            self._facts[each.name] = FileFacts(each.size, each.footer_hash)
        return stored

    def _put(self, name: str, data: bytes) -> None:
        """Write a file whole or not at all, and make it durable."""
        temporary = self._at(f".{name}.tmp")
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            with open(open_regular(temporary, os.O_WRONLY | os.O_CREAT, PRIVATE_FILE), "wb") as file:
                file.write(data)
                file.flush()
                sync(file.fileno())
            os.rename(temporary, self._at(name))
            sync_path(self.path)
        except OSError as error:
            if error.errno in SPACE:
                raise no_space(f"{name} was not written", os.strerror(error.errno)) from error
            raise

    def _remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._at(name))

    def _at(self, name: str) -> str:
        return os.path.join(self.path, name)

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

from timespine.arrangement.batch import Batch
from timespine.arrangement.file import FileFacts, open_batch, write_batch
from timespine.arrangement.layout import Layout
from timespine.core.encoding.envelope import EnvelopeKind, decode_payload, unwrap_payload, wrap_payload
from timespine.errors import CorruptionError, Determinate, UsageError
from timespine.location.durable import (
    PRIVATE_FILE,
    SPACE,
    make_folders,
    no_space,
    open_regular,
    sync,
    sync_path,
)
from timespine.model.frontier import Frontier

_BATCH = re.compile(r"[0-9a-f]{32}\.batch")
_MANIFEST = re.compile(r"manifest-([0-9]{16})")


class ListedFile(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A file of a checkpoint."""

    name: str
    size: int
    footer_hash: bytes


class StoredCheckpoint(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The contents of a manifest."""

    number: int
    """Later checkpoints have larger numbers."""
    schema: bytes
    """The schema of the rows, encoded."""
    by: tuple[str, ...]
    """The columns that rows are arranged by."""
    files: tuple[ListedFile, ...]
    is_dirty: bool
    """Whether batches were inserted since the flag was cleared."""
    since: Frontier | None
    upper: Frontier | None


_decoder = msgspec.msgpack.Decoder(StoredCheckpoint)


class CheckpointFolder:
    """A folder of checkpoints of one arrangement. One process at a time may write to it; others read."""

    def __init__(self, path: str, layout: Layout, *, is_read_only: bool = False) -> None:
        self._path = os.path.abspath(path)
        self._layout = layout
        self._facts: dict[str, FileFacts] = {}
        self._lock: int | None = None
        if is_read_only:
            if not os.path.isdir(self._path):
                raise UsageError(f"there is no folder {self._path}: save a checkpoint there first")
            return
        make_folders(self._path)
        self._lock = open_regular(self._at("lock"), os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise UsageError(f"another process or spine writes to {self._path}: open it read-only") from None

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
        sync_path(self._path)

    def write_manifest(
        self, number: int, names: Sequence[str], is_dirty: bool, since: Frontier | None, upper: Frontier | None
    ) -> None:
        """Make a checkpoint of durable files, whole or not at all."""
        files = tuple(ListedFile(name, *self._facts[name]) for name in names)
        schema = self._layout.schema.encode()
        stored = StoredCheckpoint(number, schema, self._layout.by, files, is_dirty, since, upper)
        listing = {"number": number, "files": {each.name: each.size for each in files}}
        self._put(f"files-{number:016}.json", json.dumps(listing, indent=1).encode() + b"\n")
        self._put(f"manifest-{number:016}", wrap_payload(EnvelopeKind.CHECKPOINT, msgspec.msgpack.encode(stored)))

    def manifests(self) -> list[StoredCheckpoint]:
        """Return the checkpoints, the newest first. One that is damaged is a CorruptionError."""
        found = sorted((name for name in os.listdir(self._path) if _MANIFEST.fullmatch(name)), reverse=True)
        return [self._manifest(name) for name in found]

    def listed(self) -> list[str]:
        """Return the names of all files of batches."""
        return sorted(name for name in os.listdir(self._path) if _BATCH.fullmatch(name))

    def delete(self, manifests: Sequence[int], names: Sequence[str]) -> None:
        """Delete manifests, then files of batches; those that are missing are no error."""
        try:
            for number in manifests:
                self._remove(f"manifest-{number:016}")
                self._remove(f"files-{number:016}.json")
            if manifests:
                # SUBTLE: a manifest that comes back after a crash must find its files.
                sync_path(self._path)
            for name in names:
                self._remove(name)
                self._facts.pop(name, None)
        except OSError as error:
            raise Determinate(f"a file of {self._path} could not be deleted: {error.strerror}") from error

    def _manifest(self, name: str) -> StoredCheckpoint:
        with open(open_regular(self._at(name), os.O_RDONLY), "rb") as file:
            data = file.read()
        stored = decode_payload(_decoder, unwrap_payload(EnvelopeKind.CHECKPOINT, data))
        if name != f"manifest-{stored.number:016}" or not all(_BATCH.fullmatch(each.name) for each in stored.files):
            raise CorruptionError(f"{name} is not the manifest that its name says")
        if stored.schema != self._layout.schema.encode() or stored.by != self._layout.by:
            raise UsageError(f"{self._path} has checkpoints of another arrangement: use another folder")
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
            sync_path(self._path)
        except OSError as error:
            if error.errno in SPACE:
                raise no_space(f"{name} was not written", os.strerror(error.errno)) from error
            raise

    def _remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._at(name))

    def _at(self, name: str) -> str:
        return os.path.join(self._path, name)

"""Manifests of checkpoints: what they say, and how a reader keeps one from being deleted.

A reader that needs a checkpoint for some time holds a shared lock on the file of its manifest. The process that owns
the folder deletes a manifest, and the files that only it names, under an exclusive lock, which it gets only while no
reader has one. The system releases the locks of a process that dies.
"""

from __future__ import annotations

import fcntl
import os
import re
import time

import msgspec

from timespine.core.encoding.envelope import EnvelopeKind, decode_payload, unwrap_payload
from timespine.errors import CorruptionError, Unavailable, UsageError
from timespine.location.folder.durable import open_regular
from timespine.model.frontier import Frontier

BATCH_FILE = re.compile(r"[0-9a-f]{32}\.batch")
MANIFEST_FILE = re.compile(r"manifest-([0-9]{16})")

PIN_TRIES = 100
"""How often a reader looks for the newest manifest, if each one is deleted before it has its lock."""

PIN_PAUSE_S = 0.01
"""The pause in between."""


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
    origin: bytes | None = None
    """The collection that the rows are of, encoded (`follow/origin.py`); None if they are of none."""


_decoder = msgspec.msgpack.Decoder(StoredCheckpoint)


def manifest_name(number: int) -> str:
    """Return the name of the file of a manifest."""
    return f"manifest-{number:016}"


def manifest_numbers(folder: str) -> list[int]:
    """Return the numbers of the manifests of a folder, the newest first."""
    found = (MANIFEST_FILE.fullmatch(name) for name in os.listdir(folder))
    return sorted((int(match[1]) for match in found if match), reverse=True)


def decode_manifest(name: str, data: bytes) -> StoredCheckpoint:
    """Decode a manifest with every check; raise a CorruptionError if it is not the one that its name says."""
    stored = decode_payload(_decoder, unwrap_payload(EnvelopeKind.CHECKPOINT, data))
    if name != manifest_name(stored.number) or not all(BATCH_FILE.fullmatch(each.name) for each in stored.files):
        raise CorruptionError(f"{name} is not the manifest that its name says")
    return stored


def read_manifest(folder: str, number: int) -> StoredCheckpoint:
    """Read a manifest of a folder that this process owns."""
    name = manifest_name(number)
    with open(open_regular(os.path.join(folder, name), os.O_RDONLY), "rb") as file:
        return decode_manifest(name, file.read())


class PinnedManifest:
    """A manifest that is not deleted until this is closed, or the process ends."""

    def __init__(self, fd: int, stored: StoredCheckpoint) -> None:
        self._fd: int | None = fd
        self.stored = stored
        """What it says."""

    def close(self) -> None:
        """Let the manifest be deleted. Twice is fine."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __del__(self) -> None:
        self.close()


def pin_manifest(folder: str, number: int | None = None) -> PinnedManifest:
    """Pin a manifest, or the newest one; raise a UsageError if it is not there."""
    for _ in range(PIN_TRIES):
        try:
            numbers = manifest_numbers(folder)
        except (FileNotFoundError, NotADirectoryError):
            raise UsageError(f"there is no folder {folder}: save a checkpoint there first") from None
        if not numbers:
            raise UsageError(f"{folder} has no checkpoint: save one there first")
        pinned = _pin(folder, numbers[0] if number is None else number)
        if pinned is not None:
            return pinned
        if number is not None:
            raise UsageError(f"checkpoint {number} of {folder} was replaced by {numbers[0]}: open the folder again")
        time.sleep(PIN_PAUSE_S)
    raise Unavailable(f"each checkpoint of {folder} was replaced before it could be opened: try again")


def _pin(folder: str, number: int) -> PinnedManifest | None:
    """Lock a manifest and read it; None if it is gone, or being deleted."""
    name = manifest_name(number)
    path = os.path.join(folder, name)
    try:
        fd = open_regular(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        # SUBTLE: the owner may delete it between the opening and the lock, and its files too
        # (test_a_manifest_that_is_deleted_while_it_is_pinned_is_not_used).
        if not _is_locked(fd) or not _is_same_file(fd, path):
            os.close(fd)
            return None
        with open(os.dup(fd), "rb") as file:
            return PinnedManifest(fd, decode_manifest(name, file.read()))
    except BaseException:
        os.close(fd)
        raise


def _is_locked(fd: int) -> bool:
    """Take a shared lock; return False if the owner has the exclusive one."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False


def _is_same_file(fd: int, path: str) -> bool:
    """Return whether a path still leads to an open file."""
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(fd), there)


def delete_unless_pinned(folder: str, number: int) -> bool:
    """Delete a manifest, unless a reader pins it; return whether it is gone."""
    path = os.path.join(folder, manifest_name(number))
    try:
        fd = open_regular(path, os.O_RDWR)  # network file systems lock exclusively only what is open for writing
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(fd)

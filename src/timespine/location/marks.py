"""High-water marks: the least that the logs must contain, kept where damage to the logs does not reach.

A store whose logs lost their newest entries looks like a store that never had
them. So a mark beside the logs counts the entries that were appended, over all keys,
and names one of the newest. An adapter compares the mark with its logs when it opens
them, and raises a CorruptionError if the logs went back.

The mark may lag behind the logs and is never ahead of them:

- An adapter writes it after the commit that it counts is durable.
- An adapter does not sync it with every commit. A killed process loses none of it.
  Power loss may set it back to an older one that the system had written by itself.
- A reader reads the mark first, and the logs after it.

The file has two slots, and a write goes to the one that is not the newest: whatever
happens during a write, the other slot is whole.

    "TSM"  version (1 byte)  CRC-32 of all other bytes (4 bytes, big-endian)
    entries (8 bytes)  seqno (8 bytes)  checksum (4 bytes)  length of key (1 byte)  key

Only one process may write at a time: it holds the adapter's own lock.
"""

from __future__ import annotations

import contextlib
import io
import os
import struct
import zlib
from typing import NamedTuple

from timespine.errors import CorruptionError, VersionError
from timespine.ids import SEGMENT_MAX
from timespine.location.folder.durable import open_regular, set_mode, sync

VERSION = 1
"""The version of a slot that this code writes, and the newest that it reads."""

MAGIC = b"TSM"
SLOT = 512
"""Bytes of one slot: a sector, so that a write of one leaves the other alone."""

_HEAD = struct.Struct(">3sBI")
_BODY = struct.Struct(">QQIB")
_READS = 3
"""How often the file is read: a concurrent write may spoil one slot, and the next write the other."""


class Mark(NamedTuple):
    """The least that the logs must contain."""

    entries: int
    """The number of entries that were appended, over all keys: the sum of every head plus one."""
    key: str = ""
    """A key of the newest commit that the mark counts; empty if there is none."""
    seqno: int = 0
    """The number of the entry that this commit appended to the key."""
    checksum: int = 0
    """The checksum of that entry, as the adapter computes it."""


NOTHING = Mark(0)
"""The mark of logs that have no entry yet."""


class MarkFile:
    """The file of a mark."""

    def __init__(self, path: str, *, read_only: bool = False) -> None:
        """Open the file that exists; FileNotFoundError if it does not."""
        self.path = path
        flags = os.O_RDONLY if read_only else os.O_RDWR
        # SUBTLE: a number alone could be closed twice, the second time as the file of another thread
        # (test_interrupts.py).
        self._file = io.FileIO(path, "r" if read_only else "r+", opener=lambda path, _: open_regular(path, flags))

    def read(self) -> Mark:
        """Return the newest whole mark, or raise CorruptionError."""
        return self._newest()[1]

    def advance(self, least: int, entries: int, key: str, seqno: int, checksum: int) -> None:
        """Count more entries, beyond those that the mark counts or `least`; the key and the rest name one of them."""
        newest, mark = self._newest()
        counted = max(mark.entries, least) + entries
        os.pwrite(self._file.fileno(), encode_mark(Mark(counted, key, seqno, checksum)), SLOT * (1 - newest))

    def reset(self, mark: Mark) -> None:
        """Replace the mark durably, even by one that counts less."""
        os.pwrite(self._file.fileno(), encode_mark(mark) + bytes(SLOT), 0)
        sync(self._file.fileno())

    def sync(self) -> None:
        """Make the mark durable; without effect once the file is closed."""
        if not self._file.closed:
            sync(self._file.fileno())

    def close(self) -> None:
        """Close the file. Twice is fine, so that an interrupted close can be repeated."""
        self._file.close()

    def _newest(self) -> tuple[int, Mark]:
        """Return the slot with the newest mark, and the mark."""
        for _ in range(_READS):
            data = os.pread(self._file.fileno(), 2 * SLOT, 0)
            slots = [(mark.entries, slot, mark) for slot in (0, 1) if (mark := decode_mark(data, slot)) is not None]
            if slots:
                _, slot, mark = max(slots)
                return slot, mark
        raise CorruptionError(f"{self.path} is damaged, so nothing says what the log must contain: {ADVICE}")


ADVICE = "restore the store from a copy, or run `timespine doctor STORE --accept-loss` to go on with what is there"


def encode_mark(mark: Mark) -> bytes:
    """Encode a mark as one slot."""
    key = mark.key.encode()
    body = _BODY.pack(mark.entries, mark.seqno, mark.checksum, len(key)) + key
    head = MAGIC + bytes((VERSION,))
    return (head + zlib.crc32(body, zlib.crc32(head)).to_bytes(4, "big") + body).ljust(SLOT, b"\0")


def decode_mark(data: bytes, slot: int) -> Mark | None:
    """Decode one slot; return None if it is not whole."""
    piece = data[slot * SLOT : (slot + 1) * SLOT]
    if len(piece) < SLOT:
        return None
    magic, version, checksum = _HEAD.unpack_from(piece)
    entries, seqno, of_entry, length = _BODY.unpack_from(piece, _HEAD.size)
    end = _HEAD.size + _BODY.size + length
    if magic != MAGIC or length > SEGMENT_MAX:
        return None
    if zlib.crc32(piece[_HEAD.size : end], zlib.crc32(piece[:4])) != checksum:
        return None
    if version > VERSION:
        raise VersionError(f"a mark has version {version}, this is {VERSION}: upgrade to read it")
    return Mark(entries, piece[end - length : end].decode("ascii", "replace"), seqno, of_entry)


def create_mark_file(path: str, mark: Mark, mode: int) -> None:
    """Make the file durably, unless it exists."""
    temporary = f"{path}.new-{os.getpid()}-{os.urandom(8).hex()}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        try:
            set_mode(fd, mode)
            os.write(fd, encode_mark(mark) + bytes(SLOT))
            sync(fd)
        finally:
            os.close(fd)
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        os.unlink(temporary)

"""A file that only takes up space: a full disk needs that space to free more.

Expiring history, dropping a collection and collecting garbage are commits, and a commit needs space. So
`consensus.db.reserve` takes up a little of it beside the database. The client deletes the file when such a commit finds
the disk full, and retries the commit.

Processes share the file without a lock. Making it twice changes nothing, and of several processes that delete it one
learns that it did. A process that makes it while another one deletes it may fill a file that has no name: closing it
removes it.
"""

from __future__ import annotations

import contextlib
import os

from timespine.errors import CorruptionError
from timespine.location.folder.durable import mode_of, open_regular

RESERVE_BYTES = 1 << 20
"""The size of the reserve: some dozens of commits of a few pages each, or a rollup and some commits."""

SPARE_BYTES = RESERVE_BYTES
"""The free space beyond the reserve that making it needs: it must not take space that was just freed."""

_BLOCK = 512
"""The unit of st_blocks."""


def reserve_path(path: str) -> str:
    """Return the path of the reserve of a file."""
    return f"{path}.reserve"


def release_reserve(path: str) -> bool:
    """Delete the reserve of a file; return whether this call did, so that there is more space now."""
    try:
        os.unlink(reserve_path(path))
    except OSError:  # no reserve, or no right to change the folder: there is no more space than before
        return False
    return True


def restore_reserve(path: str) -> None:
    """Make the reserve of a file, unless it exists or space is short. Never an error: a store works without it."""
    name = reserve_path(path)
    with contextlib.suppress(OSError, CorruptionError):  # open_regular follows no link
        if _is_whole(name):
            return
        found = os.statvfs(os.path.dirname(path))
        if found.f_bavail * found.f_frsize < RESERVE_BYTES + SPARE_BYTES:
            return
        fd = open_regular(name, os.O_RDWR | os.O_CREAT, mode_of(path, 0o666))
        try:
            _allocate(fd)
        except OSError:
            os.unlink(name)  # a partial reserve is of no use
            raise
        finally:
            os.close(fd)


def _is_whole(name: str) -> bool:
    """Tell whether the reserve takes up its space: a copy of it may be sparse."""
    try:
        return os.lstat(name).st_blocks * _BLOCK >= RESERVE_BYTES
    except FileNotFoundError:
        return False


def _allocate(fd: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, RESERVE_BYTES)
        return
    zeros = memoryview(bytes(RESERVE_BYTES))  # macOS
    while zeros:
        zeros = zeros[os.write(fd, zeros) :]

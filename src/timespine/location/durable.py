"""Files and folders that survive power loss.

A file is only as durable as the entry that names it, and an entry only as
durable as every folder above it: whoever makes one syncs the folder it is in.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os

from timespine.errors import NoSpace

SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What the system says when there is no room for more."""


def no_space(what: str, reason: str) -> NoSpace:
    """The error for a full disk: what was not done, and what to do."""
    return NoSpace(f"{what}: {reason}; free some space on the disk, then expire history and run maintenance")


def sync(fd: int) -> None:
    """Make the file or folder durable: through the drive's cache where the platform asks for more."""
    full_sync = getattr(fcntl, "F_FULLFSYNC", None)
    if full_sync is not None:  # macOS: fsync alone stops at the drive
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, full_sync)
    os.fsync(fd)


def sync_path(path: str) -> None:
    """The same by name: the bytes of a file, or the entries of a folder."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        sync(fd)
    finally:
        os.close(fd)


def make_folders(path: str) -> None:
    """Make the folder and its parents where missing, each durable in its parent."""
    parent = os.path.dirname(path)
    if not os.path.isdir(path):
        if not os.path.isdir(parent) and parent != path:
            make_folders(parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)
        sync_path(parent)
    else:
        with contextlib.suppress(PermissionError):  # it was there; above it we may lack the right to look
            sync_path(parent)

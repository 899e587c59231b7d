"""Files and folders that survive power loss.

A file is only as durable as the entry that names it, and an entry only as durable as every folder above it. So each
function that makes a file or folder syncs the folder above it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat

from timespine.errors import CorruptionError, NoSpace

SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
"""The error numbers of the system for a disk or quota that is full."""

PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700
"""The modes of new files and folders: for their owner alone, unless the store was created to be shared."""


def shared_modes() -> tuple[int, int]:
    """Return the modes of the files and folders of a shared store, by the umask."""
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask, 0o777 & ~umask


def mode_of(path: str, most: int) -> int:
    """Return the permissions of a file or folder, for a new file beside it."""
    return stat.S_IMODE(os.stat(path).st_mode) & most


def no_space(what: str, reason: str) -> NoSpace:
    """Return the error for a full disk: what failed, and what to do."""
    return NoSpace(f"{what}: {reason}; free some space on the disk, or expire history and run maintenance")


def sync(fd: int) -> None:
    """Make the file or folder durable: through the drive's cache where the platform asks for more."""
    full_sync = getattr(fcntl, "F_FULLFSYNC", None)
    if full_sync is not None:  # macOS: fsync alone stops at the drive
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, full_sync)
    os.fsync(fd)


def sync_path(path: str) -> None:
    """Make a file or folder durable by its name: the bytes of a file, or the entries of a folder."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        sync(fd)
    finally:
        os.close(fd)


def set_mode(fd: int, mode: int) -> None:
    """Give a new file or folder its permissions, whatever the umask is. Bits inherited from its folder stay."""
    found = stat.S_IMODE(os.fstat(fd).st_mode)
    if found & 0o777 != mode:
        os.fchmod(fd, (found & ~0o777) | mode)


def open_regular(path: str, flags: int, mode: int = 0) -> int:
    """Open a file of a store; raise CorruptionError if it is a link. A new file gets exactly this mode."""
    try:
        if flags & os.O_CREAT:
            with contextlib.suppress(FileExistsError):
                fd = os.open(path, flags | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
                set_mode(fd, mode)
                return fd
        return os.open(path, (flags & ~os.O_CREAT) | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise CorruptionError(f"{path} is a link: nothing inside of a store may be one; remove it") from error
        raise


def refuse_links(*paths: str) -> None:
    """Raise CorruptionError if one of these paths is a link."""
    for path in paths:
        if os.path.islink(path):
            raise CorruptionError(f"{path} is a link: nothing inside of a store may be one; remove it")


def make_folders(path: str, mode: int = PRIVATE_FOLDER) -> None:
    """Make the folder and its parents where missing, each durable in its parent. The folder itself gets this mode."""
    parent = os.path.dirname(path)
    if not os.path.isdir(path):
        if not os.path.isdir(parent) and parent != path:
            make_folders(parent, mode)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, mode)
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                set_mode(fd, mode)
            finally:
                os.close(fd)
        sync_path(parent)
    else:
        with contextlib.suppress(PermissionError):  # an existing folder; its parent may be closed to this process
            sync_path(parent)

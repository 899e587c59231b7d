"""A store in a folder: files as blobs, and a SQLite file for the logs."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from timespine.errors import CorruptionError, Determinate, TimespineError, UsageError
from timespine.hints import Hint
from timespine.location.blob import Blob
from timespine.location.folder.durable import PRIVATE_FILE, PRIVATE_FOLDER, make_folders, refuse_links, shared_modes
from timespine.location.folder.local_blob import LocalBlob
from timespine.location.opening.place import OpenedPorts, OpenRequest
from timespine.location.opening.store_location import StoreLocation
from timespine.location.sqlite import sqlite_consensus
from timespine.location.sqlite.sqlite_consensus import SqliteConsensus
from timespine.location.sqlite.sqlite_mark import SUFFIX as MARK_SUFFIX

BLOBS = "blobs"
"""The folder of the blobs, within the folder of the store."""

CONSENSUS = "consensus.db"
"""The file of the logs, within the folder of the store."""

CONSENSUS_FILES = tuple(
    f"{CONSENSUS}{suffix}" for suffix in ("", "-wal", "-shm", ".lock", ".next", ".mark", ".reserve", ".maintainer")
)
"""The file of the logs, and the files beside it."""

APPENDER_FILE = f"{CONSENSUS}.appender"
"""The file of the process that appends for the others: there is none before processes lose to each other."""


class FolderPlace:
    """A folder that holds a store, or can hold one."""

    def __init__(self, location: StoreLocation) -> None:
        self._root = Path(location.path)

    def open(self, request: OpenRequest) -> OpenedPorts:
        root = self._root
        if request.consensus is not None:
            raise UsageError("a store in a folder has its logs there: leave out `consensus`")
        if not request.create and not (root / CONSENSUS).exists():
            raise missing_log(root)
        refuse_links(*(os.path.join(root, name) for name in (BLOBS, *CONSENSUS_FILES, APPENDER_FILE)))
        file_mode, folder_mode = shared_modes() if request.shared else (PRIVATE_FILE, PRIVATE_FOLDER)
        try:
            if request.create:
                make_folders(os.path.realpath(root), folder_mode)
        except OSError as error:
            raise UsageError(f"{root} cannot be a store: {error.strerror}") from error
        if not root.is_dir():
            raise UsageError(f"{root} cannot be a store: it is not a folder")
        read_only = request.read_only
        with contextlib.ExitStack() as ports:  # a failed opening closes the port that it has opened
            blobs = LocalBlob(root / BLOBS, read_only=read_only, mode=folder_mode)
            blob = ports.enter_context(contextlib.closing(blobs))
            logs = SqliteConsensus(root / CONSENSUS, read_only=read_only, mode=file_mode)
            ports.pop_all()
        return OpenedPorts(blob, logs, lambda: shutil.disk_usage(root).free)

    def open_blob(self, *, read_only: bool) -> Blob:
        root = self._root / BLOBS
        if not root.is_dir():
            raise UsageError(
                f"the store {self._root} does not exist on this machine: driver and executors need one shared file "
                "system, or a store in a bucket"
            )
        return LocalBlob(root, read_only=read_only)

    def identity(self) -> tuple[object, ...] | None:
        try:
            found = os.stat(self._root / CONSENSUS)
        except OSError:
            return None
        return found.st_dev, found.st_ino  # a file system does not reuse the inode of an open file

    def read_file(self, name: str, bytes_max: int) -> bytes | None:
        try:
            with open(self._root / name, "rb") as file:
                data = file.read(bytes_max + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise Determinate(f"cannot read {self._root / name}: {error.strerror}") from None
        if len(data) > bytes_max:
            raise CorruptionError(f"{self._root / name} has more than {bytes_max} bytes")
        return data

    def record_epoch(self, epoch: int) -> None:
        """Do nothing: the logs have it."""

    def file_of(self, key: str) -> str | None:
        return os.path.join(self._root, BLOBS, *key.split("/"))

    def accept_loss(self) -> tuple[int | None, int]:
        """Accept that the log lost commits; return how many entries were committed (None: unknown), and are left."""
        if not (self._root / CONSENSUS).exists():
            raise missing_log(self._root)
        return sqlite_consensus.accept_log_loss(self._root / CONSENSUS)


def missing_log(root: Path) -> TimespineError:
    """Make the error for a folder without a log: it never was a store, or it lost the log, as the mark shows."""
    log = root / CONSENSUS
    mark = log.with_name(CONSENSUS + MARK_SUFFIX)
    if not mark.is_file():
        return UsageError(f"there is no store in {root}", hint=Hint("create-store"))
    return CorruptionError(
        f"{log} is gone, although its mark {mark} is there: the log of this store was deleted or moved; "
        "restore the store from a copy, or remove the whole store to start anew"
    )

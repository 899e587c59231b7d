"""Open a store in a folder."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import time
from collections.abc import Callable

from timespine.client.load.file_source import as_path
from timespine.client.store import Store
from timespine.config import DEFAULT, Config
from timespine.errors import CorruptionError, TimespineError, UsageError, short_repr
from timespine.hints import Hint
from timespine.location import sqlite
from timespine.location.durable import PRIVATE_FILE, PRIVATE_FOLDER, make_folders, refuse_links, shared_modes
from timespine.location.local import LocalBlob
from timespine.location.sqlite import SqliteConsensus
from timespine.location.sqlite_mark import SUFFIX as MARK_SUFFIX

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


def accept_loss(location: str | os.PathLike[str]) -> tuple[int | None, int]:
    """Accept that the log of a store lost commits: no process can open the store before that.

    Return how many entries were committed (None: unknown), and how many the log has.
    """
    root = as_path(location)
    if not (root / CONSENSUS).exists():
        raise _missing_log(root)
    return sqlite.accept_log_loss(root / CONSENSUS)


def open(  # the name that users know
    location: str | os.PathLike[str],
    *,
    create: bool = True,
    read_only: bool = False,
    maintenance: bool = True,
    audit: float = 0.0,
    config: Config = DEFAULT,
    clock: Callable[[], float] = time.time,
    context: bool = False,
) -> Store:
    """Open the store in a folder; create the folder if it does not exist. Keep one open per process, and close it.

    With `read_only` the process writes nothing, not even a lease: a merge may delete blobs of a read, which is then
    planned again, and history may expire during a read. The folder need not be writable, and other processes may
    write to it. (One exception: a writer crashed, and its log was copied without the file that SQLite keeps beside
    it. Then a process has to open the store for writing first.)

    A new store is for its owner alone (modes 0700 and 0600). With `context` it is made as the umask says. Files
    made later have the permissions of `blobs` and `consensus.db`, so the option counts only once.

    `audit` is the share of parts that statistics allow to skip and that are read anyway, to check the statistics.
    """
    create = create and not read_only
    root = as_path(location)
    if "://" in os.fsdecode(location):
        raise UsageError(f"{short_repr(location)}: this version keeps stores in folders; give a path")
    if not create and not (root / CONSENSUS).exists():
        raise _missing_log(root)
    refuse_links(*(os.path.join(root, name) for name in (BLOBS, *CONSENSUS_FILES, APPENDER_FILE)))
    file_mode, folder_mode = shared_modes() if context else (PRIVATE_FILE, PRIVATE_FOLDER)
    try:
        if create:
            make_folders(os.path.realpath(root), folder_mode)
    except OSError as error:
        raise UsageError(f"{root} cannot be a store: {error.strerror}") from error
    if not root.is_dir():
        raise UsageError(f"{root} cannot be a store: it is not a folder")
    with contextlib.ExitStack() as ports:  # a failed opening closes the ports that it has opened
        blob = ports.enter_context(contextlib.closing(LocalBlob(root / BLOBS, read_only=read_only, mode=folder_mode)))
        logs = SqliteConsensus(root / CONSENSUS, read_only=read_only, mode=file_mode)
        consensus = ports.enter_context(contextlib.closing(logs))
        store = Store(
            blob,
            consensus,
            config=config,
            read_only=read_only,
            maintenance=maintenance,
            audit=audit,
            clock=clock,
            free_bytes=lambda: shutil.disk_usage(root).free,
            location=os.path.abspath(root),
        )
        ports.pop_all()
    return store


def _missing_log(root: pathlib.Path) -> TimespineError:
    """Make the error for a folder without a log: it never was a store, or it lost the log, as the mark shows."""
    log = root / CONSENSUS
    mark = log.with_name(CONSENSUS + MARK_SUFFIX)
    if not mark.is_file():
        return UsageError(f"there is no store in {root}", hint=Hint("create-store"))
    return CorruptionError(
        f"{log} is gone, although its mark {mark} is there: the log of this store was deleted or moved; "
        "restore the store from a copy, or remove the whole store to start anew"
    )

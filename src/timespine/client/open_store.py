"""Opening a store: `open` is where everybody begins."""

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
from timespine.errors import CorruptionError, TimespineError, UsageError, shown
from timespine.hints import Hint
from timespine.location import sqlite
from timespine.location.durable import PRIVATE_FILE, PRIVATE_FOLDER, make_folders, refuse_links, shared_modes
from timespine.location.local import LocalBlob
from timespine.location.sqlite import SqliteConsensus
from timespine.location.sqlite_mark import SUFFIX as MARK_SUFFIX

BLOBS = "blobs"
"""The folder of the blobs, in that of the store."""

CONSENSUS = "consensus.db"
"""The file of the logs, in that of the store."""


CONSENSUS_FILES = tuple(
    f"{CONSENSUS}{suffix}" for suffix in ("", "-wal", "-shm", ".lock", ".next", ".mark", ".reserve")
)
"""That file, and what is kept beside it."""


def accept_loss(location: str | os.PathLike[str]) -> tuple[int | None, int]:
    """Go on with what is there of a store whose log lost what was committed: nothing opens it otherwise.

    How many entries were committed (None: that is lost too), and how many are there.
    """
    root = as_path(location)
    if not (root / CONSENSUS).exists():
        raise _missing_log(root)
    return sqlite.accept_loss(root / CONSENSUS)


def open(  # as users know it
    location: str | os.PathLike[str],
    *,
    create: bool = True,
    read_only: bool = False,
    maintenance: bool = True,
    audit: float = 0.0,
    config: Config = DEFAULT,
    clock: Callable[[], float] = time.time,
    shared: bool = False,
) -> Store:
    """Open the store in a folder; it is made if it is not there. Keep one open per process, and close it.

    With `read_only` nothing is ever written, not even a lease: a read may have to be planned again
    when what it was reading is merged away, and history may go while you look at it. The folder need not be
    writable, and others may write to it meanwhile. (Only if one of them crashed, and its log was copied
    without the file that SQLite keeps beside it, somebody has to open it for writing first.)

    A new store is for its owner alone (modes 0700 and 0600). With `shared` it is made as the umask says. What is made
    in a store later has the permissions that its `blobs` and `consensus.db` have, so the option counts only once.

    `audit` is the share of parts skipped by their statistics that is read all the same, to see that it was right.
    """
    create = create and not read_only
    root = as_path(location)
    if "://" in os.fsdecode(location):
        raise UsageError(f"{shown(location)}: this version keeps stores in folders; give a path")
    if not create and not (root / CONSENSUS).exists():
        raise _missing_log(root)
    refuse_links(*(os.path.join(root, name) for name in (BLOBS, *CONSENSUS_FILES)))
    file_mode, folder_mode = shared_modes() if shared else (PRIVATE_FILE, PRIVATE_FOLDER)
    try:
        if create:
            make_folders(os.path.realpath(root), folder_mode)
    except OSError as error:
        raise UsageError(f"{root} cannot be a store: {error.strerror}") from error
    if not root.is_dir():
        raise UsageError(f"{root} cannot be a store: it is not a folder")
    with contextlib.ExitStack() as ports:  # a failed opening closes what it has opened
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
    """Say why a folder has no log: it never was a store, or lost the log, which only the mark beside it tells."""
    log = root / CONSENSUS
    mark = log.with_name(CONSENSUS + MARK_SUFFIX)
    if not mark.is_file():
        return UsageError(f"there is no store in {root}", hint=Hint("create-store"))
    return CorruptionError(
        f"{log} is gone, although its mark {mark} is there: the log of this store was deleted or moved; "
        "restore the store from a copy, or remove the whole store to start anew"
    )

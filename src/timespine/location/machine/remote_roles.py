"""Roles of the processes of this machine that have one store in a bucket open.

Logs in PostgreSQL or in a bucket have no folder on this machine. So the files of roles are in a private folder of the
user: below XDG_RUNTIME_DIR, or else below the folder for temporary files. A role decides nothing: without such a
folder, every process does its own work.
"""

from __future__ import annotations

import contextlib
import os
import tempfile

from timespine.location.folder.durable import PRIVATE_FOLDER
from timespine.location.machine.channel import Channel
from timespine.location.machine.role import EveryProcess, FileRole, Role
from timespine.location.machine.socket_channel import SocketChannel, is_private


class RemoteRoles:
    """The roles of one store among the processes of this machine and user."""

    def __init__(self, store: str | None) -> None:
        self._store = store
        """The id of the store; None for logs that belong to no store, which have no roles."""

    def role(self, name: str) -> Role:
        """Return the role of that name."""
        folder = self._folder()
        return EveryProcess() if folder is None else FileRole(f"{folder}/{self._store}.{name}", folder)

    def channel(self, name: str) -> Channel | None:
        """Return the role of that name, with requests to the process that has it; None if there is no folder for it."""
        folder = self._folder()
        return None if folder is None else SocketChannel(f"{folder}/{self._store}.{name}", folder)

    def _folder(self) -> str | None:
        """Return the folder of the files, which only this user can enter; None if there is none."""
        if self._store is None:
            return None
        own = os.environ.get("XDG_RUNTIME_DIR", "")
        above = own if own and is_private(own) else tempfile.gettempdir()
        folder = os.path.join(above, f"timespine-roles-{os.getuid()}")
        with contextlib.suppress(OSError):
            os.mkdir(folder, PRIVATE_FOLDER)
        # SUBTLE: another user may have made it first, in a folder that all users share (test_remote_roles.py).
        return folder if is_private(folder) else None

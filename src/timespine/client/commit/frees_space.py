"""Recognize transactions that free space: they may use the reserve of a full disk (`location.folder.reserve`)."""

from __future__ import annotations

from timespine.core.group import CommandTransaction
from timespine.core.transitions import (
    AdvanceUpper,
    Command,
    CompareAndAppend,
    ExpireLeases,
    ExpireReader,
    Finalize,
    Forget,
    ReleaseHold,
    Retain,
    RollUpAll,
)
from timespine.model.frontier import CLOSED

FREEING = (ExpireLeases, ExpireReader, Finalize, Forget, ReleaseHold, Retain, RollUpAll)
"""Commands that add no row, and after which maintenance can delete more blobs."""

CLOSING = AdvanceUpper(CLOSED)
"""The command that closes a collection."""


def is_freeing(transaction: CommandTransaction) -> bool:
    """Return whether all commands of a transaction free space."""
    return bool(transaction.commands) and all(_frees_space(command) for _, command in transaction.commands)


def _frees_space(command: Command) -> bool:
    if isinstance(command, CompareAndAppend):
        return command.new_upper == CLOSED and not command.batches
    return isinstance(command, FREEING) or command == CLOSING

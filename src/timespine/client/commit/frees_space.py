"""Which transactions free space: they may use the reserve of a full disk (`timespine.location.reserve`)."""

from __future__ import annotations

from timespine.core.group import Transaction
from timespine.core.transitions import (
    AdvanceUpper,
    Command,
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
"""Commands that add no row, and after which maintenance can delete more than before."""


def is_freeing(transaction: Transaction) -> bool:
    """Whether all that a transaction does is to let something go."""
    return bool(transaction.commands) and all(_frees_space(command) for _, command in transaction.commands)


def _frees_space(command: Command) -> bool:
    return isinstance(command, FREEING) or command == AdvanceUpper(CLOSED)

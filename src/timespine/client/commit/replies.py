"""The reply to a transaction: its answers, or why it was refused."""

from __future__ import annotations

from typing import TypeGuard

from timespine.core.group import Answers, Refused
from timespine.core.protocols.commit import raise_refusal
from timespine.core.transitions import TurnTaken
from timespine.errors import Fenced


def require_accepted(reply: Answers | Refused) -> Answers:
    """Return the answers to a transaction; raise a refusal."""
    if isinstance(reply, Refused):
        raise_refusal(reply)
    return reply


def is_fenced(reply: Answers | Refused) -> bool:
    """Return whether a transaction was refused because its committer or its writer had expired."""
    return isinstance(reply, Refused) and isinstance(reply.reason, Fenced)


def is_turn_taken(reply: Answers | Refused | None) -> TypeGuard[Refused]:
    """Return whether a transaction was refused because a change of another process has its turn."""
    return isinstance(reply, Refused) and isinstance(reply.reason, TurnTaken)

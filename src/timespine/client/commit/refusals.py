"""What a committer is told about a transaction: its answers, or why it was refused."""

from __future__ import annotations

from typing import TypeGuard

from timespine.core.group import Answers, Refused
from timespine.core.protocols.commit import raise_refusal
from timespine.core.transitions import TurnTaken
from timespine.errors import Fenced


def accepted(reply: Answers | Refused) -> Answers:
    """Return the answers to a transaction; raise a refusal."""
    if isinstance(reply, Refused):
        raise_refusal(reply)
    return reply


def is_fenced(reply: Answers | Refused) -> bool:
    """Whether it was refused because its committer or its writer was expired."""
    return isinstance(reply, Refused) and isinstance(reply.reason, Fenced)


def is_taken(reply: Answers | Refused | None) -> TypeGuard[Refused]:
    """Whether it was refused because a change of another process has its turn."""
    return isinstance(reply, Refused) and isinstance(reply.reason, TurnTaken)

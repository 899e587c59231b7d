"""The reply to a transaction: its answers, or why it was refused."""

from __future__ import annotations

import copy
from collections.abc import Callable, Container
from typing import TypeGuard

from timespine.core.group import Answers, CommandTransaction, Refused
from timespine.core.protocols.commit import raise_refusal
from timespine.core.transitions import TurnTaken
from timespine.errors import ClosedError, Fenced, TimespineError, UsageError


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


def with_names(
    error: TimespineError, transaction: CommandTransaction, known: Container[str], name_of: Callable[[str], str]
) -> TimespineError:
    """Return an error that names the collections of a transaction by their names, where they are known."""
    text = error.message
    for id in (each for each, _ in (*transaction.commands, *transaction.reads) if each not in known):
        if isinstance(error, UsageError) and text.startswith("there is no collection"):
            # A transaction has ids from the catalog: this one was dropped since, and maintenance has purged it.
            return ClosedError(f"collection {name_of(id)} is not there: it was dropped, or never created")
    for id in {each for each, _ in (*transaction.commands, *transaction.reads) if each in known}:
        text = text.replace(id, name_of(id))
    named = copy.copy(error)
    named.args = (f"{text}: it was dropped, or closed for good" if isinstance(error, ClosedError) else text,)
    return named

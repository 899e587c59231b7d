"""Calls of users: their requests, their answers, and whether those can be true."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from timespine.errors import Conflict, Determinate, Fenced, TimespineError, UsageError


@dataclass(slots=True)
class UserCall:
    """One call of a user."""

    id: str
    """The mark of the rows that it writes."""
    kind: str
    process: str
    since_event: int
    """The last compare-and-set that had happened when it began."""
    began: float
    """When it began, in virtual seconds."""
    until_event: int = -1
    """The last compare-and-set that had happened when it ended."""
    result: Any = None
    error: TimespineError | None = None
    is_killed: bool = False
    """Whether its process was killed meanwhile: no caller got an answer."""
    varies: bool = False
    """Whether the rows that it writes depend on the rows that it finds."""
    rows: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    """The rows that it adds, by collection."""

    @property
    def is_refused(self) -> bool:
        """Whether its caller knows that it did not happen and never will."""
        error = self.error
        return isinstance(error, UsageError | Conflict | Determinate) or (
            isinstance(error, Fenced) and not error.in_doubt
        )

    @property
    def is_done(self) -> bool:
        """Whether its caller knows that it happened."""
        return not self.is_killed and self.error is None

    def __str__(self) -> str:
        return f"{self.kind} {self.id} of {self.process}"


def mark_rows(value: object) -> str:
    """Return the call that wrote a value."""
    return str(value).partition(".")[0]

"""Why a query is refused or recomputed: the place in the text, what is the matter, and what to write instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason."""

    line: int
    """The line in the SQL text, from 1 on; 0 if the place is not known."""
    column: int
    """The column in the line, from 1 on; 0 if the place is not known."""
    what: str
    """What is the matter."""
    instead: str
    """What to write or do instead."""
    forbidden: bool = False
    """Whether no policy allows it: the query has no definite answer."""

    def __str__(self) -> str:
        place = f"line {self.line}, column {self.column}: " if self.line else ""
        return f"{place}{self.what}: {self.instead}"


class NoRule(Exception):
    """A part of a query has no rule."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(str(reason))
        self.reason = reason


def refuse(node: Any, what: str, instead: str, *, forbidden: bool = False) -> NoRule:
    """Make the refusal of a node of a syntax tree."""
    return NoRule(reason_at(node, what, instead, forbidden=forbidden))


def reason_at(node: Any, what: str, instead: str, *, forbidden: bool = False) -> Reason:
    """Make a reason at the first place in the text that is known of a node."""
    places = [
        (each.meta["line"], max(each.meta["col"] - (each.meta["end"] - each.meta["start"]), 1))
        for each in (node.walk() if node is not None else ())
        if "line" in each.meta
    ]
    line, column = min(places, default=(0, 0))
    return Reason(line, column, what, instead, forbidden)


def check_args(node: Any, allowed: set[str]) -> None:
    """Refuse a node with a part that its translation does not look at: to ignore it would change the meaning."""
    for name, value in node.args.items():
        if value and name not in allowed:
            what = f"{name.strip('_').replace('_', ' ').upper()} of {node.key} has no rule"
            raise refuse(value if hasattr(value, "walk") else node, what, "leave it out, or use policy 'full'")

"""Why a query is refused or recomputed: the place in the text, what is the matter, and what to write instead."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

WRITTEN = "written"
"""The key of what the user wrote for a function, in the metadata of its node."""

WITHOUT_TABLE = "without table"
"""The key that says of a column inside of an aggregate in ORDER BY that the user wrote no table before it."""

_OPERATORS = {"regexplike": "rlike"}
"""Operators that the parser has other names for."""


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


class FollowsRefusal(NoRule):
    """A part of a query depends on one that is refused. It adds no reason, so that the rest can be looked at."""

    def __init__(self) -> None:
        super().__init__(Reason(0, 0, "depends on a part that is refused", "change that part"))


def sorted_reasons(forbidden: Iterable[Reason], found: Iterable[Reason]) -> tuple[Reason, ...]:
    """Return reasons in the order of the text, each once; at one place, what is forbidden says all there is to say."""
    first = list(dict.fromkeys(forbidden))
    taken = {(each.line, each.column) for each in first if each.line}
    rest = [each for each in dict.fromkeys(found) if (each.line, each.column) not in taken]
    return tuple(sorted([*first, *rest], key=lambda each: (not each.line, each.line, each.column)))


def written_name(node: Any) -> str:
    """Return the name of a function as the user wrote it, in lower case."""
    word = node.meta.get(WRITTEN)
    if word is None:
        found = re.match(r"(\w+)\s*\(", node.sql("spark", comments=False))
        word = found[1] if found is not None else _OPERATORS.get(node.key, node.key)
    return str(word).lower()


def refuse(node: Any, what: str, instead: str, *, forbidden: bool = False) -> NoRule:
    """Make the refusal of a node of a syntax tree."""
    return NoRule(reason_at(node, what, instead, forbidden=forbidden))


def reason_at(node: Any, what: str, instead: str, *, forbidden: bool = False) -> Reason:
    """Make a reason at the first place in the text that is known of a node, or of what is right around it."""
    line, column = place_in_text(node)
    while not line and node is not None and isinstance(node.parent, exp.Condition | exp.Alias):
        node = node.parent
        line, column = place_in_text(node)
    return Reason(line, column, what, instead, forbidden)


def place_in_text(node: Any) -> tuple[int, int]:
    """Return the line and column of the first place in the text that is known of a node; zeros if none is."""
    places = [
        (each.meta["line"], max(each.meta["col"] - (each.meta["end"] - each.meta["start"]), 1))
        for each in (node.walk() if node is not None else ())
        if "line" in each.meta
    ]
    return min(places, default=(0, 0))


def check_args(node: Any, allowed: set[str]) -> None:
    """Refuse a node with a part that its translation does not look at: to ignore it would change the meaning."""
    for name, value in node.args.items():
        if value and name not in allowed:
            whole = written_name(node) if isinstance(node, exp.Func) else node.key
            what = f"{name.strip('_').replace('_', ' ').upper()} of {whole} has no rule"
            raise refuse(value if hasattr(value, "walk") else node, what, "leave it out, or use policy 'full'")

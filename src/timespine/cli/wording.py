"""The library speaks to people who write Python; here is how the same is said on the command line."""

from __future__ import annotations

import re
from collections.abc import Callable

_KINDS = {
    "str": "a text",
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number with a fraction",
    "Decimal": "a number that is too large",
    "list": "an array",
    "dict": "an object",
}


def _kind(found: re.Match[str]) -> str:
    return f"it holds {_KINDS.get(found[1], f'a {found[1]}')} where"


WORDS: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"create it with timespine\.open\(path\) or `timespine init`", "make one with `timespine init`"),
    (
        r"open it with store\[.*?\], or pass replace=True",
        "give another name, or add --replace to drop it and take its name over",
    ),
    (
        r"leave out merging=, or pass replace=True",
        "leave out --merging, or add --replace to drop it and take its name over",
    ),
    (r"evolve it, or pass replace=True", "give another name, or add --replace to drop it and take its name over"),
    (r"pass replace=True to give it again", "add --replace to give it again"),
    (r"pass force=True to drop it all the same", "add --force to drop it all the same"),
    (r"drop it first with store\.drop\(.*?, force=True\)", "drop it first with `timespine drop --force`"),
    (r"open it with store\[.*?\]", "give another name, or that --timeline"),
    (r"change it with store\[.*?\]\.retain\(\.\.\.\)", "give another name, or leave out --retain"),
    (r"\btimeline='(\w+)'", r"--timeline \1"),
    (r"timeout is a number of seconds, or None to wait for ever", "give a number of seconds"),
    (r"name the rows with where=, or append retractions", "use `timespine snapshot --where SQL`"),
    (r"; leave `as_of` out to read the newest complete time, or seal idle collections with store\.advance\(\)", ""),
    (r"multiplicity='column'", "--multiplicity column"),
    (r"\bas_of=\(\.\.\.\)", "--as-of A,B"),
    (r"\bupper=\(\.\.\.\)", "--upper A,B"),
    (r"`upper`", "--upper"),
    (r"write them with late='move' or late='drop'", "write them with --late move or --late drop"),
    (
        r"say at which times rows are written: at=\.\.\., times='column', or in",
        "say at which times rows are written: --at TIME, --time-column NAME, or in",
    ),
    (r"leave out times=\S+", "leave out --time-column"),
    (r"an end of between= names", "--low and --high name"),
    (r"so no key column is left for between=", "so no key column is left for --low and --high"),
    (r"to take a range of: read a snapshot with where=", "to take a range of: use `timespine snapshot --where SQL`"),
    (r"give a duration, or None for ever", "give --for a duration, or --for ever"),
    (r"`at`", "--at"),
    (r"\ba dict has a key", "an object has a key"),
    (r"\ba datetime has (a|no) zone", r"a time has \1 zone"),
    (r"it holds a (\S+) where", _kind),
)
"""What the library says, and what a user of the command line can do instead. A test sees that it still says so."""


def on_command_line(text: str) -> str:
    """A message of the library, with options and verbs in the place of Python."""
    for said, instead in WORDS:
        text = re.sub(said, instead, text)
    return _FRONTIER.sub(_typed, text)


_TIME = r"\(\d+(?:, \d+)+\)"
_FRONTIER = re.compile(rf"(^|\b(?:from|to|below|before|after|at|is|not) )(?:\[(\d+|{_TIME}(?:, {_TIME})*)\]|({_TIME}))")


def _typed(found: re.Match[str]) -> str:
    """Write a time or a frontier as it can be typed: 0,3 for [(0, 3)]."""
    times = re.sub(r"\), \(", " and ", found[2] or found[3]).strip("()")
    return f"{found[1]}{times.replace(', ', ',')}"

"""Word errors for the command line: hints with options and verbs, and JSON names for types of values."""

from __future__ import annotations

import re
from collections.abc import Mapping

from timespine.errors import InvalidRows, TimespineError, UsageError, with_article
from timespine.hints import Hint

_OTHERWISE = "add --replace to drop it and take its name over"
_IN_PYTHON = "use Python and a session of Spark, which the command line does not have"

SENTENCES: Mapping[str, str] = {
    # Stores and names.
    "create-store": "make one with `timespine init`",
    "copy-again": "run `timespine copy` again",
    "promote-copy": "read it, or make it a store of its own with `timespine promote`",
    "open-or-replace": f"give another name, or {_OTHERWISE}",
    "evolve-or-replace": f"give another name, or {_OTHERWISE}",
    "open-as-it-is": "give another name, or --timeline {timeline}",
    "change-retention": "give another name, or leave out --retain",
    "change-deadline": "give another name",
    "replace-blocked-name": "add --replace to give it again, or give another name",
    "use-another-name": "give another name",
    "drop-views-first": "drop them first, or add --force: they keep their rows, and are no longer refreshed",
    "drop-again": "drop it again in a moment: the next call that creates or drops a view releases what an interrupted "
    "drop left; or add --force",
    "release-or-force": "release them, or add --force to drop it anyway",
    "release-or-drop": "release them, or drop it first with `timespine drop --force`",
    "use-clock": "create the collection with --timeline clock",
    "give-retention": "give --for a duration, or --for ever",
    "give-storage": "give options in the variables of the environment",
    "give-endpoint": "credentials and the endpoint come from the variables of the environment",
    "check-storage": "check the variables of the environment",
    # Times.
    "read-complete-time": "ask for an earlier time or for none, or {later}",
    "wait-for-seal": "{later}",
    "complete-first": "append to it, or seal it with `timespine seal`",
    "give-as-of": "say --as-of A,B",
    "give-upper": "say --upper A,B",
    "give-rows-or-upper": "give rows, or --upper",
    "give-seconds": "give a number of seconds",
    "give-time-of-rows": "say at which time the rows are, --at A,B",
    "expire-ahead": "add --ahead if that is what you want",
    "leave-out-at": "leave out --at, or drop them",
    "give-at": "give --at or the columns {columns}",
    "give-at-or-times": "give either --at or --time-column",
    "give-write-times": "give --at TIME, --time-column NAME, or the columns {columns}",
    "leave-out-times": "leave out --time-column",
    "move-or-drop-late": "write them with --late move or --late drop, or at a later time",
    # Reading.
    "listen": "use `timespine changes`",
    "read-counts": "read with --multiplicity column to see them with their counts",
    "read-counts-or-pieces": "read with --multiplicity column",
    "find-by-where": "use `timespine snapshot --where SQL`",
    "range-by-where": "use `timespine snapshot --where SQL`",
    "give-key-or-range": "give COLUMN=VALUE, or --low and --high",
    "give-keys-or-where": "give COLUMN=VALUE, or --where SQL",
    "ask-is-null": "ask with IS NULL",
    "append-opposite": "find its diffs with `timespine changes` over fewer times, --after and --until, and append the "
    "opposite of some of them; other keys can be read with --where SQL",
    # Views.
    "create-view": "create one with `timespine view create`",
    "write-without-column": "write it without, with `timespine view create --replace`, or add a column of that name "
    "and run `timespine view rebuild`",
    "drop-or-write-without": "drop the view too, or write it without, with `timespine view create --replace`",
    "rebuild-types": "`timespine view rebuild` gives the view its new types",
    "rebuild-stages": "`timespine view rebuild` makes new ones",
    "give-function": "refresh it in Python, in the program that has the function",
    "give-session": _IN_PYTHON,
    "give-session-or-change": f"change them, or {_IN_PYTHON}",
    "install-spark": _IN_PYTHON,
    "leave-out-engine": "leave the engine to Timespine",
    "refresh-on-spark": f"with --times refresh Spark can: {_IN_PYTHON}",
    "compute-whole": f"give --policy full, and {_IN_PYTHON}",
}
"""The sentences of the command line by the hint codes of the library."""

_KINDS = {
    "str": "a text",
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number with a fraction",
    "Decimal": "a number that is too large",
    "list": "an array",
    "dict": "an object",
}
"""The JSON names of types of values."""

_TIME = r"\(\d+(?:, \d+)+\)"
_FRONTIER = re.compile(rf"(^|\b(?:from|to|below|before|after|at|is|not) )(?:\[(\d+|{_TIME}(?:, {_TIME})*)\]|({_TIME}))")


def hint_text(hint: Hint, *, can_wait: bool) -> str:
    """Word a hint with options and verbs."""
    later = "wait for it with --wait SECONDS" if can_wait else "again later"
    return SENTENCES[hint.code].format(later=later, **hint.args)


def error_text(error: TimespineError, row: str | None = None) -> str:
    """Describe an error, with another name for its row, if one is given."""
    text = error.message
    if isinstance(error, InvalidRows):
        text = text if row is None else error.at(row)
        if error.found_type:
            text = error.with_found(_KINDS.get(error.found_type, with_article(error.found_type)))
    return _FRONTIER.sub(_as_typed, text)


def reword(error: UsageError, text: str) -> UsageError:
    """Make a copy of the error with another text and the same hint."""
    return UsageError(text, hint=error.hint)


def _as_typed(found: re.Match[str]) -> str:
    """Write a time or a frontier as a user types it: 0,3 for [(0, 3)]."""
    times = re.sub(r"\), \(", " and ", found[2] or found[3]).strip("()")
    return f"{found[1]}{times.replace(', ', ',')}"

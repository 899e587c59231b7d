"""What a caller can do about an error, as a code with arguments.

An error carries a `Hint`. The library renders it in terms of Python, by the table here. The command line renders it as
options and commands, by its own table of the same codes (`cli/error_wording.py`). A test compares the two tables, and
fails for a code that no error uses. Another refuses Python syntax in all other messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple


class Hint(NamedTuple):
    """Advice on an error: a code of the table, and the arguments of its sentence."""

    code: str
    """The key of its sentence in the tables of the library and of the command line."""
    args: Mapping[str, str] = {}
    """The values for the names in braces of the sentence."""


SENTENCES: Mapping[str, str] = {
    # Stores and names.
    "create-store": "create it with timespine.open(path) or `timespine init`",
    "copy-again": "run timespine.copy again, or `timespine copy`",
    "promote-copy": "open it with read_only=True, or make it a store of its own with timespine.promote(...)",
    "open-or-replace": "open it with store[{name!r}], or pass replace=True",
    "evolve-or-replace": "evolve it, or pass replace=True",
    "open-as-it-is": "open it with store[{name!r}]",
    "change-retention": "change it with store[{name!r}].retain(...)",
    "change-deadline": "change it with store[{name!r}].forget_within(...)",
    "replace-blocked-name": "pass replace=True to give it again, or give another name",
    "use-another-name": "give another name",
    "drop-views-first": "drop them first, or drop the collection with force=True: they keep their rows, and are no "
    "longer refreshed",
    "drop-again": "drop it again in a moment: the next call that creates or drops a view releases what an interrupted "
    "drop left; or pass force=True",
    "release-or-force": "release them, or pass force=True to drop it anyway",
    "release-or-drop": "release them, or drop it first with store.drop({name!r}, force=True)",
    "use-clock": "create the collection with timeline='clock'",
    "give-retention": "give a duration, or None for ever",
    "give-storage": "give options with storage={{...}}",
    "give-endpoint": "credentials come from the environment of each process, and an endpoint from "
    "storage={{'endpoint': ...}}",
    "check-storage": "check `storage` and the variables of the environment",
    # Times.
    "read-complete-time": "leave `as_of` out to read the newest complete time, or complete this one: append, seal, or "
    "on the wall clock store.seal_idle()",
    "wait-for-seal": "seal it up to there, or wait longer",
    "complete-first": "append to it, seal it, or on the wall clock store.seal_idle()",
    "give-as-of": "say as_of=(...)",
    "give-upper": "say upper=(...)",
    "give-rows-or-upper": "give rows, or the `upper` to seal at",
    "give-seconds": "give a number of seconds, or None to wait for ever",
    "give-time-of-rows": "say at which time the rows are, at=(...)",
    "expire-ahead": "pass ahead=True if that is what you want",
    "leave-out-at": "leave out `at`, or drop them",
    "give-at": "give `at` or the columns {columns}",
    "give-at-or-times": "give either `at` or the column that has the times",
    "give-write-times": "give at=..., times='column', or the columns {columns}",
    "leave-out-times": "leave out times={name!r}",
    "move-or-drop-late": "write them with late='move' or late='drop', or at a later time",
    # Reading.
    "listen": "listen(), or ask for changes(after=...) now and then instead",
    "read-counts": "read with multiplicity='column' to see them with their counts",
    "read-counts-or-pieces": "read with multiplicity='column', or piece by piece",
    "find-by-where": "name the rows with where=, or append retractions",
    "range-by-where": "read a snapshot with where=",
    "give-key-or-range": "give a key, its first columns, or between=(low, high)",
    "give-keys-or-where": "say delete({{'id': 1}}) or delete(where='id = 1')",
    "ask-is-null": "ask with IS NULL or is_null()",
    "append-opposite": "`key_range` of this error has its key; updates() gives every diff by itself: append the "
    "opposite of some of them; other keys can be read with `where`",
    # Views.
    "create-view": "create one with store.view(name, sql=...)",
    "write-without-column": "write it without, store.view(name, sql=..., replace=True), or add a column of that name "
    "and call view.rebuild()",
    "drop-or-write-without": "drop the view too, or write it without, store.view(name, sql=..., replace=True)",
    "rebuild-types": "view.rebuild() gives the view its new types",
    "rebuild-stages": "view.rebuild() makes new ones",
    "give-function": "give it first, store.view({name!r}, frame=function)",
    "give-session": "give a session of Spark, spark=...",
    "give-session-or-change": "give one, spark=..., or change them",
    "install-spark": "pip install 'timespine[spark]'",
    "leave-out-engine": "leave out engine={engine!r}",
    "refresh-on-spark": "with times='refresh' Spark can",
    "compute-whole": "create it with policy='full', which computes the text on Spark, or with check=False, which skips "
    "this comparison",
}
"""The sentences of the library, by code."""


def _in_python(hint: Hint) -> str:
    """Render a hint in terms of Python."""
    return SENTENCES[hint.code].format(**hint.args)


_render: ContextVar[Callable[[Hint], str]] = ContextVar("render", default=_in_python)


def sentence(hint: Hint) -> str:
    """Render a hint in terms of Python, or of the interface that runs the call."""
    return _render.get()(hint)


@contextmanager
def rendered_by(render: Callable[[Hint], str]) -> Iterator[None]:
    """Render hints in the words of an interface: results have texts of errors too, such as those of a refresh."""
    token = _render.set(render)
    try:
        yield
    finally:
        _render.reset(token)

"""Small appends that wait for each other become one batch: converted, encoded and committed once.

On a counter each still stands at a time of its own, in the order in which they came. On
the wall clock all of them stand at the one that it shows: a time each would run ahead of
the clock as soon as there are more than a thousand in a second. The history has one line
for them. What does not fit is told to whoever gave it, and disturbs nobody else.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from timespine.client import writing
from timespine.client.access import Access
from timespine.client.given import names_of, with_diffs, with_keys
from timespine.client.line import Waiting
from timespine.client.loading import load
from timespine.client.moments import Moment, Progress
from timespine.client.storing import Loose, Runs, stored, stored_together
from timespine.client.writing import Committed, after, commit_between, free_time, made_of, next_of
from timespine.columnar.consolidate import consolidate
from timespine.columnar.rows import updates
from timespine.columnar.schema import TIME, Schema
from timespine.core.group import Answers
from timespine.errors import CorruptionError, SchemaChanged, UpperMismatch, UsageError, VersionError
from timespine.model.frontier import Frontier
from timespine.model.time import INT64_MAX

ROWS_MAX = 64
"""Rows of an append that waits for others: more are worth a batch of their own."""

ATTEMPTS = 4
"""How often a batch of several appends may lose to other processes before each is one of its own."""

_PLAIN = frozenset({int, float, str, bool, bytes, type(None)})


class Small(NamedTuple):
    """The rows of one append."""

    rows: Any
    likeness: Hashable
    """Rows that are alike can be converted together: each is read as it would be by itself."""


class Alike(NamedTuple):
    """Some appends, converted together."""

    places: list[int]
    """Which ones of the group."""
    rows: NDArray[np.int64]
    """How many each of them has."""
    table: pa.Table
    """Their updates, without times yet."""


def append(
    access: Access, rows: Any, at: Moment | None, upper: Progress | None, expected_upper: Progress | None
) -> Committed:
    """Append rows, with others that wait if they are few and nothing is said about their time."""
    if at is None and upper is None and expected_upper is None:
        likeness, names = _likeness(rows)
        _, schema = access.schema(access.known())
        if likeness is not None and schema.arity == 1 and schema.time_names[0] not in names:
            access.committer.check_writable()
            committed: Committed = access.appending.offer(Small(rows, likeness), partial(_append_all, access))
            return committed
        if isinstance(rows, pa.RecordBatchReader) and schema.arity == 1 and TIME not in rows.schema.names:
            # All rows are for one time, so they can be stored as they come.
            return load(access, rows, operation="append")
    return writing.append(access, rows, at, upper, expected_upper)


def _likeness(rows: Any) -> tuple[Hashable | None, Sequence[str]]:
    """What rows have in common with others that are read in the same way, and their columns; None: with nobody.

    SUBTLE: how values of Python are read depends on the types of all values of a column, so only those whose
    types are the same, and have nothing inside, are read together (test_gathering.py).
    """
    if isinstance(rows, pa.Table):
        return (rows.schema, rows.column_names) if 0 < rows.num_rows <= ROWS_MAX else (None, ())
    if type(rows) is list and 0 < len(rows) <= ROWS_MAX and set(map(type, rows)) == {dict}:
        kinds = set(map(_kinds, rows))
        if len(kinds) == 1:
            (likeness,) = kinds
            names, types = likeness
            if _PLAIN.issuperset(types):
                return likeness, names
    return None, ()


def _kinds(row: dict[str, Any]) -> tuple[tuple[str, ...], tuple[type, ...]]:
    return tuple(row), tuple(map(type, row.values()))


def _append_all(access: Access, group: list[Waiting[Small]]) -> None:
    """Append what waits, and give each its reply or its error."""
    left = group
    if len(group) > 1:
        try:
            left = _append_together(access, group)
        except SchemaChanged as changed:
            left = _without_lost(group, changed)
        except (UsageError, CorruptionError, VersionError):
            pass  # together they cannot be committed: each is told why, or is committed, by itself
        except Exception as error:
            for each in group:
                each.error = error
            return
    for each in left:
        try:
            each.reply = writing.append(access, each.item.rows, None, None, None)
        except Exception as error:
            each.error = error


def _without_lost(group: list[Waiting[Small]], changed: SchemaChanged) -> list[Waiting[Small]]:
    """Give the error to those whose values would be lost; the rest, to be appended each by itself.

    SUBTLE: by itself, an append would be made under the newest schema, where another column may have the name
    of the one that was dropped (test_schema_changes.py).
    """
    for each in group:
        if not names_of(each.item.rows).isdisjoint(changed.dropped):
            each.error = changed
    return [each for each in group if not each.is_done]


def _append_together(access: Access, group: list[Waiting[Small]]) -> list[Waiting[Small]]:
    """Append as one batch what can be converted; the rest."""
    id, schema = access.schema(access.known())
    all_alike = _converted(group, schema)
    fitting = sorted(place for alike in all_alike for place in alike.places)
    (time_name,) = schema.time_names
    for _ in range(ATTEMPTS):
        state = access.known()
        first = free_time(access, state)
        if len(fitting) < 2 or state.upper.is_closed or first + len(fitting) > INT64_MAX:
            return group
        numbered = {place: first + number for number, place in enumerate(fitting)}
        timed = pa.concat_tables(_timed(alike, numbered, time_name) for alike in all_alike)
        table = consolidate(timed, (*schema.order_names, time_name))
        rows = np.bincount(table.column(time_name).to_numpy() - first, minlength=len(fitting)).tolist()
        times = numbered
        if access.entry.timeline == "clock":
            times = dict.fromkeys(fitting, first)
            table = consolidate(_at(table, first, time_name), (*schema.order_names, time_name))
        last = times[fitting[-1]]
        commit = partial(_commit, access, table, first, last, state.upper)
        try:
            seqno = stored(access, id, schema, table, commit, share=len(fitting)).seqno(access.id)
        except UpperMismatch:
            continue  # another process was first, and the free times are later ones
        for place, count in zip(fitting, rows, strict=True):
            group[place].reply = Committed(times[place], after(times[place]), count, seqno)
        return _left(access, group)
    return _append_each(access, [group[place] for place in fitting], group)


def _append_each(access: Access, fitting: list[Waiting[Small]], group: list[Waiting[Small]]) -> list[Waiting[Small]]:
    """Append each as a batch of its own, in one commit; the rest.

    Other processes were first again and again. Now the commit itself decides where each batch stands, which
    takes longer, but nothing has to be encoded once more while others are at it.
    """
    at = free_time(access, access.known())
    made = [made_of(access, each.item.rows, (at,)) for each in fitting]

    def commit(runs: list[Runs]) -> Answers:
        commands = [next_of(access, some, each.table.num_rows, at) for some, each in zip(runs, made, strict=True)]
        return access.committer.commit(*((access.id, command) for command in commands))

    replies = stored_together([Loose(access, each.id, each.schema, each.table) for each in made], commit)
    for each, reply, some in zip(fitting, replies, made, strict=True):
        each.reply = Committed(reply.time, reply.upper, some.table.num_rows, replies.seqno(access.id))
    return _left(access, group)


def _left(access: Access, group: list[Waiting[Small]]) -> list[Waiting[Small]]:
    """Those that were not appended with the others."""
    left = [each for each in group if not each.is_done]
    access.committer.session.count("grouped", len(group) - len(left) - 1)
    return left


def _commit(access: Access, table: pa.Table, first: int, last: int, expected: Frontier, runs: Runs) -> Answers:
    new_upper = after(last)
    return commit_between(access, runs, table.num_rows, Frontier.at(first), new_upper, expected, "append")


def _converted(group: list[Waiting[Small]], schema: Schema) -> list[Alike]:
    """The appends as tables, as few as possible; those that do not fit the schema are left out."""
    by_likeness: dict[Hashable, list[int]] = {}
    for place, each in enumerate(group):
        by_likeness.setdefault(each.item.likeness, []).append(place)
    found: list[Alike] = []
    for places in by_likeness.values():
        try:
            found.append(_alike(group, places, schema))
        except UsageError:
            for place in places:
                try:
                    found.append(_alike(group, [place], schema))
                except UsageError:
                    continue  # it is told so when it is tried by itself
    return found


def _alike(group: list[Waiting[Small]], places: list[int], schema: Schema) -> Alike:
    given = [group[place].item.rows for place in places]
    rows = pa.concat_tables(given) if isinstance(given[0], pa.Table) else list(chain.from_iterable(given))
    table = updates(with_keys(with_diffs(rows, schema), schema), schema, (0,))
    return Alike(places, np.array([len(each) for each in given]), table)


def _timed(alike: Alike, times: dict[int, int], time_name: str) -> pa.Table:
    """Appends as updates, each at its time."""
    return _at(
        alike.table, np.repeat(np.array([times[place] for place in alike.places], np.int64), alike.rows), time_name
    )


def _at(table: pa.Table, times: int | NDArray[np.int64], time_name: str) -> pa.Table:
    """Updates at other times."""
    place = table.column_names.index(time_name)
    column = pa.array(np.broadcast_to(times, table.num_rows))
    return table.set_column(place, table.schema.field(place), column)

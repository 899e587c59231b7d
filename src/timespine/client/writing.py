"""Appending: rows become a run, the run becomes durable, and a commit points at it."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa

from timespine.client.access import Access
from timespine.client.given import names_of, with_diffs, with_keys
from timespine.client.inspecting import plain
from timespine.client.moments import Moment, Progress, to_user
from timespine.client.storing import anywhere, stored
from timespine.columnar.consolidate import check_weights, consolidate
from timespine.columnar.intake import to_arrow
from timespine.columnar.rows import updates
from timespine.columnar.runs import rows_in
from timespine.columnar.schema import Schema
from timespine.core.group import Answers
from timespine.core.hollow import HollowBatch, Run
from timespine.core.state import State
from timespine.core.transitions import AppendedAt, AppendNext, Command, CompareAndAppend
from timespine.errors import UpperMismatch, UsageError
from timespine.model.description import Description
from timespine.model.frontier import Frontier
from timespine.model.time import INT64_MAX, Time

Together = tuple[Command, ...]
"""Commands that are committed with an append, all or nothing."""

MINIMAL_MAX = 64
"""Minimal times of one append that are told apart, of times with several coordinates."""


class Committed(msgspec.Struct, frozen=True):
    """What an append came to."""

    time: int | Time | None
    """The time of its updates; None if they have several, or there are none."""
    upper: Frontier
    """The collection is complete below this now."""
    rows: int
    """Updates that were stored: equal ones count once."""
    seqno: int
    """The number of the state that has them: that of its commit; if nothing was changed, of the state that was read."""


def append(
    access: Access,
    rows: Any,
    at: Moment | None,
    upper: Progress | None,
    expected_upper: Progress | None,
    operation: str = "append",
    together: Together = (),
) -> Committed:
    """Append rows at the time they name, at `at`, or at the next free time; `together` with other commands."""
    rows = once(rows)
    state = access.known()
    _, schema = access.schema(state)
    given = access.time_of(at) if at is not None else None
    free = given is None and schema.arity == 1 and names_of(rows).isdisjoint(schema.time_names)
    if not free:
        return _append_at(
            access, made_of(access, rows, given, at_once=False), upper, expected_upper, operation, together
        )
    if expected_upper is not None:
        given = (max(access.next_time(), *(each for (each,) in access.frontier_of(expected_upper).elements)),)
        return _append_at(
            access, made_of(access, rows, given, at_once=False), upper, expected_upper, operation, together
        )
    if upper is not None:
        return _append_below(access, rows, upper, operation, together)
    tentative = free_time(access, state)
    made = made_of(access, rows, (tentative,), at_once=False)

    def commit(runs: tuple[Run, ...]) -> Committed:
        return commit_next(access, runs, rows_in(runs), tentative, operation, together)

    return stored(access, made.id, made.schema, made.table, commit, is_sorted=made.is_sorted)


def free_time(access: Access, state: State) -> int:
    """The time that is free next, as far as a state tells."""
    return max(access.next_time(), state.upper.time if state.upper.elements else 0)


def once(rows: Any) -> Any:
    """Rows that may be looked at more than once: what can be read only once is read now.

    SUBTLE: whatever starts again, because somebody else was first or the schema is another one by now,
    would find a reader at its end and take that for no rows (test_writing.py, test_changing.py).
    """
    return to_arrow(rows) if hasattr(rows, "__arrow_c_stream__") and not _is_table(rows) else rows


def _is_table(rows: Any) -> bool:
    """Whether rows are in memory already, as columns."""
    return isinstance(rows, pa.Table | pl.DataFrame) or hasattr(rows, "iloc")


class Made(NamedTuple):
    """Rows as updates."""

    id: int
    """The schema that they are written with."""
    schema: Schema
    table: pa.Table
    lower: Frontier
    """The minimal times of all that was given, rows included that cancelled out; closed if nothing was."""
    latest: Time | None
    """A time at or after them."""
    is_sorted: bool
    """Whether they are consolidated and in order. If they are too many, their parts are, once they are written."""

    @property
    def time(self) -> int | Time | None:
        """The time of all rows; None if they have several, or there are none."""
        return to_user(self.latest) if self.latest is not None and self.lower.elements == (self.latest,) else None


def made_of(access: Access, rows: Any, at: Time | None, *, at_once: bool = True) -> Made:
    """Make updates of rows. If they do not fit the schema that is known, look for a newer one.

    Sort them, unless they need not be sorted `at_once` and are more than `Config.sort_bytes`.
    """
    known = access.known()
    id, schema = access.schema(known)
    try:
        table = _table(rows, schema, at)
    except UsageError:
        state = access.state()
        if len(state.schemas) == len(known.schemas):
            raise
        id, schema = access.schema(state)
        table = _table(rows, schema, at)
    lower, latest = (Frontier((at,)), at) if at is not None else extent(table, schema)
    check_weights(table, schema)
    is_sorted = at_once or table.nbytes <= access.config.sort_bytes
    if is_sorted:
        table = consolidate(table, (*schema.order_names, *schema.time_names))
    return Made(id, schema, table, lower, latest, is_sorted)


def _table(rows: Any, schema: Schema, at: Time | None) -> pa.Table:
    return updates(with_keys(with_diffs(rows, schema), schema), schema, at)


def _append_below(access: Access, rows: Any, upper: Progress, operation: str, together: Together) -> Committed:
    """Append rows at the next free time, which must be before the upper that the caller names."""
    while True:
        reached = access.known().upper
        if reached.is_closed:
            raise access.closed()
        (first,) = reached.elements
        made = made_of(access, rows, (max(access.next_time(), *first),), at_once=False)
        try:
            return _append_at(access, made, upper, first, operation, together)
        except UpperMismatch:
            access.state()  # somebody else was first, and the next free time is a later one


def commit_next(
    access: Access, runs: tuple[Run, ...], rows: int, at: int, operation: str, together: Together = ()
) -> Committed:
    """Commit runs whose rows stand at one time, at that time or the next free one."""
    answers = commit_together(access, (next_of(access, runs, rows, at, operation), *together))
    reply: AppendedAt = answers[0]
    return Committed(reply.time, reply.upper, rows, answers.seqno(access.id))


def next_of(access: Access, runs: tuple[Run, ...], rows: int, at: int, operation: str = "append") -> AppendNext:
    """The command that appends runs whose rows stand at one time, at that time or the next free one."""
    batch = HollowBatch(anywhere(1), rows, runs)
    return AppendNext(batch, at, None, operation, access.config.inline_total_bytes)


def commit_together(access: Access, commands: Together) -> Answers:
    """Commit commands to one collection, all or nothing; their replies."""
    return access.committer.commit(*((access.id, each) for each in commands))


def _append_at(
    access: Access,
    made: Made,
    upper: Progress | None,
    expected_upper: Progress | None,
    operation: str,
    together: Together,
) -> Committed:
    """Append rows whose times are fixed, for as long as those are not sealed."""
    id, schema, table, lower, latest, is_sorted = made
    new_upper = upper_of(access, upper, latest, schema)
    if not _is_below(table, schema, new_upper):
        raise UsageError(f"some rows are at or after the upper {new_upper} that this append is to complete")
    expected = access.frontier_of(expected_upper) if expected_upper is not None else None

    def commit(runs: tuple[Run, ...]) -> Committed:
        rows = rows_in(runs)
        answers = commit_between(access, runs, rows, lower, new_upper, expected, operation, together)
        return Committed(made.time, answers[0], rows, answers.seqno(access.id))

    check_not_before(expected, lower)
    return stored(access, id, schema, table, commit, is_sorted=is_sorted)


def upper_of(access: Access, upper: Progress | None, latest: Time | None, schema: Schema) -> Frontier:
    """How far an append of rows up to a time completes the collection: as far as is said, or just past them."""
    if upper is not None:
        return access.frontier_of(upper)
    if latest is None:
        raise UsageError("nothing to append, and no `upper` to advance to")
    if schema.arity != 1:
        raise UsageError("with several coordinates say how far this completes the collection: upper=(...)")
    return after(latest[0])


def check_not_before(expected: Frontier | None, lower: Frontier) -> None:
    """A UsageError if rows are before the upper that an append expects.

    SUBTLE: nobody else looks at the times in the rows, and some before the upper would change what was
    read already: now, or when they are merged with what is there (test_writing.py).
    """
    if expected is not None and not expected <= lower:
        raise UsageError(f"rows at {plain(lower)} are before the upper {expected} that this append expects")


def commit_between(
    access: Access,
    runs: tuple[Run, ...],
    rows: int,
    lower: Frontier,
    new_upper: Frontier,
    expected: Frontier | None,
    operation: str,
    together: Together = (),
) -> Answers:
    """Commit runs whose rows are not before `lower`, wherever the upper is until then, or where it is expected."""
    arity = access.known().arity
    believed = expected if expected is not None else access.known().upper
    while True:
        if believed.is_closed:
            raise access.closed()
        if not believed <= lower:
            raise UsageError(f"rows at {plain(lower)} come too late: {access.name} is complete up to {believed}")
        batch = HollowBatch(Description(believed, new_upper, Frontier.minimum(arity)), rows, runs)
        batches = (batch,) if runs else ()
        command = CompareAndAppend(batches, believed, new_upper, operation, access.config.inline_total_bytes)
        try:
            return commit_together(access, (command, *together))
        except UpperMismatch as mismatch:
            if expected is not None or not isinstance(mismatch.actual, Frontier):
                raise
            believed = mismatch.actual


def after(time: int) -> Frontier:
    """The upper of a collection that is complete up to a time."""
    if time >= INT64_MAX:
        raise UsageError(f"time {time} is the last there is: nothing completes it but closing the collection")
    return Frontier.at(time + 1)


def extent(table: pa.Table, schema: Schema) -> tuple[Frontier, Time | None]:
    """The minimal times of a table, and a time at or after all of them."""
    if table.num_rows == 0:
        return Frontier(), None
    arrays = [table.column(name).to_numpy() for name in schema.time_names]
    latest = tuple(int(array.max()) for array in arrays)
    if len(arrays) == 1:
        return Frontier.at(int(arrays[0].min())), latest
    distinct = np.unique(np.stack(arrays, axis=1), axis=0)
    minimal: list[Time] = []
    while len(distinct) and len(minimal) < MINIMAL_MAX:
        # In lexicographic order, the first that is left is at or after none of the others.
        minimal.append(tuple(int(each) for each in distinct[0]))
        distinct = distinct[(distinct < distinct[0]).any(axis=1)]
    if len(distinct):  # so many that they are not told apart: a time before all of them will do
        minimal = [tuple(int(array.min()) for array in arrays)]
    return Frontier(tuple(minimal)), latest


def _is_below(table: pa.Table, schema: Schema, upper: Frontier) -> bool:
    """Whether no time of a table is at or after a frontier."""
    arrays = [table.column(name).to_numpy() for name in schema.time_names]
    for element in upper.elements:
        beyond = arrays[0] >= element[0]
        for array, coordinate in zip(arrays[1:], element[1:], strict=True):
            beyond &= array >= coordinate
        if beyond.any():
            return False
    return True

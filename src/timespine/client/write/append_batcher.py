"""Batch small appends: those that wait for each other are converted, encoded and committed once.

On a counter each append still has a time of its own, in the order in which they came. On
the wall clock all of them stand at the time that it shows: a time for each would run ahead
of the clock at more than a thousand appends per second. The history has one line for them.
An append whose rows do not fit gets its error, and the others are committed without it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from timespine.client.commit.leader_queue import Waiting
from timespine.client.commit.retry import RETRY
from timespine.client.context import Access
from timespine.client.results import CommitResult
from timespine.client.row_args import names_of
from timespine.client.time_args import Moment, Progress
from timespine.client.write.append import append
from timespine.client.write.bulk_load import load
from timespine.client.write.prepare import PreparedRows, to_updates, upper_after
from timespine.client.write.read_current import moved
from timespine.client.write.stage import Runs
from timespine.client.write.step_commit import commit_steps
from timespine.client.write.transaction_steps import AppendStep, AtTransactionTime, append_command
from timespine.columnar.kernels.consolidate import consolidate
from timespine.columnar.schema.schema import TIME, Schema
from timespine.core.transitions import Command
from timespine.errors import (
    Contention,
    CorruptionError,
    InvalidRows,
    SchemaChanged,
    UpperMismatch,
    UsageError,
    VersionError,
)
from timespine.model.frontier import Frontier
from timespine.model.time import INT64_MAX

ROWS_MAX = 64
"""Rows of an append that is batched with others: more are worth a batch of their own."""

_PLAIN = frozenset({int, float, str, bool, bytes, type(None)})


class PendingAppend(NamedTuple):
    """One append that waits."""

    rows: Any
    key: Hashable
    """Appends with the same key can be converted together: each is read as it would be by itself."""


class ConvertedAppends(NamedTuple):
    """Some appends that were converted together."""

    places: list[int]
    """Which ones of the group."""
    rows: NDArray[np.int64]
    """How many each of them has."""
    table: pa.Table
    """Their updates, without times yet."""


def append_or_wait(
    access: Access, rows: Any, at: Moment | None, upper: Progress | None, expected_upper: Progress | None
) -> CommitResult:
    """Append rows: in a batch with others that wait, if the rows are few and nothing is said about their time."""
    if at is None and upper is None and expected_upper is None:
        key, names = _conversion_key(rows)
        _, schema = access.schema(access.known())
        if key is not None and schema.arity == 1 and schema.time_names[0] not in names:
            committed: CommitResult = access.appending.offer(PendingAppend(rows, key), partial(_append_all, access))
            return committed
        if isinstance(rows, pa.RecordBatchReader) and schema.arity == 1 and TIME not in rows.schema.names:
            # All rows are for one time, so they can be stored as they come.
            return load(access, rows, operation="append")
    return append(access, rows, at, upper, expected_upper)


def _conversion_key(rows: Any) -> tuple[Hashable | None, Sequence[str]]:
    """Find what rows share with others that can be converted with them, and their columns; None: nothing.

    SUBTLE: how values of Python are read depends on the types of all values of a column, so only those whose
    types are the same, and have nothing inside, are read together (test_append_batcher.py).
    """
    if isinstance(rows, pa.Table):
        return (rows.schema, rows.column_names) if 0 < rows.num_rows <= ROWS_MAX else (None, ())
    if type(rows) is list and 0 < len(rows) <= ROWS_MAX and set(map(type, rows)) == {dict}:
        kinds = set(map(_row_signature, rows))
        if len(kinds) == 1:
            (key,) = kinds
            names, types = key
            if _PLAIN.issuperset(types):
                return key, names
    return None, ()


def _row_signature(row: dict[str, Any]) -> tuple[tuple[str, ...], tuple[type, ...]]:
    return tuple(row), tuple(map(type, row.values()))


def _append_all(access: Access, group: list[Waiting[PendingAppend]]) -> None:
    """Append all that waits, and give each its reply or its error."""
    left = group
    if len(group) > 1:
        try:
            left = _append_together(access, group)
        except SchemaChanged as changed:
            left = _without_lost(group, changed)
        except (UsageError, CorruptionError, VersionError):
            pass  # they cannot be committed together: each is committed, or gets its error, by itself
        except Exception as error:
            for each in group:
                each.error = error
            return
    for each in left:
        try:
            (each.reply,) = commit_steps(_alone(access, each))
        except Exception as error:
            each.error = error


def _alone(access: Access, waiting: Waiting[PendingAppend]) -> AppendStep:
    """Make the step that appends the rows of one append at a time that the commit chooses."""
    return AppendStep(access, [waiting.item.rows], floats=True)


def _without_lost(group: list[Waiting[PendingAppend]], changed: SchemaChanged) -> list[Waiting[PendingAppend]]:
    """Give the error to those whose values would be lost; the rest is appended one by one.

    SUBTLE: by itself, an append would be prepared under the newest schema, where another column may have the name
    of the one that was dropped (test_schema_changes.py).
    """
    for each in group:
        if not names_of(each.item.rows).isdisjoint(changed.dropped):
            each.error = changed
    return [each for each in group if not each.is_done]


def _append_together(access: Access, group: list[Waiting[PendingAppend]]) -> list[Waiting[PendingAppend]]:
    """Append as one batch those that can be converted; give the rest."""
    id, schema = access.schema(access.known())
    converted = _convert(group, schema)
    places = sorted(place for each in converted for place in each.places)
    if len(places) < 2:
        return group
    fitting = [group[place] for place in places]
    try:
        results = _commit_group(GroupAppendStep(access, id, schema, converted, places))
    except Contention:
        # Other processes were first again and again. Now the commit itself decides where each append stands: that
        # takes longer, but nothing is encoded again while others commit.
        results = commit_steps(*(_alone(access, each) for each in fitting))
    for each, result in zip(fitting, results, strict=True):
        each.reply = result
    left = [each for each in group if not each.is_done]
    access.committer.session.count("grouped", len(group) - len(left) - 1)
    return left


def _commit_group(step: GroupAppendStep) -> list[CommitResult]:
    """Commit several appends as one batch; Contention if other processes take its times again and again."""
    results: list[CommitResult]
    (results,) = commit_steps(step, starts=RETRY.group_starts)
    return results


@dataclass(slots=True)
class GroupAppendStep(AtTransactionTime):
    """Several appends as one batch. On a counter each has a time of its own, from that of the transaction on."""

    id: int
    """The schema that they were converted with."""
    schema: Schema
    converted: list[ConvertedAppends]
    places: list[int]
    """Which appends of the group these are, in order."""
    written: int = 0
    """The first time that their rows were written with."""
    rows: list[int] = field(default_factory=list)
    """How many updates each of them has."""
    total: int = 0

    @property
    def _is_numbered(self) -> bool:
        return self.access.entry.timeline != "clock"

    def _last(self, at: int) -> int:
        return at + len(self.places) - 1 if self._is_numbered else at

    def prepare(self, upper: Frontier, at: int | None, stack: contextlib.ExitStack) -> PreparedRows | None:
        assert at is not None
        if at + len(self.places) > INT64_MAX:
            raise UsageError("these appends have no times left together")
        schema = self.schema
        (time_name,) = schema.time_names
        order = (*schema.order_names, time_name)
        numbered = {place: at + number for number, place in enumerate(self.places)}
        timed = pa.concat_tables(_at_times(each, numbered, time_name) for each in self.converted)
        table = consolidate(timed, order)
        self.rows = np.bincount(table.column(time_name).to_numpy() - at, minlength=len(self.places)).tolist()
        if not self._is_numbered:
            table = consolidate(_with_times(table, at, time_name), order)
        self.written, self.total = at, table.num_rows
        first, last = Frontier.at(at), (self._last(at),)
        return PreparedRows(self.access, self.id, schema, table, first, last, share=len(self.places))

    def next_upper(self, upper: Frontier, at: int | None) -> Frontier:
        return upper_after(self._last(at)) if at is not None else upper

    def follow(self, at: int | None, *, exactly: bool = False, quickly: bool = False) -> None:
        if self._is_numbered and at is not None and at != self.written:
            # Several times cannot be moved by metadata: the appends are numbered anew.
            raise UpperMismatch(Frontier.at(self.written), Frontier.at(at))

    def commands(self, runs: Runs, upper: Frontier, at: int | None) -> list[Command]:
        assert at is not None
        placed = moved(runs, self.written, at)
        return [append_command(self.access, placed, self.total, upper, self.next_upper(upper, at), "append")]

    def result(self, replies: list[Any], at: int | None, seqno: int) -> list[CommitResult]:
        assert at is not None
        times = [at + number if self._is_numbered else at for number in range(len(self.places))]
        return [CommitResult(time, upper_after(time), rows, seqno) for time, rows in zip(times, self.rows, strict=True)]


def _convert(group: list[Waiting[PendingAppend]], schema: Schema) -> list[ConvertedAppends]:
    """Convert the appends to as few tables as possible; leave out those that do not fit the schema."""
    by_key: dict[Hashable, list[int]] = {}
    for place, each in enumerate(group):
        by_key.setdefault(each.item.key, []).append(place)
    found: list[ConvertedAppends] = []
    for places in by_key.values():
        try:
            found.append(_convert_together(group, places, schema))
        except InvalidRows:
            for place in places:
                try:
                    found.append(_convert_together(group, [place], schema))
                except InvalidRows:
                    continue  # it gets its error when it is tried by itself
    return found


def _convert_together(group: list[Waiting[PendingAppend]], places: list[int], schema: Schema) -> ConvertedAppends:
    given = [group[place].item.rows for place in places]
    rows = pa.concat_tables(given) if isinstance(given[0], pa.Table) else list(chain.from_iterable(given))
    table = to_updates(rows, schema, (0,))
    return ConvertedAppends(places, np.array([len(each) for each in given]), table)


def _at_times(converted: ConvertedAppends, times: dict[int, int], time_name: str) -> pa.Table:
    """Give the updates of each append its time."""
    return _with_times(
        converted.table,
        np.repeat(np.array([times[place] for place in converted.places], np.int64), converted.rows),
        time_name,
    )


def _with_times(table: pa.Table, times: int | NDArray[np.int64], time_name: str) -> pa.Table:
    """Give updates other times."""
    place = table.column_names.index(time_name)
    column = pa.array(np.broadcast_to(times, table.num_rows))
    return table.set_column(place, table.schema.field(place), column)

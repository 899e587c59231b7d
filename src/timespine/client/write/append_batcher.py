"""Batch small appends: the leading thread converts, encodes and commits those that wait together once.

They wait in the queue of the committer, as drafts (`client.commit.draft`), and the leading thread commits them with
the waiting transactions. On a counter each append has a time of its own, in the order of the queue. On the wall clock
all of them get its present time: a time for each would run ahead of the clock at more than a thousand appends per
second. The history has one line for them.
An append whose rows do not fit gets its error, and the others are committed without it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from timespine.client.commit.draft import Stages
from timespine.client.commit.group_commit import NAMED
from timespine.client.commit.leader_queue import PendingCall
from timespine.client.commit.retry_policy import RETRY
from timespine.client.commit.schema_check import SchemaCheck, convert_to_newest
from timespine.client.context import CollectionHandle, decode_schema
from timespine.client.time_args import FrontierLike, TimeLike
from timespine.client.write.append import append_rows
from timespine.client.write.bulk_load import bulk_load
from timespine.client.write.prepare import PreparedRows, next_free_time, to_updates, upper_after
from timespine.client.write.stage import Runs, StagedRuns, did_not_commit, stage, unplaced_description
from timespine.client.write.transaction_steps import AppendStep, AtTransactionTime, append_command
from timespine.client.write_results import CommitResult
from timespine.columnar.kernels.consolidate import consolidate
from timespine.columnar.schema.schema import TIME, Schema
from timespine.core.batch import HollowBatch
from timespine.core.group import Answers, CommandTransaction, Refused
from timespine.core.transitions import AppendNext, Command
from timespine.errors import (
    CorruptionError,
    InlineBudgetExceeded,
    InvalidRows,
    SchemaChanged,
    TimespineError,
    UpperMismatch,
    UsageError,
    VersionError,
)
from timespine.model.frontier import Frontier
from timespine.model.time import INT64_MAX

ROWS_MAX = 64
"""Most rows of an append that is batched with others: more are worth a batch of their own."""

BYTES_MAX = 1 << 20
"""Most bytes of a batch that the leading thread stores for others: a larger put would hold up all commits."""

NO_STACK = contextlib.ExitStack()
"""The stack of small appends, which read nothing and so release nothing."""

_PLAIN = frozenset({int, float, str, bool, bytes, type(None)})


class PendingAppend(NamedTuple):
    """One append that waits: a draft (`client.commit.draft`)."""

    handle: CollectionHandle
    rows: Any
    key: Hashable
    """The conversion key: appends with the same one are converted together, as each would be alone."""

    @property
    def kind(self) -> Hashable:
        """The kind of the draft: appends to one collection are committed as one batch."""
        return self.handle.id

    def stages(self, group: list[PendingCall[PendingAppend]]) -> Stages:
        """Commit the appends of a group."""
        return _stages(self.handle, group)


class ByItself(NamedTuple):
    """The reply to an append that could not be committed with others: its own thread commits it."""

    rows: Any


class ConvertedAppends(NamedTuple):
    """Some appends that were converted together."""

    places: list[int]
    """Their places in the group."""
    rows: NDArray[np.int64]
    """The number of rows of each."""
    table: pa.Table
    """Their updates, without times."""


def append_or_wait(
    handle: CollectionHandle,
    rows: Any,
    at: TimeLike | None,
    upper: FrontierLike | None,
    expected_upper: FrontierLike | None,
) -> CommitResult:
    """Append rows: in a batch with others that wait, if they are few and neither they nor the caller name a time."""
    if at is None and upper is None and expected_upper is None:
        key, names = _conversion_key(rows)
        _, schema = handle.schema(handle.known())
        if key is not None and schema.arity == 1 and schema.time_names[0] not in names:
            reply = handle.committer.offer_draft(PendingAppend(handle, rows, key), handle.id)
            if not isinstance(reply, ByItself):
                committed: CommitResult = reply
                return committed
            return append_rows(handle, reply.rows)
        if isinstance(rows, pa.RecordBatchReader) and schema.arity == 1 and TIME not in rows.schema.names:
            # All rows get one time, so they can be stored as they arrive.
            return bulk_load(handle, rows, operation="append")
    return append_rows(handle, rows, at, upper, expected_upper)


def _conversion_key(rows: Any) -> tuple[Hashable | None, Sequence[str]]:
    """Return the conversion key of rows, and their columns; the key is None for rows that are converted alone.

    SUBTLE: the conversion of Python values depends on the types of all values of a column. So only rows whose
    types are the same, and not nested, are converted together (test_append_batcher.py).
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


# The work of the leading thread.


def _stages(handle: CollectionHandle, group: list[PendingCall[PendingAppend]]) -> Stages:
    """Commit all appends of a group as one batch, and give each its reply or its error."""
    id, schema = handle.schema(handle.known())
    converted = _convert(group, schema) if len(group) > 1 else []
    places = sorted(place for each in converted for place in each.places) or [0]
    fitting = [group[place] for place in places]
    for each in group:
        if each not in fitting:
            each.reply = ByItself(each.item.rows)  # its own thread gets the error
    alone = [AppendStep(handle, [each.item.rows], floats=True) for each in fitting]
    try:
        if len(fitting) == 1:
            results = yield from _commit_together(handle, alone)
        else:
            results = yield from _commit_group(handle, GroupAppendStep(handle, id, schema, converted, places), alone)
    except SchemaChanged as changed:
        _answer_by_newest_schema(handle, fitting, id, changed)
    except _Separately:
        for each in fitting:
            each.reply = ByItself(each.item.rows)
    else:
        for each, result in zip(fitting, results, strict=True):
            each.reply = result


class _Separately(Exception):
    """These appends cannot be committed by the leader: each is committed, or gets its error, in its own thread."""


class _Outrun(Exception):
    """Other processes took the times of a group on every try."""


def _commit_group(
    handle: CollectionHandle, step: GroupAppendStep, alone: list[AppendStep]
) -> Generator[CommandTransaction, Answers | Refused, list[CommitResult]]:
    """Commit several appends as one batch."""
    results: list[CommitResult]
    try:
        (results,) = yield from _commit_together(handle, [step])
    except _Outrun:
        # Now the commit chooses the time of each append: that takes longer, but nothing is encoded again while
        # other processes commit.
        results = yield from _commit_together(handle, alone)
    except (UsageError, CorruptionError, VersionError) as error:
        if isinstance(error, SchemaChanged) or handle.committer.session.frozen is not None:
            raise
        raise _Separately from error
    return results


def _commit_together(
    handle: CollectionHandle, steps: Sequence[AppendStep | GroupAppendStep]
) -> Generator[CommandTransaction, Answers | Refused, list[Any]]:
    """Prepare, stage and commit steps of one collection; return the result of each."""
    inline = True
    for _ in range(RETRY.group_starts):
        known = handle.known()
        at = [None if step.floats else _free_time(handle, known.upper) for step in steps]
        staged: list[StagedRuns] = []
        try:
            for step, time in zip(steps, at, strict=True):
                staged.append(stage(_bounded(step.prepare(known.upper, time, NO_STACK)), inline=inline))
            commands = [
                (handle.id, command)
                for step, each, time in zip(steps, staged, at, strict=True)
                for command in step.commands(each.runs, known.upper, time)
            ]
            reply = yield from _judged(handle, CommandTransaction(tuple(commands)))
        except (TimespineError, _Separately) as error:
            if len(staged) < len(steps) or isinstance(error, _Separately) or did_not_commit(error):
                _discard(staged)
            raise
        replies = _replies_of(reply)
        if replies is not None:
            for each in staged:
                each.count_rows()
            left, seqno = iter(replies), dict(reply.seqnos).get(handle.id, known.seqno)
            return [step.result(list(islice(left, 1)), time, seqno) for step, time in zip(steps, at, strict=True)]
        assert isinstance(reply, Refused)
        _discard(staged)
        if isinstance(reply.reason, InlineBudgetExceeded):
            inline = False
        elif not isinstance(reply.reason, UpperMismatch):
            raise _Separately
        handle.committer.session.count("commits started again")
    raise _Outrun


def _judged(
    handle: CollectionHandle, transaction: CommandTransaction
) -> Generator[CommandTransaction, Answers | Refused, Answers | Refused]:
    """Offer a transaction, and again after a change of the schema by which its rows lose no value."""
    judge = SchemaCheck(handle.committer.state)
    try:
        reply = yield transaction
        while judge.looks_again(reply):
            reply = yield judge.apply(transaction)
    except NAMED as error:
        raise handle.committer.named(error, transaction) from error
    return reply


def _replies_of(reply: Answers | Refused) -> Sequence[Any] | None:
    """Return the replies to the commands of a transaction; None if it was refused."""
    return None if isinstance(reply, Refused) else reply


def _bounded(prepared: PreparedRows | None) -> PreparedRows | None:
    """Leave rows that take long to store to their own thread: no other thread could commit during the put."""
    if prepared is not None and prepared.table.nbytes > BYTES_MAX:
        raise _Separately
    return prepared


def _discard(staged: list[StagedRuns]) -> None:
    """Delete the blobs of a refused commit."""
    for each in staged:
        each.discard()


def _free_time(handle: CollectionHandle, upper: Frontier) -> int:
    if upper.is_closed:
        raise handle.closed()
    return next_free_time(handle, upper)


def _answer_by_newest_schema(
    handle: CollectionHandle, group: list[PendingCall[PendingAppend]], id: int, changed: SchemaChanged
) -> None:
    """Give the error to appends whose values would be lost; let the threads of the others commit them.

    SUBTLE: a thread would prepare its append under the newest schema, where another column may have the name of the
    dropped one. So the append is converted here, by the schema that its caller knew (test_schema_changes.py).
    """
    state = handle.known()
    newest, schema = handle.schema(state)
    written = decode_schema(state.schemas[id])
    for each in group:
        try:
            table, lost = convert_to_newest(to_updates(each.item.rows, written, (0,)), written, schema)
        except InvalidRows:
            each.reply = ByItself(each.item.rows)
            continue
        if lost:
            each.error = SchemaChanged(handle.id, id, newest, lost, handle.name)
            each.error.__cause__ = changed
        else:
            each.reply = ByItself(table.drop_columns(list(schema.time_names)))


@dataclass(slots=True)
class GroupAppendStep(AtTransactionTime):
    """Several appends as one batch. On a counter each has a time of its own, from that of the transaction on."""

    id: int
    """The id of the schema that they were converted with."""
    schema: Schema
    converted: list[ConvertedAppends]
    places: list[int]
    """The places of these appends in the group, in order."""
    written: int = 0
    """The first time that their rows were written with."""
    rows: list[int] = field(default_factory=list)
    """The number of updates of each."""
    total: int = 0

    @property
    def floats(self) -> bool:
        """Whether the commit chooses the time: on the wall clock all of them have one time, which it can move."""
        return self.handle.entry.timeline == "clock"

    def _last(self, at: int) -> int:
        return at if self.floats else at + len(self.places) - 1

    def prepare(self, upper: Frontier, at: int | None, stack: contextlib.ExitStack) -> PreparedRows | None:
        if at is None:
            at = next_free_time(self.handle, upper)
        if at + len(self.places) > INT64_MAX:
            raise UsageError("the time line has too few times left for these appends")
        schema = self.schema
        (time_name,) = schema.time_names
        order = (*schema.order_names, time_name)
        numbered = {place: at + number for number, place in enumerate(self.places)}
        timed = pa.concat_tables(_at_times(each, numbered, time_name) for each in self.converted)
        table = consolidate(timed, order)
        self.rows = np.bincount(table.column(time_name).to_numpy() - at, minlength=len(self.places)).tolist()
        if self.floats:
            table = consolidate(_with_times(table, at, time_name), order)
        self.written, self.total = at, table.num_rows
        first, last = Frontier.at(at), (self._last(at),)
        return PreparedRows(self.handle, self.id, schema, table, first, last, share=len(self.places))

    def next_upper(self, upper: Frontier, at: int | None) -> Frontier:
        return upper_after(self._last(at)) if at is not None else upper

    def commands(self, runs: Runs, upper: Frontier, at: int | None) -> list[Command]:
        handle = self.handle
        if at is None:
            batch = HollowBatch(unplaced_description(1), self.total, runs)
            return [AppendNext(batch, self.written, None, "append", handle.config.inline_total_bytes)]
        return [append_command(handle, runs, self.total, upper, self.next_upper(upper, at), "append")]

    def result(self, replies: list[Any], at: int | None, seqno: int) -> list[CommitResult]:
        if at is None:
            reply = replies[-1]
            return [CommitResult(reply.time, reply.upper, rows, seqno) for rows in self.rows]
        times = range(at, at + len(self.places))
        return [CommitResult(time, upper_after(time), rows, seqno) for time, rows in zip(times, self.rows, strict=True)]


def _convert(group: list[PendingCall[PendingAppend]], schema: Schema) -> list[ConvertedAppends]:
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
                    continue  # its own thread gets the error
    return found


def _convert_together(group: list[PendingCall[PendingAppend]], places: list[int], schema: Schema) -> ConvertedAppends:
    given = [group[place].item.rows for place in places]
    rows = pa.concat_tables(given) if isinstance(given[0], pa.Table) else list(chain.from_iterable(given))
    table = to_updates(rows, schema, (0,))
    return ConvertedAppends(places, np.array([len(each) for each in given]), table)


def _at_times(converted: ConvertedAppends, times: dict[int, int], time_name: str) -> pa.Table:
    """Set the time of the updates of each append."""
    return _with_times(
        converted.table,
        np.repeat(np.array([times[place] for place in converted.places], np.int64), converted.rows),
        time_name,
    )


def _with_times(table: pa.Table, times: int | NDArray[np.int64], time_name: str) -> pa.Table:
    """Replace the times of updates."""
    place = table.column_names.index(time_name)
    column = pa.array(np.broadcast_to(times, table.num_rows))
    return table.set_column(place, table.schema.field(place), column)

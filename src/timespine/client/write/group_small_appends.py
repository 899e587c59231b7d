"""Batch small appends: the leading thread converts, encodes and commits those that wait together once.

They wait in the queue of the committer (`client.commit.queued_append`), and the leading thread commits them with the
waiting transactions. On a counter each append has a time of its own, in the order of the queue. On the wall clock
all of them get its present time: a time for each would run ahead of the clock at more than a thousand appends per
second. The history has one line for them.
An append whose rows do not fit gets its error, and the others are committed without it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Hashable, Iterable, Sequence
from itertools import chain, islice
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from timespine.client.arguments.argument_types import Row, RowsLike
from timespine.client.arguments.time_args import FrontierLike, TimeLike
from timespine.client.commit.accept_older_schema import SchemaCheck, convert_to_newest
from timespine.client.commit.group_commit import NAMED
from timespine.client.commit.leader_queue import PendingCall
from timespine.client.commit.queued_append import AppendCalls, Stages
from timespine.client.commit.retry_limits import RETRY
from timespine.client.inner_handles import CollectionHandle
from timespine.client.write.append import append_rows
from timespine.client.write.prebuilt.bulk_load import bulk_load
from timespine.client.write.prepare import PreparedRows, next_free_time, to_updates
from timespine.client.write.small_appends.group_append_step import ConvertedAppends, GroupAppendStep
from timespine.client.write.small_appends.relay_messages import SmallAppends
from timespine.client.write.stage_rows import StagedTogether
from timespine.client.write.transaction_steps import AppendStep, StepResult
from timespine.client.write_results import CommitResult
from timespine.columnar.schema.schema import TIME, Schema, decode_schema
from timespine.core.group import Answers, CommandTransaction, Origin, Refused, StaleOrigins
from timespine.errors import (
    CorruptionError,
    Determinate,
    Indeterminate,
    InlineBudgetExceeded,
    InvalidRows,
    SchemaChanged,
    UpperMismatch,
    UsageError,
    VersionError,
)
from timespine.model.frontier import Frontier

ROWS_MAX = 64
"""Most rows of an append that is batched with others: more are worth a batch of their own."""

BYTES_MAX = 1 << 20
"""Most bytes of a batch that the leading thread stores for others: a larger put would hold up all commits."""

NO_STACK = contextlib.ExitStack()
"""The stack of small appends, which read nothing and so release nothing."""

_PLAIN = frozenset({int, float, str, bool, bytes, type(None)})


class PendingAppend(NamedTuple):
    """One append that waits: a queued append (`client.commit.queued_append`)."""

    handle: CollectionHandle
    rows: RowsLike
    key: Hashable
    """The conversion key: appends with the same one are converted together, as each would be alone."""

    @property
    def collection(self) -> str:
        """The id of the collection."""
        return self.handle.id

    @property
    def kind(self) -> Hashable:
        """The kind of the queued append: appends to one collection are committed as one batch."""
        return self.handle.id

    @property
    def appends(self) -> Sequence[PendingAppend]:
        """The appends of this queued append: itself."""
        return (self,)

    @property
    def origin(self) -> None:
        """None: its own process commits it."""

    def stages(self, group: list[PendingCall[QueuedSmallAppend]]) -> Stages:
        """Commit the appends of a group."""
        return _stages(self.handle, group)

    def relay(self, group: list[PendingCall[PendingAppend]]) -> SmallAppends:
        """Return the appends of a group, for another process to commit."""
        return SmallAppends(self.handle, group)


class RelayedAppends(NamedTuple):
    """Appends that another process handed over: one queued append of this process."""

    handle: CollectionHandle
    appends: Sequence[PendingAppend]
    origin: Origin
    """The group of the other process."""

    @property
    def collection(self) -> str:
        """The id of the collection."""
        return self.handle.id

    @property
    def kind(self) -> Hashable:
        """The kind of the queued append: it is staged together with the appends of this process."""
        return self.handle.id

    def stages(self, group: list[PendingCall[QueuedSmallAppend]]) -> Stages:
        """Commit the appends of a group."""
        return _stages(self.handle, group)

    def relay(self, group: AppendCalls) -> None:
        """Return None: it was handed over once."""


QueuedSmallAppend = PendingAppend | RelayedAppends


class ByItself(NamedTuple):
    """The reply to an append that could not be committed with others: its own thread commits it."""

    rows: RowsLike


def append_or_wait(
    handle: CollectionHandle,
    rows: RowsLike,
    at: TimeLike | None,
    upper: FrontierLike | None,
    expected_upper: FrontierLike | None,
) -> CommitResult:
    """Append rows: in a batch with others that wait, if they are few and neither they nor the caller name a time."""
    handle.check_unowned()
    if at is None and upper is None and expected_upper is None:
        _, schema = handle.schema(handle.known())
        pending = pending_append(handle, rows)
        if pending is not None:
            reply = handle.committer.offer_append(pending, handle.id)
            if not isinstance(reply, ByItself):
                committed: CommitResult = reply
                return committed
            return append_rows(handle, reply.rows)
        if isinstance(rows, pa.RecordBatchReader) and schema.arity == 1 and TIME not in rows.schema.names:
            # All rows get one time, so they can be stored as they arrive.
            return bulk_load(handle, rows, operation="append")
    return append_rows(handle, rows, at, upper, expected_upper)


def pending_append(handle: CollectionHandle, rows: RowsLike) -> PendingAppend | None:
    """Return an append that is batched with others; None if the rows are many, name a time, or are not plain."""
    key, names = _conversion_key(rows)
    _, schema = handle.schema(handle.known())
    if key is None or schema.arity != 1 or schema.time_names[0] in names:
        return None
    return PendingAppend(handle, rows, key)


def _conversion_key(rows: RowsLike) -> tuple[Hashable | None, Sequence[str]]:
    """Return the conversion key of rows, and their columns; the key is None for rows that are converted alone.

    SUBTLE: the conversion of Python values depends on the types of all values of a column. So only rows whose
    types are the same, and not nested, are converted together (test_group_small_appends.py).
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


def _row_signature(row: Row) -> tuple[tuple[str, ...], tuple[type, ...]]:
    return tuple(row), tuple(map(type, row.values()))


# The work of the leading thread.


class _Entry(NamedTuple):
    """One append of a call of the group."""

    call: PendingCall[QueuedSmallAppend]
    rows: RowsLike
    key: Hashable


def _stages(handle: CollectionHandle, group: list[PendingCall[QueuedSmallAppend]]) -> Stages:
    """Commit all appends of a group as one batch, and give each its reply or its error."""
    id, schema = handle.schema(handle.known())
    entries, converted = _convert_fitting(group, schema)
    if not entries:
        return
    steps = [AppendStep(handle, [each.rows], floats=True) for each in entries]
    calls = list(dict.fromkeys(each.call for each in entries))
    try:
        origins = _origins(handle, entries)
        if len(entries) == 1:
            results = yield from _commit_together(handle, steps, origins)
        else:
            places = sorted(place for each in converted for place in each.places)
            step = GroupAppendStep(handle, id, schema, converted, places)
            results = yield from _commit_group(handle, step, steps, origins)
    except SchemaChanged as changed:
        _answer_by_newest_schema(handle, calls, id, changed)
    except _Separately as separately:
        _answer_separately(calls, separately.stale)
    else:
        for call in calls:
            found = [result for each, result in zip(entries, results, strict=True) if each.call is call]
            call.reply = found[0] if call.item.origin is None else found


def _convert_fitting(
    group: list[PendingCall[QueuedSmallAppend]], schema: Schema
) -> tuple[list[_Entry], list[ConvertedAppends]]:
    """Convert the appends of a group; return those that fit, and answer the calls of the others.

    One append is not converted here: its step does so, and its error is that of its caller.
    """
    while True:
        entries = [_Entry(call, each.rows, each.key) for call in group for each in call.item.appends]
        if len(entries) <= 1:
            return entries, []
        converted = _convert(entries, schema)
        fitting = {place for each in converted for place in each.places}
        unfit = {each.call for place, each in enumerate(entries) if place not in fitting}
        if not unfit:
            return entries, converted
        _answer_separately(unfit)
        group = [call for call in group if call not in unfit]


def _origins(handle: CollectionHandle, entries: list[_Entry]) -> tuple[Origin, ...]:
    """Return the groups of other processes among some appends, each with the place of its first rows."""
    found: dict[str, Origin] = {}
    for place, each in enumerate(entries):
        origin = each.call.item.origin
        if origin is not None and origin.committer not in found:
            before = 1 if handle.entry.timeline == "clock" else len(entries) - place
            found[origin.committer] = msgspec.structs.replace(origin, before=before)
    return tuple(found.values())


def _answer_separately(calls: Iterable[PendingCall[QueuedSmallAppend]], stale: tuple[str, ...] = ()) -> None:
    """Let the thread or the process of each call commit it, or get its error. `stale` committers look before that."""
    for call in calls:
        if isinstance(call.item, PendingAppend):
            call.reply = ByItself(call.item.rows)
        elif call.item.origin.committer in stale:
            call.error = Indeterminate("this group is committed, or its committer was expired: look for it")
        else:
            call.error = Determinate("nothing was committed: these rows are left to their own process")


class _Separately(Exception):
    """These appends cannot be committed by the leader: each is committed, or gets its error, in its own thread."""

    def __init__(self, stale: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.stale = stale
        """The committers of other processes that have to look first."""


class _Outrun(Exception):
    """Other processes took the times of a group on every try."""


def _commit_group(
    handle: CollectionHandle, step: GroupAppendStep, alone: list[AppendStep], origins: tuple[Origin, ...]
) -> Generator[CommandTransaction, Answers | Refused, list[CommitResult]]:
    """Commit several appends as one batch."""
    results: list[CommitResult]
    try:
        (results,) = yield from _commit_together(handle, [step], origins)
    except _Outrun as outrun:
        if step.floats:  # each would get a time of its own
            raise _Separately from outrun
        # Now the commit chooses the time of each append: that takes longer, but nothing is encoded again while
        # other processes commit.
        results = yield from _commit_together(handle, alone, origins)
    except (UsageError, CorruptionError, VersionError) as error:
        if isinstance(error, SchemaChanged) or handle.committer.session.frozen is not None:
            raise
        raise _Separately from error
    return results


def _commit_together(
    handle: CollectionHandle, steps: Sequence[AppendStep | GroupAppendStep], origins: tuple[Origin, ...]
) -> Generator[CommandTransaction, Answers | Refused, list[StepResult]]:
    """Prepare, stage and commit steps of one collection; return the result of each.

    The stations are those of `step_commit`. The loop is another one, since the leading thread must not wait: it yields
    its transaction, which is committed with those that wait, and takes no turn. It gives up where a thread of its own
    would go on: that thread then commits the append by `step_commit`.
    """
    inline = True
    for _ in range(RETRY.group_starts):
        known = handle.known()
        at = [None if step.floats else _free_time(handle, known.upper) for step in steps]
        with StagedTogether(len(steps)) as staged:
            for step, time in zip(steps, at, strict=True):
                staged.add(_require_small(step.prepare(known.upper, time, NO_STACK)), inline=inline)
            commands = [
                (handle.id, command)
                for step, runs, time in zip(steps, staged.runs, at, strict=True)
                for command in step.commands(runs, known.upper, time)
            ]
            reply = yield from _offer_by_newest_schema(handle, CommandTransaction(tuple(commands), origins=origins))
        replies = _replies_of(reply)
        if replies is not None:
            staged.count_rows()
            left, seqno = iter(replies), dict(reply.seqnos).get(handle.id, known.seqno)
            return [step.result(list(islice(left, 1)), time, seqno) for step, time in zip(steps, at, strict=True)]
        assert isinstance(reply, Refused)
        staged.discard()
        if isinstance(reply.reason, InlineBudgetExceeded):
            inline = False
        elif not isinstance(reply.reason, UpperMismatch):
            raise _Separately(reply.reason.committers if isinstance(reply.reason, StaleOrigins) else ())
        handle.committer.session.count("commits started again")
    raise _Outrun


def _offer_by_newest_schema(
    handle: CollectionHandle, transaction: CommandTransaction
) -> Generator[CommandTransaction, Answers | Refused, Answers | Refused]:
    """Offer a transaction, and again after a change of the schema by which its rows lose no value."""
    judge = SchemaCheck(handle.committer.state)
    try:
        reply = yield transaction
        while judge.looks_again(reply):
            reply = yield judge.apply(transaction)
    except NAMED as error:
        raise handle.committer.with_collection_names(error, transaction) from error
    return reply


def _replies_of(reply: Answers | Refused) -> Answers | None:
    """Return the replies to the commands of a transaction; None if it was refused."""
    return None if isinstance(reply, Refused) else reply


def _require_small(prepared: PreparedRows | None) -> PreparedRows | None:
    """Leave rows that take long to store to their own thread: no other thread could commit during the put."""
    if prepared is not None and prepared.table.nbytes > BYTES_MAX:
        raise _Separately
    return prepared


def _free_time(handle: CollectionHandle, upper: Frontier) -> int:
    if upper.is_closed:
        raise handle.closed()
    return next_free_time(handle, upper)


def _answer_by_newest_schema(
    handle: CollectionHandle, group: list[PendingCall[QueuedSmallAppend]], id: int, changed: SchemaChanged
) -> None:
    """Give the error to appends whose values would be lost; let the threads of the others commit them.

    SUBTLE: a thread would prepare its append under the newest schema, where another column may have the name of the
    dropped one. So the append is converted here, by the schema that its caller knew (test_schema_changes.py).
    """
    state = handle.known()
    newest, schema = handle.schema(state)
    written = decode_schema(state.schemas[id])
    for each in group:
        if not isinstance(each.item, PendingAppend):
            each.error = changed  # its own process looks at the newest schema
            continue
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


def _convert(entries: list[_Entry], schema: Schema) -> list[ConvertedAppends]:
    """Convert the appends to as few tables as possible; leave out those that do not fit the schema."""
    by_key: dict[Hashable, list[int]] = {}
    for place, each in enumerate(entries):
        by_key.setdefault(each.key, []).append(place)
    found: list[ConvertedAppends] = []
    for places in by_key.values():
        try:
            found.append(_convert_together(entries, places, schema))
        except InvalidRows:
            for place in places:
                try:
                    found.append(_convert_together(entries, [place], schema))
                except InvalidRows:
                    continue  # its own thread gets the error
    return found


def _convert_together(entries: list[_Entry], places: list[int], schema: Schema) -> ConvertedAppends:
    given: list[pa.Table] | list[list[Row]] = [entries[place].rows for place in places]  # see _conversion_key
    rows = pa.concat_tables(given) if isinstance(given[0], pa.Table) else list(chain.from_iterable(given))
    table = to_updates(rows, schema, (0,))
    return ConvertedAppends(places, np.array([len(each) for each in given]), table)

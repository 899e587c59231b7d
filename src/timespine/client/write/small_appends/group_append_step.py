"""The step of several small appends that are committed as one batch."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from timespine.client.write.prepare import PreparedRows, next_free_time, upper_after
from timespine.client.write.stage_rows import Runs, unplaced_description
from timespine.client.write.transaction_steps import AtTransactionTime, CommandReplies, append_command
from timespine.client.write_results import CommitResult
from timespine.columnar.kernels.consolidate import consolidate
from timespine.columnar.schema.schema import Schema
from timespine.core.batch import HollowBatch
from timespine.core.transitions import AppendNext, Command
from timespine.errors import UsageError
from timespine.model.frontier import Frontier
from timespine.model.time import INT64_MAX


class ConvertedAppends(NamedTuple):
    """Some appends that were converted together."""

    places: list[int]
    """Their places in the group."""
    rows: NDArray[np.int64]
    """The number of rows of each."""
    table: pa.Table
    """Their updates, without times."""


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

    def result(self, replies: CommandReplies, at: int | None, seqno: int) -> list[CommitResult]:
        if at is None:
            reply = replies[-1]
            return [CommitResult(reply.time, reply.upper, rows, seqno) for rows in self.rows]
        times = range(at, at + len(self.places))
        return [CommitResult(time, upper_after(time), rows, seqno) for time, rows in zip(times, self.rows, strict=True)]


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

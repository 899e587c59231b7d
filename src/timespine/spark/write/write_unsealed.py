"""Write many rows ahead of the seal by tasks: at the times of a column, durable at once, sealed by rule."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from timespine.client.api_for_engines import (
    LATE,
    NOTHING,
    REFUSE,
    CollectionHandle,
    FlushesRuns,
    PreparedRows,
    Runs,
    Step,
    WriteResult,
    count_appended,
    count_late,
    late_rows_error,
    milliseconds,
    time_range,
    unsealed_seen_by,
    unwrap_time,
)
from timespine.columnar.schema.schema import DIFF, TIME, Schema
from timespine.core.transitions import Command, Write
from timespine.errors import UsageError, short_repr
from timespine.model.frontier import Frontier
from timespine.model.time import Time
from timespine.spark.type_mapping import check_frame
from timespine.spark.write.driver_or_tasks import run_write_tasks
from timespine.spark.write.seal_rule import NONE, SealRule, parse_seal_rule
from timespine.spark.write.write_job import TaskAnswer, WriteJob
from timespine.spark.write.write_task import UnsealedOptions, unsealed_task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


def unsealed_options(
    handle: CollectionHandle, times: str | None, seal: str | None, late: str | None
) -> UnsealedOptions | None:
    """Check the caller's options of rows ahead of the seal; return None if there is no column of times."""
    if times is None:
        if seal is not None or late is not None:
            raise UsageError("seal and late are for rows at times of their own: name the column with the times")
        return None
    if late is not None and late not in LATE:
        raise UsageError(f"late is one of {', '.join(LATE)}, not {short_repr(late)}")
    return UnsealedOptions(
        times, late or REFUSE, parse_seal_rule(NONE if seal is None else seal, handle.entry.timeline)
    )


def check_times(given: StructType, handle: CollectionHandle, schema: Schema, times: str) -> None:
    """Refuse a DataFrame whose rows cannot get their times from a column."""
    from pyspark.sql.pandas.types import to_arrow_schema

    if schema.arity != 1:
        raise UsageError("times of several coordinates cannot come from one column: append the rows with their times")
    if times not in given.names:
        raise UsageError(f"there is no column {short_repr(times)} to take times from")
    if times != TIME and TIME in given.names:
        raise UsageError(f"the rows have times of their own in {TIME}: name that column, or drop it")
    check_frame(given if times != TIME else _without(given, TIME), schema, (times, DIFF))
    kind = to_arrow_schema(given, timezone="UTC").field(times).type
    is_of_clock = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
    if is_of_clock and handle.entry.timeline == "counter":
        raise UsageError(
            f"column {short_repr(times)} has timestamps, and the times of {handle.name} count 0, 1, 2, "
            "and so on: give whole numbers"
        )
    # The writer of each batch checks the rest again; here the check is before any work.
    milliseconds(pa.chunked_array([], kind), times)


def _without(given: StructType, name: str) -> StructType:
    return type(given)([field for field in given.fields if field.name != name])


class UnsealedRuns(msgspec.Struct, frozen=True):
    """Runs that tasks have written ahead of the seal."""

    id: int
    """The schema of the rows."""
    runs: Runs
    rows: int
    """The number of updates."""
    late: int
    """The number of late rows that tasks dropped or moved."""
    latest: int | None
    """The largest time of the rows, before tasks moved late ones."""

    @property
    def ends(self) -> tuple[Frontier, Time]:
        """Return the earliest time and the latest one of the rows, of which there is at least one."""
        lower, latest = time_range(self.runs)
        assert latest is not None
        return lower, latest

    def commands(self, handle: CollectionHandle, rule: SealRule, upper: Frontier) -> tuple[Command, ...]:
        """Make the commands that write the runs and seal by rule; raise a UsageError if some rows are late."""
        if not self.runs:
            return rule.commands(self.latest)
        lower, last = self.ends
        if upper.is_closed:
            raise handle.closed()
        if not upper <= lower:
            raise late_rows_error(handle, lower, upper)
        parts = tuple(part for run in self.runs for part in run.parts)
        return (Write(lower, last, parts, self.id, handle.config.inline_total_bytes), *rule.commands(self.latest))

    def result(self, number: int | None, seqno: int | None) -> WriteResult:
        """Make the answer to the caller, with the number of the write."""
        if not self.runs:
            return msgspec.structs.replace(NOTHING, late=self.late)
        lower, last = self.ends
        return WriteResult(number, self.rows, unwrap_time(lower.elements[0]), unwrap_time(last), self.late, seqno)


def unsealed_runs(id: int, runs: Runs, rows: int, answers: Iterable[TaskAnswer]) -> UnsealedRuns:
    """Sum up the answers of tasks."""
    found = list(answers)
    latest = max((each.latest for each in found if each.latest is not None), default=None)
    return UnsealedRuns(id, runs, rows, sum(each.late for each in found), latest)


@dataclass(slots=True)
class WriteRunsStep(FlushesRuns, Step):
    """Many rows ahead of the seal that tasks have written, and the seal by rule."""

    how: UnsealedOptions
    written: UnsealedRuns | None
    flushed: Runs = field(default=(), kw_only=True)

    @property
    def built(self) -> Runs:
        return self.written.runs if self.written is not None else ()

    def _offered_rows(self) -> UnsealedRuns:
        """Return the runs to commit: the flushed ones, if there are any."""
        assert self.written is not None
        return msgspec.structs.replace(self.written, runs=self.flushed) if self.flushed else self.written

    def next_upper(self, upper: Frontier, at: int | None) -> Frontier:
        sealed = self.how.rule.upper(self.written.latest) if self.written is not None else None
        return upper if sealed is None else upper.join(sealed)

    def commands(self, runs: Runs, upper: Frontier, at: int | None) -> list[Command]:
        return list(self._offered_rows().commands(self.handle, self.how.rule, upper))

    def result(self, replies: list[Any], at: int | None, seqno: int) -> WriteResult:
        written = self._offered_rows()
        count_late(self.handle, self.how.late, written.late)
        count_appended(self.handle, written.runs, written.rows)
        return written.result(replies[0] if replies else None, seqno)


@dataclass(slots=True)
class WriteByTasksStep(WriteRunsStep):
    """Many rows ahead of the seal, which tasks write when the step is prepared."""

    frame: DataFrame
    job: WriteJob | None = None
    placed: Frontier | None = None
    """The upper after the steps before it, at the times where they are placed."""

    @property
    def is_stale(self) -> bool:
        # More rows may have become late since the tasks wrote them, and the late policy applies to those.
        written = self.written
        if written is None or not written.runs or self.how.late == REFUSE:
            return False
        return not unsealed_seen_by(self.handle, self.placed) <= written.ends[0]

    def prepare(self, upper: Frontier, at: int | None, stack: contextlib.ExitStack) -> PreparedRows | None:
        id, schema = self.handle.schema(self.handle.state())
        self.job = stack.enter_context(WriteJob(self.handle, id, schema, None))
        first = 0 if upper.is_closed else upper.time
        answers = run_write_tasks(self.frame, schema, unsealed_task(self.job.building, self.how, first))
        self.written = unsealed_runs(id, *self.job.runs(answers), answers)
        self.placed = None
        return None

    def commands(self, runs: Runs, upper: Frontier, at: int | None) -> list[Command]:
        assert self.job is not None
        self.placed = upper
        return [*WriteRunsStep.commands(self, runs, upper, at), *self.job.end()]

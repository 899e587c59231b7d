"""Write many rows ahead of the seal by tasks: at the times of a column, durable at once, sealed by a named rule."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from timespine.client.engines import (
    LATE,
    NOTHING,
    REFUSE,
    Access,
    PreparedRows,
    Runs,
    Step,
    WriteResult,
    count_appended,
    count_late,
    discard_flushed,
    flush_runs,
    late_rows_error,
    milliseconds,
    sealed_for,
    time_range,
    to_user,
)
from timespine.columnar.schema.schema import DIFF, TIME, Schema
from timespine.core.transitions import Command, Write
from timespine.errors import UsageError, shown
from timespine.model.frontier import Frontier
from timespine.model.time import Time
from timespine.spark.type_mapping import check_frame
from timespine.spark.write.run_tasks import run_write_tasks
from timespine.spark.write.seal_rule import NONE, Rule, rule_of
from timespine.spark.write.write_job import Job, TaskAnswer
from timespine.spark.write.write_task import UnsealedOptions, unsealed_task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


def unsealed_options(access: Access, times: str | None, seal: str | None, late: str | None) -> UnsealedOptions | None:
    """Check how the caller asks for rows to be written ahead of the seal; None if there is no column of times."""
    if times is None:
        if seal is not None or late is not None:
            raise UsageError("seal and late are about rows at times of their own: name the column that has them")
        return None
    if late is not None and late not in LATE:
        raise UsageError(f"late is one of {', '.join(LATE)}, not {shown(late)}")
    return UnsealedOptions(times, late or REFUSE, rule_of(NONE if seal is None else seal, access.entry.timeline))


def check_times(given: StructType, access: Access, schema: Schema, times: str) -> None:
    """Refuse rows of a DataFrame with this schema that cannot stand at the times of a column."""
    from pyspark.sql.pandas.types import to_arrow_schema

    if schema.arity != 1:
        raise UsageError("times of several coordinates cannot come from one column: append the rows with their times")
    if times not in given.names:
        raise UsageError(f"there is no column {shown(times)} to take times from")
    if times != TIME and TIME in given.names:
        raise UsageError(f"the rows have times of their own in {TIME}: name that column, or drop it")
    check_frame(given if times != TIME else _without(given, TIME), schema, (times, DIFF))
    kind = to_arrow_schema(given, timezone="UTC").field(times).type
    is_of_clock = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
    if is_of_clock and access.entry.timeline == "counter":
        raise UsageError(
            f"column {shown(times)} holds points of the wall clock, and the times of {access.name} count 0, 1, 2, "
            "and so on: give whole numbers"
        )
    # What is left is said of every batch too; here it is said before anything is done.
    milliseconds(pa.chunked_array([], kind), times)


def _without(given: StructType, name: str) -> StructType:
    return type(given)([field for field in given.fields if field.name != name])


class UnsealedRuns(msgspec.Struct, frozen=True):
    """Runs that tasks have written ahead of the seal."""

    id: int
    """The schema that rows were written with."""
    runs: Runs
    rows: int
    """Updates in them."""
    late: int
    """Rows that came too late, and were dropped or moved."""
    latest: int | None
    """The largest time that came, before anything was moved."""

    @property
    def ends(self) -> tuple[Frontier, Time]:
        """The earliest time, and the latest one. There must be rows."""
        return time_range(self.runs)

    def commands(self, access: Access, rule: Rule, upper: Frontier) -> tuple[Command, ...]:
        """Make the commands that write them and that seal by rule; a UsageError if some are before the upper."""
        if not self.runs:
            return rule.commands(self.latest)
        lower, last = self.ends
        if upper.is_closed:
            raise access.closed()
        if not upper <= lower:
            raise late_rows_error(access, lower, upper)
        parts = tuple(part for run in self.runs for part in run.parts)
        return (Write(lower, last, parts, self.id, access.config.inline_total_bytes), *rule.commands(self.latest))

    def result(self, number: int | None, seqno: int | None) -> WriteResult:
        """Make the answer to the caller, with the number of the write."""
        if not self.runs:
            return msgspec.structs.replace(NOTHING, late=self.late)
        lower, last = self.ends
        return WriteResult(number, self.rows, to_user(lower.elements[0]), to_user(last), self.late, seqno)


def unsealed_runs(id: int, runs: Runs, rows: int, answers: Iterable[TaskAnswer]) -> UnsealedRuns:
    """Sum up what tasks have written, from their answers."""
    found = list(answers)
    latest = max((each.latest for each in found if each.latest is not None), default=None)
    return UnsealedRuns(id, runs, rows, sum(each.late for each in found), latest)


@dataclass(slots=True)
class WriteRunsStep(Step):
    """Many rows ahead of the seal that tasks have written, and the seal by rule."""

    how: UnsealedOptions
    written: UnsealedRuns | None
    flushed: Runs = field(default=(), kw_only=True)
    """The runs without inline parts, once the state had no room for those."""

    @property
    def offered(self) -> UnsealedRuns:
        """What tasks have written, as it is offered: flushed, if it was."""
        assert self.written is not None
        return msgspec.structs.replace(self.written, runs=self.flushed) if self.flushed else self.written

    def next_upper(self, upper: Frontier, at: int | None) -> Frontier:
        sealed = self.how.rule.upper(self.written.latest) if self.written is not None else None
        return upper if sealed is None else upper.join(sealed)

    def commands(self, runs: Runs, upper: Frontier, at: int | None) -> list[Command]:
        return list(self.offered.commands(self.access, self.how.rule, upper))

    def flush(self) -> None:
        if self.written is not None:
            self.flushed = flush_runs(self.access, self.written.runs)

    def unstage(self) -> None:
        if self.written is not None:
            discard_flushed(self.access, self.written.runs, self.flushed)
        self.flushed = ()

    def result(self, replies: list[Any], at: int | None, seqno: int) -> WriteResult:
        written = self.offered
        count_late(self.access, self.how.late, written.late)
        count_appended(self.access, written.runs, written.rows)
        return written.result(replies[0] if replies else None, seqno)


@dataclass(slots=True)
class WriteByTasksStep(WriteRunsStep):
    """Many rows ahead of the seal, which tasks write when the step is prepared."""

    frame: DataFrame
    job: Job | None = None
    placed: Frontier | None = None
    """Where the steps before it leave the upper, at the times where they are placed."""

    @property
    def is_stale(self) -> bool:
        # More rows may be late since the tasks have written them, and there may be a policy for those.
        written = self.written
        if written is None or not written.runs or self.how.late == REFUSE:
            return False
        return not sealed_for(self.access, self.placed) <= written.ends[0]

    def prepare(self, upper: Frontier, at: int | None, stack: contextlib.ExitStack) -> PreparedRows | None:
        id, schema = self.access.schema(self.access.state())
        self.job = stack.enter_context(Job(self.access, id, schema, None))
        first = upper.elements[0][0] if upper.elements else 0
        answers = run_write_tasks(self.frame, schema, unsealed_task(self.job.building, self.how, first))
        self.written = unsealed_runs(id, *self.job.runs(answers), answers)
        self.placed = None
        return None

    def commands(self, runs: Runs, upper: Frontier, at: int | None) -> list[Command]:
        assert self.job is not None
        self.placed = upper
        return [*WriteRunsStep.commands(self, runs, upper, at), *self.job.end()]

"""A DataFrame ahead of the seal: rows at the times of a column, durable at once, and sealed by a named rule.

Few rows are written by the driver, many by tasks, both in one commit with what seals
and with the number of the batch, if it is one of a stream.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from timespine.client.context import Access
from timespine.client.results import NOTHING, Written
from timespine.client.time_args import Moment, to_user
from timespine.client.write.prepare import PreparedRows
from timespine.client.write.stage import Runs, count_appended
from timespine.client.write.step_commit import commit_steps
from timespine.client.write.time_column import milliseconds, with_times
from timespine.client.write.transaction_steps import CommandStep, Step, UnsealedWriteStep, sealed_for
from timespine.client.write.unsealed_write import LATE, REFUSE, count_late, late_rows_error
from timespine.columnar.schema.schema import DIFF, TIME, Schema
from timespine.core.transitions import Command, Write
from timespine.errors import UsageError, shown
from timespine.model.frontier import Frontier
from timespine.model.time import Time
from timespine.spark.type_mapping import check_frame
from timespine.spark.write.append import built, extent, taken
from timespine.spark.write.seal_rule import NONE, Rule, rule_of
from timespine.spark.write.write_job import Job, Sent, Together
from timespine.spark.write.write_task import Ahead, latest_of, refuse_null_keys, written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


def ahead(access: Access, times: str | None, seal: str | None, late: str | None) -> Ahead | None:
    """How rows are written ahead of the seal, as somebody asks for it; None if nobody names a column of times."""
    if times is None:
        if seal is not None or late is not None:
            raise UsageError("seal and late are about rows at times of their own: name the column that has them")
        return None
    if late is not None and late not in LATE:
        raise UsageError(f"late is one of {', '.join(LATE)}, not {shown(late)}")
    return Ahead(times, late or REFUSE, rule_of(NONE if seal is None else seal, access.entry.timeline))


def check_times(given: StructType, access: Access, schema: Schema, times: str) -> None:
    """A UsageError if rows of a DataFrame with this schema cannot stand at the times of a column."""
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


def write(
    access: Access, frame: DataFrame, at: Moment | None = None, times: str | None = None, late: str = REFUSE
) -> Written:
    """Make the rows of a DataFrame durable ahead of the seal, as `Collection.write` does with others."""
    if at is not None:
        from pyspark.sql import functions as F

        if times is not None:
            raise UsageError("give either `at` or the column that has the times")
        frame = frame.withColumn(TIME, F.lit(access.time_of(at)[0]).cast("long"))
    how = ahead(access, times or TIME, None, late)
    assert how is not None
    return write_frame(access, frame, how)


def write_frame(access: Access, frame: DataFrame, how: Ahead, together: Together = ()) -> Written:
    """Make the rows of a DataFrame durable, and seal by rule, `together` with other commands."""
    _, schema = access.schema(access.state())
    check_times(frame.schema, access, schema, how.times)
    few = taken(frame, schema)
    return write_many(access, frame, how, together) if few is None else write_few(access, few, how, together)


def write_few(access: Access, few: pa.Table, how: Ahead, together: Together = ()) -> Written:
    """Write rows that are on the driver. What goes together with them is committed also if there are none."""
    table = timed(access, few, how)
    seal = how.rule.commands(latest_of(table))
    return _commit(UnsealedWriteStep(access, table, None, None, how.late), (*seal, *together))


def timed(access: Access, few: pa.Table, how: Ahead) -> pa.Table:
    """Rows that are on the driver, with their times."""
    _, schema = access.schema(access.known())
    refuse_null_keys(few, schema)
    return with_times(few, schema, how.times)


class Parts(msgspec.Struct, frozen=True):
    """What tasks have written ahead of the seal."""

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
        return extent(self.runs)

    def commands(self, access: Access, rule: Rule, upper: Frontier) -> Together:
        """What makes them part of the collection when their times are sealed, and what seals, from an upper on."""
        if not self.runs:
            return rule.commands(self.latest)
        lower, last = self.ends
        if upper.is_closed:
            raise access.closed()
        if not upper <= lower:
            raise late_rows_error(access, lower, upper)
        parts = tuple(part for run in self.runs for part in run.parts)
        return (Write(lower, last, parts, self.id, access.config.inline_total_bytes), *rule.commands(self.latest))

    def said(self, number: int | None, seqno: int | None) -> Written:
        """What to tell whoever wrote them, under the number that they got, in the commit of another one."""
        if not self.runs:
            return msgspec.structs.replace(NOTHING, late=self.late)
        lower, last = self.ends
        return Written(number, self.rows, to_user(lower.elements[0]), to_user(last), self.late, seqno)


def parts_of(id: int, runs: Runs, rows: int, sent: Iterable[Sent]) -> Parts:
    """What tasks have written, from their answers."""
    answers = list(sent)
    latest = max((each.latest for each in answers if each.latest is not None), default=None)
    return Parts(id, runs, rows, sum(each.late for each in answers), latest)


def build(job: Job, frame: DataFrame, how: Ahead, upper: Frontier) -> Parts:
    """Let tasks write the rows of a DataFrame. What is too late, as it is sealed up to here, goes by rule."""
    building = job.building
    first = upper.elements[0][0] if upper.elements else 0
    sent = built(frame, building.schema, written(building, how, first))
    return parts_of(building.schema_id, *job.runs(sent), sent)


def write_many(access: Access, frame: DataFrame, how: Ahead, together: Together = ()) -> Written:
    """Let executors write the rows, and commit what points at them; again, if more is too late by then."""
    return _commit(WriteByTasksStep(access, how, None, frame), together)


def is_stale(parts: Parts, how: Ahead, upper: Frontier) -> bool:
    """Whether rows are too late only since tasks have written them, and there is a rule for those."""
    return how.late != REFUSE and bool(parts.runs) and not upper <= parts.ends[0]


def commit_parts(access: Access, parts: Parts, how: Ahead, together: Together) -> Written:
    """Commit what tasks have written, and what seals, `together` with other commands."""
    return _commit(WritePartsStep(access, how, parts), together)


def _commit(step: Step, together: Together) -> Written:
    written: Written = commit_steps(step, CommandStep.of(step.access, *together))[0]
    return written


@dataclass(slots=True)
class WritePartsStep(Step):
    """Many rows ahead of the seal that tasks have written, and the seal by rule."""

    how: Ahead
    parts: Parts | None

    def next_upper(self, upper: Frontier, at: int | None) -> Frontier:
        sealed = self.how.rule.upper(self.parts.latest) if self.parts is not None else None
        return upper if sealed is None else upper.join(sealed)

    def commands(self, runs: Runs, upper: Frontier, at: int | None) -> list[Command]:
        assert self.parts is not None
        return list(self.parts.commands(self.access, self.how.rule, upper))

    def result(self, replies: list[Any], at: int | None, seqno: int) -> Written:
        assert self.parts is not None
        count_late(self.access, self.how.late, self.parts.late)
        count_appended(self.access, self.parts.runs, self.parts.rows)
        return self.parts.said(replies[0] if replies else None, seqno)


@dataclass(slots=True)
class WriteByTasksStep(WritePartsStep):
    """Many rows ahead of the seal, which tasks write when the step is prepared."""

    frame: DataFrame
    job: Job | None = None
    placed: Frontier | None = None
    """Where the steps before it leave the upper, at the times where they are placed."""

    @property
    def is_stale(self) -> bool:
        return self.parts is not None and is_stale(self.parts, self.how, sealed_for(self.access, self.placed))

    def prepare(self, upper: Frontier, at: int | None, stack: contextlib.ExitStack) -> PreparedRows | None:
        id, schema = self.access.schema(self.access.state())
        self.job = stack.enter_context(Job(self.access, id, schema, None))
        self.parts = build(self.job, self.frame, self.how, upper)
        self.placed = None
        return None

    def commands(self, runs: Runs, upper: Frontier, at: int | None) -> list[Command]:
        assert self.job is not None
        self.placed = upper
        return [*WritePartsStep.commands(self, runs, upper, at), *self.job.end()]

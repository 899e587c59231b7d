"""Steps of a transaction whose rows are worked out by tasks."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from timespine.client.basis import present
from timespine.client.steps import Relying, Step, sealed_for
from timespine.client.storing import Loose, Runs, count_appended
from timespine.client.unsealed import Written, count_late
from timespine.client.writing import Committed
from timespine.core.transitions import Command
from timespine.model.frontier import Frontier
from timespine.spark import ahead
from timespine.spark.ahead import Parts
from timespine.spark.building import Ahead
from timespine.spark.changing import ByTasks, worked_out
from timespine.spark.job import Job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(slots=True)
class ChangingByTasks(Relying):
    """A difference to the rows that are there, worked out by tasks."""

    operation: str
    frame: DataFrame
    deletes: bool
    job: Job | None = None
    worked: ByTasks | None = None

    @property
    def pending(self) -> ByTasks:
        assert self.worked is not None  # it was begun
        return self.worked

    def begin(self, upper: Frontier, at: int | None, stack: contextlib.ExitStack) -> Loose | None:
        now = stack.enter_context(present(self.access, at))
        self.job = stack.enter_context(Job(self.access, now.id, now.schema, (now.time,)))
        self.worked = worked_out(now, self.job, self.frame, self.operation, deletes=self.deletes)
        return None

    def commands(self, runs: Runs, upper: Frontier, at: int | None) -> list[Command]:
        assert self.job is not None
        return [self.pending.command(self.pending.runs), *self.job.end()]

    def reply(self, replies: list[Any], at: int | None, seqno: int) -> Committed:
        pending = self.pending
        pending.done()
        count_appended(self.access, pending.runs, pending.rows)
        return Committed(at if pending.stored else None, replies[0], pending.stored, seqno)


@dataclass(slots=True)
class WritingByTasks(Step):
    """Many rows ahead of the seal, and the seal by rule."""

    frame: DataFrame
    how: Ahead
    job: Job | None = None
    parts: Parts | None = None
    placed: Frontier | None = None
    """Where the steps before it leave the upper, at the times where they are placed."""

    @property
    def is_stale(self) -> bool:
        return self.parts is not None and ahead.is_stale(self.parts, self.how, sealed_for(self.access, self.placed))

    def begin(self, upper: Frontier, at: int | None, stack: contextlib.ExitStack) -> Loose | None:
        id, schema = self.access.schema(self.access.state())
        self.job = stack.enter_context(Job(self.access, id, schema, None))
        self.parts = ahead.build(self.job, self.frame, self.how, upper)
        self.placed = None
        return None

    def reached(self, upper: Frontier, at: int | None) -> Frontier:
        sealed = self.how.rule.upper(self.parts.latest) if self.parts is not None else None
        return upper if sealed is None else upper.join(sealed)

    def commands(self, runs: Runs, upper: Frontier, at: int | None) -> list[Command]:
        assert self.parts is not None
        assert self.job is not None
        self.placed = upper
        return [*self.parts.commands(self.access, self.how.rule, upper), *self.job.end()]

    def reply(self, replies: list[Any], at: int | None, seqno: int) -> Written:
        assert self.parts is not None
        count_late(self.access, self.how.late, self.parts.late)
        count_appended(self.access, self.parts.runs, self.parts.rows)
        return self.parts.said(replies[0], seqno)

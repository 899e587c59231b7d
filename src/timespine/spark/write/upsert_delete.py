"""Compute the delta of upserts and deletes by tasks: each reads the rows with the keys of its own partition."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from timespine.client.engines import (
    CommitResult,
    CurrentRows,
    DependsOnRead,
    PendingDelta,
    PreparedRows,
    Runs,
    count_appended,
    discard_flushed,
    flush_runs,
    negated,
    read_current,
    restricted,
)
from timespine.columnar.ingest.update_table import conform
from timespine.columnar.predicate.key_filter import KeyFilter
from timespine.columnar.predicate.keyset import KeySet
from timespine.columnar.scan.request import Wanted
from timespine.columnar.scan.slice import cut
from timespine.columnar.scan.visibility import Window
from timespine.columnar.schema.schema import Schema
from timespine.core.state import State
from timespine.core.transitions import Command
from timespine.model.frontier import Frontier
from timespine.spark.names import quoted
from timespine.spark.read.read_task import Batches
from timespine.spark.type_mapping import from_spark_batch
from timespine.spark.write.run_tasks import run_write_tasks
from timespine.spark.write.write_job import Job
from timespine.spark.write.write_task import DeltaTask, delta_task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(slots=True)
class TaskDelta(PendingDelta):
    """A delta that tasks have computed, each for the keys of its partition."""

    frame: DataFrame | None = None
    """The rows that came, and that have the keys."""
    filter: KeyFilter | None = None
    """Which rows may have one of the keys."""
    runs: Runs = ()
    """Where the delta is."""

    @property
    def is_quick(self) -> bool:
        return False

    def news(self, state: State, time: int) -> pa.Table:
        return self.now.news(state, time, where=self.filter)

    def patch(self, news: pa.Table) -> pa.Table:
        """Retract the new rows of the keys that came. Tasks tell which of the keys of the news those are."""
        assert self.frame is not None
        keys = news.select(list(self.now.schema.key_names))
        found = keys_among(self.frame, self.now.schema, keys)
        return negated(news.filter(KeySet(found).mask(news)))


@dataclass(slots=True)
class DeltaByTasksStep(DependsOnRead):
    """A delta to the rows of a collection, computed by tasks."""

    operation: str
    frame: DataFrame
    deletes: bool
    must_hold: bool = False
    """Whether a delta of no rows is committed too, because other rows rely on it."""
    job: Job | None = None
    delta: TaskDelta | None = None
    flushed: Runs = ()
    """The runs of the delta without inline parts, once the state had no room for those."""

    @property
    def pending(self) -> TaskDelta:
        assert self.delta is not None  # it was prepared
        return self.delta

    def prepare(self, upper: Frontier, at: int | None, stack: contextlib.ExitStack) -> PreparedRows | None:
        now = stack.enter_context(read_current(self.access, at))
        self.job = stack.enter_context(Job(self.access, now.id, now.schema, (now.time,)))
        self.delta = compute_delta_on_executors(now, self.job, self.frame, self.operation, deletes=self.deletes)
        return None

    def commands(self, runs: Runs, upper: Frontier, at: int | None) -> list[Command]:
        assert self.job is not None
        pending = self.pending
        offered = self.flushed or pending.runs
        changes = [pending.command(offered)] if self.must_hold or pending.stored else []
        return [*changes, *self.job.end()]

    def flush(self) -> None:
        self.flushed = flush_runs(self.access, self.pending.runs)

    def unstage(self) -> None:
        DependsOnRead.unstage(self)
        discard_flushed(self.access, self.pending.runs, self.flushed)
        self.flushed = ()

    def result(self, replies: list[Any], at: int | None, seqno: int) -> CommitResult:
        pending = self.pending
        if not pending.stored and not self.must_hold:
            return CommitResult(None, pending.now.upper, 0, seqno)
        pending.done()
        count_appended(self.access, self.flushed or pending.runs, pending.rows)
        return CommitResult(at if pending.stored else None, replies[0], pending.stored, seqno)


def compute_delta_on_executors(
    now: CurrentRows, job: Job, frame: DataFrame, operation: str, *, deletes: bool
) -> TaskDelta:
    """Let tasks compute and write the delta that rows make to those of a collection."""
    now.access.committer.session.count("changes read")
    task = delta_task(DeltaTask(job.building, _slice_of(now), deletes))
    answers = run_write_tasks(frame, _by_key(now.schema), task)
    runs, rows = job.runs(answers)
    filters = [each.keys for each in answers if each.keys is not None]
    among = KeyFilter(now.schema.key_names, filters)
    return TaskDelta(now, operation, now.time, rows, frame=frame, filter=among, runs=runs)


def keys_among(frame: DataFrame, schema: Schema, keys: pa.Table) -> pa.Table:
    """Find by tasks which of some keys the rows of a DataFrame have."""
    columns = list(schema.key_names)
    plain = [f"c{place}" for place in range(len(columns))]
    narrow = frame.select(*map(quoted, columns)).toDF(*plain)
    wanted = restricted(schema, schema.key_names)

    def among(batches: Batches) -> Batches:
        sought = KeySet(keys)
        for batch in batches:
            yield batch.filter(sought.mask(_keys_of(batch, wanted)))

    found = narrow.mapInArrow(among, narrow.schema).toArrow().to_batches()
    return pa.concat_tables([wanted.arrow.empty_table(), *(_keys_of(batch, wanted) for batch in found)])


def _keys_of(batch: pa.RecordBatch, wanted: Schema) -> pa.Table:
    """Convert keys that travelled under other names to columns of the collection."""
    named = pa.RecordBatch.from_arrays(batch.columns, names=list(wanted.names))
    return conform(from_spark_batch(named, wanted), wanted)


def _by_key(schema: Schema) -> Schema:
    """Give the same columns, dealt out by the key alone: all rows of a key must meet in one task."""
    return Schema(schema.fields, schema.key, (), schema.arity, schema.next_id)


def _slice_of(now: CurrentRows) -> bytes | None:
    """Encode the collection as it is read, for tasks to look up their keys in; None if it is empty."""
    if now.plan is None:
        return None
    state = now.state
    wanted = Wanted(now.schema, now.schema.names, Window(until=now.plan.until))
    (whole,) = cut(now.access.parts(state), state.schemas, now.plan.runs, wanted, 1)
    return whole.encode()

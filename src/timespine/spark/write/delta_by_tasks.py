"""Compute the delta of upserts and deletes by tasks, each of which reads the rows with the keys of its partition."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from timespine.client.api_for_engines import (
    CommitResult,
    CurrentRows,
    DependsOnRead,
    FlushesRuns,
    PendingDelta,
    PreparedRows,
    Runs,
    count_appended,
    negate_diffs,
    read_current,
    restrict_columns,
)
from timespine.columnar.ingest.update_table import conform_columns
from timespine.columnar.predicate.changed_keys_bloom_filter import KeyFilter
from timespine.columnar.predicate.key_set import KeySet
from timespine.columnar.scan.scan_request import ScanRequest
from timespine.columnar.scan.visibility import Window
from timespine.columnar.scan.worker_slice import cut_slices
from timespine.columnar.schema.schema import Schema
from timespine.core.state import State
from timespine.core.transitions import Command
from timespine.model.frontier import Frontier
from timespine.spark.quoted_names import quoted
from timespine.spark.type_mapping import Batches, from_spark_batch
from timespine.spark.write.driver_or_tasks import range_columns, run_write_tasks
from timespine.spark.write.write_job import WriteJob
from timespine.spark.write.write_task import DeltaTask, delta_task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(slots=True)
class TaskDelta(PendingDelta):
    """A delta that tasks have computed, each for the keys of its partition."""

    frame: DataFrame | None = None
    """The DataFrame of rows, with the keys."""
    filter: KeyFilter | None = None
    """The condition for rows that may have one of the keys."""
    runs: Runs = ()
    """The runs of the delta."""

    @property
    def is_quick(self) -> bool:
        return False

    def news(self, state: State, time: int) -> pa.Table:
        return self.now.news(state, time, where=self.filter)

    def patch(self, news: pa.Table) -> pa.Table:
        """Retract the news that have one of the keys of this write. Tasks find which ones do."""
        assert self.frame is not None
        keys = news.select(list(self.now.schema.key_names))
        found = keys_among(self.frame, self.now.schema, keys)
        return negate_diffs(news.filter(KeySet(found).mask(news)))


@dataclass(slots=True)
class DeltaByTasksStep(FlushesRuns, DependsOnRead):
    """A delta to the rows of a collection, computed by tasks."""

    operation: str
    frame: DataFrame
    deletes: bool
    must_hold: bool = False
    """Whether to commit an empty delta too, because other rows rely on it."""
    job: WriteJob | None = None
    delta: TaskDelta | None = None
    flushed: Runs = ()

    @property
    def built(self) -> Runs:
        return self.pending.runs

    @property
    def pending(self) -> TaskDelta:
        assert self.delta is not None  # it was prepared
        return self.delta

    def prepare(self, upper: Frontier, at: int | None, stack: contextlib.ExitStack) -> PreparedRows | None:
        now = stack.enter_context(read_current(self.handle, at, holds_since=True))
        self.job = stack.enter_context(WriteJob(self.handle, now.id, now.schema, (now.time,)))
        self.delta = compute_delta_on_executors(now, self.job, self.frame, self.operation, deletes=self.deletes)
        return None

    def commands(self, runs: Runs, upper: Frontier, at: int | None) -> list[Command]:
        assert self.job is not None
        pending = self.pending
        changes = [pending.command(self.offered)] if self.must_hold or pending.stored_updates else []
        return [*changes, *self.job.end()]

    def unstage(self) -> None:
        DependsOnRead.unstage(self)
        FlushesRuns.unstage(self)

    def result(self, replies: list[Any], at: int | None, seqno: int) -> CommitResult:
        pending = self.pending
        if not pending.stored_updates and not self.must_hold:
            return CommitResult(None, pending.now.upper, 0, seqno)
        pending.done()
        count_appended(self.handle, self.offered, pending.rows)
        return CommitResult(at if pending.stored_updates else None, replies[0], pending.stored_updates, seqno)


def compute_delta_on_executors(
    now: CurrentRows, job: WriteJob, frame: DataFrame, operation: str, *, deletes: bool
) -> TaskDelta:
    """Let tasks compute and write the delta of rows to those of a collection."""
    now.handle.committer.session.count("changes read")
    by_key = _by_key(now.schema)
    task = delta_task(DeltaTask(job.building, _slice_of(now), deletes, tuple(range_columns(frame.columns, by_key))))
    answers = run_write_tasks(frame, by_key, task, sorts=True)
    runs, rows = job.runs(answers)
    filters = [each.keys for each in answers if each.keys is not None]
    among = KeyFilter(now.schema.key_names, filters)
    return TaskDelta(now, operation, now.time, rows, frame=frame, filter=among, runs=runs)


def keys_among(frame: DataFrame, schema: Schema, keys: pa.Table) -> pa.Table:
    """Find by tasks which of some keys the rows of a DataFrame have."""
    columns = list(schema.key_names)
    plain = [f"c{place}" for place in range(len(columns))]
    narrow = frame.select(*map(quoted, columns)).toDF(*plain)
    wanted = restrict_columns(schema, schema.key_names)

    def among(batches: Batches) -> Batches:
        sought = KeySet(keys)
        for batch in batches:
            yield batch.filter(sought.mask(_keys_of(batch, wanted)))

    found = narrow.mapInArrow(among, narrow.schema).toArrow().to_batches()
    return pa.concat_tables([wanted.arrow.empty_table(), *(_keys_of(batch, wanted) for batch in found)])


def _keys_of(batch: pa.RecordBatch, wanted: Schema) -> pa.Table:
    """Give keys from a task the column names of the collection again."""
    named = pa.RecordBatch.from_arrays(batch.columns, names=list(wanted.names))
    return conform_columns(from_spark_batch(named, wanted), wanted)


def _by_key(schema: Schema) -> Schema:
    """Give the same columns, partitioned by the key alone: all rows of a key must be in one task."""
    return Schema(schema.fields, schema.key, (), schema.arity, schema.next_id)


def _slice_of(now: CurrentRows) -> bytes | None:
    """Encode the snapshot in which tasks look up their keys; None if it is empty."""
    if now.plan is None:
        return None
    state = now.state
    wanted = ScanRequest(now.schema, now.schema.names, Window(until=now.plan.until))
    (whole,) = cut_slices(now.handle.parts(state), state.schemas, now.plan.summed().runs, wanted, 1)
    return whole.encode()

"""Upserts and deletes by a DataFrame: each task finds the rows that are there with the keys of its own partition."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from timespine.client.context import Access
from timespine.client.results import Committed
from timespine.client.write.delta import delete_keys_delta, restricted, upsert_delta
from timespine.client.write.prepare import PreparedRows
from timespine.client.write.read_current import CurrentRows, PendingDelta, negated, read_current
from timespine.client.write.stage import Runs, count_appended
from timespine.client.write.step_commit import commit_steps
from timespine.client.write.transaction_steps import CommandStep, DeltaStep, DependsOnRead, Step
from timespine.columnar.ingest.update_table import conform
from timespine.columnar.predicate.key_filter import KeyFilter
from timespine.columnar.predicate.keyset import KeySet
from timespine.columnar.scan.request import Wanted
from timespine.columnar.scan.slice import cut
from timespine.columnar.scan.visibility import Window
from timespine.columnar.schema.schema import Schema
from timespine.core.state import State
from timespine.core.transitions import Command
from timespine.errors import UsageError
from timespine.model.frontier import Frontier
from timespine.spark.names import quoted
from timespine.spark.read.read_task import Batches
from timespine.spark.type_mapping import brought_back, check_frame, check_keys
from timespine.spark.write.append import built, taken
from timespine.spark.write.write_job import Job, Together
from timespine.spark.write.write_task import Changing, changed, refuse_null_keys

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def upsert(access: Access, frame: DataFrame, together: Together = ()) -> Committed:
    """Rows take the place of those with the same key, or are added."""
    schema, few = looked_at(access, frame)
    if few is not None:
        return _commit(DeltaStep(access, upsert_delta(few), "upsert"), together)
    refuse_keyless(schema)
    return _commit(DeltaByTasksStep(access, "upsert", frame, deletes=False), together)


def delete(access: Access, frame: DataFrame, together: Together = ()) -> Committed:
    """All rows with one of these keys go."""
    _, schema = access.schema(access.state())
    keys = keys_of(frame, schema)
    schema, few = looked_at(access, keys)
    if few is not None:
        return _commit(DeltaStep(access, delete_keys_delta(few), "delete"), together)
    return _commit(DeltaByTasksStep(access, "delete", keys.distinct(), deletes=True), together)


def _commit(step: Step, together: Together) -> Committed:
    committed: Committed = commit_steps(step, CommandStep.of(step.access, *together))[0]
    return committed


def keys_of(frame: DataFrame, schema: Schema) -> DataFrame:
    """The columns by which rows are deleted; others may come along, and are passed over."""
    return frame.select(*map(quoted, check_keys(frame.schema, schema)))


def refuse_keyless(schema: Schema) -> None:
    """A UsageError if many rows cannot be upserted because nothing tells which of those that are there they mean."""
    if not schema.key:
        raise UsageError("an upsert of many rows is by key, and this collection has no key columns: append instead")


def looked_at(access: Access, frame: DataFrame) -> tuple[Schema, pa.Table | None]:
    """The schema that the rows must fit, and all of them, if they are few."""
    _, schema = access.schema(access.state())
    check_frame(frame.schema, schema)
    few = taken(frame, schema)
    if few is not None:
        refuse_null_keys(few, schema)
    return schema, few


@dataclass(slots=True)
class ByTasks(PendingDelta):
    """A difference that tasks have worked out, each for the keys of its partition."""

    frame: DataFrame | None = None
    """The rows that came, and that have the keys."""
    filter: KeyFilter | None = None
    """Which rows may have one of the keys."""
    runs: Runs = ()
    """Where the difference is."""

    @property
    def is_quick(self) -> bool:
        return False

    def news(self, state: State, time: int) -> pa.Table:
        return self.now.news(state, time, where=self.filter)

    def patch(self, news: pa.Table) -> pa.Table:
        """All rows of the keys that came go. Tasks tell which of the keys of the news those are."""
        assert self.frame is not None
        keys = news.select(list(self.now.schema.key_names))
        found = keys_among(self.frame, self.now.schema, keys)
        return negated(news.filter(KeySet(found).mask(news)))


@dataclass(slots=True)
class DeltaByTasksStep(DependsOnRead):
    """A delta to the rows that are there, computed by tasks."""

    operation: str
    frame: DataFrame
    deletes: bool
    must_hold: bool = False
    """Whether a delta of no rows is committed too, because other rows rely on it."""
    job: Job | None = None
    delta: ByTasks | None = None

    @property
    def pending(self) -> ByTasks:
        assert self.delta is not None  # it was prepared
        return self.delta

    def prepare(self, upper: Frontier, at: int | None, stack: contextlib.ExitStack) -> PreparedRows | None:
        now = stack.enter_context(read_current(self.access, at))
        self.job = stack.enter_context(Job(self.access, now.id, now.schema, (now.time,)))
        self.delta = worked_out(now, self.job, self.frame, self.operation, deletes=self.deletes)
        return None

    def commands(self, runs: Runs, upper: Frontier, at: int | None) -> list[Command]:
        assert self.job is not None
        pending = self.pending
        changes = [pending.command(pending.runs)] if self.must_hold or pending.stored else []
        return [*changes, *self.job.end()]

    def result(self, replies: list[Any], at: int | None, seqno: int) -> Committed:
        pending = self.pending
        if not pending.stored and not self.must_hold:
            return Committed(None, pending.now.upper, 0, seqno)
        pending.done()
        count_appended(self.access, pending.runs, pending.rows)
        return Committed(at if pending.stored else None, replies[0], pending.stored, seqno)


def worked_out(now: CurrentRows, job: Job, frame: DataFrame, operation: str, *, deletes: bool) -> ByTasks:
    """The difference that rows make to those that are there, by tasks."""
    now.access.committer.session.count("changes read")
    task = changed(Changing(job.building, _slice_of(now), deletes))
    sent = built(frame, _by_key(now.schema), task)
    runs, rows = job.runs(sent)
    filters = [each.keys for each in sent if each.keys is not None]
    among = KeyFilter(now.schema.key_names, filters)
    return ByTasks(now, operation, now.time, rows, frame=frame, filter=among, runs=runs)


def keys_among(frame: DataFrame, schema: Schema, keys: pa.Table) -> pa.Table:
    """Those of some keys that rows of a DataFrame have, told by tasks."""
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
    """Keys that travelled under other names, as the collection has them."""
    return conform(brought_back(pa.RecordBatch.from_arrays(batch.columns, names=list(wanted.names)), wanted), wanted)


def _by_key(schema: Schema) -> Schema:
    """The same columns, dealt out by the key alone: all rows of a key must meet in one task."""
    return Schema(schema.fields, schema.key, (), schema.arity, schema.next_id)


def _slice_of(now: CurrentRows) -> bytes | None:
    """The collection as it is read, for tasks to look their keys up in; None if it is empty."""
    if now.plan is None:
        return None
    state = now.state
    wanted = Wanted(now.schema, now.schema.names, Window(until=now.plan.until))
    (whole,) = cut(now.access.parts(state), state.schemas, now.plan.runs, wanted, 1)
    return whole.encode()

"""Upserts and deletes by a DataFrame: each task finds the rows that are there with the keys of its own partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from timespine.client import changing
from timespine.client.access import Access
from timespine.client.changing import ATTEMPTS, Present, commit_exactly, present
from timespine.client.storing import Runs, count_appended
from timespine.client.writing import Committed, Together, commit_first
from timespine.columnar.schema import Schema
from timespine.columnar.slice import cut
from timespine.columnar.visible import Window
from timespine.columnar.wanted import Wanted
from timespine.errors import UpperMismatch, UsageError
from timespine.spark.building import Changing, changed, refuse_null_keys
from timespine.spark.job import Job
from timespine.spark.names import quoted
from timespine.spark.types import check_frame, check_keys
from timespine.spark.writing import built, taken

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def upsert(access: Access, frame: DataFrame, together: Together = ()) -> Committed:
    """Rows take the place of those with the same key, or are added."""
    schema, few = looked_at(access, frame)
    if few is not None:
        return changing.upsert(access, few, together)
    refuse_keyless(schema)
    return _change(access, frame, "upsert", together, deletes=False)


def delete(access: Access, frame: DataFrame, together: Together = ()) -> Committed:
    """All rows with one of these keys go."""
    _, schema = access.schema(access.state())
    keys = keys_of(frame, schema)
    schema, few = looked_at(access, keys)
    if few is not None:
        return changing.delete_keys(access, few, together)
    return _change(access, keys.distinct(), "delete", together, deletes=True)


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


def _change(access: Access, frame: DataFrame, operation: str, together: Together, *, deletes: bool) -> Committed:
    """Work out the difference by executors, and append it; again, if somebody else was first."""
    access.committer.check_writable()
    with access.changing:
        for _ in range(ATTEMPTS):
            try:
                return _change_once(access, frame, operation, together, deletes=deletes)
            except UpperMismatch:
                access.committer.session.count("changes started again")
    raise UpperMismatch("any", access.known().upper)


def _change_once(access: Access, frame: DataFrame, operation: str, together: Together, *, deletes: bool) -> Committed:
    with present(access) as now:
        with Job(access, now.id, now.schema, (now.time,)) as job:
            runs, rows = worked_out(now, job, frame, deletes=deletes)
            ends = (*together, *job.end())
            if not runs:
                commit_first(access, ends[0], ends[1:])
                return Committed(None, now.upper, 0)
            done = commit_exactly(access, now, runs, rows, operation, ends)
        count_appended(access, runs, rows)
        return done


def worked_out(now: Present, job: Job, frame: DataFrame, *, deletes: bool) -> tuple[Runs, int]:
    """The difference that rows make to those that are there, by tasks: as runs, and how many updates that is."""
    task = changed(Changing(job.building, _slice_of(now), deletes))
    return job.runs(built(frame, _by_key(now.schema), task))


def _by_key(schema: Schema) -> Schema:
    """The same columns, dealt out by the key alone: all rows of a key must meet in one task."""
    return Schema(schema.fields, schema.key, (), schema.arity, schema.next_id)


def _slice_of(now: Present) -> bytes | None:
    """The collection as it is read, for tasks to look their keys up in; None if it is empty."""
    if now.plan is None:
        return None
    state = now.held.state
    wanted = Wanted(now.schema, now.schema.names, Window(until=now.plan.until))
    (whole,) = cut(now.access.parts(state), state.schemas, now.plan.runs, wanted, 1)
    return whole.encode()

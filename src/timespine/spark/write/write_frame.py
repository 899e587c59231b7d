"""Write rows of Spark to a collection: the single dispatch over modes, for DataFrames, micro-batches and the sink.

    append      rows at the next free time, at a given one, or at their own
    upsert      rows replace those with their keys; with `_change_type` they may delete them too
    delete      rows with these keys are deleted
    overwrite   the rows replace all rows of the collection
    write       rows at the times of a column, ahead of the seal

The driver writes few rows itself, and many by tasks. Both ways make steps, which one transaction commits together with
the seal, the end of the job and the number of a micro-batch.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from timespine.client.api_for_engines import (
    CHANGE_TYPE,
    REFUSE,
    AppendStep,
    CollectionHandle,
    CommandStep,
    CommitResult,
    DeltaStep,
    FrontierLike,
    Step,
    TimeLike,
    UnsealedWriteStep,
    WriteResult,
    append_step,
    append_time,
    commit_steps,
    delete_keys_delta,
    replace_delta,
    upsert_delta,
    with_times,
)
from timespine.columnar.schema.schema import TIME, Schema
from timespine.core.transitions import Command
from timespine.errors import UsageError
from timespine.hints import Hint
from timespine.spark.options import APPEND, DELETE, OVERWRITE, UPSERT
from timespine.spark.quoted_names import quoted
from timespine.spark.type_mapping import check_frame, check_key_frame
from timespine.spark.write import driver_or_tasks
from timespine.spark.write.apply_changes import changes_delta
from timespine.spark.write.delta_by_tasks import DeltaByTasksStep
from timespine.spark.write.driver_or_tasks import append_by_tasks, collect_if_small, evaluate_once
from timespine.spark.write.write_task import UnsealedOptions, latest_time, refuse_null_keys
from timespine.spark.write.write_unsealed import WriteByTasksStep, check_times, unsealed_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WRITE = "write"
"""The mode of rows ahead of the seal."""


@dataclass(frozen=True, slots=True)
class FrameWrite:
    """The options of a write of Spark rows to a collection."""

    mode: str
    sequence: str | None = None
    """The column that orders the changes of a key, for upserts."""
    unsealed: UnsealedOptions | None = None
    """The options of rows ahead of the seal, for writes."""
    at: TimeLike | None = None
    upper: FrontierLike | None = None
    expected_upper: FrontierLike | None = None
    skips_empty: bool = False
    """Whether an empty DataFrame makes no steps, unless the rows are ahead of the seal or replace all."""
    is_alone: bool = True
    """Whether no other collection gets rows in the transaction. Otherwise all of their steps get one time."""


# The entry points of `Collection`.


def append_frame(
    handle: CollectionHandle,
    frame: DataFrame,
    at: TimeLike | None = None,
    upper: FrontierLike | None = None,
    expected_upper: FrontierLike | None = None,
) -> CommitResult:
    """Append the rows of a DataFrame, as `Collection.append_frame` does with others."""
    committed: CommitResult = commit_frame(
        handle, frame, FrameWrite(APPEND, at=at, upper=upper, expected_upper=expected_upper)
    )
    return committed


def upsert_frame(handle: CollectionHandle, frame: DataFrame) -> CommitResult:
    """Replace the rows with the keys of a DataFrame by its rows, or add them."""
    committed: CommitResult = commit_frame(handle, frame, FrameWrite(UPSERT))
    return committed


def delete_frame(handle: CollectionHandle, frame: DataFrame) -> CommitResult:
    """Delete all rows with one of the keys of a DataFrame."""
    committed: CommitResult = commit_frame(handle, frame, FrameWrite(DELETE))
    return committed


def write_frame(
    handle: CollectionHandle, frame: DataFrame, at: TimeLike | None = None, times: str | None = None, late: str = REFUSE
) -> WriteResult:
    """Make the rows of a DataFrame durable ahead of the seal, as `Collection.write_frame` does with others."""
    if at is not None:
        from pyspark.sql import functions as F

        if times is not None:
            raise UsageError("the times of rows are given twice", hint=Hint("give-at-or-times"))
        frame = frame.withColumn(TIME, F.lit(handle.time_of(at)[0]).cast("long"))
    how = FrameWrite(WRITE, unsealed=unsealed_options(handle, times or TIME, None, late))
    written: WriteResult = commit_frame(handle, frame, how)
    return written


def commit_frame(handle: CollectionHandle, frame: DataFrame, how: FrameWrite) -> Any:
    """Write the rows of a DataFrame in a transaction of its own."""
    with contextlib.ExitStack() as stack:
        return commit_steps(*frame_steps(handle, frame, how, stack))[0]


# The dispatch.


def frame_steps(handle: CollectionHandle, frame: DataFrame, how: FrameWrite, stack: contextlib.ExitStack) -> list[Step]:
    """Make the steps that write the rows of a DataFrame; the first one has the result.

    The stack keeps the cached rows and the job until the steps are committed.
    """
    _, schema = handle.schema(handle.state())
    frame = _check_columns(handle, frame, schema, how)
    stack.enter_context(evaluate_once(frame))
    few = collect_if_small(frame, schema)
    return _task_steps(handle, frame, how, stack) if few is None else local_steps(handle, few, how)


def local_steps(handle: CollectionHandle, table: pa.Table, how: FrameWrite) -> list[Step]:
    """Make the steps that write rows of the driver; the first one has the result."""
    _, schema = handle.schema(handle.known())
    if how.mode == DELETE:
        table = table.select([name for name in table.column_names if name in schema.key_names])
    refuse_null_keys(table, schema)
    if how.unsealed is not None:
        return _unsealed_steps(handle, with_times(table, schema, how.unsealed.times), how.unsealed)
    if how.skips_empty and not table.num_rows and how.mode != OVERWRITE:
        return []
    if how.mode == APPEND:
        if not how.is_alone:
            return [AppendStep(handle, [table])]
        return [append_step(handle, table, how.at, how.upper, how.expected_upper)]
    if how.mode == DELETE:
        compute, operation = delete_keys_delta(table), "delete"
    elif how.mode == OVERWRITE:
        compute, operation = replace_delta(None, table), "replace"
    elif _has_changes(table.column_names, how):
        compute, operation = changes_delta(handle, table, how.sequence), "apply"
    else:
        compute, operation = upsert_delta(table), "upsert"
    return [DeltaStep(handle, compute, operation, must_hold=not how.is_alone)]


def _unsealed_steps(handle: CollectionHandle, table: pa.Table, unsealed: UnsealedOptions) -> list[Step]:
    """Make the steps that write rows ahead of the seal, and seal by rule."""
    latest = latest_time(table)
    upper, seal = unsealed.rule.upper(latest), unsealed.rule.commands(latest)
    return [
        UnsealedWriteStep(handle, table, None, None, unsealed.late),
        *([CommandStep(handle, lambda: seal, sealed=upper)] if seal else []),
    ]


def _task_steps(handle: CollectionHandle, frame: DataFrame, how: FrameWrite, stack: contextlib.ExitStack) -> list[Step]:
    """Make the steps that write many rows by tasks; the first one has the result."""
    if how.unsealed is not None:
        return [WriteByTasksStep(handle, how.unsealed, None, frame)]
    if how.mode == APPEND:
        when = append_time(handle, frame.columns, how.at, how.upper, how.expected_upper)
        return append_by_tasks(handle, frame, when, stack, floats=how.is_alone)
    _, schema = handle.schema(handle.known())
    if how.mode == DELETE:
        return [DeltaByTasksStep(handle, DELETE, frame.distinct(), True, must_hold=not how.is_alone)]
    if _has_changes(frame.columns, how):
        raise UsageError(
            f"a batch of changes has more than {driver_or_tasks.SMALL_ROWS} rows: set maxRowsPerTrigger, "
            "or split it by frame.filter(...) for two helpers, foreach_batch(collection, 'upsert', sink='upserts') "
            "and foreach_batch(collection, 'delete', sink='deletes')"
        )
    if not schema.key:
        raise UsageError("an upsert of many rows is by key, and this collection has no key columns: append instead")
    return [DeltaByTasksStep(handle, UPSERT, frame, False, must_hold=not how.is_alone)]


def _check_columns(handle: CollectionHandle, frame: DataFrame, schema: Schema, how: FrameWrite) -> DataFrame:
    """Refuse a DataFrame whose rows cannot be written; give the columns of it to write."""
    if how.unsealed is not None:
        check_times(frame.schema, handle, schema, how.unsealed.times)
    elif how.mode == APPEND:
        if not how.is_alone and not set(schema.time_names).isdisjoint(frame.columns):
            raise UsageError(
                f"rows for {handle.name} have times of their own, but appended rows get one time in all "
                f"collections: write them ahead of the seal, ('write', frame, {{'times': '{TIME}'}})"
            )
        check_frame(frame.schema, schema, schema.system_names)
    elif how.mode == DELETE:
        frame = frame.select(*map(quoted, check_key_frame(frame.schema, schema)))
        check_frame(frame.schema, schema)
    else:
        extra = (CHANGE_TYPE, how.sequence) if _has_changes(frame.columns, how) else ()
        check_frame(frame.schema, schema, tuple(name for name in extra if name is not None))
    return frame


def _has_changes(columns: list[str], how: FrameWrite) -> bool:
    """Return whether upserted rows are changes: they may delete, or repeat a key."""
    return CHANGE_TYPE in columns or how.sequence is not None


def commit_with(handle: CollectionHandle, steps: list[Step], *commands: Command) -> Any:
    """Commit steps and commands as one transaction; give the result of the first step, None if there is none."""
    results = commit_steps(*steps, CommandStep.of(handle, *commands))
    return results[0] if steps else None

"""Write rows of Spark to a collection: the one dispatch over modes, for DataFrames, micro-batches and the sink.

    append      rows at the next free time, at a given one, or at their own
    upsert      rows replace those with their keys; with `_change_type` they may delete them too
    delete      rows with these keys are deleted
    overwrite   the rows replace all that there are
    write       rows at the times of a column, ahead of the seal

Few rows are written by the driver, many by tasks. Both make steps, which one commit takes together with what else
belongs to it: the seal, the end of the job, the number of a micro-batch.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from timespine.client.engines import (
    CHANGE_TYPE,
    REFUSE,
    Access,
    AppendStep,
    CommandStep,
    CommitResult,
    DeltaStep,
    Moment,
    Progress,
    Step,
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
from timespine.spark.names import quoted
from timespine.spark.options import APPEND, DELETE, OVERWRITE, UPSERT
from timespine.spark.type_mapping import check_frame, check_keys
from timespine.spark.write import run_tasks
from timespine.spark.write.apply_changes import changes_delta
from timespine.spark.write.run_tasks import append_by_tasks, collect_if_small, evaluate_once
from timespine.spark.write.unsealed import WriteByTasksStep, check_times, unsealed_options
from timespine.spark.write.upsert_delete import DeltaByTasksStep
from timespine.spark.write.write_task import UnsealedOptions, latest_time, refuse_null_keys

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WRITE = "write"
"""The mode of rows that are written ahead of the seal."""


@dataclass(frozen=True, slots=True)
class FrameWrite:
    """How rows of Spark are written to a collection."""

    mode: str
    sequence: str | None = None
    """The column that says which change of a key is the last, for upserts."""
    unsealed: UnsealedOptions | None = None
    """How rows are written ahead of the seal, for writes."""
    at: Moment | None = None
    upper: Progress | None = None
    expected_upper: Progress | None = None
    skips_empty: bool = False
    """Whether no rows mean no steps, unless they are written ahead of the seal or replace all."""
    is_alone: bool = True
    """Whether no other collection gets rows in the transaction. Otherwise its steps stand at one time with theirs."""


# The doors of `Collection`.


def append(
    access: Access,
    frame: DataFrame,
    at: Moment | None = None,
    upper: Progress | None = None,
    expected_upper: Progress | None = None,
) -> CommitResult:
    """Append the rows of a DataFrame, as `Collection.append` does with others."""
    committed: CommitResult = commit_frame(
        access, frame, FrameWrite(APPEND, at=at, upper=upper, expected_upper=expected_upper)
    )
    return committed


def upsert(access: Access, frame: DataFrame) -> CommitResult:
    """Replace the rows with the keys of a DataFrame by its rows, or add them."""
    committed: CommitResult = commit_frame(access, frame, FrameWrite(UPSERT))
    return committed


def delete(access: Access, frame: DataFrame) -> CommitResult:
    """Delete all rows with one of the keys of a DataFrame."""
    committed: CommitResult = commit_frame(access, frame, FrameWrite(DELETE))
    return committed


def write(
    access: Access, frame: DataFrame, at: Moment | None = None, times: str | None = None, late: str = REFUSE
) -> WriteResult:
    """Make the rows of a DataFrame durable ahead of the seal, as `Collection.write` does with others."""
    if at is not None:
        from pyspark.sql import functions as F

        if times is not None:
            raise UsageError("the times of rows are given twice", hint=Hint("give-at-or-times"))
        frame = frame.withColumn(TIME, F.lit(access.time_of(at)[0]).cast("long"))
    how = FrameWrite(WRITE, unsealed=unsealed_options(access, times or TIME, None, late))
    written: WriteResult = commit_frame(access, frame, how)
    return written


def commit_frame(access: Access, frame: DataFrame, how: FrameWrite) -> Any:
    """Write the rows of a DataFrame in a transaction of its own."""
    with contextlib.ExitStack() as stack:
        return commit_steps(*frame_steps(access, frame, how, stack))[0]


# The dispatch.


def frame_steps(access: Access, frame: DataFrame, how: FrameWrite, stack: contextlib.ExitStack) -> list[Step]:
    """Make the steps that write the rows of a DataFrame; the first one has the result.

    The stack keeps what they need until they are committed: the rows, with the executors, and the job.
    """
    _, schema = access.schema(access.state())
    frame = _check_columns(access, frame, schema, how)
    stack.enter_context(evaluate_once(frame))
    few = collect_if_small(frame, schema)
    return _task_steps(access, frame, how, stack) if few is None else local_steps(access, few, how)


def local_steps(access: Access, table: pa.Table, how: FrameWrite) -> list[Step]:
    """Make the steps that write rows that are on the driver; the first one has the result."""
    _, schema = access.schema(access.known())
    if how.mode == DELETE:
        table = table.select([name for name in table.column_names if name in schema.key_names])
    refuse_null_keys(table, schema)
    if how.unsealed is not None:
        return _unsealed_steps(access, with_times(table, schema, how.unsealed.times), how.unsealed)
    if how.skips_empty and not table.num_rows and how.mode != OVERWRITE:
        return []
    if how.mode == APPEND:
        if not how.is_alone:
            return [AppendStep(access, [table])]
        return [append_step(access, table, how.at, how.upper, how.expected_upper)]
    if how.mode == DELETE:
        compute, operation = delete_keys_delta(table), "delete"
    elif how.mode == OVERWRITE:
        compute, operation = replace_delta(None, table), "replace"
    elif _has_changes(table.column_names, how):
        compute, operation = changes_delta(access, table, how.sequence), "apply"
    else:
        compute, operation = upsert_delta(table), "upsert"
    return [DeltaStep(access, compute, operation, must_hold=not how.is_alone)]


def _unsealed_steps(access: Access, table: pa.Table, unsealed: UnsealedOptions) -> list[Step]:
    """Make the steps that write rows ahead of the seal, and that seal by rule."""
    latest = latest_time(table)
    upper, seal = unsealed.rule.upper(latest), unsealed.rule.commands(latest)
    return [
        UnsealedWriteStep(access, table, None, None, unsealed.late),
        *([CommandStep(access, lambda: seal, sealed=upper)] if seal else []),
    ]


def _task_steps(access: Access, frame: DataFrame, how: FrameWrite, stack: contextlib.ExitStack) -> list[Step]:
    """Make the steps that write many rows by tasks; the first one has the result."""
    if how.unsealed is not None:
        return [WriteByTasksStep(access, how.unsealed, None, frame)]
    if how.mode == APPEND:
        when = append_time(access, frame.columns, how.at, how.upper, how.expected_upper)
        return append_by_tasks(access, frame, when, stack, floats=how.is_alone)
    _, schema = access.schema(access.known())
    if how.mode == DELETE:
        return [DeltaByTasksStep(access, DELETE, frame.distinct(), True, must_hold=not how.is_alone)]
    if _has_changes(frame.columns, how):
        raise UsageError(
            f"a batch of changes has more than {run_tasks.SMALL_ROWS} rows: set maxRowsPerTrigger, "
            "or split it by frame.filter(...) for two helpers, foreach_batch(collection, 'upsert', sink='upserts') "
            "and foreach_batch(collection, 'delete', sink='deletes')"
        )
    if not schema.key:
        raise UsageError("an upsert of many rows is by key, and this collection has no key columns: append instead")
    return [DeltaByTasksStep(access, UPSERT, frame, False, must_hold=not how.is_alone)]


def _check_columns(access: Access, frame: DataFrame, schema: Schema, how: FrameWrite) -> DataFrame:
    """Refuse a DataFrame whose rows cannot be written; give the columns of it that are."""
    if how.unsealed is not None:
        check_times(frame.schema, access, schema, how.unsealed.times)
    elif how.mode == APPEND:
        if not how.is_alone and not set(schema.time_names).isdisjoint(frame.columns):
            raise UsageError(
                f"rows for {access.name} have times of their own, and what is appended stands at one time for all "
                f"collections: write them ahead of the seal, ('write', frame, {{'times': '{TIME}'}})"
            )
        check_frame(frame.schema, schema, schema.system_names)
    elif how.mode == DELETE:
        frame = frame.select(*map(quoted, check_keys(frame.schema, schema)))
        check_frame(frame.schema, schema)
    else:
        extra = (CHANGE_TYPE, how.sequence) if _has_changes(frame.columns, how) else ()
        check_frame(frame.schema, schema, tuple(name for name in extra if name is not None))
    return frame


def _has_changes(columns: list[str], how: FrameWrite) -> bool:
    """Say whether upserted rows are changes: they may delete, or repeat a key."""
    return CHANGE_TYPE in columns or how.sequence is not None


def commit_with(access: Access, steps: list[Step], *commands: Command) -> Any:
    """Commit steps and commands as one transaction; give the result of the first step, None if there is none."""
    results = commit_steps(*steps, CommandStep.of(access, *commands))
    return results[0] if steps else None

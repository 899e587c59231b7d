"""Appending a DataFrame: small ones on the driver, large ones by the executors, both in one commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from timespine.client.context import Access
from timespine.client.results import Committed
from timespine.client.time_args import Moment, Progress, to_user
from timespine.client.write.append import append_step
from timespine.client.write.prebuilt_steps import PrebuiltAppendAtStep, PrebuiltAppendStep
from timespine.client.write.prepare import check_not_before, next_free_time, rows_beyond_error, upper_of_append
from timespine.client.write.step_commit import commit_steps
from timespine.client.write.transaction_steps import CommandStep, Step
from timespine.columnar.scan.part_set import meta_of
from timespine.columnar.schema.schema import Schema
from timespine.columnar.schema.types import is_nested
from timespine.core.batch import Run
from timespine.errors import CorruptionError, UsageError
from timespine.model.frontier import Frontier
from timespine.model.time import Time
from timespine.spark.setup.workers import check_workers
from timespine.spark.type_mapping import brought_back, check_frame
from timespine.spark.write.write_job import Job, Sent, Together
from timespine.spark.write.write_task import DDL, appended, named, refuse_null_keys

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SMALL_ROWS = 50_000
"""So many rows are written by the driver: a job of the executors costs more than they do."""


def append(
    access: Access,
    frame: DataFrame,
    at: Moment | None = None,
    upper: Progress | None = None,
    expected_upper: Progress | None = None,
    operation: str = "append",
    together: Together = (),
) -> Committed:
    """Append the rows of a DataFrame, as `Collection.append` does with others."""
    _, schema = access.schema(access.state())
    check_frame(frame.schema, schema, schema.system_names)
    few = taken(frame, schema)
    if few is not None:
        return append_few(access, few, at, upper, expected_upper, operation, together)
    moment = when(access, frame.columns, at, upper, expected_upper)
    return append_many(access, frame, moment, operation, together)


def append_few(
    access: Access,
    few: pa.Table,
    at: Moment | None = None,
    upper: Progress | None = None,
    expected_upper: Progress | None = None,
    operation: str = "append",
    together: Together = (),
) -> Committed:
    """Append rows that are on the driver."""
    _, schema = access.schema(access.known())
    refuse_null_keys(few, schema)
    step = append_step(access, few, at, upper, expected_upper, operation)
    committed: Committed = commit_steps(step, CommandStep.of(access, *together))[0]
    return committed


def taken(frame: DataFrame, schema: Schema) -> pa.Table | None:
    """All rows on the driver, if they are few; None if they are not."""
    table = frame.limit(SMALL_ROWS + 1).toArrow()
    if table.num_rows > SMALL_ROWS:
        return None
    batches = [brought_back(batch, schema) for batch in table.to_batches()]
    return pa.concat_tables(batches) if batches else table


@dataclass(frozen=True, slots=True)
class When:
    """At which times rows are appended."""

    at: Time | None
    """The time of rows that bring none; None if they all do."""
    is_free: bool
    """Whether that is only the next free one, and a later one will do as well."""
    upper: Progress | None = None
    """How far the append completes the collection; None: just past its rows."""
    expected: Frontier | None = None
    """The upper that it relies on."""


def when(
    access: Access,
    columns: Sequence[str],
    at: Moment | None = None,
    upper: Progress | None = None,
    expected_upper: Progress | None = None,
) -> When:
    """When to append rows with these columns, by what the caller says."""
    state = access.state()
    _, schema = access.schema(state)
    given = access.time_of(at) if at is not None else None
    expected = access.frontier_of(expected_upper) if expected_upper is not None else None
    has_times = not set(schema.time_names).isdisjoint(columns)
    if has_times and given is not None:
        raise UsageError("the rows have times of their own: leave out the time, or drop them")
    if has_times or given is not None:
        return When(given, False, upper, expected)
    if schema.arity != 1:
        raise UsageError("with several coordinates say at which time the rows are: at=(...)")
    free = max(next_free_time(access, state.upper), expected.time if expected is not None else 0)
    return When((free,), expected is None and upper is None, upper, expected)


def append_many(access: Access, frame: DataFrame, moment: When, operation: str, together: Together) -> Committed:
    """Executors sort and write the rows; the driver commits what points at them."""
    id, schema = access.schema(access.known())
    with Job(access, id, schema, moment.at) as job:
        runs, rows = job.runs(built(frame, schema, appended(job.building)))
        return commit_runs(access, schema, runs, rows, moment, operation, (*together, *job.end()))


def commit_runs(
    access: Access,
    schema: Schema,
    runs: tuple[Run, ...],
    rows: int,
    moment: When,
    operation: str,
    together: Together = (),
) -> Committed:
    """Commit what tasks have built."""
    step = _runs_step(access, schema, runs, rows, moment, operation)
    committed: Committed = commit_steps(step, CommandStep.of(access, *together))[0]
    return committed


def _runs_step(access: Access, schema: Schema, runs: tuple[Run, ...], rows: int, moment: When, operation: str) -> Step:
    """Make the step that appends what tasks have built."""
    if moment.is_free and moment.at is not None:
        written = moment.at[0]
        return PrebuiltAppendStep(access, [], operation, floats=True, written=written, rows=rows, runs=runs)
    lower, latest = (Frontier((moment.at,)), moment.at) if moment.at is not None else extent(runs)
    check_not_before(moment.expected, lower)
    upper = upper_of_append(access, moment.upper, latest, schema)
    if upper.less_equal(latest):
        raise rows_beyond_error(upper)
    time = to_user(latest) if lower.elements == (latest,) else None
    return PrebuiltAppendAtStep(access, runs, rows, lower, upper, moment.expected, operation, time)


def built(frame: DataFrame, schema: Schema, task: Any) -> list[Sent]:
    """What tasks make of the rows, which are dealt out to them by ranges of the key.

    SUBTLE: `mapInArrow` takes the names of columns for expressions. So they travel under others (test_spark_writes.py).
    """
    columns = frame.columns
    plain = {name: f"c{place}" for place, name in enumerate(columns)}
    names = [name for name in schema.order_names if not is_nested(schema.types[name]) and name in plain]
    keys = names[: len(schema.key) + len(schema.cluster)] if schema.key else names
    renamed = frame.toDF(*plain.values())
    ranged = renamed.repartitionByRange(*(plain[name] for name in keys)) if keys else renamed
    check_workers(frame.sparkSession)
    sent = ranged.mapInArrow(named(columns, task), DDL).toArrow()
    return [Sent(**row) for row in sent.to_pylist()]


def extent(runs: tuple[Run, ...]) -> tuple[Frontier, Time]:
    """The earliest and the latest times of some runs, from what is known of their parts."""
    metas = [meta_of(part) for run in runs for part in run.parts]
    known = [meta for meta in metas if meta is not None]
    if not known:
        raise UsageError("nothing to append, and no `upper` to advance to")
    if len(known) < len(metas):
        raise CorruptionError("a part that was just written says nothing of its times")
    lower = tuple(map(min, zip(*(meta.min_time for meta in known), strict=True)))
    return Frontier((lower,)), tuple(map(max, zip(*(meta.max_time for meta in known), strict=True)))

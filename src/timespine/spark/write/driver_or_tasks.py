"""Evaluate a DataFrame once, and append its rows: few by the driver, many by tasks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from timespine.client.api_for_engines import AppendTime, CollectionHandle, CommandStep, Step, append_runs_step
from timespine.columnar.schema.schema import Schema
from timespine.columnar.schema.types import is_nested
from timespine.spark.setup.worker_python import check_workers, is_connect
from timespine.spark.type_mapping import from_spark_batch
from timespine.spark.write.write_job import TaskAnswer, WriteJob
from timespine.spark.write.write_task import ANSWER_DDL, append_task, with_column_names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SMALL_ROWS = 50_000
"""The most rows that the driver writes itself: a job of the executors takes longer than these."""

SHARE_MIN = 1_000
"""The least share of `SMALL_ROWS` per partition for which collecting shares is worth a try."""

RDD_PLAN = "org.apache.spark.sql.execution.LogicalRDD"
"""The plan of a DataFrame that is an RDD of rows: Spark gives each micro-batch to `foreachBatch` as one."""


@contextlib.contextmanager
def evaluate_once(frame: DataFrame) -> Iterator[None]:
    """Cache the rows of a DataFrame on the executors while a write reads them several times.

    SUBTLE: a write counts its rows, samples their keys, writes them, and may repeat all of that after a lost
    compare-and-set. Each of these runs the plan, and `uuid()`, `rand()` or a changing table give other rows each
    time (test_evaluate_once.py). Rows that the caller has cached stay cached afterwards.
    """
    level = frame.storageLevel
    if level.useMemory or level.useDisk:
        yield
        return
    frame.persist()
    try:
        yield
    finally:
        frame.unpersist()


def collect_if_small(frame: DataFrame, schema: Schema) -> pa.Table | None:
    """Bring all rows to the driver if they are few; None if they are not. The rows are cached (`evaluate_once`)."""
    table = _collect_shares(frame)
    if table is None:
        table = frame.limit(SMALL_ROWS + 1).toArrow()
    if table.num_rows > SMALL_ROWS:
        return None
    batches = [from_spark_batch(batch, schema) for batch in table.to_batches()]
    return pa.concat_tables(batches) if batches else table


def _collect_shares(frame: DataFrame) -> pa.Table | None:
    """Collect the rows of a micro-batch by one stage; None if that does not tell whether these are all rows.

    A limit has a second stage, which gathers the rows of all partitions. Here each partition sends its share of
    `SMALL_ROWS` and one row more. If all of them together are not more than one share, these are all rows; if they are
    more than `SMALL_ROWS`, the batch is not small.
    """
    partitions = _batch_partitions(frame)
    share = SMALL_ROWS // max(partitions, 1)
    if partitions == 0 or share < SHARE_MIN:
        return None
    # The lower 33 bits of the id count the rows of a partition.
    table = frame.where(f"(monotonically_increasing_id() & {(1 << 33) - 1}) <= {share}").toArrow()
    return table if table.num_rows <= share or table.num_rows > SMALL_ROWS else None


def _batch_partitions(frame: DataFrame) -> int:
    """Count the partitions of a micro-batch; 0 if the DataFrame is none, since Spark would have to plan it first."""
    if is_connect(frame.sparkSession):
        return 0
    given: Any = frame
    plan = given._jdf.queryExecution().logical()
    return int(plan.rdd().getNumPartitions()) if plan.getClass().getName() == RDD_PLAN else 0


def range_columns(columns: Sequence[str], schema: Schema) -> list[str]:
    """Return the columns by which Spark partitions rows: those of the key, or all, without nested ones."""
    names = [name for name in schema.order_names if not is_nested(schema.types[name]) and name in columns]
    return names[: len(schema.key) + len(schema.cluster)] if schema.key else names


def run_write_tasks(frame: DataFrame, schema: Schema, task: Any, *, sorts: bool = False) -> list[TaskAnswer]:
    """Run a task over the rows, which Spark partitions by ranges of the key; give the answers of the tasks.

    With `sorts`, each task gets its rows in the order of these columns; Spark spills what does not fit its memory.

    SUBTLE: `mapInArrow` parses names of columns as expressions. So columns have other names (test_spark_writes.py).
    """
    columns = frame.columns
    plain = {name: f"c{place}" for place, name in enumerate(columns)}
    keys = [plain[name] for name in range_columns(columns, schema)]
    renamed = frame.toDF(*plain.values())
    ranged = renamed.repartitionByRange(*keys) if keys else renamed
    if sorts and keys:
        ranged = ranged.sortWithinPartitions(*keys)
    check_workers(frame.sparkSession)
    answers = ranged.mapInArrow(with_column_names(columns, task), ANSWER_DDL).toArrow()
    return [TaskAnswer(**row) for row in answers.to_pylist()]


def append_by_tasks(
    handle: CollectionHandle, frame: DataFrame, when: AppendTime, stack: contextlib.ExitStack, *, floats: bool = True
) -> list[Step]:
    """Let tasks sort and write the rows at once; make the steps that commit them and end the job.

    Rows without a time get a free one at the commit, or the time of their transaction.
    """
    id, schema = handle.schema(handle.known())
    job = stack.enter_context(WriteJob(handle, id, schema, when.at))
    runs, rows = job.runs(run_write_tasks(frame, schema, append_task(job.building)))
    step = append_runs_step(handle, schema, runs, rows, when, floats=floats)
    return [step, CommandStep(handle, job.end)]

"""`df.write` and `df.writeStream` with `.format("timespine")`: tasks build batches, and one commit takes them all.

Modes: `append` (rows, which may carry `_diff`), `upsert` (rows by key, with deletes
where `_change_type` says so) and `delete` (keys); `df.write.mode("overwrite")` replaces all rows by
those of the DataFrame, and leaves alone those that stay the same. Rows get the next free time, or, if
the option `timeColumn` names one, that of a column: those are written ahead of the seal.
What is appended is written by the tasks; what has to be compared with the rows that are
there, or with what is sealed, travels to whoever commits. That is for batches of a
stream: many rows at once are upserted by `collection.upsert(df)` or in `foreachBatch`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from timespine.client.context import Access
from timespine.client.read.change_set import CHANGE_TYPE
from timespine.client.results import Committed, Written
from timespine.client.write.delta import delete_keys_delta, replace_delta
from timespine.client.write.read_current import Compute
from timespine.client.write.step_commit import commit_steps
from timespine.client.write.transaction_steps import CommandStep, DeltaStep
from timespine.client.write.unsealed_write import REFUSE
from timespine.columnar.schema.schema import Schema
from timespine.errors import BatchAlreadyCommitted, UsageError
from timespine.spark.blob_location import place_of
from timespine.spark.hide_tracebacks import plain
from timespine.spark.options import APPEND, DELETE, OVERWRITE, UPSERT, Options
from timespine.spark.store_cache import collection_of
from timespine.spark.stream.sink_progress import Sink, query_in
from timespine.spark.type_mapping import brought_back, check_frame, check_keys
from timespine.spark.write.append import When, commit_runs, when
from timespine.spark.write.apply_changes import apply
from timespine.spark.write.create_collection import collection_for
from timespine.spark.write.unsealed import ahead, check_times, commit_parts, parts_of, write_few
from timespine.spark.write.write_job import Sent, Together, delete_sent, gathered
from timespine.spark.write.write_task import Ahead, Building, Taken, append_rows, refuse_null_keys, sent, write_rows

LOG = logging.getLogger(__name__)

MESSAGE_BYTES_MAX = 64 << 20
"""Rows of one task that travel to whoever commits, at most."""


@dataclass
class Message(WriterCommitMessage):
    """What a task sends."""

    sent: Sent
    """The batch that it built, or what is wrong with its rows."""
    rows: bytes | None
    """Its rows, if they have to be compared with those that are there: Arrow IPC."""
    query: str | None
    """The streaming query that it is a task of."""


class _Writing:
    """What both sinks do."""

    def __init__(self, options: Options, mode: str, building: Building, moment: When, how: Ahead | None = None) -> None:
        self._options = options
        self._mode = mode
        self._building = building
        self._when = moment
        self._how = how

    @property
    def _is_built(self) -> bool:
        """Whether tasks write the rows. What is sealed is known only to whoever commits, and so is what is late."""
        return self._mode == APPEND and (self._how is None or self._how.late == REFUSE)

    @plain
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task: build a batch, or take the rows along."""
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
        if self._is_built:
            answer = sent(lambda: self._built(iterator))
            return Message(Sent(*answer), None, query)
        try:
            rows, data = _packed(iterator, self._building.schema)
        except UsageError as error:
            return Message(Sent(None, 0, str(error)), None, query)
        return Message(Sent(None, rows, None), data, query)

    def _built(self, iterator: Iterator[pa.RecordBatch]) -> Taken:
        """In a task: the rows of a partition as a batch."""
        if self._how is None:
            return append_rows(self._building, iterator)
        return write_rows(self._building, self._how, 0, iterator)

    def _access(self) -> Access:
        return collection_of(self._options.target)._access

    def _commit(self, messages: list[Message], together: Together) -> Committed | Written | None:
        """Beside the driver: one commit for all tasks; None if there are no rows."""
        access = self._access()
        answers = [message.sent for message in messages]
        runs, rows = gathered(access, self._building, answers)
        tables = [_unpacked(message.rows) for message in messages if message.rows is not None]
        if self._how is not None:
            access.state()
            if self._is_built:
                parts = parts_of(self._building.schema_id, runs, rows, answers)
                return commit_parts(access, parts, self._how, together)
            return self._commit_rows(access, tables, self._how, together)
        if self._mode == APPEND:
            if not runs:
                return None
            # SUBTLE: by the time that the tasks wrote. If it is taken by now the rows are moved to a later one; said to
            # stand elsewhere, they would change what was read already (test_spark_streams.py).
            return commit_runs(access, self._building.schema, runs, rows, self._when, "append", together)
        if self._mode == OVERWRITE:
            table = pa.concat_tables(tables) if tables else self._building.schema.arrow.empty_table()
            refuse_null_keys(table, self._building.schema)
            return self._change(access, replace_delta(None, table), "replace", together)
        if not tables:
            return None
        table = pa.concat_tables(tables)
        if self._mode == DELETE:
            keys = table.select(list(self._building.schema.key_names))
            refuse_null_keys(keys, self._building.schema)
            return self._change(access, delete_keys_delta(keys), "delete", together)
        return apply(access, table, self._options.text("sequenceBy"), together)

    def _change(self, access: Access, compute: Compute, operation: str, together: Together) -> Committed:
        """Beside the driver: commit a delta to the rows of the collection."""
        committed: Committed = commit_steps(DeltaStep(access, compute, operation), CommandStep.of(access, *together))[0]
        return committed

    def _commit_rows(self, access: Access, tables: list[pa.Table], how: Ahead, together: Together) -> Written | None:
        """Beside the driver: write rows that have travelled, by the rule for those that are late."""
        if tables:
            done = write_few(access, pa.concat_tables(tables), how, together)
            if done.late:
                # Nobody is told of a batch here, and the counters are those of this process.
                LOG.warning("%s: %d rows came too late, by rule: %s", access.name, done.late, how.late)
            return done
        if together:
            commit_steps(CommandStep.of(access, *together))
        return None

    @plain
    def abort(self, messages: list[Any], *_: object) -> None:
        """Beside the driver: some task failed for good; delete what the others put."""
        delete_sent(self._access(), [message.sent for message in messages if message is not None])


class BatchSink(_Writing, DataSourceArrowWriter):
    """`df.write.format("timespine").mode("append")`, or `overwrite`."""

    @plain
    def commit(self, messages: list[Any]) -> None:
        self._commit([message for message in messages if message is not None], ())


class StreamSink(_Writing, DataSourceStreamArrowWriter):
    """`df.writeStream.format("timespine")`: each batch exactly once."""

    @plain
    def commit(self, messages: list[Any], batchId: int) -> None:
        given = [message for message in messages if message is not None]
        checkpoint = query_in(self._options.text("checkpointLocation"))
        query = next((message.query for message in given if message.query), checkpoint)
        sink = Sink(self._options.text("sinkId"), query, self._options.number("firstBatch") or 0)
        access = self._access()
        try:
            if not sink.is_in(access.state(), batchId):
                if self._commit(given, (sink.commit(batchId),)) is None:
                    sink.begin(access, batchId)
                return
        except BatchAlreadyCommitted:
            pass
        delete_sent(access, [message.sent for message in given])


def check_sink(options: Options) -> None:
    """A UsageError if its sink cannot be known by the name that it is given.

    Without a name it is known by the query, which Spark does not start without a checkpoint: that of the option, or
    one in the folder that the session has for all of them. Which one that is, the tasks tell.
    """
    named = options.text("sinkId")
    if named is not None:
        Sink(named, None).check()


def writing_of(
    options: Options, schema: StructType, *, overwrite: bool, creates: bool = False
) -> tuple[Options, str, Building, When, Ahead | None]:
    """What a sink needs to know to take rows of a DataFrame, if they can be rows of the collection.

    If it `creates`, a collection that is not there is created with the columns of the DataFrame.
    """
    mode = _mode(options, overwrite=overwrite, is_stream=not creates)
    access = (collection_for(options, schema) if creates else collection_of(options.target))._access
    id, known = access.schema(access.state())
    how = ahead(access, options.text("timeColumn"), options.text("seal"), options.text("late"))
    writer = access.committer.writer(access.id)
    building = Building(place_of(access), access.id, writer, id, known, None)
    if how is not None:
        if mode != APPEND or options.text("time") is not None:
            raise UsageError("rows at the times of timeColumn are appended: leave out mode and time")
        check_times(schema, access, known, how.times)
        return options, mode, building, When(None, False), how
    sequence = options.text("sequenceBy")
    extras = {APPEND: known.system_names, OVERWRITE: ()}
    extra = extras.get(mode, tuple(filter(None, (CHANGE_TYPE, sequence))))
    if mode == DELETE:
        check_keys(schema, known)
    else:
        check_frame(schema, known, extra)
    if mode == UPSERT and not known.key:
        raise UsageError("rows are upserted by key, and this collection has no key columns: append them with _diff")
    moment = when(access, schema.names if mode == APPEND else (), options.number("time"))
    return options, mode, replace(building, at=moment.at), moment, None


def _mode(options: Options, *, overwrite: bool, is_stream: bool) -> str:
    """How rows are written, by the option `mode` and by that of Spark."""
    given = options.text("mode")
    if not overwrite:
        return given or APPEND
    if is_stream:
        raise UsageError("a stream cannot replace all rows: use outputMode('append') or outputMode('update')")
    for name in ("mode", "time", "timeColumn"):
        if options.text(name) is not None:
            raise UsageError(
                f"mode('overwrite') replaces all rows: leave out option {name}, or write by mode('append')"
            )
    return OVERWRITE


def _packed(batches: Iterator[pa.RecordBatch], schema: Schema) -> tuple[int, bytes | None]:
    """The rows of a task, to travel."""
    tables = [brought_back(batch, schema) for batch in batches]
    table = pa.concat_tables(tables) if tables else None
    if table is None or not table.num_rows:
        return 0, None
    if table.nbytes > MESSAGE_BYTES_MAX:
        raise UsageError(
            f"{table.num_rows} rows in one task are too many to travel with the sink: "
            "repartition the DataFrame, or use timespine.spark.foreach_batch or smaller batches in a stream"
        )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
        stream.write_table(table)
    return table.num_rows, sink.getvalue().to_pybytes()


def _unpacked(data: bytes) -> pa.Table:
    with pa.ipc.open_stream(data) as stream:
        return stream.read_all()

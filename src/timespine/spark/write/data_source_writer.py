"""`df.write` and `df.writeStream` with `.format("timespine")`: tasks build batches, and one commit adds them all.

Modes: `append` (rows, which may have `_diff`), `upsert` (rows by key, with deletes
by `_change_type`) and `delete` (keys). `df.write.mode("overwrite")` replaces all rows by
those of the DataFrame, and keeps equal rows untouched. Rows get the next free time, or the times of the column
`timeColumn`: those are written ahead of the seal.
Tasks write appended rows, under a writer that is registered for the batch and ended by its commit. They send rows
that must be compared with the collection or with its upper to the process that commits. That suits
batches of a stream: to upsert many rows at once, use `collection.upsert(df)` or `foreachBatch`.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from timespine.client.api_for_engines import (
    CHANGE_TYPE,
    REFUSE,
    AppendTime,
    CollectionHandle,
    Step,
    WriteResult,
    append_runs_step,
    append_time,
    did_not_commit,
    fresh_id,
    handle_of,
)
from timespine.columnar.schema.schema import Schema
from timespine.core.transitions import Command, ExpireWriter
from timespine.errors import TimespineError, UnknownCollection, UsageError
from timespine.spark.blob_location import blob_location_of
from timespine.spark.hide_tracebacks import raises_plain_errors
from timespine.spark.options import APPEND, DELETE, OVERWRITE, UPSERT, Options
from timespine.spark.sink_progress import SinkProgress, find_query
from timespine.spark.store_cache import collection_of
from timespine.spark.type_mapping import check_frame, check_key_frame, from_spark_batch
from timespine.spark.write.create_collection import collection_for, remove_created
from timespine.spark.write.write_frame import WRITE, FrameWrite, commit_with, local_steps
from timespine.spark.write.write_job import TaskAnswer, collect_runs, expire_job_writer, register_job_writer
from timespine.spark.write.write_task import (
    BuildOptions,
    TaskResult,
    UnsealedOptions,
    append_task_rows,
    decode_answer,
    write_unsealed_rows,
)
from timespine.spark.write.write_unsealed import WriteRunsStep, check_times, unsealed_options, unsealed_runs

LOG = logging.getLogger(__name__)

MESSAGE_BYTES_MAX = 64 << 20
"""The most bytes of rows that one task sends to the process that commits."""

LEASE_MS = 24 * 60 * 60_000
"""The lease of the writer of a batch. No process renews it: the one that plans the batch may end before the commit."""


@dataclass
class TaskMessage(WriterCommitMessage):
    """The message of a task to the process that commits."""

    answer: TaskAnswer
    """The batch that it built, or the error of its rows."""
    rows: bytes | None
    """Its rows as Arrow IPC, if they must be compared with those of the collection."""
    query: str | None
    """The id of its streaming query."""
    building: BuildOptions
    """The options that it built the batch with."""


class _SinkWriter:
    """The common part of both sinks.

    Spark makes a sink, pickles it, and sends it to the tasks of one batch. For a stream it makes another one to commit
    or abort the batch, in another process; that one takes the build options from the messages of the tasks.
    """

    def __init__(
        self,
        options: Options,
        mode: str,
        building: BuildOptions,
        when: AppendTime,
        unsealed: UnsealedOptions | None = None,
    ) -> None:
        self._options = options
        self._mode = mode
        self._building = building
        self._when = when
        self._unsealed = unsealed
        self._is_registered = False

    @property
    def _is_built(self) -> bool:
        """Return whether tasks write the rows. Only the process that commits knows the upper, and so the late rows."""
        return self._mode == APPEND and (self._unsealed is None or self._unsealed.late == REFUSE)

    def begin(self) -> None:
        """Register the writer of the batch, if its tasks will put blobs."""
        if self._is_built and not self._is_registered:
            register_job_writer(self._handle(), self._building.writer, LEASE_MS)
            self._is_registered = True

    def __getstate__(self) -> dict[str, Any]:
        # SUBTLE: Spark pickles only a sink for tasks, so the sink that commits registers no writer
        # (test_sink_writers.py).
        self.begin()
        return self.__dict__

    @raises_plain_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Build a batch in a task, or send the rows."""
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
        if self._is_built:
            answer = TaskAnswer(**decode_answer(lambda: self._build(iterator)))
            return TaskMessage(answer, None, query, self._building)
        try:
            rows, data = _encode_message(iterator, self._building.schema)
        except UsageError as error:
            return TaskMessage(TaskAnswer(None, 0, str(error)), None, query, self._building)
        return TaskMessage(TaskAnswer(None, rows, None), data, query, self._building)

    def _build(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        """Write the rows of a partition as a batch in a task."""
        if self._unsealed is None:
            return append_task_rows(self._building, iterator)
        return write_unsealed_rows(self._building, self._unsealed, 0, iterator)

    def _handle(self) -> CollectionHandle:
        return handle_of(collection_of(self._options.target))

    def _commit(self, messages: list[TaskMessage], *commands: Command) -> bool:
        """Commit the rows of all tasks and some commands beside the driver; return whether there was anything to do.

        SUBTLE: place rows by the time and the schema that the tasks wrote them with. If another commit has that time,
        the rows move to a later one; placed by any other time they would change what readers have read
        (test_sink_writers.py).
        """
        handle = self._handle()
        building = messages[0].building if messages else self._building
        runs, rows = collect_runs(handle, building, [message.answer for message in messages])
        handle.state()
        if self._is_built:
            steps: list[Step] = []
            if self._unsealed is not None:
                answers = [message.answer for message in messages]
                written = unsealed_runs(building.schema_id, runs, rows, answers)
                steps = [WriteRunsStep(handle, self._unsealed, written)]
            elif runs:
                when = replace(self._when, at=building.at)
                steps = [append_runs_step(handle, building.schema, runs, rows, when)]
            if steps:
                commit_with(handle, steps, *commands, *map(ExpireWriter, self._writers(handle, messages)))
            return bool(steps)
        return self._commit_rows(handle, building, messages, commands)

    def _commit_rows(
        self,
        handle: CollectionHandle,
        building: BuildOptions,
        messages: list[TaskMessage],
        commands: tuple[Command, ...],
    ) -> bool:
        """Write rows that tasks have sent, beside the driver."""
        tables = [_decode_message(message.rows) for message in messages if message.rows is not None]
        if not tables and self._unsealed is not None:
            commit_with(handle, [], *commands)
            return True
        if not tables and self._mode != OVERWRITE:
            return False
        table = pa.concat_tables(tables) if tables else building.schema.arrow.empty_table()
        mode = self._mode if self._unsealed is None else WRITE
        how = FrameWrite(mode, self._options.text("sequenceBy"), self._unsealed)
        done = commit_with(handle, local_steps(handle, table, how), *commands)
        if isinstance(done, WriteResult) and done.late and self._unsealed is not None:
            # There is no caller to return the counts to, and the metrics are those of this process.
            LOG.warning("%s: %d rows came too late, by rule: %s", handle.name, done.late, self._unsealed.late)
        return True

    def _end(self, messages: list[Any], *, is_sure: bool) -> None:
        """End the writer of a batch that failed; delete its blobs if it is surely not committed."""
        handle = self._handle()
        mine = self._own_writers(messages)
        for writer in self._writers(handle, messages):
            # SUBTLE: a process that seemed dead may be committing under a writer of an earlier batch. The sweep
            # checks the state before it deletes (test_sink_writers.py).
            expire_job_writer(handle, writer, is_sure=is_sure and writer in mine)

    def _own_writers(self, messages: list[Any]) -> set[str]:
        return {self._building.writer, *(message.building.writer for message in messages if message is not None)}

    def _writers(self, handle: CollectionHandle, messages: list[Any]) -> list[str]:
        """Find the registered writers of this batch, and of abandoned batches of the same sink."""
        prefix, mine = _writer_prefix(self._options), self._own_writers(messages)
        there = handle.state().writers
        return [each for each in there if each in mine or (prefix is not None and each.startswith(prefix))]

    @contextlib.contextmanager
    def _end_writer_if_refused(self, messages: list[Any]) -> Iterator[None]:
        """End the writer of the batch if a commit is refused."""
        try:
            yield
        except TimespineError as error:
            if did_not_commit(error):
                self._end(messages, is_sure=True)
            raise

    @raises_plain_errors
    def abort(self, messages: list[Any], *_: object) -> None:
        """End the writer of the batch beside the driver, after a task or the commit failed.

        SUBTLE: Spark commits only if all tasks have sent a message. If one is missing, nothing was committed; otherwise
        the commit may have happened, and the sweep checks that.
        """
        self._end(messages, is_sure=any(message is None for message in messages))


class BatchSink(_SinkWriter, DataSourceArrowWriter):
    """`df.write.format("timespine").mode("append")`, or `overwrite`."""

    created: str | None = None
    """The id of the collection, if this write created it: removed again if the write fails."""

    @raises_plain_errors
    def commit(self, messages: list[Any]) -> None:
        try:
            with self._end_writer_if_refused(messages):
                if not self._commit([message for message in messages if message is not None]):
                    self._end(messages, is_sure=True)
        except TimespineError:
            self._remove_created()
            raise

    @raises_plain_errors
    def abort(self, messages: list[Any], *_: object) -> None:
        with contextlib.suppress(UnknownCollection):  # a failed commit has removed it already
            super().abort(messages)
        self._remove_created()

    def _remove_created(self) -> None:
        if self.created is not None:
            remove_created(self._options, self.created)


class StreamSink(_SinkWriter, DataSourceStreamArrowWriter):
    """`df.writeStream.format("timespine")`: each batch exactly once."""

    @raises_plain_errors
    def commit(self, messages: list[Any], batchId: int) -> None:
        given = [message for message in messages if message is not None]
        query = next((message.query for message in given if message.query), None)
        if query is None:  # a batch without partitions has no tasks
            query = find_query(self._options.text("checkpointLocation"), self._options.target.storage)
        sink = SinkProgress(self._options.text("sinkId"), query, self._options.number("firstBatch") or 0)
        handle = self._handle()
        with self._end_writer_if_refused(given):
            done = sink.commit_once([handle], batchId, lambda: self._commit(given, sink.commit(batchId)) or None)
            if done is None:
                self._end(given, is_sure=True)


def _writer_prefix(options: Options) -> str | None:
    """Give the prefix of the writers of a sink, which runs one batch at a time; None if the sink has no identity."""
    named = (options.text("sinkId"), options.text("checkpointLocation"))
    return None if named == (None, None) else f"ws{hashlib.sha256(repr(named).encode()).hexdigest()[:16]}-"


def check_sink(options: Options) -> None:
    """Raise a UsageError if the name of the sink is not valid.

    Without a name the query identifies it, which Spark does not start without a checkpoint: that of the option, or
    one in the checkpoint folder of the session. The tasks send the id of the query.
    """
    named = options.text("sinkId")
    if named is not None:
        SinkProgress(named, None).check()


def batch_sink(options: Options, schema: StructType, *, overwrite: bool) -> BatchSink:
    """Make the sink of a batch write; create a missing collection with the columns of the DataFrame."""
    mode = _mode(options, overwrite=overwrite, is_stream=False)
    collection, is_new = collection_for(options, schema)
    try:
        sink = BatchSink(*_sink_arguments(options, schema, mode, handle_of(collection)))
    except TimespineError:
        if is_new:
            remove_created(options, collection.id)
        raise
    sink.created = collection.id if is_new else None
    return sink


def stream_sink(options: Options, schema: StructType, *, overwrite: bool) -> StreamSink:
    """Make the sink of a stream, whose collection exists."""
    check_sink(options)
    mode = _mode(options, overwrite=overwrite, is_stream=True)
    return StreamSink(*_sink_arguments(options, schema, mode, handle_of(collection_of(options.target))))


def _sink_arguments(
    options: Options, schema: StructType, mode: str, handle: CollectionHandle
) -> tuple[Options, str, BuildOptions, AppendTime, UnsealedOptions | None]:
    """Check that rows of a DataFrame can be rows of the collection; give the arguments of a sink."""
    id, known = handle.schema(handle.state())
    unsealed = unsealed_options(handle, options.text("timeColumn"), options.text("seal"), options.text("late"))
    writer = fresh_id(_writer_prefix(options) or "wj")
    building = BuildOptions(blob_location_of(handle), handle.id, writer, id, known, None)
    if unsealed is not None:
        if mode != APPEND or options.text("time") is not None:
            raise UsageError("rows at the times of timeColumn are appended: leave out mode and time")
        check_times(schema, handle, known, unsealed.times)
        return options, mode, building, AppendTime(None, False), unsealed
    sequence = options.text("sequenceBy")
    extras = {APPEND: known.system_names, OVERWRITE: ()}
    extra = extras.get(mode, tuple(filter(None, (CHANGE_TYPE, sequence))))
    if mode == DELETE:
        check_key_frame(schema, known)
    else:
        check_frame(schema, known, extra)
    if mode == UPSERT and not known.key:
        raise UsageError("rows are upserted by key, and this collection has no key columns: append them with _diff")
    when = append_time(handle, schema.names if mode == APPEND else (), options.number("time"))
    return options, mode, replace(building, at=when.at), when, None


def _mode(options: Options, *, overwrite: bool, is_stream: bool) -> str:
    """Return the write mode, from the option `mode` and from Spark's own."""
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


def _encode_message(batches: Iterator[pa.RecordBatch], schema: Schema) -> tuple[int, bytes | None]:
    """Encode the rows of a task for its message."""
    tables = [from_spark_batch(batch, schema) for batch in batches]
    table = pa.concat_tables(tables) if tables else None
    if table is None or not table.num_rows:
        return 0, None
    if table.nbytes > MESSAGE_BYTES_MAX:
        raise UsageError(
            f"{table.num_rows} rows in one task are too many for the sink: "
            "repartition the DataFrame, or use timespine.spark.foreach_batch or smaller batches in a stream"
        )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
        stream.write_table(table)
    return table.num_rows, sink.getvalue().to_pybytes()


def _decode_message(data: bytes) -> pa.Table:
    with pa.ipc.open_stream(data) as stream:
        return stream.read_all()

"""`df.write` and `df.writeStream` with `.format("timespine")`: tasks build batches, and one commit takes them all.

Modes: `append` (rows, which may carry `_diff`), `upsert` (rows by key, with deletes
where `_change_type` says so) and `delete` (keys); `df.write.mode("overwrite")` replaces all rows by
those of the DataFrame, and leaves alone those that stay the same. Rows get the next free time, or, if
the option `timeColumn` names one, that of a column: those are written ahead of the seal.
Tasks write rows that are appended, under a writer that is registered for the batch and ended by its commit. Rows that
have to be compared with those of the collection, or with what is sealed, are sent to the process that commits. That is
for batches of a stream: many rows at once are upserted by `collection.upsert(df)` or in `foreachBatch`.
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

from timespine.client.engines import (
    CHANGE_TYPE,
    REFUSE,
    Access,
    AppendTime,
    Step,
    WriteResult,
    access_of,
    append_runs_step,
    append_time,
    did_not_commit,
    fresh_id,
)
from timespine.columnar.schema.schema import Schema
from timespine.core.transitions import Command, ExpireWriter
from timespine.errors import TimespineError, UsageError
from timespine.spark.blob_location import blob_location_of
from timespine.spark.hide_tracebacks import plain
from timespine.spark.options import APPEND, DELETE, OVERWRITE, UPSERT, Options
from timespine.spark.store_cache import collection_of
from timespine.spark.stream.sink_progress import Sink, query_in
from timespine.spark.type_mapping import check_frame, check_keys, from_spark_batch
from timespine.spark.write.create_collection import collection_for
from timespine.spark.write.frames import WRITE, FrameWrite, commit_with, local_steps
from timespine.spark.write.unsealed import WriteRunsStep, check_times, unsealed_options, unsealed_runs
from timespine.spark.write.write_job import TaskAnswer, collect_runs, give_up_writer, register_writer
from timespine.spark.write.write_task import Building, TaskResult, UnsealedOptions, answer_of, append_rows, write_rows

LOG = logging.getLogger(__name__)

MESSAGE_BYTES_MAX = 64 << 20
"""The bytes of rows that one task sends to the process that commits, at most."""

LEASE_MS = 24 * 60 * 60_000
"""The lease of the writer of a batch. Nothing renews it: the process that plans the batch may end before the commit."""


@dataclass
class Message(WriterCommitMessage):
    """What a task sends."""

    answer: TaskAnswer
    """The batch that it built, or what is wrong with its rows."""
    rows: bytes | None
    """Its rows, if they have to be compared with those of the collection: Arrow IPC."""
    query: str | None
    """The streaming query that it is a task of."""
    building: Building
    """How it built the batch."""


class _SinkWriter:
    """What both sinks do.

    Spark makes a sink, pickles it, and sends it to the tasks of one batch. Of a stream it makes another one to commit
    or abort the batch, in another process: that one learns from the tasks how they built what they send.
    """

    def __init__(
        self, options: Options, mode: str, building: Building, when: AppendTime, unsealed: UnsealedOptions | None = None
    ) -> None:
        self._options = options
        self._mode = mode
        self._building = building
        self._when = when
        self._unsealed = unsealed
        self._is_registered = False

    @property
    def _is_built(self) -> bool:
        """Whether tasks write the rows. Only the process that commits knows what is sealed, and so what is late."""
        return self._mode == APPEND and (self._unsealed is None or self._unsealed.late == REFUSE)

    def begin(self) -> None:
        """Register the writer of the batch, if its tasks will put blobs."""
        if self._is_built and not self._is_registered:
            register_writer(self._handle(), self._building.writer, LEASE_MS)
            self._is_registered = True

    def __getstate__(self) -> dict[str, Any]:
        # SUBTLE: only a sink that goes to tasks is pickled, so the one that commits registers no writer
        # (test_sink_writers.py).
        self.begin()
        return self.__dict__

    @plain
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task: build a batch, or send the rows."""
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
        if self._is_built:
            answer = TaskAnswer(**answer_of(lambda: self._build(iterator)))
            return Message(answer, None, query, self._building)
        try:
            rows, data = _pack(iterator, self._building.schema)
        except UsageError as error:
            return Message(TaskAnswer(None, 0, str(error)), None, query, self._building)
        return Message(TaskAnswer(None, rows, None), data, query, self._building)

    def _build(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        """In a task: write the rows of a partition as a batch."""
        if self._unsealed is None:
            return append_rows(self._building, iterator)
        return write_rows(self._building, self._unsealed, 0, iterator)

    def _handle(self) -> Access:
        return access_of(collection_of(self._options.target))

    def _commit(self, messages: list[Message], *commands: Command) -> bool:
        """Beside the driver: commit the rows of all tasks and some commands; say whether there was anything to commit.

        SUBTLE: rows are placed by the time and the schema that the tasks wrote them with. If that time is taken they
        are moved to a later one; taken for rows at another time they would change what readers have read
        (test_sink_writers.py).
        """
        access = self._handle()
        building = messages[0].building if messages else self._building
        runs, rows = collect_runs(access, building, [message.answer for message in messages])
        access.state()
        if self._is_built:
            steps: list[Step] = []
            if self._unsealed is not None:
                answers = [message.answer for message in messages]
                written = unsealed_runs(building.schema_id, runs, rows, answers)
                steps = [WriteRunsStep(access, self._unsealed, written)]
            elif runs:
                when = replace(self._when, at=building.at)
                steps = [append_runs_step(access, building.schema, runs, rows, when)]
            if steps:
                commit_with(access, steps, *commands, *map(ExpireWriter, self._writers(access, messages)))
            return bool(steps)
        return self._commit_rows(access, building, messages, commands)

    def _commit_rows(
        self, access: Access, building: Building, messages: list[Message], commands: tuple[Command, ...]
    ) -> bool:
        """Beside the driver: write rows that tasks have sent."""
        tables = [_unpack(message.rows) for message in messages if message.rows is not None]
        if not tables and self._unsealed is not None:
            commit_with(access, [], *commands)
            return True
        if not tables and self._mode != OVERWRITE:
            return False
        table = pa.concat_tables(tables) if tables else building.schema.arrow.empty_table()
        mode = self._mode if self._unsealed is None else WRITE
        how = FrameWrite(mode, self._options.text("sequenceBy"), self._unsealed)
        done = commit_with(access, local_steps(access, table, how), *commands)
        if isinstance(done, WriteResult) and done.late and self._unsealed is not None:
            # No caller is told of a batch here, and the counters are those of this process.
            LOG.warning("%s: %d rows came too late, by rule: %s", access.name, done.late, self._unsealed.late)
        return True

    def _end(self, messages: list[Any], *, is_sure: bool) -> None:
        """End the writer of a batch that is not committed; delete its blobs if that is sure."""
        access = self._handle()
        mine = self._own_writers(messages)
        for writer in self._writers(access, messages):
            # SUBTLE: a process that was thought dead may be committing under a writer of an earlier batch. The sweep
            # looks at what is committed before it deletes (test_sink_writers.py).
            give_up_writer(access, writer, is_sure=is_sure and writer in mine)

    def _own_writers(self, messages: list[Any]) -> set[str]:
        return {self._building.writer, *(message.building.writer for message in messages if message is not None)}

    def _writers(self, access: Access, messages: list[Any]) -> list[str]:
        """Find the registered writers of this batch, and of batches of the same sink that were given up."""
        prefix, mine = _writer_prefix(self._options), self._own_writers(messages)
        there = access.state().writers
        return [each for each in there if each in mine or (prefix is not None and each.startswith(prefix))]

    @contextlib.contextmanager
    def _ended_if_refused(self, messages: list[Any]) -> Iterator[None]:
        """End the writer if a commit is refused."""
        try:
            yield
        except TimespineError as error:
            if did_not_commit(error):
                self._end(messages, is_sure=True)
            raise

    @plain
    def abort(self, messages: list[Any], *_: object) -> None:
        """Beside the driver: a task failed for good, or the commit did.

        SUBTLE: Spark commits only if all tasks have sent a message. If one is missing, nothing was committed; otherwise
        the commit may have happened, and the sweep finds out.
        """
        self._end(messages, is_sure=any(message is None for message in messages))


class BatchSink(_SinkWriter, DataSourceArrowWriter):
    """`df.write.format("timespine").mode("append")`, or `overwrite`."""

    @plain
    def commit(self, messages: list[Any]) -> None:
        with self._ended_if_refused(messages):
            if not self._commit([message for message in messages if message is not None]):
                self._end(messages, is_sure=True)


class StreamSink(_SinkWriter, DataSourceStreamArrowWriter):
    """`df.writeStream.format("timespine")`: each batch exactly once."""

    @plain
    def commit(self, messages: list[Any], batchId: int) -> None:
        given = [message for message in messages if message is not None]
        checkpoint = query_in(self._options.text("checkpointLocation"))
        query = next((message.query for message in given if message.query), checkpoint)
        sink = Sink(self._options.text("sinkId"), query, self._options.number("firstBatch") or 0)
        access = self._handle()
        with self._ended_if_refused(given):
            done = sink.commit_once([access], batchId, lambda: self._commit(given, sink.commit(batchId)) or None)
            if done is None:
                self._end(given, is_sure=True)


def _writer_prefix(options: Options) -> str | None:
    """Name the writers of a sink, which runs one batch at a time; None if nothing tells it from other sinks."""
    named = (options.text("sinkId"), options.text("checkpointLocation"))
    return None if named == (None, None) else f"ws{hashlib.sha256(repr(named).encode()).hexdigest()[:16]}-"


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
) -> tuple[Options, str, Building, AppendTime, UnsealedOptions | None]:
    """Check that rows of a DataFrame can be rows of the collection; give what a sink needs to know.

    If it `creates`, a collection that is not there is created with the columns of the DataFrame.
    """
    mode = _mode(options, overwrite=overwrite, is_stream=not creates)
    access = access_of(collection_for(options, schema) if creates else collection_of(options.target))
    id, known = access.schema(access.state())
    unsealed = unsealed_options(access, options.text("timeColumn"), options.text("seal"), options.text("late"))
    writer = fresh_id(_writer_prefix(options) or "wj")
    building = Building(blob_location_of(access), access.id, writer, id, known, None)
    if unsealed is not None:
        if mode != APPEND or options.text("time") is not None:
            raise UsageError("rows at the times of timeColumn are appended: leave out mode and time")
        check_times(schema, access, known, unsealed.times)
        return options, mode, building, AppendTime(None, False), unsealed
    sequence = options.text("sequenceBy")
    extras = {APPEND: known.system_names, OVERWRITE: ()}
    extra = extras.get(mode, tuple(filter(None, (CHANGE_TYPE, sequence))))
    if mode == DELETE:
        check_keys(schema, known)
    else:
        check_frame(schema, known, extra)
    if mode == UPSERT and not known.key:
        raise UsageError("rows are upserted by key, and this collection has no key columns: append them with _diff")
    when = append_time(access, schema.names if mode == APPEND else (), options.number("time"))
    return options, mode, replace(building, at=when.at), when, None


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


def _pack(batches: Iterator[pa.RecordBatch], schema: Schema) -> tuple[int, bytes | None]:
    """Encode the rows of a task, to be sent."""
    tables = [from_spark_batch(batch, schema) for batch in batches]
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


def _unpack(data: bytes) -> pa.Table:
    with pa.ipc.open_stream(data) as stream:
        return stream.read_all()

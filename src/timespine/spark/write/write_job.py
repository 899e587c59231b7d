"""A job that writes, with a writer of its own: the end of the job deletes the blobs that no commit refers to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from types import TracebackType

import msgspec

from timespine.client.api_for_engines import CollectionHandle, did_not_commit, flush_inline, fresh_id
from timespine.columnar.parts.part_list_tree import delete_keys
from timespine.columnar.schema.schema import Schema
from timespine.columnar.write.run_writer import RunWriter
from timespine.columnar.write.transmit_batch import decode_batch
from timespine.columnar.write.upload import UploadTarget
from timespine.core.batch import HollowBatch, Run
from timespine.core.transitions import Command, ExpireWriter, RegisterWriter
from timespine.errors import TimespineError, UsageError
from timespine.model.time import Time
from timespine.spark.blob_location import blob_location_of
from timespine.spark.write.write_task import BuildOptions


class TaskAnswer(msgspec.Struct, frozen=True):
    """The answer of a task."""

    batch: bytes | None
    """The batch that it built; None if it has no updates."""
    rows: int
    """The number of rows of its partition."""
    error: str | None
    """The error of its rows."""
    late: int = 0
    """The number of late rows that it dropped or moved."""
    latest: int | None = None
    """The largest time of its rows, if they are written ahead of the seal."""
    keys: bytes | None = None
    """The Bloom filter of the keys that it looked up, if it changes rows."""


class WriteJob:
    """One write by many tasks and one commit. Leaving it with an error deletes the blobs of the tasks."""

    def __init__(self, handle: CollectionHandle, id: int, schema: Schema, at: Time | None) -> None:
        handle.committer.check_writable()
        self._handle = handle
        self._is_committing = False
        is_owned = bool(handle.entry.role)
        self.building = BuildOptions(blob_location_of(handle), handle.id, fresh_id("wj"), id, schema, at, is_owned)
        """The options of the tasks, with the writer under which they put blobs."""

    @property
    def writer(self) -> str:
        """Return the writer under which the tasks put blobs."""
        return self.building.writer

    def end(self) -> tuple[Command, ...]:
        """Make the command that ends the writer, for the commit that refers to its blobs. The sweep deletes the others.

        SUBTLE: after this call the blobs may be committed, unless an error says that they are not.
        """
        self._is_committing = True
        return (ExpireWriter(self.writer),)

    def __enter__(self) -> WriteJob:
        handle = self._handle
        register_job_writer(handle, self.writer, handle.config.writer_lease_ms)
        handle.context.writing[handle.id, self.writer] = handle.context.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._handle.context.writing.pop((self._handle.id, self.writer), None)
        if value is not None:
            is_sure = not self._is_committing or (isinstance(value, TimespineError) and did_not_commit(value))
            expire_job_writer(self._handle, self.writer, is_sure=is_sure)

    def runs(self, answers: Iterable[TaskAnswer]) -> tuple[tuple[Run, ...], int]:
        """Collect the runs that the tasks built, and count the updates."""
        return collect_runs(self._handle, self.building, answers)


def register_job_writer(handle: CollectionHandle, writer: str, term_ms: int) -> None:
    """Register the writer of a job, before its tasks put blobs."""
    handle.committer.commit((handle.id, RegisterWriter(writer, term_ms)))


def expire_job_writer(handle: CollectionHandle, writer: str, *, is_sure: bool) -> None:
    """End the writer of a job; delete its blobs if they are surely not committed. The sweep deletes the others.

    SUBTLE: never delete blobs that may be committed (test_spark_writes.py).
    """
    with contextlib.suppress(TimespineError):
        is_sure = is_sure and writer in handle.state().writers  # a commit of its blobs would have ended it
        handle.committer.commit((handle.id, ExpireWriter(writer)))
        if is_sure:
            blob = handle.context.blob
            delete_keys([info.key for info in blob.list_keys(f"{handle.id}/{writer}/")], blob, None)


def collect_runs(
    handle: CollectionHandle, building: BuildOptions, answers: Iterable[TaskAnswer]
) -> tuple[tuple[Run, ...], int]:
    """Collect the batches of tasks as few sorted runs, and count the updates; raise a UsageError if rows were wrong."""
    found = list(answers)
    wrong = sorted({each.error for each in found if each.error is not None})
    if wrong:
        raise UsageError(wrong[0])
    decoded = [decode_batch(each.batch, handle.id) for each in found if each.batch is not None]
    batches = _flush_beyond_budget(handle, building, decoded)
    context = handle.context
    target = UploadTarget(handle.id, building.writer, building.schema, building.schema_id, context.blob, handle.config)
    with RunWriter(target, fresh_id, context.counters, is_sorted=False) as writer:
        for batch in batches:
            for run in batch.runs:
                writer.refer(run.parts)
        return writer.finish(), sum(batch.len for batch in batches)


def _flush_beyond_budget(
    handle: CollectionHandle, building: BuildOptions, batches: list[HollowBatch]
) -> list[HollowBatch]:
    """Put inline parts as blobs if the known state has no room for them, since the commit would be refused."""
    inline = sum(batch.inline_bytes for batch in batches)
    if not inline or handle.known().inline_bytes + inline <= handle.config.inline_total_bytes:
        return batches
    return [flush_inline(handle, batch, building.writer) for batch in batches]

"""A job that writes: it has a writer of its own, so that what its tasks leave behind is deleted when it ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from types import TracebackType

import msgspec

from timespine.client.engines import Access, did_not_commit, flush_inline, fresh_id
from timespine.columnar.parts.hollow_run import delete_keys
from timespine.columnar.schema.schema import Schema
from timespine.columnar.write.batch_envelope import decode_batch
from timespine.columnar.write.run_writer import RunWriter
from timespine.columnar.write.upload import Target
from timespine.core.batch import HollowBatch, Run
from timespine.core.transitions import Command, ExpireWriter, RegisterWriter
from timespine.errors import TimespineError, UsageError
from timespine.model.time import Time
from timespine.spark.blob_location import blob_location_of
from timespine.spark.write.write_task import Building


class TaskAnswer(msgspec.Struct, frozen=True):
    """What a task sent."""

    batch: bytes | None
    """The batch that it built; None if nothing came of its rows."""
    rows: int
    """Rows that it took."""
    error: str | None
    """What is wrong with them."""
    late: int = 0
    """The rows that came too late, and were dropped or moved."""
    latest: int | None = None
    """The largest time that they brought, if they are written ahead of the seal."""
    keys: bytes | None = None
    """The filter of the keys that it looked up, if it changes rows."""


class Job:
    """One write by many tasks and one commit. Leaving it with an error deletes what the tasks put."""

    def __init__(self, access: Access, id: int, schema: Schema, at: Time | None) -> None:
        access.committer.check_writable()
        self._access = access
        self._is_committing = False
        self.building = Building(blob_location_of(access), access.id, fresh_id("wj"), id, schema, at)
        """What tasks need to know, with the writer whose blobs they put."""

    @property
    def writer(self) -> str:
        """The writer whose blobs the tasks put."""
        return self.building.writer

    def end(self) -> tuple[Command, ...]:
        """Make the command that ends the writer, for the commit that refers to its blobs. The sweep deletes the others.

        SUBTLE: from now on the blobs may be committed, unless an error says that they are not.
        """
        self._is_committing = True
        return (ExpireWriter(self.writer),)

    def __enter__(self) -> Job:
        access = self._access
        register_writer(access, self.writer, access.config.writer_lease_ms)
        access.shared.writing[access.id, self.writer] = access.shared.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._access.shared.writing.pop((self._access.id, self.writer), None)
        if value is not None:
            is_sure = not self._is_committing or (isinstance(value, TimespineError) and did_not_commit(value))
            give_up_writer(self._access, self.writer, is_sure=is_sure)

    def runs(self, answers: Iterable[TaskAnswer]) -> tuple[tuple[Run, ...], int]:
        """Collect what the tasks built."""
        return collect_runs(self._access, self.building, answers)


def register_writer(access: Access, writer: str, term_ms: int) -> None:
    """Register the writer of a job, before its tasks put blobs."""
    access.committer.commit((access.id, RegisterWriter(writer, term_ms)))


def give_up_writer(access: Access, writer: str, *, is_sure: bool) -> None:
    """End the writer of a job; delete its blobs if they are surely not committed. The sweep deletes what this cannot.

    SUBTLE: what may be committed must not be deleted (test_spark_writes.py).
    """
    with contextlib.suppress(TimespineError):
        is_sure = is_sure and writer in access.state().writers  # a commit of its blobs would have ended it
        access.committer.commit((access.id, ExpireWriter(writer)))
        if is_sure:
            blob = access.shared.blob
            delete_keys([info.key for info in blob.list_keys(f"{access.id}/{writer}/")], blob, None)


def collect_runs(access: Access, building: Building, answers: Iterable[TaskAnswer]) -> tuple[tuple[Run, ...], int]:
    """Collect what tasks built as few sorted runs, and count the updates; a UsageError if rows were wrong."""
    found = list(answers)
    wrong = sorted({each.error for each in found if each.error is not None})
    if wrong:
        raise UsageError(wrong[0])
    decoded = [decode_batch(each.batch, access.id) for each in found if each.batch is not None]
    batches = _flush_beyond_budget(access, building, decoded)
    shared = access.shared
    target = Target(access.id, building.writer, building.schema, building.schema_id, shared.blob, access.config)
    with RunWriter(target, fresh_id, shared.counters, is_sorted=False) as writer:
        for batch in batches:
            for run in batch.runs:
                writer.refer(run.parts)
        return writer.finish(), sum(batch.len for batch in batches)


def _flush_beyond_budget(access: Access, building: Building, batches: list[HollowBatch]) -> list[HollowBatch]:
    """Put inline parts as blobs if the known state has no room for them: the commit would be refused."""
    inline = sum(batch.inline_bytes for batch in batches)
    if not inline or access.known().inline_bytes + inline <= access.config.inline_total_bytes:
        return batches
    return [flush_inline(access, batch, building.writer) for batch in batches]

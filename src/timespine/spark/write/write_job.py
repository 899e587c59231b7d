"""A job that writes: a writer of its own for as long as it takes, so that what its tasks leave behind goes with it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from types import TracebackType

import msgspec

from timespine.client.commit.driver import fresh_id
from timespine.client.context import Access
from timespine.client.write.stage import delete_unused, did_not_commit
from timespine.columnar.parts.hollow_run import delete_keys
from timespine.columnar.schema.schema import Schema
from timespine.columnar.write.batch_envelope import decode_batch
from timespine.columnar.write.flush_inline import flush_to_blob
from timespine.columnar.write.run_writer import RunWriter
from timespine.columnar.write.upload import Target
from timespine.core.batch import HollowBatch, Run
from timespine.core.transitions import Command, ExpireWriter, RegisterWriter
from timespine.errors import TimespineError, UsageError
from timespine.model.time import Time
from timespine.spark.blob_location import place_of
from timespine.spark.write.write_task import Building

Together = tuple[Command, ...]
"""Commands that are committed with the rows of a DataFrame, all or nothing."""


class Sent(msgspec.Struct, frozen=True):
    """What a task sent."""

    batch: bytes | None
    """The batch that it built; None if nothing came of its rows."""
    rows: int
    """Rows that it took."""
    error: str | None
    """What is wrong with them."""
    late: int = 0
    """Those that came too late, and were dropped or moved."""
    latest: int | None = None
    """The largest time that they brought, if they are written ahead of the seal."""
    keys: bytes | None = None
    """The filter of the keys that it looked up, if it changes rows."""


class Job:
    """One write by many tasks and one commit. Whatever is not committed at the end is given up."""

    def __init__(self, access: Access, id: int, schema: Schema, at: Time | None) -> None:
        access.committer.check_writable()
        self._access = access
        self._id = id
        self._schema = schema
        self._place = place_of(access)
        self._at = at
        self._is_committing = False
        self.writer = fresh_id("w")
        """The writer whose blobs the tasks put."""

    @property
    def building(self) -> Building:
        """What tasks need to know."""
        return Building(self._place, self._access.id, self.writer, self._id, self._schema, self._at)

    def end(self) -> Together:
        """What ends the writer, in the commit that takes over its blobs: what else it has put is left to the sweep.

        SUBTLE: from now on it may be committed, whatever interrupts us, unless an error says that it is not.
        """
        self._is_committing = True
        return (ExpireWriter(self.writer),)

    def __enter__(self) -> Job:
        access = self._access
        access.committer.commit((access.id, RegisterWriter(self.writer, access.config.writer_lease_ms)))
        access.shared.writing[access.id, self.writer] = access.shared.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._access.shared.writing.pop((self._access.id, self.writer), None)
        if value is not None:
            self._give_up(
                is_sure=not self._is_committing or (isinstance(value, TimespineError) and did_not_commit(value))
            )

    def _give_up(self, *, is_sure: bool) -> None:
        """End the writer, and delete what it put if that is surely not committed. What fails is left to the sweep."""
        access = self._access
        with contextlib.suppress(TimespineError):
            access.committer.commit((access.id, ExpireWriter(self.writer)))
            if is_sure:
                blob = access.shared.blob
                put = [info.key for info in blob.list_keys(f"{access.id}/{self.writer}/")]
                delete_keys(put, blob, None)

    def runs(self, sent: Iterable[Sent]) -> tuple[tuple[Run, ...], int]:
        """What the tasks built."""
        return gathered(self._access, self.building, sent)


def gathered(access: Access, building: Building, sent: Iterable[Sent]) -> tuple[tuple[Run, ...], int]:
    """What tasks built, as few sorted runs, and how many updates that is; a UsageError if rows were wrong."""
    answers = list(sent)
    wrong = sorted({each.error for each in answers if each.error is not None})
    if wrong:
        raise UsageError(wrong[0])
    batches = _fitting(
        access, building, [decode_batch(each.batch, access.id) for each in answers if each.batch is not None]
    )
    shared = access.shared
    target = Target(access.id, building.writer, building.schema, building.schema_id, shared.blob, access.config)
    with RunWriter(target, fresh_id, shared.counters, is_sorted=False) as writer:
        for batch in batches:
            for run in batch.runs:
                writer.refer(run.parts)
        return writer.finish(), sum(batch.len for batch in batches)


def _fitting(access: Access, building: Building, batches: list[HollowBatch]) -> list[HollowBatch]:
    """Batches of which nothing is inline, if the state has no room for it: the commit would only say so."""
    inline = sum(batch.inline_bytes for batch in batches)
    if not inline or access.known().inline_bytes + inline <= access.config.inline_total_bytes:
        return batches
    schema_of = access.parts(access.known()).schema_of
    shared = access.shared
    return [
        flush_to_blob(
            batch,
            access.id,
            building.writer,
            schema_of,
            shared.blob,
            access.config,
            fresh=fresh_id,
            counters=shared.counters,
        )
        for batch in batches
    ]


def delete_sent(access: Access, sent: Iterable[Sent]) -> None:
    """Delete what tasks put for a commit that does not take place. What fails is left to the sweep."""
    for each in sent:
        if each.batch is not None:
            with contextlib.suppress(TimespineError):
                delete_unused(access, decode_batch(each.batch, access.id))

"""Begin to follow a collection: from a checkpoint that fits, or from a snapshot.

In both cases the lease of the change feed is taken first, and then what it covers is relied upon:

    rows of the spine  ==  rows of the collection as of `through`,   and the feed gives every later update
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from timespine.arrangement.batch.batch import Batch, batch_of
from timespine.arrangement.batch.layout import Layout
from timespine.arrangement.checkpoint import CheckpointFolder
from timespine.arrangement.follow.checkpoint_origin import misfit, origin_of
from timespine.arrangement.follow.followed_rows import NamedColumns, Question
from timespine.arrangement.manifest import read_manifest
from timespine.arrangement.spine.spine import Spine
from timespine.client.api_for_engines import handle_of, restrict_columns, scan_request_of
from timespine.client.collection import Collection
from timespine.client.read.follow.change_feed import ChangeFeed, FeedEvent
from timespine.columnar.ingest.update_table import update_table
from timespine.core.arrangement.levels import level_rules
from timespine.errors import (
    CorruptionError,
    Determinate,
    LeaseExpired,
    SinceError,
    Unavailable,
    UsageError,
    VersionError,
)
from timespine.model.frontier import CLOSED, Frontier
from timespine.model.time import INT64_MAX

logger = logging.getLogger(__name__)

SCHEMA_TRIES = 20
"""How often to begin, if the schema changes, or the lease is lost, each time meanwhile."""


@dataclass(frozen=True, slots=True)
class Followed:
    """A spine, and the feed that goes on from it."""

    spine: Spine
    feed: ChangeFeed
    schema_id: int
    """The schema of the collection that the spine has the columns of."""
    is_restored: bool
    """Whether it began from a checkpoint."""

    def close(self) -> None:
        """End both. A lease that cannot be returned now, because storage is unavailable, expires."""
        try:
            self.feed.close()
        except Unavailable as error:
            logger.info("the lease of an arrangement was not returned: %s", error)
        finally:
            self.spine.close()


@dataclass(slots=True)
class BeginCounts:
    """How often arrangements of this question began, and from what."""

    reads: int = 0
    """Reads of the whole collection."""
    restores: int = 0
    """Checkpoints that it went on from."""
    refusals: int = 0
    """Checkpoints that were damaged, or did not fit."""


class Beginning:
    """How to begin to follow a collection: once, and again if that must be."""

    def __init__(self, collection: Collection, question: Question) -> None:
        self._collection = collection
        self._question = question
        config = handle_of(collection).config
        self._limits: dict[str, Any] = {"rules": level_rules(config), "memory_bytes": config.arrangement_memory_bytes}
        self.counts = BeginCounts()
        """How often it began, and from what."""

    def begin(self, *, restores: bool) -> Followed:
        """Begin to follow; without `restores` from a snapshot in any case."""
        handle = handle_of(self._collection)
        for _ in range(SCHEMA_TRIES):
            id, whole = handle.schema(handle.state())
            named = self._question.in_names_of(whole)
            schema = whole if named.columns is None else restrict_columns(whole, named.columns)
            try:
                begun = self._begin(id, named, Layout.of(schema, named.by), restores)
            except LeaseExpired:
                continue  # this process stood still for too long
            except UsageError:
                if handle.schema(handle.state())[0] == id:
                    raise
                continue  # a column was renamed or dropped just now
            # SUBTLE: the feed may have the columns of a newer schema
            # (test_a_schema_that_changes_while_an_arrangement_begins_is_seen).
            if scan_request_of(begun.feed).schema == whole:
                return begun
            begun.close()
        raise Determinate(
            f"the schema of {handle.name} changed, or its lease was lost, {SCHEMA_TRIES} times while it was arranged: "
            "try again"
        )

    def _begin(self, schema_id: int, named: NamedColumns, layout: Layout, restores: bool) -> Followed:
        if self._question.folder is None:
            return self._read(schema_id, named, layout, None)
        origin = origin_of(self._collection.id, self._question)
        folder = CheckpointFolder(self._question.folder, layout, origin.encode())
        try:
            restored = self._restored(schema_id, named, layout, folder) if restores else None
            return restored or self._read(schema_id, named, layout, folder)
        except BaseException:
            folder.close()
            raise

    def _restored(
        self, schema_id: int, named: NamedColumns, layout: Layout, folder: CheckpointFolder
    ) -> Followed | None:
        """Go on from the newest checkpoint; None if there is none, or if it cannot be used: losing it costs a read."""
        numbers = folder.numbers()
        if not numbers:
            return None
        wanted, state = origin_of(self._collection.id, self._question), handle_of(self._collection).state()
        try:
            stored = read_manifest(folder.path, numbers[0])
            reason = misfit(stored, wanted, layout.schema, state)
            if reason is None and stored.upper is not None:
                return self._from_checkpoint(schema_id, named, layout, folder, stored.upper)
        except (CorruptionError, VersionError, FileNotFoundError) as error:
            reason = f"it is damaged: {error}"
        except SinceError as error:
            reason = f"the history since then is gone: {error}"
        self.counts.refusals += 1
        logger.warning(
            "checkpoint %s in %s is not used, and %s is read again: %s",
            *(numbers[0], folder.path, self._collection.name, reason),
        )
        return None

    def _from_checkpoint(
        self, schema_id: int, named: NamedColumns, layout: Layout, folder: CheckpointFolder, upper: Frontier
    ) -> Followed:
        """Restore a checkpoint, and follow from its upper on."""
        last = upper.last_complete()
        as_of = None if last == INT64_MAX else last
        feed = self._collection.subscribe(as_of, columns=named.columns, where=named.where, snapshot=False)
        try:
            spine = Spine(layout.schema, layout.by, folder=folder, **self._limits)
        except BaseException:
            feed.close()
            raise
        self.counts.restores += 1
        return Followed(spine, feed, schema_id, True)

    def _read(self, schema_id: int, named: NamedColumns, layout: Layout, folder: CheckpointFolder | None) -> Followed:
        """Read the collection into a new spine."""
        feed = self._collection.subscribe(columns=named.columns, where=named.where)
        try:
            spine = Spine(layout.schema, layout.by, folder=folder, restores=False, **self._limits)
        except BaseException:
            feed.close()
            raise
        begun = Followed(spine, feed, schema_id, False)
        try:
            for event in feed.poll():
                insert_event(begun.spine, event)
        except BaseException:
            begun.close()
            raise
        self.counts.reads += 1
        return begun


def insert_event(spine: Spine, event: FeedEvent) -> int:
    """Insert what a feed gave, and move the upper with it at once; return the number of updates."""
    upper = CLOSED if event.through >= INT64_MAX else Frontier.at(event.through + 1)
    if event.rows is None and spine.upper == upper:
        return 0  # the changes before it have moved the upper
    batch = _batch(event, spine.layout)
    spine.insert(batch, upper=upper)
    if event.kind == "snapshot" and event.through >= 0:
        # SUBTLE: the snapshot stands at its own time, so before that the spine has no rows
        # (test_times_before_the_first_snapshot_cannot_be_read).
        spine.advance_since(Frontier.at(event.through))
    return batch.rows


def _batch(event: FeedEvent, layout: Layout) -> Batch:
    """Return the rows of an event as a batch; an empty one for progress."""
    if event.rows is None or not event.rows.num_rows:
        return Batch(())
    there = [name for name in (*layout.schema.names, *layout.schema.system_names) if name in event.rows.column_names]
    at = (max(event.through, 0),) if event.kind == "snapshot" else None
    return batch_of(update_table(event.rows.select(there), layout.schema, at, None), layout) or Batch(())

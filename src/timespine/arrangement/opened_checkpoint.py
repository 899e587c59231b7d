"""A checkpoint of an arrangement, opened for reading in any process: files are mapped, searched, and not read whole.

It does not follow the collection: it is the rows as of the upper that was saved. While it is open, the process that
owns the folder deletes none of its files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from timespine.arrangement.batch.batch import Batch
from timespine.arrangement.batch.batch_file import FileFacts, open_batch
from timespine.arrangement.batch.key_filters import FilterCounts
from timespine.arrangement.batch.layout import Layout
from timespine.arrangement.follow.checkpoint_origin import decode_origin
from timespine.arrangement.manifest import StoredCheckpoint, pin_manifest
from timespine.arrangement.read.arranged_reads import ArrangedReads
from timespine.arrangement.read.view_as_of import ArrangementView
from timespine.client.arguments.time_args import unwrap_time
from timespine.columnar.schema.schema import Schema
from timespine.core.arrangement.levels import LevelRules, level_of
from timespine.errors import CorruptionError, NotSealed, SinceError, StoreClosed, UsageError
from timespine.model.frontier import Frontier
from timespine.model.time import INT64_MAX, Time, check_time


class OpenedCheckpoint(ArrangedReads):
    """The rows of a checkpoint. They never change; `refresh` opens a newer one.

    Pickled, it is the folder and the number: another process opens the same checkpoint, if this one keeps it open.
    """

    def __init__(self, folder: str | os.PathLike[str], number: int | None = None) -> None:
        self.folder = os.path.abspath(os.fspath(folder))
        """Where it is."""
        self._counts = FilterCounts()
        self._is_closed = False
        self._open(number)

    def _open(self, number: int | None) -> None:
        pinned = pin_manifest(self.folder, number)
        try:
            stored = pinned.stored
            layout = _layout(stored)
            facts = {each.name: FileFacts(each.size, each.footer_hash) for each in stored.files}
            batches = [open_batch(os.path.join(self.folder, name), each, layout) for name, each in facts.items()]
        except BaseException:
            pinned.close()
            raise
        self._pinned, self._layout, self._batches = pinned, layout, tuple(batches)

    @property
    def number(self) -> int:
        """Return the number of the checkpoint: later ones have larger numbers."""
        return self._pinned.stored.number

    @property
    def upper(self) -> Frontier | None:
        """Return the frontier below which it has all updates; None if it was saved without one."""
        return self._pinned.stored.upper

    @property
    def since(self) -> Frontier | None:
        """Return the frontier from which on it can be read; None if all times can."""
        return self._pinned.stored.since

    @property
    def layout(self) -> Layout:
        """Return the columns, and those that rows are arranged by."""
        return self._layout

    @property
    def batches(self) -> tuple[Batch, ...]:
        """Return the mapped batches."""
        return self._batches

    def at(self, as_of: Time | None = None) -> ArrangementView:
        """Return the rows as of a time that it has; the newest, if none is given."""
        if as_of is None:
            return self._view()
        time = check_time(as_of, self._layout.schema.arity)
        if self.since is not None and not self.since.less_equal(time):
            raise SinceError(time, self.since)
        if self.upper is not None and self.upper.less_equal(time):
            raise NotSealed(time, self.upper)
        return self._view_at(time)

    def _view(self) -> ArrangementView:
        last = INT64_MAX if self.upper is None or self._layout.schema.arity > 1 else self.upper.last_complete()
        return self._view_at((last or 0,) * self._layout.schema.arity)

    def _view_at(self, time: Time) -> ArrangementView:
        if self._is_closed:
            raise StoreClosed("this checkpoint is closed: open its folder again")
        return ArrangementView(self._layout, self._batches, time, self._counts)

    def refresh(self) -> bool:
        """Open the newest checkpoint of the folder; return whether it is a newer one. Views keep what they have."""
        if self._is_closed:
            raise StoreClosed("this checkpoint is closed: open its folder again")
        before = self._pinned
        self._open(None)
        before.close()
        return self._pinned.stored.number != before.stored.number

    def verify(self) -> None:
        """Verify all files now, instead of each chunk at its first touch; CorruptionError if one is damaged."""
        for batch in self._batches:
            batch.verify()

    def metrics(self) -> dict[str, Any]:
        """Return figures of the checkpoint, and of the filters of its files."""
        return {
            "batches": len(self._batches),
            "rows": sum(batch.rows for batch in self._batches),
            "bytes": sum(batch.nbytes for batch in self._batches),
            **{name.replace("_", " "): getattr(self._counts, name) for name in FilterCounts.__slots__},
        }

    def describe(self) -> dict[str, Any]:
        """Return what it has, without reading rows: the columns, the frontiers, its files, and these by level.

        A level is that of the rows of a file by the default bounds (`Config.arrangement_level_rows`).
        """
        stored = self._pinned.stored
        origin = decode_origin(stored)
        sizes = {each.name: each.size for each in stored.files}
        files = [_file_facts(batch, sizes) for batch in self._batches]
        return {
            "folder": self.folder,
            "number": self.number,
            "collection": None if origin is None else origin.collection,
            "since": self.since,
            "upper": self.upper,
            "arranged_by": list(self._layout.by),
            "columns": {name: str(kind) for name, kind in self._layout.schema.types.items()},
            "is_dirty": stored.is_dirty,
            "rows": sum(batch.rows for batch in self._batches),
            "bytes": sum(batch.nbytes for batch in self._batches),
            "levels": [_level_facts(level, files) for level in sorted({each["level"] for each in files})],
            "files": files,
        }

    def close(self) -> None:
        """Let its files be deleted. Views that were taken keep theirs."""
        self._is_closed = True
        self._pinned.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenedCheckpoint, (self.folder, self.number)

    def __enter__(self) -> OpenedCheckpoint:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _file_facts(batch: Batch, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return what the footer of a file says."""
    assert batch.file is not None
    return {
        "file": batch.file,
        "level": level_of(LevelRules(), batch, is_merged=False),
        "rows": batch.rows,
        "negatives": batch.negatives,
        "chunks": len(batch.chunks),
        "size": sizes[batch.file],
        "earliest": unwrap_time(batch.earliest),
        "latest": unwrap_time(batch.latest),
    }


def _level_facts(level: int, files: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sums over the files of a level."""
    there = [each for each in files if each["level"] == level]
    sums = {name: sum(each[name] for each in there) for name in ("rows", "negatives", "size")}
    return {"level": level, "files": len(there), **sums}


def _layout(stored: StoredCheckpoint) -> Layout:
    """Return the layout that a manifest says; raise a CorruptionError if it is not one."""
    try:
        return Layout(Schema.decode(stored.schema), stored.by)
    except UsageError as error:
        raise CorruptionError(f"the columns of checkpoint {stored.number} do not make sense") from error


def open_checkpoint(folder: str | os.PathLike[str], *, number: int | None = None) -> OpenedCheckpoint:
    """Open the newest checkpoint of a folder for reading, or the one of a number. Any process may, at any time."""
    return OpenedCheckpoint(folder, number)

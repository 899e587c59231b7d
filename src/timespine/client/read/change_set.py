"""Net changes between two times, as counts or as pairs of images by key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from timespine.client.read.rows import BATCH_ROWS, REPEATED_MAX, Rows
from timespine.columnar.schema.schema import DIFF
from timespine.errors import UsageError
from timespine.libraries import pl

if TYPE_CHECKING:
    from timespine.client.inner_handles import CollectionHandle
    from timespine.client.read.leases import LeasedState
    from timespine.columnar.scan.scan_request import ScanRequest
    from timespine.core.read_plan import Plan

CHANGE_TYPE = "_change_type"
"""The column that names the kind of change of a row."""

INSERT, DELETE, PREIMAGE, POSTIMAGE = "insert", "delete", "update_preimage", "update_postimage"
"""The kinds of change."""


class Changes(Rows):
    """The net changes: a row that was added and removed in between does not occur."""

    def __init__(
        self,
        handle: CollectionHandle,
        leased: LeasedState,
        plan: Plan | None,
        request: ScanRequest,
        multiplicity: str,
        *,
        images: bool = False,
    ) -> None:
        super().__init__(handle, leased, plan, request, multiplicity)
        self.has_images = images
        """Whether changes are images, paired by key."""
        if images and not self._request.schema.key:
            raise UsageError("images pair rows by key: this collection has no key columns")

    def to_arrow(self) -> pa.Table:
        """Read all changes: rows with `_diff`; with images, rows with `_change_type`."""
        table = super().to_arrow()
        return with_images(table, list(self._request.schema.key_names)) if self.has_images else table

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the result."""
        empty = self._empty()
        return with_images(empty, list(self._request.schema.key_names)).schema if self.has_images else empty.schema

    def batches(self, memory_bytes: int | None = None) -> Iterator[pa.RecordBatch]:
        """Read the changes piece by piece. Images are paired by key over all changes, so those are read whole first."""
        return iter(self.to_arrow().to_batches(BATCH_ROWS)) if self.has_images else super().batches(memory_bytes)

    def _check_pieces(self) -> None:
        super()._check_pieces()
        if self.has_images and self._request.schema.cluster_names:
            raise UsageError(
                "the images of a row may lie far apart in a clustered collection: read them whole, or without images"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of the result, without `_diff`."""
        if not self.has_images:
            return self._request.columns
        keys = tuple(name for name in self._request.schema.key_names if name not in self._request.columns)
        return (*keys, *self._request.columns)

    def count(self) -> int:
        """Count the changed rows: each distinct row that was added or removed."""
        return int(self.to_arrow().num_rows)

    def __repr__(self) -> str:
        return f"<changes of {self._handle.name}, state {self.seqno}>"


def with_images(table: pa.Table, keys: list[str]) -> pa.Table:
    """Turn changes into insert, delete, update_preimage and update_postimage, by key.

    A key with both removed and added rows was updated. Each row occurs as often as it changed.
    """
    frame = pl.DataFrame(pl.from_arrow(table))
    if frame[DIFF].cast(pl.Float64).abs().sum() > REPEATED_MAX:
        raise UsageError(f"these changes have more than {REPEATED_MAX} images: ask for them without, as counts")
    came, went = (pl.col(DIFF) > 0).any().over(keys), (pl.col(DIFF) < 0).any().over(keys)
    kind = (
        pl.when(came & went & (pl.col(DIFF) < 0))
        .then(pl.lit(PREIMAGE))
        .when(came & went)
        .then(pl.lit(POSTIMAGE))
        .when(pl.col(DIFF) < 0)
        .then(pl.lit(DELETE))
        .otherwise(pl.lit(INSERT))
    )
    marked = frame.with_columns(kind.alias(CHANGE_TYPE))
    marked = marked.with_columns(pl.col(DIFF).abs().alias(DIFF))
    if len(marked) and marked[DIFF].max() != 1:
        marked = marked.select(pl.all().repeat_by(DIFF)).explode(marked.columns)
    schema = pa.schema([*(field for field in table.schema if field.name != DIFF), pa.field(CHANGE_TYPE, pa.string())])
    return marked.drop(DIFF).to_arrow().cast(schema)

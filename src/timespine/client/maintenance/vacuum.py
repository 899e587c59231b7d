"""Vacuum: find and delete orphaned blobs. It forgets no history; `expire` does."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from timespine.client.commit.group_commit import GroupCommitter
from timespine.client.inner_handles import CollectionHandle
from timespine.core.protocols import garbage
from timespine.location.blob import Blob


@dataclass(frozen=True, slots=True)
class VacuumResult:
    """The result of a vacuum: the blobs that no state can reach."""

    blobs: list[str]
    """The orphaned blobs of expired writers."""
    bytes: int
    """The bytes of these blobs."""
    deleted: bool
    """Whether they were deleted."""


def vacuum_collections(
    handles: list[CollectionHandle], blob: Blob, committer: GroupCommitter, *, dry_run: bool
) -> VacuumResult:
    """Find the orphaned blobs of these collections; delete them unless `dry_run`."""
    found: list[str] = []
    size = 0
    for handle in handles:
        orphans = committer.look(partial(garbage.find_orphans, collection=handle.id))
        found.extend(orphans)
        wanted = set(orphans)
        size += sum(info.size for info in blob.list_keys(f"{handle.id}/") if info.key in wanted) if wanted else 0
        if not dry_run:
            committer.run(handle.id, partial(garbage.sweep, collection=handle.id))
    return VacuumResult(found, size, not dry_run)

"""Vacuum: blobs that nobody can reach. It forgets no history; `expire` is the one that does."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from timespine.client.commit.group_commit import Committer
from timespine.client.context import Access
from timespine.core.protocols import garbage
from timespine.location.blob import Blob


@dataclass(frozen=True, slots=True)
class VacuumResult:
    """The result of a vacuum: the blobs that no state can reach."""

    blobs: list[str]
    """Blobs of writers that are gone, which no state refers to."""
    bytes: int
    """What they take."""
    deleted: bool
    """Whether they were deleted."""


def vacuum(accesses: list[Access], blob: Blob, committer: Committer, *, dry_run: bool) -> VacuumResult:
    """Find what leaked in these collections, and delete it unless it is a dry run."""
    found: list[str] = []
    size = 0
    for access in accesses:
        orphans = committer.look(partial(garbage.find_orphans, collection=access.id))
        found.extend(orphans)
        wanted = set(orphans)
        size += sum(info.size for info in blob.list_keys(f"{access.id}/") if info.key in wanted) if wanted else 0
        if not dry_run:
            committer.run(access.id, partial(garbage.sweep, collection=access.id))
    return VacuumResult(found, size, not dry_run)

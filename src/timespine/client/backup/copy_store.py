"""Copy a store to another place: one cut of all collections, verified; again into the same place is a backup.

The copy has an id of its own, and only runs of `copy` write to it. Processes may read it at any time. `promote` makes
it a store of its own.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import msgspec

from timespine.client.arguments.argument_types import Progress, Verification
from timespine.client.backup.copy_blobs import copy_missing, reachable_blobs, verify_target
from timespine.client.backup.copy_target import CopyTarget
from timespine.client.backup.store_cut import StoreCut, newest_cut
from timespine.client.catalog.catalog import Names
from timespine.client.opening.open_store import logs_address, open
from timespine.client.store import Store
from timespine.columnar.parts.part_reader import MissingBlob
from timespine.config import DEFAULT
from timespine.errors import CorruptionError, UsageError, short_repr
from timespine.location.opening.store_location import parse_location

COPIES_MAX = 5
"""Cuts of a store without leases that a copy tries: maintenance may delete a blob before it is copied."""


@dataclass(frozen=True, slots=True)
class CopyResult:
    """The result of a copy."""

    location: str
    """The location of the copy."""
    store: str
    """The id of the copy."""
    origin: str
    """The id of the store that it is a copy of."""
    cut_ms: int
    """The time of the cut, in milliseconds since 1970, by the clock of this process."""
    collections: int
    """Collections in it, those that keep the state of views included."""
    blobs: int
    """Blobs in it."""
    bytes: int
    """Bytes of these blobs."""
    copied_blobs: int
    """Blobs that this run copied; the others were there."""
    copied_bytes: int
    """Bytes of the copied blobs."""
    deleted_blobs: int
    """Blobs of an earlier copy that this run deleted."""


def copy(
    origin: str | os.PathLike[str] | Store,
    target: str | os.PathLike[str],
    *,
    consensus: str | None = None,
    storage: Mapping[str, str | bool] | None = None,
    read_only: bool = False,
    verify: Verification = "sizes",
    progress: Progress | None = None,
) -> CopyResult:
    """Copy a store, given by its location or open, to another place; into the same place again it is a backup.

    All collections are as of one moment. Every blob that is copied is compared with its hashes on the way; with
    `verify="full"` all blobs are read back from the target as well. `consensus` and `storage` are about the target, as
    in `open`. A store that is given by its location is opened for writing, because leases on it keep what is copied.
    With `read_only` it is opened for reading: if maintenance of another process deletes a blob before it is copied,
    the copy begins again with a newer cut.
    """
    if verify not in ("sizes", "full"):
        raise UsageError(f"verify is 'sizes' or 'full', not {short_repr(verify)}")
    place = parse_location(target, storage)
    with _opened(origin, read_only=read_only) as store:
        if store.location and store.location == place.url:
            raise UsageError(f"{place.url} is the store itself: give another place for the copy")
        with CopyTarget(place, logs_address(place, consensus)) as opened:
            return _copy(store, opened, verify, progress or quiet_progress)


@contextlib.contextmanager
def _opened(origin: str | os.PathLike[str] | Store, *, read_only: bool) -> Iterator[Store]:
    """Give an open store, and close it at the end if it was not open before."""
    if isinstance(origin, Store):
        yield origin
        return
    with open(origin, create=False, read_only=read_only, maintenance=False) as store:
        yield store


def _copy(store: Store, target: CopyTarget, verify: Verification, progress: Progress) -> CopyResult:
    origin, epoch = identify(store), store_epoch(store)
    there = target.begin(origin, epoch, store.location)
    for attempt in range(COPIES_MAX):
        try:
            with newest_cut(store) as cut:
                return fill_target(store, target, cut, there, verify, progress)
        except MissingBlob as missing:
            if attempt == COPIES_MAX - 1:
                raise CorruptionError(
                    f"{missing}: it is damaged, or maintenance was faster {COPIES_MAX} times"
                ) from None
            there = target.list_sizes()
    raise AssertionError("the last attempt returns or raises")


def fill_target(
    store: Store, target: CopyTarget, cut: StoreCut, there: dict[str, int], verify: Verification, progress: Progress
) -> CopyResult:
    """Copy what the target lacks of a cut, check it, place the states, and delete what the cut does not reach."""
    origin = store._context.blob
    needed = reachable_blobs(cut, origin)
    copied, copied_bytes = copy_missing(needed, there, origin, target.blob, DEFAULT, progress)
    if verify == "full":
        verify_target(needed, target.blob, DEFAULT, progress)
    elif copied:
        _check_sizes(target.list_sizes(), {key: each.part.size for key, each in needed.items()})
    target.place(cut)
    deleted = target.prune(there, needed)
    record = target.names.copied
    return CopyResult(
        location=target.location,
        store=target.store_id,
        origin=record.origin if record is not None else "",
        cut_ms=cut.cut_ms,
        collections=len(cut.states),
        blobs=len(needed),
        bytes=sum(each.part.size for each in needed.values()),
        copied_blobs=copied,
        copied_bytes=copied_bytes,
        deleted_blobs=deleted,
    )


def _check_sizes(there: Mapping[str, int], wanted: Mapping[str, int]) -> None:
    """Raise CorruptionError if a blob of the cut is not in the target, or of another size."""
    for key, size in wanted.items():
        if there.get(key) != size:
            raise CorruptionError(f"blob {key} was copied, and the target has {there.get(key)} bytes of it, not {size}")


def identify(store: Store) -> str:
    """Return the id of a store. A store in a folder gets one at its first copy."""
    known = store._context.store_id or store._catalog.read().store
    if known:
        return known
    store._committer.check_writable()
    store._catalog.change(partial(_with_id, str(uuid.uuid4())))
    return store._catalog.read().store


def _with_id(id: str, names: Names) -> Names | None:
    return None if names.store else msgspec.structs.replace(names, store=id)


def store_epoch(store: Store) -> int:
    """Return the epoch in which a process opened a store."""
    return int(getattr(store._committer.driver.consensus, "epoch", 0))


def promote(
    location: str | os.PathLike[str],
    *,
    consensus: str | None = None,
    storage: Mapping[str, str | bool] | None = None,
) -> str:
    """Make a copy a store of its own, which processes may open for writing; return the id of its origin.

    Runs of `copy` refuse it from then on. A copy that is not complete stays one: copy again first.
    """
    place = parse_location(location, storage)
    with CopyTarget(place, logs_address(place, consensus), create=False) as target:
        record = target.names.copied
        if record is not None and not record.is_complete:
            raise UsageError(f"{place.url} is a copy that is not complete: copy again first, and then promote it")
        return target.promote().origin


def quiet_progress(done: int, total: int) -> None:
    return None

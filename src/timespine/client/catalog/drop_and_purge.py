"""Drop a collection: its name at once, its data when no lease or hold keeps it.

1. the caller removes the name from the catalog, where it stays blocked
2. the caller closes the collection: writes through open handles raise an error, and feeds end
3. maintenance purges it: when the last lease and hold are gone, and the store need not keep it any longer, it empties
   the state and deletes the blobs
4. a day later maintenance removes the log, and nothing is left of the collection but its blocked name

If a process stops in between, the next one goes on: the catalog lists collections that are not purged.

Maintenance also deletes the blobs of reservations that no transaction used: see `cancel_reservations`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import msgspec

from timespine.client.catalog.catalog import (
    Catalog,
    Names,
    check_collection_name,
    check_role,
    first_name,
    view_hold_name,
    with_undone_create,
)
from timespine.client.catalog.keep_deleted_setting import is_kept
from timespine.client.catalog.reservations import REMEMBERED_MS, expire_reservations, forget_cancelled
from timespine.client.commit.group_commit import GroupCommitter
from timespine.client.inner_handles import CollectionHandle
from timespine.columnar.parts.part_list_tree import delete_keys
from timespine.core.state import State
from timespine.core.transitions import AdvanceUpper, Command, CompareAndAppend, ReleaseHold
from timespine.errors import CollectionInUse, Conflict, TimespineError
from timespine.hints import Hint
from timespine.location.blob import Blob
from timespine.location.consensus import ForgettingConsensus, read_heads
from timespine.model.frontier import CLOSED, Frontier

LOOK_MS = 3_600_000
"""Milliseconds between two looks of a process for blobs under a cancelled id."""

FORGET_MS = 24 * 3_600_000
"""Milliseconds from the purge of a collection to the removal of its log: processes that have it open see meanwhile that
it is gone."""

HOLDS_NAMED = 5
"""Most critical holds in a message."""


class SkipReport(Protocol):
    """The part of a report of maintenance that this module needs."""

    def skip_failed(self, what: str, error: TimespineError) -> None:
        """Say that maintenance skipped something because of an error."""


class Purges(Protocol):
    """The part of maintenance that this module needs."""

    @property
    def report(self) -> SkipReport:
        """The report of this round."""

    def purge(self, handle: CollectionHandle, freed: list[Command]) -> tuple[bool, int]:
        """Delete the data of a closed collection; return whether all is gone, and how many blobs went."""


class DropService:
    """The service that drops the collections of one open store, and purges them."""

    def __init__(self, catalog: Catalog, committer: GroupCommitter) -> None:
        self._catalog = catalog
        self._committer = committer
        self._looked_ms: dict[str, int] = {}
        """The last look of this process for blobs, by cancelled id."""
        catalog.check_droppable = self._check_droppable

    def drop(self, name: str, *, force: bool, owned: bool = False) -> bool:
        """Drop a collection; return False if it was dropped before. Raise OwnedCollection for others than `owned`."""
        check_collection_name(name)
        while True:
            names = self._catalog.read()
            entry = names.entries.get(name)
            if entry is None and name in names.tombstones:
                return False
            if entry is None:
                raise names.unknown(name)
            if not owned:
                check_role(name, entry)
            if self._catalog.change(partial(with_dropped, entry.id, name, force), frees_space=True):
                self.close()
                return True
            # Another process dropped, renamed or replaced it just now: look again.

    def undo_create(self, id: str, name: str) -> bool:
        """Remove a collection that a failed call has created, if it is still empty: its name becomes free.

        SUBTLE: other processes see the collection from its creation on, and may have written to it. One commit closes
        it and checks that it has no update, so nothing that was acknowledged is removed, and later writes are refused
        (test_undo_create.py).
        """
        state = self._committer.state(id)
        closing = CompareAndAppend((), Frontier.minimum(state.arity), CLOSED, "advance", written=0)
        try:
            self._committer.commit((id, closing))
        except Conflict:
            return False
        return self._catalog.change(partial(with_undone_create, id, name), frees_space=True)

    def check_unheld(self, name: str, id: str, hint: Hint) -> None:
        """Raise CollectionInUse if a collection has critical holds; the message lists them and what to do.

        A hold that is taken at this moment is safe: maintenance purges no collection with a hold.
        """
        holds = sorted(self._committer.state(id).holds)
        names = self._catalog.read()
        views = {view_hold_name(entry.id): each for each, entry in names.entries.items()}
        readers = sorted(views[hold] for hold in holds if hold in views)
        if readers:
            kind = "view" if len(readers) == 1 else "views"
            listed = ", ".join(readers)
            raise CollectionInUse(f"collection {name} is read by {kind} {listed}", hint=Hint("drop-views-first"))
        left = {view_hold_name(each) for each in names.dropped}
        if holds and all(hold in left for hold in holds):
            said = f"collection {name} is held for a view that is being dropped ({', '.join(holds[:HOLDS_NAMED])})"
            raise CollectionInUse(said, hint=Hint("drop-again"))
        if holds:
            more = f" and {len(holds) - HOLDS_NAMED} more" if len(holds) > HOLDS_NAMED else ""
            listed = f"{', '.join(holds[:HOLDS_NAMED])}{more}"
            raise CollectionInUse(f"collection {name} is under critical holds ({listed})", hint=hint)

    def _check_droppable(self, before: Names, after: Names) -> None:
        """Raise CollectionInUse if a change of names drops a collection with critical holds, unless by force.

        SUBTLE: for every change, with names read before and holds read after them. One commit creates a view and takes
        its holds, and it changes the catalog. So either the holds are seen here, or this change loses its place in the
        log of the catalog and is checked again (test_views_and_drops.py).
        """
        gone = set(after.dropped).difference(before.dropped, after.forced)
        for name, entry in before.entries.items():
            if entry.id in gone:
                hint = Hint("release-or-drop", {"name": name}) if name in after.entries else Hint("release-or-force")
                self.check_unheld(name, entry.id, hint)

    def close(self) -> None:
        """Close dropped collections: writes through open handles raise an error, as no process will keep their rows.

        The catalog is changed already. If closing fails, maintenance does it before it deletes the data.
        """
        with contextlib.suppress(TimespineError):
            names = self._catalog.read()
            for id in names.dropped:
                with contextlib.suppress(TimespineError):
                    is_forced = id in names.forced
                    state = self._committer.state(id) if is_forced else self._committer.known(id)
                    freed = release_commands(state) if is_forced else []
                    if freed or not state.upper.is_closed:
                        self._committer.commit(*((id, each) for each in (*freed, AdvanceUpper(CLOSED))))

    def purge(self, maintenance: Purges, handle_of: Callable[[str], CollectionHandle]) -> tuple[list[str], int]:
        """Delete the data of dropped collections that no lease or hold keeps; return which, and how many blobs.

        A damaged collection that cannot be purged does not stop the others.
        """
        names = self._catalog.read()
        purged: list[str] = []
        gone = 0
        now_ms = self._committer.driver.now_ms()
        for id in (each for each in names.dropped if not is_kept(names, each, now_ms)):
            handle = handle_of(id)
            try:
                freed = release_commands(handle.state()) if id in names.forced else []
                is_purged, collected = maintenance.purge(handle, freed)
            except TimespineError as error:
                maintenance.report.skip_failed(f"{first_name(id)}, which was dropped", error)
                continue
            gone += collected
            if is_purged:
                self._catalog.change(partial(with_purged, id), frees_space=True)
                purged.append(id)
        gone += self._forget_logs([id for id, at_ms in names.purged.items() if now_ms - at_ms >= FORGET_MS])
        if gone:
            self._committer.driver.consensus.restore_reserve()
        return purged, gone

    def _forget_logs(self, ids: Sequence[str]) -> int:
        """Remove the logs of purged collections, and then their last rollups; return how many blobs went.

        SUBTLE: the log first, and the entry of the catalog last. If a process dies in between, the next one goes on.
        Rollups that were deleted before their log would look like damage (test_forget_logs.py).
        """
        driver = self._committer.driver
        consensus = driver.consensus
        if not ids or not isinstance(consensus, ForgettingConsensus):
            return 0
        gone = 0
        for id, head in read_heads(consensus, ids).items():
            if head is not None and not consensus.forget(id, head):
                continue  # a process that slept has returned a lease meanwhile: the next round looks again
            keys = [info.key for info in driver.blob.list_keys(f"{id}/")]
            left = delete_keys(keys, driver.blob, None)
            gone += len(keys) - left
            if not left:
                self._catalog.change(partial(with_forgotten, id), frees_space=True)
        return gone

    def sweep_cancelled(self, blob: Blob, report: SkipReport, *, at_once: bool) -> int:
        """Cancel reservations that are too old, and delete blobs under cancelled ids; return how many.

        A process looks under a cancelled id once an hour, or `at_once`.
        """
        now_ms = self._committer.driver.now_ms()
        names = self._with_expired_reservations(now_ms)
        self._looked_ms = {id: at_ms for id, at_ms in self._looked_ms.items() if id in names.cancelled}
        gone = 0
        forgotten: set[str] = set()
        for id, since_ms in names.cancelled.items():
            if not at_once and now_ms - self._looked_ms.get(id, -LOOK_MS) < LOOK_MS:
                continue
            try:
                keys = [info.key for info in blob.list_keys(f"{id}/")]
            except TimespineError as error:
                report.skip_failed(f"{first_name(id)}, which was never created", error)
                continue
            left = delete_keys(keys, blob, None)
            gone += len(keys) - left
            if left:
                continue  # the next round looks again
            self._looked_ms[id] = now_ms
            if now_ms - since_ms >= REMEMBERED_MS:
                forgotten.add(id)
        if forgotten:
            self._catalog.change(partial(forget_cancelled, forgotten), frees_space=True)
        return gone

    def _with_expired_reservations(self, now_ms: int) -> Names:
        names = self._catalog.read()
        if expire_reservations(now_ms, names) is None:
            return names
        self._catalog.change(partial(expire_reservations, now_ms), frees_space=True)
        return self._catalog.read()


def release_commands(state: State) -> list[Command]:
    """List the commands that release every critical hold of a collection."""
    return [ReleaseHold(name, hold.token) for name, hold in state.holds.items()]


def with_dropped(id: str, name: str, force: bool, names: Names) -> Names | None:
    """Remove a collection whose data still exists; its name stays blocked."""
    known = names.entries.get(name)
    if known is None or known.id != id:
        return None
    return msgspec.structs.replace(
        names,
        entries={each: entry for each, entry in names.entries.items() if each != name},
        dropped=(*names.dropped, id),
        tombstones={**names.tombstones, name: id},
        forced=(*names.forced, id) if force else names.forced,
    )


def with_purged(id: str, names: Names) -> Names | None:
    """Remove a dropped collection that has no data left."""
    if id not in names.dropped:
        return None
    left = tuple(each for each in names.dropped if each != id)
    dropped_ms = {each: at_ms for each, at_ms in names.dropped_ms.items() if each != id}
    forced = tuple(each for each in names.forced if each != id)
    purged = {**names.purged, id: 0}  # the time is that of the change
    return msgspec.structs.replace(names, dropped=left, dropped_ms=dropped_ms, forced=forced, purged=purged)


def with_forgotten(id: str, names: Names) -> Names | None:
    """Remove a purged collection whose log is gone."""
    if id not in names.purged:
        return None
    return msgspec.structs.replace(names, purged={each: ms for each, ms in names.purged.items() if each != id})

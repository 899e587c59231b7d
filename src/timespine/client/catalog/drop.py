"""Dropping: the name goes at once, the data when nobody can read it any more.

1. the name is taken out of the catalog, and stays blocked
2. the collection is closed: whoever has a handle still is told so, and feeds end
3. maintenance buries it: when the last lease and hold are gone it is emptied, and its blobs go

Whoever stops in between leaves the rest to the next who comes along: what is not buried is in the catalog.

Maintenance also deletes the blobs of collections that a transaction did not come to create: see `reservations`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

from timespine.client.catalog.catalog import Catalog, Names, buried_for_good, check_name, dropped, first_name
from timespine.client.catalog.reservations import REMEMBERED_MS, forget_given_up, give_up_late
from timespine.client.commit.group_commit import Committer
from timespine.client.context import Access
from timespine.client.maintenance.report import MaintenanceReport, said
from timespine.client.maintenance.scheduler import Maintenance
from timespine.columnar.parts.hollow_run import delete_keys
from timespine.core.state import State
from timespine.core.transitions import AdvanceUpper, Command, ReleaseHold
from timespine.errors import CollectionInUse, TimespineError
from timespine.hints import Hint
from timespine.location.blob import Blob
from timespine.model.frontier import CLOSED

LOOK_MS = 3_600_000
"""How often a process looks for blobs under an id that was given up."""

HOLDS_NAMED = 5
"""Critical holds that a message names, at most."""


class Dropping:
    """Drops the collections of one open store, and buries them."""

    def __init__(self, catalog: Catalog, committer: Committer) -> None:
        self._catalog = catalog
        self._committer = committer
        self._looked_ms: dict[str, int] = {}
        """By ids that were given up: when this process last looked for blobs under them."""

    def drop(self, name: str, *, force: bool) -> bool:
        """Drop the collection of a name; False if it was dropped before."""
        check_name(name)
        while True:
            names = self._catalog.read()
            entry = names.entries.get(name)
            if entry is None and name in names.graves:
                return False
            if entry is None:
                raise names.unknown(name)
            if not force:
                self.check_unheld(name, entry.id, Hint("release-or-force"))
            if self._catalog.change(partial(dropped, entry.id, name, force), frees_space=True):
                self.close()
                return True
            # Somebody else dropped, renamed or replaced it just now: look again.

    def check_unheld(self, name: str, id: str, hint: Hint) -> None:
        """CollectionInUse if there are critical holds on a collection; it names them, and what to do instead.

        One that is taken at this moment is kept all the same: nothing is buried that a hold can reach.
        """
        holds = sorted(self._committer.state(id).holds)
        if holds:
            more = f" and {len(holds) - HOLDS_NAMED} more" if len(holds) > HOLDS_NAMED else ""
            listed = f"{', '.join(holds[:HOLDS_NAMED])}{more}"
            raise CollectionInUse(f"collection {name} is under critical holds ({listed})", hint=hint)

    def close(self) -> None:
        """Close what was dropped: whoever has a handle still is told so, and is not promised what nobody will keep.

        The names are changed by now. What fails here is done by maintenance, before the data goes.
        """
        with contextlib.suppress(TimespineError):
            names = self._catalog.read()
            for id in names.dropped:
                with contextlib.suppress(TimespineError):
                    is_forced = id in names.forced
                    state = self._committer.state(id) if is_forced else self._committer.known(id)
                    freed = released(state) if is_forced else []
                    if freed or not state.upper.is_closed:
                        self._committer.commit(*((id, each) for each in (*freed, AdvanceUpper(CLOSED))))

    def bury(self, maintenance: Maintenance, access_of: Callable[[str], Access]) -> tuple[list[str], int]:
        """Let the data of dropped collections go, as far as nobody reads it any more; which, and blobs that went.

        One that cannot be buried, because it is damaged, does not keep the others from it.
        """
        names = self._catalog.read()
        buried: list[str] = []
        gone = 0
        for id in names.dropped:
            access = access_of(id)
            try:
                freed = released(access.state()) if id in names.forced else []
                is_buried, collected = maintenance.bury(access, freed)
            except TimespineError as error:
                maintenance.report.skip(f"{first_name(id)}, which was dropped: {said(error)}")
                continue
            gone += collected
            if is_buried:
                self._catalog.change(partial(buried_for_good, id), frees_space=True)
                buried.append(id)
        if gone:
            self._committer.driver.consensus.restore_reserve()
        return buried, gone

    def sweep_given_up(self, blob: Blob, report: MaintenanceReport, *, at_once: bool) -> int:
        """Give up ids that were expected for too long, and delete what is under such ids; how many blobs went.

        A process looks under an id that was given up once an hour, unless it is to look `at_once`.
        """
        now_ms = self._committer.driver.now_ms()
        names = self._with_late_given_up(now_ms)
        self._looked_ms = {id: at_ms for id, at_ms in self._looked_ms.items() if id in names.given_up}
        gone = 0
        forgotten: set[str] = set()
        for id, since_ms in names.given_up.items():
            if not at_once and now_ms - self._looked_ms.get(id, -LOOK_MS) < LOOK_MS:
                continue
            try:
                keys = [info.key for info in blob.list_keys(f"{id}/")]
            except TimespineError as error:
                report.skip(f"{first_name(id)}, which was never created: {said(error)}")
                continue
            left = delete_keys(keys, blob, None)
            gone += len(keys) - left
            if left:
                continue  # the next round looks again
            self._looked_ms[id] = now_ms
            if now_ms - since_ms >= REMEMBERED_MS:
                forgotten.add(id)
        if forgotten:
            self._catalog.change(partial(forget_given_up, forgotten), frees_space=True)
        return gone

    def _with_late_given_up(self, now_ms: int) -> Names:
        names = self._catalog.read()
        if give_up_late(now_ms, names) is None:
            return names
        self._catalog.change(partial(give_up_late, now_ms), frees_space=True)
        return self._catalog.read()


def released(state: State) -> list[Command]:
    """What removes every critical hold of a collection, whoever has it."""
    return [ReleaseHold(name, hold.token) for name, hold in state.holds.items()]

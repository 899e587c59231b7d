"""Users of copies: a copy is one moment of the store during its call, and reads of it give the rows of that moment."""

from __future__ import annotations

from typing import Any

from timespine.client.backup.copy_store import copy
from timespine.client.backup.restore_to_commit import RestorePoint, RestoreResult, restore_store
from timespine.client.catalog.catalog_log import LOG
from timespine.errors import (
    Contention,
    CorruptionError,
    IncompleteCopy,
    LeaseExpired,
    ReadOnlyStore,
    TimespineError,
    UnknownCollection,
    UsageError,
)
from timespine.location.consensus import EPOCH
from timespine.testing.copies.copy_ports import ORIGIN, CopyingHistory
from timespine.testing.copies.copy_world import CopyWorld, PlacedCut
from timespine.testing.copies.origin_world import CLOCK_ERROR_MS
from timespine.testing.stores.check_answers import count_read_rows, last_time
from timespine.testing.stores.history import StoreProcess
from timespine.testing.stores.history_run import User
from timespine.testing.stores.user_calls import UserCall
from timespine.testing.stores.users import Kinds
from timespine.testing.stores.world import Truth

COPIES = 2
"""The places for copies of each epoch."""


class CopyingUser(User):
    """A user that makes all kinds of calls, copies the store, reads copies and restores into other places."""

    history: CopyingHistory

    def __init__(self, history: CopyingHistory, process: StoreProcess) -> None:
        super().__init__(history, process)
        self.history = history

    def kinds(self) -> Kinds:
        return {**super().kinds(), self.copy: 16, self.read_copy: 8, self.restore_into: 8}

    def usual(self) -> None:
        if self.chance.random() < 0.5:
            self.append()
        else:
            self.copy()

    def copy(self) -> None:
        """Copy the store: open as it is, or by its location, which may be for reading only."""
        url, how = (
            self.chance.choice(copy_urls(self.history)),
            self.chance.choice(("open", "open", "again", "read only")),
        )
        verify = self.chance.choice(("sizes", "sizes", "full"))
        expected: list[type[TimespineError]] = [Contention]
        if how == "read only":
            # It has no leases; and a store that was never copied has no id, which it cannot get then.
            expected += [CorruptionError] if self.world.names[-1][1].store else [CorruptionError, ReadOnlyStore]

        def work(call: UserCall) -> Any:
            origin = self.store if how == "open" else ORIGIN
            return copy(origin, url, read_only=how == "read only", verify=verify)  # type: ignore[arg-type]

        call = self.call("copy", work, *expected)
        if call.is_done:
            check_copied(call, self.history.copy_world(url))

    def read_copy(self) -> None:
        """Read all collections of a copy, while runs of `copy` may replace them."""
        world = self.history.copy_world(self.chance.choice(copy_urls(self.history)))
        before = world.event

        def work(call: UserCall) -> Any:
            with self.history.open_at(world.url, read_only=True) as store:
                found = []
                for name in store.names():
                    rows = store[name].snapshot(multiplicity="column")
                    with rows:
                        counts = count_read_rows(rows.to_pylist(), rows._collection_schema)
                        found.append((store[name].id, rows.as_of, counts, rows._collection_schema))
                return found

        call = self.call("read a copy", work, IncompleteCopy, LeaseExpired, UnknownCollection, UsageError)
        cuts = cuts_between(world, before)
        if isinstance(call.error, IncompleteCopy) and cuts and cuts[0].event <= before:
            self.violate(call, f"raised {call.error!r}, and all states fit one commit")
        if call.is_done and not self._is_read(call.result, cuts, world):
            self.violate(call, f"read what is in none of {len(cuts)} copies")

    def _is_read(self, found: list[Any], cuts: list[PlacedCut], world: CopyWorld) -> bool:
        """Tell whether each collection that was read is as some copy of the time of the read has it."""
        return all(
            any(_gives(world, cut, id, as_of, counts, schema) for cut in cuts) for id, as_of, counts, schema in found
        )

    def restore_into(self) -> None:
        """Restore the store of an earlier moment into a new place."""
        history = self.history
        url = f"memory://restored{len(history.copies)}"
        world = history.storage_of(url, is_past=True).world
        point = past_point(history)

        def work(call: UserCall) -> Any:
            return restore_store(ORIGIN, point, into=url)

        call = self.call("restore", work, UsageError)
        check_restored(history, call, point)
        if call.is_done:
            assert isinstance(world, CopyWorld)
            if not world.is_promoted or not world.cuts:
                self.violate(call, "was acknowledged, and the store is not there")
            elif {
                name: world.cuts[-1].heads[id] for name, id in world.cuts[-1].names.items()
            } != call.result.collections:
                self.violate(call, f"was told of {call.result.collections}, and {world.cuts[-1]} is there")


def copy_urls(history: CopyingHistory) -> list[str]:
    """Return the places for copies of this epoch: a copy of an earlier one takes no other."""
    epoch = len(history.world.logs.get(EPOCH, ()))
    return [f"memory://copy{number}-{epoch}" for number in range(COPIES)]


def cuts_between(world: CopyWorld, before: int) -> list[PlacedCut]:
    """Return the copies that were in a place at some moment since then."""
    older = [cut for cut in world.cuts if cut.event <= before][-1:]
    return older + [cut for cut in world.cuts if cut.event > before]


def check_copied(call: UserCall, world: CopyWorld) -> None:
    """Check that a run which was acknowledged placed a moment of its call."""
    fresh = [cut for cut in world.cuts if cut.until >= call.since_event]
    if not fresh:
        last = world.cuts[-1].until if world.cuts else "never"
        world.violate(f"{call} was acknowledged after {call.since_event}, and the newest copy is of {last}")
    elif not any(len(cut.heads) == call.result.collections for cut in fresh):
        world.violate(f"{call} was told of {call.result.collections} collections, and copied {len(fresh[-1].heads)}")


def _gives(world: CopyWorld, cut: PlacedCut, id: str, as_of: int | None, counts: Any, schema: Any) -> bool:
    if id not in cut.heads:
        return False
    seqno = cut.heads[id]
    newest = last_time(world.origin.states[id][seqno])
    if as_of is None:
        return newest < 0 and not counts
    return as_of == newest and Truth(added=world.origin.commits_at(id, seqno)).at(as_of, schema) == counts


def past_point(history: CopyingHistory) -> RestorePoint:
    """Return a moment close to a commit, a commit, or any moment of the time that is kept, or a little before."""
    chance, world = history.scheduler.random, history.world
    choice = chance.random()
    if choice < 0.4:
        times = world.times[chance.choice(sorted(world.states))]
        return chance.choice(times[-12:]) + chance.randint(-CLOCK_ERROR_MS, CLOCK_ERROR_MS) // 2
    if choice < 0.7:
        name = chance.choice(list(history.timelines))
        states = world.states[world.names[-1][1].entries[name].id]
        return name, chance.randrange(max(len(states) - 12, 0), len(states))
    age_ms = world.clock() - world.times[LOG][0]
    return world.clock() - int(min(age_ms, history.keep_ms or age_ms) * chance.choice((0.0, 0.1, 0.5, 0.9, 1.2)))


def check_restored(history: CopyingHistory, call: UserCall, point: RestorePoint) -> None:
    """Check that a restore is of one moment, the one that was asked for; and that it is refused for a reason."""
    world = history.world
    if call.is_done:
        result: RestoreResult = call.result
        ids = _ids_at(history, result)
        if ids is None:
            world.violate(f"{call} has {sorted(result.collections)}, which the store never had")
            return
        seqnos = {ids[name]: seqno for name, seqno in result.collections.items()}
        world.check_past_cut(str(call), seqnos, result.at_ms)
        if isinstance(point, tuple) and result.collections.get(point[0]) != point[1]:
            world.violate(f"{call} was asked for {point}, and gave {result.collections}")
    elif isinstance(call.error, UsageError) and history.keep_ms and isinstance(point, int):
        begin = world.clock() - history.keep_ms + CLOCK_ERROR_MS
        if max(begin, history.kept_since_ms + CLOCK_ERROR_MS) < point:
            world.violate(f"{call} was refused, and {point} is after {begin}: {call.error!r}")


def _ids_at(history: CopyingHistory, result: RestoreResult) -> dict[str, str] | None:
    """Return the ids of the collections of the newest catalog that fits a restore."""
    for (_, names), at_ms in zip(reversed(history.world.names), reversed(history.world.times[LOG]), strict=True):
        if names.entries.keys() == result.collections.keys() and at_ms <= result.at_ms + CLOCK_ERROR_MS:
            return {name: entry.id for name, entry in names.entries.items()}
    return None

"""Users that look after a store: names, history, schemas, maintenance, and its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from timespine.client.catalog import catalog
from timespine.errors import Fenced, SchemaConflict, SinceError, Unavailable, UsageError
from timespine.testing.simulator.violation import BrokenPromise
from timespine.testing.stores.check_answers import count_read_rows, last_time
from timespine.testing.stores.user_calls import UserCall
from timespine.testing.stores.users import EXTRAS, Caller, Kinds


@dataclass(slots=True)
class OpenHold:
    """History that a process holds under a name."""

    collection: str
    name: str
    as_of: int
    token: str


class MaintainingUser(Caller):
    """A user of the catalog, expiry and holds, schemas, maintenance, close."""

    def kinds(self) -> Kinds:
        return {
            **super().kinds(),
            self.maintain: 3,
            self.compact: 1,
            self.vacuum: 1,
            self.expire: 3,
            self.hold: 2,
            self.hold_for_good: 1,
            self.create: 2,
            self.drop: 2,
            self.rename: 1,
            self.list_names: 1,
            self.evolve: 1,
            self.close: 2,
        }

    # Maintenance.

    def maintain(self) -> None:
        """Run the work of the maintenance thread now."""
        self.call("maintain", lambda call: self.store.maintain(sweep=self.chance.random() < 0.5))

    def compact(self) -> None:
        """Merge a collection into one run."""
        wait = self.chance.random() < 0.5
        call = self.call("compact", lambda call: self.some().compact(wait=wait), Unavailable)
        if isinstance(call.error, Unavailable) and not self.history.is_failing and "did not fit" not in str(call.error):
            self.violate(call, f"raised {call.error!r}")

    def vacuum(self) -> None:
        """List orphaned blobs; delete them, or not."""
        self.call("vacuum", lambda call: self.store.vacuum(dry_run=self.chance.random() < 0.3))

    def close(self) -> None:
        """Close the store, while other threads may use it."""
        self.process.is_closing = True
        self.history.close(self.process)

    # History.

    def expire(self) -> None:
        """Expire history, at once or as a policy."""
        self.history.is_expiring = True

        def work(call: UserCall) -> Any:
            orders = self.some()
            if orders.name == "events" and self.chance.random() < 0.4:
                orders.retain(self.chance.choice((None, 0.5, 5.0)))
                return None
            return orders.id, orders.expire(max(self.time_of(orders), 0) + self.chance.choice((0, 0, 9)))

        call = self.call("expire", work)
        if call.is_done and call.result is not None:
            id, reply = call.result
            if not self.world.states[id][-1].since.is_closed and not reply.since <= self.world.states[id][-1].since:
                self.violate(call, f"was told that history begins at {reply.since}")

    def hold(self) -> None:
        """Hold history for a while: it can be read as long as it is held."""

        def work(call: UserCall) -> Any:
            orders = self.some()
            as_of = self.time_of(orders)
            if as_of < 0:
                return None
            held = orders.hold(as_of)
            with held:
                self.history.scheduler.sleep(self.chance.choice((0.01, 1.0, 6.0)))
                try:
                    with orders.snapshot(as_of, multiplicity="column") as rows:
                        return (
                            orders.id,
                            as_of,
                            count_read_rows(rows.to_pylist(), rows._collection_schema),
                            rows._collection_schema,
                        )
                except SinceError as error:
                    lease = held._leased.lease
                    if lease.reader in self.world.states[orders.id][-1].readers:
                        raise BrokenPromise(f"{as_of} is held by {lease.reader} and cannot be read") from error
                    raise

        call = self.call("hold", work, SinceError)
        if call.is_done and call.result is not None:
            self.answers.check_snapshot(call, *call.result, asked=True)

    def hold_for_good(self) -> None:
        """Take, use or release a hold that outlives its process."""
        kept: dict[str, OpenHold] = self.history.kept
        choice = self.chance.random()
        if kept and choice < 0.5:
            self._read_held(self.chance.choice(sorted(kept.values(), key=lambda each: each.name)))
        elif kept and choice < 0.7:
            each = self.chance.choice(sorted(kept.values(), key=lambda each: each.name))
            del kept[each.name]
            entries = self.world.names[-1][1].entries
            name = next(name for name in self.history.timelines if entries[name].id == each.collection)

            def release(call: UserCall) -> None:
                hold = self.store[name].critical_hold(each.name, token=each.token)
                hold.release()

            self.call("release", release, Fenced, UsageError)
        else:
            self._take_hold()

    def _take_hold(self) -> None:
        def work(call: UserCall) -> Any:
            orders = self.store[self.chance.choice(list(self.history.timelines))]
            as_of = self.time_of(orders)
            if as_of < 0:
                return None
            hold = orders.critical_hold(f"held-{call.id}", as_of)
            return OpenHold(orders.id, hold.name, as_of, hold.token)

        call = self.call("hold for good", work, SinceError)
        if call.is_done and call.result is not None:
            self.history.kept[call.result.name] = call.result

    def _read_held(self, each: OpenHold) -> None:
        def work(call: UserCall) -> Any:
            name = next(name for name, entry in self.world.names[-1][1].entries.items() if entry.id == each.collection)
            with self.store[name].snapshot(each.as_of, multiplicity="column") as rows:
                return (
                    each.collection,
                    each.as_of,
                    count_read_rows(rows.to_pylist(), rows._collection_schema),
                    rows._collection_schema,
                )

        call = self.call("read what is held", work, SinceError)
        if isinstance(call.error, SinceError) and each.name in self.history.kept:
            self.violate(call, f"cannot read {each.as_of}, which {each.name} holds: {call.error!r}")
        if call.is_done:
            self.answers.check_snapshot(call, *call.result, asked=True)

    # Schemas.

    def evolve(self) -> None:
        """Add a column, or drop or rename one that was added."""
        self.history.is_evolving = True

        def work(call: UserCall) -> Any:
            orders = self.some()
            names = orders.schema.names[2:]
            choice = self.chance.random()
            if names and choice < 0.4:
                return orders.evolve(drop=[names[0]])
            if names and choice < 0.6:
                return orders.evolve(rename={names[0]: f"n{call.id}"})
            return orders.evolve(add={f"c{call.id}": ("int64", self.chance.choice((None, 7)))})

        self.call("evolve", work, SchemaConflict, UsageError)

    # Names.

    def create(self) -> None:
        """Create a collection, or replace the one of a name."""
        name, replace = self.chance.choice(EXTRAS), self.chance.random() < 0.4

        def work(call: UserCall) -> str:
            return self.store.create(name, timeline="counter", replace=replace, **self.history.shape).id

        call = self.call("create", work, UsageError)
        if call.is_done:
            self._check_names(call, lambda names: name in names.entries and names.entries[name].id == call.result)
            before = self._names_before(call.result)
            if not replace and (name in before.entries or name in before.tombstones):
                self.violate(call, f"took the name {name}, which was taken")
            ids = [(event, {entry.id for entry in names.entries.values()}) for event, names in self.world.names]
            if not call.since_event < next(event for event, there in ids if call.result in there) <= call.until_event:
                self.violate(call, f"gave {call.result}, which was there before")
        elif isinstance(call.error, UsageError) and not self._has_reason(call):
            self._check_names(call, lambda names: name in names.entries or name in names.tombstones)

    def _names_before(self, id: str) -> catalog.Names:
        """Return the catalog right before a collection was in it."""
        ids = [{entry.id for entry in names.entries.values()} for _, names in self.world.names]
        place = next(place for place, there in enumerate(ids) if id in there)
        return self.world.names[place - 1][1] if place else catalog.Names()

    def drop(self) -> None:
        """Drop a collection."""
        name = self.chance.choice(EXTRAS)
        call = self.call("drop", lambda call: self.store.drop(name), UsageError)
        if call.is_done or (isinstance(call.error, UsageError) and not self._has_reason(call)):
            self._check_names(call, lambda names: name not in names.entries)

    def rename(self) -> None:
        """Give a collection another name."""
        old, new = self.chance.sample(EXTRAS, 2)
        before = self.world.names[-1][1].entries.get(old)
        call = self.call("rename", lambda call: self.store.rename(old, new), UsageError)
        if call.is_done:
            self._check_names(call, lambda names: new in names.entries)
        elif isinstance(call.error, UsageError) and before is not None and not self._has_reason(call):
            self._check_names(
                call, lambda names: old not in names.entries or new in names.entries or new in names.tombstones
            )

    def list_names(self) -> None:
        """List all names."""
        call = self.call("names", lambda call: self.store.names())
        if call.is_done:
            self._check_names(call, lambda names: sorted(names.entries) == call.result)

    def _check_names(self, call: UserCall, holds: Callable[[catalog.Names], bool]) -> None:
        """Check that at some moment of a call the catalog fitted its answer."""
        found = self.names_between(call)
        if not any(holds(names) for names in found):
            self.violate(call, f"{call.result if call.is_done else call.error!r} fits none of {len(found)} catalogs")


__all__ = ["MaintainingUser", "OpenHold", "last_time"]

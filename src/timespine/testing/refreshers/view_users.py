"""Users of views: they create, refresh, read and drop them, while others write to the inputs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from timespine.client.catalog.catalog import view_hold_name
from timespine.errors import (
    CollectionInUse,
    Contention,
    NotSealed,
    OwnedCollection,
    SinceError,
    UnknownCollection,
    UpperMismatch,
    UsageError,
)
from timespine.testing.refreshers.queries import QUERIES, SimulatedQuery, text_of
from timespine.testing.refreshers.view_checks import REFRESH_ALL, ViewChecks
from timespine.testing.stores.check_answers import count_read_rows
from timespine.testing.stores.history import StoreHistory, StoreProcess
from timespine.testing.stores.maintaining_users import MaintainingUser
from timespine.testing.stores.user_calls import UserCall
from timespine.testing.stores.users import EXTRAS, KEYS, Kinds
from timespine.testing.stores.writing_users import WritingUser

VIEWS = ("v0", "v1", "v2", "v3")
"""Names of views that come and go."""

NUMBERS = (None, 0, 1, 1, 2, 5, -3)
"""The values of n: few, so that groups and rows meet again."""


class ViewUser(WritingUser, MaintainingUser):
    """A user of views and of the collections that they read."""

    def __init__(self, history: StoreHistory, process: StoreProcess, checks: ViewChecks) -> None:
        super().__init__(history, process)
        self.checks = checks
        self.left = [0]

    def run(self, left: list[int]) -> None:
        self.left = left
        super().run(left)

    def kinds(self) -> Kinds:
        others = {**WritingUser.kinds(self), **MaintainingUser.kinds(self)}
        left_out = (self.evolve, self.rename, self.list_names, self.append_built, self.write_at_once, self.drop)
        return {
            **{work: weight for work, weight in others.items() if work not in left_out},
            self.create_view: 4,
            self.refresh_all: 12,
            self.refresh_some: 12,
            self.rebuild: 6,
            self.drop_view: 2,
            self.drop_input: 2,
            self.read_view: 5,
            self.catch_up: 14,
            self.write_to_view: 1,
            self.seal_idle: 2,
            self.verify: 1,
            self.move_key: 6,
            self.change_in_turn: 4,
            self.expire_inputs: 3,
        }

    def _has_reason(self, call: UserCall) -> bool:
        if isinstance(call.error, CollectionInUse):
            return self._names_a_reader(str(call.error))
        return super()._has_reason(call)

    def _names_a_reader(self, said: str) -> bool:
        """Tell whether a refused drop names a view that reads the collection.

        The view may be dropped already: it gives its holds back after it left the catalog.
        """
        for _, names in self.world.names:
            refused = {entry.id for name, entry in names.entries.items() if said.startswith(f"collection {name} is ")}
            for name, entry in names.entries.items():
                is_named = view_hold_name(entry.id) in said or re.search(rf"by views? (\w+, )*{name}\b", said)
                if entry.role == "view" and is_named and refused & set(self.checks.inputs_of.get(entry.id, ())):
                    return True
        return False

    # Rows: with a number.

    def rows(self, call: UserCall, collection: str, most: int = 3) -> list[dict[str, Any]]:
        made = super().rows(call, collection, min(most, 6))
        return [{**row, "n": self.chance.choice(NUMBERS)} for row in made]

    def _upserted(self, call: UserCall, collection: str) -> list[dict[str, Any]]:
        return [{**row, "n": self.chance.choice(NUMBERS)} for row in super()._upserted(call, collection)]

    # Views.

    def there(self, *, role: str = "view") -> list[str]:
        """List the collections of a role in the newest catalog."""
        return sorted(name for name, entry in self.world.names[-1][1].entries.items() if entry.role == role)

    def ids(self) -> dict[str, str]:
        """Return the ids of all views by name."""
        return {name: self.world.names[-1][1].entries[name].id for name in self.there()}

    def usual(self) -> None:
        if self.chance.random() < 0.4:
            self.append()
        else:
            self.catch_up()

    def create_view(self) -> None:
        """Create a view."""
        name = self.chance.choice(VIEWS)
        query = self.chance.choice(QUERIES)
        inputs = self.inputs_for(query)

        def work(call: UserCall) -> Any:
            keyed, every = self.chance.random() < 0.3, self.chance.random() < every_share(query)
            return make_view(self.store, self.checks, name, query, inputs, keyed=keyed, every=every).id

        call = self.call("create view", work, UsageError, SinceError)
        if call.is_done:
            self._check_names(call, lambda names: name in names.entries and names.entries[name].id == call.result)
        elif isinstance(call.error, SinceError):
            if not self.history.is_expiring:
                self.violate(call, f"raised {call.error!r}, but nothing was ever expired")
        elif isinstance(call.error, UsageError) and not self._has_reason(call):
            was_replaced = "was dropped or replaced" in str(call.error) and any(
                map(self._is_moved(call), inputs.values())
            )
            self._check_names(
                call,
                lambda names: (
                    was_replaced
                    or name in names.entries
                    or name in names.tombstones
                    or any(each not in names.entries for each in inputs.values())
                    or "complete time" in str(call.error)
                    or "no column n" in str(call.error)
                ),
            )

    def _is_moved(self, call: UserCall) -> Callable[[str], bool]:
        """Give the test whether a name went to another collection during a call."""
        seen = [names.entries for names in self.names_between(call)]
        return lambda name: len({entries[name].id for entries in seen if name in entries}) > 1

    def inputs_for(self, query: SimulatedQuery) -> dict[str, str]:
        """Choose inputs of one time line: collections, or views that can be read like them."""
        entries = self.world.names[-1][1].entries
        if query.inputs == 1 and self.chance.random() < 0.3:
            return {"a": "events"}
        stackable = [
            name for name in self.there() if (view := self.checks.views.get(entries[name].id)) and view.query.stackable
            and view.timeline == "counter"
        ]  # fmt: skip
        extras = [name for name in entries if name in EXTRAS]
        choices = ["orders", "items", *extras, *(stackable if self.chance.random() < 0.6 else ())]
        return {place: self.chance.choice(choices) for place in ("a", "b")[: query.inputs]}

    def refresh_all(self) -> None:
        """Refresh all views to one time."""
        self._refresh(REFRESH_ALL, None, through=False)

    def refresh_some(self) -> None:
        """Refresh one view, or some; in some histories all views are refreshed together only."""
        if self.checks.is_together:
            self.refresh_all()
            return
        views = self.there()
        if views:
            chosen = sorted(self.chance.sample(views, 1 + self.chance.randrange(min(2, len(views)))))
            self._refresh("refresh", chosen, through=self.chance.random() < 0.2)

    def _refresh(self, kind: str, chosen: list[str] | None, *, through: bool) -> None:
        def work(call: UserCall) -> Any:
            self.checks.refreshes.append(call)
            asked = None
            if through and chosen is not None:
                view = self.store[chosen[0]]
                asked = self.upper_of(view) + self.chance.randrange(3)
            if chosen is not None and len(chosen) == 1 and asked is None and self.chance.random() < 0.5:
                done = {chosen[0]: self.store.view(chosen[0]).refresh()}
            else:
                done = self.store.refresh(chosen, through=asked)
            left = {name: each.error for name, each in done.items() if each.error}
            return self.ids(), {name: each.time for name, each in done.items()}, left, asked is not None

        expected = (NotSealed,) if through else ()
        call = self.call(kind, work, UsageError, Contention, SinceError, *expected)
        if call.is_done:
            ids, told, left, asked = call.result
            if not asked:
                self.checks.check_refreshed(call, ids, told, left)
        elif not self._may_fail_to_refresh(call):
            self.violate(call, f"raised {call.error!r}")

    def _may_fail_to_refresh(self, call: UserCall) -> bool:
        error = call.error
        if isinstance(error, NotSealed) or self._has_reason(call):
            return True
        if isinstance(error, Contention):
            return len([each for each in self.checks.refreshes if each.until_event < 0 or each is not call]) > 1
        if isinstance(error, SinceError | UsageError):
            # A view that is dropped meanwhile, or that lost an input by force, perhaps long ago, cannot be refreshed.
            gone = self.checks.forced or any(names.dropped or names.tombstones for names in self.names_between(call))
            return bool(gone) and (
                isinstance(error, SinceError) or "dropped" in str(error) or isinstance(error, UnknownCollection)
            )
        return False

    def rebuild(self) -> None:
        """Compute a view again; it moves alone, which histories that refresh all views together do not do."""
        views = self.there()
        if not views or self.checks.is_together:
            return
        every = [name for name in views if self.checks.is_every(self.ids()[name])]
        name = self.chance.choice(every or views)
        if every:
            self.change_in_turn()  # so that the view is several times behind
            self.left[0] -= 1

        def work(call: UserCall) -> Any:
            self.checks.refreshes.append(call)
            view = self.store.view(name)
            return {name: view.id}, {name: view.rebuild().time}

        call = self.call("rebuild", work, UsageError, Contention, SinceError)
        if call.is_done:
            ids, told = call.result
            self.checks.check_refreshed(call, ids, told, {})
        elif "rebuilt just now" not in str(call.error) and not self._may_fail_to_refresh(call):
            self.violate(call, f"raised {call.error!r}")

    def verify(self) -> None:
        """Let a view compare itself with its query."""
        views = self.there()
        if not views:
            return
        name = self.chance.choice(views)
        call = self.call("verify", lambda call: self.store.view(name).verify(), UsageError, SinceError)
        if call.is_done and not call.result.is_exact:
            self.violate(call, f"found {call.result}")

    def drop_view(self) -> None:
        """Drop a view; those that others read stay, unless forced."""
        views = self.there()
        if not views:
            return
        name, force = self.chance.choice(views), self.chance.random() < 0.1
        call = self.call("drop view", lambda call: self.store.drop(name, force=force), UsageError)
        if call.is_done:
            self._check_names(call, lambda names: name not in names.entries)
        elif isinstance(call.error, CollectionInUse) and force:
            self.violate(call, f"raised {call.error!r}")

    def drop_input(self) -> None:
        """Drop a collection: refused while a view reads it, unless forced."""
        names = [name for name in self.there(role="") if name in EXTRAS]
        if not names:
            return
        name, force = self.chance.choice(names), self.chance.random() < 0.15
        self.call("drop", lambda call: self.store.drop(name, force=force), UsageError)

    def read_view(self) -> None:
        """Read a view as of a time, or its changes between two."""
        views = self.there()
        if not views:
            return
        name, feed = self.chance.choice(views), self.chance.random() < 0.4

        def work(call: UserCall) -> Any:
            view = self.store[name]
            after, until = sorted((self.time_of(view), self.time_of(view)))
            opened = view.changes(after, until, timeout=1.0) if feed else view.snapshot(until, multiplicity="column")
            with opened as rows:
                read = rows.to_pylist()
                return view.id, after, until, read, rows._collection_schema

        call = self.call("read view", work, SinceError, UsageError)
        if call.is_done:
            id, after, until, read, schema = call.result
            found = count_read_rows(read, schema)
            if len(found) != len(read):
                self.violate(call, f"found a row several times: {read}")
            if feed:
                self.answers.check_changes(call, id, after, until, found, schema)
            else:
                self.answers.check_snapshot(call, id, until, found, schema, asked=True)
        elif isinstance(call.error, SinceError) and not self.history.is_expiring:
            self.violate(call, f"raised {call.error!r}, but nothing was ever expired")

    def write_to_view(self) -> None:
        """Try to write to a view, or to seal it: only refreshes may."""
        views = self.there()
        if not views:
            return
        name, seals = self.chance.choice(views), self.chance.random() < 0.5

        def work(call: UserCall) -> Any:
            view = self.store[name]
            return view.seal(self.upper_of(view) + 2) if seals else view.append([{"k": 1, "n": 1}])

        call = self.call("write to view", work, OwnedCollection, UsageError)
        if call.is_done:
            self.violate(call, "was acknowledged, though only refreshes write to views")

    # Inputs.

    def move_key(self) -> None:
        """Move a key from one input to another in one commit: it leaves one side of a view, and comes to the other."""
        key = self.chance.randrange(KEYS)
        names = self.chance.sample(("orders", "items"), 2)

        def work(call: UserCall) -> Any:
            there, here = (self.store[name] for name in names)
            with self.store.transaction() as tx:
                tx.delete(there, {"k": key})
                call.rows[here.id] = [(key, f"{call.id}.0")]
                tx.append(here, [{"k": key, "v": f"{call.id}.0", "n": self.chance.choice(NUMBERS)}])

        call = self.call("move a key", work, UsageError)
        self.answers.check_effect(call)

    def change_in_turn(self) -> None:
        """Change one key of two inputs of a view at two times, in one commit: a refresh follows both."""
        key = self.chance.randrange(KEYS)
        names = self._two_inputs()

        def work(call: UserCall) -> Any:
            inputs = [self.store[name] for name in names]
            first = max(self.upper_of(each) for each in inputs)
            with self.store.transaction() as tx:
                for place, each in enumerate(inputs):
                    call.rows[each.id] = [(key, f"{call.id}.{place}")]
                    row = {"k": key, "v": f"{call.id}.{place}", "n": self.chance.choice(NUMBERS)}
                    tx.append(each, [row], at=first + place)

        call = self.call("change in turn", work, UsageError, UpperMismatch)
        self.answers.check_effect(call)
        self.catch_up()
        self.left[0] -= 1

    def _two_inputs(self) -> list[str]:
        """Choose two collections that a view reads, if there are such; in any order."""
        names = {entry.id: name for name, entry in self.world.names[-1][1].entries.items() if not entry.role}
        read = [[names[id] for id in view.inputs if id in names] for view in self.checks.views.values()]
        pairs = sorted(sorted(pair) for pair in read if len(set(pair)) == 2)
        return self.chance.sample(self.chance.choice(pairs) if pairs else ["orders", "items"], 2)

    def expire_inputs(self) -> None:
        """Expire all history of an input but its newest time: what views need is kept for them."""
        self.history.is_expiring = True

        def work(call: UserCall) -> Any:
            names = [name for name in self.there(role="") if self.chance.random() < 0.7]
            for orders in (self.store[name] for name in names):
                orders.expire(max(self.upper_of(orders) - 1, 0))

        self.call("expire inputs", work)

    # Time.

    def catch_up(self) -> None:
        """Seal all collections of the counter up to one time, so that views can go on."""

        def work(call: UserCall) -> Any:
            names = [name for name in self.there(role="") if name != "events"]
            top = max(self.upper_of(self.store[name]) for name in names) + self.chance.choice((0, 0, 1))
            return self.store.seal(names, top, if_behind="ignore")

        self.call("catch up", work, UsageError)

    def seal_idle(self) -> None:
        """Seal the idle collections of the wall clock."""
        self.call("seal idle", lambda call: self.store.seal_idle())


def every_share(query: SimulatedQuery) -> float:
    """Return how many views of a query are exact at every time: joins have to tell times apart most."""
    return 0.6 if query.inputs == 2 else 0.3


def make_view(
    store: Any,
    checks: ViewChecks,
    name: str,
    query: SimulatedQuery,
    inputs: dict[str, str],
    *,
    keyed: bool,
    every: bool = False,
) -> Any:
    """Create a view, after the checks know its text."""
    text = text_of(query, inputs)
    checks.queries[text] = query, tuple(inputs[place] for place in sorted(inputs))
    times = "every" if every and query.policy != "full" else "refresh"
    return store.view(name, sql=text, key=query.key if keyed else (), policy=query.policy, times=times)

"""What users do with stores: one thread does one call after the other, chosen by the seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from timespine.client.collection import Collection
from timespine.client.store import Store
from timespine.errors import (
    ClosedError,
    CorruptionError,
    Fenced,
    LeaseExpired,
    NotSealed,
    SinceError,
    Unavailable,
    UnknownCollection,
    UsageError,
    VersionError,
)
from timespine.testing.stores.answers import Answers, counted, last_of
from timespine.testing.stores.calls import Call
from timespine.testing.stores.history import History, StoreProcess

KEYS = 6
"""Keys that rows have."""

SHAPE: dict[str, Any] = {"key": {"k": "int64"}, "value": {"v": "string"}}
TIMELINES = {"orders": "counter", "events": "clock"}
"""The collections that every history begins with."""


class User:
    """One thread of a process that uses its store."""

    def __init__(self, history: History, process: StoreProcess) -> None:
        self.history = history
        self.process = process
        self.chance = history.scheduler.random
        self.answers = Answers(history.world)
        self.kinds: dict[Callable[[], None], int] = {
            self.append: 12,
            self.snapshot: 6,
            self.changes: 2,
            self.upsert: 4,
            self.delete: 1,
            self.maintain: 2,
        }

    @property
    def store(self) -> Store:
        """The store of its process."""
        assert self.process.store is not None
        return self.process.store

    def run(self, left: list[int]) -> None:
        """Call one thing after the other, until enough was called in all or the store is closed."""
        kinds, weights = list(self.kinds), list(self.kinds.values())
        while left[0] > 0 and not self.process.is_closing:
            left[0] -= 1
            if self.chance.random() < 0.2:
                self.history.scheduler.sleep(self.chance.choice((0.001, 0.1, 1.0, 3.0)))
            self.chance.choices(kinds, weights)[0]()

    # Writing.

    def rows(self, call: Call, collection: str, most: int = 3) -> list[dict[str, Any]]:
        """Some rows that are marked with a call."""
        rows: list[dict[str, Any]] = [
            {"k": self.chance.randrange(KEYS), "v": f"{call.id}.{number}"}
            for number in range(1 + self.chance.randrange(most))
        ]
        call.rows[collection] = [(row["k"], row["v"]) for row in rows]
        return rows

    def append(self) -> None:
        """Append some rows at the next free time."""

        def work(call: Call) -> Any:
            orders = self.some()
            return orders, orders.append(self.rows(call, orders.id))

        call = self.call("append", work)
        self.answers.check_effect(call)
        if call.is_done:
            orders, reply = call.result
            self.answers.check_time(call, orders.id, reply.time)

    def upsert(self) -> None:
        """Put rows in the place of those with the same keys."""

        def work(call: Call) -> Any:
            orders = self.some()
            keys = self.chance.sample(range(KEYS), 1 + self.chance.randrange(2))
            rows: list[dict[str, Any]] = [{"k": key, "v": f"{call.id}.{key}"} for key in keys]
            call.rows[orders.id] = [(row["k"], row["v"]) for row in rows]
            return orders, orders.upsert(rows)

        call = self.call("upsert", work)
        self.answers.check_effect(call)
        if call.is_done:
            orders, reply = call.result
            wanted = sorted(call.rows[orders.id])
            keys = {key for key, _ in wanted}
            self.answers.check_change(
                call, orders.id, reply, lambda pairs: sorted(each for each in pairs if each[0] in keys) == wanted
            )

    def delete(self) -> None:
        """Delete all rows of a key."""
        key = self.chance.randrange(KEYS)

        def work(call: Call) -> Any:
            orders = self.some()
            return orders, orders.delete({"k": key})

        call = self.call("delete", work)
        if call.is_done:
            orders, reply = call.result
            self.answers.check_change(call, orders.id, reply, lambda pairs: not any(each[0] == key for each in pairs))

    # Reading.

    def snapshot(self) -> None:
        """Read a collection as of now, or of a time that can be read."""

        def work(call: Call) -> Any:
            orders = self.some()
            as_of = max(self.time_of(orders), 0) if self.chance.random() < 0.4 else None
            asked = as_of is not None
            rows = orders.snapshot(as_of, multiplicity=self.chance.choice(("rows", "column")), timeout=1.0)
            with rows:
                self.dawdle()
                return orders.id, asked, rows.as_of, counted(rows.to_pylist(), rows.columns_of), rows.columns_of

        call = self.call("snapshot", work)
        if call.is_done:
            id, asked, as_of, found, schema = call.result
            self.answers.check_snapshot(call, id, as_of, found, schema, asked=asked)

    def changes(self) -> None:
        """Read what changed between two times."""

        def work(call: Call) -> Any:
            orders = self.some()
            after, until = sorted((self.time_of(orders), self.time_of(orders)))
            if after < 0:
                return None
            with orders.changes(after, until, timeout=1.0) as rows:
                self.dawdle()
                return orders.id, after, until, counted(rows.to_pylist(), rows.columns_of), rows.columns_of

        call = self.call("changes", work)
        if call.is_done and call.result is not None:
            self.answers.check_changes(call, *call.result)

    def time_of(self, collection: Collection) -> int:
        """A time that can be read, as far as is known."""
        state = collection._access.known()
        last = last_of(state)
        first = state.since.elements[0][0] if state.since.elements else 0
        return self.chance.randint(max(first, last - 6), last) if first <= last else last

    def dawdle(self) -> None:
        """Take some time between planning a read and reading."""
        if self.chance.random() < 0.3:
            self.history.scheduler.sleep(self.chance.choice((0.01, 1.0, 4.0)))

    # Looking after.

    def maintain(self) -> None:
        """Do what the background does, now."""
        self.call("maintain", lambda call: self.store.maintain(sweep=self.chance.random() < 0.5))

    # Inside.

    def some(self) -> Collection:
        """One of the collections."""
        return self.store[self.chance.choice(list(TIMELINES))]

    def call(self, kind: str, work: Callable[[Call], Any]) -> Call:
        """Call something; an error must be one that can be."""
        call = self.history.call(self.process, kind, work)
        if call.error is not None and not self._may_be(call):
            self.history.world.violate(f"{call} raised {call.error!r}")
            self.history.scheduler.switch("violated")
        return call

    def _may_be(self, call: Call) -> bool:
        """Whether an error has a reason."""
        error, history = call.error, self.history
        if isinstance(error, Unavailable):
            return history.storage.fail > 0 or history.faults.outage > 0
        if isinstance(error, LeaseExpired | Fenced):
            return history.is_disturbed or history.faults.outage > 0
        if isinstance(error, CorruptionError | VersionError):
            return False
        if isinstance(error, SinceError | NotSealed):
            return True
        if isinstance(error, UnknownCollection | ClosedError):
            return False
        if isinstance(error, UsageError):
            return self.process.is_closing and "is closed: open it again" in str(error)
        return False

"""Users that write: the rows of a call are there once or not at all, together, and where its answer says."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from timespine.client.arguments.argument_types import LatePolicy
from timespine.client.collection import Collection
from timespine.client.write.transaction import Transaction
from timespine.columnar.schema.schema import DIFF, TIME
from timespine.errors import CollectionExists, Fenced, LateRows, NameBlocked, SchemaChanged, UpperMismatch, UsageError
from timespine.model.frontier import Frontier
from timespine.testing.stores.check_answers import Pair, key_and_value
from timespine.testing.stores.user_calls import UserCall
from timespine.testing.stores.users import EXTRAS, KEYS, Caller, Kinds, uppers_of

REFUSED = (CollectionExists, NameBlocked, LateRows, SchemaChanged)
"""The refusals of a transaction for which commits of others are the reason."""


class WritingUser(Caller):
    """A user of appends, changes, writes ahead of the seal, transactions."""

    def kinds(self) -> Kinds:
        return {
            **super().kinds(),
            self.append: 12,
            self.write_at_once: 4,
            self.append_at: 3,
            self.append_built: 2,
            self.upsert: 5,
            self.delete: 2,
            self.update: 2,
            self.replace: 2,
            self.merge: 2,
            self.write: 4,
            self.seal: 3,
            self.transact: 5,
            self.transact_on_what_was_read: 2,
        }

    def usual(self) -> None:
        self.append()

    def rows(self, call: UserCall, collection: str, most: int = 3) -> list[dict[str, Any]]:
        """Make rows that are marked with a call."""
        rows: list[dict[str, Any]] = [
            {"k": self.chance.randrange(KEYS), "v": f"{call.id}.{number}"}
            for number in range(1 + self.chance.randrange(most))
        ]
        call.rows.setdefault(collection, []).extend((row["k"], row["v"]) for row in rows)
        return rows

    def named(self, name: str | None) -> Collection:
        """Return the collection of a name, or some collection."""
        return self.store[name] if name is not None else self.some()

    # Appending.

    def write_at_once(self) -> None:
        """Write from several threads at once: the committer groups small writes, and changes see those of others."""
        scheduler, name = self.history.scheduler, self.chance.choice(list(self.history.timelines))
        works = (self.append,) if self.chance.random() < 0.5 else (self.upsert, self.write, self.write)
        tasks = [
            scheduler.spawn(self.process, f"writer{number}", partial(self.chance.choice(works), name))
            for number in range(2 + self.chance.randrange(3))
        ]
        while any(not each.is_done for each in tasks):
            scheduler.wait_for_any([each for each in tasks if not each.is_done])

    def append(self, name: str | None = None) -> None:
        """Append some rows at the next free time."""

        def work(call: UserCall) -> Any:
            orders = self.named(name)
            rows: Any = self.rows(call, orders.id, self.chance.choice((1, 3, 3, 70)))
            if self.chance.random() < 0.2:
                rows = pa.Table.from_pylist(rows, pa.schema([("k", pa.int64()), ("v", pa.string())]))
            return orders.id, orders.append(rows)

        call = self.call("append", work)
        self.answers.check_effect(call)
        if call.is_done:
            id, reply = call.result
            self.answers.check_time(call, id, reply.time)
            self.answers.check_seqno(call, id, reply.seqno)

    def append_at(self) -> None:
        """Append rows at the expected upper, or at a time."""

        def work(call: UserCall) -> Any:
            orders = self.some()
            upper = self.upper_of(orders)
            rows = self.rows(call, orders.id)
            if self.chance.random() < 0.5:
                return orders.id, upper, orders.append(rows, expected_upper=upper)
            return orders.id, None, orders.append(rows, at=upper + self.chance.randrange(3))

        call = self.call("append at", work, UpperMismatch, UsageError)
        self.answers.check_effect(call)
        if call.is_done:
            id, expected, reply = call.result
            self.answers.check_time(call, id, reply.time)
            if expected is not None and expected not in uppers_of(call, self, id):
                self.violate(call, f"was acknowledged though the upper never was {expected}")
        elif isinstance(call.error, UsageError) and not isinstance(call.error, UpperMismatch):
            self._check_too_late(call)

    def append_built(self) -> None:
        """Append a batch that was built by hand, if no other writer is first."""

        def work(call: UserCall) -> Any:
            orders = self.some()
            writer = orders.writer()
            upper = self.upper_of(orders)
            schema = orders._handle.schema(orders._handle.known())[1]
            rows = [{**row, TIME: upper, DIFF: 1} for row in self.rows(call, orders.id)]
            with writer.builder(upper) as builder:
                builder.add(pa.Table.from_pylist(rows, schema.update_arrow))
                batch = builder.finish(Frontier.at(upper + 1))
            self.dawdle()
            try:
                return orders.id, upper, writer.compare_and_append([batch], upper, upper + 1)
            except UpperMismatch:
                writer.delete(batch)
                raise

        call = self.call("append built", work, UpperMismatch, Fenced)
        self.answers.check_effect(call)
        if call.is_done:
            id, upper, _ = call.result
            self.answers.check_time(call, id, upper)

    # Changing.

    def upsert(self, name: str | None = None) -> None:
        """Replace rows by those with the same keys."""

        def work(call: UserCall) -> Any:
            orders = self.named(name)
            return orders.id, orders.upsert(self._upserted(call, orders.id))

        call = self.call("upsert", work)
        self.answers.check_effect(call)
        if call.is_done:
            id, reply = call.result
            self._check_upserted(call, id, reply)

    def _upserted(self, call: UserCall, collection: str) -> list[dict[str, Any]]:
        keys = self.chance.sample(range(KEYS), 1 + self.chance.randrange(2))
        call.rows[collection] = [(key, f"{call.id}.{key}") for key in keys]
        return [{"k": key, "v": value} for key, value in call.rows[collection]]

    def _check_upserted(self, call: UserCall, collection: str, reply: Any) -> None:
        wanted = sorted(call.rows[collection])
        keys = {key for key, _ in wanted}
        self._check_only(call, collection, reply, keys)
        self.answers.check_change(
            call, collection, reply, lambda pairs: sorted(each for each in pairs if each[0] in keys) == wanted
        )

    def delete(self) -> None:
        """Delete all rows of a key."""
        key = self.chance.randrange(KEYS)

        def work(call: UserCall) -> Any:
            orders = self.some()
            where = self.chance.random() < 0.5
            return orders.id, orders.delete(where=f"k = {key}") if where else orders.delete({"k": key})

        call = self.call("delete", work)
        if call.is_done:
            id, reply = call.result
            self._check_only(call, id, reply, {key})
            self.answers.check_change(call, id, reply, lambda pairs: all(each[0] != key for each in pairs))

    def update(self) -> None:
        """Give all rows of a key another value."""
        key = self.chance.randrange(KEYS)

        def work(call: UserCall) -> Any:
            orders = self.some()
            call.varies = True
            return orders.id, orders.update(where=f"k = {key}", set={"v": f"{call.id}.0"})

        call = self.call("update", work)
        if call.is_done:
            id, reply = call.result
            self._check_only(call, id, reply, {key})

            def holds(pairs: list[Pair]) -> bool:
                return all(value == f"{call.id}.0" for each, value in pairs if each == key)

            self.answers.check_change(call, id, reply, holds)
            moved = self._moved(call, id, reply)
            if sum(diff for _, diff in moved):
                self.violate(call, f"changed how many rows there are: {moved}")

    def replace(self) -> None:
        """Replace all rows of a key, or all rows."""
        key = self.chance.choice((None, *range(KEYS)))

        def work(call: UserCall) -> Any:
            orders = self.some()
            rows = self.rows(call, orders.id)
            if key is None:
                return orders.id, orders.replace(rows)
            call.rows[orders.id] = [(key, row["v"]) for row in rows]
            return orders.id, orders.replace([{**row, "k": key} for row in rows], where=f"k = {key}")

        call = self.call("replace", work)
        self.answers.check_effect(call)
        if call.is_done:
            id, reply = call.result
            wanted = sorted(call.rows[id])
            keys = set(range(KEYS)) if key is None else {key}
            self._check_only(call, id, reply, keys)
            self.answers.check_change(
                call, id, reply, lambda pairs: sorted(each for each in pairs if each[0] in keys) == wanted
            )

    def merge(self) -> None:
        """Update the rows of one key, delete those of another, and insert those of a key that has none."""
        updated, deleted = self.chance.sample(range(KEYS), 2)
        inserts = self.chance.random() < 0.7

        def work(call: UserCall) -> Any:
            orders = self.some()
            call.varies = True
            source = [{"k": updated, "v": f"{call.id}.{updated}"}, {"k": deleted, "v": "gone"}]
            merge = orders.merge(source).when_matched_delete("source.v = 'gone'").when_matched_update()
            if inserts:
                merge = merge.when_not_matched_insert(where="source.v != 'gone'")
            return orders.id, merge.execute()

        call = self.call("merge", work)
        if call.is_done:
            id, reply = call.result
            self._check_only(call, id, reply, {updated, deleted})

            def holds(pairs: list[Pair]) -> bool:
                found = [value for key, value in pairs if key == updated]
                is_updated = all(value == f"{call.id}.{updated}" for value in found) and (found or not inserts)
                return bool(is_updated) and all(key != deleted for key, _ in pairs)

            self.answers.check_change(call, id, reply, holds)

    def _moved(self, call: UserCall, collection: str, reply: Any) -> list[tuple[Pair, int]]:
        """Return the updates that the commit of a change added at its time."""
        return [
            (key_and_value(row), diff)
            for commit in self.world.truths[collection].added
            if call.since_event < commit.event <= call.until_event
            for row, time, diff in commit.updates
            if time == reply.time
            and any(number < 0 or key_and_value(row)[1].startswith(f"{call.id}.") for number in (diff,))
        ]

    def _check_only(self, call: UserCall, collection: str, reply: Any, keys: set[int]) -> None:
        """Check that a change retracts and inserts rows of its own keys only."""
        others = [each for each in self._moved(call, collection, reply) if each[0][0] not in keys]
        if others:
            self.violate(call, f"changed rows of other keys: {others}")

    # Ahead of the seal.

    def write(self, name: str | None = None) -> None:
        """Write rows ahead of the seal."""

        def work(call: UserCall) -> Any:
            orders = self.named(name)
            at = self.upper_of(orders) + self.chance.randrange(4 if name is None else 2)
            late: LatePolicy = self.chance.choice(("refuse", "move"))
            return orders.id, at, late, orders.write(self.rows(call, orders.id), at=at, late=late)

        call = self.call("write", work, UsageError)
        self.answers.check_effect(call)
        if call.is_done:
            id, at, late, reply = call.result
            self.answers.check_time(call, id, reply.first)
            if reply.first != at and (late == "refuse" or reply.first not in uppers_of(call, self, id)):
                self.violate(call, f"was asked to stand at {at} and stands at {reply.first}")
        elif isinstance(call.error, UsageError):
            self._check_too_late(call)

    def seal(self) -> None:
        """Seal one collection, or both of one time line, a little further."""

        def work(call: UserCall) -> Any:
            orders = self.some()
            upper = self.upper_of(orders) + self.chance.randrange(5)
            return orders.id, upper, orders.seal(upper)

        call = self.call("seal", work, UsageError)
        if call.is_done:
            id, upper, _ = call.result
            if max(uppers_of(call, self, id)) < upper:
                self.violate(call, f"was told that it is sealed up to {upper}")
        elif isinstance(call.error, UsageError):
            self._check_too_late(call)

    def _check_too_late(self, call: UserCall) -> None:
        """Check that a write refused for its time was too late; or the store is closed, or the collection gone."""
        is_late = isinstance(call.error, LateRows) or "sealed" in str(call.error)
        if not is_late and not self._has_reason(call):
            self.violate(call, f"raised {call.error!r}")

    # Together.

    def transact(self) -> None:
        """Append to, change, write and create several collections, all or nothing."""
        changed: list[tuple[str, int]] = []

        def work(call: UserCall) -> Any:
            changed.clear()
            with self.store.transaction() as tx:
                names = list(self.history.timelines)
                self.chance.shuffle(names)
                for name in names[: 1 + self.chance.randrange(2)]:
                    self._add_to(call, tx, self.store[name], changed)
                if self.chance.random() < 0.5:
                    self._create_in(call, tx)
                self.dawdle()
            return tx.replies

        call = self.call("transaction", work, UsageError, UpperMismatch)
        self.answers.check_effect(call)
        if call.is_done:
            for collection, place in changed:
                self._check_upserted(call, collection, SimpleNamespace(time=call.result[place].time))
        elif isinstance(call.error, UsageError) and not isinstance(call.error, REFUSED) and not self._has_reason(call):
            self.violate(call, f"raised {call.error!r}")

    def _add_to(self, call: UserCall, tx: Transaction, orders: Collection, changed: list[tuple[str, int]]) -> None:
        choice = self.chance.random()
        if choice < 0.3:
            changed.append((orders.id, len(tx._steps)))
            tx.upsert(orders, self._upserted(call, orders.id))
        elif choice < 0.5:
            at = self.upper_of(orders) + self.chance.randrange(4)
            tx.write(orders, self.rows(call, orders.id), at=at)
        else:
            tx.append(orders, self.rows(call, orders.id))

    def _create_in(self, call: UserCall, tx: Transaction) -> None:
        name = self.chance.choice(EXTRAS)
        created = tx.create(name, timeline="counter", replace=self.chance.random() < 0.3, **self.history.shape)
        if self.chance.random() < 0.5:
            tx.append(created, self.rows(call, created.id))
        else:
            tx.append(created, self.rows(call, created.id), at=0)
            tx.append(created, self.rows(call, created.id), at=1)

    def transact_on_what_was_read(self) -> None:
        """Read a collection, and write to it only if it has not changed since."""

        def work(call: UserCall) -> Any:
            orders = self.store["orders"]
            with self.store.transaction() as tx:
                rows = tx.snapshot(orders)
                with rows:
                    rows.to_arrow()
                self.dawdle()
                tx.append(self.store["events"], self.rows(call, self.store["events"].id))
                if self.chance.random() < 0.5:
                    tx.append(orders, self.rows(call, orders.id))
            return orders.id, rows.upper if rows.upper is not None else Frontier.at(0)

        call = self.call("transaction on what was read", work, UpperMismatch)
        self.answers.check_effect(call)
        if call.is_done:
            id, upper = call.result
            ((_, commit), *_) = self.world.by_call[call.id]
            (state,) = self.world.states_between(id, commit.event - 1, commit.event - 1)
            if state.upper != upper:
                self.violate(call, f"relied on the upper {upper}, but it was committed at {state.upper}")

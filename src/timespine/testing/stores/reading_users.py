"""Users that read: snapshots, changes, feeds and listeners give every commit, once and in order."""

from __future__ import annotations

from collections import Counter
from typing import Any

from timespine.client.read.follow.change_feed import ChangeFeed
from timespine.client.read.follow.commit_stream import CommitEvent as Heard
from timespine.client.read.follow.commit_stream import CommitStream
from timespine.columnar.schema.schema import DIFF, TIME, Schema
from timespine.errors import HandleExpired, NotSealed, SinceError, UsageError
from timespine.testing.stores.check_answers import count_read_rows, last_time, written_of
from timespine.testing.stores.user_calls import UserCall
from timespine.testing.stores.users import KEYS, Caller, Kinds
from timespine.testing.stores.world import Counts, Written, projection

READS_IN_A_ROW = 4
"""How often a user reads a collection that it reads several times."""


class ReadingUser(Caller):
    """A user of snapshots, changes, lookups, holds, feeds, listeners."""

    feed: OpenFeed | None = None
    listener: OpenListener | None = None

    def kinds(self) -> Kinds:
        return {
            **super().kinds(),
            self.snapshot: 6,
            self.snapshots_in_a_row: 3,
            self.changes: 3,
            self.lookup: 2,
            self.several: 1,
            self.unsealed: 2,
            self.listen: 8,
        }

    def usual(self) -> None:
        self.snapshot()

    def finish(self) -> None:
        super().finish()
        if self.feed is not None:
            self._close_feed(self.feed)
        if self.listener is not None:
            self._close_listener(self.listener)

    def snapshots_in_a_row(self) -> None:
        """Read one collection several times, while it changes: the process keeps what it has decoded."""
        name = self.chance.choice(list(self.history.timelines))
        for _ in range(READS_IN_A_ROW):
            self.snapshot(name)
            self.pass_time(name)

    def pass_time(self, name: str) -> None:
        """Let others change a collection between two reads of it."""
        self.dawdle()

    def snapshot(self, name: str | None = None) -> None:
        """Read a collection, or some collection, as of now, or of a time that can be read."""
        wants: list[bool] = []

        def work(call: UserCall) -> Any:
            orders = self.store[name] if name is not None else self.some()
            known = self.time_of(orders)
            asked = known >= 0 and self.chance.random() < 0.4
            wants.append(asked)
            as_of = known if asked else None
            rows = orders.snapshot(as_of, multiplicity=self.chance.choice(("rows", "column")), timeout=1.0)
            with rows:
                self.dawdle()
                self.check_held(rows._leased, known if asked else None, rows.seqno)
                if self.chance.random() < 0.2:
                    return orders.id, asked, rows.as_of, rows.count(), rows._collection_schema
                pieces = rows.split(2) if self.chance.random() < 0.2 else [rows]
                read = [row for piece in pieces for row in piece.to_pylist()]
                return (
                    orders.id,
                    asked,
                    rows.as_of,
                    count_read_rows(read, rows._collection_schema),
                    rows._collection_schema,
                )

        call = self.call("snapshot", work, SinceError)
        if isinstance(call.error, SinceError) and not wants[-1]:
            self.violate(call, f"of the newest time raised {call.error!r}")
        if call.is_done:
            id, asked, as_of, found, schema = call.result
            if isinstance(found, int):
                expected = self.world.truths[id].at(as_of, schema) if as_of is not None else {}
                if found != sum(expected.values()):
                    self.violate(call, f"as of {as_of} counted {found} rows, not {sum(expected.values())}")
            else:
                self.answers.check_snapshot(call, id, as_of, found, schema, asked=asked)
        self._check_since(call)

    def _check_since(self, call: UserCall) -> None:
        """Check that history which an error reports as gone is gone."""
        error = call.error
        if isinstance(error, SinceError) and not self.history.is_expiring:
            self.violate(call, f"raised {error!r}, but nothing was ever expired")

    def changes(self) -> None:
        """Read the changes between two times."""

        def work(call: UserCall) -> Any:
            orders = self.some()
            after, until = sorted((self.time_of(orders), self.time_of(orders)))
            if after < 0:
                return None
            with orders.changes(after, until, timeout=1.0) as rows:
                self.dawdle()
                self.check_held(rows._leased, after, rows.seqno)
                return (
                    orders.id,
                    after,
                    until,
                    count_read_rows(rows.to_pylist(), rows._collection_schema),
                    rows._collection_schema,
                )

        call = self.call("changes", work, SinceError)
        if call.is_done and call.result is not None:
            self.answers.check_changes(call, *call.result)
        self._check_since(call)

    def lookup(self) -> None:
        """Look up the rows of a key."""
        key = self.chance.randrange(KEYS)

        def work(call: UserCall) -> Any:
            orders = self.some()
            rows = orders.snapshot(timeout=1.0)
            with rows:
                as_of = rows.as_of
            found = orders.lookup({"k": key}, as_of).to_pylist() if as_of is not None else []
            return orders.id, as_of, [(row["k"], row["v"]) for row in found]

        call = self.call("lookup", work, SinceError)
        if call.is_done:
            id, as_of, found = call.result
            pairs = self.answers.pairs_at(id, as_of) if as_of is not None else []
            expected = [pair for pair in pairs if pair[0] == key]
            if sorted(found) != sorted(expected):
                self.violate(call, f"of {key} as of {as_of} found {found}, not {expected}")

    def several(self) -> None:
        """Read a collection and those that were created later, as of one time."""

        def work(call: UserCall) -> Any:
            names = [name for name, entry in self.world.names[-1][1].entries.items() if entry.timeline == "counter"]
            with self.store.snapshot(sorted(names)[:2], timeout=1.0) as cut:
                return [
                    (
                        rows._handle.id,
                        cut.as_of,
                        count_read_rows(rows.to_pylist(), rows._collection_schema),
                        rows._collection_schema,
                    )
                    for rows in cut.values()
                ]

        call = self.call("snapshot of several", work, SinceError, UsageError, NotSealed)
        if call.is_done:
            for id, as_of, found, schema in call.result:
                self.answers.check_snapshot(call, id, as_of, found, schema, asked=True)
        elif isinstance(call.error, UsageError) and "no complete time" not in str(call.error):
            self.check_reason(call)

    def unsealed(self) -> None:
        """Read the unsealed updates."""

        def work(call: UserCall) -> Any:
            orders = self.some()
            with orders.unsealed() as rows:
                seqno, schema = rows.seqno, rows._collection_schema
                return orders.id, seqno, count_by_time(rows.to_pylist(), schema), schema

        call = self.call("unsealed", work)
        if call.is_done:
            id, seqno, found, schema = call.result
            upper = last_time(self.world.states[id][seqno]) + 1
            expected: Counter[tuple[Written, int]] = Counter()
            for commit in self.world.truths[id].added:
                if commit.seqno <= seqno:
                    for row, time, diff in commit.updates:
                        if time >= upper:
                            expected[projection(schema)(row), time] += diff
            if found != {each: count for each, count in expected.items() if count}:
                self.violate(call, f"found {found}, not {dict(expected)}")

    # Feeds and listeners.

    def listen(self) -> None:
        """Go on with a feed or a listener, or begin one, or end it."""
        if self.chance.random() < 0.5:
            if self.feed is None:
                self._subscribe()
            elif self.chance.random() < 0.15:
                self._close_feed(self.feed)
            else:
                self._follow(self.feed)
        elif self.listener is None:
            self._begin_to_listen()
        elif self.chance.random() < 0.15:
            self._close_listener(self.listener)
        else:
            self._hear(self.listener)

    def _subscribe(self) -> None:
        if self.process.is_read_only:
            return

        def work(call: UserCall) -> Any:
            orders = self.some()
            feed = orders.subscribe(timeout=0.5)
            return OpenFeed(orders.id, feed, feed._request.schema)

        call = self.call("subscribe", work, SinceError)
        if call.is_done:
            self.feed = call.result

    def _follow(self, feed: OpenFeed) -> None:
        def work(call: UserCall) -> Any:
            if not feed.feed._closed:
                self.check_held(feed.feed._leased, feed.through if feed.through >= 0 else None)
            if self.chance.random() < 0.7:
                return feed.feed.poll()
            event = next(feed.feed, None)
            return [event] if event is not None else []

        call = self.call("poll a feed", work, HandleExpired)
        if call.error is not None:
            if isinstance(call.error, HandleExpired):
                self.feed = None
            return
        for event in call.result:
            if event.rows is not None:
                for row in event.rows.to_pylist():
                    written = written_of(row, feed.schema)
                    feed.told[written] = feed.told.get(written, 0) + row[DIFF]
            if event.kind == "changes":
                continue  # its progress comes next
            told = {row: count for row, count in feed.told.items() if count}
            expected = self.world.truths[feed.collection].at(event.through, feed.schema) if event.through >= 0 else {}
            if event.through < feed.through:
                self.violate(call, f"went back from {feed.through} to {event.through}")
            if told != expected:
                self.answers.rows_violate(call, f"through {event.through}", told, expected)
            feed.through = event.through
        if feed.feed._closed:
            self.feed = None

    def _close_feed(self, feed: OpenFeed) -> None:
        self.feed = None
        self.call("close a feed", lambda call: feed.feed.close())

    def _begin_to_listen(self) -> None:
        def work(call: UserCall) -> Any:
            orders = self.store[self.chance.choice(list(self.history.timelines))]
            heard: list[Heard] = []
            callback = heard.append if self.chance.random() < 0.4 else None
            listener = orders.listen(snapshot=self.chance.random() < 0.6, timeout=0.5, callback=callback)
            seqno = listener._cursor.seqno if callback is None else -1
            return OpenListener(
                orders.id, listener, heard if callback is not None else None, listener._request.schema, seqno
            )

        call = self.call("listen", work)
        if call.is_done:
            self.listener = call.result

    def _hear(self, hearing: OpenListener) -> None:
        newest = self.world.states[hearing.collection][-1].seqno
        limit = self.chance.choice((1, 3, 256))

        def work(call: UserCall) -> Any:
            if hearing.heard is not None:
                self.dawdle()
                events, hearing.heard[:] = list(hearing.heard), []
                return events
            if not hearing.listener.is_closed:
                self.check_held(hearing.listener._leased, seqno=hearing.listener._cursor.seqno)
            if self.history.faults.outage and self.chance.random() < 0.1:
                self.history.go_away(0.2)
            return hearing.listener.poll(limit)

        call = self.call("poll a listener", work, HandleExpired)
        if call.error is not None:
            if isinstance(call.error, HandleExpired):
                self.listener = None
            return
        for event in call.result:
            self._check_heard(call, hearing, event)
        if hearing.heard is None and len(call.result) < limit and not hearing.listener.is_closed:
            self._check_nothing_missed(call, hearing, newest)
        if hearing.listener.is_closed:
            self._check_callback(call, hearing)
            self.listener = None

    def _check_heard(self, call: UserCall, hearing: OpenListener, event: Heard) -> None:
        """Check that an event has the updates of its commit, and that no earlier commit was left out."""
        truth = self.world.truths[hearing.collection]
        if event.kind == "snapshot":
            expected: Counter[tuple[Written, int]] = Counter()
            since = self.world.states[hearing.collection][event.seqno].since.time
            for commit in truth.added:
                if commit.seqno <= event.seqno:
                    for row, time, diff in commit.updates:
                        expected[projection(hearing.schema)(row), max(time, since)] += diff
            self._compare_heard(call, event, expected, hearing)
            hearing.seqno = event.seqno
            return
        if hearing.seqno < 0:
            hearing.seqno = event.seqno - (event.kind == "updates")
        if event.seqno < hearing.seqno:
            self.violate(call, f"heard {event.seqno} after {hearing.seqno}")
        self._check_nothing_missed(call, hearing, event.seqno - 1)
        if event.kind == "updates":
            if event.seqno == hearing.seqno:
                self.violate(call, f"heard the updates of {event.seqno} twice")
            updates = [each.updates for each in truth.added if each.seqno == event.seqno]
            expected = Counter()
            for row, time, diff in updates[0] if updates else ():
                expected[projection(hearing.schema)(row), time] += diff
            self._compare_heard(call, event, expected, hearing)
        elif self.world.states[hearing.collection][event.seqno].upper != event.upper:
            self.violate(call, f"heard that {event.seqno} sealed up to {event.upper}, which it did not")
        hearing.seqno = max(hearing.seqno, event.seqno)

    def _compare_heard(
        self, call: UserCall, event: Heard, expected: Counter[tuple[Written, int]], hearing: OpenListener
    ) -> None:
        assert event.rows is not None
        found = count_by_time(event.rows.to_pylist(), hearing.schema)
        if found != {each: count for each, count in expected.items() if count}:
            self.violate(call, f"heard {found} at {event.seqno}, not {dict(expected)}")

    def _check_nothing_missed(self, call: UserCall, hearing: OpenListener, until: int) -> None:
        """Check that no commit with updates up to a state was left out."""
        missed = [
            commit.seqno
            for commit in self.world.truths[hearing.collection].added
            if hearing.seqno < commit.seqno <= until
        ]
        if missed and hearing.seqno >= 0:
            self.violate(call, f"never heard of {missed[0]}, after {hearing.seqno}")

    def _check_callback(self, call: UserCall, hearing: OpenListener) -> None:
        error = hearing.listener.error
        if error is not None and not isinstance(error, HandleExpired) and not self.history.is_failing:
            self.violate(call, f"was ended by {error!r}")

    def _close_listener(self, hearing: OpenListener) -> None:
        self.listener = None
        self.call("close a listener", lambda call: hearing.listener.close())


class OpenFeed:
    """A change feed, and its events so far."""

    def __init__(self, collection: str, feed: ChangeFeed, schema: Schema) -> None:
        self.collection = collection
        self.feed = feed
        self.schema = schema
        self.told: Counts = {}
        """The sum of all changes that it has reported."""
        self.through = -1
        """The time up to which it has reported."""


class OpenListener:
    """A commit stream, and its progress."""

    def __init__(
        self, collection: str, listener: CommitStream, heard: list[Heard] | None, schema: Schema, seqno: int
    ) -> None:
        self.collection = collection
        self.listener = listener
        self.heard = heard
        """The events that its callback got; None if it has no callback."""
        self.schema = schema
        self.seqno = seqno
        """The state up to which it has reported; -1 if that is not known yet."""


def count_by_time(rows: list[dict[str, Any]], schema: Schema) -> dict[tuple[Written, int], int]:
    """Sum the updates of a read by row and time."""
    found: Counter[tuple[Written, int]] = Counter()
    for row in rows:
        found[written_of(row, schema), row[TIME]] += row[DIFF]
    return {each: count for each, count in found.items() if count}

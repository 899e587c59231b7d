"""An arrangement of a collection: a spine that follows it, so that rows are found by some columns in microseconds.

It begins with a snapshot and goes on with the change feed of the collection, whose lease keeps the history that was
not taken yet. Changes and the new upper become visible at once. Every read looks at the log once and takes what is new
before it answers, so it sees all commits that were acknowledged before it began; a thread takes changes meanwhile, so
that there is little left to take. If the lease is lost, or the schema changes, the collection is read again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal

import pyarrow as pa

from timespine.arrangement.batch import Batch, batch_of
from timespine.arrangement.layout import Layout
from timespine.arrangement.spine import Spine
from timespine.arrangement.view import ArrangementView
from timespine.client.collection import Collection
from timespine.client.context import POLL_MAX_S, POLL_MIN_S
from timespine.client.engine_interface import TimeLike, handle_of, repeat_by_diff, restrict_columns
from timespine.client.read.change_feed import FeedEvent
from timespine.columnar.ingest.update_table import update_table
from timespine.columnar.predicate.column import Where
from timespine.columnar.schema.schema import DIFF
from timespine.errors import (
    HandleExpired,
    LeaseExpired,
    NotSealed,
    SinceError,
    StoreClosed,
    TimespineError,
    UsageError,
    short_repr,
)
from timespine.locks import Lock
from timespine.model.frontier import CLOSED, Frontier
from timespine.model.time import INT64_MAX

logger = logging.getLogger(__name__)

History = Literal["latest", "all"]
"""Which times can be read: only the newest complete one, or all from the first snapshot on."""

CLOSE_S = 30.0
"""How long closing waits for the thread that follows."""

WAIT_S = 30.0
"""How long `wait` waits, unless told otherwise."""


class Arrangement:
    """The rows of a collection, arranged by some columns. Many threads may use one; close it when all are done."""

    def __init__(
        self,
        collection: Collection,
        by: Sequence[str] | None,
        columns: Sequence[str] | None,
        where: Where | None,
        history: History,
    ) -> None:
        if history not in ("latest", "all"):
            raise UsageError(f"history is 'latest' or 'all', not {short_repr(history)}")
        self.question = question_of(by, columns, where, history)
        """What was asked for: an equal question in this process gets the same arrangement."""
        self._collection = collection
        self._handle = handle_of(collection)
        self._by, self._columns, self._where, self._history = by, columns, where, history
        self._lock = Lock("following a collection")
        self._users = 1
        self._is_closed = False
        self._misfit: UsageError | None = None
        """Why the newest schema of the collection cannot be arranged like this, once it changed."""
        self._restarts = 0
        with self._lock:
            self._begin()
        # A daemon, and no task of a pool: it never ends by itself, and a program that ends waits for its pools.
        self._thread = threading.Thread(target=self._follow, name="timespine-follow", daemon=True)
        self._thread.start()

    # Reading.

    def get(self, key: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the rows of a key, as of the newest complete time. It may name only the first arranged columns."""
        found: list[dict[str, Any]] = []
        for row, count in self._view().get(key):
            if count < 0:
                raise UsageError("a row of this key has a negative count: use `fetch` with counts")
            found.extend(dict(row) for _ in range(count))
        return found

    def get_one(self, key: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the row of a key that has at most one; None if it has none."""
        found = self.get(key)
        if len(found) > 1:
            raise UsageError(f"this key has {len(found)} rows: use `get`")
        return found[0] if found else None

    def fetch(self, keys: object, *, counts: bool = False) -> pa.Table:
        """Return the rows of many keys, as of the newest complete time, in order.

        With `counts`, each row comes once, with its count in `_diff`. `keys` is one key as a dictionary, or many in
        any form that rows have: the arranged columns, or the first ones.
        """
        found = self._view().fetch(keys)
        return found if counts else _repeated(found)

    def scan(
        self,
        lower: Mapping[str, Any] | None = None,
        upper: Mapping[str, Any] | None = None,
        *,
        inclusive: bool = False,
    ) -> Iterator[pa.Table]:
        """Give the rows from one key to before another, as of the newest complete time, in order."""
        return (_repeated(table) for table in self._view().scan(lower, upper, inclusive=inclusive))

    def at(self, as_of: TimeLike) -> ArrangementView:
        """Return a view as of a time that the arrangement still has: it never changes, and needs no closing."""
        time = self._handle.time_of(as_of)
        self.catch_up()
        if self.upper.less_equal(time):
            raise NotSealed(time, self.upper)
        return self._current[0].view(time)

    @property
    def upper(self) -> Frontier:
        """Return the frontier below which the arrangement has all updates."""
        upper = self._current[0].upper
        return Frontier.at(0) if upper is None else upper

    @property
    def since(self) -> Frontier:
        """Return the frontier from which on it can be read."""
        return self._current[0].since or Frontier.at(0)

    @property
    def layout(self) -> Layout:
        """Return the columns, and those that rows are arranged by."""
        return self._current[0].layout

    def wait(self, time: TimeLike, timeout: float = WAIT_S) -> bool:
        """Wait until the arrangement has all updates at a time; return False if that takes longer than the timeout."""
        wanted = self._handle.time_of(time)
        found = self._handle.wait(lambda state: not state.upper.less_equal(wanted), timeout)
        if found is not None:
            self.catch_up()
        return found is not None

    def metrics(self) -> dict[str, Any]:
        """Return figures of the spine, and how often the collection was read again."""
        return {**self._current[0].metrics(), "restarts": self._restarts}

    # Serving lookups and changes of the collection.

    def look_up(self, key: Mapping[str, Any], schema_id: int) -> pa.Table | None:
        """Return the rows of one key of the collection; None if this arrangement cannot tell."""
        if not self._is_by_key or not set(key) <= set(self.layout.by):
            return None
        try:
            self.catch_up()
        except StoreClosed:
            return None  # another thread closed it just now
        spine, own_id = self._current
        return _repeated(spine.newest_view().lookup(key)) if own_id == schema_id else None

    def rows_as_of(self, time: int, keys: pa.Table, schema_id: int) -> pa.Table | None:
        """Return the rows of keys as of a time, with their counts; None if this arrangement cannot tell."""
        if not self._is_by_key or not set(keys.column_names) <= set(self.layout.by):
            return None
        try:
            self.catch_up()
            spine, own_id = self._current
            if own_id != schema_id or spine.upper is None or spine.upper.less_equal((time,)):
                return None
            return spine.view((time,)).fetch(keys)
        except (SinceError, StoreClosed):
            return None  # it has only later times, or another thread closed it just now

    @property
    def _is_by_key(self) -> bool:
        schema = self.layout.schema
        is_whole = self._columns is None and self._where is None
        return is_whole and bool(schema.key) and self.layout.by == schema.key_names

    # Following.

    def catch_up(self) -> bool:
        """Look at the log once, and take what is new; return whether there was something."""
        with self._lock:
            if self._is_closed:
                raise StoreClosed("this arrangement is closed: arrange the collection again")
            if self._misfit is not None:
                raise self._misfit
            spine, schema_id = self._current
            try:
                events = self._feed.poll()
                if self._newest_schema() == schema_id:
                    return self._take(spine, events)
            except (LeaseExpired, HandleExpired) as error:
                logger.warning("the arrangement of %s begins again: %s", self._handle.name, error)
            self._restarts += 1
            feed = self._feed
            try:
                self._begin()
            except UsageError as error:
                # It stays so: a thread that tries again would take a lease each time.
                self._misfit = UsageError(
                    f"the schema of {self._handle.name} changed, and this arrangement does not fit it: {error}; close "
                    "it, and arrange the collection by columns that it has"
                )
                raise self._misfit from error
            feed.close()
            spine.close()
            return True

    def _begin(self) -> None:
        """Read the collection into a new spine, and then take that one: until then readers have the old one."""
        feed = self._collection.subscribe(columns=self._columns, where=self._where)
        try:
            schema_id = self._newest_schema()
            whole = feed.request.schema
            schema = whole if self._columns is None else restrict_columns(whole, tuple(self._columns))
            spine = Spine(schema, whole.key_names if self._by is None else self._by)
            events = feed.poll()
            self._take(spine, events)
            if events and events[0].through >= 0:
                # SUBTLE: the snapshot stands at its own time, so before that the spine has no rows
                # (test_times_before_the_first_snapshot_cannot_be_read).
                spine.advance_since(Frontier.at(events[0].through))
        except BaseException:
            feed.close()
            raise
        self._feed = feed
        self._current = (spine, schema_id)

    def _newest_schema(self) -> int:
        """Return the id of the newest schema that this process knows; raise ClosedError if the collection is gone."""
        return self._handle.schema(self._handle.known())[0]

    def _take(self, spine: Spine, events: Sequence[FeedEvent]) -> bool:
        """Insert what a feed gave, each event with its upper at once."""
        for event in events:
            upper = CLOSED if event.through >= INT64_MAX else Frontier.at(event.through + 1)
            spine.insert(_batch(event, spine.layout), upper=upper)
        if events and self._history == "latest" and events[-1].through >= 0:
            spine.advance_since(Frontier.at(events[-1].through))
        return bool(events)

    def _view(self) -> ArrangementView:
        self.catch_up()
        return self._current[0].newest_view()

    def _follow(self) -> None:
        """Take changes as they come, until the arrangement is closed."""
        context, pause = self._handle.context, POLL_MIN_S
        while not self._is_closed:
            heard = context.committed.count
            try:
                pause = POLL_MIN_S if self.catch_up() else min(pause * 1.5, POLL_MAX_S)
            except StoreClosed:
                return
            except TimespineError as error:
                logger.warning("the arrangement of %s could not follow: %s", self._handle.name, error)
                if self._misfit is not None:
                    return
                pause = POLL_MAX_S
            context.committed.wait(heard, pause)

    # Sharing and closing.

    def share(self) -> Arrangement:
        """Count one more user."""
        self._users += 1
        return self

    def close(self) -> None:
        """Give up this use; the last one ends the arrangement."""
        self._users -= 1
        if self._users <= 0:
            self.end()

    def end(self) -> None:
        """End the arrangement for all users."""
        if self._is_closed:
            return
        self._is_closed = True
        if self in self._handle.context.arrangements:
            self._handle.context.arrangements.remove(self)
        self._handle.context.committed.ring()
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSE_S)
        self._feed.close()
        self._current[0].close()

    @property
    def collection_id(self) -> str:
        """Return the id of the collection that it follows."""
        return self._handle.id

    def __enter__(self) -> Arrangement:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def arrange(
    collection: Collection,
    by: Sequence[str] | None = None,
    *,
    columns: Sequence[str] | None = None,
    where: Where | None = None,
    history: History = "latest",
) -> Arrangement:
    """Arrange a collection, or share the arrangement of this process that answers the same question."""
    handle = handle_of(collection)
    question = question_of(by, columns, where, history)
    with handle.context.arranging:
        for known in handle.context.arrangements:
            if isinstance(known, Arrangement) and known.collection_id == handle.id and known.question == question:
                return known.share()
        made = Arrangement(collection, by, columns, where, history)
        handle.context.arrangements.append(made)
    return made


def question_of(
    by: Sequence[str] | None, columns: Sequence[str] | None, where: Where | None, history: str
) -> tuple[object, ...]:
    """Return what tells arrangements of one collection apart.

    SUBTLE: conditions that are no text are equal only if they are one object. Two of them may print alike
    (test_conditions_that_print_alike_are_two_questions).
    """
    named = [None if each is None else tuple(each) for each in (by, columns)]
    return (*named, where if where is None or isinstance(where, str) else id(where), history)


def _batch(event: FeedEvent, layout: Layout) -> Batch:
    """Return the rows of an event as a batch; an empty one for progress."""
    if event.rows is None or not event.rows.num_rows:
        return Batch(())
    there = [name for name in (*layout.schema.names, *layout.schema.system_names) if name in event.rows.column_names]
    at = (max(event.through, 0),) if event.kind == "snapshot" else None
    return batch_of(update_table(event.rows.select(there), layout.schema, at, None), layout) or Batch(())


def _repeated(table: pa.Table) -> pa.Table:
    """Return rows as often as they count, without the counts."""
    return pa.concat_tables(list(repeat_by_diff(table, DIFF))).drop_columns([DIFF])

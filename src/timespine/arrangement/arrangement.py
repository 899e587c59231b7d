"""An arrangement of a collection: a spine that follows it, so that rows are found by some columns in microseconds.

It begins with a checkpoint or a snapshot and goes on with the change feed of the collection, whose lease keeps the
history that was not taken yet. Changes and the new upper become visible at once. Every read looks at the log once and
takes what is new before it answers, so it sees all commits that were acknowledged before it began; a thread takes
changes meanwhile, so that there is little left to take. If the lease is lost, or the schema changes, or a file of a
checkpoint is damaged, the collection is read again.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

import pyarrow as pa

from timespine.arrangement.batch.layout import Layout
from timespine.arrangement.follow.begin_following import Beginning, insert_event
from timespine.arrangement.follow.followed_rows import History, Question
from timespine.arrangement.follow.save_checkpoints import Saving
from timespine.arrangement.read.arranged_reads import ArrangedReads
from timespine.arrangement.read.view_as_of import ArrangementView
from timespine.client.api_for_engines import TimeLike, handle_of
from timespine.client.arrangement_protocols import ArrangementHold
from timespine.client.collection import Collection
from timespine.client.read.follow.change_feed import FeedEvent
from timespine.client.refuse_pickle import OneProcess
from timespine.columnar.predicate.where import Where
from timespine.errors import (
    ArrangementMisfit,
    CorruptionError,
    DiffOverflow,
    HandleExpired,
    LeaseExpired,
    NotSealed,
    SinceError,
    StoreClosed,
    TimespineError,
    UsageError,
)
from timespine.locks import Lock
from timespine.model.frontier import Frontier

logger = logging.getLogger(__name__)

R = TypeVar("R")

CLOSE_S = 30.0
"""How long closing waits for the thread that follows."""

WAIT_S = 30.0
"""How long `wait` waits, unless told otherwise."""


class Arrangement(OneProcess, ArrangedReads):
    """The rows of a collection, arranged by some columns. Many threads may use one; close it when all are done."""

    def __init__(self, collection: Collection, question: Question) -> None:
        self.question = question
        """What was asked for: an equal question in this process gets the same arrangement."""
        self._handle = handle_of(collection)
        self._lock = Lock("following a collection")
        self._users = 1
        self._is_closed = False
        self._misfit: ArrangementMisfit | None = None
        """Why the newest schema of the collection cannot be arranged like this, once it changed."""
        self._doubt: CorruptionError | None = None
        """Why the rows must be read again: a file of the checkpoint is damaged."""
        self._restarts = 0
        self._takes = 0
        """Updates that were taken from the feed."""
        self._untaken: deque[FeedEvent] = deque()
        """Events that the feed gave, and that are not inserted yet."""
        self._holds: dict[object, int] = {}
        """Times that users hold."""
        self._beginning = Beginning(collection, question)
        self._current = self._beginning.begin(restores=True)
        self._saving = Saving(self._handle, question, self._current)
        # A daemon, and no task of a pool: it never ends by itself, and a program that ends waits for its pools.
        self._thread = threading.Thread(target=self._follow, name="timespine-follow", daemon=True)
        self._thread.start()

    # Reading.

    def _view(self) -> ArrangementView:
        self.catch_up()
        return self._current.spine.newest_view()

    def _read(self, read: Callable[[ArrangementView], R]) -> R:
        """Read, and once more if a file of the checkpoint turns out to be damaged: that costs a read, no answer."""
        try:
            return read(self._view())
        except CorruptionError as error:
            self._distrust(error)
            return read(self._view())

    def at(self, as_of: TimeLike) -> ArrangementView:
        """Return a view as of a time that the arrangement still has: it never changes, and needs no closing."""
        time = self._handle.time_of(as_of)
        self.catch_up()
        if self.upper.less_equal(time):
            raise NotSealed(time, self.upper)
        return self._current.spine.view(time)

    @property
    def upper(self) -> Frontier:
        """Return the frontier below which the arrangement has all updates."""
        upper = self._current.spine.upper
        return Frontier.at(0) if upper is None else upper

    @property
    def since(self) -> Frontier:
        """Return the frontier from which on it can be read."""
        return self._current.spine.since or Frontier.at(0)

    @property
    def layout(self) -> Layout:
        """Return the columns, and those that rows are arranged by."""
        return self._current.spine.layout

    def wait(self, time: TimeLike, timeout: float = WAIT_S) -> bool:
        """Wait until the arrangement has all updates at a time; return False if that takes longer than the timeout."""
        wanted = self._handle.time_of(time)
        found = self._handle.wait(lambda state: not state.upper.less_equal(wanted), timeout)
        if found is not None:
            self.catch_up()
        return found is not None

    def hold(self, as_of: TimeLike) -> ArrangementHold:
        """Keep a time readable that the arrangement has now, until the hold is closed; SinceError if it is gone."""
        (time,) = self._handle.time_of(as_of)
        held = ArrangementHold(self._holds)
        with self._lock:
            if not self.since.less_equal((time,)):
                raise SinceError((time,), self.since)
            self._holds[held] = time
        return held

    # Figures.

    @property
    def label(self) -> str:
        """Return the columns that rows are arranged by, for people."""
        return ", ".join(self.layout.by)

    def metrics(self) -> dict[str, Any]:
        """Return figures of the spine, of following and of checkpoints."""
        counts = self._beginning.counts
        return {
            **self._current.spine.metrics(),
            "restarts": self._restarts,
            "updates taken": self._takes,
            "times behind": self._times_behind(),
            "reads of the collection": counts.reads,
            "checkpoints restored": counts.restores,
            "checkpoints refused": counts.refusals,
            **self._saving.figures(),
        }

    def _times_behind(self) -> int:
        """Return how many complete times of the newest known state the arrangement does not have yet."""
        theirs, own = self._handle.known().upper.last_complete(), self.upper.last_complete()
        return max((-1 if theirs is None else theirs) - (-1 if own is None else own), 0)

    # Serving lookups, changes and views of the collection.

    def look_up(self, key: Mapping[str, Any], schema_id: int) -> pa.Table | None:
        """Return the rows of one key of the collection; None if this arrangement cannot tell."""
        if not self._is_by_key or not key or set(key) != set(self.layout.by[: len(key)]):
            return None
        try:
            self.catch_up()
            followed = self._current
            view = followed.spine.newest_view()
            return view.lookup(key) if followed.schema_id == schema_id else None
        except (StoreClosed, DiffOverflow, ArrangementMisfit):
            return None  # another thread closed it just now; or a row counts too much, and a read says which one
        except CorruptionError as error:
            self._distrust(error)
            return None

    def rows_as_of(self, time: int, keys: pa.Table, schema_id: int) -> pa.Table | None:
        """Return the rows of keys as of a time, with their counts; None if this arrangement cannot tell.

        `keys` has the arranged columns, or the first of them, in any order.
        """
        names = keys.column_names
        if not self.question.is_whole or set(names) != set(self.layout.by[: len(names)]):
            return None
        try:
            self.catch_up()
            followed = self._current
            upper = followed.spine.upper
            if followed.schema_id != schema_id or upper is None or upper.less_equal((time,)):
                return None
            return followed.spine.view((time,)).fetch(keys)
        except (SinceError, StoreClosed, DiffOverflow, ArrangementMisfit):
            return None  # as above, or it has only later times
        except CorruptionError as error:
            self._distrust(error)
            return None

    @property
    def _is_by_key(self) -> bool:
        schema = self.layout.schema
        return self.question.is_whole and bool(schema.key) and self.layout.by == schema.key_names

    # Following.

    def catch_up(self) -> bool:
        """Look at the log once, and take what is new; return whether there was something."""
        with self._lock:
            if self._is_closed:
                raise StoreClosed("this arrangement is closed: arrange the collection again")
            if self._misfit is not None:
                raise self._misfit
            if self._doubt is None:
                try:
                    if self._is_gapless() and self._poll():
                        return self._take()
                except (LeaseExpired, HandleExpired) as error:
                    logger.warning("the arrangement of %s begins again: %s", self._handle.name, error)
            self._begin_again()
            return True

    def _is_gapless(self) -> bool:
        """Return whether the spine has all that the feed gave.

        SUBTLE: an interrupt in between may lose events (test_an_interrupt_between_feed_and_spine_loses_nothing).
        """
        upper = self._current.spine.upper
        last = None if upper is None else upper.last_complete()
        through = self._untaken[-1].through if self._untaken else (-1 if last is None else last)
        return self._current.feed.through == through

    def _poll(self) -> bool:
        """Look at the log once; return False if the schema is another one."""
        self._untaken.extend(self._current.feed.poll())
        return self._newest_schema() == self._current.schema_id

    def _newest_schema(self) -> int:
        """Return the id of the newest schema that this process knows; raise ClosedError if the collection is gone."""
        return self._handle.schema(self._handle.known())[0]

    def _take(self) -> bool:
        """Insert what the feed gave, each event with its upper at once.

        SUBTLE: an event leaves the queue after it was inserted: inserting may fail, as when merges do not keep up
        (test_an_event_that_could_not_be_inserted_is_inserted_later).
        """
        spine, through = self._current.spine, -1
        while self._untaken:
            event = self._untaken[0]
            self._takes += insert_event(spine, event)
            through = event.through
            self._untaken.popleft()
        if through >= 0 and self.question.history == "latest":
            spine.advance_since(Frontier.at(min((through, *self._holds.values()))))
        return through >= 0

    def _begin_again(self) -> None:
        """Read the collection into a new spine, and then take that one: until then readers have the old one."""
        old, doubt = self._current, self._doubt
        self._restarts += 1
        if doubt is not None:
            logger.warning("%s is read again: a file of its checkpoint is damaged: %s", self._handle.name, doubt)
        with self._saving.lock:
            old.spine.release_folder()
            try:
                begun = self._beginning.begin(restores=False)
            except UsageError as error:
                if doubt is not None or self._newest_schema() == old.schema_id:
                    raise
                # It stays so: a thread that tries again would take a lease each time.
                self._misfit = ArrangementMisfit(
                    f"the schema of {self._handle.name} changed, and this arrangement does not fit it: {error}; close "
                    "it, and arrange the collection by columns that it has"
                )
                raise self._misfit from error
            self._current = begun
            self._untaken.clear()
            self._holds.clear()
            self._doubt = None
            self._saving.begin(begun)
        old.close()

    def _distrust(self, error: CorruptionError) -> None:
        """Have the collection read again by the next look."""
        self._doubt = error

    def _follow(self) -> None:
        """Take changes as they come, and save now and then, until the arrangement is closed."""
        signal = self._handle.context.signal()
        while not self._is_closed:
            heard = signal.mark
            try:
                if self.catch_up():
                    signal.expect_more()
                if self._saving.verify_some():
                    signal.expect_more()
                self._saving.save_if_due(self._takes)
                self._current.spine.relieve_memory()
            except StoreClosed:
                return
            except CorruptionError as error:
                self._distrust(error)
            except TimespineError as error:
                logger.warning("the arrangement of %s could not follow: %s", self._handle.name, error)
                if self._misfit is not None:
                    return
                signal.expect_nothing()
            signal.wait(heard, math.inf)

    def save(self) -> bool:
        """Save a checkpoint to the folder now; return False if it has all that there is already."""
        self.catch_up()
        return self._saving.save(self._takes)

    # Sharing and closing.

    def share(self) -> bool:
        """Count one more user; return False if the last one has just closed it."""
        with self._lock:
            if self._users <= 0 or self._is_closed:
                return False
            self._users += 1
            return True

    def close(self) -> None:
        """Give up this use; the last one ends the arrangement."""
        with self._lock:
            self._users -= 1
            is_last = self._users <= 0
        if is_last:
            self.end()

    def end(self) -> None:
        """End the arrangement for all users, after a last checkpoint if it has a folder."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        if self in self._handle.context.arrangements:
            self._handle.context.arrangements.remove(self)
        self._handle.context.committed.ring()
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSE_S)
        if self._misfit is None and self._doubt is None:
            self._saving.save_at_end(self._takes)
        self._current.close()

    @property
    def collection_id(self) -> str:
        """Return the id of the collection that it follows."""
        return self._handle.id

    @property
    def collection_name(self) -> str:
        """Return the name of the collection that it follows."""
        return self._handle.name

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
    folder: str | os.PathLike[str] | None = None,
) -> Arrangement:
    """Arrange a collection, or share the arrangement of this process that answers the same question."""
    handle = handle_of(collection)
    path = None if folder is None else os.path.abspath(os.fspath(folder))
    question = Question.of(handle.schema(handle.state())[1], by, columns, where, history, path)
    with handle.context.arranging:
        for known in handle.context.arrangements:
            if not isinstance(known, Arrangement) or known.collection_id != handle.id:
                continue
            if known.question == question and known.share():
                return known
        made = Arrangement(collection, question)
        handle.context.arrangements.append(made)
    return made

"""Planted bugs in following a collection, which histories with arrangements are to notice: see `planted.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mutations import bug, in_arrangements, patched

from timespine.arrangement import arrangement as arrangement_module
from timespine.arrangement.arrangement import Arrangement
from timespine.arrangement.batch.batch import Batch
from timespine.arrangement.follow import begin_following
from timespine.client.read.follow.change_feed import ChangeFeed
from timespine.client.write import read_current
from timespine.client.write.read_current import CurrentRows
from timespine.errors import StoreClosed


@in_arrangements
@bug
def a_follower_skips_the_rows_of_a_commit() -> Iterator[None]:
    real = begin_following._batch

    def batch(event, layout):
        return Batch(()) if event.kind == "changes" and event.through % 3 == 2 else real(event, layout)

    with patched(begin_following, "_batch", batch):
        yield


@in_arrangements
@bug
def changes_are_taken_at_the_time_before_theirs() -> Iterator[None]:
    real = begin_following.insert_event

    def insert_event(spine, event):
        return real(spine, replace(event, through=max(event.through - 1, -1)))

    with patched(arrangement_module, "insert_event", insert_event):
        yield


@in_arrangements
@bug
def a_lookup_is_answered_from_a_stale_frontier() -> Iterator[None]:
    def look_up(self, key, schema_id):
        if not self._is_by_key or self._is_closed or not set(key) <= set(self.layout.by):
            return None
        return self._current.spine.newest_view().lookup(key)

    with patched(Arrangement, "look_up", look_up):
        yield


@in_arrangements
@bug
def reads_trust_the_thread_that_follows() -> Iterator[None]:
    def view(self):
        if self._is_closed:
            raise StoreClosed("closed")
        return self._current.spine.newest_view()

    with patched(Arrangement, "_view", view):
        yield


@in_arrangements
@bug
def changes_replace_rows_of_an_older_upper() -> Iterator[None]:
    def rows_as_of(self, time, keys, schema_id):
        spine = self._current.spine
        if not self._is_by_key or self._is_closed or spine.upper is None or spine.upper.last_complete() is None:
            return None
        return spine.newest_view().fetch(keys)

    with patched(Arrangement, "rows_as_of", rows_as_of):
        yield


@in_arrangements
@bug
def changes_are_served_though_unsealed_rows_count() -> Iterator[None]:
    real = CurrentRows._from_arrangement

    def counts_unsealed(state, time):
        return False

    def served(self, keys):
        with patched(read_current, "_counts_unsealed", counts_unsealed):
            return real(self, keys)

    with patched(CurrentRows, "_from_arrangement", served):
        yield


@in_arrangements
@bug
def what_the_old_feed_gave_is_taken_into_the_new_spine() -> Iterator[None]:
    real = Arrangement._begin_again

    def begin_again(self):
        old = list(self._untaken)
        real(self)
        for event in old:
            begin_following.insert_event(self._current.spine, event)

    with patched(Arrangement, "_begin_again", begin_again):
        yield


@in_arrangements
@bug
def the_first_close_ends_a_shared_arrangement() -> Iterator[None]:
    def close(self):
        self.end()

    with patched(Arrangement, "close", close):
        yield


@in_arrangements
@bug
def the_thread_that_follows_outlives_the_store() -> Iterator[None]:
    def end(self):
        self._users = 0

    with patched(Arrangement, "end", end):
        yield


@in_arrangements
@bug
def a_feed_forgets_what_was_complete_at_its_begin() -> Iterator[None]:
    real = ChangeFeed._read

    def read(self, state, until):
        self._through += self._through == self._taken and until > self._through + 1
        return real(self, state, until)

    with patched(ChangeFeed, "_read", read):
        yield

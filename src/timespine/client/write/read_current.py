"""Read the rows that a change depends on, compute its delta, and keep the delta right while other writers commit.

A change reads its rows once, as of one time, and computes a delta to them. If other
writers commit before the delta does, it is not computed again. Instead the change judges
their commits:

    rows(new state, new time) == rows(old state, old time) + news

where `news` are the net changes of the rows that the change looks at: the updates from
the old upper on in the new state, less the unsealed ones that the change had counted
already. Without news only the time of the delta moves, which is metadata. With news the
change patches the delta, from them and from the rows that it has read (`Grain`). The
patch is one more run of the same commit. Rows are not read again.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pyarrow as pa

from timespine.client.inner_handles import CollectionHandle
from timespine.client.read.acquire import lease_newest, require_plan
from timespine.client.read.arranged_rows import arranged_rows
from timespine.client.read.leases import LeasedState
from timespine.client.read.rows import Rows
from timespine.client.write.prepare import next_free_time, upper_after
from timespine.client.write.stage_rows import Runs, count_appended, delete_unused, make_runs
from timespine.columnar.kernels.consolidate import consolidate
from timespine.columnar.predicate.key_set import KeySet
from timespine.columnar.predicate.where import Predicate
from timespine.columnar.scan.scan_request import ScanRequest
from timespine.columnar.scan.visibility import Window
from timespine.columnar.schema.schema import DIFF, Schema
from timespine.core.batch import HollowBatch
from timespine.core.read_plan import Plan, plan_ahead, plan_runs, plan_snapshot, plan_unsealed
from timespine.core.state import State
from timespine.core.transitions import CompareAndAppend
from timespine.core.transitions.trace_push import rewrite_batch
from timespine.errors import DiffOverflow, LeaseExpired, UpperMismatch, UsageError
from timespine.model.description import Description
from timespine.model.frontier import Frontier
from timespine.model.time import INT64_MIN


class Stale(UpperMismatch):
    """The error that the rows of a change no longer determine its delta: it has to read again."""


@dataclass(frozen=True, slots=True)
class RowDelta:
    """The rows that a change retracts and inserts."""

    old: pa.Table
    """Rows to retract, with their counts in `_diff`."""
    new: pa.Table
    """Rows to insert, each once."""


class Grain(enum.Enum):
    """The rows that a patch of a delta is computed from."""

    NEWS = "news"
    """The news alone: the change retracts all rows that it looks at, so it retracts new ones too."""
    KEYS = "keys"
    """The rows of the keys in the news: the result for a row depends on the rows of its key alone."""
    ALL = "all"
    """All rows that the change looks at: the result for a row depends on all of them."""


@dataclass(frozen=True, slots=True)
class Look:
    """The rows that a change looks at, and the function that computes the delta from them."""

    difference: Callable[[pa.Table], RowDelta]
    """The function that computes the delta from all these rows, with their counts in `_diff`."""
    keys: KeySet | None = None
    """The keys of the rows; None: all keys."""
    where: Predicate | None = None
    """The condition that the rows satisfy; None: all rows."""
    grain: Grain = Grain.ALL
    """The rows that a patch of the delta is computed from."""


Compute = Callable[[Schema], Look]
"""A function that makes the look of a change under the newest schema."""


@dataclass(slots=True)
class CurrentRows:
    """The collection as a change sees it: as of one time in one state."""

    handle: CollectionHandle
    leased: LeasedState
    id: int
    """The id of the schema."""
    schema: Schema
    plan_rows: Callable[[], Plan | None]
    """The function that plans the first read, once: an arrangement may have the rows, and then no plan is needed."""
    state: State
    """The newest state that the delta is right for."""
    time: int
    """The time of the delta: not before the upper of the state."""

    @property
    def plan(self) -> Plan | None:
        """The plan of the first read; None if there is nothing to read."""
        return self.plan_rows()

    @property
    def upper(self) -> Frontier:
        """The upper of the state."""
        return self.state.upper

    def rows(self, keys: KeySet | None = None, where: Predicate | None = None) -> pa.Table:
        """Read the rows of some keys, or that satisfy a condition, with their counts in `_diff`."""
        self.handle.committer.session.count("changes read")
        if where is not None:
            where.check(self.schema)
        if keys is not None and where is None and self.handle.context.arrangements:
            served = self._from_arrangement(keys)
            if served is not None:
                return served
        plan = self.plan
        window = Window(until=plan.until if plan is not None else None)
        return self._read(plan, self.state, self._scan_request(window, keys, where))

    def _from_arrangement(self, keys: KeySet) -> pa.Table | None:
        """Read the rows of keys from an open arrangement; None if none has them as of the time of the plan.

        SUBTLE: exactly the upper of the state: the compare-and-set of the change guards that one
        (test_changes_use_rows_of_the_upper_that_they_replace).
        """
        last = self.upper.time - 1
        if last < 0 or _counts_unsealed(self.state, self.time):
            return None
        found = arranged_rows(self.handle, keys.table, last, self.id)
        return None if found is None else found.select([*self.schema.names, DIFF])

    def news(self, state: State, time: int, keys: KeySet | None = None, where: Predicate | None = None) -> pa.Table:
        """Read what a newer state, as of a time, adds to such rows: net, with their counts in `_diff`.

        The cost follows the commits since: it looks only at batches that may hold an update from the old upper on, and
        at those of their parts whose statistics allow for such rows.
        """
        before = self.state
        if (before.upper, before.unsealed_next, self.time) == (state.upper, state.unsealed_next, time):
            return self._none()
        first = before.upper.time
        # SUBTLE: by the times in the data, not by the batches: merges may have put old and new updates together
        # (test_read_current.py).
        window = Window(after=(first - 1,) if first else None, until=(time,))
        plan = plan_ahead(state, (time,), window.after)
        if not isinstance(plan, Plan):
            raise Stale(before.upper, state.upper)  # since has passed the old upper, and advanced times to after it
        found = self._read(plan, state, self._scan_request(window, keys, where))
        ahead = plan_unsealed(before, before.upper, Frontier.at(self.time + 1))
        if not ahead:
            return found
        # SUBTLE: the first read counted them when they were unsealed (test_read_current.py).
        counted = self._scan_request(Window(until=(self.time,)), keys, where)
        known = self._read(plan_runs(before, ahead), before, counted)
        net = consolidate(pa.concat_tables([found, negate_diffs(known)]), self.schema.order_names)
        return net.select(found.column_names)

    def later(self, state: State, at: int | None) -> int:
        """Return the time of the delta in a newer state: the present one, `at`, or the next free time."""
        if state.upper.is_closed:
            raise self.handle.closed()
        if at is not None:
            return max(at, self.time, state.upper.time)
        return self.time if state.upper.less_equal((self.time,)) else next_free_time(self.handle, state.upper)

    def _scan_request(self, window: Window, keys: KeySet | None, where: Predicate | None) -> ScanRequest:
        return ScanRequest(self.schema, self.schema.names, window, where=where, keys=keys)

    def _read(self, plan: Plan | None, state: State, wanted: ScanRequest) -> pa.Table:
        # SUBTLE: planned on a newer state, they would hold what `news` counts once more (test_read_current.py).
        rows = Rows(self.handle, self.leased, plan, wanted, "column", state=state, one_state=True)
        try:
            return rows.to_arrow().select([*self.schema.names, DIFF])
        except LeaseExpired as error:
            if self.leased.is_leased:
                raise
            raise Stale(self.upper, self.handle.known().upper) from error

    def _none(self) -> pa.Table:
        return self.schema.update_arrow.empty_table().select([*self.schema.names, DIFF])


def check_ordered_times(state: State) -> None:
    """Raise a UsageError if times have several coordinates: then no time is the newest to change rows at."""
    if state.arity != 1:
        raise UsageError("changing rows needs totally ordered times: append retractions yourself")


@contextlib.contextmanager
def read_current(handle: CollectionHandle, at: int | None, *, holds_since: bool) -> Iterator[CurrentRows]:
    """Read the newest state of a collection. The delta gets a free time, `at` or later.

    Unsealed updates that the change would seal count already. A state with blobs is leased, and so is any other one if
    the caller wants since to stay (`holds_since`).

    SUBTLE: a change that is prepared again wants that. Its first rows were in the state and needed no lease, so another
    process could expire the history that its news are read from, again and again (test_read_current.py).
    """
    with lease_newest(handle, holds_since=holds_since) as leased, contextlib.closing(leased):
        state = leased.state
        check_ordered_times(state)
        if state.upper.is_closed:
            raise handle.closed()
        upper = state.upper.time
        id, schema = handle.schema(state)
        time = next_free_time(handle, state.upper) if at is None else max(at, upper)

        @cache
        def plan_rows() -> Plan | None:
            if _counts_unsealed(state, time):
                return require_plan(plan_ahead(state, (time,)))
            return require_plan(plan_snapshot(state, (upper - 1,))) if upper > 0 else None

        yield CurrentRows(handle, leased, id, schema, plan_rows, state, time)


def _counts_unsealed(state: State, time: int) -> bool:
    """Return whether a change at a time would seal unsealed updates, so that they count already."""
    return any(state.unsealed.reaching(state.upper, (time,)))


@dataclass(slots=True)
class Patch:
    """Updates that a change adds to its delta because of news."""

    table: pa.Table
    """The updates, all at one time."""
    written: int
    """The time of the updates."""
    runs: Runs | None = None
    """The runs of the updates; None until they are durable."""
    batch: HollowBatch | None = None
    """The batch whose blobs are deleted after a refusal."""


@dataclass(slots=True)
class PendingDelta:
    """A delta that is not committed yet. It follows the commits of other writers."""

    now: CurrentRows
    operation: str
    written: int = 0
    """The time that the updates of the delta were written with."""
    rows: int = 0
    """The number of updates of the delta, without patches."""
    patches: list[Patch] = field(default_factory=list)
    _inline: bool = True
    """Whether patches may be inline: not after the state was full."""

    def news(self, state: State, time: int) -> pa.Table:
        """Read what a newer state, as of a time, adds to the rows that the change looks at."""
        raise NotImplementedError

    def patch(self, news: pa.Table) -> pa.Table:
        """Compute the patch of the delta for news."""
        raise NotImplementedError

    @property
    def is_quick(self) -> bool:
        """Whether the cost of a patch follows the size of the news."""
        raise NotImplementedError

    def follow(self, at: int | None = None, *, exactly: bool = False, quickly: bool = False) -> None:
        """Make the delta right for the newest known state, and for a free time.

        The time is `at`, or later unless `exactly`. Raise Stale if the change must read again, UpperMismatch if the
        time is too early, or if the patch is not quick and the caller wants it `quickly`.
        """
        now = self.now
        state = now.handle.known()
        if len(state.schemas) != now.id + 1:
            raise Stale(now.upper, state.upper)
        time = at if at is not None and exactly else now.later(state, at)
        if state is now.state and time == now.time:
            return  # nothing was committed since the delta was computed
        if time < now.time or not state.upper.less_equal((time,)):
            raise UpperMismatch(Frontier.at(time), state.upper)  # the time was chosen for another state
        news = self.news(state, time)
        if news.num_rows:
            if quickly and not self.is_quick:
                raise UpperMismatch(now.upper, state.upper)
            now.handle.committer.session.count("changes patched")
            # SUBTLE: news are read in any order, and runs are stored in order (test_read_current.py).
            patch = consolidate(self.patch(news), now.schema.order_names).select([*now.schema.names, DIFF])
            if patch.num_rows:
                self.patches.append(Patch(at_time(patch, now.schema, time), time))
        now.state, now.time = state, time

    def command(self, runs: Runs) -> CompareAndAppend:
        """Make the command that appends the delta, unless another commit came after the last `follow`."""
        now = self.now
        self._stage()
        placed = list(move_in_time(runs, self.written, now.time))
        for patch in self.patches:
            placed += move_in_time(patch.runs or (), patch.written, now.time)
        rows = (self.rows if runs else 0) + sum(patch.table.num_rows for patch in self.patches)
        upper, limit = now.upper, now.handle.config.inline_total_bytes
        new_upper = upper_after(now.time)
        batch = HollowBatch(Description(upper, new_upper, Frontier.minimum(1)), rows, tuple(placed))
        batches = (batch,) if placed else ()
        return CompareAndAppend(batches, upper, new_upper, self.operation, limit, now.state.unsealed_next)

    @property
    def stored_updates(self) -> int:
        """The number of stored updates, patches included."""
        return self.rows + sum(int(patch.table.num_rows) for patch in self.patches)

    def done(self) -> None:
        """Count the patches of a committed delta."""
        for patch in self.patches:
            count_appended(self.now.handle, patch.runs or (), patch.table.num_rows)

    def unstage(self) -> None:
        """Delete the blobs of patches after a refusal. Another try puts them again, as blobs."""
        self._inline = False
        for patch in self.patches:
            if patch.batch is not None:
                delete_unused(self.now.handle, patch.batch)
            patch.runs, patch.batch = None, None

    def _stage(self) -> None:
        """Make all patches durable."""
        now = self.now
        for patch in self.patches:
            if patch.runs is None:
                patch.runs, patch.batch = make_runs(now.handle, now.id, now.schema, patch.table, inline=self._inline)


@dataclass(slots=True)
class LocalDelta(PendingDelta):
    """A delta that this process computes."""

    look: Look | None = None
    seen: list[pa.Table] = field(default_factory=list)
    """The rows that it was computed from, and the news since; empty if patches do not need them."""
    deltas: list[pa.Table] = field(default_factory=list)
    """The first delta, and the patches."""

    @staticmethod
    def of(now: CurrentRows, compute: Compute, operation: str) -> LocalDelta:
        """Read the rows that a change looks at, and compute its delta."""
        look = compute(now.schema)
        seen = now.rows(look.keys, look.where)
        delta = delta_of(look.difference(seen), now.schema)
        kept = [] if look.grain is Grain.NEWS else [seen]
        return LocalDelta(now, operation, now.time, delta.num_rows, look=look, seen=kept, deltas=[delta])

    @property
    def table(self) -> pa.Table:
        """The first delta, as updates."""
        return at_time(self.deltas[0], self.now.schema, self.written)

    @property
    def is_quick(self) -> bool:
        return self.look is not None and self.look.grain is not Grain.ALL

    @property
    def net(self) -> int:
        """Count the updates of the delta after patches have cancelled some."""
        # SUBTLE: called after the commit. An error here would mean "not committed" to the caller, which would delete
        # committed blobs (test_read_current.py).
        try:
            return int(self._add_up(self.deltas).num_rows) if self.patches else self.rows
        except DiffOverflow:
            return self.stored_updates

    def news(self, state: State, time: int) -> pa.Table:
        assert self.look is not None
        return self.now.news(state, time, self.look.keys, self.look.where)

    def patch(self, news: pa.Table) -> pa.Table:
        assert self.look is not None
        patch = {Grain.NEWS: negate_diffs, Grain.KEYS: self._by_key, Grain.ALL: self._by_all}[self.look.grain](news)
        if self.seen:
            self.seen.append(news)
        self.deltas.append(patch)
        return patch

    def _by_key(self, news: pa.Table) -> pa.Table:
        """Compute the delta of the rows of the keys in some news, less their former delta."""
        schema = self.now.schema
        keys = KeySet(news.select(list(schema.key_names)))
        before = self._add_up([table.filter(keys.mask(table)) for table in self.seen])
        return self._add_up([self._delta(self._add_up([before, news])), negate_diffs(self._delta(before))])

    def _by_all(self, news: pa.Table) -> pa.Table:
        """Compute the delta of all rows, less their former delta."""
        self.seen = [self._add_up(self.seen)]
        return self._add_up([self._delta(self._add_up([*self.seen, news])), *map(negate_diffs, self.deltas)])

    def _delta(self, rows: pa.Table) -> pa.Table:
        assert self.look is not None
        return delta_of(self.look.difference(rows), self.now.schema)

    def _add_up(self, tables: list[pa.Table]) -> pa.Table:
        """Add up tables: each row once, with the sum of its counts."""
        schema = self.now.schema
        return consolidate(pa.concat_tables(tables), schema.order_names).select([*schema.names, DIFF])


def delta_of(difference: RowDelta, schema: Schema) -> pa.Table:
    """Retract old rows, insert new ones, and cancel those that are in both."""
    names = [*schema.names, DIFF]
    new = difference.new.select(list(schema.names))
    ones = pa.array(np.ones(new.num_rows, dtype=np.int64))
    new = new.append_column(schema.update_arrow.field(DIFF), ones)
    plain = pa.schema([schema.update_arrow.field(name) for name in names])
    old = negate_diffs(difference.old.select(names))
    return consolidate(pa.concat_tables([old.cast(plain), new.cast(plain)]), schema.order_names).select(names)


def negate_diffs(rows: pa.Table) -> pa.Table:
    """Negate the counts of rows."""
    counts = rows.column(DIFF).to_numpy() if rows.num_rows else np.empty(0, dtype=np.int64)
    if len(counts) and counts.min() == INT64_MIN:
        raise DiffOverflow("the count of a row is too negative to be retracted at once: append its opposite")
    place = rows.column_names.index(DIFF)
    return rows.set_column(place, rows.schema.field(place), pa.array(-counts, pa.int64()))


def at_time(delta: pa.Table, schema: Schema, time: int) -> pa.Table:
    """Set one time for the rows of a delta."""
    (name,) = schema.time_names
    times = pa.array(np.full(delta.num_rows, time, dtype=np.int64))
    return delta.add_column(len(schema.names), schema.update_arrow.field(name), times)


def move_in_time(runs: Runs, written: int, at: int) -> Runs:
    """Move runs whose rows all have one time to a later one: changes metadata only."""
    if written == at:
        return runs
    return tuple(rewrite_batch(run, Frontier.at(at)) for run in runs)

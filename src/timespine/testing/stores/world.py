"""The shared world of all stores of a history: storage, and the truth about every commit.

The truth comes from the log, at the moment of each compare-and-set, and not from the
answers of stores. A commit adds to a collection the difference between the rows of its
states before and after it, counted from the bytes of their parts. So a commit of
maintenance must add nothing, and the rows that a user's call added are known, whatever
its answer. The checks compare all answers of stores with that.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache

import pyarrow as pa
import pyarrow.parquet as pq

from timespine.client.catalog import catalog
from timespine.client.catalog.catalog_log import LOG
from timespine.client.maintenance.sweep_claim import SWEEPS
from timespine.columnar.parts.inline_part import decode_inline
from timespine.columnar.schema.schema import DIFF, Schema
from timespine.config import DEFAULT
from timespine.core.batch import Part
from timespine.core.effects import CompareAndSet, DeleteBlobs, PutBlob
from timespine.core.encoding.codec import decode_diff, decode_run, decode_state
from timespine.core.encoding.envelope import EnvelopeKind, envelope_kind
from timespine.core.encoding.state_diff import StateDiff, apply_diff
from timespine.core.invariants import violations
from timespine.core.protocols.garbage import references
from timespine.core.read_plan import apply_parent_bounds, plan_all
from timespine.core.state import State, Status
from timespine.errors import TimespineError
from timespine.location.consensus import EPOCH
from timespine.testing.simulator.world import World
from timespine.testing.stores.user_calls import mark_rows

Written = tuple[tuple[int, object], ...]
"""A row as it is stored: the values of its columns, by the id of the column."""

Counts = dict[Written, int]
"""The count of each row."""


@dataclass(frozen=True, slots=True)
class Added:
    """The updates that one commit added to a collection."""

    event: int
    """The number of the compare-and-set. Entries of several logs that appeared together have the same."""
    seqno: int
    updates: tuple[tuple[Written, int, int], ...]
    """The updates (row, time, diff), with equal rows and times summed."""


@dataclass(slots=True)
class Truth:
    """One collection: every state that it had, and every update that it ever got."""

    events: list[int] = field(default_factory=list)
    """By sequence number: the compare-and-set that led to a state."""
    added: list[Added] = field(default_factory=list)
    """The commits with updates."""
    held: dict[tuple[Written, int], int] = field(default_factory=dict)
    """The updates of the newest state: (row, time advanced to since), and the count of each."""

    def at(self, time: int, schema: Schema) -> Counts:
        """Return the rows as of a time, in the columns of a schema."""
        counts: Counts = {}
        project = projection(schema)
        for commit in self.added:
            for row, when, diff in commit.updates:
                if when <= time:
                    seen = project(row)
                    counts[seen] = counts.get(seen, 0) + diff
        return {row: count for row, count in counts.items() if count}


def projection(schema: Schema) -> Callable[[Written], Written]:
    """Return the function that gives a row in the columns of a schema.

    The row is then without others, and has the default where it has no value.
    """
    fields = schema.fields
    ids = [each.id for each in fields]

    def project(row: Written) -> Written:
        if [id for id, _ in row] == ids:
            return row
        values = dict(row)
        return tuple(
            (each.id, values[each.id] if each.id in values else default_of(each.type, each)) for each in fields
        )

    return project


def default_of(type: str, field: object) -> object:
    """Return the value of a column in rows that were written before it existed."""
    return field.default_scalar().as_py()  # type: ignore[attr-defined]


class StoreWorld(World):
    """Logs and blobs of a history of stores, and the truth about each collection."""

    def __init__(self) -> None:
        super().__init__()
        self.event = 0
        """The number of the last compare-and-set that was accepted."""
        self.truths: dict[str, Truth] = {}
        """The truth by the id of the collection."""
        self.names: list[tuple[int, catalog.Names]] = []
        """Every catalog, and the compare-and-set that it came with."""
        self.by_call: dict[str, list[tuple[str, Added]]] = {}
        """By the call that wrote rows: the commits that added them."""
        self.on_commit: Callable[[], None] = lambda: None
        """Called after every compare-and-set that was accepted."""
        self._ids: set[str] = set()
        """Every id that the catalog ever named."""
        self._reachable: dict[str, tuple[int, set[str]]] = {}
        self.perform[CompareAndSet] = self._compare_and_set
        self.perform[DeleteBlobs] = self._delete

    def _compare_and_set(self, effect: CompareAndSet) -> dict[str, int | None] | None:
        heads = {key: len(self.logs[key]) - 1 if key in self.logs else None for key, _, _ in effect.writes}
        wrong = {key: heads[key] for key, expected, _ in effect.writes if heads[key] != expected}
        if wrong:
            return wrong
        self.event += 1
        for key, _, data in effect.writes:
            self.counts["commits"] += 1
            try:
                if key == LOG:
                    self._learn_names(catalog.decode_catalog(len(self.logs.get(key, ())), data))
                elif key not in (SWEEPS, EPOCH):
                    self._commit(key, data)
            except TimespineError as error:
                self.violate(f"{key}: an entry does not replay: {error!r}", error)
            self.logs.setdefault(key, []).append(data)
        self.on_commit()
        return None

    def _learn_names(self, names: catalog.Names) -> None:
        """Record a catalog, and check that it reserves no id that an earlier one named."""
        before = self.names[-1][1].reserved if self.names else {}
        again = (names.reserved.keys() - before.keys()) & self._ids
        if again:
            self.violate(f"{min(again)} is announced, and was in the catalog before")
        self._ids.update(names.reserved, names.cancelled, names.dropped, (each.id for each in names.entries.values()))
        self.names.append((self.event, names))

    def _put(self, effect: PutBlob) -> None:
        """Put a blob, and check that the catalog knows, or knew, its collection."""
        id = effect.key.split("/")[0]
        if id not in self._ids:
            self.violate(f"{effect.key} is put, and the catalog never named {id}")
        super()._put(effect)

    def _commit(self, key: str, data: bytes) -> None:
        truth = self.truths.setdefault(key, Truth())
        old = self.states[key][-1] if key in self.states else None
        if envelope_kind(data) is EnvelopeKind.STATE:
            new = decode_state(data)
            if old is not None:
                self.violate(f"{key} was created twice")
        elif old is None:
            self.violate(f"{key} has a diff and no state")
            return
        else:
            change = decode_diff(data)
            new = apply_diff(old, change)
            for broken in violations(old, new):
                self.violate(f"{key} at {new.seqno}: {broken}", check=broken.partition(":")[0])
            self._check_references(key, change)
        self.states.setdefault(key, []).append(new)
        truth.events.append(self.event)
        if old is None or old.trace is not new.trace or old.unsealed != new.unsealed or old.since != new.since:
            self._learn_rows(key, truth, old, new)

    def _check_references(self, key: str, change: StateDiff) -> None:
        """Check that every new reference of a state leads to a blob that exists."""
        parts = [part for batch in change.y for part in batch.parts]
        parts += [part for batch in (change.t.a.values() if change.t else ()) for part in batch.parts]
        for part in parts:
            if part.key and not self._exists(part):
                self.violate(f"{key} at {change.n} refers to {part.key}, which does not exist")
        for rollup in change.rollups.values():
            if rollup is not None and rollup.key not in self.blobs:
                self.violate(f"{key} at {change.n} refers to rollup {rollup.key}, which does not exist")

    # The truth.

    def _learn_rows(self, key: str, truth: Truth, old: State | None, new: State) -> None:
        """Record the updates that a commit added, and check that it changed nothing else."""
        if new.status is Status.FINALIZED or new.since.is_closed or self.violations:
            return
        schema = decode_stored_schema(new.schemas[-1])
        since = new.since.time
        project = projection(schema)
        before: dict[tuple[Written, int], int] = {}
        for (row, time), diff in truth.held.items():
            seen = (project(row), max(time, since))
            before[seen] = before.get(seen, 0) + diff
        truth.held = self._held(new, schema, since)
        added = {
            seen: diff for seen in {**before, **truth.held} if (diff := truth.held.get(seen, 0) - before.get(seen, 0))
        }
        if not added:
            return
        is_users = old is None or (old.upper, old.unsealed_next) != (new.upper, new.unsealed_next)
        if not is_users:
            self.violate(f"{key} at {new.seqno}: maintenance changed rows: {short(added)}")
            return
        upper = old.upper.time if old is not None and old.upper.elements else 0
        late = {seen: diff for seen, diff in added.items() if seen[1] < upper}
        if late:
            self.violate(f"{key} at {new.seqno}: rows were added below the upper {upper}: {short(late)}")
        commit = Added(self.event, new.seqno, tuple((row, time, diff) for (row, time), diff in added.items()))
        truth.added.append(commit)
        for name in sorted({mark_rows(value) for row, _, diff in commit.updates if diff > 0 for _, value in row}):
            self.by_call.setdefault(name, []).append((key, commit))

    def _held(self, state: State, schema: Schema, since: int) -> dict[tuple[Written, int], int]:
        """Return the updates of a state, counted from the bytes of its parts."""
        held: dict[tuple[Written, int], int] = {}
        project = projection(schema)
        for run in plan_all(state).runs:
            written = state.schemas[run.schema if run.schema is not None else -1]
            for part in run.parts:
                for row, time, diff in self._seen(part, written):
                    seen = (project(row), max(time, since))
                    held[seen] = held.get(seen, 0) + diff
        return {seen: diff for seen, diff in held.items() if diff}

    def _seen(self, part: Part, schema: bytes) -> Iterable[tuple[Written, int, int]]:
        """Return the updates that a reference to a part shows, at the times at which it shows them."""
        data = part.inline if part.inline is not None else self.blobs.get(part.key)
        if data is None:
            return  # the missing blob was reported before
        if part.hollow:
            for child in decode_run(part.key, data):
                yield from self._seen(apply_parent_bounds(part, child), schema)
            return
        for row, time, diff in stored_bytes_of(data, part.rows, schema, part.inline is not None):
            if part.lower is not None and not part.lower.less_equal((time,)):
                continue
            if part.upper is not None and part.upper.less_equal((time,)):
                continue
            if part.rewrite is not None and part.rewrite.elements:
                time = max(time, part.rewrite.time)
            yield row, time, diff

    def values(self, collection: str) -> set[object]:
        """Return every value in the bytes of the parts that the newest state refers to, seen by readers or not."""
        state = self.states[collection][-1]
        waiting = [
            (part, state.schemas[run.schema if run.schema is not None else -1])
            for run in plan_all(state).runs
            for part in run.parts
        ]
        found: set[object] = set()
        while waiting:
            part, schema = waiting.pop()
            data = part.inline if part.inline is not None else self.blobs[part.key]
            if part.hollow:
                waiting += [(child, schema) for child in decode_run(part.key, data)]
            else:
                updates = stored_bytes_of(data, part.rows, schema, part.inline is not None)
                found.update(value for row, _, _ in updates for _, value in row)
        return found

    def states_between(self, collection: str, begin: int, end: int) -> list[State]:
        """Return every state that a collection had at some moment between two compare-and-sets."""
        events, states = self.truths[collection].events, self.states[collection]
        first = max(bisect_right(events, begin) - 1, 0)
        return states[first : bisect_right(events, end)]

    # Deleting.

    def reachable(self, collection: str) -> set[str]:
        """Return every blob that a state refers to which a reader may still read."""
        states = self.states.get(collection, [])
        known = self._reachable.get(collection)
        if known is None or known[0] != len(states):
            known = self._reachable[collection] = (len(states), super().reachable(collection))
        return known[1]

    def referred_by_log(self, collection: str) -> set[str]:
        """Return the blobs that states from the oldest one in the log on refer to."""
        live = set(self.reachable(collection))
        for state in self.states[collection][max(self.first.get(collection, 0) - 1, 0) :]:
            live |= self.with_children(references(state))
        return live


def short(counts: dict[tuple[Written, int], int]) -> str:
    """Format some updates, for people."""
    return ", ".join(
        f"{[value for _, value in row]} at {time}: {diff:+}" for (row, time), diff in list(counts.items())[:4]
    )


@lru_cache(maxsize=256)
def decode_stored_schema(data: bytes) -> Schema:
    """Decode a schema, once."""
    return Schema.decode(data)


@lru_cache(maxsize=4096)
def stored_bytes_of(data: bytes, rows: int, schema: bytes, is_inline: bool) -> tuple[tuple[Written, int, int], ...]:
    """Decode the updates of a part as any Parquet reader does; inline data as the columnar layer does."""
    written = decode_stored_schema(schema)
    if is_inline:
        table = decode_inline(data, written, rows, DEFAULT)
    else:
        table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
    columns = [[(each.id, value) for value in table[each.name].to_pylist()] for each in written.fields]
    times = table[written.time_names[0]].to_pylist()
    return tuple(zip(zip(*columns, strict=True), times, table[DIFF].to_pylist(), strict=True))

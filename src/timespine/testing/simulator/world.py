"""The simulated world: storage that fails on purpose, and keeps everything that was ever written.

The world replays every compare-and-set into shadow states and checks it before it
counts: diffs must apply, invariants must hold, and the blobs of a new state must
exist. It checks every deletion against all states that a reader may still
read. A violation is recorded, with the step, and ends the history.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable

from timespine.core.batch import Part
from timespine.core.effects import (
    CompareAndSet,
    DeleteBlobs,
    Effect,
    GetBlob,
    ListBlobs,
    PutBlob,
    Scan,
    Truncate,
)
from timespine.core.encoding.codec import decode_diff, decode_run, decode_state
from timespine.core.encoding.envelope import EnvelopeKind, envelope_kind
from timespine.core.encoding.state_diff import StateDiff, apply_diff
from timespine.core.invariants import violations
from timespine.core.protocols.garbage import References, references
from timespine.core.state import State
from timespine.core.unsealed_index import UnsealedBatch
from timespine.errors import TimespineError
from timespine.model.description import Description
from timespine.model.frontier import Frontier
from timespine.model.oracle import OracleRow, Update, restrict
from timespine.testing.formats.naive import OPAQUE, RowFormat
from timespine.testing.simulator.check_atomicity import AtomicityCheck
from timespine.testing.simulator.check_kept import KeptStates
from timespine.testing.simulator.violation import BrokenPromise, Violation, is_crash, name_of_check


def is_user_data(key: str) -> bool:
    """Tell whether a blob holds appended or written updates, not a merge result, a rewrite or a rollup."""
    _, writer, name = key.split("/")
    return writer.startswith("w") and name.startswith("p")


def operation_of(row: OracleRow) -> str:
    """Return the operation that wrote a row: its name up to the first dot."""
    return str(row).split(".")[0]


def identity_of(part: Part) -> str | bytes:
    """Return what tells a part from all others: its key, or the inline updates, which name their operation."""
    return part.inline if part.inline is not None else part.key


class World:
    """Logs, blobs, and the truth about both."""

    def __init__(self, format: RowFormat = OPAQUE) -> None:
        self.format = format
        """The format of the bytes of parts."""
        self.step = 0
        self.logs: dict[str, list[bytes]] = {}
        """Every entry ever, by key."""
        self.first: dict[str, int] = {}
        """The first live entry, by key: truncation only hides."""
        self.blobs: dict[str, bytes] = {}
        self.states: dict[str, list[State]] = {}
        """The state after every entry, by key."""
        self.commit_steps: dict[str, list[int]] = {}
        """The step of every commit, by key."""
        self.truth: dict[str, list[Update]] = {}
        """Every update that was ever committed, by collection."""
        self.truth_sizes: dict[str, list[int]] = {}
        """The number of those updates after every entry, by collection."""
        self.committed: dict[str, int] = {}
        """The step at which the updates of an operation first became durable, by operation."""
        self.next_free: dict[str, int] = {}
        """The time that an operation requested which appends at that or the next free one, by operation."""
        self.meant: dict[str, list[Update]] = {}
        """The updates that an operation means to append, if the bytes alone do not tell: rewritten, or seen through
        bounds."""
        self.seen: set[str | bytes] = set()
        """Blob keys and inline data that were referred to before."""
        self.referred: set[str] = set()
        """Every blob that a state ever referred to, inside hollow runs included."""
        self.recreated: set[str] = set()
        """Blobs that a late put brought back after they were deleted."""
        self.deleted: set[str] = set()
        self.kept = KeptStates(self)
        """The states that must stay restorable."""
        self.violations: list[Violation] = []
        self.counts: Counter[str] = Counter()
        self.atomic = AtomicityCheck(self.states, self.truth, self.violate)
        self.perform: dict[type[Effect], Callable[..., object]] = {
            Scan: self._scan,
            CompareAndSet: self._compare_and_set,
            Truncate: self._truncate,
            PutBlob: self._put,
            GetBlob: self._get,
            DeleteBlobs: self._delete,
            ListBlobs: self._list,
        }

    def violate(self, what: str, error: BaseException | None = None, check: str | None = None) -> None:
        """Record a broken promise, with the error that showed it; the check is the caller unless named."""
        if isinstance(error, BrokenPromise):
            check = error.check
        noticed_by = check or name_of_check(sys._getframe(1))
        self.violations.append(Violation(f"step {self.step}: {what}", noticed_by, is_crash(error)))

    def reopen(self) -> None:
        """Open anew what is kept open beside storage: a process crashed."""

    def keep_for(self, keep_ms: int, clock: Callable[[], int]) -> None:
        """Check from now on that states of the last `keep_ms` stay restorable."""
        self.kept = KeptStates(self, keep_ms, clock)

    def head(self, collection: str) -> State:
        """Return the newest state."""
        return self.states[collection][-1]

    def _scan(self, effect: Scan) -> list[tuple[int, bytes]]:
        log = self.logs.get(effect.key, [])
        start = max(effect.from_seqno, self.first.get(effect.key, 0))
        stop = None if effect.limit is None else start + effect.limit
        return list(enumerate(log[start:stop], start))

    def _compare_and_set(self, effect: CompareAndSet) -> dict[str, int | None] | None:
        heads = {key: len(self.logs[key]) - 1 if key in self.logs else None for key, _, _ in effect.writes}
        wrong = {key: heads[key] for key, expected, _ in effect.writes if heads[key] != expected}
        if wrong:
            return wrong
        for key, _, data in effect.writes:
            self._commit(key, data)
        self.atomic.committed(key for key, _, _ in effect.writes)
        return None

    def _commit(self, key: str, data: bytes) -> None:
        """Append an entry, after replaying it into the shadow states and checking everything."""
        self.counts["commits"] += 1
        log = self.logs.setdefault(key, [])
        try:
            if envelope_kind(data) is EnvelopeKind.STATE:
                state = decode_state(data)
                self.states[key] = [state]
                self.truth[key] = []
                self.commit_steps[key] = [self.step]
            else:
                change = decode_diff(data)
                old = self.states[key][-1]
                state = apply_diff(old, change)
                for broken in violations(old, state):
                    self.violate(f"{key} at {state.seqno}: {broken}", check=broken.partition(":")[0])
                self._learn(key, change, old, state)
                self.states[key].append(state)
                self.commit_steps[key].append(self.step)
            self.truth_sizes.setdefault(key, []).append(len(self.truth[key]))
        except TimespineError as error:
            self.violate(f"{key}: an entry does not replay: {error!r}", error)
            return
        log.append(data)
        self.kept.committed(key)

    def _learn(self, key: str, change: StateDiff, old: State, new: State) -> None:
        """Record which operations' updates a diff makes durable, and check that the blobs it refers to exist.

        The durable updates of an append follow from the bytes that were put, from the request and from
        the new upper, not from the bounds or the rewriting that the system itself gave the part.
        """
        appended = Description(old.upper, new.upper, new.since)
        for unsealed in change.y:
            for part in unsealed.parts:
                # A trimmed batch is there already, under its number.
                self._check_once(new, part, (each for each in old.unsealed if each.seqno == unsealed.seqno))
                self._judge_schema(old, part, unsealed.schema)
                self._see(new, part, unsealed.schema, None)
        for batch in change.t.a.values() if change.t else ():
            # Updates below the trace's upper were there before: this is a merge.
            is_merged = batch.desc.upper <= old.trace.upper
            for run in batch.runs:
                for part in run.parts:
                    if not is_merged:
                        self._check_once(new, part, old.unsealed)
                    self._judge_schema(old, part, run.schema, is_merged)
                    self._see(new, part, run.schema, appended, is_merged)
        for rollup in change.rollups.values():
            if rollup is not None and rollup.key not in self.blobs:
                self.violate(f"{key} at {change.n} refers to rollup {rollup.key}, which does not exist")

    def _check_once(self, state: State, part: Part, before: Iterable[UnsealedBatch]) -> None:
        """Check that one commit appends or writes a user's part, unless it was in one of these batches before."""
        if identity_of(part) not in self.seen or (part.inline is None and not is_user_data(part.key)):
            return
        if not any(identity_of(each) == identity_of(part) for batch in before for each in batch.parts):
            self.violate(f"{state.collection} at {state.seqno} commits {part.key or 'inline updates'} a second time")

    def _judge_schema(self, old: State, part: Part, schema: int | None, is_merged: bool = False) -> None:
        """Check that added rows lose nothing under the schema that was the newest one before the commit."""
        if schema is None or not self._is_new_from_user(part, is_merged):
            return
        if self.format.loses(old, schema):
            newest = len(old.schemas) - 1
            self.violate(f"{old.collection} took new rows of schema {schema}, of which schema {newest} loses some")

    def _is_new_from_user(self, part: Part, is_merged: bool) -> bool:
        """Tell whether a user put a part, and no state referred to it before."""
        identity = identity_of(part)
        is_users = not is_merged if part.inline is not None else is_user_data(part.key)
        return identity not in self.seen and is_users

    def _see(
        self, state: State, part: Part, schema: int | None, appended: Description | None, is_merged: bool = False
    ) -> None:
        """Record a new reference to a part: if a user put it, its updates are part of the truth from now on."""
        if part.key and not self._exists(part):
            self.violate(f"{state.collection} at {state.seqno} refers to {part.key}, which does not exist")
        elif self._is_new_from_user(part, is_merged):
            updates = self._updates(part, None if schema is None else state.schemas[schema])
            self._add_truth(state.collection, updates if appended is None else self._appended(updates, appended))
        self.seen.add(identity_of(part))

    def _updates(self, part: Part, schema: bytes | None) -> list[Update]:
        """Decode the updates in a part; for a hollow run those of all its parts."""
        data = self.blobs[part.key] if part.inline is None else part.inline
        if part.hollow:
            return [update for child in decode_run(part.key, data) for update in self._updates(child, schema)]
        return list(self.format.rows_of(part, data, schema))

    def _appended(self, updates: list[Update], appended: Description) -> list[Update]:
        """Return the updates of one operation that an append makes durable, at their times.

        Those in its interval; at the next free time all of them, at the last time that it completes.
        """
        for name in sorted({operation_of(row) for row, _, diff in updates if diff > 0}):
            if name in self.next_free:
                (before,), (after,) = appended.lower.elements[0], appended.upper.elements[0]
                if after - 1 != max(self.next_free[name], before):
                    self.violate(f"{name} asked for {self.next_free[name]} at upper {before}, the next is {after}")
                return [(row, (after - 1,), diff) for row, _, diff in updates]
            updates = self.meant.get(name, updates)
        return restrict(updates, appended)

    def _add_truth(self, key: str, updates: list[Update]) -> None:
        self.truth[key].extend(updates)
        for row, _, diff in updates:
            if diff > 0:
                name = operation_of(row)
                self.committed.setdefault(name, self.step)
                self.atomic.fresh.add(name)

    def _exists(self, part: Part) -> bool:
        data = self.blobs.get(part.key)
        if data is None:
            return False
        self.referred.add(part.key)
        return not part.hollow or all(self._exists(child) for child in decode_run(part.key, data))

    def _truncate(self, effect: Truncate) -> int:
        log = self.logs.get(effect.key, [])
        first = self.first.get(effect.key, 0)
        below = min(effect.below, len(log) - 1)
        if below > first:
            self.first[effect.key] = below
            self.kept.check_log(effect.key)
        return max(below - first, 0)

    def _put(self, effect: PutBlob) -> None:
        if effect.key in self.deleted:
            self.recreated.add(effect.key)
        known = self.blobs.setdefault(effect.key, effect.value)
        if known != effect.value:
            self.violate(f"blob {effect.key} was put twice with different bytes")

    def _get(self, effect: GetBlob) -> bytes | None:
        return self.blobs.get(effect.key)

    def _list(self, effect: ListBlobs) -> list[str]:
        return sorted(key for key in self.blobs if key.startswith(effect.prefix))

    def _delete(self, effect: DeleteBlobs) -> None:
        for collection in {key.split("/")[0] for key in effect.keys}:
            reachable = self.reachable(collection)
            for key in effect.keys:
                if key in reachable:
                    self.violate(f"blob {key} was deleted, but a live state refers to it")
            self.kept.check_blobs(collection, effect.keys)
        for key in effect.keys:
            self.blobs.pop(key, None)
            self.deleted.add(key)
        for collection in {key.split("/")[0] for key in effect.keys}:
            self.kept.check_log(collection)

    def reachable(self, collection: str) -> set[str]:
        """Return every blob that a state refers to which a reader may still read."""
        states = self.states.get(collection, [])
        if not states:
            return set()
        keys: References = {}
        # Counted here once more, to find a mistake in the state's own count.
        held = min((reader.seqno for reader in states[-1].readers.values()), default=states[-1].seqno)
        for state in states[held:]:
            keys.update(references(state))
        if self.kept.is_on:
            # Rollups are thinned out while readers hold older states: only the newest state's are ever used.
            listed = {rollup.key for rollup in states[-1].rollups.values()}
            gone = {rollup.key for state in states[held:] for rollup in state.rollups.values()} - listed
            keys = {key: hollow for key, hollow in keys.items() if key not in gone}
        return self.with_children(keys)

    def with_children(self, keys: References) -> set[str]:
        """Return the blobs, and those inside hollow runs among them, at any depth."""
        found = set(keys)
        waiting = [key for key, hollow in keys.items() if hollow]
        while waiting:
            key = waiting.pop()
            children = decode_run(key, self.blobs[key]) if key in self.blobs else ()
            waiting.extend(part.key for part in children if part.hollow and part.key not in found)
            found.update(part.key for part in children)
        return found

    def uppers_between(self, collection: str, begin: int, end: int) -> list[Frontier]:
        """Return every upper that the collection had at some moment between two steps."""
        return [state.upper for state in self.states_between(collection, begin, end)]

    def states_between(self, collection: str, begin: int, end: int) -> list[State]:
        """Return every state that the collection had at some moment between two steps."""
        steps, states = self.commit_steps[collection], self.states[collection]
        found = []
        for index, state in enumerate(states):
            until = steps[index + 1] if index + 1 < len(steps) else self.step
            if steps[index] <= end and until >= begin:
                found.append(state)
        return found

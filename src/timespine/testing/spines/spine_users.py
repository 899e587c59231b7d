"""Users of simulated spines: they insert, read, step with cursors, filter, pause, merge all, save, fork and close."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from timespine.core.arrangement import level_transitions
from timespine.core.arrangement.levels import SpineLevels
from timespine.core.effects import Protocol, Sleep, Swap
from timespine.core.protocols import merge_spine, save_spine
from timespine.errors import NoSpace, StoreClosed, TimespineError, Unavailable, UsageError
from timespine.model.frontier import Frontier
from timespine.model.oracle import OracleRow, accumulate
from timespine.model.time import Time
from timespine.testing.spines.naive_batches import NaiveBatch
from timespine.testing.spines.spine_checks import counts_in, from_floor
from timespine.testing.spines.spine_run import SimulatedSpine

if TYPE_CHECKING:
    from timespine.testing.spines.history import SpineHistory

CALLS = {
    "insert": 16,
    "try_insert": 3,
    "read": 4,
    "cursor": 2,
    "retain": 0.5,
    "pause": 1,
    "compact": 1,
    "save": 2,
    "fork": 1,
    "close": 0.3,
    "since": 1,
}
"""The calls of users, by how often they make them."""

SPINES_MAX = 3
"""Spines of a history at the same time, with forks."""

ROWS = 40
"""Different rows: few, so that some cancel each other out."""


class SpineUser:
    """A user that makes one call after the other."""

    def __init__(self, history: SpineHistory, name: str) -> None:
        self.history = history
        self.name = name
        self.is_idle = True

    def begin(self) -> None:
        """Begin a call on some spine."""
        history = self.history
        spine = history.random.choice(history.spines)
        kind = history.random.choices(list(CALLS), list(CALLS.values()))[0]
        self.is_idle = False
        history.counts[kind] += 1
        if history.tracing:
            history.trace.append(f"{history.step:5} {history.now:7} ms  {self.name:16} begins {kind} on {spine.name}")
        protocol: Protocol[Any] = getattr(self, f"_{kind}")(spine)
        history.start(f"{self.name} {kind}", spine, protocol, partial(self._ended, spine, kind))

    def _ended(self, spine: SimulatedSpine, kind: str, result: object, error: BaseException | None) -> None:
        """Check that a call that failed had a reason to."""
        self.is_idle = True
        if error is None:
            return
        has_reason = isinstance(error, (Unavailable, NoSpace)) and "injected" in str(error)
        has_reason |= isinstance(error, NoSpace) and kind == "compact" and self.history.folder.is_full
        if not has_reason and not (isinstance(error, StoreClosed) and spine.levels.is_closing):
            self.history.violate(f"{self.name} {kind} on {spine.name}: {error!r}", error)

    def _batch(self, spine: SimulatedSpine) -> tuple[NaiveBatch, Frontier]:
        """Return a batch at the next time, and the upper after it."""
        chance = self.history.random
        spine.time += 1
        rows = chance.choice((0, 1, 1, 2, 2, 3, 3, 6, 12, 30))
        updates = [(chance.randrange(ROWS), (spine.time,), chance.choice((1, 1, -1))) for _ in range(rows)]
        return self.history.batches.fresh(self.history.fresh(), updates), Frontier.at(spine.time + 1)

    def _insert(self, spine: SimulatedSpine) -> Protocol[None]:
        batch, upper = self._batch(spine)
        try:
            yield from merge_spine.insert(batch, upper)
        except TimespineError:
            self._check_taken(spine, batch, False)
            raise
        self._check_taken(spine, batch, True)

    def _try_insert(self, spine: SimulatedSpine) -> Protocol[None]:
        batch, upper = self._batch(spine)
        try:
            is_in = yield from merge_spine.try_insert(batch, upper)
        except TimespineError:
            is_in = False
        self._check_taken(spine, batch, is_in)

    def _check_taken(self, spine: SimulatedSpine, batch: NaiveBatch, is_in: bool) -> None:
        """Check that a batch is in the spine exactly if its inserter was told so."""
        if batch.rows and (batch.id in spine.accepted) != is_in:
            self.history.violate(
                f"batch {batch.id} is {'not ' * is_in}in {spine.name}, and its inserter was told otherwise"
            )

    def _read(self, spine: SimulatedSpine) -> Protocol[None]:
        """Take a view, and look at it again when much has happened."""
        levels: SpineLevels[NaiveBatch] = yield Swap(level_transitions.look)
        as_of, floor, expected = self._view(spine, levels)
        for _ in range(self.history.random.choice((1, 3))):
            spine.checks.check_view(counts_in(levels.batches, as_of, floor), as_of, expected)
            yield Sleep(self.history.random.choice((1, 30, 1_000)))

    def _view(self, spine: SimulatedSpine, levels: SpineLevels[NaiveBatch]) -> tuple[Time, int, dict[OracleRow, int]]:
        """Choose a time; return it, the row from which on views are compared, and what they must show."""
        since = 0 if levels.since is None else levels.since.time
        as_of = (self.history.random.randint(since, max(spine.time, since)),)
        floor = spine.checks.floor
        return as_of, floor, accumulate(from_floor(spine.checks.truth, floor), as_of)

    def _cursor(self, spine: SimulatedSpine) -> Protocol[None]:
        """Step through all rows in order, while much happens between two steps."""
        levels: SpineLevels[NaiveBatch] = yield Swap(level_transitions.look)
        as_of, floor, expected = self._view(spine, levels)
        forwards = self.history.chance() < 0.5
        found: list[tuple[int, int]] = []
        for row, count in self.history.batches.steps(levels.batches, as_of, forwards=forwards):
            found.append((row, count))
            if self.history.chance() < 0.2:
                yield Sleep(self.history.random.choice((1, 30)))
        rows = [row for row, _ in found]
        if rows != sorted(set(rows), reverse=not forwards):
            self.history.violate(f"a cursor of {spine.name} gave rows out of order")
        spine.checks.check_view({row: count for row, count in found if row >= floor}, as_of, expected)

    def _retain(self, spine: SimulatedSpine) -> Protocol[None]:
        """Let merges that begin from now on drop the rows of small keys."""
        levels: SpineLevels[NaiveBatch] = yield Swap(level_transitions.look)
        if not levels.is_closing:
            spine.bound = max(spine.bound, 3 * self.history.random.randrange(ROWS // 6))
            spine.checks.raise_floor(spine.bound)

    def _pause(self, spine: SimulatedSpine) -> Protocol[None]:
        """Pause merging, insert perhaps, and resume."""
        waits = self.history.chance() < 0.7
        yield from merge_spine.pause(waits)
        spine.checks.quiet += waits
        yield Sleep(self.history.random.choice((0, 20, 200)))
        refused: TimespineError | None = None
        for _ in range(self.history.random.choice((0, 0, 2, 9))):
            try:
                yield from self._insert(spine)
            except TimespineError as error:
                refused = error
        spine.checks.quiet -= waits
        yield from merge_spine.resume()
        if refused is not None:
            raise refused

    def _compact(self, spine: SimulatedSpine) -> Protocol[None]:
        """Merge everything, unless another user has paused merging."""
        wanted = frozenset(origin for batch in spine.levels.batches for origin in batch.origins)
        try:
            yield from merge_spine.compact_spine(rewrites=self.history.chance() < 0.5)
        except UsageError:
            if not spine.levels.pauses:
                raise
            return
        spine.checks.check_compacted(spine.levels, wanted)

    def _save(self, spine: SimulatedSpine) -> Protocol[None]:
        if spine.folder is not None:
            yield from save_spine.save()
            if self.history.chance() < 0.3:
                yield Swap(level_transitions.clear_dirty)

    def _fork(self, spine: SimulatedSpine) -> Protocol[None]:
        """Fork a spine: the copy goes on by itself."""
        levels: SpineLevels[NaiveBatch] = yield Swap(level_transitions.look)
        if len(self.history.spines) < SPINES_MAX:
            copy = SimulatedSpine(self.history, f"fork{self.history.fresh()}", level_transitions.fork(levels), None)
            copy.checks.begin(spine.checks.truth, copy.levels, spine.checks.floor)
            copy.time = spine.time
            self.history.spines.append(copy)
            copy.wake_levels()

    def _close(self, spine: SimulatedSpine) -> Protocol[None]:
        """Close a fork, and forget it: the main spine is closed at the end of the history."""
        if spine is not self.history.spines[0]:
            yield from merge_spine.close()
            spine.checks.check_sum(spine.levels)
            if spine in self.history.spines:
                self.history.spines.remove(spine)

    def _since(self, spine: SimulatedSpine) -> Protocol[None]:
        """Let merges fold times up to some time."""
        since = Frontier.at(self.history.random.randint(0, spine.time))
        yield Swap(partial(level_transitions.advance_since, since=since))

"""A history of spines from its seed: users, levels, faults and crashes in turns, and what must be true at the end.

Each step carries out one effect of one task. At the end the faults stop, every user gets an answer, merging catches up,
and a last checkpoint leaves no file that nothing names.
"""

from __future__ import annotations

import random
import sys
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from timespine.core.arrangement.levels import LevelRules, MergeStatus, SpineLevels
from timespine.core.arrangement.memory_pressure import MemoryPressure
from timespine.core.effects import Effect, Protocol, Sleep, Swap, WaitUntil
from timespine.core.protocols import save_spine
from timespine.core.protocols.merge_spine import CRITICAL_WAIT_MS, close, delete_garbage
from timespine.testing.simulator.checker import HistoryResult
from timespine.testing.simulator.simulator import Faults
from timespine.testing.simulator.violation import Violation, is_crash, name_of_check
from timespine.testing.spines.folder import SimulatedFolder
from timespine.testing.spines.naive_batches import BatchKind
from timespine.testing.spines.real_batches import RealBatches, small_pieces
from timespine.testing.spines.spine_run import SimulatedSpine, SpineTask
from timespine.testing.spines.spine_users import SpineUser

FAULTS = Faults(fail=0.05, crash=0.0015, pause=0.01, clock=0.0, outage=0.004)
"""Chances per effect or step: an effect fails, the process dies, memory pressure changes, the disk is full a while."""

OUTAGE_MS = 20_000
"""How long the disk stays full."""

BOUNDS = (3, 8, 20, 50, 120, 300, 800, 2000)
RULES = (
    LevelRules(BOUNDS, (2,) * 9, 4, 11, 0, 4),
    LevelRules(BOUNDS, (3, 3, 2, 2, 2, 2, 2, 2, 2), 4, 12, 2, 4),
    LevelRules(BOUNDS, (3, 2, 2, 2, 2, 2, 2, 2, 2), 64, 16, 1, 6),
)
"""Small bounds, so that few rows make many levels, and few batches are too many."""

STEPS_MAX = 60_000
"""Steps of a history, at most: one that needs more makes no progress."""


class SpineHistory:
    """A process with spines, its folder, and the tasks that run in it."""

    def __init__(self, seed: int, operations: int, faults: Faults, tracing: bool, real: bool) -> None:
        self._ids = 0
        self.random = random.Random(seed)
        self.chance = self.random.random
        self.faults = faults
        self.left = operations
        """Calls that users still make."""
        self.tracing = tracing
        self.trace: list[str] = []
        self.counts: Counter[str] = Counter()
        self.violations: list[Violation] = []
        self.digest = 0
        self.step = self.now = 0
        self.pressure = MemoryPressure.LOW
        self.full_until = 0
        self.rules = self.random.choice(RULES)
        self.batches: BatchKind = RealBatches() if real else BatchKind()
        self.folder = SimulatedFolder(self.fresh)
        self.tasks: list[SpineTask] = []
        self.spines: list[SimulatedSpine] = []
        self.users: list[SpineUser] = []
        self._begin()

    def fresh(self) -> int:
        """Return a number that was never used before."""
        self._ids += 1
        return self._ids

    def violate(self, what: str, error: BaseException | None = None) -> None:
        """Record a broken promise; the check is the caller."""
        check = name_of_check(sys._getframe(1))
        self.violations.append(Violation(f"step {self.step}: {what}", check, is_crash(error)))

    def start(
        self,
        name: str,
        spine: SimulatedSpine,
        protocol: Protocol[Any],
        ended: Callable[[Any, BaseException | None], None],
    ) -> None:
        """Start a task."""
        task = SpineTask(name, spine, protocol, ended)
        self.tasks.append(task)
        self._resume(task, None, None)

    def run(self) -> None:
        """Step tasks in random order until all users are done, then check the end."""
        while not self.violations and self._advance():
            self._disturb()
        if not self.violations:
            self._end()

    def _begin(self) -> None:
        """Start the process: its main spine comes from the newest checkpoint, if there is one."""
        self.tasks, self.spines, self.users = [], [], []
        spine = SimulatedSpine(self, f"spine{self.fresh()}", SpineLevels(self.rules), self.folder)
        self.start("restore", spine, save_spine.restore(self.rules), partial(self._restored, spine))

    def _restored(self, spine: SimulatedSpine, levels: Any, error: BaseException | None) -> None:
        """Check that the restored spine is the saved one, and let users begin."""
        if error is not None:
            self.violate(f"the checkpoint cannot be restored: {error!r}", error)
            return
        found = self.folder.newest()
        known = self.folder.expected[found[0].manifest.number] if found else ([], False, None, 0)
        truth, is_dirty, upper, floor = known
        spine.levels = replace(levels, average=self.random.choice((3, 6)))
        spine.checks.begin(truth, spine.levels, floor)
        if (levels.is_dirty, levels.upper) != (is_dirty, upper):
            self.violate(f"restored: dirty {levels.is_dirty}, upper {levels.upper}; saved: {is_dirty}, {upper}")
        spine.time = max((time for _, (time,), _ in truth), default=0)
        self.spines = [spine]
        self.users = [SpineUser(self, f"user{number}") for number in range(self.random.choice((2, 3, 4)))]
        self.start(f"{spine.name} garbage", spine, delete_garbage(), spine.must_end)
        spine.wake_levels()

    def _advance(self) -> bool:
        """Let one task do its next effect, or one user begin a call; return False if all are done."""
        idle = [user for user in self.users if user.is_idle] if self.left > 0 else []
        ready = [task for task in self.tasks if self._is_ready(task)]
        if not idle and not ready:
            if not self.tasks:
                return False
            self.now = min(task.wake if task.wake > self.now else task.deadline for task in self.tasks)
            return True
        self.step += 1
        self.now += int(self.chance() * 4)
        if self.step > STEPS_MAX:
            self.violate(f"no progress after {STEPS_MAX} steps")
            return False
        chosen = int(self.chance() * (len(idle) + len(ready)))
        if chosen < len(idle):
            self.left -= 1
            idle[chosen].begin()
        else:
            self._do(ready[chosen - len(idle)])
        return True

    def _is_ready(self, task: SpineTask) -> bool:
        if task.wake > self.now:
            return False
        waiting = task.effect
        return not isinstance(waiting, WaitUntil) or task.deadline <= self.now or waiting.condition(task.spine.levels)

    def _do(self, task: SpineTask) -> None:
        """Carry out the effect of a task."""
        effect = task.effect
        assert effect is not None
        value: Any = None
        error: Exception | None = None
        if isinstance(effect, Sleep):
            pass  # its time has come
        elif isinstance(effect, WaitUntil):
            value = effect.condition(task.spine.levels)
            if not value and effect.limit_ms > CRITICAL_WAIT_MS:
                self.violate(f"{task.name} waited {effect.limit_ms} ms in vain")
        else:
            try:
                value = task.spine.perform(effect)
            except Exception as raised:
                error = raised
        self._note(task, effect, value, error)
        self._resume(task, value, error)

    def _resume(self, task: SpineTask, value: object, error: Exception | None) -> None:
        """Hand a result to a task, and wait for its next effect or its end."""
        try:
            task.effect = task.protocol.send(value) if error is None else task.protocol.throw(error)
        except StopIteration as stop:
            self.tasks.remove(task)
            task.ended(stop.value, None)
            return
        except Exception as raised:
            self.tasks.remove(task)
            task.ended(None, raised)
            return
        if isinstance(task.effect, Sleep):
            task.wake = self.now + task.effect.ms
        if isinstance(task.effect, WaitUntil):
            task.deadline = self.now + task.effect.limit_ms

    def _disturb(self) -> None:
        """Kill the process, fill the disk or memory, or free them, if chance has it."""
        faults = self.faults
        if self.chance() < faults.crash:
            self.counts["crashes"] += 1
            self._crash()
        if self.chance() < faults.pause:
            self.counts["pauses"] += 1
            self.pressure = self.random.choice(list(MemoryPressure))
            for spine in self.spines:
                spine.wake_levels()
        if self.chance() < faults.outage:
            self.counts["outages"] += 1
            self.full_until = self.now + OUTAGE_MS
        self.folder.is_full = self.now < self.full_until

    def _crash(self) -> None:
        """Kill the process, with what was not durable, and start it again."""
        for task in self.tasks:
            task.protocol.close()
        self.folder.lose_power(self.random)
        self._begin()

    def _note(self, task: SpineTask, effect: Effect, value: object, error: Exception | None) -> None:
        """Add a step to the digest, and to the trace."""
        what = _named(effect)
        self.digest = zlib.crc32(f"{task.name} {what} {type(error).__name__}".encode(), self.digest)
        if self.tracing:
            outcome = repr(error) if error else _short(value)
            self.trace.append(f"{self.step:5} {self.now:7} ms  {task.name:16} {what}: {outcome}")

    def _end(self) -> None:
        """Stop the faults, let merging catch up, make a last checkpoint, and check what is left."""
        self.faults = Faults(0, 0, 0, 0, 0)
        self.pressure, self.full_until = MemoryPressure.LOW, 0
        self.folder.is_full = False
        main = self.spines[0]
        for spine in self.spines:
            spine.wake_levels()
        self._drain()
        if self.violations:
            return
        for spine in self.spines:
            if not spine.levels.is_closing:
                spine.checks.check_settled(spine.levels)
        for protocol in (save_spine.save(), save_spine.save(), close()):
            self.start("end", main, protocol, main.must_end)
            self._drain()
        main.checks.check_files(main.levels, self.folder)
        self._crash()
        self._drain()

    def _drain(self) -> None:
        """Step until all tasks have ended."""
        while not self.violations and self._advance():
            pass


def _named(effect: Effect) -> str:
    """Describe an effect in a few words."""
    transition = effect.transition if isinstance(effect, Swap) else None
    called = transition.func if isinstance(transition, partial) else transition
    return f"{type(effect).__name__} {getattr(called, '__name__', '')}".rstrip()


def _short(value: object) -> str:
    """Describe the result of an effect in a few words."""
    if isinstance(value, SpineLevels):
        return " ".join("/".join(f"{len(slot.at(place))}" for place in MergeStatus) for slot in value.slots)
    return repr(value)[:100]


def run_spine_history(
    seed: int, operations: int, faults: Faults | None = None, tracing: bool = False, real: bool = False
) -> HistoryResult:
    """Run one history of spines, with all checks; with `real`, of real batches, merges, files and cursors."""
    history = SpineHistory(seed, operations, faults or FAULTS, tracing, real)
    try:
        with small_pieces():
            history.run()
    finally:
        history.batches.end()
    done = operations - history.left
    return HistoryResult(seed, done, history.counts, history.violations, history.trace, history.digest)

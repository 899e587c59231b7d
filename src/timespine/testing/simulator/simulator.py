"""The simulator: one seed decides which process steps, fails or crashes, and how clocks run.

Processes run the same protocol generators as the real driver. Between any two
effects a process may be paused (past its leases: a zombie), crash and be
replaced, or have its clock jump. Every effect on storage may fail determinately,
indeterminately after or without having happened, be slow, or happen late, as a
ghost, when its caller has long moved on. A compare-and-set may also succeed and be
reported as a conflict.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from timespine.core.effects import (
    CompareAndSet,
    DeleteBlobs,
    Effect,
    FreshId,
    GetBlob,
    ListBlobs,
    MergeRuns,
    Now,
    Protocol,
    PutBlob,
    Scan,
    Sleep,
    Truncate,
)
from timespine.core.encoding.flat_spine import headers_of
from timespine.core.protocols.session import Session
from timespine.core.state import State
from timespine.errors import Determinate, Indeterminate
from timespine.testing.simulator.world import World

MUTATING = frozenset({CompareAndSet, PutBlob, DeleteBlobs, Truncate})
DELICATE = frozenset({DeleteBlobs, Truncate})
"""The effects at which a crash leaves most work to others: crashes are more likely there."""

MARKED_CRASH = 4
MARKED_OUTAGE = 6
"""The factor by which a crash and an outage are likelier at a point that the workload has marked."""

KINDS = (
    "determinate",
    "slow",
    "indeterminate not",
    "indeterminate done",
    "ghost",
    "own success as a conflict",
)
"""The kinds of failure of an effect on storage: reads fail in the first two ways, the last way is for
compare-and-sets."""

STORAGE = MUTATING | {Scan, GetBlob, ListBlobs}


@dataclass(slots=True)
class Faults:
    """Chances per effect or per step."""

    fail: float = 0.1
    """An effect on storage fails in some way."""
    crash: float = 0.004
    """A process dies before its next effect."""
    pause: float = 0.006
    """A process is paused, perhaps past its leases."""
    clock: float = 0.004
    """A process's clock jumps."""
    outage: float = 0.0015
    """Storage goes away for some steps: most effects on it fail, so that callers notice."""


@dataclass(slots=True)
class Operation:
    """One call of a user or of maintenance, as the checker sees it."""

    id: str
    kind: str
    process: str
    collection: str
    invoked: int
    """The step at which it began."""
    expect: Callable[[Operation], None]
    """Checks the outcome."""
    returned: int = -1
    """The step at which it ended."""
    status: str = "running"
    """ok, error (raised), crashed."""
    result: Any = None
    error: BaseException | None = None
    details: dict[str, Any] = field(default_factory=dict)


class SimulatedProcess:
    """A process: a session, a clock, and its present operation."""

    __slots__ = ("clock", "effect", "entered", "mark", "name", "operation", "session", "stack", "wake")

    def __init__(self, name: str, session: Session, clock: int) -> None:
        self.name = name
        self.session = session
        self.clock = clock
        """The error of its clock."""
        self.wake = 0
        """The moment before which it does nothing."""
        self.entered: set[str] = set()
        self.operation: Operation | None = None
        self.stack: list[Protocol[Any]] = []
        self.effect: Effect | None = None
        self.mark = ""
        """The delicate point that it is at, if any: crashes and outages are more likely there."""


class Simulator:
    """Processes on a world, run until their operations are done."""

    def __init__(self, seed: int, faults: Faults | None = None, world: World | None = None, processes: int = 3) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.faults = faults or Faults()
        self.world = world or World()
        self.format = self.world.format
        self.now = 1_000_000
        self.ids = 0
        self.ghosts: list[Effect] = []
        self.outage_until = 0
        """The step until which storage is away."""
        self.trace: list[str] = []
        """The trace, a line per step, if it is enabled."""
        self.tracing = False
        self.history: list[Operation] = []
        self.processes = [self.new_process() for _ in range(processes)]

    def fresh(self, prefix: str) -> str:
        """Return an id that was never used before in this world."""
        self.ids += 1
        return f"{prefix}{self.ids}"

    def new_process(self) -> SimulatedProcess:
        """Return a process that has just started: new session, new ids."""
        session = Session(self.fresh("k"), self.fresh("w"), self.format.config)
        return SimulatedProcess(self.fresh("process"), session, self.random.randrange(-300, 300))

    def start(self, process: SimulatedProcess, operation: Operation, protocol: Protocol[Any]) -> None:
        """Begin an operation."""
        self.history.append(operation)
        process.operation = operation
        process.stack = [protocol]
        self.note(process, f"begins {operation.kind} {operation.id} on {operation.collection}")
        self._resume(process, None, None)

    def run(self, next_operation: Callable[[SimulatedProcess], bool], steps_max: int) -> None:
        """Step processes in random order until none has anything to do, or a promise is broken."""
        world, chance = self.world, self.random.random
        while not world.violations:
            ready = [process for process in self.processes if process.wake <= self.now]
            if not ready:
                self.now = min(process.wake for process in self.processes)
                continue
            process = ready[int(chance() * len(ready))]
            if process.effect is None and not next_operation(process):
                if all(each.effect is None for each in self.processes):
                    return
                process.wake = self.now + 50
                continue
            world.step += 1
            self.now += int(chance() * 4)
            if world.step > steps_max:
                world.violate(f"no progress after {steps_max} steps")
                return
            if process.effect is not None:
                self._step(process)

    def _step(self, process: SimulatedProcess) -> None:
        """Let a process do its next effect, unless chance has other plans."""
        chance = self.random.random()
        faults = self.faults
        often = 40 if type(process.effect) in DELICATE else MARKED_CRASH if process.mark else 1
        if chance < faults.crash * often:
            self.crash(process)
            return
        chance -= faults.crash
        if chance < faults.pause:
            self.world.counts["pauses"] += 1
            process.wake = self.now + self.random.choice((50, 500, 3_000, 12_000))
            self.note(process, "is paused")
            return
        chance -= faults.pause
        if chance < faults.clock:
            self.world.counts["clock jumps"] += 1
            process.clock += self.random.choice((-20_000, -500, 500, 5_000, 20_000))
        chance -= faults.clock
        if 0 <= chance < faults.outage:
            self._begin_outage()
        if process.mark and self.random.random() < faults.outage * MARKED_OUTAGE:
            self.world.counts[f"outage: {process.mark}"] += 1
            self._begin_outage()
        if self.ghosts and self.random.random() < 0.1:
            self._release(self.random.randrange(len(self.ghosts)))
        self._do(process)

    def _begin_outage(self) -> None:
        """Begin an outage of storage."""
        self.world.counts["outages"] += 1
        self.outage_until = self.world.step + 60

    def _do(self, process: SimulatedProcess) -> None:
        """Carry out the effect that a process waits for."""
        effect = process.effect
        assert effect is not None
        if type(effect) in STORAGE:
            self._storage(process, effect)
        elif isinstance(effect, Now):
            self._resume(process, self.now + process.clock, None)
        elif isinstance(effect, Sleep):
            process.wake = self.now + effect.ms
            self._resume(process, None, None)
        elif isinstance(effect, FreshId):
            self._resume(process, self.fresh(effect.prefix), None)
        else:
            assert isinstance(effect, MergeRuns)
            known = process.session.state(effect.collection)
            process.stack.append(self.format.merge_runs(effect, known))
            self._resume(process, None, None)

    def _storage(self, process: SimulatedProcess, effect: Effect) -> None:
        """Carry out an effect on storage, with its faults."""
        perform = self.world.perform[type(effect)]
        away = self.world.step < self.outage_until and self.faults.outage > 0
        if self.random.random() >= (0.85 if away else self.faults.fail):
            if self.tracing:
                self.note(process, f"{_short(effect)}")
            self._resume(process, perform(effect), None)
            return
        kinds = 6 if isinstance(effect, CompareAndSet) else 5 if type(effect) in MUTATING else 2
        kind = self.random.randrange(kinds)
        name = KINDS[kind]
        self.world.counts[name] += 1
        self.note(process, f"{_short(effect)}: {name}")
        if kind == 0:
            self._resume(process, None, Determinate("injected: did not happen"))
        elif kind == 1:
            process.wake = self.now + self.random.randrange(200)
            self._resume(process, perform(effect), None)
        elif isinstance(effect, CompareAndSet) and kind == 5:
            self._resume(process, perform(effect) or as_conflict(effect), None)
        else:
            if kind == 3 and isinstance(effect, DeleteBlobs):
                perform(DeleteBlobs(effect.keys[: self.random.randrange(len(effect.keys) + 1)]))
            elif kind == 3:
                perform(effect)
            elif kind == 4:
                self.ghosts.append(effect)
            self._resume(process, None, Indeterminate("injected: may have happened"))

    def _release(self, index: int) -> None:
        """Let a late write happen."""
        ghost = self.ghosts.pop(index)
        self.world.counts["ghosts released"] += 1
        self.world.perform[type(ghost)](ghost)

    def release_all(self) -> None:
        """Let all late writes happen."""
        while self.ghosts:
            self._release(0)

    def crash(self, process: SimulatedProcess) -> None:
        """Kill a process, and start another one in its place."""
        self.world.counts["crashes"] += 1
        if process.mark:
            self.world.counts[f"crash: {process.mark}"] += 1
        self.note(process, f"crashes {process.mark}".rstrip())
        for protocol in process.stack:
            protocol.close()
        self.world.reopen()
        if process.operation is not None:
            process.operation.status = "crashed"
            process.operation.returned = self.world.step
        self.processes[self.processes.index(process)] = self.new_process()

    def _resume(self, process: SimulatedProcess, value: object, error: BaseException | None) -> None:
        """Hand a result to the protocol and wait for its next effect, or end the operation."""
        while True:
            protocol = process.stack[-1]
            try:
                process.effect = protocol.send(value) if error is None else protocol.throw(error)
                return
            except StopIteration as stop:
                process.stack.pop()
                value, error = stop.value, None
            except Exception as raised:
                process.stack.pop()
                value, error = None, raised
            if not process.stack:
                self._end(process, value, error)
                return

    def _end(self, process: SimulatedProcess, value: object, error: BaseException | None) -> None:
        operation = process.operation
        assert operation is not None
        process.operation = process.effect = None
        operation.returned = self.world.step
        operation.status = "ok" if error is None else "error"
        operation.result, operation.error = value, error
        self._compare_states(process)
        if self.tracing:
            self.note(process, f"ends {operation.kind} {operation.id}: {value if error is None else repr(error)}")
        operation.expect(operation)

    def _compare_states(self, process: SimulatedProcess) -> None:
        """Check that the cached states of a process are those of the log: every diff is applied and compared."""
        for name, believed in process.session.states.items():
            if (believed.seqno + self.world.step) % 3 == 0:
                states = self.world.states[name]
                if believed.seqno >= len(states):
                    self.world.violate(
                        f"{process.name} has a state of {name} at {believed.seqno}, and no commit made it"
                    )
                    continue
                replayed = states[believed.seqno]
                if believed is replayed:
                    continue
                wrong = [each for each in State.__struct_fields__ if getattr(believed, each) != getattr(replayed, each)]
                if wrong or headers_of(believed.trace) != headers_of(replayed.trace):
                    self.world.violate(f"{process.name} has another {wrong or 'trace'} of {name} at {believed.seqno}")

    def note(self, process: SimulatedProcess, what: str) -> None:
        """Write a line into the trace."""
        if self.tracing:
            self.trace.append(f"{self.world.step:5} {self.now - 1_000_000:7} ms  {process.name:11} {what}")


def as_conflict(effect: CompareAndSet) -> dict[str, int]:
    """Return the answer of storage that takes its own last write for entries of another process."""
    return {key: 0 if expected is None else expected + 1 for key, expected, _ in effect.writes}


def _short(effect: Effect) -> str:
    """Describe an effect in a few words."""
    if isinstance(effect, CompareAndSet):
        inside = ", ".join(f"{key}@{expected}" for key, expected, _ in effect.writes)
    elif isinstance(effect, DeleteBlobs):
        inside = ", ".join(effect.keys)
    elif isinstance(effect, Scan):
        inside = f"{effect.key} from {effect.from_seqno}"
    elif isinstance(effect, Truncate):
        inside = f"{effect.key} below {effect.below}"
    else:
        inside = str(getattr(effect, "key", getattr(effect, "prefix", "")))
    return f"{type(effect).__name__}({inside})"

"""One history from its seed: run it, let the faults stop, and check what must be true then.

During the history the world checks every commit and every deletion, and the
workload every answer. When the faults stop:

- late writes happen, every lease lapses, and maintenance runs to its end;
- everything that live states refer to exists, and nothing else does: no leaks;
- every time that can be read gives the truth, also from a process that starts anew;
- appends go through again: progress;
- what was refused is nowhere, what was atomic is in all collections or in none.
"""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import dataclass
from typing import Any

from timespine.core.effects import Protocol
from timespine.core.group import Refused
from timespine.core.protocols import garbage, maintain
from timespine.core.protocols.commit import commit
from timespine.core.protocols.garbage import references
from timespine.core.protocols.load_state import load_state
from timespine.core.transitions import Drain, Evict, Exert, Finalize, ReleaseHold, Retain, RollUpAll
from timespine.model.frontier import CLOSED, Frontier
from timespine.model.time import Time
from timespine.testing.formats.real_storage import RealWorld, with_low_limits
from timespine.testing.simulator import core_reads, core_writes
from timespine.testing.simulator.check_answers import is_surely_refused
from timespine.testing.simulator.kept_workload import KeptWorkload
from timespine.testing.simulator.memoize import memoized
from timespine.testing.simulator.schema_workload import SchemaWorkload
from timespine.testing.simulator.simulator import KINDS, Faults, Operation, SimulatedProcess, Simulator
from timespine.testing.simulator.stream_workload import StreamWorkload
from timespine.testing.simulator.violation import Violation
from timespine.testing.simulator.workload import Workload
from timespine.testing.simulator.world import World, operation_of

FAULT_KINDS = (*KINDS, "pauses", "clock jumps", "outages")

FLAVOURS: dict[str, type[Workload]] = {
    "mixed": Workload,
    "schemas": SchemaWorkload,
    "streams": StreamWorkload,
    "kept": KeptWorkload,
}
"""The workloads of histories."""

YEAR_MS = 365 * 24 * 3_600_000


@dataclass(slots=True)
class HistoryResult:
    """The result of one history."""

    seed: int
    operations: int
    counts: Counter[str]
    violations: list[Violation]
    trace: list[str]
    digest: int
    """A checksum that is the same whenever the same history happened."""


def run_core_history(
    seed: int,
    operations: int,
    faults: Faults | None = None,
    tracing: bool = False,
    real: bool = False,
    flavour: str = "mixed",
) -> HistoryResult:
    """Run one history and all checks after it; with real rows on real storage if `real`."""
    with memoized():
        if not real:
            return _run(World(), seed, operations, faults, tracing, flavour)
        with with_low_limits(), RealWorld() as world:
            return _run(world, seed, operations, faults, tracing, flavour)


def _run(world: World, seed: int, operations: int, faults: Faults | None, tracing: bool, flavour: str) -> HistoryResult:
    simulator = Simulator(seed, faults, world)
    simulator.tracing = tracing
    workload = FLAVOURS[flavour](simulator, operations)
    simulator.run(workload.next_operation, steps_max=400 * operations + 20_000)
    done = len(simulator.history)
    if not world.violations:
        _quiesce(simulator, workload)
    counts = world.counts + world.format.counts
    return HistoryResult(seed, done, counts, world.violations, simulator.trace, _digest(simulator))


def _digest(simulator: Simulator) -> int:
    """Return a checksum over all commits and answers."""
    digest = 0
    for key in sorted(simulator.world.logs):
        for entry in simulator.world.logs[key]:
            digest = zlib.crc32(entry, digest)
    for operation in simulator.history:
        digest = zlib.crc32(
            f"{operation.id} {operation.status} {operation.invoked} {operation.returned}".encode(), digest
        )
    return digest


def _quiesce(simulator: Simulator, workload: Workload) -> None:
    """Stop the faults, let everything settle, and check the end."""
    world = simulator.world
    simulator.faults = Faults(0, 0, 0, 0, 0)
    simulator.release_all()
    simulator.now += YEAR_MS
    simulator.processes = [simulator.new_process()]
    process = simulator.processes[0]
    process.clock = 0
    todo = [(name, body) for name in workload.arities for body in (_settle, _read_everything, _close)]

    def next_operation(process: SimulatedProcess) -> bool:
        if not todo:
            return False
        name, body = todo.pop(0)
        operation = Operation(simulator.fresh("end"), body.__name__, process.name, name, world.step, _must_be_ok)
        simulator.start(process, operation, body(simulator, workload, process, name))
        return True

    def _must_be_ok(operation: Operation) -> None:
        if operation.error is not None:
            world.violate(
                f"after the faults stopped, {operation.kind} of {operation.collection}: {operation.error!r}",
                operation.error,
            )

    simulator.run(next_operation, steps_max=world.step + 50_000)
    _check_history(simulator, workload)


def _settle(simulator: Simulator, workload: Workload, process: SimulatedProcess, name: str) -> Protocol[None]:
    """Run maintenance to its end: no orphaned blob may be left."""
    session, world = process.session, simulator.world
    yield from workload.open(session, name)
    yield from maintain.expire_lapsed_leases(session, name)
    for hold, held in session.state(name).holds.items():
        yield from commit(session, name, ReleaseHold(hold, held.token))
    state = session.state(name)
    new_upper, times = workload._next_upper(state.upper)
    updates = [(f"{name}end.0", times[0], 1)]
    data = workload.format.data_of(updates, state)
    reply = yield from core_writes.compare_and_append_data(session, name, data, state.upper, new_upper)
    if isinstance(reply, Refused):
        world.violate(f"no progress: an append to {name} was refused: {reply.reason!r}")
    yield from commit(session, name, Drain())
    yield from commit(session, name, Evict())
    yield from commit(session, name, Exert(8))
    yield from commit(session, name, RollUpAll())
    while (yield from maintain.merge_once(session, name)) is not None:
        pass
    if session.state(name).trace.requests():
        world.violate(f"merges of {name} are still asked for after maintenance ran to its end")
    for _ in range(2):
        yield from maintain.roll_up(session, name)
        simulator.now += workload.keep_ms
        yield from garbage.collect_garbage(session, name, workload.keep_ms)
    _check_collected(simulator, name)
    yield from garbage.sweep(session, name)
    _check_storage(simulator, name)


def _check_collected(simulator: Simulator, name: str) -> None:
    """Check that garbage collection alone removes blobs that states once referred to; the sweep is for the rest."""
    world = simulator.world
    live = _referred_by_log(simulator, name)
    there = {key for key in world.blobs if key.startswith(f"{name}/")}
    left = (there & world.referred) - live - world.recreated
    if left:
        world.violate(f"garbage collection of {name} left {sorted(left)[:3]}")


def _referred_by_log(simulator: Simulator, name: str) -> set[str]:
    """Return the blobs that states from the oldest one in the log on refer to."""
    world = simulator.world
    live = world.reachable(name)
    for state in world.states[name][max(world.first.get(name, 0) - 1, 0) :]:
        live |= world.with_children(references(state))
    return live


def _check_storage(simulator: Simulator, name: str) -> None:
    """Check that exactly the blobs exist that live states refer to."""
    world = simulator.world
    live = world.reachable(name)
    there = {key for key in world.blobs if key.startswith(f"{name}/")}
    if live - there:
        world.violate(f"{name} refers to blobs that do not exist: {sorted(live - there)[:3]}")
    live = _referred_by_log(simulator, name)
    if there - live:
        world.violate(f"{name} leaks blobs: {sorted(there - live)[:3]}")
    if len(world.logs[name]) - world.first.get(name, 0) > 24:
        world.violate(f"the log of {name} still has {len(world.logs[name]) - world.first.get(name, 0)} entries")


def _read_everything(simulator: Simulator, workload: Workload, process: SimulatedProcess, name: str) -> Protocol[None]:
    """Check that every readable time gives the truth; also for a process that knows nothing yet."""
    world = simulator.world
    state = yield from load_state(process.session, name)
    if state is None:
        world.violate(f"{name} is gone")
        return
    head = world.head(name)
    if (state.seqno, state.upper, state.since) != (head.seqno, head.upper, head.since) or state.trace != head.trace:
        world.violate(f"{name} loaded anew is not the newest state")
    for as_of in _readable(state.since, state.upper):
        reply = yield from core_reads.fetch_snapshot_without_lease(process.session, name, as_of)
        if isinstance(reply, tuple):
            workload.compare(name, as_of, workload.format.counted(*reply, state), "the last read")
        else:
            world.violate(f"{name} cannot be read as of {as_of}: {reply!r}")


def _readable(since: Frontier, upper: Frontier) -> list[Time]:
    """Return times that can be read: all of them if there are few."""
    if since.arity == 1 and upper.arity == 1:
        first, last = since.time, upper.time - 1
        step = max((last - first) // 6, 1)
        return [(time,) for time in range(first, last + 1, step)]
    corners = {tuple(map(max, s, tuple(max(c - 1, 0) for c in u))) for s in since for u in upper}
    return [time for time in sorted(corners) if since.less_equal(time) and not upper.less_equal(time)]


def _close(simulator: Simulator, workload: Workload, process: SimulatedProcess, name: str) -> Protocol[None]:
    """Close, release and finalize a collection at the end of some histories."""
    if simulator.seed % 4:
        return
    session, world = process.session, simulator.world
    state = session.state(name)
    yield from core_writes.compare_and_append_data(session, name, None, state.upper, CLOSED)
    yield from commit(session, name, Retain(CLOSED))
    finalized: Any = yield from commit(session, name, Finalize())
    if isinstance(finalized, Refused):
        world.violate(f"{name} cannot be finalized: {finalized.reason!r}")
    for _ in range(2):
        yield from maintain.roll_up(session, name)
        simulator.now += workload.keep_ms
        yield from garbage.collect_garbage(session, name, workload.keep_ms)
    _check_storage(simulator, name)
    data = [key for key in world.blobs if key.startswith(f"{name}/") and key not in references(world.head(name))]
    rollups = {rollup.key for state in world.states[name] for rollup in state.rollups.values()}
    if any(key not in rollups for key in data):
        world.violate(f"the tombstone of {name} still has data: {data[:3]}")


def _check_history(simulator: Simulator, workload: Workload) -> None:
    """Check the promises about the history as a whole."""
    _check_sinks(simulator)
    _check_refused(simulator)
    _check_both(simulator, workload)


def _check_sinks(simulator: Simulator) -> None:
    """Check that every batch of a sink is in at most once."""
    world = simulator.world
    for name, truth in world.truth.items():
        batches = Counter(row for row, _, diff in truth if diff > 0 and str(row).startswith(f"{name}sink"))
        twice = [row for row, count in batches.items() if count > 1]
        if twice:
            world.violate(f"batches of the sink of {name} are in twice: {twice[:3]}")


def _check_refused(simulator: Simulator) -> None:
    """Check that refused rows never become durable."""
    world = simulator.world
    for operation in simulator.history:
        refused = is_surely_refused(operation)
        if refused and operation.id in world.committed:
            world.violate(f"{operation.kind} {operation.id} was refused and became durable later")


def _check_both(simulator: Simulator, workload: Workload) -> None:
    """Check that rows appended to both collections at once are in both or in none."""
    world = simulator.world
    written = {name: {operation_of(row) for row, _, diff in truth if diff > 0} for name, truth in world.truth.items()}
    for operation in simulator.history:
        if operation.details.get("both"):
            where = [name for name in workload.arities if operation.id in written.get(name, ())]
            if len(where) == 1:
                world.violate(f"{operation.kind} {operation.id} is only in {where[0]}")

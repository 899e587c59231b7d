"""One history of real stores: processes that use them, faults, and the promises to check throughout and at the end."""

from __future__ import annotations

import random
import re
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from timespine.client.arguments.argument_types import Timeline
from timespine.client.store import Store
from timespine.config import Config
from timespine.errors import TimespineError
from timespine.testing.simulator.simulator import Faults
from timespine.testing.stores.ports import SimulatedBlob, SimulatedConsensus, Storage
from timespine.testing.stores.thread_scheduler import Killed, ScheduledThread, Scheduler, VirtualProcess
from timespine.testing.stores.user_calls import UserCall
from timespine.testing.stores.world import StoreWorld

QUICK = Config(
    reader_lease_ms=20_000,
    writer_lease_ms=60_000,
    claim_ms=5_000,
    rollup_seqnos=8,
    storage_attempts=3,
    retry_pause_ms=4,
    retry_pause_max_ms=50,
    listener_seqnos=200,
    any_order_rows=1,
    read_threads=4,
)
"""A configuration with inline rows, short leases and few retries, in which few changes pass any settled run. It has the
same threads on every machine."""

SMALL = replace(
    QUICK,
    part_bytes=600,
    row_group_rows=4,
    page_rows=1,
    inline_part_bytes=120,
    inline_total_bytes=360,
    run_parts=2,
    cache_bytes=1 << 20,
)
"""A configuration in which a handful of rows makes parts, row groups and hollow runs."""

BLOBS = replace(QUICK, inline_part_bytes=1)
"""A configuration in which every row goes to a blob."""

SHAPE: dict[str, Any] = {"key": {"k": "int64"}, "value": {"v": "string"}}
"""The columns of the collections of a history."""

TIMELINES: dict[str, Timeline] = {"orders": "counter", "events": "clock"}
"""The collections that every history begins with and keeps, with their time lines."""

RELAYED = 0.4
"""The chance that the processes of a history append for each other. Then there are several, and they append more."""

MACHINES = (0, 0, 0, 1)
"""The machine of a process: most are on one, so that they share its roles; the others have their own maintainer."""

CLOSES_MAX = 4
"""How often a store is closed before that counts as impossible."""

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")

LONG_S = 5.0
"""The shortest pause, clock jump or outage that may let a lease lapse."""

CALL_S = 1200.0
"""The longest duration of a call, in virtual seconds, without pauses of all processes."""

SUSPENDED_S = 25 * 3600.0
"""How long all processes do nothing now and then, as on a machine that sleeps: others may cancel transactions
meanwhile."""


SLEEP_CHANCE = 0.3
"""The chance that a process falls asleep while it puts a blob for a collection that is not created yet."""

TURN_PAUSE_CHANCE = 0.3
"""The chance that a process is paused right after it claimed a turn."""

TURN_PAUSE_S = 0.05
"""The duration of such a pause: shorter than a turn."""

AWAY_CHANCE = 20
"""The factor by which storage goes away more likely right after a commit than at any other moment."""


class StoreProcess(VirtualProcess):
    """A process that has a store open."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.skew_s = 0.0
        """The error of its wall clock."""
        self.store: Store | None = None
        self.is_closing = False
        """Whether a thread has closed the store."""
        self.is_read_only = False
        self.ids: set[str] = set()
        """The ids that it has made."""
        self.is_doomed = False
        """Whether it dies after its next put."""


class StoreHistory:
    """Processes, storage, and all calls with their answers."""

    def __init__(
        self, seed: int, faults: Faults, *, tracing: bool = False, make_world: Callable[[], StoreWorld] = StoreWorld
    ) -> None:
        self.random = random.Random(seed)
        self.scheduler = Scheduler(self.random.getrandbits(64), stay=self.random.choice((0.2, 0.6, 0.9)))
        self.world = make_world()
        self.storage = Storage(self.world, self.scheduler)
        self.faults = Faults(
            *(getattr(faults, each) * self.random.choice((0.0, 0.25, 1.0)) for each in Faults.__slots__)
        )
        self._fault_chance = 1e-9 + sum(
            (self.faults.crash, 1.125 * self.faults.pause, self.faults.clock, AWAY_CHANCE * self.faults.outage)
        )
        """At least the chance of a fault at a switch point."""
        self.config = self.random.choice((QUICK, SMALL, BLOBS))
        self.config = replace(self.config, relay_appends=self.random.random() < RELAYED)
        self._turn_random = random.Random(seed)
        """The chance of pauses in turns: of its own, so that histories without turns do not depend on it."""
        self._favour: dict[str, int] = {}
        self.calls: list[UserCall] = []
        self.running: list[UserCall] = []
        self.processes: list[StoreProcess] = []
        self.trace: list[str] = []
        self.tracing = tracing
        self.is_disturbed = False
        """Whether a process was paused, storage was away or a clock jumped for so long that leases may lapse."""
        self.is_calm = True
        """Whether nothing fails: at the beginning, and when the faults have stopped."""
        self.is_expiring = False
        """Whether a user has expired history."""
        self.is_evolving = False
        """Whether a user has changed a schema."""
        self.kept: dict[str, Any] = {}
        """Critical holds, by name."""
        self.shape, self.timelines = SHAPE, TIMELINES
        scheduler = self.scheduler
        scheduler.on_step = self._step
        scheduler.on_escape = self._escaped
        scheduler.is_over = lambda: bool(self.world.violations)

    def favour(self, kind: str) -> int:
        """Return the weight of one kind of call: every history has its own mixture, and lacks some kinds."""
        return self._favour.setdefault(kind, self.random.choice((0, 1, 1, 4)))

    @property
    def is_failing(self) -> bool:
        """Whether storage may fail."""
        return self.faults.fail > 0 or self.faults.outage > 0

    # Faults.

    def _step(self, task: ScheduledThread, where: str) -> None:
        """Inject the faults of a switch point."""
        scheduler = self.scheduler
        self.world.step = scheduler.steps
        if self.tracing:
            self.note(where)
        if self.running and scheduler.now - self.running[0].began > CALL_S:
            self._check_progress()
        process = task.process
        if self.is_calm or not isinstance(process, StoreProcess):
            return
        chance = scheduler.random.random()
        if where.startswith("put "):
            self._put(process, where)
        if where.startswith("compare and set ") and where.endswith(" was done"):
            self._pause_in_turn(process)
        if chance < self._fault_chance:
            self._disturb(process, where, chance)
        if self.storage.ghosts and scheduler.random.random() < 0.05:
            self.storage.release_ghosts(scheduler.random.randrange(len(self.storage.ghosts)))

    def _disturb(self, process: StoreProcess, where: str, chance: float) -> None:
        """Inject the fault that a number stands for, if any: it is below the sum of the chances of all."""
        faults = self.faults
        if chance < faults.crash:
            self._crash(process)
        chance -= faults.crash
        if 0 <= chance < faults.pause:
            self.world.counts["pauses"] += 1
            pause_s = self.scheduler.random.choice((0.05, 1.0, 8.0, 30.0, 90.0))
            self.is_disturbed = self.is_disturbed or pause_s >= LONG_S
            process.paused_until = self.scheduler.now + pause_s
            self.note(f"is paused for {pause_s} s")
        chance -= faults.pause
        if 0 <= chance < faults.pause / 8:
            self.world.counts["suspensions"] += 1
            self.is_disturbed = True
            for each in self.processes:
                each.paused_until = self.scheduler.now + SUSPENDED_S
            self.note("all processes are suspended for more than a day")
        chance -= faults.pause / 8
        if 0 <= chance < faults.clock:
            self.world.counts["clock jumps"] += 1
            jump_s = self.scheduler.random.choice((-90.0, -20.0, -0.5, 0.5, 20.0, 90.0))
            process.skew_s += jump_s
            self.is_disturbed = self.is_disturbed or abs(jump_s) >= LONG_S
        chance -= faults.clock
        is_committed = where.startswith("compare and set ") and where.endswith(" was done")
        if 0 <= chance < faults.outage * (AWAY_CHANCE if is_committed else 1):
            self.go_away(self.scheduler.random.choice((0.2, 2.0, 10.0)))

    def go_away(self, away_s: float) -> None:
        """Let storage fail for a while."""
        self.world.counts["outages"] += 1
        self.storage.away_until = self.scheduler.now + away_s
        self.is_disturbed = self.is_disturbed or away_s >= LONG_S
        self.note("storage goes away")

    def _pause_in_turn(self, process: StoreProcess) -> None:
        """Pause a process now and then while it has a turn, so that others want one meanwhile."""
        turns = (states[-1].turn for states in self.world.states.values())
        has_turn = any(turn is not None and turn.writer[1:] in process.ids for turn in turns)
        if has_turn and self.faults.pause and self._turn_random.random() < TURN_PAUSE_CHANCE:
            self.world.counts["pauses in turns"] += 1
            process.paused_until = self.scheduler.now + TURN_PAUSE_S
            self.note("is paused in its turn")

    def _crash(self, process: StoreProcess) -> None:
        self.world.counts["crashes"] += 1
        self.note("crashes")
        self.scheduler.kill(process)

    def _put(self, process: StoreProcess, where: str) -> None:
        """Let a process that puts a blob for a collection that it creates sleep until others have cancelled that."""
        key = where.split()[1]
        if where != f"put {key}":
            if process.is_doomed:
                self._crash(process)
            return
        chance = self.scheduler.random.random
        if key.split("/")[0] in self.world.states or not self.faults.pause or chance() >= SLEEP_CHANCE:
            return
        self.world.counts["suspensions"] += 2
        self.is_disturbed = True
        process.paused_until = self.scheduler.now + 2 * SUSPENDED_S
        process.is_doomed = chance() < 0.3
        self.note("sleeps for two days, and others maintain the store")
        other = self.process()

        def maintain() -> None:
            self.scheduler.sleep(SUSPENDED_S)
            store = self.open(other, maintenance=False)
            self.call(other, "maintain", lambda call: store.maintain())
            self.close(other)

        self.scheduler.spawn(other, "main", maintain)

    def _check_progress(self) -> None:
        suspended_s = self.world.counts["suspensions"] * SUSPENDED_S
        if self.running and self.scheduler.now - self.running[0].began > CALL_S + suspended_s:
            stuck = self.running[0]
            self.world.violate(f"{stuck} does not end: {'; '.join(self.scheduler.waiting())}")

    def _escaped(self, task: ScheduledThread, error: BaseException) -> None:
        where = traceback.extract_tb(error.__traceback__)[-1]
        self.world.violate(f"thread {task} ended by {error!r} in {where.name}, {where.filename}:{where.lineno}", error)

    def note(self, what: str) -> None:
        """Write a line into the trace."""
        if self.tracing:
            seconds = self.scheduler.now - 1_700_000_000
            self.trace.append(f"{self.scheduler.steps:5} {seconds:9.3f} s  {self.scheduler.current!r:32} {what}")

    # Processes.

    def open(self, process: StoreProcess, **options: Any) -> Store:
        """Open a store: in a thread of the process."""
        scheduler = self.scheduler
        process.is_read_only = options.get("read_only", False)
        process.store = Store(
            SimulatedBlob(self.storage),
            self.consensus(),
            clock=lambda: scheduler.now + process.skew_s,
            monotonic=lambda: scheduler.now,
            sleep=scheduler.sleep,
            **{"config": self.config, **options},
        )
        return process.store

    def consensus(self) -> SimulatedConsensus:
        """Open the logs, for one process."""
        return SimulatedConsensus(self.storage)

    def process(self) -> StoreProcess:
        """Start a process."""
        process = StoreProcess(f"p{len(self.processes)}")
        process.skew_s = self.scheduler.random.uniform(-0.3, 0.3)
        process.machine = self.scheduler.random.choice(MACHINES)
        self.processes.append(process)
        return process

    # Calls.

    def call(self, process: StoreProcess, kind: str, work: Callable[[UserCall], Any]) -> UserCall:
        """Make one call of a user, and record its outcome."""
        world = self.world
        call = UserCall(f"op{len(self.calls)}", kind, process.name, world.event, self.scheduler.now)
        self.calls.append(call)
        self.running.append(call)
        self.note(f"begins {call}")
        try:
            call.result = work(call)
        except Killed:
            call.is_killed = True
            raise
        except TimespineError as error:
            call.error = error
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)[-3:]
            where = " < ".join(
                f"{each.name} {each.filename.rpartition('/')[2]}:{each.lineno}" for each in reversed(frames)
            )
            world.violate(f"{call} raised {error!r} in {where}", error)
            self.scheduler.switch("violated")
        finally:
            call.until_event = world.event
            self.running.remove(call)
            if self.tracing:
                said = repr(call.result if call.error is None else call.error)
                self.note(f"ends {call}: {_ADDRESS.sub('', said)}")
        return call

    def close(self, process: StoreProcess) -> None:
        """Close a store. After a sleep of a day the store may ask to be closed again."""
        for _ in range(CLOSES_MAX):
            slept = self.world.counts["suspensions"]
            call = self.call(process, "close", lambda call: self._close(process))
            if call.error is None:
                return
            if self.world.counts["suspensions"] == slept:
                break
        self.world.violate(f"{call} raised {call.error!r}", call.error)

    def _close(self, process: StoreProcess) -> None:
        assert process.store is not None
        process.store.close()

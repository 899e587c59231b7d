"""The course of a history: processes come and go, the faults stop, and everything is read once more."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import logging
import sys
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

from timespine.client.collection import Collection
from timespine.client.commit import driver, retry, turn
from timespine.client.store import Store
from timespine.core.state import State, Status
from timespine.testing.simulator.checker import Result
from timespine.testing.simulator.remembering import remembering
from timespine.testing.simulator.simulator import Faults
from timespine.testing.stores.answers import Answers, counted, last_of, pair_of
from timespine.testing.stores.calls import Call
from timespine.testing.stores.history import History, StoreProcess
from timespine.testing.stores.reads import Reading
from timespine.testing.stores.scheduler import Killed, Task
from timespine.testing.stores.threads import virtual
from timespine.testing.stores.upkeep import Upkeep
from timespine.testing.stores.users import SHAPE, TIMELINES
from timespine.testing.stores.writes import Writing

PROCESSES = (1, 2, 2, 3)
"""Processes that use the store at the same time."""

THREADS = (1, 2, 3)
"""Threads of each that call it."""

BACKGROUND = ("timespine-heartbeat", "timespine-maintenance", "timespine-read", "timespine-delete")
"""Threads of a store that its end ends."""

FORGET_S = 30.0
"""By when some collections forget what has expired; the others take a day."""

DAY_S = 25 * 3600.0
"""After so long nothing that was left behind is waited for."""


FAULTS = Faults(fail=0.06, crash=0.002, pause=0.0015, clock=0.001, outage=0.0006)
"""Chances per call of storage, or per switch point. Each history has all of each, a quarter, or none."""


class Reader(Reading):
    """A user of a store that is open for reading only."""


class User(Writing, Reading, Upkeep):
    """A user that does everything."""


class Course:
    """Runs a history from its beginning to its end."""

    def __init__(self, history: History, operations: int) -> None:
        self.history = history
        self.answers = Answers(history.world)
        self.left = [operations]
        """Calls that are still to be made."""
        self._expired: dict[str, int] = {}
        """By collection: where its history began when the users were done."""

    def run(self) -> None:
        """All of it. Runs in a thread of the scheduler."""
        history, scheduler = self.history, self.history.scheduler
        self._alone(self._create)
        history.storage.fail, history.is_calm = history.faults.fail, False
        running: list[Task] = []
        processes = history.random.choice(PROCESSES)
        while self.left[0] > 0 or running:
            while len(running) < processes and self.left[0] > 0:
                running.append(self._begin())
            scheduler.wait_for_any(running)
            running = [each for each in running if not each.is_done]
        self._end()

    def _create(self, process: StoreProcess, store: Store) -> None:
        for name, timeline in TIMELINES.items():
            forget_within = FORGET_S if self.history.random.random() < 0.5 else None
            store.create(name, timeline=timeline, forget_within=forget_within, **SHAPE)

    def _begin(self) -> Task:
        """A process that opens a store, uses it with some threads, and closes it."""
        history, scheduler = self.history, self.history.scheduler
        process = history.process()
        chance = scheduler.random

        def main() -> None:
            read_only = chance.random() < 0.1
            history.open(process, maintenance=chance.random() < 0.6, read_only=read_only)
            user = Reader if read_only else User
            threads = [
                scheduler.spawn(process, f"user{number}", lambda: user(history, process).run(self.left))
                for number in range(chance.choice(THREADS))
            ]
            while any(not each.is_done for each in threads):
                scheduler.wait_for_any([each for each in threads if not each.is_done])
            is_alone = not process.is_closing
            process.is_closing = True
            history.close(process)
            self._check_closed(process, is_alone=is_alone)

        return scheduler.spawn(process, "main", main)

    def _alone(self, work: Callable[[StoreProcess, Store], object]) -> None:
        """Let one process do something with a store, and wait for it."""
        history, scheduler = self.history, self.history.scheduler
        process = history.process()
        process.skew_s = 0.0

        def main() -> None:
            store = history.open(process, maintenance=False)
            work(process, store)
            store.close()

        task = scheduler.spawn(process, "main", main)
        while not task.is_done:
            scheduler.wait_for_any([task])

    def _check_closed(self, process: StoreProcess, *, is_alone: bool) -> None:
        """After its end a store has no threads, and what it registered is gone, unless that could not be written."""
        history = self.history
        left = [task.name for task in process.tasks if task.name.startswith(BACKGROUND)]
        if left:
            history.world.violate(f"{process.name} has closed its store, and {left[0]} still runs")
        if history.is_failing or history.is_disturbed or not is_alone:
            return
        for id, states in history.world.states.items():
            state = states[-1]
            if state.status is Status.FINALIZED:
                continue  # it was dropped, and there is nothing to say goodbye to
            for registered in (*state.readers, *state.writers, *state.committers):
                if registered[1:] in process.ids:
                    history.world.violate(f"{process.name} has closed its store, and {registered} of {id} is left")

    # The end.

    def _end(self) -> None:
        """Stop the faults, let everything settle, and check what must be true then."""
        history, world = self.history, self.history.world
        history.is_calm = True
        history.storage.fail = history.storage.away_until = 0.0
        history.storage.release_ghosts()
        for call in history.calls:
            self.answers.check_effect(call)
        self._check_turns()
        self._expired = {id: states[-1].since.time for id, states in world.states.items() if states[-1].since.elements}
        history.scheduler.sleep(DAY_S)
        self._alone(self._settle)
        history.scheduler.sleep(DAY_S)
        self._alone(lambda process, store: self._must(process, "maintain", partial(store.maintain, sweep=True)))
        if not world.violations:
            self._check_storage()

    def _check_turns(self) -> None:
        """A turn is given back by the process that claimed it, and by no other."""
        world = self.history.world
        for id, states in world.states.items():
            for old, new in pairwise(states):
                if new.turn is None or new.turn == old.turn:
                    continue
                world.counts["turns"] += bool(new.turn.writer)
                if old.turn is None or not old.turn.writer or new.turn.writer:
                    continue
                ids = {old.turn.writer[1:], *(each[1:] for each in _committed_by(old, new))}
                if not any(ids <= process.ids for process in self.history.processes):
                    world.violate(f"{id} at {new.seqno}: another process gave back {old.turn}")

    def _settle(self, process: StoreProcess, store: Store) -> None:
        """Everything can be read, before and after all maintenance is done."""
        names = self._must(process, "names", store.names).result
        for name in names:
            self._read(process, store[name], only_newest=True)
        self._must(process, "maintain", partial(store.maintain, sweep=True))
        for name in names:
            self._check_forgotten(store[name].id)
            self._must(process, "compact", partial(store[name].compact, wait=True))
            self._read(process, store[name])

    def _must(self, process: StoreProcess, kind: str, work: Callable[[], object]) -> Call:
        """A call that must work, now that nothing fails."""
        call = self.history.call(process, kind, lambda call: work())
        if call.error is not None:
            self.history.world.violate(f"after the faults stopped, {call} raised {call.error!r}", call.error)
            self.history.scheduler.switch("violated")
        return call

    def _read(self, process: StoreProcess, collection: Collection, *, only_newest: bool = False) -> None:
        """Times that can be read give the truth."""
        state = self.history.world.states[collection.id][-1]
        first, last = (state.since.elements or ((0,),))[0][0], last_of(state)
        if last < first:
            return  # nothing is complete yet
        for as_of in [last] if only_newest else sorted({first, (first + last) // 2, last}):
            planned = self._must(process, "plan a read", partial(collection.snapshot, as_of, multiplicity="column"))
            with planned.result as rows:
                call = self._must(process, "last read", rows.to_pylist)
            found = counted(call.result, rows.columns_of)
            expected = self.history.world.truths[collection.id].at(as_of, rows.columns_of)
            if found != expected:
                self.answers.rows_violate(call, f"as of {as_of} in the end", found, expected)

    def _check_forgotten(self, id: str) -> None:
        """What was deleted, and expired more than a day ago, is physically gone."""
        world, since = self.history.world, self._expired[id]
        updates = [each for commit in world.truths[id].added for each in commit.updates]
        kept = {pair_of(row)[1] for row in world.truths[id].at(since, self.answers.schema(id))}
        kept |= {pair_of(row)[1] for row, time, _ in updates if time > since}
        left = ({pair_of(row)[1] for row, _, _ in updates} - kept) & world.values(id)
        if left:
            world.violate(f"{id} still holds {sorted(left)[:3]}, which expired before {since}")

    def _check_storage(self) -> None:
        """Exactly what live states refer to is there."""
        world = self.history.world
        known = {entry.id for entry in world.names[-1][1].entries.values()}
        for id in sorted(known):
            there = {key for key in world.blobs if key.startswith(f"{id}/")}
            missing, left = world.reachable(id) - there, there - world.referred_by_log(id)
            if missing:
                world.violate(f"{id} refers to blobs that do not exist: {sorted(missing)[:3]}")
            if left:
                world.violate(f"{id} leaks blobs: {sorted(left)[:3]}")
        for key in sorted(world.blobs):
            id = key.split("/")[0]
            # What stays of a collection that was dropped is its tombstone.
            if id not in known and not any(key in _rollups(each) for each in world.states.get(id, ())):
                world.violate(f"a blob of no collection is left: {key}")


def _committed_by(old: State, new: State) -> list[str]:
    """The committers of a commit."""
    return [
        id for id, each in new.committers.items() if id in old.committers and each.group != old.committers[id].group
    ]


def _rollups(state: State) -> set[str]:
    return {rollup.key for rollup in state.rollups.values()}


def run_history(seed: int, operations: int, faults: Faults | None = None, tracing: bool = False) -> Result:
    """Run one history of real stores and everything that is checked after it."""
    history = History(seed, faults if faults is not None else FAULTS, tracing=tracing)
    course = Course(history, operations)
    with remembering(), quiet(), impatient(), numbered(history), virtual(history.scheduler):
        history.scheduler.run(course.run)
    if history.scheduler.deadlock and not history.world.violations:
        history.world.violate(f"no thread can go on: {'; '.join(history.scheduler.deadlock)}")
    return Result(
        seed, len(history.calls), history.world.counts, history.world.violations, history.trace, _digest(history)
    )


def _digest(history: History) -> int:
    """A checksum over everything that was ever committed or answered."""
    digest = 0
    for key in sorted(history.world.logs):
        for entry in history.world.logs[key]:
            digest = zlib.crc32(entry, digest)
    for call in history.calls:
        digest = zlib.crc32(f"{call} {call.since_event} {call.until_event} {call.error!r}".encode(), digest)
    return zlib.crc32(str(history.scheduler.steps).encode(), digest)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Threads of processes that are killed end by an exception, which Python would tell of, and so would its library.

    What is left behind in cycles is collected after the history: when that happens is no matter of the seed.
    """
    before, hook, collects = logging.root.manager.disable, sys.unraisablehook, gc.isenabled()
    logging.disable(logging.CRITICAL)
    sys.unraisablehook = lambda told: None if told.exc_type is Killed else hook(told)
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
        sys.unraisablehook = hook
        logging.disable(before)


@contextlib.contextmanager
def impatient() -> Iterator[None]:
    """Changes claim a turn after their first loss: histories are too short for many."""
    before = retry.RETRY
    vars(turn)["RETRY"] = dataclasses.replace(before, quick_losses=1)
    try:
        yield
    finally:
        vars(turn)["RETRY"] = before


@contextlib.contextmanager
def numbered(history: History) -> Iterator[None]:
    """Ids that stores make up follow from the seed, and it is known which process made up which."""

    def fresh() -> SimpleNamespace:
        id = f"{history.random.getrandbits(128):032x}"
        task = history.scheduler.current
        if task is not None and isinstance(task.process, StoreProcess):
            task.process.ids.add(id)
        return SimpleNamespace(hex=id)

    real = vars(driver)["uuid"]
    vars(driver)["uuid"] = SimpleNamespace(uuid4=fresh)
    try:
        yield
    finally:
        vars(driver)["uuid"] = real

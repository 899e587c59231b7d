"""The course of a history: processes come and go, the faults stop, and a last read checks everything."""

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
from timespine.client.commit import cross_process_turn, effect_driver, relay, retry_limits
from timespine.client.store import Store
from timespine.core.state import State, Status
from timespine.testing.simulator.checker import HistoryResult
from timespine.testing.simulator.memoize import memoized
from timespine.testing.simulator.simulator import Faults
from timespine.testing.stores import world
from timespine.testing.stores.check_answers import StoreAnswerChecks, count_read_rows, key_and_value, last_time
from timespine.testing.stores.history import StoreHistory, StoreProcess
from timespine.testing.stores.maintaining_users import MaintainingUser
from timespine.testing.stores.reading_users import ReadingUser
from timespine.testing.stores.thread_scheduler import Killed, ScheduledThread
from timespine.testing.stores.user_calls import UserCall
from timespine.testing.stores.users import Caller
from timespine.testing.stores.virtual_threads import virtual_threads
from timespine.testing.stores.writing_users import WritingUser

PROCESSES = (1, 2, 2, 3)
"""Processes that use the store at the same time."""

THREADS = (1, 2, 3)
"""Threads of each process that call the store."""

BACKGROUND = (
    "timespine-delete",
    "timespine-follow",
    "timespine-heartbeat",
    "timespine-maintenance",
    "timespine-read",
    "timespine-relay",
)
"""Threads of a store that end with it."""

FORGET_S = 30.0
"""The deadline by which some collections forget expired history; the others take a day."""

DAY_S = 25 * 3600.0
"""The time after which no abandoned registration is waited for."""


FAULTS = Faults(fail=0.06, crash=0.002, pause=0.0015, clock=0.001, outage=0.0006)
"""Chances per call of storage, or per switch point. Each history has all of each, a quarter, or none."""


RELAY_FAULTS = 4
"""The factor by which requests to the appender fail more often than calls of storage: there are fewer of them."""


class ReadOnlyUser(ReadingUser):
    """A user of a store that is open for reading only."""


class User(WritingUser, ReadingUser, MaintainingUser):
    """A user that makes all kinds of calls."""

    def pass_time(self, name: str) -> None:
        """Let others change a collection between two reads of it, or change it."""
        if self.chance.random() < 0.4:
            self.upsert(name)
        else:
            self.dawdle()


class HistoryRun:
    """One history, from its beginning to its end."""

    def __init__(self, history: StoreHistory, operations: int) -> None:
        self.history = history
        self.answers = StoreAnswerChecks(history.world)
        self.left = [operations]
        """Calls that are still to be made."""
        self._expired: dict[str, int] = {}
        """By collection: the first readable time when the users were done."""

    def run(self) -> None:
        """Run all of it, in a thread of the scheduler."""
        history = self.history
        self._alone(self._create)
        history.storage.fail, history.is_calm = history.faults.fail, False
        history.storage.machines.fail = RELAY_FAULTS * history.faults.fail
        self._use(history.random.choice(PROCESSES) + history.config.relay_appends)
        self._end()

    def _use(self, processes: int) -> None:
        """Let some processes at a time use the store, until enough calls were made."""
        scheduler = self.history.scheduler
        running: list[ScheduledThread] = []
        while self.left[0] > 0 or running:
            while len(running) < processes and self.left[0] > 0:
                running.append(self._begin())
            scheduler.wait_for_any(running)
            running = [each for each in running if not each.is_done]

    def _create(self, process: StoreProcess, store: Store) -> None:
        for name, timeline in self.history.timelines.items():
            forget_within = FORGET_S if self.history.random.random() < 0.5 else None
            store.create(name, timeline=timeline, forget_within=forget_within, **self.history.shape)

    def _begin(self) -> ScheduledThread:
        """Start a process that opens a store, uses it with some threads, and closes it."""
        history, scheduler = self.history, self.history.scheduler
        process = history.process()
        chance = scheduler.random

        def main() -> None:
            read_only = chance.random() < 0.1
            history.open(process, maintenance=chance.random() < 0.6, read_only=read_only)
            threads = [
                scheduler.spawn(
                    process, f"user{number}", lambda: self.user(process, read_only=read_only).run(self.left)
                )
                for number in range(chance.choice(THREADS))
            ]
            while any(not each.is_done for each in threads):
                scheduler.wait_for_any([each for each in threads if not each.is_done])
            is_alone = not process.is_closing
            process.is_closing = True
            history.close(process)
            self._check_closed(process, is_alone=is_alone)

        return scheduler.spawn(process, "main", main)

    def user(self, process: StoreProcess, *, read_only: bool) -> Caller:
        """Return the calls of one thread of a process."""
        return (ReadOnlyUser if read_only else User)(self.history, process)

    def _alone(self, work: Callable[[StoreProcess, Store], object]) -> None:
        """Let one process work with a store, and wait for it."""
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
        """Check that a closed store has no threads, roles and registrations, unless storage refused the removal."""
        history = self.history
        for name in history.storage.machines.roles_of(process):
            history.world.violate(f"{process.name} has closed its store, and still is the {name}")
        left = [task.name for task in process.tasks if task.name.startswith(BACKGROUND)]
        if left:
            history.world.violate(f"{process.name} has closed its store, and {left[0]} still runs")
        if history.is_failing or history.is_disturbed or not is_alone:
            return
        for id, states in history.world.states.items():
            state = states[-1]
            if state.status is Status.FINALIZED:
                continue  # it was dropped, and has no registrations
            for registered in (*state.readers, *state.writers, *state.committers):
                if registered[1:] in process.ids:
                    history.world.violate(f"{process.name} has closed its store, and {registered} of {id} is left")

    # The end.

    def _end(self) -> None:
        """Stop the faults, let everything settle, and check the promises about the end."""
        history, world = self.history, self.history.world
        history.is_calm = True
        history.storage.fail = history.storage.away_until = history.storage.machines.fail = 0.0
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
        """Check that only the process that claimed a turn releases it."""
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
        """Check that everything can be read, before and after all maintenance is done."""
        names = self._must(process, "names", store.names).result
        for name in names:
            self._read(process, store[name], only_newest=True)
        self._must(process, "maintain", partial(store.maintain, sweep=True))
        for name in names:
            self._check_forgotten(store[name].id)
            self._must(process, "compact", partial(store[name].compact, wait=True))
            self._read(process, store[name])

    def _must(self, process: StoreProcess, kind: str, work: Callable[[], object]) -> UserCall:
        """Make a call that must work, now that nothing fails."""
        call = self.history.call(process, kind, lambda call: work())
        if call.error is not None:
            self.history.world.violate(f"after the faults stopped, {call} raised {call.error!r}", call.error)
            self.history.scheduler.switch("violated")
        return call

    def _read(self, process: StoreProcess, collection: Collection, *, only_newest: bool = False) -> None:
        """Check that readable times give the truth."""
        state = self.history.world.states[collection.id][-1]
        first, last = (state.since.elements or ((0,),))[0][0], last_time(state)
        if last < first:
            return  # nothing is complete yet
        for as_of in [last] if only_newest else sorted({first, (first + last) // 2, last}):
            planned = self._must(process, "plan a read", partial(collection.snapshot, as_of, multiplicity="column"))
            with planned.result as rows:
                call = self._must(process, "last read", rows.to_pylist)
            found = count_read_rows(call.result, rows._collection_schema)
            expected = self.history.world.truths[collection.id].at(as_of, rows._collection_schema)
            if found != expected:
                self.answers.rows_violate(call, f"as of {as_of} in the end", found, expected)

    def _check_forgotten(self, id: str) -> None:
        """Check that deleted rows that expired more than a day ago are physically gone."""
        world, since = self.history.world, self._expired[id]
        updates = [each for commit in world.truths[id].added for each in commit.updates]
        kept = {key_and_value(row)[1] for row in world.truths[id].at(since, self.answers.schema(id))}
        kept |= {key_and_value(row)[1] for row, time, _ in updates if time > since}
        left = ({key_and_value(row)[1] for row, _, _ in updates} - kept) & world.values(id)
        if left:
            world.violate(f"{id} still holds {sorted(left)[:3]}, which expired before {since}")

    def _check_storage(self) -> None:
        """Check that exactly the blobs exist that live states refer to."""
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
            # Only the tombstone stays of a dropped collection.
            if id not in known and not any(key in _rollups(each) for each in world.states.get(id, ())):
                world.violate(f"a blob of no collection is left: {key}")


def _committed_by(old: State, new: State) -> list[str]:
    """Return the committers of a commit, without those for which another process committed."""
    return [
        id
        for id, each in new.committers.items()
        if id in old.committers
        and each.group != old.committers[id].group
        and (each.relayed is None or each.relayed[0] != new.seqno)
    ]


def _rollups(state: State) -> set[str]:
    return {rollup.key for rollup in state.rollups.values()}


def run_store_history(seed: int, operations: int, faults: Faults | None = None, tracing: bool = False) -> HistoryResult:
    """Run one history of real stores and all checks after it."""
    history = StoreHistory(seed, faults if faults is not None else FAULTS, tracing=tracing)
    return run_course(seed, HistoryRun(history, operations))


def run_course(seed: int, course: HistoryRun) -> HistoryResult:
    """Run the course of a history in a world of its own."""
    history = course.history
    with (
        memoized(world),
        without_log(),
        with_short_waits(),
        with_numbered_ids(history),
        virtual_threads(history.scheduler),
    ):
        history.scheduler.run(course.run)
    if history.scheduler.deadlock and not history.world.violations:
        history.world.violate(f"no thread can go on: {'; '.join(history.scheduler.deadlock)}")
    return HistoryResult(
        seed, len(history.calls), history.world.counts, history.world.violations, history.trace, _digest(history)
    )


def _digest(history: StoreHistory) -> int:
    """Return a checksum over all commits and answers."""
    digest = 0
    for key in sorted(history.world.logs):
        for entry in history.world.logs[key]:
            digest = zlib.crc32(entry, digest)
    for call in history.calls:
        digest = zlib.crc32(f"{call} {call.since_event} {call.until_event} {call.error!r}".encode(), digest)
    return zlib.crc32(str(history.scheduler.steps).encode(), digest)


@contextlib.contextmanager
def without_log() -> Iterator[None]:
    """Silence the report of exceptions that end threads of killed processes, in Python and its library.

    Garbage in cycles is collected after the history: the seed does not decide when that happens.
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
def with_short_waits() -> Iterator[None]:
    """Let changes claim a turn after one loss, and processes share a relay at once: histories are short."""
    before, at_once = retry_limits.RETRY, {"LOSSES": relay.LOSSES, "OWN_COMMITTERS": relay.OWN_COMMITTERS}
    vars(cross_process_turn)["RETRY"] = dataclasses.replace(before, quick_losses=1)
    vars(relay).update(dict.fromkeys(at_once, 0))
    try:
        yield
    finally:
        vars(cross_process_turn)["RETRY"] = before
        vars(relay).update(at_once)


@contextlib.contextmanager
def with_numbered_ids(history: StoreHistory) -> Iterator[None]:
    """Let the ids of stores follow from the seed, and record which process made which."""

    def fresh() -> SimpleNamespace:
        id = f"{history.random.getrandbits(128):032x}"
        task = history.scheduler.current
        if task is not None and isinstance(task.process, StoreProcess):
            task.process.ids.add(id)
        return SimpleNamespace(hex=id)

    real = vars(effect_driver)["uuid"]
    vars(effect_driver)["uuid"] = SimpleNamespace(uuid4=fresh)
    try:
        yield
    finally:
        vars(effect_driver)["uuid"] = real

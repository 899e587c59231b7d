"""One history of copies: users that copy and restore, a restore in place or a fence, and what must hold in the end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from timespine.client.backup.copy_store import copy, promote
from timespine.client.backup.fence_store import fence
from timespine.client.backup.restore_to_commit import RestorePoint, restore_store
from timespine.client.store import Store
from timespine.errors import Fenced, StoreFenced, Unavailable, UsageError
from timespine.testing.copies.copy_ports import ORIGIN, CopyingHistory
from timespine.testing.copies.copy_users import CopyingUser, check_copied, check_restored, copy_urls, past_point
from timespine.testing.copies.copy_world import CopyWorld
from timespine.testing.copies.origin_world import CLOCK_ERROR_MS
from timespine.testing.simulator.checker import HistoryResult
from timespine.testing.simulator.simulator import Faults
from timespine.testing.stores.check_answers import Pair, StoreAnswerChecks, key_and_value
from timespine.testing.stores.history import StoreProcess
from timespine.testing.stores.history_run import FAULTS, HistoryRun, run_course
from timespine.testing.stores.user_calls import UserCall
from timespine.testing.stores.users import Caller
from timespine.testing.stores.world import Truth

KEEP_S = (None, 30, 120, 120, 600)
"""How long the store of a history keeps deleted data."""

RESTORES_MAX = 12
"""How often a restore in place is tried: processes may die in it, and storage may fail."""


class CopyingRun(HistoryRun):
    """The course of a history of copies."""

    history: CopyingHistory

    def __init__(self, history: CopyingHistory, operations: int) -> None:
        super().__init__(history, operations)
        self.history = history
        self._later = operations // 2
        self.left[0] -= self._later

    def user(self, process: StoreProcess, *, read_only: bool) -> Caller:
        return super().user(process, read_only=True) if read_only else CopyingUser(self.history, process)

    def _create(self, process: StoreProcess, store: Store) -> None:
        super()._create(process, store)
        history = self.history
        keep_s = history.random.choice(KEEP_S)
        if keep_s is not None:
            store.keep_deleted(keep_s)
            history.keep_ms, history.kept_since_ms = keep_s * 1000, history.world.clock()
            history.world.keep_for(history.keep_ms - CLOCK_ERROR_MS, history.world.clock)

    def _use(self, processes: int) -> None:
        """Let users work; then restore or fence the store while they are away, and let them work again."""
        super()._use(processes)
        chance = self.history.random.random()
        if chance < 0.5:
            self._while_open(self._restore_in_place)
        elif chance < 0.7:
            self._while_open(self._fence)
        self.left[0] += self._later
        super()._use(processes)

    # A restore in place, and a fence.

    def _while_open(self, work: Callable[[], bool]) -> None:
        """Do something while another process has the store open; that process must be refused after it."""
        history, scheduler = self.history, self.history.scheduler
        witness = history.process()
        opened: list[Store] = []
        is_fenced: list[bool] = []

        def main() -> None:
            opened.append(history.open(witness, maintenance=history.random.random() < 0.5))
            while not is_fenced:
                scheduler.sleep(1.0)
            if is_fenced[0]:
                self._check_refused(witness, opened[0])
            witness.is_closing = True
            history.call(witness, "close", lambda call: opened[0].close())

        task = scheduler.spawn(witness, "main", main)
        while not opened and not task.is_done:
            scheduler.sleep(0.01)
        is_fenced.append(work())
        while not task.is_done:
            scheduler.wait_for_any([task])

    def _check_refused(self, process: StoreProcess, store: Store) -> None:
        """Check that a process which opened the store before can commit no longer."""

        def append(call: UserCall) -> object:
            return store["orders"].append([{"k": 0, "v": f"{call.id}.0"}])

        call = self.history.call(process, "append after a fence", append)
        if call.error is None or not isinstance(call.error, Fenced | Unavailable | UsageError):
            self.history.world.violate(f"{call} was not refused, but {call.result!r}, {call.error!r}", call.error)
        if self.history.world.by_call.get(call.id):
            self.history.world.violate(f"{call} of an earlier epoch is there")
        self.history.world.counts["refused after a fence"] += isinstance(call.error, StoreFenced)

    def _restore_in_place(self) -> bool:
        """Restore the store to an earlier moment, until it works; return whether it was fenced."""
        point = past_point(self.history)
        for _ in range(RESTORES_MAX):
            call = self._call_of_a_new_process("restore in place", partial(restore_store, ORIGIN, point))
            check_restored(self.history, call, point)
            if call.is_done:
                self._check_in_place(call, point)
                return True
            if isinstance(call.error, UsageError):
                return False
        return False

    def _check_in_place(self, call: UserCall, point: RestorePoint) -> None:
        """Check that the collections that are there have the commits of the moment, and no others."""
        world = self.history.world
        entries = world.names[-1][1].entries
        if entries.keys() != call.result.collections.keys():
            world.violate(f"{call} was told of {sorted(call.result.collections)}, and {sorted(entries)} are there")
            return
        for name, seqno in call.result.collections.items():
            id = entries[name].id
            if world.commits_at(id, len(world.states[id]) - 1) != world.commits_at(id, seqno):
                world.violate(f"{call} was told that {name} is as of {seqno}, and it is not")
        world.counts["restored in place"] += 1

    def _fence(self) -> bool:
        """Fence the store, until it works."""
        for _ in range(RESTORES_MAX):
            call = self._call_of_a_new_process("fence", partial(fence, ORIGIN))
            if call.is_done:
                return True
        return False

    def _call_of_a_new_process(self, kind: str, work: Callable[[], object]) -> UserCall:
        history, scheduler = self.history, self.history.scheduler
        process = history.process()
        made: list[UserCall] = []

        def record(call: UserCall) -> object:
            made.append(call)
            return work()

        def main() -> None:
            history.call(process, kind, record)

        task = scheduler.spawn(process, "main", main)
        while not task.is_done:
            scheduler.wait_for_any([task])
        error = made[0].error
        if error is not None and not isinstance(error, Unavailable | UsageError | StoreFenced):
            history.world.violate(f"{made[0]} raised {error!r}", error)
        return made[0]

    # The end.

    def _settle(self, process: StoreProcess, store: Store) -> None:
        """Check that copies are complete and without garbage, now that nothing fails, and that one can be promoted."""
        urls = copy_urls(self.history)
        for url in urls:
            self._copy(process, store, url)
        super()._settle(process, store)
        for url in urls:
            self._copy(process, store, url)
        world = self.history.copy_world(urls[0])
        self._must(process, "promote", partial(promote, world.url))
        self._use_promoted(process, world)

    def _copy(self, process: StoreProcess, store: Store, url: str) -> None:
        call = self._must(process, "copy", partial(copy, store, url, verify="full"))
        world = self.history.copy_world(url)
        check_copied(call, world)
        left = world.blobs.keys() - world.needed()
        if left:
            world.violate(f"{url} was copied, and still has {sorted(left)[:3]}")

    def _use_promoted(self, process: StoreProcess, world: CopyWorld) -> None:
        """Check that a promoted copy is a store: it takes rows, and has those of the cut."""

        def work() -> tuple[Any, list[Pair]]:
            with self.history.open_at(world.url) as store:
                orders = store["orders"]
                time = orders.append([{"k": 0, "v": "promoted"}]).time
                store.maintain(sweep=True)
                return time, sorted((row["k"], row["v"]) for row in orders.snapshot(time).to_pylist())

        time, found = self._must(process, "use a promoted copy", work).result
        cut, origin = world.cuts[-1], world.origin
        id = cut.names["orders"]
        rows = Truth(added=origin.commits_at(id, cut.heads[id])).at(time, StoreAnswerChecks(origin).schema(id))
        pairs = [key_and_value(row) for row, count in rows.items() for _ in range(count)]
        if found != sorted([*pairs, (0, "promoted")]):
            world.violate(f"{world.url} was promoted, and has {found[:6]}, and the copy had {sorted(pairs)[:6]}")


def run_copy_history(seed: int, operations: int, faults: Faults | None = None, tracing: bool = False) -> HistoryResult:
    """Run one history of copies and all checks after it."""
    history = CopyingHistory(seed, faults if faults is not None else FAULTS, tracing=tracing)
    with history.simulated():
        return run_course(seed, CopyingRun(history, operations))

"""One history of views: inputs and first views, processes that use them, faults, and what must hold in the end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

from timespine.client.store import Store
from timespine.testing.refreshers.queries import QUERIES
from timespine.testing.refreshers.view_checks import ViewChecks
from timespine.testing.refreshers.view_users import NUMBERS, ViewUser, every_share, make_view
from timespine.testing.simulator.checker import HistoryResult
from timespine.testing.simulator.simulator import Faults
from timespine.testing.stores.history import StoreHistory, StoreProcess
from timespine.testing.stores.history_run import FAULTS, HistoryRun, run_course
from timespine.testing.stores.users import KEYS, Caller
from timespine.views import view  # noqa: F401 (histories patch modules that are there)
from timespine.views.compute_changes import compile_definition
from timespine.views.refresh import refresh_views

SHAPE = {"key": {"k": "int64"}, "value": {"v": "string", "n": "int64"}}


class ViewHistoryRun(HistoryRun):
    """The course of a history of views."""

    def __init__(self, history: StoreHistory, operations: int) -> None:
        super().__init__(history, operations)
        history.shape, history.timelines = SHAPE, {"orders": "counter", "items": "counter", "events": "clock"}
        self.checks = ViewChecks(history.world)
        self.checks.is_together = history.random.random() < 0.5

    def user(self, process: StoreProcess, *, read_only: bool) -> Caller:
        return super().user(process, read_only=True) if read_only else ViewUser(self.history, process, self.checks)

    def _create(self, process: StoreProcess, store: Store) -> None:
        super()._create(process, store)
        chance = self.history.random
        store.create("x0", timeline="counter", **self.history.shape)
        for name in (*self.history.timelines, "x0"):
            rows = [{"k": chance.randrange(KEYS), "v": f"first.{i}", "n": chance.choice(NUMBERS)} for i in range(5)]
            store[name].append(rows)
        self._create_views(store)

    def _create_views(self, store: Store) -> None:
        """Create some views, of which the last may read the first."""
        chance, stacked = self.history.random, ""
        for number in range(chance.choice((1, 2, 3))):
            query = chance.choice(QUERIES)
            choices = ["orders", "items", "x0"] if not stacked else [stacked, stacked, "orders"]
            inputs = {place: chance.choice(choices) for place in ("a", "b")[: query.inputs]}
            if query.inputs == 1 and chance.random() < 0.25:
                inputs = {"a": "events"}
            keyed, every = chance.random() < 0.3, chance.random() < every_share(query)
            make_view(store, self.checks, f"v{number}", query, inputs, keyed=keyed, every=every)
            if query.stackable and inputs["a"] != "events":
                stacked = f"v{number}"

    # The end.

    def _settle(self, process: StoreProcess, store: Store) -> None:
        """Check that views reach the newest time after all faults, and that dropped ones leave nothing."""
        self._refresh_in_the_end(process, store)
        super()._settle(process, store)
        self._drop_in_the_end(process, store)

    def _refresh_in_the_end(self, process: StoreProcess, store: Store) -> None:
        checks = self.checks
        if any(each in checks.forced for known in checks.views.values() for each in known.inputs):
            return  # it was dropped by force, so that its views cannot go on
        call = self._must(process, "refresh all", store.refresh)
        if call.error is None:
            ids = {name: entry.id for name, entry in self.history.world.names[-1][1].entries.items()}
            checks.check_refreshed(call, ids, {name: each.time for name, each in call.result.items()}, {})

    def _drop_in_the_end(self, process: StoreProcess, store: Store) -> None:
        """Drop all views, one of them new: neither stages nor holds of views may be left, also of earlier ones."""
        make = partial(make_view, store, self.checks, "last", QUERIES[0], {"a": "orders"}, keyed=False)
        self._must(process, "create view", make)
        for name in store.views():
            self._must(process, "drop view", partial(store.drop, name, force=True))
        world = self.history.world
        for name, entry in world.names[-1][1].entries.items():
            if entry.role == "stage":
                world.violate(f"all views are dropped, and {name} is left")
            held = [hold for hold in world.states[entry.id][-1].holds if hold.startswith("view-")]
            if held:
                world.violate(f"all views are dropped, and {held[0]} still holds {name}")

    def _check_forgotten(self, id: str) -> None:
        if id not in self.checks.views:
            super()._check_forgotten(id)


def run_view_history(seed: int, operations: int, faults: Faults | None = None, tracing: bool = False) -> HistoryResult:
    """Run one history of views and all checks after it."""
    history = StoreHistory(seed, faults if faults is not None else FAULTS, tracing=tracing)
    compile_definition.cache_clear()
    with with_short_holds():
        return run_course(seed, ViewHistoryRun(history, operations))


@contextlib.contextmanager
def with_short_holds() -> Iterator[None]:
    """Let holds on inputs follow refreshes soon: histories are short."""
    before = dict(refresh_views.HOLD_STEPS)
    refresh_views.HOLD_STEPS.update(clock=1_000, counter=2)
    try:
        yield
    finally:
        refresh_views.HOLD_STEPS.update(before)

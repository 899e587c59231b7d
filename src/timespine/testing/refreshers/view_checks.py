"""The promises of views, checked at every commit: from the log, and not from the answers of stores.

V1 *Exact*: at every upper that a view gets, its rows are its query over the inputs as of the time before; with
times="every", as of each time since the last upper too.
V2 *Atomic*: a view and its stages move together; a refresh of all views moves all of a time line.
V3 *Exactly once*: follows from V1, as the rows are those that commits added; and each commit adds them at one time.
V4 *Net*: the stored updates of a commit have no row twice.
V6 *Input-safe*: what a view needs of its inputs is not expired, and no input of a view is dropped, unless by force.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from timespine.client.catalog import catalog
from timespine.core.read_plan import plan_all
from timespine.core.state import State
from timespine.testing.refreshers.queries import RowCounts, SimulatedQuery
from timespine.testing.stores.check_answers import last_time
from timespine.testing.stores.user_calls import UserCall
from timespine.testing.stores.world import StoreWorld, decode_stored_schema
from timespine.views.definition import ViewDefinition, decode_definition
from timespine.views.registry import NAME

REFRESH_ALL = "refresh all"
"""The kind of calls that refresh every view."""


@dataclass(slots=True)
class KnownView:
    """A view of a history."""

    id: str
    query: SimulatedQuery
    inputs: tuple[str, ...]
    """The ids of its inputs, in the order of the query."""
    definition: ViewDefinition
    timeline: str
    since_event: int
    """The commit that created it."""
    upper: int = 0
    """The upper that it had at the last look."""
    added: int = 0
    """How many of its commits with rows were looked at."""


class ViewChecks:
    """The checks of all views of one history."""

    def __init__(self, world: StoreWorld) -> None:
        self.world = world
        self.queries: dict[str, tuple[SimulatedQuery, tuple[str, ...]]] = {}
        """By the text of a view: its query, and the names of its inputs in order."""
        self.views: dict[str, KnownView] = {}
        """The views of the newest catalog, by id."""
        self.inputs_of: dict[str, tuple[str, ...]] = {}
        """The ids of the inputs of every view that there ever was, by its id."""
        self.is_together = False
        """Whether calls refresh all views, and never some."""
        self.refreshes: list[UserCall] = []
        """All calls that refresh views."""
        self.forced: set[str] = set()
        """Collections that were dropped by force."""
        self._definitions: dict[str, ViewDefinition] = {}
        self._looked_at: tuple[int, int] | None = None
        """The numbers of catalogs, and of commits of the registry, at the last look."""
        world.on_commit = self.check

    def check(self) -> None:
        """Check every promise after a compare-and-set."""
        if self.world.violations or not self.world.names:
            return
        names = self.world.names[-1][1]
        registry = names.entries.get(NAME)
        known = self.world.truths.get(registry.id) if registry is not None else None
        at = len(self.world.names), len(known.added) if known is not None else 0
        if at != self._looked_at:
            self._learn_views(names)
            self._looked_at = at
        moved = [view for view in self.views.values() if self._upper(view.id) != view.upper]
        for view in moved:
            self._check_moved(view)
        for line in sorted({view.timeline for view in moved}):
            self._check_together(line, [view for view in moved if view.timeline == line])
        for view in moved:
            view.upper = self._upper(view.id)
        for view in self.views.values():
            self._check_stages(view)
            self._check_held(view)

    def is_every(self, id: str) -> bool:
        """Tell whether a view is exact at every time."""
        return id in self.views and self.views[id].definition.times == "every"

    # Learning.

    def _learn_views(self, names: catalog.Names) -> None:
        """Find the views of a catalog, and check that their inputs are still there."""
        self.forced.update(names.forced)
        self._learn_definitions(names)
        there = {entry.id for entry in names.entries.values()}
        for id in [id for id in self.views if id not in there]:
            del self.views[id]
        for name, entry in names.entries.items():
            if entry.role == "view" and entry.id not in self.views:
                definition = self._definitions.get(entry.id)
                if definition is None:
                    self.world.violate(f"view {name} is in the catalog, and has no definition")
                    return
                self._add(entry, definition)
            elif entry.role == "view":
                self.views[entry.id].definition = self._definitions[entry.id]
        self._check_inputs_exist(there)

    def _add(self, entry: catalog.CatalogEntry, definition: ViewDefinition) -> None:
        query, inputs = self.queries[definition.sql]
        ids = {each.name: each.id for each in definition.inputs}
        self.inputs_of[entry.id] = tuple(ids.values())
        self.views[entry.id] = KnownView(
            entry.id, query, tuple(ids[name] for name in inputs), definition, entry.timeline, self.world.event
        )

    def _learn_definitions(self, names: catalog.Names) -> None:
        registry = names.entries.get(NAME)
        if registry is None or registry.id not in self.world.truths:
            return
        held = self.world.truths[registry.id].held
        for (row, _), diff in sorted(held.items(), key=lambda each: each[0][1]):
            values = [value for _, value in row]
            if diff > 0:  # a rebuild writes another one
                self._definitions[str(values[0])] = decode_definition(values[1])  # type: ignore[arg-type]

    # Checking.

    def _check_inputs_exist(self, there: set[str]) -> None:
        """Check V6: no input of a view is dropped, unless by force."""
        for view in self.views.values():
            gone = [each for each in view.inputs if each not in there and each not in self.forced]
            if gone:
                self.world.violate(f"{gone[0]}, which view {view.id} reads, was dropped")

    def _check_held(self, view: KnownView) -> None:
        """Check V6: the inputs can be read as of the time from which the view goes on."""
        for each in view.inputs:
            since = self.world.states[each][-1].since
            if each in self.forced or each in self._dropped():
                continue
            if since.is_closed or since.time > view.upper - 1:
                self.world.violate(
                    f"view {view.id} goes on from {view.upper - 1}, and {each} can be read from {since} on"
                )

    def _dropped(self) -> tuple[str, ...]:
        return self.world.names[-1][1].dropped

    def _check_moved(self, view: KnownView) -> None:
        """Check V1, V3 and V4 of a view whose upper moved."""
        world, time = self.world, self._upper(view.id) - 1
        if any(last_time(world.states[each][-1]) < time for each in view.inputs):
            world.violate(f"view {view.id} claims to be complete at {time}, where its inputs are not")
            return
        for each in self._exact_times(view, time):
            found = self.rows_of(view.id, each, view.query.columns)
            wanted = self.answer(view, each)
            if found != wanted:
                more, less = found - wanted, wanted - found
                world.violate(
                    f"view {view.id} ({view.query.name}) is not its query as of {each}: it has {dict(more)} too many "
                    f"and lacks {dict(less)}"
                )
        self._check_net(view, time)

    def _exact_times(self, view: KnownView, time: int) -> list[int]:
        """List the times at which a view that has moved to a time has to be exact, and can be read."""
        if view.definition.times != "every":
            return [time]
        since = [self.world.states[each][-1].since for each in (view.id, *view.inputs)]
        first = max([view.upper, *(each.time for each in since if each.elements)])
        if view.timeline != "clock":
            return list(range(first, time + 1))
        # On the wall clock there are too many times: those at which something changes have to do.
        changed = {when for id in (view.id, *view.inputs) for _, when in self.world.truths[id].held}
        return [*sorted(each for each in changed if first <= each < time), time]

    def _check_stages(self, view: KnownView) -> None:
        """Check V2: stages stand where their view stands."""
        behind = [each for each in view.definition.stages if self._upper(each) != self._upper(view.id)]
        if behind:
            self.world.violate(
                f"view {view.id} is at {self._upper(view.id)}, and its stage {behind[0]} at {self._upper(behind[0])}"
            )

    def _check_net(self, view: KnownView, time: int) -> None:
        """Check V3 and V4: a refresh adds rows at its own time only, and no row that came and went."""
        world = self.world
        truth = world.truths[view.id]
        for commit in truth.added[view.added :]:
            times = {when for _, when, _ in commit.updates}
            first = view.upper if view.definition.times == "every" else time
            if not all(first <= when <= time for when in times):
                world.violate(f"the refresh of {view.id} to {time} added rows at {sorted(times)}")
        view.added = len(truth.added)
        stored = self._stored(world.states[view.id][-1], view.upper, time)
        twice = [row for (row, _), count in stored.items() if count > 1]
        if twice:
            world.violate(f"the refresh of {view.id} to {time} stores {twice[0]} more than once")

    def _stored(self, state: State, lower: int, time: int) -> Counter[tuple[object, int]]:
        """Count the stored updates of the newest batch of a view by row and time."""
        found: Counter[tuple[object, int]] = Counter()
        for run in plan_all(state).runs:
            schema = state.schemas[run.schema if run.schema is not None else -1]
            for part in run.parts:
                for row, when, _ in self.world._seen(part, schema):
                    if lower <= when <= time:
                        found[row, when] += 1
        return found

    def _check_together(self, line: str, moved: list[KnownView]) -> None:
        """Check V2: where all views are refreshed together, one commit moves all of a time line that were there."""
        if not self.is_together:
            return
        refreshed = [view for view in moved if view.since_event < self.world.event]
        if not refreshed:
            return
        upper = max(self._upper(view.id) for view in refreshed)
        others = [view for view in self.views.values() if view.timeline == line and self._upper(view.id) < upper]
        if not others:
            return
        # Some call must explain the commit: all views that were there when it began have moved.
        calls = [call for call in self.refreshes if not call.is_refused and (call.until_event < 0 or not call.is_done)]
        for call in calls:
            if all(view.since_event > call.since_event for view in others):
                return
        self.world.violate(f"a refresh of all views moved {refreshed[0].id} to {upper}, and not {others[0].id}")

    # Rows.

    def _upper(self, id: str) -> int:
        return last_time(self.world.states[id][-1]) + 1

    def rows_of(self, id: str, time: int, columns: tuple[str, ...]) -> RowCounts:
        """Return the rows of a collection as of a time, in some columns."""
        schema = decode_stored_schema(self.world.states[id][-1].schemas[-1])
        places = {each.name: place for place, each in enumerate(schema.fields)}
        wanted = [places[name] for name in columns]
        got: RowCounts = Counter()
        for row, count in self.world.truths[id].at(time, schema).items():
            got[tuple(row[place][1] for place in wanted)] += count
        return Counter({row: count for row, count in got.items() if count})

    def answer(self, view: KnownView, time: int) -> RowCounts:
        """Compute a view from the history of its inputs."""
        inputs = [self.rows_of(each, time, ("k", "n")) for each in view.inputs]
        got = view.query.answer(inputs[0], inputs[-1])
        return Counter({row: count for row, count in got.items() if count})

    # Answers.

    def check_refreshed(
        self, call: UserCall, names: dict[str, str], told: dict[str, int], left: dict[str, str]
    ) -> None:
        """Check what a refresh reported: each view is there, and no further behind than all inputs were.

        A view that lost an input by force stays where it is, and so do those that read it. No other is left out.
        """
        world = self.world
        for name, error in left.items():
            lost = (
                "dropped",
                "not refreshed, because its input",
                *(("can no longer be read",) if self.forced else ()),
            )
            if not any(each in error for each in lost):
                world.violate(f"{call} left {name} out: {error}")
        found = {name: self.views[names[name]] for name in told if names.get(name) in self.views}
        if len(found) < len(told):
            return  # some view was dropped meanwhile
        for name, time in told.items():
            view = found[name]
            states = world.states_between(view.id, call.since_event, call.until_event)
            if max(last_time(state) for state in states) < time:
                world.violate(f"{call} reported {name} as of {time}, where it never was")
            reached = self._reached(call, [each for each in found.values() if each.timeline == view.timeline])
            if time < reached and name not in left and self.forced.isdisjoint(view.inputs):
                world.violate(f"{call} left {name} at {time}, though the inputs were complete at {reached}")

    def _reached(self, call: UserCall, views: list[KnownView]) -> int:
        """Return the time at which all inputs of some views, other than these, were complete when a call began."""
        ids = {each for view in views for each in view.inputs} - {view.id for view in views}
        began = [self.world.states_between(each, call.since_event, call.since_event) for each in sorted(ids)]
        return min((last_time(states[-1]) for states in began if states), default=-1)

"""The status of a view: how far it is, what its inputs have that it lacks, what it keeps, and its last refreshes."""

from __future__ import annotations

from dataclasses import dataclass

from timespine.client.api_for_engines import (
    Collection,
    CollectionHandle,
    ReadOptions,
    Store,
    catalog_entries,
    extent_of,
    handle_of,
    open_changes,
)
from timespine.core.state import State
from timespine.errors import UsageError
from timespine.views.definition import ViewDefinition, dropped_input
from timespine.views.registry import open_remaining_inputs

REFRESHES = 5
"""How many of the last refreshes are listed."""


@dataclass(frozen=True, slots=True)
class InputStatus:
    """What an input has that a view lacks."""

    time: int | None
    """The newest complete time; None if the input is closed."""
    behind: int
    """How far that is ahead of the view: milliseconds, or steps of a counter."""
    updates: int
    """At most this many updates in between, as far as is known without reading them."""


@dataclass(frozen=True, slots=True)
class StoredSize:
    """What a collection stores."""

    rows: int
    """The number of updates."""
    bytes: int
    """Their bytes."""


@dataclass(frozen=True, slots=True)
class RefreshPoint:
    """One of the last refreshes."""

    time: int
    """The time that the view is exact at."""
    at_ms: int
    """When it was committed, in milliseconds of the wall clock of the process that did."""
    changes: int
    """The number of rows that came or went."""


@dataclass(frozen=True, slots=True)
class ViewStatus:
    """How far a view is, and what it keeps."""

    name: str
    """The name of the view."""
    mode: str
    """How it is refreshed: incremental, process or spark."""
    policy: str
    """How it may be refreshed: a `ViewPolicy`."""
    times: str
    """refresh or every."""
    time: int
    """The time that it is complete up to, and exact at; -1 if it was created and not built yet."""
    behind: int
    """How far the newest time that is complete in all inputs is ahead: milliseconds, or steps of a counter."""
    lag_s: float | None
    """How far the wall clock is ahead, in seconds; None if times are those of a counter."""
    inputs: dict[str, InputStatus]
    """What each input has that the view lacks; without those that were dropped."""
    stored: StoredSize
    """What the view stores."""
    stages: dict[str, StoredSize]
    """What its stages store."""
    refreshes: list[RefreshPoint]
    """The last refreshes, oldest first."""
    error: str = ""
    """Why it is no longer refreshed: an input of it was dropped. Empty otherwise."""

    @property
    def bytes(self) -> int:
        """The bytes of the view and its stages."""
        return self.stored.bytes + sum(each.bytes for each in self.stages.values())


def status_of(store: Store, view: Collection, definition: ViewDefinition) -> ViewStatus:
    """Say how far a view is, and what it keeps."""
    handle = handle_of(view)
    state = handle.state()
    time = time_of_view(view.name, state)
    entries = catalog_entries(store)
    there = open_remaining_inputs(store, definition, entries)
    inputs = {name: _input_status(each, time) for name, each in there.items()}
    gone = [each.name for each in definition.inputs if each.name not in there]
    newest = [each.time for each in inputs.values() if each.time is not None]
    names = {entry.id: name for name, entry in entries.items()}
    points = [
        RefreshPoint(each.upper.time - 1, each.committed_ms, each.rows)
        for each in state.history
        if not each.upper.is_closed and each.upper.time > 0
    ]
    return ViewStatus(
        view.name,
        definition.mode,
        definition.policy,
        definition.times,
        time,
        max(min(newest, default=time) - time, 0),
        max(handle.now_ms() - time, 0) / 1000 if handle.entry.timeline == "clock" else None,
        inputs,
        _size_of(view),
        {names[id]: _size_of(store.collection(names[id])) for id in definition.stages if id in names},
        points[-REFRESHES:],
        str(dropped_input(view.name, gone[0])) if gone else "",
    )


def time_of_view(name: str, state: State) -> int:
    """Return the time that a view is exact at in a state; raise a UsageError if it was dropped."""
    if state.upper.is_closed:
        raise UsageError(f"view {name} was dropped")
    return state.upper.time - 1


def _input_status(handle: CollectionHandle, time: int) -> InputStatus:
    upper = handle.state().upper
    if upper.is_closed:
        return InputStatus(None, 0, 0)
    newest = upper.time - 1
    if newest <= time:
        return InputStatus(newest, 0, 0)
    with open_changes(handle, time if time >= 0 else None, newest, ReadOptions()) as rows:
        return InputStatus(newest, newest - time, extent_of(rows)[0])


def _size_of(collection: Collection) -> StoredSize:
    found = collection.inspect()
    return StoredSize(found.rows, found.size)

"""Snapshots of several collections as of one time: a consistent cut."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType

from timespine.client.arguments.time_args import TimeLike, unwrap_time
from timespine.client.collection import Collection, handle_of
from timespine.client.inner_handles import CollectionHandle
from timespine.client.read.acquire import WAIT_S, newest_of, seconds_of
from timespine.client.read.open_read import ReadOptions, open_snapshot
from timespine.client.read.rows import Snapshot
from timespine.client.refuse_pickle import OneProcess
from timespine.core.state import State
from timespine.errors import NotSealed, SinceError, UsageError
from timespine.hints import Hint
from timespine.model.time import INT64_MAX, Time

ATTEMPTS = 16
"""Times that the newest common time is looked for, because another process expired it in between."""


class MultiSnapshot(OneProcess, Mapping[str, Snapshot]):
    """Snapshots by name, all as of the same time. It holds history until it is closed or garbage collected."""

    def __init__(self, as_of: int | Time, snapshots: dict[str, Snapshot]) -> None:
        self.as_of = as_of
        """The time of all snapshots."""
        self._snapshots = snapshots

    def __getitem__(self, name: str) -> Snapshot:
        return self._snapshots[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._snapshots)

    def __len__(self) -> int:
        return len(self._snapshots)

    def close(self) -> None:
        """Release history."""
        for snapshot in self._snapshots.values():
            snapshot.close()

    def __enter__(self) -> MultiSnapshot:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{', '.join(self._snapshots)} as of {self.as_of}>"


def snapshot_many(
    collections: Sequence[Collection],
    as_of: TimeLike | None,
    timeout: float | None = WAIT_S,
    multiplicity: str = "rows",
) -> MultiSnapshot:
    """Read several collections as of one time: by default the largest that is complete in all of them."""
    if not collections:
        raise UsageError("name at least one collection")
    handles = [handle_of(each) for each in collections]
    lines = {(each.entry.timeline, each.known().arity) for each in handles}
    if len(lines) > 1:
        raise UsageError("the times of these collections are of different kinds, so they have none in common")
    if as_of is not None:
        return _read_all(handles, as_of, timeout, multiplicity)
    monotonic = handles[0].context.monotonic
    deadline = monotonic() + seconds_of(timeout)
    for _ in range(ATTEMPTS):
        try:
            return _read_newest(handles, timeout, multiplicity)
        except SinceError:
            # Another process expired that time, or one collection expired times that another has not completed yet.
            _wait_for_since(handles, deadline, monotonic)
    return _read_newest(handles, timeout, multiplicity)


def _read_newest(handles: Sequence[CollectionHandle], timeout: float | None, multiplicity: str) -> MultiSnapshot:
    """Read all as of the largest time that is complete in all of them. Looks at each log once."""
    states = [each.state() for each in handles]
    newest: list[Time] = []
    for handle, state in zip(handles, states, strict=True):
        time = newest_of(state).time
        if time is None:
            raise UsageError(f"{handle.name} has no complete time yet", hint=Hint("complete-first"))
        newest.append(time)
    return _read_all(handles, min(newest), timeout, multiplicity, states)


def _read_all(
    handles: Sequence[CollectionHandle],
    as_of: TimeLike,
    timeout: float | None,
    multiplicity: str,
    states: Sequence[State | None] = (),
) -> MultiSnapshot:
    """Read all as of one time, on states that the caller has just read, if given."""
    with contextlib.ExitStack() as stack:
        snapshots: dict[str, Snapshot] = {}
        for handle, state in zip(handles, states or [None] * len(handles), strict=True):
            try:
                snapshot = open_snapshot(handle, as_of, ReadOptions(timeout=timeout, state=state), multiplicity)
            except (NotSealed, SinceError) as error:
                error.args = (f"{handle.name}: {error.message}",)
                raise
            snapshots[handle.name] = snapshot
            stack.callback(snapshot.close)
        stack.pop_all()
    return MultiSnapshot(unwrap_time(handles[0].time_of(as_of)), snapshots)


def _wait_for_since(handles: Sequence[CollectionHandle], deadline: float, monotonic: Callable[[], float]) -> None:
    """Wait until every collection is complete at the latest since of all; raise NotSealed for one that is not."""
    sinces = [each.state().since for each in handles]
    first = max(since.elements[0] if since.elements else (INT64_MAX,) for since in sinces)
    for each in handles:
        left = deadline - monotonic()
        if each.wait(lambda state: not state.upper.less_equal(first), left) is None:
            error = NotSealed(unwrap_time(first), each.known().upper, expired=True)
            error.args = (f"{each.name}: {error.message}",)
            raise error

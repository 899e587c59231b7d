"""A consistent cut: several collections as of one time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from timespine.client.acquire import WAIT_S, last_complete, seconds_of
from timespine.client.collection import Collection
from timespine.client.moments import Moment, to_user
from timespine.client.one_process import OneProcess
from timespine.client.rows import Snapshot
from timespine.errors import NotSealed, SinceError, UsageError
from timespine.model.time import INT64_MAX, Time

ATTEMPTS = 16
"""How often the newest common time is looked for again because somebody let it go meanwhile."""


class Cut(OneProcess, Mapping[str, Snapshot]):
    """Snapshots by name, all as of the same time. It holds history until it is closed or garbage collected."""

    def __init__(self, as_of: int | Time, snapshots: dict[str, Snapshot]) -> None:
        self.as_of = as_of
        """The time."""
        self._snapshots = snapshots

    def __getitem__(self, name: str) -> Snapshot:
        return self._snapshots[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._snapshots)

    def __len__(self) -> int:
        return len(self._snapshots)

    def close(self) -> None:
        """Let history go."""
        for snapshot in self._snapshots.values():
            snapshot.close()

    def __enter__(self) -> Cut:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{', '.join(self._snapshots)} as of {self.as_of}>"


def cut(collections: Sequence[Collection], as_of: Moment | None, timeout: float | None = WAIT_S, **options: Any) -> Cut:
    """Several collections as of one time: the largest that is complete in all of them, if none is named."""
    if not collections:
        raise UsageError("name at least one collection")
    lines = {(each._access.entry.timeline, each._access.known().arity) for each in collections}
    if len(lines) > 1:
        raise UsageError("the times of these collections are of different kinds, so they have none in common")
    if as_of is not None:
        return _cut(collections, as_of, timeout, options)
    deadline = _monotonic(collections) + seconds_of(timeout)
    for _ in range(ATTEMPTS):
        try:
            return _cut(collections, _newest_common(collections), timeout, options)
        except SinceError:
            # That time was let go meanwhile, or one collection expired times that another has not completed yet.
            _wait_for_since(collections, deadline)
    return _cut(collections, _newest_common(collections), timeout, options)


def _monotonic(collections: Sequence[Collection]) -> float:
    return collections[0]._access.shared.monotonic()


def _wait_for_since(collections: Sequence[Collection], deadline: float) -> None:
    """Wait until every collection is complete at the latest since of all; NotSealed names one that is not."""
    first = max(each.since.elements[0] if each.since.elements else (INT64_MAX,) for each in collections)
    for each in collections:
        left = deadline - _monotonic(collections)
        if each._access.wait(lambda state: not state.upper.less_equal(first), left) is None:
            error = NotSealed(to_user(first), each.upper, expired=True)
            error.args = (f"{each.name}: {error}",)
            raise error


def _newest_common(collections: Sequence[Collection]) -> Moment:
    """The largest time that is complete in all collections."""
    newest: list[Time] = []
    for collection in collections:
        time = last_complete(collection._access.state())
        if time is None:
            raise UsageError(f"{collection.name} has no complete time yet: append to it, seal it, or store.advance()")
        newest.append(time)
    return min(newest)


def _time(collection: Collection, moment: Moment) -> Time:
    return collection._access.time_of(moment)


def _cut(collections: Sequence[Collection], as_of: Moment, timeout: float | None, options: dict[str, Any]) -> Cut:
    with contextlib.ExitStack() as stack:
        snapshots: dict[str, Snapshot] = {}
        for collection in collections:
            try:
                snapshot = collection.snapshot(as_of, timeout=timeout, **options)
            except (NotSealed, SinceError) as error:
                error.args = (f"{collection.name}: {error}",)
                raise
            snapshots[collection.name] = snapshot
            stack.callback(snapshot.close)
        stack.pop_all()
    return Cut(to_user(_time(collections[0], as_of)), snapshots)

"""Blob and consensus of one process: storage that fails by the seed, and that a dead process cannot reach."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from timespine.core.effects import CompareAndSet, DeleteBlobs, GetBlob, ListBlobs, PutBlob, Scan, Truncate
from timespine.errors import Determinate, Indeterminate, StoreFenced
from timespine.ids import parse_blob_key, parse_blob_prefix
from timespine.location.blob import BLOB_BYTES_MAX, BlobInfo
from timespine.location.checks import (
    check_get,
    check_get_range,
    check_inside,
    check_key,
    check_open,
    check_put,
    check_scan,
    check_size,
    check_text,
    check_truncate,
    check_writes,
)
from timespine.location.consensus import LogEntry, LogWrite
from timespine.testing.simulator.simulator import KINDS, as_conflict
from timespine.testing.stores.machines import Machines, SimulatedChannel, SimulatedRole
from timespine.testing.stores.thread_scheduler import Scheduler
from timespine.testing.stores.world import StoreWorld

T = TypeVar("T")

AWAY = 0.85
"""The chance that a call fails while storage is away."""


@dataclass(slots=True)
class Storage:
    """The shared part of the ports of all processes."""

    world: StoreWorld
    scheduler: Scheduler
    fail: float = 0.0
    """The chance that a call fails in some way."""
    away_until: float = 0.0
    """The time until which storage is away."""
    ghosts: list[Callable[[], object]] = field(default_factory=list)
    """Writes that happen later, when their callers have long moved on."""
    machines: Machines = field(init=False)
    """The roles and channels of the processes."""

    def __post_init__(self) -> None:
        self.machines = Machines(self.world, self.scheduler)

    def call(
        self, what: str, perform: Callable[[], T], *, writes: bool = False, conflict: Callable[[], T] | None = None
    ) -> T:
        """Make one call of a port. Other threads run before it, and again before its caller gets the answer.

        A compare-and-set may also be done and reported as a `conflict`.
        """
        scheduler, chance = self.scheduler, self.scheduler.random.random
        scheduler.switch(what)
        self.world.step = scheduler.steps
        fail = AWAY if scheduler.now < self.away_until else self.fail
        if chance() >= fail:
            result = perform()
            scheduler.switch(f"{what} was done")
            return result
        kind = int(chance() * (6 if conflict is not None else 5 if writes else 2))
        self.world.counts[KINDS[kind]] += 1
        if kind == 0:
            raise Determinate("injected: did not happen")
        if kind == 1:
            scheduler.sleep(chance() * 0.5)
            result = perform()
            scheduler.switch(f"{what} was done")
            return result
        if kind == 5 and conflict is not None:
            result = perform() or conflict()
            scheduler.switch(f"{what} was done")
            return result
        if kind == 3:
            perform()
        elif kind == 4:
            self.ghosts.append(perform)
        scheduler.switch(f"{what} may be done")
        raise Indeterminate("injected: may have happened")

    def release_ghosts(self, number: int | None = None) -> None:
        """Let late writes happen: one of them, or all."""
        while self.ghosts:
            self.world.counts["ghosts released"] += 1
            with contextlib.suppress(StoreFenced):
                self.ghosts.pop(number or 0)()
            if number is not None:
                return


class _Port:
    """The shared part of both ports."""

    kind = ""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._world = storage.world
        self._is_closed = False

    def close(self) -> None:
        """Do nothing: others still use the storage behind it."""
        self._is_closed = True

    def _call(
        self, what: str, perform: Callable[[], T], *, writes: bool = False, conflict: Callable[[], T] | None = None
    ) -> T:
        check_open(self._is_closed, self.kind)
        return self._storage.call(what, perform, writes=writes, conflict=conflict)


class SimulatedBlob(_Port):
    """The Blob port of one process."""

    kind = "blob"

    def put(self, key: str, value: bytes) -> None:
        check_put(key, value)
        self._call(f"put {key}", lambda: self._world._put(PutBlob(key, value)), writes=True)

    def get(self, key: str, *, max_bytes: int = BLOB_BYTES_MAX) -> bytes | None:
        _, bytes_max = check_get(key, max_bytes)
        value = self._call(f"get {key}", lambda: self._world._get(GetBlob(key)))
        if value is not None:
            check_size(key, len(value), bytes_max)
        return value

    def get_range(self, key: str, start: int, stop: int) -> bytes | None:
        check_get_range(key, start, stop)
        value = self._call(f"get {key}", lambda: self._world._get(GetBlob(key)))
        if value is None:
            return None
        check_inside(key, stop, len(value))
        return value[start:stop]

    def delete(self, key: str) -> bool:
        parse_blob_key(key)

        def perform() -> bool:
            was_there = key in self._world.blobs
            self._world._delete(DeleteBlobs((key,)))
            return was_there

        return self._call(f"delete {key}", perform, writes=True)

    def list_keys(self, prefix: str = "") -> Iterator[BlobInfo]:
        parse_blob_prefix(prefix)
        world = self._world
        return iter(
            self._call(
                f"list {prefix}",
                lambda: [BlobInfo(key, len(world.blobs[key])) for key in world._list(ListBlobs(prefix))],
            )
        )


class SimulatedConsensus(_Port):
    """The Consensus port of one process."""

    kind = "consensus"

    def head(self, key: str) -> LogEntry | None:
        check_key(key)
        entries = self._call(f"head of {key}", lambda: self._world._scan(Scan(key, 0)))
        return LogEntry(*entries[-1]) if entries else None

    def scan(self, key: str, from_seqno: int = 0, limit: int | None = None) -> list[LogEntry]:
        check_scan(key, from_seqno, limit)
        entries = self._call(f"scan {key}", lambda: self._world._scan(Scan(key, from_seqno, limit)))
        return [LogEntry(*each) for each in entries]

    def compare_and_set(self, writes: Sequence[LogWrite]) -> Mapping[str, int | None] | None:
        checked = tuple((write.key, write.expected, write.data) for write in check_writes(writes))
        effect = CompareAndSet(checked)
        keys = ",".join(key for key, _, _ in checked)

        def perform() -> Mapping[str, int | None] | None:
            self._check_change()
            return self._world._compare_and_set(effect)

        return self._call(f"compare and set {keys}", perform, writes=True, conflict=lambda: as_conflict(effect))

    def truncate(self, key: str, below: int) -> int:
        check_truncate(key, below)

        def perform() -> int:
            self._check_change()
            return self._world._truncate(Truncate(key, below))

        return self._call(f"truncate {key}", perform, writes=True)

    def list_keys(self, prefix: str = "") -> list[str]:
        check_text(prefix, "prefix")
        return self._call(f"list {prefix}", lambda: sorted(key for key in self._world.logs if key.startswith(prefix)))

    def _check_change(self) -> None:
        """Refuse a change of a log, at the moment at which it would happen: here, nothing is refused."""

    def release_reserve(self) -> bool:
        return False

    def restore_reserve(self) -> None:
        """Do nothing: there is no reserve."""

    def role(self, name: str) -> SimulatedRole:
        """Return a role among the processes of the machine of this process."""
        return SimulatedRole(self._storage.machines, name)

    def channel(self, name: str) -> SimulatedChannel:
        """Return a channel among the processes of the machine of this process."""
        return SimulatedChannel(self._storage.machines, name)

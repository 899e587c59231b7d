"""The places of a history of copies, by URL, and ports of them for one process."""

from __future__ import annotations

import contextlib
import uuid as real_uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest import mock

from timespine.client.backup import copy_store, copy_target, restore_to_commit
from timespine.client.commit.effect_driver import Driver
from timespine.client.store import Store
from timespine.errors import UsageError
from timespine.location.blob import Blob
from timespine.location.consensus import EPOCH, append_epoch, store_fenced
from timespine.location.opening import registry
from timespine.location.opening.place import OpenedPorts, OpenRequest
from timespine.location.opening.store_location import MEMORY, StoreLocation, parse_location
from timespine.testing.copies.copy_world import CopyWorld
from timespine.testing.copies.origin_world import OriginWorld
from timespine.testing.simulator.simulator import Faults
from timespine.testing.stores.history import StoreHistory, StoreProcess
from timespine.testing.stores.ports import SimulatedBlob, SimulatedConsensus, Storage

T = TypeVar("T")

ORIGIN = "memory://origin"
"""The location of the store."""


@dataclass(slots=True)
class CopyStorage(Storage):
    """The storage of a copy: it fails and goes away as the storage of the store does."""

    url: str = ""
    origin: Storage | None = None

    def call(
        self, what: str, perform: Callable[[], T], *, writes: bool = False, conflict: Callable[[], T] | None = None
    ) -> T:
        assert self.origin is not None
        return self.origin.call(f"{what} of {self.url}", perform, writes=writes, conflict=conflict)


class EpochConsensus(SimulatedConsensus):
    """Logs with an epoch."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self._epoch = self._newest()

    @property
    def epoch(self) -> int:
        """The epoch in which the process opened the logs."""
        return self._epoch

    def fence(self) -> int:
        """Raise the epoch, and go on in the new one; return it."""
        self._epoch = append_epoch(self, self._epoch)
        return self._epoch

    def _newest(self) -> int:
        return len(self._world.logs.get(EPOCH, ()))

    def _check_change(self) -> None:
        if self._newest() != self._epoch:
            raise store_fenced(self._epoch, self._newest())


class CopyingHistory(StoreHistory):
    """A history of a store and its copies."""

    world: OriginWorld

    def __init__(self, seed: int, faults: Faults, *, tracing: bool = False) -> None:
        super().__init__(seed, faults, tracing=tracing, make_world=OriginWorld)
        self.faults.clock = 0.0  # a store promises what it keeps up to the error of clocks
        self.world.clock = lambda: int(self.scheduler.now * 1000)
        self.keep_ms = 0
        """How long the store keeps deleted data; 0: it deletes them at once."""
        self.kept_since_ms = 0
        """The time since which it does that."""
        self.copies: dict[str, CopyStorage] = {}
        """The storage of each copy, by URL."""

    def consensus(self) -> EpochConsensus:
        return EpochConsensus(self.storage)

    def storage_of(self, url: str, *, is_past: bool = False) -> CopyStorage:
        """Return the storage of a copy."""
        if url not in self.copies:
            world = CopyWorld(url, self.world, is_past=is_past)
            self.copies[url] = CopyStorage(world, self.scheduler, url=url, origin=self.storage)
        return self.copies[url]

    def copy_world(self, url: str) -> CopyWorld:
        """Return the world of a copy."""
        world = self.storage_of(url).world
        assert isinstance(world, CopyWorld)
        return world

    def open_at(self, location: str, *, read_only: bool = False, **options: Any) -> Store:
        """Open the store, or a copy of it, by its location; the store of the process stays."""
        parsed = parse_location(location)
        ports = SimulatedPlace(self, parsed).open(OpenRequest(create=False, read_only=read_only))
        return Store(
            ports.blob,
            ports.consensus,
            config=self.config,
            read_only=read_only,
            maintenance=False,
            clock=self.process_clock,
            monotonic=lambda: self.scheduler.now,
            sleep=self.scheduler.sleep,
            location=parsed.url,
        )

    def process_clock(self) -> float:
        """Return the time by the clock of the running process."""
        task = self.scheduler.current
        process = task.process if task is not None else None
        return self.scheduler.now + (process.skew_s if isinstance(process, StoreProcess) else 0.0)

    @contextlib.contextmanager
    def simulated(self) -> Iterator[None]:
        """Let copies and restores find the places of this history, its clock and its ids."""

        def driver(*args: Any) -> Driver:
            return Driver(*args, clock=self.process_clock, sleep=self.scheduler.sleep)

        def fresh() -> str:
            return str(real_uuid.UUID(int=self.random.getrandbits(128)))

        ids = SimpleNamespace(uuid4=fresh)
        with (
            mock.patch.dict(registry.PLACES, {MEMORY: lambda location: SimulatedPlace(self, location)}),
            mock.patch.object(copy_target, "Driver", driver),
            mock.patch.object(copy_target, "uuid", ids),
            mock.patch.object(copy_store, "uuid", ids),
            mock.patch.object(copy_store, "open", self._open),
            mock.patch.object(restore_to_commit, "open", self._open),
        ):
            yield

    def _open(self, location: str, *, read_only: bool = False, **options: Any) -> Store:
        return self.open_at(location, read_only=read_only)


class SimulatedPlace:
    """The place of the store or of a copy."""

    def __init__(self, history: CopyingHistory, location: StoreLocation) -> None:
        self._storage = history.storage if location.url == ORIGIN else history.storage_of(location.url)
        self._url = location.url

    def open(self, request: OpenRequest) -> OpenedPorts:
        if not request.create and not self._storage.world.logs:
            raise UsageError(f"there is no store in {self._url}")
        return OpenedPorts(SimulatedBlob(self._storage), EpochConsensus(self._storage))

    def open_blob(self, *, read_only: bool) -> Blob:
        raise UsageError("no executor is in a history")

    def identity(self) -> tuple[object, ...] | None:
        return (self._url,)

    def read_file(self, name: str, bytes_max: int) -> bytes | None:
        return None

    def record_epoch(self, epoch: int) -> None:
        """Do nothing: the logs have it."""

    def file_of(self, key: str) -> str | None:
        return None

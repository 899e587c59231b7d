"""Simulated processes on a bucket: one seed decides who goes on when, what fails and how, and who crashes.

Time is virtual. A request takes effect at one moment and its reply arrives at a later one; other processes act in
between. Requests of a crashed process may still take effect.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from timespine.errors import Determinate, Indeterminate, Unavailable
from timespine.location.bucket.effects import (
    DeleteObjects,
    GetObject,
    GetObjects,
    ObjectEffect,
    ObjectProtocol,
    Pause,
    PutIfAbsent,
    PutIfMatch,
)
from timespine.testing.bucket.world import BucketWorld
from timespine.testing.simulator.simulator import Faults

WRITES = (PutIfAbsent, PutIfMatch, DeleteObjects)

FAULTS = Faults(fail=0.13, crash=0.004, pause=0.012, clock=0.0, outage=0.002)
"""Chances per request. Each history has all of each, a quarter, or none. There are no clocks in this protocol."""

PAUSES_MS = (200, 1_000, 6_000)
"""How long a process is paused: for some requests of others, or for several checkpoints."""

GET_MS, PUT_MS, DELETE_MS = 15.0, 20.0, 20.0
"""The usual time of a request, there and back."""


@dataclass(slots=True)
class BucketProcess:
    """One process: a generator that makes calls, one after the other."""

    name: str
    body: ObjectProtocol[None]
    is_alive: bool = True
    waiting: int = 0
    """Replies that are still to come before the process goes on."""
    replies: list[Any] | None = None
    """The replies that have come."""


class BucketScheduler:
    """The order in which requests, replies and crashes happen."""

    def __init__(self, world: BucketWorld, seed: int, faults: Faults) -> None:
        self.world = world
        self.random = Random(seed)
        self.faults = faults
        self.now = 0.0
        """Virtual milliseconds."""
        self.tracing = False
        self.trace: list[str] = []
        self.calls: dict[str, int] = {}
        """Requests by kind."""
        self.on_crash: Callable[[BucketProcess], None] = lambda process: None
        self.is_calm = False
        """Whether the faults have stopped."""
        self._outage_until = -1.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    def run(self, until: Callable[[], bool]) -> None:
        """Let things happen until a condition holds, or nothing is left to happen."""
        while self._events and not until():
            self.now, _, event = heapq.heappop(self._events)
            self.world.step += 1
            event()

    def drop_events(self) -> None:
        """Let the requests under way happen, without replies."""
        self.run(lambda: False)

    def start(self, name: str, body: ObjectProtocol[None]) -> BucketProcess:
        """Start a process."""
        process = BucketProcess(name, body)
        self._resume(process, None, None)
        return process

    def note(self, what: str) -> None:
        """Add a line to the trace."""
        if self.tracing:
            self.trace.append(f"{self.world.step:6} {self.now:10.1f} {what}")

    def latency(self, usual_ms: float) -> float:
        """Return the time of a request: most take as long as usual, a few much longer."""
        drawn = self.random.random()
        return usual_ms * (0.7 + 0.6 * self.random.random()) * (4.0 if drawn < 0.01 else 2.0 if drawn < 0.05 else 1.0)

    def _at(self, delay_ms: float, event: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (self.now + delay_ms, self._number, event))

    def _resume(self, process: BucketProcess, result: object, error: Unavailable | None) -> None:
        """Give a process its reply, and send its next request."""
        if not process.is_alive:
            return
        if not self.is_calm and self.random.random() < self.faults.crash:
            self.world.counts["crashes"] += 1
            self.crash(process)
            return
        try:
            effect = process.body.send(result) if error is None else process.body.throw(error)
        except StopIteration:
            process.is_alive = False
            return
        self._send(process, effect)

    def crash(self, process: BucketProcess) -> None:
        """End a process where it is. Its requests may still take effect."""
        self.note(f"{process.name} crashes")
        process.is_alive = False
        process.body.close()
        self.on_crash(process)

    def _send(self, process: BucketProcess, effect: ObjectEffect) -> None:
        kind = type(effect).__name__
        if isinstance(effect, Pause):
            self._at(effect.ms, lambda: self._resume(process, None, None))
            return
        many = isinstance(effect, GetObjects)
        requests = [GetObject(name) for name in effect.names] if isinstance(effect, GetObjects) else [effect]
        self.calls[kind] = self.calls.get(kind, 0) + len(requests)
        process.waiting, process.replies = len(requests), [None] * len(requests)
        usual = DELETE_MS if isinstance(effect, DeleteObjects) else PUT_MS if isinstance(effect, WRITES) else GET_MS
        for place, request in enumerate(requests):
            there = self.latency(usual)
            self._at(there * 0.6, self._request(process, request, place, there * 0.4, many))

    def _request(
        self, process: BucketProcess, effect: ObjectEffect, place: int, back_ms: float, many: bool
    ) -> Callable[[], None]:
        def happen() -> None:
            try:
                result: object = self._perform(process, effect)
            except Unavailable as error:
                result = error
            if self.tracing:
                self.note(f"{process.name} {_shown(effect)} -> {_shown_result(result)}")
            delay = back_ms
            if not self.is_calm and self.random.random() < self.faults.pause:
                self.world.counts["pauses"] += 1
                delay += self.random.choice(PAUSES_MS)
            self._at(delay, lambda: self._reply(process, place, result, many))

        return happen

    def _reply(self, process: BucketProcess, place: int, result: object, many: bool) -> None:
        replies = process.replies or []
        replies[place] = result
        process.waiting -= 1
        if process.waiting == 0:
            failed = next((each for each in replies if isinstance(each, Unavailable)), None)
            self._resume(process, None if failed else replies if many else replies[0], failed)

    def _perform(self, process: BucketProcess, effect: ObjectEffect) -> object:
        """Carry out a request, or let it fail in one of the ways in which storage fails."""
        world, chance = self.world, self.random
        if self.is_calm:
            return world.perform(effect)
        if chance.random() < self.faults.outage:
            world.counts["outages"] += 1
            self._outage_until = self.now + 1_500
        if self.now < self._outage_until and chance.random() < 0.95:
            return self._fail(effect, chance.choice(("refused", "request lost")))
        if chance.random() >= self.faults.fail:
            return world.perform(effect)
        kinds = ["refused", "request lost"]
        if isinstance(effect, WRITES):
            kinds += ["reply lost", "late"]
        if isinstance(effect, (PutIfAbsent, PutIfMatch)):
            kinds += ["retried below", "conflict without a write"]
        return self._fail(effect, chance.choice(kinds))

    def _fail(self, effect: ObjectEffect, kind: str) -> object:
        world = self.world
        world.counts[kind] += 1
        if kind == "refused":
            raise Determinate("injected: refused")
        if kind == "conflict without a write":
            return False
        if kind == "retried below":
            world.perform(effect)
            return world.perform(effect)
        if kind == "reply lost":
            world.perform(effect)
        elif kind == "late":
            self._at(self.random.choice(PAUSES_MS), lambda: self._late(effect))
        raise Indeterminate(f"injected: {kind}")

    def _late(self, effect: ObjectEffect) -> None:
        self.note(f"late: {_shown(effect)} -> {_shown_result(self.world.perform(effect))}")


def _shown(effect: ObjectEffect) -> str:
    names = effect.names if isinstance(effect, DeleteObjects) else (getattr(effect, "name", ""),)
    return f"{type(effect).__name__} {' '.join(names)}"


def _shown_result(result: object) -> str:
    return repr(result)[:120]

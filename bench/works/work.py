"""What a work is: sizes, a setup that is not measured, and a run that is.

Setup and run are two processes, so that the peak memory of the run is its own.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from bench.peers.system import Cannot, System

UPKEEP = "s of upkeep"
"""The unit of what a system does to keep itself fast: shown, but not compared, since none does the same."""

Size = Mapping[str, int]
State = dict[str, Any]


class Out(Protocol):
    """Where a work puts its figures, one by one, so that those before a kill survive."""

    first: bool
    """Whether this is the first repetition: the one that also checks what it read."""

    def figure(self, metric: str, value: float, unit: str = "s", note: str = "") -> None: ...

    def cannot(self, metric: str, reason: str) -> None: ...

    def seal(self) -> None:
        """Take memory, processor time and bytes now: what follows only checks."""

    def remaining(self) -> float:
        """Seconds until this process is killed."""


@dataclass(frozen=True)
class Case:
    """One set of sizes of a work, run in processes of its own."""

    label: str = ""
    """What tells it from the other cases."""

    quick: Size = field(default_factory=dict)
    """Sizes that take seconds."""

    full: Size = field(default_factory=dict)
    """Sizes that the tables in the docs are made with."""


class Work:
    """One thing that a user waits for."""

    name: ClassVar[str]
    title: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ("append",)
    """Methods without which a system cannot take part at all."""

    cases: ClassVar[Sequence[Case]] = (Case(),)
    repeat: ClassVar[int] = 3
    """Repetitions of a full run."""

    patience: ClassVar[float] = 1.0
    """How many times the usual limit one process of this work may take."""

    headlines: ClassVar[tuple[str, ...]] = ()
    """The figures that the first table of the page shows."""

    pairs: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Figures of the same thing: the first time in a process, and later ones."""

    measured_once: ClassVar[str] = ""
    """Why no later figure is there, for what is not in `pairs`."""

    def setup_key(self, size: Size) -> str:
        """Works with an equal key share what setup left behind."""
        return f"{self.name}-{'-'.join(map(str, size.values()))}"

    def setup(self, system: System, size: Size, out: Out) -> State:
        """Fill the folder; what is returned is handed to every run."""
        system.create()
        system.close()
        return {}

    def run(self, system: System, size: Size, state: State, out: Out) -> None:
        raise NotImplementedError


class WrongAnswer(Exception):
    """A system gave rows that it should not have: its time means nothing."""


def check(what: str, found: Any, expected: Any) -> None:
    if list(found) != list(expected):
        raise WrongAnswer(f"{what}: {list(found)}, expected {list(expected)}")


@contextmanager
def opened(system: System) -> Iterator[System]:
    system.open()
    try:
        yield system
    finally:
        system.close()


def seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def again(out: Out, metric: str, first_s: float, call: Callable[[], float]) -> None:
    """Measure something once more, unless the process would be ended meanwhile: then say so, and go on."""
    if out.remaining() < 2 * first_s:
        out.cannot(metric, f"no time is left: the first one took {first_s:,.1f} s")
    else:
        attempt(out, metric, call)


def attempt(out: Out, metric: str, call: Callable[[], float], unit: str = "s") -> None:
    """One figure of several: a system that cannot give this one may still give the next."""
    try:
        value = call()
    except Cannot as reason:
        out.cannot(metric, str(reason))
        return
    out.figure(metric, value, unit)


def spread(times: list[float]) -> str:
    """The unlucky ones, in words."""
    ordered = sorted(times)
    p99 = f"p99 {ordered[len(ordered) * 99 // 100] * 1e3:.1f} ms, " if len(ordered) >= 100 else ""
    return f"of {len(ordered)}: {p99}max {ordered[-1] * 1e3:.1f} ms"


def median(times: Sequence[float]) -> float:
    return statistics.median(times)

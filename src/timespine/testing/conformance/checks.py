"""The shared parts of the conformance suites of both ports."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from timespine.errors import UsageError

THREADS = 8
"""The number of racing threads."""

BAD_NUMBERS: tuple[Any, ...] = (-1, 1 << 63, 1.5, "1", True)
"""Values that are no sequence number, number of bytes or limit."""


class Adapter(Protocol):
    """The shared part of both ports."""

    def close(self) -> None:
        """Release the adapter's resources. Twice is fine."""
        ...


A = TypeVar("A", bound=Adapter)


class Conformance(Generic[A]):
    """The hooks by which a suite gets its adapters, and the tests for every port."""

    def make(self, tmp_path: Path) -> A:
        """Return a fresh adapter with nothing in it."""
        raise NotImplementedError

    def reopen(self, tmp_path: Path) -> A | None:
        """Return another adapter for the storage of `make(tmp_path)`; None if the adapter keeps nothing."""
        return None

    def make_pair(self, tmp_path: Path) -> tuple[A, A] | None:
        """Return two adapters for the same fresh storage, as two processes have them; None if that is impossible."""
        return None

    rounds = 1.0
    """The share of the racing to do: an adapter with slow calls may set 0.1."""

    def scaled(self, rounds: int) -> int:
        """Scale a number of rounds by the share that the adapter sets; at least two."""
        return max(int(rounds * self.rounds), 2)

    def uses(self, adapter: A) -> list[Callable[[], object]]:
        """Return one valid call of every method but close."""
        raise NotImplementedError

    def test_close_twice_is_fine_and_use_after_it_is_refused(self, tmp_path: Path) -> None:
        adapter = self.make(tmp_path)
        adapter.close()
        adapter.close()
        for use in self.uses(adapter):
            with expect(UsageError, "closed"):
                use()


def check(condition: object, message: str) -> None:
    """Raise AssertionError unless a condition holds, also under `python -O`."""
    if not condition:
        raise AssertionError(message)


def check_equal(actual: object, wanted: object) -> None:
    """Raise AssertionError, with both values in its message, unless they are equal."""
    if actual != wanted:
        raise AssertionError(f"got {actual!r:.400}, wanted {wanted!r:.400}")


@contextlib.contextmanager
def expect(kind: type[Exception], what: object = "") -> Iterator[None]:
    """Require that the block raises `kind`."""
    try:
        yield
    except kind:
        return
    raise AssertionError(f"no {kind.__name__}: {what!r:.200}")


def race(action: Callable[[int], None], threads: int = THREADS) -> None:
    """Run action(0), action(1), ... at once, and fail if one of them does."""
    barrier = threading.Barrier(threads)
    failures: list[BaseException] = []

    def run(number: int) -> None:
        barrier.wait()
        try:
            action(number)
        except BaseException as failure:
            failures.append(failure)

    started = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(threads)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # or threads that never wait would run one after the other
    try:
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    if failures:
        raise failures[0]


def race_until(writers: int, write: Callable[[], None], read: Callable[[int], None], threads: int = THREADS) -> None:
    """Race `writers` writers against threads that read again and again, until all writers are done."""
    busy = set(range(writers))

    def run(number: int) -> None:
        if number >= writers:
            while busy:
                read(number)
            return
        try:
            write()
        finally:
            busy.discard(number)

    race(run, threads)

"""How bugs are planted: generators that patch one thing and yield, by name."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from unittest import mock

BUGS: dict[str, Callable[[], contextlib.AbstractContextManager[object]]] = {}

REAL: set[str] = set()
"""The bugs that only histories with Parquet, files and SQLite can meet."""

STREAMS: set[str] = set()
"""The bugs that histories of streams are to meet."""


def on_real_storage(plant: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
    REAL.add(plant.__name__)
    return plant


def in_streams(plant: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
    STREAMS.add(plant.__name__)
    return plant


def bug(plant: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
    BUGS[plant.__name__] = contextlib.contextmanager(plant)
    return plant


def patched(target: object, name: str, value: object) -> contextlib.AbstractContextManager[object]:
    return mock.patch.object(target, name, value)


@contextlib.contextmanager
def patched_everywhere(real: Callable[..., object], fake: Callable[..., object]) -> Iterator[None]:
    """A function in whichever columnar module has imported it by name."""
    with contextlib.ExitStack() as stack:
        for name, module in sorted(sys.modules.items()):
            if name.startswith("timespine.columnar.") and getattr(module, real.__name__, None) is real:
                stack.enter_context(patched(module, real.__name__, fake))
        yield

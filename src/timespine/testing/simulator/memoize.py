"""Caches for decoding and applying stored diffs, once per history instead of once per process.

Both are pure: the same bytes, and the same diff on the same state, give the same result. In one history all processes
and the world itself repeat them over and over. A state that a process made by itself, and not from storage, is another
object, and a diff on it is applied anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from timespine.core.encoding.codec import decode_diff, decode_run, decode_state
from timespine.core.encoding.state_diff import apply_diff
from timespine.core.protocols import garbage, load_state
from timespine.testing.simulator import world

WHERE: tuple[ModuleType, ...] = (garbage, load_state, world)
"""The modules that use them in every history."""


@contextmanager
def memoized(*others: ModuleType) -> Iterator[None]:
    """Cache decoded and applied diffs until the end of the block, in `others` too."""
    kept: list[tuple[ModuleType, str, Any]] = []
    try:
        for real in (decode_diff, decode_run, decode_state, apply_diff):
            remembered = (_memoize_by_identity if real is apply_diff else _memoize_by_value)(real)
            for module in (*WHERE, *others):
                # A test may have planted another function there: it stays.
                if getattr(module, real.__name__, None) is real:
                    kept.append((module, real.__name__, real))
                    setattr(module, real.__name__, remembered)
        yield
    finally:
        for module, name, real in kept:
            setattr(module, name, real)


def _memoize_by_value(real: Callable[..., Any]) -> Callable[..., Any]:
    results: dict[tuple[Any, ...], Any] = {}

    def remembered(*arguments: Any) -> Any:
        result = results.get(arguments)
        if result is None:
            result = results[arguments] = real(*arguments)
        return result

    return remembered


def _memoize_by_identity(real: Callable[..., Any]) -> Callable[..., Any]:
    # The arguments are kept along with the result, so that their ids stay theirs.
    results: dict[tuple[int, int], tuple[Any, Any, Any]] = {}

    def remembered(old: Any, change: Any) -> Any:
        key = (id(old), id(change))
        known = results.get(key)
        if known is None:
            known = results[key] = (old, change, real(old, change))
        return known[2]

    return remembered

"""Decoding and applying what was stored, once per history instead of once per process.

Both are pure: the same bytes, and the same diff on the same state, give the same
again. In one history all processes and the world itself ask for that over and over.
What a process made by itself, and not from storage, is another state, and a diff on
it is applied anew.
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
"""Who asks for it."""


@contextmanager
def remembering() -> Iterator[None]:
    """Until the end, whatever was decoded or applied before is not again."""
    kept: list[tuple[ModuleType, str, Any]] = []
    try:
        for real in (decode_diff, decode_run, decode_state, apply_diff):
            remembered = (_by_identity if real is apply_diff else _by_value)(real)
            for module in WHERE:
                # Somebody may have put something else there, to see what comes of it: it stays.
                if getattr(module, real.__name__, None) is real:
                    kept.append((module, real.__name__, real))
                    setattr(module, real.__name__, remembered)
        yield
    finally:
        for module, name, real in kept:
            setattr(module, name, real)


def _by_value(real: Callable[..., Any]) -> Callable[..., Any]:
    results: dict[tuple[Any, ...], Any] = {}

    def remembered(*arguments: Any) -> Any:
        result = results.get(arguments)
        if result is None:
            result = results[arguments] = real(*arguments)
        return result

    return remembered


def _by_identity(real: Callable[..., Any]) -> Callable[..., Any]:
    # The arguments are kept along with the result, so that their ids stay theirs.
    results: dict[tuple[int, int], tuple[Any, Any, Any]] = {}

    def remembered(old: Any, change: Any) -> Any:
        key = (id(old), id(change))
        known = results.get(key)
        if known is None:
            known = results[key] = (old, change, real(old, change))
        return known[2]

    return remembered

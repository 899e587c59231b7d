"""How bugs are planted, and when one counts as caught.

A bug is a generator that patches one thing and yields, known by its name. Its patch takes
the same arguments as what it replaces: a bug that breaks the program instead of a promise
would be found by any test. It counts as caught if a check that the promise naming it in
PROMISES.md lists has noticed it, and never because of an error such as a TypeError.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

from timespine.testing.simulator.violation import Violation

BUGS: dict[str, Callable[[], contextlib.AbstractContextManager[object]]] = {}

REAL: set[str] = set()
"""The bugs that only histories with Parquet, files and SQLite can meet."""

STREAMS: set[str] = set()
"""The bugs that histories of streams are to meet."""

PROMISES = Path(__file__).parents[2] / "PROMISES.md"

Key = TypeVar("Key")


SCHEMAS: set[str] = set()
"""The bugs that histories with changes of schemas are to meet."""


def on_real_storage(plant: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
    REAL.add(plant.__name__)
    return plant


def in_streams(plant: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
    STREAMS.add(plant.__name__)
    return plant


STORES: set[str] = set()
"""The bugs that histories of real stores are to meet."""


def in_stores(plant: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
    STORES.add(plant.__name__)
    return plant


VIEWS: set[str] = set()
"""The bugs that histories of views are to meet."""


def in_views(plant: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
    VIEWS.add(plant.__name__)
    return plant


SPINES: set[str] = set()
"""The bugs that histories of the spines of arrangements are to meet."""


def in_spines(plant: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
    SPINES.add(plant.__name__)
    return plant


REAL_SPINES: set[str] = set()
"""Those of them that only histories with real batches, merges and cursors can meet."""


def in_real_spines(plant: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
    REAL_SPINES.add(plant.__name__)
    return in_spines(plant)


def in_schemas(plant: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
    SCHEMAS.add(plant.__name__)
    return plant


ARRANGEMENTS: set[str] = set()
"""The bugs that histories of stores with arrangements are to meet."""


def in_arrangements(plant: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
    ARRANGEMENTS.add(plant.__name__)
    return plant


KEPT: set[str] = set()
"""The bugs that histories of stores that keep deleted data are to meet."""


def in_kept(plant: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
    KEPT.add(plant.__name__)
    return plant


COPIES: set[str] = set()
"""The bugs that histories of copies and restores are to meet."""


def in_copies(plant: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
    COPIES.add(plant.__name__)
    return plant


BUCKET: set[str] = set()
"""The bugs that histories of a bucket alone are to meet."""


def in_bucket(plant: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
    BUCKET.add(plant.__name__)
    return plant


def bug(plant: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
    BUGS[plant.__name__] = contextlib.contextmanager(plant)
    return plant


def patched(target: object, name: str, value: object) -> contextlib.AbstractContextManager[object]:
    """Replace an attribute by one that can be called like it."""
    refuse_unlike(inspect.getattr_static(target, name), value, name)
    return mock.patch.object(target, name, value)


def patched_entry(
    target: MutableMapping[Key, Any], key: Key, value: object
) -> contextlib.AbstractContextManager[object]:
    """Replace an entry of a mapping, such as a transition, by one that can be called like it."""
    refuse_unlike(target[key], value, str(key))
    return mock.patch.dict(target, {key: value})


@contextlib.contextmanager
def patched_everywhere(real: Callable[..., object], fake: Callable[..., object]) -> Iterator[None]:
    """A function in whichever columnar module has imported it by name."""
    with contextlib.ExitStack() as stack:
        for name, module in sorted(sys.modules.items()):
            if name.startswith("timespine.columnar.") and getattr(module, real.__name__, None) is real:
                stack.enter_context(patched(module, real.__name__, fake))
        yield


def refuse_unlike(old: object, new: object, name: str) -> None:
    """Raise TypeError if a patch cannot stand for what it replaces."""
    if shape(old) != shape(new):
        raise TypeError(f"the patch of {name} has the shape {shape(new)}, and what it replaces {shape(old)}")


def shape(value: object) -> object:
    """What callers rely on: the parameters of a function and whether it is a generator; otherwise the type."""
    if isinstance(value, property):
        return "property", shape(value.fget)
    if isinstance(value, (staticmethod, classmethod)):
        return type(value).__name__, shape(value.__func__)
    if not inspect.isroutine(value):
        return type(value).__name__
    parameters = inspect.signature(value).parameters.values()
    wanted = [(each.name, each.kind.name, each.default is not each.empty) for each in parameters]
    return inspect.isgeneratorfunction(value), wanted


@cache
def checks_of_promises() -> dict[str, frozenset[str]]:
    """Per planted bug: the checks of the simulator and the invariants that the promises naming it list."""
    found: dict[str, frozenset[str]] = {}
    for section in re.split(r"^## ", PROMISES.read_text(), flags=re.MULTILINE)[1:]:
        items = re.split(r"^- ", section, flags=re.MULTILINE)[1:]
        named = {kind: set[str]() for kind in ("Simulator", "Invariants", "Planted bugs")}
        for item in items:
            named.get(item.partition(":")[0], set()).update(re.findall(r"`([^`]+)`", item))
        for name in named["Planted bugs"]:
            found[name] = found.get(name, frozenset()) | named["Simulator"] | named["Invariants"]
    return found


def catching(name: str, violations: Iterable[Violation]) -> Violation | None:
    """The first violation that a check of the bug's promise noticed; None if code broke, or another check noticed."""
    noticed = list(violations)
    if any(each.is_crash for each in noticed):
        return None
    return next((each for each in noticed if each.check in checks_of_promises().get(name, ())), None)

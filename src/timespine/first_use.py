"""Imports that wait for their first use, and forks that wait for them.

A process that lists collections needs no Polars, and a task on an executor needs no catalog. So packages name what they
export in a table, and import the module of a name when a program first asks for it. Large libraries are objects that
import the library when a function first asks for one of its attributes.

A child that is forked while another thread imports a module would wait for that import for ever. So each import here
holds one lock, and a fork takes the lock first.

SUBTLE: no module of Timespine may use a name of these tables, or an attribute of these libraries, while it is itself
imported. Its thread would hold the lock of the module and wait for the lock of this file, in which another thread may
import that module (tests/test_imports.py).

SUBTLE: a module that is imported while a fork waits may register calls for after a fork whose calls for before it did
not run. Those of the standard library release a lock there. So they are imported here (tests/client/test_fork.py).
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401, also imports logging
import importlib
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

_importing = threading.RLock()
"""The lock that an import on first use holds, and a fork."""

os.register_at_fork(before=_importing.acquire, after_in_parent=_importing.release, after_in_child=_importing.release)


def import_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Make the `__getattr__` of a package, which imports the module of a name and keeps the value in the package.

    `modules` gives for each name a module below the package: "client.store". The empty text stands for a name that is
    a module itself; "client.open_store:open_store" for a value that has another name there.
    """

    def __getattr__(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        path, _, inner = modules[name].partition(":")
        with _importing:
            found = importlib.import_module(f"{package}.{path or name}")
        value = getattr(found, inner or name) if path else found
        setattr(sys.modules[package], name, value)
        return value

    return __getattr__


class Library:
    """A library that is imported when a program first asks for an attribute, which the object then keeps."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        with _importing:
            library = importlib.import_module(self._name)
        value = getattr(library, name)
        setattr(self, name, value)
        return value


def is_instance_of(value: object, library: str, *kinds: str) -> bool:
    """Return whether a value is of a class of a library, without an import: before one, no value is."""
    loaded = sys.modules.get(library)
    return loaded is not None and any(isinstance(value, getattr(loaded, kind, ())) for kind in kinds)

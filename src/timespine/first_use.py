"""Imports that wait for their first use, and forks that wait for them.

A process that lists collections needs no Polars, and a task on an executor needs no catalog. So packages name what they
export in a table, and import the module of a name when a program first asks for it. Large libraries are objects that
import the library when a function first asks for one of its attributes.

A child that is forked while another thread imports a module would wait for that import for ever. So a fork waits until
no thread imports anything here, and no import begins until the fork is over. Imports never wait for each other but in
Python's own locks of modules, which find circles.

SUBTLE: a module that is imported while a fork waits may register calls for after a fork whose calls for before it did
not run. Those of the standard library release a lock there. So they are imported here (tests/client/test_fork.py).
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401, also imports logging
import contextlib
import importlib
import os
import sys
import threading
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

_gate = threading.Lock()
"""The lock that a fork holds, and each import for the moment in which it begins."""

_running: dict[object, tuple[int, str]] = {}
"""The imports that run: a token for each, its thread and its module."""


def import_on_first_use(module: str) -> ModuleType:
    """Import a module, so that a fork of another thread waits for it."""
    token = object()
    # An interrupt at any point leaves no token: a fork would wait for the import of a call that is over.
    try:
        with _gate:
            _running[token] = threading.get_ident(), module
        return importlib.import_module(module)
    finally:
        _running.pop(token, None)


def _before_fork() -> None:
    """Wait for the imports of other threads, and let none begin."""
    while True:
        _gate.acquire()
        others = {module for thread, module in list(_running.values()) if thread != threading.get_ident()}
        if not others:
            return
        _gate.release()
        for module in others:
            with contextlib.suppress(Exception):  # it is raised in the other thread
                importlib.import_module(module)


os.register_at_fork(before=_before_fork, after_in_parent=_gate.release, after_in_child=_gate.release)


def import_names(package: str, modules: Mapping[str, str], within: str | None = None) -> Callable[[str], Any]:
    """Make the `__getattr__` of a package, which imports the module of a name and keeps the value in the package.

    `modules` gives for each name a module below `within`, which is the package itself unless another is given:
    "client.store". The empty text stands for a name that is a module itself; "client.opening.open_store:open_store" for
    a value that has another name there.
    """

    def __getattr__(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        path, _, inner = modules[name].partition(":")
        found = import_on_first_use(f"{within or package}.{path or name}")
        value = getattr(found, inner or name) if path else found
        setattr(sys.modules[package], name, value)
        return value

    return __getattr__


class Library:
    """A library that is imported when a program first asks for an attribute, which the object then keeps."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_on_first_use(self._name), name)
        setattr(self, name, value)
        return value

    def __reduce__(self) -> tuple[type[Library], tuple[str]]:
        """Pickle the name alone."""
        return Library, (self._name,)


def is_instance_of(value: object, library: str, *kinds: str) -> bool:
    """Return whether a value is of a class of a library, without an import: before one, no value is."""
    loaded = sys.modules.get(library)
    return loaded is not None and any(isinstance(value, getattr(loaded, kind, ())) for kind in kinds)

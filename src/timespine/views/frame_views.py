"""Views that are functions of DataFrames: Spark computes them whole, and what changed is what is committed.

A function cannot be stored. Each process gives it again, by `store.view(name, frame=function)`, before it refreshes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from timespine.client.api_for_engines import Store
from timespine.errors import UsageError, short_repr
from timespine.hints import Hint
from timespine.views.definition import ViewDefinition

Function = Callable[[Any], Any]

_functions: weakref.WeakKeyDictionary[Store, dict[str, Function]] = weakref.WeakKeyDictionary()
"""The functions of views that this process knows, by the ids of their collections."""


def check_function(function: object) -> None:
    """Raise a UsageError for what is no function."""
    if not callable(function):
        raise UsageError(f"frame is a function of DataFrames by name, not {short_repr(function)}")


def attach_function(store: Store, view: str, function: Function) -> None:
    """Keep the function of a view for the refreshes of this process."""
    check_function(function)
    _functions.setdefault(store, {})[view] = function


def function_of(store: Store, name: str, id: str, definition: ViewDefinition) -> Function | None:
    """Return the function of a view; None if it is a text. Raise a UsageError if this process does not know it."""
    if definition.sql:
        return None
    found = _functions.get(store, {}).get(id)
    if found is None:
        raise UsageError(
            f"view {name} is a function of DataFrames, which this process does not know",
            hint=Hint("give-function", {"name": name}),
        )
    return found

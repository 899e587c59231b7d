"""A property that is computed once per object, without a lock.

`functools.cached_property` of Python 3.11 takes one lock per class: threads that read different parts wait for each
other, and a child that is forked meanwhile waits for ever. Without a lock two threads may compute the same value twice,
which does no harm: the values are equal, and all threads get the first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from functools import cached_property as cached_property
else:

    class cached_property:
        """Compute a value on the first access, and keep it in the `__dict__` of the object."""

        def __init__(self, compute: Callable[[Any], Any]) -> None:
            self._compute = compute
            self.__doc__ = compute.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self._name = name

        def __get__(self, instance: object | None, owner: type) -> Any:
            if instance is None:
                return self
            return instance.__dict__.setdefault(self._name, self._compute(instance))

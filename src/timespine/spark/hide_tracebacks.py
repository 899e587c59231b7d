"""Show users of Spark our errors as one sentence, without a traceback before it.

PySpark sends an error of a worker to the JVM as the text of a traceback, in which the message comes last,
after a page. It omits the traceback if SPARK_HIDE_TRACEBACK is set in the environment of the worker. This module
sets it when one of our errors leaves the worker. The worker ends with that error, so no other loses its traceback.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from timespine.errors import TimespineError

HIDE = "SPARK_HIDE_TRACEBACK"
"""The variable that PySpark reads when it formats an error."""

P = ParamSpec("P")
R = TypeVar("R")


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Hide the traceback of our errors that leave a worker of Spark."""
    try:
        yield
    except TimespineError:
        if _is_worker():
            os.environ[HIDE] = "1"
        raise


def raises_plain_errors(method: Callable[P, R]) -> Callable[P, R]:
    """Wrap a method that a worker of Spark calls in `plain_errors`."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with plain_errors():
            return method(*args, **kwargs)

    return call


def _is_worker() -> bool:
    """Return whether this process is a Python worker of Spark: each of those runs a module of PySpark."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")

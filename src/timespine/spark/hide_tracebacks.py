"""Errors of ours that users of Spark see: one sentence, before any traceback.

PySpark sends what a worker raises to the JVM as the text of a traceback, so that the sentence that matters comes last,
after a page. It leaves the traceback out if SPARK_HIDE_TRACEBACK is set in the environment of the worker. That is
set here when one of our errors leaves the worker: the worker ends with it, so that no other error loses its traceback.
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
"""The variable that PySpark looks at when it writes down an error."""

P = ParamSpec("P")
R = TypeVar("R")


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Let errors of ours leave a worker of Spark without their traceback."""
    try:
        yield
    except TimespineError:
        if _is_worker():
            os.environ[HIDE] = "1"
        raise


def plain(method: Callable[P, R]) -> Callable[P, R]:
    """For a method that a worker of Spark calls: `plain_errors`."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with plain_errors():
            return method(*args, **kwargs)

    return call


def _is_worker() -> bool:
    """Whether this process was started by Spark to run Python: all of those run a module of PySpark."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")

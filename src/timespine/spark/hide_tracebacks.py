"""Show users of Spark our errors as one sentence, without a traceback before it.

PySpark sends an error of a worker to the JVM as the text of a traceback, in which the message comes last,
after a page. It omits the traceback if SPARK_HIDE_TRACEBACK is set in the environment of the worker. This module
sets it when one of our errors leaves the worker. The worker ends with that error, so no other loses its traceback.
A function of `foreachBatch` of a classic session runs in the driver. There the message comes first, and a traceback
after it.
"""

from __future__ import annotations

import contextlib
import copy
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


def puts_message_first(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function that a classic driver calls for a JVM: the text of our errors begins with their message.

    Py4J sends the text of the whole traceback, and nothing turns that off. A traceback begins with the first cause of
    an error. So this gives the error a cause: the same error, without a traceback.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TimespineError as error:
            message = copy.copy(error)
            message.__cause__ = message.__context__ = message.__traceback__ = None
            _first_cause(error).__cause__ = message
            raise

    return call


def _first_cause(error: BaseException) -> BaseException:
    """Return the error that a traceback begins with."""
    while (earlier := error.__cause__ or (None if error.__suppress_context__ else error.__context__)) is not None:
        error = earlier
    return error


def _is_worker() -> bool:
    """Return whether this process is a Python worker of Spark: each of those runs a module of PySpark."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")

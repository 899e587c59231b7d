"""A session of Spark for views: beside that of the caller, with the settings that decide what a query means.

The caller's session keeps its settings, temporary views and cached tables. Leases of what a refresh reads end with it.
"""

from __future__ import annotations

import contextlib
import secrets
import weakref
from collections.abc import Iterator
from typing import Any

from timespine.errors import UsageError, short_repr
from timespine.hints import Hint
from timespine.locks import Lock
from timespine.spark.setup.worker_python import is_connect

MEANING = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.caseSensitive": "false",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    "spark.sql.storeAssignmentPolicy": "ANSI",
}
"""The settings that change answers."""

_NOT_COPIED = ("spark.sql.warehouse.dir", "spark.sql.catalogImplementation", "spark.sql.extensions")

_idle: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()
"""Sessions that no computation uses now, by the session that they were made beside."""

_names: weakref.WeakKeyDictionary[Any, list[str]] = weakref.WeakKeyDictionary()
"""The temporary names in borrowed sessions."""

_lock = Lock("the sessions of views")


def find_session(given: Any) -> Any | None:
    """Return the session of the caller, or the active one; None if there is none, or Spark is not installed."""
    if given is not None and not hasattr(given, "newSession"):
        raise UsageError(f"spark is a session of Spark, not {short_repr(given)}", hint=Hint("give-session"))
    if given is not None:
        return given
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        return None
    return SparkSession.getActiveSession()


def not_installed() -> UsageError:
    """Make the error for a view that needs Spark, where it is not installed."""
    return UsageError("Spark has to compute this view, and is not installed", hint=Hint("install-spark"))


def session_of(given: Any) -> Any:
    """Return the session of the caller; raise a UsageError if there is none."""
    found = find_session(given)
    if found is not None:
        return found
    try:
        import pyspark.sql  # noqa: F401
    except ImportError:
        raise not_installed() from None
    raise UsageError("Spark has to compute this view", hint=Hint("give-session"))


def _new_session(given: Any) -> Any:
    made = given.newSession()
    there = made.conf.getAll
    for key, value in given.conf.getAll.items():
        if key.startswith("spark.sql.") and key not in _NOT_COPIED and there.get(key) != value:
            with contextlib.suppress(Exception):  # settings that only the start of Spark can change
                made.conf.set(key, value)
    for key, value in MEANING.items():
        made.conf.set(key, value)
    return made


@contextlib.contextmanager
def borrowed(given: Any) -> Iterator[Any]:
    """Give a session for one computation; the leases of what it reads end with it.

    SUBTLE: two computations never share one, since the end of the first would end the leases of the second.
    """
    from timespine.spark.read.to_spark import release

    caller = session_of(given)
    active = None if is_connect(caller) else type(caller).getActiveSession()
    made = _take_idle(caller) or _new_session(caller)
    try:
        yield made
    finally:
        for each in _names.pop(made, ()):
            made.catalog.dropTempView(each)
        release(made)
        if active is not None and type(active).getActiveSession() is not active:
            _make_active(active)
        _give_back(caller, made)


def _make_active(spark: Any) -> None:
    """Make a session the active one of its thread.

    SUBTLE: `createDataFrame` does so as well. After a refresh, a program that asks for the active session would get
    that of the views, without its own tables.
    """
    spark.createDataFrame([], "nothing int")


def _take_idle(caller: Any) -> Any | None:
    """Take a session that no computation uses; None if there is none."""
    with _lock:
        waiting = _idle.get(caller)
        return waiting.pop() if waiting else None


def _give_back(caller: Any, made: Any) -> None:
    """Let another computation use a session; close one of Spark Connect.

    SUBTLE: when the program ends, Spark Connect asks the server of every open session, for ten minutes if it was
    stopped before (tests/spark/test_connect.py does not end without this).
    """
    if is_connect(made):
        with contextlib.suppress(Exception):  # the server is gone, and its sessions with it
            made.client.release_session()
        made.client.close()
        return
    with _lock:
        _idle.setdefault(caller, []).append(made)


def temporary_name(spark: Any, frame: Any) -> str:
    """Name a DataFrame in a borrowed session, until it is given back."""
    name = f"view_{secrets.token_hex(8)}"
    frame.createOrReplaceTempView(name)
    _names.setdefault(spark, []).append(name)
    return name

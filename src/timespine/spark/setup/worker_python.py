"""Check once per Spark application that its workers run a Python that has Timespine.

PySpark runs tasks with PYSPARK_PYTHON, or with the first `python3` on the PATH of the driver. If the environment
of the driver is not activated, that is another Python. The remedy depends on the session:

    classic, this machine    `prepare` sets the Python of the driver, unless the user chose one
    classic, a cluster       `prepare` sets the Python of `spark.pyspark.python`, and a task checks it
    Spark Connect            only the server knows its Python; a task checks it
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from timespine.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

PROBE_SECONDS = 120.0
"""The limit for a Python to import Timespine: it takes 0.5 s, and much longer from a slow disk."""

_PROBE = """
import sys
if sys.version_info[:2] != {version}:
    sys.exit("it is Python %d.%d, and the driver is Python {version[0]}.{version[1]}" % sys.version_info[:2])
import pyarrow, timespine
"""
"""The script that a Python suitable for the workers runs without an error."""

_REASON = re.compile(r"ModuleNotFoundError: .*|ImportError: .*|Python in worker has different version.*|Cannot run .*")
"""The texts in an error of Spark if a worker cannot run our tasks."""

_contexts: weakref.WeakSet[Any] = weakref.WeakSet()
"""The contexts of classic sessions with checked workers."""

_servers: set[str] = set()
"""The Spark Connect servers with checked workers."""


def is_connect(spark: SparkSession) -> bool:
    """Return whether a session uses Spark Connect, and so has neither a context nor a JVM."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def check_workers(spark: SparkSession) -> None:
    """Set the Python of the workers if possible; raise a UsageError with what to set if it lacks Timespine."""
    if is_connect(spark):
        client: Any = spark.client
        server = str(client._builder.endpoint)
        if server not in _servers:
            _ask_task(spark, "where the Spark Connect server is started")
            _servers.add(server)
        return
    context = spark.sparkContext
    if context not in _contexts:
        _choose_python(context)
        if _is_on_this_machine(context):
            _ask_python(context.pythonExec)
        else:
            _ask_task(spark, "where Spark is started")
        _contexts.add(context)


def _is_on_this_machine(context: SparkContext) -> bool:
    master = str(context.master)
    return master == "local" or master.startswith("local[")


def _choose_python(context: SparkContext) -> None:
    """Set the Python of future tasks, unless PYSPARK_PYTHON names one.

    PySpark reads `spark.pyspark.python` only in spark-submit, so a builder's `config` has no effect.
    """
    if "PYSPARK_PYTHON" in os.environ:
        return
    chosen = context.getConf().get("spark.pyspark.python")
    if chosen is not None:
        context.pythonExec = chosen
    elif _is_on_this_machine(context):
        context.pythonExec = sys.executable


def _ask_python(python: str) -> None:
    """Import the packages that tasks need with a Python of this machine, unless it is the one of this process."""
    found = shutil.which(python)
    if found is not None and _is_this_python(found):
        return
    probe = _PROBE.format(version=tuple(sys.version_info[:2]))
    try:
        ran = subprocess.run(
            [python, "-c", probe],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _unfit(python, str(error), "before Spark starts") from None
    if ran.returncode != 0:
        said = ran.stderr.strip().splitlines() or [f"it ended with code {ran.returncode}"]
        raise _unfit(python, said[-1], "before Spark starts")


def _is_this_python(path: str) -> bool:
    """Return whether a path is the Python of this process: the same file, in the same environment."""
    here = sys.executable
    return os.path.realpath(path) == os.path.realpath(here) and os.path.dirname(path) == os.path.dirname(here)


def _ask_task(spark: SparkSession, where: str) -> None:
    """Import the packages that tasks need in one task."""
    try:
        spark.range(1).mapInArrow(_tell_python, "python string").collect()
    except Exception as error:  # Spark has many classes, and all mean that our tasks do not run
        found = _REASON.search(str(error))
        reason = found[0] if found else next(iter(str(error).splitlines()), type(error).__name__)
        raise _unfit(None, reason, where) from error


def _tell_python(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the path of the Python in a task, which cannot load this function without Timespine."""
    import pyarrow as pa

    for batch in batches:
        yield pa.RecordBatch.from_pydict({"python": [sys.executable] * batch.num_rows})


def _unfit(python: str | None, reason: str, where: str) -> UsageError:
    named = "" if python is None else f", {python},"
    return UsageError(
        f"the Python of Spark's workers{named} cannot import Timespine ({reason}): set PYSPARK_PYTHON, or "
        f"spark.pyspark.python, to a Python that has it, such as {sys.executable}, {where}"
    )

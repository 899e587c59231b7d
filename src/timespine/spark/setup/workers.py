"""Makes sure that Spark's workers run a Python that has Timespine, once per Spark application.

PySpark runs tasks by PYSPARK_PYTHON, or by the `python3` that is first on the PATH of the driver. If the environment
of the driver is not activated, that is another Python. What can be done about it depends on the session:

    classic, this machine    the Python of the driver is set, unless the user chose one
    classic, a cluster       the Python of `spark.pyspark.python` is set; a task tells whether it will do
    Spark Connect            only the server knows its Python; a task tells whether it will do
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
"""How long a Python may take to import Timespine: it takes 0.5 s, and much longer from a slow disk."""

_PROBE = """
import sys
if sys.version_info[:2] != {version}:
    sys.exit("it is Python %d.%d, and the driver is Python {version[0]}.{version[1]}" % sys.version_info[:2])
import pyarrow, timespine
"""
"""What a Python does that suits the workers."""

_REASON = re.compile(r"ModuleNotFoundError: .*|ImportError: .*|Python in worker has different version.*|Cannot run .*")
"""What an error of Spark says if a worker cannot run our tasks."""

_contexts: weakref.WeakSet[Any] = weakref.WeakSet()
"""The contexts of classic sessions whose workers will do."""

_servers: set[str] = set()
"""The Spark Connect servers whose workers will do."""


def is_connect(spark: SparkSession) -> bool:
    """Whether a session talks to a server by Spark Connect, and so has neither a context nor a JVM."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def check_workers(spark: SparkSession) -> None:
    """Set the Python of the workers if that is possible; a UsageError that says what to set if it will not do."""
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
    """Set the Python of tasks that start from now on, unless PYSPARK_PYTHON says which one it is.

    PySpark reads `spark.pyspark.python` only in spark-submit, so that a builder's `config` has no effect.
    """
    if "PYSPARK_PYTHON" in os.environ:
        return
    chosen = context.getConf().get("spark.pyspark.python")
    if chosen is not None:
        context.pythonExec = chosen
    elif _is_on_this_machine(context):
        context.pythonExec = sys.executable


def _ask_python(python: str) -> None:
    """Let a Python of this machine import what tasks need, unless it is the one that runs here."""
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
    """Whether a path is the Python of this process: the same file, in the same environment."""
    here = sys.executable
    return os.path.realpath(path) == os.path.realpath(here) and os.path.dirname(path) == os.path.dirname(here)


def _ask_task(spark: SparkSession, where: str) -> None:
    """Let one task import what tasks need."""
    try:
        spark.range(1).mapInArrow(_tell_python, "python string").collect()
    except Exception as error:  # Spark has many, and all mean that tasks of ours do not run
        found = _REASON.search(str(error))
        reason = found[0] if found else next(iter(str(error).splitlines()), type(error).__name__)
        raise _unfit("a Python", reason, where) from error


def _tell_python(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a task, which cannot even load this function without Timespine: say which Python it is."""
    import pyarrow as pa

    for batch in batches:
        yield pa.RecordBatch.from_pydict({"python": [sys.executable] * batch.num_rows})


def _unfit(python: str, reason: str, where: str) -> UsageError:
    return UsageError(
        f"the workers of Spark run {python}, which cannot run Timespine ({reason}): set PYSPARK_PYTHON, or "
        f"spark.pyspark.python, to a Python that has it, such as {sys.executable}, {where}"
    )

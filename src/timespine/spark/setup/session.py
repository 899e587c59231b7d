"""Start a Spark session with settings for Timespine, or prepare a running one.

    spark = session()                                    # this machine, all its cores
    spark = session(master="spark://host:7077", conf={"spark.executor.memory": "4g"})
    spark = session(master="sc://host:15002")            # Spark Connect
    prepare(spark)                                       # a session of your own

Settings of the caller take precedence over all others. Those of spark-defaults, PYSPARK_SUBMIT_ARGS or spark-submit
take precedence over the settings here, except over the two of `_FROM_THE_START`.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from timespine.errors import UsageError
from timespine.spark.setup.java import find_java
from timespine.spark.setup.worker_python import check_workers, is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Setting = str | int | float | bool
"""The Python types of the value of a Spark setting."""

_AT_RUNTIME = {
    # Frames go to and from Python as Arrow data: the default since Spark 4.2.
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # A read of one consolidated run spends its time on moving rows between Python and the JVM: batches of 65,536 rows
    # instead of 10,000 mean fewer transfers.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    # A snapshot in native files can have hundreds of paths. Beyond 32, Spark would list them by a separate job,
    # which takes 0.03 to 0.12 s each time.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
}
"""The settings that make Timespine faster, keep the meaning of queries, and can change while Spark runs."""

_FROM_THE_START = {
    # spark-submit turns the bar on for every Python process, which hides the setting of the user.
    "spark.ui.showConsoleProgress": "false",
}
"""The settings that the JVM starts with: they take precedence over spark-defaults, but not over the caller."""

_OF_A_NEW_SESSION = {
    # A timestamp means the same on every machine. Not in `_AT_RUNTIME`: it changes the results of the caller's queries.
    "spark.sql.session.timeZone": "UTC",
    "spark.log.level": "ERROR",
}
"""The settings of sessions that Timespine starts, and of no others."""

_LOCAL = {
    # By default Spark listens on an address that other machines can reach.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    # The web page needs a port, and slows the start.
    "spark.ui.enabled": "false",
    # Each sort, aggregate and broadcast takes a page, of 64 MB with a driver of 4 GB: a query of many joins fills it.
    "spark.buffer.pageSize": "4m",
}
"""The settings of a session whose driver and executors are one process of this machine."""

_FIXED = ("spark.master", "spark.hadoop.", "spark.executorEnv.")
"""The prefixes of settings that Spark accepts while it runs, and then ignores."""


def session(
    name: str = "timespine", *, master: str | None = None, conf: Mapping[str, Setting] | None = None
) -> SparkSession:
    """Return the running Spark session of this process, or start a new one.

    `master` is a master URL of Spark, or `sc://host:port` for Spark Connect. The default is the first of SPARK_REMOTE,
    SPARK_MASTER_URL, the master of spark-defaults, and `local[*]`.

    A running session gets the settings of `conf`, and keeps its name. Raise a `UsageError` if it cannot change one of
    them, or has another master.
    """
    _require_pyspark()
    wanted = _to_settings(master, conf)
    running = _running_session()
    if running is not None:
        _satisfy(running, wanted)
        return prepare(running)
    remote = _remote(wanted)
    if remote is None:
        return prepare(_start_classic(name, wanted))
    if remote.startswith("local"):
        return prepare(_start_connect(name, remote, wanted))
    return prepare(_connect(remote, wanted))


def prepare(spark: SparkSession) -> SparkSession:
    """Prepare any session for Timespine, also one of Spark Connect, and return it.

    Afterwards it has the format "timespine", and its workers can import Timespine. If they cannot, and no setting
    of a running session helps, a `UsageError` says what to set. `prepare` also changes settings that make Timespine
    faster, unless the user has set them. The meaning of queries and the time zone stay as they are.

    If `spark.sql.python.filterPushdown.enabled` is true, a probe tells whether the format takes filters. Call `prepare`
    again after a change of this setting.
    """
    from timespine.spark.data_source import FilteringSource, TimespineSource
    from timespine.spark.setup.filter_probe import PUSHDOWN, pushes_filters_correctly

    check_workers(spark)
    there = spark.conf.getAll
    for key, value in _AT_RUNTIME.items():
        if key not in there:
            spark.conf.set(key, value)
    # Spark finds the format by itself only if its workers run the Python of the driver at its first search.
    filters = there.get(PUSHDOWN, "false").lower() == "true" and pushes_filters_correctly(spark)
    spark.dataSource.register(FilteringSource if filters else TimespineSource)
    return spark


def _require_pyspark() -> None:
    """Raise a `UsageError` that says what to install if Spark is missing."""
    try:
        import pyspark.sql  # noqa: F401
    except ImportError as missing:
        raise UsageError("Spark is not installed: pip install 'timespine[spark]'") from missing


def _to_settings(master: str | None, conf: Mapping[str, Setting] | None) -> dict[str, str]:
    """Convert the caller's arguments to Spark settings: the master is `spark.master`, or `spark.remote` of Connect."""
    wanted = {key: _text(value) for key, value in (conf or {}).items()}
    master = wanted.pop("spark.master", master)
    if master is not None:
        wanted["spark.remote" if master.startswith("sc://") else "spark.master"] = master
    return wanted


def _text(value: Setting) -> str:
    """Format the value of a setting for Spark."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _jvm_runs() -> bool:
    """Return whether this process has a JVM: its own, which outlives the sessions, or that of spark-submit."""
    core: Any = sys.modules.get("pyspark.core.context")
    return "PYSPARK_GATEWAY_PORT" in os.environ or (core is not None and core.SparkContext._gateway is not None)


def _running_session() -> SparkSession | None:
    """Return the running session of this thread, or of this process; a bare context counts as one."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    core: Any = sys.modules.get("pyspark.core.context")
    has_context = core is not None and core.SparkContext._active_spark_context is not None
    try:
        found = SparkSession.active()
    except PySparkRuntimeError:
        return SparkSession.builder.getOrCreate() if has_context else None
    # Spark still reports a classic session as active after its context was stopped directly.
    return found if has_context or is_connect(found) else None


def _satisfy(spark: SparkSession, wanted: Mapping[str, str]) -> None:
    """Apply the caller's settings to a running session: all of them, or none and an error."""
    there = spark.conf.getAll
    differs = {key: value for key, value in wanted.items() if key != "spark.remote" and there.get(key) != value}
    if "spark.remote" in wanted and not _talks_to(spark, wanted["spark.remote"]):
        raise _cannot("spark.remote", wanted["spark.remote"])
    for key, value in differs.items():
        if key.startswith(_FIXED):
            raise _cannot(key, value)
    before: dict[str, str | None] = {}
    for key, value in differs.items():
        try:
            spark.conf.set(key, value)
        except Exception as refusal:  # Spark has many classes: for static settings, core settings, wrong values
            _restore(spark, before)
            raise _cannot(key, value) from refusal
        before[key] = there.get(key)


def _talks_to(spark: SparkSession, url: str) -> bool:
    """Return whether a session is one of Spark Connect with the server at `url`."""
    if not is_connect(spark):
        return False
    from pyspark.sql.connect.client import DefaultChannelBuilder

    client: Any = spark.client
    return bool(client._builder.endpoint == DefaultChannelBuilder(url).endpoint)


def _restore(spark: SparkSession, before: Mapping[str, str | None]) -> None:
    """Restore settings to their values before."""
    for key, value in before.items():
        if value is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, value)


def _cannot(key: str, value: str) -> UsageError:
    """Make the error for a setting that a running session cannot change."""
    return UsageError(
        f"{key} cannot become {value} while this Spark session runs: "
        "stop it first with `spark.stop()`, or set it where Spark is started"
    )


def _remote(wanted: Mapping[str, str]) -> str | None:
    """Return the URL of the Spark Connect server of a new session; None for a classic session."""
    remote = wanted.get("spark.remote", os.environ.get("SPARK_REMOTE")) or None
    if remote is not None and "spark.master" in wanted:
        raise UsageError(
            f"a session has the master {wanted['spark.master']} or the Spark Connect server {remote}, not both: "
            "leave the master out, or unset SPARK_REMOTE"
        )
    return remote


def _start_classic(name: str, wanted: Mapping[str, str]) -> SparkSession:
    """Start a new classic session.

    Start the JVM first, with the settings that it needs at its start, such as its memory. Then read the settings of
    spark-defaults and the like from it, and add only those that are missing.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    _set_environment(wanted)
    first = {**_FROM_THE_START, **_master_of_environment(), **wanted}
    SparkContext._ensure_initialized(conf=SparkConf().setAll(list(first.items())))
    there: dict[str, str] = dict(SparkConf().getAll())
    master = first.get("spark.master", there.get("spark.master", "local[*]"))
    missing = {key: value for key, value in _defaults(master).items() if key not in there}
    settings: dict[str, Any] = {"spark.app.name": name, "spark.master": master, **missing, **first}
    return SparkSession.builder.config(map=settings).getOrCreate()


def _start_connect(name: str, remote: str, wanted: Mapping[str, str]) -> SparkSession:
    """Start a session of Spark Connect, with its server in the JVM of this process."""
    from pyspark.sql import SparkSession

    _set_environment(wanted)
    started = {**_defaults(remote), **_FROM_THE_START, **wanted}
    settings: dict[str, Any] = {"spark.app.name": name, **started, "spark.remote": remote}
    with warnings.catch_warnings():
        # PySpark sets the settings of the server on the session again, which refuses most of them with a warning each.
        warnings.filterwarnings("ignore", message="Failed to set ", category=UserWarning)
        return SparkSession.builder.config(map=settings).getOrCreate()


def _connect(remote: str, wanted: Mapping[str, str]) -> SparkSession:
    """Start a session of a running Spark Connect server."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.remote(remote).getOrCreate()
    try:
        _satisfy(spark, {key: value for key, value in wanted.items() if key != "spark.remote"})
    except UsageError:
        spark.stop()
        raise
    return spark


def _set_environment(wanted: Mapping[str, str]) -> None:
    """Set the Java and the Python of the JVM in the environment, unless the user has set them.

    Otherwise workers run `python3` from the PATH, which may be a Python without Timespine.
    """
    os.environ.setdefault("PYSPARK_PYTHON", wanted.get("spark.pyspark.python", sys.executable))
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", wanted.get("spark.pyspark.driver.python", sys.executable))
    if not _jvm_runs():
        os.environ["JAVA_HOME"] = str(find_java().home)


def _master_of_environment() -> dict[str, str]:
    """Return the master in SPARK_MASTER_URL, which clusters set and Spark itself does not read."""
    master = os.environ.get("SPARK_MASTER_URL")
    return {"spark.master": master} if master else {}


def _defaults(master: str) -> dict[str, str]:
    """Return the default settings of a new session."""
    python = {"spark.pyspark.python": os.environ["PYSPARK_PYTHON"]}
    local = _LOCAL if master == "local" or master.startswith("local[") else {}
    return {**_AT_RUNTIME, **_OF_A_NEW_SESSION, **python, **local}

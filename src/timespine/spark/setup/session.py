"""A Spark session that suits Timespine, in one line: a new one, or one that is there already.

    spark = session()                                    # this machine, all its cores
    spark = session(master="spark://host:7077", conf={"spark.executor.memory": "4g"})
    spark = session(master="sc://host:15002")            # Spark Connect
    prepare(spark)                                       # a session that somebody else made

What the caller asks for always wins. What spark-defaults, PYSPARK_SUBMIT_ARGS or spark-submit say wins over the
settings here, except over those two of `_FROM_THE_START`.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from timespine.errors import UsageError
from timespine.spark.setup.java import find_java
from timespine.spark.setup.workers import check_workers, is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Setting = str | int | float | bool
"""What a setting of Spark can be given as."""

_AT_RUNTIME = {
    # Frames go to and from Python as Arrow data: the default since Spark 4.2.
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Moving rows between Python and the JVM is what a read of one consolidated run costs: in batches of 65,536 rows
    # instead of 10,000, there are fewer of them.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    # A snapshot in native files can be hundreds of paths. Beyond 32 Spark would list them by a job of its own,
    # at 0.03 to 0.12 s each time.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
}
"""What makes Timespine faster, leaves what queries mean as it is, and can be set while Spark runs."""

_FROM_THE_START = {
    # spark-submit turns the bar on for whatever Python starts, so nobody can tell what was asked for before.
    "spark.ui.showConsoleProgress": "false",
}
"""What the JVM is started with, and so wins over spark-defaults, but not over the caller."""

_OF_A_NEW_SESSION = {
    # A timestamp means the same on every machine. Not in `_AT_RUNTIME`: it changes what the caller's own queries say.
    "spark.sql.session.timeZone": "UTC",
    "spark.log.level": "ERROR",
}
"""What only a session of our own is given."""

_LOCAL = {
    # By default Spark takes an address of the machine that others can reach.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    # The web page takes a port, and time at the start.
    "spark.ui.enabled": "false",
}
"""What a session is given whose driver and executors are one process of this machine."""

_FIXED = ("spark.master", "spark.hadoop.", "spark.executorEnv.")
"""What settings begin with that Spark lets be set while it runs, and then takes no notice of."""


def session(
    name: str = "timespine", *, master: str | None = None, conf: Mapping[str, Setting] | None = None
) -> SparkSession:
    """The Spark session of this process: the one that runs, or else a new one.

    `master` is as Spark has it, or `sc://host:port` for Spark Connect. Without one it is SPARK_REMOTE,
    SPARK_MASTER_URL, what spark-defaults say, or `local[*]`, the first of them that is there.

    A session that runs is given what `conf` asks for, and keeps its name; if it cannot be given that, or has another
    master, that is a `UsageError`.
    """
    _require_pyspark()
    wanted = _wanted(master, conf)
    running = _running()
    if running is not None:
        _satisfy(running, wanted)
        return prepare(running)
    remote = _remote(wanted)
    if remote is None:
        return prepare(_started(name, wanted))
    if remote.startswith("local"):
        return prepare(_started_behind_connect(name, remote, wanted))
    return prepare(_connected(remote, wanted))


def prepare(spark: SparkSession) -> SparkSession:
    """Make any session ready for Timespine, a Spark Connect one too, and give it back.

    It knows the format "timespine" afterwards, and its workers can import Timespine: if they cannot, and that cannot
    be set while Spark runs, a `UsageError` says what to set. What makes Timespine faster is set if the user did not.
    What queries mean stays as it is, and so does the time zone.
    """
    from timespine.spark.read.data_source import TimespineSource

    check_workers(spark)
    there = spark.conf.getAll
    for key, value in _AT_RUNTIME.items():
        if key not in there:
            spark.conf.set(key, value)
    # Spark finds the format by itself only if its Python is the one of the driver when it looks for the first time.
    spark.dataSource.register(TimespineSource)
    return spark


def _require_pyspark() -> None:
    """Say what to install if Spark is not there."""
    try:
        import pyspark.sql  # noqa: F401
    except ImportError as missing:
        raise UsageError("Spark is not installed: pip install 'timespine[spark]'") from missing


def _wanted(master: str | None, conf: Mapping[str, Setting] | None) -> dict[str, str]:
    """What the caller asks for, as settings of Spark: the master is `spark.master`, or `spark.remote` of Connect."""
    wanted = {key: _text(value) for key, value in (conf or {}).items()}
    master = wanted.pop("spark.master", master)
    if master is not None:
        wanted["spark.remote" if master.startswith("sc://") else "spark.master"] = master
    return wanted


def _text(value: Setting) -> str:
    """A setting as Spark writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _jvm_runs() -> bool:
    """Whether this process has a JVM: its own, which outlives the sessions, or that of spark-submit."""
    core: Any = sys.modules.get("pyspark.core.context")
    return "PYSPARK_GATEWAY_PORT" in os.environ or (core is not None and core.SparkContext._gateway is not None)


def _running() -> SparkSession | None:
    """The session that runs: that of this thread, or else of this process; one on a bare context counts."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    core: Any = sys.modules.get("pyspark.core.context")
    has_context = core is not None and core.SparkContext._active_spark_context is not None
    try:
        found = SparkSession.active()
    except PySparkRuntimeError:
        return SparkSession.builder.getOrCreate() if has_context else None
    # A classic session whose context was stopped behind its back is still given as active.
    return found if has_context or is_connect(found) else None


def _satisfy(spark: SparkSession, wanted: Mapping[str, str]) -> None:
    """Set on a session that runs what the caller asks for: all of it, or nothing and an error."""
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
        except Exception as refusal:  # Spark has many: for a static setting, for one of the core, for a wrong value
            _restore(spark, before)
            raise _cannot(key, value) from refusal
        before[key] = there.get(key)


def _talks_to(spark: SparkSession, url: str) -> bool:
    """Whether a session is one of Spark Connect with the server at `url`."""
    if not is_connect(spark):
        return False
    from pyspark.sql.connect.client import DefaultChannelBuilder

    client: Any = spark.client
    return bool(client._builder.endpoint == DefaultChannelBuilder(url).endpoint)


def _restore(spark: SparkSession, before: Mapping[str, str | None]) -> None:
    """Set back what was set, to what it was."""
    for key, value in before.items():
        if value is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, value)


def _cannot(key: str, value: str) -> UsageError:
    """The answer to a setting that a running session cannot be given."""
    return UsageError(
        f"{key} cannot become {value} while this Spark session runs: "
        "stop it first with `spark.stop()`, or set it where Spark is started"
    )


def _remote(wanted: Mapping[str, str]) -> str | None:
    """Where a new session finds its Spark Connect server; None if it is to be a classic one."""
    remote = wanted.get("spark.remote", os.environ.get("SPARK_REMOTE")) or None
    if remote is not None and "spark.master" in wanted:
        raise UsageError(
            f"a session has the master {wanted['spark.master']} or the Spark Connect server {remote}, not both: "
            "leave the master out, or unset SPARK_REMOTE"
        )
    return remote


def _started(name: str, wanted: Mapping[str, str]) -> SparkSession:
    """A new classic session.

    The JVM is started first, with what must be known to it early, such as its memory. It then says what is set by
    spark-defaults and the like, and only what is missing is added.
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


def _started_behind_connect(name: str, remote: str, wanted: Mapping[str, str]) -> SparkSession:
    """A new session of Spark Connect, with its server in the JVM of this process."""
    from pyspark.sql import SparkSession

    _set_environment(wanted)
    started = {**_defaults(remote), **_FROM_THE_START, **wanted}
    settings: dict[str, Any] = {"spark.app.name": name, **started, "spark.remote": remote}
    with warnings.catch_warnings():
        # What starts the server is then set on the session again, where most of it is refused with a warning each.
        warnings.filterwarnings("ignore", message="Failed to set ", category=UserWarning)
        return SparkSession.builder.config(map=settings).getOrCreate()


def _connected(remote: str, wanted: Mapping[str, str]) -> SparkSession:
    """A new session of a Spark Connect server that runs somewhere."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.remote(remote).getOrCreate()
    try:
        _satisfy(spark, {key: value for key, value in wanted.items() if key != "spark.remote"})
    except UsageError:
        spark.stop()
        raise
    return spark


def _set_environment(wanted: Mapping[str, str]) -> None:
    """What the JVM learns from the environment, unless it was said already: which Java it is, and which Python.

    Workers take `python3` from the PATH otherwise, which need not be the Python that has Timespine.
    """
    os.environ.setdefault("PYSPARK_PYTHON", wanted.get("spark.pyspark.python", sys.executable))
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", wanted.get("spark.pyspark.driver.python", sys.executable))
    if not _jvm_runs():
        os.environ["JAVA_HOME"] = str(find_java().home)


def _master_of_environment() -> dict[str, str]:
    """The master that SPARK_MASTER_URL names, which clusters set and Spark itself does not read."""
    master = os.environ.get("SPARK_MASTER_URL")
    return {"spark.master": master} if master else {}


def _defaults(master: str) -> dict[str, str]:
    """What a new session is given where nobody says otherwise."""
    python = {"spark.pyspark.python": os.environ["PYSPARK_PYTHON"]}
    local = _LOCAL if master == "local" or master.startswith("local[") else {}
    return {**_AT_RUNTIME, **_OF_A_NEW_SESSION, **python, **local}

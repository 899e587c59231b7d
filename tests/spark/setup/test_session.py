"""One line starts a Spark session that suits Timespine, and never against what somebody asked for."""

import importlib.util
import json
import os
import sys

import pytest

import timespine.spark
from timespine.errors import UsageError
from timespine.spark.setup import worker_python
from timespine.spark.setup.session import prepare, session

module = sys.modules["timespine.spark.setup.session"]
ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
PATHS = "spark.sql.sources.parallelPartitionDiscovery.threshold"
ZONE = "spark.sql.session.timeZone"


def python_of_workers(spark):
    """Which Pythons run the tasks of a job."""

    def names(batches):
        import sys

        import pyarrow as pa

        for batch in batches:
            yield pa.RecordBatch.from_pydict({"python": [sys.executable] * batch.num_rows})

    return {row.python for row in spark.range(10).mapInArrow(names, "python string").collect()}


def python_in(folder, name, *options):
    """A command in a folder that runs the Python of this test, perhaps with options."""
    folder.mkdir(exist_ok=True)
    command = folder / name
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" {" ".join(options)} "$@"\n')
    command.chmod(0o755)
    return str(command)


def test_the_package_gives_the_function_also_after_an_import_of_the_module_of_that_name():
    assert timespine.spark.session is session


def test_without_pyspark_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(UsageError, match=r"^Spark is not installed: pip install 'timespine\[spark\]'$"):
        session()


def test_a_master_of_spark_connect_is_a_remote_and_that_of_conf_wins():
    assert module._to_settings("sc://host:1", None) == {"spark.remote": "sc://host:1"}
    assert module._to_settings("local[2]", {"spark.master": "yarn"}) == {"spark.master": "yarn"}
    assert module._to_settings("local", {"spark.master": "sc://host"}) == {"spark.remote": "sc://host"}
    assert module._to_settings(None, {"a": True, "b": 3, "c": "X"}) == {"a": "true", "b": "3", "c": "X"}


def test_a_remote_of_the_environment_is_used_unless_a_master_is_asked_for(monkeypatch):
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    assert module._remote({}) is None
    monkeypatch.setenv("SPARK_REMOTE", "sc://there")
    assert module._remote({}) == "sc://there"
    assert module._remote({"spark.remote": "sc://here"}) == "sc://here"
    with pytest.raises(UsageError, match="not both"):
        module._remote({"spark.master": "local"})


@pytest.mark.parametrize(
    ("master", "local"),
    [("local", True), ("local[*]", True), ("local-cluster[2,1,1024]", False), ("spark://host:7077", False)],
)
def test_only_a_session_of_one_process_stays_on_the_loopback(monkeypatch, master, local):
    monkeypatch.setenv("PYSPARK_PYTHON", "python-of-mine")
    settings = module._defaults(master)
    assert ("spark.driver.host" in settings) == local
    assert ("spark.ui.enabled" in settings) == local
    assert settings["spark.pyspark.python"] == "python-of-mine"


def test_a_new_session_has_what_timespine_needs(spark):
    conf = dict(spark.sparkContext.getConf().getAll())
    assert spark.sparkContext.master == "local[2]"
    assert conf["spark.app.name"] == "tests"
    assert conf["spark.driver.host"] == conf["spark.driver.bindAddress"] == "127.0.0.1"
    assert conf["spark.ui.enabled"] == conf["spark.ui.showConsoleProgress"] == "false"
    assert conf["spark.log.level"] == "ERROR"
    assert spark.conf.get(ROWS) == "65536"
    assert spark.conf.get(PATHS) == "10000"
    assert spark.conf.get(ZONE) == "UTC"
    assert spark.conf.get("spark.sql.execution.arrow.pyspark.enabled") == "true"


def test_workers_run_the_python_of_the_driver(spark):
    assert python_of_workers(spark) == {sys.executable}


def test_a_session_that_runs_is_reused_and_takes_what_can_be_set(spark):
    assert session() is spark
    assert session("another name", master="local[2]") is spark
    try:
        assert session(conf={"spark.sql.shuffle.partitions": 5, "spark.sql.catalog.mine": "x"}) is spark
        assert spark.conf.get("spark.sql.shuffle.partitions") == "5"
        assert spark.conf.get("spark.sql.catalog.mine") == "x"
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "2")
        spark.conf.unset("spark.sql.catalog.mine")


@pytest.mark.parametrize(
    "asked",
    [
        {"master": "local[7]"},
        {"master": "sc://127.0.0.1:1"},
        {"conf": {"spark.executor.memory": "3g"}},
        {"conf": {"spark.hadoop.fs.defaultFS": "s3a://elsewhere"}},
        {"conf": {"spark.sql.warehouse.dir": "/elsewhere"}},
    ],
)
def test_what_a_session_that_runs_cannot_be_given_is_refused_and_nothing_is_changed(spark, asked):
    conf = {"spark.sql.shuffle.partitions": 6, "spark.sql.files.maxRecordsPerFile": 7, **asked.get("conf", {})}
    with pytest.raises(UsageError, match=r"stop it first with `spark\.stop\(\)`"):
        session(master=asked.get("master"), conf=conf)
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert "spark.sql.files.maxRecordsPerFile" not in spark.conf.getAll


def test_prepare_sets_only_unset_options_and_leaves_the_time_zone_alone(spark):
    other = spark.newSession()
    for key in (ROWS, PATHS):
        other.conf.unset(key)
    other.conf.set(ROWS, "123")
    other.conf.set(ZONE, "Europe/Vienna")
    assert prepare(other) is other
    assert other.conf.get(ROWS) == "123"
    assert other.conf.get(PATHS) == "10000"
    assert other.conf.get(ZONE) == "Europe/Vienna"


OWN_SETTINGS = """
import json, os, sys
from timespine.spark.setup.session import session
from pyspark import SparkContext

def jvm(spark):
    return spark._jvm.java.lang

spark = session(conf={"spark.sql.execution.arrow.maxRecordsPerBatch": 123, "spark.driver.memory": "512m"})
first = dict(spark.sparkContext.getConf().getAll())
told = {
    "master": spark.sparkContext.master,
    "rows": spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch"),
    "zone": spark.conf.get("spark.sql.session.timeZone"),
    "bar": first["spark.ui.showConsoleProgress"],
    "memory": jvm(spark).Runtime.getRuntime().maxMemory() >> 20,
    "python": os.environ["PYSPARK_PYTHON"],
}
spark.sparkContext.stop()
again = session(master="local[1]")
told["again"] = again.sparkContext.master
again.stop()
context = SparkContext("local[1]", "bare", conf=None)
told["on a bare context"] = session().sparkContext is context
context.stop()
print(json.dumps(told))
"""

DEFAULTS = """
# of the cluster
spark.master                  local[3]
spark.sql.session.timeZone    Europe/Vienna
spark.driver.host             127.0.0.1
spark.driver.bindAddress      127.0.0.1
spark.ui.enabled              false
spark.ui.showConsoleProgress  true
"""


def test_what_the_caller_and_spark_defaults_say_wins(told_by, tmp_path):
    (tmp_path / "spark-defaults.conf").write_text(DEFAULTS)
    mine = python_in(tmp_path, "python-of-mine")
    told = told_by(OWN_SETTINGS, SPARK_CONF_DIR=str(tmp_path), PYSPARK_PYTHON=mine)
    assert 450 <= told.pop("memory") <= 512
    assert told == {
        "master": "local[3]",
        "rows": "123",
        "zone": "Europe/Vienna",
        "bar": "false",
        "python": mine,
        "again": "local[1]",
        "on a bare context": True,
    }


CONNECT = """
import json, os
from pyspark.sql import SparkSession
from timespine.errors import UsageError
from timespine.spark.setup.java import find_java
from timespine.spark.setup.session import prepare, session

os.environ["JAVA_HOME"] = str(find_java().home)
local = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": "false",
         "spark.connect.grpc.binding.address": "127.0.0.1", "spark.log.level": "OFF"}
spark = SparkSession.builder.remote("local[1]").config(map=local).getOrCreate()
spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "123")
before = spark.conf.get("spark.sql.session.timeZone")
told = {"same": prepare(spark) is spark, "reused": session(conf={"spark.sql.shuffle.partitions": 3}) is spark}
told["type"] = type(spark).__module__
told["rows"] = spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")
told["paths"] = spark.conf.get("spark.sql.sources.parallelPartitionDiscovery.threshold")
told["partitions"] = spark.conf.get("spark.sql.shuffle.partitions")
told["zone kept"] = spark.conf.get("spark.sql.session.timeZone") == before
told["same server"] = session(master="sc://localhost") is spark
told["refused"] = []
for asked in ({"master": "local[7]"}, {"master": "sc://127.0.0.1:1"}, {"conf": {"spark.driver.host": "x"}}):
    try:
        session(**asked)
    except UsageError as refusal:
        told["refused"].append("spark.stop()" in str(refusal))
spark.stop()
print(json.dumps(told))
"""


@pytest.mark.skipif(importlib.util.find_spec("grpc") is None, reason="needs pyspark[connect]")
def test_a_session_of_spark_connect_is_prepared_and_reused(told_by):
    told = told_by(CONNECT, SPARK_TESTING="1")  # a free port for the server, instead of always the same
    assert told.pop("type").startswith("pyspark.sql.connect")
    assert told == {
        "same": True,
        "reused": True,
        "rows": "123",
        "paths": "10000",
        "partitions": "3",
        "zone kept": True,
        "same server": True,
        "refused": [True, True, True],
    }


OF_THE_USER = """
import json, os
from pyspark.sql import SparkSession
import timespine as ts
from timespine.errors import UsageError
from timespine.spark.setup.java import find_java
from timespine.spark.setup.session import prepare

os.environ["JAVA_HOME"] = str(find_java().home)
conf = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": "false",
        "spark.connect.grpc.binding.address": "127.0.0.1", "spark.log.level": "OFF", **json.loads(os.environ["CONF"])}
builder = SparkSession.builder.config(map=conf)
spark = (builder.remote("local[1]") if "CONNECT" in os.environ else builder.master("local[1]")).getOrCreate()
store = ts.open("shop")
orders = store.create("orders", key={"id": "bigint"}, timeline="counter")
orders.append([{"id": 1}])
read = lambda: spark.read.format("timespine").load(store.location + "/orders").count()
told = {}
for name, call in (("to_spark", lambda: orders.snapshot().to_spark(spark, native=False).count()),
                   ("register", lambda: len(ts.spark.register(store, spark))),
                   ("prepare", lambda: prepare(spark) and 1), ("read", read)):
    try:
        told[name] = call()
    except Exception as error:
        told[name] = f"{type(error).__name__}: {error}"
spark.stop()
print(json.dumps(told))
"""
"""A user who has a session of their own, and no environment that is activated."""

NO_MODULES = ("-S", "-E", "-s")
"""Options of a Python that finds nothing but the standard library."""


@pytest.mark.parametrize(
    "conf",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"spark.pyspark.python": sys.executable}, id="conf", marks=pytest.mark.slow),
    ],
)
def test_workers_of_a_users_session_get_the_python_of_the_driver(told_by, tmp_path, conf):
    python_in(tmp_path / "bin", "python3", *NO_MODULES)
    told = told_by(OF_THE_USER, PATH=f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}", CONF=json.dumps(conf))
    assert told == {"to_spark": 1, "register": 1, "prepare": 1, "read": 1}


def refused(told):
    """What all that needs workers says, if it says the same."""
    assert told["to_spark"] == told["register"] == told["prepare"]
    assert "DATA_SOURCE_NOT_FOUND" in told["read"]
    return told["prepare"]


def test_a_python_that_the_user_chose_is_refused_in_one_sentence_if_it_will_not_do(told_by, tmp_path):
    poor = python_in(tmp_path / "bin", "python3", *NO_MODULES)
    assert refused(told_by(OF_THE_USER, PYSPARK_PYTHON=poor, CONF="{}")) == (
        f"UsageError: the Python of Spark's workers, {poor}, cannot import Timespine (ModuleNotFoundError: No module "
        f"named 'pyarrow'): set PYSPARK_PYTHON, or spark.pyspark.python, to a Python that has it, such as "
        f"{sys.executable}, before Spark starts"
    )


@pytest.mark.skipif(importlib.util.find_spec("grpc") is None, reason="needs pyspark[connect]")
def test_so_it_is_on_spark_connect_where_only_the_server_can_choose(told_by, tmp_path):
    poor = python_in(tmp_path / "bin", "python3", *NO_MODULES)
    said = refused(told_by(OF_THE_USER, PYSPARK_PYTHON=poor, CONF="{}", CONNECT="1", SPARK_TESTING="1"))
    assert said.startswith("UsageError: the Python of Spark's workers cannot import Timespine (")
    assert said.endswith("where the Spark Connect server is started")


def test_a_python_that_does_not_run_is_refused():
    with pytest.raises(UsageError, match=r"^the Python of Spark's workers, /no/python, cannot import Timespine \("):
        worker_python._ask_python("/no/python")

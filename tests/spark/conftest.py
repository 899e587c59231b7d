"""What the tests on Spark share: one session for all of them, since a JVM takes seconds to start."""

import json
import os
import subprocess
import sys

import pytest
from class_archive import java_options

import timespine as ts
from timespine.spark.setup.session import session
from timespine.spark.write import driver_or_tasks

QUICK_START = java_options()

LONG = ("test_cluster", "test_connect", "test_object_store", "test_pipeline", "test_enrich", "test_view_oracle")
"""The files of few, long tests. They begin first: at the end, one worker would run them while the others are idle."""


def pytest_collection_modifyitems(items):
    """Put the long files first, in the order of `LONG`. pytest-xdist keeps the order with `--no-loadscope-reorder`."""
    rank = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))


@pytest.fixture(scope="session")
def spark():
    """A session on two cores of this machine, stopped at the end."""
    pytest.importorskip("pyspark", reason="needs timespine[spark]")
    conf = {
        "spark.sql.shuffle.partitions": 2,
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": QUICK_START,
        "spark.buffer.pageSize": "256k",  # a page for each sort and each aggregate: large ones fill the heap
    }
    made = session("tests", master="local[2]", conf=conf)
    yield made
    made.stop()


@pytest.fixture
def store(tmp_path):
    """A store in a folder, without maintenance in the background."""
    with ts.open(tmp_path / "store", maintenance=False) as opened:
        yield opened


@pytest.fixture(autouse=True)
def small(request, monkeypatch):
    """Set how many rows are few by the parameter `small_rows` of a test: executors write more than that."""
    rows = getattr(request.node, "callspec", None)
    if rows is not None and "small_rows" in rows.params:
        monkeypatch.setattr(driver_or_tasks, "SMALL_ROWS", rows.params["small_rows"])


@pytest.fixture
def told_by(tmp_path):
    """Run a script in a process, and so a JVM, of its own; what it prints last is JSON, and handed back."""

    def run(text, **environment):
        pytest.importorskip("pyspark", reason="needs timespine[spark]")
        kept = {key: value for key, value in os.environ.items() if "SPARK" not in key and "TIMESPINE" not in key}
        path = os.pathsep.join(os.path.abspath(folder) for folder in sys.path if folder)
        ran = subprocess.run(
            [sys.executable, "-c", text],
            env={**kept, "PYTHONPATH": path, "JDK_JAVA_OPTIONS": QUICK_START, **environment},
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=1800,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr[-3000:]
        return json.loads(ran.stdout.splitlines()[-1])

    return run

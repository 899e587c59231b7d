"""Copies are killed before and after each of their writes: a copy that was cut off is never taken for complete.

Readers find the older copy, or are told that there is none yet; the next run goes on with the blobs that are there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import timespine as ts

WORKER = Path(__file__).with_name("copy_worker.py")
CONFIG = ts.Config(inline_part_bytes=1, inline_total_bytes=1)
KEY = {"id": "int64"}


@pytest.fixture
def origin(tmp_path):
    """A store with two collections whose rows are in blobs."""
    with ts.open(tmp_path / "origin", config=CONFIG, maintenance=False) as store:
        for name in ("a", "b"):
            store.create(name, key=KEY, timeline="counter")
        change(store, 1)
        ts.copy(store, tmp_path / "older")
        yield store


def change(store, number):
    """Append the same rows to both collections in one transaction."""
    with store.transaction() as both:
        for name in ("a", "b"):
            both.append(name, [{"id": number}])


def killed(origin, targets, *, before=None, storage=None, step=1):
    """Run the copies; return what was found after each kill."""
    arguments = {
        "origin": origin.location,
        "before": None if before is None else str(before),
        "targets": targets,
        "storage": storage,
        "step": step,
    }
    done = subprocess.run(
        [sys.executable, str(WORKER), json.dumps(arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(told, sums, older=None):
    """Check that each kill left the older copy or the whole new one, and that the next run made the rest."""
    whole = {"is": "copy", "rows": [sum(sums)] * 2}
    for each in told:
        left, again = each["killed"], each["again"]
        if left["is"] == "copy":
            assert left["rows"] in ([sum(sums)] * 2, older), each
        else:
            assert older is None, each
            assert not left.get("promoted"), each
        assert again["copied"] <= again["blobs"], each
        then = each["then"]
        assert then.pop("blobs") == again["blobs"], each
        assert then == whole, each
    *cut_off, finished = told
    assert finished["killed"]["is"] == "copy"
    assert finished["again"]["copied"] == 0
    assert len({each["again"]["copied"] for each in cut_off}) > 1, "the next run goes on where the killed one was"
    return [each["killed"]["is"] for each in told]


def test_a_first_copy_that_is_killed_is_not_complete_and_goes_on(origin, tmp_path):
    change(origin, 2)
    found = check(killed(origin, str(tmp_path / "new-{}"), step=3), [1, 2])
    assert {"nothing", "incomplete", "copy"} >= set(found) >= {"incomplete", "copy"}
    assert found == sorted(found, key=["nothing", "incomplete", "copy"].index)


def test_a_later_copy_that_is_killed_leaves_the_older_one_or_is_whole(origin, tmp_path):
    for number in (2, 3):
        change(origin, number)
    for name in ("a", "b"):
        origin[name].compact(wait=True)
    told = killed(origin, str(tmp_path / "next-{}"), before=tmp_path / "older", step=5)
    assert set(check(told, [1, 2, 3], [1, 1])) == {"copy"}
    assert [1, 1] in [each["killed"]["rows"] for each in told]


def test_a_copy_to_a_bucket_that_is_killed_is_not_complete_and_goes_on(origin, moto):
    change(origin, 2)
    found = check(killed(origin, f"{moto.url()}/{{}}", storage=moto.storage, step=7), [1, 2])
    assert set(found) >= {"incomplete", "copy"}

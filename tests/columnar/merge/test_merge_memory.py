"""A merge of much more than its memory stays within a few times of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def memory():
    """What merges take at most, in a process of their own."""
    here = Path(__file__).parent
    paths = os.pathsep.join([*(path for path in sys.path if path), str(here)])
    command = [sys.executable, str(here / "engine_memory.py")]
    # An allocator that gives back what is free: others keep a good deal of it for the next time.
    frugal = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1"}
    frugal |= {"MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_THRESHOLD_": "65536"}
    environment = {**os.environ, **frugal, "PYTHONPATH": paths}
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs the peak of a process as Linux tells it")
@pytest.mark.parametrize("case", ["narrow", "wide", "many", "unordered", "one row", "dropped"])
def test_a_merge_of_much_more_than_its_memory_stays_within_a_few_times_of_it(memory, case):
    figures = memory[case]
    assert figures["lost"] == 0
    assert figures["data"] > 7.5 * figures["bound"]
    # Three to five times. All rows at once would take twenty times, and more.
    assert figures["peak"] <= 7 * figures["bound"], figures

"""Figures of a spine add up, whatever its batches and merges do; memory and disk decide where batches go."""

from __future__ import annotations

import contextlib
import os
from unittest import mock

import pytest
from assertions import until
from test_arrangement_spine import TINY, ids, spine_of
from test_view_as_of import ORDERS, orders

from timespine.arrangement.spine import process_memory, sliced_merge, spine_driver
from timespine.arrangement.spine.spine import Spine
from timespine.columnar.predicate.where import col
from timespine.config import LEVELS
from timespine.core.arrangement import memory_pressure
from timespine.core.arrangement.levels import LevelRules
from timespine.errors import NoSpace

STILL = LevelRules(merge_min=(99,) + (2,) * 8, merge_max=99)
"""Rules under which few batches stay as they are."""


def test_the_figures_of_levels_are_a_table_that_adds_up():
    with spine_of(*(orders([(n, ""), (n + 1, "x")]) for n in range(40))) as spine:
        figures, table = spine.metrics(), spine.level_metrics()
        assert table.num_rows == LEVELS
        assert sum(table["batches"].to_pylist()) == figures["batches"] == len(spine.batches)
        assert sum(table["rows in memory"].to_pylist()) == figures["rows"] == len(spine)
        assert sum(table["rows on disk"].to_pylist()) == 0
        assert sum(table["merges"].to_pylist()) > 10
        assert all(row["slices"] >= row["merges"] for row in figures["levels"])
        read, written = figures["rows read by merges"], figures["rows written by merges"]
        assert read == sum(table["rows read"].to_pylist()) >= 80
        assert written == sum(table["rows written"].to_pylist())
        assert figures["reduction percent"] == 100 * (read - written) / read
        assert figures["bytes"] == figures["bytes in memory"] == spine.nbytes
        assert figures["batches being merged"] == figures["bytes being merged"] == 0
        assert repr(spine).startswith(f"Spine({len(spine)} updates by 'id', batches by level ")


def test_what_is_being_merged_is_shown_while_it_is():
    seen = []
    real = sliced_merge.SlicedMerge.step

    def step(self, rows):
        seen.append(spine.metrics())
        return real(self, rows)

    with spine_of() as spine, mock.patch.object(sliced_merge.SlicedMerge, "step", step):
        spine.insert(orders([(1, "a")]))
        spine.insert(orders([(2, "b")]))
    assert [(each["batches being merged"], each["levels"][0]["merging rows in memory"]) for each in seen] == [(2, 2)]
    assert seen[0]["bytes being merged"] > 0
    assert seen[0]["levels"][0]["loose"] == 0


def test_filters_are_counted_when_they_are_made_and_asked():
    with Spine(ORDERS, threads=False, rules=STILL) as spine:
        for start in (0, 1000, 2000):
            spine.insert(orders([(start + n * 37, "") for n in range(20)]))
        assert spine.metrics()["member filter bytes"] == 0
        view = spine.view()
        assert view.get({"id": 37}) != []
        assert view.get({"id": 38}) == []
        assert view.get({"id": -1}) == []
        figures = spine.metrics()
        assert (figures["set filters"], figures["bitmap filters"], figures["bloom filters"]) == (3, 0, 0)
        assert figures["member filter bits per row"] == 640
        assert (figures["range hits"], figures["range misses"]) == (2, 7)
        assert (figures["member hits"], figures["member misses"]) == (1, 1)
        assert (figures["range hit percent"], figures["member hit percent"]) == (pytest.approx(100 * 2 / 9), 50)
        spine.complete_merges()
        spine.view().get({"id": 5000})
        assert spine.metrics()["range misses"] == 8


def test_memory_is_measured_by_batches_or_by_the_process():
    with spine_of(orders([(1, "a")]), memory_bytes=1 << 40) as spine:
        figures = spine.metrics()
        assert figures["memory pressure"] == "low"
        assert 0 < figures["bytes in memory"] <= figures["memory used bytes"]
        assert figures["memory limit bytes"] == 1 << 40
    assert process_memory.process_bytes() > 1 << 20
    with spine_of() as spine, mock.patch.object(spine_driver, "process_bytes", process_memory.machine_memory_bytes):
        assert spine.metrics()["memory pressure"] == "critical"
    with (
        spine_of(memory_bytes=1 << 40) as spine,
        mock.patch.object(spine_driver, "process_bytes", return_value=1 << 40),
    ):
        assert spine.metrics()["memory pressure"] == "low"


def test_a_merge_of_everything_needs_space_on_the_disk_if_memory_is_short(tmp_path):
    with spine_of(orders([(1, "a")]), orders([(2, "b")]), folder=str(tmp_path), rules=STILL) as spine:
        short = mock.patch.object(spine_driver, "process_bytes", process_memory.machine_memory_bytes)
        with short, mock.patch.object(memory_pressure, "RESERVE_BYTES", 1 << 60):
            with pytest.raises(NoSpace, match="not begun"):
                spine.complete_merges()
            assert ids(spine) == [1, 2]
            assert not spine._driver.levels.gives_way
        spine.complete_merges()
        assert ids(spine) == [1, 2]
    with spine_of(orders([(1, "a")]), folder=str(tmp_path / "two"), memory_bytes=1 << 40) as spine:
        full = mock.patch.object(memory_pressure, "RESERVE_BYTES", 1 << 60)
        with full, mock.patch.object(memory_pressure, "SPILL_BYTES", 1):
            spine.complete_merges()
        assert spine.metrics()["bytes on disk"] == 0


def test_what_is_spilled_by_an_insert_loses_what_filters_reject(tmp_path):
    with spine_of(folder=str(tmp_path), memory_bytes=1, rules=STILL) as spine:
        spine.pause()
        spine.insert(orders([(0, "in memory")]))
        spine.retain_keys(col("id") >= 5)
        spine.insert(orders([(n, "") for n in range(10)]))
        assert ids(spine) == [0, 5, 6, 7, 8, 9]
        before = len(spine.batches)
        assert spine.insert(orders([(1, "")]))
        assert len(spine.batches) == before
        assert spine.key_filter is not None
        assert spine.value_filter is None


def test_a_spine_without_a_folder_only_waits_under_pressure():
    with Spine(ORDERS, threads=False, rules=TINY, memory_bytes=1) as spine:
        for n in range(30):
            spine.insert(orders([(n, "")]))
        assert spine.metrics()["memory pressure"] == "critical"
        assert spine.metrics()["bytes on disk"] == 0
        assert ids(spine) == list(range(30))


def on_disk(spine):
    return sum(level["rows on disk"] for level in spine.metrics()["levels"])


def test_a_spine_that_rests_goes_to_disk_when_another_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_pressure, "RESERVE_BYTES", 0)
    with Spine(ORDERS, folder=str(tmp_path), memory_bytes=100_000, rules=STILL) as resting, Spine(ORDERS) as other:
        for n in range(3):
            resting.insert(orders([(n, "")]))
        other.insert(orders([(n, "x" * 50) for n in range(100)]))
        assert on_disk(resting) == 0  # there is room for these
        other.insert(orders([(n, "x" * 50) for n in range(2_000)]))
        until(lambda: on_disk(resting) == 3)
        assert ids(resting) == [0, 1, 2]
        assert other.metrics()["bytes on disk"] == 0  # it has no folder


def test_a_spine_that_rests_goes_to_disk_when_the_process_grows_and_it_is_asked_to_look(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_pressure, "RESERVE_BYTES", 0)
    with Spine(ORDERS, folder=str(tmp_path), rules=STILL) as spine:
        spine.insert(orders([(1, "")]))
        spine.relieve_memory()
        assert on_disk(spine) == 0
        with mock.patch.object(spine_driver, "process_bytes", process_memory.machine_memory_bytes):
            spine.metrics()  # to look at figures starts nothing, and hides nothing from the next look
            spine.relieve_memory()
            until(lambda: on_disk(spine) == 1)
        assert ids(spine) == [1]


def test_a_forked_child_leaves_spines_alone_that_it_does_not_use(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_pressure, "RESERVE_BYTES", 0)
    with Spine(ORDERS, folder=str(tmp_path), memory_bytes=100_000, rules=STILL) as resting, Spine(ORDERS) as other:
        resting.insert(orders([(1, "")]))
        pid = os.fork()
        if pid == 0:
            is_right = False
            with contextlib.suppress(BaseException):
                other.insert(orders([(n, "x" * 50) for n in range(2_000)]))
                is_right = not resting._driver._busy_levels and len(other) == 2_000
            os._exit(0 if is_right else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert not [name for name in os.listdir(tmp_path) if name.endswith(".batch")]

"""Every work of the bench shows what the first call of a process takes and what later ones take, or says why not."""

from __future__ import annotations

from pathlib import Path

import pytest

import timespine as ts
from bench import ours, report
from bench.ours import Ours
from bench.usage import most_memory_mb
from bench.works import WORKS
from bench.works.work import Work
from timespine.config import Config

TINY = {
    "base": 2_000,
    "upsert": 100,
    "changes": 400,
    "updates": 2_000,
    "rows": 200,
    "commits": 10,
    "points": 4,
    "ranges": 2,
    "writes": 3,
    "times": 3,
}
"""Sizes at which a work takes a second at most, by the names that works give them."""


class Found:
    """The figures of one run. Implements `bench.works.work.Out`."""

    first = True

    def __init__(self) -> None:
        self.units: dict[str, str] = {}
        self.values: dict[str, float] = {}

    def figure(self, metric: str, value: float, unit: str = "s", note: str = "") -> None:
        self.values[metric], self.units[metric] = value, unit

    def cannot(self, metric: str, reason: str) -> None:
        raise AssertionError(f"{metric}: {reason}")

    def seal(self) -> None:
        """Measure nothing."""

    def remaining(self) -> float:
        return 1_000.0


def run_all_cases(work: Work, folder: Path) -> Found:
    """Run the cases of a work in this process, one after the other, on small sizes."""
    found = Found()
    for number, case in enumerate(work.cases):
        live = folder / str(number)
        live.mkdir()
        size = {name: min(value, TINY.get(name, value)) for name, value in case.quick.items()}
        state = work.setup(Ours(live), size, found)
        work.run(Ours(live), size, state, found)
    return found


@pytest.mark.parametrize("name", WORKS)
def test_a_work_has_a_first_and_a_later_figure_or_says_why_it_is_measured_once(name: str, tmp_path: Path) -> None:
    work = WORKS[name]
    assert work.pairs or work.measured_once
    measured = run_all_cases(work, tmp_path).values.keys()
    pairs = [pair for pair in work.pairs if measured & set(pair)]
    in_pairs = {metric for pair in pairs for metric in pair}
    assert bool(pairs) == bool(work.pairs)
    assert in_pairs <= measured
    assert work.measured_once or in_pairs == measured


@pytest.mark.parametrize(("state", "other"), [(0, "upsert-1m"), (1, "changes")])
def test_whole_reads_take_the_tables_that_other_works_set_up(state: int, other: str, tmp_path: Path) -> None:
    snapshots, found = WORKS["snapshots"], Found()
    case, (of_other,) = snapshots.cases[state], WORKS[other].cases
    for sizes in ("quick", "full"):
        assert snapshots.setup_key(getattr(case, sizes)) == WORKS[other].setup_key(getattr(of_other, sizes))
    size = {name: min(value, TINY.get(name, value)) for name, value in case.quick.items()}
    left = WORKS[other].setup(Ours(tmp_path), size, found)
    snapshots.run(Ours(tmp_path), size, left, found)
    assert {"first read", "again"} <= found.values.keys()


def test_a_run_without_time_for_all_of_it_misses_the_pipeline() -> None:
    *others, last = WORKS
    assert last == "pipeline"
    assert {"lookup", "many-commits", "growth"} <= set(others)


def test_a_merge_is_told_how_much_memory_to_use_and_its_own_peak_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Config] = []
    real = ts.open
    monkeypatch.setattr(ts, "open", lambda *args, **kwargs: given.append(kwargs.get("config")) or real(*args, **kwargs))
    found = run_all_cases(WORKS["compact"], tmp_path)
    told = [each for each in given if each is not None]
    assert len(told) == 6
    for each in told:
        assert each.merge_bytes + each.part_bytes * (1 + 1 / 16 + 3 * each.outstanding_parts) <= 700 << 20
    assert found.units["most memory of the merge"] == "MB"
    assert found.units["most memory / what it was told to use"] == "x"
    assert ours.config_for_memory(70).merge_bytes * 10 == ours.config_for_memory(700).merge_bytes


def test_memory_is_that_of_the_call_and_not_of_what_was_before() -> None:
    """The system forgets the peak, so that 200 MB of before do not count."""
    before = most_memory_mb(lambda: None)
    filled = most_memory_mb(lambda: b"x" * (200 << 20))
    assert filled >= before + 150
    if Path("/proc/self/clear_refs").exists():
        assert most_memory_mb(lambda: None) < filled - 100


def test_the_page_says_why_a_work_is_measured_once() -> None:
    entry = {"work": "pipeline", "case": "", "title": "all of it", "repetitions": 1, "size": {}, "results": {}}
    found = {"when": "now", "quick": True, "machine": {}, "systems": {}, "works": [entry]}
    assert WORKS["pipeline"].measured_once in report.markdown(found)

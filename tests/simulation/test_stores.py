"""Simulated histories of real stores: replayed by one seed, disturbed in every way, and without violations."""

from collections import Counter

from timespine.testing.checker import FAULT_KINDS
from timespine.testing.simulator import Faults
from timespine.testing.stores.course import run_history


def test_a_seed_decides_the_whole_history():
    first, again = (run_history(7, 25, tracing=True) for _ in range(2))
    assert first.trace == again.trace
    assert first.digest == again.digest


def test_histories_without_faults_have_no_violations():
    for seed in range(6):
        assert run_history(seed, 25, Faults(0, 0, 0, 0, 0)).violations == []


def test_every_kind_of_fault_happens():
    counts: Counter[str] = Counter()
    for seed in range(12):
        result = run_history(seed, 25)
        assert result.violations == []
        counts.update(result.counts)
    assert all(counts[kind] > 0 for kind in (*FAULT_KINDS, "crashes", "ghosts released"))

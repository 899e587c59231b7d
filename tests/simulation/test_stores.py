"""Simulated histories of real stores: replayed by one seed, disturbed in every way, and without violations."""

from collections import Counter

from timespine.testing.checker import FAULT_KINDS
from timespine.testing.simulator import Faults
from timespine.testing.stores.course import run_history


def test_a_seed_decides_the_whole_history():
    first, again = (run_history(7, 40, tracing=True) for _ in range(2))
    assert first.trace == again.trace
    assert first.digest == again.digest


def test_histories_without_faults_have_no_violations():
    for seed in range(6):
        assert run_history(seed, 40, Faults(0, 0, 0, 0, 0)).violations == []


def test_every_kind_of_fault_and_of_call_happens():
    counts: Counter[str] = Counter()
    kinds: set[str] = set()
    for seed in range(40):
        result = run_history(seed, 40, tracing=True)
        assert result.violations == []
        counts.update(result.counts)
        kinds.update(line.split(" begins ")[1].split(" op")[0] for line in result.trace if " begins " in line)
    assert all(counts[kind] > 0 for kind in (*FAULT_KINDS, "crashes", "ghosts released"))
    writes = {"append", "append at", "append built", "upsert", "delete", "update", "write", "seal"}
    reads = {"snapshot", "changes", "lookup", "snapshot of several", "unsealed", "poll a feed", "poll a listener"}
    upkeep = {"maintain", "compact", "vacuum", "expire", "hold", "hold for good", "evolve", "close"}
    names = {"create", "drop", "rename", "names", "transaction", "transaction on what was read"}
    assert writes | reads | upkeep | names <= kinds

"""Simulated histories of copies and restores: replayed by one seed, disturbed in every way, and without violations."""

from collections import Counter
from functools import partial

from kinds import kinds_that_never_happen

from timespine.testing import simulate
from timespine.testing.copies.copy_history import run_copy_history
from timespine.testing.simulator.checker import FAULT_KINDS
from timespine.testing.simulator.simulator import Faults


def test_a_seed_decides_the_whole_history():
    first, again = (run_copy_history(7, 20, tracing=True) for _ in range(2))
    assert first.trace == again.trace
    assert first.digest == again.digest


def test_histories_without_faults_have_no_violations():
    counts = Counter()
    for seed in range(6):
        result = run_copy_history(seed, 20, Faults(0, 0, 0, 0, 0))
        assert result.violations == []
        counts.update(result.counts)
    assert counts["copies placed"] > 12


def test_every_kind_of_fault_and_of_call_happens():
    # Clocks differ and do not jump: a store promises what it keeps up to the error of clocks.
    faults = {*FAULT_KINDS, "crashes", "ghosts released", "copies placed", "collections restored in place"}
    faults = (faults | {"restored in place", "refused after a fence"}) - {"clock jumps"}
    calls = {"copy", "read a copy", "restore", "restore in place", "fence", "promote", "use a promoted copy"}
    run = partial(run_copy_history, operations=20, tracing=True)
    assert kinds_that_never_happen(run, range(60), faults, calls) == set()


def test_the_command_runs_histories_of_copies(capsys):
    assert simulate.main(["--flavour", "copies", "--histories", "2", "--ops", "10", "--json"]) == 0
    assert '"violations": 0' in capsys.readouterr().out

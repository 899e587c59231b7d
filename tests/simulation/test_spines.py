"""Simulated histories of spines of arrangements: replayed by one seed, disturbed in every way, without violations."""

from collections import Counter

import planted
import pytest

from timespine.testing import simulate
from timespine.testing.simulator.simulator import Faults
from timespine.testing.spines.history import run_spine_history
from timespine.testing.spines.spine_users import CALLS


def test_a_seed_decides_the_whole_history():
    first, again = (run_spine_history(7, 60, tracing=True) for _ in range(2))
    assert [line.split("0x")[0] for line in first.trace] == [line.split("0x")[0] for line in again.trace]
    assert first.digest == again.digest


def test_histories_without_faults_have_no_violations():
    for seed in range(20):
        assert run_spine_history(seed, 40, Faults(0, 0, 0, 0, 0)).violations == []


def test_every_kind_of_fault_and_call_happens():
    counts: Counter[str] = Counter()
    for seed in range(60):
        result = run_spine_history(seed, 60)
        assert result.violations == []
        counts.update(result.counts)
    disturbed = ("determinate", "indeterminate done", "indeterminate not", "crashes", "outages", "pauses", "commits")
    assert [kind for kind in (*CALLS, *disturbed) if not counts[kind]] == []


def test_the_command_runs_and_replays_histories_of_spines(capsys):
    assert simulate.main(["--flavour", "spines", "--histories", "2", "--ops", "10", "--json"]) == 0
    assert '"violations": 0' in capsys.readouterr().out
    assert simulate.main(["--flavour", "spines", "--histories", "1", "--trace"]) == 0
    assert "Swap insert_batch: True" in capsys.readouterr().out
    assert simulate.main(["--flavour", "spines", "--histories", "2", "--ops", "10", "--real"]) == 0
    with pytest.raises(SystemExit):
        simulate.main(["--flavour", "bucket", "--real"])


def test_histories_with_real_batches_merges_files_and_cursors_have_no_violations():
    counts: Counter[str] = Counter()
    for seed in range(12):
        result = run_spine_history(seed, 50, real=True)
        assert result.violations == []
        counts.update(result.counts)
    assert counts["cursor"] > 20
    assert counts["retain"] > 2


def test_a_violation_is_reported_with_its_seed_and_a_shrunken_trace(capsys):
    with planted.BUGS["pausing_hides_loose_batches"]():
        failed = simulate.run_seeds(range(3), 60, flavour="spines")[3]
        assert failed
        simulate.report_failure(failed[0][0], 60, failed[0][1], flavour="spines")
    assert f"seed {failed[0][0]}: step" in capsys.readouterr().out


@pytest.mark.parametrize(
    "seed",
    [25, 311],
    ids=["a slow save whose manifest a faster one dropped", "a batch spilled twice while it waited for room"],
)
def test_histories_that_once_went_wrong_go_right(seed):
    assert run_spine_history(seed, 60).violations == []

"""Histories of a bucket alone: deterministic, full of faults, and honest about violations."""

from collections import Counter

import planted
import pytest

from timespine.testing import simulate
from timespine.testing.bucket.history import REACHED, run_bucket_history
from timespine.testing.simulator.simulator import Faults


def test_a_seed_decides_the_whole_history():
    first, again = (run_bucket_history(7, 40, tracing=True) for _ in range(2))
    assert first.trace == again.trace
    assert first.digest == again.digest != run_bucket_history(8, 40).digest


def test_tracing_changes_nothing():
    assert run_bucket_history(11, 40).digest == run_bucket_history(11, 40, tracing=True).digest


def test_histories_without_faults_have_no_violations_and_no_doubt():
    for seed in range(20):
        result = run_bucket_history(seed, 40, Faults(0, 0, 0, 0, 0))
        assert result.violations == []
        assert result.counts["groups in doubt"] == 0 or seed % 10 == 6  # a fence leaves what was on its way in doubt
        assert result.counts["commits"] > 10


def test_every_kind_of_fault_happens_and_breaks_nothing():
    counts: Counter[str] = Counter()
    for seed in range(60):
        result = run_bucket_history(seed, 40)
        assert result.violations == []
        counts.update(result.counts)
    assert all(counts[kind] > 0 for kind in REACHED)


def test_the_command_prints_its_figures_and_replays(capsys):
    assert simulate.main(["--flavour", "bucket", "--histories", "30", "--ops", "30"]) == 0
    printed = capsys.readouterr().out
    assert "puts into dead slots" in printed
    assert simulate.main(["--flavour", "bucket", "--histories", "1", "--seed", "3", "--trace"]) == 0
    assert "begins commit" in capsys.readouterr().out


def test_a_violation_is_reported_with_its_seed_and_a_shrunken_trace(capsys):
    with planted.BUGS["a_slot_lost_to_other_keys_is_a_mismatch"]():
        failed = simulate.run_seeds(range(3), 40, flavour="bucket")[3]
        assert failed
        simulate.report_failure(failed[0][0], 40, failed[0][1], flavour="bucket")
    assert "shrunk to" in capsys.readouterr().out


def test_real_rows_are_refused(capsys):
    with pytest.raises(SystemExit):
        simulate.main(["--flavour", "bucket", "--real"])
    assert "others have none" in capsys.readouterr().err

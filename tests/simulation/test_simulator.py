"""The simulator itself: deterministic, full of faults, and honest about violations."""

import json
from collections import Counter

import planted
import pytest

from timespine.testing import simulate
from timespine.testing.simulator.checker import FAULT_KINDS, run_core_history
from timespine.testing.simulator.simulator import Faults


def test_a_seed_decides_the_whole_history():
    first, again = (run_core_history(7, 60, tracing=True) for _ in range(2))
    assert first.trace == again.trace
    assert first.digest == again.digest


def test_histories_without_faults_have_no_violations():
    for seed in range(20):
        assert run_core_history(seed, 40, Faults(0, 0, 0, 0, 0)).violations == []


@pytest.mark.parametrize(
    "seed", [4004, 17108, 19746], ids=["moved before the taker heard of it", "not the granted one", "two at once"]
)
def test_holds_that_move_while_they_are_granted_are_no_violation(seed):
    assert run_core_history(seed, 60).violations == []


def test_histories_of_real_rows_read_settled_runs_with_changes_and_pages_and_copy_row_groups():
    counts: Counter[str] = Counter()
    wanted = ("settled runs read", "settled runs with changes read", "pages read", "rows copied")
    for seed in range(60):
        result = run_core_history(seed, 25, real=True)
        assert result.violations == []
        counts.update(result.counts)
        if all(counts[path] for path in wanted):
            break
    assert all(counts[path] for path in wanted), counts


def test_every_kind_of_fault_and_operation_happens():
    counts: Counter[str] = Counter()
    kinds: set[str] = set()
    for seed in range(40):
        result = run_core_history(seed, 60, tracing=True)
        assert result.violations == []
        counts.update(result.counts)
        kinds.update(" ".join(line.split("begins ")[1].split(" op")[0:1]) for line in result.trace if "begins " in line)
    assert all(counts[kind] > 0 for kind in (*FAULT_KINDS, "crashes", "ghosts released"))
    writes = {"append", "append next", "replicated append", "write", "seal"}
    assert writes | {"snapshot", "listen", "merge", "collect garbage", "sweep", "trim"} <= kinds


def test_the_command_prints_its_figures(capsys):
    assert simulate.main(["--histories", "30", "--seed", "5"]) == 0
    printed = capsys.readouterr().out
    for name in ("histories", "operations", "faults", "crashes", "violations", "histories per second"):
        assert name in printed


def test_a_plan_runs_the_same_histories_as_its_flavours_alone(capsys):
    assert simulate.main(["--plan", "mixed:3:20", "bucket:27:10", "real-spines:1:10", "--seed", "5", "--json"]) == 0
    together = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["flavour"] for each in together] == ["mixed", "bucket", "real-spines"]
    for flavour, histories, operations in (("mixed", "3", "20"), ("bucket", "27", "10"), ("spines", "1", "10")):
        real = ["--real"] if flavour == "spines" else []
        alone = ["--flavour", flavour, "--histories", histories, "--ops", operations, "--seed", "5", "--json", *real]
        assert simulate.main(alone) == 0
        figures, expected = json.loads(capsys.readouterr().out), together.pop(0)
        assert {**figures, "histories per second": 0} == {**expected, "histories per second": 0}


def test_a_plan_ends_with_the_first_flavour_that_fails(capsys):
    with planted.BUGS["snapshot_counts_drained_updates_twice"]():
        assert simulate.main(["--plan", "bucket:1:5", "mixed:3:60", "bucket:2:5", "--json"]) == 1
    figures = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert [(each["flavour"], each["violations"]) for each in figures] == [("bucket", 0), ("mixed", 1)]


def test_the_command_replays_one_history(capsys):
    assert simulate.main(["--histories", "1", "--seed", "5", "--trace"]) == 0
    assert "begins append" in capsys.readouterr().out


def test_a_violation_is_reported_with_its_seed_and_a_shrunken_trace(capsys):
    with planted.BUGS["snapshot_counts_drained_updates_twice"]():
        failed = simulate.run_seeds(range(3), 60)[3]
        assert failed
        simulate.report_failure(failed[0][0], 60, failed[0][1])
    printed = capsys.readouterr().out
    assert f"seed {failed[0][0]}: step" in printed
    assert "shrunk to" in printed
    assert "replay: " in printed


@pytest.mark.parametrize(
    "wrong",
    [
        ["--histories", "0"],
        ["--jobs", "0"],
        ["--ops", "-1"],
        ["--seed", "-1"],
        ["--plan", "mixed:3"],
        ["--plan", "mixed:3:x"],
        ["--plan", "mixd:3:20"],
        ["--plan", "mixed:3:20", "mixed:0:20"],
        ["--plan", "real-bucket:3:20"],
    ],
)
def test_the_command_refuses_invalid_arguments(wrong, capsys):
    with pytest.raises(SystemExit) as stopped:
        simulate.main(wrong)
    assert stopped.value.code == 2

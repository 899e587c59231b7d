"""Simulated histories of real stores: replayed by one seed, disturbed in every way, and without violations."""

import os
import re
from collections import Counter
from functools import partial
from pathlib import Path

import planted
import pytest
from kinds import kinds_that_never_happen

import timespine
from timespine.columnar.kernels import consolidate_shared_keys
from timespine.columnar.parts.part_reader import PartReader
from timespine.columnar.scan import parallel_scan, settled_run_with_changes
from timespine.columnar.write.run_writer import RunWriter
from timespine.errors import UsageError
from timespine.location.machine.role import MAINTAINER
from timespine.testing import simulate
from timespine.testing.copies.copy_history import run_copy_history
from timespine.testing.refreshers.view_history import run_view_history
from timespine.testing.simulator.checker import FAULT_KINDS, run_core_history
from timespine.testing.simulator.simulator import Faults
from timespine.testing.stores.arranging_users import run_arrangement_history
from timespine.testing.stores.history_run import run_store_history
from timespine.testing.stores.machines import SimulatedRole


def test_a_seed_decides_the_whole_history():
    first, again = (run_store_history(7, 40, tracing=True) for _ in range(2))
    assert first.trace == again.trace
    assert first.digest == again.digest


@pytest.mark.parametrize(
    "run",
    [
        partial(run_store_history, 6, 40),
        partial(run_store_history, 10, 40),
        partial(run_arrangement_history, 24, 40),
        partial(run_view_history, 3, 20),
        partial(run_copy_history, 3, 20),
        partial(run_core_history, 3, 25, real=True),
    ],
    ids=["stores", "hollow runs of stores", "arrangements", "views", "copies", "real rows"],
)
def test_a_history_is_the_same_on_every_machine(run, monkeypatch):
    digests = set()
    for cores in (1, 2, 64):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, cores=cores: set(range(cores)), raising=False)
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        digests.add(run().digest)
    assert len(digests) == 1


def test_histories_without_faults_have_no_violations():
    for seed in range(6):
        assert run_store_history(seed, 40, Faults(0, 0, 0, 0, 0)).violations == []


def test_a_history_does_not_begin_beside_a_store_whose_threads_run(tmp_path):
    with (
        timespine.open(tmp_path),
        pytest.raises(UsageError, match=r"beside an open store.*timespine-heartbeat.*: close it"),
    ):
        run_store_history(7, 1)
    assert run_store_history(7, 1).violations == []


def test_every_kind_of_fault_and_of_call_happens():
    faults = {*FAULT_KINDS, "crashes", "ghosts released", "turns", "roles taken over"}
    faults |= {"requests answered", "requests in doubt", "requests lost"}
    writes = {"append", "append at", "append built", "upsert", "delete", "update", "write", "seal"}
    reads = {"snapshot", "changes", "lookup", "snapshot of several", "unsealed", "poll a feed", "poll a listener"}
    upkeep = {"maintain", "compact", "vacuum", "expire", "hold", "hold for good", "evolve", "close"}
    names = {"create", "drop", "rename", "names", "transaction", "transaction on what was read"}
    calls = writes | reads | upkeep | names
    run = partial(run_store_history, operations=40, tracing=True)
    assert kinds_that_never_happen(run, range(120), faults, calls) == set()


def test_histories_take_the_fast_paths_of_reads_and_merges(monkeypatch):
    """Settled runs with and without changes, net changes that the process has kept, single pages, and row groups that
    are copied."""
    taken = Counter()

    def watch(module, name):
        real = getattr(module, name)

        def watched(*arguments):
            taken[name] += 1
            return real(*arguments)

        monkeypatch.setattr(module, name, watched)

    watch(parallel_scan, "scan_settled")
    watch(parallel_scan, "scan_changed")
    watch(settled_run_with_changes, "_scan_known")
    watch(consolidate_shared_keys, "_may_equal_another")
    watch(PartReader, "read_page")
    watch(RunWriter, "add_groups")
    for seed in range(120):
        assert run_store_history(seed, 40).violations == []
        if len(taken) == 6:
            break
    assert len(taken) == 6, taken


def test_two_maintainers_at_once_do_no_harm(monkeypatch):
    real = SimulatedRole.take
    monkeypatch.setattr(SimulatedRole, "take", lambda role: role._name == MAINTAINER or real(role))
    for seed in range(20):
        assert run_store_history(seed, 40).violations == []


def test_no_module_that_a_history_runs_holds_on_to_the_real_threads():
    root = Path(timespine.__file__).parent
    early = re.compile(r"^(from threading import|class .*\(threading\.|.*default_factory=threading\.(?!get_ident))")
    for path in [*root.glob("client/*.py"), *root.glob("columnar/*.py"), root / "locks.py", root / "pool.py"]:
        held = [line for line in path.read_text().splitlines() if early.search(line)]
        assert held == [], f"{path.name} looks it up when it is imported, and not when it is called"


def test_the_command_runs_histories_of_stores(capsys):
    assert simulate.main(["--flavour", "stores", "--histories", "2", "--ops", "10", "--json"]) == 0
    assert '"violations": 0' in capsys.readouterr().out
    assert simulate.main(["--flavour", "stores", "--histories", "1", "--ops", "40", "--trace"]) == 0
    assert " begins " in capsys.readouterr().out


def test_a_violation_is_reported_with_its_seed_and_a_shrunken_trace(capsys):
    with planted.BUGS["a_transaction_is_committed_step_by_step"]():
        failed = simulate.run_seeds(range(12), 40, flavour="stores")[3]
        assert failed
        simulate.report_failure(failed[0][0], 40, failed[0][1], flavour="stores")
    assert f"seed {failed[0][0]}: step" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [["--real"]])
def test_histories_of_stores_have_real_rows_in_any_case(wrong, capsys):
    with pytest.raises(SystemExit):
        simulate.main(["--flavour", "stores", *wrong])


@pytest.mark.parametrize(
    ("seed", "operations"),
    [(254, 40), (5055, 40), (5112, 40), (1708, 20), (1984, 20)],
    ids=[
        "closed after a commit",
        "placed again",
        "no goodbye to what was dropped",
        "a thread that takes the role of the appender while its store closes",
        "a turn that ends in a commit with appends of another process",
    ],
)
def test_histories_that_once_went_wrong_go_right(seed, operations):
    assert run_store_history(seed, operations).violations == []


def test_histories_with_arrangements_meet_checkpoints():
    counts = Counter()
    for seed in range(24, 36):
        result = run_arrangement_history(seed, 40)
        assert result.violations == []
        counts.update(result.counts)
    for what in ("checkpoints saved", "checkpoints opened", "checkpoints restored", "files cut", "crashes"):
        assert counts[what], what


@pytest.mark.parametrize("seed", [3, 9])
def test_a_seed_decides_a_history_with_arrangements(seed):
    first, again = (run_arrangement_history(seed, 40, tracing=True) for _ in range(2))
    assert first.violations == []
    assert first.trace == again.trace
    assert first.digest == again.digest

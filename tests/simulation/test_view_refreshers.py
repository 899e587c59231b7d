"""Simulated histories of views: replayed by one seed, refreshed by several processes, and without violations."""

from collections import Counter
from functools import partial
from types import SimpleNamespace

import pytest
from kinds import kinds_that_never_happen

from timespine.testing import simulate
from timespine.testing.refreshers import queries
from timespine.testing.refreshers.view_history import run_view_history
from timespine.testing.refreshers.view_users import ViewUser
from timespine.testing.simulator.checker import FAULT_KINDS
from timespine.testing.simulator.simulator import Faults


def test_a_seed_decides_the_whole_history():
    first, again = (run_view_history(7, 30, tracing=True) for _ in range(2))
    assert first.trace == again.trace
    assert first.digest == again.digest


def test_histories_without_faults_have_no_violations():
    for seed in range(4):
        assert run_view_history(seed, 30, Faults(0, 0, 0, 0, 0)).violations == []


def test_every_kind_of_fault_and_of_call_happens():
    faults = {*FAULT_KINDS, "crashes"}
    calls = {"create view", "refresh", "refresh all", "drop view", "drop", "read view", "write to view", "verify"}
    calls |= {"append", "upsert", "delete", "write", "seal", "catch up", "move a key", "expire inputs", "compact"}
    calls |= {"seal idle", "transaction", "maintain", "rebuild", "change in turn"}
    run = partial(run_view_history, operations=30, tracing=True)
    assert kinds_that_never_happen(run, range(60), faults, calls) == set()


def test_the_command_runs_histories_of_views(capsys):
    assert simulate.main(["--flavour", "views", "--histories", "2", "--ops", "10", "--json"]) == 0
    assert '"violations": 0' in capsys.readouterr().out


@pytest.mark.parametrize("seed", [1, 46, 51, 57, 113])
def test_histories_that_once_went_wrong_go_right(seed):
    assert run_view_history(seed, 30).violations == []


@pytest.mark.parametrize(
    ("said", "is_reason"),
    [
        ("collection x1 is read by view v0; drop them first", True),
        ("collection x1 is read by views v0, v1; drop them first", True),
        ("collection v0 is read by view v1; drop them first", True),
        ("collection x1 is held for a view that is being dropped (view-v0-7); drop it again", True),
        ("collection x2 is read by view v0; drop them first", False),
        ("collection x2 is under critical holds (view-v0-7)", False),
        ("collection x1 is under critical holds (mine); release them", False),
        ("collection x1 is read by view v1; drop them first", False),
    ],
)
def test_a_refused_drop_is_excused_only_by_a_view_that_reads_the_collection(said, is_reason):
    entries = {"x1": "", "x2": "", "v0": "view", "v1": "view"}
    entries = {name: SimpleNamespace(id=f"{name}-7", role=role) for name, role in entries.items()}
    later = {name: entry for name, entry in entries.items() if name != "v0"}  # dropped since
    world = SimpleNamespace(names=[(1, SimpleNamespace(entries=entries)), (2, SimpleNamespace(entries=later))])
    checks = SimpleNamespace(inputs_of={"v0-7": ("x1-7",), "v1-7": ("v0-7",)})
    user = SimpleNamespace(world=world, checks=checks)
    assert ViewUser._names_a_reader(user, said) == is_reason


def test_queries_mean_what_they_say():
    a = Counter({(1, 2): 2, (1, None): 1, (2, None): 1})
    b = Counter({(1, 5): 1, (3, 1): 1})
    told = {query.name: query.answer(a, b) for query in queries.QUERIES}
    assert told["sums"] == Counter({(1, 3, 4): 1, (2, 1, None): 1})
    assert told["extremes"] == Counter({(1, 2, 2): 1, (2, None, None): 1})
    assert told["overall"] == Counter({(4, 2, 4): 1})
    assert told["pairs"] == Counter({(1, 2, 5): 2, (1, None, 5): 1})
    assert told["joined sums"] == Counter({(1, 3, 4): 1})
    assert told["left counts"] == Counter({(1, 3): 1, (2, 0): 1})
    assert told["without"] == Counter({(2, None): 1})
    assert told["matched"] == Counter()
    assert told["counted"] == Counter({(1, 2, 1): 2, (1, None, 1): 1, (2, None, 0): 1})
    assert told["first"] == Counter({(1, 2): 2, (1, None): 1})
    assert told["frequent"] == Counter({(1, 3): 1})
    assert told["sizes"] == Counter({(3, 1): 1, (1, 1): 1})
    assert told["distinct"] == Counter({(1, 2): 1, (1, None): 1, (2, None): 1})
    assert told["other than"] == Counter({(2,): 1})
    assert told["common"] == Counter({(1,): 1})
    assert told["recomputed"] == Counter({(1, 2): 1, (2, 0): 1})

"""Histories of streams: they reach every operation and every marked point, and what they check can be broken."""

from collections import Counter

import planted
import pytest

from timespine.core.protocols import load_state
from timespine.core.protocols.session import Session
from timespine.core.state import Committer, new_state
from timespine.model.frontier import Frontier
from timespine.testing import simulate
from timespine.testing.simulator.check_atomicity import AtomicCommit, AtomicityCheck
from timespine.testing.simulator.checker import run_core_history
from timespine.testing.simulator.memoize import memoized
from timespine.testing.simulator.simulator import Faults
from timespine.testing.simulator.stream_workload import POINTS


def test_a_seed_decides_the_whole_history():
    first, again = (run_core_history(7, 60, tracing=True, flavour="streams") for _ in range(2))
    assert first.trace == again.trace
    assert first.digest == again.digest != run_core_history(7, 60).digest


def test_histories_without_faults_have_no_violations():
    for seed in range(10):
        assert run_core_history(seed, 40, Faults(0, 0, 0, 0, 0), flavour="streams").violations == []


def test_every_operation_happens_and_processes_die_and_storage_goes_at_marked_points():
    counts: Counter[str] = Counter()
    kinds: set[str] = set()
    for seed in range(40):
        result = run_core_history(seed, 60, Faults(crash=0.01, outage=0.006), tracing=True, flavour="streams")
        assert result.violations == []
        counts.update(result.counts)
        kinds.update(line.split("begins ")[1].split(" op")[0] for line in result.trace if "begins " in line)
    assert {"transaction", "transactions", "write after a read", "seal both", "append at one time"} <= kinds
    assert {"cut", "read unsealed", "tidy unsealed", "close"} <= kinds
    assert len(POINTS) == 6
    for point in POINTS:
        assert counts[f"crash: {point}"] > 0, point
        assert counts[f"outage: {point}"] > 0, point


def test_the_command_runs_histories_of_streams_and_shows_the_marked_points(capsys):
    assert simulate.main(["--histories", "5", "--seed", "5", "--flavour", "streams"]) == 0
    assert "crash: between drain and evict" in capsys.readouterr().out


def test_a_violation_says_how_to_replay_it(capsys):
    with planted.BUGS["a_seal_of_several_collections_moves_only_the_first"]():
        failed = simulate.run_seeds(range(3), 60, flavour="streams")[3]
        simulate.report_failure(failed[0][0], 60, failed[0][1], flavour="streams")
    assert "--flavour streams" in capsys.readouterr().out


# What belongs together.


class Two:
    """Two collections of which a test makes the states by hand."""

    def __init__(self):
        self.session = Session("k", "w")
        begun = Committer(0, 0, 1)
        self.states = {name: [_with(new_state(name), committers={"k": begun})] for name in ("c1", "c2")}
        self.truth = {"c1": [], "c2": []}
        self.said = []
        self.atomic = AtomicityCheck(self.states, self.truth, self.said.append)

    def commit(self, *names, number=1, upper=3, rows=()):
        for name in names:
            old = self.states[name][-1]
            changes = {"committers": {"k": Committer(number, 0, 1)}, "upper": Frontier.at(upper)}
            self.states[name].append(_with(old, seqno=old.seqno + 1, **changes))
            self.truth[name].extend((row, (0,), 1) for row in rows)
        self.atomic.fresh.update(str(row).split(".")[0] for row in rows)
        self.atomic.committed(names)
        return " ".join(self.said)


def _with(state, **changes):
    return type(state)(**{name: changes.get(name, getattr(state, name)) for name in type(state).__struct_fields__})


SEAL = AtomicCommit("op1", uppers={"c1": Frontier.at(3), "c2": Frontier.at(3)})
ROWS = AtomicCommit("op1", rows={"c1": frozenset({"op1.0"}), "c2": frozenset({"op1.0"})})


def test_a_group_that_is_whole_is_fine():
    two = Two()
    with two.atomic.expected(two.session, SEAL, ROWS):
        assert two.commit("c1", "c2", rows=["op1.0"]) == ""


@pytest.mark.parametrize(
    ("whole", "names", "rows", "said"),
    [
        (SEAL, ["c1"], [], "without the seal of c2"),
        (ROWS, ["c1"], ["op1.0"], "without rows in c2"),
        (AtomicCommit("op1", retained={"c1": Frontier.at(2)}), ["c1"], [], "without the retention of c1"),
        (AtomicCommit("op1", reads={"c2": Frontier.at(2)}), ["c1"], [], "relied on upper [2] of c2, which was at [0]"),
        (AtomicCommit("op1", reads={"c1": Frontier.at(3)}), ["c1"], [], "relied on upper [3] of c1, which was at [0]"),
    ],
)
def test_a_group_with_something_missing_is_a_violation(whole, names, rows, said):
    two = Two()
    with two.atomic.expected(two.session, whole):
        assert said in two.commit(*names, rows=rows)


def test_a_transaction_among_others_may_be_missing_as_a_whole_only():
    among = AtomicCommit("op1", ROWS.rows, alone=False)
    for rows, said in (([], ""), (["op1.0"], "without rows in c2")):
        two = Two()
        with two.atomic.expected(two.session, among):
            assert said in two.commit("c1", rows=rows)
            assert bool(two.said) == bool(rows)


def test_a_group_in_two_pieces_is_a_violation():
    two = Two()
    assert two.commit("c1") == ""
    assert "in pieces" in two.commit("c2")


def test_rows_that_come_without_their_group_are_a_violation():
    two = Two()
    with two.atomic.expected(two.session, ROWS):
        assert "came without the group" in two.commit("c1", "c2", number=2, rows=["op1.0"])


def test_a_group_after_its_committer_gave_up_is_a_violation():
    two = Two()
    two.atomic.closed.add("k")
    assert "had given up" in two.commit("c1")


def test_what_was_never_tried_is_not_expected_of_the_next_group():
    two = Two()
    with two.atomic.expected(two.session, SEAL):
        pass
    assert two.commit("c1") == ""


def test_a_refusal_names_the_state_before_its_group():
    two = Two()
    two.commit("c1")
    two.atomic.check_judged(("k", 1), [("c1", 0), ("c2", 7)], "somebody")
    assert two.said == []
    two.atomic.check_judged(("k", 1), [("c1", 1)], "somebody")
    assert "somebody" in two.said[0]


def test_what_is_remembered_is_forgotten_at_the_end_and_what_was_patched_stays():
    real, planted_there = load_state.decode_diff, lambda data: None
    with memoized():
        assert load_state.decode_diff is not real
    assert load_state.decode_diff is real
    load_state.decode_diff = planted_there
    try:
        with memoized():
            assert load_state.decode_diff is planted_there
    finally:
        load_state.decode_diff = real

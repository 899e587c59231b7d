"""Planted bugs cannot lie: a patch fits what it replaces, and only a check of the promise counts as catching it."""

import planted
import pytest
from mutations import catching, checks_of_promises, patched, patched_entry

from timespine.core import read_plan as plan_module
from timespine.core import transitions
from timespine.core.protocols import commit
from timespine.core.transitions import TRANSITIONS, Seal
from timespine.errors import CorruptionError
from timespine.testing.simulator.checker import run_core_history
from timespine.testing.simulator.violation import Violation, is_crash


def test_a_patch_with_other_parameters_is_refused():
    with pytest.raises(TypeError, match="the patch of _store"):
        patched(commit, "_store", lambda session, group, judged, states: None)


def test_a_patch_that_is_no_generator_though_the_original_is_one_is_refused():
    with pytest.raises(TypeError, match="the patch of resolve"):
        patched(commit, "resolve", lambda session: None)


def test_a_transition_with_other_parameters_is_refused():
    with pytest.raises(TypeError, match="Seal"):
        patched_entry(TRANSITIONS, Seal, lambda state, command: None)


def test_a_patch_of_another_kind_than_the_original_is_refused():
    with pytest.raises(TypeError, match="the patch of TRANSITIONS"):
        patched(transitions, "TRANSITIONS", ())


@pytest.mark.parametrize("error", [TypeError("x"), AttributeError("x"), NameError("x"), AssertionError("x")])
def test_a_bug_that_breaks_the_program_is_not_caught(error):
    def runs(state, after, until):
        raise error

    with patched(plan_module, "_runs", runs):
        violations = run_core_history(0, 60).violations
    assert violations
    assert all(each.is_crash for each in violations)
    assert catching("snapshot_forgets_unsealed", violations) is None


def test_an_error_that_stems_from_broken_code_is_a_crash_too():
    raised = CorruptionError("x")
    raised.__cause__ = CorruptionError("y")
    assert not is_crash(raised)
    raised.__cause__.__context__ = AttributeError("z")
    assert is_crash(raised)


def test_a_bug_that_only_a_check_of_another_promise_notices_is_not_caught():
    assert catching("snapshot_forgets_unsealed", [Violation("x", "simulator.world.World._delete")]) is None
    assert catching("since_ignores_leases", [Violation("x", "simulator.world.World._delete")]) == "x"


def test_every_planted_bug_is_named_by_a_promise_with_checks():
    assert set(checks_of_promises()) == set(planted.BUGS)
    assert all(checks_of_promises().values())

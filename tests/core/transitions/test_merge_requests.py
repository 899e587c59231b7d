"""Commands that request merges: exert, refresh, roll up all; and how compact a trace is."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from merge_cases import fueled
from state_harness import TERM_MS, StateHarness, at, batch, inline_part, up

from timespine.core.batch import HollowBatch, Order, Run
from timespine.core.spine.spine import SpineMetrics
from timespine.core.transitions import (
    ApplyMerge,
    ClaimMerge,
    CompareAndAppend,
    Drain,
    Exert,
    Refresh,
    Retain,
    RollUpAll,
    Seal,
)
from timespine.errors import UsageError
from timespine.model import Description

# Exert.


def test_exert_on_an_idle_trace_leads_to_one_batch() -> None:
    scene = StateHarness()
    for when in range(7):
        scene.append(at(when + 1), up("a", when))
    steps = 0
    while scene.state.trace.batch_count > 1:
        assert scene.do(Exert(4)) == scene.state.trace.batch_count
        scene.merge_all()
        scene.agree()
        steps += 1
        assert steps < 50
    assert scene.declined(Exert(4)) == 1


def test_exert_without_fuel_or_without_work_changes_nothing() -> None:
    scene = StateHarness()
    assert scene.declined(Exert(100)) == 0
    scene.append(at(1), up("a", 0))
    assert scene.declined(Exert(100)) == 1
    scene.append(at(2), up("b", 1), up("c", 1))
    assert scene.declined(Exert(0)) == 2


@pytest.mark.parametrize("fuel", [-1, 1.5, None, True, "8"])
def test_exert_of_no_fuel_is_a_usage_error(fuel: Any) -> None:
    assert isinstance(StateHarness().declined(lambda: Exert(fuel)), UsageError)


def test_exert_drops_claims_on_what_it_merges_further() -> None:
    scene, request = fueled()
    scene.do(ClaimMerge(request.id, "m1", TERM_MS))
    scene.append(at(3), up("a", 2), up("b", 2))
    while scene.state.trace.batch_count > 1:
        scene.do(Exert(100))
    assert scene.state.claims == {}


# Refresh.


def test_refresh_lets_an_idle_collection_lose_what_was_expired() -> None:
    scene, _ = fueled()
    scene.merge_all()
    scene.append(at(3), up("a", 2, -2))
    scene.do(RollUpAll())
    scene.merge_all()
    scene.do(Retain(at(2)))
    ((lo, hi),) = scene.state.trace.stale()
    assert scene.do(Refresh((lo, hi))) is True
    (request,) = scene.state.trace.requests()
    assert request.desc.since == at(2)
    scene.merge_all()
    assert [each.len for each in scene.state.hollow_batches()] == [0]
    scene.agree()


def test_refresh_of_what_is_fresh_or_fueled_or_not_there_changes_nothing() -> None:
    scene, request = fueled()
    assert scene.declined(Refresh(request.id)) is False
    scene.merge_all()
    assert scene.declined(Refresh(request.id)) is False
    assert scene.declined(Refresh((8, 9))) is False


def test_refresh_makes_a_batch_of_several_runs_one_run() -> None:
    scene = StateHarness()
    two = (batch(at(0), at(1), inline_part([up("a", 0)])), batch(at(0), at(1), inline_part([up("b", 0)])))
    scene.do(CompareAndAppend(two, at(0), at(1)))
    scene.oracle.updates.extend([up("a", 0), up("b", 0)])
    assert scene.do(Refresh((0, 1))) is True
    scene.merge_all()
    assert [len(each.runs) for each in scene.state.hollow_batches()] == [1]
    scene.agree()


def test_unordered_run_is_stale() -> None:
    scene = StateHarness()
    run = Run((inline_part([up("b", 0)]), inline_part([up("a", 0)])), Order.UNORDERED)
    scene.do(CompareAndAppend((HollowBatch(Description(at(0), at(1), at(0)), 2, (run,)),), at(0), at(1)))
    assert scene.do(Refresh((0, 1))) is True


def test_refresh_inside_a_merge_in_progress_keeps_the_trace_valid() -> None:
    scene = StateHarness()
    many = [up(f"k{i}", 0) for i in range(64)]
    scene.append(at(1), *many)
    scene.append(at(2), *[(row, (1,), -1) for row, _, _ in many])
    assert scene.state.trace.layers[-1].merge is not None
    scene.do(Retain(at(2)))
    scene.do(Refresh((0, 1)))
    scene.merge_all()
    while scene.state.trace.batch_count > 1:
        scene.do(Exert(1000))
    scene.merge_all()
    scene.agree()


# Roll up all.


def test_roll_up_all_asks_for_one_run() -> None:
    scene = StateHarness()
    for when in range(9):
        scene.append(at(when + 1), up("a", when))
    assert scene.do(RollUpAll()) == scene.state.trace.hollow_count
    (request,) = scene.state.trace.requests()
    assert (request.desc.lower, request.desc.upper) == (at(0), at(9))
    scene.merge_all()
    assert [len(each.runs) for each in scene.state.hollow_batches()] == [1]
    scene.agree()


def test_roll_up_all_of_one_fresh_run_changes_nothing() -> None:
    scene, _ = fueled()
    scene.merge_all()
    assert scene.declined(RollUpAll()) == 1


def test_roll_up_all_takes_what_was_drained_along() -> None:
    scene, _ = fueled()
    scene.write(up("b", 5))
    scene.do(Seal(at(6)))
    scene.do(Drain())
    assert scene.do(RollUpAll()) == 3
    scene.merge_all()
    scene.agree()


def test_roll_up_all_drops_claims_on_what_it_merges_further() -> None:
    scene, request = fueled()
    scene.do(ClaimMerge(request.id, "m1", TERM_MS))
    scene.append(at(3), up("a", 2))
    scene.do(RollUpAll())
    assert scene.state.claims == {}


def test_roll_up_all_of_an_empty_collection_changes_nothing() -> None:
    assert StateHarness().declined(RollUpAll()) == 0


def test_roll_up_all_again_changes_nothing() -> None:
    scene, _ = fueled()
    assert scene.declined(RollUpAll()) == 2


# How compact a trace is.


def test_metrics_count_batches_that_are_compact_that_are_to_be_merged_and_that_have_several_runs() -> None:
    scene, request = fueled()
    assert scene.state.trace.metrics() == SpineMetrics(0, 1, 0)
    scene.do(ApplyMerge(scene.merged(request), "m1"))
    assert scene.state.trace.metrics() == SpineMetrics(1, 0, 0)
    runs = (inline_part([up(row, 2)]) for row in "ab")
    scene.do(CompareAndAppend((batch(at(2), at(3), *runs),), at(2), at(3)))
    assert scene.state.trace.metrics() == SpineMetrics(1, 0, 1)
    assert StateHarness().state.trace.metrics() == SpineMetrics(0, 0, 0)


@pytest.mark.parametrize("appends", range(1, 12))
def test_metrics_count_every_spine_batch_once(appends: int) -> None:
    scene = StateHarness()
    for when in range(appends):
        scene.append(at(when + 1), up("a", when), up("b", when))
    trace = scene.state.trace
    metrics = trace.metrics()
    assert sum(msgspec.structs.astuple(metrics)) == trace.batch_count
    assert msgspec.structs.astuple(metrics)[1] == len(trace.requests())

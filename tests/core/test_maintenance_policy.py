"""What maintenance may do, and when: totals, the bound of rows written, extra work, garbage, expired history."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from maintenance_policy_cases import answered, grow
from state_harness import WRITER, StateHarness, at, batch, up

from timespine.core.batch import HollowBatch, Order, Part, Run
from timespine.core.encoding.flat_spine import validate_deep
from timespine.core.maintenance_policy import run_count, run_rows, worth_compacting
from timespine.core.spine.layers import Layer, MergePolicyKind, MergeProgress, SpineBatch
from timespine.core.spine.rope import leaf
from timespine.core.spine.spine import Spine
from timespine.core.totals import COUNT_MAX, Totals, increase
from timespine.core.transitions import ApplyMerge, CompareAndAppend, Drain, Evict, Refresh, RollUpAll, Seal, Trim
from timespine.errors import UsageError
from timespine.testing.maintenance_bound import written_rows_max

# Totals.


def test_totals_only_grow_and_say_what_is_live_and_what_is_garbage() -> None:
    scene = StateHarness()
    grow(scene, 100)
    grow(scene, 50)
    assert scene.state.totals == Totals(150, 1500)
    scene.do(RollUpAll())
    (request,) = scene.state.trace.requests()
    answered(scene, request, 120)
    totals = scene.state.totals
    assert (totals.merged_rows, totals.merged_bytes, totals.dropped_bytes, totals.merge_ms) == (120, 1200, 1500, 7)
    assert (totals.live_bytes, totals.garbage_bytes, totals.budget_rows) == (1200, 1500, 150)
    assert totals.write_amplification == pytest.approx(2700 / 1500)
    assert Totals().write_amplification == 0.0


def test_totals_saturate_and_a_diff_says_only_what_changed() -> None:
    full = Totals(appended_rows=COUNT_MAX)
    assert full.plus(appended_rows=5) == full
    assert increase(Totals(), Totals().plus(merged_bytes=3, merge_ms=1)) == {3: 3, 8: 1}
    assert increase(full, full) == {}


def test_what_a_merge_passes_on_is_neither_written_nor_dropped() -> None:
    scene = StateHarness()
    grow(scene, 10)
    grow(scene, 6)
    scene.do(RollUpAll())
    (request,) = scene.state.trace.requests()
    first, second = (part for each in request.inputs for part in each.parts)
    new = Part(f"c/{WRITER}/new", 6, 55)
    output = HollowBatch(request.desc, 16, (Run((first, new)),))
    scene.do(ApplyMerge(output, WRITER, rows=6, size=55))
    assert scene.state.totals.merged_rows == 6
    assert scene.state.totals.dropped_bytes == second.size
    assert scene.state.totals.live_bytes == first.size + 55


def test_a_result_that_wrote_more_than_it_has_is_refused() -> None:
    scene = StateHarness()
    grow(scene, 10)
    grow(scene, 6)
    scene.do(RollUpAll())
    (request,) = scene.state.trace.requests()
    output = HollowBatch(request.desc, 16, (Run((Part(f"c/{WRITER}/new", 16, 55),)),))
    assert isinstance(scene.declined(ApplyMerge(output, WRITER, rows=17)), UsageError)


def test_a_part_that_is_cut_or_not_evicted_yet_is_dropped_with_its_last_reference() -> None:
    scene = StateHarness()
    scene.write(*[up(f"r{when}", when) for when in range(6)], key=f"c/{WRITER}/w")
    size = scene.state.totals.appended_bytes
    scene.do(Seal(at(2)))
    scene.do(Drain())
    scene.do(Seal(at(4)))
    scene.do(Drain())
    (first, second) = scene.state.trace.batches()
    scene.do(Refresh(first.id))
    (request,) = scene.state.trace.requests()
    scene.do(ApplyMerge(scene.merged(request, f"c/{WRITER}/m1"), WRITER, rows=2, size=40))
    assert scene.state.totals.dropped_bytes == 0  # the second batch and the unsealed one refer to it
    scene.do(Refresh(second.id))
    (request,) = scene.state.trace.requests()
    scene.do(ApplyMerge(scene.merged(request, f"c/{WRITER}/m2"), WRITER, rows=2, size=40))
    assert scene.state.totals.dropped_bytes == 0
    (left,) = scene.state.unsealed
    parts = (scene.blob_part(f"c/{WRITER}/t", [up("r4", 4), up("r5", 5)]),)
    scene.do(Trim(left.seqno, parts, at(4)))
    assert scene.state.totals.dropped_bytes == size
    assert scene.state.totals.extra_rows == 2
    scene.do(Seal(at(9)))
    scene.do(Drain())
    scene.do(Evict())
    assert scene.state.totals.dropped_bytes == size  # the trace has it now


def test_unsealed_updates_are_rewritten_only_within_the_budget() -> None:
    scene = StateHarness()
    scene.write(*[up(f"r{when}", when) for when in range(6)], key=f"c/{WRITER}/w")
    scene.do(Seal(at(2)))
    scene.do(Drain())
    spent = msgspec.structs.replace(scene.state.totals, extra_rows=4)
    scene.state = scene.follower = msgspec.structs.replace(scene.state, totals=spent)
    (left,) = scene.state.unsealed
    parts = (scene.blob_part(f"c/{WRITER}/t", [up(f"r{when}", when) for when in range(2, 6)]),)
    assert scene.declined(Trim(left.seqno, parts, at(2))) is False


# The bound.


class Model:
    """A collection of made-up updates, maintained as the client does it, without any of its parts."""

    def __init__(self) -> None:
        self.scene = StateHarness()
        self.worst = -math.inf

    def arrive(self, rows: int, *, rests: bool, kept: float) -> None:
        grow(self.scene, rows)
        least = 1 if rests else 8
        while self._merge(least, kept) or (rests and self._ask()):
            pass
        totals = self.scene.state.totals
        assert totals.merged_rows <= written_rows_max(totals.appended_rows)
        assert totals.extra_rows <= totals.appended_rows

    def _merge(self, least: int, kept: float) -> bool:
        due = [request for request in self.scene.state.trace.requests() if request.rope.count >= least]
        if not due:
            return False
        request = min(due, key=lambda each: each.rope.len)
        full = [each.len for each in request.inputs if each.len]
        if len(full) == 1 and request.rope.count > 1:
            answered(self.scene, request, full[0], passed=full[0])  # one run beside empty batches stays as it is
        else:
            answered(self.scene, request, max(max(full), int(kept * sum(full))) if kept < 1 else sum(full))
        return True

    def _ask(self) -> bool:
        lo = worth_compacting(self.scene.state)
        if lo is None:
            return False
        self.scene.do(RollUpAll(lo, extra=True))
        return True


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1, 1, 2, 3, 5, 9, 17, 100, 513]), st.booleans()),
        max_size=60,
    ),
    st.sampled_from([1.0, 0.8, 0.5]),
)
def test_rows_written_stay_within_the_bound_for_any_arrivals(arrivals: list[tuple[int, bool]], kept: float) -> None:
    model = Model()
    for rows, rests in arrivals:
        model.arrive(rows, rests=rests, kept=kept)
    batches = model.scene.state.trace.batch_count
    assert batches <= 2 * math.log2(max(model.scene.state.totals.appended_rows + len(arrivals), 1)) + 4


@pytest.mark.parametrize("rests", [False, True])
def test_rows_written_stay_within_the_bound_for_many_single_rows(rests: bool) -> None:
    model = Model()
    for _ in range(400):
        model.arrive(1, rests=rests, kept=1.0)
    totals = model.scene.state.totals
    assert 0 < totals.merged_rows <= 400 * (math.log2(400) + 2)


def test_nothing_may_be_written_for_nothing() -> None:
    assert written_rows_max(0) == 0
    assert written_rows_max(1024) == 1024 * 12


# Extra work.


def test_small_runs_are_merged_with_each_other_and_not_with_a_large_one() -> None:
    scene = StateHarness()
    grow(scene, 1_000_000)
    for _ in range(3):
        grow(scene, 1)
        for request in scene.state.trace.requests():
            answered(scene, request, request.rope.len)
    assert worth_compacting(scene.state) is not None
    scene.do(RollUpAll(worth_compacting(scene.state), extra=True))  # type: ignore[arg-type]
    (request,) = scene.state.trace.requests()
    assert request.rope.len <= 3
    assert scene.state.totals.extra_rows == request.rope.len


def test_a_run_or_two_that_cost_more_than_they_save_are_left_alone() -> None:
    scene = StateHarness()
    grow(scene, 1_000_000)
    assert worth_compacting(scene.state) is None
    grow(scene, 100)
    assert worth_compacting(scene.state) is None


def test_nothing_is_merged_for_readers_while_something_is_asked_for_or_by_level_or_beyond_the_budget() -> None:
    scene = StateHarness()
    for _ in range(5):
        grow(scene, 10)
    assert scene.state.trace.requests()
    assert worth_compacting(scene.state) is None
    by_level = StateHarness(merging=MergePolicyKind.BY_LEVEL)
    for _ in range(5):
        grow(by_level, 10)
    assert worth_compacting(by_level.state) is None
    spent = StateHarness()
    grow(spent, 10, runs=5)
    assert worth_compacting(spent.state) == 0
    totals = msgspec.structs.replace(spent.state.totals, extra_rows=1)
    spent.state = spent.follower = msgspec.structs.replace(spent.state, totals=totals)
    assert worth_compacting(spent.state) is None
    assert spent.declined(RollUpAll(extra=True)) == 1
    assert spent.declined(Refresh((0, 1), extra=True)) is False


def test_extra_work_is_charged_when_it_is_asked_for() -> None:
    scene = StateHarness()
    grow(scene, 10, runs=5)
    scene.do(Refresh((0, 1), extra=True))
    assert scene.state.totals.extra_rows == 10
    assert scene.declined(RollUpAll(extra=True)) == 1


def test_runs_are_counted_as_readers_meet_them() -> None:
    scene = StateHarness()
    grow(scene, 12, runs=3)
    lower, upper = scene.state.upper, at(2)
    loose = Run((Part(f"c/{WRITER}/a", 1), Part(f"c/{WRITER}/b", 1)), Order.UNORDERED)
    both = HollowBatch(batch(lower, upper).desc, 2, (loose,))
    scene.do(CompareAndAppend((both,), lower, upper))
    scene.write(up("x", 5), key=f"c/{WRITER}/c")
    assert run_count(scene.state) == 3 + 2 + 1


def test_past_runs_count_as_runs_but_readers_of_the_newest_time_do_not_meet_them() -> None:
    live, past = Run((Part("c/w/a", 9),)), Run((Part("c/w/b", 4),), zero_from=(0,))
    both = HollowBatch(batch(at(0), at(1)).desc, 13, (live, past))
    assert run_rows(both) == [9, 4]
    assert run_rows(both, newest=True) == [9]


# Rolling up the newest batches.


@settings(max_examples=80, deadline=None)
@given(st.lists(st.sampled_from([0, 1, 2, 3, 7, 30, 200]), min_size=1, max_size=40), st.integers(0, 40), st.booleans())
def test_rolling_up_from_any_insertion_on_leaves_layers_that_are_in_order(
    sizes: list[int], lo: int, answer: bool
) -> None:
    scene = StateHarness()
    for rows in sizes:
        grow(scene, rows)
        for request in scene.state.trace.requests() if answer else ():
            answered(scene, request, request.rope.len)
    before = scene.state
    committed, _ = scene.attempt(RollUpAll(min(lo, before.trace.next_id)))  # every commit is checked
    if committed:
        older = [each.id for each in before.trace.batches() if each.id[1] <= lo]
        asked = [each for each in scene.state.trace.batches() if each.fueled]
        assert scene.state.trace.update_count == before.trace.update_count
        assert asked or not before.trace.update_count or older
    grow(scene, 5)
    grow(scene, 300)


def test_rolling_up_takes_more_if_a_merge_above_would_come_too_late() -> None:
    """Below a merge that has four units left, seven virtual updates may wait and not eight."""

    def piece(id: int, rows: int) -> SpineBatch:
        held = batch(at(id), at(id + 1), Part(f"c/w/p{id}", rows))
        return SpineBatch(held.desc, leaf(id, id + 1, held), False)

    oldest = Layer((piece(0, 8), piece(1, 8)), MergeProgress(at(0), 4))
    layers = (Layer((piece(4, 1),)), Layer((piece(3, 2),)), Layer((piece(2, 4),)), oldest)
    spine = Spine(at(0), at(5), 5, layers)
    validate_deep(spine, 1)
    (whole,) = spine.roll_up_all(3).batches()
    assert (whole.id, whole.fueled) == ((0, 5), True)

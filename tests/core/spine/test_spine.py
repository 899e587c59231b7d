"""The spine as a value: what it accepts, what it asks for, and what never changes.

The scripts in tests/scripts walk through its moves one by one; the bounds are in
test_spine_bounds.py.
"""

from __future__ import annotations

import operator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timespine.core.batch import HollowBatch, Part, Run
from timespine.core.encoding.flat_spine import flatten, validate_deep
from timespine.core.spine.layers import MergeRequest, level_for
from timespine.core.spine.merge_result import apply_merge_result
from timespine.core.spine.policy import UPDATES_MAX
from timespine.core.spine.spine import Spine, empty_spine, freeze
from timespine.errors import UsageError
from timespine.model import CLOSED, Description, Frontier
from timespine.testing import strategies as ts
from timespine.testing.scripts.trace_directives import without_redundant

at = Frontier.at


def batch(lower: int, upper: int, length: int, since: int = 0, runs: int = 1) -> HollowBatch:
    """A hollow batch of so many runs, of one part each."""
    desc = Description(at(lower), at(upper), at(since))
    return HollowBatch(desc, length, tuple(Run((Part(f"{lower}/{i}", length),)) for i in range(runs)))


def spine_of(*lengths: int) -> Spine:
    """A spine with batches of these sizes, at times 0, 1, 2, ..."""
    spine = empty_spine(1)
    for i, length in enumerate(lengths):
        spine = spine.insert(batch(i, i + 1, length))
    return spine


def ids(spine: Spine) -> list[tuple[int, int]]:
    return [each.id for each in spine.batches()]


@given(st.data(), ts.arities())
def test_whatever_happens_the_spine_stays_valid_and_the_old_one_never_changes(data: st.DataObject, arity: int) -> None:
    spine = empty_spine(arity)
    for step in data.draw(st.lists(st.sampled_from(ts.STEPS), max_size=20)):
        before = flatten(spine)
        changed = step(data.draw, spine)
        assert flatten(spine) == before
        assert spine.since <= changed.since
        assert spine.upper <= changed.upper
        spine = changed
        validate_deep(spine, arity)


@given(st.data(), ts.arities())
def test_a_batch_is_added_whole_at_the_end(data: st.DataObject, arity: int) -> None:
    spine = data.draw(ts.spines(arity))
    if spine.upper.is_closed:
        return
    new = data.draw(ts.next_batches(spine))
    policy = spine.policy()
    policy.insert(new)
    after, requests = freeze(policy), policy.requests
    assert flatten(spine.insert(new)) == flatten(after)
    assert after.upper == new.desc.upper
    assert after.next_id == spine.next_id + 1
    assert after.update_count == spine.update_count + new.len
    # Nothing is lost: only empty batches are ever fused.
    assert [b for b in after.hollow_batches() if b.len] == [
        *[b for b in spine.hollow_batches() if b.len],
        *([new] if new.len else []),
    ]
    for request in requests:
        assert request.rope.count == sum(1 for _ in request.inputs)
        assert spine.upper.join(after.upper) >= request.desc.upper
        assert all(each.desc.since <= request.desc.since for each in request.inputs)
    # What an insertion asks for can be derived from the state: it lies inside of what is asked for.
    asked = [r.id for r in after.requests()]
    assert all(any(lo <= r.id[0] and r.id[1] <= hi for lo, hi in asked) for r in requests)


@given(ts.spines(2))
@settings(max_examples=40)
def test_requests_are_the_fueled_batches(spine: Spine) -> None:
    fueled = [each for each in spine.batches() if each.fueled]
    assert [(r.id, r.desc) for r in spine.requests()] == [(each.id, each.desc) for each in fueled]


@given(ts.spines(2))
@settings(max_examples=40)
def test_counts_are_those_of_the_lists(spine: Spine) -> None:
    assert spine.batch_count == len(list(spine.batches()))
    assert spine.hollow_count == len(list(spine.hollow_batches())) == len(list(spine.leaves()))
    assert spine.update_count == sum(each.len for each in spine.hollow_batches())
    assert spine.describe() == [(len(layer.batches), layer.len) for layer in spine.layers]
    assert sum(batches for batches, _ in spine.describe()) == spine.batch_count


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (batch(2, 3, 1), r"begins at \[2\] cannot follow the upper \[1\]"),
        (batch(0, 3, 1), r"begins at \[0\] cannot follow the upper \[1\]"),
        (HollowBatch(Description(at(1), at(1), at(0)), 1), "must span some time"),
        (batch(1, 2, 1, since=1), r"exact from \[1\] on is past the spine's since \[0\]"),
        (HollowBatch(Description(at(1), at(2), CLOSED), 1), "past the spine's since"),
        (HollowBatch(Description(at(1, 1), at(2, 2), at(0, 0)), 1), "cannot follow"),
        (HollowBatch(Description(at(1), at(2), at(0, 0)), 1), "different numbers of coordinates"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(wrong: HollowBatch, why: str) -> None:
    spine = spine_of(1)
    before = flatten(spine)
    with pytest.raises(UsageError, match=why):
        spine.insert(wrong)
    assert flatten(spine) == before


def test_the_layer_of_a_batch_is_the_smallest_that_may_hold_it() -> None:
    assert [level_for(n) for n in (0, 1, 2, 3, 4, 5, 8, 9)] == [0, 0, 1, 2, 2, 3, 3, 4]
    for n in (1 << 40, (1 << 62) - 1, 1 << 62):
        assert 1 << level_for(n) >= n > 1 << (level_for(n) - 1)


def test_spines_are_equal_if_they_have_the_same_batches_however_they_are_layered() -> None:
    spine = spine_of(8, 1, 1)
    layered = spine.exert(0)
    rolled = spine.roll_up_all()
    assert spine.describe() != rolled.describe()
    for other in (layered, rolled):
        assert operator.eq(spine, other)
        assert not operator.ne(spine, other)
        assert hash(spine) == hash(other)
    for different in (
        spine_of(8, 1),
        spine_of(8, 1, 2),
        spine.downgrade_since(at(1)),
        spine.insert(batch(3, 4, 0)),
    ):
        assert operator.ne(spine, different)
        assert not operator.eq(spine, different)
    assert operator.ne(spine, "spine")
    assert not operator.eq(spine, "spine")


def test_equal_spines_have_equal_hashes_also_if_one_of_them_fused_empty_batches() -> None:
    fused = spine_of(0, 0)
    at_once = empty_spine(1).insert(HollowBatch(Description(at(0), at(2), at(0)), 0))
    assert fused == at_once
    assert hash(fused) == hash(at_once)
    assert len({fused, at_once}) == 1


@given(st.data(), ts.arities())
@settings(max_examples=40)
def test_since_only_moves_forward(data: st.DataObject, arity: int) -> None:
    spine = data.draw(ts.spines(arity, steps_max=6))
    asked = data.draw(ts.frontiers(arity))
    after = spine.downgrade_since(asked)
    assert after.since == spine.since.join(asked)
    assert after.layers is spine.layers
    assert (after is spine) == (asked <= spine.since)


def test_since_of_another_arity_is_refused() -> None:
    with pytest.raises(UsageError, match="different numbers of coordinates"):
        spine_of(1).downgrade_since(at(1, 1))


def request(lower: int, upper: int, since: int = 0) -> MergeRequest:
    spine = empty_spine(1).insert(batch(0, 1, 1))
    rope = next(iter(spine.batches())).rope
    return MergeRequest(Description(at(lower), at(upper), at(since)), rope)


@pytest.mark.parametrize(
    ("created", "kept"),
    [
        ([], []),
        ([(0, 1)], [(0, 1)]),
        ([(0, 1), (0, 1)], [(0, 1)]),
        ([(0, 1), (1, 2)], [(1, 2), (0, 1)]),
        ([(1, 2), (0, 3)], [(0, 3)]),
        ([(0, 2), (0, 3)], [(0, 3)]),
        ([(1, 3), (0, 3)], [(0, 3)]),
        ([(0, 3), (1, 2)], [(0, 3)]),
        ([(0, 2), (1, 3)], [(1, 3), (0, 2)]),
        ([(1, 3), (0, 2)], [(0, 2), (1, 3)]),
        ([(0, 3), (1, 2), (5, 6)], [(5, 6), (0, 3)]),
    ],
)
def test_of_several_requests_those_that_another_one_covers_are_dropped(
    created: list[tuple[int, int]], kept: list[tuple[int, int]]
) -> None:
    remaining = without_redundant([request(*bounds) for bounds in created])
    assert [(r.desc.lower, r.desc.upper) for r in remaining] == [(at(lower), at(upper)) for lower, upper in kept]


def test_a_request_does_not_cover_one_with_another_since() -> None:
    remaining = without_redundant([request(0, 1, since=0), request(0, 1, since=5), request(0, 2, since=5)])
    assert [(r.desc.upper, r.desc.since) for r in remaining] == [(at(2), at(5)), (at(1), at(0))]


@pytest.mark.parametrize("fuel", [-1, True, 1.0, "1", None, -(10**5000)], ids=lambda fuel: type(fuel).__name__)
def test_fuel_is_a_number_from_zero_on(fuel: object) -> None:
    with pytest.raises(UsageError, match="fuel must be an integer"):
        spine_of(1).exert(fuel)  # type: ignore[arg-type]


@given(ts.spines(2), st.integers(0, 50))
@settings(max_examples=40)
def test_exerting_moves_batches_and_never_data(spine: Spine, fuel: int) -> None:
    exerted = spine.exert(fuel)
    validate_deep(exerted, 2)
    assert [b for b in exerted.hollow_batches() if b.len] == [b for b in spine.hollow_batches() if b.len]
    assert (exerted.since, exerted.upper, exerted.next_id) == (spine.since, spine.upper, spine.next_id)
    assert exerted.batch_count <= spine.batch_count


@given(ts.spines(2))
@settings(max_examples=40)
def test_with_enough_fuel_one_batch_remains(spine: Spine) -> None:
    for _ in range(spine.batch_count):
        spine = spine.exert(1 << 62)
    assert spine.batch_count <= 1
    assert flatten(spine.exert(1 << 62)) == flatten(spine)


def test_exerting_spends_no_more_than_it_is_given() -> None:
    spine = spine_of(64, 64)
    for spent in range(0, 128, 8):
        merge = spine.layers[6].merge
        assert merge is not None
        assert merge.remaining == 128 - spent
        spine = spine.exert(8)
    assert ids(spine) == [(0, 2)]


def test_refresh_asks_for_a_merged_batch_alone_up_to_the_since_of_the_spine() -> None:
    spine = spine_of(4, 1).downgrade_since(at(1))
    assert spine.stale() == [(0, 1), (1, 2)]
    refreshed = spine.refresh((0, 1))
    assert refreshed is not None
    assert [(r.id, r.desc.since) for r in refreshed.requests()] == [((0, 1), at(1))]
    assert refreshed.stale() == [(1, 2)]
    assert refreshed.refresh((0, 1)) is None
    answered = apply_merge_result(refreshed, batch(0, 1, 2, since=1)).spine
    assert answered.requests() == []
    assert answered.stale() == [(1, 2)]


def test_refresh_has_nothing_to_gain_from_batches_that_are_compact_empty_or_not_there() -> None:
    spine = spine_of(4, 2, 0)
    assert spine.stale() == []
    assert spine.refresh((0, 1)) is None
    assert spine.refresh((0, 3)) is None
    assert spine.downgrade_since(at(1)).refresh((2, 3)) is None


def test_a_batch_of_several_runs_is_stale_whatever_its_since() -> None:
    spine = empty_spine(1).insert(batch(0, 1, 4, runs=2))
    assert not next(iter(spine.batches())).is_compact
    assert spine.stale() == [(0, 1)]
    refreshed = spine.refresh((0, 1))
    assert refreshed is not None
    assert not next(iter(refreshed.batches())).is_compact
    answered = apply_merge_result(refreshed, batch(0, 1, 4)).spine
    assert next(iter(answered.batches())).is_compact
    assert answered.stale() == []


def test_refresh_inside_a_merge_raises_the_since_of_the_merge() -> None:
    spine = spine_of(2, 2).downgrade_since(at(2))
    merge = spine.layers[1].merge
    assert merge is not None
    assert merge.since == at(0)
    refreshed = spine.refresh((0, 1))
    assert refreshed is not None
    answered = apply_merge_result(refreshed, batch(0, 1, 2, since=2)).spine.exert(4)
    assert [(each.id, each.desc.since) for each in answered.batches()] == [((0, 2), at(2))]
    validate_deep(answered, 1)


@given(ts.spines(2))
@settings(max_examples=40)
def test_rolling_up_all_leaves_one_batch_that_is_exact_from_since_on(spine: Spine) -> None:
    rolled = spine.roll_up_all()
    assert rolled.batch_count == min(spine.batch_count, 1)
    assert [b for b in rolled.hollow_batches() if b.len] == [b for b in spine.hollow_batches() if b.len]
    for each in rolled.batches():
        assert each.len == 0 or spine.since <= each.desc.since
        assert each.fueled or each.len == 0 or each.is_compact
    validate_deep(rolled, 2)
    assert flatten(rolled.roll_up_all()) == flatten(rolled)


def test_rolling_up_one_compact_batch_or_none_changes_nothing() -> None:
    for spine in (empty_spine(1), spine_of(7), spine_of(0, 0)):
        assert flatten(spine.roll_up_all()) == flatten(spine)
    spine = spine_of(7)
    assert spine.roll_up_all() is spine
    assert spine.downgrade_since(at(1)).roll_up_all().requests() != []


def test_a_spine_needs_a_number_of_coordinates() -> None:
    assert empty_spine(2).since == Frontier.minimum(2)
    with pytest.raises(UsageError):
        empty_spine(0)


def test_a_spine_takes_only_as_many_updates_as_can_be_stored() -> None:
    spine = empty_spine(1).insert(batch(0, 1, UPDATES_MAX - 1))
    assert spine.insert(batch(1, 2, 1)).update_count == UPDATES_MAX
    with pytest.raises(UsageError, match="too many"):
        spine.insert(batch(1, 2, 2))

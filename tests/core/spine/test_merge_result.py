"""Merge results, compared with a search through plain lists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timespine.core.batch import HollowBatch, Part, Run, wrap_int64
from timespine.core.encoding.flat_spine import flatten, validate_deep
from timespine.core.spine import rope as ropes
from timespine.core.spine.layers import SpineBatch
from timespine.core.spine.merge_result import MergeApplication, apply_merge_result
from timespine.core.spine.rope import Leaf
from timespine.core.spine.spine import Spine, empty_spine
from timespine.model import CLOSED, Description, Frontier
from timespine.model.time import INT64_MAX
from timespine.testing import strategies as ts

at = Frontier.at


def batch(lower: int, upper: int, length: int = 1, since: int = 0, diff_sum: int | None = None) -> HollowBatch:
    """A hollow batch of one part."""
    part = Part(f"{lower}-{upper}", length, diff_sum=diff_sum)
    return HollowBatch(Description(at(lower), at(upper), at(since)), length, (Run((part,)),))


def five(diff_sum: int | None = None) -> Spine:
    """[0-4] fueled, of four hollow batches, and [4-5] merged."""
    spine = empty_spine(1)
    for i in range(5):
        spine = spine.insert(batch(i, i + 1, diff_sum=diff_sum))
    return spine


def expected(spine: Spine, output: HollowBatch) -> tuple[MergeApplication, list[Leaf]]:
    """What should become of a result and which hollow batches it should replace: a plain search."""
    for each in spine.batches():
        if not output.desc.since <= each.desc.since or output.desc.lower == output.desc.upper:
            continue
        leaves = list(ropes.leaves(each.rope))
        inside = _range(each, leaves, output)
        if inside is None:
            continue
        sums = [leaf.diff_sum for leaf in inside]
        if output.len > sum(leaf.len for leaf in inside):
            return MergeApplication.TOO_MANY_UPDATES, []
        known = None not in sums and output.diff_sum is not None
        if known and wrap_int64(sum(sums)) != output.diff_sum:  # type: ignore[arg-type]
            return MergeApplication.DIFF_SUM, []
        whole = inside == leaves and each.desc.lower == output.desc.lower and each.desc.upper == output.desc.upper
        return (MergeApplication.EXACT if whole else MergeApplication.SUBSET), inside
    return MergeApplication.NO_MATCH, []


def _range(each: SpineBatch, leaves: list[Leaf], output: HollowBatch) -> list[Leaf] | None:
    """The leaves that a result is for, if its bounds fit."""
    if (each.desc.lower, each.desc.upper) == (output.desc.lower, output.desc.upper):
        return leaves
    for first in range(len(leaves)):
        for last in range(first, len(leaves)):
            bounds = (leaves[first].lower, leaves[last].upper)
            if each.fueled and bounds == (output.desc.lower, output.desc.upper):
                return leaves[first : last + 1]
    return None


@given(st.data(), st.integers(1, 2))
def test_a_result_is_applied_as_a_plain_search_says(data: st.DataObject, arity: int) -> None:
    spine = data.draw(ts.spines(arity, steps_max=16))
    if not spine.hollow_count:
        return
    output = data.draw(ts.merge_results(spine))
    applied, removed = expected(spine, output)
    replacement = apply_merge_result(spine, output)
    assert replacement.applied is applied
    assert list(replacement.removed) == removed
    if not applied.is_applied:
        assert replacement.spine is spine
        return
    after = replacement.spine
    kept = [leaf.batch for leaf in spine.leaves() if leaf not in removed]
    assert [each for each in after.hollow_batches() if each is not output] == kept
    assert (after.since, after.upper, after.next_id) == (spine.since, spine.upper, spine.next_id)
    assert [each.id for each in after.batches()] == [each.id for each in spine.batches()]
    assert after.update_count <= spine.update_count
    validate_deep(after, arity)


def test_each_outcome_says_whether_it_changed_something_and_whether_to_look_on() -> None:
    assert [each for each in MergeApplication if each.is_applied] == [MergeApplication.EXACT, MergeApplication.SUBSET]
    assert [each for each in MergeApplication if not each.ends_search] == [
        MergeApplication.NO_MATCH,
        MergeApplication.INVALID_SINCE,
    ]


def test_an_exact_result_replaces_the_whole_batch() -> None:
    spine = five()
    replacement = apply_merge_result(spine, batch(0, 4, 3))
    assert replacement.applied is MergeApplication.EXACT
    assert [leaf.batch for leaf in replacement.removed] == list(spine.hollow_batches())[:4]
    assert [(each.id, each.fueled, each.len) for each in replacement.spine.batches()] == [
        ((0, 4), False, 3),
        ((4, 5), False, 1),
    ]
    assert replacement.spine.requests() == []


def test_a_result_for_a_contiguous_range_replaces_that_range_and_the_request_stays() -> None:
    spine = five()
    replacement = apply_merge_result(spine, batch(1, 3, 2))
    assert replacement.applied is MergeApplication.SUBSET
    assert [(leaf.lo, leaf.hi) for leaf in replacement.removed] == [(1, 2), (2, 3)]
    assert [(leaf.lo, leaf.hi) for leaf in replacement.spine.leaves()] == [(0, 1), (1, 3), (3, 4), (4, 5)]
    assert [request.id for request in replacement.spine.requests()] == [(0, 4)]


@pytest.mark.parametrize(
    "output",
    [
        batch(0, 3 + 2),
        batch(3, 5),
        batch(9, 10),
        HollowBatch(Description(at(2), at(2), at(0)), 0),
        HollowBatch(Description(at(4), CLOSED, at(0)), 0),
        batch(0, 4, since=1),
        batch(1, 3, since=1),
        HollowBatch(Description(at(0), at(4), CLOSED), 0),
    ],
)
def test_what_does_not_fit_is_dropped(output: HollowBatch) -> None:
    spine = five()
    replacement = apply_merge_result(spine, output)
    assert replacement.applied is MergeApplication.NO_MATCH
    assert replacement.spine is spine
    assert replacement.removed == ()


def test_a_result_with_more_updates_is_refused() -> None:
    spine = five()
    for output in (batch(0, 4, 5), batch(1, 3, 3), batch(4, 5, 2)):
        assert apply_merge_result(spine, output).applied is MergeApplication.TOO_MANY_UPDATES


def test_sums_of_diffs_are_compared_where_both_are_known() -> None:
    known, unknown = five(diff_sum=INT64_MAX), five()
    right = wrap_int64(4 * INT64_MAX)
    assert apply_merge_result(known, batch(0, 4, 4, diff_sum=right)).applied is MergeApplication.EXACT
    assert apply_merge_result(known, batch(0, 4, 4, diff_sum=right + 1)).applied is MergeApplication.DIFF_SUM
    assert apply_merge_result(known, batch(1, 3, 1, diff_sum=-2)).applied is MergeApplication.SUBSET
    assert apply_merge_result(known, batch(1, 3, 1, diff_sum=0)).applied is MergeApplication.DIFF_SUM
    assert apply_merge_result(known, batch(1, 3, 1)).applied is MergeApplication.SUBSET
    assert apply_merge_result(unknown, batch(1, 3, 1, diff_sum=0)).applied is MergeApplication.SUBSET


def test_a_result_for_nothing_at_all() -> None:
    spine = empty_spine(1)
    assert apply_merge_result(spine, batch(0, 1)).applied is MergeApplication.NO_MATCH


@given(ts.spines(steps_max=16))
def test_answering_every_request_leaves_nothing_to_ask_for(spine: Spine) -> None:
    before = flatten(spine)
    answered = spine
    for request in spine.requests():
        replacement = apply_merge_result(answered, HollowBatch(request.desc, request.rope.len))
        # The hollow batches of a request may have sums that are known and are not those of no parts at all.
        if request.rope.diff_sum not in (None, 0):
            assert replacement.applied is MergeApplication.DIFF_SUM
            part = Part("m", request.rope.len, diff_sum=request.rope.diff_sum)
            replacement = apply_merge_result(answered, HollowBatch(request.desc, request.rope.len, (Run((part,)),)))
        assert replacement.applied is MergeApplication.EXACT
        answered = replacement.spine
    assert answered.requests() == []
    assert answered.batch_count == answered.hollow_count == spine.batch_count
    assert flatten(spine) == before
    validate_deep(answered, 1)

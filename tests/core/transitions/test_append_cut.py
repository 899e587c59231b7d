"""Batches that span more than their append, or are rewritten: nothing is lost, doubled, or seen in the past."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from state_harness import StateHarness, at, batch, inline_part, up

from timespine.core.batch import HollowBatch, Order, Run
from timespine.core.transitions import Append, AppendResult, CompareAndAppend, Retain, RollUpAll
from timespine.errors import UsageError
from timespine.model import CLOSED, Description, Frontier


def appended(upper: int) -> StateHarness:
    """A collection that is complete up to there, with one row from the start."""
    scene = StateHarness()
    scene.append(at(upper), up("there", 0))
    return scene


def cut(lower: int, upper: int, *batches: HollowBatch) -> CompareAndAppend:
    """An append of batches that may span more."""
    return CompareAndAppend(batches, at(lower), at(upper))


def said(reply: Any, *words: str) -> None:
    """The reply must be a UsageError with these words."""
    assert isinstance(reply, UsageError)
    assert all(word in str(reply) for word in words), str(reply)


# Without rewriting: cut at both ends.


def test_batch_that_spans_more_than_the_append_is_cut_to_fit() -> None:
    scene = appended(2)
    updates = [up("old", 1), up("b", 2), up("c", 3), up("new", 4)]
    scene.do(cut(2, 4, batch(at(0), at(6), inline_part(updates))))
    scene.oracle.updates.extend([up("b", 2), up("c", 3)])
    *_, newest = scene.state.hollow_batches()
    (part,) = newest.parts
    assert (part.lower, part.upper) == (at(2), at(4))
    assert newest.diff_sum is None, "how much of a truncated part is visible is not known"
    scene.agree()
    scene.append(at(9), up("d", 8))
    scene.agree()


def test_a_batch_of_a_schema_that_the_collection_does_not_have_is_refused() -> None:
    scene = StateHarness()
    scene.evolve(2)
    for schema in (2, 7):
        run = Run((inline_part([up("a", 0)]),), Order.SORTED, schema=schema)
        command = cut(0, 1, HollowBatch(Description(at(0), at(1), at(0)), 1, (run,)))
        said(scene.declined(command), f"schema {schema}", "has 2")


def test_cut_parts_keep_the_order_and_schema_of_their_run() -> None:
    scene = StateHarness()
    scene.evolve(4)
    run = Run((inline_part([up("a", 0)]), inline_part([up("b", 1)])), Order.UNORDERED, schema=3)
    wide = HollowBatch(Description(at(0), at(9), at(0)), 2, (run,))
    scene.do(cut(0, 1, wide))
    (only,) = scene.state.hollow_batches()
    (kept,) = only.runs
    assert (kept.order, kept.schema, len(kept.parts)) == (Order.UNORDERED, 3, 2)


def test_exact_batch_is_taken_as_it_is() -> None:
    scene = StateHarness()
    part = inline_part([up("a", 0), up("a", 3)], upper=at(2))
    scene.do(cut(0, 5, batch(at(0), at(5), part)))
    assert list(scene.state.parts()) == [part]
    assert scene.snapshot(4) == {"a": 1}


def test_exact_batch_that_is_compacted_is_taken_as_it_is() -> None:
    scene = StateHarness()
    scene.do(Retain(at(2)))
    part = inline_part([up("a", 2)])
    scene.do(cut(0, 5, batch(at(0), at(5), part, since=at(2))))
    assert list(scene.state.parts()) == [part]


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({"lower": at(1)}, (at(2), at(6))),
        ({"lower": at(3)}, (at(3), at(6))),
        ({"upper": at(5)}, (at(2), at(5))),
        ({"upper": at(9)}, (at(2), at(6))),
        ({"lower": at(4), "upper": at(5)}, (at(4), at(5))),
    ],
    ids=str,
)
def test_truncated_batch_is_cut_further(bounds: dict[str, Frontier], expected: tuple[Frontier, Frontier]) -> None:
    scene = appended(2)
    updates = [up("abcdefgh"[when], when) for when in range(8)]
    scene.do(cut(2, 6, batch(at(0), at(9), inline_part(updates, **bounds))))
    *_, newest = scene.state.parts()
    assert (newest.lower, newest.upper) == expected
    seen = Description(*expected, at(0))
    scene.oracle.updates.extend(each for each in updates if seen.contains(each[1]))
    scene.agree()
    scene.do(RollUpAll())
    scene.merge_all()
    scene.agree()


def test_truncated_batch_of_partially_ordered_times_is_cut_further() -> None:
    scene = StateHarness(arity=2)
    scene.append(Frontier(((0, 2), (2, 0))), up("there", (0, 0)))
    upper = at(3, 3)
    updates = [up(f"{x}{y}", (x, y)) for x in range(5) for y in range(5)]
    part = inline_part(updates, lower=Frontier(((0, 1), (1, 0))), upper=at(2, 2))
    lower = scene.state.upper
    scene.do(CompareAndAppend((batch(at(0, 0), at(5, 5), part),), lower, upper))
    inside, seen = Description(lower, upper, lower), Description(part.lower, part.upper, lower)  # type: ignore[arg-type]
    scene.oracle.updates.extend(each for each in updates if inside.contains(each[1]) and seen.contains(each[1]))
    scene.agree()


@pytest.mark.parametrize(("lower", "upper"), [(0, 5), (3, 9), (3, 5)])
def test_batch_with_folded_times_is_not_cut_to_fit(lower: int, upper: int) -> None:
    scene = StateHarness()
    if lower:
        scene.append(at(lower))
    scene.do(Retain(at(2)))
    wide = batch(at(0), at(9), inline_part([up("a", 2)]), since=at(2))
    said(scene.declined(cut(lower, upper, wide)), "compacted", "cut to fit")


def test_batch_whose_since_is_not_past_its_lower_has_no_folded_times_and_is_cut() -> None:
    scene = appended(4)
    scene.do(Retain(at(2)))
    updates = [up("old", 2), up("a", 4), up("new", 7)]
    scene.do(cut(4, 6, batch(at(2), at(9), inline_part(updates), since=at(2))))
    scene.oracle.updates.append(updates[1])
    assert [each.desc.since for each in scene.state.hollow_batches()] == [at(0), at(2)]
    scene.agree()


# With rewriting: nothing is cut, so the bounds must leave nothing to cut.


def test_rewritten_batch_is_read_at_its_new_times() -> None:
    scene = StateHarness()
    scene.do(cut(0, 5, batch(at(0), at(5), inline_part([up("a", 0), up("b", 4)], rewrite=at(3)))))
    scene.oracle.updates.extend([up("a", 3), up("b", 4)])
    scene.agree()


def test_batch_rewritten_past_the_upper_it_was_written_for_is_appended_from_the_start() -> None:
    """Written for [0, 1), rewritten to 2 with the new upper 3."""
    scene = StateHarness()
    scene.do(cut(0, 3, batch(at(0), at(3), inline_part([up("foo", 0)], rewrite=at(2)))))
    scene.oracle.updates.append(up("foo", 2))
    assert (scene.snapshot(1), scene.snapshot(2)) == ({}, {"foo": 1})
    scene.agree()


@pytest.mark.parametrize("rewrite", [2, 3, 4])
def test_rewritten_batch_that_begins_before_the_append_is_taken_whole(rewrite: int) -> None:
    scene = appended(2)
    part = inline_part([up("a", 0), up("b", 1), up("c", 4)], rewrite=at(rewrite))
    scene.do(cut(2, 5, batch(at(0), at(5), part)))
    *_, newest = scene.state.parts()
    assert newest == part, "truncation goes by the times before rewriting, and would hide a and b"
    scene.oracle.updates.extend([up("a", rewrite), up("b", rewrite), up("c", 4)])
    scene.agree()
    scene.do(RollUpAll())
    scene.merge_all()
    scene.agree()


def test_batches_written_for_earlier_uppers_go_through_together_at_last() -> None:
    """Two batches that lost, rewritten twice and once, and one that did not need to be."""
    scene = StateHarness()
    scene.do(CompareAndAppend((), at(0), at(2)))
    lost = batch(at(0), at(3), inline_part([up("k0", 0)], rewrite=at(2)))
    later = batch(at(1), at(3), inline_part([up("k1", 1)], rewrite=at(2)))
    exact = batch(at(2), at(3), inline_part([up("k2", 2)]))
    scene.do(cut(2, 3, lost, later, exact))
    scene.oracle.updates.extend(up(f"k{each}", 2) for each in range(3))
    assert scene.snapshot(1) == {}
    scene.agree()


def test_rewritten_batch_that_was_truncated_before_is_taken_as_it_is() -> None:
    scene = appended(2)
    part = inline_part([up("a", 0), up("b", 1), up("c", 3)], lower=at(1), upper=at(3), rewrite=at(2))
    scene.do(cut(2, 5, batch(at(0), at(5), part)))
    scene.oracle.updates.append(up("b", 2))
    scene.agree()


def test_batch_rewritten_to_before_its_own_lower_is_not_seen_there() -> None:
    scene = appended(3)
    scene.do(cut(3, 5, batch(at(3), at(5), inline_part([up("a", 3)], rewrite=at(1)))))
    scene.oracle.updates.append(up("a", 3))
    scene.agree()


def test_rewritten_batch_with_another_upper_is_a_usage_error() -> None:
    wide = batch(at(2), at(5), inline_part([up("k1", 2)], rewrite=at(3)))
    said(appended(2).declined(cut(2, 4, wide)), "from [4] on", "up to [5]")


def test_rewritten_batch_that_may_reach_before_the_append_is_a_usage_error() -> None:
    wide = batch(at(2), at(5), inline_part([up("k1", 2)], rewrite=at(3)))
    said(appended(4).declined(cut(4, 5, wide)), "before [4]", "from [3] on")


def test_part_beside_a_rewritten_one_is_not_cut_either() -> None:
    """If anything is rewritten, nothing may need to be cut: in the same batch, or in another one."""
    moved, plain = inline_part([up("k1", 2)], rewrite=at(3)), inline_part([up("k2", 2)])
    both = batch(at(2), at(5), moved, plain)
    said(appended(3).declined(cut(3, 5, both)), "before [3]", "from [2] on")
    beside = (batch(at(2), at(5), moved), batch(at(2), at(5), plain))
    said(appended(3).declined(cut(3, 5, *beside)), "before [3]", "from [2] on")
    said(appended(3).declined(cut(3, 5, *reversed(beside))), "before [3]", "from [2] on")
    longer = batch(at(3), at(6), plain)
    said(appended(3).declined(cut(3, 5, beside[0], longer)), "from [5] on")


@pytest.mark.parametrize("rewrite", [5, 7])
def test_batch_rewritten_to_times_after_its_append_is_a_usage_error(rewrite: int) -> None:
    wide = batch(at(0), at(5), inline_part([up("a", 0)], rewrite=at(rewrite)))
    said(StateHarness().declined(cut(0, 5, wide)), "does not lie below [5]")


@pytest.mark.parametrize("upper", [at(5), CLOSED])
def test_part_rewritten_to_no_time_at_all_is_a_usage_error(upper: Frontier) -> None:
    """Advancing by the closed frontier moves nothing: it would be seen before the append."""
    wide = batch(at(0), upper, inline_part([up("a", 0)], rewrite=CLOSED))
    said(appended(2).declined(CompareAndAppend((wide,), at(2), upper)), "does not lie below")


def test_batch_can_be_rewritten_in_the_append_that_closes_its_collection() -> None:
    scene = appended(2)
    scene.do(CompareAndAppend((batch(at(0), CLOSED, inline_part([up("a", 0)], rewrite=at(9))),), at(2), CLOSED))
    scene.oracle.updates.append(up("a", 9))
    scene.agree()


def test_rewritten_batch_with_folded_times_is_taken_whole_or_not_at_all() -> None:
    scene = StateHarness()
    scene.do(Retain(at(2)))
    part = inline_part([up("a", 2)], rewrite=at(3))
    said(scene.declined(cut(0, 4, batch(at(0), at(5), part, since=at(2)))), "compacted", "cut to fit")
    scene.do(cut(0, 5, batch(at(0), at(5), part, since=at(2))))
    scene.oracle.updates.append(up("a", 3))
    scene.agree()


def test_rewriting_partially_ordered_times_is_a_usage_error() -> None:
    scene = StateHarness(arity=2)
    part = inline_part([up("a", (0, 5))], rewrite=at(5, 0))
    command = CompareAndAppend((batch(at(0, 0), at(1, 1), part),), at(0, 0), at(1, 1))
    said(scene.declined(command), "2 coordinates")


# The same for writers that all append the same.


def test_replicated_append_of_a_rewritten_batch_is_taken_if_its_time_is_still_free() -> None:
    scene = appended(3)
    assert scene.do(Append(batch(at(0), at(5), inline_part([up("a", 1)], rewrite=at(3))))) == AppendResult(at(5), True)
    scene.oracle.updates.append(up("a", 3))
    scene.agree()


def test_replicated_append_of_a_rewritten_batch_that_is_there_already_changes_nothing() -> None:
    scene = StateHarness()
    once = Append(batch(at(0), at(4), inline_part([up("a", 0)], rewrite=at(2))))
    assert scene.do(once) == AppendResult(at(4), True)
    assert scene.declined(once) == AppendResult(at(4), False)


def test_replicated_append_of_a_rewritten_batch_that_is_there_in_part_is_a_usage_error() -> None:
    wide = batch(at(0), at(5), inline_part([up("a", 1)], rewrite=at(2)))
    said(appended(3).declined(Append(wide)), "before [3]", "from [2] on")


def test_replicated_append_of_a_truncated_batch_is_cut_further() -> None:
    scene = appended(2)
    updates = [up("abcde"[when], when) for when in range(5)]
    assert scene.do(Append(batch(at(0), at(5), inline_part(updates, upper=at(4))))) == AppendResult(at(5), True)
    scene.oracle.updates.extend(updates[2:4])
    scene.agree()


@given(st.data())
@settings(max_examples=300)
def test_whatever_is_taken_is_seen_inside_its_append_and_nowhere_else(data: st.DataObject) -> None:
    """Any batch with any bounds and any rewriting: it is refused, or it is what its caller means, cut to the append."""
    small = st.integers(0, 8)
    lower, upper = sorted((data.draw(small), data.draw(small)))
    scene = StateHarness()
    if lower:
        scene.append(at(lower))
    begin, end = min(lower, data.draw(small)), max(upper, data.draw(small))
    bounds = {name: at(data.draw(small)) for name in ("lower", "upper", "rewrite") if data.draw(st.booleans())}
    updates = [up("abcdefghi"[when], when) for when in range(begin, end)]
    if lower == upper or not updates:
        return
    committed, reply = scene.attempt(cut(lower, upper, batch(at(begin), at(end), inline_part(updates, **bounds))))
    if not committed:
        assert isinstance(reply, UsageError)
        return
    meant = scene.visible(inline_part(updates, **bounds))
    scene.oracle.updates.extend(each for each in meant if lower <= each[1][0] < upper)
    scene.append(at(upper + 9))
    scene.agree()

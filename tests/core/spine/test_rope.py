"""Ropes: concatenation and replacement, compared with plain lists."""

from __future__ import annotations

from itertools import pairwise
from math import ceil, log2
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timespine.core.batch import HollowBatch, Part, Run, wrap_int64
from timespine.core.spine import rope as ropes
from timespine.core.spine.rope import Fork, Leaf, Rope
from timespine.model import CLOSED, Description, Frontier
from timespine.model.time import INT64_MAX

at = Frontier.at


def leaf(lo: int, hi: int, length: int = 1, diff_sum: int | None = 1) -> Leaf:
    """A leaf whose times are ten times its ids."""
    desc = Description(at(10 * lo), at(10 * hi), at(0))
    return ropes.leaf(lo, hi, HollowBatch(desc, length, (Run((Part("k", length, diff_sum=diff_sum),)),)))


def depth(rope: Rope) -> int:
    """The most forks between the root and a leaf."""
    deepest, stack = 0, [(rope, 0)]
    while stack:
        node, at_depth = stack.pop()
        deepest = max(deepest, at_depth)
        if isinstance(node, Fork):
            stack += [(node.left, at_depth + 1), (node.right, at_depth + 1)]
    return deepest


@st.composite
def some_leaves(draw: st.DrawFn) -> list[Leaf]:
    """Leaves that tile the ids from somewhere on, of various widths."""
    lo = draw(st.integers(0, 3))
    made = []
    for width, length, diff_sum in draw(
        st.lists(
            st.tuples(st.integers(1, 3), st.integers(0, 5), st.none() | st.integers(-9, 9)), min_size=1, max_size=12
        )
    ):
        made.append(leaf(lo, lo + width, length, diff_sum))
        lo += width
    return made


@st.composite
def some_ropes(draw: st.DrawFn) -> Rope:
    """Ropes of any shape."""
    pieces: list[Rope] = [*draw(some_leaves())]
    while len(pieces) > 1:
        i = draw(st.integers(0, len(pieces) - 2))
        pieces[i : i + 2] = [ropes.concat(pieces[i], pieces[i + 1])]
    return pieces[0]


@given(some_leaves())
def test_balanced_keeps_order_and_is_as_flat_as_can_be(leaves: list[Leaf]) -> None:
    rope = ropes.balance([*leaves])
    assert list(ropes.leaves(rope)) == leaves
    assert depth(rope) == ceil(log2(len(leaves)))


@given(some_ropes())
def test_a_rope_knows_what_its_leaves_are_together(rope: Rope) -> None:
    leaves = list(ropes.leaves(rope))
    sums = [each.diff_sum for each in leaves]
    assert (rope.lo, rope.hi) == (leaves[0].lo, leaves[-1].hi)
    assert (rope.lower, rope.upper) == (leaves[0].lower, leaves[-1].upper)
    assert rope.len == sum(each.len for each in leaves)
    assert rope.count == len(leaves)
    assert rope.diff_sum == (None if None in sums else wrap_int64(sum(sums)))  # type: ignore[arg-type]


@given(some_ropes(), st.integers(0, 40))
def test_a_leaf_is_found_by_where_it_begins_or_ends(rope: Rope, bound: int) -> None:
    leaves = list(ropes.leaves(rope))
    begins = [each for each in leaves if each.lower == at(10 * bound)]
    ends = [each for each in leaves if each.upper == at(10 * bound)]
    assert ropes.leaf_from(rope, at(10 * bound)) == (begins[0] if begins else None)
    assert ropes.leaf_until(rope, at(10 * bound)) == (ends[0] if ends else None)
    assert ropes.leaf_from(rope, at(10 * bound + 5)) is None
    assert ropes.leaf_until(rope, CLOSED) is None


@given(some_ropes(), st.integers(0, 40), st.integers(0, 9))
def test_the_leaves_between_two_ids_are_those_that_have_some_of_them(rope: Rope, lo: int, width: int) -> None:
    hi = lo + width
    expected = [each for each in ropes.leaves(rope) if each.lo < hi and lo < each.hi]
    assert list(ropes.leaves_between(rope, lo, hi)) == expected


@given(some_ropes(), st.integers(0, 20), st.integers(1, 9))
def test_replacing_is_replacing_in_the_list_of_leaves(rope: Rope, lo: int, width: int) -> None:
    leaves = list(ropes.leaves(rope))
    new = leaf(lo, lo + width)
    replaced = ropes.replace_leaves(rope, new)
    fits = new.lo in {each.lo for each in leaves} and new.hi in {each.hi for each in leaves}
    assert (replaced is not None) == fits
    if replaced is not None:
        before = [each for each in leaves if each.hi <= new.lo]
        after = [each for each in leaves if new.hi <= each.lo]
        assert list(ropes.leaves(replaced)) == [*before, new, *after]
        assert replaced.len == sum(each.len for each in (*before, new, *after))
        assert depth(replaced) <= 2 * max(depth(rope), 1)
    assert list(ropes.leaves(rope)) == leaves


def test_sums_of_diffs_wrap_around() -> None:
    rope = ropes.concat(leaf(0, 1, diff_sum=INT64_MAX), leaf(1, 2, diff_sum=INT64_MAX))
    assert rope.diff_sum == -2
    assert ropes.concat(rope, leaf(2, 3, diff_sum=None)).diff_sum is None


def test_a_range_outside_of_the_rope_is_not_replaced() -> None:
    rope = ropes.balance([leaf(i, i + 1) for i in range(3, 7)])
    for lo, hi in ((0, 3), (7, 8), (2, 4), (2, 9), (6, 8)):
        assert ropes.replace_leaves(rope, leaf(lo, hi)) is None


def test_a_range_that_begins_or_ends_inside_of_a_leaf_is_not_replaced() -> None:
    rope = ropes.balance([leaf(0, 2), leaf(2, 4), leaf(4, 6)])
    for lo, hi in ((0, 1), (1, 2), (1, 4), (2, 5), (2, 3), (3, 5)):
        assert ropes.replace_leaves(rope, leaf(lo, hi)) is None


def test_replacing_copies_a_path_and_shares_the_rest() -> None:
    rope = ropes.balance([leaf(i, i + 1) for i in range(1024)])
    before = {id(node) for node in _nodes(rope)}
    replaced = ropes.replace_leaves(rope, leaf(500, 502))
    assert replaced is not None
    made = [node for node in _nodes(replaced) if id(node) not in before]
    assert len(made) <= 2 * 10 + 1


@pytest.mark.parametrize("seed", range(4))
def test_however_much_is_replaced_the_depth_stays_logarithmic(seed: int) -> None:
    random = Random(seed)
    count = 512
    rope = ropes.balance([leaf(i, i + 1) for i in range(count)])
    while rope.count > 1:
        leaves = list(ropes.leaves(rope))
        middle = (len(leaves) - 1) // 2
        first = middle if seed == 0 else random.randrange(len(leaves) - 1)
        last = min(first + random.randint(1, 3), len(leaves) - 1)
        replaced = ropes.replace_leaves(rope, leaf(leaves[first].lo, leaves[last].hi))
        assert replaced is not None
        rope = replaced
        assert depth(rope) <= 2 * log2(count)


def test_a_rope_as_deep_as_it_is_long_is_no_problem() -> None:
    rope: Rope = leaf(0, 1)
    for i in range(1, 20_000):
        rope = ropes.concat(rope, leaf(i, i + 1))
    assert sum(1 for _ in ropes.leaves(rope)) == 20_000
    assert ropes.leaf_from(rope, at(10)) == next(ropes.leaves_between(rope, 1, 2))
    replaced = ropes.replace_leaves(rope, leaf(1, 3))
    assert replaced is not None
    assert replaced.count == 19_999
    assert list(ropes.leaves_between(replaced, 0, 4))[1].hi == 3


def test_partially_ordered_bounds_are_found_too() -> None:
    frontiers = [
        Frontier.minimum(2),
        Frontier(((0, 1), (1, 0))),
        Frontier(((0, 2), (1, 1), (2, 0))),
        Frontier(((2, 2),)),
        CLOSED,
    ]
    rope = ropes.balance(
        [
            ropes.leaf(i, i + 1, HollowBatch(Description(lower, upper, frontiers[0]), 1))
            for i, (lower, upper) in enumerate(pairwise(frontiers))
        ]
    )
    for i, frontier in enumerate(frontiers[:-1]):
        found = ropes.leaf_from(rope, frontier)
        assert found is not None
        assert found.lo == i
    for i, frontier in enumerate(frontiers[1:]):
        found = ropes.leaf_until(rope, frontier)
        assert found is not None
        assert found.lo == i
    assert ropes.leaf_from(rope, Frontier(((0, 1),))) is None
    assert ropes.leaf_until(rope, Frontier(((0, 2), (1, 1)))) is None


def _nodes(rope: Rope) -> list[Rope]:
    nodes, stack = [], [rope]
    while stack:
        node = stack.pop()
        nodes.append(node)
        if isinstance(node, Fork):
            stack += [node.left, node.right]
    return nodes

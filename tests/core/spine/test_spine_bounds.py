"""What the docstring of fueled.py promises, on long random and on spiteful histories.

With N the updates inserted, an insertion of none counted as one:

    a batch at layer k has at most 2^k updates
    below a merge at layer k there are V < 2^k virtual updates, and the merge has
        at most 4 * (2^k - V) units of work left, so it completes before they can reach it
    at most ceil(log2 N) + 2 layers, and 2 * ceil(log2 N) + 4 batches
    at most 2 * (ceil(log2 N) + 2) updates merged per update inserted

The second line is why no insertion ever meets a merge in progress: inserting at
layer i gives each merge 8 * 2^i units and adds fewer than 2 * 2^i to V (the batch
itself, and what rolling up adds to what lies below it), so both sides of the
inequality go down together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle, islice
from random import Random

import pytest

from timespine.core.batch import HollowBatch
from timespine.core.spine import rope as ropes
from timespine.core.spine.layers import level_for
from timespine.core.spine.merge_result import apply_merge_result
from timespine.core.spine.policy_fueled import FUEL
from timespine.core.spine.rope import Fork, Rope
from timespine.core.spine.spine import Spine, empty_spine, freeze
from timespine.model import Description, Frontier

at = Frontier.at
STEPS = 500

Sizes = Callable[[Random], Iterator[int]]


def ones(random: Random) -> Iterator[int]:
    return cycle([1])


def ones_and_none(random: Random) -> Iterator[int]:
    return (random.randint(0, 1) for _ in range(STEPS))


def alternating_with_none(random: Random) -> Iterator[int]:
    return cycle([0, (1 << random.randint(0, 10)) + 1])


def small(random: Random) -> Iterator[int]:
    return (random.randint(0, 5) for _ in range(STEPS))


def of_all_magnitudes(random: Random) -> Iterator[int]:
    return (int(2 ** (random.random() * 20)) - 1 for _ in range(STEPS))


def just_above_powers_of_two(random: Random) -> Iterator[int]:
    return ((1 << random.randint(0, 12)) + 1 for _ in range(STEPS))


def one_large_and_many_small(random: Random) -> Iterator[int]:
    return (1 << 20 if i == 0 else random.randint(0, 3) for i in range(STEPS))


def rising_and_falling(random: Random) -> Iterator[int]:
    rising = [1 << i for i in range(12)]
    return cycle([*rising, *reversed(rising)])


def a_random_pattern_repeated(random: Random) -> Iterator[int]:
    return cycle([random.choice([0, 1, 2, 3, 5, 9, 33, 1 << random.randint(0, 12)]) for _ in range(5)])


SIZES: list[Sizes] = [
    ones,
    ones_and_none,
    alternating_with_none,
    small,
    of_all_magnitudes,
    just_above_powers_of_two,
    one_large_and_many_small,
    rising_and_falling,
    a_random_pattern_repeated,
]


def answer_some(spine: Spine, random: Random) -> Spine:
    """Answer a request, with as many updates or fewer, or do not."""
    requests = spine.requests()
    if not requests or random.random() < 0.7:
        return spine
    request = random.choice(requests)
    length = random.choice([request.rope.len, request.rope.len // 2, 1, 0])
    return apply_merge_result(spine, HollowBatch(request.desc, min(length, request.rope.len))).spine


def answer_none(spine: Spine, random: Random) -> Spine:
    return spine


def exert_some(spine: Spine, random: Random) -> Spine:
    return spine.exert(random.choice([0, 1, 100])) if random.random() < 0.3 else answer_some(spine, random)


def depth(rope: Rope) -> int:
    deepest, stack = 0, [(rope, 0)]
    while stack:
        node, at_depth = stack.pop()
        deepest = max(deepest, at_depth)
        if isinstance(node, Fork):
            stack += [(node.left, at_depth + 1), (node.right, at_depth + 1)]
    return deepest


def check_layers(spine: Spine) -> None:
    """Sizes, and the invariant of merges in progress."""
    virtual = 0
    for level, layer in enumerate(spine.layers):
        assert all(batch.len <= 1 << level for batch in layer.batches)
        if layer.merge is not None:
            assert virtual < 1 << level
            assert 0 <= layer.merge.remaining <= 4 * ((1 << level) - virtual)
            assert all(batch.desc.since <= layer.merge.since <= spine.since for batch in layer.batches)
        virtual += len(layer.batches) << level


@pytest.mark.parametrize("between", [answer_none, answer_some, exert_some])
@pytest.mark.parametrize("sizes", SIZES)
def test_bounds_hold_whatever_is_inserted(sizes: Sizes, between: Callable[[Spine, Random], Spine]) -> None:
    random = Random(f"{sizes.__name__} {between.__name__}")
    spine = empty_spine(1)
    inserted = work = 0
    for step, length in enumerate(islice(sizes(random), STEPS)):
        policy = spine.policy()
        policy.insert(HollowBatch(Description(at(step), at(step + 1), spine.since), length))
        spine = freeze(policy)
        inserted += max(length, 1)
        work += sum(request.rope.len for request in policy.requests)
        check_layers(spine)
        log = level_for(inserted)
        assert len(spine.layers) <= log + 2
        assert spine.batch_count <= 2 * log + 4
        assert work <= 2 * (log + 2) * inserted
        # Rather better than promised: a layer is full only if some layer below it is vacant.
        assert spine.batch_count <= len(spine.layers) + 1
        spine = between(spine, random)
        check_layers(spine)
        if step % 100 == 0:
            spine = spine.downgrade_since(at(step))


@pytest.mark.parametrize("sizes", SIZES)
def test_each_merge_gets_eight_units_of_fuel_per_virtual_update(sizes: Sizes) -> None:
    random = Random(sizes.__name__)
    spine = empty_spine(1)
    for step, length in enumerate(islice(sizes(random), STEPS)):
        before = {layer.batches[0].rope.lo: layer.merge.remaining for layer in spine.layers if layer.merge}
        policy = spine.policy()
        policy.insert(HollowBatch(Description(at(step), at(step + 1), at(0)), length))
        after = freeze(policy)
        for layer in after.layers:
            if layer.merge and layer.batches[1].rope.hi <= spine.next_id and layer.batches[0].rope.lo in before:
                given = before[layer.batches[0].rope.lo] - layer.merge.remaining
                assert given <= FUEL << level_for(length)
        spine = after


@pytest.mark.parametrize("sizes", SIZES)
def test_an_insertion_takes_logarithmic_steps_however_many_hollow_batches_there_are(
    sizes: Sizes, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 0
    concat = ropes.concat

    def counted(left: Rope, right: Rope) -> Fork:
        nonlocal steps
        steps += 1
        return concat(left, right)

    monkeypatch.setattr(ropes, "concat", counted)
    random = Random(sizes.__name__)
    spine = empty_spine(1)
    inserted = 0
    for step, length in enumerate(islice(sizes(random), STEPS)):
        steps = 0
        spine = spine.insert(HollowBatch(Description(at(step), at(step + 1), at(0)), length))
        inserted += max(length, 1)
        assert steps <= level_for(inserted) + 2
    deepest = max(depth(batch.rope) for batch in spine.batches())
    # A level of the rope is a merge that its leaves took part in.
    assert deepest <= 2 * (level_for(inserted) + 2)


def test_many_insertions_leave_a_handful_of_batches() -> None:
    spine = empty_spine(1)
    batch = HollowBatch(Description(at(0), at(1), at(0)), 1)
    for step in range(20_000):
        spine = spine.insert(HollowBatch(Description(at(step), at(step + 1), at(0)), batch.len))
    assert spine.hollow_count == 20_000
    assert spine.batch_count <= 2 * level_for(20_000) + 4
    assert len(spine.layers) <= level_for(20_000) + 2
    assert max(depth(each.rope) for each in spine.batches()) <= level_for(20_000) + 2
    check_layers(spine)


@pytest.mark.parametrize("arity", [2, 3])
def test_partially_ordered_frontiers_change_nothing_about_the_layers(arity: int) -> None:
    random = Random(arity)
    plain, partial = empty_spine(1), empty_spine(arity)
    for step in range(200):
        length = random.choice([0, 1, 3, 17])
        upper = Frontier(
            tuple(tuple(step + 1 if i == axis else 0 for i in range(arity)) for axis in range(arity))
        ).join(partial.upper)
        plain = plain.insert(HollowBatch(Description(at(step), at(step + 1), at(0)), length))
        partial = partial.insert(HollowBatch(Description(partial.upper, upper, Frontier.minimum(arity)), length))
        assert plain.describe() == partial.describe()
    check_layers(partial)

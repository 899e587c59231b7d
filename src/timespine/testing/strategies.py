"""Hypothesis strategies for the values of the model and the core.

The only module that imports Hypothesis, which is a dependency of tests alone. Coordinates are small on purpose:
collisions, chains and incomparable times find mistakes, and all of them are frequent among few values.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from timespine.core.batch import HollowBatch, Order, Part, Run, wrap_int64
from timespine.core.spine.merge_result import apply_merge_result
from timespine.core.spine.spine import Spine, empty_spine
from timespine.model.description import Description
from timespine.model.frontier import CLOSED, Frontier
from timespine.model.oracle import Update
from timespine.model.time import INT64_MAX, Time

COORDINATE_MAX = 5
"""The largest coordinate of most draws."""


def arities() -> SearchStrategy[int]:
    """Draw one to three coordinates."""
    return st.integers(1, 3)


def coordinates() -> SearchStrategy[int]:
    """Draw mostly small coordinates, and now and then the largest ones."""
    return st.integers(0, COORDINATE_MAX) | st.sampled_from([INT64_MAX - 1, INT64_MAX])


def times(arity: int = 1, extreme: bool = False) -> SearchStrategy[Time]:
    """Draw times of this number of coordinates."""
    each = coordinates() if extreme else st.integers(0, COORDINATE_MAX)
    return st.tuples(*[each] * arity)


def frontiers(arity: int = 1, extreme: bool = False, elements_max: int = 4) -> SearchStrategy[Frontier]:
    """Draw frontiers of times of this number of coordinates, closed ones among them."""
    return st.lists(times(arity, extreme), max_size=elements_max).map(lambda drawn: Frontier(tuple(drawn)))


def open_frontiers(arity: int = 1, extreme: bool = False, elements_max: int = 4) -> SearchStrategy[Frontier]:
    """Draw frontiers that are not closed."""
    drawn = st.lists(times(arity, extreme), min_size=1, max_size=elements_max)
    return drawn.map(lambda elements: Frontier(tuple(elements)))


@st.composite
def frontiers_after(draw: DrawFn, frontier: Frontier, closed: bool = False) -> Frontier:
    """Draw frontiers strictly after an open one, and not far; with `closed`, also the closed one."""
    if closed and draw(st.integers(0, 30)) == 0:
        return CLOSED
    arity = len(frontier.elements[0])
    steps = draw(st.lists(st.tuples(*[st.integers(0, 2)] * arity), min_size=1, max_size=3))
    moved = [_moved(element, step) for element in frontier for step in steps]
    after = frontier.join(Frontier(tuple(moved[:8])))
    return after if after != frontier else Frontier(tuple(_moved(element, (1,) * arity) for element in frontier))


def _moved(time: Time, step: tuple[int, ...]) -> Time:
    return tuple(min(coordinate + by, INT64_MAX) for coordinate, by in zip(time, step, strict=True))


@st.composite
def descriptions(draw: DrawFn, arity: int = 1) -> Description:
    """Draw descriptions that span some time."""
    lower = draw(open_frontiers(arity))
    return Description(lower, draw(frontiers_after(lower, closed=True)), draw(frontiers(arity)))


def diffs() -> SearchStrategy[int]:
    """Draw small diffs of both signs, and zero."""
    return st.integers(-3, 3)


def updates(arity: int = 1, max_size: int = 24) -> SearchStrategy[list[Update]]:
    """Draw updates of few rows."""
    return st.lists(st.tuples(st.sampled_from("abc"), times(arity), diffs()), max_size=max_size)


def lengths() -> SearchStrategy[int]:
    """Draw numbers of updates in a batch: mostly few, often none, sometimes very many."""
    return st.integers(0, 9) | st.just(0) | st.sampled_from([1, 2, 4, 16, 17, 100, 1 << 20, (1 << 40) + 1])


@st.composite
def runs(draw: DrawFn, name: str, length: int, arity: int = 1) -> tuple[Run, ...]:
    """Draw runs of a few parts, whose keys begin with `name`, with every field that a part has."""
    made = []
    for number in range(draw(st.integers(0, 3)) if length else 0):
        part = Part(
            key=draw(st.sampled_from([f"{name}/{number}", ""])),
            rows=length,
            size=draw(st.integers(0, 99)),
            diff_sum=draw(st.none() | st.integers(-5, 5)),
            inline=draw(st.none() | st.binary(max_size=3)),
            hollow=draw(st.booleans()),
            lower=draw(st.none() | frontiers(arity)),
            upper=draw(st.none() | frontiers(arity)),
            rewrite=draw(st.none() | frontiers(arity)),
            meta=draw(st.binary(max_size=3)),
        )
        zero_from = draw(st.none() | st.tuples(*[st.integers(0, 9)] * arity))
        made.append(Run((part,), draw(st.sampled_from(Order)), draw(st.none() | st.integers(0, 3)), zero_from))
    return tuple(made)


@st.composite
def hollow_batches(draw: DrawFn, desc: Description, length: int | None = None, name: str = "k") -> HollowBatch:
    """Draw hollow batches of a description, of any number of updates unless one is given."""
    count = draw(lengths()) if length is None else length
    return HollowBatch(desc, count, draw(runs(name, count, desc.lower.arity or 1)))


@st.composite
def next_batches(draw: DrawFn, spine: Spine) -> HollowBatch:
    """Draw hollow batches that may be inserted into a spine that is not closed."""
    upper = draw(frontiers_after(spine.upper, closed=True))
    arity = len(spine.upper.elements[0])
    since = draw(st.sampled_from([Frontier.minimum(arity), spine.since]))
    return draw(hollow_batches(Description(spine.upper, upper, since), name=f"k{spine.next_id}"))


@st.composite
def merge_results(draw: DrawFn, spine: Spine) -> HollowBatch:
    """Draw results for a range of the hollow batches of a spine that has some; most of them fit."""
    leaves = list(spine.leaves())
    requests = spine.requests()
    request = draw(st.none() | st.sampled_from(requests)) if requests else None
    if request is not None:
        ids, desc = request.id, request.desc
    else:
        first = draw(st.integers(0, len(leaves) - 1))
        last = draw(st.integers(first, min(first + 4, len(leaves) - 1)))
        ids = (leaves[first].lo, leaves[last].hi)
        since = draw(st.sampled_from([leaves[first].batch.desc.since, leaves[last].batch.desc.since, spine.since]))
        desc = Description(leaves[first].lower, leaves[last].upper, since)
    inside = [leaf for leaf in leaves if ids[0] <= leaf.lo and leaf.hi <= ids[1]]
    total = sum(leaf.len for leaf in inside)
    length = draw(st.sampled_from([total, total // 2, 0, total + 1]))
    sums = [leaf.diff_sum for leaf in inside]
    diff_sum = wrap_int64(sum(sums)) if None not in sums else None  # type: ignore[arg-type]
    part = Part(f"m{draw(st.integers(0, 1 << 30))}", length, diff_sum=diff_sum)
    return HollowBatch(desc, length, (Run((part,)),))


SpineStep = Callable[[DrawFn, Spine], Spine]
"""One random change of a spine."""


def _insert(draw: DrawFn, spine: Spine) -> Spine:
    return spine if spine.upper.is_closed else spine.insert(draw(next_batches(spine)))


def _apply(draw: DrawFn, spine: Spine) -> Spine:
    return apply_merge_result(spine, draw(merge_results(spine))).spine if spine.hollow_count else spine


def _downgrade(draw: DrawFn, spine: Spine) -> Spine:
    return spine if spine.since.is_closed else spine.downgrade_since(draw(frontiers_after(spine.since, closed=True)))


def _exert(draw: DrawFn, spine: Spine) -> Spine:
    return spine.exert(draw(st.integers(0, 40)))


def _refresh(draw: DrawFn, spine: Spine) -> Spine:
    stale = spine.stale()
    return (spine.refresh(draw(st.sampled_from(stale))) if stale else None) or spine


def _roll_up_all(draw: DrawFn, spine: Spine) -> Spine:
    return spine.roll_up_all()


STEPS: tuple[SpineStep, ...] = (*[_insert] * 8, *[_apply] * 4, _downgrade, _downgrade, _exert, _refresh, _roll_up_all)
"""The changes of a spine, each as often as it is listed."""


@st.composite
def spines(draw: DrawFn, arity: int = 1, steps_max: int = 24) -> Spine:
    """Draw spines that grew by insertions, merge results and every other change."""
    spine = empty_spine(arity)
    for step in draw(st.lists(st.sampled_from(STEPS), max_size=steps_max)):
        spine = step(draw, spine)
    return spine

"""Flat spines: there and back, and every way in which stored tables may be wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timespine.core.batch import HollowBatch, Part, Run
from timespine.core.encoding.flat_spine import (
    FlatSpine,
    Id,
    SpineBatchHeader,
    SpineMergeHeader,
    assemble,
    flatten,
    headers_of,
    unflatten,
    validate,
    validate_deep,
)
from timespine.core.spine import rope as ropes
from timespine.core.spine.layers import VACANT, Layer, MergeProgress, SpineBatch
from timespine.core.spine.spine import Spine, empty_spine
from timespine.errors import CorruptionError, UsageError
from timespine.model import CLOSED, Description, Frontier
from timespine.testing import strategies as ts

K = TypeVar("K")
V = TypeVar("V")

at = Frontier.at


def batch(lower: int, upper: int, length: int = 1, since: int = 0) -> HollowBatch:
    desc = Description(at(lower), at(upper), at(since))
    return HollowBatch(desc, length, (Run((Part(f"{lower}-{upper}", length),)),))


def spine_of(*lengths: int) -> Spine:
    spine = empty_spine(1)
    for i, length in enumerate(lengths):
        spine = spine.insert(batch(i, i + 1, length))
    return spine


# Layer 3: [0-2] fueled, of two hollow batches. Layer 0: [2-3] and [3-4], merging.
EXAMPLE = flatten(spine_of(3, 3, 1, 1))


def changed(**tables: object) -> FlatSpine:
    """The example with some of its tables replaced."""
    return msgspec.structs.replace(EXAMPLE, **tables)


def restored(flat: FlatSpine, arity: int = 1) -> Spine:
    """A spine out of untrusted tables, as a reader of stored states does it."""
    spine = unflatten(flat, arity)
    validate_deep(spine, arity)
    return spine


def test_the_example_is_what_the_cases_below_think_it_is() -> None:
    assert list(EXAMPLE.hollow) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert EXAMPLE.batches == {
        (0, 2): SpineBatchHeader(3, at(0), True),
        (2, 3): SpineBatchHeader(0, at(0), False),
        (3, 4): SpineBatchHeader(0, at(0), False),
    }
    assert EXAMPLE.merges == {(2, 4): SpineMergeHeader(at(0), 2)}


@given(st.data(), ts.arities())
def test_a_spine_taken_apart_and_encoded_comes_back_the_same(data: st.DataObject, arity: int) -> None:
    spine = data.draw(ts.spines(arity))
    flat = flatten(spine)
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(flat), type=FlatSpine)
    again = restored(decoded, arity)
    assert again == spine
    assert again.describe() == spine.describe()
    assert [layer.merge for layer in again.layers] == [layer.merge for layer in spine.layers]
    assert [(each.id, each.desc, each.fueled) for each in again.batches()] == [
        (each.id, each.desc, each.fueled) for each in spine.batches()
    ]
    assert again.next_id == spine.next_id
    assert flatten(again) == flat


@given(st.data())
@settings(max_examples=40)
def test_a_restored_spine_goes_on_like_the_original(data: st.DataObject) -> None:
    spine = data.draw(ts.spines())
    again = unflatten(flatten(spine), 1)
    for _ in range(3):
        if not spine.upper.is_closed:
            new = data.draw(ts.next_batches(spine))
            spine, again = spine.insert(new), again.insert(new)
            assert [r.desc for r in spine.requests()] == [r.desc for r in again.requests()]
            assert flatten(spine) == flatten(again)


@given(ts.spines())
@settings(max_examples=40)
def test_the_thin_tables_are_as_small_as_the_layers(spine: Spine) -> None:
    batches, merges = headers_of(spine)
    assert len(batches) == spine.batch_count
    assert len(merges) == sum(layer.is_full for layer in spine.layers)


@given(ts.spines(2))
@settings(max_examples=40)
def test_whole_ropes_can_be_assembled_without_looking_into_them(spine: Spine) -> None:
    batches, merges = headers_of(spine)
    again = assemble([each.rope for each in spine.batches()], spine.since, batches, merges, 2, spine.merging)
    assert [each.rope for each in again.batches()] == [each.rope for each in spine.batches()]
    assert flatten(again) == flatten(spine)


def test_an_empty_spine_comes_back_empty() -> None:
    assert unflatten(FlatSpine(at(0, 0), {}, {}, {}), 2) == empty_spine(2)


def without(table: dict[K, V], key: K) -> dict[K, V]:
    return {other: value for other, value in table.items() if other != key}


def with_(table: dict[K, V], key: K, value: V) -> dict[K, V]:
    return {**table, key: value}


def moved(table: dict[Id, V], old: Id, new: Id) -> dict[Id, V]:
    return {new if key == old else key: value for key, value in table.items()}


hollow, batches, merges = EXAMPLE.hollow, EXAMPLE.batches, EXAMPLE.merges

CORRUPT: dict[str, tuple[FlatSpine, str]] = {
    "a hollow batch too many": (changed(hollow=with_(hollow, (4, 5), batch(4, 5))), "1 hollow batches left over"),
    "the last spine batch missing": (changed(batches=without(batches, (3, 4))), "1 hollow batches left over"),
    "all spine batches missing": (changed(batches={}, merges={}), "4 hollow batches left over"),
    "a spine batch in the middle missing": (changed(batches=without(batches, (2, 3))), "2-3 where one from 3 on"),
    "the first hollow batch missing": (changed(hollow=without(hollow, (0, 1))), "1-2 where one from 0 on is needed"),
    "the last hollow batch missing": (changed(hollow=without(hollow, (3, 4))), "of spine batch 3-4 are missing from 3"),
    "all hollow batches missing": (changed(hollow={}), "of spine batch 0-2 are missing from 0 on"),
    "the end of a spine batch missing": (changed(hollow=without(hollow, (1, 2))), "0-2 are missing from 1 on"),
    "a hollow batch of no ids": (changed(hollow=with_(hollow, (1, 1), batch(1, 2))), "1-1 where one from 1 on"),
    "a hollow batch of backward ids": (changed(hollow=moved(hollow, (1, 2), (1, 0))), "where one from 1 on"),
    "overlapping hollow batches": (changed(hollow=with_(hollow, (0, 2), batch(0, 2))), "where one from 1 on is needed"),
    "a hollow batch across spine batches": (
        changed(hollow=moved(without(hollow, (2, 3)), (1, 2), (1, 3))),
        "0-2 are missing from 1 on",
    ),
    "a spine batch of no ids": (
        changed(batches=with_(batches, (2, 2), SpineBatchHeader(3, at(0), False))),
        "of spine batch 2-2 are missing from 2 on",
    ),
    "ids that do not begin at 0": (
        FlatSpine(at(0), {(1, 2): batch(0, 1)}, {(1, 2): SpineBatchHeader(0, at(0), False)}, {}),
        "1-2 does not follow id 0",
    ),
    "ids with a gap": (
        FlatSpine(
            at(0),
            {(0, 1): batch(0, 1), (2, 3): batch(1, 2)},
            {(0, 1): SpineBatchHeader(1, at(0), False), (2, 3): SpineBatchHeader(0, at(0), False)},
            {},
        ),
        "2-3 does not follow id 1",
    ),
    "times that do not begin at the minimum": (
        FlatSpine(at(0), {(0, 1): batch(1, 2)}, {(0, 1): SpineBatchHeader(0, at(0), False)}, {}),
        r"\[1\]\[2\]\[0\] does not follow upper \[0\]",
    ),
    "times with a gap between spine batches": (
        changed(
            hollow=with_(hollow, (2, 3), batch(9, 10)), batches=with_(batches, (2, 3), SpineBatchHeader(0, at(0), True))
        ),
        r"\[9\]\[10\]\[0\] does not follow upper \[2\]",
    ),
    "times with a gap inside a spine batch": (
        changed(hollow=with_(hollow, (0, 1), batch(0, 7))),
        "1-2 .* does not tile",
    ),
    "no time inside a spine batch": (
        FlatSpine(
            at(0),
            {(0, 1): batch(0, 1), (1, 2): HollowBatch(Description(at(1), at(1), at(0)), 1), (2, 3): batch(1, 2)},
            {(0, 3): SpineBatchHeader(2, at(0), True)},
            {},
        ),
        "1-2 .* does not tile",
    ),
    "a spine batch of no time": (
        changed(hollow=with_(hollow, (2, 3), HollowBatch(Description(at(2), at(2), at(0)), 1))),
        r"spine batch 2-3 spans no time: \[2\]\[2\]",
    ),
    "a spine batch that ends before it begins": (
        changed(hollow=with_(hollow, (0, 1), batch(5, 6))),
        r"spine batch 0-2 spans no time: \[5\]\[2\]",
    ),
    "something after the end": (
        changed(hollow=with_(hollow, (3, 4), HollowBatch(Description(CLOSED, CLOSED, at(0)), 1))),
        r"spine batch 3-4 spans no time: \[\]\[\]",
    ),
    "an older batch below a newer one": (
        changed(batches=with_(batches, (0, 2), SpineBatchHeader(0, at(0), True))),
        "more than 2 batches at level 0",
    ),
    "a newer batch above an older one": (
        changed(batches=with_(batches, (3, 4), SpineBatchHeader(2, at(0), False))),
        "at level 2 is newer than one at a lower level",
    ),
    "a batch above the top": (
        changed(batches=with_(batches, (2, 3), SpineBatchHeader(4, at(0), False))),
        "at level 4 is newer than one at a lower level",
    ),
    "a merge missing": (changed(merges={}), "the merge of spine batches 2-4 is missing"),
    "a merge of other batches": (changed(merges=moved(merges, (2, 4), (2, 3))), "the merge of spine batches 2-4"),
    "a merge too many": (changed(merges=with_(merges, (0, 2), SpineMergeHeader(at(0), 1))), "1 merges left over"),
    "a batch past since": (
        changed(batches=with_(batches, (0, 2), SpineBatchHeader(3, at(1), True))),
        r"0-2 is exact from \[1\] on, past the spine's since \[0\]",
    ),
    "a hollow batch past since": (
        changed(hollow=with_(hollow, (0, 1), batch(0, 1, 3, since=1))),
        "hollow batch 0-1 is exact later than its spine batch",
    ),
    "too many updates for the level": (
        changed(hollow=with_(hollow, (0, 1), batch(0, 1, 6))),
        "0-2 has 9 updates, too many for level 3",
    ),
    "a level too low for the updates": (
        changed(batches=with_(batches, (0, 2), SpineBatchHeader(2, at(0), True))),
        "0-2 has 6 updates, too many for level 2",
    ),
    "several hollow batches that count as merged": (
        changed(batches=with_(batches, (0, 2), SpineBatchHeader(3, at(0), False))),
        "0-2 is neither fueled nor a single merged batch",
    ),
    "a merged batch with another since": (
        msgspec.structs.replace(
            changed(batches=with_(batches, (3, 4), SpineBatchHeader(0, at(1), False))),
            since=at(1),
        ),
        "3-4 is neither fueled nor a single merged batch",
    ),
}


@pytest.mark.parametrize("name", CORRUPT)
def test_tables_that_do_not_fit_are_corrupt(name: str) -> None:
    flat, why = CORRUPT[name]
    with pytest.raises(CorruptionError, match=why):
        restored(flat)


def spine_batch(lo: int, hi: int, length: int = 1) -> SpineBatch:
    inner = batch(lo, hi, length)
    return SpineBatch(inner.desc, ropes.leaf(lo, hi, inner), False)


FUELING = MergeProgress(at(0), 1)


@pytest.mark.parametrize(
    ("spine", "why"),
    [
        (Spine(at(0), at(1), 1, (Layer((spine_batch(0, 1),), FUELING),)), "level 0 has 1 batches and merge"),
        (Spine(at(0), at(0), 0, (Layer((), FUELING),)), "level 0 has 0 batches and merge"),
        (
            Spine(at(0), at(2), 2, (Layer((spine_batch(0, 1), spine_batch(1, 2))),)),
            "level 0 has 2 batches and merge None",
        ),
        (Spine(at(0), at(1), 2, (Layer((spine_batch(0, 1),)),)), "next id 2 does not follow the last id 1"),
        (Spine(at(0), at(2), 1, (Layer((spine_batch(0, 1),)),)), r"upper \[2\] is not the last batch's upper \[1\]"),
        (Spine(at(0), at(1), 0, ()), r"upper \[1\] is not the last batch's upper \[0\]"),
        (Spine(at(0), at(0), 1, (VACANT,)), "next id 1 does not follow the last id 0"),
    ],
)
def test_a_spine_that_is_not_whole_is_corrupt(spine: Spine, why: str) -> None:
    with pytest.raises(CorruptionError, match=why):
        validate(spine, 1)


def test_ids_with_a_gap_inside_a_spine_batch_are_corrupt() -> None:
    rope = ropes.concat(ropes.leaf(0, 1, batch(0, 1)), ropes.leaf(2, 3, batch(1, 2)))
    spine = Spine(at(0), at(2), 3, (VACANT, Layer((SpineBatch(Description(at(0), at(2), at(0)), rope, True),))))
    validate(spine, 1)
    with pytest.raises(CorruptionError, match=r"2-3 .* does not tile"):
        validate_deep(spine, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        [[[[0]]], {}, {(0, 1): [65, [[[0]]], False]}, {}],
        [[[[0]]], {}, {(0, 1): [-1, [[[0]]], False]}, {}],
        [[[[0]]], {}, {(-1, 1): [0, [[[0]]], False]}, {}],
        [[[[0]]], {}, {}, {(0, 1): [[[[0]]], -1]}],
        [[[[0]]], {}, {}, {(0, 1): [[[[0]]], 1.5]}],
        [[[[0]]], {}, {}],
        [[[[-1]]], {}, {}, {}],
        [[[[0]]], {(0, 1): [[[[[1]]], [[[0]]], [[[0]]]], 1, []]}, {}, {}],
    ],
)
def test_values_out_of_range_are_not_even_decoded(wrong: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(wrong), type=FlatSpine)


Mutation = Callable[[st.DrawFn, FlatSpine], FlatSpine]


def _drop(draw: st.DrawFn, flat: FlatSpine) -> FlatSpine:
    name = draw(st.sampled_from(["hollow", "batches", "merges"]))
    table = getattr(flat, name)
    return msgspec.structs.replace(
        flat, **{name: without(table, draw(st.sampled_from(sorted(table)))) if table else {}}
    )


def _move(draw: st.DrawFn, flat: FlatSpine) -> FlatSpine:
    name = draw(st.sampled_from(["hollow", "batches", "merges"]))
    table = getattr(flat, name)
    if not table:
        return flat
    old = draw(st.sampled_from(sorted(table)))
    new = tuple(max(0, number + draw(st.integers(-1, 1))) for number in old)
    kept = without(table, old) if draw(st.booleans()) else table
    return msgspec.structs.replace(flat, **{name: {**kept, new: table[old]}})


def _swap(draw: st.DrawFn, flat: FlatSpine) -> FlatSpine:
    name = draw(st.sampled_from(["hollow", "batches", "merges"]))
    table = getattr(flat, name)
    if not table:
        return flat
    a, b = draw(st.sampled_from(sorted(table))), draw(st.sampled_from(sorted(table)))
    return msgspec.structs.replace(flat, **{name: {**table, a: table[b], b: table[a]}})


def _change_batch(draw: st.DrawFn, flat: FlatSpine) -> FlatSpine:
    if not flat.batches:
        return flat
    id = draw(st.sampled_from(sorted(flat.batches)))
    old = flat.batches[id]
    new = draw(
        st.sampled_from(
            [
                SpineBatchHeader(max(0, old.level + draw(st.integers(-2, 2))), old.since, old.fueled),
                SpineBatchHeader(old.level, draw(ts.frontiers(1)), old.fueled),
                SpineBatchHeader(old.level, old.since, not old.fueled),
            ]
        )
    )
    return msgspec.structs.replace(flat, batches={**flat.batches, id: new})


def _change_hollow(draw: st.DrawFn, flat: FlatSpine) -> FlatSpine:
    if not flat.hollow:
        return flat
    id = draw(st.sampled_from(sorted(flat.hollow)))
    old = flat.hollow[id]
    desc = draw(st.sampled_from([old.desc, draw(ts.descriptions(1))]))
    length = draw(st.sampled_from([old.len, old.len + 1, old.len // 2, 0]))
    return msgspec.structs.replace(flat, hollow={**flat.hollow, id: HollowBatch(desc, length, old.runs)})


def _change_since(draw: st.DrawFn, flat: FlatSpine) -> FlatSpine:
    return msgspec.structs.replace(flat, since=draw(ts.frontiers(1)))


def _change_merge(draw: st.DrawFn, flat: FlatSpine) -> FlatSpine:
    if not flat.merges:
        return flat
    id = draw(st.sampled_from(sorted(flat.merges)))
    old = flat.merges[id]
    remaining = draw(st.sampled_from([old.remaining, 0, old.remaining + 1, 4 * old.remaining, 1 << 62]))
    since = draw(st.sampled_from([old.since, flat.since, draw(ts.frontiers(1))]))
    return msgspec.structs.replace(flat, merges={**flat.merges, id: SpineMergeHeader(since, remaining)})


def _change_arity(draw: st.DrawFn, flat: FlatSpine) -> FlatSpine:
    """A frontier of two coordinates somewhere."""
    name = draw(st.sampled_from(["since", "hollow", "batches", "merges"]))
    if name == "since":
        return msgspec.structs.replace(flat, since=at(0, 0))
    table = getattr(flat, name)
    if not table:
        return flat
    id = draw(st.sampled_from(sorted(table)))
    field = draw(st.sampled_from(["lower", "upper", "since"])) if name == "hollow" else "since"
    try:
        if name == "hollow":
            desc = msgspec.structs.replace(table[id].desc, **{field: draw(st.sampled_from([at(0, 0), at(9, 9)]))})
            new = msgspec.structs.replace(table[id], desc=desc)
        else:
            new = msgspec.structs.replace(table[id], since=at(0, 0))
    except UsageError:
        return flat  # not even a description
    return msgspec.structs.replace(flat, **{name: {**table, id: new}})


MUTATIONS: list[Mutation] = [_drop, _move, _swap, _change_batch, _change_hollow, _change_since]


@given(st.data())
def test_mutated_tables_are_corrupt_or_they_are_another_valid_spine(data: st.DataObject) -> None:
    flat = flatten(data.draw(ts.spines(1, steps_max=12)))
    for mutate in data.draw(st.lists(st.sampled_from(MUTATIONS), min_size=1, max_size=2)):
        flat = mutate(data.draw, flat)
    try:
        spine = restored(flat)
    except CorruptionError:
        return
    assert flatten(spine) == flat
    validate_deep(spine, 1)


@given(st.data())
def test_a_spine_out_of_mutated_tables_can_be_worked_with(data: st.DataObject) -> None:
    """Whatever is accepted must never meet an assertion later."""
    flat = flatten(data.draw(ts.spines(1, steps_max=12)))
    for mutate in data.draw(
        st.lists(st.sampled_from([*MUTATIONS, _change_merge, _change_arity]), min_size=1, max_size=3)
    ):
        flat = mutate(data.draw, flat)
    try:
        spine = restored(flat)
    except CorruptionError:
        return
    assert flatten(spine) == flat
    for step in data.draw(st.lists(st.sampled_from(ts.STEPS), max_size=6)):
        spine = step(data.draw, spine)
        validate_deep(spine, 1)


def merging(below: int = 0, remaining: int = 8, since: Frontier = at(0)) -> FlatSpine:  # noqa: B008
    """Two batches of four in layer 2, merging, and some of one below it."""
    spine = spine_of(4, 4)
    flat = flatten(spine)
    tables = {(2 + i, 3 + i): batch(2 + i, 3 + i) for i in range(below)}
    levels = {2: [1, 1], 3: [1, 0, 0]}.get(below, [0] * below)
    return FlatSpine(
        at(0),
        flat.hollow | tables,
        flat.batches | {id: SpineBatchHeader(level, at(0), False) for id, level in zip(tables, levels, strict=True)},
        {(0, 2): SpineMergeHeader(since, remaining)}
        | ({(2, 4): SpineMergeHeader(at(0), 2)} if below == 2 else {})
        | ({(3, 5): SpineMergeHeader(at(0), 2)} if below == 3 else {}),
    )


def test_merges_that_will_complete_in_time_are_fine() -> None:
    for flat in (merging(), merging(remaining=16), merging(1, remaining=12)):
        assert flatten(restored(flat)) == flat


@pytest.mark.parametrize(
    "flat",
    [
        merging(remaining=17),
        merging(remaining=1 << 62),
        merging(1, remaining=13),
        merging(2, remaining=0),
        merging(3, remaining=0),
        merging(since=at(1)),
        merging(since=CLOSED),
        merging(since=at(0, 0)),
    ],
)
def test_merges_that_other_batches_would_meet_are_corrupt(flat: FlatSpine) -> None:
    with pytest.raises(CorruptionError):
        restored(flat)


@pytest.mark.parametrize(
    "flat",
    [
        FlatSpine(at(0, 0), {}, {}, {}),
        changed(since=at(0, 0)),
        changed(batches=with_(batches, (0, 2), SpineBatchHeader(3, at(0, 0), True))),
        changed(since=CLOSED, batches=with_(batches, (0, 2), SpineBatchHeader(3, at(0, 0), True))),
        changed(
            hollow=with_(hollow, (0, 1), HollowBatch(Description(at(0), CLOSED, at(0, 0)), 1)),
        ),
    ],
)
def test_frontiers_of_another_arity_are_corrupt(flat: FlatSpine) -> None:
    with pytest.raises(CorruptionError):
        restored(flat)

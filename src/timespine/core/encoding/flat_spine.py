"""A spine as three small tables, and its reconstruction from them with every check.

Storage and diffs use the flat form: hollow batches by id, spine batches by id,
merges in progress by id. A spine batch does not list its hollow batches:
ids tile, so they are the ones inside its range. That keeps the difference
between two spines as small as the change was, also when two batches of fifty
thousand hollow batches each become one.

The checks do not trust stored tables: parts that do not fit together are a
CorruptionError.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from timespine.core.batch import Count, HollowBatch
from timespine.core.spine import rope as ropes
from timespine.core.spine.layers import LEVELS_MAX, VACANT, Layer, MergePolicyKind, MergeProgress, SpineBatch
from timespine.core.spine.rope import Leaf, Rope
from timespine.core.spine.spine import POLICIES, Spine
from timespine.errors import CorruptionError
from timespine.model.description import Description
from timespine.model.frontier import Frontier

Id = tuple[Count, Count]
"""A range of insertions, [lo, hi)."""

Level = Annotated[int, msgspec.Meta(ge=0, le=LEVELS_MAX)]


class SpineBatchHeader(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A spine batch without its hollow batches."""

    level: Level
    """The layer that it is in."""
    since: Frontier
    """The frontier that a merge of it should reach."""
    fueled: bool
    """Whether it waits for a merge."""


class SpineMergeHeader(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A merge in progress; its id is that of the two batches together."""

    since: Frontier
    """The since that the merged batch will have."""
    remaining: Count
    """Units of work until it completes."""


class FlatSpine(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The whole spine in three tables."""

    since: Frontier
    """The spine's since."""
    hollow: dict[Id, HollowBatch]
    """All hollow batches by id."""
    batches: dict[Id, SpineBatchHeader]
    """All spine batches by id."""
    merges: dict[Id, SpineMergeHeader]
    """All merges in progress by id."""


def headers_of(spine: Spine) -> tuple[dict[Id, SpineBatchHeader], dict[Id, SpineMergeHeader]]:
    """Return the two tables whose size is, by the fueled rule, logarithmic in the number of updates."""
    batches: dict[Id, SpineBatchHeader] = {}
    merges: dict[Id, SpineMergeHeader] = {}
    for level in range(len(spine.layers) - 1, -1, -1):
        layer = spine.layers[level]
        for batch in layer.batches:
            batches[batch.id] = SpineBatchHeader(level, batch.desc.since, batch.fueled)
        if layer.merge is not None:
            id = (layer.batches[0].rope.lo, layer.batches[-1].rope.hi)
            merges[id] = SpineMergeHeader(layer.merge.since, layer.merge.remaining)
    return batches, merges


def flatten(spine: Spine) -> FlatSpine:
    """Turn a spine into tables."""
    batches, merges = headers_of(spine)
    hollow = {(leaf.lo, leaf.hi): leaf.batch for leaf in spine.leaves()}
    return FlatSpine(spine.since, hollow, batches, merges)


def unflatten(flat: FlatSpine, arity: int, merging: MergePolicyKind = MergePolicyKind.FUELED) -> Spine:
    """Build a spine from its tables; raise CorruptionError if they do not fit together."""
    for batch in flat.hollow.values():
        for frontier in (batch.desc.lower, batch.desc.upper, batch.desc.since):
            _check_arity(frontier, arity)
    pieces: list[Rope] = [ropes.leaf(lo, hi, batch) for (lo, hi), batch in sorted(flat.hollow.items())]
    return assemble(pieces, flat.since, flat.batches, flat.merges, arity, merging)


def assemble(
    pieces: list[Rope],
    since: Frontier,
    batches: dict[Id, SpineBatchHeader],
    merges: dict[Id, SpineMergeHeader],
    arity: int,
    merging: MergePolicyKind,
) -> Spine:
    """Return a spine from ropes in order of their ids, grouped as the tables say, for a rule of merging.

    Costs one step per piece and per batch, so a caller that already has long ropes
    passes them whole.
    """
    for frontier in (since, *(batch.since for batch in batches.values()), *(merge.since for merge in merges.values())):
        _check_arity(frontier, arity)
    most = POLICIES[merging].layer_max
    levels: list[list[SpineBatch]] = []
    upper, next_id, at = Frontier.minimum(arity), 0, 0
    for (lo, hi), batch in sorted(batches.items()):
        begin = at
        while at < len(pieces) and pieces[at].hi <= hi:
            at += 1
        rope = _rope_of(pieces[begin:at], lo, hi)
        _put(levels, batch.level, _spine_batch(batch, rope), most)
        upper, next_id = rope.upper, hi
    if at != len(pieces):
        raise CorruptionError(f"{len(pieces) - at} hollow batches left over after putting the spine together")
    spine = Spine(since, upper, next_id, _layers(levels, merges, most), merging)
    validate(spine, arity)
    return spine


def _check_arity(frontier: Frontier, arity: int) -> None:
    if frontier.arity not in (None, arity):
        raise CorruptionError(f"{frontier} has {frontier.arity} coordinates per time where {arity} are needed")


def _rope_of(pieces: list[Rope], lo: int, hi: int) -> Rope:
    """Return the rope of one spine batch, made of the ropes of its range."""
    at = lo
    for piece in pieces:
        if piece.lo != at or piece.hi <= piece.lo:
            raise CorruptionError(f"hollow batch {piece.lo}-{piece.hi} where one from {at} on is needed")
        at = piece.hi
    if not pieces or at != hi:
        raise CorruptionError(f"hollow batches of spine batch {lo}-{hi} are missing from {at} on")
    return ropes.balance(pieces)


def _spine_batch(batch: SpineBatchHeader, rope: Rope) -> SpineBatch:
    """Return the spine batch, whose bounds are those of its hollow batches."""
    if not rope.lower < rope.upper:
        raise CorruptionError(f"spine batch {rope.lo}-{rope.hi} spans no time: {rope.lower}{rope.upper}")
    return SpineBatch(Description(rope.lower, rope.upper, batch.since), rope, batch.fueled)


def _put(levels: list[list[SpineBatch]], level: int, batch: SpineBatch, most: int | None) -> None:
    """Add a batch, newer than all before, to its level; the first one decides how many levels there are."""
    if not levels:
        levels.extend([] for _ in range(level + 1))
    if level >= len(levels) or any(levels[:level]):
        raise CorruptionError(f"spine batch at level {level} is newer than one at a lower level")
    if len(levels[level]) == most:
        raise CorruptionError(f"more than {most} batches at level {level}")
    levels[level].append(batch)


def _layers(levels: list[list[SpineBatch]], merges: dict[Id, SpineMergeHeader], most: int | None) -> tuple[Layer, ...]:
    """Return the layers with the merges in progress; exactly the full layers have one."""
    left = dict(merges)
    complete: list[Layer] = []
    for batches in levels:
        fueling = None
        if len(batches) == most:
            id = (batches[0].rope.lo, batches[-1].rope.hi)
            merge = left.pop(id, None)
            if merge is None:
                raise CorruptionError(f"the merge of spine batches {id[0]}-{id[1]} is missing")
            fueling = MergeProgress(merge.since, merge.remaining)
        complete.append(Layer(tuple(batches), fueling) if batches else VACANT)
    if left:
        raise CorruptionError(f"{len(left)} merges left over after putting the spine together")
    return tuple(complete)


def validate(spine: Spine, arity: int) -> None:
    """Check every rule that holds between insertions, or raise CorruptionError.

    Costs one step per spine batch. `validate_deep` also checks that the hollow batches inside a fueled batch tile.
    """
    upper, next_id = Frontier.minimum(arity), 0
    for batch in spine.batches():
        _validate_batch(spine, batch)
        if batch.rope.lo != next_id:
            raise CorruptionError(f"spine batch {batch.rope.lo}-{batch.rope.hi} does not follow id {next_id}")
        if batch.desc.lower != upper:
            raise CorruptionError(f"spine batch {batch.desc} does not follow upper {upper}")
        upper, next_id = batch.desc.upper, batch.rope.hi
    if spine.next_id != next_id:
        raise CorruptionError(f"next id {spine.next_id} does not follow the last id {next_id}")
    if spine.upper != upper:
        raise CorruptionError(f"upper {spine.upper} is not the last batch's upper {upper}")
    spine.policy().check()


def _validate_batch(spine: Spine, batch: SpineBatch) -> None:
    """Check the rules for one batch alone."""
    wrong = None
    if not batch.desc.since <= spine.since:
        wrong = f"is exact from {batch.desc.since} on, past the spine's since {spine.since}"
    elif not batch.fueled and not (isinstance(batch.rope, Leaf) and batch.rope.batch.desc == batch.desc):
        wrong = "is neither fueled nor a single merged batch"
    if wrong is not None:
        raise CorruptionError(f"spine batch {batch.rope.lo}-{batch.rope.hi} {wrong}")


def validate_deep(spine: Spine, arity: int) -> None:
    """Check the rules of `validate`, that hollow batches tile, and that none is exact later than its spine batch."""
    validate(spine, arity)
    for batch in spine.batches():
        lower, lo = batch.desc.lower, batch.rope.lo
        for leaf in ropes.leaves(batch.rope):
            if leaf.lo != lo or leaf.lower != lower or not leaf.lower < leaf.upper:
                raise CorruptionError(f"hollow batch {leaf.lo}-{leaf.hi} {leaf.batch.desc} does not tile")
            if not leaf.batch.desc.since <= batch.desc.since:
                raise CorruptionError(f"hollow batch {leaf.lo}-{leaf.hi} is exact later than its spine batch")
            lower, lo = leaf.upper, leaf.hi

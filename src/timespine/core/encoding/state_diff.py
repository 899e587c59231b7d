"""The difference between two states, which a commit stores.

`diff(old, new)` and `apply_diff(old, diff) == new` cost in proportion to what
changed, never to the number of batches. That works because states share
structure: an object that both share has not changed. Both ropes are walked in
step, and a shared subtree is skipped whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from timespine.core.batch import Count, HollowBatch
from timespine.core.encoding.flat_spine import Id, SpineBatchHeader, SpineMergeHeader, assemble, headers_of
from timespine.core.encoding.validate import check_frontiers, check_history, check_holders, check_hollow, check_unsealed
from timespine.core.spine import rope as ropes
from timespine.core.spine.rope import Fork, Leaf, Rope
from timespine.core.spine.spine import Spine
from timespine.core.state import (
    Claim,
    Committer,
    Forgetting,
    HistoryEntry,
    HoldRecord,
    Lease,
    Reader,
    Rollup,
    State,
    Status,
    Turn,
)
from timespine.core.totals import TotalsPosition, increase, with_increase
from timespine.core.unsealed_index import UnsealedBatch, UnsealedIndex
from timespine.errors import CorruptionError, UsageError
from timespine.model.frontier import Frontier

K = TypeVar("K")
V = TypeVar("V")


class SpineDiff(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The difference between two spines. Fields are short because they are stored with every commit."""

    s: Frontier | None = None
    """The new since."""
    a: dict[Id, HollowBatch] = {}
    """Hollow batches that are new; those that they cover are gone."""
    d: tuple[Id, ...] = ()
    """Spine batches that are gone."""
    b: dict[Id, SpineBatchHeader] = {}
    """Spine batches that are new or changed."""
    m: dict[Id, SpineMergeHeader | None] = {}
    """Merges in progress that are new or changed; None: gone."""


class StateDiff(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The difference between a state and the one before it."""

    n: Count
    """The sequence number of the new state."""
    u: Frontier | None = None
    """upper"""
    t: SpineDiff | None = None
    """trace"""
    r: Frontier | None = None
    """retention"""
    x: tuple[int, ...] = ()
    """unsealed batches that are gone"""
    y: tuple[UnsealedBatch, ...] = ()
    """unsealed batches that are new or changed"""
    readers: dict[str, Reader | None] = {}
    holds: dict[str, HoldRecord | None] = {}
    w: dict[str, Lease | None] = {}
    """writers"""
    c: dict[str, Committer | None] = {}
    """committers"""
    sinks: dict[str, int | None] = {}
    schemas: tuple[bytes, ...] = ()
    """schemas that are new; with a change of status, which forgets the old ones, all schemas"""
    rollups: dict[int, Rollup | None] = {}
    claims: dict[Id, Claim | None] = {}
    f: Count = 0
    """how many of the oldest entries of history are gone"""
    h: tuple[HistoryEntry, ...] = ()
    """entries of history that are new"""
    i: int | None = None
    """inline bytes"""
    status: Status | None = None
    unsealed_next: Count | None = None
    o: dict[TotalsPosition, Count] = {}
    """totals: the increase, by the place of the field"""
    g: tuple[Forgetting, ...] | None = None
    """expired history that may still be stored: the new record, or an empty tuple if there is none now"""
    q: tuple[Turn, ...] | None = None
    """the turn that a change claimed: the new record, or an empty tuple if there is none now"""
    k: int | None = None
    """when the commit was made, by the clock of its process; no part of the state: a restore by time needs it"""


VALUES = (
    ("upper", "u"),
    ("retention", "r"),
    ("inline_bytes", "i"),
    ("status", "status"),
    ("unsealed_next", "unsealed_next"),
)
"""Fields of a state that a diff replaces, and their names in the diff. None in the diff: not changed."""

MAPS = (
    ("readers", "readers"),
    ("holds", "holds"),
    ("writers", "w"),
    ("committers", "c"),
    ("sinks", "sinks"),
    ("rollups", "rollups"),
    ("claims", "claims"),
)
"""Maps of which a diff has the entries that are new, changed or gone."""

RECORDS = (("forgetting", "g"), ("turn", "q"))
"""Fields that may be None: a diff has a tuple of the new record, an empty one if there is none now."""


def diff(old: State, new: State) -> StateDiff:
    """Return the diff that turns `old` into `new`."""
    change: dict[str, Any] = {"n": new.seqno}
    for name, short in VALUES:
        before, after = getattr(old, name), getattr(new, name)
        if before is not after and before != after:
            change[short] = after
    for name, short in MAPS:
        before, after = getattr(old, name), getattr(new, name)
        if before is not after:
            change[short] = _diff_map(before, after)
    for name, short in RECORDS:
        before, after = getattr(old, name), getattr(new, name)
        if before is not after and before != after:
            change[short] = () if after is None else (after,)
    if old.trace is not new.trace:
        change["t"] = _diff_spine(old.trace, new.trace)
    if old.unsealed is not new.unsealed:
        change["x"], change["y"] = _diff_unsealed(old.unsealed, new.unsealed)
    if old.history is not new.history:
        change["f"], change["h"] = _diff_history(old.history, new.history)
    if old.totals is not new.totals:
        change["o"] = increase(old.totals, new.totals)
    # A change of status forgets the old schemas.
    change["schemas"] = new.schemas[len(old.schemas) if new.status is old.status else 0 :]
    return StateDiff(**change)


def apply_diff(old: State, change: StateDiff) -> State:
    """Return the next state; raise CorruptionError if the diff does not fit the old one."""
    if change.n != old.seqno + 1:
        raise CorruptionError(f"a diff to state {change.n} cannot follow state {old.seqno}")
    if change.f > len(old.history):
        raise CorruptionError(f"a diff forgets {change.f} lines of {len(old.history)}")
    try:
        _check_shape(change, old.arity)
        new = _apply(old, change)
    except UsageError as error:
        raise CorruptionError(f"a diff to state {change.n} does not fit: {error}") from error
    if not (old.upper <= new.upper and old.since <= new.since and new.trace.upper <= new.upper):
        raise CorruptionError(f"a diff to state {change.n} takes upper or since back, or leaves the trace ahead")
    return new


def _check_shape(change: StateDiff, arity: int) -> None:
    """Raise UsageError if a new value has times of another arity."""
    check_frontiers((change.u, change.r), arity)
    check_holders(change.readers.values(), arity)
    check_holders(change.holds.values(), arity)
    check_unsealed(change.y, arity)
    check_history(change.h, arity)
    if change.t is not None:
        check_hollow(change.t.a.values(), arity)


def _apply(old: State, change: StateDiff) -> State:
    new: dict[str, Any] = {"seqno": change.n}
    for name, short in VALUES:
        if (value := getattr(change, short)) is not None:
            new[name] = value
    for name, short in MAPS:
        if entries := getattr(change, short):
            new[name] = _apply_map(getattr(old, name), entries)
    for name, short in RECORDS:
        if (record := getattr(change, short)) is not None:
            new[name] = next(iter(record), None)
    if change.t is not None:
        new["trace"] = _apply_spine(old.trace, change.t, old.arity)
    if change.x or change.y:
        new["unsealed"] = _apply_unsealed(old.unsealed, change.x, change.y)
    if change.f or change.h:
        new["history"] = (*old.history[change.f :], *change.h)
    if change.o:
        new["totals"] = with_increase(old.totals, change.o)
    if change.schemas or change.status is not None:
        new["schemas"] = change.schemas if change.status is not None else (*old.schemas, *change.schemas)
    return msgspec.structs.replace(old, **new)


def _diff_map(old: Mapping[K, V], new: Mapping[K, V]) -> dict[K, V | None]:
    change: dict[K, V | None] = {key: value for key, value in new.items() if old.get(key) != value}
    change.update((key, None) for key in old if key not in new)
    return change


def _apply_map(old: dict[K, V], change: Mapping[K, V | None]) -> dict[K, V]:
    merged = {key: value for key, value in old.items() if key not in change}
    merged.update((key, value) for key, value in change.items() if value is not None)
    return merged


def _diff_history(old: tuple[HistoryEntry, ...], new: tuple[HistoryEntry, ...]) -> tuple[int, tuple[HistoryEntry, ...]]:
    """Compare histories, which lose entries at the front or middle (all forgotten at once) and gain some at the end."""
    # The longest suffix of the old one that the new one begins with, by identity.
    for gone in range(len(old)):
        kept = len(old) - gone
        if kept <= len(new) and new[0] is old[gone] and new[kept - 1] is old[-1]:
            return gone, new[kept:]
    return len(old), new


def _diff_unsealed(old: UnsealedIndex, new: UnsealedIndex) -> tuple[tuple[int, ...], tuple[UnsealedBatch, ...]]:
    gone, fresh = old.changes(new)
    before = {batch.seqno: batch for batch in gone}
    after = {batch.seqno: batch for batch in fresh}
    removed = tuple(seqno for seqno in before if seqno not in after)
    return removed, tuple(batch for seqno, batch in after.items() if before.get(seqno) is not batch)


def _apply_unsealed(old: UnsealedIndex, removed: Iterable[int], changed: tuple[UnsealedBatch, ...]) -> UnsealedIndex:
    if not removed and changed[0].seqno > (old.last.seqno if old.last else -1):
        return old.extend(changed)
    merged = {batch.seqno: batch for batch in old}
    for seqno in removed:
        if merged.pop(seqno, None) is None:
            raise CorruptionError(f"a diff removes unsealed batch {seqno}, which is not there")
    merged.update((batch.seqno, batch) for batch in changed)
    return UnsealedIndex.of(batch for _, batch in sorted(merged.items()))


def _diff_spine(old: Spine, new: Spine) -> SpineDiff:
    added = _added_leaves(_ropes(old), _ropes(new))
    old_batches, old_merges = headers_of(old)
    new_batches, new_merges = headers_of(new)
    return SpineDiff(
        s=None if old.since == new.since else new.since,
        a={(leaf.lo, leaf.hi): leaf.batch for leaf in added},
        d=tuple(id for id in old_batches if id not in new_batches),
        b={id: batch for id, batch in new_batches.items() if old_batches.get(id) != batch},
        m=_diff_map(old_merges, new_merges),
    )


def _ropes(spine: Spine) -> list[Rope]:
    """Return the ropes of all spine batches, oldest first."""
    return [batch.rope for batch in spine.batches()]


def _added_leaves(old: list[Rope], new: list[Rope]) -> list[Leaf]:
    """Return the leaves that only the new sequence has; the old leaves that they cover are gone.

    Both are walked in order of id. The same object on both sides is skipped whole; otherwise the wider of the two is
    opened. A leaf that is wider than its counterpart replaces it.
    """
    before, after = old[::-1], new[::-1]
    added: list[Leaf] = []
    while before and after:
        a, b = before[-1], after[-1]
        if a is b:
            before.pop()
            after.pop()
        elif isinstance(a, Fork) and (isinstance(b, Leaf) or a.hi - a.lo > b.hi - b.lo):
            before[-1:] = [a.right, a.left]
        elif isinstance(b, Fork):
            after[-1:] = [b.right, b.left]
        else:
            after.pop()
            added.append(b)
            while before and before[-1].hi <= b.hi:
                before.pop()
    for rope in reversed(after):
        added.extend(ropes.leaves(rope))
    return added


def _apply_spine(old: Spine, change: SpineDiff, arity: int) -> Spine:
    batches, merges = headers_of(old)
    for id in change.d:
        if batches.pop(id, None) is None:
            raise CorruptionError(f"a diff removes spine batch {id[0]}-{id[1]}, which is not there")
    batches.update(change.b)
    pieces = _ropes(old)
    for (lo, hi), batch in sorted(change.a.items()):
        if hi <= lo:
            raise CorruptionError(f"a diff adds a hollow batch with the ids {lo}-{hi}")
        pieces = _with_leaf(pieces, ropes.leaf(lo, hi, batch))
    since = old.since if change.s is None else change.s
    return assemble(pieces, since, batches, _apply_map(merges, change.m), arity, old.merging)


def _with_leaf(pieces: list[Rope], leaf: Leaf) -> list[Rope]:
    """Return the ropes with a leaf added at the end, or in place of those that it covers."""
    if not pieces or leaf.lo == pieces[-1].hi:
        return [*pieces, leaf]
    if leaf.lo > pieces[-1].hi:
        raise CorruptionError(f"hollow batch {leaf.lo}-{leaf.hi} leaves a gap after {pieces[-1].hi}")
    kept: list[Rope] = []
    placed = False
    for piece in pieces:
        if piece.hi <= leaf.lo or leaf.hi <= piece.lo:
            kept.append(piece)
            continue
        if leaf.lo <= piece.lo and piece.hi <= leaf.hi:
            replaced: Rope | None = None if placed else leaf
        else:
            replaced = ropes.replace_leaves(piece, leaf)
            if replaced is None:
                raise CorruptionError(f"hollow batch {leaf.lo}-{leaf.hi} does not fit {piece.lo}-{piece.hi}")
        if replaced is not None:
            kept.append(replaced)
            placed = True
    return kept

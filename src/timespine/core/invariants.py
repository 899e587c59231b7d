"""Named predicates over (old state, new state) that every commit must keep.

Each returns None or a sentence. Tests and the simulator run all of them before every compare-and-set; they cost a walk
over the changes, so production does not. The checks assume that the old state is valid: they do not walk an object that
both states share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

from timespine.config import TURN_MS_MAX
from timespine.core.encoding.flat_spine import validate_deep
from timespine.core.state import State, Status
from timespine.core.totals import FIELDS
from timespine.errors import CorruptionError
from timespine.ids import parse_blob_key

Invariant = Callable[[State, State], str | None]


def seqno_is_dense(old: State, new: State) -> str | None:
    """A commit is one sequence number."""
    return None if new.seqno == old.seqno + 1 else f"from state {old.seqno} to {new.seqno}"


def identity_stays(old: State, new: State) -> str | None:
    """A collection keeps its id, the shape of its times and the rule by which it is merged."""
    before = (old.collection, old.arity, old.trace.merging.value)
    after = (new.collection, new.arity, new.trace.merging.value)
    return None if before == after else f"{before} became {after}"


def upper_never_goes_back(old: State, new: State) -> str | None:
    """A time that is complete stays complete."""
    return None if old.upper <= new.upper else f"upper from {old.upper} back to {new.upper}"


def since_never_goes_back(old: State, new: State) -> str | None:
    """History that is forgotten stays forgotten."""
    return None if old.since <= new.since else f"since from {old.since} back to {new.since}"


def since_respects_holds(old: State, new: State) -> str | None:
    """Since is not past any reader or critical hold."""
    if new.readers is old.readers and new.holds is old.holds and new.trace is old.trace:
        return None
    late = [who for who, since in new.holders() if who != "retention" and not new.since <= since]
    return f"since {new.since} is past {late}" if late else None


def since_moves_only_for_retention(old: State, new: State) -> str | None:
    """Since moves only as far as retention allows."""
    if new.since == old.since or new.since <= old.since.join(new.retention):
        return None
    return f"since {new.since} is past what retention {new.retention} allows"


def trace_is_valid(old: State, new: State) -> str | None:
    """Layers, ids and times of the trace fit together."""
    if new.trace is old.trace:
        return None
    try:
        validate_deep(new.trace, new.arity)
    except CorruptionError as error:
        return str(error)
    return None


def trace_is_not_ahead(old: State, new: State) -> str | None:
    """The trace may lag behind the upper, never lead."""
    return None if new.trace.upper <= new.upper else f"trace at {new.trace.upper}, upper {new.upper}"


def trace_never_goes_back(old: State, new: State) -> str | None:
    """Drained updates stay in the trace."""
    return None if old.trace.upper <= new.trace.upper else f"trace from {old.trace.upper} to {new.trace.upper}"


def unsealed_numbers_increase(old: State, new: State) -> str | None:
    """Unsealed batches are in order of their number, below the next one, which never goes back."""
    if new.unsealed is old.unsealed and new.unsealed_next == old.unsealed_next:
        return None
    numbers = [batch.seqno for batch in new.unsealed]
    increasing = all(a < b for a, b in pairwise([*numbers, new.unsealed_next]))
    return None if increasing and old.unsealed_next <= new.unsealed_next else f"unsealed numbers {numbers}"


def unsealed_goes_only_when_drained(old: State, new: State) -> str | None:
    """An unsealed batch disappears only when all of it is in the trace (or the collection is finalized)."""
    if new.unsealed is old.unsealed:
        return None
    kept = {batch.seqno for batch in new.unsealed}
    lost = [b.seqno for b in old.unsealed if b.seqno not in kept and not b.is_wholly_below(new.trace.upper)]
    return f"unsealed {lost} lost" if lost and new.status is Status.OPEN else None


def groups_never_go_back(old: State, new: State) -> str | None:
    """A committer's number only grows."""
    return _never_back(
        {id: each.group for id, each in old.committers.items()}, {id: each.group for id, each in new.committers.items()}
    )


def sinks_never_go_back(old: State, new: State) -> str | None:
    """A sink's batch number only grows."""
    return _never_back(old.sinks, new.sinks)


def reader_seqnos_never_go_back(old: State, new: State) -> str | None:
    """A reader holds no state that it had released, and none from the future."""
    if new.readers is old.readers:
        return None
    ahead = [id for id, reader in new.readers.items() if reader.seqno > new.seqno]
    if ahead:
        return f"readers {ahead} hold states from the future"
    return _never_back(
        {id: each.seqno for id, each in old.readers.items()}, {id: each.seqno for id, each in new.readers.items()}
    )


def new_blobs_have_writers(old: State, new: State) -> str | None:
    """A blob with its first reference belongs to this collection and a registered writer."""
    if new.trace is old.trace and new.unsealed is old.unsealed and new.rollups is old.rollups:
        return None
    before = set(old.keys())
    for key in set(new.keys()) - before:
        collection, writer, _ = parse_blob_key(key)
        if collection != new.collection or writer not in old.writers.keys() | new.writers.keys():
            return f"blob {key} has no registered writer"
    return None


def inline_bytes_add_up(old: State, new: State) -> str | None:
    """The counted inline bytes are those of the parts."""
    if new.trace is old.trace and new.unsealed is old.unsealed and new.inline_bytes == old.inline_bytes:
        return None
    actual = sum(len(part.inline) for part in new.parts() if part.inline is not None)
    return None if new.inline_bytes == actual else f"{new.inline_bytes} inline bytes counted, {actual} there"


def rollups_are_of_the_past(old: State, new: State) -> str | None:
    """A rollup holds an earlier state than the one that records it."""
    ahead = [seqno for seqno in new.rollups if seqno >= new.seqno]
    return f"rollups {ahead} at state {new.seqno}" if ahead else None


def last_needed_rollup_stays(old: State, new: State) -> str | None:
    """The newest rollup that a held state may need is kept."""
    needed = max((seqno for seqno in old.rollups if seqno <= old.seqno_since), default=None)
    return f"rollup {needed} was dropped" if needed is not None and needed not in new.rollups else None


def claims_are_on_fueled_batches(old: State, new: State) -> str | None:
    """A claim is on a batch that waits to be merged."""
    if not new.claims:
        return None
    fueled = {batch.id for batch in new.trace.batches() if batch.fueled}
    idle = [id for id in new.claims if id not in fueled]
    return f"claims {idle} on nothing" if idle else None


def totals_never_go_back(old: State, new: State) -> str | None:
    """Totals only grow, and collected bytes were dropped before."""
    if new.totals is old.totals:
        return None
    back = [name for name in FIELDS if getattr(new.totals, name) < getattr(old.totals, name)]
    if back or new.totals.collected_bytes > new.totals.dropped_bytes:
        return f"{back} went back, or {new.totals.collected_bytes} bytes of {new.totals.dropped_bytes} were collected"
    return None


def extra_work_is_within_its_budget(old: State, new: State) -> str | None:
    """Maintenance writes no more on its own account than was appended."""
    over = new.totals.extra_rows > new.totals.appended_rows
    return f"{new.totals.extra_rows} extra for {new.totals.appended_rows} appended" if over else None


def turns_are_short_and_do_not_overlap(old: State, new: State) -> str | None:
    """A turn goes to a registered writer for a bounded time, and only after the one before it is over."""
    turn, before = new.turn, old.turn
    if turn == before or turn is None or not turn.writer:
        return None
    if turn.writer not in new.writers or not 0 < turn.until_ms - turn.from_ms <= TURN_MS_MAX:
        return f"{turn} is too long, or its writer is not registered"
    if before is None or before.writer not in old.writers:
        return None
    is_over = not 2 * before.from_ms - before.until_ms <= turn.from_ms < before.until_ms
    return None if is_over else f"{turn} begins in {before}"


def schemas_only_grow(old: State, new: State) -> str | None:
    """A schema never changes under its id."""
    kept = new.schemas[: len(old.schemas)] == old.schemas or new.status is Status.FINALIZED
    return None if kept else "schemas changed"


def finalized_stays_finalized(old: State, new: State) -> str | None:
    """A finalized collection stays finalized, and empty."""
    if old.status is not Status.FINALIZED:
        return None
    empty = new.status is Status.FINALIZED and new.trace.update_count == 0 and not len(new.unsealed)
    return None if empty else "a tombstone came back to life"


def _never_back(old: Mapping[str, int], new: Mapping[str, int]) -> str | None:
    back = [id for id, number in old.items() if id in new and new[id] < number]
    return f"{back} went back" if back else None


INVARIANTS: tuple[Invariant, ...] = (
    seqno_is_dense,
    identity_stays,
    upper_never_goes_back,
    since_never_goes_back,
    since_respects_holds,
    since_moves_only_for_retention,
    trace_is_valid,
    trace_is_not_ahead,
    trace_never_goes_back,
    unsealed_numbers_increase,
    unsealed_goes_only_when_drained,
    groups_never_go_back,
    sinks_never_go_back,
    reader_seqnos_never_go_back,
    new_blobs_have_writers,
    inline_bytes_add_up,
    rollups_are_of_the_past,
    last_needed_rollup_stays,
    claims_are_on_fueled_batches,
    totals_never_go_back,
    extra_work_is_within_its_budget,
    turns_are_short_and_do_not_overlap,
    schemas_only_grow,
    finalized_stays_finalized,
)


def violations(old: State, new: State) -> list[str]:
    """List every invariant that a commit from `old` to `new` would break, by name."""
    broken = [(each, each(old, new)) for each in INVARIANTS]
    return [f"{each.__name__}: {why}" for each, why in broken if why is not None]

"""States and diffs as bytes, and back with every check.

An entry is an envelope (core/envelope.py) and a MessagePack payload. What comes back is not trusted: a wrong type or
range is a CorruptionError.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec

from timespine.core.batch import Count, Part
from timespine.core.encoding.flat_spine import FlatSpine, Id, flatten, unflatten, validate_deep
from timespine.core.encoding.state_diff import StateDiff
from timespine.core.encoding.validate import check_frontiers, check_history, check_holders, check_parts, check_unsealed
from timespine.core.envelope import Kind, decode_payload, seal, unseal
from timespine.core.spine.layers import Merging
from timespine.core.state import (
    Claim,
    Committer,
    Forgetting,
    HistoryEntry,
    Hold,
    Lease,
    Reader,
    Rollup,
    State,
    Status,
    Turn,
)
from timespine.core.totals import NOTHING, Totals
from timespine.core.unsealed_index import Forest, UnsealedBatch
from timespine.errors import CorruptionError, UsageError
from timespine.ids import check_segment
from timespine.model.frontier import Frontier
from timespine.model.time import check_arity


class StateImage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A whole state as it is stored."""

    collection: str
    arity: int
    seqno: Count
    upper: Frontier
    trace: FlatSpine
    retention: Frontier
    unsealed: tuple[UnsealedBatch, ...] = ()
    unsealed_next: Count = 0
    readers: dict[str, Reader] = {}
    holds: dict[str, Hold] = {}
    writers: dict[str, Lease] = {}
    committers: dict[str, Committer] = {}
    sinks: dict[str, int] = {}
    schemas: tuple[bytes, ...] = ()
    rollups: dict[int, Rollup] = {}
    claims: dict[Id, Claim] = {}
    history: tuple[HistoryEntry, ...] = ()
    inline_bytes: Count = 0
    totals: Totals = NOTHING
    forgetting: Forgetting | None = None
    status: Status = Status.OPEN
    turn: Turn | None = None
    merging: Merging = Merging.FUELED


PLAIN = tuple(name for name in StateImage.__struct_fields__ if name not in ("trace", "unsealed", "merging"))
"""The fields that are stored as they are."""

_encoder = msgspec.msgpack.Encoder()
_diff_decoder = msgspec.msgpack.Decoder(StateDiff)
_state_decoder = msgspec.msgpack.Decoder(StateImage)
_run_decoder = msgspec.msgpack.Decoder(tuple[str, tuple[Part, ...]])


def encode_diff(change: StateDiff) -> bytes:
    """A diff as an entry."""
    return seal(Kind.DIFF, _encoder.encode(change))


def decode_diff(data: bytes) -> StateDiff:
    """The diff in an entry."""
    return decode_payload(_diff_decoder, unseal(Kind.DIFF, data))


def encode_state(state: State) -> bytes:
    """A whole state as an entry or a rollup."""
    image = StateImage(
        **{name: getattr(state, name) for name in PLAIN},
        trace=flatten(state.trace),
        unsealed=tuple(state.unsealed),
        merging=state.trace.merging,
    )
    return seal(Kind.STATE, _encoder.encode(image))


def decode_state(data: bytes) -> State:
    """The whole state in an entry or a rollup, put together again and validated."""
    image = decode_payload(_state_decoder, unseal(Kind.STATE, data))
    try:
        check_segment(image.collection, "collection id")
        arity = check_arity(image.arity)
        check_frontiers((image.upper, image.retention), arity)
        check_holders(image.readers.values(), arity)
        check_holders(image.holds.values(), arity)
        check_unsealed(image.unsealed, arity)
        check_history(image.history, arity)
        check_parts((part for batch in image.trace.hollow.values() for part in batch.parts), arity)
        trace = unflatten(image.trace, arity, image.merging)
        validate_deep(trace, arity)
    except UsageError as error:
        raise CorruptionError(f"a stored state does not make sense: {error}") from error
    if not trace.upper <= image.upper:
        raise CorruptionError(f"a stored trace is at {trace.upper}, past the upper {image.upper}")
    numbers = [batch.seqno for batch in image.unsealed]
    if any(a >= b for a, b in pairwise([*numbers, image.unsealed_next])):
        raise CorruptionError(f"stored unsealed batches {numbers} are not in order below {image.unsealed_next}")
    state = State(**{name: getattr(image, name) for name in PLAIN}, trace=trace, unsealed=Forest.of(image.unsealed))
    inline = sum(len(part.inline) for part in state.parts() if part.inline is not None)
    if inline != state.inline_bytes:
        raise CorruptionError(f"a stored state counts {state.inline_bytes} inline bytes and has {inline}")
    return state


def encode_run(key: str, parts: tuple[Part, ...]) -> bytes:
    """The parts of a hollow run as a blob, which says under which key it is put."""
    return seal(Kind.RUN, _encoder.encode((key, parts)))


def decode_run(key: str, data: bytes) -> tuple[Part, ...]:
    """The parts in the blob of a hollow run that was read from this key."""
    said, parts = decode_payload(_run_decoder, unseal(Kind.RUN, data))
    if said != key:
        raise CorruptionError(f"the hollow run at {key} says that it is {said:.200}")
    return parts

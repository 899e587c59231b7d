"""States and diffs as bytes, and back with every check.

An entry is an envelope (core/encoding/envelope.py) and a MessagePack payload. The decoder does not trust stored bytes:
a wrong type or range is a CorruptionError.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec

from timespine.core.batch import Part
from timespine.core.encoding.envelope import EnvelopeKind, decode_payload, unwrap_payload, wrap_payload
from timespine.core.encoding.flat_spine import FlatSpine, flatten, unflatten, validate_deep
from timespine.core.encoding.state_diff import StateDiff
from timespine.core.encoding.validate import check_frontiers, check_history, check_holders, check_hollow, check_unsealed
from timespine.core.spine.layers import MergePolicyKind
from timespine.core.state import Fields, State
from timespine.core.unsealed_index import UnsealedBatch, UnsealedIndex
from timespine.errors import CorruptionError, UsageError
from timespine.ids import check_segment
from timespine.model.time import check_arity


class StateImage(Fields, frozen=True, omit_defaults=True, kw_only=True):
    """A whole state as it is stored."""

    trace: FlatSpine
    unsealed: tuple[UnsealedBatch, ...] = ()
    merging: MergePolicyKind = MergePolicyKind.FUELED


_encoder = msgspec.msgpack.Encoder()
_diff_decoder = msgspec.msgpack.Decoder(StateDiff)
_state_decoder = msgspec.msgpack.Decoder(StateImage)
_run_decoder = msgspec.msgpack.Decoder(tuple[str, tuple[Part, ...]])


def encode_diff(change: StateDiff) -> bytes:
    """Encode a diff as an entry."""
    return wrap_payload(EnvelopeKind.DIFF, _encoder.encode(change))


def decode_diff(data: bytes) -> StateDiff:
    """Decode the diff in an entry."""
    return decode_payload(_diff_decoder, unwrap_payload(EnvelopeKind.DIFF, data))


def image_of(state: State) -> StateImage:
    """Return the stored form of a state."""
    fields = {name: getattr(state, name) for name in Fields.__struct_fields__}
    return StateImage(**fields, trace=flatten(state.trace), unsealed=tuple(state.unsealed), merging=state.trace.merging)


def encode_state(state: State) -> bytes:
    """Encode a whole state as an entry or a rollup."""
    return wrap_payload(EnvelopeKind.STATE, _encoder.encode(image_of(state)))


def decode_state(data: bytes) -> State:
    """Decode and validate the whole state in an entry or a rollup."""
    image = decode_payload(_state_decoder, unwrap_payload(EnvelopeKind.STATE, data))
    try:
        check_segment(image.collection, "collection id")
        arity = check_arity(image.arity)
        check_frontiers((image.upper, image.retention), arity)
        check_holders(image.readers.values(), arity)
        check_holders(image.holds.values(), arity)
        check_unsealed(image.unsealed, arity)
        check_history(image.history, arity)
        check_hollow(image.trace.hollow.values(), arity)
        trace = unflatten(image.trace, arity, image.merging)
        validate_deep(trace, arity)
    except UsageError as error:
        raise CorruptionError(f"a stored state is inconsistent: {error}") from error
    if not trace.upper <= image.upper:
        raise CorruptionError(f"a stored trace is at {trace.upper}, past the upper {image.upper}")
    numbers = [batch.seqno for batch in image.unsealed]
    if any(a >= b for a, b in pairwise([*numbers, image.unsealed_next])):
        raise CorruptionError(f"stored unsealed batches {numbers} are not in order below {image.unsealed_next}")
    fields = {name: getattr(image, name) for name in Fields.__struct_fields__}
    state = State(**fields, trace=trace, unsealed=UnsealedIndex.of(image.unsealed))
    inline = sum(len(part.inline) for part in state.parts() if part.inline is not None)
    if inline != state.inline_bytes:
        raise CorruptionError(f"a stored state counts {state.inline_bytes} inline bytes and has {inline}")
    return state


def encode_run(key: str, parts: tuple[Part, ...]) -> bytes:
    """Encode the parts of a hollow run as a blob, with the key of the blob inside."""
    return wrap_payload(EnvelopeKind.RUN, _encoder.encode((key, parts)))


def decode_run(key: str, data: bytes) -> tuple[Part, ...]:
    """Decode the parts in the blob of a hollow run that was read from this key."""
    said, parts = decode_payload(_run_decoder, unwrap_payload(EnvelopeKind.RUN, data))
    if said != key:
        raise CorruptionError(f"the hollow run at {key} says that it is {said:.200}")
    return parts

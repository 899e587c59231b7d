"""States and diffs as bytes, and back with every check.

An entry is an envelope and a MessagePack payload (docs/format/entry.md):

    "TS"  kind (1 byte)  version (1 byte)  CRC-32 of all other bytes (4 bytes, big-endian)  payload

What comes back is not trusted: wrong length, checksum, kind, type or range is a
CorruptionError; a version from the future is a VersionError. The checksum is
looked at before the version, so that a flipped bit is not taken for the future.
"""

from __future__ import annotations

import enum
import zlib
from itertools import pairwise
from typing import TypeVar

import msgspec

from timespine.core.diff import StateDiff
from timespine.core.flat import FlatSpine, Id, flatten, unflatten, validate_deep
from timespine.core.forest import Forest, UnsealedBatch
from timespine.core.hollow import Count, Part
from timespine.core.layers import Merging
from timespine.core.shape import check_frontiers, check_history, check_holders, check_parts, check_unsealed
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
from timespine.errors import CorruptionError, UsageError, VersionError
from timespine.ids import check_segment
from timespine.model.frontier import Frontier
from timespine.model.time import check_arity

VERSION = 1
"""The version of the payloads that this code writes, and the newest that it reads."""

ENTRY_BYTES_MAX = 64 << 20
"""An entry larger than this is neither written nor read."""

STATE_BYTES_MAX = 1 << 30
"""A rollup larger than this is neither written nor read."""

MAGIC = b"TS"
HEADER = 8


class Kind(enum.IntEnum):
    """What the payload of an envelope is."""

    STATE = 1
    """A whole state: the first entry of a log, or a rollup."""
    DIFF = 2
    """The difference to the state before."""
    RUN = 3
    """A hollow run: a list of parts."""


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

T = TypeVar("T")


def encode_diff(change: StateDiff) -> bytes:
    """A diff as an entry."""
    return _seal(Kind.DIFF, _encoder.encode(change), ENTRY_BYTES_MAX)


def decode_diff(data: bytes) -> StateDiff:
    """The diff in an entry."""
    return _decoded(_diff_decoder, _open(data, Kind.DIFF, ENTRY_BYTES_MAX))


def encode_state(state: State) -> bytes:
    """A whole state as an entry or a rollup."""
    image = StateImage(
        **{name: getattr(state, name) for name in PLAIN},
        trace=flatten(state.trace),
        unsealed=tuple(state.unsealed),
        merging=state.trace.merging,
    )
    return _seal(Kind.STATE, _encoder.encode(image), STATE_BYTES_MAX)


def decode_state(data: bytes) -> State:
    """The whole state in an entry or a rollup, put together again and validated."""
    image = _decoded(_state_decoder, _open(data, Kind.STATE, STATE_BYTES_MAX))
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
    return _seal(Kind.RUN, _encoder.encode((key, parts)), ENTRY_BYTES_MAX)


def decode_run(key: str, data: bytes) -> tuple[Part, ...]:
    """The parts in the blob of a hollow run that was read from this key."""
    said, parts = _decoded(_run_decoder, _open(data, Kind.RUN, ENTRY_BYTES_MAX))
    if said != key:
        raise CorruptionError(f"the hollow run at {key} says that it is {said:.200}")
    return parts


def kind_of(data: bytes) -> Kind:
    """What an entry holds, without decoding it."""
    try:
        return Kind(data[2])
    except (ValueError, IndexError, TypeError):
        raise CorruptionError("a stored entry is neither a state nor a diff") from None


def _seal(kind: Kind, payload: bytes, limit: int) -> bytes:
    if len(payload) + HEADER > limit:
        raise UsageError(f"{kind.name.lower()} of {len(payload)} bytes is over the limit of {limit}")
    head = MAGIC + bytes((kind, VERSION))
    checksum = zlib.crc32(payload, zlib.crc32(head))
    return head + checksum.to_bytes(4, "big") + payload


def _open(data: bytes, kind: Kind, limit: int) -> memoryview:
    """The payload of an envelope that is whole and of the right kind."""
    if not isinstance(data, bytes):
        raise UsageError(f"{type(data).__name__} is not bytes to decode")
    if not HEADER <= len(data) <= limit:
        raise CorruptionError(f"a stored {kind.name.lower()} has {len(data)} bytes: truncated or too large")
    if data[:2] != MAGIC:
        raise CorruptionError(f"a stored {kind.name.lower()} does not begin as one")
    view = memoryview(data)
    if zlib.crc32(view[HEADER:], zlib.crc32(view[:4])) != int.from_bytes(data[4:8], "big"):
        raise CorruptionError(f"the checksum of a stored {kind.name.lower()} does not match")
    if data[3] > VERSION:
        raise VersionError(f"a stored {kind.name.lower()} has version {data[3]}, this is {VERSION}: upgrade to read it")
    if data[3] < 1 or data[2] != kind:
        raise CorruptionError(
            f"a stored entry of kind {data[2]}, version {data[3]} where a {kind.name.lower()} should be"
        )
    return view[HEADER:]


def _decoded(decoder: msgspec.msgpack.Decoder[T], payload: memoryview) -> T:
    try:
        return decoder.decode(payload)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise CorruptionError(f"stored bytes do not decode: {error}") from error

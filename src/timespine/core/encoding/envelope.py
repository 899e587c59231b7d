"""The envelope around everything that is stored or sent as MessagePack (docs/format/entry.md):

    "TS"  kind (1 byte)  version (1 byte)  CRC-32 of all other bytes (4 bytes, big-endian)  payload

A reader trusts nothing: a wrong length, checksum or kind is a CorruptionError, a version from the future is a
VersionError. The reader checks the checksum before the version, so that a flipped bit is not taken for the future.
"""

from __future__ import annotations

import enum
import zlib
from typing import TypeVar

import msgspec

from timespine.errors import CorruptionError, UsageError, VersionError

VERSION = 1
"""The version of the payloads that this code writes, and the newest that it reads, unless `NEWEST` names another."""

ENTRY_BYTES_MAX = 64 << 20
"""The largest entry of a log that this code writes or reads. `location.consensus` states it again: neither of the two
layers may import the other. `tests/test_names.py` compares them."""

STATE_BYTES_MAX = 1 << 30
"""The largest rollup that this code writes or reads."""

MAGIC = b"TS"
HEADER = 8

T = TypeVar("T")


class EnvelopeKind(enum.IntEnum):
    """The kind of payload in an envelope."""

    STATE = 1
    """A whole state: the first entry of a log, or a rollup."""
    DIFF = 2
    """The difference to the state before."""
    RUN = 3
    """A hollow run: a list of parts."""
    BATCH = 4
    """A batch that a process sends to the one that commits it."""
    CATALOG = 5
    """The catalog of a store."""
    SORTED_BATCH = 6
    """The footer of a file of an arrangement."""
    CHECKPOINT = 7
    """The manifest of a checkpoint of an arrangement."""
    APPEND_REQUEST = 8
    """Small appends that a process sends to the one that commits them."""
    APPEND_REPLY = 9
    """What became of them."""


KINDS = {kind.value: kind for kind in EnvelopeKind}
"""The kinds by their byte."""

BYTES_MAX = {kind: STATE_BYTES_MAX if kind is EnvelopeKind.STATE else ENTRY_BYTES_MAX for kind in EnvelopeKind}
"""The most bytes of an envelope, its header included."""


NEWEST = {EnvelopeKind.CATALOG: 3}
"""The newest versions that this code reads, of kinds that have several."""


def wrap_payload(kind: EnvelopeKind, payload: bytes, version: int | None = None) -> bytes:
    """Put a payload into an envelope, of the usual version unless another is given."""
    limit = BYTES_MAX[kind]
    if len(payload) + HEADER > limit:
        raise UsageError(f"{kind.name.lower()} of {len(payload)} bytes is over the limit of {limit}")
    head = MAGIC + bytes((kind, VERSION if version is None else version))
    checksum = zlib.crc32(payload, zlib.crc32(head))
    return head + checksum.to_bytes(4, "big") + payload


def unwrap_payload(kind: EnvelopeKind, data: bytes) -> memoryview:
    """Return the payload of an envelope that is whole and of the right kind."""
    if not isinstance(data, bytes):
        raise UsageError(f"{type(data).__name__} is not bytes to decode")
    if not HEADER <= len(data) <= BYTES_MAX[kind]:
        raise CorruptionError(f"a stored {kind.name.lower()} has {len(data)} bytes: truncated or too large")
    if data[:2] != MAGIC:
        raise CorruptionError(f"a stored {kind.name.lower()} does not begin as one")
    view = memoryview(data)
    if zlib.crc32(view[HEADER:], zlib.crc32(view[:4])) != int.from_bytes(data[4:8], "big"):
        raise CorruptionError(f"the checksum of a stored {kind.name.lower()} does not match")
    newest = NEWEST.get(kind, VERSION)
    if data[3] > newest:
        raise VersionError(f"a stored {kind.name.lower()} has version {data[3]}, this is {newest}: upgrade to read it")
    if data[3] < 1 or data[2] != kind:
        raise CorruptionError(
            f"a stored entry of kind {data[2]}, version {data[3]} where a {kind.name.lower()} should be"
        )
    return view[HEADER:]


def decode_payload(decoder: msgspec.msgpack.Decoder[T], payload: memoryview) -> T:
    """Decode a payload; raise CorruptionError if it is not what the decoder expects."""
    try:
        return decoder.decode(payload)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise CorruptionError(f"stored bytes do not decode: {error}") from error


def envelope_kind(data: bytes) -> EnvelopeKind:
    """Return the kind of an envelope, without decoding it."""
    try:
        return KINDS[data[2]]
    except (KeyError, IndexError, TypeError):
        raise CorruptionError("a stored entry is neither a state nor a diff") from None

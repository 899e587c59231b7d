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
"""The version of the payloads that this code writes, and the newest that it reads."""

ENTRY_BYTES_MAX = 64 << 20
"""An entry of a log larger than this is neither written nor read."""

STATE_BYTES_MAX = 1 << 30
"""A rollup larger than this is neither written nor read."""

MAGIC = b"TS"
HEADER = 8

T = TypeVar("T")


class Kind(enum.IntEnum):
    """What the payload of an envelope is."""

    STATE = 1
    """A whole state: the first entry of a log, or a rollup."""
    DIFF = 2
    """The difference to the state before."""
    RUN = 3
    """A hollow run: a list of parts."""
    BATCH = 4
    """A batch on its way to the process that commits it."""
    CATALOG = 5
    """The names of a store."""


BYTES_MAX = {kind: STATE_BYTES_MAX if kind is Kind.STATE else ENTRY_BYTES_MAX for kind in Kind}
"""Bytes of an envelope at most, its header included."""


def seal(kind: Kind, payload: bytes) -> bytes:
    """Put a payload into an envelope."""
    limit = BYTES_MAX[kind]
    if len(payload) + HEADER > limit:
        raise UsageError(f"{kind.name.lower()} of {len(payload)} bytes is over the limit of {limit}")
    head = MAGIC + bytes((kind, VERSION))
    checksum = zlib.crc32(payload, zlib.crc32(head))
    return head + checksum.to_bytes(4, "big") + payload


def unseal(kind: Kind, data: bytes) -> memoryview:
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
    if data[3] > VERSION:
        raise VersionError(f"a stored {kind.name.lower()} has version {data[3]}, this is {VERSION}: upgrade to read it")
    if data[3] < 1 or data[2] != kind:
        raise CorruptionError(
            f"a stored entry of kind {data[2]}, version {data[3]} where a {kind.name.lower()} should be"
        )
    return view[HEADER:]


def decode_payload(decoder: msgspec.msgpack.Decoder[T], payload: memoryview) -> T:
    """Decode a payload; a CorruptionError if it is not what the decoder expects."""
    try:
        return decoder.decode(payload)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise CorruptionError(f"stored bytes do not decode: {error}") from error


def kind_of(data: bytes) -> Kind:
    """Return what an envelope holds, without decoding it."""
    try:
        return Kind(data[2])
    except (ValueError, IndexError, TypeError):
        raise CorruptionError("a stored entry is neither a state nor a diff") from None

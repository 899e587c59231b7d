"""The descriptor of a store in a bucket: the object `timespine.json`, which names the store and its consensus."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec

from timespine.errors import CorruptionError, UsageError, VersionError
from timespine.location.opening.consensus_address import BUCKET, ConsensusAddress, parse_consensus

NAME = "timespine.json"
"""The name of the descriptor, below the prefix of the store."""

VERSION = 1
"""The version of the descriptor that this code writes, and the newest that it reads."""

BYTES_MAX = 1 << 16
"""Bytes of a descriptor, at most."""

BLOBS = "blobs/"
"""Where blobs lie, below the prefix of the store."""


class _Consensus(msgspec.Struct, forbid_unknown_fields=True):
    kind: str
    at: str


class _Stored(msgspec.Struct, forbid_unknown_fields=True):
    timespine: int
    store: str
    epoch: int
    created_ms: int
    blobs: str
    consensus: _Consensus


class Descriptor(msgspec.Struct, frozen=True):
    """What a store in a bucket says of itself."""

    store: str
    """The id of the store, a UUID."""
    consensus: ConsensusAddress
    """Where its logs are, without user name and password."""
    created_ms: int
    """When it was made."""
    epoch: int | None = 0
    """A number that a restore raises: processes of an earlier epoch are fenced. None, which is never stored: the one
    that the logs have."""

    def encode(self) -> bytes:
        """Encode the descriptor as JSON, for people too."""
        at = _Consensus(self.consensus.kind, self.consensus.at)
        stored = _Stored(VERSION, self.store, self.epoch or 0, self.created_ms, BLOBS, at)
        return msgspec.json.format(msgspec.json.encode(stored), indent=2) + b"\n"


def decode_descriptor(data: bytes, location: str) -> Descriptor:
    """Decode a descriptor that came from storage."""
    if len(data) > BYTES_MAX:
        raise CorruptionError(f"{NAME} in {location} has {len(data)} bytes, more than {BYTES_MAX}")
    try:
        version = msgspec.json.decode(data, type=dict[str, Any]).get("timespine")
        if isinstance(version, int) and version > VERSION:
            raise VersionError(f"{NAME} in {location} is of version {version}: this version reads {VERSION}")
        stored = msgspec.json.decode(data, type=_Stored)
        if str(uuid.UUID(stored.store)) != stored.store or stored.epoch < 0 or stored.blobs != BLOBS:
            raise ValueError("a field is out of its range")
        address = parse_stored_address(stored.consensus)
    except (msgspec.MsgspecError, ValueError) as error:
        raise CorruptionError(
            f"{NAME} in {location} is not the descriptor of a store ({type(error).__name__}): restore it from a copy"
        ) from None
    return Descriptor(stored.store, address, stored.created_ms, stored.epoch)


def parse_stored_address(stored: _Consensus) -> ConsensusAddress:
    """Parse the address in a descriptor; raise ValueError unless it is in canonical form."""
    address = parse_consensus(BUCKET if stored.kind == BUCKET else stored.at)
    if (address.kind, address.at, address.user) != (stored.kind, stored.at, ""):
        raise UsageError("the address is not canonical")
    return address

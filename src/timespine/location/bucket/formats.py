"""The objects of a bucket as bytes, and back with every check (docs/format/bucket.md).

    "TB"  kind (1 byte)  version (1 byte)  CRC-32 of these 4 bytes, the object's name, the payload (4 bytes)  payload

The checksum covers the name, so that it finds an object under a wrong name. A reader trusts nothing: a wrong length,
checksum, kind or value is a CorruptionError, a version from the future a VersionError.
"""

from __future__ import annotations

import zlib
from itertools import pairwise
from typing import Annotated, NamedTuple, TypeVar

import msgspec

from timespine.errors import CorruptionError, VersionError
from timespine.ids import is_segment
from timespine.location.consensus import WRITES_MAX, LogWrite

VERSION = 2
"""The newest version of objects that this code reads, and the version of slots that remove logs."""

FIRST_VERSION = 1
"""The version of all other objects that this code writes: older code reads them."""

MAGIC = b"TB"
HEADER = 8
"""Bytes before the payload."""

SLOT, INDEX, PACK, BASE = b"LIPB"
"""The kinds of objects."""

ID_BYTES = 16
"""Bytes of the id of a write."""

FRAME = 4 + ID_BYTES
"""Bytes of an entry in a pack beside its data: checksum and id of the write."""

BASE_NAME = "base"
LOG_PREFIX = "log/"
INDEX_PREFIX = "index/"
PACK_PREFIX = "pack/"

NonNegativeInt64 = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
CallId = Annotated[bytes, msgspec.Meta(min_length=ID_BYTES, max_length=ID_BYTES)]
LogKey = Annotated[str, msgspec.Meta(max_length=64)]

T = TypeVar("T")


class WriteGroup(msgspec.Struct, frozen=True, array_like=True):
    """One compare-and-set, or one truncation, all or nothing."""

    id: CallId
    """The id of the call: the same in every slot that the call tries."""
    writes: tuple[tuple[LogKey, NonNegativeInt64 | None, bytes], ...]
    """Key, expected head and data of each write."""
    cuts: tuple[tuple[LogKey, NonNegativeInt64], ...] = ()
    """Keys and the number below which their entries are dropped."""
    gone: tuple[tuple[LogKey, NonNegativeInt64], ...] = ()
    """Keys whose logs are removed, each with the head that it must have."""

    @property
    def log_writes(self) -> list[LogWrite]:
        """The writes as the port has them."""
        return [LogWrite(*write) for write in self.writes]


class SlotEntry(NamedTuple):
    """One slot of the log of the bucket."""

    slot: int
    """Its number, from 1 on."""
    previous: int
    """The checksum of the slot before it."""
    groups: tuple[WriteGroup, ...]
    """The compare-and-sets in it: no two write the same key."""
    checksum: int
    """The checksum of this slot."""


class PackStretch(msgspec.Struct, frozen=True, array_like=True):
    """Entries of one log that lie one after the other in a pack."""

    pack: Annotated[str, msgspec.Meta(max_length=100)]
    """The name of the pack."""
    seqno: NonNegativeInt64
    """The number of the first entry."""
    offset: NonNegativeInt64
    """Where the first entry begins in the pack."""
    lengths: Annotated[tuple[Annotated[int, msgspec.Meta(ge=FRAME)], ...], msgspec.Meta(min_length=1)]
    """The bytes of each entry, with its frame."""

    @property
    def stop(self) -> int:
        """The number after the last entry."""
        return self.seqno + len(self.lengths)

    def part(self, start: int, stop: int) -> PackStretch:
        """Return the stretch of the entries [start, stop), which must be inside of it."""
        before = start - self.seqno
        offset = self.offset + sum(self.lengths[:before])
        return PackStretch(self.pack, start, offset, self.lengths[before : stop - self.seqno])


class LogIndex(msgspec.Struct, frozen=True, array_like=True):
    """All logs as of a slot."""

    slot: NonNegativeInt64
    """The slot."""
    checksum: NonNegativeInt64
    """The checksum of that slot."""
    logs: dict[str, tuple[PackStretch, ...]]
    """Per key the stretches of its live entries, oldest first, without gaps."""
    packs: dict[str, NonNegativeInt64]
    """The size of every pack that has a live entry."""


class Base(msgspec.Struct, frozen=True, array_like=True):
    """The one object that is replaced: where readers begin, and which slots are dead."""

    slot: NonNegativeInt64 = 0
    """The slot of the newest checkpoint; 0 before the first one."""
    index: Annotated[str, msgspec.Meta(max_length=100)] = ""
    """The name of its index; empty before the first one."""
    dead: NonNegativeInt64 = 0
    """Slots up to here are dead: they may be gone, and what is put there does not count."""


_encoder = msgspec.msgpack.Encoder()
_slot_decoder = msgspec.msgpack.Decoder(tuple[NonNegativeInt64, NonNegativeInt64, tuple[WriteGroup, ...]])
_index_decoder = msgspec.msgpack.Decoder(LogIndex)
_base_decoder = msgspec.msgpack.Decoder(Base)


def slot_name(slot: int) -> str:
    """Return the name of a slot."""
    return f"{LOG_PREFIX}{slot:016d}"


def fresh_name(prefix: str, slot: int, id: bytes, number: int = 0) -> str:
    """Return the name of an index or a pack of a checkpoint at a slot."""
    return f"{prefix}{slot:016d}-{id.hex()}-{number}"


def slot_of(name: str) -> int | None:
    """Return the slot in the name of a slot, an index or a pack; None for any other name."""
    digits = name.rpartition("/")[2][:16]
    return int(digits) if len(digits) == 16 and digits.isascii() and digits.isdigit() else None


def encode_slot(slot: int, previous: int, groups: tuple[WriteGroup, ...]) -> bytes:
    """Encode a slot."""
    version = VERSION if any(group.gone for group in groups) else None
    return _wrap(SLOT, slot_name(slot), _encoder.encode((slot, previous, groups)), version)


def decode_slot(slot: int, data: bytes) -> SlotEntry:
    """Decode the object that was read as a slot."""
    said, previous, groups = _decode(_slot_decoder, SLOT, slot_name(slot), data)
    keys = [write[0] for group in groups for write in group.writes]
    cuts = [cut[0] for group in groups for cut in (*group.cuts, *group.gone)]
    if said != slot or not groups or len(set(keys)) != len(keys) or not all(map(is_segment, {*keys, *cuts})):
        raise CorruptionError(f"the slot {slot} of the log is not one that a writer puts")
    if len(keys) > WRITES_MAX or any(not (group.writes or group.cuts or group.gone) for group in groups):
        raise CorruptionError(f"the slot {slot} of the log has {len(keys)} writes, or a group without any")
    return SlotEntry(slot, previous, groups, checksum_of(data))


def checksum_of(data: bytes) -> int:
    """Return the checksum in the header of an object."""
    return int.from_bytes(data[4:HEADER], "big")


def encode_index(name: str, index: LogIndex) -> bytes:
    """Encode the index of a checkpoint."""
    return _wrap(INDEX, name, _encoder.encode(index))


def decode_index(name: str, data: bytes) -> LogIndex:
    """Decode the index of a checkpoint."""
    index = _decode(_index_decoder, INDEX, name, data)
    for key, stretches in index.logs.items():
        is_dense = all(a.stop == b.seqno for a, b in pairwise(stretches))
        if not is_segment(key) or not stretches or not is_dense:
            raise CorruptionError(f"{name} has a log with gaps, or with a wrong key")
        if any(each.offset + sum(each.lengths) > index.packs.get(each.pack, 0) for each in stretches):
            raise CorruptionError(f"{name} refers to entries that are in no pack")
    return index


def encode_base(base: Base) -> bytes:
    """Encode the base."""
    return _wrap(BASE, BASE_NAME, _encoder.encode(base))


def decode_base(data: bytes) -> Base:
    """Decode the base."""
    base = _decode(_base_decoder, BASE, BASE_NAME, data)
    if base.dead > base.slot or bool(base.index) != bool(base.slot):
        raise CorruptionError(f"the base of the log says slot {base.slot}, dead {base.dead}, index {base.index!r:.120}")
    return base


class PackedEntry(NamedTuple):
    """One entry of a log in a pack, or in memory on the way there."""

    id: bytes
    """The id of the compare-and-set that wrote it."""
    data: bytes
    """Its bytes."""


def begin_pack(name: str) -> bytes:
    """Return the first bytes of a pack; frames follow."""
    return _wrap(PACK, name, b"")


def encode_frame(key: str, seqno: int, entry: PackedEntry) -> bytes:
    """Encode an entry of a log for a pack."""
    return _frame_checksum(key, seqno, entry.id, entry.data).to_bytes(4, "big") + entry.id + entry.data


def decode_frames(key: str, stretch: PackStretch, data: bytes) -> list[PackedEntry]:
    """Decode the entries of a stretch from its bytes."""
    if len(data) != sum(stretch.lengths):
        raise CorruptionError(f"{stretch.pack} has {len(data)} bytes where {sum(stretch.lengths)} should be")
    entries, offset = [], 0
    for place, length in enumerate(stretch.lengths):
        frame = data[offset : offset + length]
        entry = PackedEntry(frame[4:FRAME], frame[FRAME:])
        if _frame_checksum(key, stretch.seqno + place, *entry) != int.from_bytes(frame[:4], "big"):
            raise CorruptionError(f"entry {stretch.seqno + place} of {key} in {stretch.pack} is not what was written")
        entries.append(entry)
        offset += length
    return entries


def _frame_checksum(key: str, seqno: int, id: bytes, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(id, zlib.crc32(f"{key}/{seqno}/".encode())))


def _wrap(kind: int, name: str, payload: bytes, version: int | None = None) -> bytes:
    head = MAGIC + bytes((kind, FIRST_VERSION if version is None else version))
    checksum = zlib.crc32(payload, zlib.crc32(name.encode(), zlib.crc32(head)))
    return head + checksum.to_bytes(4, "big") + payload


def _decode(decoder: msgspec.msgpack.Decoder[T], kind: int, name: str, data: bytes) -> T:
    """Decode the payload of an object that is whole, of the right kind, and under its own name."""
    view = memoryview(data)
    if len(data) < HEADER or data[:2] != MAGIC:
        raise CorruptionError(f"{name} has {len(data)} bytes and does not begin as an object of a log")
    if zlib.crc32(view[HEADER:], zlib.crc32(name.encode(), zlib.crc32(view[:4]))) != checksum_of(data):
        raise CorruptionError(f"the checksum of {name} does not match: it is damaged, or not the object of this name")
    if data[3] > VERSION:
        raise VersionError(f"{name} has version {data[3]}, this is {VERSION}: upgrade to read it")
    if data[3] < 1 or data[2] != kind:
        raise CorruptionError(f"{name} is an object of kind {data[2]}, version {data[3]}")
    try:
        return decoder.decode(view[HEADER:])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptionError(f"{name} cannot be decoded: {error!s:.200}") from error

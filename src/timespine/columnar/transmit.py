"""A batch between the builder and the commit: sent elsewhere, moved in time, cut to fit. No row is touched.

Executors build batches and a driver commits them, so a batch has to travel: not
its rows, which are in storage already, but what points at them. A transmitted
batch is an envelope around MessagePack:

    "TSB"  version (1 byte)  CRC-32 of all other bytes (4 bytes, big-endian)  payload

and what comes back is not trusted. Whoever sends a batch must see to it that it
is committed or deleted, or its blobs are garbage until its writer expires.
"""

from __future__ import annotations

import zlib
from typing import Annotated

import msgspec

from timespine.core.codec import ENTRY_BYTES_MAX
from timespine.core.hollow import HollowBatch, Part
from timespine.core.shape import check_hollow
from timespine.errors import CorruptionError, UsageError, VersionError
from timespine.ids import check_segment, parse_blob_key
from timespine.model.description import Description
from timespine.model.frontier import Frontier, check_arity_of
from timespine.model.time import ARITY_MAX, check_arity

VERSION = 1
"""The version of the payload that this code writes, and the newest that it reads."""

MAGIC = b"TSB"
HEADER = 8


class _Letter(msgspec.Struct, frozen=True, array_like=True):
    """The payload."""

    collection: str
    """The collection that the batch was made for."""
    arity: Annotated[int, msgspec.Meta(ge=1, le=ARITY_MAX)]
    """Coordinates per time of that collection."""
    batch: HollowBatch
    """The batch. Its runs name their schemas."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Letter)


def encode_batch(batch: HollowBatch, collection: str, arity: int) -> bytes:
    """A batch that is not committed yet, as bytes for another process."""
    check_segment(collection, "collection id")
    check_hollow((batch,), check_arity(arity))
    _check_parts(batch, collection)
    payload = _encoder.encode(_Letter(collection, arity, batch))
    if len(payload) + HEADER > ENTRY_BYTES_MAX:
        raise UsageError(f"a batch of {len(payload)} bytes is over the limit of {ENTRY_BYTES_MAX}: commit it in pieces")
    head = MAGIC + bytes((VERSION,))
    return head + zlib.crc32(payload, zlib.crc32(head)).to_bytes(4, "big") + payload


def decode_batch(data: bytes, collection: str) -> HollowBatch:
    """The batch in these bytes, if it is whole and was made for this collection."""
    check_segment(collection, "collection id")
    payload = _open(data)
    try:
        letter = _decoder.decode(payload)
        check_segment(letter.collection, "collection id")
        check_hollow((letter.batch,), letter.arity)
        _check_parts(letter.batch, letter.collection)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, UsageError) as error:
        raise CorruptionError(f"a transmitted batch does not make sense: {error}") from error
    if letter.collection != collection:
        raise UsageError(f"the batch was made for collection {letter.collection}, not for {collection}")
    return letter.batch


def _open(data: bytes) -> memoryview:
    """The payload of an envelope that is whole. The checksum comes before the version: a flipped bit is no upgrade."""
    if not isinstance(data, bytes):
        raise UsageError(f"{type(data).__name__} is not bytes to decode")
    if not HEADER <= len(data) <= ENTRY_BYTES_MAX:
        raise CorruptionError(f"a transmitted batch has {len(data)} bytes: truncated or too large")
    view = memoryview(data)
    if data[:3] != MAGIC:
        raise CorruptionError("a transmitted batch does not begin as one")
    if zlib.crc32(view[HEADER:], zlib.crc32(view[:4])) != int.from_bytes(data[4:HEADER], "big"):
        raise CorruptionError("the checksum of a transmitted batch does not match")
    if data[3] > VERSION:
        raise VersionError(f"a transmitted batch has version {data[3]}, this is {VERSION}: upgrade to read it")
    if data[3] < 1:
        raise CorruptionError("a transmitted batch has no version")
    return view[HEADER:]


def _check_parts(batch: HollowBatch, collection: str) -> None:
    """A UsageError if a batch of this collection cannot have these parts."""
    if not all(run.parts for run in batch.runs):
        raise UsageError("a run of the batch has no parts")
    for part in batch.parts:
        if part.key == "":
            if part.inline is None or part.hollow or part.size != len(part.inline):
                raise UsageError("a part of the batch is neither a blob nor inline data")
        elif part.inline is not None:
            raise UsageError(f"part {part.key} is a blob and inline data at once")
        elif parse_blob_key(part.key).collection != collection:
            raise UsageError(f"blob {part.key} belongs to another collection than {collection}")
    if sum(part.rows for part in batch.parts) < batch.len:
        raise UsageError(f"a batch of {batch.len} updates whose parts have fewer")


def rewrite(batch: HollowBatch, frontier: Frontier, new_upper: Frontier) -> HollowBatch:
    """The batch with every time advanced to `frontier` when it is read, and up to `new_upper`.

    For a batch that is not committed yet. It may be done again, with a later
    frontier, which takes the place of the earlier one; neither frontier nor upper
    may go back. Only for times of one coordinate:

        t < upper <= new_upper  and  frontier < new_upper   imply   max(t, frontier) < new_upper

    is what proves, without reading a row, that no update reaches the new upper.

    The rows of a sorted run stay ascending, but updates of one row whose times
    become equal are two updates still: whoever reads them adds them up. What the
    state knows of times (`PartMeta.min_time`) is as they were written.
    """
    desc = batch.desc
    for each in (frontier, new_upper, desc.lower, desc.upper):
        check_arity_of(each, 1, "only totally ordered times can be rewritten:")
    if not frontier < new_upper:
        raise UsageError(f"the rewrite frontier {frontier} is not before the rewrite upper {new_upper}")
    if new_upper < desc.upper:
        raise UsageError(f"the rewrite upper {new_upper} is before the batch's upper {desc.upper}")
    if frontier < desc.lower:
        raise UsageError(f"the rewrite frontier {frontier} is before the batch's lower {desc.lower}")
    if desc.since != Frontier.minimum(1):
        raise UsageError(f"a batch exact from {desc.since} on is compacted: its times cannot be rewritten")
    for part in batch.parts:
        if part.rewrite is not None and frontier < part.rewrite:
            raise UsageError(f"the rewrite frontier {frontier} is before the batch's rewrite {part.rewrite}")
    runs = tuple(
        msgspec.structs.replace(run, parts=tuple(_rewritten(part, frontier) for part in run.parts))
        for run in batch.runs
    )
    return HollowBatch(Description(desc.lower, new_upper, desc.since), batch.len, runs)


def _rewritten(part: Part, frontier: Frontier) -> Part:
    return msgspec.structs.replace(part, rewrite=frontier)

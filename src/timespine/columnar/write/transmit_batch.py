"""Send a batch from its builder to the committing process, and move it in time, without touching its rows.

Executors build batches and a driver commits them. So an executor sends the batch: not
its rows, which are in storage, but the references to them. A transmitted batch is an
envelope (core/encoding/envelope.py) around MessagePack, and the receiver checks all of
it. The sender must ensure that the batch is committed or deleted; otherwise its blobs
are garbage until its writer expires.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from timespine.core.batch import HollowBatch, Part
from timespine.core.encoding.envelope import EnvelopeKind, unwrap_payload, wrap_payload
from timespine.core.encoding.validate import check_hollow
from timespine.errors import CorruptionError, UsageError
from timespine.ids import check_segment, parse_blob_key
from timespine.model.description import Description
from timespine.model.frontier import Frontier, check_arity_of
from timespine.model.time import ARITY_MAX, check_arity


class _BatchEnvelope(msgspec.Struct, frozen=True, array_like=True):
    """The payload."""

    collection: str
    """The collection of the batch."""
    arity: Annotated[int, msgspec.Meta(ge=1, le=ARITY_MAX)]
    """Coordinates per time of that collection."""
    batch: HollowBatch
    """The batch. Its runs name their schemas."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_BatchEnvelope)


def encode_batch(batch: HollowBatch, collection: str, arity: int) -> bytes:
    """Encode an uncommitted batch for another process."""
    check_segment(collection, "collection id")
    check_hollow((batch,), check_arity(arity))
    _check_parts(batch, collection)
    return wrap_payload(EnvelopeKind.BATCH, _encoder.encode(_BatchEnvelope(collection, arity, batch)))


def decode_batch(data: bytes, collection: str) -> HollowBatch:
    """Decode a batch; raise an error if it is damaged or belongs to another collection."""
    check_segment(collection, "collection id")
    payload = unwrap_payload(EnvelopeKind.BATCH, data)
    try:
        envelope = _decoder.decode(payload)
        check_segment(envelope.collection, "collection id")
        check_hollow((envelope.batch,), envelope.arity)
        _check_parts(envelope.batch, envelope.collection)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, UsageError) as error:
        raise CorruptionError(f"a transmitted batch does not make sense: {error}") from error
    if envelope.collection != collection:
        raise UsageError(f"the batch was made for collection {envelope.collection}, not for {collection}")
    return envelope.batch


def _check_parts(batch: HollowBatch, collection: str) -> None:
    """Raise a UsageError if a batch of this collection cannot have these parts."""
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
    """Make a batch up to `new_upper` whose reader advances every time to `frontier`.

    For an uncommitted batch. It may be rewritten again, with a later frontier,
    which replaces the earlier one; neither frontier nor upper may go back. Only
    for times of one coordinate:

        t < upper <= new_upper  and  frontier < new_upper   imply   max(t, frontier) < new_upper

    is what proves, without reading a row, that no update reaches the new upper.

    The rows of a sorted run stay ascending, but updates of one row whose times
    become equal are still two updates, which the reader sums. The times in the
    state (`PartMeta.min_time`) are the written ones.
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
        msgspec.structs.replace(run, parts=tuple(_rewrite_part(part, frontier) for part in run.parts))
        for run in batch.runs
    )
    return HollowBatch(Description(desc.lower, new_upper, desc.since), batch.len, runs)


def _rewrite_part(part: Part, frontier: Frontier) -> Part:
    return msgspec.structs.replace(part, rewrite=frontier)

"""Batches between builder and commit: sent, rewritten, cut to fit."""

from __future__ import annotations

import zlib

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timespine.columnar.write import transmit_batch
from timespine.columnar.write.transmit_batch import decode_batch, encode_batch, rewrite
from timespine.core.batch import HollowBatch, Order, Part, Run
from timespine.core.encoding import envelope
from timespine.core.encoding.envelope import EnvelopeKind, wrap_payload
from timespine.core.read_plan import apply_parent_bounds
from timespine.errors import CorruptionError, UsageError, VersionError
from timespine.model import CLOSED, Description, Frontier, advance_by

at = Frontier.at
INLINE = Part("", 2, 3, 1, inline=b"abc")
BLOB = Part("orders/w1/p1", 3, 100, 2, meta=b"m")
HOLLOW = Part("orders/w1/h1", 9, 50, 4, hollow=True)
ZERO, FIVE = at(0), at(5)


def batch_of(*parts, lower=ZERO, upper=FIVE, since=ZERO, order=Order.SORTED):
    rows = sum(part.rows for part in parts)
    return HollowBatch(Description(lower, upper, since), rows, (Run(parts, order, 1),) if parts else ())


def resealed(data, payload=None, version=1):
    """Bytes with a checksum that is right, whatever they say."""
    head = data[:3] + bytes((version,))
    payload = data[8:] if payload is None else payload
    return head + zlib.crc32(payload, zlib.crc32(head)).to_bytes(4, "big") + payload


# Sent.


@st.composite
def batches(draw):
    arity = draw(st.integers(1, 3))
    frontier = st.none() | st.lists(st.tuples(*[st.integers(0, 5)] * arity), min_size=1, max_size=3).map(
        lambda times: Frontier(tuple(times))
    )
    runs = []
    for run in range(draw(st.integers(0, 3))):
        parts = []
        for number in range(draw(st.integers(1, 3))):
            inline = draw(st.none() | st.binary(max_size=4))
            parts.append(
                Part(
                    f"orders/w1/p{run}-{number}" if inline is None else "",
                    draw(st.integers(0, 9)),
                    draw(st.integers(0, 99)) if inline is None else len(inline),
                    draw(st.none() | st.integers(-5, 5)),
                    inline,
                    inline is None and draw(st.booleans()),
                    draw(frontier),
                    draw(frontier),
                    draw(frontier),
                    draw(st.binary(max_size=3)),
                )
            )
        runs.append(Run(tuple(parts), draw(st.sampled_from(Order)), draw(st.none() | st.integers(0, 3))))
    desc = Description(Frontier.minimum(arity), draw(st.sampled_from([CLOSED, Frontier(((9,) * arity,))])), CLOSED)
    rows = sum(part.rows for run in runs for part in run.parts)
    return arity, HollowBatch(desc, draw(st.integers(0, rows)), tuple(runs))


@given(batches())
@settings(max_examples=60)
def test_a_batch_arrives_as_it_was_sent(drawn) -> None:
    arity, batch = drawn
    assert decode_batch(encode_batch(batch, "orders", arity), "orders") == batch


def test_the_bytes_are_what_they_were_when_the_format_was_made() -> None:
    data = encode_batch(batch_of(BLOB), "orders", 1)
    assert data[:4] == b"TS\x04\x01"
    assert data.hex() == GOLDEN
    assert decode_batch(bytes.fromhex(GOLDEN), "orders") == batch_of(BLOB)


GOLDEN = (
    "54530401ffc842f293a66f7264657273019393919191009191910591919100"
    "039194919bac6f72646572732f77312f7031036402c0c2c0c0c0c4016d000101c0"
)


def test_a_batch_of_another_collection_is_refused() -> None:
    data = encode_batch(batch_of(INLINE), "orders", 1)
    with pytest.raises(UsageError, match="made for collection orders, not for items"):
        decode_batch(data, "items")


def test_a_batch_of_a_newer_version_asks_for_an_upgrade() -> None:
    data = resealed(encode_batch(batch_of(BLOB), "orders", 1), version=2)
    with pytest.raises(VersionError, match="version 2"):
        decode_batch(data, "orders")


@given(st.data())
def test_a_flipped_bit_is_found(data) -> None:
    sent = bytearray(encode_batch(batch_of(BLOB, INLINE), "orders", 1))
    place = data.draw(st.integers(0, len(sent) * 8 - 1))
    sent[place // 8] ^= 1 << (place % 8)
    with pytest.raises(CorruptionError):
        decode_batch(bytes(sent), "orders")


@given(st.integers(0, 80))
def test_truncated_bytes_are_found(length) -> None:
    sent = encode_batch(batch_of(BLOB, INLINE), "orders", 1)
    with pytest.raises(CorruptionError):
        decode_batch(sent[: min(length, len(sent) - 1)], "orders")


@given(st.binary(max_size=64))
def test_any_other_bytes_are_corrupt(data) -> None:
    with pytest.raises(CorruptionError):
        decode_batch(data, "orders")
    with pytest.raises(CorruptionError):
        decode_batch(wrap_payload(EnvelopeKind.BATCH, data), "orders")


@pytest.mark.parametrize("wrong", [None, "text", bytearray(b"TSB")])
def test_only_bytes_are_decoded(wrong) -> None:
    with pytest.raises(UsageError, match="not bytes"):
        decode_batch(wrong, "orders")


def test_version_zero_is_no_version() -> None:
    with pytest.raises(CorruptionError, match="version 0"):
        decode_batch(resealed(encode_batch(batch_of(BLOB), "orders", 1), version=0), "orders")


NONSENSE = {
    "other arity": batch_of(BLOB, lower=at(0, 0), upper=at(5, 5), since=at(0, 0)),
    "rewritten to another arity": batch_of(msgspec.structs.replace(BLOB, rewrite=at(1, 1))),
    "a key that is none": batch_of(msgspec.structs.replace(BLOB, key="orders/../p1")),
    "a blob of another collection": batch_of(msgspec.structs.replace(BLOB, key="items/w1/p1")),
    "neither blob nor inline": batch_of(msgspec.structs.replace(INLINE, inline=None)),
    "blob and inline": batch_of(msgspec.structs.replace(BLOB, inline=b"abc")),
    "inline and hollow": batch_of(msgspec.structs.replace(INLINE, hollow=True)),
    "inline of another size": batch_of(msgspec.structs.replace(INLINE, size=4)),
    "a run of nothing": HollowBatch(Description(ZERO, at(5), ZERO), 0, (Run(()),)),
    "more updates than its parts": msgspec.structs.replace(batch_of(BLOB), len=4),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_invalid_batches_are_neither_encoded_nor_decoded(name) -> None:
    batch = NONSENSE[name]
    with pytest.raises(UsageError):
        encode_batch(batch, "orders", 1)
    letter = msgspec.msgpack.encode(transmit_batch._BatchEnvelope("orders", 1, batch))
    with pytest.raises(CorruptionError, match="does not make sense"):
        decode_batch(wrap_payload(EnvelopeKind.BATCH, letter), "orders")


def test_a_batch_of_an_impossible_arity_or_collection_is_neither_sent_nor_taken() -> None:
    for collection, arity in [("Orders", 1), ("orders", 0), ("orders", 99)]:
        with pytest.raises(UsageError):
            encode_batch(batch_of(), collection, arity)
        letter = msgspec.msgpack.encode(transmit_batch._BatchEnvelope(collection, arity, batch_of()))
        with pytest.raises(CorruptionError):
            decode_batch(wrap_payload(EnvelopeKind.BATCH, letter), "orders")
    with pytest.raises(UsageError):
        decode_batch(encode_batch(batch_of(), "orders", 1), "no such id!")


def test_a_batch_that_is_too_large_is_not_sent(monkeypatch) -> None:
    monkeypatch.setitem(envelope.BYTES_MAX, EnvelopeKind.BATCH, 40)
    with pytest.raises(UsageError, match="over the limit"):
        encode_batch(batch_of(BLOB), "orders", 1)


# Rewritten.


def test_a_rewritten_batch_has_a_new_upper_and_parts_that_say_so() -> None:
    batch = rewrite(batch_of(INLINE, BLOB, HOLLOW, upper=at(1)), at(2), at(3))
    assert batch.desc == Description(ZERO, at(3), ZERO)
    assert batch.len == 14
    assert [part.rewrite for part in batch.parts] == [at(2)] * 3
    assert [msgspec.structs.replace(part, rewrite=None) for part in batch.parts] == [INLINE, BLOB, HOLLOW]
    assert batch.runs[0].schema == 1
    assert batch.diff_sum == 7, "no update is hidden"


def test_a_rewritten_hollow_run_rewrites_what_is_inside() -> None:
    (hollow,) = rewrite(batch_of(HOLLOW), at(2), at(6)).parts
    assert apply_parent_bounds(hollow, BLOB).rewrite == at(2)


def test_a_later_rewrite_takes_the_place_of_an_earlier_one() -> None:
    once = rewrite(batch_of(BLOB), at(2), at(6))
    assert rewrite(once, at(2), at(6)) == once
    twice = rewrite(once, at(4), CLOSED)
    assert [part.rewrite for part in twice.parts] == [at(4)]
    assert twice.desc.upper == CLOSED


def test_a_batch_that_was_sent_can_be_rewritten() -> None:
    sent = decode_batch(encode_batch(batch_of(BLOB, upper=at(1)), "orders", 1), "orders")
    moved = rewrite(sent, at(2), at(3))
    assert decode_batch(encode_batch(moved, "orders", 1), "orders") == moved


@pytest.mark.parametrize(
    ("batch", "frontier", "upper", "why"),
    [
        (batch_of(BLOB), at(6), at(6), "not before the rewrite upper"),
        (batch_of(BLOB), at(7), at(6), "not before the rewrite upper"),
        (batch_of(BLOB), CLOSED, CLOSED, "not before the rewrite upper"),
        (batch_of(BLOB), at(1), at(4), "before the batch's upper"),
        (batch_of(BLOB, upper=CLOSED), at(1), at(4), "before the batch's upper"),
        (batch_of(BLOB, lower=at(3)), at(2), at(5), "before the batch's lower"),
        (batch_of(BLOB, since=at(1)), at(2), at(5), "compacted"),
        (batch_of(BLOB, since=CLOSED), at(2), at(5), "compacted"),
        (rewrite(batch_of(BLOB), at(4), at(5)), at(3), at(5), "before the batch's rewrite"),
        (rewrite(batch_of(BLOB), at(2), at(9)), at(3), at(8), "before the batch's upper"),
        (batch_of(BLOB), at(2, 2), at(9, 9), "totally ordered"),
        (batch_of(BLOB, lower=at(0, 0), upper=at(5, 5), since=at(0, 0)), at(2, 2), at(9, 9), "totally ordered"),
        (batch_of(lower=CLOSED, upper=CLOSED), at(2), CLOSED, "before the batch's lower"),
    ],
)
def test_a_rewrite_that_could_be_wrong_is_refused(batch, frontier, upper, why) -> None:
    with pytest.raises(UsageError, match=why):
        rewrite(batch, frontier, upper)


@given(st.integers(0, 6), st.integers(0, 6), st.integers(0, 8), st.integers(0, 8), st.lists(st.integers(0, 6)))
def test_no_update_of_a_rewritten_batch_is_at_or_after_its_upper(lower, width, frontier, new_upper, times) -> None:
    desc = Description(at(lower), at(lower + width), ZERO)
    written = [(time,) for time in times if desc.contains((time,))]
    batch = HollowBatch(desc, len(written), (Run((Part("c/w/p", len(written)),)),))
    try:
        moved = rewrite(batch, at(frontier), at(new_upper))
    except UsageError:
        assert not (lower <= frontier < new_upper and lower + width <= new_upper)
        return
    (part,) = moved.parts
    assert all(moved.desc.contains(advance_by(time, part.rewrite)) for time in written)

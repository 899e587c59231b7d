"""States and diffs as bytes: whatever storage gives back, it is what was written or a typed error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from codec_cases import ENTRIES, PARTS, RUN, Decode, busy, diff_entry, resealed, run_entry, sealed, state_entry
from random_commands import seeded
from state_harness import same_state

from timespine.core.encoding import envelope
from timespine.core.encoding.codec import decode_diff, decode_run, decode_state, encode_diff, encode_run, encode_state
from timespine.core.encoding.envelope import HEADER, VERSION, EnvelopeKind, envelope_kind
from timespine.core.encoding.state_diff import StateDiff, diff
from timespine.core.state import new_state
from timespine.errors import CorruptionError, UsageError, VersionError

# What was written comes back.


@pytest.mark.parametrize("seed", range(20))
def test_state_comes_back_as_it_was(seed: int) -> None:
    state = seeded(seed, 60, arity=1 + seed % 3).scene.state
    data = encode_state(state)
    assert same_state(decode_state(data), state) == []
    assert encode_state(decode_state(data)) == data


def test_diff_comes_back_as_it_was() -> None:
    assert decode_diff(diff_entry()) == diff(*busy())
    assert decode_diff(encode_diff(StateDiff(n=1))) == StateDiff(n=1)


def test_run_comes_back_as_it_was() -> None:
    assert decode_run(RUN, run_entry()) == PARTS
    assert decode_run(RUN, encode_run(RUN, ())) == ()


def test_a_run_under_the_key_of_another_is_corruption() -> None:
    with pytest.raises(CorruptionError, match="c/w1/h1"):
        decode_run("c/w1/h2", run_entry())


def test_new_collection_takes_few_bytes() -> None:
    assert len(encode_state(new_state("c"))) < 100
    assert len(encode_diff(StateDiff(n=1))) < 20


def test_kind_of_an_entry_is_known_without_decoding_it() -> None:
    assert [envelope_kind(entry()) for entry, _ in ENTRIES.values()] == [
        EnvelopeKind.STATE,
        EnvelopeKind.DIFF,
        EnvelopeKind.RUN,
    ]


@pytest.mark.parametrize("data", [b"", b"TS", b"TS\x00", b"TS\x0a", b"\xff" * 20])
def test_kind_of_what_is_no_entry_is_corruption(data: bytes) -> None:
    with pytest.raises(CorruptionError):
        envelope_kind(data)


NO_BYTES: list[Any] = [None, 5, "TS\x01\x01", [1, 2, 3], bytearray(20), memoryview(bytes(20)), {}]


@pytest.mark.parametrize("value", [None, 5, "TS\x01\x01", 1.5, [1, 2], object()], ids=lambda each: type(each).__name__)
def test_kind_of_what_is_not_even_bytes_is_corruption(value: Any) -> None:
    with pytest.raises(CorruptionError, match="neither a state nor a diff"):
        envelope_kind(value)


@pytest.mark.parametrize("value", NO_BYTES, ids=lambda each: type(each).__name__)
def test_decoding_what_is_not_bytes_is_a_usage_error(value: Any, decode: Decode) -> None:
    with pytest.raises(UsageError, match=f"{type(value).__name__} is not bytes"):
        decode(value)


def test_decoding_a_copy_that_is_not_bytes_is_a_usage_error_though_it_is_whole(data: bytes, decode: Decode) -> None:
    for copied in (bytearray(data), memoryview(data)):
        with pytest.raises(UsageError):
            decode(copied)  # type: ignore[arg-type]


# Damage.


def test_every_flipped_byte_is_corruption(data: bytes, decode: Decode) -> None:
    for position in range(len(data)):
        for mask in (0x01, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[position] ^= mask
            with pytest.raises(CorruptionError):
                decode(bytes(damaged))


def test_every_truncation_is_corruption(data: bytes, decode: Decode) -> None:
    for length in range(len(data)):
        with pytest.raises(CorruptionError):
            decode(data[:length])


def test_truncated_payload_with_a_right_checksum_is_corruption(data: bytes, decode: Decode) -> None:
    for length in range(len(data) - HEADER):
        with pytest.raises(CorruptionError):
            decode(resealed(data, data[HEADER : HEADER + length]))


def test_anything_behind_an_entry_is_corruption(data: bytes, decode: Decode) -> None:
    for tail in (b"\x00", b"\xc0", data):
        with pytest.raises(CorruptionError):
            decode(data + tail)
        with pytest.raises(CorruptionError):
            decode(resealed(data, data[HEADER:] + tail))


def test_entry_that_begins_otherwise_is_corruption(data: bytes, decode: Decode) -> None:
    with pytest.raises(CorruptionError, match="begin"):
        decode(b"XX" + data[2:])


def test_swapped_halves_are_corruption(data: bytes, decode: Decode) -> None:
    middle = (HEADER + len(data)) // 2
    with pytest.raises(CorruptionError):
        decode(data[:HEADER] + data[middle:] + data[HEADER:middle])


# Foreign and future.


def test_entry_of_another_kind_is_corruption(data: bytes, decode: Decode) -> None:
    for other, reads in ENTRIES.values():
        if reads is not decode:
            with pytest.raises(CorruptionError, match="kind"):
                decode(other())
    for number in (0, 4, 255):
        with pytest.raises(CorruptionError, match="kind"):
            decode(sealed(number, data[HEADER:]))


def test_entry_of_a_newer_version_is_a_version_error(data: bytes, decode: Decode) -> None:
    for version in (VERSION + 1, 255):
        with pytest.raises(VersionError, match=f"version {version}.*upgrade"):
            decode(sealed(data[2], data[HEADER:], version))
        with pytest.raises(VersionError):
            decode(sealed(data[2], b"in the language of the future", version))


def test_damaged_entry_of_a_newer_version_is_corruption(data: bytes, decode: Decode) -> None:
    future = bytearray(sealed(data[2], data[HEADER:], VERSION + 1))
    future[-1] ^= 1
    with pytest.raises(CorruptionError):
        decode(bytes(future))


def test_entry_of_version_zero_is_corruption(data: bytes, decode: Decode) -> None:
    with pytest.raises(CorruptionError, match="version 0"):
        decode(sealed(data[2], data[HEADER:], 0))


# Sizes.


def test_entry_over_the_limit_is_corruption(data: bytes, decode: Decode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(envelope.BYTES_MAX, envelope_kind(data), len(data))
    decode(data)
    monkeypatch.setitem(envelope.BYTES_MAX, envelope_kind(data), len(data) - 1)
    with pytest.raises(CorruptionError, match="too large"):
        decode(data)


def test_nothing_over_the_limit_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[tuple[EnvelopeKind, Callable[[], bytes]]] = [
        (EnvelopeKind.STATE, state_entry),
        (EnvelopeKind.DIFF, diff_entry),
        (EnvelopeKind.RUN, run_entry),
    ]
    for kind, write in writes:
        size = len(write())
        monkeypatch.setitem(envelope.BYTES_MAX, kind, size)
        assert len(write()) == size
        monkeypatch.setitem(envelope.BYTES_MAX, kind, size - 1)
        with pytest.raises(UsageError, match="over the limit"):
            write()
        monkeypatch.undo()

"""States and diffs as bytes: whatever storage gives back, it is what was written or a typed error."""

from __future__ import annotations

import copy
import functools
import itertools
import math
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_commands import seeded
from state_harness import TERM_MS, WRITER, StateHarness, at, same_state, up

from timespine.core.batch import Part
from timespine.core.encoding import envelope
from timespine.core.encoding.codec import decode_diff, decode_run, decode_state, encode_diff, encode_run, encode_state
from timespine.core.encoding.envelope import HEADER, VERSION, EnvelopeKind, envelope_kind
from timespine.core.encoding.flat_spine import validate_deep
from timespine.core.encoding.state_diff import StateDiff, diff
from timespine.core.state import State, new_state
from timespine.core.transitions import (
    AddRollup,
    AddSchema,
    ClaimMerge,
    ClaimTurn,
    CommitSink,
    RegisterCommitter,
    RegisterHold,
    RegisterReader,
    Retain,
    RollUpAll,
)
from timespine.errors import CorruptionError, UsageError, VersionError
from timespine.model import Frontier
from timespine.model import time as times
from timespine.model.frontier import ELEMENTS_MAX

Decode = Callable[[bytes], Any]


def examples(count: int) -> settings:
    """That many examples, however long each takes."""
    return settings(max_examples=count, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def sealed(kind: int, payload: bytes, version: int = VERSION) -> bytes:
    """An envelope whose checksum is right, whatever is in it."""
    head = b"TS" + bytes((kind, version))
    return head + zlib.crc32(payload, zlib.crc32(head)).to_bytes(4, "big") + payload


def resealed(data: bytes, payload: bytes) -> bytes:
    return sealed(data[2], payload, data[3])


@functools.cache
def busy() -> tuple[State, State]:
    """Two states, one commit apart, with something of everything in them."""
    scene = StateHarness(arity=2)
    for when in range(6):
        scene.append(at(when + 1, when + 1), up("a", (when, when)), up("b", (when, when + 1), -1))
    scene.do(RollUpAll())
    (request,) = scene.state.trace.requests()
    scene.append(at(7, 7), up("a", (6, 9)), key="c/w1/p1")
    scene.write(up("c", (8, 7)), up("c", (7, 8)))
    for command in (
        RegisterReader("r1", at(2, 3), TERM_MS),
        RegisterHold("h1", Frontier(((2, 5), (5, 2))), "token"),
        Retain(at(1, 1)),
        RegisterCommitter("k1", TERM_MS),
        CommitSink("s1", 7),
        AddSchema(None, b"schema"),
        AddRollup(3, "c/w1/s3", 99),
        ClaimMerge(request.id, "m1", TERM_MS),
        ClaimTurn(WRITER, TERM_MS),
    ):
        scene.do(command)
    old = scene.state
    scene.append(at(9, 9), up("a", (7, 7)), up("d", (8, 8)))
    for name in (*old.__struct_fields__, "since"):
        assert getattr(old, name) or name in ("seqno", "status"), f"{name} is empty"
    return old, scene.state


def new() -> State:
    """The later one."""
    return busy()[1]


def state_entry() -> bytes:
    return encode_state(new())


def diff_entry() -> bytes:
    return encode_diff(diff(*busy()))


def run_entry() -> bytes:
    return encode_run(RUN, PARTS)


RUN = "c/w1/h1"
PARTS = (Part("c/w1/p1", 3, 9, -2, None, False, at(1), at(4), at(2), b"stats"), Part("", 1, 1, 1, b"x"))
ENTRIES: dict[str, tuple[Callable[[], bytes], Decode]] = {
    "state": (state_entry, decode_state),
    "diff": (diff_entry, decode_diff),
    "run": (run_entry, functools.partial(decode_run, RUN)),
}


@pytest.fixture(params=ENTRIES)
def kind(request: pytest.FixtureRequest) -> str:
    """One kind of entry after the other."""
    return str(request.param)


@pytest.fixture
def data(kind: str) -> bytes:
    """An entry of that kind, as it is stored."""
    return ENTRIES[kind][0]()


@pytest.fixture
def decode(kind: str) -> Decode:
    """What reads entries of that kind."""
    return ENTRIES[kind][1]


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


@pytest.mark.parametrize("data", [b"", b"TS", b"TS\x00", b"TS\x09", b"\xff" * 20])
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


# Hostile payloads.

HOSTILE: list[tuple[str, bytes]] = [
    ("nothing", b""),
    ("nil", b"\xc0"),
    ("never used", b"\xc1"),
    ("nan", b"\xcb" + b"\x7f\xf8" + b"\x00" * 6),
    ("text", b"\xa3abc"),
    ("text that is not utf-8", b"\x81\xa4\xff\xfe\xfd\xfc\x01"),
    ("deep arrays", b"\x91" * 100_000),
    ("deep maps", b"\x81\xa1n" * 100_000),
    ("deep arrays in an unknown field", b"\x82\xa1n\x01\xa2zz" + b"\x91" * 100_000 + b"\xc0"),
    ("huge array", b"\xdd\xff\xff\xff\xff"),
    ("huge map", b"\xdf\xff\xff\xff\xff"),
    ("huge text", b"\xdb\xff\xff\xff\xff"),
    ("huge bytes", b"\xc6\xff\xff\xff\xff"),
    ("huge extension", b"\xc9\xff\xff\xff\xff\x01"),
    ("huge array in a field", b"\x82\xa1n\x01\xa1x\xdd\xff\xff\xff\xff"),
    ("huge map in a field", b"\x82\xa1n\x01\xa6claims\xdf\xff\xff\xff\xff"),
    ("huge array in an unknown field", b"\x82\xa1n\x01\xa2zz\xdd\xff\xff\xff\xff"),
    ("extension", b"\xd4\x01\x00"),
    ("array of nil", b"\x93\xc0\xc0\xc0"),
    ("map with a map for a key", b"\x81\x80\x80"),
]


@pytest.mark.parametrize("payload", [each[1] for each in HOSTILE], ids=[each[0] for each in HOSTILE])
def test_hostile_payload_is_corruption(payload: bytes, kind: str, decode: Decode) -> None:
    with pytest.raises(CorruptionError):
        decode(sealed(EnvelopeKind[kind.upper()], payload))


BAD_FIELDS: list[tuple[str, Any]] = [
    ("collection", ""),
    ("collection", "../escape"),
    ("collection", 7),
    ("arity", 0),
    ("arity", 9),
    ("arity", -1),
    ("arity", 1),
    ("arity", "2"),
    ("seqno", -1),
    ("seqno", 1 << 63),
    ("seqno", math.nan),
    ("seqno", 1.5),
    ("upper", [[[1]]]),
    ("upper", [[[0, 0]]]),
    ("upper", [[[1, -1]]]),
    ("upper", [[[1, 1 << 63]]]),
    ("upper", [[[]]]),
    ("upper", [[[1, 1], [1]]]),
    ("upper", [[[i, 1000 - i] for i in range(300)]]),
    ("upper", None),
    ("retention", [[[1]]]),
    ("retention", [[[1, 1, 1]]]),
    ("trace", []),
    ("trace", [[[[0, 0]]], {}, {}]),
    ("trace", [[[[0, 0]]], {}, {(0, 1): [0, [[[0, 0]]], False]}, {}]),
    ("trace", [[[[0, 0]]], {}, {}, {(0, 1): [[[[0, 0]]], 1]}]),
    ("trace", [[[[0]]], {}, {}, {}]),
    ("unsealed", [[-1, [[[1, 1]]], [1, 1], 1, []]]),
    ("unsealed_next", -1),
    ("readers", {"r": [[[[1, 1]]], -1, 0, 1]}),
    ("readers", {"r": None}),
    ("readers", {1: [[[[1, 1]]], 1, 0, 1]}),
    ("holds", {"h": [[[[1, 1]]]]}),
    ("writers", {"w": ["soon", 1]}),
    ("committers", {"k": [-1, 0, 1]}),
    ("sinks", {"s": "1"}),
    ("schemas", ["text"]),
    ("rollups", {"x": ["c/w/p", 1]}),
    ("rollups", {1: ["c/w/p", -1]}),
    ("claims", {(1,): ["m", 1]}),
    ("claims", {(0, 1): ["m"]}),
    ("history", [[[[[1, 1]]], 1, "append", -1, 1]]),
    ("inline_bytes", -1),
    ("status", 2),
    ("status", "open"),
    ("turn", ["w1", 0]),
    ("turn", ["w1", "soon", 5]),
]


@pytest.mark.parametrize(("field", "value"), BAD_FIELDS, ids=[f"{name}-{i}" for i, (name, _) in enumerate(BAD_FIELDS)])
def test_state_with_a_wrong_field_is_corruption(field: str, value: Any) -> None:
    image = msgspec.msgpack.decode(state_entry()[HEADER:])
    assert new().arity == 2
    image[field] = value
    with pytest.raises(CorruptionError):
        decode_state(resealed(state_entry(), msgspec.msgpack.encode(image)))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("readers", {"r": [[[[1]]], 0, 0, 1]}),
        ("holds", {"h": [[[[1]]], "t"]}),
        ("unsealed", [[0, [[[1]]], [1, 1], 1, []]]),
        ("unsealed", [[0, [[[1, 1]]], [1], 1, []]]),
        ("unsealed", [[0, [[[1, 1]]], [1, 1], 1, [["", 1, 1, 1, b"x", False, [[[1]]]]]]]),
    ],
)
def test_state_with_times_of_another_shape_anywhere_is_corruption(field: str, value: Any) -> None:
    image = msgspec.msgpack.decode(state_entry()[HEADER:])
    image[field] = value
    with pytest.raises(CorruptionError):
        decode_state(resealed(state_entry(), msgspec.msgpack.encode(image)))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("unsealed", [[7, [[[1, 1]]], [1, 1], 1, []], [3, [[[1, 1]]], [1, 1], 1, []]]),
        ("unsealed_next", 0),
        ("inline_bytes", 1 << 40),
    ],
)
def test_state_that_contradicts_itself_is_corruption(field: str, value: Any) -> None:
    scene = StateHarness(arity=2)
    scene.write(up("a", (1, 1)))
    data = encode_state(scene.state)
    image = msgspec.msgpack.decode(data[HEADER:])
    image[field] = value
    with pytest.raises(CorruptionError):
        decode_state(resealed(data, msgspec.msgpack.encode(image)))


def test_state_whose_trace_is_ahead_of_its_upper_is_corruption() -> None:
    scene = StateHarness()
    scene.append(at(5), up("a", 1))
    ahead = msgspec.structs.replace(scene.state, upper=at(4))
    with pytest.raises(CorruptionError, match="past the upper"):
        decode_state(encode_state(ahead))


def test_frontier_over_the_limit_is_refused_before_it_costs_more_than_the_limit_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    image = msgspec.msgpack.decode(state_entry()[HEADER:])
    image["upper"] = [[[i, 2000 - i] for i in range(2000)]]
    steps, less_equal = itertools.count(), times.less_equal

    def counted(left: Any, right: Any) -> bool:
        if next(steps) > 2 * ELEMENTS_MAX**2:
            raise RuntimeError("as many steps as 65,536 times would take minutes for")
        return less_equal(left, right)

    monkeypatch.setattr(times, "less_equal", counted)
    with pytest.raises(CorruptionError):
        decode_state(resealed(state_entry(), msgspec.msgpack.encode(image)))


def test_state_without_a_field_it_needs_is_corruption() -> None:
    image = msgspec.msgpack.decode(state_entry()[HEADER:])
    for field in ("collection", "arity", "seqno", "upper", "trace", "retention"):
        lacking = {name: value for name, value in image.items() if name != field}
        with pytest.raises(CorruptionError):
            decode_state(resealed(state_entry(), msgspec.msgpack.encode(lacking)))


def test_field_that_this_version_does_not_know_changes_nothing_that_it_does() -> None:
    image = msgspec.msgpack.decode(state_entry()[HEADER:])
    image["from a later time"] = [1, {"deep": [None]}]
    assert same_state(decode_state(resealed(state_entry(), msgspec.msgpack.encode(image))), new()) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", None),
        ("n", -1),
        ("n", math.inf),
        ("u", [[[1, 1], [1]]]),
        ("t", 5),
        ("t", {"a": {(0,): None}}),
        ("t", {"b": {(0, 1): [65, [[[0, 0]]], True]}}),
        ("t", {"b": {(0, 1): [-1, [[[0, 0]]], True]}}),
        ("t", {"m": {(0, 1): [[[[0, 0]]], -1]}}),
        ("t", {"d": [[0, -1]]}),
        ("f", -1),
        ("x", ["0"]),
        ("y", [[0]]),
        ("status", 9),
        ("c", {"k": [0]}),
    ],
)
def test_diff_with_a_wrong_field_is_corruption(field: str, value: Any) -> None:
    with pytest.raises(CorruptionError):
        decode_diff(sealed(EnvelopeKind.DIFF, msgspec.msgpack.encode({"n": 1, field: value})))


def test_trace_that_is_not_put_together_right_is_corruption() -> None:
    scene = StateHarness()
    for when in range(5):
        scene.append(at(when + 1), up("a", when))
    scene.do(RollUpAll())
    image = msgspec.msgpack.decode(encode_state(scene.state)[HEADER:])
    for id in list(image["trace"][1]):
        lacking = msgspec.msgpack.decode(msgspec.msgpack.encode(image))
        del lacking["trace"][1][id]
        with pytest.raises(CorruptionError):
            decode_state(sealed(EnvelopeKind.STATE, msgspec.msgpack.encode(lacking)))


# Mutations whose checksum is right: an error, or a state that is sound.


def decodes_to_something_sound(data: bytes) -> None:
    try:
        state = decode_state(data)
    except CorruptionError:
        return
    validate_deep(state.trace, state.arity)
    assert state.trace.upper <= state.upper
    assert same_state(decode_state(encode_state(state)), state) == []


@examples(400)
@given(st.data())
def test_state_with_mutated_bytes_is_corruption_or_sound(data: st.DataObject) -> None:
    payload = bytearray(state_entry()[HEADER:])
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(payload) - 1))
        match data.draw(st.integers(0, 2)):
            case 0:
                payload[position] = data.draw(st.integers(0, 255))
            case 1:
                del payload[position : position + data.draw(st.integers(1, 4))]
            case _:
                payload[position:position] = data.draw(st.binary(min_size=1, max_size=6))
    decodes_to_something_sound(sealed(EnvelopeKind.STATE, bytes(payload)))


def places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) in a decoded payload."""
    items: Any = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield node, key
        yield from places(value)


VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [
        *(None, True, -1, 0, 1, 2, 63, 64, 65, 1 << 62, (1 << 62) + 1, (1 << 64) - 1, -(1 << 63), 1.0, 0.5, math.nan),
        *("", "c", "c/w1/p1", b"", b"x", [], {}, [[]], [[[0, 0]]], [[[9, 9]]], [[[0]]], [[]], {(0, 1): None}),
    ]
)


def mutated(data: st.DataObject, payload: bytes) -> bytes:
    """The payload with a few values replaced, dropped or doubled."""
    image = msgspec.msgpack.decode(payload)
    for _ in range(data.draw(st.integers(1, 3))):
        left = list(places(image))
        if not left:
            break
        container, key = data.draw(st.sampled_from(left))
        if key not in range(len(container)) if isinstance(container, list) else key not in container:
            continue
        match data.draw(st.integers(0, 4)):
            case 0 | 1 | 2:
                container[key] = copy.deepcopy(data.draw(VALUES))
            case 3:
                del container[key]
            case _:
                if isinstance(container, list):
                    container.insert(key, copy.deepcopy(container[key]))
    return msgspec.msgpack.encode(image)


@examples(400)
@given(st.data())
def test_state_with_mutated_values_is_corruption_or_sound(data: st.DataObject) -> None:
    decodes_to_something_sound(sealed(EnvelopeKind.STATE, mutated(data, state_entry()[HEADER:])))


@examples(200)
@given(st.data())
def test_diff_and_run_with_mutated_values_are_corruption_or_decode(data: st.DataObject) -> None:
    for entry, decode in ((diff_entry(), decode_diff), (run_entry(), functools.partial(decode_run, RUN))):
        try:
            decode(resealed(entry, mutated(data, entry[HEADER:])))
        except CorruptionError:
            continue


@examples(300)
@given(st.binary(max_size=200), st.sampled_from([0, 1, 2, 3, 4]))
def test_random_bytes_are_corruption(noise: bytes, kind: int) -> None:
    for decode in (decode_state, decode_diff, functools.partial(decode_run, RUN)):
        with pytest.raises(CorruptionError):
            decode(noise)
        try:
            decode(sealed(kind, noise))
        except CorruptionError:
            continue

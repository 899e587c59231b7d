"""Payloads whose checksum is right: decoding gives an error, or a state that is sound."""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from codec_cases import RUN, Decode, diff_entry, new, resealed, run_entry, sealed, state_entry
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from state_harness import StateHarness, at, same_state, up

from timespine.core.encoding.codec import decode_diff, decode_run, decode_state, encode_state
from timespine.core.encoding.envelope import HEADER, EnvelopeKind
from timespine.core.encoding.flat_spine import validate_deep
from timespine.core.transitions import RollUpAll
from timespine.errors import CorruptionError
from timespine.model import time as times
from timespine.model.frontier import ELEMENTS_MAX


def examples(count: int) -> settings:
    """That many examples, however long each takes."""
    return settings(max_examples=count, deadline=None, suppress_health_check=[HealthCheck.too_slow])


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


@pytest.mark.parametrize("zero_from", [(3, 3), (), (-1,)])
def test_claim_about_the_past_at_no_time_of_the_collection_is_corruption(zero_from: Any) -> None:
    scene = StateHarness()
    scene.append(at(5), up("a", 1))
    image = msgspec.msgpack.decode(encode_state(scene.state)[HEADER:])
    [batch] = image["trace"][1].values()
    batch[2][0][3] = zero_from
    with pytest.raises(CorruptionError):
        decode_state(sealed(EnvelopeKind.STATE, msgspec.msgpack.encode(image)))
    batch[2][0][3] = (4,)
    decode_state(sealed(EnvelopeKind.STATE, msgspec.msgpack.encode(image)))


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

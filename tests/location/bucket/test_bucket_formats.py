"""The objects of a bucket: what was written comes back, and any damage to it is found."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from itertools import pairwise

import pytest
from broken_objects import BrokenObjects
from hypothesis import given
from hypothesis import strategies as st

from timespine.errors import CorruptionError, VersionError
from timespine.location.bucket import formats
from timespine.location.bucket.consensus import BucketConsensus
from timespine.location.bucket.effects import StoredObject
from timespine.location.bucket.formats import (
    Base,
    LogIndex,
    PackedEntry,
    PackStretch,
    WriteGroup,
    begin_pack,
    checksum_of,
    decode_base,
    decode_frames,
    decode_index,
    decode_slot,
    encode_base,
    encode_frame,
    encode_index,
    encode_slot,
    slot_name,
    slot_of,
)
from timespine.location.bucket.logs import Log, Logs
from timespine.location.bucket.replica import CheckpointLimits
from timespine.location.consensus import LogEntry
from timespine.testing.conformance.consensus import fill

ID = bytes(range(16))
GROUP = WriteGroup(ID, (("a", None, b"x"), ("b", 3, b"")), (("c", 7),))
STRETCH = PackStretch("pack/1", 4, 8, (25, 30))
INDEX = LogIndex(9, 77, {"a": (STRETCH, PackStretch("pack/2", 6, 8, (20,)))}, {"pack/1": 63, "pack/2": 28})
BASE = Base(9, "index/9", 4)

STORED: list[tuple[bytes, Callable[[bytes], object]]] = [
    (encode_slot(5, 66, (GROUP,)), lambda data: decode_slot(5, data)),
    (encode_index("index/9", INDEX), lambda data: decode_index("index/9", data)),
    (encode_base(BASE), decode_base),
]


def test_objects_come_back_as_they_were() -> None:
    slot, index, base = (decode(data) for data, decode in STORED)
    assert slot == (5, 66, (GROUP,), checksum_of(STORED[0][0]))
    assert (index, base) == (INDEX, BASE)


@given(data=st.data())
def test_a_changed_byte_is_never_taken_for_another_object(data: st.DataObject) -> None:
    stored, decode = data.draw(st.sampled_from(STORED))
    place = data.draw(st.integers(0, len(stored) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda byte: byte != stored[place]))
    with pytest.raises(CorruptionError):
        decode(stored[:place] + bytes([byte]) + stored[place + 1 :])


@given(data=st.data())
def test_a_shorter_or_longer_object_is_refused(data: st.DataObject) -> None:
    stored, decode = data.draw(st.sampled_from(STORED))
    length = data.draw(st.integers(0, len(stored) - 1))
    for damaged in (stored[:length], stored + stored[:1], stored + stored[: length + 1]):
        with pytest.raises(CorruptionError):
            decode(damaged)


def test_an_object_under_another_name_is_refused() -> None:
    with pytest.raises(CorruptionError, match="not the object of this name"):
        decode_slot(6, encode_slot(5, 66, (GROUP,)))
    with pytest.raises(CorruptionError, match="not the object of this name"):
        decode_index("index/8", encode_index("index/9", INDEX))


def test_an_object_of_another_kind_or_of_the_future_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CorruptionError, match="kind 76"):
        decode_index(slot_name(5), encode_slot(5, 66, (GROUP,)))
    monkeypatch.setattr(formats, "FIRST_VERSION", 3)
    newer = encode_base(BASE)
    monkeypatch.undo()
    with pytest.raises(VersionError, match="version 3"):
        decode_base(newer)


@pytest.mark.parametrize(
    "groups",
    [
        (),
        (WriteGroup(ID, ()),),
        (WriteGroup(ID, (("A", None, b""),)),),
        (WriteGroup(ID, (), (("a/b", 1),)),),
        (WriteGroup(ID, (("a", None, b""), ("a", 0, b""))),),
        (WriteGroup(ID, (("a", None, b""),)), WriteGroup(bytes(16), (("a", 0, b""),))),
        (WriteGroup(b"short", (("a", None, b""),)),),
        (WriteGroup(ID, (("a", -1, b""),)),),
    ],
)
def test_a_slot_that_no_writer_puts_is_refused(groups: tuple[WriteGroup, ...]) -> None:
    with pytest.raises(CorruptionError):
        decode_slot(5, encode_slot(5, 66, groups))


@pytest.mark.parametrize(
    ("logs", "packs"),
    [
        ({"a": ()}, {}),
        ({"A": (STRETCH,)}, {"pack/1": 63}),
        ({"a": (STRETCH,)}, {"pack/1": 62}),
        ({"a": (STRETCH,)}, {}),
        ({"a": (STRETCH, STRETCH)}, {"pack/1": 63}),
        ({"a": (PackStretch("pack/1", 0, 8, ()),)}, {"pack/1": 63}),
        ({"a": (PackStretch("pack/1", 0, 8, (19,)),)}, {"pack/1": 63}),
    ],
)
def test_an_index_that_no_checkpoint_makes_is_refused(
    logs: dict[str, tuple[PackStretch, ...]], packs: dict[str, int]
) -> None:
    with pytest.raises(CorruptionError):
        decode_index("index/9", encode_index("index/9", LogIndex(9, 77, logs, packs)))


@pytest.mark.parametrize("base", [Base(3, "index/3", 4), Base(3, "", 1), Base(0, "index/0", 0)])
def test_a_base_that_contradicts_itself_is_refused(base: Base) -> None:
    with pytest.raises(CorruptionError, match="base of the log says"):
        decode_base(encode_base(base))


def test_a_slot_that_does_not_follow_or_fit_changes_nothing() -> None:
    logs = Logs()
    first = decode_slot(1, encode_slot(1, 0, (WriteGroup(ID, (("a", None, b"x"),)),)))
    logs.apply(first)
    wrong = [
        encode_slot(2, 1, (WriteGroup(ID, (("a", 0, b"x"),)),)),
        encode_slot(2, first.checksum, (WriteGroup(ID, (("b", None, b"x"), ("a", 1, b"x"))),)),
    ]
    for data in wrong:
        with pytest.raises(CorruptionError):
            logs.apply(decode_slot(2, data))
    assert (logs.slot, logs.head("a"), logs.head("b")) == (1, 0, None)


@given(lengths=st.lists(st.integers(1, 4), min_size=1, max_size=6), recent=st.integers(0, 4), below=st.integers(0, 40))
def test_a_cut_drops_what_is_below_from_packs_and_memory(lengths: list[int], recent: int, below: int) -> None:
    starts = [sum(lengths[:place]) for place in range(len(lengths) + 1)]
    log = Log(tuple(PackStretch("pack/1", a, 8 + 20 * a, (20,) * (b - a)) for a, b in pairwise(starts)))
    log.recent = [PackedEntry(ID, b"%d" % number) for number in range(recent)]
    head = log.head
    dropped = log.cut(below)
    assert (dropped, log.first, log.head) == (min(below, head), min(below, head), head)
    places = [each.offset + 20 * place for each in log.packed for place in range(len(each.lengths))]
    assert places == [8 + 20 * seqno for seqno in range(log.first, starts[-1])]
    kept = max(log.first - starts[-1], 0)
    assert [entry.data for entry in log.recent] == [b"%d" % number for number in range(kept, recent)]


def test_frames_of_a_pack_are_checked_with_their_place() -> None:
    entries = [PackedEntry(ID, b"one"), PackedEntry(ID[::-1], b"")]
    frames = [encode_frame("a", 4 + place, entry) for place, entry in enumerate(entries)]
    stretch = PackStretch("pack/1", 4, len(begin_pack("pack/1")), tuple(map(len, frames)))
    data = b"".join(frames)
    assert decode_frames("a", stretch, data) == entries
    wrong = [("b", stretch, data), ("a", PackStretch("pack/1", 5, 8, stretch.lengths), data), ("a", stretch, data[:-1])]
    wrong += [("a", stretch, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]) for at in range(len(data))]
    for key, place, damaged in wrong:
        with pytest.raises(CorruptionError):
            decode_frames(key, place, damaged)


@pytest.mark.parametrize(
    ("name", "slot"), [(slot_name(12), 12), ("pack/0000000000000003-ab-0", 3), ("pack/readme", None), ("log/12", None)]
)
def test_names_give_their_slot(name: str, slot: int | None) -> None:
    assert slot_of(name) == slot


def test_damage_to_any_object_is_an_error_and_never_other_entries() -> None:
    objects = BrokenObjects()
    log = BucketConsensus(objects, limits=CheckpointLimits(slots=4, pack_bytes_small=0))
    fill(log, "a", 14)
    wanted = [LogEntry(number, b"%d" % number) for number in range(14)]
    found = 0
    for name, stored in sorted(objects.objects.items()):
        for place in range(0, len(stored.data), 3):
            flipped = bytes([stored.data[place] ^ 0x10])
            objects.objects[name] = StoredObject(stored.data[:place] + flipped + stored.data[place + 1 :], "damaged")
            with contextlib.suppress(CorruptionError):
                assert BucketConsensus(objects).scan("a") == wanted
                found -= 1
            found += 1
        objects.objects[name] = stored
    assert found > 100
    assert BucketConsensus(objects).scan("a") == wanted

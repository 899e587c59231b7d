"""The pages about a store in a bucket are true byte by byte: their examples are decoded, and encoded again."""

import re
import zlib
from pathlib import Path

import msgspec
import pytest
from pages import BLOCK

from timespine.client.maintenance.sweep_claim import SWEEPS, take_sweep_turn
from timespine.errors import CorruptionError, VersionError
from timespine.location.bucket import formats
from timespine.location.bucket.consensus import BucketConsensus
from timespine.location.consensus import EPOCH
from timespine.location.opening import descriptor
from timespine.location.opening.descriptor import decode_descriptor
from timespine.testing.memory_objects import MemoryObjects

FORMAT = Path(__file__).parents[2] / "docs" / "format"


def listed_objects():
    """Return the objects that the page lists byte by byte, by name."""
    objects = {}
    for language, listing in BLOCK.findall((FORMAT / "bucket.md").read_text()):
        if language == "text":
            name, *lines = listing.splitlines()
            leading = (re.match(r"(?:\s*[0-9a-f]{2}(?=\s|$))*", line)[0] for line in lines)
            objects[name] = bytes.fromhex("".join(leading))
    return objects


LISTED = listed_objects()


def test_every_kind_and_version_is_listed():
    written = {(formats.SLOT, version) for version in range(formats.FIRST_VERSION, formats.VERSION + 1)}
    written |= {(kind, formats.FIRST_VERSION) for kind in (formats.INDEX, formats.PACK, formats.BASE)}
    assert {(data[2], data[3]) for data in LISTED.values()} == written


@pytest.mark.parametrize("name", LISTED)
def test_the_checksums_of_the_listings_are_those_that_the_page_describes(name):
    data = LISTED[name]
    payload = b"" if data[2] == formats.PACK else data[8:]
    assert data[:2] == b"TB"
    assert zlib.crc32(data[:4] + name.encode() + payload) == int.from_bytes(data[4:8], "big")


def test_the_listings_are_decoded_and_encoded_again():
    slots = [name for name in LISTED if name.startswith(formats.LOG_PREFIX)]
    entries = [formats.decode_slot(formats.slot_of(name), LISTED[name]) for name in slots]
    for name, entry in zip(slots, entries, strict=True):
        assert formats.encode_slot(entry.slot, entry.previous, entry.groups) == LISTED[name]
    assert [entry.previous for entry in entries] == [0, entries[0].checksum]
    assert entries[1].groups[1].gone == (("old", 7),)

    base = formats.decode_base(LISTED["base"])
    index = formats.decode_index(base.index, LISTED[base.index])
    assert formats.encode_base(base) == LISTED["base"]
    assert formats.encode_index(base.index, index) == LISTED[base.index]
    assert (index.slot, index.checksum) == (base.slot, entries[-1].checksum)

    ((key, (stretch,)),) = index.logs.items()
    pack = LISTED[stretch.pack]
    packed = formats.decode_frames(key, stretch, pack[stretch.offset :])
    frames = [formats.encode_frame(key, seqno, entry) for seqno, entry in enumerate(packed)]
    assert formats.begin_pack(stretch.pack) + b"".join(frames) == pack
    assert index.packs == {stretch.pack: len(pack)}
    written = [(group.id, data) for entry in entries for group in entry.groups for _, _, data in group.writes]
    assert [(entry.id, entry.data) for entry in packed] == written


@pytest.mark.parametrize("name", LISTED)
def test_a_flipped_bit_or_a_higher_version_of_a_listing_is_found(name):
    def decode(data):
        if data[2] == formats.PACK:
            stretch = formats.PackStretch(name, 0, 8, (25, 26))
            return formats.decode_frames("orders", stretch, data[8:])
        if name == formats.BASE_NAME:
            return formats.decode_base(data)
        if name.startswith(formats.INDEX_PREFIX):
            return formats.decode_index(name, data)
        return formats.decode_slot(formats.slot_of(name), data)

    data = LISTED[name]
    decode(data)
    with pytest.raises(CorruptionError):
        decode(data[:-1] + bytes([data[-1] ^ 1]))
    if data[2] != formats.PACK:  # readers go to entries of a pack and skip its envelope
        newer = data[:3] + bytes([formats.VERSION + 1])
        checksum = zlib.crc32(newer + name.encode() + data[8:])
        with pytest.raises(VersionError):
            decode(newer + checksum.to_bytes(4, "big") + data[8:])


def test_the_logs_of_epochs_and_sweeps_are_as_the_page_describes_them():
    page = (FORMAT / "bucket.md").read_text()
    assert f"| `{EPOCH}` | empty" in page
    assert f"| `{SWEEPS}` | 8 bytes" in page
    log = BucketConsensus(MemoryObjects())
    assert (log.epoch, log.head(EPOCH)) == (0, None)
    for epoch in (1, 2):
        assert log.fence() == epoch
        assert (log.head(EPOCH).seqno + 1, log.head(EPOCH).data) == (epoch, b"")
    assert take_sweep_turn(log, 1_767_225_600_000, 3_600_000)
    assert log.head(SWEEPS).data == (1_767_225_600_000).to_bytes(8, "big", signed=True)
    log.close()


# docs/format/descriptor.md


def test_the_example_of_a_descriptor_is_decoded_and_encoded_again():
    ((_, example),) = (block for block in BLOCK.findall((FORMAT / "descriptor.md").read_text()) if block[0] == "text")
    assert decode_descriptor(example.encode(), "s3://bucket/prefix").encode() == example.encode()


def test_every_field_of_a_descriptor_is_described():
    page = (FORMAT / "descriptor.md").read_text()
    described = re.findall(r"^\| `([\w.]+)` \|", page, re.MULTILINE)
    stored = []
    for field in msgspec.structs.fields(descriptor._Stored):
        inner = getattr(field.type, "__struct_fields__", None)
        stored += [field.name] if inner is None else [f"{field.name}.{name}" for name in inner]
    assert described == stored
    assert f"at most {descriptor.BYTES_MAX:,} bytes" in page
    assert f"the version, {descriptor.VERSION}." in page

"""Checkpoints that version 1 wrote stay readable, and every byte of them is checked."""

from __future__ import annotations

import os
import shutil
import zlib
from pathlib import Path

import msgspec
import pytest
from golden_checkpoint import CHECKPOINTS, ORDERS, write_checkpoint, write_followed

import timespine as ts
from timespine.arrangement.follow.checkpoint_origin import CheckpointOrigin
from timespine.arrangement.manifest import read_manifest
from timespine.errors import CorruptionError, VersionError
from timespine.model.frontier import Frontier
from timespine.model.time import less_equal

GOLDEN = Path(__file__).parents[1] / "golden"
NAMES = [*CHECKPOINTS, "orders"]


def copied(name, tmp_path):
    return shutil.copytree(GOLDEN / f"checkpoint-1-{name}", tmp_path / name)


def expected_rows(name, time):
    """The rows as of a time with their counts, summed in plain Python."""
    counts = {}
    for batch in CHECKPOINTS[name][1]():
        for row, at, diff in batch:
            if less_equal(at, time):
                text = repr(sorted(row.items()))
                counts[text] = counts.get(text, 0) + diff
    return {text: count for text, count in counts.items() if count}


def found_rows(view):
    found = {}
    for table in view.scan():
        for row in table.to_pylist():
            diff = row.pop("_diff")
            found[repr(sorted(row.items()))] = diff
    return found


def times_of(name):
    return [(n,) for n in range(3)] if name == "types" else [(0, 0), (0, 2), (1, 0), (1, 1), (1, 2)]


@pytest.mark.parametrize("name", sorted(CHECKPOINTS))
def test_a_golden_checkpoint_has_the_rows_that_were_saved(name, tmp_path):
    folder = copied(name, tmp_path)
    schema, batches, upper = CHECKPOINTS[name]
    with ts.arrangement.open(folder) as opened:
        opened.verify()
        assert (opened.layout.schema, opened.upper, opened.since, opened.number) == (schema, upper, None, 1)
        (batch,) = opened.batches  # saving merges what is small
        assert len(batch.chunks) >= 3
        assert batch.rows == sum(map(len, batches()))
        for time in times_of(name):
            assert found_rows(opened.at(time)) == expected_rows(name, time)


@pytest.mark.parametrize("name", sorted(CHECKPOINTS))
def test_a_spine_goes_on_from_a_golden_checkpoint(name, tmp_path):
    folder = copied(name, tmp_path)
    schema, _, upper = CHECKPOINTS[name]
    with ts.arrangement.Spine(schema, folder=str(folder), threads=False) as spine:
        assert (spine.upper, spine.is_dirty) == (upper, True)
        spine.complete_merges()
        spine.save()
    with ts.arrangement.open(folder) as opened:
        assert opened.number == 2
        for time in times_of(name):
            assert found_rows(opened.at(time)) == expected_rows(name, time)


def test_a_golden_checkpoint_of_a_collection_says_what_its_rows_are_of(tmp_path):
    folder = copied("orders", tmp_path)
    with ts.arrangement.open(folder) as opened:
        rows = [row for table in opened.scan() for row in table.to_pylist()]
        assert sorted(rows, key=lambda row: row["id"]) == ORDERS
        assert opened.get({"customer": "bob"}) == ORDERS[1:2]
        assert (opened.layout.by, opened.upper, opened.since) == (("customer",), Frontier.at(2), Frontier.at(1))
    origin = msgspec.msgpack.decode(read_manifest(str(folder), 1).origin, type=CheckpointOrigin)
    assert (origin.by, origin.columns, origin.condition, origin.history) == ((2,), None, '"#1" < 100', "latest")
    assert origin.commit.upper == Frontier.at(2)
    assert origin.commit.operation == "upsert"


def test_this_version_writes_what_the_golden_checkpoints_are(tmp_path):
    """The same but for random names and ids: a change of the format needs a version, and golden files of its own."""
    for name, (schema, batches, upper) in CHECKPOINTS.items():
        write_checkpoint(str(tmp_path / name), schema, batches(), upper)
    write_followed(str(tmp_path / "orders"))
    for name in NAMES:
        golden, now = (read_manifest(str(each), 1) for each in (GOLDEN / f"checkpoint-1-{name}", tmp_path / name))
        assert (now.schema, now.by, now.is_dirty) == (golden.schema, golden.by, golden.is_dirty)
        assert (now.since, now.upper) == (golden.since, golden.upper)
        assert [each.size for each in now.files] == [each.size for each in golden.files]


# Damage.


def answer(folder):
    """All that a checkpoint says, as numbers and text."""
    with ts.arrangement.open(folder) as opened:
        opened.verify()
        return [opened.number, str(opened.upper), str(opened.since), opened.layout.by, found_rows(opened._view())]


@pytest.mark.parametrize(("name", "step"), [("orders", 1), ("pairs", 1), ("types", 11)])
def test_every_flipped_byte_of_a_checkpoint_is_an_error_or_changes_nothing(name, step, tmp_path):
    folder = copied(name, tmp_path)
    whole = answer(folder)
    refused = {}
    for path in sorted(folder.iterdir()):
        with path.open("r+b", buffering=0) as file:
            data = path.read_bytes()
            for place in range(0, len(data), step):
                byte = data[place]
                os.pwrite(file.fileno(), bytes((byte ^ (1 + place % 255),)), place)
                try:
                    assert answer(folder) == whole
                except (CorruptionError, VersionError):
                    refused[path.name] = refused.get(path.name, 0) + 1
                os.pwrite(file.fileno(), bytes((byte,)), place)
    (batch,) = [path for path in folder.iterdir() if path.suffix == ".batch"]
    flipped = {path.name: -(-path.stat().st_size // step) for path in folder.iterdir()}
    # Nothing reads the list for people. In a batch only zeros before a chunk may change.
    assert set(refused) == {batch.name, "manifest-0000000000000001"}
    assert refused["manifest-0000000000000001"] == flipped["manifest-0000000000000001"]
    assert flipped[batch.name] - refused[batch.name] <= gaps_of(folder) // step + 4


def gaps_of(folder):
    """The bytes of the batch of a checkpoint that belong to no chunk and not to its frame."""
    stored = read_manifest(str(folder), 1)
    with (folder / stored.files[0].name).open("rb") as file:
        data = file.read()
    footer = int.from_bytes(data[-12:-8], "big")
    chunks = msgspec.msgpack.decode(data[-12 - footer + 8 : -12])[2]
    return len(data) - 8 - sum(chunk[1] for chunk in chunks) - footer - 12


@pytest.mark.parametrize("name", NAMES)
def test_every_shorter_file_of_a_checkpoint_is_an_error(name, tmp_path):
    folder = copied(name, tmp_path)
    for path in sorted(folder.iterdir()):
        if path.suffix == ".json":
            continue
        data = path.read_bytes()
        for length in reversed(range(len(data))):
            os.truncate(path, length)
            with pytest.raises(CorruptionError):
                answer(folder)
        path.unlink()
        if path.suffix == ".batch":
            with pytest.raises(CorruptionError):
                answer(folder)
        path.write_bytes(data)


@pytest.mark.parametrize("name", NAMES)
def test_a_payload_that_was_resealed_is_refused_by_the_next_check(name, tmp_path):
    """A checksum that fits says nothing about what it covers: each byte of the payload is still judged."""
    folder = copied(name, tmp_path)
    path = folder / "manifest-0000000000000001"
    data = path.read_bytes()
    whole = answer(folder)
    for place in range(8, len(data)):
        changed = bytearray(data)
        changed[place] ^= 1
        path.write_bytes(resealed(bytes(changed)))
        try:
            found = answer(folder)
        except (CorruptionError, VersionError):
            continue
        # What only the manifest says may differ: the frontiers, and with them the time of the rows.
        assert found[3] == whole[3]
        assert found[4] == whole[4] or found[1] != whole[1]
    path.write_bytes(resealed(data))
    assert answer(folder) == whole


def resealed(data):
    """Bytes with a checksum that fits."""
    head = data[:4]
    return head + zlib.crc32(data[8:], zlib.crc32(head)).to_bytes(4, "big") + data[8:]

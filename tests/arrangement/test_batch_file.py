"""Batches in files are the batches that were written, or an error: never other rows, never fewer."""

from __future__ import annotations

import os

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spine_cases import layouts, pools, tiny, update_tables, updates_of
from test_view_as_of import BY_ID, ORDERS, orders

from timespine.arrangement.batch.batch import Location, batch_of
from timespine.arrangement.batch.batch_file import open_batch, write_batch
from timespine.arrangement.batch.layout import Layout
from timespine.arrangement.checkpoint import CheckpointFolder
from timespine.arrangement.read.view_as_of import ArrangementView
from timespine.columnar.schema.schema import define
from timespine.core.encoding import envelope
from timespine.errors import CorruptionError, UsageError, VersionError
from timespine.model.frontier import Frontier


@given(data=st.data())
def test_a_mapped_batch_is_the_batch_that_was_written(data, tmp_path_factory):
    layout = data.draw(layouts())
    with tiny():
        batch = batch_of(data.draw(update_tables(layout, data.draw(pools(layout)), max_size=24)), layout)
    if batch is None:
        return
    path = str(tmp_path_factory.mktemp("batch") / "one.batch")
    facts = write_batch(path, batch, layout)
    assert os.path.getsize(path) == facts.size
    mapped = open_batch(path, facts, layout)
    for name in ("rows", "negatives", "diff_sum", "nbytes", "earliest", "latest", "first", "last"):
        assert getattr(mapped, name) == getattr(batch, name)
    assert "columns" not in vars(mapped.chunks[0])
    assert updates_of(mapped, layout) == updates_of(batch, layout)
    assert mapped.keys == batch.keys
    assert (mapped.location, mapped.file) == (Location.STORAGE, "one.batch")


def test_a_mapped_batch_takes_no_memory_of_arrow_and_outlives_its_file(tmp_path):
    path = str(tmp_path / "one.batch")
    facts = write_batch(path, batch_of(orders([(n, "a name") for n in range(5000)]), BY_ID), BY_ID)
    before = pa.total_allocated_bytes()
    mapped = open_batch(path, facts, BY_ID)
    view = ArrangementView(BY_ID, [mapped], (0,))
    os.unlink(path)
    assert view.get({"id": 4711}) == [({"id": 4711, "name": "a name"}, 1)]
    assert pa.total_allocated_bytes() - before < 1000


def test_a_fetch_touches_only_chunks_that_keys_lie_in(tmp_path):
    """A chunk that is touched is mapped, and read whole to be verified."""
    path = str(tmp_path / "one.batch")
    by_both = Layout.of(ORDERS, ["id", "name"])
    for layout, keys in ((BY_ID, [{"id": 4}, {"id": 13}]), (by_both, [{"id": 4, "name": ""}, {"id": 13, "name": ""}])):
        with tiny():
            facts = write_batch(path, batch_of(orders([(2 * n, "") for n in range(20)]), layout), layout)

        def touched(wanted, layout=layout, facts=facts):
            mapped = open_batch(path, facts, layout)
            found = ArrangementView(layout, [mapped], (0,)).fetch(wanted)
            return found.column("id").to_pylist(), ["columns" in vars(each) for each in mapped.chunks]

        # Chunks are 0 to 6, 8 to 14, 16 to 22, 24 to 30, 32 to 38.
        assert touched(keys) == ([4], [True, True, False, False, False])
        assert touched([{"id": 7}, {"id": 15}, {"id": -1}, {"id": 40}]) == ([], [False] * 5)
        assert touched([{"id": 38}]) == ([38], [False] * 4 + [True])
        assert touched([{"id": n} for n in range(-3, 50)]) == (list(range(0, 40, 2)), [True] * 5)


def small_file(tmp_path):
    path = tmp_path / "one.batch"
    with tiny(chunk_rows=3):
        batch = batch_of(orders([(n, f"name {n}") for n in range(5)]), BY_ID)
    return path, write_batch(str(path), batch, BY_ID)


def read(path, facts, layout=BY_ID):
    return updates_of(open_batch(str(path), facts, layout), layout)


def test_every_flipped_byte_is_seen_or_changes_nothing(tmp_path):
    path, facts = small_file(tmp_path)
    whole, expected = path.read_bytes(), read(path, facts)
    refused = 0
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes((whole[place] ^ 0x41,)) + whole[place + 1 :])
        try:
            assert read(path, facts) == expected
        except CorruptionError:
            refused += 1
    # What is between chunks is the only thing that may change.
    assert len(whole) - refused < 2 * 64


def test_a_batch_can_be_verified_before_it_is_used(tmp_path):
    path, facts = small_file(tmp_path)
    open_batch(str(path), facts, BY_ID).verify()
    whole = bytearray(path.read_bytes())
    whole[200] ^= 1
    path.write_bytes(whole)
    mapped = open_batch(str(path), facts, BY_ID)
    with pytest.raises(CorruptionError, match="not what was written"):
        mapped.verify()


def test_truncated_missing_and_swapped_files_are_refused(tmp_path):
    path, facts = small_file(tmp_path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CorruptionError):
            read(path, facts)
    path.write_bytes(whole + b"\0")
    with pytest.raises(CorruptionError):
        read(path, facts)
    path.unlink()
    with pytest.raises(CorruptionError, match="cannot be opened"):
        read(path, facts)
    with tiny(chunk_rows=3):
        write_batch(str(path), batch_of(orders([(n, f"nome {n}") for n in range(5)]), BY_ID), BY_ID)
    with pytest.raises(CorruptionError):
        read(path, facts)


def test_a_file_of_another_arrangement_is_refused(tmp_path):
    path, facts = small_file(tmp_path)
    for layout in (Layout.of(ORDERS, ["name"]), Layout.of(define({"id": "int64"}, {"name": "binary"}))):
        with pytest.raises(CorruptionError, match="another arrangement"):
            read(path, facts, layout)


def test_a_file_of_a_newer_version_is_refused_as_such(tmp_path, monkeypatch):
    monkeypatch.setattr(envelope, "VERSION", 2)
    path, facts = small_file(tmp_path)
    monkeypatch.setattr(envelope, "VERSION", 1)
    with pytest.raises(VersionError):
        read(path, facts)


# Checkpoints.


def saved(path):
    """A folder with two checkpoints of two batches."""
    folder = CheckpointFolder(str(path), BY_ID)
    batches = [folder.write(batch_of(orders([(n, "")]), BY_ID)) for n in (1, 2)]
    names = [batch.file for batch in batches]
    folder.sync(names)
    folder.write_manifest(1, names[:1], True, Frontier.at(3), Frontier.at(5))
    folder.write_manifest(2, names, False, None, None)
    folder.close()
    return names


def test_a_checkpoint_is_what_was_saved_and_lists_its_files(tmp_path):
    names = saved(tmp_path / "folder")
    folder = CheckpointFolder(str(tmp_path / "folder"), BY_ID, is_read_only=True)
    newest, older = folder.manifests()
    assert [each.name for each in newest.files] == names
    assert (newest.number, newest.is_dirty, newest.since, newest.upper) == (2, False, None, None)
    assert (older.is_dirty, older.since, older.upper) == (True, Frontier.at(3), Frontier.at(5))
    assert folder.listed() == sorted(names)
    assert updates_of(folder.open(names[1]), BY_ID) == [(((1, 2), (1, b"")), (0,), 1)]
    listing = (tmp_path / "folder" / "files-0000000000000001.json").read_text()
    assert names[0] in listing
    assert names[1] not in listing


def test_what_is_spilled_is_mapped(tmp_path):
    folder = CheckpointFolder(str(tmp_path), BY_ID)
    stored = folder.write(batch_of(orders([(1, "a")]), BY_ID), frees_memory=True)
    assert not stored.in_memory
    assert updates_of(stored, BY_ID) == [(((1, 1), (1, b"a")), (0,), 1)]


def test_a_damaged_manifest_is_an_error_and_not_an_older_checkpoint(tmp_path):
    saved(tmp_path)
    path = tmp_path / "manifest-0000000000000002"
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes((whole[place] ^ 1,)) + whole[place + 1 :])
        with pytest.raises((CorruptionError, VersionError)):
            CheckpointFolder(str(tmp_path), BY_ID, is_read_only=True).manifests()
    path.write_bytes(whole)
    path.rename(tmp_path / "manifest-0000000000000003")
    with pytest.raises(CorruptionError, match="not the manifest"):
        CheckpointFolder(str(tmp_path), BY_ID, is_read_only=True).manifests()


def test_what_an_ended_process_left_half_written_goes_when_the_next_one_opens_the_folder(tmp_path):
    saved(tmp_path)
    left = ["files-0000000000000009.json", ".manifest-0000000000000003.tmp", ".files-0000000000000003.json.tmp"]
    for name in left:
        (tmp_path / name).write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("of a user")
    before = {each.name for each in tmp_path.iterdir()}
    CheckpointFolder(str(tmp_path), BY_ID, is_read_only=True)
    assert {each.name for each in tmp_path.iterdir()} == before
    CheckpointFolder(str(tmp_path), BY_ID).close()
    assert {each.name for each in tmp_path.iterdir()} == before - set(left)


def test_one_spine_at_a_time_writes_to_a_folder_of_one_arrangement(tmp_path):
    folder = CheckpointFolder(str(tmp_path / "folder"), BY_ID)
    with pytest.raises(UsageError, match="another"):
        CheckpointFolder(str(tmp_path / "folder"), BY_ID)
    folder.close()
    saved(tmp_path / "folder")
    with pytest.raises(UsageError, match="another arrangement"):
        CheckpointFolder(str(tmp_path / "folder"), Layout.of(ORDERS, ["name"])).manifests()
    with pytest.raises(UsageError, match="no folder"):
        CheckpointFolder(str(tmp_path / "none"), BY_ID, is_read_only=True)
    with pytest.raises(CorruptionError, match="names"):
        folder.open("0" * 32 + ".batch")


def test_deleted_manifests_and_files_are_gone_and_missing_ones_no_error(tmp_path):
    names = saved(tmp_path)
    folder = CheckpointFolder(str(tmp_path), BY_ID)
    folder.delete([1, 7], [names[0], "0" * 32 + ".batch"])
    assert folder.listed() == [names[1]]
    assert [each.number for each in folder.manifests()] == [2]

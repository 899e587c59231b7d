"""Planted bugs in checkpoints of arrangements, which histories with arrangements are to notice: see `planted.py`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

from mutations import bug, in_arrangements, patched

from timespine.arrangement import checkpoint
from timespine.arrangement.checkpoint import CheckpointFolder
from timespine.arrangement.follow.begin_following import Beginning
from timespine.arrangement.manifest import manifest_name
from timespine.model.frontier import Frontier


@in_arrangements
@bug
def a_checkpoint_is_deleted_beside_its_reader() -> Iterator[None]:
    def delete(folder, number):
        path = os.path.join(folder, manifest_name(number))
        if os.path.exists(path):
            os.unlink(path)
        return True

    with patched(checkpoint, "delete_unless_pinned", delete):
        yield


@in_arrangements
@bug
def files_of_a_checkpoint_are_deleted_beside_its_reader() -> Iterator[None]:
    def files_of(self, number):
        return ()

    with patched(CheckpointFolder, "_files_of", files_of):
        yield


@in_arrangements
@bug
def a_manifest_names_files_that_are_not_durable() -> Iterator[None]:
    def sync(self, names):
        checkpoint.sync_path(self.path)

    with patched(CheckpointFolder, "sync", sync):
        yield


@in_arrangements
@bug
def a_manifest_is_written_in_its_place() -> Iterator[None]:
    def put(self, name, data):
        with open(checkpoint.open_regular(self._at(name), os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            checkpoint.sync(file.fileno())

    with patched(CheckpointFolder, "_put", put):
        yield


@in_arrangements
@bug
def a_manifest_has_a_later_upper_than_its_rows() -> Iterator[None]:
    real = CheckpointFolder.write_manifest

    def write_manifest(self, number, names, is_dirty, since, upper):
        later = upper if upper.is_closed else Frontier.at(upper.time + 1)
        real(self, number, names, is_dirty, since, later)

    with patched(CheckpointFolder, "write_manifest", write_manifest):
        yield


@in_arrangements
@bug
def a_restart_skips_what_was_committed_meanwhile() -> Iterator[None]:
    real = Beginning._from_checkpoint

    def from_checkpoint(self, schema_id, named, layout, folder, upper):
        begun = real(self, schema_id, named, layout, folder, upper)
        now = begun.feed._handle.known().upper
        if not now.is_closed:
            begun.feed._through = begun.feed._taken = now.time - 1
            begun.spine._driver.levels = replace(begun.spine._driver.levels, upper=now)
        return begun

    with patched(Beginning, "_from_checkpoint", from_checkpoint):
        yield


@in_arrangements
@bug
def files_of_a_dead_process_are_not_listed() -> Iterator[None]:
    def listed(self):
        return []

    with patched(CheckpointFolder, "listed", listed):
        yield

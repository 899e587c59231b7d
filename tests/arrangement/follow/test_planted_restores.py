"""Planted bugs in going on from a checkpoint: a property that holds without them notices each."""

from __future__ import annotations

import contextlib
import random
import shutil
from dataclasses import replace
from unittest import mock

import pyarrow as pa
import pytest

import timespine as ts
from timespine.arrangement.arrangement import Arrangement
from timespine.arrangement.checkpoint import CheckpointFolder
from timespine.arrangement.follow import begin_following
from timespine.arrangement.follow.begin_following import Beginning
from timespine.arrangement.follow.save_checkpoints import Saving
from timespine.client.collection import Collection
from timespine.errors import SinceError
from timespine.model.frontier import Frontier

KEY = {"id": "int64"}
VALUE = {"name": "string"}


def run(folder, seed, runs=6):
    """Restart with changes, expiry, evolution and backups in between: all rows are those of the collection."""
    draw = random.Random(seed)
    place, index_folder, backup = folder / "store", folder / "index", folder / "backup"
    with ts.open(place) as store:
        store.create("items", key=KEY, value=VALUE, timeline="counter").append(_some(draw))
    for number in range(runs):
        with ts.open(place) as store:
            items = store["items"]
            for _ in range(draw.randrange(3)):
                items.upsert(_some(draw))
            if draw.random() < 0.3:
                items.expire(items.upper.time - 1)
            if draw.random() < 0.25:
                items.evolve(add={f"c{number}": ("int64", number)})
            with items.arrange(folder=index_folder) as index:
                _compare(items, index)
                for _ in range(draw.randrange(3)):
                    items.upsert(_some(draw))
                    if draw.random() < 0.7:
                        _compare(items, index)
                    if draw.random() < 0.5:
                        index.save()
                if draw.random() < 0.5:
                    _compare(items, index)
        if draw.random() < 0.3 and backup.exists():
            shutil.rmtree(place)
            shutil.copytree(backup, place)
        elif draw.random() < 0.4:
            shutil.rmtree(backup, ignore_errors=True)
            shutil.copytree(place, backup)


def _some(draw):
    chosen = draw.sample(range(12), draw.randrange(1, 5))
    return [{"id": n, "name": str(draw.randrange(1000))} for n in chosen]


def _compare(items, index):
    found = pa.concat_tables([items.snapshot().to_arrow().slice(0, 0), *index.scan()])
    assert sorted(found.to_pylist(), key=str) == sorted(items.snapshot().to_arrow().to_pylist(), key=str)


def unguarded():
    """Without the guard that notices a feed which does not go on where the spine ends."""
    return mock.patch.object(Arrangement, "_is_gapless", return_value=True)


def the_frontier_is_one_too_low():
    real = Collection.subscribe

    def subscribe(self, as_of=None, **options):
        return real(self, max(as_of - 1, 0) if as_of is not None else None, **options)

    return _both(mock.patch.object(Collection, "subscribe", subscribe), unguarded())


def the_frontier_is_one_too_high():
    """The change at the upper itself is lost: or it is not there yet, and waited for."""
    real = Beginning._from_checkpoint

    def from_checkpoint(self, schema_id, named, layout, folder, upper):
        begun = real(self, schema_id, named, layout, folder, upper)
        state = begun.feed._handle.state()
        if upper.time < state.upper.time:
            begun.feed._through = begun.feed._taken = upper.time
            begun.spine._driver.levels = replace(begun.spine._driver.levels, upper=Frontier.at(upper.time + 1))
        return begun

    return mock.patch.object(Beginning, "_from_checkpoint", from_checkpoint)


def any_checkpoint_fits():
    return mock.patch.object(begin_following, "misfit", return_value=None)


def a_backup_is_not_noticed():
    real = begin_following.misfit

    def misfit(stored, wanted, schema, state):
        reason = real(stored, wanted, schema, state)
        return None if reason is not None and "backup" in reason else reason

    return mock.patch.object(begin_following, "misfit", misfit)


def history_that_is_gone_is_passed_over():
    real = Collection.subscribe

    def subscribe(self, as_of=None, **options):
        try:
            return real(self, as_of, **options)
        except SinceError:
            return real(self, None, **options)

    return _both(mock.patch.object(Collection, "subscribe", subscribe), unguarded())


def the_manifest_has_a_later_upper_than_its_files():
    real = CheckpointFolder.write_manifest

    def write_manifest(self, number, names, is_dirty, since, upper):
        real(self, number, names[:-1] if len(names) > 1 else names, is_dirty, since, upper)

    return mock.patch.object(CheckpointFolder, "write_manifest", write_manifest)


def what_is_saved_is_not_what_is_written():
    real = Saving.save

    def save(self, takes):
        spine = self._followed.spine
        before, spine._driver.levels = (
            spine._driver.levels,
            replace(spine._driver.levels, upper=Frontier.at(spine.upper.time + 1)),
        )
        try:
            return real(self, takes)
        finally:
            spine._driver.levels = replace(spine._driver.levels, upper=before.upper)

    return mock.patch.object(Saving, "save", save)


@contextlib.contextmanager
def _both(*patches):
    with contextlib.ExitStack() as stack:
        for each in patches:
            stack.enter_context(each)
        yield


BUGS = {
    "the changes at the upper are taken twice": the_frontier_is_one_too_low,
    "the frontier is one too high": the_frontier_is_one_too_high,
    "any checkpoint fits": any_checkpoint_fits,
    "a backup is not noticed": a_backup_is_not_noticed,
    "history that is gone is passed over": history_that_is_gone_is_passed_over,
    "the manifest has a later upper than its files": the_manifest_has_a_later_upper_than_its_files,
    "what is saved is not what is written": what_is_saved_is_not_what_is_written,
}
SEEDS = 25


def test_without_a_planted_bug_every_restart_is_exact(tmp_path):
    for seed in range(8):
        run(tmp_path / str(seed), seed)


@pytest.mark.parametrize("name", sorted(BUGS))
def test_a_planted_bug_of_restarts_is_noticed(tmp_path, name):
    with BUGS[name]():
        for seed in range(SEEDS):
            try:
                run(tmp_path / str(seed), seed)
            except Exception:
                return
    pytest.fail("no restart noticed it")

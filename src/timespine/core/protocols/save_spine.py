"""Save a spine of an arrangement as a checkpoint, and restore it: generators of effects.

A checkpoint names files. Save writes only the batches that have none yet, so a checkpoint of unchanged data is one
small manifest. A file is durable before a manifest names it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from timespine.core.arrangement import level_transitions, save_transitions
from timespine.core.arrangement.levels import LeveledBatch, LevelRules, SpineLevels
from timespine.core.arrangement.spine_files import MANIFESTS_KEPT, Manifest
from timespine.core.effects import (
    ListFiles,
    OpenBatch,
    Protocol,
    ReadManifests,
    SavedManifest,
    Swap,
    SyncFiles,
    WaitUntil,
    WriteBatch,
    WriteManifest,
)
from timespine.core.protocols.merge_spine import WAIT_MS, delete_garbage, merge_small
from timespine.errors import Determinate

B = TypeVar("B", bound=LeveledBatch)


def save(limit_ms: int = WAIT_MS) -> Protocol[Manifest]:
    """Make a checkpoint of the state as it is now, while others read, insert and merge; return its manifest.

    After an error the checkpoint is not there, with one exception: if writing the manifest itself fails, it may be
    there, and its files stay until a later checkpoint succeeds.
    """
    levels: SpineLevels[Any] = yield Swap(level_transitions.look)
    if sum(batch.file not in levels.files.owned for batch in levels.slots[0].loose) > 1:
        # One small file instead of dozens.
        yield from merge_small(batches_min=2)
    levels, manifest = yield from _begin(limit_ms)
    written: list[tuple[Any, Any]] = []
    try:
        for batch in save_transitions.unsaved(levels):
            written.append((batch, (yield WriteBatch(batch))))
        manifest = yield Swap(partial(save_transitions.extend_save, number=manifest.number, written=tuple(written)))
        yield SyncFiles(_not_durable_yet(levels, manifest))
    except Exception:
        names = tuple(stored.file for _, stored in written)
        yield Swap(partial(save_transitions.withdraw_save, number=manifest.number, names=names))
        yield from delete_garbage()
        raise
    saved = SavedManifest(manifest, levels.is_dirty, levels.since, levels.upper)
    try:
        yield WriteManifest(saved)
    except Exception:
        yield Swap(save_transitions.doubt_save)
        raise
    yield Swap(partial(save_transitions.confirm_save, number=manifest.number))
    yield from delete_garbage()
    return saved.manifest


def _begin(limit_ms: int) -> Protocol[tuple[SpineLevels[Any], Manifest]]:
    """Begin a checkpoint, after the one that is under way."""
    while True:
        if not (yield WaitUntil(save_transitions.is_not_saving, limit_ms)):
            raise Determinate(f"another save did not end within {limit_ms / 1000} s: try again later")
        begun: tuple[SpineLevels[Any], Manifest] | None = yield Swap(save_transitions.begin_save)
        if begun is not None:
            return begun


def _not_durable_yet(levels: SpineLevels[Any], manifest: Manifest) -> tuple[str, ...]:
    """Return the files of a manifest that no confirmed one names."""
    durable = {name for each in levels.files.manifests if each.is_confirmed for name in each.files}
    return tuple(name for name in manifest.files if name not in durable)


def restore(rules: LevelRules) -> Protocol[SpineLevels[Any]]:
    """Read the newest checkpoint; return its state, with everything that it does not need as garbage.

    Without any checkpoint the state is empty. Raises CorruptionError if a file is missing or damaged.
    """
    found: list[SavedManifest] = yield ReadManifests()
    newest = found[0] if found else SavedManifest(Manifest(0, ()), False, None, None)
    batches = []
    for name in newest.manifest.files:
        batches.append((yield OpenBatch(name)))
    kept = tuple(each.manifest for each in reversed(found[:MANIFESTS_KEPT]))
    levels = save_transitions.restored(rules, tuple(batches), kept, newest.is_dirty, newest.since, newest.upper)
    dropped = tuple(each.manifest.number for each in found[MANIFESTS_KEPT:])
    levels = replace(levels, files=replace(levels.files, dropped_manifests=dropped))
    listed: list[str] = yield ListFiles()
    return save_transitions.discard_files(levels, tuple(listed))[0]

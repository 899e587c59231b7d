"""Which files of a spine are named by a checkpoint or a batch, and which are garbage.

A file goes when neither the newest two confirmed manifests, nor one in doubt, nor a batch of the state names it. A
manifest is in doubt from before it is written until it is known to be durable: while it may be there, a restore may
begin at it, so its files stay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

MANIFESTS_KEPT = 2
"""Confirmed manifests that are kept: if the newest one turns out to be damaged, the other one is still whole."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A checkpoint: the files that it names."""

    number: int
    """Later checkpoints have larger numbers."""
    files: tuple[str, ...]
    is_confirmed: bool = True
    """Whether it is known to be durable. One that is not may be there."""


@dataclass(frozen=True, slots=True)
class SpineFiles:
    """The files of a spine in its folder."""

    owned: frozenset[str] = frozenset()
    """Files that a batch or a manifest may name. A batch may also have a file of another spine, whose fork this is."""
    manifests: tuple[Manifest, ...] = ()
    """The manifests that may be there, the oldest first."""
    saving: int | None = None
    """The number of the manifest that a save prepares, if there is one: one save at a time."""
    dropped_manifests: tuple[int, ...] = ()
    """The numbers of manifests that are still to be deleted."""
    garbage: tuple[str, ...] = ()
    """Files that nothing names, and that are still to be deleted."""


def own(files: SpineFiles, names: tuple[str, ...]) -> SpineFiles:
    """Own new files."""
    return replace(files, owned=files.owned.union(names))


def drop_unnamed(files: SpineFiles, live: frozenset[str]) -> SpineFiles:
    """Make garbage of the owned files that no manifest names and no batch has."""
    unnamed = files.owned - live - {name for manifest in files.manifests for name in manifest.files}
    return replace(files, owned=files.owned - unnamed, garbage=(*files.garbage, *sorted(unnamed)))


def begin_manifest(files: SpineFiles, names: tuple[str, ...]) -> tuple[SpineFiles, Manifest]:
    """Record a manifest that will be written: from now on its files stay."""
    number = 1 + max((*files.dropped_manifests, *(manifest.number for manifest in files.manifests)), default=0)
    manifest = Manifest(number, names, is_confirmed=False)
    return replace(files, manifests=(*files.manifests, manifest), saving=number), manifest


def extend_manifest(files: SpineFiles, number: int, names: tuple[str, ...]) -> SpineFiles:
    """Add new files to a manifest that is not written yet, and own them."""
    manifests = tuple(
        replace(each, files=(*each.files, *names)) if each.number == number else each for each in files.manifests
    )
    return replace(own(files, names), manifests=manifests)


def withdraw_manifest(files: SpineFiles, number: int) -> SpineFiles:
    """Forget a manifest that was never written."""
    return replace(files, manifests=tuple(each for each in files.manifests if each.number != number), saving=None)


def doubt_manifest(files: SpineFiles) -> SpineFiles:
    """End a save whose manifest may be there: its files stay until two later ones are confirmed."""
    return replace(files, saving=None)


def confirm_manifest(files: SpineFiles, number: int) -> SpineFiles:
    """Record that a manifest is durable, and drop those before the newest two confirmed ones."""
    known = tuple(replace(each, is_confirmed=each.is_confirmed or each.number == number) for each in files.manifests)
    confirmed = [each.number for each in known if each.is_confirmed]
    oldest = confirmed[-MANIFESTS_KEPT] if len(confirmed) >= MANIFESTS_KEPT else 0
    dropped = tuple(each.number for each in known if each.number < oldest)
    kept = tuple(each for each in known if each.number >= oldest)
    return replace(files, manifests=kept, saving=None, dropped_manifests=(*files.dropped_manifests, *dropped))


def forget_deleted(files: SpineFiles, names: tuple[str, ...], manifests: tuple[int, ...]) -> SpineFiles:
    """Record that garbage was deleted."""
    return replace(
        files,
        garbage=tuple(name for name in files.garbage if name not in names),
        dropped_manifests=tuple(number for number in files.dropped_manifests if number not in manifests),
    )

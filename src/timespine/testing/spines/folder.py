"""The folder of a simulated spine: files are durable only once synced, manifests are whole or not there."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from timespine.core.effects import SavedManifest
from timespine.errors import CorruptionError
from timespine.model.frontier import Frontier
from timespine.model.oracle import Update
from timespine.testing.spines.naive_batches import NaiveBatch


@dataclass(slots=True)
class StoredFile:
    """A file of a batch."""

    batch: NaiveBatch
    is_synced: bool = False


class SimulatedFolder:
    """Files and manifests by name and number."""

    def __init__(self, fresh: Callable[[], int]) -> None:
        self.files: dict[str, StoredFile] = {}
        self.manifests: dict[int, SavedManifest] = {}
        self.expected: dict[int, tuple[list[Update], bool, Frontier | None, int]] = {}
        """What each checkpoint has to bring back, by its number: updates, the dirty flag, the upper, the floor."""
        self.is_full = False
        self._fresh = fresh

    def write(self, batch: NaiveBatch, in_memory: bool) -> NaiveBatch:
        """Write a batch to a new file."""
        name = f"batch-{self._fresh()}"
        stored = batch.stored(name, in_memory)
        self.files[name] = StoredFile(stored)
        return stored

    def sync(self, names: tuple[str, ...]) -> None:
        """Make files durable."""
        for name in names:
            if name in self.files:
                self.files[name].is_synced = True

    def open(self, name: str) -> NaiveBatch:
        """Open a file as a restored process does: its pages are mapped."""
        if name not in self.files:
            raise CorruptionError(f"{name} is missing")
        return self.files[name].batch.stored(name, in_memory=False)

    def newest(self) -> list[SavedManifest]:
        """List the manifests, the newest first."""
        return [self.manifests[number] for number in sorted(self.manifests, reverse=True)]

    def delete(self, manifests: tuple[int, ...], names: tuple[str, ...]) -> None:
        """Delete manifests and files."""
        for number in manifests:
            self.manifests.pop(number, None)
        for name in names:
            self._drop(name)

    def _drop(self, name: str) -> None:
        file = self.files.pop(name, None)
        if file is not None:
            file.batch.deleted()

    def lose_power(self, chance: random.Random) -> None:
        """Lose about half of what was not synced."""
        for name, file in list(self.files.items()):
            if not file.is_synced and chance.random() < 0.5:
                self._drop(name)

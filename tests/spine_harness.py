"""A spine of naive batches for tests: it carries out the effects of one protocol at a time, and fails on request."""

from dataclasses import replace

from timespine.core.arrangement.levels import LevelRules, SpineLevels
from timespine.core.arrangement.memory_pressure import Resources
from timespine.core.effects import (
    DeleteFiles,
    DropMerge,
    FinishMerge,
    ListFiles,
    MeasureResources,
    MergeSlice,
    MergeTurn,
    OpenBatch,
    OpenMerge,
    ReadManifests,
    Sleep,
    Swap,
    SyncFiles,
    TakeTurn,
    WaitUntil,
    WriteBatch,
    WriteManifest,
)
from timespine.errors import TimespineError
from timespine.testing.spines.folder import SimulatedFolder
from timespine.testing.spines.naive_batches import BatchKind, NaiveMerge

SMALL = LevelRules((3, 8, 20, 50, 120, 300, 800, 2000), (2,) * 9, 4, 11, 0, 4)
"""Rules by which few rows make many levels."""


class SpineHarness:
    """A spine, its folder, and what its protocols did."""

    def __init__(self, rules=SMALL, resources=None, average=4):
        self.levels = SpineLevels(rules, average=average)
        self.resources = resources or Resources()
        self.ids = 0
        self.folder = SimulatedFolder(self.fresh)
        self.effects = []
        """The effects of all protocols, in order."""
        self.failures = {}
        """Errors by type of effect: each is raised once."""
        self.before = {}
        """Functions by type of effect: each is called once before it."""
        self.is_alone = True

    def fresh(self):
        self.ids += 1
        return self.ids

    def batch(self, rows, diff=1, first=0):
        """A fresh batch with this number of rows, all at time 0."""
        return BatchKind().fresh(self.fresh(), [(first + row, (0,), diff) for row in range(rows)])

    def put(self, *sizes):
        """Insert fresh batches of these sizes, with rows of their own."""
        from timespine.core.arrangement.level_transitions import insert_batch

        for size in sizes:
            self.levels, is_in = insert_batch(self.levels, self.batch(size, first=1000 * self.ids))
            assert is_in

    def run(self, protocol):
        """Run a protocol to its end."""
        value, error = None, None
        while True:
            try:
                effect = protocol.send(value) if error is None else protocol.throw(error)
            except StopIteration as stop:
                return stop.value
            self.effects.append(effect)
            self.before.pop(type(effect), lambda: None)()
            value, error = None, self.failures.pop(type(effect), None)
            if error is None:
                try:
                    value = self.perform(effect)
                except TimespineError as raised:
                    error = raised

    def perform(self, effect):
        folder = self.folder
        match effect:
            case Swap():
                self.levels, answer = effect.transition(self.levels)
                return answer
            case WaitUntil():
                return effect.condition(self.levels)
            case TakeTurn():
                return MergeTurn(self.levels, self.is_alone)
            case MeasureResources():
                return self.resources
            case OpenMerge():
                return NaiveMerge(effect.plan, 0)
            case MergeSlice():
                return effect.merge.slice(effect.rows)
            case FinishMerge():
                output = effect.merge.output(self.fresh())
                if output is None or not effect.merge.plan.to_disk:
                    return output
                stored = folder.write(output, in_memory=False)
                effect.merge.file = stored.file
                return stored
            case DropMerge():
                return () if effect.merge.file is None else (effect.merge.file,)
            case WriteBatch():
                return folder.write(effect.batch, in_memory=not effect.frees_memory)
            case SyncFiles():
                return folder.sync(effect.names)
            case WriteManifest():
                folder.manifests[effect.saved.manifest.number] = effect.saved
            case ReadManifests():
                return folder.newest()
            case OpenBatch():
                return folder.open(effect.name)
            case ListFiles():
                return sorted(folder.files)
            case DeleteFiles():
                return folder.delete(effect.manifests, effect.names)
            case _:
                assert isinstance(effect, Sleep)
        return None

    def named(self, kind):
        """The effects of a type."""
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def set(self, **fields):
        """Change fields of the state."""
        self.levels = replace(self.levels, **fields)

    @property
    def sizes(self):
        """The sizes of the batches of each level that has some."""
        return {
            level: [batch.rows for batch in slot.batches]
            for level, slot in enumerate(self.levels.slots)
            if slot.entries
        }

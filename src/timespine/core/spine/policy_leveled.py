"""The rule by level: merge two neighbours of the same level once no reader may read between them.

- A batch enters at level 0. Levels never rise from the oldest batch to the newest.
- Two neighbours are due when they have the same level and the upper of the newer
  one is at or before since: then no reader can tell the times of their updates
  apart.
- The oldest two that are due become one fueled batch, of the same level, to be
  merged up to since. The next two wait until it is answered.
- The answer goes up one level if it has more updates than each of its parents.
  Otherwise they cancelled each other out, and it stays.

## What follows from it

With u the updates of the largest batch that was inserted, and n insertions:

- A batch at level k has at most 2^k * u updates: rising doubles the bound, and
  staying means not to be larger than a parent. It stands for at least 2^k
  insertions, since it takes two of a level to rise to the next; so there are at most
  log2 n + 1 levels. Sizes are geometric if batches are about equal when they come
  in; the rule counts batches and never looks at their size.
- Batches: when all requests are answered, no level has two that have expired. So at
  most log2 n + 1 of them, and all batches that have not expired yet.
- Work: a merge at level k reads at most 2 * 2^k * u updates and uses up a batch that
  took 2^k insertions to make, of which there are at most n / 2^k. That is 2 * u * n
  for each level, and 2 * (log2 n + 1) times the inserted updates together.
- An insertion, its diff and its check walk over all spine batches, so they cost in
  proportion to the batches that have not expired yet.

`tests/core/spine/test_policy_leveled.py` checks these.

## When to choose it

For collections whose history is expired regularly, with batches of about the same
size. A batch whose times readers can still tell apart stays as it was written, and
the first merge of its rows removes all their history: no merge only keeps the same
history in fewer batches. In return, a reader merges every batch that has not
expired, and an append costs in proportion to their number. Where history is kept for
long, or batches are of very different sizes, the fueled rule bounds both.

Rolling up all is the same for both rules: everything becomes one request, expired or
not. Its level is the one that its parts would have reached by the rule.
"""

from __future__ import annotations

from timespine.core.spine import rope as ropes
from timespine.core.spine.layers import Layer, MergePolicyKind, SpineBatch
from timespine.core.spine.policy import MergePolicy
from timespine.errors import CorruptionError


class LeveledPolicy(MergePolicy):
    """The rule by level."""

    merging = MergePolicyKind.BY_LEVEL
    coalesces_requests = False
    layer_max = None

    def _add(self, new: SpineBatch) -> None:
        level = next((level for level, layer in enumerate(self.layers) if layer.batches), 0)
        newest = self.layers[level].batches[-1:] if self.layers else ()
        if newest and newest[0].len == 0 and new.len == 0:
            both = (*newest, new)
            self._set(level, (*self.layers[level].batches[:-1], self._merged(both, self._merge_since())))
        else:
            self._append(0, new)
        self._schedule()

    def since_moved(self) -> bool:
        """Schedule a merge: more batches may have expired."""
        return self._schedule()

    def exert(self, fuel: int) -> None:
        """Do nothing: merges need no fuel."""
        self._schedule()

    def roll_up_all(self, lo: int) -> None:
        """Make everything one batch, at the level below the one that it reaches if it is larger than each of them.

        The batch begins at the oldest, whatever `lo` is: levels count insertions, and only the oldest of a level may
        wait to be merged. A batch of level k counts as 2^k, and as two if it waits to be merged. Two of level k
        together are at k, as when the rule merges them.
        """
        batches = tuple(batch for layer in reversed(self.layers) for batch in layer.batches)
        weight = sum(
            (1 + (batch.rope.count > 1)) << level for level, layer in enumerate(self.layers) for batch in layer.batches
        )
        top = len(self.layers) - 1
        self.layers = []
        self._append(max(top, weight.bit_length() - 2), self._merged(batches, self._merge_since()))

    def put(self, level: int, old: SpineBatch, new: SpineBatch) -> None:
        """Replace a batch; a merge result goes up one level if it is larger than each of its parents."""
        batches = self.layers[level].batches
        if self._rises(level, old, new):
            # It waited to be merged, so it is the oldest of its level (`check`), and the newest of the level above.
            self._set(level, batches[1:])
            self._append(level + 1, new)
        else:
            self._set(level, tuple(new if batch is old else batch for batch in batches))
        self._schedule()

    def _rises(self, level: int, old: SpineBatch, new: SpineBatch) -> bool:
        """Tell whether a batch that replaces another one belongs to the level above.

        SUBTLE: a rolled-up batch counts its insertions. With a small batch and a large one that is compacted again and
        again, the level would rise with every call, and end above all that can be stored
        (test_compacting_after_every_append_does_not_raise_the_level_with_every_call).
        """
        if new.fueled or new.rope.hi - new.rope.lo < 2 << level:
            return False
        return all(new.len > leaf.len for leaf in ropes.leaves(old.rope))

    def is_stale(self, batch: SpineBatch) -> bool:
        """Tell whether a batch has several runs, or expired as a whole and was not merged since.

        Once its since is past its upper, all its times are folded, and a later since folds no more of them: merging it
        by itself again would cost as much as it is large and gain nothing.
        """
        if batch.len == 0:
            return False
        upper = batch.desc.upper
        return not batch.is_compact or (upper <= self.since and not upper <= batch.desc.since)

    def check(self) -> None:
        """Check that no merge has fuel, that two of a level count as one of the next, and that only the oldest of a
        level waits."""
        for level, layer in enumerate(self.layers):
            if layer.merge is not None:
                raise CorruptionError(f"level {level} has merge {layer.merge}: merging by level needs no fuel")
            for place, batch in enumerate(layer.batches):
                what = f"spine batch {batch.rope.lo}-{batch.rope.hi}"
                if batch.rope.hi - batch.rope.lo < 1 << level:
                    raise CorruptionError(f"{what} stands for too few insertions for level {level}")
                if place > 0 and batch.rope.count > 1:
                    raise CorruptionError(f"{what} waits to be merged and is not the oldest at level {level}")

    def _schedule(self) -> bool:
        """Make the oldest two that are due a request, unless there is one already; return whether anything changed.

        Only the oldest two of a level can be due first: if they have not expired, no newer ones have.
        """
        changed = False
        if any(layer.batches and layer.batches[0].rope.count > 1 for layer in self.layers):
            return changed
        for level in reversed(range(len(self.layers))):
            while (pair := self._due(level)) is not None:
                changed = True
                merged = self._merged(pair, self._merge_since())
                self._set(level, (merged, *self.layers[level].batches[2:]))
                if merged.fueled:
                    return changed
        return changed

    def _due(self, level: int) -> tuple[SpineBatch, ...] | None:
        """Return the oldest two of a level if their merge is due; None while one of them is merged again."""
        pair = self.layers[level].batches[:2]
        expired = len(pair) == 2 and pair[1].desc.upper <= self.since
        return pair if expired and not any(batch.fueled for batch in pair) else None

    def _append(self, level: int, batch: SpineBatch) -> None:
        """Put a batch, newer than the others of the layer, into a layer."""
        self._grow(level)
        self._set(level, (*self.layers[level].batches, batch))

    def _set(self, level: int, batches: tuple[SpineBatch, ...]) -> None:
        self.layers[level] = Layer(batches)

"""The in-process engine: merges the inputs of a request within a bound of memory.

What no other input touches is not rewritten. Parts are put side by side in the
order of their bounds, those inside hollow runs too (`stretches`). A part whose rows
no other part can have is passed through by reference, and every stretch of overlapping
parts is merged: around few changes to a long run (`around_changes`), or as a stream. Chunks
are read ahead, merged, and encoded and uploaded in threads of their own. So the rows that a merge
writes follow the ranges of keys that more than one input touches. Lists of parts are written anew: about a KiB per
part.

A merge of everything from the first time on gives two runs: what is live, and the past, whose rows add up to zero
(`split_past`). Past runs of the inputs are merged with each other and with what has become past, never with what is
live: for every row and time the diffs of all runs are added anyway. So a merge that finds all of the past expired
drops it without a look, and passes live parts through.

The sum of diffs of the result is that of the inputs. The one who applies it checks that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial

import msgspec

from timespine.columnar.merge.run_merge import MergeDelegate, MergedParts, MergeResources, MergeTask, RunMerge
from timespine.columnar.parts.part_cache import PartCache
from timespine.columnar.parts.part_list_tree import Counters
from timespine.columnar.schema.schema import Schema
from timespine.config import Config
from timespine.core.effects import MergeRuns, Output
from timespine.location.blob import Blob
from timespine.model.description import Description

WholeMergeDelegate = Callable[[MergeTask, Description, Sequence[Schema], Counters, Callable[[], Output]], Output]
"""A function that does whole merges in place of the engine. It gets the description of the result, the schemas and
counters of the collection, and a function that does the merge here."""


class Engine:
    """Merges in the process; what is large may be handed to others."""

    def __init__(
        self,
        blob: Blob,
        schemas_of: Callable[[str], Sequence[Schema]],
        config: Config,
        *,
        fresh: Callable[[str], str],
        cache: PartCache,
        pool: Executor | None = None,
        counters_of: Callable[[str], Counters] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._resources = MergeResources(blob, config, fresh, cache, pool, sleep)
        self._schemas_of = schemas_of
        self._counters_of = counters_of or (lambda collection: {})
        self._monotonic = monotonic
        self._at_work: dict[str, tuple[MergeRuns, float]] = {}
        self.delegate: MergeDelegate | None = None
        """Who merges large stretches of a merge, if anybody does."""
        self.whole_delegate: WholeMergeDelegate | None = None
        """Who does whole merges, unless there is a delegate for large stretches."""

    def merge(self, effect: MergeRuns) -> Output:
        """Carry out a MergeRuns effect; None if an input is gone."""
        began = self._monotonic()
        self._at_work[effect.writer] = (effect, began)
        desc = effect.request.desc
        runs = tuple(run for batch in effect.request.inputs for run in batch.runs)
        splits = all(time == (0,) * len(time) for time in desc.lower.elements)
        try:
            work = MergeTask(effect.collection, effect.writer, desc.since, runs, splits=splits)
            output = self._merged(work, desc)
            took_ms = int((self._monotonic() - began) * 1000)
            return None if output is None else msgspec.structs.replace(output, ms=max(took_ms, 0))
        finally:
            del self._at_work[effect.writer]

    def merge_here(self, work: MergeTask, desc: Description) -> Output:
        """Do a whole merge in this process; None if an input is gone."""
        return self._merge_of(work).run(desc)

    def merge_range(self, work: MergeTask) -> MergedParts | None:
        """Merge what lies in a range of keys into new parts; None if an input is gone."""
        return self._merge_of(work).run_range()

    def _merged(self, work: MergeTask, desc: Description) -> Output:
        if self.whole_delegate is None or self.delegate is not None:
            return self.merge_here(work, desc)
        schemas, counters = self._schemas_of(work.collection), self._counters_of(work.collection)
        return self.whole_delegate(work, desc, schemas, counters, partial(self.merge_here, work, desc))

    def _merge_of(self, work: MergeTask) -> RunMerge:
        schemas, counters = self._schemas_of(work.collection), self._counters_of(work.collection)
        return RunMerge(self._resources, work, schemas, counters, self.delegate)

    def long_merges(self, than_s: float) -> list[tuple[str, tuple[int, int], str]]:
        """Return the merges that were silent for so long: collection, request, writer. Asking makes them count anew."""
        now = self._monotonic()
        found = []
        for writer, (effect, since) in list(self._at_work.items()):
            if now - since >= than_s and writer in self._at_work:
                self._at_work[writer] = (effect, now)
                found.append((effect.collection, effect.request.id, writer))
        return found

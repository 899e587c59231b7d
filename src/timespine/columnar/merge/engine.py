"""The in-process engine: merges the inputs of a request within a bound of memory.

What no other input touches is not rewritten. Parts are put side by side in the
order of their bounds, those inside hollow runs too (`stretches`). A part whose rows
no other part can have is passed through by reference, and every stretch of overlapping
parts is merged as a stream: chunks are read ahead, merged, and encoded and uploaded in
threads of their own. So the rows that a merge writes follow the ranges of keys that
more than one input touches. Lists of parts are written anew: about a KiB per part.

The sum of diffs of the result is that of the inputs. The one who applies it checks that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import groupby

import msgspec
import pyarrow as pa

from timespine.columnar.merge.plan import InputPart, Stretch, stretches
from timespine.columnar.parts.hollow_run import Counters, delete_keys, rows_in
from timespine.columnar.parts.inline_part import InlineRule
from timespine.columnar.parts.part_cache import CacheHint, PartCache
from timespine.columnar.parts.part_reader import MissingBlob
from timespine.columnar.scan.part_access import Parts, meta_of
from timespine.columnar.scan.request import ScanRequest
from timespine.columnar.scan.scan import (
    ScanSource,
    cut_columns,
    fits_in_memory,
    gather,
    inline_memory_bytes,
    merge_sources,
    source_of_parts,
    tiny_sources,
    unordered_sources,
)
from timespine.columnar.scan.visibility import Window
from timespine.columnar.schema.schema import DIFF, Schema
from timespine.columnar.write.run_writer import NO_LISTS, RunWriter
from timespine.columnar.write.upload import UploadTarget
from timespine.config import Config
from timespine.core.batch import HollowBatch, Order, Part, Run
from timespine.core.effects import MergeOutput, MergeRuns, Output
from timespine.errors import CorruptionError
from timespine.location.blob import Blob
from timespine.model.description import Description
from timespine.model.frontier import Frontier

FOOTER_BYTES = 32 << 20
"""Footers and lists of parts that a merge keeps for itself."""

LIGHT = 8
"""Of the memory of a merge, the share that tiny parts may take which are decoded together, and so may stretches that
are merged together."""


@dataclass(frozen=True, slots=True)
class MergeTask:
    """What is merged: some runs of a collection, or what of them lies in a range of keys."""

    collection: str
    """The collection that they are of."""
    writer: str
    """The registered writer whose blobs the result is."""
    since: Frontier
    """Times are advanced to this."""
    runs: tuple[Run, ...]
    """What is merged."""
    lower: bytes | None = None
    """Only rows whose columns of the cut (`ScanRequest.cut_names`), encoded, are at or after this."""
    upper: bytes | None = None
    """Only rows whose columns of the cut, encoded, are before this."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left out."""
        return self.lower is None and self.upper is None


MergeDelegate = Callable[[MergeTask, Sequence[Schema], Parts], "list[Part] | None"]
"""A function that merges large stretches in place of the engine, given the schemas of the collection. It returns the
parts of the result in order, or None to leave the work to the engine."""


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
        self._blob = blob
        self._schemas_of = schemas_of
        self._config = config
        self._fresh = fresh
        self._cache = cache
        self._pool = pool
        self._counters_of = counters_of or (lambda collection: {})
        self._monotonic = monotonic
        self._sleep = sleep
        self._at_work: dict[str, tuple[MergeRuns, float]] = {}
        self.delegate: MergeDelegate | None = None
        """Who merges what is large, if anybody does."""

    def merge(self, effect: MergeRuns) -> Output:
        """Carry out a MergeRuns effect; None if an input is gone."""
        began = self._monotonic()
        self._at_work[effect.writer] = (effect, began)
        request = effect.request
        runs = tuple(run for batch in request.inputs for run in batch.runs)
        try:
            output = _Merge(self, MergeTask(effect.collection, effect.writer, request.desc.since, runs)).run(
                request.desc
            )
            took_ms = int((self._monotonic() - began) * 1000)
            return None if output is None else msgspec.structs.replace(output, ms=max(took_ms, 0))
        finally:
            del self._at_work[effect.writer]

    def merge_range(self, work: MergeTask) -> list[Part] | None:
        """Merge what lies in a range of keys: new parts, in order; None if an input is gone."""
        return _Merge(self, work).run_range()

    def long_merges(self, than_s: float) -> list[tuple[str, tuple[int, int], str]]:
        """The merges that were silent for so long: collection, request, writer. Asking makes them count anew."""
        now = self._monotonic()
        found = []
        for writer, (effect, since) in list(self._at_work.items()):
            if now - since >= than_s and writer in self._at_work:
                self._at_work[writer] = (effect, now)
                found.append((effect.collection, effect.request.id, writer))
        return found


class _Merge:
    """One merge."""

    def __init__(self, engine: Engine, work: MergeTask) -> None:
        schemas = engine._schemas_of(work.collection)
        self.config = engine._config
        self.work = work
        self.schemas = schemas
        self.schema_id, self.schema = len(schemas) - 1, schemas[-1]
        self.counters = engine._counters_of(work.collection)
        blob = engine._blob
        known = PartCache(FOOTER_BYTES)
        self.parts = Parts(blob, work.collection, _by_id(schemas), self.config, engine._cache, engine._pool, known)
        self.target = UploadTarget(
            work.collection, work.writer, self.schema, self.schema_id, blob, self.config, sleep=engine._sleep
        )
        self.blob = blob
        self.fresh = engine._fresh
        self.pool = engine._pool
        # A range is a piece of a run: who puts the pieces together lists the parts.
        self.output = self._writer(None if work.is_whole else NO_LISTS)
        self.delegate = engine.delegate
        # Nothing can be read from a closed since on, so there is nothing to advance times to.
        self.since = None if work.since.is_closed else work.since
        self.runs = list(work.runs)
        self.names = [*self.schema.names, *self.schema.time_names, DIFF]
        self.wanted = ScanRequest(
            self.schema,
            self.schema.names,
            Window(since=self.since),
            keep_times=True,
            lower=work.lower,
            upper=work.upper,
            hint=CacheHint.NEVER_ADD,
        )
        self.temporary: list[str] = []
        """Parts that were written between two rounds."""
        self.passed: dict[str, None] = {}
        """The listed parts that were passed through, whole or in part."""
        self.passed_parts = self.passed_rows = self.passed_bytes = 0
        """Parts that were passed through, and the updates and bytes in them."""

    def _writer(self, run_parts: int | None) -> RunWriter:
        return RunWriter(self.target, self.fresh, self.counters, self.pool, run_parts=run_parts)

    def run(self, desc: Description) -> Output:
        """Merge everything; None if an input is gone."""
        try:
            self._count_inputs()
            self._merge_stretches()
            return self._finish(desc)
        except MissingBlob:
            self._undo()
            return None
        except BaseException:
            self._undo()
            raise

    def run_range(self) -> list[Part] | None:
        """Merge a range of keys into new parts; None if an input is gone."""
        try:
            self._merge_stretches()
            runs = self.output.finish()
        except MissingBlob:
            self._undo()
            return None
        except BaseException:
            self._undo()
            raise
        self._delete_temporary()
        return [part for run in runs for part in run.parts]

    def _merge_stretches(self) -> None:
        pieces, tiny = self._inputs()
        found = stretches(
            pieces,
            tiny,
            self.schema.order_names,
            may_pass=self._may_pass,
            part_bytes=self.config.part_bytes,
            light_bytes=self.config.merge_bytes // LIGHT,
        )
        for stretch in found:
            if stretch.passed is not None:
                self._pass(stretch.passed)
                continue
            merged = self._delegate_merge(stretch)
            if merged is None:
                for table in self._merged(stretch):
                    self.output.add(table)
            else:
                self.output.refer(merged)

    def _pass(self, piece: InputPart) -> None:
        """Refer to a part as it is."""
        self.output.refer((piece.part,), is_hidden=piece.origin != piece.part.key)
        self.passed[piece.origin] = None
        self.passed_parts += 1
        self.passed_rows += piece.part.rows
        self.passed_bytes += piece.part.total_bytes

    def _delegate_merge(self, stretch: Stretch) -> list[Part] | None:
        """The parts that another merger has made of a stretch; None if there is none."""
        if self.delegate is None or not self.work.is_whole:
            return None
        runs = [
            Run(tuple(piece.part for piece in pieces), self.runs[index].order, self.runs[index].schema)
            for index, pieces in self._by_run(stretch)
        ]
        if stretch.tables:
            limit = self.config.object_bytes_max
            rows = InlineRule(limit, lambda: limit).part_of(pa.concat_tables(stretch.tables))
            if rows is None:
                return None
            runs.append(Run((rows,), Order.SORTED, self.schema_id))
        return self.delegate(replace(self.work, runs=tuple(runs)), self.schemas, self.parts)

    def _count_inputs(self) -> None:
        inputs = [part for run in self.runs for part in run.parts]
        self._count("merge rows in", sum(part.rows for part in inputs))
        self._count("merge bytes in", sum(part.total_bytes for part in inputs))

    def _count(self, what: str, by: int) -> None:
        self.counters[what] = self.counters.get(what, 0) + by

    def _inputs(self) -> tuple[list[InputPart], pa.Table | None]:
        """The parts that are merged, and the rows of tiny ones, which are decoded once and together."""
        pieces: list[InputPart] = []
        tiny: dict[int | None, list[tuple[Run, Part]]] = {}
        left = self.config.merge_bytes // LIGHT
        for index, run in enumerate(self.runs):
            # SUBTLE: bounds of other schemas may be of other types or columns, so they do not compare.
            known = run.schema == self.schema_id
            place = 0
            for listed in run.parts:
                for part in self.parts.leaves((listed,)) if listed.hollow else (listed,):
                    if part.inline is not None and inline_memory_bytes(part) <= left:
                        tiny.setdefault(run.schema, []).append((run, part))
                        left -= inline_memory_bytes(part)
                        continue
                    meta = meta_of(part) if known else None
                    lower, upper = (b"", None) if meta is None else (meta.lower or b"", meta.upper)
                    pieces.append(InputPart(index, place, part, lower, upper, listed.key))
                    place += 1
        sources = [source for each in tiny.values() for source in tiny_sources(each)]
        gathered = next(gather(self.parts, sources, self.wanted), None) if sources else None
        return pieces, None if gathered is None else gathered.select(self.names)

    def _may_pass(self, piece: InputPart) -> bool:
        """Whether a merge would change nothing about a part that nothing else touches."""
        part, run = piece.part, self.runs[piece.run]
        if not self.work.is_whole or part.inline is not None:
            return False
        if run.order is not Order.SORTED or run.schema != self.schema_id:
            return False
        if part.is_truncated or part.rewrite is not None:
            return False
        meta = meta_of(part)
        if meta is None:
            return False
        return meta.repeats == 0 or meta.min_time == meta.max_time or _is_from(meta.min_time, self.since)

    def _by_run(self, stretch: Stretch) -> Iterator[tuple[int, list[InputPart]]]:
        """The pieces of a stretch by the run that they are of, each in its order."""
        # SUBTLE: by places, not by bounds, which are cut, and not all to the same length (test_merge_engine.py).
        pieces = sorted(stretch.pieces, key=lambda piece: (piece.run, piece.place))
        for index, inside in groupby(pieces, key=lambda piece: piece.run):
            yield index, list(inside)

    def _merged(self, stretch: Stretch) -> Iterator[pa.Table]:
        """The rows of a stretch, merged; in rounds if there is too much to read at once."""
        memory_bytes = self.config.merge_bytes
        found = [source for index, pieces in self._by_run(stretch) for source in self._sources(index, pieces)]
        while len(found) > 2 and not fits_in_memory(found, memory_bytes):
            found.sort(key=lambda source: source.size)
            number = 2
            while number < len(found) and fits_in_memory(found[: number + 1], memory_bytes):
                number += 1
            found = [*found[number:], self._round(found[:number])]
        return self._scan(found, pa.concat_tables(stretch.tables) if stretch.tables else None)

    def _sources(self, index: int, pieces: list[InputPart]) -> Iterator[ScanSource]:
        """The parts of one run in a stretch.

        If columns were dropped since, the run is not in the order of those that are left. Then every part is
        put in order by itself: they would all have to be in memory at once otherwise.
        """
        run = self.runs[index]
        inside = tuple(piece.part for piece in pieces)
        in_order = cut_columns(self.wanted, [self.parts.schema(run)[1]]) == cut_columns(self.wanted, [self.schema])
        if run.order is Order.SORTED and in_order:
            yield source_of_parts(self.parts, run, inside)
        else:
            yield from unordered_sources(self.parts, run, inside, self.wanted)

    def _round(self, found: list[ScanSource]) -> ScanSource:
        """Some sources merged into one whose parts are deleted again at the end."""
        with self._writer(NO_LISTS) as between:
            for table in self._scan(found):
                between.add(table)
            parts = tuple(part for run in between.finish() for part in run.parts)
        self.temporary += between.keys
        return source_of_parts(self.parts, Run(parts, Order.SORTED, self.schema_id), parts)

    def _scan(self, found: list[ScanSource], rows: pa.Table | None = None) -> Iterator[pa.Table]:
        for table in merge_sources(self.parts, found, self.wanted, self.config.merge_bytes, rows):
            yield table.select(self.names)

    def _finish(self, desc: Description) -> MergeOutput:
        # SUBTLE: no more inline than the inputs had. A state may have no room for a result that takes more, and would
        # refuse it every time (test_merge_engine.py).
        room = sum(len(part.inline) for run in self.runs for part in run.parts if part.inline is not None)
        runs = self.output.finish(InlineRule(self.config.inline_part_bytes, lambda: room) if room else None)
        self._delete_temporary()
        rows = rows_in(runs)
        batch = HollowBatch(desc, rows, runs)
        written_bytes = sum(part.total_bytes for part in batch.parts) - self.passed_bytes
        self._count("merge rows out", rows - self.passed_rows)
        self._count("merge bytes out", written_bytes - batch.inline_bytes)
        self._count("merge rows passed", self.passed_rows)
        self._count("merge parts passed", self.passed_parts)
        return MergeOutput(batch, tuple(self.passed), rows - self.passed_rows, written_bytes)

    def _undo(self) -> None:
        """Delete what was written in vain; what stays is swept once the writer is gone."""
        self._delete_temporary()
        self.output.abort()

    def _delete_temporary(self) -> None:
        delete_keys(self.temporary, self.blob, None)
        self.temporary = []


def _by_id(schemas: Sequence[Schema]) -> Callable[[int], Schema]:
    def schema_of(id: int) -> Schema:
        if not 0 <= id < len(schemas):
            raise CorruptionError(f"a run was written with schema {id}, which is not known")
        return schemas[id]

    return schema_of


def _is_from(times: tuple[int, ...], since: Frontier | None) -> bool:
    """Whether times from these on are left as they are by advancing to since."""
    if since is None:
        return True
    least = [min(element[index] for element in since.elements) for index in range(len(times))]
    return all(time >= bound for time, bound in zip(times, least, strict=True))

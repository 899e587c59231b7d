"""One merge: the inputs side by side, what overlaps written anew, what is past apart from what is live.

`columnar.merge.merge_engine` says what a merge does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import groupby

import msgspec
import pyarrow as pa

from timespine.columnar.merge.around_changes import PassedPart, PlanItem, is_cut_by_bounds, merge_groups, plan_around
from timespine.columnar.merge.merge_plan import InputPart, Stretch, is_from, is_until, stretches
from timespine.columnar.merge.split_past import can_split, split_past, time_at_or_after_all
from timespine.columnar.parts.copied_groups import RowGroups
from timespine.columnar.parts.inline_part import InlineRule
from timespine.columnar.parts.part_cache import CacheHint, PartCache
from timespine.columnar.parts.part_list_tree import Counters, delete_keys
from timespine.columnar.parts.part_reader import MissingBlob
from timespine.columnar.parts.part_stats import known_meta
from timespine.columnar.scan.fetch_ahead import FOOTERS_AHEAD
from timespine.columnar.scan.part_access import Parts, meta_of
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
from timespine.columnar.scan.scan_request import ScanRequest
from timespine.columnar.scan.visibility import Window, is_seen_as_written
from timespine.columnar.schema.schema import DIFF, Schema
from timespine.columnar.write.run_writer import NO_LISTS, RunWriter
from timespine.columnar.write.upload import UploadTarget
from timespine.config import Config
from timespine.core.batch import HollowBatch, Order, Part, Run, rows_in
from timespine.core.effects import MergeOutput, Output
from timespine.errors import CorruptionError
from timespine.location.blob import Blob
from timespine.model.description import Description
from timespine.model.frontier import Frontier
from timespine.model.time import Time

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
    splits: bool = False
    """Whether what is past becomes a run of its own."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left out."""
        return self.lower is None and self.upper is None


class MergedParts(msgspec.Struct, frozen=True, array_like=True):
    """The parts of a merged stretch or range, in order."""

    live: tuple[Part, ...]
    """Those of the live run."""
    past: tuple[Part, ...] = ()
    """Those of the past run."""


MergeDelegate = Callable[[MergeTask, Sequence[Schema], Parts], MergedParts | None]
"""A function that merges large stretches in place of the engine, given the schemas of the collection. It returns the
parts of the result, or None to leave the work to the engine."""


@dataclass(frozen=True, slots=True)
class MergeResources:
    """What merges of one process share."""

    blob: Blob
    """Where parts are."""
    config: Config
    """Sizes and attempts."""
    fresh: Callable[[str], str]
    """Gives a name that was never used, beginning with a prefix."""
    cache: PartCache
    """Where readers keep decoded row groups: a merge takes from it, and adds nothing."""
    pool: Executor | None
    """Where chunks are read ahead, and parts are encoded."""
    sleep: Callable[[float], None]
    """Pauses between attempts, in seconds."""


class RunMerge:
    """One merge."""

    def __init__(
        self,
        resources: MergeResources,
        work: MergeTask,
        schemas: Sequence[Schema],
        counters: Counters,
        delegate: MergeDelegate | None = None,
    ) -> None:
        self.config = resources.config
        self.work = work
        self.schemas = schemas
        self.schema_id, self.schema = len(schemas) - 1, schemas[-1]
        self.counters = counters
        blob, pool, known = resources.blob, resources.pool, PartCache(FOOTER_BYTES)
        self.parts = Parts(blob, work.collection, _by_id(schemas), self.config, resources.cache, pool, known)
        self.target = UploadTarget(
            work.collection, work.writer, self.schema, self.schema_id, blob, self.config, sleep=resources.sleep
        )
        self.blob = blob
        self.fresh = resources.fresh
        self.pool = pool
        # A range is a piece of a run: who puts the pieces together lists the parts.
        self.live, self.past = (self._writer(None if work.is_whole else NO_LISTS) for _ in range(2))
        self.newly_past = self._writer(NO_LISTS)
        """What has become past, if it is to be merged with what was past before."""
        self.delegate = delegate
        # Nothing can be read from a closed since on, so there is nothing to advance times to.
        self.since = None if work.since.is_closed else work.since
        self.runs = list(work.runs)
        self.has_past = any(run.zero_from is not None for run in self.runs)
        # Of fewer rows than a row group has, all are decoded whichever are asked for.
        is_worth_it = self.has_past or rows_in(self.runs) >= self.config.row_group_rows
        self.splits = work.splits and can_split(self.schema) and (is_worth_it or not work.is_whole)
        self.zero_from: Time | None = None
        """At or after all times of the past run of the result."""
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
        """Parts that were written between two rounds, and are not in the result."""
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
            self._merge_live()
            self._merge_past()
            return self._finish(desc)
        except MissingBlob:
            self._undo()
            return None
        except BaseException:
            self._undo()
            raise

    def run_range(self) -> MergedParts | None:
        """Merge a range of keys into new parts; None if an input is gone."""
        try:
            self._merge_live()
            live, past = ([part for run in each.finish() for part in run.parts] for each in (self.live, self.past))
        except MissingBlob:
            self._undo()
            return None
        except BaseException:
            self._undo()
            raise
        self._delete_temporary()
        return MergedParts(tuple(live), tuple(past))

    def _merge_live(self) -> None:
        """Merge all runs but those of the past. What has become past goes to the past run, or is merged with it."""
        becomes = self.newly_past if self.has_past else self.past
        latest: list[Time] = []
        for stretch in self._stretches(lambda run: run.zero_from is None):
            if stretch.passed is not None:
                self._pass(self.live, stretch.passed)
                continue
            items = self._plan_around_changes(stretch)
            if items is not None:
                latest += self._merge_around_changes(items, becomes)
                continue
            merged = self._delegate_merge(stretch)
            if merged is not None:
                self.live.refer(merged.live)
                if merged.past:
                    becomes.refer(merged.past)
                    latest += [known_meta(part.meta).max_time for part in merged.past]
                continue
            latest += self._add_live(self._merge_stretch(stretch), becomes)
        if self.has_past:
            self._keep_newly_past(latest)
        else:
            self._reach(*latest)

    def _add_live(self, tables: Iterator[pa.Table], becomes: RunWriter) -> list[Time]:
        """Add merged rows to the live run, and those that are past to another one; return times of the latter."""
        if not self.splits:
            for table in tables:
                self.live.add(table)
            return []
        latest = []
        for live, past in split_past(tables, self.schema, self.config.merge_bytes // LIGHT):
            self.live.add(live)
            becomes.add(past)
            latest += [time_at_or_after_all(past, self.schema)] if past.num_rows else []
        return latest

    def _plan_around_changes(self, stretch: Stretch) -> list[PlanItem] | None:
        """Return how to merge a stretch of a long run and few changes to it; None if it is anything else."""
        by_run = list(self._by_run(stretch))
        if not by_run or not can_split(self.schema):
            return None
        index, pieces = max(by_run, key=lambda each: sum(piece.part.rows for piece in each[1]))
        if sum(piece.row_bytes for piece in pieces) <= stretch.row_bytes // 2:
            return None
        if stretch.row_bytes - sum(piece.row_bytes for piece in pieces) > self.config.merge_bytes // LIGHT:
            return None
        if not all(self._may_pass(piece) for piece in pieces) or not is_cut_by_bounds(pieces):
            return None
        others = [source for other, each in by_run if other != index for source in self._sources(other, each)]
        if not fits_in_memory(others, self.config.merge_bytes):
            return None
        tables = list(self._scan(others, pa.concat_tables(stretch.tables) if stretch.tables else None))
        if not tables:
            return None
        return plan_around(
            pieces,
            pa.concat_tables(tables).combine_chunks(),
            self.schema.order_names,
            lambda piece: self.parts.open(piece.part, self.schema_id, self.schema),
            self.config,
        )

    def _merge_around_changes(self, items: list[PlanItem], becomes: RunWriter) -> list[Time]:
        """Pass, copy and merge parts and row groups of the live run in their order; return times of past rows."""
        latest: list[Time] = []
        for item in items:
            if isinstance(item, PassedPart):
                self._pass(self.live, item.piece)
            elif isinstance(item, RowGroups):
                self.live.add_groups(item)
                self._count("merge rows copied", item.rows)
            else:
                merged = merge_groups(self.parts, item, self.schema_id, self.wanted, self.config.merge_bytes)
                latest += self._add_live((table.select(self.names) for table in merged), becomes)
        return latest

    def _keep_newly_past(self, latest: Sequence[Time]) -> None:
        """Make a run of what has become past, in memory if it is little: it is merged with the other past runs."""
        limit = self.config.merge_bytes // LIGHT
        for run in self.newly_past.finish(InlineRule(limit, limit)):
            self.runs.append(msgspec.structs.replace(run, zero_from=_join(latest)))
            self.temporary += [part.key for part in run.parts if part.key]

    def _merge_past(self) -> None:
        """Merge the past runs, without what is expired: advanced to since, it adds up to zero."""
        for stretch in self._stretches(lambda run: run.zero_from is not None):
            if stretch.passed is not None:
                self._pass(self.past, stretch.passed)
                zero_from = self.runs[stretch.passed.run].zero_from
                self._reach(*() if zero_from is None else (zero_from,))
            elif not self._is_expired(stretch):
                for table in self._merge_stretch(stretch):
                    self.past.add(table)
                    self._reach(*[time_at_or_after_all(table, self.schema)] if table.num_rows else ())

    def _reach(self, *latest: Time) -> None:
        """Take note of times in the past run."""
        self.zero_from = _join(latest if self.zero_from is None else (self.zero_from, *latest))

    def _is_expired(self, stretch: Stretch) -> bool:
        """Tell whether since has passed all times of a stretch of the past, which no row reaches beyond."""
        if stretch.tables or self.since is None:
            return False
        metas = [meta_of(piece.part) for piece in stretch.pieces]
        return all(meta is not None and is_until(meta.max_time, self.since) for meta in metas) and all(
            is_seen_as_written(piece.part) for piece in stretch.pieces
        )

    def _stretches(self, chosen: Callable[[Run], bool]) -> Iterator[Stretch]:
        """Yield the stretches of some runs, in the order of their rows."""
        pieces, tiny = self._inputs(chosen)
        return stretches(
            pieces,
            tiny,
            self.schema.order_names,
            may_pass=self._may_pass,
            part_bytes=self.config.part_bytes,
            light_bytes=self.config.merge_bytes // LIGHT,
        )

    def _pass(self, output: RunWriter, piece: InputPart) -> None:
        """Refer to a part as it is."""
        output.refer((piece.part,), is_hidden=piece.origin != piece.part.key)
        if piece.origin in self.temporary:
            self.temporary.remove(piece.origin)  # this merge wrote it
            return
        self.passed[piece.origin] = None
        self.passed_parts += 1
        self.passed_rows += piece.part.rows
        self.passed_bytes += piece.part.total_bytes

    def _delegate_merge(self, stretch: Stretch) -> MergedParts | None:
        """Return the parts that another merger has made of a stretch; None if there is none."""
        if self.delegate is None or not self.work.is_whole:
            return None
        runs = [
            Run(tuple(piece.part for piece in pieces), self.runs[index].order, self.runs[index].schema)
            for index, pieces in self._by_run(stretch)
        ]
        if stretch.tables:
            limit = self.config.object_bytes_max
            rows = InlineRule(limit, limit).part_of(pa.concat_tables(stretch.tables))
            if rows is None:
                return None
            runs.append(Run((rows,), Order.SORTED, self.schema_id))
        return self.delegate(replace(self.work, runs=tuple(runs), splits=self.splits), self.schemas, self.parts)

    def _count_inputs(self) -> None:
        inputs = [part for run in self.runs for part in run.parts]
        self._count("merge rows in", sum(part.rows for part in inputs))
        self._count("merge bytes in", sum(part.total_bytes for part in inputs))

    def _count(self, what: str, by: int) -> None:
        self.counters[what] = self.counters.get(what, 0) + by

    def _inputs(self, chosen: Callable[[Run], bool]) -> tuple[list[InputPart], pa.Table | None]:
        """Return the parts of some runs, and the rows of tiny ones, which are decoded once and together."""
        pieces: list[InputPart] = []
        tiny: dict[int | None, list[tuple[Run, Part]]] = {}
        left = self.config.merge_bytes // LIGHT
        self.parts.fetch_lists(part for run in self.runs if chosen(run) for part in run.parts)
        for index, run in enumerate(self.runs):
            if not chosen(run):
                continue
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
        """Tell whether a merge would change nothing about a part that nothing else touches."""
        part, run = piece.part, self.runs[piece.run]
        if not self.work.is_whole or part.inline is not None:
            return False
        if run.order is not Order.SORTED or run.schema != self.schema_id:
            return False
        if not is_seen_as_written(part):
            return False
        meta = meta_of(part)
        if meta is None or (self.splits and run.zero_from is None and meta.repeats):
            return False  # what is past in it would stay among what is live
        return meta.repeats == 0 or meta.min_time == meta.max_time or is_from(meta.min_time, self.since)

    def _by_run(self, stretch: Stretch) -> Iterator[tuple[int, list[InputPart]]]:
        """Yield the pieces of a stretch by the run that they are of, each in its order."""
        # SUBTLE: by places, not by bounds, which are cut, and not all to the same length (test_merge_engine.py).
        pieces = sorted(stretch.pieces, key=lambda piece: (piece.run, piece.place))
        for index, inside in groupby(pieces, key=lambda piece: piece.run):
            yield index, list(inside)

    def _merge_stretch(self, stretch: Stretch) -> Iterator[pa.Table]:
        """Yield the rows of a stretch, merged; in rounds if there is too much to read at once."""
        memory_bytes = self.config.merge_bytes
        by_run = list(self._by_run(stretch))
        self.parts.fetch_footers(piece.part for _, pieces in by_run for piece in pieces[:FOOTERS_AHEAD])
        found = [source for index, pieces in by_run for source in self._sources(index, pieces)]
        while len(found) > 2 and not fits_in_memory(found, memory_bytes):
            found.sort(key=lambda source: source.size)
            number = 2
            while number < len(found) and fits_in_memory(found[: number + 1], memory_bytes):
                number += 1
            found = [*found[number:], self._round(found[:number])]
        return self._scan(found, pa.concat_tables(stretch.tables) if stretch.tables else None)

    def _sources(self, index: int, pieces: list[InputPart]) -> Iterator[ScanSource]:
        """Yield the parts of one run in a stretch.

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
        """Merge some sources into one whose parts are deleted again at the end."""
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
        runs: list[Run] = []
        for output, zero_from in ((self.live, None), (self.past, self.zero_from)):
            left = room - sum(len(part.inline) for run in runs for part in run.parts if part.inline is not None)
            rule = InlineRule(self.config.inline_part_bytes, left) if left else None
            runs += [msgspec.structs.replace(run, zero_from=zero_from) for run in output.finish(rule)]
        self._delete_temporary()
        rows = rows_in(runs)
        batch = HollowBatch(desc, rows, tuple(runs))
        written_bytes = sum(part.total_bytes for part in batch.parts) - self.passed_bytes
        self._count("merge rows out", rows - self.passed_rows)
        self._count("merge bytes out", written_bytes - batch.inline_bytes)
        self._count("merge rows passed", self.passed_rows)
        self._count("merge parts passed", self.passed_parts)
        return MergeOutput(batch, tuple(self.passed), rows - self.passed_rows, written_bytes)

    def _undo(self) -> None:
        """Delete what was written in vain; what stays is swept once the writer is gone."""
        self._delete_temporary()
        for output in (self.live, self.past, self.newly_past):
            output.abort()

    def _delete_temporary(self) -> None:
        delete_keys(self.temporary, self.blob, None)
        self.temporary = []


def _by_id(schemas: Sequence[Schema]) -> Callable[[int], Schema]:
    def schema_of(id: int) -> Schema:
        if not 0 <= id < len(schemas):
            raise CorruptionError(f"a run was written with schema {id}, which is not known")
        return schemas[id]

    return schema_of


def _join(times: Iterable[Time]) -> Time | None:
    """Return the least time at or after all of these; None if there are none."""
    coordinates = [max(each) for each in zip(*times, strict=True)]
    return tuple(coordinates) or None

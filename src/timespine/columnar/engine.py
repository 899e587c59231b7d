"""The in-process engine: merges the inputs of a request within a bound of memory.

What no other input touches is not rewritten. Parts are put side by side in the
order of their bounds; a part whose rows no other part can have is passed through
by reference, and every stretch of overlapping parts is merged as a stream:
chunks are read ahead, merged, and encoded and uploaded in threads of their own.

The sum of diffs of the result is that of the inputs. The one who applies it checks that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace

import pyarrow as pa

from timespine.columnar.bounds import encode_row
from timespine.columnar.cache import Hint, PartCache
from timespine.columnar.inline import encode_inline
from timespine.columnar.part_reader import MissingBlob
from timespine.columnar.parts import Parts, meta_of
from timespine.columnar.run_writer import RunWriter, inline_part
from timespine.columnar.runs import Counters, delete_keys, spill, written_by
from timespine.columnar.scan import Source, cut_columns, fit, merged, source_of, unordered
from timespine.columnar.schema import DIFF, Schema
from timespine.columnar.upload import Target, Uploads
from timespine.columnar.visible import Window
from timespine.columnar.wanted import Wanted
from timespine.config import Config
from timespine.core.effects import MergeRuns, Output
from timespine.core.hollow import HollowBatch, Order, Part, Run
from timespine.errors import CorruptionError
from timespine.location.blob import Blob
from timespine.model.description import Description
from timespine.model.frontier import Frontier

FOOTER_BYTES = 32 << 20
"""Footers and lists of parts that a merge keeps for itself."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part among the inputs of a merge."""

    run: int
    """The place of its run among the inputs."""
    place: int
    """Its place in that run."""
    part: Part
    """As it is seen through its run."""
    lower: bytes
    """At or before every row of it; empty: unknown."""
    upper: bytes | None
    """At or after every row of it; None: unknown."""
    direct: bool
    """Whether the state lists it itself, and not a hollow run."""


@dataclass(frozen=True, slots=True)
class Work:
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
    """Only rows whose first ordered column, encoded, is at or after this."""
    upper: bytes | None = None
    """Only rows whose first ordered column, encoded, is before this."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left out."""
        return self.lower is None and self.upper is None


Elsewhere = Callable[[Work, Sequence[Schema], Parts], "list[Part] | None"]
"""Whoever merges large stretches instead, given the schemas of the collection: the parts of the result in order, or
None if it is no work for them."""


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
        self.elsewhere: Elsewhere | None = None
        """Who merges what is large, if anybody does."""

    def merge(self, effect: MergeRuns) -> Output:
        """Carry out a MergeRuns effect; None if an input is gone."""
        self._at_work[effect.writer] = (effect, self._monotonic())
        request = effect.request
        runs = tuple(run for batch in request.inputs for run in batch.runs)
        try:
            return _Merge(self, Work(effect.collection, effect.writer, request.desc.since, runs)).run(request.desc)
        finally:
            del self._at_work[effect.writer]

    def merge_range(self, work: Work) -> list[Part] | None:
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

    def __init__(self, engine: Engine, work: Work) -> None:
        schemas = engine._schemas_of(work.collection)
        self.config = engine._config
        self.work = work
        self.schemas = schemas
        self.schema_id, self.schema = len(schemas) - 1, schemas[-1]
        self.counters = engine._counters_of(work.collection)
        blob = engine._blob
        known = PartCache(FOOTER_BYTES)
        self.parts = Parts(blob, work.collection, _by_id(schemas), self.config, engine._cache, engine._pool, known)
        self.target = Target(
            work.collection, work.writer, self.schema, self.schema_id, blob, self.config, sleep=engine._sleep
        )
        self.output = RunWriter(
            self.target,
            Uploads(self.config.outstanding_parts, engine._pool, self.counters, self.target.clock),
            engine._fresh,
        )
        self.blob = blob
        self.fresh = engine._fresh
        self.pool = engine._pool
        self.elsewhere = engine.elsewhere
        # Nothing can be read from a closed since on, so there is nothing to advance times to.
        self.since = None if work.since.is_closed else work.since
        self.runs = list(work.runs)
        self.wanted = Wanted(
            self.schema,
            self.schema.names,
            Window(since=self.since),
            timed=True,
            lower=work.lower,
            upper=work.upper,
            hint=Hint.NEVER_ADD,
        )
        self.temporary: list[str] = []
        """Parts that were written between two rounds."""
        self.lists: list[str] = []
        """Hollow runs that were written."""

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
            parts = self.output.finish()
        except MissingBlob:
            self._undo()
            return None
        except BaseException:
            self._undo()
            raise
        self._delete_temporary()
        return parts

    def _merge_stretches(self) -> None:
        for stretch in self._stretches():
            passed = self._passable(stretch)
            if passed is not None:
                self.output.refer(passed)
                continue
            merged = self._merged_elsewhere(stretch)
            if merged is None:
                self.output.add(self._merged(stretch))
            else:
                for part in merged:
                    self.output.refer(part)

    def _merged_elsewhere(self, stretch: list[Piece]) -> list[Part] | None:
        """The parts that somebody else has made of a stretch; None if nobody does."""
        if self.elsewhere is None or not self.work.is_whole:
            return None
        runs = []
        for index in sorted({piece.run for piece in stretch}):
            pieces = sorted((piece for piece in stretch if piece.run == index), key=lambda piece: piece.place)
            run = self.runs[index]
            runs.append(Run(tuple(piece.part for piece in pieces), run.order, run.schema))
        return self.elsewhere(replace(self.work, runs=tuple(runs)), self.schemas, self.parts)

    def _count_inputs(self) -> None:
        inputs = [part for run in self.runs for part in run.parts]
        self._count("merge rows in", sum(part.rows for part in inputs))
        self._count("merge bytes in", sum(part.total_bytes for part in inputs))

    def _count(self, what: str, by: int) -> None:
        self.counters[what] = self.counters.get(what, 0) + by

    def _pieces(self) -> Iterator[Piece]:
        for index, run in enumerate(self.runs):
            direct = {part.key for part in run.parts if not part.hollow}
            # SUBTLE: bounds of other schemas may be of other types or columns, so they do not compare.
            known = run.schema == self.schema_id
            for place, part in enumerate(self.parts.leaves(run.parts)):
                lower, upper = self._bounds(part, run) if known else (b"", None)
                yield Piece(index, place, part, lower, upper, part.key in direct and bool(part.key))

    def _bounds(self, part: Part, run: Run) -> tuple[bytes, bytes | None]:
        """What lies before and after every row of a part. Of an inline one nobody may have said so: it is at hand."""
        meta = meta_of(part)
        if meta is not None:
            return meta.lower or b"", meta.upper
        if part.inline is None or run.order is not Order.SORTED:
            return b"", None
        table = self.parts.decoded(part, self.schema_id, self.schema, Hint.NEVER_ADD)
        first, last = (encode_row(table, index, self.schema.order_names) for index in (0, table.num_rows - 1))
        return first, last

    def _stretches(self) -> Iterator[list[Piece]]:
        """Pieces in the order of their bounds, cut wherever nothing before can meet anything after."""
        stretch: list[Piece] = []
        reach: bytes | None = b""
        for piece in sorted(self._pieces(), key=lambda piece: piece.lower):
            if stretch and reach is not None and piece.lower > reach:
                yield stretch
                stretch, reach = [], b""
            stretch.append(piece)
            reach = None if reach is None or piece.upper is None else max(reach, piece.upper)
        if stretch:
            yield stretch

    def _passable(self, stretch: list[Piece]) -> Part | None:
        """The only part of a stretch, if a merge would change nothing about it."""
        (piece, *others) = stretch
        part = piece.part
        if not self.work.is_whole:
            return None
        run = self.runs[piece.run]
        if others or not piece.direct or run.order is not Order.SORTED or run.schema != self.schema_id:
            return None
        if part.is_truncated or part.rewrite is not None or part.size * 16 < self.config.part_bytes:
            return None
        meta = meta_of(part)
        if meta is None or (meta.min_time != meta.max_time and not _is_from(meta.min_time, self.since)):
            return None
        return part

    def _merged(self, stretch: list[Piece]) -> Iterator[pa.Table]:
        """The rows of a stretch, merged; in rounds if there is too much to read at once."""
        memory_bytes = self.config.merge_bytes
        found = [
            source for index in sorted({piece.run for piece in stretch}) for source in self._sources(stretch, index)
        ]
        while len(found) > 2 and not fit(found, memory_bytes):
            found.sort(key=lambda source: source.size)
            number = 2
            while number < len(found) and fit(found[: number + 1], memory_bytes):
                number += 1
            found = [*found[number:], self._round(found[:number])]
        return self._scan(found)

    def _sources(self, stretch: list[Piece], index: int) -> Iterator[Source]:
        """The parts of one run in a stretch.

        If columns were dropped since, the run is not in the order of those that are left. Then every part is
        put in order by itself: they would all have to be in memory at once otherwise.
        """
        run = self.runs[index]
        # SUBTLE: by their places, not by their bounds: those are cut, and not all to the same length (test_engine.py).
        pieces = sorted((piece for piece in stretch if piece.run == index), key=lambda piece: piece.place)
        inside = tuple(piece.part for piece in pieces)
        in_order = cut_columns(self.wanted, [self.parts.schema(run)[1]]) == cut_columns(self.wanted, [self.schema])
        if run.order is Order.SORTED and in_order:
            yield source_of(self.parts, run, inside)
        else:
            yield from unordered(self.parts, run, inside, self.wanted)

    def _round(self, found: list[Source]) -> Source:
        """Some sources merged into one whose parts are deleted again at the end."""
        uploads = Uploads(self.config.outstanding_parts, self.pool, self.counters, self.target.clock)
        between = RunWriter(self.target, uploads, self.fresh)
        try:
            between.add(self._scan(found))
            parts = between.finish()
        except BaseException:
            delete_keys(between.abort(), self.blob, None)
            raise
        self.temporary.extend(part.key for part in parts)
        return source_of(self.parts, Run(tuple(parts), Order.SORTED, self.schema_id), tuple(parts))

    def _scan(self, found: list[Source]) -> Iterator[pa.Table]:
        names = [*self.schema.names, *self.schema.time_names, DIFF]
        for table in merged(self.parts, found, self.wanted, self.config.merge_bytes):
            yield table.select(names)

    def _finish(self, desc: Description) -> HollowBatch:
        parts = [inline] if (inline := self._inline()) is not None else self.output.finish()
        owned = written_by(self.work.collection, self.work.writer)
        listed = spill(parts, self._run_key, self._put_run, limit=self.config.run_parts, may_spill=owned)
        self._delete_temporary()
        rows = sum(part.rows for part in parts)
        self._count("merge rows out", rows)
        self._count("merge bytes out", sum(part.size for part in parts if owned(part)))
        self._count("merge parts passed", sum(bool(part.key) and not owned(part) for part in parts))
        return HollowBatch(desc, rows, (Run(listed, Order.SORTED, self.schema_id),) if rows else ())

    def _inline(self) -> Part | None:
        """All rows as a part that lives in the state, if they take no more room there than the inputs did.

        SUBTLE: whoever applies a result that takes more may have to refuse it, and would every time
        (test_engine.py).
        """
        small = self.output.small()
        if small is None:
            return None
        room = sum(len(part.inline) for run in self.runs for part in run.parts if part.inline is not None)
        data = encode_inline(small)
        if len(data) > min(room, self.config.inline_part_bytes):
            return None
        self.output.clear()
        return inline_part(small, data)

    def _run_key(self) -> str:
        return self.target.key(self.fresh("h"))

    def _put_run(self, key: str, data: bytes) -> None:
        self.lists.append(key)
        self.target.put(key, data)

    def _undo(self) -> None:
        """Delete what was written in vain; what stays is swept once the writer is gone."""
        self._delete_temporary()
        delete_keys([*self.output.abort(), *self.lists], self.blob, None)

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

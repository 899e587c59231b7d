"""Upload parts: encode and put them in the threads of a pool, a bounded number at once.

The counters by name (seconds are those of the injected clock):

    parts, rows, part bytes      put as parts
    encode seconds, put seconds  spent on them, in all threads
    runs spilled, run bytes      lists of parts put as hollow runs
    put retries                  puts repeated because storage was unavailable
    stalls, stall seconds        the thread that adds rows had to wait for an upload
    bounds truncated             bounds of parts that were longer than `bound_bytes`
    bounds omitted               bounds of parts that could not be kept at all
    column statistics trimmed    columns whose statistics the budget of a part had no room for; `... bytes`: their size
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Executor, Future
from dataclasses import dataclass, field, replace
from itertools import groupby

import pyarrow as pa

from timespine.columnar.kernels.consolidate import consolidate
from timespine.columnar.kernels.key_encoding import encode_row, truncate_upper
from timespine.columnar.parts.copied_groups import RowGroups, join_row_groups, row_groups
from timespine.columnar.parts.part_list_tree import Counters, add_to_counter, cover, hollow_part
from timespine.columnar.parts.part_reader import open_part
from timespine.columnar.parts.part_stats import BOUND_BYTES_MAX, Ends, PartMeta, known_meta
from timespine.columnar.parts.part_writer import EncodedPart, encode_part
from timespine.columnar.schema.schema import Schema
from timespine.config import Config
from timespine.core.batch import Part
from timespine.core.encoding.codec import encode_run
from timespine.core.protocols.session import pause_ms
from timespine.errors import Determinate, NoSpace, Unavailable, UsageError
from timespine.location.blob import Blob
from timespine.pool import failure, outcome

END_BYTES = BOUND_BYTES_MAX
"""Bytes of the first and the last row of a part by which parts are put in order. Longer rows are cut, soundly."""

AFTER_ALL = b"\xff"
"""A bound after every row: encodings begin with a zero or a one."""


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part in storage, with the statistics of its rows."""

    part: Part
    """The reference to it."""
    meta: PartMeta | None
    """The decoded `part.meta`; None if there is none."""
    first: bytes = b""
    """At or before the first row and its time, encoded: bytes compare as updates do."""
    last: bytes = AFTER_ALL
    """At or after the last row and its time."""
    counts: dict[str, float] = field(default_factory=dict)
    """The increments of counters, for the thread that owns them."""

    @staticmethod
    def of(part: Part) -> StoredPart:
        """Take a part that another writer stored."""
        meta = known_meta(part.meta) if part.meta else None
        if meta is None:
            return StoredPart(part, None)
        return StoredPart(part, meta, meta.lower or b"", AFTER_ALL if meta.upper is None else meta.upper)


Upload = Future["StoredPart | None"]
"""A pending upload of a part; None if consolidation leaves no row of it."""


@dataclass(frozen=True, slots=True)
class UploadTarget:
    """The destination and common parameters of the parts of a batch. Its methods run in any thread."""

    collection: str
    """The collection of the blobs."""
    writer: str
    """The registered writer that puts them."""
    schema: Schema
    """The schema of the rows."""
    schema_id: int
    """Its number in the collection."""
    blob: Blob
    """The blob store."""
    config: Config
    """Sizes and attempts."""
    clock: Callable[[], float] = time.perf_counter
    """Measures seconds."""
    sleep: Callable[[float], None] = time.sleep
    """Pauses between attempts, in seconds."""

    @property
    def order(self) -> tuple[str, ...]:
        """Return the columns of the order of updates: those of the row, then time."""
        return (*self.schema.order_names, *self.schema.time_names)

    def key(self, name: str) -> str:
        """Return the key of a blob with this name."""
        return f"{self.collection}/{self.writer}/{name}"

    def send_part(
        self, name: str, held: list[pa.Table], *, is_consolidated: bool, is_sorted: bool = True
    ) -> StoredPart | None:
        """Encode rows and put them as a part; None if consolidation leaves none.

        The table is taken out of the list, so that its memory is free while its bytes travel.
        """
        started = self.clock()
        table = held.pop().combine_chunks()
        if not is_consolidated:
            table = consolidate(table, self.order)
        if table.num_rows == 0:
            return None
        wanted = self.schema.update_arrow
        table = pa.Table.from_arrays([table.column(name) for name in wanted.names], schema=wanted)
        config = self.config
        encoded = encode_part(table, self.schema, self.schema_id, self.collection, name, config, is_sorted=is_sorted)
        ends = encoded.ends
        first, last = (b"", AFTER_ALL) if ends is None else self._with_times(table, ends)
        truncated = sum(len(row) > config.bound_bytes for row in ends or ())
        del table
        stored = self._put_part(name, encoded, started)
        stored.counts["bounds truncated"] = truncated
        return replace(stored, first=first, last=last)

    def send_groups(self, name: str, held: list[pa.Table | RowGroups]) -> StoredPart:
        """Put row groups of other parts and new rows, in order, as a part. The pieces are taken out of the list."""
        started = self.clock()
        spans: list[RowGroups] = []
        for is_copied, pieces in groupby(held, key=lambda each: isinstance(each, RowGroups)):
            if is_copied:
                spans += pieces
            else:
                spans.append(self._encode_groups(name, pa.concat_tables(pieces).combine_chunks()))
        held.clear()
        return self._put_part(name, join_row_groups(spans, self.collection, self.schema_id, name, self.config), started)

    def _encode_groups(self, name: str, table: pa.Table) -> RowGroups:
        """Encode rows as row groups of about the usual size: the remainder is no small row group of its own."""
        wanted = self.schema.update_arrow
        table = pa.Table.from_arrays([table.column(name) for name in wanted.names], schema=wanted)
        count = max(1, round(table.num_rows / self.config.row_group_rows))
        config = replace(self.config, row_group_rows=-(-table.num_rows // count))
        encoded = encode_part(table, self.schema, self.schema_id, self.collection, name, config)
        data = encoded.data
        part = Part(self.key(name), encoded.rows, len(data), encoded.diff_sum, meta=encoded.meta.encode())
        reader = open_part(
            part, self.collection, self.schema, self.schema_id, lambda start, stop: data[start:stop], config
        )
        groups = row_groups(reader, encoded.meta, config)
        if groups is None:
            raise AssertionError("a Parquet file is not laid out as it always was")
        return groups

    def _put_part(self, name: str, encoded: EncodedPart, started: float) -> StoredPart:
        """Put an encoded part."""
        meta = encoded.meta
        counts: dict[str, float] = {
            "parts": 1,
            "rows": encoded.rows,
            "part bytes": len(encoded.data),
            "bounds omitted": (meta.lower is None) + (meta.upper is None),
            "column statistics trimmed": meta.trimmed(self.schema),
            "column statistics trimmed bytes": encoded.trimmed_bytes,
        }
        encoded_at = self.clock()
        counts["put retries"] = self.put(self.key(name), encoded.data)
        counts["encode seconds"] = encoded_at - started
        counts["put seconds"] = self.clock() - encoded_at
        part = Part(self.key(name), encoded.rows, len(encoded.data), encoded.diff_sum, meta=meta.encode())
        return replace(StoredPart.of(part), counts=counts)

    def send_list(self, name: str, children: Sequence[StoredPart]) -> StoredPart:
        """Put a list of parts as a hollow run."""
        parts = tuple(child.part for child in children)
        meta = cover(parts, [child.meta for child in children])
        data = encode_run(self.key(name), parts)
        retries = self.put(self.key(name), data)
        counts = {"runs spilled": 1.0, "run bytes": float(len(data)), "put retries": float(retries)}
        return StoredPart(hollow_part(self.key(name), parts, len(data), meta), meta, counts=counts)

    def _with_times(self, table: pa.Table, ends: Ends) -> Ends:
        """Return bounds of the first and the last update, given their rows: cut, or followed by their times."""
        first, last = ends
        times = [encode_row(table, place, self.schema.time_names) for place in (0, -1)]
        least = first + times[0] if len(first) <= END_BYTES else first[:END_BYTES]
        greatest = last + times[1] if len(last) <= END_BYTES else truncate_upper(last, END_BYTES) or AFTER_ALL
        return least, greatest

    def put(self, key: str, data: bytes) -> int:
        """Make bytes durable; how often it had to be tried again. Keys are write-once, so trying again is safe."""
        for attempt in range(self.config.storage_attempts - 1):
            try:
                self.blob.put(key, data)
            except NoSpace:
                raise  # it takes more than a moment until there is space
            except Unavailable:
                self.sleep(pause_ms(self.config, attempt) / 1000)
            else:
                return attempt
        self.blob.put(key, data)
        return self.config.storage_attempts - 1


class Uploads:
    """Work under way for one writer, in the order in which it was started. Not for several threads at once."""

    def __init__(self, limit: int, pool: Executor | None, counters: Counters, clock: Callable[[], float]) -> None:
        self.failure: BaseException | None = None
        """The first failure: from then on nothing is started."""
        self._limit = limit
        self._pool = pool
        self._counters = counters
        self._clock = clock
        self._under_way: list[Upload] = []

    def check(self) -> None:
        """Take note of what is done; raise the first failure, every time."""
        for future in [each for each in self._under_way if each.done()]:
            self._take(future)
        if self.failure is not None:
            raise self.failure

    def start(self, work: Callable[[], StoredPart | None]) -> Upload:
        """Begin some work, once fewer than the limit are under way: that is how rows are held back."""
        self.check()
        while len(self._under_way) >= self._limit:
            self.wait(self._under_way[0])
        if self._pool is not None:
            future = self._pool.submit(work)
        else:
            future = Future()
            try:
                future.set_result(work())
            except Exception as error:
                future.set_exception(error)
        self._under_way.append(future)
        return future

    def wait(self, future: Upload) -> StoredPart | None:
        """Return the outcome of some work; a stall if it is not there yet."""
        if not future.done():
            began = self._clock()
            _failure(future)
            add_to_counter(self._counters, "stalls")
            add_to_counter(self._counters, "stall seconds", self._clock() - began)
        self._take(future)
        self.check()
        return outcome(future)

    def drain(self) -> None:
        """Wait for everything; the end of a batch is no stall."""
        for future in list(self._under_way):
            self._take(future)
        self.check()

    def cancel(self) -> None:
        """Start nothing more, and wait until nothing is under way, whatever comes of it."""
        for future in self._under_way:
            future.cancel()
        for future in self._under_way:
            _failure(future)
        self._under_way = []

    def _take(self, future: Upload) -> None:
        """Take note of one outcome, once. Waits for it."""
        if future not in self._under_way:
            return
        error = _failure(future)
        self._under_way.remove(future)
        if error is not None:
            self.failure = self.failure or error
            return
        stored = outcome(future)
        for what, by in stored.counts.items() if stored is not None else ():
            add_to_counter(self._counters, what, by)


def _failure(future: Upload) -> BaseException | None:
    """Wait for some work; why it failed, if so."""
    try:
        return failure(future)
    except Determinate as error:
        return error
    except CancelledError:
        # SUBTLE: `concurrent.futures.wait` would wait for ever here, if the pool was shut down meanwhile.
        return UsageError("the pool dropped an upload: it was shut down too early")

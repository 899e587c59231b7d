"""The formats of the bytes of parts, for the simulator, and the naive one.

The naive engine encodes lists of updates, and lets the oracle merge them. It replaces
the columnar engine in most simulated histories and in tests of adapters:
slow, obviously correct, and with every kind of output that a real engine
has (several parts, hollow runs, parts passed through by reference). The real one is
`timespine.testing.formats.parquet`.
"""

from __future__ import annotations

import typing
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from timespine.config import Config
from timespine.core.batch import HollowBatch, Part, Run, wrap_int64
from timespine.core.effects import FreshId, GetBlob, MergeOutput, MergeRuns, Output, Protocol, PutBlob
from timespine.core.encoding.codec import decode_run, encode_run
from timespine.core.read_plan import Plan, apply_parent_bounds
from timespine.core.state import State
from timespine.errors import CorruptionError
from timespine.model.frontier import advance_by
from timespine.model.oracle import OracleRow, Update, check_diff, compact
from timespine.model.time import Time
from timespine.testing.simulator.core_writes import Data

StoredUpdate = tuple[str, Time, int]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[StoredUpdate])

CONFIG = Config(
    reader_lease_ms=2_000,
    writer_lease_ms=2_500,
    claim_ms=1_000,
    inline_part_bytes=40,
    inline_total_bytes=120,
    rollup_seqnos=8,
    commit_attempts=40,
    storage_attempts=6,
    retry_pause_ms=1,
    retry_pause_max_ms=20,
    delete_batch=3,
)
"""Small limits and short leases, so that a history of sixty operations reaches all of them."""

PART_ROWS = 2
"""Rows per part of a merge result: small, so that results have several parts."""

PASSED_MAX = 2
"""Parts passed through that a merge result lists itself; a hollow run lists more of them."""


class RowFormat(typing.Protocol):
    """A format of the bytes of parts, with its reads and merges."""

    config: Config
    """Limits for the processes that use it."""
    writes_inline: bool
    """Whether tiny writes ahead of the seal go into the state itself."""
    favours: Mapping[str, int]
    """Operations that histories use more often than usual, each with its factor."""
    counts: Counter[str]
    """Counts of the paths taken, so that tests can see that histories reach all of them."""

    def first_schema(self, arity: int) -> bytes | None:
        """Return the first schema of a collection, if the format needs one."""
        ...

    def next_schema(self, state: State, name: str) -> bytes:
        """Return a schema that may follow the newest one; `name` was never used before."""
        ...

    def loses(self, state: State, written: int) -> bool:
        """Tell whether the newest schema of a state lacks a column that rows of an older one may hold."""
        ...

    def retractable(self, rows: Sequence[OracleRow], state: State) -> Sequence[OracleRow]:
        """Return the rows that data under the newest schema of a state can retract."""
        ...

    def data_of(self, updates: Sequence[Update], state: State) -> Data:
        """Encode updates as data to append, under the newest schema of a state."""
        ...

    def pieces_of(self, updates: Sequence[Update], state: State) -> list[Data]:
        """Encode updates as the parts of one run, in its order."""
        ...

    def rows_of(self, part: Part, data: bytes, schema: bytes | None) -> Sequence[StoredUpdate]:
        """Decode all updates of a part that was written under a schema."""
        ...

    def counted(self, plan: Plan, fetched: Sequence[tuple[Part, bytes]], state: State) -> dict[OracleRow, int]:
        """Count each row, by the parts that a plan fetched."""
        ...

    def merge_runs(self, effect: MergeRuns, state: State) -> Protocol[Output]:
        """Carry out a MergeRuns effect; None if an input is gone."""
        ...


class NaiveFormat:
    """Lists of updates, and the oracle."""

    config = CONFIG
    writes_inline = False
    favours: Mapping[str, int] = {}
    counts: Counter[str] = Counter()

    def first_schema(self, arity: int) -> bytes | None:
        return None

    def next_schema(self, state: State, name: str) -> bytes:
        return name.encode()

    def loses(self, state: State, written: int) -> bool:
        """Decide by a rule without other meaning: about half of the changes drop something."""
        return any(zlib.crc32(schema) % 2 for schema in state.schemas[written + 1 :])

    def retractable(self, rows: Sequence[OracleRow], state: State) -> Sequence[OracleRow]:
        return rows

    def data_of(self, updates: Sequence[Update], state: State) -> Data:
        newest = len(state.schemas) - 1 if state.schemas else None
        return msgspec.structs.replace(data_of(updates), schema=newest)

    def pieces_of(self, updates: Sequence[Update], state: State) -> list[Data]:
        return [self.data_of(updates[::2], state), self.data_of(updates[1::2], state)]

    def rows_of(self, part: Part, data: bytes, schema: bytes | None) -> Sequence[StoredUpdate]:
        return decode_rows(data)

    def counted(self, plan: Plan, fetched: Sequence[tuple[Part, bytes]], state: State) -> dict[OracleRow, int]:
        return row_counts(plan, fetched)

    def merge_runs(self, effect: MergeRuns, state: State) -> Protocol[Output]:
        return merge_runs(effect)


OPAQUE: RowFormat = NaiveFormat()
"""The naive format."""


def encode_rows(updates: Iterable[Update]) -> bytes:
    """Encode updates as opaque bytes."""
    return _encoder.encode(list(updates))


def decode_rows(data: bytes) -> list[StoredUpdate]:
    """Decode the updates in opaque bytes."""
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise CorruptionError(f"a part does not decode: {error}") from error


def data_of(updates: Sequence[Update]) -> Data:
    """Encode updates as data to append."""
    return Data(encode_rows(updates), len(updates), wrap_int64(sum(diff for _, _, diff in updates)))


def row_counts(plan: Plan, fetched: Iterable[tuple[Part, bytes]]) -> dict[OracleRow, int]:
    """Count each row, by the parts that a plan fetched."""
    return counts_of(plan, ((part, decode_rows(data)) for part, data in fetched))


def counts_of(plan: Plan, parts: Iterable[tuple[Part, Sequence[StoredUpdate]]]) -> dict[OracleRow, int]:
    """Count each row, by the updates in the parts of a plan."""
    counts: dict[OracleRow, int] = {}
    for part, updates in parts:
        for row, time, diff in updates:
            if plan.counts(part, time):
                counts[row] = counts.get(row, 0) + diff
    return {row: check_diff(count) for row, count in counts.items() if count != 0}


def visible(part: Part, updates: Iterable[StoredUpdate]) -> list[Update]:
    """Return the updates that a reference to a part shows, at the times at which it shows them."""
    seen: list[Update] = []
    for row, time, diff in updates:
        if part.lower is not None and not part.lower.less_equal(time):
            continue
        if part.upper is not None and part.upper.less_equal(time):
            continue
        seen.append((row, time if part.rewrite is None else advance_by(time, part.rewrite), diff))
    return seen


def merge_runs(effect: MergeRuns) -> Protocol[Output]:
    """Carry out a MergeRuns effect; None if an input is gone.

    A part whose rows no other part has, and whose times since does not fold, is
    passed through by reference, also out of a hollow run. The rest is written anew.
    """
    parts: list[tuple[Part, str, list[Update]]] = []
    waiting = [(part, part.key) for batch in effect.request.inputs for part in batch.parts]
    while waiting:
        part, origin = waiting.pop()
        data = part.inline if part.inline is not None else (yield GetBlob(part.key))
        if data is None:
            return None
        if part.hollow:
            waiting.extend((apply_parent_bounds(part, child), origin) for child in decode_run(part.key, data))
        else:
            parts.append((part, origin, visible(part, decode_rows(data))))
    desc = effect.request.desc
    merged = {(row, time): diff for row, time, diff in compact((u for *_, seen in parts for u in seen), desc.since)}
    passed: list[tuple[Part, str]] = []
    for part, origin, seen in parts:
        untouched = all(merged.get((row, time)) == diff for row, time, diff in seen) and len(seen) == part.rows
        if untouched and part.key and not part.is_truncated and part.rewrite is None:
            passed.append((part, origin))
            for row, time, _ in seen:
                del merged[row, time]
    if not merged and not passed:
        return MergeOutput(HollowBatch(desc, 0))
    rest = sorted(((row, time, diff) for (row, time), diff in merged.items()), key=lambda u: (str(u[0]), u[1]))
    live, past = _split(rest)
    written, size = yield from _write(effect, live)
    written_past, past_size = yield from _write(effect, past)
    size += past_size
    runs = [Run((part,)) for part, _ in passed]
    if any(part.key != origin for part, origin in passed) or len(passed) > PASSED_MAX:
        hollow = yield from _listed(effect, [part for part, _ in passed])
        runs, size = [Run((hollow,))], size + hollow.size
    rows = len(rest) + sum(part.rows for part, _ in passed)
    runs += [Run(written)] if written else []
    if written_past:
        runs.append(Run(written_past, zero_from=tuple(map(max, zip(*(time for _, time, _ in past), strict=True)))))
    batch = HollowBatch(desc, rows, tuple(runs))
    return MergeOutput(batch, tuple(dict.fromkeys(origin for _, origin in passed)), len(rest), size)


def _split(updates: Sequence[Update]) -> tuple[list[Update], list[Update]]:
    """Split updates into those of rows that add up to something, and those of rows that add up to zero."""
    sums: dict[OracleRow, int] = {}
    for row, _, diff in updates:
        sums[row] = sums.get(row, 0) + diff
    return [u for u in updates if sums[u[0]]], [u for u in updates if not sums[u[0]]]


def _write(effect: MergeRuns, merged: list[Update]) -> Protocol[tuple[tuple[Part, ...], int]]:
    """Put the rows as parts, and more than two parts in a hollow run; return them and their bytes."""
    parts: list[Part] = []
    for start in range(0, len(merged), PART_ROWS):
        data = data_of(merged[start : start + PART_ROWS])
        key = f"{effect.collection}/{effect.writer}/{(yield FreshId('p'))}"
        yield PutBlob(key, data.value)
        parts.append(Part(key, data.rows, len(data.value), data.diff_sum))
    if len(parts) <= 2:
        return tuple(parts), sum(part.size for part in parts)
    hollow = yield from _listed(effect, parts)
    return (hollow,), hollow.total_bytes


def _listed(effect: MergeRuns, parts: Sequence[Part]) -> Protocol[Part]:
    """Put a list of parts as a hollow run."""
    key = f"{effect.collection}/{effect.writer}/{(yield FreshId('h'))}"
    run = encode_run(key, tuple(parts))
    yield PutBlob(key, run)
    sums = [part.diff_sum for part in parts if part.diff_sum is not None]
    diff_sum = wrap_int64(sum(sums)) if len(sums) == len(parts) else None
    inside_bytes = sum(part.size for part in parts)
    rows = sum(part.rows for part in parts)
    return Part(key, rows, len(run), diff_sum, hollow=True, inside_bytes=inside_bytes)

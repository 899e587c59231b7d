"""A piece of a read, for another process: what to read, of which parts, and nothing that has to be asked for.

A read is planned where the state is known, cut into key ranges (`split_keys`), and each
range is read by a process that can open the blobs, such as an executor of Spark. A slice
names the parts that may have rows in its range and the schemas they were written
with, so its reader opens blobs and nothing else.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import msgspec
import pyarrow as pa

from timespine.columnar.parts.part_cache import CacheHint, PartCache
from timespine.columnar.predicate.key_set import KeySet
from timespine.columnar.predicate.predicate import Native
from timespine.columnar.predicate.where import as_predicate
from timespine.columnar.scan.part_access import Parts, meta_of
from timespine.columnar.scan.prune import Pruner
from timespine.columnar.scan.scan import scan
from timespine.columnar.scan.scan_request import ScanRequest
from timespine.columnar.scan.split_keys import split_keys
from timespine.columnar.scan.visibility import Window
from timespine.columnar.schema.schema import Schema, schemas_by_id
from timespine.config import Config
from timespine.core.batch import Part, Run
from timespine.errors import CorruptionError, UsageError
from timespine.location.blob import Blob
from timespine.model.frontier import Frontier
from timespine.model.time import Time

CACHE_BYTES = 64 << 20
"""Footers and lists of parts that a reader of slices keeps: neighbours read some of the same."""


class Slice(msgspec.Struct, frozen=True, array_like=True):
    """One piece of a read."""

    collection: str
    """The collection that it is of."""
    schemas: dict[int, bytes]
    """The schemas that its runs were written with, and the one that it is read under."""
    schema: int
    """The one that it is read under."""
    runs: tuple[Run, ...]
    """The parts that may have rows of it."""
    columns: tuple[str, ...]
    """The user's columns to give."""
    after: Time | None
    """Updates at or before this do not count."""
    until: Time | None
    """Updates not at or before this do not count."""
    since: Frontier | None
    """Times are advanced to this."""
    keep_times: bool
    """Whether updates keep their times."""
    allow_duplicates: bool
    """Whether a row may come several times with a part of its count each."""
    where: str | None
    """Only rows for which this holds, as text."""
    lower: bytes | None
    """Only rows whose columns of the cut (`ScanRequest.cut_names`), encoded, are at or after this."""
    upper: bytes | None
    """Only rows whose columns of the cut, encoded, are before this."""

    @property
    def rows(self) -> int:
        """Rows of its parts: an upper bound of its own."""
        return sum(part.rows for run in self.runs for part in run.parts)

    @property
    def seen(self) -> Schema:
        """The schema that it is read under."""
        return Schema.decode(self.schemas[self.schema])

    def encode(self) -> bytes:
        """Return the slice as bytes."""
        return _encoder.encode(self)

    @staticmethod
    def decode(data: bytes) -> Slice:
        """Return the slice in these bytes."""
        try:
            return _decoder.decode(data)
        except (msgspec.MsgspecError, RecursionError, ValueError) as error:
            raise CorruptionError(f"a piece of a read does not make sense: {error}") from error


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Slice] = msgspec.msgpack.Decoder(Slice)


def cut_slices(
    parts: Parts, schemas: Sequence[bytes], runs: Sequence[Run], request: ScanRequest, n: int
) -> list[Slice]:
    """Return a read as at most n slices of about equal size, in the order of their keys; one at least."""
    if isinstance(request.where, Native):
        raise UsageError(
            "a polars expression cannot be sent to other processes: "
            "give the condition as text, or as a predicate made with col(...)"
        )
    if request.keys is not None:
        raise UsageError("a lookup is not cut into pieces")
    schema = next(id for id in reversed(range(len(schemas))) if Schema.decode(schemas[id]) == request.schema)
    cuts = split_keys(parts, runs, request, n) if n > 1 else []
    ends = pairwise([request.lower, *cuts, request.upper])
    pieces = [replace(request, lower=lower, upper=upper) for lower, upper in ends]
    inside = _runs_of_pieces(parts, runs, request, pieces)
    return [_slice(parts, schemas, schema, *each) for each in zip(inside, pieces, strict=True)]


class _Pieces:
    """The pieces of a read, as the bounds of parts of one schema compare with their ends.

    Ends ascend, so the pieces that a part may have rows in are neighbours, and two searches find the first and the last
    one. A part costs as many steps as it has pieces, not as many as there are.
    """

    def __init__(self, pieces: Sequence[ScanRequest], written: Schema) -> None:
        self._pruners = [Pruner(piece, written) for piece in pieces]
        ends = [pruner.range for pruner in self._pruners]
        self._lowers = [lower or b"" for lower, _ in ends]
        self._uppers = [upper for _, upper in ends if upper is not None]

    def of(self, part: Part) -> Iterable[int]:
        """Return the places of the pieces that a part may have rows in; all of them, if its bounds are not known."""
        meta = meta_of(part)
        if meta is None:
            return range(len(self._pruners))
        first, stop = 0, len(self._pruners)
        if meta.lower is not None:
            first = bisect_left(self._uppers, meta.lower)
            # SUBTLE: where only some columns of the cut compare, an upper end may be the beginning of a lower bound
            # (test_parts_that_compare_by_the_first_column_alone_are_in_all_pieces_of_that_value).
            while first > 0 and meta.lower.startswith(self._uppers[first - 1]):
                first -= 1
        if meta.upper is not None:
            stop = bisect_right(self._lowers, meta.upper)
        return [place for place in range(first, stop) if self._pruners[place].bounds_may_match(meta)]


def _runs_of_pieces(
    parts: Parts, runs: Sequence[Run], request: ScanRequest, pieces: Sequence[ScanRequest]
) -> list[list[Run]]:
    """Return for each piece of a read the runs, with the parts that may have rows in it.

    An audit reads what each piece skips, so it looks at all parts for each.
    """
    if len(pieces) == 1 or parts.audit:
        matching = ([(run, tuple(parts.matching(run.parts, run, piece))) for run in runs] for piece in pieces)
        return [[_with_parts(run, inside) for run, inside in each if inside] for each in matching]
    known: dict[int, _Pieces] = {}
    found: list[dict[int, list[Part]]] = [{} for _ in pieces]
    for place, run in enumerate(runs):
        id, schema = parts.schema(run)
        if id not in known:
            known[id] = _Pieces(pieces, schema)
        for part in parts.matching(run.parts, run, request):
            for piece in known[id].of(part):
                found[piece].setdefault(place, []).append(part)
    return [[_with_parts(runs[place], inside) for place, inside in each.items()] for each in found]


def _with_parts(run: Run, inside: Iterable[Part]) -> Run:
    """Return a run that lists only some parts."""
    return Run(tuple(inside), run.order, run.schema)


def _slice(parts: Parts, schemas: Sequence[bytes], schema: int, inside: Sequence[Run], request: ScanRequest) -> Slice:
    """Return one piece of a read, with the runs that it needs."""
    ids = {schema, *(run.schema for run in inside if run.schema is not None)}
    window = request.window
    return Slice(
        parts.collection,
        {id: schemas[id] for id in sorted(ids)},
        schema,
        tuple(inside),
        request.columns,
        window.after,
        window.until,
        window.since,
        request.keep_times,
        request.allow_duplicates,
        None if request.where is None else str(request.where),
        request.lower,
        request.upper,
    )


def slice_request(slice: Slice, keys: KeySet | None = None) -> ScanRequest:
    """Return what a slice asks for; of some keys only, if they are given."""
    return ScanRequest(
        slice.seen,
        slice.columns,
        Window(slice.after, slice.until, slice.since),
        keep_times=slice.keep_times,
        where=None if slice.where is None else as_predicate(slice.where),
        lower=slice.lower,
        upper=slice.upper,
        keys=keys,
        allow_duplicates=slice.allow_duplicates,
        any_order=True,
        hint=CacheHint.NEVER_ADD,
    )


def parts_of(slice: Slice, blob: Blob, config: Config, cache: PartCache) -> Parts:
    """Return the parts of a slice, read from these blobs."""
    return Parts(blob, slice.collection, schemas_by_id(slice.schemas, slice.collection), config, cache)


def read_slice_rows(
    slice: Slice, blob: Blob, config: Config, cache: PartCache, memory_bytes: int, keys: KeySet | None = None
) -> Iterator[pa.Table]:
    """Yield the rows of a slice, in any order, each once, with `_diff`."""
    return scan(parts_of(slice, blob, config, cache), slice.runs, slice_request(slice, keys), memory_bytes)

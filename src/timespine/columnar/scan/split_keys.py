"""Where to cut the keys of a read, so that several readers get about equally much."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from timespine.columnar.kernels.key_encoding import leading, recode
from timespine.columnar.scan.fetch_ahead import announcer
from timespine.columnar.scan.part_access import Parts, meta_of
from timespine.columnar.scan.scan_request import ScanRequest
from timespine.core.batch import Part, Run

SMALL_PARTS = 4
"""A part is small if at least this number of its size make one piece: then its bounds are enough to cut by."""

FEW_PARTS = 256
"""Parts in a folder whose footers are read in any case: then pieces are as equal as row groups allow."""


def split_keys(parts: Parts, runs: Sequence[Run], request: ScanRequest, n: int) -> list[bytes]:
    """Return at most n - 1 values that cut what is wanted into pieces of about equal size.

    They are rows, encoded by the columns of the cut, ascending, taken from the
    bounds of row groups and weighted by their rows: no row is read. All of them lie
    inside of the range that is wanted. What is equal in all columns of the cut is not cut.
    """
    weights = sorted(_weights(parts, runs, request, n))
    total = sum(rows for _, rows in weights)
    cuts: list[bytes] = []
    seen = 0
    for lower, rows in weights:
        last = cuts[-1] if cuts else weights[0][0]
        if len(cuts) < n - 1 and seen >= total * (len(cuts) + 1) / n and lower > last:
            cuts.append(lower)
        seen += rows
    return cuts


def _weights(parts: Parts, runs: Sequence[Run], request: ScanRequest, n: int) -> Iterator[tuple[bytes, int]]:
    """Yield where parts or row groups begin, and how many rows they have.

    A footer takes a request at a remote place, and a millisecond of CPU time anywhere. Where that adds up, what the
    state knows of a small part is enough.
    """
    parts.fetch_lists(part for run in runs for part in run.parts)
    inside = [[part for part in parts.matching(run.parts, run, request) if part.inline is None] for run in runs]
    rows = sum(part.rows for each in inside for part in each)
    is_costly = announcer(parts.blob) is not None or sum(map(len, inside)) > FEW_PARTS
    small_rows = rows // (SMALL_PARTS * n) if is_costly else 0
    parts.fetch_footers(part for each in inside for part in each if part.rows > small_rows)
    for run, found in zip(runs, inside, strict=True):
        yield from _run_weights(parts, run, found, request, small_rows)


def _run_weights(
    parts: Parts, run: Run, inside: Sequence[Part], request: ScanRequest, small_rows: int
) -> Iterator[tuple[bytes, int]]:
    """Yield where parts or row groups of a run begin, as the wanted schema sees it, and how many rows they have.

    If columns of the cut have changed since, all that is known is where they begin in the first one; of a run that
    was not ordered by that one, nothing.
    """
    id, schema = parts.schema(run)
    columns = [request.schema.by_id(each) for each in request.schema.cut_ids]
    first, types = columns[0], [column.arrow_type for column in columns]
    if schema.order_ids[0] != first.id:
        return
    written = schema.by_id(first.id)
    is_same = schema.order_ids[: len(types)] == request.schema.cut_ids and all(
        schema.by_id(column.id).type == column.type for column in columns
    )
    for part in inside:
        lowers: Sequence[bytes | None]
        meta = meta_of(part) if part.rows <= small_rows else None
        if meta is not None and meta.lower is not None and is_same:
            begin = leading(meta.lower, types)
            if _is_inside(begin, request):
                yield begin, part.rows
            continue
        reader = parts.open(part, id, schema)
        if is_same and reader.key_index is not None:
            lowers = [leading(lower, types) for lower in reader.key_index.lowers]
        else:
            found = reader.group_lowers
            lowers = [None if each is None else recode(each, written.arrow_type, first.arrow_type) for each in found]
        for group, lower in enumerate(lowers):
            if lower is not None and _is_inside(lower, request):
                yield lower, reader.group_rows(group)


def _is_inside(lower: bytes, request: ScanRequest) -> bool:
    if request.lower is not None and lower <= request.lower:
        return False
    return request.upper is None or lower < request.upper

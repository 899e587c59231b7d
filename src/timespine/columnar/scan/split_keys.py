"""Where to cut the keys of a read, so that several readers get about equally much."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from timespine.columnar.kernels.key_encoding import NULL, leading, recode
from timespine.columnar.scan.fetch_ahead import announcer
from timespine.columnar.scan.part_access import Parts, meta_of
from timespine.columnar.scan.rows_between_bounds import RowEstimate, RowSpan
from timespine.columnar.scan.scan_request import ScanRequest
from timespine.core.batch import Part, Run

SMALL_PARTS = 4
"""A part is small if at least this number of its size make one piece: then its bounds are enough to cut by."""

FEW_PARTS = 256
"""Parts in a folder whose footers are read in any case: then pieces are as equal as row groups allow."""

OPENED_PARTS = 256
"""The most parts that are opened where more than `FEW_PARTS` are not small: half a second of CPU time."""

CROWDED_PIECES = 2
"""A gap between two bounds with more rows than this number of pieces has to be cut inside."""


def split_keys(parts: Parts, runs: Sequence[Run], request: ScanRequest, n: int) -> list[bytes]:
    """Return at most n - 1 values that cut what is wanted into pieces of about equal size.

    They are rows, encoded by the columns of the cut, ascending, taken from the
    bounds of parts and row groups and weighted by their rows: no row is read. All of them lie
    inside of the range that is wanted. What is equal in all columns of the cut is not cut.

    A footer takes a request at a remote place, and two milliseconds of CPU time anywhere. Where that adds up, what the
    state knows of a small part is enough. Where many parts are not small, what it knows of all of them is enough,
    except for those that have to be cut inside.
    """
    parts.fetch_lists(part for run in runs for part in run.parts)
    found = [
        _RunCuts(parts, run, [part for part in parts.matching(run.parts, run, request) if part.inline is None], request)
        for run in runs
    ]
    rows = sum(part.rows for each in found for part in each.inside)
    is_costly = announcer(parts.blob) is not None or sum(len(each.inside) for each in found) > FEW_PARTS
    small_rows = rows // (SMALL_PARTS * n) if is_costly else 0
    large = [part for each in found for part in each.inside if part.rows > small_rows]
    if is_costly and len(large) > FEW_PARTS:
        return _cut_by_bounds(parts, found, request, n)
    parts.fetch_footers(large)
    return _cut_by_row_groups(sorted(weight for each in found for weight in each.weights(small_rows)), n)


def _cut_by_row_groups(weights: Sequence[tuple[bytes, int]], n: int) -> list[bytes]:
    """Cut where a part or row group begins, as soon as those before have enough rows."""
    total = sum(rows for _, rows in weights)
    cuts: list[bytes] = []
    seen = 0
    for lower, rows in weights:
        last = cuts[-1] if cuts else weights[0][0]
        if len(cuts) < n - 1 and seen >= total * (len(cuts) + 1) / n and lower > last:
            cuts.append(lower)
        seen += rows
    return cuts


def _cut_by_bounds(parts: Parts, runs: Sequence[_RunCuts], request: ScanRequest, n: int) -> list[bytes]:
    """Cut at the bounds of parts that the state has.

    Open parts without bounds, the largest first, and then parts that have to be cut inside: where more than
    `CROWDED_PIECES` pieces lie between two bounds, one of the parts there. If more than `OPENED_PARTS` parts would be
    opened, pieces stay larger than wanted. Then there are about as many pieces of that size.
    """
    known: list[tuple[_RunCuts, Part, RowSpan]] = []
    unknown: list[tuple[_RunCuts, Part]] = []
    for run in runs:
        for part in run.inside if run.is_cut else ():
            span = run.span(part)
            if span is None:
                unknown.append((run, part))
            else:
                known.append((run, part, span))
    unknown = sorted(unknown, key=lambda each: -each[1].rows)[:OPENED_PARTS]
    parts.fetch_footers(part for _, part in unknown)
    opened = [span for run, part in unknown for span in run.group_spans(part)]
    estimate = RowEstimate([*opened, *(span for _, _, span in known)], request.lower, request.upper)
    crowded = estimate.crowded(CROWDED_PIECES * estimate.total / n, OPENED_PARTS - len(unknown))
    crowded = {place - len(opened) for place in crowded if place >= len(opened)}
    if crowded:
        parts.fetch_footers(known[place][1] for place in sorted(crowded))
        spans = opened
        for place, (run, part, span) in enumerate(known):
            spans.extend(run.group_spans(part) if place in crowded else (span,))
        estimate = RowEstimate(spans, request.lower, request.upper)
    return estimate.cut(n)


class _RunCuts:
    """Where the parts and row groups of one run begin, as the wanted schema sees it.

    If columns of the cut have changed since the run was written, all that is known is where they begin in the first
    one; of a run that was not ordered by that one, nothing.
    """

    def __init__(self, parts: Parts, run: Run, inside: Sequence[Part], request: ScanRequest) -> None:
        self.inside = inside
        """The parts in blobs that may have rows that are wanted."""
        self._parts = parts
        self._request = request
        self._id, self._schema = parts.schema(run)
        columns = [request.schema.by_id(each) for each in request.schema.cut_ids]
        first, self._types = columns[0], [column.arrow_type for column in columns]
        self.is_cut = self._schema.order_ids[0] == first.id
        """Whether anything is known of where its parts begin."""
        if self.is_cut:
            self._first_id, self._first_type = first.id, self._schema.by_id(first.id).arrow_type
        self._is_same = self._schema.order_ids[: len(columns)] == request.schema.cut_ids and all(
            self._schema.by_id(column.id).type == column.type for column in columns
        )

    def weights(self, small_rows: int) -> Iterator[tuple[bytes, int]]:
        """Yield where parts or row groups begin inside of the range, and how many rows they have."""
        for part in self.inside if self.is_cut else ():
            meta = meta_of(part) if part.rows <= small_rows else None
            if meta is not None and meta.lower is not None and self._is_same:
                begin = leading(meta.lower, self._types)
                if _is_inside(begin, self._request):
                    yield begin, part.rows
                continue
            for lower, rows in self._groups(part):
                if _is_inside(lower, self._request):
                    yield lower, rows

    def span(self, part: Part) -> RowSpan | None:
        """Return the bounds of a part that the state has; None if it has none."""
        meta = meta_of(part)
        if meta is None:
            return None
        lower, upper = meta.lower, meta.upper
        if self._is_same:
            lower, upper = (None if each is None else leading(each, self._types) for each in (lower, upper))
        else:
            range = meta.columns.get(self._first_id)
            if range is None:
                return None
            lower = NULL if range.nulls else self._recode(range.lower)
            upper = NULL if range.nulls == part.rows else self._recode(range.upper)
        return None if lower is None or upper is None else RowSpan(lower, upper, part.rows)

    def group_spans(self, part: Part) -> list[RowSpan]:
        """Return the bounds of the row groups of a part: each ends where the next one begins."""
        groups = list(self._groups(part))
        if not groups:
            return []
        known = self.span(part)
        last = max(lower for lower, _ in groups)
        end = last if known is None else max(known.upper, last)
        uppers = [*(lower for lower, _ in groups[1:]), end]
        is_ascending = all(lower <= upper for (lower, _), upper in zip(groups, uppers, strict=True))
        return [
            RowSpan(lower, upper if is_ascending else end, rows)
            for (lower, rows), upper in zip(groups, uppers, strict=True)
        ]

    def _groups(self, part: Part) -> Iterator[tuple[bytes, int]]:
        """Yield where the row groups of a part begin, and how many rows they have, from its footer."""
        reader = self._parts.open(part, self._id, self._schema)
        lowers: Sequence[bytes | None]
        if self._is_same and reader.key_index is not None:
            lowers = [leading(lower, self._types) for lower in reader.key_index.lowers]
        else:
            lowers = [self._recode(lower) for lower in reader.group_lowers]
        for group, lower in enumerate(lowers):
            if lower is not None:
                yield lower, reader.group_rows(group)

    def _recode(self, bound: bytes | None) -> bytes | None:
        """Convert a bound of the first column to its type in the wanted schema."""
        return None if bound is None else recode(bound, self._first_type, self._types[0])


def _is_inside(lower: bytes, request: ScanRequest) -> bool:
    if request.lower is not None and lower <= request.lower:
        return False
    return request.upper is None or lower < request.upper

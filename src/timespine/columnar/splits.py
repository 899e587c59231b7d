"""Where to cut the keys of a read, so that several readers get about equally much."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from timespine.columnar.bounds import recode
from timespine.columnar.parts import Parts
from timespine.columnar.wanted import Wanted
from timespine.core.hollow import Run


def split_keys(parts: Parts, runs: Sequence[Run], wanted: Wanted, n: int) -> list[bytes]:
    """At most n - 1 values that cut what is wanted into pieces of about equal size.

    They are values of the first ordered column, encoded, ascending, taken from the
    bounds of row groups and weighted by their rows: no row is read. All of them lie
    inside of the range that is wanted.
    """
    weights = sorted(weight for run in runs for weight in _weights(parts, run, wanted))
    total = sum(rows for _, rows in weights)
    cuts: list[bytes] = []
    seen = 0
    for lower, rows in weights:
        last = cuts[-1] if cuts else weights[0][0]
        if len(cuts) < n - 1 and seen >= total * (len(cuts) + 1) / n and lower > last:
            cuts.append(lower)
        seen += rows
    return cuts


def _weights(parts: Parts, run: Run, wanted: Wanted) -> Iterator[tuple[bytes, int]]:
    """Where row groups of a run begin, as the wanted schema sees it, and how many rows they have.

    Of a run that was not ordered by that column, or whose bounds mean nothing any more, nothing is known.
    """
    id, schema = parts.schema(run)
    first = wanted.schema.by_id(wanted.schema.order_ids[0])
    if schema.order_ids[0] != first.id:
        return
    written = schema.by_id(first.id)
    for part in parts.matching(run.parts, run, wanted):
        if part.inline is not None:
            continue
        reader = parts.open(part, id, schema)
        for group, bound in enumerate(reader.group_lowers):
            lower = None if bound is None else recode(bound, written.arrow_type, first.arrow_type)
            if lower is not None and _is_inside(lower, wanted):
                yield lower, reader.group_rows(group)


def _is_inside(lower: bytes, wanted: Wanted) -> bool:
    if wanted.lower is not None and lower <= wanted.lower:
        return False
    return wanted.upper is None or lower < wanted.upper

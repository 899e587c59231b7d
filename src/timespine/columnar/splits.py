"""Where to cut the keys of a read, so that several readers get about equally much."""

from __future__ import annotations

from collections.abc import Sequence

from timespine.columnar.parts import Parts, meta_of
from timespine.columnar.wanted import Wanted
from timespine.core.hollow import Run


def split_keys(parts: Parts, runs: Sequence[Run], wanted: Wanted, n: int) -> list[bytes]:
    """At most n - 1 values that cut what is wanted into pieces of about equal size.

    They are values of the first ordered column, encoded, ascending, taken from the
    bounds of row groups and weighted by their rows: no row is read.
    """
    weights: list[tuple[bytes, int]] = []
    for run in runs:
        id, schema = parts.schema(run)
        for part in parts.leaves(run.parts):
            if part.inline is not None:
                continue
            reader = parts.open(part, id, schema)
            meta = meta_of(part)
            weights.extend(
                (lower, reader.group_rows(group))
                for group, lower in enumerate(reader.group_lowers)
                if lower is not None
            )
            if not reader.groups and meta is not None and meta.lower is not None:
                weights.append((meta.lower, part.rows))
    weights.sort()
    total = sum(rows for _, rows in weights)
    cuts: list[bytes] = []
    seen = 0
    for lower, rows in weights:
        if len(cuts) < n - 1 and seen >= total * (len(cuts) + 1) / n and (not cuts or lower > cuts[-1]) and seen:
            cuts.append(lower)
        seen += rows
    return [cut for cut in cuts if wanted.lower is None or cut > wanted.lower]

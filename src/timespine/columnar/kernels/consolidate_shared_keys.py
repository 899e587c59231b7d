"""Consolidate for a caller that needs no order: rows without another row of their key pass unchanged.

Rows that differ in the leading columns of the order, as those of two keys do, never add
up. So of a long run, the rows whose key nothing else has are given out without being
sorted, compared or moved next to others: after an upsert of a tenth of a collection
that is most of it. The few others are consolidated as ever.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from timespine.columnar.kernels.consolidate import consolidate_inputs
from timespine.columnar.kernels.row_words import pack, single
from timespine.columnar.kernels.sort_equal_words import Flags
from timespine.columnar.kernels.text_words import Words
from timespine.columnar.schema.schema import DIFF
from timespine.errors import CorruptionError

FEW = 2
"""The reciprocal of the share of touched rows above which all rows are consolidated."""


def consolidate_touched(
    inputs: Sequence[Sequence[pa.Table]], order: Sequence[str], cut: int, apart: int, any_order_rows: int
) -> list[pa.Table]:
    """Return the rows of ascending runs, each once, with the sum of its diffs; zeros are dropped.

    In one ascending table, or in two: rows that were alone with their first `apart` columns, and the others. In one if
    the longest run has fewer rows than `any_order_rows`.
    Runs are ascending in the first `cut` columns of the order; one that is not is a CorruptionError.
    """
    base, *others = sorted(inputs, key=_rows, reverse=True)
    length, rest = _rows(base), sum(map(_rows, others))
    touched = (
        None if length < any_order_rows or rest * FEW > length else _may_equal_another(base, others, order[:apart])
    )
    if touched is None or np.count_nonzero(touched) * FEW > length:
        return [consolidate_inputs([base, *others], order, cut)]
    whole = pa.concat_tables(base)
    passed = ~touched & (whole.column(DIFF).to_numpy() != 0)
    alone = whole if passed.all() else whole.filter(pa.array(passed))
    if not rest and not touched.any():
        return [alone]
    return [alone, consolidate_inputs([[whole.filter(pa.array(touched))], *others], order, cut)]


def _rows(tables: Sequence[pa.Table]) -> int:
    return sum(table.num_rows for table in tables)


def _may_equal_another(base: Sequence[pa.Table], others: Sequence[Sequence[pa.Table]], apart: Sequence[str]) -> Flags:
    """Tell which rows of the base may be equal to another row in these columns."""
    tables = [table.select(apart) for tables in (base, *others) for table in tables]
    keys = pa.concat_tables(tables)
    words = pack([single(keys.column(name)) for name in apart], keys.num_rows).words
    length = _rows(base)
    mine, rest = words[:length], words[length:]
    if (mine[1:] < mine[:-1]).any():
        raise CorruptionError("a run is not in order: it cannot be merged")
    touched = np.zeros(length, np.bool_)
    equal = mine[1:] == mine[:-1]
    touched[1:] = equal
    touched[:-1] |= equal
    _mark(mine, rest, touched)
    return touched


def _mark(mine: Words, rest: Words, touched: Flags) -> None:
    """Mark those of mine, ascending, that are among the rest."""
    if not len(rest) or not len(mine):
        return
    places = np.searchsorted(mine, rest)
    found = places < len(mine)
    found &= mine[np.minimum(places, len(mine) - 1)] == rest
    # The first of equal ones is found; the others are marked already, because they are equal to it.
    touched[places[found]] = True

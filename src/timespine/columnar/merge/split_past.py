"""Split merged updates into what is live and what is past.

The updates of a row are in the order of their times. As of the last of the times at which they add up to zero, all of
them up to there cancel out:

    (a, time 1, +1) (a, time 3, -1) | (a, time 5, +1)          past | live
    (b, time 1, +1) (b, time 3, -1) |                          past |

Past updates go to a run of their own, whose rows add up to zero (`Run.zero_from`). So a reader of the newest time does
not read them, and of most rows one update is left: that reader need not sum either. The split moves updates and
changes none, so for every row and time the two runs together add up to what they did before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from timespine.columnar.kernels.key_encoding import encode_row
from timespine.columnar.parts.part_stats import repeated_rows
from timespine.columnar.schema.schema import DIFF, Schema
from timespine.columnar.schema.types import is_nested
from timespine.model.time import INT64_MAX, Time


class SplitUpdates(NamedTuple):
    """Updates of a table, each in one of two tables, both in order."""

    live: pa.Table
    """What does not cancel out."""
    past: pa.Table
    """What cancels out, row by row."""


def can_split(schema: Schema) -> bool:
    """Tell whether rows can be compared with their neighbours: not if a column is nested."""
    return not any(is_nested(kind) for kind in schema.types.values())


def split_past(tables: Iterable[pa.Table], schema: Schema, row_bytes_max: int) -> Iterator[SplitUpdates]:
    """Split consolidated updates in the order of rows, then times.

    The updates of one row may come in several tables. They are held together up to `row_bytes_max`; of a row with
    more, what came is live.
    """
    open_row: pa.Table | None = None
    for table in tables:
        if table.num_rows == 0:
            continue
        if open_row is not None:
            if (
                _encode_first_row(open_row, schema) == _encode_first_row(table, schema)
                and open_row.nbytes <= row_bytes_max
            ):
                table = pa.concat_tables([open_row, table]).combine_chunks()
            else:
                yield _split(open_row, _repeats(open_row, schema))
        repeats = _repeats(table, schema)
        # The first update of the last row: of the ends of a stretch of repeats, the last one that is not repeated.
        last = int(np.flatnonzero(~repeats)[-1])
        open_row = table.slice(last)
        yield _split(table.slice(0, last), repeats[:last])
    if open_row is not None:
        yield _split(open_row, _repeats(open_row, schema))


def time_at_or_after_all(table: pa.Table, schema: Schema) -> Time:
    """Return a time at or after all times of a table."""
    return tuple(int(table.column(name).to_numpy().max()) for name in schema.time_names)


def _encode_first_row(table: pa.Table, schema: Schema) -> bytes:
    return encode_row(table, 0, schema.order_names)


def _repeats(table: pa.Table, schema: Schema) -> NDArray[np.bool_]:
    """Return which updates are of the same row as the update before."""
    places = repeated_rows(table, schema)
    assert places is not None  # no column is nested
    repeats = np.zeros(table.num_rows, np.bool_)
    repeats[places] = True
    return repeats


def _split(table: pa.Table, repeats: NDArray[np.bool_]) -> SplitUpdates:
    """Split a table that ends with the last update of a row."""
    past = _past(table.column(DIFF).to_numpy(), repeats) if repeats.any() else None
    if past is None or not past.any():
        return SplitUpdates(table, table.slice(0, 0))
    return SplitUpdates(table.filter(pa.array(~past)), table.filter(pa.array(past)))


def _past(diffs: NDArray[np.int64], repeats: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
    """Return which updates are at or before the last place where those of their row add up to zero.

    None if sums may not fit 64 bits: then a zero may be another number.
    """
    if max(-int(diffs.min()), int(diffs.max())) > INT64_MAX // len(diffs):
        return None
    several = repeats.copy()
    several[:-1] |= repeats[1:]
    places = np.flatnonzero(several)
    inside = diffs[places]
    starts = np.flatnonzero(~repeats[places])
    row = np.cumsum(~repeats[places]) - 1
    sums = np.cumsum(inside)
    sums -= (sums[starts] - inside[starts])[row]
    zeros = np.where(sums == 0, np.arange(len(places)), -1)
    last = np.maximum.reduceat(zeros, starts)
    past = np.zeros(len(diffs), np.bool_)
    past[places] = np.arange(len(places)) <= last[row]
    return past

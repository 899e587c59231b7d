"""Rows picked from columns, once it is known which ones and in what order.

Columns that lie wholly in the sorted words are read back from them, in order,
instead of being picked all over memory. Everything else is taken by its index,
in two threads when it pays.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from timespine.columnar.order import INTEGERS, WORD_BITS, Slot
from timespine.columnar.text import Words, blocks

Index = NDArray[np.int64]

OFFSET_MAX = (1 << 31) - 1
"""Bytes, or elements, that one array of the usual types can address."""

_THREADED_ROWS = 1 << 17
"""Fewer rows are taken faster than a thread is started."""


def take(column: pa.Array, index: Index, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """The rows of a column that the index names, in its order, as an array of type `kind`.

    A column that was too large for one array of its type comes in a wide type; it goes back in pieces.
    """
    if column.type == kind:
        return column.take(pa.array(index))
    return pa.chunked_array(_narrow(column, index, kind), kind)


def _narrow(column: pa.Array, index: Index, kind: pa.DataType) -> list[pa.Array]:
    taken = column.take(pa.array(index))
    if taken.nbytes <= OFFSET_MAX or len(index) == 1:
        return [taken.cast(kind)]
    middle = len(index) // 2
    return [*_narrow(column, index[:middle], kind), *_narrow(column, index[middle:], kind)]

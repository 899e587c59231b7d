"""Rows picked from columns, once it is known which ones and in what order.

Columns that lie wholly in the sorted words are read back from them, from the
first to the last, instead of being picked from all over memory. Everything else
is taken by its index, by two threads if it is much and a caller waits for it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from timespine.columnar.kernels.background_flag import is_background
from timespine.columnar.kernels.row_words import INTEGERS, OFFSET_MAX, WRAP, Index, Slot
from timespine.columnar.kernels.text_words import Words, blocks

THREADED_ROWS = 1 << 16
"""The number of rows from which a second thread is faster."""


def take(columns: Sequence[pa.Array], index: Index) -> list[pa.Array]:
    """Return the rows of some columns that the index names, in its order."""
    rows = len(index)
    if rows < THREADED_ROWS or not columns or is_background():
        named = pa.array(index)
        return [column.take(named) for column in columns]
    middle = rows // 2
    early = pa.array(index[:middle])
    halves: list[pa.Array] = []
    failures: list[BaseException] = []

    def take_early() -> None:
        try:
            halves.extend(column.take(early) for column in columns)
        except BaseException as error:
            failures.append(error)

    # A thread of its own, not of a pool: a pool does not survive a fork.
    thread = threading.Thread(target=take_early, daemon=True)
    thread.start()
    try:
        late = pa.array(index[middle:])
        others = [column.take(late) for column in columns]
    finally:
        thread.join()
    if failures:
        raise failures[0]
    return [pa.concat_arrays(pair) for pair in zip(halves, others, strict=True)]


def narrow(column: pa.Array, index: Index, kind: pa.DataType) -> pa.ChunkedArray:
    """Return the same for a column in a wide type, back in its own: in as many chunks as that needs."""
    chunks: list[pa.Array] = []
    left = np.array_split(index, 1 + 2 * column.nbytes // OFFSET_MAX)
    while left:
        part = left.pop(0)
        taken = column.take(pa.array(part))
        if taken.nbytes > OFFSET_MAX and len(part) > 1:
            left[:0] = np.array_split(part, 2)
        else:
            chunks.append(taken.cast(kind))
    return pa.chunked_array(chunks, kind)


def read_back(words: Words, slot: Slot, shift: int, kind: pa.DataType, nullable: bool) -> pa.Array:
    """Return the values of a column that lies `shift` bits above the low end of the words."""
    rows = len(words)
    values = np.empty(rows, np.uint32 if slot.values is not None else INTEGERS[kind.id])
    mask, low = np.uint64((1 << slot.width) - 1), np.uint64(slot.low & WRAP)
    is_word = values.itemsize == words.itemsize
    for block in blocks(rows):
        part = values[block].view(np.uint64) if is_word else np.empty(block.stop - block.start, np.uint64)
        np.right_shift(words[block], np.uint64(shift), out=part)
        part &= mask
        part += low
        if not is_word:
            values[block] = part.astype(values.dtype)
    validity = None
    if nullable:
        present = (words >> np.uint64(shift + slot.width)) & np.uint64(1)
        validity = pa.py_buffer(np.packbits(present.astype(np.uint8), bitorder="little"))
    buffers = [validity, pa.py_buffer(values)]
    if slot.values is not None:
        return slot.values.take(pa.Array.from_buffers(pa.uint32(), rows, buffers))
    return pa.Array.from_buffers(kind, rows, buffers)

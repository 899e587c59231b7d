"""Bloom filters of keys, which tell whether a row may have one of many keys, in a byte and a half per key.

Each task that changes rows by key sends one, so that the driver can exclude rows
that other writers have appended since. The answer "no" is certain, "yes" is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from timespine.columnar.kernels.text_words import Words
from timespine.columnar.predicate.predicate import Predicate, Ranges, Types
from timespine.columnar.schema.schema import Schema
from timespine.libraries import pc

BITS_PER_KEY = 12
PROBES = 4
"""The probes per key. With these bits and probes, one of about 160 other keys is a false positive."""

_MIX = np.uint64(0x9E3779B97F4A7C15)
_BASE = np.uint64(0x100000001B3)
_NULL = np.uint64(0x5851F42D4C957F2D)
_NAN = np.uint64(0x14057B7EF767814F)
_HALF = np.uint64(32)
_SHIFT = np.uint64(29)


def filter_of(keys: pa.Table) -> bytes:
    """Make the filter of some keys, which need not be distinct."""
    size = max(-(-keys.num_rows * BITS_PER_KEY // 8), 8) * 8
    bits = np.zeros(size, dtype=np.bool_)
    for probe in _probes(digests(keys), size):
        bits[probe] = True
    return np.packbits(bits).tobytes()


@dataclass(frozen=True, eq=False)
class KeyFilter(Predicate):
    """True of rows whose key may be in one of several filters. It skips nothing by statistics."""

    names: tuple[str, ...]
    """The key columns."""
    filters: Sequence[bytes]
    """The filters."""

    def check(self, schema: Schema) -> None:
        """Check nothing, since a filter has no constants of a user."""

    def may_match(self, ranges: Ranges, types: Types, rows: int) -> bool:
        """Return whether some row may be in a filter, without the ranges, which do not decide it."""
        return True

    def mask(self, table: pa.Table) -> pa.Array:
        """Return which rows may have one of the keys."""
        hashed = digests(table.select(list(self.names)))
        found = np.zeros(table.num_rows, dtype=np.bool_)
        for filter in self.filters:
            inside = np.ones(table.num_rows, dtype=np.bool_)
            held = np.frombuffer(filter, dtype=np.uint8)
            for probe in _probes(hashed, 8 * len(held)):
                # As `packbits` has it: the first bit is the highest of its byte.
                inside &= (held[probe >> 3] >> (7 - (probe & 7)).astype(np.uint8)) & 1 == 1
            found |= inside
        return pa.array(found)

    def _names(self) -> Iterator[str]:
        return iter(self.names)


def digests(keys: pa.Table) -> Words:
    """Compute a number for each key: equal keys have equal numbers, in every process."""
    hashed = np.zeros(keys.num_rows, dtype=np.uint64)
    for column in keys.columns:
        hashed = (hashed ^ _words(column)) * _MIX
        hashed ^= hashed >> _SHIFT
    return hashed


def _probes(hashed: Words, size: int) -> Iterator[NDArray[np.int64]]:
    first, step = hashed >> _HALF, hashed & np.uint64(0xFFFFFFFF)
    for number in range(PROBES):
        yield ((first + np.uint64(number) * step) % np.uint64(size)).astype(np.int64)


def _words(column: pa.ChunkedArray) -> Words:
    """Compute a number for each value of a column."""
    nulls = column.is_null().to_numpy()
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        words = pc.fill_null(column, pa.scalar(0).cast(kind)).to_numpy().astype(np.uint64)
    elif pa.types.is_floating(kind):
        values = pc.fill_null(column, pa.scalar(0.0).cast(kind)).to_numpy().astype(np.float64) + 0.0  # no -0.0
        words = np.where(np.isnan(values), _NAN, values.view(np.uint64))
    elif pa.types.is_temporal(kind):
        whole = pa.int32() if kind.bit_width == 32 else pa.int64()
        words = pc.fill_null(column.cast(whole), pa.scalar(0, whole)).to_numpy().astype(np.uint64)
    else:
        words = _of_bytes(column)
    return np.where(nulls, _NULL, words)


def _of_bytes(column: pa.ChunkedArray) -> Words:
    """Return the values of polynomials whose coefficients are the bytes of each value; texts stand for what is no
    bytes."""
    if not pa.types.is_binary(column.type) and not pa.types.is_large_binary(column.type):
        column = column.cast(pa.large_string())
    array = column.cast(pa.large_binary()).combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # of no chunks at all
        array = pa.concat_arrays([pa.array([], pa.large_binary()), *array.chunks])
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, dtype=np.int64, count=len(array) + 1, offset=8 * array.offset)
    if ends[-1] == ends[0]:
        return np.zeros(len(array), dtype=np.uint64)
    content = np.frombuffer(data, dtype=np.uint8)[ends[0] : ends[-1]].astype(np.uint64) + np.uint64(1)
    lengths = np.diff(ends)
    places = np.arange(len(content)) - np.repeat(ends[:-1] - ends[0], lengths)
    powers = np.multiply.accumulate(np.full(int(lengths.max()), _BASE, dtype=np.uint64))
    added = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(content * powers[places], dtype=np.uint64)])
    found: Words = added[ends[1:] - ends[0]] - added[ends[:-1] - ends[0]]
    return found

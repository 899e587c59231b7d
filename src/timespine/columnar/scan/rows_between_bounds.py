"""Estimate how many rows of a read lie before a key, by the bounds of parts alone.

A span has its rows between two bounds. Bounds compare as bytes, so they are taken as fractions, and the rows of a span
are assumed to be spread evenly between its bounds:

    rows before key  =  sum over spans of  rows * (key - lower) / (upper - lower),    each quotient within [0, 1]

So parts of several runs that begin at nearly the same key count as rows after that key, and not as a piece between
their bounds. The estimate decides where to cut, and never which rows are read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

KNOTS_MAX = 8
"""Keys inside of one span at which the estimate is computed; between two of them, the keys share rows equally."""

SMALL_PIECE = 4
"""A piece is too small to read by itself if this number of its size make one of the wanted size."""


@dataclass(frozen=True, slots=True)
class RowSpan:
    """Rows between two bounds."""

    lower: bytes
    """At or before every row."""
    upper: bytes
    """At or after every row, or the beginning of such a bound."""
    rows: int
    """The number of rows."""


class RowEstimate:
    """The estimated rows of spans between the keys at which they begin, within a range of keys."""

    def __init__(self, spans: Sequence[RowSpan], lower: bytes | None, upper: bytes | None) -> None:
        self._spans = spans
        self._keys = sorted(
            {
                span.lower
                for span in spans
                if (lower is None or span.lower > lower) and (upper is None or span.lower < upper)
            }
        )
        """The keys where a span begins inside of the range, ascending."""
        ends = [end for end in (lower, upper) if end is not None]
        self._knots = sorted({*self._keys, *ends})
        self._width = max((len(each) for span in spans for each in (span.lower, span.upper)), default=1)
        self._numbers = [self._number(knot) for knot in self._knots]
        inside = slice(0 if lower is None else 1, len(self._knots) + (upper is None))
        self._first = inside.start
        self._rows = self._rows_between_knots()[inside]
        """The rows before the first key, between any two keys, and after the last one."""
        self.total = float(self._rows.sum())
        """The estimated rows of the range."""

    def cut(self, n: int) -> list[bytes]:
        """Return at most n - 1 keys that cut the range into pieces of about equally many rows.

        Each multiple of the wanted size is cut at the key that is nearest by rows, unless the piece before it would
        have less than a quarter of that size.
        """
        before = np.cumsum(self._rows[:-1])
        is_inner = before >= 0.5  # less is no row, but rounding
        keys = [key for key, inner in zip(self._keys, is_inner.tolist(), strict=True) if inner]
        before = before[is_inner]
        if not keys:
            return []
        middles = (before[:-1] + before[1:]) / 2
        # The multiples up to a middle are nearest to keys before it.
        multiples = np.clip(np.floor(middles * (n / self.total)), 0, n - 1)
        is_cut = np.diff(np.concatenate(([0.0], multiples, [n - 1.0]))) > 0
        cuts: list[bytes] = []
        last = 0.0
        for place in np.nonzero(is_cut)[0].tolist():
            if before[place] - last >= self.total / (SMALL_PIECE * n):
                cuts.append(keys[place])
                last = float(before[place])
        return cuts

    def crowded(self, rows: float, count: int) -> set[int]:
        """Return the places of at most `count` spans to cut inside: one for each gap between keys with more rows.

        Where there are more such gaps, only those count that have twice as many rows, and so on.
        """
        while int((self._rows > rows).sum()) > count:
            rows *= 2
        gaps = (np.nonzero(self._rows > rows)[0] + self._first).tolist()
        best: dict[int, tuple[float, int]] = {}
        for place, span in enumerate(self._spans):
            if not gaps or span.lower >= span.upper:
                continue
            first, last = self._gaps_of(span)
            share = span.rows / (last - first + 1)
            for gap in gaps[bisect_left(gaps, first) : bisect_right(gaps, last)]:
                if gap not in best or best[gap][0] < share:
                    best[gap] = (share, place)
        return {place for _, place in best.values()}

    def _number(self, key: bytes) -> int:
        """Return a key as the numerator of a fraction; all of them have the same denominator."""
        return int.from_bytes(key[: self._width].ljust(self._width, b"\0"), "big")

    def _gaps_of(self, span: RowSpan) -> tuple[int, int]:
        """Return the places of the first and the last gap between knots where a span has rows."""
        first = bisect_right(self._knots, span.lower)
        return first, max(first, bisect_left(self._knots, span.upper))

    def _rows_between_knots(self) -> NDArray[np.float64]:
        """Return the estimated rows before the first knot, between any two, and after the last one."""
        steps = np.zeros(len(self._knots) + 2)
        for span in self._spans:
            first, last = self._gaps_of(span)
            if first == last:
                steps[first] += span.rows
                steps[first + 1] -= span.rows
                continue
            lower = self._number(span.lower)
            length = max(self._number(span.upper) - lower, 1)
            begin, share = first, 0.0
            for end in range(first + 1, last + 1, -(-(last - first) // KNOTS_MAX)):
                # The knot before a gap has the place of the gap less one.
                reached = min((self._numbers[end - 1] - lower) / length, 1.0)
                density = span.rows * (reached - share) / (end - begin)
                steps[begin] += density
                steps[end] -= density
                begin, share = end, reached
            density = span.rows * (1.0 - share) / (last + 1 - begin)
            steps[begin] += density
            steps[last + 1] -= density
        return np.maximum(np.cumsum(steps)[:-1], 0.0)

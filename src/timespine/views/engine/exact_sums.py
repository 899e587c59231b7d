"""Exact sums of doubles, which changes are added to and retracted from.

Every finite double is m * 2^e with a whole m of 53 bits, and so a whole multiple of 2^-1074. The sum of a group is kept
as such a multiple, with the numbers of NaN and of both infinities beside it:

    sum of the rows after = sum of the rows before + sum of the changes, each row as often as it counts

Nothing is rounded in it, so that it does not depend on the order of rows, and a retraction takes away what its row has
brought. What is shown is the sum, rounded once. tests/views/test_exact_sums.py compares with fractions.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from timespine.views.engine.lowering import WEIGHT

UNIT = 1074
"""The least double is 2^-1074."""

_PLACE, _COUNTS = struct.Struct("<?h"), struct.Struct("<3q")


@dataclass(frozen=True, slots=True)
class ExactSum:
    """A sum of doubles."""

    total: int = 0
    """The sum of the finite ones, in multiples of 2^-1074."""
    nan: int = 0
    """The number of NaN."""
    up: int = 0
    """The number of positive infinities."""
    down: int = 0
    """The number of negative infinities."""

    @staticmethod
    def of_parts(
        exponents: Sequence[int], parts: Sequence[int], nan: Sequence[int], up: Sequence[int], down: Sequence[int]
    ) -> ExactSum:
        """Add up part * 2^exponent; there is one part for each exponent."""
        total = 0
        for exponent, part in zip(exponents, parts, strict=True):
            shift = exponent + UNIT
            # The whole part of a number below 2^-1021 ends in as many zeros as it is shifted by.
            total += part << shift if shift >= 0 else part >> -shift
        return ExactSum(total, sum(nan), sum(up), sum(down))

    def plus(self, other: ExactSum) -> ExactSum:
        """Add another sum."""
        return ExactSum(self.total + other.total, self.nan + other.nan, self.up + other.up, self.down + other.down)

    def rounded(self) -> float:
        """Return the double that is nearest."""
        if self.nan or (self.up and self.down):
            return float("nan")
        if self.up or self.down:
            return float("inf") if self.up else float("-inf")
        try:
            return self.total / (1 << UNIT)  # whole numbers are divided exactly, and rounded once
        except OverflowError:
            return float("inf") if self.total > 0 else float("-inf")

    def encode(self) -> bytes:
        """Encode the sum, the same sum always in the same way: a stage retracts what it has by its value."""
        counts = (self.nan, self.up, self.down)
        zeros = (self.total & -self.total).bit_length() - 1 if self.total else 0
        odd = self.total >> zeros
        body = odd.to_bytes((odd.bit_length() + 8) // 8, "little", signed=True) if odd else b""
        return _PLACE.pack(any(counts), zeros) + (_COUNTS.pack(*counts) if any(counts) else b"") + body

    @staticmethod
    def decode(data: bytes) -> ExactSum:
        """Decode a sum."""
        has_counts, zeros = _PLACE.unpack_from(data)
        counts = _COUNTS.unpack_from(data, _PLACE.size) if has_counts else (0, 0, 0)
        body = data[_PLACE.size + (_COUNTS.size if has_counts else 0) :]
        return ExactSum(int.from_bytes(body, "little", signed=True) << zeros, *counts)


def exact_parts(frame: pl.DataFrame, keys: list[str], argument: str) -> pl.DataFrame:
    """Sum the whole parts of doubles by group and exponent, and count NaN and infinities, each row by its count."""
    rows = frame.select([*keys, pl.col(argument).cast(pl.Float64).alias("_x"), WEIGHT]).filter(
        pl.col("_x").is_not_null()
    )
    values = rows["_x"].to_numpy()
    finite = np.isfinite(values)
    mantissa, exponent = np.frexp(np.where(finite, values, 0.0))
    whole = np.ldexp(mantissa, 53).astype(np.int64)
    rows = rows.with_columns(pl.Series("_m", whole, pl.Int64), pl.Series("_e", exponent - 53, pl.Int32))
    value, weight = pl.col("_x"), pl.col(WEIGHT)
    return rows.group_by([*keys, "_e"]).agg(
        (pl.col("_m").cast(pl.Int128) * weight.cast(pl.Int128)).sum().alias("_sum"),
        weight.filter(value.is_nan()).sum().cast(pl.Int64).alias("_nan"),
        weight.filter(value == float("inf")).sum().cast(pl.Int64).alias("_up"),
        weight.filter(value == float("-inf")).sum().cast(pl.Int64).alias("_down"),
    )


def exact_sums(frame: pl.DataFrame, keys: list[str], argument: str, exact: str, shown: str) -> pl.DataFrame:
    """Sum doubles by group: exactly, and rounded once."""
    parts = exact_parts(frame, keys, argument)
    grouped = parts.group_by(keys) if keys else parts.with_columns(pl.lit(0).alias("_all")).group_by("_all")
    sums = grouped.agg("_e", "_sum", "_nan", "_up", "_down")
    columns = [sums[each].to_list() for each in ("_e", "_sum", "_nan", "_up", "_down")]
    found = [ExactSum.of_parts(*each) for each in zip(*columns, strict=True)]
    made = _columns(found or ([] if keys else [None]), exact, shown)
    return sums.select(keys).with_columns(made) if keys else pl.DataFrame(made)


def folded_sums(now: pl.Series, before: pl.Series, numbers: pl.Series, exact: str, shown: str) -> list[pl.Series]:
    """Add the sums of changes to those of their groups; a group without values, by its number, has none."""
    found = []
    for one, other, number in zip(now.to_list(), before.to_list(), numbers.to_list(), strict=True):
        total = ExactSum() if one is None else ExactSum.decode(one)
        total = total if other is None else total.plus(ExactSum.decode(other))
        found.append(total if number else None)
    return _columns(found, exact, shown)


def _columns(found: Sequence[ExactSum | None], exact: str, shown: str) -> list[pl.Series]:
    return [
        pl.Series(exact, [None if each is None else each.encode() for each in found], pl.Binary),
        pl.Series(shown, [None if each is None else each.rounded() for each in found], pl.Float64),
    ]

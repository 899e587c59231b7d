"""Exact variances, covariances and correlations: the same rows give the same bits, in whatever order they come.

With w the count of a row, over the rows of a group in which x and y are not null:

    n = sum(w)    X = sum(w x)    Y = sum(w y)    XX = sum(w x x)    XY = sum(w x y)    YY = sum(w y y)

    var, covar   (n XY - X Y) / (n n), or / (n (n - 1)) of a sample; of a variance, y is x
    corr         (n XY - X Y) / sqrt((n XX - X X) (n YY - Y Y)); null or 0 if the product is 0 or infinite in doubles

All sums are whole multiples of a power of two, as in `engine.exact_sums`, so nothing is lost where two large numbers
cancel out. A double is m * 2^e with m = h * 2^27 + l, and a product of two is hh * 2^54 + (hl + lh) * 2^27 + ll, the
terms of which are summed in 128 bits for each exponent. The quotient is rounded once, and so is the root of it. With
a NaN or an infinity the answer is NaN. tests/views/test_exact_spreads.py compares with fractions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import polars as pl

from timespine.views.engine.lowering import WEIGHT, Declined

SPREADS = ("var_samp", "var_pop", "stddev_samp", "stddev_pop")
PAIRED = ("covar_samp", "covar_pop", "corr")

NUMBER, OFF, X, Y, XX, XY, YY = range(7)
"""The sums: the number of rows, that of rows with a NaN or an infinity, and those of the module."""

_HALF = 27
"""The bits of the lower half of a whole part."""

_FACTORS = {NUMBER: 0, OFF: 0, X: 1, Y: 1, XX: 2, XY: 2, YY: 2}
"""The number of doubles that are multiplied in each sum."""


def spread_parts(rows: pl.DataFrame, keys: list[str], is_paired: bool) -> pl.DataFrame:
    """Sum the whole parts of rows with _x and _y by group, sum (_t) and exponent (_e), each row by its count."""
    rows = rows.filter(pl.col("_x").is_not_null() & pl.col("_y").is_not_null())
    x, y = rows["_x"].to_numpy(), rows["_y"].to_numpy()
    finite = np.isfinite(x) & np.isfinite(y)
    mx, ex = _whole(np.where(finite, x, 0.0))
    columns = {"_e0": np.zeros(len(x), np.int32), "_one": np.ones(len(x), np.int64), "_off": (~finite).astype(np.int64)}
    columns |= {"_ex": ex, "_mx": mx, **_products("_xx", mx, mx)}
    if is_paired:
        my, ey = _whole(np.where(finite, y, 0.0))
        columns |= {"_ey": ey, "_my": my, "_exy": ex + ey, **_products("_xy", mx, my), **_products("_yy", my, my)}
    rows = rows.select([*keys, WEIGHT]).with_columns(pl.Series(name, each) for name, each in columns.items())
    parts = [
        *_summed(rows, keys, "_e0", 1, [(NUMBER, "_one", 0), (OFF, "_off", 0)]),
        *_summed(rows, keys, "_ex", 1, [(X, "_mx", 0)]),
        *_summed(rows, keys, "_ex", 2, _shifted(XX, "_xx")),
    ]
    if is_paired:
        parts += _summed(rows, keys, "_ey", 1, [(Y, "_my", 0)])
        parts += _summed(rows, keys, "_ey", 2, _shifted(YY, "_yy"))
        parts += _summed(rows, keys, "_exy", 1, _shifted(XY, "_xy"))
    return pl.concat(parts)


def spread_of(function: str, sums: Sequence[int], exponents: Sequence[int], parts: Sequence[int]) -> float | None:
    """Return an aggregate of a group from its parts; None of too few rows, and of a correlation with a constant."""
    # Doubles are whole multiples of 2^unit, and their products of 2^(2 unit).
    unit = min((exponent for each, exponent in zip(sums, exponents, strict=True) if each in (X, Y)), default=0)
    total = [0] * len(_FACTORS)
    for each, exponent, part in zip(sums, exponents, parts, strict=True):
        total[each] += part << (exponent - _FACTORS[each] * unit)
    n = total[NUMBER]
    if n < (1 if function.endswith("_pop") else 2):
        return None
    if total[OFF]:
        return math.nan
    of_x = n * total[XX] - total[X] ** 2
    if function == "corr":
        of_y = n * total[YY] - total[Y] ** 2
        spreads = _rounded(of_x, n, 2 * unit) * _rounded(of_y, n, 2 * unit)
        return _correlation(n * total[XY] - total[X] * total[Y], of_x * of_y, spreads)
    together = n * total[XY] - total[X] * total[Y] if function in PAIRED else of_x
    got = _rounded(together, n * n if function.endswith("_pop") else n * (n - 1), 2 * unit)
    # Rows with negative counts may have a negative one.
    return math.sqrt(max(got, 0.0)) if function.startswith("stddev") else got


def exact_spreads(frame: pl.DataFrame, keys: list[str], argument: str, function: str, name: str) -> pl.DataFrame:
    """Compute an aggregate of weighted rows by group."""
    is_paired = function in PAIRED
    value = pl.col(argument)
    one, two = (value.struct.field("a0"), value.struct.field("a1")) if is_paired else (value, value)
    sides = [one.cast(pl.Float64).alias("_x"), two.cast(pl.Float64).alias("_y")]
    parts = spread_parts(frame.select([*keys, *sides, WEIGHT]), keys, is_paired)
    grouped = parts.group_by(keys) if keys else parts.with_columns(pl.lit(0).alias("_all")).group_by("_all")
    lists = grouped.agg("_t", "_e", "_sum")
    columns = [lists[each].to_list() for each in ("_t", "_e", "_sum")]
    found = [spread_of(function, *each) for each in zip(*columns, strict=True)]
    made = pl.Series(name, found or ([] if keys else [None]), pl.Float64)
    return lists.select(keys).with_columns(made) if keys else pl.DataFrame([made])


def _whole(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the whole parts of finite doubles, of 53 bits, and their exponents."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(mantissa, 53).astype(np.int64), (exponent - 53).astype(np.int32)


def _products(name: str, one: np.ndarray, two: np.ndarray) -> dict[str, np.ndarray]:
    """Return the three parts of products of whole parts, none of which is beyond 64 bits."""
    (high, low), (other_high, other_low) = ((each >> _HALF, each & ((1 << _HALF) - 1)) for each in (one, two))
    return {
        f"{name}2": high * other_high,
        f"{name}1": high * other_low + low * other_high,
        f"{name}0": low * other_low,
    }


def _shifted(each: int, name: str) -> list[tuple[int, str, int]]:
    return [(each, f"{name}{place}", place * _HALF) for place in range(3)]


def _summed(
    rows: pl.DataFrame, keys: list[str], exponent: str, factor: int, wanted: list[tuple[int, str, int]]
) -> list[pl.DataFrame]:
    """Sum columns by group and exponent; return each as parts of a sum, at a multiple of the exponent and a shift."""
    weight = pl.col(WEIGHT).cast(pl.Int128)
    sums = [(pl.col(name).cast(pl.Int128) * weight).sum() for _, name, _ in wanted]
    found = rows.group_by([*keys, exponent]).agg(sums)
    return [
        found.select(
            *keys,
            pl.lit(each, pl.Int32).alias("_t"),
            (pl.col(exponent) * factor + shift).cast(pl.Int32).alias("_e"),
            pl.col(name).alias("_sum"),
        )
        for each, name, shift in wanted
    ]


def _correlation(together: int, squared: int, spreads: float) -> float | None:
    """Return a correlation; `spreads` is the product in doubles by whose root Spark divides: perhaps 0 or infinite."""
    if not spreads > 0:
        return None
    try:
        size = 0.0 if math.isinf(spreads) else math.sqrt(together**2 / squared)
    except OverflowError as error:  # only of negative counts: of others it is 1 at most
        raise Declined("a correlation of rows with a negative count") from error
    return size if together >= 0 else -size


def _rounded(number: int, divisor: int, exponent: int) -> float:
    """Return the double that is nearest to number / divisor * 2^exponent: whole numbers are divided exactly."""
    try:
        return (number << exponent) / divisor if exponent >= 0 else number / (divisor << -exponent)
    except OverflowError:
        return math.inf if number > 0 else -math.inf

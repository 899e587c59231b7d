"""Aggregates by accumulators: what a stage keeps of each group, how changes are added, and what is shown.

    count(*)        n                                   count(x)        the number of x that are not null
    sum(x)          their sum and number                avg(x)          their sum and number
      of doubles    the exact sum, and it rounded
    min(x), max(x)  the least, the greatest             others          their value

Sums and numbers of changes are added to those of the group. A least or greatest is compared, unless a change retracts a
value that is not beyond it: then the group is computed again from its rows. The others are computed again for every
group that changed. A group goes when its n is 0.

Sums of doubles are exact (`engine.exact_sums`). What is shown is the sum, rounded once, in whatever order the rows
came; so the same rows always show the same sum. Variances, covariances and correlations are computed again, also
exactly (`engine.exact_spreads`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow as pa

from timespine.errors import UsageError
from timespine.views.engine.decimal_digits import half_up, scaled, unscaled
from timespine.views.engine.exact_spreads import PAIRED, SPREADS, exact_spreads
from timespine.views.engine.exact_sums import exact_sums, folded_sums
from timespine.views.engine.lowering import (
    POLARS_FAILURES,
    WEIGHT,
    Declined,
    declined_by,
    each_row,
    evaluate_columns,
    memory_type,
    with_ones,
)
from timespine.views.plan.algebra import Aggregate, AggregateCall, InputScan, PlanNode, WindowCall, nodes_of
from timespine.views.plan.expressions import DIGITS

COUNT = "n"
"""The accumulator of every group: the number of its rows."""

ADD, LEAST, GREATEST, AGAIN = "add", "least", "greatest", "again"

EXACT, ROUNDED = "exact", "rounded"
"""The exact sum of doubles, which follows changes as a sum does, and the double that is shown of it."""

PICKING = ("min_by", "max_by")

INTEGER_DIGITS = 19
"""The digits of the largest whole number that is no decimal."""

SQUARED_MAX = 1e150
"""The largest number of which squares are summed."""

FUNCTIONS = ("count", "sum", "avg", "min", "max", "count distinct", "sum distinct", *SPREADS, *PAIRED, *PICKING)
"""The aggregates that the process computes. Spark computes all others, again for every group that changed."""


@dataclass(frozen=True, slots=True)
class Accumulator:
    """One column that a stage keeps of a group."""

    name: str
    type: pa.DataType
    kind: str
    """How it follows changes: add, exact, rounded, least, greatest, or again."""
    call: AggregateCall
    argument: str
    """The column of the evaluated argument; empty for count(*)."""
    part: str
    """What it is of the aggregate: sum, number or value."""


def accumulators_of(node: Aggregate) -> list[Accumulator]:
    """List what a stage keeps of each group of an aggregate, beside its number of rows."""
    found: list[Accumulator] = []
    for place, (_, call) in enumerate(node.calls):

        def keep(part: str, kind: str, type: pa.DataType, place: int = place, call: AggregateCall = call) -> None:
            name = f"{part}{place}"
            found.append(Accumulator(name, type, kind, call, f"arg{place}", part))

        if call.argument is None:
            continue
        is_float = pa.types.is_floating(call.argument.type)
        if call.function in ("sum", "avg"):
            if is_float:
                keep("exact", EXACT, pa.binary())
            keep("sum", ROUNDED if is_float else ADD, pa.float64() if is_float else _sum_type(call))
            keep("number", ADD, pa.int64())
        elif call.function == "count":
            keep("number", ADD, pa.int64())
        elif call.function in ("min", "max"):
            keep("value", LEAST if call.function == "min" else GREATEST, call.type)
        else:
            keep("value", AGAIN, call.type)
    return found


def _sum_type(call: AggregateCall) -> pa.DataType:
    """Return the type that a sum is kept in. That of an average may be larger than a sum that is shown can be."""
    assert call.argument is not None
    if pa.types.is_decimal(call.argument.type):
        return pa.decimal128(DIGITS, call.argument.type.scale)
    return pa.decimal128(DIGITS, 0) if call.function == "avg" else pa.int64()


class Grouping:
    """The work of one aggregate node on frames."""

    def __init__(self, node: Aggregate) -> None:
        self.node = node
        self.keys = [column.name for column in node.keys]
        self.accumulators = accumulators_of(node)
        self.names = [*self.keys, *(each.name for each in self.accumulators), COUNT]
        """The columns of accumulated groups."""

    @property
    def minds_retractions(self) -> bool:
        """Whether it matters which values are retracted, and not only their sums and numbers."""
        return any(each.kind in (LEAST, GREATEST) for each in self.accumulators)

    def accumulate(self, rows: pl.DataFrame, *, follow: bool = False) -> pl.DataFrame:
        """Accumulate weighted rows by group: keys, accumulators and the number of rows.

        With `follow`, of changes: accumulators that are computed again from all rows of a group are null.
        """
        arguments = [(f"arg{place}", call.argument) for place, (_, call) in enumerate(self.node.calls) if call.argument]
        frame = evaluate_columns(rows, [(n, e) for n, e in arguments if e is not None], [*self.keys, WEIGHT])
        skipped = [each for each in self.accumulators if follow and each.kind == AGAIN]
        wanted = [each for each in self.accumulators if each not in skipped]
        for each in wanted:
            if _sums_decimals(each):
                decline_large_sums(frame, self.keys, each.argument, each.call)
            elif is_spread(each):
                _decline_large_squares(frame, each)
        try:
            beside = [each for each in wanted if is_spread(each) or each.kind in (EXACT, ROUNDED)]
            made = [_accumulated(each).alias(each.name) for each in wanted if each not in beside]
            made.append(pl.col(WEIGHT).sum().cast(pl.Int64).alias(COUNT))
            groups = frame.group_by(self.keys).agg(made) if self.keys else frame.select(made)
            for each in beside:
                if each.kind == EXACT:
                    sums = exact_sums(frame, self.keys, each.argument, each.name, shown_sum(each))
                    groups = _join_groups(groups, sums, self.keys)
                elif is_spread(each):
                    spreads = exact_spreads(frame, self.keys, each.argument, each.call.function, each.name)
                    groups = _join_groups(groups, spreads, self.keys)
        except POLARS_FAILURES as error:
            raise declined_by(error) from error
        nulls = [pl.lit(None, memory_type(each.type)).alias(each.name) for each in skipped]
        return groups.with_columns(nulls).select(self.names)

    def show(self, groups: pl.DataFrame) -> pl.DataFrame:
        """Show the aggregates of accumulated groups, each with a count of 1."""
        made = [pl.col(name) for name in self.keys]
        for place, (column, call) in enumerate(self.node.calls):
            made.append(_shown(call, place).cast(memory_type(call.type)).alias(column.name))
        try:
            return with_ones(groups).select([*made, pl.lit(1, pl.Int64).alias(WEIGHT)])
        except POLARS_FAILURES as error:
            raise declined_by(error) from error

    def fold(
        self, old: pl.DataFrame, changes: pl.DataFrame, retracted: pl.DataFrame
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Add the accumulators of changes to those of their groups; return the new ones, and the keys to compute again.

        `old` has the groups that were there, of those that changed. `retracted` has the accumulators of the
        retractions alone, with positive counts: what they retract may have been the least or the greatest.
        """
        if not len(changes):
            return changes, changes.select(self.keys)
        # Groups that are new have nothing to add to: null.
        both = _join_groups(changes, old, self.keys, "_old")
        both = _join_groups(both, retracted, self.keys, "_gone")
        both = both.with_columns(one for each in self.accumulators if each.kind == EXACT for one in _folded(both, each))
        made, again = [], pl.lit(False)
        for each in self.accumulators:
            now, before, gone = pl.col(each.name), pl.col(f"{each.name}_old"), pl.col(f"{each.name}_gone")
            if each.kind == ADD:
                if pa.types.is_decimal(each.type):
                    sizes = both.select((now.cast(pl.Float64).abs() + before.cast(pl.Float64).abs().fill_null(0)).max())
                    decline_large(sizes.item(), each.call)
                made.append(
                    _checked_sum(now.fill_null(0), before.fill_null(0), both.schema[each.name]).alias(each.name)
                )
                continue
            if each.kind in (EXACT, ROUNDED):
                made.append(pl.col(f"_{each.name}").alias(each.name))
                continue
            if each.kind == AGAIN:
                again = pl.lit(True)
            elif each.kind == LEAST:
                again = again | (gone <= before).fill_null(False)
            else:
                again = again | (gone >= before).fill_null(False)
            made.append(now if each.kind == AGAIN else _beyond(each.kind, now, before).alias(each.name))
        number = (pl.col(COUNT) + pl.col(f"{COUNT}_old").fill_null(0)).alias(COUNT)
        try:
            folded = both.select([*self.keys, *made, number, again.alias("_again")])
        except POLARS_FAILURES as error:
            raise Declined(f"a sum is too large for its type: {declined_by(error)}") from error
        self.refuse_negative_counts(folded)
        if self.keys:
            folded = folded.filter(pl.col(COUNT) != 0)
        return folded.filter(~pl.col("_again")).select(self.names), folded.filter(pl.col("_again")).select(self.keys)

    def refuse_negative_counts(self, groups: pl.DataFrame) -> None:
        """Raise a UsageError if a group has fewer rows than none: then an input has rows with a negative count."""
        refuse_negative_counts(self.node, groups[COUNT])


def refuse_negative_counts(node: PlanNode, counts: pl.Series) -> None:
    """Raise a UsageError if a count of rows below a node is negative: then its inputs have such rows."""
    if len(counts) and counts.min() < 0:  # type: ignore[operator]
        inputs = sorted({each.input for each in nodes_of(node) if isinstance(each, InputScan)})
        raise UsageError(f"a group of rows of {', '.join(inputs)} has a negative count: a view needs counts from 1 on")


def _beyond(kind: str, now: pl.Expr, before: pl.Expr) -> pl.Expr:
    """Return the less or the greater of two accumulators, either of which may be null; NaN is the greatest number."""
    # SUBTLE: max_horizontal leaves NaN out, and a comparison does not (test_doubles.py).
    is_now = before.is_null() | (now <= before if kind == LEAST else now >= before)
    return pl.when(now.is_not_null() & is_now).then(now).otherwise(before)


def _checked_sum(one: pl.Expr, other: pl.Expr, kind: pl.DataType) -> pl.Expr:
    """Add two accumulators. Polars wraps integers around, so they are added with more bits and cast back."""
    if not kind.is_integer():
        return one + other
    return (one.cast(pl.Int128) + other.cast(pl.Int128)).cast(kind, strict=True)


def _sums_decimals(each: Accumulator) -> bool:
    """Return whether an accumulator adds up decimals."""
    return each.call.argument is not None and (
        pa.types.is_decimal(each.type) if each.part == "sum" else each.call.function == "sum distinct"
    )


def decline_large_sums(frame: pl.DataFrame, keys: list[str], argument: str, call: AggregateCall | WindowCall) -> None:
    """Decline sums of decimals that may have more digits than their type.

    Polars does not check the digits of decimals, and wraps them at 128 bits. What counts is the sum of sizes, so that
    no order of the rows makes a difference. Most types have digits to spare, so that the number of rows tells enough.
    """
    assert call.argument is not None
    if not pa.types.is_decimal(call.argument.type) and not pa.types.is_decimal(call.type):
        return
    weight = pl.col(WEIGHT) if WEIGHT in frame.columns else pl.lit(1, pl.Int64)
    rows = int(frame[WEIGHT].abs().sum()) if WEIGHT in frame.columns else len(frame)
    is_decimal = pa.types.is_decimal(call.argument.type)
    digits = call.argument.type.precision - call.argument.type.scale if is_decimal else INTEGER_DIGITS
    if digits + len(str(rows)) <= _whole_digits(call):
        return
    decline_large(largest_total(frame, keys, pl.col(argument).cast(pl.Float64) * weight.cast(pl.Float64)), call)


def largest_total(frame: pl.DataFrame, keys: list[str], number: pl.Expr) -> Any:
    """Return the largest sum of sizes of numbers in a group; None if there are none."""
    size = number.cast(pl.Float64).abs().sum().alias("_size")
    return (frame.group_by(keys).agg(size) if keys else frame.select(size))["_size"].max()


def _decline_large_squares(frame: pl.DataFrame, each: Accumulator) -> None:
    """Decline spreads of numbers whose squares are too large for doubles: then it matters how they are added up."""
    value = pl.col(each.argument)
    sides = [value] if each.call.function in SPREADS else [value.struct.field(name) for name in ("a0", "a1")]
    for side in sides:
        largest = frame.select(side.filter(side.is_finite()).abs().max()).item()
        if largest is not None and largest > SQUARED_MAX:
            raise Declined("a spread of numbers whose squares are too large")


def decline_large(size: Any, call: AggregateCall | WindowCall) -> None:
    """Decline a sum of decimals whose terms have a size in total that its type may not have."""
    if size is not None and size >= 10.0 ** _whole_digits(call) * (1 - 1e-9):
        raise Declined("a sum of decimals that may be too large for its type")


def _whole_digits(call: AggregateCall | WindowCall) -> int:
    """Return the digits before the point of a sum: those that are kept of it."""
    assert call.argument is not None
    if call.function == "avg" or not pa.types.is_decimal(call.type):
        return DIGITS - (call.argument.type.scale if pa.types.is_decimal(call.argument.type) else 0)
    return int(call.type.precision - call.type.scale)


def _join_groups(one: pl.DataFrame, other: pl.DataFrame, keys: list[str], suffix: str = "_right") -> pl.DataFrame:
    """Put the columns of the groups of another frame beside those of a frame."""
    other = other.rename(
        {name: f"{name}{suffix}" for name in other.columns if name not in keys and name in one.columns}
    )
    if keys:
        return one.join(other, on=keys, how="left", nulls_equal=True)
    if len(other) == 0:
        other = other.clear(1)
    return pl.concat([one, other], how="horizontal")


def is_spread(each: Accumulator) -> bool:
    """Return whether an accumulator is a variance, a covariance or a correlation."""
    return each.call.function in (*SPREADS, *PAIRED)


def shown_sum(each: Accumulator) -> str:
    """Return the column that has an exact sum rounded."""
    return each.name.replace("exact", "sum")


def _folded(both: pl.DataFrame, each: Accumulator) -> list[pl.Series]:
    """Add the exact sums of changes to those of their groups."""
    number = each.name.replace("exact", "number")
    numbers = both[number].fill_null(0) + both[f"{number}_old"].fill_null(0)
    return folded_sums(both[each.name], both[f"{each.name}_old"], numbers, f"_{each.name}", f"_{shown_sum(each)}")


def _accumulated(each: Accumulator) -> pl.Expr:
    """Return the accumulator over the weighted rows of a group."""
    value, weight = pl.col(each.argument), pl.col(WEIGHT)
    if each.part == "number":
        return weight.filter(value.is_not_null()).sum().cast(pl.Int64)
    if each.part == "sum":
        if pa.types.is_decimal(each.type):
            return (value.cast(pl.Decimal(DIGITS, each.type.scale)) * weight.cast(pl.Decimal(DIGITS, 0))).sum()
        return (value.cast(pl.Int128) * weight.cast(pl.Int128)).sum().cast(pl.Int64, strict=True)
    if each.kind == AGAIN:
        return _of_members(each.call, value)
    # SUBTLE: of changes, only rows that were added. Those that were retracted are looked at apart (test_engine.py).
    added = value.filter(weight > 0)
    if not pa.types.is_floating(each.type):
        return added.min() if each.kind == LEAST else added.max()
    # The least of doubles leaves NaN out, and is NaN if there are no others. Both zeros are equal, and shown as 0.0.
    found = added.min() if each.kind == LEAST else added.nan_max()
    return pl.when(found == 0).then(pl.lit(0.0).cast(memory_type(each.type))).otherwise(found)


def _of_members(call: AggregateCall, value: pl.Expr) -> pl.Expr:
    """Return an aggregate of all rows of a group, whose counts are positive."""
    function = call.function
    if function == "count distinct":
        return value.drop_nulls().n_unique().cast(pl.Int64)
    if function == "sum distinct":
        once = value.drop_nulls().unique()
        wide = once if pa.types.is_decimal(call.type) else once.cast(pl.Int128)
        return pl.when(once.len() > 0).then(wide.sum()).otherwise(None).cast(memory_type(call.type), strict=True)
    assert function in PICKING
    one, two = (value.struct.field(name) for name in ("a0", "a1"))
    there = two.is_not_null()
    picked = one.filter(there).sort_by(
        two.filter(there), one.filter(there), descending=function == "max_by", nulls_last=function == "max_by"
    )
    return picked.first()


def _shown(call: AggregateCall, place: int) -> pl.Expr:
    """Return the value of an aggregate from its accumulators."""
    if call.argument is None:
        return pl.col(COUNT)
    if call.function == "count":
        return pl.col(f"number{place}")
    if call.function not in ("sum", "avg"):
        return pl.col(f"value{place}")
    total, number = pl.col(f"sum{place}"), pl.col(f"number{place}")
    if call.function == "sum":
        return pl.when(number != 0).then(total)
    safe = pl.when(number != 0).then(number)
    if pa.types.is_decimal(call.type):
        shift = call.type.scale - call.argument.type.scale
        digits = unscaled(total, call.argument.type.scale) * 10**shift
        return scaled(half_up(digits, safe.cast(pl.Int128)), call.type.scale)
    return each_row(total.cast(pl.Float64)) / each_row(safe.cast(pl.Float64))

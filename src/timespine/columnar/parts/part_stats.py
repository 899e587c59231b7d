"""What is known of a part without opening it: bounds, null counts, times, diffs.

It travels as the opaque `meta` of a part in the state of a collection, so it has
a budget, and it is decoded from stored bytes, so it is checked. Everything in it
is sound, never exact: a bound may be wider than the rows are (it is cut to a few
bytes), and what is missing is unknown. For every row of the part

    lower <= encode(row) <= upper            by the schema's order of columns
    range.lower <= encode(value) <= range.upper    for every value that is not null

with the encoding of `columnar.kernels.key_encoding`, under the schema that wrote the part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from timespine.columnar.kernels import key_encoding
from timespine.columnar.schema.schema import COLUMNS_MAX, DIFF, FieldId, Schema
from timespine.config import DEFAULT
from timespine.core.batch import Count, Int64
from timespine.errors import CorruptionError
from timespine.libraries import pc, pl
from timespine.model.time import ARITY_MAX, INT64_MAX

BOUND_BYTES_MAX = 4096
"""The most bytes of one bound under any configuration: a limit for decoders."""

Bound = Annotated[bytes, msgspec.Meta(max_length=BOUND_BYTES_MAX)]
Coordinate = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]
CoordinateValues = Annotated[tuple[Coordinate, ...], msgspec.Meta(min_length=1, max_length=ARITY_MAX)]

Ends = tuple[bytes, bytes]
"""The first and the last row of a sorted table, encoded by the order of columns, as far as `ends_of` encodes them."""


class Range(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What is known of the values of one column."""

    lower: Bound | None
    """At or before every value that is not null, encoded. None: unknown, or there is no such value."""
    upper: Bound | None
    """At or after every value that is not null, encoded. None: unknown, or there is no such value."""
    nulls: Count
    """How many values are null."""


class PartMeta(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the columnar layer knows of a part."""

    tail: Count
    """Bytes at the end of the blob that hold the footer; zero for inline data."""
    tail_hash: Annotated[bytes, msgspec.Meta(max_length=64)]
    """The checksum of those bytes: what the footer says counts only if it is this one. Of inline data that was
    built by hand: the mark of the collection that it was built for."""
    lower: Bound | None
    """At or before every row, encoded by the order of columns. None: unknown."""
    upper: Bound | None
    """At or after every row, encoded by the order of columns. None: unknown."""
    min_time: CoordinateValues
    """The smallest value of each coordinate."""
    max_time: CoordinateValues
    """The largest value of each coordinate."""
    min_diff: Int64
    """The smallest diff."""
    max_diff: Int64
    """The largest diff."""
    columns: Annotated[dict[FieldId, Range], msgspec.Meta(max_length=COLUMNS_MAX)]
    """The columns by field id. One that is missing was trimmed: nothing is known of it."""
    row_bytes: Count = 0
    """Bytes that the rows take in memory, about; 0: unknown."""
    repeats: Count | None = None
    """Updates of the same row as the update before: what folding times can remove, at least one update for each.
    None: unknown."""
    negatives: Count | None = None
    """Updates with a negative diff: each may cancel an older update, in this part or another. None: unknown."""

    def encode(self) -> bytes:
        """Return the bytes that the state keeps."""
        return _ENCODER.encode(self)

    @staticmethod
    def decode(data: bytes) -> PartMeta:
        """Return what `encode` made, or a CorruptionError."""
        try:
            meta = _DECODER.decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise CorruptionError(f"the statistics of a part ({len(data)} bytes) cannot be decoded: {error}") from error
        meta._check()
        return meta

    def trimmed(self, schema: Schema) -> int:
        """Return how many columns of the schema that wrote the part were left out to keep within the budget."""
        return sum(field.id not in self.columns for field in schema.fields)

    def _check(self) -> None:
        """Check what the types do not say. A part that breaks it would be skipped by readers, silently."""
        ordered = (
            len(self.min_time) == len(self.max_time)
            and all(low <= high for low, high in zip(self.min_time, self.max_time, strict=True))
            and self.min_diff <= self.max_diff
            and _is_ascending(self.lower, self.upper)
            and all(_is_ascending(each.lower, each.upper) for each in self.columns.values())
        )
        if not ordered:
            raise CorruptionError("the statistics of a part contradict themselves: a lower bound is above its upper")


@lru_cache(maxsize=4096)
def known_meta(data: bytes) -> PartMeta:
    """Return the same, decoded once: every read looks at the statistics of all parts, and they never change."""
    return PartMeta.decode(data)


class StatsToKeep(msgspec.Struct, frozen=True):
    """Columns whose statistics are kept even beyond the budget, by their names in any case."""

    equals: tuple[str, ...] = ()
    """Whole names."""
    prefixes: tuple[str, ...] = ()
    """How a name begins."""
    suffixes: tuple[str, ...] = ()
    """How a name ends."""

    def __post_init__(self) -> None:
        for each in self.__struct_fields__:
            msgspec.structs.force_setattr(self, each, tuple(text.lower() for text in getattr(self, each)))

    def keeps(self, name: str) -> bool:
        """Tell whether the statistics of that column are never trimmed."""
        lower = name.lower()
        return lower in self.equals or lower.startswith(self.prefixes) or lower.endswith(self.suffixes)


@lru_cache(maxsize=64)
def stats_to_keep(patterns: tuple[str, ...]) -> StatsToKeep:
    """Parse names, `beginning*` and `*end`, as the configuration has them."""
    return StatsToKeep(
        equals=tuple(text for text in patterns if "*" not in text),
        prefixes=tuple(text[:-1] for text in patterns if text.endswith("*")),
        suffixes=tuple(text[1:] for text in patterns if text.startswith("*")),
    )


NOTHING_UNTRIMMABLE = StatsToKeep()


def describe_updates(
    table: pa.Table,
    schema: Schema,
    *,
    sorted: bool,
    budget: int = DEFAULT.stats_bytes,
    bound_bytes: int = DEFAULT.bound_bytes,
    stats_always_keep: StatsToKeep = NOTHING_UNTRIMMABLE,
    trimmed: list[int] | None = None,
    ends: Ends | None = None,
) -> PartMeta:
    """Return what there is to know of an update table; the tail of the part is not known yet.

    `sorted` promises that the rows are in the order of the schema, whose `ends` may be known. Bounds are cut
    to `bound_bytes`, and columns over `budget` bytes are left out: their bytes are added to `trimmed`.
    """
    bound_bytes = min(bound_bytes, BOUND_BYTES_MAX)
    lower = upper = None
    if table.num_rows:
        order = schema.order_names
        if not sorted:
            ends = _extreme_row(table, order, last=False), _extreme_row(table, order, last=True)
        first, final = ends or ends_of(table, schema, bound_bytes)
        lower = key_encoding.truncate_lower(first, bound_bytes)
        upper = key_encoding.truncate_upper(final, bound_bytes)
    times = _time_ranges(table, schema)
    min_diff, max_diff = _integer_range(table.column(DIFF))
    return PartMeta(
        tail=0,
        tail_hash=b"",
        lower=lower,
        upper=upper,
        min_time=tuple(low for low, _ in times),
        max_time=tuple(high for _, high in times),
        min_diff=min_diff,
        max_diff=max_diff,
        columns=_trim(table, schema, sorted, budget, bound_bytes, stats_always_keep, trimmed),
        row_bytes=table.nbytes,
        repeats=count_repeats(table, schema) if sorted else None,
        negatives=count_negatives(table) if min_diff < 0 else 0,
    )


def ends_of(table: pa.Table, schema: Schema, bound_bytes: int = BOUND_BYTES_MAX) -> Ends:
    """Encode the first and the last row of a sorted table, as far as bounds of `bound_bytes` need it.

    Of a long row only the beginning is encoded: all of a value of megabytes would take longer than to store it.
    """
    # One byte more than is kept: it shows that there is more.
    first, last = (key_encoding.encode_row(table, place, schema.order_names, bound_bytes + 1) for place in (0, -1))
    return first, last


def diff_sum_of(table: pa.Table) -> int:
    """Add up the diffs modulo 2^64, as numpy does."""
    sums = [np.add.reduce(chunk.to_numpy(), dtype=np.int64) for chunk in table.column(DIFF).chunks]
    return int(np.add.reduce(sums, dtype=np.int64))


def count_repeats(table: pa.Table, schema: Schema) -> int | None:
    """Return how many updates of a sorted, consolidated table are of the same row as the update before; None if
    unknown."""
    places = repeated_rows(table, schema)
    return None if places is None else len(places)


def repeated_rows(table: pa.Table, schema: Schema) -> NDArray[np.int64] | None:
    """Return the places of updates, in a sorted and consolidated table, that are of the same row as the update before.

    Column by column, only the updates stay that are still equal. None if that is not known: Arrow does not compare
    nested values.
    """
    places: NDArray[np.int64] | None = None
    if table.num_rows < 2 or all(low == high for low, high in _time_ranges(table, schema)):
        return np.empty(0, np.int64)  # consolidated: a row has one update at each time
    for name in schema.order_names:
        chunks = table.column(name)
        column = chunks.chunk(0) if chunks.num_chunks == 1 else chunks.combine_chunks()
        if pa.types.is_nested(column.type):
            return None
        if places is None:
            places = np.flatnonzero(_equal(column.slice(1), column.slice(0, len(column) - 1))) + 1
        else:
            places = places[_equal(column.take(pa.array(places)), column.take(pa.array(places - 1)))]
        if not len(places):
            break
    return places


def count_negatives(table: pa.Table) -> int:
    """Return how many updates have a negative diff."""
    return int(pc.sum(pc.less(table.column(DIFF), 0)).as_py() or 0)


def _equal(these: pa.Array, others: pa.Array) -> NDArray[np.bool_]:
    """Return where two arrays are equal, as rows are: null equals null, and NaN equals NaN."""
    equal = pc.fill_null(pc.equal(these, others), False)
    if these.null_count:
        equal = pc.or_(equal, pc.and_(pc.is_null(these), pc.is_null(others)))
    if pa.types.is_floating(these.type):
        equal = pc.or_(equal, pc.fill_null(pc.and_(pc.is_nan(these), pc.is_nan(others)), False))
    return np.asarray(equal.to_numpy(zero_copy_only=False), dtype=np.bool_)


def _time_ranges(table: pa.Table, schema: Schema) -> list[tuple[int, int]]:
    """Return the smallest and the largest value of each coordinate."""
    return [_integer_range(table.column(name)) for name in schema.time_names]


def column_range(column: pa.ChunkedArray, bound_bytes: int, *, ascending: bool = False) -> Range:
    """Return what there is to know of one column, which may be known to ascend. Of a nested one only its nulls are
    counted."""
    nulls = column.null_count
    if nulls == len(column) or pa.types.is_nested(column.type):
        return Range(None, None, nulls)
    low, high = (column[nulls], column[-1]) if ascending else _extremes(column)
    return Range(
        key_encoding.truncate_lower(key_encoding.encode_arrow_scalar(low, bound_bytes + 1), bound_bytes),
        key_encoding.truncate_upper(key_encoding.encode_arrow_scalar(high, bound_bytes + 1), bound_bytes),
        nulls,
    )


def _trim(
    table: pa.Table,
    schema: Schema,
    sorted: bool,
    budget: int,
    bound_bytes: int,
    stats_always_keep: StatsToKeep,
    trimmed: list[int] | None,
) -> dict[int, Range]:
    """Return the ranges of the columns of a table that fit."""
    first, *_ = schema.order_names
    ranges = {
        name: column_range(table.column(name), bound_bytes, ascending=sorted and name == first)
        for name in schema.order_names
    }
    return keep_within_budget(schema, ranges, budget, stats_always_keep, trimmed)


def keep_within_budget(
    schema: Schema,
    ranges: Mapping[str, Range],
    budget: int,
    stats_always_keep: StatsToKeep,
    trimmed: list[int] | None,
) -> dict[int, Range]:
    """Return the ranges that fit: first those that must be kept, then by the order of columns, keys before values."""
    must: list[str] = []
    may: list[str] = []
    for name in schema.order_names:
        if name in ranges:
            (must if stats_always_keep.keeps(name) else may).append(name)
    kept: dict[int, Range] = {}
    for place, name in enumerate(must + may):
        field, its = schema.field(name).id, ranges[name]
        size = len(_ENCODER.encode(field)) + len(_ENCODER.encode(its))
        if place < len(must) or size <= budget:
            kept[field] = its
            budget -= size
        elif trimmed is not None:
            trimmed.append(size)
    return kept


def _extremes(column: pa.ChunkedArray) -> tuple[pa.Scalar, pa.Scalar]:
    """Return the smallest and the largest value of a column that has one and is not nested."""
    found = pc.min_max(column)
    low, high = found[0], found[1]
    # SUBTLE: Arrow leaves NaN out of min and max unless there is nothing else, and to us it is the largest value.
    if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
        high = pa.scalar(float("nan"), column.type)
    return low, high


def _extreme_row(table: pa.Table, order: Sequence[str], *, last: bool) -> bytes:
    """Return the encoding of the first or the last row of a table that is not sorted.

    Column by column only the rows stay that have the extreme value, until one is left.
    """
    rows = table
    for place, name in enumerate(order):
        column = rows.column(name)
        if pa.types.is_nested(column.type):
            # Arrow does not compare nested values: what is left is sorted, usually little.
            rest = order[place:]
            frame = pl.DataFrame(pl.from_arrow(rows.select(rest)))
            ordered = frame.select(pl.arg_sort_by(*rest, nulls_last=False)).to_series()
            return key_encoding.encode_row(rows, ordered[-1 if last else 0], order)
        mask = _extreme_mask(column, last=last)
        if mask is not None:
            places = pc.indices_nonzero(mask)
            if len(places) == 1:
                return key_encoding.encode_row(rows, places[0].as_py(), order)
            rows = rows.filter(mask)
    return key_encoding.encode_row(rows, 0, order)


def _extreme_mask(column: pa.ChunkedArray, *, last: bool) -> pa.ChunkedArray | None:
    """Return which values come first, or last, in the order of rows; None if all are equal in that."""
    nulls = column.null_count
    if nulls == len(column):
        return None
    if nulls and not last:
        return pc.is_null(column)
    low, high = _extremes(column)
    extreme = high if last else low
    # SUBTLE: NaN is equal to nothing for Arrow, not even to itself.
    if pa.types.is_floating(column.type) and extreme.as_py() != extreme.as_py():
        return pc.is_nan(column)
    return pc.equal(column, extreme)


def _integer_range(column: pa.ChunkedArray) -> tuple[int, int]:
    """Return the smallest and the largest of a column without nulls; zeros if it is empty."""
    found = pc.min_max(column)
    return found[0].as_py() or 0, found[1].as_py() or 0


def _is_ascending(lower: bytes | None, upper: bytes | None) -> bool:
    return lower is None or upper is None or lower <= upper


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(PartMeta)

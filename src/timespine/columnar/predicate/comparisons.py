"""Conditions on one or two columns, of which predicates consist.

Values compare as rows are ordered: nulls are unknown, NaN equals NaN and is
larger than every number, strings compare by their bytes. A constant is first
placed among the values of the column (see `columnar.predicate.literal`), so that neither
evaluation nor pruning ever casts a column.
"""

from __future__ import annotations

import operator
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from timespine.columnar.cached_property import cached_property
from timespine.columnar.kernels import key_encoding
from timespine.columnar.parts.part_stats import Range
from timespine.columnar.predicate.literal import LiteralValue, literal_text, place_literal, polars_literal, polars_type
from timespine.columnar.predicate.predicate import (
    EncodedRange,
    Point,
    Possible,
    Predicate,
    Ranges,
    Types,
    product_of,
    type_of,
)
from timespine.errors import InvalidCondition, UsageError, short_repr
from timespine.libraries import cs, pl

VALUES_MAX = 100_000
"""The most values in one list."""

PATTERN_MAX = 1000
"""The most characters of a LIKE pattern."""

RESERVED = frozenset({"AND", "OR", "NOT", "IN", "LIKE", "BETWEEN", "IS", "NULL", "TRUE", "FALSE"})
"""The words of the language. A column of such a name needs quotes."""

MIRRORED = {"=": "=", "!=": "!=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
"""The comparisons with swapped sides."""

_OPPOSITE = {"=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_UNKNOWN = (True, True)
_NEVER = (False, False)  # null only: every comparison is unknown
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, repr=False)
class ColumnCondition(Predicate):
    """A condition on one column."""

    column: str
    """Its name."""

    def key_points(self, names: Sequence[str], types: Types) -> list[Point] | None:
        return product_of([self], names, types)

    def _names(self) -> Iterator[str]:
        yield self.column

    def _place(self, value: LiteralValue, types: Types) -> Any:
        """Place a constant among the values of the column."""
        type = type_of(self.column, types)
        try:
            return place_literal(value, type)
        except UsageError as error:
            raise InvalidCondition(f"column {short_repr(self.column)}: {error}") from None

    def _if_not_null(self, truth: bool, types: Types) -> pl.Expr:
        """Give this truth value for every value, and unknown for null."""
        column = _operand(self.column, type_of(self.column, types))
        return column == column if truth else column != column


@dataclass(frozen=True, repr=False)
class IsNull(ColumnCondition):
    """Whether a value is null. Never unknown itself."""

    negated: bool = False

    def to_polars(self, types: Types) -> pl.Expr:
        type_of(self.column, types)
        column = column_expression(self.column)
        return column.is_not_null() if self.negated else column.is_null()

    def __str__(self) -> str:
        return f"{_name_text(self.column)} IS {'NOT ' if self.negated else ''}NULL"

    def _possible(self, ranges: Ranges, types: Types, rows: int) -> Possible:
        known = ranges.get(self.column)
        some, others = (known.nulls > 0, known.nulls < rows) if known is not None else _UNKNOWN
        return (others, some) if self.negated else (some, others)

    def _negated(self) -> Predicate:
        return IsNull(self.column, not self.negated)

    def _values(self, types: Types) -> tuple[str, list[Any]] | None:
        return None if self.negated else (self.column, [None])


@dataclass(frozen=True, repr=False)
class Compare(ColumnCondition):
    """A comparison of a column with a constant."""

    comparison: str
    """One of = != < <= > >=."""
    value: LiteralValue
    _encoded: dict[pa.DataType, tuple[str, bytes] | bool] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def to_polars(self, types: Types) -> pl.Expr:
        meaning = self._equivalent(types)
        if isinstance(meaning, bool):
            return self._if_not_null(meaning, types)
        type = types[self.column]
        comparison, value = meaning
        return _compare(comparison, _operand(self.column, type), polars_literal(value, type))

    def __str__(self) -> str:
        return f"{_name_text(self.column)} {self.comparison} {literal_text(self.value)}"

    def _equivalent(self, types: Types) -> tuple[str, Any] | bool:
        """Give the equivalent comparison with a value of the column's type, or a truth value that holds for all values.

        There is no value between two neighbours of the type, so `< 5.5` is `<= 5` and `>= 5.5` is `> 5`.
        """
        value, exact = self._place(self.value, types)
        if exact:
            return self.comparison, value
        if self.comparison in ("=", "!="):
            return self.comparison == "!="
        below = self.comparison in ("<", "<=")
        if value is None:
            return not below
        return ("<=" if below else ">"), value

    def _possible(self, ranges: Ranges, types: Types, rows: int) -> Possible:
        known = ranges.get(self.column)
        if known is None or known.nulls >= rows:
            return _UNKNOWN if known is None else _NEVER
        meaning = self._meaning(types)
        if isinstance(meaning, bool):
            return meaning, not meaning
        comparison, encoded = meaning
        return _may(comparison, encoded, known), _may(_OPPOSITE[comparison], encoded, known)

    def _meaning(self, types: Types) -> tuple[str, bytes] | bool:
        """Return the equivalent comparison of encoded values, or a truth value that holds for all."""
        type = type_of(self.column, types)
        meaning = self._encoded.get(type)
        if meaning is None:
            found = self._equivalent(types)
            meaning = found if isinstance(found, bool) else (found[0], key_encoding.encode_scalar(found[1], type))
            self._encoded[type] = meaning
        return meaning

    def encoded_range(self, name: str, type: pa.DataType) -> EncodedRange:
        meaning = self._meaning({name: type}) if name == self.column else True
        if isinstance(meaning, bool):
            return None, None
        comparison, encoded = meaning
        lower = encoded if comparison in ("=", ">", ">=") else None
        return lower, encoded if comparison in ("=", "<", "<=") else None

    def _values(self, types: Types) -> tuple[str, list[Any]] | None:
        if self.comparison != "=":
            return None
        value, exact = self._place(self.value, types)
        return self.column, [value] if exact else []


@dataclass(frozen=True, repr=False)
class In(ColumnCondition):
    """A test of a column against a list of constants."""

    values: tuple[LiteralValue, ...]
    _encoded: dict[pa.DataType, list[bytes]] = field(default_factory=dict, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.values) > VALUES_MAX:
            raise InvalidCondition(f"a list of {len(self.values)} values is longer than {VALUES_MAX}")

    def to_polars(self, types: Types) -> pl.Expr:
        values = self._exact(types)
        if not values:
            return self._if_not_null(False, types)
        type = types[self.column]
        column = _operand(self.column, type)
        return column.is_in(pl.Series(values, dtype=polars_type(type)).implode())

    def __str__(self) -> str:
        return f"{_name_text(self.column)} IN ({', '.join(literal_text(value) for value in self.values)})"

    def _exact(self, types: Types) -> list[Any]:
        """Return the constants that the column can have. No value is equal to the others."""
        return [value for value, exact in (self._place(each, types) for each in self.values) if exact]

    def _possible(self, ranges: Ranges, types: Types, rows: int) -> Possible:
        known = ranges.get(self.column)
        if known is None or known.nulls >= rows:
            return _UNKNOWN if known is None else _NEVER
        type = type_of(self.column, types)
        encoded = self._encoded.get(type)
        if encoded is None:
            encoded = sorted(key_encoding.encode_scalar(value, type) for value in self._exact(types))
            self._encoded[type] = encoded
        first = bisect_left(encoded, known.lower or b"")
        if first == len(encoded) or (known.upper is not None and encoded[first] > known.upper):
            return False, True
        return True, not (known.lower == known.upper == encoded[first])

    def _values(self, types: Types) -> tuple[str, list[Any]] | None:
        return self.column, list(dict.fromkeys(self._exact(types)))


@dataclass(frozen=True, repr=False)
class Like(ColumnCondition):
    """A test of a string against a pattern: `%` is any text, `_` any character, and a backslash escapes them."""

    pattern: str

    def __post_init__(self) -> None:
        if len(self.pattern) > PATTERN_MAX:
            raise InvalidCondition(f"a LIKE pattern of {len(self.pattern)} characters is longer than {PATTERN_MAX}")
        self._pieces()

    def to_polars(self, types: Types) -> pl.Expr:
        type = type_of(self.column, types)
        if not pa.types.is_string(type):
            raise InvalidCondition(f"column {short_repr(self.column)}: LIKE needs a string, not type {type}")
        prefix, rest = self._prefix
        column = column_expression(self.column)
        if rest == ["%"]:
            return column.str.starts_with(prefix)
        if not rest:
            return column == pl.lit(prefix)
        wild = {"%": ".*", "_": "."}
        inside = "".join(wild[piece] if piece in wild else _escape(piece[1:]) for piece in self._pieces())
        return column.str.contains(rf"(?s)\A{inside}\z")

    def __str__(self) -> str:
        return f"{_name_text(self.column)} LIKE {literal_text(self.pattern)}"

    def _pieces(self) -> list[str]:
        """Split the pattern: `%`, `_`, or `=` and a literal character."""
        pieces = []
        characters = iter(self.pattern)
        for character in characters:
            if character == "\\":
                character = next(characters, "")
                if not character:
                    raise InvalidCondition("a LIKE pattern ends with a backslash: write it twice to mean one")
                pieces.append("=" + character)
            else:
                pieces.append(character if character in "%_" else "=" + character)
        return pieces

    @cached_property
    def _prefix(self) -> tuple[str, list[str]]:
        """Return the prefix of every match, and the pieces after it."""
        pieces = self._pieces()
        fixed = next((place for place, piece in enumerate(pieces) if piece in "%_"), len(pieces))
        return "".join(piece[1:] for piece in pieces[:fixed]), pieces[fixed:]

    @cached_property
    def _begins(self) -> bytes:
        """Return the prefix of the encoding of every match: that of the prefix without its two end bytes."""
        return key_encoding.encode_scalar(self._prefix[0], pa.string())[:-2]

    def _possible(self, ranges: Ranges, types: Types, rows: int) -> Possible:
        known = ranges.get(self.column)
        if known is None or known.nulls >= rows:
            return _UNKNOWN if known is None else _NEVER
        begins, lower, upper = self._begins, known.lower, known.upper
        may = (upper is None or upper >= begins) and (lower is None or lower[: len(begins)] <= begins)
        both = lower is not None and upper is not None and lower.startswith(begins) and upper.startswith(begins)
        return may, not (both and self._prefix[1] == ["%"])


@dataclass(frozen=True, repr=False)
class CompareColumns(Predicate):
    """A comparison of two columns of a row. It skips nothing, since bounds seldom decide it."""

    left: str
    comparison: str
    right: str

    def to_polars(self, types: Types) -> pl.Expr:
        one, other = type_of(self.left, types), type_of(self.right, types)
        left, right = _operand(self.left, one), _operand(self.right, other)
        if one != other:
            # SUBTLE: some versions of polars compare int64 and uint64 as doubles, which are not exact.
            if pa.types.is_integer(one) and pa.types.is_integer(other):
                left, right = left.cast(pl.Int128), right.cast(pl.Int128)
            elif _is_number(one) and _is_number(other):
                left, right = left.cast(pl.Float64), right.cast(pl.Float64)
            else:
                raise InvalidCondition(
                    f"columns {short_repr(self.left)} and {short_repr(self.right)} cannot be compared: "
                    f"{one} beside {other}"
                )
        return _compare(self.comparison, left, right)

    def __str__(self) -> str:
        return f"{_name_text(self.left)} {self.comparison} {_name_text(self.right)}"

    def _names(self) -> Iterator[str]:
        yield from (self.left, self.right)


def _may(comparison: str, encoded: bytes, known: Range) -> bool:
    """Return whether the comparison with the encoded value may hold for a value within these bounds."""
    lower, upper = known.lower, known.upper
    if comparison == "<":
        return lower is None or lower < encoded
    if comparison == "<=":
        return lower is None or lower <= encoded
    if comparison == ">":
        return upper is None or upper > encoded
    if comparison == ">=":
        return upper is None or upper >= encoded
    if comparison == "=":
        return (lower is None or lower <= encoded) and (upper is None or upper >= encoded)
    # Equal bounds were not cut: then every value is that one.
    return not (lower == encoded == upper)


def _compare(comparison: str, left: pl.Expr, right: pl.Expr) -> pl.Expr:
    expression: pl.Expr = _COMPARISONS[comparison](left, right)
    return expression


def column_expression(name: str) -> pl.Expr:
    """Select a column by its exact name, since polars reads `*` and `^...$` as patterns."""
    special = name == "*" or (name.startswith("^") and name.endswith("$"))
    return cs.by_name(name).as_expr() if special else pl.col(name)


def _operand(name: str, type: pa.DataType) -> pl.Expr:
    """Give a column for a comparison: dates and timestamps as their integers."""
    if pa.types.is_nested(type):
        raise InvalidCondition(f"column {short_repr(name)}: type {type} supports only IS NULL and IS NOT NULL")
    column = column_expression(name)
    return column.to_physical() if pa.types.is_temporal(type) else column


def _is_number(type: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type) or pa.types.is_floating(type))


def _name_text(name: str) -> str:
    if _PLAIN_NAME.fullmatch(name) and name.upper() not in RESERVED:
        return name
    return '"' + name.replace('"', '""') + '"'


def _escape(character: str) -> str:
    """Escape a character for a regular expression."""
    return character if character.isascii() and character.isalnum() else f"\\x{{{ord(character):x}}}"

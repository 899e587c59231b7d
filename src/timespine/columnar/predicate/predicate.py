"""Predicates: their truth for a row, and what the statistics of many rows prove.

Truth has three values, as in SQL: a comparison with null is unknown, and a row is
kept only if the whole is true. From the statistics of a part follows which of
*true* and *false* some row of it may have:

    possible(p AND q) = (true if both may be true,  false if one may be false)
    possible(p OR q)  = (true if one may be true,   false if both may be false)
    possible(NOT p)   = (true if p may be false,    false if p may be true)

Unknown needs no bookkeeping: NOT leaves it unknown, so it never becomes true.
The comparisons themselves are in `columnar.predicate.comparisons`, the text in `columnar.predicate.parser`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from timespine.columnar.parts.part_stats import Range
from timespine.columnar.predicate.literal import literal_text
from timespine.errors import InvalidCondition, short_repr, with_article
from timespine.libraries import is_expression, pl

if TYPE_CHECKING:
    from timespine.columnar.schema.schema import Schema

DEPTH_MAX = 64
"""The largest depth of predicates within predicates, which bounds every recursion over them."""

TERMS_MAX = 4096
"""The most comparisons in one predicate. A list of values counts as one."""

POINTS_MAX = 100_000
"""The most key points of one predicate."""

Types = Mapping[str, pa.DataType]
"""The types of columns by name."""
Ranges = Mapping[str, Range]
"""The known ranges of columns by name."""
Possible = tuple[bool, bool]
"""Whether some row may make it true, and whether some row may make it false."""
EncodedRange = tuple[bytes | None, bytes | None]
"""The least and the greatest encoded value, both included; None for an open end."""
Point = tuple[Any, ...]
"""The values of some key columns."""


class Predicate:
    """A condition on rows. Combine with `&`, `|` and `~`; `str` gives its text."""

    depth: int = 1
    """Predicates within predicates, this one included."""
    terms: int = 1
    """The number of comparisons in it."""

    @functools.cached_property
    def columns(self) -> tuple[str, ...]:
        """Return the columns that it uses, each once."""
        return tuple(dict.fromkeys(self._names()))

    def check(self, schema: Schema) -> None:
        """Raise an InvalidCondition if a column is unknown, or compared with a constant of another kind."""
        known = {each.name: each.type for each in schema.arrow}
        made = self.to_polars(known)
        self._compiled[tuple((name, known[name]) for name in self.columns if name in known)] = made

    def to_polars(self, types: Types) -> pl.Expr:
        """Convert it to a polars expression for columns of these types: true, false or null."""
        raise NotImplementedError

    def mask(self, table: pa.Table) -> pa.Array:
        """Return for which rows of a table it is true, without nulls."""
        names = list(self.columns)
        if not names:
            # There are only constants: if it may be true, it is true.
            return pa.repeat(self.may_match({}, {}, 1), table.num_rows)
        present = set(table.schema.names)
        types = {name: table.schema.field(name).type for name in names if name in present}
        key = tuple(types.items())
        expression = self._compiled.get(key)
        if expression is None:
            expression = self._compiled[key] = self.to_polars(types)
        try:
            kept = pl.DataFrame(pl.from_arrow(table.select(names))).select(expression).to_series()
        except pl.exceptions.PolarsError as error:
            raise _not_evaluated(names, error) from error
        if len(kept) != table.num_rows:
            raise InvalidCondition(f"the predicate on {', '.join(names)} does not give one truth value per row")
        mask = kept.to_arrow()
        return mask.fill_null(False) if mask.null_count else mask

    def may_match(self, ranges: Ranges, types: Types, rows: int) -> bool:
        """Return whether it may be true of one of `rows` rows. False is certain, True is not.

        A column without a range may have any value.
        """
        return self._possible(ranges, types, rows)[0]

    def encoded_range(self, name: str, type: pa.DataType) -> EncodedRange:
        """Return encoded values between which that of a column lies in every matching row; None for an open end."""
        return None, None

    def key_points(self, names: Sequence[str], types: Types) -> list[Point] | None:
        """Return keys of which every matching row has one; None if it does not restrict all these columns.

        A row with such a key need not match. Values are those that Arrow accepts: `pa.array(values, type)`.
        """
        return None

    def __and__(self, other: object) -> Predicate:
        return all_of((self, as_term(other)))

    def __or__(self, other: object) -> Predicate:
        return any_of((self, as_term(other)))

    def __invert__(self) -> Predicate:
        return self._negated()

    def __bool__(self) -> bool:
        raise InvalidCondition(
            "a predicate is neither true nor false by itself: combine with & | ~, not with and, or, not"
        )

    def __repr__(self) -> str:
        return f"<where {self}>"

    @functools.cached_property
    def _compiled(self) -> dict[tuple[tuple[str, pa.DataType], ...], pl.Expr]:
        """Cache its expressions by types, since a scan filters many small tables one after the other."""
        return {}

    def _possible(self, ranges: Ranges, types: Types, rows: int) -> Possible:
        return True, True

    def _negated(self) -> Predicate:
        return Not(self)

    def _names(self) -> Iterator[str]:
        """List the columns that it uses in order, with repetitions."""
        yield from ()

    def _values(self, types: Types) -> tuple[str, list[Any]] | None:
        """Return a column and the values of which a matching row has one; None if there is no such list."""
        return None


@dataclass(frozen=True, repr=False)
class Constant(Predicate):
    """True or false of every row."""

    value: bool

    def to_polars(self, types: Types) -> pl.Expr:
        return pl.lit(self.value)

    def __str__(self) -> str:
        return literal_text(self.value)

    def _possible(self, ranges: Ranges, types: Types, rows: int) -> Possible:
        return self.value, not self.value

    def _negated(self) -> Predicate:
        return Constant(not self.value)


@dataclass(frozen=True, repr=False)
class Not(Predicate):
    """True where the other is false."""

    term: Predicate
    depth: int = field(init=False, compare=False)
    terms: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        _measure(self, (self.term,))

    def to_polars(self, types: Types) -> pl.Expr:
        return ~self.term.to_polars(types)

    def __str__(self) -> str:
        return f"NOT ({self.term})" if isinstance(self.term, Junction) else f"NOT {self.term}"

    def _possible(self, ranges: Ranges, types: Types, rows: int) -> Possible:
        true, false = self.term._possible(ranges, types, rows)
        return false, true

    def _negated(self) -> Predicate:
        return self.term

    def _names(self) -> Iterator[str]:
        return self.term._names()


@dataclass(frozen=True, repr=False)
class Junction(Predicate):
    """Several predicates, joined by AND or by OR. None of them is a junction of the same kind."""

    every: bool
    """Whether all must be true (AND), or one is enough (OR)."""
    inside: tuple[Predicate, ...]
    depth: int = field(init=False, compare=False)
    terms: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        _measure(self, self.inside)

    def to_polars(self, types: Types) -> pl.Expr:
        # Balanced, not left-deep: polars recurses as deep as the expression is.
        level = [term.to_polars(types) for term in self.inside]
        while len(level) > 1:
            odd = level[-1:] if len(level) % 2 else []
            pairs = zip(level[::2], level[1::2], strict=False)
            level = [left & right if self.every else left | right for left, right in pairs] + odd
        return level[0]

    def key_points(self, names: Sequence[str], types: Types) -> list[Point] | None:
        if self.every:
            together = product_of(self.inside, names, types)
            alone = (term.key_points(names, types) for term in self.inside)
            return together if together is not None else next((its for its in alone if its is not None), None)
        points: dict[Point, None] = {}
        for term in self.inside:
            its = term.key_points(names, types)
            if its is None:
                return None
            points.update(dict.fromkeys(its))
        return list(points) if len(points) <= POINTS_MAX else None

    def encoded_range(self, name: str, type: pa.DataType) -> EncodedRange:
        if not self.every:
            return None, None
        found = [term.encoded_range(name, type) for term in self.inside]
        lowers, uppers = ([each for each in ends if each is not None] for ends in zip(*found, strict=True))
        return max(lowers, default=None), min(uppers, default=None)

    def __str__(self) -> str:
        if self.every:
            return " AND ".join(f"({term})" if isinstance(term, Junction) else str(term) for term in self.inside)
        return " OR ".join(str(term) for term in self.inside)

    def _possible(self, ranges: Ranges, types: Types, rows: int) -> Possible:
        each = [term._possible(ranges, types, rows) for term in self.inside]
        if self.every:
            return all(true for true, _ in each), any(false for _, false in each)
        return any(true for true, _ in each), all(false for _, false in each)

    def _names(self) -> Iterator[str]:
        return itertools.chain.from_iterable(term._names() for term in self.inside)


@dataclass(frozen=True, repr=False, eq=False)
class Native(Predicate):
    """A polars expression, used unchanged. It skips nothing, since statistics prove nothing about it."""

    expression: pl.Expr

    def __post_init__(self) -> None:
        meta = self.expression.meta
        if meta.has_multiple_outputs() or not meta.root_names():
            raise InvalidCondition("a polars expression in a predicate must name the columns it looks at, one by one")
        if not hasattr(meta, "is_row_separable"):
            raise InvalidCondition(
                f"polars {pl.__version__} cannot tell whether an expression looks at one row at a time: "
                "upgrade it, or write the predicate as text or with col(...)"
            )
        if not is_row_by_row(self.expression):
            raise InvalidCondition(
                "a polars expression in a predicate must look at one row at a time: no aggregates, windows or Python "
                "functions, and lists instead of Series in is_in"
            )

    def to_polars(self, types: Types) -> pl.Expr:
        """Return the expression after a trial on an empty table."""
        for name in self.columns:
            type_of(name, types)
        nothing = pa.schema([(name, types[name]) for name in self.columns]).empty_table()
        try:
            found = pl.DataFrame(pl.from_arrow(nothing)).select(self.expression).dtypes
        except pl.exceptions.PolarsError as error:
            raise _not_evaluated(self.columns, error) from error
        if found != [pl.Boolean]:
            raise InvalidCondition(
                f"the polars expression on {', '.join(self.columns)} gives {found}, not truth values"
            )
        return self.expression

    def __str__(self) -> str:
        return str(self.expression)

    def _names(self) -> Iterator[str]:
        return iter(self.expression.meta.root_names())


def all_of(terms: Iterable[Predicate]) -> Predicate:
    """Make a predicate that is true where all are true."""
    return _junction(True, terms)


def any_of(terms: Iterable[Predicate]) -> Predicate:
    """Make a predicate that is true where one is true."""
    return _junction(False, terms)


def as_term(other: object) -> Predicate:
    """Convert an operand of `&` or `|` to a predicate; raise an InvalidCondition if it is none."""
    if isinstance(other, Predicate):
        return other
    if is_expression(other):
        return Native(other)
    raise InvalidCondition(f"a predicate cannot be combined with {with_article(type(other).__name__)}")


def type_of(name: str, types: Types) -> pa.DataType:
    """Return the type of a column; raise an InvalidCondition with the known columns if it is unknown."""
    found = types.get(name)
    if found is None:
        raise InvalidCondition(f"there is no column {short_repr(name)}; the columns are {short_repr(list(types))}")
    return found


def product_of(terms: Iterable[Predicate], names: Sequence[str], types: Types) -> list[Point] | None:
    """Return the keys that conditions on single columns allow; None if a column is free, or they are too many."""
    chosen: dict[str, list[Any]] = {}
    for term in terms:
        column, values = term._values(types) or ("", [])
        if column in names and (column not in chosen or len(values) < len(chosen[column])):
            chosen[column] = values
    size = functools.reduce(lambda product, values: product * len(values), chosen.values(), 1)
    if len(chosen) < len(names) or size > POINTS_MAX:
        return None
    return list(itertools.product(*(chosen[name] for name in names)))


def _junction(every: bool, terms: Iterable[Predicate]) -> Predicate:
    flat: list[Predicate] = []
    for term in terms:
        flat.extend(term.inside if isinstance(term, Junction) and term.every is every else (term,))
    if len(flat) == 1:
        return flat[0]
    return Junction(every, tuple(flat)) if flat else Constant(every)


def _measure(predicate: Predicate, inside: Sequence[Predicate]) -> None:
    """Set depth and terms of a predicate with others inside; raise an InvalidCondition if they are too many."""
    depth = 1 + max(term.depth for term in inside)
    terms = sum(term.terms for term in inside)
    if depth > DEPTH_MAX:
        raise InvalidCondition(f"a predicate is more than {DEPTH_MAX} deep")
    if terms > TERMS_MAX:
        raise InvalidCondition(f"a predicate has more than {TERMS_MAX} comparisons: use a list of values, IN (...)")
    object.__setattr__(predicate, "depth", depth)
    object.__setattr__(predicate, "terms", terms)


def is_row_by_row(expression: pl.Expr) -> bool:
    """Return whether the result for a row depends on that row alone, since scans filter chunk by chunk."""
    if not hasattr(expression.meta, "is_row_separable"):
        return False  # this version of polars cannot tell
    try:
        remaining = [expression]
        while remaining:
            each = remaining.pop().meta
            if not each.is_row_separable():  # of its outermost operation only
                return False
            remaining.extend(each.pop())
    except pl.exceptions.PolarsError:
        return False
    return True


def _not_evaluated(names: Iterable[str], error: Exception) -> InvalidCondition:
    # Only the kind of error: the message of polars may contain values of rows.
    return InvalidCondition(f"the predicate on {', '.join(names)} cannot be evaluated ({type(error).__name__})")

"""Conditions on rows, as users give them with `where=`.

    "total > 5 AND customer LIKE 'ab%'"           text, see `columnar.predicate.parser`
    (col("total") > 5) & col("customer").starts_with("ab")
    pl.col("total") > 5                            a polars expression, used unchanged

All three become a `Predicate`, which filters rows and, except for the last, also
skips parts and row groups whose statistics prove that no row matches.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias, Union

from timespine.columnar.predicate.comparisons import Compare, In, IsNull, Like
from timespine.columnar.predicate.literal import check_literal
from timespine.columnar.predicate.parser import Name, parse_predicate, relate
from timespine.columnar.predicate.predicate import Constant, Native, Predicate
from timespine.errors import InvalidCondition
from timespine.libraries import is_expression, pl

__all__ = ["Column", "Predicate", "Where", "as_predicate", "col"]


class Column:
    """A column in a predicate. `col` makes one."""

    __slots__ = ("_name",)
    __hash__ = None  # type: ignore[assignment]  # == makes a predicate, so there is no equality to hash by

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise InvalidCondition(f"the name of a column is a text, not a {type(name).__name__}")
        self._name = name

    @property
    def name(self) -> str:
        """Return the name of the column; in a merge with `target.` or `source.` before it."""
        return self._name

    def __eq__(self, other: object) -> Predicate:  # type: ignore[override]
        return self._relate("=", other)

    def __ne__(self, other: object) -> Predicate:  # type: ignore[override]
        return self._relate("!=", other)

    def __lt__(self, other: object) -> Predicate:
        return self._relate("<", other)

    def __le__(self, other: object) -> Predicate:
        return self._relate("<=", other)

    def __gt__(self, other: object) -> Predicate:
        return self._relate(">", other)

    def __ge__(self, other: object) -> Predicate:
        return self._relate(">=", other)

    def is_null(self) -> Predicate:
        """Test whether there is no value."""
        return IsNull(self._name)

    def is_not_null(self) -> Predicate:
        """Test whether there is a value."""
        return IsNull(self._name, True)

    def is_true(self) -> Predicate:
        """Test whether a column of truth values is true."""
        return Compare(self._name, "=", True)

    def is_in(self, values: Iterable[object]) -> Predicate:
        """Test whether the value is one of these. With no values, no row matches, null included."""
        if isinstance(values, str | bytes):
            raise InvalidCondition("is_in takes a list of values, not one text")
        checked = tuple(check_literal(value) for value in values)
        return In(self._name, checked) if checked else Constant(False)

    def between(self, low: object, high: object) -> Predicate:
        """Test whether the value lies between these two, or is one of them."""
        return (self >= low) & (self <= high)

    def starts_with(self, prefix: str) -> Predicate:
        """Test whether a text begins with that one."""
        if not isinstance(prefix, str):
            raise InvalidCondition(f"starts_with takes a text, not a {type(prefix).__name__}")
        for special in ("\\", "%", "_"):
            prefix = prefix.replace(special, f"\\{special}")
        return self.like(f"{prefix}%")

    def like(self, pattern: str) -> Predicate:
        """Test whether a text has that pattern: `%` is any text, `_` any character, a backslash escapes them."""
        if not isinstance(pattern, str):
            raise InvalidCondition(f"like takes a text, not a {type(pattern).__name__}")
        check_literal(pattern)
        return Like(self._name, pattern)

    def __bool__(self) -> bool:
        raise InvalidCondition("a column is neither true nor false by itself: combine predicates with & | ~")

    def __repr__(self) -> str:
        return f"col({self._name!r})"

    def _relate(self, comparison: str, other: object) -> Predicate:
        right = Name(other._name) if isinstance(other, Column) else check_literal(other)
        return relate(Name(self._name), comparison, right)


Where: TypeAlias = Union[str, Predicate, "pl.Expr"]
"""The types of conditions of users."""


def col(name: str) -> Column:
    """Make a column for a predicate: `col("total") > 5`."""
    return Column(name)


def as_predicate(where: Where) -> Predicate:
    """Convert a condition of a user to a predicate; raise an InvalidCondition if it is none."""
    if isinstance(where, Predicate):
        return where
    if is_expression(where):
        return Native(where)
    if isinstance(where, str):
        return parse_predicate(where)
    raise InvalidCondition(
        f"a condition is a text, a predicate made with col(...), or a polars expression, not a {type(where).__name__}"
    )

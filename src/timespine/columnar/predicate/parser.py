"""Parse the text of predicates: a subset of the conditions of SQL after WHERE.

    any     = all { OR all }
    all     = not { AND not }
    not     = NOT not | "(" any ")" | TRUE | FALSE | test
    test    = side ( compare side
                   | [NOT] BETWEEN side AND side
                   | [NOT] IN "(" constant { "," constant } ")"
                   | [NOT] LIKE 'pattern'
                   | IS [NOT] NULL )
            | column                                     a column of truth values
    side    = column | constant
    compare = "=" | "==" | "!=" | "<>" | "<" | "<=" | ">" | ">="
    column  = part [ "." part ]                          of a merge: target.total, source.total
    part    = name | "name" | `name`
    constant = 12 | -1.5 | 1e3 | 'text' | TRUE | FALSE | X'00ff'
            | DATE '2020-01-31' | TIMESTAMP '2020-01-31 12:00:00' | DOUBLE 'NaN'

The text may come from strangers: its length, its depth and the number of its
comparisons are bounded, and an error says where it is, not what constants there are.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from timespine.columnar.predicate.comparisons import (
    MIRRORED,
    RESERVED,
    VALUES_MAX,
    Compare,
    CompareColumns,
    In,
    IsNull,
    Like,
)
from timespine.columnar.predicate.literal import TYPED_WORDS, LiteralValue, check_literal, parse_number, parse_typed
from timespine.columnar.predicate.predicate import DEPTH_MAX, TERMS_MAX, Constant, Predicate, all_of, any_of
from timespine.errors import InvalidCondition, UsageError, short_repr

TEXT_MAX = 1 << 20
"""The most characters of a predicate."""

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    | (?P<text>'(?:[^']|'')*')
    | (?P<quoted>"(?:[^"]|"")*"|`(?:[^`]|``)*`)
    | (?P<word>[^\W\d]\w*)
    | (?P<sign><=|>=|<>|!=|==|[=<>(),.+-])
    | (?P<end>\Z)
    )""",
    re.VERBOSE,
)
_COMPARE = {"=": "=", "==": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}


class Name(NamedTuple):
    """A column, as one side of a comparison."""

    name: str


class _Token(NamedTuple):
    kind: str
    text: str
    start: int

    @property
    def keyword(self) -> str:
        """Return the word of the language or the sign that this token is; other tokens equal none."""
        if self.kind == "word":
            return self.text.upper() if self.text.upper() in RESERVED else ""
        return self.text if self.kind == "sign" else ""


def parse_predicate(text: str) -> Predicate:
    """Parse a text as a predicate; raise an InvalidCondition with the position of a mistake."""
    if len(text) > TEXT_MAX:
        raise InvalidCondition(f"a predicate of {len(text)} characters is longer than {TEXT_MAX}")
    return _Parser(text).whole()


def relate(left: Name | LiteralValue, comparison: str, right: Name | LiteralValue) -> Predicate:
    """Make a comparison with the column on either side."""
    if isinstance(left, Name):
        if isinstance(right, Name):
            return CompareColumns(left.name, comparison, right.name)
        return Compare(left.name, comparison, check_literal(right))
    if isinstance(right, Name):
        return Compare(right.name, MIRRORED[comparison], check_literal(left))
    raise InvalidCondition("one side of a comparison must be a column")


class _Parser:
    """Recursive descent over the tokens of one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._end = 0
        self._token = self._next()
        self._depth = 0
        self._terms = 0

    def whole(self) -> Predicate:
        found = self._any()
        if self._token.kind != "end":
            self._fail("expected AND, OR or the end")
        return found

    def _any(self) -> Predicate:
        terms = [self._all()]
        while self._take("OR"):
            terms.append(self._all())
        return any_of(terms)

    def _all(self) -> Predicate:
        terms = [self._not()]
        while self._take("AND"):
            terms.append(self._not())
        return all_of(terms)

    def _not(self) -> Predicate:
        start = self._token
        self._depth += 1
        if self._depth > DEPTH_MAX:
            self._fail(f"more than {DEPTH_MAX} deep")
        if self._take("NOT"):
            found = ~self._not()
        elif self._take("("):
            found = self._any()
            self._expect(")")
        else:
            self._terms += 1
            if self._terms > TERMS_MAX:
                self._fail(f"more than {TERMS_MAX} comparisons; use a list of values, IN (...)")
            found = self._test(start)
        self._depth -= 1
        return found

    def _test(self, start: _Token) -> Predicate:
        left = self._side()
        comparison = _COMPARE.get(self._token.keyword)
        if comparison is not None:
            self._advance()
            return self._relate(start, left, comparison, self._side())
        if isinstance(left, bool):
            return Constant(left)
        negated = self._take("NOT")
        if self._take("BETWEEN"):
            low = self._side()
            self._expect("AND")
            found = self._relate(start, left, ">=", low) & self._relate(start, left, "<=", self._side())
            return ~found if negated else found
        if not isinstance(left, Name):
            self._fail("expected a comparison")
        if self._take("IN"):
            found = In(left.name, self._list())
        elif self._take("LIKE"):
            found = self._like(left.name)
        elif negated:
            self._fail("expected BETWEEN, IN or LIKE after NOT")
        elif self._take("IS"):
            negated = self._take("NOT")
            self._expect("NULL")
            found = IsNull(left.name)
        else:
            found = Compare(left.name, "=", True)
        return ~found if negated else found

    def _relate(
        self, start: _Token, left: Name | LiteralValue, comparison: str, right: Name | LiteralValue
    ) -> Predicate:
        try:
            return relate(left, comparison, right)
        except UsageError as error:
            self._fail(str(error), start)

    def _list(self) -> tuple[LiteralValue, ...]:
        self._expect("(")
        values = [self._constant()]
        while self._take(","):
            values.append(self._constant())
            if len(values) > VALUES_MAX:
                self._fail(f"a list of more than {VALUES_MAX} values")
        self._expect(")")
        return tuple(values)

    def _like(self, column: str) -> Predicate:
        start = self._token
        pattern = self._constant()
        if not isinstance(pattern, str):
            self._fail("expected a text after LIKE", start)
        try:
            return Like(column, pattern)
        except UsageError as error:
            self._fail(str(error), start)

    def _constant(self) -> LiteralValue:
        start = self._token
        value = self._side()
        if isinstance(value, Name):
            self._fail("expected a constant", start)
        return value

    def _side(self) -> Name | LiteralValue:
        """Parse a column or a constant."""
        token = self._token
        if token.keyword == "NULL":
            self._fail("a comparison with NULL is never true; write IS NULL")
        if token.keyword in ("TRUE", "FALSE"):
            self._advance()
            return token.keyword == "TRUE"
        if token.keyword in ("+", "-") or token.kind == "number":
            text = self._number(token)
            return self._read(token, lambda: parse_number(text))
        if token.kind == "text":
            self._advance()
            return self._read(token, lambda: check_literal(_unquote(token.text)))
        if token.kind == "quoted":
            self._advance()
            return self._column(_unquote(token.text))
        if token.kind == "word" and not token.keyword:
            self._advance()
            if self._token.kind == "text" and token.text.upper() in TYPED_WORDS:
                typed = _unquote(self._advance().text)
                return self._read(token, lambda: parse_typed(token.text.upper(), typed))
            return self._column(token.text)
        return self._fail("expected a column or a constant")

    def _column(self, first: str) -> Name:
        """Parse the rest of a column after its first part. `a.b` and "a.b" are the same column."""
        if not self._take("."):
            return Name(first)
        if self._token.kind not in ("word", "quoted"):
            self._fail("expected a column after the point")
        last = self._advance()
        return Name(f"{first}.{_unquote(last.text) if last.kind == 'quoted' else last.text}")

    def _number(self, start: _Token) -> str:
        sign = "-" if self._take("-") else ""
        if not sign:
            self._take("+")
        if self._token.kind != "number":
            self._fail("expected a number after its sign", start)
        return sign + self._advance().text

    def _read(self, start: _Token, read: Callable[[], LiteralValue]) -> LiteralValue:
        """Parse a constant; an error has the position of its first character."""
        try:
            return read()
        except UsageError as error:
            self._fail(str(error), start)

    def _take(self, keyword: str) -> bool:
        """Skip the next token if it is that word or sign; return whether it was."""
        if self._token.keyword != keyword:
            return False
        self._advance()
        return True

    def _expect(self, keyword: str) -> None:
        if not self._take(keyword):
            self._fail(f"expected {keyword}")

    def _advance(self) -> _Token:
        token, self._token = self._token, self._next()
        return token

    def _next(self) -> _Token:
        found = _TOKEN.match(self._text, self._end)
        if found is None or found.lastgroup is None:
            at = len(self._text) - len(self._text[self._end :].lstrip())
            raise InvalidCondition(
                f"predicate, position {at + 1}: {short_repr(self._text[at])} is no part of the language"
            )
        self._end = found.end()
        return _Token(found.lastgroup, found.group(found.lastgroup), found.start(found.lastgroup))

    def _fail(self, reason: str, token: _Token | None = None) -> NoReturn:
        at = token or self._token
        found = f", not {short_repr(at.text)}" if at.kind in ("word", "sign") and token is None else ""
        raise InvalidCondition(f"predicate, position {at.start + 1}: {reason}{found}") from None


def _unquote(text: str) -> str:
    quote = text[0]
    return text[1:-1].replace(quote * 2, quote)

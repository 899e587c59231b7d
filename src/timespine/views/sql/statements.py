"""Statements about materialized views, in the words of Databricks and of Spark.

    CREATE [OR REPLACE] MATERIALIZED VIEW [IF NOT EXISTS] name
        [PRIMARY KEY (column, ...)] [REFRESH POLICY AUTO | INCREMENTAL | INCREMENTAL STRICT | FULL]
        [TBLPROPERTIES ('times' = 'every', 'retain' = '30 days')]   in any order
        AS SELECT ...
    EXPLAIN CREATE MATERIALIZED VIEW ...
    EXPLAIN MATERIALIZED VIEW name
    REFRESH MATERIALIZED VIEW name, ... [FULL]
    DROP MATERIALIZED VIEW [IF EXISTS] name

What stands after AS is taken as it was written; `parse` and `from_sql` deal with it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from sqlglot import Dialect
from sqlglot.errors import TokenError
from sqlglot.tokens import TokenType  # type: ignore[attr-defined]

from timespine.errors import UnsupportedView, UsageError, short_repr
from timespine.views.sql.parse_errors import unclosed_reason
from timespine.views.sql.refusal_reasons import Reason

PROPERTIES = ("retain", "times")
"""The properties that TBLPROPERTIES may set."""

_EXPLAIN = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/)*(EXPLAIN)\b", re.IGNORECASE | re.DOTALL)
_POLICIES = {"AUTO": "auto", "INCREMENTAL": "incremental", "FULL": "full"}


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement about materialized views."""

    verb: str
    """create, explain, refresh or drop."""
    names: tuple[str, ...]
    """The views: one, or for refresh several."""
    select: str = ""
    """The text of the query, for create, and for explain of one."""
    place: tuple[int, int] = (0, 0)
    """The lines before the query, and the characters before it in its first line."""
    key: tuple[str, ...] = ()
    policy: str = "auto"
    properties: tuple[tuple[str, str], ...] = ()
    is_replacing: bool = False
    """Whether OR REPLACE was given."""
    if_missing: bool = False
    """Whether IF NOT EXISTS, or IF EXISTS, was given: a view that exists, or that does not, is no error."""
    is_full: bool = False
    """Whether a refresh computes everything again."""

    def shifted(self, error: UnsupportedView) -> UnsupportedView:
        """Return an error about the query with its places in the whole statement."""
        lines, columns = self.place
        moved = tuple(
            replace(each, line=each.line + lines, column=each.column + (columns if each.line == 1 else 0))
            if isinstance(each, Reason) and each.line
            else each
            for each in error.reasons
        )
        return UnsupportedView(error.message.splitlines()[0], moved, hint=error.hint)


def parse_statement(text: str) -> Statement:
    """Parse a statement; raise UnsupportedView, with the place, for anything else."""
    if not isinstance(text, str) or not text.strip():
        raise UsageError(f"sql is the text of a statement, not {short_repr(text)}")
    # sqlglot takes what follows EXPLAIN for one text: blanks in its place keep all places.
    explains = _EXPLAIN.match(text)
    if explains is not None:
        text = f"{text[: explains.start(1)]}{' ' * len('EXPLAIN')}{text[explains.end(1) :]}"
    try:
        tokens = Dialect.get_or_raise("spark").tokenize(text)
    except TokenError:
        raise UnsupportedView("the statement does not parse", (unclosed_reason(text),)) from None
    words = _Words(text, tokens)
    return words.explained() if explains is not None else words.statement()


class _Words:
    """The tokens of a statement, read from left to right."""

    def __init__(self, text: str, tokens: list[Any]) -> None:
        self._text = text
        self._tokens = tokens
        self._at = 0

    # Statements.

    def statement(self) -> Statement:
        """Read a statement."""
        if self._take("CREATE"):
            return self._create("create")
        if self._take("REFRESH"):
            self._need("MATERIALIZED")
            self._need("VIEW")
            names = [self._name()]
            while self._take(","):
                names.append(self._name())
            return self._end(Statement("refresh", tuple(names), is_full=self._take("FULL")))
        if self._take("DROP"):
            self._need("MATERIALIZED")
            self._need("VIEW")
            is_optional = self._take("IF")
            if is_optional:
                self._need("EXISTS")
            return self._end(Statement("drop", (self._name(),), if_missing=is_optional))
        raise self._refuse(
            f"{self._word() or 'nothing'} begins no statement about materialized views",
            "write CREATE, EXPLAIN, REFRESH or DROP MATERIALIZED VIEW; read rows with store[name].snapshot()",
        )

    def explained(self) -> Statement:
        """Read what follows EXPLAIN."""
        if self._take("CREATE"):
            return self._create("explain")
        self._need("MATERIALIZED")
        self._need("VIEW")
        return self._end(Statement("explain", (self._name(),)))

    def _create(self, verb: str) -> Statement:
        is_replacing = self._take("OR")
        if is_replacing:
            self._need("REPLACE")
        self._need("MATERIALIZED")
        self._need("VIEW")
        if_missing = self._take("IF")
        if if_missing:
            self._need("NOT")
            self._need("EXISTS")
            if is_replacing:
                raise self._refuse("OR REPLACE and IF NOT EXISTS contradict each other", "write one of them")
        made = Statement(verb, (self._name(),), is_replacing=is_replacing, if_missing=if_missing)
        while not self._take("AS"):
            made = self._clause(made)
        if self._at >= len(self._tokens):
            raise self._refuse("the query is missing", "write a SELECT after AS")
        begin = self._tokens[self._at].start
        # A comment before the query belongs to it, and so does a hint; a semicolon after it does not.
        select = self._text[begin:].rstrip().removesuffix(";")
        return replace(
            made, select=select, place=(self._text.count("\n", 0, begin), begin - self._text.rfind("\n", 0, begin) - 1)
        )

    def _clause(self, made: Statement) -> Statement:
        """Read one clause between the name and AS."""
        if self._take("PRIMARY KEY"):  # one token
            return replace(made, key=tuple(self._listed()))
        if self._take("REFRESH"):
            self._need("POLICY")
            word = self._word().upper()
            if word not in _POLICIES:
                raise self._refuse(
                    f"{self._word() or 'nothing'} is no policy", "write AUTO, INCREMENTAL [STRICT] or FULL"
                )
            self._at += 1
            is_strict = word == "INCREMENTAL" and self._take("STRICT")
            return replace(made, policy="incremental_strict" if is_strict else _POLICIES[word])
        if self._take("TBLPROPERTIES"):
            return replace(made, properties=(*made.properties, *self._properties()))
        raise self._refuse(
            f"{self._word() or 'the end'} is not expected here",
            "write PRIMARY KEY (...), REFRESH POLICY ..., TBLPROPERTIES (...), or AS and the query",
        )

    def _properties(self) -> list[tuple[str, str]]:
        found = []
        self._need("(")
        while True:
            name = self._string()
            if name not in PROPERTIES:
                raise self._refuse(f"there is no property {name}", f"there are: {', '.join(PROPERTIES)}", back=1)
            self._need("=")
            found.append((name, self._string()))
            if not self._take(","):
                break
        self._need(")")
        return found

    def _listed(self) -> list[str]:
        self._need("(")
        names = [self._name()]
        while self._take(","):
            names.append(self._name())
        self._need(")")
        return names

    # Words.

    def _word(self) -> str:
        return self._tokens[self._at].text if self._at < len(self._tokens) else ""

    def _take(self, word: str) -> bool:
        """Pass a word if it is the next one."""
        is_there = " ".join(self._word().upper().split()) == word and not self._is_quoted()
        self._at += is_there
        return is_there

    def _need(self, word: str) -> None:
        if not self._take(word):
            raise self._refuse(f"{word} is expected, not {self._word() or 'the end of the text'}", "see store.sql")

    def _is_quoted(self) -> bool:
        return self._tokens[self._at].token_type in (TokenType.STRING, TokenType.IDENTIFIER)

    def _name(self) -> str:
        """Read a name, perhaps with dots."""
        parts = []
        while True:
            token = self._tokens[self._at] if self._at < len(self._tokens) else None
            is_name = token is not None and (
                token.token_type is TokenType.IDENTIFIER
                or (token.token_type is not TokenType.STRING and token.text.replace("_", "a").isalnum())
            )
            if token is None or not is_name:
                raise self._refuse(f"a name is expected, not {self._word() or 'the end of the text'}", "write one")
            parts.append(token.text)
            self._at += 1
            if not self._take("."):
                return ".".join(parts)

    def _string(self) -> str:
        token = self._tokens[self._at] if self._at < len(self._tokens) else None
        if token is None or token.token_type is not TokenType.STRING:
            raise self._refuse(
                f"a text in quotes is expected, not {self._word() or 'the end of the text'}", "write one"
            )
        self._at += 1
        return str(token.text)

    def _end(self, made: Statement) -> Statement:
        self._take(";")
        if self._at < len(self._tokens):
            raise self._refuse(f"{self._word()} is not expected here", "write one statement")
        return made

    def _refuse(self, what: str, instead: str, back: int = 0) -> UnsupportedView:
        at = self._at - back
        begin = self._tokens[at].start if at < len(self._tokens) else len(self._text)
        line, column = self._text.count("\n", 0, begin) + 1, begin - self._text.rfind("\n", 0, begin)
        return UnsupportedView("the statement does not parse", (Reason(line, column, what, instead),))

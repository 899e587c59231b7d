"""Errors of sqlglot in the words of this library: the place, what is the matter, and what is there instead."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from sqlglot import exp
from sqlglot.errors import ParseError

from timespine.views.sql.refusal_reasons import Reason, reason_at

COLUMNS_MAX = 30
"""Most columns of a collection that a message lists."""

_TOKEN = re.compile(r"<Token token_type: TokenType\.(\w+), text: (.*?), line: .*?>")
_CLASS = re.compile(r"<class '[\w.]*?(\w+)'>")
_EXPECTED = re.compile(r"Expected (.+?) but got (.*)", re.DOTALL)
_UNRESOLVED = re.compile(
    r"Column '(?P<column>.+?)' could not be resolved(?: for table: '(?P<table>.+?)')?\. "
    r"Line: (?P<line>\d+), Col: (?P<col>\d+)"
)
_END = "the end of the text"


def parse_reason(error: ParseError) -> Reason:
    """Return where a text stops to be a query, and why."""
    found: Mapping[str, Any] = error.errors[0] if error.errors else {}
    highlight = str(found.get("highlight") or "")
    line, end = int(found.get("line") or 0), int(found.get("col") or 0)
    column = max(end - len(highlight) + 1, 1) if line else 0
    what = _words(str(found.get("description") or error).splitlines()[0].rstrip("."), highlight)
    return Reason(line, column, what, "write one SELECT of Spark SQL")


def _words(description: str, highlight: str) -> str:
    expected = _EXPECTED.fullmatch(description)
    if expected is not None:
        token = _TOKEN.search(expected[2])
        is_over = token is None or token[1] == "SENTINEL"
        return f"{expected[1]} is expected after {highlight}, not {_END if is_over or token is None else token[2]}"
    if description.startswith("Expecting "):
        return f"{description.removeprefix('Expecting ')} is missing before {highlight or _END}"
    if description.startswith("Required keyword"):
        part = _CLASS.search(description)
        return f"{part[1].upper() if part else 'a part'} is not complete, at {highlight or _END}"
    if "Unexpected token" in description:
        return f"{highlight or _END} is not expected here"
    return _CLASS.sub(lambda each: each[1], _TOKEN.sub(lambda each: each[2], description))


def unclosed_reason(text: str) -> Reason:
    """Return where a quote, or a comment, begins that is not closed."""
    quoted = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"|`(?:[^`]|``)*`|--[^\n]*|/\*.*?\*/", re.DOTALL)
    rest = quoted.sub(lambda each: re.sub(r"[^\n]", " ", each[0]), text)
    place = next((at for at, each in enumerate(rest) if each in "'\"`" or rest.startswith("/*", at)), None)
    if place is None:
        return Reason(0, 0, "a character is not part of SQL", "look at the quotes, and at special characters")
    line, column = text.count("\n", 0, place) + 1, place - (text.rfind("\n", 0, place) + 1) + 1
    return Reason(line, column, f"{'a comment' if rest[place] == '/' else rest[place]} is not closed", "close it")


def name_reason(error: Exception, tree: Any, inputs: Mapping[str, pa.Schema]) -> Reason:
    """Return which name of a query is unknown or ambiguous, and which names there are."""
    text = str(error).splitlines()[0].rstrip(".")
    found = _UNRESOLVED.match(text)
    if found is not None:
        column, table = found["column"], found["table"]
        node = _column_node(tree, column, table)
        reason = _column_reason(node, column, table, tree, inputs)
        # sqlglot knows the place of the end of the name.
        line, place = int(found["line"]), max(int(found["col"]) - len(column) + 1, 1)
        return reason if reason.line else Reason(line, place, reason.what, reason.instead)
    if text.startswith("Unknown column: "):
        column = text.removeprefix("Unknown column: ")
        node = _column_node(tree, column, None)
        return _column_reason(node, column, node.table if node is not None else None, tree, inputs)
    if text.startswith("Unknown table: "):
        table = text.removeprefix("Unknown table: ")
        node = next((each for each in tree.find_all(exp.Column) if each.table.lower() == table.lower()), tree)
        return reason_at(node, f"there is no table or alias {table}", f"there are: {', '.join(_aliases(tree))}")
    if text.startswith("Cannot automatically join: "):
        column = text.removeprefix("Cannot automatically join: ")
        return reason_at(None, f"USING ({column}) needs the column on both sides", _there(tree, inputs, None))
    if text.startswith("Unknown output column: "):
        select = tree.find(exp.Select)
        number = len(select.expressions) if select is not None else 0
        what = f"there is no column {text.removeprefix('Unknown output column: ')} of SELECT"
        return reason_at(tree.find(exp.Group, exp.Order), what, f"it has {number}: write their names")
    return Reason(0, 0, text, "look at the names")


def _column_node(tree: Any, column: str, table: str | None) -> Any:
    """Return the node of a column in the text; None if it is not found."""
    for each in tree.find_all(exp.Column):
        if each.name.lower() == column.lower() and (table is None or each.table.lower() == table.lower()):
            return each
    return None


def _column_reason(node: Any, column: str, table: str | None, tree: Any, inputs: Mapping[str, pa.Schema]) -> Reason:
    aliases = _aliases(tree)
    tree = node if node is not None else tree
    if table and table.lower() not in {each.lower() for each in aliases}:
        return reason_at(node, f"there is no table or alias {table}", f"there are: {', '.join(aliases)}")
    owners = [alias for alias, columns in _tables(tree, inputs) if column.lower() in map(str.lower, columns)]
    if not table and len(owners) > 1:
        either = " or ".join(f"{alias}.{column}" for alias in owners)
        return reason_at(node, f"{column} is a column of {' and of '.join(owners)}", f"write {either}")
    known = [
        name
        for alias, columns in _tables(tree, inputs)
        if not table or alias.lower() == table.lower()
        for name in columns
    ]
    close = difflib.get_close_matches(column.lower(), [name.lower() for name in known], n=1)
    hint = f"do you mean {close[0]}? " if close else ""
    return reason_at(node, f"there is no column {column}", f"{hint}{_there(tree, inputs, table)}")


def _there(tree: Any, inputs: Mapping[str, pa.Schema], table: str | None) -> str:
    """List the columns of the tables of a query."""
    listed = []
    for alias, columns in _tables(tree, inputs):
        if not table or alias.lower() == table.lower():
            more = f" and {len(columns) - COLUMNS_MAX} more" if len(columns) > COLUMNS_MAX else ""
            listed.append(f"{alias} has {', '.join(columns[:COLUMNS_MAX])}{more}")
    return "; ".join(dict.fromkeys(listed)) or "look at what the SELECT in FROM gives"


def _tables(at: Any, inputs: Mapping[str, pa.Schema]) -> list[tuple[str, list[str]]]:
    """List what the SELECT around a node, and those around it, read: under aliases, each with its columns."""
    known = {name.lower(): list(schema.names) for name, schema in inputs.items()}
    for cte in at.root().find_all(exp.CTE):
        known[cte.alias.lower()] = list(cte.this.named_selects)
    found = []
    select = at if isinstance(at, exp.Select) else at.find_ancestor(exp.Select) or at.root().find(exp.Select)
    while select is not None:
        first = [select.args["from_"].this] if select.args.get("from_") else []
        for each in [*first, *(join.this for join in select.args.get("joins") or ())]:
            name = ".".join(part.name for part in each.parts) if isinstance(each, exp.Table) else ""
            columns = known.get(name.lower()) if name else list(getattr(each.this, "named_selects", ()))
            if columns and "*" not in columns:
                found.append((each.alias or name, columns))
        select = select.find_ancestor(exp.Select)
    return found


def _aliases(tree: Any) -> list[str]:
    """List the names by which a query may speak of tables."""
    found = [each.alias or ".".join(part.name for part in each.parts) for each in tree.find_all(exp.Table)]
    found += [each.alias for each in tree.find_all(exp.Subquery) if each.alias]
    return list(dict.fromkeys(found))

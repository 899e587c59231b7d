"""SQL text to one qualified query: parsed by sqlglot in Spark's dialect, with the names as they were written.

Of sqlglot only `parse_one` and `qualify` are used: its types and its rewriting of subqueries are not Spark's.
"""

from __future__ import annotations

import _thread
import contextvars
import functools
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.errors import OptimizeError, ParseError, SqlglotError, TokenError
from sqlglot.optimizer.qualify import qualify
from sqlglot.tokenizer_core import TokenType

from timespine.columnar.schema.schema import is_reserved
from timespine.errors import UnsupportedView, UsageError, short_repr
from timespine.views.plan.algebra import PlanNode, levels_of
from timespine.views.sql.laterals import with_laterals
from timespine.views.sql.parse_errors import name_reason, parse_reason, unclosed_reason
from timespine.views.sql.refusal_reasons import WITHOUT_TABLE, WRITTEN, Reason, place_in_text, reason_at, sorted_reasons

T = TypeVar("T")

NOT_DETERMINISTIC = {
    *("rand", "random", "randn", "uuid", "shuffle", "monotonically_increasing_id", "spark_partition_id"),
    *("input_file_name", "current_user", "first", "first_value", "last", "last_value", "any_value", "collect_list"),
    *("approx_percentile", "percentile_approx", "current_timestamp", "now", "current_date", "current_time"),
    *("array_agg", "approx_quantile", "approx_distinct", "array_unique_agg", "collect_set", "group_concat", "mode"),
    *("listagg", "string_agg", "randstr", "uniform", "current_catalog", "current_database", "current_schema"),
    *("current_timezone", "session_user", "user", "version", "localtimestamp", "curdate", "java_method", "reflect"),
    *("input_file_block_start", "input_file_block_length", "approx_count_distinct", "approx_top_k", "count_min_sketch"),
}
"""Functions whose answer does not follow from the rows of the inputs alone."""


PARSED_MAX = 256
"""Texts whose trees a process remembers."""

_FIRST_WORD = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/|\()*(\w+)", re.DOTALL)
_QUERIES = {"SELECT", "WITH", "FROM", "VALUES", "TABLE"}


@dataclass(frozen=True, slots=True)
class Query:
    """A query that was parsed."""

    text: str
    """The text as it was written."""
    tree: Any
    """The syntax tree, before names are resolved."""
    tables: tuple[str, ...]
    """The names of the collections that it reads, as they were written."""
    forbidden: tuple[Reason, ...] = ()
    """What leaves its answer open, so that no policy allows it: `plan_of` raises it with all other reasons."""


def parse_query(text: str) -> Query:
    """Parse one SELECT; raise UnsupportedView for anything else."""
    if not isinstance(text, str) or not text.strip():
        raise UsageError(f"sql is the text of a SELECT, not {short_repr(text)}")
    return _parsed(text)


def on_own_stack(work: Callable[[], T], *, stays: bool = False) -> T:
    """Do work in a thread of its own, and wait for it; raise UnsupportedView if it nests deeper than a stack can be.

    With `stays` it is done here: sessions of Spark belong to threads.

    SUBTLE: sqlglot takes about twenty frames for each parenthesis. So whether a text that was parsed once parses again
    must not depend on how deep the stack of the caller is (test_deep_queries.py).
    """
    try:
        return work() if stays or getattr(_own, "has_stack", False) else _in_thread(work)
    except RecursionError:
        reason = Reason(0, 0, "there are too many levels", TOO_DEEP)
        raise UnsupportedView("the query is nested too deeply", (reason,)) from None


def _in_thread(work: Callable[[], T]) -> T:
    """Do work in a new thread. It is no step of a simulation, which would count it: it waits for nothing."""
    found: list[T] = []
    failed: list[BaseException] = []
    context = contextvars.copy_context()
    is_running = _thread.allocate_lock()

    def run() -> None:
        _own.has_stack = True
        try:
            found.append(context.run(work))
        except BaseException as error:
            failed.append(error)
        finally:
            is_running.release()

    is_running.acquire()
    _thread.start_new_thread(run, ())
    is_running.acquire()
    if failed:
        raise failed[0]
    return found[0]


_own = threading.local()
"""Whether this thread was started for such work."""

TOO_DEEP = "store a part of it as a view, and read that view"

LEVELS_MAX = 128
"""Most levels of a query: nodes of its syntax tree above each other. A chain of AND, OR, `||` or UNION counts as one.

A RecursionError comes at about three times as many, on a stack that has nothing else on it."""


def check_levels(query: Query) -> None:
    """Refuse a query that is nested too deeply; raise UnsupportedView with the place."""
    waiting = [(query.tree, 1)]
    while waiting:
        node, level = waiting.pop()
        if level > LEVELS_MAX:
            what = f"this is nested more than {LEVELS_MAX} levels deep"
            raise UnsupportedView("the query is nested too deeply", (reason_at(node, what, TOO_DEEP),))
        for each in node.iter_expressions():
            is_chained = isinstance(node, _CHAINED) and type(each) is type(node) and each.arg_key == "this"
            waiting.append((each, level if is_chained else level + 1))


_CHAINED = (exp.And, exp.Or, exp.DPipe, exp.Union)


PLAN_LEVELS_MAX = 64
"""Most nodes of a plan above each other. A refresh has about five frames for each, of the thousand of a stack."""


def check_plan_levels(plan: PlanNode) -> None:
    """Refuse a plan that is nested too deeply for a refresh from a deep stack; raise UnsupportedView."""
    levels = levels_of(plan)
    if levels > PLAN_LEVELS_MAX:
        what = f"its subqueries, joins and set operations make {levels} steps, and {PLAN_LEVELS_MAX} are the most"
        raise UnsupportedView("the query is nested too deeply", (Reason(0, 0, what, TOO_DEEP),))


@functools.lru_cache(PARSED_MAX)
def _parsed(text: str) -> Query:
    """Parse a text once: it is defined, compiled and checked from the same tree, which no one changes."""
    return on_own_stack(lambda: _parse(text))


def _parse(text: str) -> Query:
    _check_first_word(text)
    try:
        trees = sqlglot.parse(text, read="spark")
    except ParseError as error:
        raise UnsupportedView("the query does not parse", (parse_reason(error),)) from None
    except TokenError:
        raise UnsupportedView("the query does not parse", (unclosed_reason(text),)) from None
    except RecursionError:
        raise UnsupportedView("the query is nested too deeply", (_deepest_parenthesis(text),)) from None
    except SqlglotError as error:
        raise UnsupportedView(f"the query does not parse: {str(error).splitlines()[0]}") from None
    if len(trees) != 1 or not isinstance(trees[0], exp.Query):
        what = f"these are {len(trees)} statements" if len(trees) > 1 else "this is none"
        raise UnsupportedView("a view is one SELECT", (reason_at(trees[0], what, "write a SELECT, or WITH"),))
    tree = trees[0]
    empty = [each for each in tree.find_all(exp.Select) if not each.expressions]
    if empty:
        raise UnsupportedView("the query does not parse", (reason_at(empty[0], "SELECT without columns", "name some"),))
    keyless = [each for each in tree.find_all(exp.Group) if not any(each.args.values())]
    if keyless:
        place = reason_at(keyless[0].parent, "GROUP BY without columns", "name some")
        raise UnsupportedView("the query does not parse", (place,))
    if tree.find(exp.Placeholder, exp.Parameter) is not None:
        raise UnsupportedView("a view has no parameters", _parameters(text))
    for node in tree.find_all(exp.Func):
        if "start" in node.meta:
            node.meta[WRITTEN] = text[node.meta["start"] : node.meta["end"] + 1]
    _name_truths(tree)
    return Query(text, tree, _tables(tree), tuple(_without_answer(tree, text)))


def _parameters(text: str) -> tuple[Reason, ...]:
    """Return the places of parameters."""
    tokens = sqlglot.tokenize(text, read="spark")
    begins = (TokenType.PLACEHOLDER, TokenType.PARAMETER, TokenType.COLON)
    found = [each for each in tokens if each.token_type in begins]
    said = "parameters are not supported"
    return tuple(Reason(each.line, each.col, said, "write the value") for each in found)


def _deepest_parenthesis(text: str) -> Reason:
    """Return the place of the parenthesis that has the most others around it."""
    level, deepest, place = 0, 0, 0
    for at, letter in enumerate(text):
        level += (letter == "(") - (letter == ")")
        if level > deepest:
            deepest, place = level, at
    line, column = text.count("\n", 0, place) + 1, place - text.rfind("\n", 0, place)
    return Reason(line, column, f"this is nested {deepest} parentheses deep, or in as many CASE or NOT", TOO_DEEP)


def _name_truths(tree: Any) -> None:
    """Give every(x), some(x) and any(x) the names that sqlglot knows: bool_and and bool_or."""
    for node in list(tree.find_all(exp.Anonymous, exp.Any)):
        name, args = str(node.this).lower(), node.expressions
        if isinstance(node, exp.Any):  # as a right operand it belongs to the comparison
            name, args = "any" if node.arg_key != "expression" else "", [node.this.unnest()]
        if name in ("every", "some", "any") and len(args) == 1 and not isinstance(args[0], exp.Query):
            made = (exp.LogicalAnd if name == "every" else exp.LogicalOr)(this=args[0])
            made.meta.update({**node.meta, WRITTEN: name})
            node.replace(made)


def _check_first_word(text: str) -> None:
    """Refuse other statements before they are parsed: sqlglot warns of those that it does not know."""
    found = _FIRST_WORD.match(text)
    if found is not None and found[1].upper() not in _QUERIES:
        line = text.count("\n", 0, found.start(1)) + 1
        column = found.start(1) - text.rfind("\n", 0, found.start(1))
        where = Reason(
            line, column, f"{found[1]} begins no query", "write a SELECT, or WITH; store.sql takes statements"
        )
        raise UnsupportedView("a view is one SELECT", (where,))


_WRITTEN = {"array_agg": "collect_list", "array_unique_agg": "collect_set"}
_OF_TIME = {"current_timestamp", "now", "current_date", "curdate", "current_time", "localtimestamp"}
_OF_ANY_ROW = {"first", "first_value", "last", "last_value", "any_value", "mode"}
_OF_ANY_ORDER = {"collect_list", "collect_set", "array_agg", "group_concat", "listagg", "string_agg"}


def _written_name(node: Any) -> str:
    """Return the name of a function as users know it; no text for other nodes."""
    if isinstance(node, exp.Anonymous):
        return str(node.this).lower()
    name = str(node.sql_name()).lower() if isinstance(node, exp.Func) else ""
    return _WRITTEN.get(name, name)


_OTHER_NAMES = {"group_concat": ("string_agg", "listagg"), "approx_distinct": ("approx_count_distinct",)}


def _name_in_text(node: Any, name: str, text: str) -> str:
    """Return the name of a function as the text has it: the parser may have another one for it."""
    word = node.meta.get(WRITTEN)
    if word is not None:
        return str(word).lower()
    words = (name, *_OTHER_NAMES.get(name, ()))
    return next((each for each in words if re.search(rf"\b{each}\b", text, re.IGNORECASE)), name)


def _why_not(name: str) -> tuple[str, str]:
    """Say why a function has no definite answer, and what to write instead."""
    if name in _OF_TIME:
        return "follows the clock, and not the rows of the inputs", (
            "keep the time in a collection and join it, or filter by the time when you read the view"
        )
    if name in _OF_ANY_ROW:
        return "takes any row of a group", "write min_by or max_by, or put it OVER an ORDER BY"
    if name in _OF_ANY_ORDER:
        return "gives values in any order", "sort them: sort_array(collect_list(...)), on Spark"
    return "gives another answer each time", "leave it out, or store its value in a collection"


def _placed(reason: Reason, name: str, text: str) -> Reason:
    """Find the place of a name that the parser does not know."""
    found = re.search(rf"\b{name}\b", text, re.IGNORECASE)
    if reason.line or found is None:
        return reason
    line = text.count("\n", 0, found.start()) + 1
    return replace(reason, line=line, column=found.start() - text.rfind("\n", 0, found.start()))


def _placed_above(reason: Reason, node: Any) -> Reason:
    """Give a function that no one wrote, as in `unix_timestamp()`, the place of the call that means it."""
    above = node.parent
    while above is not None and "line" not in above.meta:
        above = above.parent
    place = reason_at(above, "", "")
    return replace(reason, line=place.line, column=place.column)


def _without_answer(tree: Any, text: str) -> list[Reason]:
    """List what makes the answer depend on more than the rows of the inputs."""
    found = []
    for node in tree.walk():
        if has_no_answer(node):
            name = _written_name(node)
            what, instead = _why_not(name)
            written = _name_in_text(node, name, text)
            line, column = place_in_text(node) if "line" in node.meta else (0, 0)
            reason = _placed(Reason(line, column, f"{written}() {what}", instead, forbidden=True), written, text)
            found.append(reason if reason.line else _placed_above(reason, node))
        elif isinstance(node, exp.TableSample):
            found.append(reason_at(node, "a sample is another one each time", "leave it out", forbidden=True))
        elif isinstance(node, exp.Version):
            found.append(reason_at(node, "a view follows its inputs", "leave out AS OF", forbidden=True))
        elif isinstance(node, exp.Query) and _keeps_any_rows(node):
            limit = node.args.get("limit") or node.args["offset"]
            found.append(any_rows(limit))
    return found


def any_rows(limit: Any) -> Reason:
    """Make the reason against a LIMIT, or OFFSET, without an order."""
    what = "OFFSET" if isinstance(limit, exp.Offset) else "LIMIT"
    return reason_at(limit, f"{what} without ORDER BY keeps any rows", "add ORDER BY", forbidden=True)


def _keeps_any_rows(query: Any) -> bool:
    """Return whether a query keeps some rows and has no order. EXISTS asks only whether there are rows."""
    limit = query.args.get("limit")
    if isinstance(limit, exp.Limit) and isinstance(limit.expression, exp.Var):
        limit = None  # LIMIT ALL
    if (limit is None and query.args.get("offset") is None) or query.args.get("order") is not None:
        return False
    return query.args.get("offset") is not None or not isinstance(query.parent, exp.Exists)


def has_no_answer(node: Any) -> bool:
    """Return whether a node is a function without a definite answer, which `Query.forbidden` has."""
    return _written_name(node) in NOT_DETERMINISTIC and not _is_ordered(node)


def _is_ordered(node: Any) -> bool:
    """Return whether an order around a function makes its answer definite."""
    above = node.parent
    if isinstance(node, exp.ArrayAgg | exp.ArrayUniqueAgg):
        return isinstance(above, exp.ArraySort)
    while isinstance(above, exp.IgnoreNulls | exp.RespectNulls):
        above = above.parent
    is_place = isinstance(node, exp.FirstValue | exp.LastValue | exp.First | exp.Last)
    return is_place and isinstance(above, exp.Window) and above.args.get("order") is not None


def _tables(tree: Any) -> tuple[str, ...]:
    """Return the names of the tables of a query that are no CTE of it."""
    ctes = {each.alias.lower() for each in tree.find_all(exp.CTE)}
    found: dict[str, None] = {}
    for table in tree.find_all(exp.Table):
        name = ".".join(part.name for part in table.parts)
        if name.lower() not in ctes:
            found[name] = None
        elif not _reads_cte(table):
            what = f"{name} is read here, where the CTE {name} is not known"
            where = reason_at(table, what, "if you mean the collection, give the CTE another name", forbidden=True)
            raise UnsupportedView("a CTE has the name of what the query reads", (where,))
    if not found:
        raise UnsupportedView("a view reads at least one collection", (reason_at(tree, "this reads none", "add FROM"),))
    return tuple(found)


def _reads_cte(table: Any) -> bool:
    """Return whether a table is a CTE: one of those before its own, or of a WITH of the queries around it."""
    inside, above = table, table.parent
    while above is not None:
        known = above.expressions if isinstance(above, exp.With) else []
        if isinstance(above, exp.With):
            known = known if above.args.get("recursive") else known[: known.index(inside)]
        elif isinstance(above, exp.Query) and above.args.get("with_") not in (None, inside):
            known = above.args["with_"].expressions
        if any(each.alias.lower() == table.name.lower() for each in known):
            return True
        inside, above = above, above.parent
    return False


def ignored_orders(query: Query) -> tuple[Reason, ...]:
    """List the orders that mean nothing, as no LIMIT follows them: a collection has no order."""
    found = []
    for each in query.tree.find_all(exp.Query):
        if each.args.get("order") is not None and not any(each.args.get(name) for name in ("limit", "offset")):
            found.append(reason_at(each.args["order"], "ORDER BY without LIMIT is ignored", "sort what you read"))
    return sorted_reasons((), found)


def qualified(query: Query, inputs: Mapping[str, pa.Schema]) -> Any:
    """Resolve all names of a query; raise UnsupportedView, with the place, for unknown and ambiguous ones."""
    schema: dict[str, object] = {
        name.lower(): {each.name.lower(): "INT" for each in columns} for name, columns in inputs.items()
    }
    tree = query.tree.copy()
    _check_aliases(query)
    _expand_windows(tree)
    with_laterals(tree)
    for order in tree.find_all(exp.Order):
        for inner in (each for aggregate in order.find_all(exp.AggFunc) for each in aggregate.find_all(exp.Column)):
            inner.meta[WITHOUT_TABLE] = not inner.table
    for table in tree.find_all(exp.Table):
        if len(table.parts) > 1:  # a collection whose name has a dot
            name = ".".join(part.name for part in table.parts)
            alias = exp.TableAlias(this=exp.to_identifier(table.alias or table.name, quoted=True))
            table.replace(exp.Table(this=exp.to_identifier(name, quoted=True), alias=alias))
    try:
        return qualify(tree, schema=schema, dialect="spark", expand_alias_refs=True)
    except (OptimizeError, SqlglotError) as error:
        reason = name_reason(error, query.tree, inputs)
        # Spark knows names inside of nested columns, and those that other generators make; sqlglot may not.
        is_nested = any(pa.types.is_nested(each.type) for columns in inputs.values() for each in columns)
        is_certain = not is_nested and query.tree.find(exp.Lateral, exp.Pivot, exp.Unnest) is None
        found = (*query.forbidden, replace(reason, forbidden=is_certain))
        raise UnsupportedView("the names of the query do not resolve", found) from None


def _expand_windows(tree: Any) -> None:
    """Put the definitions of WINDOW in the places of their names; what builds on another window stays as it is."""
    for select in [each for each in tree.find_all(exp.Select) if each.args.get("windows")]:
        known = {each.name.lower(): each for each in select.args["windows"]}
        used = [each for each in select.find_all(exp.Window) if each.alias and each.find_ancestor(exp.Select) is select]
        parts = ("partition_by", "order", "spec")
        if any(each.alias.lower() not in known or any(each.args.get(part) for part in parts) for each in used):
            continue
        if any(each.alias for each in known.values()) or len(known) < len(select.args["windows"]):
            continue
        for each in used:
            meant = known[each.alias.lower()].copy()
            each.set("alias", None)
            for part in parts:
                each.set(part, meant.args.get(part))
        select.set("windows", None)


def _check_aliases(query: Query) -> None:
    """Refuse two tables of one FROM that share a name: sqlglot renames one of them, so that a column would be found."""
    found = []
    for select in query.tree.find_all(exp.Select):
        first = [select.args["from_"].this] if select.args.get("from_") else []
        seen: set[str] = set()
        for each in [*first, *(join.this for join in select.args.get("joins") or ())]:
            name = each.alias_or_name.lower()
            if name and name in seen:
                what = f"references to {name} are ambiguous, as two tables of this FROM are called so"
                instead = f"name one of them differently: {name} AS other"
                found.append(reason_at(each, what, instead, forbidden=_means_either(select, name)))
            seen.add(name)
    if found:
        raise UnsupportedView("the names of the query do not resolve", (*query.forbidden, *found))


def _means_either(select: Any, name: str) -> bool:
    """Return whether a column names one of two tables with one name. After a semi join there is only one."""
    kinds = {str(each.args.get("kind") or "").upper() for each in select.args.get("joins") or ()}
    is_named = any(each.table.lower() == name for each in select.find_all(exp.Column))
    return is_named and not kinds & {"SEMI", "ANTI"}


def output_names(query: Query, inputs: Mapping[str, pa.Schema], names: list[str]) -> list[str]:
    """Return the names of the result as they were written; raise UnsupportedView if one was not named."""
    first = query.tree
    while not isinstance(first, exp.Select):
        first = first.this
    written: dict[str, str] = {}
    for columns in inputs.values():
        written.update({each.name.lower(): each.name for each in columns})
    unnamed = []
    for each in first.expressions:
        if isinstance(each, exp.Aliases):
            written.update({name.name.lower(): name.name for name in each.args["expressions"]})
        elif isinstance(each, exp.Alias | exp.Column):
            if not isinstance(each, exp.Column) or not each.is_star:
                written[each.alias_or_name.lower()] = each.alias_or_name
        elif not each.is_star:
            unnamed.append(reason_at(each, f"{each.sql('spark')} has no name", "name it: ... AS name", forbidden=True))
    if unnamed:
        raise UnsupportedView("every column of a view needs a name", tuple(unnamed))
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        what = f"two columns are called {twice[0]}"
        place = reason_at(first, what, "name one of them differently with AS", forbidden=True)
        raise UnsupportedView("the columns of a view need different names", (place,))
    reserved = [name for name in names if is_reserved(name)]
    if reserved:
        what = f"the name {reserved[0]} is that of a column of updates or change feeds"
        raise UnsupportedView(
            "the columns of a view need names of their own",
            (reason_at(first, what, "use another name with AS", forbidden=True),),
        )
    return [written.get(name, name) for name in names]

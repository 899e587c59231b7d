"""Run statements about materialized views: sugar over `store.view`, `store.refresh` and `store.drop`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from timespine.client.api_for_engines import Store
from timespine.client.arguments.argument_types import ViewPolicy, ViewTimes
from timespine.errors import UnsupportedView
from timespine.views.refresh.refresh_views import Refreshed
from timespine.views.sql.statements import Statement, parse_statement
from timespine.views.view import View, explain_query, open_view


@dataclass(frozen=True, slots=True)
class StatementResult:
    """What a statement did."""

    verb: str
    """create, explain, refresh or drop."""
    view: View | None = None
    """The view that was created, or that exists."""
    refreshed: dict[str, Refreshed] | None = None
    """What a refresh did, by name."""
    text: str = ""
    """The explanation."""
    is_done: bool = True
    """Whether anything was done: IF [NOT] EXISTS may leave nothing to do."""

    def __str__(self) -> str:
        return self.text or f"{self.verb}: {'done' if self.is_done else 'nothing to do'}"


def run_statement(store: Store, text: str, spark: Any) -> StatementResult:
    """Run one statement."""
    statement = parse_statement(text)
    (name, *_) = statement.names
    if statement.verb == "create":
        return _create(store, statement, spark)
    if statement.verb == "explain":
        if not statement.select:
            return StatementResult("explain", text=open_view(store, name, spark).explain())
        try:
            times = dict(statement.properties).get("times", "refresh")
            shown = explain_query(
                store, name, statement.select, policy=cast(ViewPolicy, statement.policy), times=times, spark=spark
            )
        except UnsupportedView as error:
            raise statement.shifted(error) from None
        return StatementResult("explain", text=shown)
    if statement.verb == "refresh":
        if statement.is_full:
            for each in statement.names:
                open_view(store, each, spark).rebuild()
        return StatementResult("refresh", refreshed=store.refresh(list(statement.names), spark=spark))
    if statement.if_missing and name not in store.views():
        return StatementResult("drop", is_done=False)
    open_view(store, name, spark)  # raises if it is no view
    return StatementResult("drop", is_done=store.drop(name))


def _create(store: Store, statement: Statement, spark: Any) -> StatementResult:
    (name,) = statement.names
    if statement.if_missing and name in store.views():
        return StatementResult("create", open_view(store, name, spark), is_done=False)
    given = dict(statement.properties)
    try:
        made = store.view(
            name,
            sql=statement.select,
            key=statement.key,
            policy=cast(ViewPolicy, statement.policy),
            times=cast(ViewTimes, given.get("times", "refresh")),
            retain=given.get("retain"),
            replace=statement.is_replacing,
            spark=spark,
        )
    except UnsupportedView as error:
        raise statement.shifted(error) from None
    return StatementResult("create", made)

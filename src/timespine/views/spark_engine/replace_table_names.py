"""The text of a query as the user wrote it, over DataFrames in the places of its collections.

Names of collections are replaced at their places in the text; nothing else is printed again. So what Spark computes is
what the user wrote, and not what another parser makes of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlglot import exp

from timespine.spark.quoted_names import quoted
from timespine.views.spark_engine.session import temporary_name


def with_tables(query: Any, frames: Mapping[str, Any], spark: Any) -> Any:
    """Return the DataFrame of a query in which names mean DataFrames. It lives as long as the session is borrowed.

    SUBTLE: Spark Connect reads the text again at each job, so that the names must stay (test_connect.py).
    """
    names = {name: temporary_name(spark, frame) for name, frame in frames.items()}
    return spark.sql(replaced_names(query, names))


def replaced_names(query: Any, names: Mapping[str, str]) -> str:
    """Return the text of a query with other names of tables, each under the alias that it had."""
    known = {name.lower(): new for name, new in names.items()}
    places = []
    for table in query.tree.find_all(exp.Table):
        written = ".".join(part.name for part in table.parts)
        if written.lower() not in known or _is_cte(table):
            continue
        first, last = table.parts[0].meta, table.parts[-1].meta
        new = quoted(known[written.lower()])
        if not table.args.get("alias"):
            new += f" AS {quoted(table.parts[-1].name)}"
        places.append((first["start"], last["end"] + 1, new))
    text: str = query.text
    for start, end, new in sorted(places, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _is_cte(table: Any) -> bool:
    """Return whether a name means a CTE that is visible where it stands."""
    node = table
    while node is not None:
        with_ = node.args.get("with_")
        if with_ is not None and any(each.alias.lower() == table.name.lower() for each in with_.expressions):
            return True
        node = node.parent
    return False

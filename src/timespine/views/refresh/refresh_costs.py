"""What past refreshes of a view took: one factor for each way (`Choice.way`), of the actual over the expected time.

The factors are a hidden collection of the view, with one row for each way, and the past of it is forgotten. It is
written after a refresh whose engine was chosen by size, and only when a factor has moved by a quarter.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from timespine.client.api_for_engines import Definition, Store, begin_refresh, catalog_entries
from timespine.columnar.schema.schema import DIFF, define
from timespine.core.transitions import Retain
from timespine.errors import CollectionExists, Contention, UpperMismatch
from timespine.model.frontier import Frontier

WEIGHT_OF_NEW = 0.3
"""How much the newest refresh counts."""

MOST, LEAST = 16.0, 1 / 16
"""Bounds of a factor: a refresh that waited for a machine does not decide about all others."""

MOVED = 1.25

_SCHEMA = define({"engine": "string"}, {"factor": "double", "refreshes": "int64"})


def took_name(view: str) -> str:
    """Return the name of the hidden collection of a view."""
    return f"timespine.took.{view}"


def read_took(store: Store, view: str) -> dict[str, tuple[float, int]]:
    """Read the factors of a view, and the numbers of refreshes that they come from."""
    if took_name(view) not in catalog_entries(store):
        return {}
    rows = store.collection(took_name(view)).snapshot().to_pylist()
    return {row["engine"]: (row["factor"], row["refreshes"]) for row in rows}


def moved(
    known: Mapping[str, tuple[float, int]], engine: str, expected: float, actual: float
) -> tuple[float, int] | None:
    """Return the new factor of an engine after a refresh; None if it is about the old one."""
    factor, number = known.get(engine, (1.0, 0))
    ratio = min(max(factor * actual / expected, LEAST), MOST)
    new = factor + WEIGHT_OF_NEW * (ratio - factor)
    if max(new / factor, factor / new) < MOVED and number:
        return None
    return new, number + 1


def note_refresh(store: Store, view: str, engine: str, expected: float, actual: float) -> None:
    """Keep what a refresh took, if it tells something new. Another process may do the same: then one of them counts."""
    known = read_took(store, view)
    new = moved(known, engine, expected, actual)
    if new is None:
        return
    rows = [{"engine": engine, "factor": new[0], "refreshes": new[1], DIFF: 1}]
    if engine in known:
        rows.append({"engine": engine, "factor": known[engine][0], "refreshes": known[engine][1], DIFF: -1})
    name = took_name(view)
    with contextlib.suppress(UpperMismatch, CollectionExists, Contention), begin_refresh(store) as transaction:
        if name in catalog_entries(store):
            collection = store.collection(name)
            upper = collection.upper
            transaction.expect(collection, upper)
            transaction.also(collection, Retain(Frontier.at(max(upper.time - 1, 0))))
        else:
            owned = Definition(_SCHEMA, "counter", None, None, role="stage", owner=view)
            collection = transaction.create_as(name, owned)
        transaction.append(collection, rows)

"""Refresh views: from the time of their last refresh to the newest complete time of their inputs, in one commit.

    t0 = upper of the view - 1        t1 = least upper of the inputs - 1, or what the caller asks for

The changes stand at t1, and the upper of the view becomes t1 + 1: it is the whole record of progress. The transaction
expects the uppers of all views and stages that it was computed from. If another process was first, it has moved these,
and the refresh is planned again. The holds on the inputs move after the commit, and not each time: late is safe.
"""

from __future__ import annotations

import time as clock
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from timespine.client.engine_interface import (
    CollectionHandle,
    Store,
    TimeLike,
    begin_refresh,
    catalog_entries,
    handle_of,
)
from timespine.core.transitions import CompareAndDowngrade
from timespine.errors import Contention, Fenced, NotSealed, UpperMismatch, UsageError
from timespine.model.frontier import Frontier
from timespine.views.compute import (
    Compiled,
    ViewDelta,
    check_unique,
    compile_definition,
    compute_changes,
    compute_whole,
    input_handles,
    net_difference,
    source_of,
    stored_rows,
    update_rows,
)
from timespine.views.definition import INCREMENTAL, SPARK, ViewDefinition, current_names
from timespine.views.engine.lowering import Declined
from timespine.views.registry import definitions, hold_name, view_entry

ATTEMPTS = 16
"""Times that a refresh is planned, because other processes refresh the same views."""

HOLD_STEPS = {"clock": 10_000, "counter": 64}
"""How far a hold on an input may stay behind, so that its log is not written at every refresh."""


@dataclass(frozen=True, slots=True)
class Refreshed:
    """What a refresh of one view did."""

    time: int
    """The time that the view is exact at."""
    engine: str
    """What computed it: incremental (changes from changes), process or spark (recomputed whole), or none."""
    changes: int
    """The number of rows that came or went."""
    touched: int
    """The number of groups of stages that changed."""
    fetched: int
    """The number of rows that were read."""
    seconds: float
    """How long it took to compute."""
    why: str = ""
    """Why it was recomputed whole."""


@dataclass(slots=True)
class _Work:
    """One view of a refresh."""

    name: str
    id: str
    definition: ViewDefinition
    compiled: Compiled
    handle: CollectionHandle
    stages: list[CollectionHandle]
    inputs: dict[str, CollectionHandle]
    before: int
    """The time that it is exact at."""
    changes: ViewDelta | None = None
    engine: str = ""
    why: str = ""
    seconds: float = 0.0


def refresh_together(
    store: Store, names: Sequence[str] | None, through: TimeLike | None, spark: Any
) -> dict[str, Refreshed]:
    """Refresh some views, or all, to one time for each time line, each by one commit; return what was done by name."""
    wanted = list(names) if names is not None else store.views()
    if isinstance(names, str):
        raise UsageError("name the views in a list")
    done: dict[str, Refreshed] = {}
    lines: dict[str, list[str]] = {}
    for name in wanted:
        lines.setdefault(view_entry(store, name).timeline, []).append(name)
    for members in lines.values():
        done |= _refresh_line(store, members, through, spark)
    return {name: done[name] for name in wanted}


def _refresh_line(store: Store, names: list[str], through: TimeLike | None, spark: Any) -> dict[str, Refreshed]:
    for _ in range(ATTEMPTS):
        works = _ordered(_works(store, names))
        time = _common_time(store, works, through)
        try:
            return _refresh_once(store, works, time, spark)
        except UpperMismatch:
            continue  # another process refreshed one of them: plan again from what it left
    raise Contention(f"other processes keep refreshing {', '.join(names)}: nothing was written")


def _works(store: Store, names: list[str]) -> list[_Work]:
    known = definitions(store)
    entries = catalog_entries(store)
    by_id = {entry.id: name for name, entry in entries.items()}
    works = []
    for name in names:
        id = view_entry(store, name).id
        definition = known.get(id)
        if definition is None:
            raise UsageError(f"view {name} was dropped just now")
        handle = handle_of(store.collection(name))
        stages = [handle_of(store.collection(by_id[each])) for each in definition.stages]
        before = handle.state().upper.time - 1
        inputs = input_handles(store, definition)
        works.append(_Work(name, id, definition, compile_definition(definition), handle, stages, inputs, before))
    return works


def _ordered(works: list[_Work]) -> list[_Work]:
    """Sort views so that each comes after those that it reads."""
    by_id = {work.id: work for work in works}
    done: dict[str, _Work] = {}

    def add(work: _Work) -> None:
        if work.id not in done:
            for each in work.definition.inputs:
                if each.id in by_id:
                    add(by_id[each.id])
            done[work.id] = work

    for work in works:
        add(work)
    return list(done.values())


def _common_time(store: Store, works: list[_Work], through: TimeLike | None) -> int:
    """Return the newest time that is complete in all inputs, or what the caller asks for if it is."""
    own = {work.id for work in works}
    newest: dict[str, int] = {}
    for work in works:
        for handle in work.inputs.values():
            upper = handle.state().upper
            if handle.id not in own and not upper.is_closed:
                newest[handle.name] = upper.time - 1
    if through is not None:
        asked = works[0].handle.time_of(through)[0]
        late = next((name for name, time in sorted(newest.items()) if time < asked), None)
        if late is not None:
            error = NotSealed(asked, Frontier.at(newest[late] + 1))
            error.args = (f"{late}: {error.message}",)
            raise error
        return asked
    return min(newest.values(), default=max(work.before for work in works))


def _refresh_once(store: Store, works: list[_Work], time: int, spark: Any) -> dict[str, Refreshed]:
    behind = [work for work in works if work.before < time]
    fresh: dict[str, _Work] = {}
    for work in behind:
        _compute(work, time, fresh, spark)
        fresh[work.id] = work
    if behind:
        _commit(store, behind, time)
        for work in behind:
            _move_holds(work, time)
    return {work.name: _report(work, max(time, work.before)) for work in works}


def _report(work: _Work, time: int) -> Refreshed:
    if work.changes is None:
        return Refreshed(time, "none", 0, 0, 0, 0.0)
    changes = work.changes
    return Refreshed(time, work.engine, len(changes.view), changes.touched, changes.fetched, work.seconds, work.why)


def _compute(work: _Work, time: int, fresh: dict[str, _Work], spark: Any) -> None:
    """Compute what changes in one view; inputs that are views of the same refresh hand their changes on."""
    begun = clock.perf_counter()
    definition, compiled = work.definition, work.compiled
    pending = {each.name: fresh[each.id] for each in definition.inputs if each.id in fresh}
    if definition.mode == SPARK:
        if pending:
            raise UsageError(f"{work.name} is computed on Spark from views: refresh these first, by themselves")
        work.changes = ViewDelta(net_difference(_on_spark(work, time, spark), stored_rows(work.handle, work.before)))
        work.engine, work.why = "spark", "; ".join(definition.reasons) or "policy 'full'"
    else:
        source = source_of(definition, compiled, work.inputs, work.before, time, work.stages)
        for name, other in pending.items():
            assert other.changes is not None
            source.inputs[name].pending, source.inputs[name].stored = other.changes.view, other.before
        try:
            if definition.mode == INCREMENTAL:
                work.changes, work.engine = compute_changes(compiled, source), "incremental"
            else:
                source.stages = {}
                whole = compute_whole(compiled, source)
                work.changes = ViewDelta(
                    net_difference(whole.view, stored_rows(work.handle, work.before)), [], whole.fetched
                )
                work.engine, work.why = "process", "; ".join(definition.reasons) or "policy 'full'"
        except Declined as declined:
            raise UsageError(
                f"view {work.name} was not refreshed, and stays as of {work.before}: this process cannot compute it as "
                f"Spark does ({declined}); create it with policy='full' and a session of Spark"
            ) from declined
    work.seconds = clock.perf_counter() - begun
    _, schema = work.handle.schema(work.handle.known())
    if schema.key and len(work.changes.view):
        changed = work.changes.view
        before = stored_rows(work.handle, work.before, changed.select(schema.key_names).unique())
        check_unique(work.name, schema.key_names, before, changed)


def _on_spark(work: _Work, time: int, spark: Any) -> pl.DataFrame:
    from timespine.views import on_spark

    inputs = {}
    for each in work.definition.inputs:
        handle = work.inputs[each.name]
        _, schema = handle.schema(handle.state())
        inputs[each.name] = (handle, current_names(each, schema, {column.name for column in each.columns}))
    _, schema = work.handle.schema(work.handle.state())
    return on_spark.spark_rows(work.compiled.query, inputs, time, on_spark.session_of(spark), schema.arrow)


def _commit(store: Store, works: list[_Work], time: int) -> None:
    """Commit the changes of all views and stages at one time."""
    with begin_refresh(store) as transaction:
        for work in works:
            assert work.changes is not None
            parts = [(work.handle, work.changes.view), *zip(work.stages, work.changes.stages, strict=False)]
            for handle, rows in parts:
                collection = store.collection(handle.name)
                transaction.expect(collection, work.before + 1)
                if len(rows):
                    _, schema = handle.schema(handle.known())
                    transaction.append(collection, update_rows(rows, schema), at=time, upper=time + 1)
                else:
                    transaction.seal(collection, time + 1)


def _move_holds(work: _Work, time: int) -> None:
    """Let the inputs forget what the view needs no more, now and then."""
    name = hold_name(work.id)
    for handle in work.inputs.values():
        hold = handle.known().holds.get(name)
        if hold is None or not hold.since.elements:
            continue
        if time - hold.since.time >= HOLD_STEPS[handle.entry.timeline]:
            try:
                token = work.definition.token
                handle.committer.commit((handle.id, CompareAndDowngrade(name, token, token, Frontier.at(time))))
            except Fenced:
                continue  # the view was dropped in between

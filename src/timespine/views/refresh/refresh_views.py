"""Refresh views: from the time of their last refresh to the newest complete time of their inputs, in one commit.

    t0 = upper of the view - 1        t1 = least upper of the inputs - 1, or what the caller asks for

The changes stand at t1, and the upper of the view becomes t1 + 1: it is the whole record of progress. The transaction
expects the uppers of all views and stages that it was computed from. If another process was first, it has moved these,
and the refresh is planned again. The holds on the inputs move after the commit, and not each time: late is safe.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from timespine.client.api_for_engines import (
    Collection,
    ReadOptions,
    RefreshTransaction,
    Store,
    TimeLike,
    begin_refresh,
    collection_of_handle,
    extent_of,
    handle_of,
    open_changes,
    view_hold_name,
)
from timespine.columnar.schema.schema import TIME, Schema
from timespine.core.transitions import CompareAndDowngrade, Retain
from timespine.errors import (
    ClosedError,
    Contention,
    Fenced,
    LateRows,
    NotSealed,
    SinceError,
    UnknownCollection,
    UpperMismatch,
    UsageError,
)
from timespine.model.frontier import Frontier
from timespine.views.compute_changes import compile_definition, compile_present, update_rows
from timespine.views.definition import dropped_input
from timespine.views.engine.kept_rows import move_groups
from timespine.views.frame_views import function_of
from timespine.views.refresh.choose_engine import CHANGES, PROCESS, SPARK, check_engine
from timespine.views.refresh.left_out_views import LeftOutViews, has_lost_rows
from timespine.views.refresh.refresh_costs import note_refresh
from timespine.views.refresh.refresh_look import RefreshLook
from timespine.views.refresh.refresh_one_view import Carrier, Work
from timespine.views.registry import definitions
from timespine.views.status import time_of_view

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
    """What computed it: process, spark, or none."""
    how: str
    """changes: from what changed; whole: computed whole, and compared with what was stored; none."""
    changes: int
    """The number of rows that came or went."""
    touched: int
    """The number of groups of stages that changed."""
    fetched: int
    """The number of rows that were read."""
    seconds: float
    """How long it took to compute."""
    why: str = ""
    """Why this engine, and why whole."""
    error: str = ""
    """Why a refresh of all views left this one where it is: it failed, or one that it reads. Empty for the others."""


def refresh_together(
    store: Store, names: Sequence[str] | None, through: TimeLike | None, spark: Any, engine: str | None = None
) -> dict[str, Refreshed]:
    """Refresh some views, or all, to one time for each time line, each by one commit; return what was done by name.

    A refresh of all leaves out the views that cannot be refreshed, and says so; to ask for one of them is an error.
    """
    check_engine(engine)
    if isinstance(names, str):
        raise UsageError("name the views in a list")
    look = RefreshLook(store)
    wanted = list(names) if names is not None else look.views()
    done: dict[str, Refreshed] = {}
    lines: dict[str, list[str]] = {}
    for name in wanted:
        lines.setdefault(look.view(name).timeline, []).append(name)
    for members in lines.values():
        done |= _refresh_line(store, look, members, through, spark, engine, is_all=names is None)
    return {name: done[name] for name in wanted if name in done}


def next_refresh(store: Store, name: str, spark: Any) -> str:
    """Say what a refresh of a view would do now: the changes of each input, at most, the engine, and why."""
    look = RefreshLook(store)
    strict = LeftOutViews(is_allowed=False)
    try:
        works = _works(store, look, [name], strict)
        if works is None:
            return "a rebuild is under way"
        time = _common_time(look, works, None, strict)
        _catch_up(look, works, time, strict)
        (work,) = works
        if work.before >= time:
            return f"nothing, as no later time than {work.before} is complete in all inputs"
        choice = Carrier(store, spark, None, contextlib.ExitStack()).foresee(work, time)
    except UsageError as error:
        return f"fails: {error}"
    counts = []
    for each, handle in work.inputs.items():
        with open_changes(handle, work.before if work.before >= 0 else None, time, ReadOptions()) as rows:
            counts.append(f"{each} {extent_of(rows)[0]:,}")
    where = {PROCESS: "in the process", SPARK: "on Spark"}[choice.engine]
    how = "from what changed" if choice.how == CHANGES else "whole, and compared"
    why = f" ({choice.why})" if choice.why else ""
    return f"to {time}, {how}, {where}{why}; changes, at most: {', '.join(counts)}"


def _refresh_line(
    store: Store,
    look: RefreshLook,
    names: list[str],
    through: TimeLike | None,
    spark: Any,
    engine: str | None,
    *,
    is_all: bool,
) -> dict[str, Refreshed]:
    for attempt in range(ATTEMPTS):
        look = look if not attempt else RefreshLook(store)
        if is_all and attempt:
            names = [name for name in names if name in look.entries]
        left = LeftOutViews(is_all)
        works = _works(store, look, names, left)
        if works is None:
            continue
        works = left.remaining(_ordered(works))
        time = _common_time(look, works, through, left)
        works = left.remaining(works)
        _catch_up(look, works, time, left)
        works = left.remaining(works)
        if _is_torn(works):
            continue
        try:
            done = _refresh_once(store, works, time, spark, engine, left)
            left.log()
            return done | _left_where_they_are(look, left)
        except (UpperMismatch, LateRows):
            # SUBTLE: another process refreshed one of them, which the first look at its state or the commit itself
            # finds: plan again from what it left (`a_refresh_that_comes_late_fails` in planted_views.py).
            continue
        except (SinceError, UnknownCollection, ClosedError):
            if not _was_overtaken(store, works):
                raise
        except Exception as error:
            # SUBTLE: rows that an executor kept for the next steps are gone with it, and how they were made is
            # forgotten: nothing was committed, so begin again (tests/spark/test_cluster.py).
            if not has_lost_rows(error) or attempt + 1 == ATTEMPTS:
                raise
    raise Contention(f"other processes keep refreshing {', '.join(names)}: nothing was written")


def _left_where_they_are(look: RefreshLook, left: LeftOutViews) -> dict[str, Refreshed]:
    """Say of the views that were left out why, and as of when they are."""
    found = {}
    for name, error in left.errors.items():
        upper = look.state(look.open(look.view(name).id)).upper
        if not upper.is_closed:  # it was not dropped meanwhile
            found[name] = Refreshed(upper.time - 1, "none", "none", 0, 0, 0, 0.0, error=error)
    return found


def _was_overtaken(store: Store, works: list[Work]) -> bool:
    """Return whether another process has refreshed, rebuilt or dropped one of the views since the plan was made."""
    known = definitions(store)
    for work in works:
        now = known.get(work.id)
        if now is None or now.stages != work.definition.stages:
            return True
        upper = work.handle.state().upper
        if upper.is_closed or upper.time - 1 != work.before:
            return True
    return False


def _works(store: Store, look: RefreshLook, names: list[str], left: LeftOutViews) -> list[Work] | None:
    """Return what there is to do for some views; None if a rebuild began after the look at the catalog."""
    works = []
    for name in names:
        id = look.view(name).id
        definition = look.definitions.get(id)
        with left.leave_out_on_error(name, id):
            if definition is None:
                raise UsageError(f"view {name} was dropped just now")
            if not all(look.has(each) for each in definition.stages):
                return None
            handle, stages = look.open(id), [look.open(each) for each in definition.stages]
            before = time_of_view(name, handle.known())
            inputs, compiled = look.inputs(name, definition), compile_definition(definition)
            function = function_of(store, name, id, definition)
            works.append(Work(name, id, definition, compiled, handle, stages, inputs, before, function))
    return works


def _catch_up(look: RefreshLook, works: list[Work], time: int, left: LeftOutViews) -> None:
    """Look whether other processes have refreshed the views that are behind, as far as this process knows.

    A view that is not behind needs no look, and no plan over the present types: it never goes back.
    """
    for work in works:
        if work.before < time:
            with left.leave_out_on_error(work.name, work.id):
                work.before = time_of_view(work.name, work.handle.state())
                work.definition, work.compiled = compile_present(work.definition, work.inputs, look.schema)


def _is_torn(works: list[Work]) -> bool:
    """Tell whether another process refreshed views while their uppers were read: one is ahead of a view that it reads.

    SUBTLE: what is computed from such uppers is refused by the commit, or asks for changes that end before they begin
    (tests/simulation/test_view_refreshers.py, a history that once went wrong).
    """
    before = {work.id: work.before for work in works}
    return any(before.get(each.id, work.before) < work.before for work in works for each in work.definition.inputs)


def _ordered(works: list[Work]) -> list[Work]:
    """Sort views so that each comes after those that it reads."""
    by_id = {work.id: work for work in works}
    done: dict[str, Work] = {}

    def add(work: Work) -> None:
        if work.id not in done:
            for each in work.definition.inputs:
                if each.id in by_id:
                    add(by_id[each.id])
            done[work.id] = work

    for work in works:
        add(work)
    return list(done.values())


def _common_time(look: RefreshLook, works: list[Work], through: TimeLike | None, left: LeftOutViews) -> int:
    """Return the newest time that is complete in all inputs, or what the caller asks for if it is."""
    own = {work.id for work in works}
    newest: dict[str, int] = {}
    for work in works:
        with left.leave_out_on_error(work.name, work.id):
            for name, handle in work.inputs.items():
                upper = look.state(handle).upper
                if upper.is_closed and look.is_dropped(handle.id):
                    raise dropped_input(work.name, name)
                if handle.id not in own and not upper.is_closed:
                    newest[handle.name] = upper.time - 1
    if through is not None and works:
        asked = works[0].handle.time_of(through)[0]
        late = next((name for name, time in sorted(newest.items()) if time < asked), None)
        if late is not None:
            error = NotSealed(asked, Frontier.at(newest[late] + 1))
            error.args = (f"{late}: {error.message}",)
            raise error
        return asked
    return min(newest.values(), default=max((work.before for work in works), default=-1))


def _refresh_once(
    store: Store, works: list[Work], time: int, spark: Any, engine: str | None, left: LeftOutViews
) -> dict[str, Refreshed]:
    behind = [work for work in works if work.before < time]
    fresh: dict[str, Work] = {}
    with contextlib.ExitStack() as stack:
        carrier = Carrier(store, spark, engine, stack)
        for work in behind:
            with left.leave_out_on_error(work.name, work.id):
                carrier.expect([work])
        for work in behind:
            if not left.remaining([work]):
                continue
            with left.leave_out_on_error(work.name, work.id, lambda: _was_overtaken(store, works)):
                carrier.compute(work, time, fresh)
                fresh[work.id] = work
        behind = list(fresh.values())
        if behind:
            _commit(store, behind, time)
    for work in behind:
        _move_kept(work, time)
        _move_holds(work, time)
        if work.choice is not None and work.choice.expected:
            note_refresh(store, work.id, work.choice.way, work.choice.expected, work.seconds)
    return {work.name: _report(work, max(time, work.before)) for work in left.remaining(works)}


def _report(work: Work, time: int) -> Refreshed:
    if work.changes is None or work.choice is None:
        return Refreshed(time, "none", "none", 0, 0, 0, 0.0)
    did, choice = work.changes, work.choice
    return Refreshed(time, choice.engine, choice.how, len(did.view), did.touched, did.fetched, work.seconds, choice.why)


def _commit(store: Store, works: list[Work], time: int) -> None:
    """Commit the changes of all views and stages at one time."""
    with contextlib.ExitStack() as stack, begin_refresh(store) as transaction:
        for work in works:
            assert work.changes is not None
            parts = [(work.handle, work.changes.view), *zip(work.stages, work.changes.stages, strict=False)]
            for handle, rows in parts:
                # SUBTLE: by its id. A view of the same name may have replaced it since (test_views_and_drops.py).
                collection = collection_of_handle(store, handle)
                transaction.expect(collection, work.before + 1)
                _, schema = handle.schema(handle.known())
                append_counted(transaction, collection, schema, rows, time, stack)
                if work.before < 0 or handle is not work.handle:
                    # SUBTLE: a stage is read as of its newest time only. Another refresher that planned before this
                    # commit finds no history, and plans again (test_views.py).
                    transaction.also(collection, Retain(Frontier.at(time)))


def append_counted(
    transaction: RefreshTransaction,
    collection: Collection,
    schema: Schema,
    rows: Any,
    time: int,
    stack: contextlib.ExitStack,
) -> None:
    """Add rows with counts to a transaction, at a time or at their own times, and complete that time."""
    if not len(rows):
        transaction.seal(collection, time + 1)
    elif isinstance(rows, pl.DataFrame) and TIME in rows.columns:
        transaction.append(collection, update_rows(rows, schema), upper=time + 1)
    elif isinstance(rows, pl.DataFrame):
        transaction.append(collection, update_rows(rows, schema), at=time, upper=time + 1)
    else:
        from timespine.views.refresh.compute_on_spark import append_large

        append_large(transaction, handle_of(collection), schema, rows, time, stack)


def _move_kept(work: Work, time: int) -> None:
    """Let groups that are kept in memory follow the commit."""
    assert work.changes is not None
    for handle, rows in zip(work.stages, work.changes.stages, strict=False):
        if isinstance(rows, pl.DataFrame):
            move_groups(handle, (work.before, time), rows)


def _move_holds(work: Work, time: int) -> None:
    """Let the inputs forget what the view needs no more, now and then."""
    name = view_hold_name(work.id)
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

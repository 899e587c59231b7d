"""Carry out the refresh of one view: choose the engine, compute what changes, and check the key of the view."""

from __future__ import annotations

import contextlib
import re
import time as clock
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from timespine.client.api_for_engines import CollectionHandle, Store
from timespine.columnar.schema.schema import TIME, Schema
from timespine.errors import UsageError
from timespine.hints import Hint
from timespine.views.compute_changes import (
    Compiled,
    ViewDelta,
    check_unique,
    compute_changes,
    compute_whole,
    expect_columns,
    net_difference,
    repeated_key,
    source_of,
    stored_rows,
)
from timespine.views.definition import INCREMENTAL, SPARK, Input, ViewDefinition, current_names
from timespine.views.engine.lowering import Declined
from timespine.views.engine.portable_plans import only_spark
from timespine.views.engine.store_source import StoredView, StoreSource
from timespine.views.engine.touched_rows import TouchedInputs
from timespine.views.every.compute_timed import check_unique_along, compute_timed
from timespine.views.refresh.choose_engine import CHANGES, PROCESS, WHOLE, Choice, choose_engine, sizes_of
from timespine.views.refresh.choose_engine import SPARK as ON_SPARK
from timespine.views.refresh.refresh_costs import read_took
from timespine.views.spark_engine.session import find_session


@dataclass(slots=True)
class Work:
    """One view of a refresh."""

    name: str
    id: str
    definition: ViewDefinition
    compiled: Compiled
    handle: CollectionHandle
    stages: list[CollectionHandle]
    inputs: dict[str, CollectionHandle]
    before: int
    """The time that it is exact at; -1 if it was created and not built yet."""
    function: Callable[[Any], Any] | None = None
    """The function of DataFrames that it is, if it is no text."""
    changes: ViewDelta | None = None
    choice: Choice | None = None
    seconds: float = 0.0


@dataclass(slots=True)
class Carrier:
    """What the refreshes of one call have in common."""

    store: Store
    spark: Any
    """The session of the caller, if one was given."""
    engine: str | None
    """The engine that the caller asks for."""
    stack: contextlib.ExitStack
    """What is cached and borrowed until the commit."""
    touched: TouchedInputs = field(default_factory=TouchedInputs)
    """The rows of inputs that several views touch."""
    _session: Any = field(default=None)

    def expect(self, works: Sequence[Work]) -> None:
        """Note what the views of the call will read: each input is read once, in the columns of all of them."""
        for work in works:
            if work.compiled.plan is not None:
                expect_columns(self.touched, work.definition, work.compiled, work.inputs)

    def session(self) -> Any:
        """Borrow a session of Spark until the commit."""
        if self._session is None:
            from timespine.views.spark_engine.session import borrowed

            self._session = self.stack.enter_context(borrowed(self.spark))
        return self._session

    def compute(self, work: Work, time: int, fresh: Mapping[str, Work]) -> None:
        """Compute what changes in one view; inputs that are views of the same refresh hand their changes on."""
        begun = clock.perf_counter()
        if work.definition.mode == SPARK:
            self._query(work, time, fresh)
        else:
            self._plan(work, time, fresh)
        work.seconds = clock.perf_counter() - begun
        self._check_key(work)

    # Queries that only Spark computes, whole.

    def _query(self, work: Work, time: int, fresh: Mapping[str, Work]) -> None:
        if self.engine == PROCESS:
            raise UsageError(
                f"only Spark can compute {work.name}", hint=Hint("leave-out-engine", {"engine": self.engine})
            )
        from timespine.views.refresh import compute_on_spark

        _, schema = work.handle.schema(work.handle.state())
        stored = (work.handle, work.before) if work.before >= 0 else None
        with compute_on_spark.spark_errors(_stays(work)):
            inputs = named_inputs(work.definition, work.inputs)
            pending = _pending(work.definition, fresh)
            frame = compute_on_spark.query_frame(
                work.compiled.query, inputs, time, self.session(), work.function, pending
            )
            work.changes = compute_on_spark.query_delta(frame, schema.arrow, stored, self.stack)
        work.choice = Choice(ON_SPARK, WHOLE, _whole_why(work))

    # Plans.

    def _plan(self, work: Work, time: int, fresh: Mapping[str, Work]) -> None:
        definition = work.definition
        before = work.before if work.before >= 0 else None
        source = source_of(definition, work.compiled, work.inputs, before, time, work.stages, self.touched)
        large = _hand_on(source, definition, fresh)
        work.choice = self._choose(work, source, has_large=bool(large))
        if definition.times == "every" and before is not None:
            self._at_every_time(work, source, before)
            return
        if work.choice.engine == PROCESS:
            try:
                work.changes = self._in_process(work, source)
                return
            except Declined as declined:
                if self.engine == PROCESS or find_session(self.spark) is None:
                    raise UsageError(
                        f"{_stays(work)}: this process cannot compute it as Spark does ({declined})",
                        hint=Hint("give-session"),
                    ) from declined
                work.choice = Choice(ON_SPARK, work.choice.how, f"the process declined: {declined}")
                source = source_of(definition, work.compiled, work.inputs, before, time, work.stages)
                large = _hand_on(source, definition, fresh)
        work.changes = self._on_spark(work, source, large)

    def _at_every_time(self, work: Work, source: StoreSource, before: int) -> None:
        """Compute what changed at each time, which only the process does."""
        if self.engine == ON_SPARK:
            raise UsageError(
                f"the process computes {work.name}, which follows every time",
                hint=Hint("leave-out-engine", {"engine": self.engine}),
            )
        try:
            work.changes = compute_timed(work.compiled, source, before)
        except Declined as declined:
            raise UsageError(
                f"{_stays(work)}: this process cannot compute it as Spark does ({declined})",
                hint=Hint("refresh-on-spark"),
            ) from declined

    def foresee(self, work: Work, time: int) -> Choice:
        """Say how a view would be refreshed to a time, and compute nothing."""
        if work.definition.mode == SPARK:
            return Choice(ON_SPARK, WHOLE, _whole_why(work))
        before = work.before if work.before >= 0 else None
        source = source_of(work.definition, work.compiled, work.inputs, before, time, work.stages)
        return self._choose(work, source, has_large=False)

    def _choose(self, work: Work, source: StoreSource, *, has_large: bool) -> Choice:
        if work.definition.times == "every" and work.before >= 0:
            return Choice(PROCESS, CHANGES, "each time is computed in the process")
        made = self._choose_engine(work, source, has_large=has_large)
        if work.definition.mode != INCREMENTAL or work.before < 0:
            return Choice(made.engine, WHOLE, _whole_why(work), made.expected)
        return made

    def _choose_engine(self, work: Work, source: StoreSource, *, has_large: bool) -> Choice:
        plan = work.compiled.plan
        assert plan is not None
        has_spark = find_session(self.spark) is not None
        if has_large and self.engine is None:
            return Choice(ON_SPARK, CHANGES, "its inputs have many changes that are on Spark")
        if not has_spark or self.engine is not None:
            return choose_engine(plan, None, self.engine, work.definition.policy, {}, has_spark=has_spark)
        factors = {engine: factor for engine, (factor, _) in read_took(self.store, work.id).items()}
        return choose_engine(
            plan, sizes_of(plan, source.inputs), None, work.definition.policy, factors, has_spark=has_spark
        )

    def _in_process(self, work: Work, source: StoreSource) -> ViewDelta:
        assert work.choice is not None
        if work.choice.how == CHANGES:
            assert work.compiled.plan is not None
            names = {column.name: name for name, column in work.compiled.named}
            source.view = StoredView(work.compiled.plan, work.handle, work.before, names)
            return compute_changes(work.compiled, source)
        source.stages = {}
        whole = compute_whole(work.compiled, source)
        if work.before < 0:
            return whole
        return ViewDelta(net_difference(whole.view, stored_rows(work.handle, work.before)), [], whole.fetched)

    def _on_spark(self, work: Work, source: StoreSource, large: dict[str, Any]) -> ViewDelta:
        from timespine.views.refresh import compute_on_spark

        assert work.choice is not None
        with compute_on_spark.spark_errors(_stays(work)):
            if work.choice.how == CHANGES:
                by_driver = self.engine != ON_SPARK
                return compute_on_spark.SparkRefresh.begin(
                    self.session(), work.compiled, source, large, self.stack, by_driver=by_driver
                ).changes()
            source.stages = {}
            refresh = compute_on_spark.SparkRefresh.begin(self.session(), work.compiled, source, large, self.stack)
            if work.before < 0:
                return refresh.whole()
            return refresh.whole([work.handle, *work.stages], work.before)

    def _check_key(self, work: Work) -> None:
        """Refuse a key that does not identify the rows of the view."""
        assert work.changes is not None
        _, schema = work.handle.schema(work.handle.known())
        changed = work.changes.view
        if not schema.key or not len(changed):
            return
        if isinstance(changed, pl.DataFrame):
            keys = changed.select(schema.key_names).unique()
            before = stored_rows(work.handle, work.before, keys) if work.before >= 0 else changed.clear()
            if TIME in changed.columns:
                check_unique_along(work.name, schema.key_names, before, changed)
            else:
                check_unique(work.name, schema.key_names, before, changed)
            return
        from timespine.views.refresh import compute_on_spark

        stored = None
        if work.before >= 0:
            stored = compute_on_spark.stored_frame(self.session(), work.handle, work.before, schema.key_names)
        several = compute_on_spark.repeated_keys(changed, stored, schema.key_names)
        if several:
            raise repeated_key(work.name, schema.key_names, several)


def _stays(work: Work) -> str:
    return f"view {work.name} was not refreshed, and stays as of {work.before}"


def _whole_why(work: Work) -> str:
    if work.before < 0:
        return "it was created and not built yet"
    return "; ".join(work.definition.reasons) or f"policy {work.definition.policy!r}"


def _pending(definition: ViewDefinition, fresh: Mapping[str, Work]) -> dict[str, tuple[int, Any]]:
    """Return the inputs that are views of the same refresh: the times that they are stored as of, and their changes."""
    found = {}
    for each in definition.inputs:
        other = fresh.get(each.id)
        if other is not None:
            assert other.changes is not None
            found[each.name] = (other.before, other.changes.view)
    return found


def _hand_on(source: StoreSource, definition: ViewDefinition, fresh: Mapping[str, Work]) -> dict[str, Any]:
    """Hand the changes of other views of the refresh on; return those that are on Spark, as DataFrames."""
    large = {}
    for each in definition.inputs:
        other = fresh.get(each.id)
        if other is None:
            continue
        assert other.changes is not None
        reader = source.inputs[each.name]
        reader.stored = other.before
        if isinstance(other.changes.view, pl.DataFrame):
            reader.pending = other.changes.view
        elif other.before == reader.before:
            large[each.name] = other.changes.view.frame
        else:
            reader.pending = other.changes.view.collect()
    return large


def _mentioned(definition: ViewDefinition, bound: Input, schema: Schema) -> set[str]:
    """Return the columns of an input that a text may read: those that it names, or all for `*`.

    A function of DataFrames gets the columns that there are.
    """
    if not definition.sql:
        return {each.name for each in bound.columns if schema.has_id(each.id)}
    words = {each.lower() for each in re.findall(r"\w+", definition.sql)}
    has_star = re.search(r"(select|,|\.)\s*\*", definition.sql, re.IGNORECASE) is not None
    return {each.name for each in bound.columns if has_star or set(re.findall(r"\w+", each.name.lower())) <= words}


def named_inputs(
    definition: ViewDefinition, handles: Mapping[str, CollectionHandle]
) -> dict[str, tuple[CollectionHandle, dict[str, str]]]:
    """Return the inputs with the present names of their columns."""
    found = {}
    for each in definition.inputs:
        handle = handles[each.name]
        _, schema = handle.schema(handle.state())
        found[each.name] = (handle, current_names(each, schema, _mentioned(definition, each, schema)))
    return found


__all__ = ["Carrier", "Work", "named_inputs", "only_spark"]

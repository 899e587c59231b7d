"""The handle of a view, a collection that only refreshes write; and how a view is defined, created and opened."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from timespine.client.api_for_engines import (
    Collection,
    CollectionHandle,
    Definition,
    DurationLike,
    Snapshot,
    Store,
    TimeLike,
    catalog_entries,
    collection_of_handle,
    fresh_id,
    handle_of,
)
from timespine.columnar.schema.schema import infer
from timespine.columnar.schema.types import stored_type
from timespine.errors import CollectionExists, UnsupportedView, UsageError, short_repr
from timespine.hints import Hint
from timespine.views.build import FirstBuild, create_filled, verify_view
from timespine.views.compute_changes import (
    Compiled,
    compile_definition,
)
from timespine.views.definition import (
    INCREMENTAL,
    POLICIES,
    PROCESS,
    SPARK,
    TIMES,
    VERSION,
    Input,
    ViewDefinition,
    arrow_schema,
    bound_input,
    digest_of,
)
from timespine.views.engine.portable_plans import only_spark
from timespine.views.explain import explain_text
from timespine.views.follow.follow_loop import FollowStatus
from timespine.views.follow.follow_thread import Callback, follow_in_foreground
from timespine.views.frame_views import attach_function, check_function
from timespine.views.open_ties import open_ties
from timespine.views.refresh.refresh_views import Refreshed, next_refresh, refresh_together
from timespine.views.registry import find_definition, open_remaining_inputs, registry_of, remove_leftovers
from timespine.views.spark_engine.session import find_session
from timespine.views.sql.from_sql import plan_of
from timespine.views.sql.parse import Query, check_levels, check_plan_levels, parse_query
from timespine.views.sql.spark_types import asked_types
from timespine.views.status import ViewStatus, status_of, time_of_view


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a rebuild did."""

    time: int
    """The time that the view is exact at."""
    changes: int
    """The number of rows that came or went; all rows, if a new collection took the name."""
    is_new: bool
    """Whether a new collection took the name, since the columns are others now."""


@dataclass(frozen=True, slots=True)
class Verified:
    """How a view compares with its query, computed whole."""

    time: int
    """The time as of which both were read."""
    rows: int
    """The number of distinct rows of the view."""
    missing: int
    """Rows of the query that the view lacks, or has too few of."""
    extra: int
    """Rows that the view has, or has too many of."""

    @property
    def is_exact(self) -> bool:
        """Whether both are the same."""
        return self.missing == 0 and self.extra == 0


class View(Collection):
    """A view. Snapshots, changes, feeds and lookups are those of a collection; writes raise OwnedCollection."""

    def __init__(self, handle: CollectionHandle, store: Store, definition: ViewDefinition, spark: Any) -> None:
        super().__init__(handle, store)
        self.definition = definition
        """What is stored of the view."""
        self._spark = spark

    def refresh(self, *, through: TimeLike | None = None, spark: Any = None, engine: str | None = None) -> Refreshed:
        """Bring the view to the newest time that is complete in all inputs, or to `through`, in one commit.

        `engine` is "process" or "spark"; by default the sizes of what changed decide (docs/views.md).
        """
        given = spark if spark is not None else self._spark
        return refresh_together(self._store, [self.name], through, given, engine)[self.name]

    def snapshot(self, as_of: TimeLike | None = None, *, fresh: bool = False, **options: Any) -> Snapshot:
        """Read the view as of a time (default: its newest one). `options` are those of a collection.

        With `fresh`, refresh it first, to the newest complete time of its inputs or to `as_of`, if it is behind that.
        """
        if fresh:
            time = None if as_of is None else self._handle.time_of(as_of)[0]
            if time is None or self._time() < time:
                self.refresh(through=time)
        return super().snapshot(as_of, **options)

    def follow(
        self,
        *,
        every: DurationLike = 1.0,
        timeout: float | None = None,
        spark: Any = None,
        callback: Callback | None = None,
    ) -> FollowStatus:
        """Keep the view fresh in this thread, until an interrupt, the end of the store, or `timeout` seconds.

        `store.follow()` does the same in a thread, for any number of views.
        """
        given = spark if spark is not None else self._spark
        return follow_in_foreground(self._store, [self.name], every, given, callback, timeout)

    def explain(self) -> str:
        """Say how changes of each input reach the view, why not, where they do not, and what a refresh would do now."""
        there = open_remaining_inputs(self._store, self.definition, catalog_entries(self._store))
        keys = _input_keys(self.definition, there)
        own = self.schema
        compiled = compile_definition(self.definition)
        text = explain_text(self.name, self.definition, compiled, keys, own.key_names if own.key else ())
        return f"{text}\nnext refresh: {next_refresh(self._store, self.name, self._spark)}"

    def status(self) -> ViewStatus:
        """Say how far the view is, what its inputs have that it lacks, what it keeps, and its last refreshes."""
        return status_of(self._store, self, self.definition)

    def verify(self, as_of: TimeLike | None = None, *, spark: Any = None) -> Verified:
        """Compute the query whole, as of a refresh point (default: the last), and compare.

        With a session, it is Spark's answer to the text as it was written; without, that of the plan.
        """
        time = self._handle.time_of(as_of)[0] if as_of is not None else self._time()
        given = spark if spark is not None else self._spark
        rows, missing, extra = verify_view(self._store, self._handle, self.definition, time, given)
        return Verified(time, rows, missing, extra)

    def rebuild(self, *, spark: Any = None) -> Rebuilt:
        """Compute the view again, from the definition as it was written and the columns that its inputs have now.

        It stays the same collection, with its history and a net feed, if it has the same columns, or wider ones.
        Otherwise a new one takes its name; that is refused while other views read it.
        """
        from timespine.views.rebuild import rebuild_view

        name = self.name
        done = rebuild_view(self._store, name, spark if spark is not None else self._spark)
        found = open_view(self._store, name, self._spark)
        self._handle, self.definition = handle_of(found), found.definition
        return done

    def _time(self) -> int:
        return time_of_view(self.name, self._handle.state())

    def __repr__(self) -> str:
        return f"<view {self.name}>"


def explain_query(store: Store, name: str, sql: str, *, policy: str, times: str = "refresh", spark: Any = None) -> str:
    """Explain a view as `create_view` would make it, and create nothing."""
    _check_options(policy, times, ())
    query = parse_query(sql)
    inputs, handles = _inputs(store, query.tables)
    definition, compiled = define_view(query, inputs, policy, spark, times)
    return explain_text(name, definition, compiled, _input_keys(definition, handles))


def _input_keys(definition: ViewDefinition, handles: dict[str, CollectionHandle]) -> dict[str, tuple[str, ...]]:
    """Return the keys of the inputs, by the names that the text has for their columns."""
    found = {}
    for each in definition.inputs:
        if each.name not in handles:
            continue  # it was dropped
        _, schema = handles[each.name].schema(handles[each.name].state())
        written = {column.id: column.name for column in each.columns}
        fields = [field for field in schema.fields if schema.key and field.name in schema.key_names]
        found[each.name] = tuple(written.get(field.id, field.name) for field in fields)
    return found


def open_view(store: Store, name: str, spark: Any = None, frame: Any = None) -> View:
    """Open a view by its name; `frame` is its function, if it is one."""
    id, definition = find_definition(store, name)
    if frame is not None:
        if definition.sql:
            raise UsageError(f"view {name} is a SELECT: leave out frame")
        attach_function(store, id, frame)
    return View(handle_of(store.collection(name)), store, definition, spark)


def create_view(
    store: Store,
    name: str,
    sql: str,
    *,
    key: Sequence[str],
    policy: str,
    times: str,
    retain: Any,
    spark: Any,
    check: bool = True,
    replace: bool = False,
) -> View:
    """Create a view and compute it, as of the newest time that is complete in all inputs.

    With `replace`, it takes the name of another view once it is computed.
    """
    _check_options(policy, times, key)
    if name in store and not replace:
        raise CollectionExists(name)
    query = parse_query(sql)
    inputs, handles = _inputs(store, query.tables)
    if any(handle.name == name and handle.entry.role == "view" for handle in handles.values()):
        raise UsageError(f"view {name} cannot read itself: read what it reads, or give the new view another name")
    definition, compiled = define_view(query, inputs, policy, spark, times)
    if definition.mode == SPARK and find_session(spark) is None:
        message = "only Spark can compute parts of this query, and there is no session"
        raise UnsupportedView(message, definition.reasons, hint=Hint("give-session-or-change"))
    build_view(
        store,
        name,
        definition,
        compiled,
        handles,
        key=key,
        retain=retain,
        spark=spark,
        check=check,
        replace=replace,
    )
    return open_view(store, name, spark)


def create_frame_view(
    store: Store, name: str, function: Any, inputs: Sequence[str], *, key: Sequence[str], retain: Any, spark: Any
) -> View:
    """Create a view that is a function of DataFrames, which Spark computes whole at each refresh."""
    _check_options("full", "refresh", key)
    check_function(function)
    if isinstance(inputs, str) or not inputs:
        raise UsageError("inputs is a list of the collections that the function reads, such as ['orders']")
    if name in store:
        raise CollectionExists(name)
    bound, handles = _inputs(store, tuple(inputs))
    reasons = ("a function of DataFrames is computed whole",)
    definition = ViewDefinition(VERSION, "", bound, "full", SPARK, "refresh", fresh_id("t"), (), "", reasons)
    compiled = Compiled(None, None, [])
    id = build_view(store, name, definition, compiled, handles, key=key, retain=retain, spark=spark, function=function)
    attach_function(store, id, function)
    return open_view(store, name, spark)


def _check_options(policy: str, times: str, key: Sequence[str]) -> None:
    if policy not in POLICIES:
        raise UsageError(f"policy is one of {', '.join(map(repr, POLICIES))}, not {short_repr(policy)}")
    if times not in TIMES:
        raise UsageError(f"times is 'refresh' or 'every', not {short_repr(times)}")
    if times == "every" and policy == "full":
        raise UsageError("times 'every' follows each change, and policy 'full' none: use another policy")
    if isinstance(key, str) or not isinstance(key, Iterable) or not all(isinstance(each, str) for each in key):
        raise UsageError(f"key is a list of names of columns, not {short_repr(key)}: an empty one for no key")


def build_view(
    store: Store,
    name: str,
    definition: ViewDefinition,
    compiled: Compiled,
    handles: dict[str, CollectionHandle],
    *,
    key: Sequence[str],
    retain: Any,
    spark: Any,
    check: bool = False,
    function: Any = None,
    replace: bool = False,
) -> str:
    """Compute a view and create it; return the id of its collection."""
    registry_of(store)
    remove_leftovers(store)
    with contextlib.ExitStack() as stack:
        time = first_time(handles)
        for handle in handles.values():
            stack.enter_context(collection_of_handle(store, handle).hold(as_of=time))
        built = FirstBuild(definition, compiled, handles, time, spark, stack, function)
        schema = infer(built.schema(), tuple(key))
        changes = built.compute(schema.arrow)
        differs = built.difference(schema.arrow, changes) if check and definition.mode != SPARK else ""
        if differs and definition.mode == INCREMENTAL:
            raise UnsupportedView(f"view {name} was not created: {differs}", hint=Hint("compute-whole"))
        if differs:
            assert compiled.query is not None
            check_ties(
                compiled.query, input_schemas(definition.inputs), (f"the plan is not Spark's answer: {differs}",)
            )
            definition, compiled = on_spark_as_text(definition, compiled, (differs,))
            built = FirstBuild(definition, compiled, handles, time, spark, stack, function)
            schema = infer(built.schema(), tuple(key))
            changes = built.compute(schema.arrow)
        if schema.key:
            built.check_key(name, schema, changes)
        line: Any = next(iter(handles.values())).entry.timeline
        made = Definition(schema, line, retain, None, role="view")
        id = create_filled(store, name, definition, compiled, handles, changes, time, made, replace=replace)
    if replace:
        remove_leftovers(store)
    return id


def _inputs(store: Store, tables: Sequence[str]) -> tuple[tuple[Input, ...], dict[str, CollectionHandle]]:
    """Find the collections that a query reads; raise an error if they have no times in common."""
    there = {name.lower(): name for name in store.names()}
    inputs, handles = [], {}
    for written in tables:
        name = written if written in store else there.get(written.lower(), written)
        handle = handle_of(store.collection(name))
        if handle.entry.is_hidden:
            raise UsageError(f"{name} is state of views, which changes with every version: read the views themselves")
        _, schema = handle.schema(handle.state())
        if schema.arity != 1:
            raise UsageError(f"the times of {name} have several coordinates: a view needs totally ordered times")
        inputs.append(bound_input(written, handle.id, schema))
        handles[written] = handle
    if len({handle.entry.timeline for handle in handles.values()}) > 1:
        raise UsageError("the inputs are on different time lines, so they have no times in common")
    return tuple(inputs), handles


def define_view(
    query: Query, inputs: tuple[Input, ...], policy: str, spark: Any, times: str = "refresh"
) -> tuple[ViewDefinition, Compiled]:
    """Choose how the view is refreshed; raise UnsupportedView if the policy does not allow it."""
    schemas = input_schemas(inputs)
    token = fresh_id("t")
    typing = asked_types(spark)
    try:
        check_levels(query)
        plan, named = plan_of(query, schemas, typing)
        check_plan_levels(plan)
    except UnsupportedView as refused:
        forbidden = [each for each in refused.reasons if getattr(each, "forbidden", False)]
        if policy.startswith("incremental") or times == "every" or forbidden:
            raise
        check_ties(query, schemas, refused.reasons)
        reasons = tuple(map(str, refused.reasons)) or (refused.message,)
        return ViewDefinition(VERSION, query.text, inputs, policy, SPARK, "refresh", token, (), "", reasons), Compiled(
            query, None, []
        )
    mode = PROCESS if policy == "full" else INCREMENTAL
    digest = digest_of(plan) if mode == INCREMENTAL else ""
    types = typing.known() if typing is not None else ()
    portable = only_spark(plan) if times == "every" else None
    if portable is not None:
        raise UnsupportedView(f"times 'every' is computed in the process, and only Spark can: {portable}")
    made = ViewDefinition(VERSION, query.text, inputs, policy, mode, times, token, (), digest, (), types)
    return made, Compiled(query, plan, named)


def input_schemas(inputs: tuple[Input, ...]) -> dict[str, pa.Schema]:
    """Return the columns of inputs as the text names them, with their types when they were bound."""
    return {each.name: arrow_schema(each, {c.name: stored_type(c.type) for c in each.columns}) for each in inputs}


def check_ties(query: Query, schemas: dict[str, pa.Schema], others: tuple[Any, ...]) -> None:
    """Refuse a text that Spark would compute whole, if its orders leave ties open."""
    ties = open_ties(query, schemas)
    if ties:
        message = "Spark would compute this query whole, and it leaves open which of several rows come first"
        raise UnsupportedView(message, (*ties, *(each for each in others if each not in ties)))


def on_spark_as_text(
    definition: ViewDefinition, compiled: Compiled, reasons: tuple[str, ...]
) -> tuple[ViewDefinition, Compiled]:
    """Let Spark compute the text of a view as it was written, whole, instead of its plan."""
    made = msgspec.structs.replace(definition, mode=SPARK, digest="", types=(), reasons=reasons)
    return made, Compiled(compiled.query, None, [])


def first_time(handles: dict[str, CollectionHandle]) -> int:
    """Return the newest time that is complete in all inputs; raise UsageError if one of them cannot be read then."""
    newest: dict[str, int] = {}
    for handle in handles.values():
        upper = handle.state().upper
        if upper.is_closed:
            continue
        if upper.time < 1:
            raise UsageError(f"{handle.name} has no complete time yet", hint=Hint("complete-first"))
        newest[handle.name] = upper.time - 1
    if not newest:
        raise UsageError("all inputs are closed: a view of them would never change; read them with a query instead")
    slowest = min(newest, key=lambda name: newest[name])
    for handle in handles.values():
        since = handle.state().since
        if not since.is_closed and newest[slowest] < since.time:
            raise UsageError(
                f"the inputs have no complete time in common: {handle.name} can be read from {since.time} on, and "
                f"{slowest} is complete up to {newest[slowest]}: complete {slowest} first",
                hint=Hint("complete-first"),
            )
    return newest[slowest]

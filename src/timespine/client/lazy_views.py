"""Import views on first use: they are a layer above this one, and need an extra."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from timespine.client.refuse_pickle import OneProcess
from timespine.errors import OwnedCollection, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from timespine.client.arguments.argument_types import FrameFunction, ViewEngine, ViewPolicy, ViewTimes
    from timespine.client.arguments.time_args import DurationLike, TimeLike
    from timespine.client.catalog.catalog import Catalog
    from timespine.client.catalog.retention import RetentionLike
    from timespine.views.follow.follow_thread import Following
    from timespine.views.refresh.refresh_views import Refreshed
    from timespine.views.run_statement import StatementResult
    from timespine.views.view import View


def load_views_module(module: str) -> ModuleType:
    """Import a module of `timespine.views`; raise a UsageError that says what to install if sqlglot is not there."""
    try:
        return importlib.import_module(f"timespine.views.{module}")
    except ModuleNotFoundError as error:
        if error.name != "sqlglot":
            raise
        raise UsageError("sqlglot is not installed: pip install 'timespine[views]'") from None


class ViewVerbs(OneProcess):
    """The calls of a store that concern views."""

    _catalog: Catalog

    def view(
        self,
        name: str,
        *,
        sql: str | None = None,
        key: Sequence[str] = (),
        policy: ViewPolicy = "auto",
        times: ViewTimes = "refresh",
        retain: RetentionLike = None,
        spark: SparkSession | None = None,
        frame: FrameFunction | None = None,
        inputs: Sequence[str] = (),
        check: bool = True,
        replace: bool = False,
    ) -> View:
        """Create a view from a SELECT over collections of this store; without `sql`, open the view of that name.

        A view is a collection that only refreshes write. `key` names the columns that identify a row of the result.
        `policy` is "auto" (compute changes from changes where there is a rule, otherwise recompute and diff, and say
        so), "incremental" (refuse what has no rule, with all reasons, and recompute nothing; "incremental_strict" is
        the same), or "full" (recompute and diff). `times` is "refresh": the view is exact at its refresh points; or
        "every": at each time of its inputs. `replace` lets it take the name of another view, once it is computed.
        `spark` is the session for what this process cannot compute, and for comparing the first build with Spark's own
        answer, unless `check` is False.

        Instead of `sql`, `frame` is a function from a dictionary of DataFrames, by the names of `inputs`, to a
        DataFrame. Spark computes it whole at each refresh. A function is not stored: give it again to open the view.
        """
        views = load_views_module("view")
        if sql is not None and (frame is not None or inputs):
            raise UsageError("a view is a SELECT or a function of DataFrames: give sql, or frame and inputs")
        if sql is None and inputs:
            made: View = views.create_frame_view(self, name, frame, inputs, key=key, retain=retain, spark=spark)
        elif sql is None:
            made = views.open_view(self, name, spark, frame)
        else:
            made = views.create_view(
                self,
                name,
                sql,
                key=key,
                policy=policy,
                times=times,
                retain=retain,
                spark=spark,
                check=check,
                replace=replace,
            )
        return made

    def views(self) -> list[str]:
        """List the names of all views, sorted."""
        return sorted(name for name, entry in self._catalog.read().entries.items() if entry.role == "view")

    def refresh(
        self,
        names: Sequence[str] | None = None,
        *,
        through: TimeLike | None = None,
        spark: SparkSession | None = None,
        engine: ViewEngine | None = None,
    ) -> dict[str, Refreshed]:
        """Refresh some views, or all, to one time in one commit; return what was done by name.

        If no names are given, a view that fails is left where it is with those that read it: see `Refreshed.error`.

        `engine` is "process" or "spark"; by default the sizes of what changed decide, for each view.
        """
        done: dict[str, Refreshed] = load_views_module("refresh.refresh_views").refresh_together(
            self, names, through, spark, engine
        )
        return done

    def sql(self, text: str, *, spark: SparkSession | None = None) -> StatementResult:
        """Run a statement about materialized views, and return what it did.

        CREATE [OR REPLACE] MATERIALIZED VIEW name [PRIMARY KEY (a, b)]
        [REFRESH POLICY AUTO | INCREMENTAL [STRICT] | FULL] [TBLPROPERTIES ('times' = 'every', 'retain' = '30 days')]
        AS SELECT ...; EXPLAIN [CREATE] MATERIALIZED VIEW ...; REFRESH MATERIALIZED VIEW name [FULL];
        DROP MATERIALIZED VIEW [IF EXISTS] name.
        """
        done: StatementResult = load_views_module("run_statement").run_statement(self, text, spark)
        return done

    def follow(
        self,
        names: Sequence[str] | None = None,
        *,
        every: DurationLike = 1.0,
        spark: SparkSession | None = None,
        callback: Callable[[dict[str, Refreshed]], object] | None = None,
    ) -> Following:
        """Keep some views, or all, fresh in a thread: it refreshes them as times of their inputs become complete.

        Views that share inputs are refreshed together, at most once per `every`. Errors are retried after pauses that
        grow, and shown by `.status()`. `callback` is called after each refresh, with what was done by name. Close the
        result, leave its `with`, or close the store to end it. `view.follow()` does the same in the calling thread.
        """
        thread = load_views_module("follow.follow_thread")
        following: Following = thread.Following(self, names, every, spark, callback)
        return following

    def _drop_view(self, owned: OwnedCollection, *, force: bool) -> bool:
        """Drop a view with its stages; raise the error again if the name is that of no view."""
        if owned.role != "view":
            raise owned
        load_views_module("registry").drop_view(self, owned.name, force=force)
        return True

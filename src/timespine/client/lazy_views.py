"""The bridge to views: the layer above, which is optional and loaded on first use."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from timespine.client.refuse_pickle import OneProcess
from timespine.errors import OwnedCollection, UsageError

if TYPE_CHECKING:
    from timespine.client.catalog.catalog import Catalog
    from timespine.client.catalog.retention import RetentionLike
    from timespine.client.time_args import DurationLike, TimeLike


def load_views_module(module: str) -> Any:
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
        policy: str = "auto",
        times: str = "refresh",
        retain: RetentionLike = None,
        spark: Any = None,
        frame: Any = None,
        inputs: Sequence[str] = (),
        check: bool = True,
        replace: bool = False,
    ) -> Any:
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
            return views.create_frame_view(self, name, frame, inputs, key=key, retain=retain, spark=spark)
        if sql is None:
            return views.open_view(self, name, spark, frame)
        return views.create_view(
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

    def views(self) -> list[str]:
        """List the names of all views, sorted."""
        return sorted(name for name, entry in self._catalog.read().entries.items() if entry.role == "view")

    def refresh(
        self,
        names: Sequence[str] | None = None,
        *,
        through: TimeLike | None = None,
        spark: Any = None,
        engine: str | None = None,
    ) -> Any:
        """Refresh some views, or all, to one time in one commit; return what was done by name.

        `engine` is "process" or "spark"; by default the sizes of what changed decide, for each view.
        """
        return load_views_module("refresh").refresh_together(self, names, through, spark, engine)

    def sql(self, text: str, *, spark: Any = None) -> Any:
        """Run a statement about materialized views, and return what it did.

        CREATE [OR REPLACE] MATERIALIZED VIEW name [PRIMARY KEY (a, b)]
        [REFRESH POLICY AUTO | INCREMENTAL [STRICT] | FULL] [TBLPROPERTIES ('times' = 'every', 'retain' = '30 days')]
        AS SELECT ...; EXPLAIN [CREATE] MATERIALIZED VIEW ...; REFRESH MATERIALIZED VIEW name [FULL];
        DROP MATERIALIZED VIEW [IF EXISTS] name.
        """
        return load_views_module("sql.run_statement").run_statement(self, text, spark)

    def follow(
        self,
        names: Sequence[str] | None = None,
        *,
        every: DurationLike = 1.0,
        spark: Any = None,
        callback: Callable[[Any], object] | None = None,
    ) -> Any:
        """Keep some views, or all, fresh in a thread: it refreshes them as times of their inputs become complete.

        Views that share inputs are refreshed together, at most once per `every`. Errors are retried after pauses that
        grow, and shown by `.status()`. `callback` is called after each refresh, with what was done by name. Close the
        result, leave its `with`, or close the store to end it. `view.follow()` does the same in the calling thread.
        """
        return load_views_module("follow.follow_thread").Following(self, names, every, spark, callback)

    def _drop_view(self, owned: OwnedCollection, *, force: bool) -> bool:
        """Drop a view with its stages; raise the error again if the name is that of no view."""
        if owned.role != "view":
            raise owned
        load_views_module("registry").drop_view(self, owned.name, force=force)
        return True

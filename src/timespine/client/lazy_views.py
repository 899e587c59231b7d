"""The bridge to views: the layer above, which is optional and loaded on first use."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from timespine.client.refuse_pickle import OneProcess
from timespine.errors import OwnedCollection, UsageError

if TYPE_CHECKING:
    from timespine.client.catalog.catalog import Catalog
    from timespine.client.catalog.retention import RetentionLike
    from timespine.client.time_args import TimeLike


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
    ) -> Any:
        """Create a view from a SELECT over collections of this store; without `sql`, open the view of that name.

        A view is a collection that only refreshes write. `key` names the columns that identify a row of the result.
        `policy` is "auto" (compute changes from changes where there is a rule, otherwise recompute and diff, and say
        so), "incremental" (refuse what has no rule, with all reasons), or "full" (recompute and diff). `times` is
        "refresh": the view is exact at its refresh points. `spark` is the session for what this process cannot compute.
        """
        views = load_views_module("view")
        if sql is None:
            return views.open_view(self, name, spark)
        return views.create_view(self, name, sql, key=key, policy=policy, times=times, retain=retain, spark=spark)

    def views(self) -> list[str]:
        """List the names of all views, sorted."""
        return sorted(name for name, entry in self._catalog.read().entries.items() if entry.role == "view")

    def refresh(self, names: Sequence[str] | None = None, *, through: TimeLike | None = None, spark: Any = None) -> Any:
        """Refresh some views, or all, to one time in one commit; return what was done by name."""
        return load_views_module("refresh").refresh_together(self, names, through, spark)

    def _drop_view(self, owned: OwnedCollection, *, force: bool) -> bool:
        """Drop a view with its stages; raise the error again if the name is that of no view."""
        if owned.role != "view":
            raise owned
        load_views_module("registry").drop_view(self, owned.name, force=force)
        return True

"""Incremental views: queries over collections whose results are collections too. Needs `timespine[views]`.

plan/       the algebra, its rules for changes, typed expressions: pure
engine/     plans evaluated in the process, by Polars
sql/        SQL text to plans, and the reasons for what has none
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from timespine.views.refresh import Refreshed
    from timespine.views.sql.reasons import Reason
    from timespine.views.view import Verified, View, ViewStatus

_FROM = {"Reason": "sql.reasons", "Refreshed": "refresh", "Verified": "view", "View": "view", "ViewStatus": "view"}
"""The module of each public name."""


def __getattr__(name: str) -> Any:
    if name not in _FROM:
        raise AttributeError(f"module timespine.views has no attribute {name}")
    return getattr(importlib.import_module(f"timespine.views.{_FROM[name]}"), name)


__all__ = ["Reason", "Refreshed", "Verified", "View", "ViewStatus"]

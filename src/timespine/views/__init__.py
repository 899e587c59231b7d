"""Incremental views: queries over collections whose results are collections too. Needs `timespine[views]`.

plan/       the algebra, its rules for changes, typed expressions: pure
engine/     plans evaluated in the process, by Polars
sql/        SQL text to plans, and the reasons for what has none
refresh/    what one refresh does: choose the engine, compute what changes, commit
follow/     when views are refreshed, and the thread that does it
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from timespine.first_use import import_names

if TYPE_CHECKING:
    from timespine.views.follow.follow_loop import FollowedView, FollowStatus
    from timespine.views.follow.follow_thread import Following
    from timespine.views.refresh.refresh_views import Refreshed
    from timespine.views.run_statement import StatementResult
    from timespine.views.sql.refusal_reasons import Reason
    from timespine.views.status import InputStatus, RefreshPoint, StoredSize, ViewStatus
    from timespine.views.view import Rebuilt, Verified, View

_FROM = {
    "FollowStatus": "follow.follow_loop",
    "FollowedView": "follow.follow_loop",
    "Following": "follow.follow_thread",
    "Reason": "sql.refusal_reasons",
    "Refreshed": "refresh.refresh_views",
    "Verified": "view",
    "InputStatus": "status",
    "Rebuilt": "view",
    "RefreshPoint": "status",
    "StatementResult": "run_statement",
    "StoredSize": "status",
    "View": "view",
    "ViewStatus": "status",
}
"""The module of each public name."""

__getattr__ = import_names(__name__, _FROM)

__all__ = [
    "FollowStatus",
    "FollowedView",
    "Following",
    "InputStatus",
    "Reason",
    "Rebuilt",
    "RefreshPoint",
    "Refreshed",
    "StatementResult",
    "StoredSize",
    "Verified",
    "View",
    "ViewStatus",
]

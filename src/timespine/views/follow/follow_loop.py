"""Follow inputs: decide when views are refreshed, and refresh them. Driven from outside, by the clock of the caller.

    while not is_over:
        rest = loop.step(now)       look once, refresh what is due
        wait for a commit, but at most `rest.seconds`; with `rest.is_deaf` no commit matters before that

Views that share inputs, and views on views, form a group that is refreshed together, by one commit. A group is due when
a time is complete in all its inputs that its views lack, and its last refresh began at least `every` ago. After an
error it waits, longer each time. A view that cannot be computed leaves its group until it can, so that it holds back
only the views that read it.

Followers of several processes need no lock, as a refresh that loses a race plans again. So that they do not do the same
work, a follower that sees others move its views stands by: it refreshes them only if they stay behind for a grace
period. Then it goes ahead, and the other one stands by.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from timespine.client.api_for_engines import CATALOG_KEY, Store, catalog_entries, context_of, heads_of
from timespine.errors import StoreClosed, TimespineError, Unavailable, UnknownCollection, WrongProcess
from timespine.views.refresh.refresh_views import Refreshed, refresh_together
from timespine.views.registry import definitions, view_entry

BACKOFF_S = 0.5
"""The first pause after an error, in seconds; each further error doubles it."""

BACKOFF_MAX_S = 60.0
"""The longest pause after an error."""

GRACE_S = 1.0
"""Least seconds that a follower which stands by leaves views behind."""

LOG = logging.getLogger("timespine")


@dataclass(frozen=True, slots=True)
class Rest:
    """How long a follower may rest."""

    seconds: float
    """Seconds until something is due, if no commit happens."""
    is_deaf: bool
    """Whether nothing is due before that, whatever is committed."""


@dataclass(frozen=True, slots=True)
class FollowedView:
    """How a follower keeps one view."""

    time: int
    """The time that the view is exact at."""
    behind: int
    """How far the newest complete time of its inputs is ahead: milliseconds, or steps of a counter."""
    refreshes: int
    """The refreshes that this follower made."""
    last: Refreshed | None
    """What the last of them did."""
    error: str
    """Why the last try failed; empty if it did not."""
    stands_by: bool
    """Whether another follower keeps the view: this one waits whether it stays behind."""


@dataclass(frozen=True, slots=True)
class FollowStatus:
    """How a follower is doing."""

    is_running: bool
    """Whether it follows: it ends with its store, or when it is closed."""
    views: dict[str, FollowedView]
    """Its views by name."""
    looks: int
    """How often it looked at the logs."""
    error: str
    """Why the last look failed; empty if it did not."""


@dataclass(slots=True)
class _Group:
    """Views that are refreshed together."""

    views: dict[str, str]
    """The ids of the views by name."""
    inputs: frozenset[str]
    """The ids of what they read, without each other."""
    began: float | None = None
    """When the last refresh began."""
    seconds: float = 0.0
    """How long it took."""
    failures: int = 0
    """The errors since the last refresh that went well."""
    retry: float = 0.0
    """When to try again after an error."""
    left: dict[str, int] = field(default_factory=dict)
    """The uppers of the views when this follower last saw them."""
    stands_by: bool = False
    behind_since: float | None = None
    """When the group was first seen behind."""

    def inherit(self, old: _Group) -> None:
        """Take over what is known of a group that had some of the views."""
        self.began = max((each for each in (self.began, old.began) if each is not None), default=None)
        self.seconds = max(self.seconds, old.seconds)
        self.stands_by = self.stands_by or old.stands_by
        self.left |= {id: upper for id, upper in old.left.items() if id in self.views.values()}
        if self.views == old.views:
            self.failures, self.retry, self.behind_since = old.failures, old.retry, old.behind_since


class FollowLoop:
    """The views that are followed, and what is known of them. One thread calls `step`; any may ask for `status`."""

    def __init__(
        self,
        store: Store,
        names: Sequence[str] | None,
        every_s: float,
        spark: Any = None,
        callback: Callable[[dict[str, Refreshed]], object] | None = None,
    ) -> None:
        self._store = store
        self._names = list(names) if names is not None else None
        self._every_s = every_s
        self._spark = spark
        self._callback = callback
        self._groups: list[_Group] = []
        self._heads: dict[str, int | None] = {}
        self._uppers: dict[str, int | None] = {}
        """The uppers of views and inputs as of these heads; None: closed."""
        self._regroups = True
        """Whether the next look sorts the views into groups, though the catalog is the same."""
        self._looks = 0
        self._failed_looks = 0
        self._error = ""
        self.refreshes = 0
        """The refreshes of groups so far, failed ones included."""
        self._done: dict[str, tuple[int, Refreshed]] = {}
        self._errors: dict[str, str] = {}
        self._apart: set[str] = set()
        """The ids of views that could not be computed: each is a group by itself."""
        for name in self._names or ():
            view_entry(store, name)  # raises at once if it is no view

    # One step.

    def step(self, now: float) -> Rest:
        """Look at the logs, and refresh what is due; raise StoreClosed when the store is closed."""
        try:
            self._look(now)
            self._failed_looks, self._error = 0, ""
        except (StoreClosed, WrongProcess):
            raise
        except TimespineError as error:
            self._failed_looks += 1
            self._error = f"{type(error).__name__}: {error}"
            return Rest(_backoff_s(self._failed_looks), is_deaf=True)
        for group in self._groups:
            if self._due_at(group, now) <= now:
                self._refresh(group, now)
        return self._rest(now)

    def _rest(self, now: float) -> Rest:
        """Return until when nothing is due, unless something is committed."""
        ready = [self._ready_at(group) for group in self._groups]
        due = [self._due_at(group, now) for group in self._groups]
        # The refreshes above took time that `now` does not show: what is due by then is due in 0 seconds.
        is_deaf = bool(ready) and min(ready) > now
        seconds = min([*due, *(ready if is_deaf else [])], default=float("inf")) - now
        return Rest(max(seconds, 0.0), is_deaf)

    def _ready_at(self, group: _Group) -> float:
        """Return from when on a group may be refreshed, if it is behind by then."""
        paced = group.began + self._every_s if group.began is not None else float("-inf")
        return max(paced, group.retry) if group.failures else paced

    def _due_at(self, group: _Group, now: float) -> float:
        """Return when a group is to be refreshed, as far as is known; infinity if it is not behind."""
        if self._behind(group) <= 0:
            return float("inf")
        due = self._ready_at(group)
        if group.stands_by:
            since = group.behind_since if group.behind_since is not None else now
            due = max(due, since + max(GRACE_S, 2 * self._every_s, 2 * group.seconds))
        return due

    # Looking.

    def _look(self, now: float) -> None:
        """Learn of new views, and of uppers that moved, by one call for all heads."""
        self._looks += 1
        ids = {id for group in self._groups for id in (*group.views.values(), *group.inputs)}
        heads = dict(heads_of(self._store, [CATALOG_KEY, *sorted(ids)]))
        if self._regroups or self._heads.get(CATALOG_KEY) != heads[CATALOG_KEY]:
            # SUBTLE: the graph is read after the head, so that a view which is created meanwhile is seen by the next
            # look (test_follow.py).
            self._groups, self._regroups = self._grouped(self._groups), False
            ids = {id for group in self._groups for id in (*group.views.values(), *group.inputs)}
            heads |= dict(heads_of(self._store, sorted(ids - heads.keys())))
        committer = context_of(self._store).committer
        for id in sorted(ids):
            if self._heads.get(id) != heads[id] or id not in self._uppers:
                upper = committer.state(id).upper
                self._uppers[id] = None if upper.is_closed else upper.time
        self._heads = {key: head for key, head in heads.items() if key == CATALOG_KEY or key in ids}
        for group in self._groups:
            self._judge(group, now)

    def _judge(self, group: _Group, now: float) -> None:
        """Notice that a group is behind, and that others have moved it."""
        uppers = {id: self._uppers[id] or 0 for id in group.views.values()}
        if any(uppers[id] > group.left[id] for id in uppers if id in group.left):
            group.stands_by, group.failures = True, 0
        group.left = uppers
        if self._behind(group) <= 0:
            group.behind_since = None
        elif group.behind_since is None:
            group.behind_since = now

    def _behind(self, group: _Group) -> int:
        """Return how far the views of a group are behind the newest time that is complete in all its inputs."""
        newest = [upper for id in group.inputs if (upper := self._uppers.get(id)) is not None]
        if not newest:
            return 0
        return min(newest) - min(self._uppers.get(id) or 0 for id in group.views.values())

    def _grouped(self, known: list[_Group]) -> list[_Group]:
        """Sort the views into groups that share inputs."""
        entries = {
            name: entry
            for name, entry in catalog_entries(self._store).items()
            if entry.role == "view" and (self._names is None or name in self._names)
        }
        stored = definitions(self._store)
        reads = {
            name: {each.id for each in stored[entry.id].inputs} for name, entry in entries.items() if entry.id in stored
        }
        groups: list[tuple[dict[str, str], set[str]]] = []
        for name, inputs in reads.items():
            views, touched = {name: entries[name].id}, {entries[name].id, *inputs}
            others = []
            for group in groups:
                is_apart = bool(self._apart & {*views.values(), *group[0].values()})
                if not is_apart and group[1] & touched:
                    views, touched = {**group[0], **views}, touched | group[1]
                else:
                    others.append(group)
            groups = [*others, (views, touched)]
        made = [_Group(views, frozenset(touched - set(views.values()))) for views, touched in groups]
        for new in made:
            for old in known:
                if set(old.views.values()) & set(new.views.values()):
                    new.inherit(old)
        self._apart &= {entries[name].id for name in reads}
        self._errors = {name: error for name, error in self._errors.items() if name in reads}
        return made

    # Refreshing.

    def _refresh(self, group: _Group, now: float) -> None:
        """Refresh a group. If a view of it cannot be computed, refresh each alone, and part with those that fail."""
        clock = context_of(self._store).monotonic
        begun = clock()
        group.began = now
        self.refreshes += 1
        done: dict[str, Refreshed] = {}
        error = self._try(list(group.views), done)
        if error is not None and not isinstance(error, Unavailable) and len(group.views) > 1:
            failed = {name for name in self._in_order(group) if self._try([name], done) is not None}
            self._apart |= {group.views[name] for name in failed}
            self._regroups = True
        elif error is not None:
            group.failures += 1
            group.retry = now + _backoff_s(group.failures)
        else:
            group.failures = 0
            self._regroups = self._regroups or bool(self._apart & set(group.views.values()))
            self._apart -= set(group.views.values())
        group.seconds = clock() - begun
        self._note(group, done)
        if done and self._callback is not None:
            self._callback(done)

    def _try(self, names: list[str], done: dict[str, Refreshed]) -> Exception | None:
        """Refresh some views; return the error, if there was one."""
        try:
            done |= refresh_together(self._store, names, None, self._spark)
        except (StoreClosed, WrongProcess):
            raise
        except UnknownCollection:
            self._regroups = True  # a view was dropped just now: the next look leaves it out
            return None
        except Exception as error:
            for name in names:
                self._errors[name] = f"{type(error).__name__}: {error}"
            LOG.warning("%s was not refreshed: %s", ", ".join(names), error)
            return error
        for name in names:
            self._errors.pop(name, None)
        return None

    def _note(self, group: _Group, done: dict[str, Refreshed]) -> None:
        """Remember what a refresh did, and where it left the views."""
        committer = context_of(self._store).committer
        for name, each in done.items():
            id = group.views[name]
            state = committer.known(id)
            self._uppers[id] = group.left[id] = state.upper.time
            self._heads[id] = state.seqno
            if each.engine != "none":
                self._done[name] = (self._done.get(name, (0,))[0] + 1, each)
        if done:
            # If there was nothing left to do, another follower was first.
            group.stands_by = all(each.engine == "none" for each in done.values())
        if self._behind(group) <= 0:
            group.behind_since = None

    def _in_order(self, group: _Group) -> list[str]:
        """Sort views so that each comes after those that it reads."""
        stored = definitions(self._store)
        names = {id: name for name, id in group.views.items()}
        order: dict[str, None] = {}

        def add(id: str) -> None:
            if id in stored and names[id] not in order:
                for each in stored[id].inputs:
                    if each.id in names:
                        add(each.id)
                order[names[id]] = None

        for id in names:
            add(id)
        return list(order)

    # Reporting.

    def status(self, *, is_running: bool) -> FollowStatus:
        """Say how the views are kept."""
        found = {}
        for group in list(self._groups):
            newest = [upper for id in group.inputs if (upper := self._uppers.get(id)) is not None]
            for name, id in group.views.items():
                upper = self._uppers.get(id) or 0
                refreshes, last = self._done.get(name, (0, None))
                behind = max(min(newest, default=upper) - upper, 0)
                found[name] = FollowedView(
                    upper - 1, behind, refreshes, last, self._errors.get(name, ""), group.stands_by
                )
        return FollowStatus(is_running, dict(sorted(found.items())), self._looks, self._error)


def _backoff_s(failures: int) -> float:
    """Return the pause after some errors in a row."""
    return float(min(BACKOFF_S * 2 ** min(failures - 1, 30), BACKOFF_MAX_S))

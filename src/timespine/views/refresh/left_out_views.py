"""Leave out of a refresh of all views those that cannot be refreshed, and those that read them.

One view that fails (a division by zero, a key with several rows, an input that was dropped by force, stages of another
version) stays where it is, and the others are committed as if it were not there. Who names views gets the error.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from timespine.errors import (
    ClosedError,
    LateRows,
    ReadOnlyStore,
    SinceError,
    StoreClosed,
    TimespineError,
    UnknownCollection,
    UsageError,
    WrongProcess,
)
from timespine.views.refresh.refresh_one_view import Work

LOG = logging.getLogger("timespine")

RACES = (SinceError, UnknownCollection, ClosedError)
"""Errors that mean that another process was first, or else that history or an input of the view is gone."""


@dataclass(slots=True)
class LeftOutViews:
    """The views that one try of a refresh has left out."""

    is_allowed: bool
    """Whether views may be left out: all were asked for, and none by its name."""
    errors: dict[str, str] = field(default_factory=dict)
    """Why, by the names of the views."""
    _ids: dict[str, str] = field(default_factory=dict)
    """The names of these views, by their ids."""

    @contextlib.contextmanager
    def leave_out_on_error(self, name: str, id: str, was_overtaken: Callable[[], bool] | None = None) -> Iterator[None]:
        """Leave a view out if what is done inside fails for a reason of its own; raise all other errors.

        `was_overtaken` tells whether another process was first, so that the refresh is planned again instead.
        """
        try:
            yield
        except Exception as error:
            if not self.is_allowed or not _is_of_view(error):
                raise
            if isinstance(error, RACES) and was_overtaken is not None and was_overtaken():
                raise
            message = str(error) if isinstance(error, TimespineError) else f"{type(error).__name__}: {error}"
            self._add(name, id, message if f"view {name} " in message else f"view {name}: {message}")

    def remaining(self, works: list[Work]) -> list[Work]:
        """Return the views that are not left out; leave out those that read others that are."""
        kept = [work for work in works if work.name not in self.errors]
        lost = True
        while lost:  # a view may stand before those that it reads
            lost = False
            for work in kept:
                inputs = [self._ids[each.id] for each in work.definition.inputs if each.id in self._ids]
                if inputs:
                    why = f"view {work.name} was not refreshed, because its input {inputs[0]} was not"
                    self._add(work.name, work.id, why)
                    lost = True
            kept = [work for work in kept if work.name not in self.errors]
        return kept

    def _add(self, name: str, id: str, why: str) -> None:
        self.errors[name], self._ids[id] = why, name

    def log(self) -> None:
        """Log why views were left out."""
        for why in self.errors.values():
            LOG.warning("%s", why)


def _is_of_view(error: Exception) -> bool:
    """Return whether an error may be that of one view; that of storage, of the call or of our own bugs is not."""
    if has_lost_rows(error) or isinstance(error, LateRows | StoreClosed | WrongProcess | ReadOnlyStore):
        return False
    if isinstance(error, TimespineError):
        return isinstance(error, (UsageError, *RACES))
    return not isinstance(error, AssertionError | OSError | MemoryError)


def has_lost_rows(error: BaseException | None) -> bool:
    """Return whether Spark has lost rows with the executor that kept them (`spark_engine.frames.cut_off`)."""
    while error is not None:
        if "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND" in str(error):
            return True
        error = error.__cause__
    return False

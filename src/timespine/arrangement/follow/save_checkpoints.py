"""Save the state of an arrangement now and then, and verify what was restored.

`core/arrangement/checkpoint_policy.py` says when.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from timespine.arrangement.batch.chunk import Chunk
from timespine.arrangement.follow.begin_following import Followed
from timespine.arrangement.follow.checkpoint_origin import origin_of
from timespine.arrangement.follow.followed_rows import Question
from timespine.client.api_for_engines import CollectionHandle
from timespine.core.arrangement.checkpoint_policy import save_pause_s
from timespine.errors import Determinate, TimespineError, UsageError
from timespine.locks import Lock
from timespine.model.frontier import Frontier

logger = logging.getLogger(__name__)

SAVE_S = 3600.0
"""How long one save may wait for another: a large one writes gigabytes."""

FAILED_S = 1.5
"""What a save that failed counts as cost, at least: so the next try comes half a minute later."""


class Saving:
    """The checkpoints of one arrangement. Without a folder there are none."""

    def __init__(self, handle: CollectionHandle, question: Question, followed: Followed) -> None:
        self.lock = Lock("saving an arrangement", SAVE_S)
        """Held while a checkpoint is written, and while another spine takes the folder."""
        self._handle = handle
        self._question = question
        self._saves = self._failures = 0
        self._seconds = 0.0
        self._cost_s = 0.0
        """Seconds of the last save."""
        self.begin(followed)

    def begin(self, followed: Followed) -> None:
        """Begin with a spine: what it was restored from is saved already, and not verified."""
        self._followed = followed
        self._saved_upper: Frontier | None = followed.spine.upper if followed.is_restored else None
        self._saved_at = self._handle.context.monotonic()
        self._saved_takes: int | None = None
        batches = followed.spine.batches if followed.is_restored else ()
        self._unverified: Iterator[Chunk] = (chunk for batch in batches for chunk in batch.chunks)

    @property
    def is_changed(self) -> bool:
        """Return whether more times are complete than at the last save: otherwise nothing is saved."""
        upper = self._followed.spine.upper
        return upper is not None and upper != Frontier.minimum(1) and upper != self._saved_upper

    def save_if_due(self, takes: int) -> bool:
        """Save if that is due; `takes` are the updates that were taken so far."""
        if self._question.folder is None or not self.is_changed:
            return False
        rows = len(self._followed.spine)
        changed = rows if self._saved_upper is None else takes - (self._saved_takes or 0)
        elapsed = self._handle.context.monotonic() - self._saved_at
        return elapsed >= save_pause_s(rows, changed, self._cost_s) and self.save(takes)

    def save(self, takes: int) -> bool:
        """Save a checkpoint; return False if it has all that there is already."""
        if self._question.folder is None:
            raise UsageError("this arrangement has no folder: arrange the collection with one")
        with self.lock:
            if not self.is_changed:
                return False
            followed, began = self._followed, self._handle.context.monotonic()
            upper = followed.spine.upper
            assert upper is not None
            origin = origin_of(self._handle.id, self._question).at(upper, self._handle.known())
            try:
                followed.spine.save(origin=origin.encode())
            except BaseException as error:
                self._failures += 1
                self._count_cost(began, FAILED_S)
                if isinstance(error, OSError):
                    raise Determinate(
                        f"no checkpoint was written to {self._question.folder}: {error.strerror}"
                    ) from error
                raise
            self._count_cost(began, 0.0)
            self._saves += 1
            self._saved_upper, self._saved_takes = upper, takes
            return True

    def _count_cost(self, began: float, least_s: float) -> None:
        self._saved_at = self._handle.context.monotonic()
        self._seconds += self._saved_at - began
        self._cost_s = max(self._saved_at - began, least_s)

    def save_at_end(self, takes: int) -> None:
        """Save what there is when the arrangement ends. A failure costs a read at the next start."""
        if self._question.folder is None:
            return
        try:
            self.save(takes)
        except TimespineError as error:
            logger.warning("the last checkpoint of %s was not saved: %s", self._handle.name, error)

    def verify_some(self) -> bool:
        """Verify one chunk that was restored; return False if all are. Raises CorruptionError if it is damaged."""
        chunk = next(self._unverified, None)
        return chunk is not None and bool(chunk.columns)

    def figures(self) -> dict[str, Any]:
        """Return figures for `metrics`."""
        return {
            "checkpoints saved": self._saves,
            "checkpoints failed": self._failures,
            "seconds saving checkpoints": self._seconds,
        }

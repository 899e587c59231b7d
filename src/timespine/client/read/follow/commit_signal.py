"""Wait for commits to a store, to any of its collections."""

from __future__ import annotations

from collections.abc import Callable

from timespine.locks import Bell

POLL_MIN_S = 0.002
"""Seconds between the first two looks of a waiting reader at a log: each later pause is half as long again."""


class CommitSignal:
    """The signal of commits, for one thread that waits for them.

    Commits of this process wake the thread at once, and so do those of others where storage tells about them. For the
    rest, each wait without news is longer than the one before, up to a limit: the caller looks at the logs in between.
    """

    def __init__(self, bell: Bell, pause_max_s: float, listen: Callable[[Callable[[], None]], None] | None) -> None:
        self._bell = bell
        self._pause_s, self._pause_max_s = POLL_MIN_S, pause_max_s
        if listen is not None:
            listen(bell.ring)

    @property
    def mark(self) -> int:
        """The number of the last commit that was heard of: read it before looking, and wait for one after it."""
        return self._bell.count

    def wait(self, mark: int, limit_s: float) -> None:
        """Wait until a commit after a mark, a limit, or the end of the present pause."""
        pause_s = self._pause_s
        self._pause_s = min(pause_s * 1.5, self._pause_max_s)
        if limit_s > 0:
            self._bell.wait(mark, min(limit_s, pause_s))

    def expect_more(self) -> None:
        """Make the next pause short: there was news, and more may follow."""
        self._pause_s = POLL_MIN_S

    def expect_nothing(self) -> None:
        """Make the next pause the longest: storage is unavailable."""
        self._pause_s = self._pause_max_s

    def ring(self) -> None:
        """Wake the thread."""
        self._bell.ring()

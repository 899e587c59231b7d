"""Wait for commits to a store, to any of its collections."""

from __future__ import annotations

from timespine.client.inner_handles import POLL_LISTENING_S, POLL_MAX_S, POLL_MIN_S, StoreContext


class CommitSignal:
    """The signal of commits, for one thread that waits for them.

    Commits of this process wake the thread at once, and so do those of others where storage tells about them. For the
    rest, each wait without news is longer than the one before, up to a limit: the caller looks at the logs in between.
    """

    def __init__(self, context: StoreContext) -> None:
        self._bell = context.committed
        self._pause_s, self._pause_max_s = POLL_MIN_S, POLL_MAX_S
        if context.listen is not None:
            context.listen(context.committed.ring)
            self._pause_max_s = POLL_LISTENING_S

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

    def ring(self) -> None:
        """Wake the thread."""
        self._bell.ring()

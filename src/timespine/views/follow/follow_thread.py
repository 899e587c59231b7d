"""Keep views fresh: in a thread that ends with its store, or in the thread of the caller."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from timespine.client.api_for_engines import (
    DurationLike,
    Store,
    context_of,
    end_with_store,
    parse_duration_ms,
)
from timespine.errors import Determinate, StoreClosed, UsageError, WrongProcess
from timespine.locks import Flag
from timespine.views.follow.follow_loop import FollowLoop, FollowStatus, Rest
from timespine.views.refresh.refresh_views import Refreshed

CLOSE_S = 60.0
"""Seconds that closing waits for a refresh that runs, unless the caller gives a timeout."""

LOG = logging.getLogger("timespine")

Callback = Callable[[dict[str, Refreshed]], object]
"""What is called after each refresh, with what was done by name."""


class Following:
    """A thread that keeps views fresh. Close it, leave its `with`, or close the store to end it.

    The thread is a daemon: a program that ends does not wait for it. A refresh that is cut off has no effect, and the
    next one computes the same.
    """

    def __init__(
        self, store: Store, names: Sequence[str] | None, every: DurationLike, spark: Any, callback: Callback | None
    ) -> None:
        self._follower = _Follower(store, names, every, spark, callback)
        self._thread = threading.Thread(target=self._follow, name="timespine-views", daemon=True)
        self.error: BaseException | None = None
        """The error that ended the thread; None if it runs, or was closed."""
        end_with_store(store, self)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether the thread follows."""
        return self._thread.is_alive() and not self._follower.ended.is_set()

    def status(self) -> FollowStatus:
        """Say how far each view is, and what the last refreshes did."""
        return self._follower.loop.status(is_running=self.is_running)

    def close(self, timeout: float = CLOSE_S) -> None:
        """End the thread after the refresh that runs; raise Determinate if that takes longer than `timeout` seconds."""
        self._follower.end()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)
            if self._thread.is_alive():
                raise Determinate(f"a refresh of views still runs after {timeout:.0f} s: close the follower again")

    def __enter__(self) -> Following:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<following {', '.join(self.status().views) or 'no views'}>"

    def _follow(self) -> None:
        try:
            self._follower.run(float("inf"))
        except (StoreClosed, WrongProcess):
            pass  # the store ended first
        except BaseException as error:
            self.error = error
            LOG.error("views are followed no more: %s", type(error).__name__, exc_info=error)
        finally:
            self._follower.ended.set()


def follow_in_foreground(
    store: Store,
    names: Sequence[str] | None,
    every: DurationLike,
    spark: Any,
    callback: Callback | None,
    timeout: float | None,
) -> FollowStatus:
    """Keep views fresh in this thread, until an interrupt, the end of the store, or the timeout; return how it went."""
    follower = _Follower(store, names, every, spark, callback)
    end_with_store(store, follower)
    try:
        follower.run(float("inf") if timeout is None else timeout)
    except StoreClosed:
        if not follower.ended.is_set():
            raise  # it was closed before
    finally:
        follower.ended.set()
    return follower.loop.status(is_running=False)


class _Follower:
    """A loop, and the waits between its steps."""

    def __init__(
        self, store: Store, names: Sequence[str] | None, every: DurationLike, spark: Any, callback: Callback | None
    ) -> None:
        if isinstance(names, str):
            raise UsageError("name the views in a list")
        self.loop = FollowLoop(store, names, parse_duration_ms(every) / 1000, spark, callback)
        self.ended = Flag()
        """Set when no further step is to be made."""
        self._monotonic = context_of(store).monotonic
        self._signal = context_of(store).signal()

    def end(self) -> None:
        """Make no further step."""
        self.ended.set()
        self._signal.ring()

    close = end
    """The end of the store calls this."""

    def run(self, limit_s: float) -> None:
        """Make steps until the end, or a limit."""
        deadline = self._monotonic() + limit_s
        while not self.ended.is_set() and (now := self._monotonic()) < deadline:
            # SUBTLE: the mark is read before the look, so that a commit after it is not missed (test_follow.py).
            mark = self._signal.mark
            looked = self.loop.refreshes
            pause = self.loop.step(now)
            if self.loop.refreshes != looked:
                self._signal.expect_more()
            self._rest(mark, now, pause, deadline)

    def _rest(self, mark: int, begun: float, pause: Rest, deadline: float) -> None:
        left_s = min(begun + pause.seconds, deadline) - self._monotonic()
        if left_s <= 0 or self.ended.is_set():
            return
        if pause.is_deaf:
            self.ended.wait(left_s)
        else:
            self._signal.wait(mark, left_s)

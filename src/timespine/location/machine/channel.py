"""Channels: how the processes of a machine ask the one that has a role to do something for them.

A channel carries bytes and decides nothing. A request whose reply is lost may have been carried out, now or later:
what it was about must tell.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from timespine.location.machine.role import Role

Answer = Callable[[bytes], bytes]
"""A function that carries out a request of another process, in a thread of its own, and returns the reply."""

REQUEST_BYTES_MAX = 4 << 20
"""The most bytes of a request, and of a reply."""

ANSWER_S = 5.0
"""Seconds that a process waits for the reply to a request. A commit takes milliseconds; a process that was suspended
takes any time, and the ones that asked it go on without it."""


class Channel(Role, Protocol):
    """A role, and the requests of the processes that do not have it to the one that has it."""

    def listen(self, answer: Answer) -> bool:
        """Answer requests from now on: the process has the role. Return False if it cannot."""
        ...

    def ask(self, request: bytes) -> bytes:
        """Send a request to the process that has the role; return its reply.

        Raise Determinate if it was not sent, and Indeterminate if no reply came in time.
        """
        ...

    def stop(self, limit_s: float) -> bool:
        """Take no more requests, and wait for those that were begun; return False if one still runs after the limit.

        Twice is fine.
        """
        ...


def channel_of(consensus: object, name: str) -> Channel | None:
    """Return the channel of a role of the storage behind a Consensus; None if there is none."""
    make = getattr(consensus, "channel", None)
    found: Channel | None = None if make is None else make(name)
    return found

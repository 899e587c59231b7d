"""A collection that asks for a merge."""

from __future__ import annotations

from collections.abc import Callable

from protocol_harness import ProtocolHarness, at, up

from timespine.core.protocols.session import Session
from timespine.core.transitions import Retain, RollUpAll


def asked_for_a_merge(rows: int = 3, since: int = 2) -> tuple[ProtocolHarness, Session, Session]:
    """A collection whose parts are to be merged up to since, the last one untouched; and two sessions."""
    stage = ProtocolHarness()
    other, session = stage.session(), stage.session()
    for when in range(rows):
        stage.append(session, when + 1, up(f"r{when}", when), up("all", when))
    stage.append(session, rows + 1, up("own", rows))
    stage.commit(session, Retain(at(since)))
    stage.commit(session, RollUpAll())
    assert len(stage.head().trace.requests()) == 1
    return stage, session, other


def mergers(stage: ProtocolHarness) -> list[str]:
    """The writers that are registered for merges."""
    return [writer for writer in stage.head().writers if writer.startswith("m")]


def merged_blobs(stage: ProtocolHarness) -> list[str]:
    """The blobs that merges have put."""
    return [key for key in stage.there() if key.split("/")[1].startswith("m")]


def raising(error: Exception) -> Callable[[object], object]:
    """An answer that is an error."""

    def answer(effect: object) -> object:
        raise error

    return answer

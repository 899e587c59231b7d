"""A written collection that tests of reads of the core share."""

from __future__ import annotations

from protocol_harness import CONFIG, ProtocolHarness, up

from timespine.core.protocols.garbage import collect_garbage
from timespine.core.protocols.maintain import expire_lapsed_leases, roll_up
from timespine.core.protocols.session import Session
from timespine.model.oracle import OracleRow
from timespine.testing.formats.naive import row_counts


def written(upto: int = 4) -> tuple[ProtocolHarness, Session, Session]:
    """A collection with one row per time, and two sessions."""
    stage = ProtocolHarness()
    other, session = stage.session(), stage.session()
    for when in range(upto):
        stage.append(session, when + 1, up(f"r{when}", when))
    return stage, session, other


def counts(reply: object) -> dict[OracleRow, int]:
    """What a read that succeeded leads to."""
    assert isinstance(reply, tuple), reply
    return row_counts(*reply)


def some(*times: int) -> dict[str, int]:
    """The rows of some times, once each."""
    return {f"r{when}": 1 for when in times}


def compact_and_collect(stage: ProtocolHarness, session: Session, since: int) -> None:
    """Rewrite everything and delete what was there before, as far as readers allow."""
    stage.compact(session, since)
    for _ in range(2):
        stage.run(roll_up(session, "c"))
        stage.run(collect_garbage(session, "c"))


def lapse(stage: ProtocolHarness, session: Session) -> None:
    """Let every reader's lease lapse, and be removed."""
    stage.now_ms += CONFIG.reader_lease_ms + 1
    stage.run(expire_lapsed_leases(session, "c"))
    assert not stage.head().readers

"""Appends that tests of the commit protocol share."""

from __future__ import annotations

from typing import Any

import pytest
from protocol_harness import CONFIG, Fault, ProtocolHarness, at, up

from timespine.config import Config
from timespine.core.effects import CompareAndSet, Sleep
from timespine.core.protocols.garbage import collect_garbage
from timespine.core.protocols.maintain import roll_up
from timespine.core.protocols.session import Session
from timespine.core.transitions import ExpireCommitter
from timespine.errors import Indeterminate
from timespine.testing.formats.naive import data_of
from timespine.testing.simulator.core_writes import compare_and_append_data


def append(session: Session, expected: int = 0, upper: int = 1) -> Any:
    """Append a row from one upper to another."""
    data = data_of([up(f"{session.writer}-{expected}", expected)])
    return compare_and_append_data(session, "c", data, at(expected), at(upper))


def frozen_append(fault: Fault, config: Config = CONFIG) -> tuple[ProtocolHarness, Session]:
    """A session whose append lost its reply, and storage did not answer ever since."""
    stage = ProtocolHarness()
    session = stage.session(config=config)
    stage.fail(CompareAndSet, fault)
    stage.fail(CompareAndSet, Fault.DETERMINATE, nth=2, times=config.storage_attempts)
    with pytest.raises(Indeterminate, match="may or may not be committed"):
        stage.run(append(session))
    assert session.frozen is not None
    assert len(stage.of(Sleep)) == session.counters["retries"] == config.storage_attempts
    return stage, session


def take_over(stage: ProtocolHarness, other: Session, session: Session) -> None:
    """Expire a session's committer, and cut the log beyond that: nothing tells which groups of it are in."""
    stage.commit(other, ExpireCommitter(session.committer))
    stage.run(roll_up(other, "c"))
    stage.run(collect_garbage(other, "c"))

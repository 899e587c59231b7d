"""Collections with garbage that tests of collection and sweep share."""

from __future__ import annotations

import msgspec
from protocol_harness import ProtocolHarness, at, up

from timespine.core.batch import Part
from timespine.core.effects import DeleteBlobs
from timespine.core.protocols.garbage import collect_garbage
from timespine.core.protocols.maintain import roll_up, tidy_unsealed
from timespine.core.protocols.session import Session
from timespine.core.transitions import Seal
from timespine.testing.formats.naive import data_of
from timespine.testing.simulator.core_writes import write_data


def opened() -> tuple[ProtocolHarness, Session, Session]:
    """A collection, a session, and another one that entered before it."""
    stage = ProtocolHarness()
    other, session = stage.session(), stage.session()
    return stage, session, other


def compacted(appends: int = 4) -> tuple[ProtocolHarness, Session, Session]:
    """A collection whose first parts were merged into others, the last one passed through; with a rollup."""
    stage, session, other = opened()
    for when in range(appends):
        stage.append(session, when + 1, up(f"r{when}", when))
    stage.compact(session, appends - 1)
    assert stage.run(roll_up(session, "c")) is True
    return stage, session, other


def littered() -> tuple[ProtocolHarness, Session]:
    """Garbage of every kind: runs and parts inside of runs and by themselves, merges of merges, a rollup, a write."""
    stage, session, _ = opened()
    prefix = f"c/{session.writer}"
    x, y, z = (stage.put(f"{prefix}/q-{row}", up(row, 0)) for row in "xyz")
    inner = stage.put_run(session, f"{prefix}/h-inner", y, z)
    outer = stage.put_run(session, f"{prefix}/h-outer", x, inner)
    stage.append_parts(session, 1, outer)
    y_again, z_again, inner_again = (msgspec.structs.replace(part, rewrite=at(1)) for part in (y, z, inner))
    stage.append_parts(session, 2, stage.put_run(session, f"{prefix}/h-again", y_again), z_again, inner_again)
    stage.world.truth["c"] += [up(row, 0) for row in "xyz"] + [up(row, 1, 2) for row in "yz"]
    stage.run(roll_up(session, "c"))
    stage.append(session, 3, *(up(f"five{index}", 2) for index in range(5)))
    stage.run(write_data(session, "c", data_of([up("ahead", 3)]), at(3), (3,)))
    stage.commit(session, Seal(at(4)))
    stage.run(tidy_unsealed(session, "c"))
    stage.append(session, 5, up("first", 4))
    stage.compact(session, 4)  # a hollow run
    stage.append(session, 6, up("last", 5))
    stage.compact(session, 5)  # and another in its place
    assert stage.run(roll_up(session, "c")) is True
    stage.put_run(session, inner.key, y, z, Part("", 1, inline=b"", diff_sum=0))  # only garbage collection reads it now
    return stage, session


def settle(stage: ProtocolHarness, session: Session) -> None:
    """Collect until only what the last few states refer to is left."""
    for _ in range(2):
        assert stage.run(roll_up(session, "c")) is True
        stage.run(collect_garbage(session, "c"))


def deleted(stage: ProtocolHarness) -> list[str]:
    """The keys that the last run asked to delete, in order."""
    return [key for each in stage.of(DeleteBlobs) for key in each.keys]

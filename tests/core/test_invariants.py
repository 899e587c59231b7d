"""Every named invariant, broken on purpose: it must be the one that is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from random_commands import close
from state_harness import TERM_MS, WRITER, StateHarness, at, inline_part, up

from timespine.core.batch import Part
from timespine.core.invariants import INVARIANTS, violations
from timespine.core.spine.layers import Layer
from timespine.core.state import Claim, Committer, HoldRecord, Lease, Reader, Rollup, State, Status, Turn, new_state
from timespine.core.totals import Totals
from timespine.core.transitions import (
    AddRollup,
    AddSchema,
    ClaimTurn,
    CommitSink,
    Drain,
    RegisterCommitter,
    RegisterHold,
    RegisterReader,
    Retain,
    Seal,
)
from timespine.core.unsealed_index import UnsealedBatch, UnsealedIndex
from timespine.model import CLOSED, Frontier


def scene_of_everything() -> StateHarness:
    """Two batches, three writes (one drained, one partly), and somebody of every kind."""
    scene = StateHarness()
    scene.append(at(1), up("a", 0), key="c/w1/p0")
    scene.write(up("b", 1))
    scene.write(up("c", 1), up("c", 9))
    scene.write(up("d", 9))
    scene.do(Seal(at(3)))
    scene.do(Drain())
    scene.do(RegisterReader("r1", at(2), TERM_MS))
    scene.do(RegisterHold("h1", at(2), "t"))
    scene.do(Retain(at(1)))
    scene.do(RegisterCommitter("k1", TERM_MS))
    scene.do(CommitSink("s1", 4))
    scene.do(AddSchema(None, b"one"))
    scene.do(AddRollup(2, "c/w1/s2", 9))
    scene.do(Seal(at(4)))
    scene.do(ClaimTurn(WRITER, 1000), now_ms=1000)
    return scene


def replaced(state: State, **changes: Any) -> State:
    return msgspec.structs.replace(state, **changes)


def since_at(state: State, since: Frontier) -> State:
    """The state with another since, and nothing else."""
    return replaced(state, trace=replaced(state.trace, since=since))  # type: ignore[arg-type]


def trace_at(state: State, upper: Frontier) -> State:
    """The state with another upper of the trace, and nothing else."""
    return replaced(state, trace=replaced(state.trace, upper=upper))  # type: ignore[arg-type]


def without_merges(state: State) -> State:
    """The state with layers that are full and do not merge."""
    layers = tuple(Layer(layer.batches * 2) for layer in state.trace.layers)
    return replaced(state, trace=replaced(state.trace, layers=layers))  # type: ignore[arg-type]


def unsealed(state: State, keep: Callable[[UnsealedBatch], bool]) -> State:
    kept = UnsealedIndex.of(batch for batch in state.unsealed if keep(batch))
    inline = sum(len(part.inline or b"") for batch in state.unsealed if not keep(batch) for part in batch.parts)
    return replaced(state, unsealed=kept, inline_bytes=state.inline_bytes - inline)


def with_part(state: State, part: Part) -> State:
    written = UnsealedBatch(state.unsealed_next, at(9), (9,), 1, (part,))
    return replaced(state, unsealed=state.unsealed.append(written), unsealed_next=state.unsealed_next + 1)


READER = Reader(at(2), 9, TERM_MS, TERM_MS)

BROKEN: list[tuple[str, Callable[[State], State]]] = [
    ("seqno_is_dense", lambda s: replaced(s, seqno=s.seqno - 1)),
    ("seqno_is_dense", lambda s: replaced(s, seqno=s.seqno + 1)),
    ("identity_stays", lambda s: replaced(s, collection="d")),
    ("identity_stays", lambda s: replaced(s, arity=2)),
    ("upper_never_goes_back", lambda s: replaced(s, upper=at(3))),
    ("since_never_goes_back", lambda s: since_at(s, at(0))),
    ("since_respects_holds", lambda s: replaced(since_at(s, at(3)), retention=at(3))),
    ("since_respects_holds", lambda s: replaced(s, holds={"h1": HoldRecord(at(0), "t")})),
    ("since_respects_holds", lambda s: replaced(s, readers={"r1": replaced(s.readers["r1"], since=at(0))})),  # type: ignore[arg-type]
    ("since_moves_only_for_retention", lambda s: since_at(s, at(2))),
    ("trace_is_valid", without_merges),
    ("trace_is_not_ahead", lambda s: trace_at(s, at(5))),
    ("trace_never_goes_back", lambda s: trace_at(s, at(2))),
    ("unsealed_numbers_increase", lambda s: replaced(s, unsealed=UnsealedIndex.of(reversed(tuple(s.unsealed))))),
    ("unsealed_numbers_increase", lambda s: replaced(s, unsealed_next=2)),
    ("unsealed_numbers_increase", lambda s: replaced(unsealed(s, lambda b: False), unsealed_next=2)),
    ("unsealed_goes_only_when_drained", lambda s: unsealed(s, lambda b: b.seqno != 1)),
    ("unsealed_goes_only_when_drained", lambda s: unsealed(s, lambda b: b.seqno != 2)),
    ("groups_never_go_back", lambda s: replaced(s, committers={"k1": Committer(-1, 0, 1)})),
    ("sinks_never_go_back", lambda s: replaced(s, sinks={"s1": 3})),
    ("reader_seqnos_never_go_back", lambda s: replaced(s, readers={"r1": replaced(s.readers["r1"], seqno=0)})),  # type: ignore[arg-type]
    ("reader_seqnos_never_go_back", lambda s: replaced(s, readers={"r9": replaced(READER, seqno=s.seqno + 1)})),  # type: ignore[arg-type]
    ("new_blobs_have_writers", lambda s: with_part(s, Part("c/w9/p", 1))),
    ("new_blobs_have_writers", lambda s: with_part(s, Part("d/w1/p", 1))),
    ("new_blobs_have_writers", lambda s: replaced(s, rollups={**s.rollups, 3: Rollup("c/w9/s3", 1)})),
    ("inline_bytes_add_up", lambda s: replaced(s, inline_bytes=s.inline_bytes + 1)),
    ("inline_bytes_add_up", lambda s: with_part(s, inline_part([up("a", 9)]))),
    ("rollups_are_of_the_past", lambda s: replaced(s, rollups={**s.rollups, s.seqno: Rollup("c/w1/s", 1)})),
    ("last_needed_rollup_stays", lambda s: replaced(s, rollups={})),
    ("claims_are_on_fueled_batches", lambda s: replaced(s, claims={(0, 1): Claim("m", 9)})),
    ("totals_never_go_back", lambda s: replaced(s, totals=Totals())),
    ("totals_never_go_back", lambda s: replaced(s, totals=s.totals.plus(collected_bytes=1))),
    ("extra_work_is_within_its_budget", lambda s: replaced(s, totals=s.totals.plus(extra_rows=6))),
    ("turns_are_short_and_do_not_overlap", lambda s: replaced(s, turn=Turn("nobody", 0, 5))),
    ("turns_are_short_and_do_not_overlap", lambda s: replaced(s, turn=Turn(WRITER, 0, 1 << 40))),
    ("turns_are_short_and_do_not_overlap", lambda s: replaced(s, turn=Turn(WRITER, 1500, 1600))),
    ("schemas_only_grow", lambda s: replaced(s, schemas=())),
    ("schemas_only_grow", lambda s: replaced(s, schemas=(b"other", b"two"))),
]


@pytest.mark.parametrize(("name", "breaking"), BROKEN, ids=[f"{n}-{i}" for i, (n, _) in enumerate(BROKEN)])
def test_broken_invariant_is_named(name: str, breaking: Callable[[State], State]) -> None:
    old = scene_of_everything().state
    good = replaced(old, seqno=old.seqno + 1)
    assert violations(old, good) == []
    found = violations(old, breaking(good))
    assert name in [each.split(": ")[0] for each in found]
    assert all(each.split(": ", 1)[1] for each in found), "every violation says something"


def tombstone() -> State:
    scene = StateHarness()
    scene.append(at(1), up("a", 0))
    close(scene)
    return scene.state


@pytest.mark.parametrize(
    "breaking",
    [
        lambda s: replaced(s, status=Status.OPEN),
        lambda s: with_part(s, Part("c/w1/p", 1)),
        lambda s: replaced(s, trace=scene_of_everything().state.trace),
    ],
)
def test_tombstone_that_comes_back_to_life_is_named(breaking: Callable[[State], State]) -> None:
    old = tombstone()
    new = breaking(replaced(old, seqno=old.seqno + 1))
    assert "finalized_stays_finalized: a tombstone came back to life" in violations(old, new)


def test_tombstone_that_stays_one_is_fine() -> None:
    old = tombstone()
    assert violations(old, replaced(old, seqno=old.seqno + 1)) == []


def test_every_invariant_is_broken_by_some_test() -> None:
    assert {name for name, _ in BROKEN} | {"finalized_stays_finalized"} == {each.__name__ for each in INVARIANTS}


def test_every_invariant_says_what_it_promises() -> None:
    assert all(each.__doc__ for each in INVARIANTS)
    assert len({each.__name__ for each in INVARIANTS}) == len(INVARIANTS)


def test_collection_without_anything_breaks_nothing() -> None:
    old = new_state("c")
    assert violations(old, replaced(old, seqno=1)) == []


def test_blob_of_a_writer_that_leaves_in_the_same_commit_is_fine() -> None:
    scene = scene_of_everything()
    old = scene.state
    grown = with_part(replaced(old, seqno=old.seqno + 1), Part("c/w1/p", 1))
    assert violations(old, replaced(grown, writers={})) == []
    assert violations(replaced(old, writers={}), replaced(grown, writers={WRITER: Lease(1, 1)})) == []


def test_rollup_that_no_held_state_needs_may_go() -> None:
    old = scene_of_everything().state
    newer = replaced(old, rollups={2: Rollup("c/w1/s2", 1), 5: Rollup("c/w1/s5", 1)}, readers={})
    new = replaced(newer, seqno=old.seqno + 1, rollups={5: Rollup("c/w1/s5", 1)})
    assert violations(newer, new) == []


def test_unsealed_updates_may_go_with_the_collection() -> None:
    scene = StateHarness()
    scene.write(up("a", 5))
    scene.do(Retain(CLOSED))
    scene.do(Seal(CLOSED))
    old = scene.state
    close(scene)
    assert violations(old, scene.state) == []

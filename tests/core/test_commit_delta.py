"""What a commit tells those who listen: every update once, when it is committed, and the upper when it moves."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_commands import RandomCommands
from state_harness import WRITER, StateHarness, at, batch, inline_part, up

from timespine.core.commit_delta import CommitDelta, delta_of_commit
from timespine.core.encoding.codec import decode_diff, encode_diff
from timespine.core.encoding.state_diff import diff
from timespine.core.read_plan import plan_all
from timespine.core.transitions import (
    AddSchema,
    AdvanceUpper,
    Append,
    AppendNext,
    ApplyMerge,
    CompareAndAppend,
    Drain,
    Evict,
    Finalize,
    RegisterReader,
    Retain,
    RollUpAll,
    Seal,
    Trim,
    Write,
)
from timespine.model import CLOSED, Frontier
from timespine.model.oracle import Update


class Ear:
    """Somebody who listens to a scene: all that was done since the last time is one commit to it."""

    def __init__(self, scene: StateHarness) -> None:
        self.scene = scene
        self.state = scene.state
        self.known = len(scene.oracle.updates)

    def heard(self) -> CommitDelta:
        """What the commit tells. It must be what the oracle has more than before."""
        old, new = self.state, self.scene.state
        found = delta_of_commit(old, decode_diff(encode_diff(diff(old, new))), new)
        gained = self.scene.oracle.updates[self.known :]
        self.state, self.known = new, self.known + len(gained)
        assert self.told(found) == counted(gained)
        assert found.upper == (None if new.upper == old.upper else new.upper)
        return found

    def told(self, found: CommitDelta) -> dict[tuple[str, tuple[int, ...]], int]:
        """The updates that a commit tells."""
        more = counted(each for run in found.runs for part in run.parts for each in self.scene.visible(part))
        less = counted(each for run in found.without for part in run.parts for each in self.scene.visible(part))
        total = Counter(more)
        total.subtract(less)
        return {update: count for update, count in total.items() if count}


def counted(updates: list[Update] | object) -> dict[tuple[str, tuple[int, ...]], int]:
    total: Counter[tuple[str, tuple[int, ...]]] = Counter()
    for row, when, count in updates:  # type: ignore[attr-defined]
        total[row, when] += count
    return {update: count for update, count in total.items() if count}


@pytest.fixture
def scene() -> StateHarness:
    return StateHarness()


@pytest.fixture
def ear(scene: StateHarness) -> Ear:
    return Ear(scene)


def test_an_append_tells_its_updates_and_the_upper(scene: StateHarness, ear: Ear) -> None:
    scene.append(at(3), up("a", 0), up("b", 2), key=f"c/{WRITER}/p1")
    found = ear.heard()
    assert found.upper == at(3)
    assert [part.key for run in found.runs for part in run.parts] == [f"c/{WRITER}/p1"]
    scene.append(at(5), up("a", 3, -1))
    assert ear.heard().upper == at(5)


def test_a_write_tells_its_updates_though_their_times_are_not_sealed(scene: StateHarness, ear: Ear) -> None:
    scene.write(up("a", 3), up("b", 1))
    found = ear.heard()
    assert found.upper is None
    assert len(found.runs) == 1


def test_a_seal_tells_the_upper_and_what_was_written_is_told_no_second_time(scene: StateHarness, ear: Ear) -> None:
    scene.write(up("a", 3), up("b", 1))
    ear.heard()
    scene.do(Seal(at(2)))
    assert ear.heard() == CommitDelta(upper=at(2))
    for command in (Drain(), Trim(0), Seal(at(9)), Drain(), Evict()):
        scene.do(command)
        found = ear.heard()
        assert (found.runs, found.without) == ((), ()), "by reference: nothing has to be read"


def test_moving_the_upper_without_data_tells_the_upper_alone(scene: StateHarness, ear: Ear) -> None:
    scene.do(AdvanceUpper(at(4)))
    assert ear.heard() == CommitDelta(upper=at(4))
    scene.do(AdvanceUpper(CLOSED))
    assert ear.heard() == CommitDelta(upper=CLOSED)


def test_an_append_whose_range_contains_unsealed_updates_tells_only_its_own(scene: StateHarness, ear: Ear) -> None:
    scene.write(up("w", 1), up("w", 7))
    ear.heard()
    scene.append(at(3), up("a", 2))
    found = ear.heard()
    assert (len(found.runs), found.without, found.upper) == (1, (), at(3))
    scene.append(at(9), up("b", 8))
    found = ear.heard()
    assert (len(found.runs), found.without) == (1, ())


def test_an_append_on_a_lagging_trace_drains_it_and_tells_only_its_own(scene: StateHarness, ear: Ear) -> None:
    scene.write(up("w", 1), up("w", 2), up("w", 7))
    scene.do(Seal(at(2)))
    ear.heard()
    scene.append(at(4), up("a", 3))
    assert len(ear.heard().runs) == 1


@pytest.mark.parametrize("times", [1, 2])
def test_appending_exactly_what_was_written_tells_it_as_often_as_it_was_appended(
    scene: StateHarness, ear: Ear, times: int
) -> None:
    for _ in range(times):
        scene.write(up("a", 1))
    ear.heard()
    part = inline_part([up("a", 1)])
    same = batch(at(0), at(2), part, part)
    runs = tuple(type(run)(run.parts, 0, None) for run in same.runs)  # type: ignore[arg-type]
    unordered = type(same)(same.desc, same.len, runs)
    assert unordered.runs[0].order == 0, "not to be told from what is drained"
    scene.do(CompareAndAppend((unordered,), at(0), at(2)))
    scene.oracle.updates += [up("a", 1)] * 2
    assert len(ear.heard().runs) == 2


def test_an_append_that_is_rewritten_tells_its_updates_where_they_stand(scene: StateHarness, ear: Ear) -> None:
    scene.do(Seal(at(5)))
    scene.do(AppendNext(batch(at(0), at(0), inline_part([up("a", 2)])), 2))
    scene.oracle.updates.append(up("a", 5))
    assert ear.heard().upper == at(6)


def test_a_replicated_append_tells_only_what_it_brought(scene: StateHarness, ear: Ear) -> None:
    scene.append(at(3), up("a", 1))
    ear.heard()
    scene.do(Append(batch(at(0), at(6), inline_part([up("a", 1), up("b", 4)]))))
    scene.oracle.updates.append(up("b", 4))
    assert ear.heard().upper == at(6)


def test_merges_leases_and_schemas_tell_nothing(scene: StateHarness, ear: Ear) -> None:
    for number in range(1, 6):
        scene.append(at(number), up("a", number - 1), key=f"c/{WRITER}/p{number}")
    ear.heard()
    nothing = (RegisterReader("r1", None, 10), AddSchema(None, b"s"), Retain(at(3)), RollUpAll())
    for command in nothing:
        scene.do(command)
        assert ear.heard() == CommitDelta()
    (request,) = scene.state.trace.requests()
    scene.do(ApplyMerge(scene.merged(request, f"c/{WRITER}/m1"), WRITER))
    assert ear.heard() == CommitDelta()


def test_one_commit_that_writes_seals_appends_drains_and_evicts_tells_all_of_it_once(
    scene: StateHarness, ear: Ear
) -> None:
    scene.write(up("old", 1), up("old", 6))
    ear.heard()
    scene.write(up("w", 2), up("w", 8))
    scene.do(Seal(at(3)))
    scene.append(at(5), up("a", 4))
    scene.append(at(7), up("b", 5))
    scene.write(up("late", 7))
    scene.do(Seal(at(8)))
    scene.do(Drain())
    scene.do(Evict())
    assert [each.seqno for each in scene.state.unsealed] == [1]
    found = ear.heard()
    assert (found.without, found.upper) == ((), at(8))


def test_what_was_written_and_partly_drained_in_one_commit_is_told_once(scene: StateHarness, ear: Ear) -> None:
    scene.write(up("w", 1), up("w", 8))
    scene.do(Seal(at(3)))
    scene.do(Drain())
    ear.heard()
    fresh = StateHarness()
    ear = Ear(fresh)
    fresh.write(up("w", 1), up("w", 8))
    fresh.do(Seal(at(3)))
    fresh.do(Drain())
    fresh.do(Trim(0))
    assert len(ear.heard().runs) == 2, "below the trace's upper in the trace, the rest unsealed"


@pytest.mark.parametrize("rewritten", [False, True])
def test_what_was_trimmed_and_drained_in_one_commit_is_told_no_second_time(
    scene: StateHarness, ear: Ear, rewritten: bool
) -> None:
    scene.write(up("w", 1), up("w", 5), up("w", 9))
    scene.do(Seal(at(3)))
    scene.do(Drain())
    ear.heard()
    parts = (inline_part([up("w", 5), up("w", 9)]),) if rewritten else None
    scene.do(Trim(0, parts, at(3) if rewritten else None))
    scene.append(at(7), up("a", 6))
    found = ear.heard()
    # Bounds alone give the same reference again; rewritten, the rows have to be looked at.
    assert (len(found.runs), len(found.without)) == ((2, 1) if rewritten else (1, 0))
    scene.do(Seal(at(10)))
    scene.do(Drain())
    assert ear.heard().without == ()


def test_the_end_of_a_collection_tells_that_it_is_closed_and_nothing_else(scene: StateHarness, ear: Ear) -> None:
    scene.append(at(3), up("a", 1))
    ear.heard()
    scene.do(AdvanceUpper(CLOSED))
    scene.do(Retain(CLOSED))
    scene.do(Finalize())
    assert ear.heard() == CommitDelta(upper=CLOSED)


def test_with_several_coordinates_the_same_holds() -> None:
    scene = StateHarness(arity=2)
    ear = Ear(scene)
    scene.write(up("a", (3, 0)), up("b", (0, 3)), up("c", (4, 4)))
    ear.heard()
    scene.append(Frontier(((2, 2), (1, 5))), up("d", (0, 1)))
    ear.heard()
    scene.append(at(4, 4), up("e", (3, 3)))
    assert len(ear.heard().runs) == 1


def test_all_there_is_are_sealed_and_unsealed_updates_each_once(scene: StateHarness) -> None:
    scene.write(up("w", 1), up("w", 7))
    scene.append(at(3), up("a", 2))
    scene.write(up("late", 9))
    for command in (Seal(at(8)), Drain(), Evict()):
        plan = plan_all(scene.state)
        assert (plan.seqno, plan.upper) == (scene.state.seqno, scene.state.upper)
        seen = [each for part in plan.parts for each in scene.visible(part)]
        assert counted(seen) == counted(scene.oracle.updates)
        scene.do(command)


def listened_walk(walk: RandomCommands, steps: int) -> None:
    """Do many things, some of them together as one commit, and listen to all of it."""
    ear = Ear(walk.scene)
    for _ in range(steps):
        if walk.scene.state.upper.is_closed:
            return
        before = walk.committed[ApplyMerge]
        walk.step()
        # A merge is of batches that were committed before: it is not in one commit with those.
        if walk.committed[ApplyMerge] == before and walk.choose(3):
            continue
        if walk.committed[ApplyMerge] == before:
            ear.heard()
        else:
            ear = Ear(walk.scene)


@settings(max_examples=60)
@given(st.data(), st.integers(1, 2))
def test_whatever_is_committed_together_is_told_once(data: st.DataObject, arity: int) -> None:
    walk = RandomCommands(lambda n: data.draw(st.integers(0, n - 1)) if n > 1 else 0, arity)
    listened_walk(walk, 30)


@pytest.mark.parametrize("seed", range(8))
def test_a_long_walk_is_told_as_it_is_committed(seed: int) -> None:
    listened_walk(RandomCommands(random.Random(seed).randrange, arity=1 + seed % 2), 250)


@pytest.mark.parametrize("written", [False, True])
def test_every_single_step_of_a_walk_is_told_as_it_is(written: bool) -> None:
    for seed in range(6):
        walk = RandomCommands(random.Random(100 + seed).randrange)
        if written:
            walk.scene.do(Write(at(9), (9,), (inline_part([up("w", 9)]),)))
            walk.scene.oracle.updates.append(up("w", 9))
        ear = Ear(walk.scene)
        for _ in range(80):
            walk.step()
            ear.heard()

"""Diffs: what a commit stores leads every follower to the same state, and stays small.

The walks do all commands in all orders, and `StateHarness.do` checks every commit of
them: the diff through its bytes, the follower, the whole state through its
bytes, the invariants. The walks add the reads, against the oracle.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_commands import RandomCommands, close, seeded
from state_harness import TERM_MS, WRITER, StateHarness, at, batch, inline_part, same_state, up

from timespine.core.batch import HollowBatch, Part, Run
from timespine.core.encoding.codec import decode_diff, encode_diff, encode_state
from timespine.core.encoding.flat_spine import SpineBatchHeader, SpineMergeHeader
from timespine.core.encoding.state_diff import SpineDiff, StateDiff, apply_diff, diff
from timespine.core.invariants import violations
from timespine.core.state import Commit, HistoryEntry, State, new_state
from timespine.core.transitions import (
    TRANSITIONS,
    AddRollup,
    AddSchema,
    AdvanceUpper,
    ApplyMerge,
    ClaimMerge,
    Command,
    CommitSink,
    CompareAndAppend,
    Drain,
    Evict,
    Exert,
    RegisterCommitter,
    RegisterHold,
    RegisterReader,
    RegisterWriter,
    Retain,
    RollUpAll,
    Seal,
    Trim,
    Write,
    apply,
)
from timespine.core.unsealed_index import UnsealedBatch
from timespine.errors import CorruptionError, UsageError
from timespine.model import CLOSED, Description, Frontier


def examples(count: int) -> settings:
    """That many examples, however long each takes."""
    return settings(
        max_examples=count, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
    )


# Walks over all commands.


@examples(40)
@given(st.data(), st.integers(1, 3))
def test_walk_over_all_commands_keeps_followers_reads_and_invariants(data: st.DataObject, arity: int) -> None:
    walk = RandomCommands(lambda n: data.draw(st.integers(0, n - 1)) if n > 1 else 0, arity)
    scene = walk.run(30)
    close(scene)
    scene.agree()


@pytest.mark.parametrize("seed", range(9))
def test_long_walk_keeps_followers_reads_and_invariants(seed: int) -> None:
    scene = RandomCommands(random.Random(seed).randrange, arity=1 + seed % 3).run(150)
    close(scene)
    scene.agree()


def test_walks_reach_every_command() -> None:
    reached: set[type] = set()
    for seed in range(40):
        walk = seeded(1000 + seed, 60)
        close(walk.scene)
        reached |= {command for command, count in walk.committed.items() if count}
    assert {command.__name__ for command in TRANSITIONS.keys() - reached} == {"Finalize"}, "`close` does that one"


def test_follower_that_begins_anywhere_arrives_at_the_same_state() -> None:
    walk = RandomCommands(random.Random(7).randrange)
    followers: list[State] = []
    for _ in range(120):
        before = walk.scene.state
        walk.step()
        if walk.scene.state is not before:
            change = decode_diff(encode_diff(diff(before, walk.scene.state)))
            followers = [apply_diff(follower, change) for follower in followers]
            followers.append(walk.scene.state)
    assert len(followers) > 30
    assert all(same_state(follower, walk.scene.state) == [] for follower in followers)


# Small changes are small diffs, however large the state is.


def unchecked(state: State, command: Command) -> State:
    """The next state, without the checks of a scene: for states that are large."""
    outcome = apply(state, command, 0)
    assert isinstance(outcome, Commit), outcome
    return msgspec.structs.replace(outcome.state, seqno=state.seqno + 1)


def large(appends: int) -> State:
    """A state of many batches that nobody has merged, many writes and a full history."""
    state = unchecked(new_state("c"), RegisterWriter(WRITER, TERM_MS))
    for when in range(appends):
        blob = batch(at(when), at(when + 1), Part(f"c/w1/p{when}", 1, 100, 1))
        state = unchecked(state, CompareAndAppend((blob,), at(when), at(when + 1)))
    for number in range(appends // 4):
        when = appends + 10 + number
        state = unchecked(state, Write(at(when), (when,), (Part(f"c/w1/u{number}", 1, 100, 1),)))
    return state


def commands_on(state: State) -> list[tuple[Command, int]]:
    """A small command of every kind, and the bytes that its diff may take."""
    upper = state.upper
    (top,) = upper.elements
    (request, *_) = state.trace.requests()
    inputs = list(request.inputs)
    merged = HollowBatch(request.desc, 1, (Run((inline_part([up("a", 0)], diff_sum=None),)),))
    piece = msgspec.structs.replace(merged, desc=inputs[7].desc, len=1)
    return [
        (CompareAndAppend((batch(upper, at(top[0] + 1), inline_part([up("a", top)])),), upper, at(top[0] + 1)), 500),
        (AdvanceUpper(at(top[0] + 5)), 500),
        (Seal(at(top[0] + 5)), 100),
        (Write(at(top[0] + 5), (top[0] + 5,), (inline_part([up("a", 1)]),)), 200),
        (Retain(at(3)), 100),
        (RegisterReader("r1", None, 1), 100),
        (RegisterHold("h1", None, "t"), 100),
        (RegisterCommitter("k1", 1), 100),
        (CommitSink("s1", 1), 100),
        (AddSchema(None, b"x"), 100),
        (AddRollup(3, "c/w1/s3", 1), 100),
        (ClaimMerge(request.id, "m", 1), 100),
        (ApplyMerge(merged, "m"), 500),
        (ApplyMerge(piece, "m"), 300),
        (RollUpAll(), 500),
        (Exert(1), 500),
    ]


@pytest.mark.parametrize("appends", [100, 3000])
def test_diff_of_a_small_change_is_small_however_large_the_state_is(appends: int) -> None:
    state = large(appends)
    for command, most in commands_on(state):
        new = unchecked(state, command)
        change = encode_diff(diff(state, new))
        assert len(change) <= most, command
        assert same_state(apply_diff(state, decode_diff(change)), new) == [], command
        assert violations(state, new) == [], command
    assert len(encode_state(state)) > 30 * appends


def test_diffs_of_a_thousand_appends_are_small_on_average() -> None:
    state, total = large(100), 0
    for when in range(100, 1100):
        new = unchecked(state, CompareAndAppend((), at(when), at(when + 1)))
        total += len(encode_diff(diff(state, new)))
        state = new
    assert total < 1000 * 200


def test_evicting_half_of_many_writes_names_only_the_ones_that_went() -> None:
    state = unchecked(new_state("c"), RegisterWriter(WRITER, TERM_MS))
    for when in range(600):
        state = unchecked(state, Write(at(when), (when,), (inline_part([up("a", when)]),)))
    state = unchecked(unchecked(state, Seal(at(300))), Drain())
    new = unchecked(state, Evict())
    change = diff(state, new)
    assert (len(change.x), len(change.y)) == (300, 0)
    assert len(encode_diff(change)) < 1200
    assert same_state(apply_diff(state, change), new) == []


def test_trim_changes_one_write_among_many() -> None:
    state = unchecked(new_state("c"), RegisterWriter(WRITER, TERM_MS))
    for _ in range(600):
        state = unchecked(state, Write(at(1), (5,), (Part("c/w1/p", 2),)))
    state = unchecked(unchecked(state, Seal(at(3))), Drain())
    new = unchecked(state, Trim(333))
    change = diff(state, new)
    assert ([batch.seqno for batch in change.y], change.x) == ([333], ())
    assert same_state(apply_diff(state, change), new) == []


# What the parts of a diff say.


def test_diff_of_nothing_is_only_a_number() -> None:
    state = seeded(2, 60).scene.state
    again = msgspec.structs.replace(state, seqno=state.seqno + 1)
    assert diff(state, again) == StateDiff(n=state.seqno + 1)
    assert same_state(apply_diff(state, StateDiff(n=state.seqno + 1)), again) == []


def test_diff_compares_values_where_objects_are_new() -> None:
    state = seeded(2, 60).scene.state
    copy = msgspec.structs.replace(state, readers=dict(state.readers), upper=Frontier(state.upper.elements))
    assert diff(state, copy) == StateDiff(n=state.seqno)


def history(*uppers: int) -> tuple[HistoryEntry, ...]:
    return tuple(HistoryEntry(at(upper), upper, "append", 1, 1) for upper in uppers)


@pytest.mark.parametrize(
    ("kept", "forgotten", "gained"),
    [
        (slice(0, None), 0, 1),
        (slice(2, None), 2, 1),
        (slice(4, 4), 4, 2),
        (slice(0, None), 0, 0),
        (slice(3, None), 3, 0),
    ],
)
def test_history_loses_lines_in_front_and_gains_them_at_the_end(kept: slice, forgotten: int, gained: int) -> None:
    old = msgspec.structs.replace(new_state("c"), history=history(1, 2, 3, 4))
    added = history(*range(5, 5 + gained))
    new = msgspec.structs.replace(old, seqno=1, history=(*old.history[kept], *added))
    change = diff(old, new)
    assert (change.f, change.h) == (forgotten, added)
    assert same_state(apply_diff(old, change), new) == []


def test_history_that_shares_nothing_is_replaced() -> None:
    old = msgspec.structs.replace(new_state("c"), history=history(1, 2))
    new = msgspec.structs.replace(old, seqno=1, history=history(1, 2))
    change = diff(old, new)
    assert (change.f, len(change.h)) == (2, 2)
    assert apply_diff(old, change) == new


def test_history_of_one_long_entry_is_not_taken_for_its_suffix() -> None:
    entry = history(1)[0]
    old = msgspec.structs.replace(new_state("c"), history=(entry, *history(2, 3)))
    new = msgspec.structs.replace(old, seqno=1, history=(entry,))
    assert apply_diff(old, diff(old, new)) == new


def test_schemas_are_forgotten_with_the_collection() -> None:
    scene = StateHarness()
    scene.do(AddSchema(None, b"one"))
    close(scene)
    assert scene.follower.schemas == ()


# Diffs that do not fit.


@pytest.fixture
def scene() -> StateHarness:
    """Four batches of one update that make up one fueled batch, then one more; and two writes."""
    scene = StateHarness()
    for when in range(4):
        scene.append(at(when + 1), up("a", when))
    scene.do(RollUpAll())
    scene.append(at(5), up("a", 4))
    scene.write(up("a", 7))
    scene.write(up("a", 8))
    return scene


def hollow(lower: int, upper: int, rows: int = 0) -> HollowBatch:
    return HollowBatch(Description(at(lower), at(upper), at(0)), rows)


def thin(level: int, fueled: bool = False, since: Frontier | None = None) -> SpineBatchHeader:
    return SpineBatchHeader(level, at(0) if since is None else since, fueled)


@pytest.mark.parametrize("number", [0, 4, 6, 100])
def test_diff_that_does_not_follow_the_state_is_corruption(number: int) -> None:
    state = msgspec.structs.replace(new_state("c"), seqno=4)
    with pytest.raises(CorruptionError, match="cannot follow"):
        apply_diff(state, StateDiff(n=number))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"f": 1000}, "forgets 1000 lines"),
        ({"x": (77,)}, "unsealed batch 77, which is not there"),
        ({"x": (0, 0)}, "unsealed batch 0, which is not there"),
        ({"t": SpineDiff(d=((3, 9),))}, "spine batch 3-9, which is not there"),
        ({"t": SpineDiff(d=((4, 5),))}, "left over"),
        ({"t": SpineDiff(b={(5, 6): thin(0)})}, "missing"),
        ({"t": SpineDiff(b={(2, 5): thin(0)})}, "level|where one from|does not"),
        ({"t": SpineDiff(b={(4, 5): thin(40)})}, "newer than one at a lower level"),
        ({"t": SpineDiff(b={(4, 5): thin(0, since=at(9))})}, "past the spine's since|neither"),
        ({"t": SpineDiff(b={(0, 4): thin(2, fueled=False)})}, "neither fueled nor"),
        ({"t": SpineDiff(b={(0, 4): thin(1, fueled=True)})}, "too many|newer"),
        ({"t": SpineDiff(m={(0, 5): SpineMergeHeader(at(0), 1)})}, "merges left over"),
        ({"t": SpineDiff(a={(1, 9): hollow(1, 9)})}, "does not fit"),
        ({"t": SpineDiff(a={(3, 5): hollow(3, 5)})}, "does not fit|where one from|missing"),
        ({"t": SpineDiff(a={(4, 5): hollow(9, 10)})}, "does not follow"),
        ({"t": SpineDiff(a={(5, 5): hollow(5, 6)}, b={(5, 5): thin(0)})}, "the ids 5-5"),
        ({"t": SpineDiff(a={(5, 6): hollow(5, 5)}, b={(5, 6): thin(0)})}, "spans no time"),
        ({"t": SpineDiff(a={(5, 6): hollow(6, 7)}, b={(5, 6): thin(0)})}, "does not follow|level|merge|batches"),
        ({"t": SpineDiff(s=CLOSED, b={(4, 5): thin(0, since=CLOSED)})}, "neither fueled"),
    ],
    ids=str,
)
def test_diff_that_does_not_fit_the_state_is_corruption(
    scene: StateHarness, change: dict[str, Any], reason: str
) -> None:
    with pytest.raises(CorruptionError, match=reason):
        apply_diff(scene.state, StateDiff(n=scene.state.seqno + 1, **change))


def test_hollow_batch_that_covers_several_spine_batches_replaces_them(scene: StateHarness) -> None:
    state = scene.state
    change = SpineDiff(
        a={(0, 5): hollow(0, 5, 5)}, d=tuple(batch.id for batch in state.trace.batches()), b={(0, 5): thin(3)}
    )
    new = apply_diff(state, StateDiff(n=state.seqno + 1, t=change))
    assert [leaf.batch.len for leaf in new.trace.leaves()] == [5]


def test_write_that_comes_back_changed_keeps_its_place(scene: StateHarness) -> None:
    changed = UnsealedBatch(0, at(7), (9,), 1, ())
    new = apply_diff(scene.state, StateDiff(n=scene.state.seqno + 1, y=(changed,)))
    assert [each.seqno for each in new.unsealed] == [0, 1]
    assert next(iter(new.unsealed)) == changed


def test_hollow_batch_beyond_the_end_is_corruption(scene: StateHarness) -> None:
    with pytest.raises(CorruptionError):
        apply_diff(scene.state, StateDiff(n=scene.state.seqno + 1, t=SpineDiff(a={(50, 51): hollow(50, 51)})))


OTHER_SHAPE = Frontier(((1, 1),))


@pytest.mark.parametrize(
    "change",
    [
        {"u": OTHER_SHAPE},
        {"r": OTHER_SHAPE},
        {"t": SpineDiff(s=OTHER_SHAPE)},
        {"t": SpineDiff(b={(4, 5): thin(0, since=OTHER_SHAPE)})},
    ],
    ids=str,
)
def test_diff_with_times_of_another_shape_is_corruption(scene: StateHarness, change: dict[str, Any]) -> None:
    with pytest.raises(CorruptionError):
        apply_diff(scene.state, StateDiff(n=scene.state.seqno + 1, **change))


@examples(150)
@given(st.data())
def test_diff_of_another_state_fits_or_is_corruption(data: st.DataObject) -> None:
    """A diff applied to a state that it was not made for never ends in anything but a state or a CorruptionError."""
    walk = seeded(data.draw(st.integers(0, 5)), 0)
    states, changes = [walk.scene.state], []
    for _ in range(40):
        walk.step()
        if walk.scene.state is not states[-1]:
            changes.append(diff(states[-1], walk.scene.state))
            states.append(walk.scene.state)
    state = data.draw(st.sampled_from(states))
    change = msgspec.structs.replace(data.draw(st.sampled_from(changes)), n=state.seqno + 1)
    try:
        new = apply_diff(state, change)
    except CorruptionError:
        return
    assert new.seqno == state.seqno + 1


def test_usage_errors_of_the_caller_are_not_taken_for_corruption() -> None:
    assert not issubclass(UsageError, CorruptionError)


@pytest.mark.parametrize(
    "change",
    [
        {"u": at(1)},
        {"u": at(4)},
        {"t": SpineDiff(s=at(0))},
        {"t": SpineDiff(s=at(2)), "u": at(9)},
        {"t": SpineDiff(s=at(4)), "u": at(4)},
    ],
    ids=str,
)
def test_diff_that_takes_upper_or_since_back_is_corruption(change: dict[str, Any]) -> None:
    scene = StateHarness()
    scene.append(at(5), up("a", 1))
    scene.do(Retain(at(3)))
    with pytest.raises(CorruptionError, match="back"):
        apply_diff(scene.state, StateDiff(n=scene.state.seqno + 1, **change))


def test_diff_that_takes_a_partially_ordered_upper_or_since_aside_is_corruption() -> None:
    scene = StateHarness(arity=2)
    scene.append(at(5, 5), up("a", (1, 1)))
    scene.do(Retain(at(3, 3)))
    for change in ({"u": at(9, 4)}, {"t": SpineDiff(s=at(2, 9))}):
        with pytest.raises(CorruptionError, match="back"):
            apply_diff(scene.state, StateDiff(n=scene.state.seqno + 1, **change))


def test_diff_that_leaves_the_trace_ahead_of_the_upper_is_corruption(scene: StateHarness) -> None:
    old = scene.state
    scene.append(at(9), up("a", 6))
    change = diff(old, scene.state)
    assert change.u == at(9)
    for upper in (None, at(5), at(8)):
        with pytest.raises(CorruptionError, match="ahead"):
            apply_diff(old, msgspec.structs.replace(change, u=upper))
    for upper in (at(9), at(10), CLOSED):
        assert apply_diff(old, msgspec.structs.replace(change, u=upper)).upper == upper


@pytest.mark.parametrize(
    "key", ["", "nonsense", "c/w1", "c/w1/p/q", "C/w1/p", "c//p", "../w1/p", "c/w1/p\n", "c/w1/" + "p" * 65]
)
def test_diff_that_adds_a_part_with_a_malformed_blob_key_is_corruption(scene: StateHarness, key: str) -> None:
    part = Part(key, 1, 1, 1)
    added = HollowBatch(Description(at(5), at(6), at(0)), 1, (Run((part,)),))
    spine = SpineDiff(a={(5, 6): added}, b={(5, 6): thin(0)})
    for change in ({"t": spine, "u": at(6)}, {"y": (UnsealedBatch(2, at(7), (7,), 1, (part,)),)}):
        with pytest.raises(CorruptionError, match=r"does not fit: .*(blob|id)"):
            apply_diff(scene.state, StateDiff(n=scene.state.seqno + 1, **change))


def test_diff_that_adds_an_inline_part_needs_no_blob_key_but_no_malformed_one_either(scene: StateHarness) -> None:
    def change(key: str) -> StateDiff:
        part = Part(key, 1, 1, 1, b"x")
        return StateDiff(n=scene.state.seqno + 1, y=(UnsealedBatch(2, at(7), (7,), 1, (part,)),), unsealed_next=3)

    for good in ("", "c/w1/p9"):
        assert len(list(apply_diff(scene.state, change(good)).unsealed)) == 3
    with pytest.raises(CorruptionError):
        apply_diff(scene.state, change("nonsense"))

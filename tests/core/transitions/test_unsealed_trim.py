"""Unsealed batches: trimmed, read by range, and beside appends and since."""

from __future__ import annotations

import msgspec
import pytest
from state_harness import WRITER, StateHarness, at, inline_part, up
from unsealed_state_cases import numbers

from timespine.core.batch import Part
from timespine.core.read_plan import plan_unsealed
from timespine.core.transitions import (
    ApplyMerge,
    CompareAndAppend,
    Drain,
    Evict,
    ExpireWriter,
    Retain,
    RollUpAll,
    Seal,
    Trim,
)
from timespine.errors import ClosedError, ConcurrentWrite, Fenced, InlineBudgetExceeded, NotSealed, UsageError
from timespine.model import CLOSED, Frontier

# Trimming.


def trimmed_scene() -> StateHarness:
    """Updates at 0, 1 and 2 of which the first is drained."""
    scene = StateHarness()
    scene.write(up("k", 0), up("k", 1), up("k", 2))
    scene.do(Seal(at(1)))
    scene.agree()
    scene.do(Drain())
    scene.agree()
    return scene


def test_trim_narrows_the_bounds_to_what_is_not_in_the_trace() -> None:
    scene = trimmed_scene()
    assert scene.do(Trim(0)) is True
    scene.agree()
    (left,) = scene.state.unsealed
    assert (left.lower, left.max, left.seqno) == (at(1), (2,), 0)
    assert [part.lower for part in left.parts] == [at(1)]


def test_trimmed_updates_count_once() -> None:
    scene = trimmed_scene()
    scene.do(Trim(0))
    scene.do(Seal(at(3)))
    scene.agree()
    scene.do(Drain())
    scene.agree()
    assert scene.snapshot(2) == {"k": 3}
    scene.do(Evict())
    scene.do(RollUpAll())
    scene.merge_all()
    scene.agree()


def test_trim_takes_rewritten_bytes() -> None:
    scene = trimmed_scene()
    kept = inline_part([up("k", 1), up("k", 2)])
    before = scene.state.inline_bytes
    (old,) = (part for batch in scene.state.unsealed for part in batch.parts)
    assert scene.do(Trim(0, (kept,), at(1))) is True
    scene.agree()
    assert scene.state.inline_bytes == before - old.size + kept.size
    assert [batch.rows for batch in scene.state.unsealed] == [2]
    scene.do(Seal(at(3)))
    scene.do(Drain())
    scene.agree()


def test_bytes_rewritten_against_an_earlier_upper_hide_what_was_drained_meanwhile() -> None:
    scene = trimmed_scene()
    kept = inline_part([up("k", 1), up("k", 2)])
    scene.do(Seal(at(2)))
    scene.do(Drain())
    assert scene.do(Trim(0, (kept,), at(1))) is True
    scene.agree()
    scene.do(Seal(at(3)))
    scene.do(Drain())
    scene.agree()


@pytest.mark.parametrize("against", [None, at(2), CLOSED])
def test_bytes_rewritten_against_a_later_upper_are_refused(against: Frontier | None) -> None:
    scene = trimmed_scene()
    assert isinstance(scene.declined(Trim(0, (inline_part([up("k", 2)]),), against)), UsageError)


def test_trimmed_bytes_of_an_expired_writer_are_fenced() -> None:
    scene = trimmed_scene()
    scene.do(ExpireWriter(WRITER))
    assert isinstance(scene.declined(Trim(0, (Part("c/w1/p", 2),), at(1))), Fenced)


def test_trim_cannot_add_updates() -> None:
    scene = trimmed_scene()
    more = inline_part([up("k", 1)] * 4)
    assert isinstance(scene.declined(Trim(0, (more,), at(1))), UsageError)


def test_trim_of_what_is_not_there_or_wholly_ahead_or_wholly_below_changes_nothing() -> None:
    scene = StateHarness()
    scene.write(up("a", 0))
    scene.write(up("a", 5))
    assert scene.declined(Trim(0)) is False, "nothing is drained yet"
    scene.do(Seal(at(3)))
    scene.do(Drain())
    assert scene.declined(Trim(0)) is False, "this one is to be evicted"
    assert scene.declined(Trim(1)) is False, "this one is wholly ahead"
    assert scene.declined(Trim(7)) is False


def test_trim_of_the_bounds_twice_changes_nothing_the_second_time() -> None:
    scene = trimmed_scene()
    scene.do(Trim(0))
    assert scene.declined(Trim(0)) is False


def test_bytes_may_be_trimmed_after_the_bounds_were() -> None:
    scene = trimmed_scene()
    scene.do(Trim(0))
    assert scene.do(Trim(0, (inline_part([up("k", 1), up("k", 2)]),), at(1))) is True


def test_bytes_that_were_trimmed_are_not_trimmed_again() -> None:
    scene = trimmed_scene()
    command = Trim(0, (inline_part([up("k", 1), up("k", 2)]),), at(1))
    assert scene.do(command) is True
    assert scene.declined(command) is False


def test_trim_to_nothing_leaves_a_batch_that_reads_as_empty() -> None:
    scene = StateHarness(arity=2)
    scene.write(up("a", (0, 1)), up("b", (1, 0)))
    scene.do(Seal(Frontier(((0, 2), (1, 1)))))
    scene.do(Drain())
    assert scene.do(Trim(0, (), scene.state.trace.upper)) is True
    scene.agree()
    scene.do(Seal(at(3, 3)))
    scene.do(Drain())
    scene.agree()


def test_trim_leaves_neighbours_alone() -> None:
    scene = StateHarness()
    scene.write(up("a", 0), up("b", 4))
    scene.write(up("c", 0), up("d", 4))
    scene.do(Seal(at(2)))
    scene.do(Drain())
    scene.do(Trim(1))
    assert [batch.lower for batch in scene.state.unsealed] == [at(0), at(2)]
    scene.agree()


# Reading unsealed updates by range.


@pytest.fixture
def ranged() -> StateHarness:
    """Updates at 3 and 5, none of them sealed."""
    scene = StateHarness()
    scene.write(up("a", 3), up("b", 5))
    return scene


@pytest.mark.parametrize(
    ("lower", "upper", "expected"),
    [
        (at(0), CLOSED, "ab"),
        (at(0), at(6), "ab"),
        (at(0), at(2), ""),
        (at(6), CLOSED, ""),
        (at(6), at(8), ""),
        (at(3), at(3), ""),
        (at(3), at(6), "ab"),
        (at(3), at(4), "a"),
        (at(4), at(5), ""),
        (at(5), at(6), "b"),
    ],
)
def test_unsealed_updates_are_found_by_range(
    ranged: StateHarness, lower: Frontier, upper: Frontier, expected: str
) -> None:
    assert unsealed_rows(ranged, lower, upper) == expected


def unsealed_rows(scene: StateHarness, lower: Frontier, upper: Frontier) -> str:
    """The rows of unsealed updates in a range, one after the other."""
    runs = plan_unsealed(scene.state, lower, upper)
    return "".join(str(row) for run in runs for part in run.parts for row, _, _ in scene.visible(part))


def test_unsealed_updates_are_the_same_before_and_after_each_step_of_a_drain(ranged: StateHarness) -> None:
    ranged.do(Seal(at(4)))
    assert unsealed_rows(ranged, at(0), CLOSED) == "b"
    for step in (Drain(), Evict(), Trim(0)):
        ranged.attempt(step)
        assert unsealed_rows(ranged, at(0), CLOSED) == "b"
        assert unsealed_rows(ranged, at(0), at(4)) == ""


def test_an_append_that_has_seen_all_writes_that_it_seals_is_taken(ranged: StateHarness) -> None:
    assert ranged.do(CompareAndAppend((), at(0), at(6), written=ranged.state.unsealed_next)) == at(6)


def test_an_append_that_would_seal_a_write_it_has_not_seen_is_refused(ranged: StateHarness) -> None:
    seen = ranged.state.unsealed_next
    ranged.write(up("c", 5))
    committed, refusal = ranged.attempt(CompareAndAppend((), at(0), at(6), written=seen))
    assert not committed
    assert isinstance(refusal, ConcurrentWrite)
    assert ranged.do(CompareAndAppend((), at(0), at(5), written=seen)) == at(5)


def test_unsealed_range_that_ends_before_it_begins_is_a_usage_error(ranged: StateHarness) -> None:
    with pytest.raises(UsageError):
        plan_unsealed(ranged.state, at(4), at(3))


@pytest.mark.parametrize(("lower", "upper"), [(at(1, 1), at(3)), (at(1), at(3, 3))])
def test_unsealed_range_of_another_shape_is_a_usage_error(
    ranged: StateHarness, lower: Frontier, upper: Frontier
) -> None:
    with pytest.raises(UsageError):
        plan_unsealed(ranged.state, lower, upper)


# Both ways to write, and since.


def test_since_moved_beyond_the_seal_holds_for_what_is_drained_later() -> None:
    scene = StateHarness()
    scene.append(at(2), up("k1", 0), up("k2", 1))
    scene.write(up("k3", 10), up("k4", 11))
    scene.do(Seal(at(10)))
    scene.do(Retain(at(30)))
    assert isinstance(scene.declined(Seal(at(9))), UsageError)
    scene.agree()
    scene.do(Drain())
    scene.do(RollUpAll())
    scene.merge_all()
    scene.agree()
    scene.do(Seal(at(31)))
    assert scene.snapshot(30) == {"k1": 1, "k2": 1, "k3": 1, "k4": 1}
    scene.do(Drain())
    scene.do(Evict())
    scene.do(RollUpAll())
    (request,) = scene.state.trace.requests()
    merged = scene.merged(request)
    assert {when for part in merged.parts for _, when, _ in scene.data(part)} == {(30,)}
    scene.do(ApplyMerge(merged, WRITER))
    assert scene.snapshot(30) == {"k1": 1, "k2": 1, "k3": 1, "k4": 1}


def test_read_at_the_seal_is_not_sealed() -> None:
    scene = StateHarness()
    scene.write(up("a", 5))
    scene.do(Seal(at(5)))
    with pytest.raises(NotSealed):
        scene.oracle.snapshot((5,))
    scene.agree()


def test_part_referred_to_by_trace_and_unsealed_stays_until_both_are_done_with_it() -> None:
    scene = StateHarness()
    scene.append(at(1), up("z", 0))
    scene.write(up("a", 1), up("b", 5), key="c/w1/p1")
    scene.do(Seal(at(3)))
    scene.do(Drain())
    assert list(scene.state.keys()) == ["c/w1/p1", "c/w1/p1"]
    scene.do(RollUpAll())
    scene.merge_all()
    assert list(scene.state.keys()) == ["c/w1/p1"]
    scene.agree()
    scene.do(Seal(at(6)))
    scene.do(Drain())
    scene.do(Evict())
    scene.do(RollUpAll())
    scene.merge_all()
    assert list(scene.state.keys()) == []
    scene.agree()


def test_writes_of_different_shapes_of_time_never_mix() -> None:
    scene = StateHarness(arity=2)
    scene.write(up("a", (0, 1)), up("b", (2, 0)))
    scene.write(up("c", (1, 1)))
    for upper in (at(1, 1), Frontier(((1, 2), (2, 1))), at(3, 3)):
        scene.do(Seal(upper))
        scene.agree()
        scene.do(Drain())
        scene.agree()
        for number in numbers(scene):
            scene.attempt(Trim(number))
            scene.agree()
        scene.attempt(Evict())
        scene.agree()
    assert numbers(scene) == []


def test_seqno_of_the_state_is_not_the_number_of_a_write() -> None:
    scene = StateHarness()
    scene.state = msgspec.structs.replace(scene.state, seqno=100)
    scene.follower = msgspec.structs.replace(scene.follower, seqno=100)
    assert scene.write(up("a", 1)) == 0


def test_trimming_that_puts_too_much_into_the_state_is_refused() -> None:
    scene = StateHarness()
    scene.write(up("a", 3), up("b", 5), key=f"c/{WRITER}/p")
    scene.do(Seal(at(4)))
    scene.do(Drain())
    rewritten = (inline_part([up("b", 5)]),)
    committed, refusal = scene.attempt(Trim(0, rewritten, at(4), None, 1))
    assert not committed
    assert isinstance(refusal, InlineBudgetExceeded)
    scene.do(Trim(0, rewritten, at(4)))
    scene.do(Seal(at(6)))
    scene.agree()


def test_trimming_with_a_schema_that_is_not_known_is_refused() -> None:
    scene = StateHarness()
    scene.write(up("a", 3), up("b", 5))
    scene.do(Seal(at(4)))
    scene.do(Drain())
    committed, refusal = scene.attempt(Trim(0, (inline_part([up("b", 5)]),), at(4), 99))
    assert not committed
    assert isinstance(refusal, UsageError)


def test_a_closed_collection_is_not_sealed_again() -> None:
    scene = StateHarness()
    scene.do(Seal(CLOSED))
    committed, refusal = scene.attempt(Seal(at(4)))
    assert not committed
    assert isinstance(refusal, ClosedError)

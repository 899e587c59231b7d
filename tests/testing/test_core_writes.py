"""The appends of histories of the core: once or not at all, whichever effect fails; what was put in vain goes."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from protocol_harness import CONFIG, FAILURES, Fault, ProtocolHarness, accepted, at, configured, refused, up

from timespine.core.batch import Order
from timespine.core.effects import CompareAndSet, DeleteBlobs, FreshId, PutBlob
from timespine.core.protocols.commit import resolve
from timespine.core.protocols.load_state import refresh_state
from timespine.core.protocols.maintain import delete_unreferenced
from timespine.core.protocols.session import Session
from timespine.core.transitions import AppendNextResult, ExpireWriter, Seal
from timespine.errors import ClosedError, Determinate, Fenced, Indeterminate, UpperMismatch, UsageError
from timespine.model import CLOSED
from timespine.testing.formats.naive import data_of
from timespine.testing.simulator.core_writes import (
    Data,
    append_data_next,
    append_data_to_many,
    append_missing_data,
    compare_and_append_data,
    inline_part,
    put_part,
    write_data,
)

ROW = data_of([up("a", 0)])
INLINE = configured(inline_part_bytes=len(ROW.value), inline_total_bytes=2 * len(ROW.value) + 1)
"""Limits by which one small row fits the state, twice and not three times."""


def opened(config: Any = CONFIG, arity: int = 1) -> tuple[ProtocolHarness, Session]:
    """A collection and a session that has entered it."""
    stage = ProtocolHarness(arity=arity)
    return stage, stage.session(config=config)


def row(name: str, when: int) -> Data:
    """One row."""
    return data_of([up(name, when)])


# Putting data.


def test_part_is_put_under_the_writer_of_the_session() -> None:
    stage, session = opened()
    part = stage.run(put_part(session, "c", ROW))
    assert part.key.startswith(f"c/{session.writer}/p")
    assert stage.world.blobs == {part.key: ROW.value}
    assert (part.rows, part.size, part.diff_sum, part.inline) == (1, len(ROW.value), 1, None)
    assert [type(each) for each in stage.effects] == [FreshId, PutBlob]


@pytest.mark.parametrize("fault", FAILURES)
def test_put_that_failed_is_tried_again_under_the_same_key(fault: Fault) -> None:
    stage, session = opened()
    stage.fail(PutBlob, fault)
    stage.run(put_part(session, "c", ROW))
    first, second = stage.of(PutBlob)
    assert first == second
    assert len(stage.there()) == 1


def test_put_that_fails_for_good_commits_nothing() -> None:
    stage, session = opened()
    stage.fail(PutBlob, Fault.DETERMINATE, times=CONFIG.storage_attempts)
    with pytest.raises(Determinate):
        stage.run(compare_and_append_data(session, "c", ROW, at(0), at(1)))
    assert not stage.of(CompareAndSet)


def test_inline_part_carries_its_data_and_no_key() -> None:
    part = inline_part(ROW)
    assert (part.key, part.rows, part.size, part.diff_sum, part.inline) == ("", 1, len(ROW.value), 1, ROW.value)


# Compare and append.


def test_append_of_nothing_only_moves_the_upper() -> None:
    stage, session = opened()
    assert stage.run(compare_and_append_data(session, "c", None, at(0), at(3))) == at(3)
    assert not stage.of(PutBlob)
    assert stage.rows(2) == {}


def test_append_of_nothing_can_close_a_collection() -> None:
    stage, session = opened()
    assert stage.run(compare_and_append_data(session, "c", None, at(0), CLOSED)) == CLOSED
    assert isinstance(refused(stage.run(compare_and_append_data(session, "c", None, CLOSED, CLOSED))), ClosedError)


def test_tiny_data_travels_in_the_state_and_costs_no_put() -> None:
    stage, session = opened(INLINE)
    assert stage.run(compare_and_append_data(session, "c", ROW, at(0), at(1))) == at(1)
    assert not stage.of(PutBlob)
    assert stage.head().inline_bytes == len(ROW.value)
    assert stage.rows(0) == {"a": 1}


def test_data_a_byte_too_large_to_be_inline_is_put() -> None:
    stage, session = opened(configured(inline_part_bytes=len(ROW.value) - 1))
    assert stage.run(compare_and_append_data(session, "c", ROW, at(0), at(1))) == at(1)
    assert len(stage.of(PutBlob)) == 1
    assert stage.head().inline_bytes == 0
    assert stage.rows(0) == {"a": 1}


def test_tiny_data_that_does_not_fit_the_budget_is_put_into_a_blob_instead() -> None:
    stage, session = opened(INLINE)
    for when, name in enumerate("abc"):
        assert stage.run(compare_and_append_data(session, "c", row(name, when), at(when), at(when + 1))) == at(when + 1)
    assert len(stage.of(PutBlob)) == 1
    assert stage.head().inline_bytes == 2 * len(ROW.value)
    assert len(stage.there()) == 1
    stage.agree()


def test_tiny_data_that_is_refused_for_another_reason_is_not_put() -> None:
    stage, session = opened(INLINE)
    reason = refused(stage.run(compare_and_append_data(session, "c", ROW, at(2), at(3))))
    assert isinstance(reason, UpperMismatch)
    assert not stage.of(PutBlob, DeleteBlobs)


def test_fallback_to_a_blob_can_still_lose_to_another_append() -> None:
    stage, _ = opened()
    other, session = stage.session(), stage.session(config=configured(inline_part_bytes=99, inline_total_bytes=1))
    stage.before(PutBlob, lambda: stage.append(other, 5, up("theirs", 4)))
    reason = refused(stage.run(compare_and_append_data(session, "c", ROW, at(0), at(1))))
    assert isinstance(reason, UpperMismatch)
    assert [key.split("/")[1] for key in stage.there()] == [other.writer]
    assert stage.rows(4) == {"theirs": 1}


def test_refused_append_deletes_what_it_put() -> None:
    stage, session = opened()
    reason = refused(stage.run(compare_and_append_data(session, "c", ROW, at(4), at(5))))
    assert isinstance(reason, UpperMismatch)
    (put,) = stage.of(PutBlob)
    assert stage.effects[-1] == DeleteBlobs((put.key,))
    assert stage.there() == set()


@pytest.mark.parametrize("fault", FAILURES)
def test_refused_append_that_cannot_delete_leaves_it_to_the_sweep(fault: Fault) -> None:
    stage, session = opened()
    stage.fail(DeleteBlobs, fault)
    assert isinstance(refused(stage.run(compare_and_append_data(session, "c", ROW, at(4), at(5)))), UpperMismatch)
    assert session.counters["left to the sweep"] == 1
    assert len(stage.there()) == (0 if fault is Fault.DONE else 1)
    assert len(stage.of(DeleteBlobs)) == 1


def test_append_of_an_expired_writer_is_fenced_before_it_is_told_a_mismatch() -> None:
    stage, session = opened()
    other = stage.session()
    stage.commit(other, ExpireWriter(session.writer))
    stage.append(other, 3)
    assert isinstance(refused(stage.run(compare_and_append_data(session, "c", ROW, at(0), at(1)))), Fenced)
    assert stage.there() == set()


@pytest.mark.parametrize("fault", [Fault.DONE, Fault.NOT_DONE])
def test_append_whose_outcome_is_unknown_keeps_what_it_put(fault: Fault) -> None:
    stage, session = opened()
    stage.fail(CompareAndSet, fault)
    stage.fail(CompareAndSet, Fault.NOT_DONE, nth=2, times=CONFIG.storage_attempts)
    with pytest.raises(Indeterminate):
        stage.run(compare_and_append_data(session, "c", ROW, at(0), at(1)))
    assert len(stage.there()) == 1
    assert not stage.of(DeleteBlobs)
    assert stage.run(resolve(session)) is True
    assert stage.rows(0) == {"a": 1}


def test_data_keeps_its_order() -> None:
    stage, session = opened()
    unordered = Data(ROW.value, ROW.rows, ROW.diff_sum, Order.UNORDERED)
    accepted(stage.run(compare_and_append_data(session, "c", unordered, at(0), at(1))))
    (batch,) = stage.head().hollow_batches()
    assert [run.order for run in batch.runs] == [Order.UNORDERED]


def test_append_to_partially_ordered_times_covers_its_interval() -> None:
    stage, session = opened(arity=2)
    data = data_of([("a", (0, 0), 1)])
    later = at(0, 1).meet(at(1, 0))
    assert stage.run(compare_and_append_data(session, "c", data, at(0, 0), later)) == later
    assert stage.run(compare_and_append_data(session, "c", data_of([("b", (0, 1), 1)]), later, CLOSED)) == CLOSED
    assert stage.rows((0, 0)) == {"a": 1}
    assert stage.rows((0, 1)) == {"a": 1, "b": 1}


@pytest.mark.parametrize(("lower", "upper"), [(at(5), at(3)), (CLOSED, at(3)), (at(0), at(0, 1))])
@pytest.mark.parametrize("way", ["compare and append", "append", "append to many"])
def test_append_to_an_interval_that_cannot_be_leaves_nothing_behind(way: str, lower: Any, upper: Any) -> None:
    stage, session = opened()
    ways = {
        "compare and append": compare_and_append_data(session, "c", ROW, lower, upper),
        "append": append_missing_data(session, "c", ROW, lower, upper),
        "append to many": append_data_to_many(session, [("c", ROW, lower, upper)]),
    }
    with contextlib.suppress(UsageError):
        assert isinstance(refused(stage.run(ways[way])), UsageError)
    assert stage.there() == set()


# Append at the next free time.


def asked(stage: ProtocolHarness, name: str, when: int) -> Data:
    """One row for the next free time, announced to the world, which works out itself where it must stand."""
    stage.world.next_free[name] = when
    return row(name, when)


def test_append_next_stands_at_the_time_asked_for_if_it_is_free() -> None:
    stage, session = opened()
    assert stage.run(append_data_next(session, "c", asked(stage, "a", 3), 3)) == AppendNextResult(3, at(4))
    assert (stage.rows(2), stage.rows(3)) == ({}, {"a": 1})
    assert len(stage.there()) == 1


def test_append_next_stands_at_the_next_free_time_if_that_one_is_sealed() -> None:
    stage, session = opened()
    stage.append(session, 5, up("theirs", 2))
    assert stage.run(append_data_next(session, "c", asked(stage, "a", 3), 3)) == AppendNextResult(5, at(6))
    assert (stage.rows(4), stage.rows(5)) == ({"theirs": 1}, {"theirs": 1, "a": 1})
    stage.agree()


def test_append_next_that_loses_its_slot_is_put_once_and_stands_later() -> None:
    stage, _ = opened()
    other, session = stage.session(), stage.session()
    data = asked(stage, "a", 0)
    stage.before(CompareAndSet, lambda: stage.append(other, 4, up("theirs", 1)))
    assert stage.run(append_data_next(session, "c", data, 0)) == AppendNextResult(4, at(5))
    assert len(stage.of(PutBlob)) == 1
    assert not stage.of(DeleteBlobs)
    assert stage.rows(3) == {"theirs": 1}
    stage.agree()


def test_tiny_data_for_the_next_free_time_travels_in_the_state_while_it_fits() -> None:
    stage, session = opened(INLINE)
    stage.append(session, 2)
    times = [stage.run(append_data_next(session, "c", asked(stage, name, 0), 0)).time for name in "abc"]
    assert times == [2, 3, 4]
    assert len(stage.of(PutBlob)) == 1, "the third did not fit"
    assert stage.head().inline_bytes == 2 * len(ROW.value)
    stage.agree()


def test_tiny_data_for_the_next_free_time_that_is_refused_is_not_put() -> None:
    stage, session = opened(INLINE)
    stage.append(session, 5)
    accepted(stage.run(compare_and_append_data(session, "c", None, at(5), CLOSED)))
    assert isinstance(refused(stage.run(append_data_next(session, "c", ROW, 0))), ClosedError)
    assert not stage.of(PutBlob, DeleteBlobs)


def test_append_next_that_is_refused_deletes_what_it_put() -> None:
    stage, session = opened(arity=2)
    assert isinstance(refused(stage.run(append_data_next(session, "c", ROW, 0))), UsageError)
    (put,) = stage.of(PutBlob)
    assert stage.effects[-1] == DeleteBlobs((put.key,))
    assert stage.there() == set()


def test_append_next_of_an_expired_writer_is_fenced() -> None:
    stage, session = opened()
    stage.commit(stage.session(), ExpireWriter(session.writer))
    assert isinstance(refused(stage.run(append_data_next(session, "c", ROW, 0))), Fenced)
    assert stage.there() == set()


@pytest.mark.parametrize("wrong", [-1, 1 << 63, True, None, "3"])
def test_append_next_at_what_is_no_time_puts_nothing(wrong: Any) -> None:
    stage, session = opened()
    with pytest.raises(UsageError):
        stage.run(append_data_next(session, "c", ROW, wrong))
    assert stage.effects == []


def test_append_next_keeps_the_order_of_its_data() -> None:
    stage, session = opened()
    accepted(stage.run(append_data_next(session, "c", Data(ROW.value, ROW.rows, ROW.diff_sum, Order.UNORDERED), 0)))
    (batch,) = stage.head().hollow_batches()
    assert [run.order for run in batch.runs] == [Order.UNORDERED]


@pytest.mark.parametrize("fault", [Fault.DONE, Fault.NOT_DONE])
def test_append_next_whose_slot_was_lost_while_its_reply_was_too_is_in_once(fault: Fault) -> None:
    """The reply is lost, and before it can be asked for, somebody else appends."""
    stage, _ = opened()
    other, session = stage.session(), stage.session()
    data = asked(stage, "a", 0)
    stage.fail(CompareAndSet, fault)
    stage.before(CompareAndSet, lambda: stage.append(other, 4, up("theirs", 3)), nth=2)
    time = 0 if fault is Fault.DONE else 4
    assert stage.run(append_data_next(session, "c", data, 0)) == AppendNextResult(time, at(time + 1))
    assert stage.rows(stage.head().upper.elements[0][0] - 1) == {"a": 1, "theirs": 1}
    stage.agree()


# Append, for writers that all write the same.


def test_replicated_append_takes_everything_if_it_is_first() -> None:
    stage, session = opened()
    assert stage.run(append_missing_data(session, "c", data_of([up("a", 0), up("b", 1)]), at(0), at(2))) == at(2)
    assert not stage.of(DeleteBlobs)
    assert stage.rows(1) == {"a": 1, "b": 1}


def test_replicated_append_is_cut_to_what_is_not_there_yet() -> None:
    stage, session = opened()
    stage.append(session, 1, up("a", 0))
    assert stage.run(append_missing_data(session, "c", data_of([up("a", 0), up("b", 1)]), at(0), at(2))) == at(2)
    assert stage.rows(0) == {"a": 1}
    assert stage.rows(1) == {"a": 1, "b": 1}
    assert len(stage.there()) == 2


def test_replicated_append_that_comes_too_late_is_a_success_and_deletes_what_it_put() -> None:
    stage, session = opened()
    stage.append(session, 5, up("a", 0))
    assert stage.run(append_missing_data(session, "c", ROW, at(0), at(1))) == at(5)
    (put,) = stage.of(PutBlob)
    assert put.key not in stage.world.blobs
    assert stage.rows(4) == {"a": 1}


def test_replicated_append_that_loses_its_slot_to_its_twin_is_a_success() -> None:
    stage, _ = opened()
    other, session = stage.session(), stage.session()
    stage.before(CompareAndSet, lambda: stage.append(other, 1, up("a", 0)))
    assert stage.run(append_missing_data(session, "c", ROW, at(0), at(1))) == at(1)
    assert len(stage.there()) == 1
    assert stage.rows(0) == {"a": 1}


def test_replicated_append_that_leaves_a_gap_is_refused_and_deletes_what_it_put() -> None:
    stage, session = opened()
    assert isinstance(refused(stage.run(append_missing_data(session, "c", row("a", 3), at(3), at(4)))), UpperMismatch)
    assert stage.there() == set()


# Writing ahead of the seal.


def test_write_is_durable_at_once_and_seen_when_sealed() -> None:
    stage, session = opened()
    assert stage.run(write_data(session, "c", data_of([up("a", 0), up("b", 4)]), at(0), (4,))) == 0
    assert stage.run(write_data(session, "c", row("c", 1), at(1), (1,))) == 1
    assert len(stage.head().unsealed) == 2
    stage.commit(session, Seal(at(3)))
    assert stage.rows(2) == {"a": 1, "c": 1}


def test_write_below_the_upper_is_refused_and_deletes_what_it_put() -> None:
    stage, session = opened()
    stage.append(session, 3)
    assert isinstance(refused(stage.run(write_data(session, "c", row("a", 1), at(1), (1,)))), UsageError)
    assert stage.there() == set()


def test_write_whose_seal_came_first_is_refused_and_deletes_what_it_put() -> None:
    stage, _ = opened()
    other, session = stage.session(), stage.session()
    stage.before(CompareAndSet, lambda: stage.commit(other, Seal(at(2))))
    assert isinstance(refused(stage.run(write_data(session, "c", row("a", 1), at(1), (1,)))), UsageError)
    assert stage.there() == set()


# Many collections at once.


def test_append_to_many_collections_is_one_commit() -> None:
    stage = ProtocolHarness("c", "d")
    session = stage.session("c", "d")
    reply = stage.run(
        append_data_to_many(session, [("c", row("x", 0), at(0), at(1)), ("d", row("y", 2), at(0), at(3))])
    )
    assert reply == (at(1), at(3))
    assert len(stage.of(CompareAndSet)) == 1
    assert stage.rows(0, "c") == {"x": 1}
    assert stage.rows(2, "d") == {"y": 1}


def test_append_to_many_collections_is_refused_as_a_whole_and_deletes_all_it_put() -> None:
    stage = ProtocolHarness("c", "d")
    session = stage.session("c", "d")
    reply = stage.run(
        append_data_to_many(session, [("c", row("x", 0), at(0), at(1)), ("d", row("y", 2), at(2), at(3))])
    )
    assert isinstance(refused(reply), UpperMismatch)
    assert {key.split("/")[0] for each in stage.of(DeleteBlobs) for key in each.keys} == {"c", "d"}
    assert stage.there("c") | stage.there("d") == set()
    assert stage.head("c").upper == at(0)


def test_append_to_many_collections_that_fails_half_way_through_its_puts_commits_nothing() -> None:
    stage = ProtocolHarness("c", "d")
    session = stage.session("c", "d")
    stage.fail(PutBlob, Fault.NOT_DONE, nth=2, times=CONFIG.storage_attempts)
    with pytest.raises(Indeterminate):
        stage.run(append_data_to_many(session, [("c", row("x", 0), at(0), at(1)), ("d", row("y", 2), at(0), at(3))]))
    assert not stage.of(CompareAndSet)
    assert len(stage.there("c")) == 1  # left to the sweep


# Any single failure.


def every_way_to_write() -> dict[str, Any]:
    """Protocols that append one row `a` at time 0, by name."""
    return {
        "compare and append": lambda session: compare_and_append_data(session, "c", ROW, at(0), at(1)),
        "append": lambda session: append_missing_data(session, "c", ROW, at(0), at(1)),
        "append next": lambda session: append_data_next(session, "c", ROW, 0),
        "write": lambda session: write_data(session, "c", ROW, at(0), (0,)),
        "append to many": lambda session: append_data_to_many(session, [("c", ROW, at(0), at(1))]),
    }


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("kind", [PutBlob, CompareAndSet])
@pytest.mark.parametrize("way", every_way_to_write())
def test_row_is_in_once_whichever_effect_fails_in_whichever_way(way: str, kind: Any, fault: Fault) -> None:
    stage, session = opened()
    stage.fail(kind, fault)
    accepted(stage.run(every_way_to_write()[way](session)))
    stage.commit(session, Seal(at(1)))
    assert stage.rows(0) == {"a": 1}
    assert len(stage.there()) == 1


@pytest.mark.parametrize("way", every_way_to_write())
def test_writer_that_dies_at_any_point_leaves_all_or_nothing(way: str) -> None:
    outcomes = []
    for after in range(100):
        stage, session = opened()
        if not stage.crash(every_way_to_write()[way](session), after):
            break
        stage.commit(stage.session(), Seal(at(1)))
        outcomes.append(stage.rows(0))
    assert [outcome for outcome in outcomes if outcome not in ({}, {"a": 1})] == []
    assert len(outcomes) == 4


def test_forgetting_nothing_special_is_one_call() -> None:
    stage, session = opened()
    stage.run(delete_unreferenced(session, ("c/w1/p1", "c/w1/p2")))
    assert stage.effects == [DeleteBlobs(("c/w1/p1", "c/w1/p2"))]
    assert stage.run(refresh_state(session, "c")) is session.state("c")

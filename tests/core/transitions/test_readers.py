"""Holds on history: leased readers, critical holds, retention."""

from __future__ import annotations

from typing import Any

import pytest
from state_harness import TERM_MS, StateHarness, at, up

from timespine.core.state import HoldRecord, Reader
from timespine.core.transitions import (
    CompareAndDowngrade,
    DowngradeReader,
    ExpireLeases,
    ExpireReader,
    ExpireResult,
    Grant,
    RegisterHold,
    RegisterReader,
    ReleaseHold,
    Retain,
)
from timespine.errors import Fenced, LeaseExpired, UsageError
from timespine.model import CLOSED, Frontier


def scene_at(upper: int, since: int = 0) -> StateHarness:
    """A scene with an update at every time, sealed up to `upper` and exact from `since` on."""
    scene = StateHarness()
    for when in range(upper):
        scene.append(at(when + 1), up("a", when))
    if since:
        scene.do(Retain(at(since)))
    return scene


def test_reader_without_a_wish_gets_the_since_of_the_collection() -> None:
    scene = scene_at(5, since=2)
    seqno = scene.state.seqno
    assert scene.do(RegisterReader("r1", None, 500), now_ms=30) == Grant(at(2), seqno)
    assert scene.state.readers == {"r1": Reader(at(2), seqno, 530, 500)}


def test_reader_gets_a_later_since_as_asked() -> None:
    scene = scene_at(5, since=2)
    assert scene.do(RegisterReader("r1", at(4), TERM_MS)).since == at(4)


def test_reader_that_asks_for_forgotten_history_is_clamped_to_since() -> None:
    scene = scene_at(5, since=3)
    assert scene.do(RegisterReader("r1", at(1), TERM_MS)).since == at(3)
    scene.agree()


def test_reader_is_clamped_to_the_join_where_times_are_partially_ordered() -> None:
    scene = StateHarness(arity=2)
    scene.do(Retain(at(2, 1)))
    assert scene.do(RegisterReader("r1", at(1, 3), TERM_MS)).since == at(2, 3)


def test_registering_a_reader_again_gives_what_it_was_granted() -> None:
    scene = scene_at(5)
    granted = scene.do(RegisterReader("r1", at(1), TERM_MS))
    scene.do(Retain(at(4)))
    assert scene.declined(RegisterReader("r1", at(3), TERM_MS)) == granted


def test_reader_keeps_the_states_from_its_seqno_on() -> None:
    scene = scene_at(3)
    held = scene.do(RegisterReader("r1", None, TERM_MS)).seqno
    scene.append(at(4), up("a", 3))
    scene.do(RegisterReader("r2", None, TERM_MS))
    assert scene.state.seqno_since == held < scene.state.seqno


def test_without_readers_no_state_is_held() -> None:
    scene = scene_at(3)
    assert scene.state.seqno_since == scene.state.seqno


@pytest.mark.parametrize("name", ["", "R", "a/b", None])
def test_readers_and_holds_need_a_well_formed_name(name: Any) -> None:
    assert isinstance(StateHarness().declined(lambda: RegisterReader(name, None, TERM_MS)), UsageError)
    assert isinstance(StateHarness().declined(lambda: RegisterHold(name, None, "t")), UsageError)


@pytest.mark.parametrize("since", [at(1, 1), 3, (3,)])
def test_since_of_another_shape_is_a_usage_error(since: Any) -> None:
    scene = scene_at(3)
    scene.do(RegisterReader("r1", None, TERM_MS))
    scene.do(RegisterHold("h1", None, "t"))
    for command in (
        lambda: RegisterReader("r2", since, TERM_MS),
        lambda: RegisterHold("h2", since, "t"),
        lambda: DowngradeReader("r1", since, None),
        lambda: CompareAndDowngrade("h1", "t", "t", since),
        lambda: Retain(since),
    ):
        assert isinstance(scene.declined(command), UsageError), command


def test_term_of_a_reader_that_is_no_number_is_a_usage_error() -> None:
    assert isinstance(StateHarness().declined(lambda: RegisterReader("r1", None, "1 s")), UsageError)  # type: ignore[arg-type]


def test_closed_hold_on_an_open_collection_is_a_usage_error() -> None:
    scene = scene_at(3)
    assert isinstance(scene.declined(RegisterReader("r1", CLOSED, TERM_MS)), UsageError)
    assert isinstance(scene.declined(RegisterHold("h1", CLOSED, "t")), UsageError)


def test_hold_on_a_released_collection_is_closed() -> None:
    scene = scene_at(3)
    scene.do(Retain(CLOSED))
    assert scene.do(RegisterReader("r1", CLOSED, TERM_MS)).since == CLOSED
    assert scene.do(RegisterHold("h1", at(1), "t")).since == CLOSED


# Readers move.


def test_downgraded_reader_lets_since_follow() -> None:
    scene = scene_at(5)
    scene.do(RegisterReader("r1", None, TERM_MS))
    scene.do(Retain(at(4)))
    assert scene.state.since == at(0)
    assert scene.do(DowngradeReader("r1", at(3), None)).since == at(3)
    assert scene.state.since == at(3)
    scene.agree()


def test_downgrade_of_a_reader_never_goes_back() -> None:
    scene = scene_at(5)
    scene.do(RegisterReader("r1", at(3), TERM_MS))
    held = scene.state.readers["r1"]
    assert scene.declined(DowngradeReader("r1", at(2), 0)) == Grant(at(3), held.seqno)


def test_downgrade_to_an_incomparable_since_stays_where_it_is() -> None:
    scene = StateHarness(arity=2)
    scene.do(RegisterReader("r1", at(2, 0), TERM_MS))
    assert scene.declined(DowngradeReader("r1", at(0, 2), None)).since == at(2, 0)


def test_reader_releases_states_up_to_the_seqno_it_names() -> None:
    scene = scene_at(5)
    scene.do(RegisterReader("r1", None, TERM_MS))
    scene.append(at(6), up("a", 5))
    now = scene.state.seqno
    assert scene.do(DowngradeReader("r1", None, now)).seqno == now
    assert scene.state.seqno_since == now


def test_reader_cannot_hold_a_state_from_the_future() -> None:
    scene = scene_at(5)
    scene.do(RegisterReader("r1", None, TERM_MS))
    now = scene.state.seqno
    assert scene.do(DowngradeReader("r1", None, now + 100)).seqno == now


def test_downgrade_is_a_heartbeat_too() -> None:
    scene = scene_at(5)
    scene.do(RegisterReader("r1", None, TERM_MS))
    scene.do(DowngradeReader("r1", None, None), now_ms=TERM_MS // 2)
    assert scene.state.readers["r1"].until_ms == TERM_MS // 2 + TERM_MS


def test_downgrade_that_moves_nothing_changes_nothing() -> None:
    scene = scene_at(5)
    granted = scene.do(RegisterReader("r1", at(2), TERM_MS))
    assert scene.declined(DowngradeReader("r1", None, None)) == granted


def test_reader_that_was_removed_is_told_that_its_lease_expired() -> None:
    scene = scene_at(5)
    scene.do(RegisterReader("r1", None, TERM_MS))
    scene.do(ExpireLeases(), now_ms=2 * TERM_MS)
    reply = scene.declined(DowngradeReader("r1", at(3), None))
    assert isinstance(reply, LeaseExpired)
    assert "r1" in str(reply)


def test_since_follows_by_itself_when_a_reader_gives_its_lease_back() -> None:
    scene = scene_at(5)
    scene.do(RegisterReader("r1", at(1), TERM_MS))
    scene.do(Retain(at(4)))
    assert scene.state.since == at(1)
    assert scene.do(ExpireReader("r1")) is None
    assert scene.state.since == at(4)


def test_since_follows_by_itself_when_leases_lapse() -> None:
    scene = scene_at(5)
    scene.do(RegisterReader("r1", at(1), TERM_MS))
    scene.do(RegisterReader("r2", at(2), 2 * TERM_MS))
    scene.do(Retain(at(4)))
    scene.do(ExpireLeases(), now_ms=TERM_MS + 1)
    assert scene.state.since == at(2)
    scene.do(ExpireLeases(), now_ms=2 * TERM_MS + 1)
    assert scene.state.since == at(4)


def test_expiring_an_unknown_reader_changes_nothing() -> None:
    assert StateHarness().declined(ExpireReader("r1")) is None


# Critical holds.


def test_critical_hold_never_expires() -> None:
    scene = scene_at(5)
    assert scene.do(RegisterHold("h1", at(2), "t")).since == at(2)
    scene.do(ExpireLeases(), now_ms=1 << 50)
    scene.do(Retain(at(4)))
    assert scene.state.since == at(2)


def test_hold_that_asks_for_forgotten_history_is_clamped_to_since() -> None:
    scene = scene_at(5, since=3)
    assert scene.do(RegisterHold("h1", at(1), "t")).since == at(3)
    assert scene.do(RegisterHold("h2", None, "t")).since == at(3)


def test_hold_registered_again_with_its_token_is_granted_again() -> None:
    scene = scene_at(5)
    scene.do(RegisterHold("h1", at(2), "t"))
    assert scene.declined(RegisterHold("h1", at(4), "t")).since == at(2)


def test_hold_of_another_owner_is_fenced() -> None:
    scene = scene_at(5)
    scene.do(RegisterHold("h1", at(2), "mine"))
    reply = scene.declined(RegisterHold("h1", at(2), "yours"))
    assert isinstance(reply, Fenced)
    assert "mine" not in str(reply)


def test_hold_moves_under_its_token_and_gets_the_new_one() -> None:
    scene = scene_at(5)
    scene.do(RegisterHold("h1", at(1), "t1"))
    scene.do(Retain(at(4)))
    assert scene.do(CompareAndDowngrade("h1", "t1", "t2", at(3))).since == at(3)
    assert scene.state.holds == {"h1": HoldRecord(at(3), "t2")}
    assert scene.state.since == at(3)


def test_downgrade_of_a_hold_retried_after_a_lost_reply_happens_once() -> None:
    scene = scene_at(5)
    scene.do(RegisterHold("h1", at(1), "t1"))
    command = CompareAndDowngrade("h1", "t1", "t2", at(3))
    granted = scene.do(command)
    assert scene.declined(command).since == granted.since


def test_hold_is_fenced_once_its_token_was_taken_over() -> None:
    scene = scene_at(5)
    scene.do(RegisterHold("h1", at(1), "t1"))
    scene.do(CompareAndDowngrade("h1", "t1", "t2", at(1)))
    assert isinstance(scene.declined(CompareAndDowngrade("h1", "t1", "t3", at(3))), Fenced)
    assert isinstance(scene.declined(ReleaseHold("h1", "t1")), Fenced)


def test_downgrade_of_an_unknown_hold_is_fenced() -> None:
    assert isinstance(StateHarness().declined(CompareAndDowngrade("h1", "t", "t", at(1))), Fenced)


def test_hold_never_goes_back_but_its_token_changes() -> None:
    scene = scene_at(5)
    scene.do(RegisterHold("h1", at(3), "t1"))
    assert scene.do(CompareAndDowngrade("h1", "t1", "t2", at(1))).since == at(3)
    assert scene.state.holds["h1"] == HoldRecord(at(3), "t2")


def test_released_hold_lets_since_follow() -> None:
    scene = scene_at(5)
    scene.do(RegisterHold("h1", at(1), "t"))
    scene.do(Retain(at(4)))
    assert scene.do(ReleaseHold("h1", "t")) is None
    assert scene.state.since == at(4)
    assert scene.declined(ReleaseHold("h1", "t")) is None


# Retention.


def test_expire_says_what_took_effect_when_nothing_holds_it_back() -> None:
    scene = scene_at(5)
    assert scene.do(Retain(at(3))) == ExpireResult(at(3), at(3), ())
    scene.agree()


def test_expire_names_every_reader_and_hold_that_holds_it_back() -> None:
    scene = scene_at(6)
    scene.do(RegisterReader("r1", at(1), TERM_MS))
    scene.do(RegisterReader("r2", at(5), TERM_MS))
    scene.do(RegisterHold("h1", at(2), "t"))
    assert scene.do(Retain(at(4))) == ExpireResult(at(4), at(1), ("reader r1", "hold h1"))
    scene.do(ExpireReader("r1"))
    assert scene.state.since == at(2)
    scene.do(ReleaseHold("h1", "t"))
    assert scene.state.since == at(4)


def test_expire_again_changes_nothing_and_says_so() -> None:
    scene = scene_at(5)
    scene.do(RegisterHold("h1", at(2), "t"))
    reply = scene.do(Retain(at(4)))
    assert scene.declined(Retain(at(4))) == reply


def test_expire_to_an_earlier_time_never_goes_back() -> None:
    scene = scene_at(5, since=3)
    assert scene.declined(Retain(at(1))) == ExpireResult(at(1), at(3), ())


def test_expire_may_go_beyond_the_upper() -> None:
    scene = scene_at(5)
    assert scene.do(Retain(at(30))).since == at(30)
    scene.agree()
    scene.append(at(35), up("a", 31))
    scene.agree()


def test_expire_of_everything_closes_since() -> None:
    scene = scene_at(5)
    assert scene.do(Retain(CLOSED)) == ExpireResult(CLOSED, CLOSED, ())
    scene.agree()


def test_retention_and_holds_meet_where_times_are_partially_ordered() -> None:
    scene = StateHarness(arity=2)
    scene.do(RegisterReader("r1", at(3, 0), TERM_MS))
    reply = scene.do(Retain(at(0, 3)))
    assert reply.since == Frontier(((0, 3), (3, 0)))
    assert reply.held_by == ("reader r1",)
    scene.do(DowngradeReader("r1", Frontier(((3, 2),)), None))
    assert scene.state.since == Frontier(((0, 3), (3, 2)))

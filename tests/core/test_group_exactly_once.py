"""Numbered groups: a group that is judged again is committed once."""

from __future__ import annotations

import pytest
from group_cases import Stage, append, tx
from state_harness import TERM_MS, WRITER, at, batch

from timespine.core.batch import Part
from timespine.core.group import AlreadyCommittedGroup, Evaluated, Refused
from timespine.core.transitions import (
    CompareAndAppend,
    Drain,
    ExpireCommitter,
    ExpireWriter,
    RegisterReader,
    RegisterWriter,
    Seal,
)
from timespine.errors import Fenced


def test_append_retried_after_lost_reply_commits_once() -> None:
    stage = Stage("a", "b")
    group = stage.group(tx(append("a", 0, 1, "x"), append("b", 0, 1, "y")))
    judged = stage.judge(group)
    stage.take(judged)
    assert stage.judge(group) == AlreadyCommittedGroup()
    assert stage.scenes["a"].snapshot(0) == {"x": 1}


def test_group_number_is_recorded_only_where_the_group_changed_something() -> None:
    stage = Stage("a", "b")
    stage.commit(tx(append("a", 0, 1, "x"), ("b", Drain())))
    assert stage.scenes["a"].state.committers["k1"].group == 1
    assert stage.scenes["b"].state.committers["k1"].group == 0


def test_group_known_to_any_of_its_collections_was_committed() -> None:
    stage = Stage("a", "b")
    group = stage.group(tx(append("a", 0, 1, "x"), ("b", Drain())))
    stage.take(stage.judge(group))
    assert stage.judge(group) == AlreadyCommittedGroup()


def test_older_group_of_the_committer_was_committed() -> None:
    stage = Stage("a")
    old = stage.group(tx(append("a", 0, 1, "x")))
    stage.commit(tx(append("a", 0, 1, "y")))
    assert stage.judge(old) == AlreadyCommittedGroup()


def test_committer_that_was_removed_is_fenced_and_gets_no_mismatch() -> None:
    stage = Stage("a")
    stage.scenes["a"].do(Seal(at(9)))
    stage.scenes["a"].do(ExpireCommitter("k1"))
    fenced = stage.judge(stage.group(tx(append("a", 0, 1, "x"))))
    assert isinstance(fenced, Fenced)
    assert "k1" in str(fenced)


def test_committer_that_is_registered_in_none_of_the_collections_is_fenced_with_the_whole_group() -> None:
    stage = Stage("a", "b", "c")
    for name in ("a", "b"):
        stage.scenes[name].do(ExpireCommitter("k1"))
    fenced = stage.judge(stage.group(tx(append("a", 0, 1)), tx(append("b", 0, 1)), tx(append("z", 0, 1))))
    assert isinstance(fenced, Fenced)
    assert "k1 of a, b is no longer registered" in str(fenced)
    assert isinstance(stage.judge(stage.group(tx(append("a", 0, 1)), tx(append("c", 0, 1)))), Evaluated)


@pytest.mark.parametrize(
    "expired_in",
    [
        "a",
        "b",
    ],
)
def test_group_that_was_committed_stays_committed_when_its_committer_expires_in_one_collection(expired_in: str) -> None:
    stage = Stage("a", "b")
    group = stage.group(tx(append("a", 0, 1, "x"), append("b", 0, 1, "y")))
    stage.take(stage.judge(group))
    stage.scenes[expired_in].do(ExpireCommitter("k1"))
    assert stage.judge(group) == AlreadyCommittedGroup()


def test_commit_extends_the_lease_of_its_committer() -> None:
    stage = Stage("a")
    stage.commit(tx(append("a", 0, 1, "x")), now_ms=TERM_MS // 2)
    assert stage.scenes["a"].state.committers["k1"].until_ms == TERM_MS // 2 + TERM_MS
    stage.commit(tx(append("a", 1, 2, "x")), now_ms=TERM_MS // 2 + 1)
    assert stage.scenes["a"].state.committers["k1"].until_ms == TERM_MS // 2 + TERM_MS
    assert stage.scenes["a"].state.committers["k1"].group == 2


def test_commit_extends_the_lease_of_the_writer_of_its_committer() -> None:
    stage = Stage("a", "b")
    for scene in stage.scenes.values():
        scene.do(RegisterWriter("w2", TERM_MS))
    now_ms = TERM_MS // 2

    def until(name: str, writer: str) -> int:
        return stage.scenes[name].state.writers[writer].until_ms

    stage.commit(tx(append("a", 0, 1, "x")), now_ms=now_ms, writer="w2")
    assert [until(*each) for each in (("a", "w2"), ("a", WRITER), ("b", "w2"))] == [now_ms + TERM_MS, TERM_MS, TERM_MS]
    before = stage.scenes["a"].state.writers
    stage.commit(tx(append("a", 1, 2, "x")), now_ms=now_ms + TERM_MS // 4 - 1, writer="w2")
    assert stage.scenes["a"].state.writers == before  # not every commit has to say so
    stage.commit(tx(append("a", 2, 3, "x")), now_ms=now_ms + TERM_MS // 4, writer="w2")
    assert until("a", "w2") == now_ms + TERM_MS // 4 + TERM_MS
    stage.commit(tx(append("b", 0, 1, "x")), now_ms=now_ms)
    assert until("b", "w2") == TERM_MS  # a group that names no writer extends none


def test_group_that_changes_nothing_extends_no_lease() -> None:
    stage = Stage("a")
    assert stage.commit(tx(("a", Drain())), now_ms=TERM_MS // 2, writer=WRITER).changed == {}


def test_lease_of_the_writer_is_extended_where_the_group_only_reads_too() -> None:
    stage = Stage("a", "b")
    stage.commit(tx(append("b", 0, 3, "y"), reads=(("a", at(0)),)), now_ms=TERM_MS // 2, writer=WRITER)
    assert stage.scenes["a"].state.writers[WRITER].until_ms == TERM_MS // 2 + TERM_MS


@pytest.mark.parametrize("writer", [WRITER, "w9"])
def test_writer_that_left_or_never_was_does_not_come_by_a_commit(writer: str) -> None:
    stage = Stage("a")
    stage.commit(tx(append("a", 0, 1, "x"), ("a", ExpireWriter(WRITER))), now_ms=TERM_MS // 2, writer=writer)
    assert stage.scenes["a"].state.writers == {}


def test_group_in_which_the_committer_leaves_records_no_number() -> None:
    stage = Stage("a")
    stage.commit(tx(append("a", 0, 1, "x"), ("a", ExpireCommitter("k1"))))
    assert stage.scenes["a"].state.committers == {}


def test_group_without_a_committer_is_judged_every_time_and_records_nothing() -> None:
    stage = Stage("a", committer=None)
    group = stage.group(tx(("a", RegisterReader("r1", None, TERM_MS))))
    stage.take(stage.judge(group))
    assert stage.scenes["a"].state.committers["k1"].group == 0
    again = stage.judge(group)
    assert isinstance(again, Evaluated)
    assert again.changed == {}


def test_fenced_writer_does_not_fence_the_committer() -> None:
    stage = Stage("a")
    stage.scenes["a"].do(ExpireWriter(WRITER))
    blob = CompareAndAppend((batch(at(0), at(1), Part("a/w1/p", 1)),), at(0), at(1))
    judged = stage.commit(tx(("a", blob)), tx(append("a", 0, 1, "x")))
    assert isinstance(judged.replies[0], Refused)
    assert judged.replies[1] == (at(1),)

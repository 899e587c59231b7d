"""Real storage beside the simulated one: both must say the same, and a difference is a violation."""

import os

import pytest

from timespine.core.effects import CompareAndSet, DeleteBlobs, GetBlob, ListBlobs, PutBlob, Scan, Truncate
from timespine.core.encoding.codec import encode_state
from timespine.core.state import new_state
from timespine.location.folder.local_blob import LocalBlob
from timespine.location.sqlite.sqlite_consensus import SqliteConsensus
from timespine.testing.formats.real_storage import RealWorld


@pytest.fixture
def world():
    with RealWorld() as world:
        yield world


def done(world, effect):
    return world.perform[type(effect)](effect)


def test_effects_are_carried_out_on_both(world):
    state = encode_state(new_state("c1", 1))
    assert done(world, CompareAndSet((("c1", None, state),))) is None
    assert done(world, CompareAndSet((("c1", None, state),))) == {"c1": 0}
    assert done(world, Scan("c1", 0)) == [(0, state)]
    assert done(world, Scan("nobody", 0)) == []
    assert done(world, Truncate("c1", 5)) == 0
    for number in range(2):
        done(world, PutBlob(f"c1/w1/p{number}", b"x"))
    assert done(world, GetBlob("c1/w1/p0")) == b"x"
    assert done(world, ListBlobs("c1/")) == ["c1/w1/p0", "c1/w1/p1"]
    done(world, DeleteBlobs(("c1/w1/p0", "c1/w1/p7")))
    assert done(world, GetBlob("c1/w1/p0")) is None
    assert world.violations == []


def test_what_was_done_is_there_when_the_adapters_are_opened_again(world):
    done(world, PutBlob("c1/w1/p0", b"x"))
    world.reopen()
    assert done(world, GetBlob("c1/w1/p0")) == b"x"
    assert world.violations == []


def test_another_answer_of_real_storage_is_a_violation(world, monkeypatch):
    done(world, PutBlob("c1/w1/p0", b"x"))
    monkeypatch.setattr(LocalBlob, "get", lambda blob, key: b"y")
    assert done(world, GetBlob("c1/w1/p0")) == b"y"
    assert "on real storage gave b'y', not b'x'" in world.violations[0]


def test_an_error_of_real_storage_is_a_violation(world, monkeypatch):
    monkeypatch.setattr(SqliteConsensus, "scan", lambda log, key, start, limit: log.truncate(key, -1))
    assert done(world, Scan("c1", 0)) == []
    assert "Scan on real storage: UsageError" in world.violations[0]


def test_nothing_is_left_behind():
    with RealWorld() as world:
        folder = world._folder
        assert os.path.isdir(folder)
    assert not os.path.exists(folder)


def test_it_works_where_there_is_no_file_system_in_memory(monkeypatch, tmp_path):
    monkeypatch.setattr("timespine.testing.formats.real_storage.MEMORY", str(tmp_path / "nowhere"))
    with RealWorld() as world:
        done(world, PutBlob("c1/w1/p0", b"x"))
        assert world.violations == []

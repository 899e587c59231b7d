"""A reader that waits for commits of others looks at the log as often as its place says, and no more."""

from __future__ import annotations

from unittest import mock

import pytest

import timespine as ts
from timespine.arrangement.arrangement import Arrangement
from timespine.client.read.follow.commit_stream import CommitStream
from timespine.errors import Determinate
from timespine.location.opening.place import LOOK_S, REMOTE_LOOK_S
from timespine.locks import Bell
from timespine.testing.latency import SlowPlace, pools_on

MINUTE_S = 60.0

GETS_OF_A_MINUTE = 160
"""Two requests a look, one look a second, 16 looks more while the pauses grow, and what the reader reads."""


class Over(Exception):
    """The minute is over."""


class VirtualBell(Bell):
    """A bell that no other process rings, on a clock that only waits move."""

    now = 0.0

    def wait(self, heard: int, timeout_s: float) -> bool:
        if self.now >= MINUTE_S:
            raise Over
        self.now += timeout_s
        return False


def follow(made):
    with mock.patch.object(Arrangement, "_follow"):  # the thread does nothing
        index = made.arrange()
    index._follow()


WAITS = {
    "snapshot": lambda made: made.snapshot(as_of=10, timeout=2 * MINUTE_S),
    "subscribe": lambda made: list(made.subscribe(timeout=2 * MINUTE_S)),
    "listen": lambda made: list(made.listen(timeout=2 * MINUTE_S)),
    "arrangement": follow,
}


@pytest.fixture
def made():
    """A collection whose logs are in a bucket, and that waits on a virtual clock."""
    place = SlowPlace(is_bucket=True)
    with place.open() as store:
        store.create("c", key={"k": "int64"}, timeline="counter").append([{"k": 1}])
    with pools_on(place.clock), place.open() as store:
        bell = store._context.committed = VirtualBell()
        store._context.monotonic = lambda: bell.now
        yield store["c"], place.objects.calls


@pytest.mark.parametrize("waits", WAITS)
def test_a_minute_of_waiting_on_a_bucket_makes_few_requests(waits, made):
    collection, calls = made
    calls.clear()
    with pytest.raises(Over):
        WAITS[waits](collection)
    assert 2 * MINUTE_S <= calls["get"] <= GETS_OF_A_MINUTE


def test_a_listener_that_finds_no_storage_tries_again_as_often(made):
    collection, _ = made
    stream = collection.listen()
    with mock.patch.object(CommitStream, "__next__", side_effect=Determinate("away")) as tries, pytest.raises(Over):
        stream._patiently()
    assert tries.call_count <= MINUTE_S + 1


def test_how_often_a_reader_looks_depends_on_its_place(moto, tmp_path):
    with ts.open(moto.url(), storage=moto.storage, maintenance=False) as store:
        assert store._context.look_s == REMOTE_LOOK_S
    with ts.open(tmp_path / "store", maintenance=False) as store:
        assert store._context.look_s == LOOK_S

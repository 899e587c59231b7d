"""Blobs of a write that was surely not committed are deleted at once, and rows that workers built are placed alike."""

import pytest
from memory_store import BLOBS

from timespine.client.write.prebuilt.prebuilt_append import AppendTime, append_runs_step
from timespine.client.write.read_current import LocalDelta
from timespine.client.write.stage_rows import did_not_commit
from timespine.client.write.step_commit import commit_steps
from timespine.errors import Fenced, Indeterminate, LeaseExpired, UsageError


def create(store, name="t"):
    return store.create(name, key={"k": "int64"}, value={"v": "string"}, timeline="counter")


def test_blobs_of_a_change_whose_lease_expired_before_it_was_offered_are_deleted(place, monkeypatch):
    store = place.open(config=BLOBS)
    table, log = create(store), create(store, "log")
    table.append([{"k": 1, "v": "a"}])
    before = place.blobs()

    def follow(self, *_, **__):
        assert len(place.blobs()) > len(before)
        raise LeaseExpired("the lease of a reader expired: read again")

    monkeypatch.setattr(LocalDelta, "follow", follow)
    tx = store.transaction()
    tx.append(log, [{"k": 1, "v": "changed"}])
    tx.upsert(table, [{"k": 1, "v": "b"}])
    with pytest.raises(LeaseExpired):
        tx.commit()
    assert place.blobs() == before


def test_only_an_error_that_leaves_a_doubt_keeps_blobs():
    assert did_not_commit(LeaseExpired("gone"))
    assert did_not_commit(Fenced("fenced"))
    assert not did_not_commit(Fenced("fenced", in_doubt=True))
    assert not did_not_commit(Indeterminate("no reply"))


def test_no_rows_of_workers_with_times_of_their_own_complete_a_collection_up_to_a_given_upper(place):
    table = create(place.open())
    handle = table._handle
    _, schema = handle.schema(handle.state())
    with pytest.raises(UsageError, match="there is nothing to append"):
        append_runs_step(handle, schema, (), 0, AppendTime(None, False))
    (done,) = commit_steps(append_runs_step(handle, schema, (), 0, AppendTime(None, False, upper=7)))
    assert (done.rows, done.time, table.upper) == (0, None, table._handle.frontier_of(7))

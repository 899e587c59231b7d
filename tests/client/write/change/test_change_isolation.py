"""Every change is as if it were alone at its time, whatever others commit before each compare-and-set."""

from collections import Counter
from dataclasses import replace
from functools import reduce

import polars as pl
import pytest
from assertions import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_store import BLOBS, QUICK, SMALL, MemoryStore, in_threads
from rival_cases import beside, counts, create, now, of, row

from timespine.client.commit.retry_limits import RetryPolicy
from timespine.client.write import step_commit, upsert_update_delete
from timespine.client.write.read_current import Grain
from timespine.client.write_results import CommitResult, WriteResult
from timespine.columnar.schema.schema import define
from timespine.core.transitions import CompareAndAppend
from timespine.errors import Contention

KEYS = st.integers(0, 4)


VALUES = st.integers(0, 4)


OPERATIONS = st.one_of(
    st.tuples(st.just("append"), st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=3)),
    st.tuples(
        st.just("write"),
        st.tuples(st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=2), st.integers(0, 3)),
    ),
    st.tuples(st.just("upsert"), st.dictionaries(KEYS, VALUES, min_size=1, max_size=3)),
    st.tuples(st.just("delete"), st.sets(KEYS, min_size=1, max_size=2)),
    st.tuples(st.just("delete where"), VALUES),
    st.tuples(st.just("update"), KEYS),
    st.tuples(st.just("update by all"), KEYS),
    st.tuples(st.just("replace"), VALUES),
    st.tuples(st.just("merge"), st.tuples(st.dictionaries(KEYS, VALUES, max_size=3), KEYS)),
)


def is_alone(table, done):
    """Check that each operation did to the collection what it does to a multiset, at its time, and nothing else did.

    What is written ahead of the seal counts from its time on, for a change at that time too.
    """
    written, by_time = {}, {}
    for each, (_, work) in done:
        if isinstance(each, WriteResult):
            written.setdefault(each.first, []).append(work)
        elif each.time is not None:
            assert by_time.setdefault(each.time, work) is work, "each has a time of its own"
    models = {-1: Counter()}
    for time in range(table.upper.elements[0][0]):
        works = [*written.get(time, ()), *([by_time[time]] if time in by_time else ())]
        models[time] = +reduce(lambda model, work: work(model), works, models[time - 1])
        assert now(table, time) == models[time]
    for each, (_, work) in done:
        if isinstance(each, CommitResult) and each.time is None and each.upper.elements[0][0] not in written:
            read = models[each.upper.elements[0][0] - 1]
            assert +work(read) == read, "nothing was to be changed in what was read"


@settings(max_examples=examples(60), deadline=None)
@given(
    ours=st.lists(OPERATIONS, min_size=1, max_size=4),
    theirs=st.lists(st.one_of(st.none(), st.lists(OPERATIONS, min_size=1, max_size=3)), max_size=10),
    small=st.booleans(),
)
def test_every_change_is_as_if_alone_at_its_time_whatever_others_do_before_each_compare_and_set(ours, theirs, small):
    with MemoryStore() as place:
        done = []

        def works(some):
            return lambda table: done.extend((of(each)[0](table), of(each)) for each in some or ())

        table, rival = beside(place, map(works, theirs), SMALL if small else QUICK, ())
        for each in ours:
            done.append((of(each)[0](table), of(each)))
        rival.works.clear()
        is_alone(table, done)
        assert counts(table, "changes started again") == (0,)


@settings(max_examples=8, deadline=None)
@given(works=st.lists(st.lists(OPERATIONS, min_size=3, max_size=6), min_size=4, max_size=4))
def test_changes_of_many_threads_and_two_processes_are_each_as_if_alone(works):
    with MemoryStore() as place:
        stores = [place.open(), place.open(config=BLOBS)]
        create(stores[0])
        done = []

        def work(store, operations):
            for each in operations:
                done.append((of(each)[0](store["t"]), of(each)))

        in_threads(*(lambda s=s, w=w: work(s, w) for s, w in zip(stores * 2, works, strict=True)))
        is_alone(stores[0]["t"], done)


def test_patches_are_put_again_as_blobs_if_the_state_is_full(place):
    """The state has no room left when the commit is judged, so that the difference and its patch are put as blobs."""
    config = replace(QUICK, inline_total_bytes=3000)
    works = [lambda theirs: [theirs.append([row(1, n)]) for n in range(3)]]
    table, _ = beside(place, works, config)
    table.delete({"k": 1})
    assert now(table) == {(2, 2): 1}
    assert counts(table, "changes read") == (1,)
    assert place.open().vacuum().blobs == []


def test_what_a_change_looks_at_decides_what_a_patch_is_worked_out_from():
    schema = define({"k": "int64"}, {"n": "int64"}, (), 1)
    keyless = define(None, {"n": "int64", "tags": "list<string>"}, (), 1)
    by_row, by_all = {"n": pl.col("n") + 1}, {"n": pl.col("n").sum()}
    assert upsert_update_delete.update_delta(None, by_row)(schema).grain is Grain.KEYS
    assert upsert_update_delete.update_delta(None, {"n": 1})(schema).grain is Grain.KEYS
    assert upsert_update_delete.update_delta(None, by_all)(schema).grain is Grain.ALL
    assert upsert_update_delete.update_delta(None, by_row)(keyless).grain is Grain.ALL, (
        "nested rows cannot be found by their columns"
    )
    assert upsert_update_delete.delete_where_delta("n = 1")(schema).grain is Grain.NEWS


def test_a_change_whose_own_count_overflows_keeps_the_blobs_that_it_committed(place, monkeypatch):
    store, other = place.open(config=BLOBS), place.open(config=BLOBS)
    table = store.create("t", value={"v": "int64"}, timeline="counter")
    table.append([{"v": each} for each in range(100)])
    table.append([{"v": 0, "_diff": (1 << 63) - 2}])
    real = store._committer.commit

    def lost_once(*commands, reads=(), patience=None):
        if isinstance(commands[0][1], CompareAndAppend):
            monkeypatch.setattr(store._committer, "commit", real)
            other["t"].append([{"v": 0, "_diff": 2}])
        return real(*commands, reads=reads)

    monkeypatch.setattr(store._committer, "commit", lost_once)
    table.delete(where="v >= 0")
    assert table.snapshot().to_arrow().num_rows == 0


def test_a_change_that_gives_up_leaves_no_blob_of_its_patches(place, monkeypatch):
    monkeypatch.setattr(step_commit, "RETRY", RetryPolicy(placements=3))
    store, other = place.open(config=BLOBS), place.open(config=BLOBS)
    table = create(store)
    table.append([row(each) for each in range(50)])
    commit, committed = store._committer.commit, store._committer._commit_transactions

    def first(*commands, reads=(), patience=None):
        if isinstance(commands[0][1], CompareAndAppend):
            other["t"].append([row(each, 1) for each in range(50)])
        return commit(*commands, reads=reads)

    def later(*given):
        other["t"].append([row(each, 1) for each in range(50)])
        return committed(*given)

    monkeypatch.setattr(store._committer, "commit", first)
    monkeypatch.setattr(store._committer, "_commit_transactions", later)
    with pytest.raises(Contention):
        table.delete(where="k >= 0")
    assert set(place.blobs(f"{table.id}/")) <= set(table._handle.state().keys())

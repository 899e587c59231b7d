"""Changes beside other writers, exactly once; and random changes against a model."""

from collections import Counter

import polars as pl
import pyarrow as pa
import pytest
from change_cases import BOTH, GROUPS, create, now, row
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_store import BLOBS, QUICK, MemoryStore, Script, in_threads

from timespine.client.commit.retry_limits import RetryPolicy
from timespine.client.write import step_commit
from timespine.errors import Contention, Determinate, Indeterminate
from timespine.testing.unreliable import Fault

# Others at the same time.


def racing(place, script, orders, work):
    """Let another process do something just before the next commit of an append or change."""
    other = place.open()
    script.add("compare_and_set", Fault.NONE, key=orders.id, hook=lambda: work(other["orders"]))


@BOTH
@pytest.mark.parametrize("form", ["dicts", "table", "reader", "exported"])
def test_an_upsert_that_lost_is_patched_by_what_others_committed_and_reads_no_row_again(place, config, form):
    script = Script()
    orders = create(place.open(script=script, config=config))
    orders.append([row(1, "a"), row(2, "b")])
    orders.snapshot().close()  # a lease is there if blobs need one, so that the next commit is that of the upsert
    racing(place, script, orders, lambda theirs: theirs.upsert([row(1, "theirs"), row(3, "theirs")]))
    table = pa.table({"k": [1, 2], "v": ["ours", "ours"], "n": [0, 0]})
    rows = {
        "dicts": table.to_pylist(),
        "table": table,
        "reader": table.to_reader(),
        "exported": type("Exported", (), {"__arrow_c_stream__": table.to_reader().__arrow_c_stream__})(),
    }[form]
    done = orders.upsert(rows)
    assert script.is_done
    assert done.rows == 4
    assert now(orders) == {(1, "ours", 0): 1, (2, "ours", 0): 1, (3, "theirs", 0): 1}
    counters = orders._handle.committer.counters
    assert (counters["changes read"], counters["changes placed again"], counters["changes patched"]) == (1, 1, 1)
    assert "changes started again" not in counters
    assert place.open().vacuum().blobs == []


@pytest.mark.parametrize("change", ["delete", "where", "update", "replace", "merge"])
def test_every_change_that_lost_is_right_for_what_is_there_when_it_is_committed(place, change):
    script = Script()
    orders = create(place.open(script=script, config=BLOBS))
    orders.append([row(1, "a", 1), row(2, "b", 2)])
    orders.snapshot().close()
    racing(place, script, orders, lambda theirs: theirs.upsert([row(1, "theirs", 10)]))
    keys = pa.table({"k": [1]}).to_reader()
    {
        "delete": lambda: orders.delete(keys),
        "where": lambda: orders.delete(where="k = 1"),
        "update": lambda: orders.update(where="k = 1", set={"n": pl.col("n") + 1}),
        "replace": lambda: orders.replace(pa.table({"k": [1], "n": [7]}).to_reader(), where="k = 1"),
        "merge": lambda: orders.merge(keys).when_matched_update({"n": pl.col("n") * 2}).execute(),
    }[change]()
    assert script.is_done
    rest = {
        "delete": {},
        "where": {},
        "update": {(1, "theirs", 11): 1},
        "replace": {(1, None, 7): 1},
        "merge": {(1, "theirs", 20): 1},
    }[change]
    assert now(orders) == {(2, "b", 2): 1, **rest}
    assert orders._handle.committer.counters["changes read"] == 1


def test_a_change_that_always_loses_ends_with_a_retryable_error_that_says_what_was_tried(place, monkeypatch):
    monkeypatch.setattr(step_commit, "RETRY", RetryPolicy(placements=3))
    other = place.open()

    class Busy(Script):
        on = False

        def __call__(self, operation, key):
            if self.on and operation == "compare_and_set":
                self.on = False
                other["orders"].append([row(9)])
                self.on = True
            return Fault.NONE

    script = Busy()
    orders = create(place.open(script=script, config=BLOBS))
    orders.append([row(1)])
    orders.snapshot().close()
    blobs = len(place.blobs())
    script.on = True
    with pytest.raises(Contention, match=r"nothing was changed: .* orders first, 3 times in a row; make the change"):
        orders.upsert([row(1, "ours")])
    script.on = False
    assert issubclass(Contention, Determinate)
    assert now(orders) == {(1, "a", 0): 1, (9, "a", 0): 3}
    assert len(place.blobs()) == blobs, "what was put for it is deleted"
    assert orders._handle.committer.counters["changes read"] == 1
    orders.upsert([row(1, "ours")])
    assert now(orders) == {(1, "ours", 0): 1, (9, "a", 0): 3}


@pytest.mark.parametrize("fault", [Fault.INDETERMINATE_DONE, Fault.INDETERMINATE_NOT, Fault.LATE])
def test_a_change_whose_reply_was_lost_is_made_once(place, fault):
    script = Script()
    store = place.open(script=script, config=BLOBS)
    orders = create(store)
    orders.append([row(1, n=1)])
    orders.snapshot().close()
    script.add("compare_and_set", fault, key=orders.id)
    orders.update(set={"n": pl.col("n") + 1})
    store.ghosts()
    assert now(orders) == {(1, "a", 2): 1}
    script.add("compare_and_set", fault, key=orders.id)
    script.add("compare_and_set", Fault.INDETERMINATE_NOT, key=orders.id, times=3)
    with pytest.raises(Indeterminate):
        orders.update(set={"n": pl.col("n") + 1})
    script.rules.clear()
    orders.update(set={"n": pl.col("n") + 1})
    store.ghosts()
    assert now(place.open()["orders"]) == {(1, "a", 4): 1}  # settled before the next: in, and once


@BOTH
def test_a_counter_that_many_threads_of_two_processes_increment_is_exact(place, config):
    stores = [place.open(config=config), place.open(config=config)]
    create(stores[0]).append([row(1, n=0), row(2, n=0)])

    def by_update(store):
        for _ in range(6):
            store["orders"].update(where="k = 1", set={"n": pl.col("n") + 1})

    def by_merge(store):
        for _ in range(6):
            store["orders"].merge([{"k": 2, "by": 3}]).when_matched_update(
                {"n": pl.col("n") + pl.col("source.by")}
            ).execute()

    in_threads(*(lambda work=work, store=store: work(store) for work in (by_update, by_merge) * 2 for store in stores))
    assert now(stores[0]["orders"]) == {(1, "a", 24): 1, (2, "a", 72): 1}


def test_upserts_of_the_same_keys_from_many_threads_leave_one_row_per_key(place):
    stores = [place.open(config=BLOBS), place.open(config=BLOBS)]
    create(stores[0])

    def work(store, who):
        for turn in range(5):
            store["orders"].upsert([row(k, who, turn) for k in range(4)])
            if turn % 2:
                store["orders"].delete({"k": turn})

    in_threads(*(lambda who=who, store=store: work(store, who) for who, store in zip("abcd", stores * 2, strict=True)))
    there = now(stores[1]["orders"], "k")
    assert all(count == 1 for count in there.values())
    assert set(there) <= {(k,) for k in range(4)}


@BOTH
def test_four_processes_that_upsert_the_same_rows_start_no_change_again(place, config):
    stores = [place.open(config=config) for _ in range(4)]
    create(stores[0]).append([row(k, "first") for k in range(8)])

    def work(store, who):
        for turn in range(8):
            store["orders"].upsert([row(k, who, turn) for k in range(8)])

    in_threads(*(lambda who=who, store=store: work(store, who) for who, store in zip("abcd", stores, strict=True)))
    assert now(stores[0]["orders"], "k") == {(k,): 1 for k in range(8)}
    for store in stores:
        counters = store["orders"]._handle.committer.counters
        assert counters["changes read"] == 8
        assert "changes started again" not in counters


# Against a model.


OPERATIONS = st.one_of(
    st.tuples(st.just("upsert"), st.dictionaries(st.integers(0, 5), st.integers(0, 3), max_size=4)),
    st.tuples(st.just("delete"), st.sets(st.integers(0, 5), max_size=3)),
    st.tuples(st.just("delete where"), st.integers(0, 3)),
    st.tuples(st.just("update"), st.integers(0, 5)),
    st.tuples(st.just("append"), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=3)),
)


@settings(max_examples=40, deadline=None)
@given(operations=st.lists(OPERATIONS, max_size=8), grouped=st.booleans())
def test_every_history_of_changes_is_that_of_a_plain_multiset(operations, grouped):
    with MemoryStore() as place:
        store = place.open(config=GROUPS if grouped else QUICK, audit=1.0)
        table = store.create("t", key={"k": "int64"}, value={"n": "int64"}, timeline="counter")
        model = Counter()
        for operation, given_ in operations:
            if operation == "upsert":
                table.upsert([{"k": k, "n": n} for k, n in given_.items()])
                model = Counter({each: count for each, count in model.items() if each[0] not in given_})
                model.update(given_.items())
            elif operation == "delete":
                table.delete([{"k": k} for k in given_])
                model = Counter({each: count for each, count in model.items() if each[0] not in given_})
            elif operation == "delete where":
                table.delete(where=f"n = {given_}")
                model = Counter({each: count for each, count in model.items() if each[1] != given_})
            elif operation == "update":
                table.update(where=f"k >= {given_}", set={"n": (pl.col("n") + 1) % 4})
                moved = Counter()
                for (k, n), count in model.items():
                    moved[k, (n + 1) % 4 if k >= given_ else n] += count
                model = moved
            else:
                table.append([{"k": k, "n": n} for k, n in given_])
                model.update(given_)
            assert now(table, "k", "n") == model

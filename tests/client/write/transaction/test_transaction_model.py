"""Transactions with invalid arguments, and random histories of transactions against a model."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from key_value_cases import create
from memory_store import BLOBS, QUICK, MemoryStore, Script, in_threads
from transaction_cases import pair, row, rows

from timespine.client.write.step_commit import StepCommit
from timespine.client.write.transaction_steps import AppendStep
from timespine.config import Config
from timespine.errors import ClosedError, UsageError
from timespine.model.frontier import Frontier
from timespine.testing.unreliable import Fault

# Invalid arguments.


def test_invalid_arguments_of_transactions_are_refused(place):
    store = place.open()
    orders = create(store)
    with store.transaction() as tx:
        with pytest.raises(UsageError):
            tx.append("nobody", [row(1)])
        with pytest.raises(UsageError):
            tx.append(7, [row(1)])
        with pytest.raises(UsageError):
            tx.seal(7, 1)
        with pytest.raises(UsageError):
            tx.delete("orders")
        with pytest.raises(UsageError):
            tx.seal("orders", "noon")
    orders.finish()
    with pytest.raises(ClosedError), store.transaction() as tx:
        tx.append("orders", [row(1)])
    with pytest.raises(UsageError, match="reading only"):
        place.open(read_only=True).transaction()


# Any history.


STEP = st.one_of(
    st.tuples(st.just("append"), st.sampled_from(["orders", "items"]), st.integers(0, 5)),
    st.tuples(st.just("upsert"), st.sampled_from(["orders", "items"]), st.integers(0, 5)),
    st.tuples(st.just("write"), st.sampled_from(["orders", "items"]), st.integers(0, 5)),
    st.tuples(st.just("seal"), st.sampled_from(["orders", "items"]), st.integers(0, 3)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(STEP, min_size=1, max_size=5), max_size=6), st.sampled_from([QUICK, BLOBS]))
def test_any_transaction_is_in_as_a_whole_or_changes_nothing(transactions, config):
    with MemoryStore() as place:
        store = place.open(config=config)
        pair(store)
        for steps in transactions:
            before = {name: store[name]._handle.state() for name in ("orders", "items")}
            tx = store.transaction()
            try:
                for kind, name, n in steps:
                    upper = store[name].upper.elements[0][0]
                    if kind == "seal":
                        tx.seal(name, upper + n)
                    elif kind == "write":
                        tx.write(name, [row(n, "w", _time=upper + n)])
                    else:
                        getattr(tx, kind)(name, [row(n, kind)])
                tx.commit()
            except UsageError:
                for name, state in before.items():
                    now = store[name]._handle.state()
                    assert (now.upper, now.unsealed_next) == (state.upper, state.unsealed_next)
                continue
            writes = {name: sum(1 for kind, each, _ in steps if (kind, each) == ("write", name)) for name in before}
            for name, state in before.items():
                assert store[name]._handle.state().unsealed_next == state.unsealed_next + writes[name]
            for kind, name, n in steps:
                if kind in ("append", "upsert"):
                    found = rows(store[name], store.snapshot([name]).as_of)
                    assert found.get((n, kind), 0) >= 1


def test_config_of_small_budgets_puts_rows_of_all_collections_into_blobs(place):
    store = place.open(config=Config(retry_pause_ms=1, inline_total_bytes=1))
    orders, items = pair(store)
    with store.transaction() as tx:
        tx.append("orders", [row(1)])
        tx.append("items", [row(1)])
    assert rows(orders) == rows(items) == {(1, "a"): 1}
    assert orders.inspect().inline_bytes == 0


def test_a_transaction_is_placed_again_if_another_thread_commits_just_before_it(place, monkeypatch):
    store = place.open()
    orders, _ = pair(store)
    real, others = StepCommit._commands, [[{"k": 1, "v": "first"}]]

    def commands(self, runs):
        if others:
            in_threads(lambda: orders.append(others.pop()))
        return real(self, runs)

    monkeypatch.setattr(StepCommit, "_commands", commands)
    with store.transaction() as tx:
        tx.append("orders", [{"k": 2, "v": "second"}])
        tx.append("items", [{"k": 2, "v": "second"}])
    assert tx.time == 1
    assert [row["k"] for row in orders.changes(after=0).to_pylist()] == [2]


def test_rows_at_or_after_the_upper_that_they_are_to_complete_are_refused(place):
    store = place.open()
    orders, _ = pair(store)
    with pytest.raises(UsageError, match="at or after"), store.transaction() as tx:
        tx.append("orders", [row(1)], at=5, upper=3)
    assert orders.upper == Frontier.at(0)


def test_a_lone_append_of_a_transaction_takes_the_time_that_is_free_when_it_is_committed(place):
    script = Script()
    store, other = place.open(script=script), place.open()
    orders, _ = pair(store)
    orders.append([row(0)])
    script.add("compare_and_set", Fault.NONE, hook=lambda: other["orders"].append([row(7)], at=5))
    with store.transaction() as tx:
        tx.append("orders", [row(1)])
        tx.append("orders", [row(2)])
    assert tx.time == tx.replies[0].time == 6
    assert rows(orders, 6) == {(0, "a"): 1, (7, "a"): 1, (1, "a"): 1, (2, "a"): 1}
    assert "commits placed again" not in store._committer.counters


def test_an_error_in_the_result_of_a_step_deletes_nothing_that_is_committed(place, monkeypatch):
    store = place.open(config=BLOBS)
    orders, _ = pair(store)

    def broken(self, replies, at, seqno):
        raise UsageError("no result")

    monkeypatch.setattr(AppendStep, "result", broken)
    with pytest.raises(UsageError, match="no result"):
        orders.append([row(1)])
    assert rows(place.open()["orders"]) == {(1, "a"): 1}

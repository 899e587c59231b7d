"""Transactions: any number of collections, all or nothing, at one time, whoever else is at work."""

# ruff: noqa: PT012 - a transaction is committed, and refused, where its block ends

import contextlib
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_store import BLOBS, QUICK, Gate, MemoryStore, Script, counted, in_threads, together

from timespine.client.catalog.drop import LOOK_MS
from timespine.client.catalog.reservations import REMEMBERED_MS, RESERVED_MS
from timespine.client.maintenance.scheduler import EXPIRE_S
from timespine.client.read import multi_snapshot
from timespine.client.write.step_commit import StepCommit
from timespine.client.write.transaction_steps import AppendStep
from timespine.config import Config
from timespine.core.transitions import CommitSink
from timespine.errors import (
    BatchAlreadyCommitted,
    ClosedError,
    Determinate,
    Indeterminate,
    NotSealed,
    SinceError,
    Unavailable,
    UpperMismatch,
    UsageError,
)
from timespine.location.unreliable import Fault
from timespine.model.frontier import Frontier

BOTH = pytest.mark.parametrize("config", [QUICK, BLOBS], ids=["inline", "blobs"])


def create(store, name="orders", **options):
    options = {"key": {"k": "int64"}, "value": {"v": "string"}, "timeline": "counter", **options}
    return store.create(name, **options)


def pair(store, **options):
    return create(store, "orders", **options), create(store, "items", **options)


def row(k, v="a", **more):
    return {"k": k, "v": v, **more}


def rows(collection, as_of=None):
    return counted(collection.snapshot(as_of, multiplicity="column").to_pylist(), "k", "v")


def keys_of(script_or_gate):
    return [len(keys) for keys in script_or_gate.sets]


# All or nothing.


@BOTH
def test_many_collections_are_changed_by_one_compare_and_set_at_one_time(place, config):
    gate = Gate(place.consensus)
    store = place.open(consensus=gate, config=config)
    orders, items = pair(store)
    items.append([row(1)], at=6)
    orders.append([row(0)])
    gate.sets.clear()
    with store.transaction() as tx:
        tx.append("orders", [row(1)])
        tx.append(items, [row(2), row(3)])
        tx.append("orders", [row(2)])
        assert tx.time is None
    assert keys_of(gate) == [2]
    assert tx.time == 7
    assert [(reply.time, reply.rows) for reply in tx.replies] == [(7, 2), (7, 2)]
    assert orders.upper == items.upper == Frontier.at(8)
    assert rows(orders, 6) == {(0, "a"): 1}
    with store.snapshot(["orders", "items"], as_of=7) as cut:
        assert {name: len(each.to_pylist()) for name, each in cut.items()} == {"orders": 3, "items": 3}


def test_everything_that_changes_a_collection_can_be_part_of_it(place):
    store = place.open()
    orders, items = pair(store)
    payments, prices = create(store, "payments"), create(store, "prices")
    prices.append([row(1, "old"), row(2, "old"), row(3, "old")], at=0)
    orders.append([row(0)], at=4)
    with store.transaction() as tx:
        tx.append("orders", [row(1, _time=8)], upper=12)
        tx.write("payments", [row(1, _time=3), row(2, _time=30)])
        tx.write("items", [{"k": 5, "v": "a", "when": 9}], times="when")
        tx.seal(["payments", "items"], 10)
        tx.upsert("prices", [row(1, "new")])
        tx.expire("orders", before=3)
    assert rows(orders) == {(0, "a"): 1, (1, "a"): 1}
    assert (orders.upper, orders.since) == (Frontier.at(12), Frontier.at(3))
    assert rows(payments) == {(1, "a"): 1}
    assert rows(items, 9) == {(5, "a"): 1}
    assert rows(prices) == {(1, "new"): 1, (2, "old"): 1, (3, "old"): 1}
    assert [type(reply).__name__ for reply in tx.replies] == [
        "CommitResult",
        "WriteResult",
        "WriteResult",
        "SealResult",
        "SealResult",
        "CommitResult",
        "ExpireResult",
    ]
    with store.transaction() as tx:
        tx.delete("prices", {"k": 2})
        tx.delete("orders", where="k = 0")
    assert rows(prices) == {(1, "new"): 1, (3, "old"): 1}
    assert rows(orders) == {(1, "a"): 1}
    assert tx.replies[0].time == tx.replies[1].time == 12


@BOTH
@pytest.mark.parametrize(
    "spoil",
    [
        lambda tx: tx.seal("items", 1),
        lambda tx: tx.append("items", [row(9)], at=1),
        lambda tx: tx.write("items", [row(9, _time=1)]),
        lambda tx: tx.append("items", [{"k": 9, "nobody": 1}]),
        lambda tx: tx.upsert("prices", [row(1), row(1)]),
        lambda tx: tx.expect("items", 77),
    ],
    ids=["seal back", "too late", "write too late", "another schema", "a key twice", "an upper that moved"],
)
def test_what_is_refused_takes_all_of_it_back(place, config, spoil):
    store = place.open(config=config)
    orders, items = pair(store)
    create(store, "prices")
    orders.append([row(0)], at=4)
    items.append([row(0)], at=4)
    before = (orders._handle.state(), items._handle.state(), set(place.blobs()))
    with pytest.raises((UsageError, UpperMismatch)), store.transaction() as tx:
        tx.append("orders", [row(1)])
        spoil(tx)
        tx.append("orders", [row(2)])
    assert (orders.upper, items.upper) == (before[0].upper, before[1].upper)
    assert rows(orders) == rows(items) == {(0, "a"): 1}
    assert set(place.blobs()) == before[2], "nothing stays behind"
    assert tx.time is None


def test_nothing_happens_before_the_block_ends_or_if_it_raises(place):
    store = place.open()
    orders, items = pair(store)
    with pytest.raises(ZeroDivisionError), store.transaction() as tx:
        tx.append("orders", [row(1)])
        assert orders.upper == Frontier.at(0)
        raise ZeroDivisionError
    assert orders.upper == items.upper == Frontier.at(0)
    with pytest.raises(UsageError, match="over"):
        tx.append("orders", [row(1)])
    with pytest.raises(UsageError, match="over"):
        tx.commit()


def test_a_transaction_may_be_committed_or_given_up_by_hand(place):
    store = place.open()
    orders = create(store)
    with store.transaction() as tx:
        tx.append("orders", [row(1)])
        tx.commit()
    assert rows(orders) == {(1, "a"): 1}
    with store.transaction() as tx:
        tx.append("orders", [row(2)])
        tx.give_up()
    assert rows(orders) == {(1, "a"): 1}
    with store.transaction():
        pass


@pytest.mark.parametrize("fault", [Fault.INDETERMINATE_NOT, Fault.INDETERMINATE_DONE], ids=["not done", "done"])
def test_a_transaction_whose_reply_was_lost_happens_once(place, fault):
    script = Script()
    store = place.open(script=script)
    orders, items = pair(store)
    orders.append([row(0)])
    items.append([row(0)])
    script.add("compare_and_set", fault)
    with store.transaction() as tx:
        tx.append("orders", [row(1)])
        tx.append("items", [row(1)])
    assert script.is_done
    for collection in (orders, items):
        assert rows(collection, tx.time) == {(0, "a"): 1, (1, "a"): 1}


def test_a_transaction_that_storage_never_answered_is_in_doubt_in_all_collections_or_in_none(place):
    script = Script()
    store = place.open(script=script, config=BLOBS)
    orders, items = pair(store)
    orders.append([row(0)])
    items.append([row(0)])
    script.add("compare_and_set", Fault.INDETERMINATE_DONE, times=BLOBS.storage_attempts + 1)
    with pytest.raises(Indeterminate), store.transaction() as tx:
        tx.append("orders", [row(1)])
        tx.append("items", [row(1)])
    other = place.open()
    assert rows(other["orders"]) == rows(other["items"]) == {(0, "a"): 1, (1, "a"): 1}


# Time.


def test_rows_without_a_time_stand_at_one_time_that_is_free_in_every_collection(place):
    store = place.open()
    orders, items = pair(store, timeline="clock")
    ahead = place.clock.ms + 1000
    items.seal(ahead)
    with store.transaction() as tx:
        tx.append("orders", [row(1)])
        tx.upsert("items", [row(1)])
    assert tx.time == ahead
    assert rows(orders, ahead) == rows(items, ahead) == {(1, "a"): 1}


def test_collections_of_two_time_lines_have_a_time_each(place):
    store = place.open()
    counter, clock = create(store), create(store, "items", timeline="clock")
    with store.transaction() as tx:
        tx.append("orders", [row(1)])
        tx.append("items", [row(1)])
    assert counter.upper == Frontier.at(1)
    assert clock.upper == Frontier.at(place.clock.ms + 1)
    assert tx.time == place.clock.ms


def test_steps_happen_in_the_order_in_which_they_were_given(place):
    store = place.open()
    orders = create(store)
    with store.transaction() as tx:
        tx.write("orders", [row(1, _time=2)])
        tx.seal("orders", 5)
        tx.append("orders", [row(2)])
        tx.seal("orders", 9)
    assert tx.time == 5
    assert orders.upper == Frontier.at(9)
    assert rows(orders, 4) == {(1, "a"): 1}
    assert rows(orders, 5) == {(1, "a"): 1, (2, "a"): 1}
    with pytest.raises(UsageError, match="sealed up to"), store.transaction() as tx:
        tx.append("orders", [row(3)])
        tx.seal("orders", 9)


def test_rows_with_and_without_times_go_together(place):
    store = place.open()
    orders = create(store)
    with store.transaction() as tx:
        tx.append("orders", [row(1, _time=0), row(2, _time=3)])
        tx.append("orders", [row(3)])
        tx.append("orders", [row(4)], at=9, upper=20)
    assert [rows(orders, as_of) for as_of in (2, 3, 4, 9)] == [
        {(1, "a"): 1},
        {(1, "a"): 1, (2, "a"): 1},
        {(1, "a"): 1, (2, "a"): 1, (3, "a"): 1},
        {(k, "a"): 1 for k in (1, 2, 3, 4)},
    ]
    with pytest.raises(UsageError, match=r"tx\.seal"), store.transaction() as tx:
        tx.append("orders", [row(5)], upper=30)


def test_a_change_comes_first_and_once_in_its_collection(place):
    store = place.open()
    create(store)
    changes = [
        lambda tx: tx.upsert("orders", [row(1)]),
        lambda tx: tx.delete("orders", {"k": 1}),
        lambda tx: tx.update("orders", set={"v": "b"}),
        lambda tx: tx.replace("orders", [row(1)]),
        lambda tx: tx.merge("orders", [row(1)]).when_not_matched_insert().execute(),
    ]
    for first in (lambda tx: tx.append("orders", [row(1)]), *changes):
        for then in changes:
            with pytest.raises(UsageError, match="as it was before"), store.transaction() as tx:
                first(tx)
                then(tx)
    for change in changes:
        with pytest.raises(UsageError, match="this transaction creates"), store.transaction() as tx:
            tx.create("orders", replace=True, key={"k": "int64"}, value={"v": "string"})
            change(tx)
    with pytest.raises(UsageError, match="all rows at once"), store.transaction() as tx:
        tx.upsert("orders", [row(1)])
        tx.append("orders", [row(2)])


# Others.


@BOTH
def test_losing_to_others_only_means_a_later_place(place, config):
    script = Script()
    store, other = place.open(script=script, config=config), place.open()
    orders, items = pair(store)
    orders.append([row(0)])
    script.add("compare_and_set", Fault.NONE, hook=lambda: other["orders"].append([row(7)], at=5), skip=1)
    puts = script.calls["put"]
    with store.transaction() as tx:
        tx.append("orders", [row(1)])
        tx.append("items", [row(1)])
    assert tx.time == 6
    assert rows(orders, 5) == {(0, "a"): 1, (7, "a"): 1}
    assert rows(items, 6) == {(1, "a"): 1}
    assert rows(items, 5) == {}
    assert store._committer.counters["commits placed again"] == 1
    if config is BLOBS:
        assert script.calls["put"] == puts + 2, "what is durable is not put again"


def test_a_change_in_a_transaction_follows_what_others_committed_first_and_reads_no_row_again(place):
    script = Script()
    store, other = place.open(script=script), place.open()
    orders, items = pair(store)
    orders.upsert([row(1, "old")])
    items.append([row(0)])
    script.add("compare_and_set", Fault.NONE, hook=lambda: other["orders"].upsert([row(1, "theirs")]))
    with store.transaction() as tx:
        tx.upsert("orders", [row(1, "ours")])
        tx.append("items", [row(1)])
    assert rows(orders) == {(1, "ours"): 1}
    counters = store._committer.counters
    assert (counters["changes read"], counters["changes placed again"], counters["changes patched"]) == (2, 1, 1)
    assert "changes started again" not in counters
    assert rows(items, tx.time) == {(0, "a"): 1, (1, "a"): 1}


def test_a_change_stands_at_the_time_of_the_transaction_although_another_collection_moved_it(place):
    script = Script()
    store, other = place.open(script=script), place.open()
    orders, items = pair(store)
    orders.upsert([row(1, "old")])
    items.append([row(0)])
    script.add("compare_and_set", Fault.NONE, hook=lambda: other["items"].append([row(9)], at=40))
    with store.transaction() as tx:
        tx.upsert("orders", [row(1, "new")])
        tx.append("items", [row(1)])
    assert tx.time == 41
    assert rows(orders, 40) == {(1, "old"): 1}
    assert rows(orders, 41) == {(1, "new"): 1}
    assert rows(items, 40) == {(0, "a"): 1, (9, "a"): 1}


def test_transactions_of_many_threads_and_processes_are_seen_whole_at_every_time(place):
    stores = [place.open() for _ in range(3)]
    pair(stores[0])

    def work(store, mine):
        for n in range(6):
            with store.transaction() as tx:
                tx.append("orders", [row(100 * mine + n)])
                if n % 2:
                    tx.upsert("items", [row(100 * mine + n)])
                else:
                    tx.append("items", [row(100 * mine + n)])

    in_threads(*(lambda store=store, mine=mine: work(store, mine) for mine, store in enumerate(stores)))
    last = place.open().snapshot(["orders", "items"]).as_of
    for as_of in range(last + 1):
        with stores[0].snapshot(["orders", "items"], as_of) as cut:
            assert cut["orders"].to_arrow().sort_by("k") == cut["items"].to_arrow().sort_by("k")
    assert len(rows(stores[0]["orders"])) == 18


def test_a_transaction_that_is_refused_in_a_group_disturbs_no_other_and_names_its_state(place):
    gate = Gate(place.consensus)
    store = place.open(consensus=gate)
    orders, items = pair(store)
    orders.append([row(0)])
    items.append([row(0)])

    def wrong():
        with store.transaction() as tx:
            tx.seal(["orders", "items"], 0)

    good = [lambda: orders.seal(5), wrong, lambda: store.seal(["orders", "items"], 8), lambda: items.append([row(3)])]
    gate.sets.clear()
    first, refused, both, last = together(gate, store, good)
    assert isinstance(refused, UsageError)
    assert {id for id, _ in refused.seqnos} == {orders.id, items.id}
    assert first.upper == Frontier.at(5)
    assert {name: each.upper for name, each in both.items()} == {"orders": Frontier.at(8), "items": Frontier.at(8)}
    assert last.time == 1, "small appends come first in a group"
    assert len(gate.sets) == 2


def test_every_transaction_of_a_group_that_fails_is_told_and_the_state_is_what_storage_says(place):
    script = Script()
    gate = Gate(place.consensus)
    store = place.open(script=script, consensus=gate)
    orders, items = pair(store)
    orders.append([row(0)])
    items.append([row(0)])
    gate.sets.clear()
    script.add("compare_and_set", Fault.DETERMINATE, times=QUICK.storage_attempts, skip=1)
    results = together(gate, store, [lambda: orders.seal(3)] + [lambda: store.seal(["orders", "items"], 8)] * 2)
    assert results[0].upper == Frontier.at(3)
    assert all(isinstance(each, Unavailable) for each in results[1:])
    assert (orders.upper, items.upper) == (Frontier.at(3), Frontier.at(1))
    store.seal(["orders", "items"], 8)
    assert orders.upper == items.upper == Frontier.at(8)


def test_that_there_was_nothing_to_change_must_still_be_so_when_the_rest_is_committed(place):
    script = Script()
    store, other = place.open(script=script), place.open()
    orders, items = pair(store)
    orders.upsert([row(1, "ours")])
    items.append([row(0)], at=4)
    script.add("compare_and_set", Fault.NONE, hook=lambda: other["orders"].upsert([row(1, "theirs")]))
    with store.transaction() as tx:
        tx.upsert("orders", [row(1, "ours")])
        tx.append("items", [row(1)])
    assert script.is_done
    with store.snapshot(["orders", "items"], tx.time) as cut:
        assert counted(cut["orders"].to_pylist(), "k", "v") == {(1, "ours"): 1}
        assert len(cut["items"].to_pylist()) == 2
    with store.transaction() as tx:
        tx.delete("orders", {"k": 99})
        tx.append("items", [row(2)])
    assert tx.replies[0].rows == 0
    assert store.snapshot(["orders", "items"]).as_of == tx.time, "and it is complete up to there"


def test_collections_of_another_store_are_refused(place):
    store, other = place.open(), place.open()
    create(store)
    with store.transaction() as tx, pytest.raises(UsageError, match="another store"):
        tx.upsert(other["orders"], [row(1)])
    with store.transaction() as tx:
        tx.upsert("orders", [row(1)])
        with pytest.raises(UsageError, match="as its first step"):
            tx.upsert(store["orders"], [row(2)])


def test_rows_are_those_that_were_given_although_their_list_is_used_again(place):
    store = place.open()
    orders, items = pair(store)
    rows_given = [row(1), row(2)]
    with store.transaction() as tx:
        tx.append("orders", rows_given)
        tx.upsert("items", rows_given)
        rows_given.clear()
    assert rows(orders) == rows(items) == {(1, "a"): 1, (2, "a"): 1}


def test_more_collections_than_one_commit_takes_are_advanced_and_left(place, monkeypatch):
    monkeypatch.setattr("timespine.client.store.WRITES_MAX", 3)
    monkeypatch.setattr("timespine.client.commit.group_commit.ENTER_MAX", 3)
    gate = Gate(place.consensus)
    store = place.open(consensus=gate)
    names = [f"c{n}" for n in range(8)]
    for name in names:
        create(store, name, timeline="clock")
    gate.sets.clear()
    reached = store.seal_idle()
    assert {store[name].upper for name in names} == {Frontier.at(reached)}
    store.close()
    assert max(keys_of(gate)) == 3
    other = place.open()
    assert not any(other[name]._handle.state().writers for name in names)


def test_purged_collections_are_forgotten(place):
    store = place.open()
    for _ in range(5):
        create(store, "temporary", replace=True).append([row(1)])
        store.drop("temporary")
        place.clock.advance(10)
        store.maintain()
    assert len(store._committer._entered) + len(store._upkeep._entered) <= 2
    assert len(store._committer.session.states) <= 1


# What a caller relies on.


def test_a_transaction_fails_if_an_upper_that_it_has_read_moved(place):
    store, other = place.open(), place.open()
    orders, items = pair(store)
    orders.append([row(1)])
    with store.transaction() as tx:
        tx.expect("orders", 1)
        tx.append("items", [row(1)])
    assert rows(items) == {(1, "a"): 1}
    with pytest.raises(UpperMismatch) as caught, store.transaction() as tx:
        tx.expect(orders, Frontier.at(1))
        tx.append("items", [row(2)])
        other["orders"].append([row(2)])
    assert caught.value.actual == Frontier.at(2)
    assert rows(items) == {(1, "a"): 1}
    with pytest.raises(UpperMismatch), store.transaction() as tx:
        tx.expect("orders", 2)
        tx.expect("orders", 1)


def test_a_transaction_of_nothing_but_what_it_relies_on_is_checked_too(place):
    store = place.open()
    create(store)
    with pytest.raises(UpperMismatch), store.transaction() as tx:
        tx.expect("orders", 99)


def test_a_handle_is_read_by_its_id_also_after_a_rename(place):
    store, other = place.open(), place.open()
    orders = create(store)
    orders.append([row(1)])
    other.rename("orders", "old")
    create(other, "orders").append([row(2)])
    with store.transaction() as tx:
        assert [each["k"] for each in tx.snapshot(orders).to_pylist()] == [1]


def test_what_moved_at_the_last_moment_is_noticed_too(place):
    script = Script()
    store, other = place.open(script=script), place.open()
    orders, items = pair(store)
    orders.append([row(1)])
    items.append([row(1)])
    script.add("compare_and_set", Fault.NONE, hook=lambda: other["orders"].append([row(2)]))
    with pytest.raises(UpperMismatch), store.transaction() as tx:
        tx.expect("orders", 1)
        tx.append("items", [row(2)])
    assert rows(items) == {(1, "a"): 1}


def test_a_snapshot_inside_of_a_transaction_is_relied_on(place):
    store, other = place.open(), place.open()
    orders, items = pair(store)
    with store.transaction() as tx:
        assert tx.snapshot("orders").to_pylist() == []
        tx.append("orders", [row(1)])
    with store.transaction() as tx:
        total = len(tx.snapshot(orders, columns=["k"]).to_pylist())
        tx.append("items", [row(total)])
    assert rows(items) == {(1, "a"): 1}
    with pytest.raises(UpperMismatch), store.transaction() as tx:
        total = len(tx.snapshot("orders").to_pylist())
        other["orders"].append([row(2)])
        tx.append("items", [row(total)])
    assert rows(items) == {(1, "a"): 1}
    with pytest.raises(TypeError, match="as_of"), store.transaction() as tx:
        tx.snapshot("orders", as_of=0)  # a transaction relies on the newest rows


def test_a_batch_of_a_sink_is_in_with_the_rest_once(place):
    store = place.open()
    orders, items = pair(store)
    for n in range(2):
        tx = store.transaction()
        for name in ("orders", "items"):
            tx.append(name, [row(1)])
            tx.also(name, CommitSink("s", 0))
        if n:
            with pytest.raises(BatchAlreadyCommitted):
                tx.commit()
        else:
            tx.commit()
    assert rows(orders) == rows(items) == {(1, "a"): 1}


# Creating.

SHAPE = {"key": {"k": "int64"}, "value": {"v": "string"}, "timeline": "counter"}


@BOTH
def test_a_collection_is_created_and_filled_together_with_all_else_by_one_compare_and_set(place, config):
    gate = Gate(place.consensus)
    store = place.open(consensus=gate, config=config)
    orders = create(store)
    orders.append([row(0)], at=3)
    gate.sets.clear()
    with store.transaction() as tx:
        audit = tx.create("audit", **SHAPE)
        tx.append("audit", [row(1)])
        tx.append(audit, [row(2)])
        tx.append("orders", [row(1)])
        tx.create("empty", **SHAPE)
        assert "audit" not in store
    announced = [1] if config is BLOBS else []  # by the catalog, before anything is put
    assert keys_of(gate) == [*announced, 4], "the catalog, two that are new, and one that was there"
    assert tx.time == 4
    assert rows(audit) == {(1, "a"): 1, (2, "a"): 1}
    other = place.open()
    assert other.names() == ["audit", "empty", "orders"]
    assert rows(other["audit"], 4) == {(1, "a"): 1, (2, "a"): 1}
    audit.append([row(3)])
    other["audit"].append([row(4)])
    assert len(rows(audit)) == 4
    store.maintain()
    assert len(rows(audit)) == 4


@BOTH
@pytest.mark.parametrize("how", ["raises", "refused", "given up"])
def test_nothing_is_created_if_the_transaction_comes_to_nothing(place, config, how):
    store = place.open(config=config)
    orders = create(store)
    orders.append([row(0)], at=3)
    with pytest.raises((ZeroDivisionError, UsageError)), store.transaction() as tx:
        audit = tx.create("audit", **SHAPE)
        tx.append("audit", [row(1)])
        if how == "raises":
            raise ZeroDivisionError
        if how == "refused":
            tx.seal("orders", 1)
        if how == "given up":
            tx.give_up()
            tx.append("audit", [row(2)])
    assert store.names() == ["orders"]
    assert place.blobs(f"{audit.id}/") == []
    assert audit.id not in place.consensus.list_keys()
    with pytest.raises(UsageError):
        audit.append([row(1)])
    store.close()
    assert audit.id not in place.consensus.list_keys(), "nor when the process says goodbye"


def test_what_is_not_created_yet_is_written_to_by_its_transaction_alone(place):
    store = place.open()
    with store.transaction() as tx:
        audit = tx.create("audit", **SHAPE)
        with pytest.raises(UsageError, match="does not exist until its transaction"):
            audit.append([row(1)])
        with pytest.raises(UsageError, match="append its rows"):
            tx.upsert("audit", [row(1)])
        with pytest.raises(UsageError, match="there is no option if_exists; there are: key, value"):
            tx.create("other", **SHAPE, if_exists="open")
        assert tx.snapshot("audit").to_pylist() == []
        tx.give_up()
    assert audit.id not in place.consensus.list_keys()


def test_a_name_that_is_taken_is_refused_at_once_or_when_another_process_was_first(place):
    script = Script()
    store, other = place.open(script=script), place.open()
    create(store)
    with pytest.raises(UsageError, match="exists"), store.transaction() as tx:
        tx.create("orders", **SHAPE)
    with pytest.raises(UsageError, match="creates audit already"), store.transaction() as tx:
        tx.create("audit", **SHAPE)
        tx.create("audit", **SHAPE)
    script.add("compare_and_set", Fault.NONE, hook=lambda: create(other, "audit"))
    with pytest.raises(UsageError, match="exists"), store.transaction() as tx:
        tx.create("audit", **SHAPE)
        tx.append("orders", [row(1)])
    assert store["orders"].upper == Frontier.at(0)
    store.drop("audit")
    with pytest.raises(UsageError, match="stays blocked"), store.transaction() as tx:
        tx.create("audit", **SHAPE)


def test_the_catalog_may_change_meanwhile(place):
    script = Script()
    store, other = place.open(script=script), place.open()
    create(store)
    script.add("compare_and_set", Fault.NONE, hook=lambda: create(other, "theirs"))
    with store.transaction() as tx:
        tx.create("ours", **SHAPE)
        tx.append("ours", [row(1)])
        tx.append("orders", [row(1)])
    assert store.names() == ["orders", "ours", "theirs"]
    assert rows(store["ours"]) == rows(store["orders"]) == {(1, "a"): 1}


def test_a_collection_is_replaced_by_one_that_is_filled_already(place):
    store = place.open()
    old = create(store)
    old.append([row(1)])
    with store.transaction() as tx:
        tx.create("orders", **SHAPE, replace=True)
        tx.append("orders", [row(2)])
    assert rows(store["orders"]) == {(2, "a"): 1}
    with pytest.raises(ClosedError):
        old.append([row(3)])
    store["orders"].critical_hold("report", 0)
    with pytest.raises(UsageError, match="critical holds"), store.transaction() as tx:
        tx.create("orders", **SHAPE, replace=True)


@pytest.mark.parametrize("fault", [Fault.INDETERMINATE_NOT, Fault.INDETERMINATE_DONE], ids=["not done", "done"])
def test_a_birth_whose_reply_was_lost_happens_once(place, fault):
    script = Script()
    store = place.open(script=script)
    create(store)
    store["orders"].append([row(0)])
    script.add("compare_and_set", fault)
    with store.transaction() as tx:
        tx.create("audit", **SHAPE)
        tx.append("audit", [row(1)])
        tx.append("orders", [row(1)])
    assert script.is_done
    assert rows(store["audit"]) == {(1, "a"): 1}
    assert rows(store["orders"]) == {(0, "a"): 1, (1, "a"): 1}


def test_a_process_that_slept_past_its_lease_creates_under_a_new_id(place):
    store, other = place.open(config=BLOBS), place.open()
    create(store)
    store["orders"].append([row(0)])
    with store.transaction() as tx:
        tx.create("audit", **SHAPE)
        tx.append("audit", [row(1)])
        tx.append("orders", [row(1)])
        place.clock.advance(BLOBS.writer_lease_ms / 1000 + 1)
        other.maintain()
    assert rows(other["audit"]) == {(1, "a"): 1}
    assert rows(other["orders"]) == {(0, "a"): 1, (1, "a"): 1}


def to_be_created(store):
    """A transaction that creates a collection with a row, and the collection."""
    tx = store.transaction()
    audit = tx.create("audit", **SHAPE)
    tx.append(audit, [row(1)])
    return tx, audit


def dies_when_it_commits(place):
    """A process that has put all its blobs, and dies before anybody learns what for; what it was to create."""
    script = Script()
    store = place.open(script=script, config=BLOBS)
    tx = store.transaction()
    audit, other = tx.create("audit", **SHAPE), tx.create("other", **SHAPE)
    tx.append(audit, [row(1)])
    tx.append(other, [row(1)])

    def die():
        raise KeyboardInterrupt

    for id in (audit.id, other.id):
        script.add("put", Fault.NONE, key=f"{id}/")
    script.add("compare_and_set", Fault.NONE, key=audit.id, hook=die)
    tx._pending.close = lambda: None  # nobody is there to do it
    with pytest.raises(KeyboardInterrupt):
        tx.commit()
    assert script.is_done
    return audit.id, other.id


def test_blobs_of_what_was_never_created_are_kept_for_a_day_and_then_go(place):
    ids = dies_when_it_commits(place)
    store = place.open()
    for seconds in (0, RESERVED_MS / 1000 - 1):
        place.clock.advance(seconds)
        store.maintain(sweep=True)
        assert [bool(place.blobs(f"{id}/")) for id in ids] == [True, True]
    place.clock.advance(2)
    assert store.maintain().collected == 2
    assert [place.blobs(f"{id}/") for id in ids] == [[], []]
    assert (store._catalog.read().reserved, store._catalog.read().dropped) == ({}, ())
    assert store.names() == []
    create(store, "audit")


@pytest.mark.parametrize("config", [BLOBS, Config(inline_total_bytes=200)], ids=["blobs", "too much for inline"])
def test_what_is_to_be_created_is_announced_before_anything_is_put(place, config):
    script = Script()
    store = place.open(script=script, config=config)
    known = []
    script.add("put", Fault.NONE, hook=lambda: known.append(place.open()._catalog.read().reserved))
    with store.transaction() as tx:
        audit = tx.create("audit", **SHAPE)
        tx.append(audit, [row(1, "a" * 150)], at=1)
        tx.append(audit, [row(2, "b" * 150)], at=2)
    assert known == [{audit.id: place.clock.ms}]
    assert store._catalog.read().reserved == {}
    assert rows(audit) == {(1, "a" * 150): 1, (2, "b" * 150): 1}


def test_the_background_looks_for_what_was_never_created(place):
    ids = dies_when_it_commits(place)
    place.clock.advance(RESERVED_MS / 1000 + 1)
    store = place.open()
    place.clock.advance(EXPIRE_S)
    store._maintenance.round()
    assert [place.blobs(f"{id}/") for id in ids] == [[], []]


@pytest.mark.parametrize("deletes", [True, False])
def test_a_transaction_that_took_longer_than_a_day_is_told_so_and_leaves_nothing(place, deletes):
    script = Script()
    store, other = place.open(script=script, config=BLOBS), place.open()

    def slow():
        place.clock.advance(RESERVED_MS / 1000 + 1)
        other.maintain()

    tx, audit = to_be_created(store)
    script.add("put", Fault.NONE, key=f"{audit.id}/", hook=slow)
    if not deletes:
        script.add("delete", Fault.DETERMINATE, times=50)
    with pytest.raises(Determinate, match="reservation of audit was cancelled"):
        tx.commit()
    assert bool(place.blobs(f"{audit.id}/")) is not deletes, "put after others had looked"
    other.maintain()
    assert (other.names(), place.blobs(f"{audit.id}/")) == ([], [])


def test_nothing_is_put_for_a_collection_that_maintenance_gave_up(place):
    """The process sleeps for a day between two puts for what it creates: the second one is refused."""
    script = Script()
    store, other = place.open(script=script, config=BLOBS), place.open()
    tx, audit = to_be_created(store)
    tx.append(audit, [row(2)], at=5)

    def slow():
        place.clock.advance(RESERVED_MS / 1000 + 1)
        other.maintain()

    put = []
    script.add("put", Fault.NONE, key=f"{audit.id}/", hook=slow)
    script.add("put", Fault.NONE, key=f"{audit.id}/", times=50, hook=lambda: put.append(1))
    with pytest.raises(Determinate, match="was cancelled: do it again"):
        tx.commit()
    assert put == []


def test_blobs_that_arrive_after_their_collection_was_given_up_are_deleted_for_a_week(place):
    ids = dies_when_it_commits(place)
    (part, *_) = place.blobs(f"{ids[0]}/")
    store = place.open()
    place.clock.advance(RESERVED_MS / 1000 + 1)
    store.maintain()
    assert set(store._catalog.read().cancelled) == set(ids)
    place.blob.put(part, b"late")
    store._purge_dropped()
    assert place.blobs(f"{ids[0]}/") == [part], "the background looks once an hour"
    place.clock.advance(LOOK_MS / 1000)
    store._purge_dropped()
    assert place.blobs(f"{ids[0]}/") == []
    place.blob.put(part, b"later")
    place.clock.advance(REMEMBERED_MS / 1000)
    assert store.maintain().collected == 1
    assert (store._catalog.read().cancelled, place.blobs()) == ({}, [])


def test_a_listing_that_fails_keeps_no_other_from_being_swept(place):
    ids = dies_when_it_commits(place)
    place.clock.advance(RESERVED_MS / 1000 + 1)
    script = Script()
    store = place.open(script=script)
    script.add("list_keys", Fault.DETERMINATE, key=f"{sorted(ids)[0]}/")
    assert store.maintain().failures == 1
    assert [bool(place.blobs(f"{id}/")) for id in sorted(ids)] == [True, False]
    store.maintain()
    assert place.blobs() == []


@pytest.mark.parametrize("fault", [Fault.DETERMINATE, Fault.INDETERMINATE_NOT, Fault.INDETERMINATE_DONE])
def test_what_was_announced_is_there_or_goes_at_once(place, fault):
    script = Script()
    store = place.open(script=script, config=BLOBS)
    tx, audit = to_be_created(store)
    for _ in range(3 * QUICK.storage_attempts):
        script.add("compare_and_set", fault, key=audit.id)
    with contextlib.suppress(Unavailable):
        tx.commit()
    script.rules.clear()
    assert store._catalog.read().reserved == {}
    store.maintain()
    if "audit" in store:
        assert rows(store["audit"]) == {(1, "a"): 1}
    else:
        assert place.blobs(f"{audit.id}/") == []
    assert ("audit" in store) == (fault is Fault.INDETERMINATE_DONE)
    assert store._catalog.read().dropped == ()


def test_a_created_collection_has_no_reservation_after_the_first_commit_to_it(place):
    """It would be in the catalog twice, as what is there and as what is given up some day."""
    store = place.open(config=BLOBS)
    told = []

    def writes(ids):
        if not told:
            told.append(ids)
            store["audit"].append([row(1)])

    store._committer.on_commit.append(writes)
    with store.transaction() as tx:
        audit = tx.create("audit", **SHAPE)
    assert told == [{audit.id}]
    assert place.open()._catalog.read().reserved == {}
    place.clock.advance(RESERVED_MS / 1000 + 1)
    store.maintain(sweep=True)
    assert rows(place.open()["audit"]) == {(1, "a"): 1}


@pytest.mark.parametrize("ends", [Indeterminate, KeyboardInterrupt])
def test_a_collection_created_in_doubt_has_no_reservation_either(place, ends):
    """It is in, its transaction is not told so, and another thread writes to it before anybody cleans up."""
    script = Script()
    store = place.open(script=script, config=BLOBS)
    tx = store.transaction()
    audit = tx.create("audit", **SHAPE)
    after = tx._pending.close

    def close():
        script.rules.clear()
        try:
            store["audit"].append([row(1)])
        except UsageError:  # as far as this process knows it is not there yet
            after()
            store["audit"].append([row(1)])
        after()

    tx._pending.close = close
    script.add("compare_and_set", Fault.INDETERMINATE_DONE, key=audit.id)
    script.add("compare_and_set", Fault.INDETERMINATE_NOT, key=audit.id, times=50)
    if ends is KeyboardInterrupt:
        done = store._committer.driver.consensus.compare_and_set

        def interrupted(writes):
            done(writes)
            store._committer.driver.consensus.compare_and_set = done
            raise KeyboardInterrupt

        script.rules.clear()
        store._committer.driver.consensus.compare_and_set = interrupted
    with pytest.raises(ends):
        tx.commit()
    for _ in range(2):
        other = place.open()
        assert (other.names(), other._catalog.read().reserved, other._catalog.read().dropped) == (["audit"], {}, ())
        assert rows(other["audit"]) == {(1, "a"): 1}
        place.clock.advance(RESERVED_MS / 1000 + 1)
        other.maintain(sweep=True)


@pytest.mark.parametrize("cleared", [False, True])
def test_what_was_given_up_is_never_announced_again(place, cleared):
    """The reply to the announcement is lost, and is asked for again a day later."""
    script = Script()
    store, other = place.open(script=script, config=BLOBS), place.open()

    def a_day_later():
        place.clock.advance(RESERVED_MS / 1000 + 1)
        if cleared:
            other.maintain()
        else:
            other._drop_service._with_expired_reservations(place.clock.ms)

    tx, audit = to_be_created(store)
    script.add("compare_and_set", Fault.INDETERMINATE_DONE, key="catalog")
    script.add("compare_and_set", Fault.NONE, key="catalog", hook=a_day_later)
    with pytest.raises(Determinate, match="was cancelled: do it again"):
        tx.commit()
    assert script.is_done
    other.maintain()
    assert (other.names(), other._catalog.read().dropped, place.blobs(f"{audit.id}/")) == ([], (), [])


def test_an_announcement_that_is_in_doubt_is_a_transaction_that_surely_did_not_happen(place):
    script = Script()
    store = place.open(script=script, config=BLOBS)
    tx = store.transaction()
    tx.append(tx.create("audit", **SHAPE), [row(1)])
    script.add("compare_and_set", Fault.INDETERMINATE_NOT, key="catalog", times=50)
    with pytest.raises(Determinate, match="nothing was committed"):
        tx.commit()
    assert store.names() == []


def test_maintenance_never_creates_the_log_of_a_pending_collection(place):
    script = Script()
    store = place.open(script=script, config=BLOBS)

    def slow():
        place.clock.advance(RESERVED_MS / 1000 + 1)
        store.maintain()

    tx, audit = to_be_created(store)
    script.add("put", Fault.NONE, key=f"{audit.id}/", hook=slow)
    with pytest.raises(Determinate, match="was cancelled: do it again"):
        tx.commit()
    assert (place.consensus.list_keys(), place.blobs()) == (["catalog"], [])


def test_a_process_removes_its_ids_also_if_they_were_renewed_beside_a_pending_collection(place):
    script = Script()
    store, other = place.open(script=script, config=BLOBS), place.open()
    orders = create(store)
    orders.append([row(0)])

    def sleeps():
        place.clock.advance(2 * BLOBS.writer_lease_ms / 1000)
        other.maintain()

    tx, audit = to_be_created(store)
    tx.append(orders, [row(1)])
    script.add("put", Fault.NONE, key=f"{audit.id}/", hook=sleeps)
    script.add("put", Fault.DETERMINATE, key=f"{audit.id}/", times=50)
    with pytest.raises(Determinate):
        tx.commit()
    script.rules.clear()
    assert store.metrics()["renewed"] == 1
    orders.append([row(5)])
    store.close()
    left = other._committer.state(orders.id)
    assert (len(left.writers), len(left.committers)) <= (1, 1), "those of the other process"


# Nonsense.


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


# Sealing many, and reading many.


def test_many_collections_are_sealed_by_one_commit_or_none_is(place):
    gate = Gate(place.consensus)
    store = place.open(consensus=gate)
    names = [f"c{n}" for n in range(20)]
    for name in names:
        create(store, name).append([row(1)])
    gate.sets.clear()
    store.seal(names, 10)
    assert keys_of(gate) == [20]
    assert {store[name].upper for name in names} == {Frontier.at(10)}
    store["c7"].seal(11)
    with pytest.raises(UsageError):
        store.seal(names, 10)
    store.seal(names, 11)
    with pytest.raises(UsageError):
        store.seal([*names, "nobody"], 12)
    assert {store[name].upper for name in names} == {Frontier.at(11)}


def test_a_cut_without_a_time_is_as_of_the_largest_time_that_is_complete_in_all(place):
    store = place.open()
    orders, items = pair(store)
    with pytest.raises(UsageError, match="orders has no complete time"):
        store.snapshot(["orders", "items"])
    orders.append([row(1)], at=3)
    items.append([row(1)], at=7)
    with store.snapshot(["orders", items]) as cut:
        assert (cut.as_of, list(cut), len(cut)) == (3, ["orders", "items"], 2)
        assert cut["items"].to_pylist() == []
        assert "as of 3" in repr(cut)


def test_the_collection_that_lags_behind_or_has_forgotten_is_named(place):
    store = place.open()
    orders, items = pair(store)
    orders.append([row(1)], at=9)
    items.append([row(1)], at=3)
    with pytest.raises(NotSealed, match="items"):
        store.snapshot(["orders", "items"], as_of=5, timeout=0)
    orders.expire(before=8)
    with pytest.raises(SinceError, match="orders"):
        store.snapshot(["orders", "items"], as_of=3)
    with pytest.raises(NotSealed, match="items: nothing can be read before 8 is complete"):
        store.snapshot(["orders", "items"], timeout=0)
    items.seal(9)
    assert store.snapshot(["orders", "items"]).as_of == 8
    create(store, "clock", timeline="clock")
    with pytest.raises(UsageError, match="none in common"):
        store.snapshot(["orders", "clock"])
    with pytest.raises(UsageError, match="at least one"):
        store.snapshot([])
    with pytest.raises(UsageError, match="name the collections"):
        store.snapshot([3])


def test_a_cut_is_found_although_its_first_time_is_let_go_meanwhile(place):
    store, other = place.open(), place.open()
    orders, items = pair(store)
    for collection in (orders, items):
        collection.append([row(1)], at=3)
    taking = threading.Event()
    real = multi_snapshot.open_snapshot

    def read_snapshot(handle, *args):
        if not taking.is_set():
            taking.set()
            for name in ("orders", "items"):
                other[name].append([row(2)], at=6)
                other[name].expire(before=6)
        return real(handle, *args)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(multi_snapshot, "open_snapshot", read_snapshot)
        with store.snapshot(["orders", "items"]) as cut:
            assert cut.as_of == 6


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
    with pytest.raises(UsageError, match="at or after the upper"), store.transaction() as tx:
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

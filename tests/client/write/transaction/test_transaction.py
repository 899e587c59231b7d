"""Transactions: any number of collections, all or nothing, at one time, whoever else is at work."""

# ruff: noqa: PT012 - a transaction is committed, and refused, where its block ends

import pytest
from key_value_cases import create
from memory_store import BLOBS, QUICK, Gate, Script, counted, in_threads, together
from transaction_cases import BOTH, keys_of, pair, row, rows

from timespine.errors import Indeterminate, Unavailable, UpperMismatch, UsageError
from timespine.model.frontier import Frontier
from timespine.testing.unreliable import Fault

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

"""Collections that a transaction creates: with its rows and their names, or not at all."""

# ruff: noqa: PT012 - a transaction is committed, and refused, where its block ends

import contextlib

import pytest
from key_value_cases import create
from memory_store import BLOBS, QUICK, Gate, Script
from transaction_cases import BOTH, keys_of, row, rows

from timespine.client.catalog.drop_and_purge import LOOK_MS
from timespine.client.catalog.reservations import REMEMBERED_MS, RESERVED_MS
from timespine.client.maintenance.maintenance import EXPIRE_S
from timespine.config import Config
from timespine.errors import ClosedError, Determinate, Indeterminate, Unavailable, UsageError
from timespine.model.frontier import Frontier
from timespine.testing.unreliable import Fault

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
    with pytest.raises(ClosedError, match="was dropped, or never created"):
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
    with pytest.raises(Determinate, match="cancelled the reservation of audit"):
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
    with pytest.raises(Determinate, match="maintenance cancelled the reservation"):
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
    with pytest.raises(Determinate, match="maintenance cancelled the reservation"):
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
    with pytest.raises(Determinate, match="maintenance cancelled the reservation"):
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

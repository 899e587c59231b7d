"""Group commit when replies are lost, when the store is read-only or closed, and all of it at once."""

import threading
from collections import Counter
from random import Random

import pyarrow as pa
import pytest
from group_commit_cases import expire, ids, numbers
from memory_store import BLOBS, QUICK, Script
from numbered_rows import rows_of

from timespine.core.group import CommandTransaction, Refused
from timespine.core.transitions import AdvanceUpper
from timespine.errors import Determinate, Fenced, HandleExpired, Indeterminate, Unavailable, UsageError
from timespine.model.frontier import Frontier
from timespine.testing.unreliable import Fault

# Replies that are lost.


@pytest.mark.parametrize("config", [QUICK, BLOBS], ids=["inline", "blobs"])
@pytest.mark.parametrize("fault", [Fault.INDETERMINATE_DONE, Fault.INDETERMINATE_NOT, Fault.LATE])
def test_an_append_whose_reply_was_lost_is_there_once(place, config, fault):
    script = Script()
    store = place.open(script=script, config=config)
    collection = numbers(store)
    collection.append([{"n": 0}])
    before = ids(store)
    script.add("compare_and_set", fault, key=collection.id)
    assert collection.append([{"n": 1}]).time == 1
    assert script.is_done
    store.ghosts()
    assert rows_of(collection) == [0, 1]
    assert rows_of(place.open()["numbers"]) == [0, 1]
    assert ids(store) == before


@pytest.mark.parametrize("config", [QUICK, BLOBS], ids=["inline", "blobs"])
@pytest.mark.parametrize("fault", [Fault.INDETERMINATE_DONE, Fault.INDETERMINATE_NOT, Fault.LATE])
def test_an_append_that_stays_in_doubt_is_settled_before_the_next_and_never_repeated(place, config, fault):
    script = Script()
    store = place.open(script=script, config=config)
    collection = numbers(store)
    collection.append([{"n": 0}])
    before = ids(store)
    script.add("compare_and_set", fault, key=collection.id)
    script.add("compare_and_set", Fault.INDETERMINATE_NOT, key=collection.id, times=3)
    with pytest.raises(Indeterminate):
        collection.append([{"n": 1}])
    assert script.is_done
    collection.append([{"n": 2}])
    store.ghosts()
    # The frozen group is sent again byte for byte, so it is in by now whatever became of the first try.
    assert rows_of(place.open()["numbers"]) == [0, 1, 2]
    assert ids(store) == before
    assert place.open().vacuum().blobs == []


@pytest.mark.parametrize("fault", [Fault.INDETERMINATE_DONE, Fault.INDETERMINATE_NOT, Fault.CONFLICT_DONE])
@pytest.mark.parametrize("config", [QUICK, BLOBS], ids=["inline", "blobs"])
def test_an_append_of_a_committer_that_was_expired_before_it_knew_is_in_once_if_the_log_tells(place, config, fault):
    script = Script()
    store, other = place.open(script=script, config=config), place.open(config=config)
    collection = numbers(store)
    other["numbers"].append([{"n": -1}])
    collection.append([{"n": 0}])
    script.add("compare_and_set", fault, key=collection.id)
    operation = "scan" if fault is Fault.CONFLICT_DONE else "compare_and_set"
    script.add(operation, Fault.NONE, key=collection.id, hook=lambda: expire(other, other["numbers"], store))
    collection.append([{"n": 1}])
    assert script.is_done
    assert rows_of(other["numbers"]) == [-1, 0, 1]


@pytest.mark.parametrize(("fault", "there"), [(Fault.INDETERMINATE_DONE, 1), (Fault.INDETERMINATE_NOT, 0)])
@pytest.mark.parametrize("config", [QUICK, BLOBS], ids=["inline", "blobs"])
def test_an_append_in_doubt_of_a_committer_that_was_expired_is_never_tried_under_another_id(
    place, config, fault, there
):
    script = Script()
    store, other = place.open(script=script, config=config), place.open(config=config)
    collection = numbers(store)
    other["numbers"].append([{"n": -1}])
    collection.append([{"n": 0}])

    def expire_and_cut():
        expire(other, other["numbers"], store)
        slot = place.consensus.head(collection.id).seqno
        other.maintain()
        assert place.consensus.scan(collection.id, 0)[0].seqno > slot, "the log no longer tells"

    script.add("compare_and_set", fault, key=collection.id)
    script.add("compare_and_set", Fault.NONE, key=collection.id, hook=expire_and_cut)
    with pytest.raises(Fenced) as raised:
        collection.append([{"n": 1}])
    assert raised.value.in_doubt
    assert script.is_done
    assert rows_of(other["numbers"]).count(1) == there
    # The next one goes on under a new id.
    collection.append([{"n": 2}])
    assert rows_of(other["numbers"]) == [-1, 0] + [1] * there + [2]


def test_what_became_of_an_earlier_group_puts_no_later_call_in_doubt(place):
    script = Script()
    store, other = place.open(script=script), place.open()
    collection = numbers(store)
    collection.append([{"n": 0}])
    script.add("compare_and_set", Fault.INDETERMINATE_NOT, key=collection.id, times=4)
    with pytest.raises(Indeterminate):
        collection.append([{"n": 1}])
    expire(other, other["numbers"], store)
    assert collection.append([{"n": 2}]).rows == 1
    assert rows_of(other["numbers"]) == [0, 2]


def test_a_call_that_never_got_to_send_anything_did_surely_not_happen(place):
    script = Script()
    store = place.open(script=script)
    collection = numbers(store)
    script.add("compare_and_set", Fault.INDETERMINATE_NOT, key=collection.id, times=99)  # registering fails
    with pytest.raises(Determinate):
        collection.append([{"n": 0}])
    script.rules.clear()
    collection.append([{"n": 1}])
    assert rows_of(collection) == [1]


def test_storage_that_is_away_is_unavailable_and_the_next_call_works(place):
    script = Script()
    store = place.open(script=script)
    collection = numbers(store)
    collection.append([{"n": 0}])
    script.add("compare_and_set", Fault.DETERMINATE, times=99)
    with pytest.raises(Unavailable):
        collection.append([{"n": 1}])
    script.rules.clear()
    assert collection.append([{"n": 2}]).time == 1
    assert rows_of(collection) == [0, 2]


# Read only, and the end.


def test_a_store_that_is_open_for_reading_writes_nothing_at_all(place):
    store = place.open(config=BLOBS)
    collection = numbers(store)
    collection.append([{"n": 0}])
    before, blobs = collection._handle.state().seqno, place.blobs()
    reading = place.open(read_only=True)
    assert rows_of(reading["numbers"]) == [0]
    assert reading["numbers"].lookup({"n": 0}).to_pylist() == [{"n": 0}]
    assert reading.vacuum().blobs == []
    reading.metrics()
    for refused in (
        lambda: reading["numbers"].writer(),
        lambda: reading["numbers"].append([{"n": 1}]),
        lambda: reading["numbers"].upsert([{"n": 1}]),
        lambda: reading["numbers"].compact(wait=True),
        lambda: reading["numbers"].retain("7 days"),
        lambda: reading.maintain(),
        lambda: reading.vacuum(dry_run=False),
        lambda: reading.seal_idle(),
        lambda: reading.create("other", key={"n": "int64"}),
        lambda: reading.rename("numbers", "other"),
        lambda: reading.drop("numbers"),
    ):
        with pytest.raises(UsageError, match="reading only"):
            refused()
    reading.close()
    assert collection._handle.state().seqno == before
    assert place.blobs() == blobs


def test_closing_gives_up_the_ids_of_the_process_everywhere(place):
    store, other = place.open(config=BLOBS), place.open()
    names = ["a", "b", "c"]
    for name in names:
        numbers(store, name).append([{"n": 0}])
    store["a"].snapshot().close()
    store.maintain()
    store.close()
    store.close()
    for name in names:
        state = other[name]._handle.state()
        assert (state.writers, state.committers, state.readers) == ({}, {}, {})


def test_closing_gives_up_the_ids_from_before_a_renewal_too(place):
    store, other = place.open(), place.open()
    left, right = numbers(store, "left"), numbers(store, "right")
    left.append([{"n": 0}])
    right.append([{"n": 0}])
    expire(other, left, store)
    before = ids(store)
    left.append([{"n": 1}])  # renewed; the old id is still registered in the other collection
    assert set(right._handle.state().committers) == {before[0]}
    mine = {*before, *ids(store)}
    store.close()
    for name in ("left", "right"):
        state = other[name]._handle.state()
        assert mine.isdisjoint(state.writers)
        assert mine.isdisjoint(state.committers)


def test_closing_while_storage_is_away_is_no_error(place):
    script = Script()
    store = place.open(script=script)
    numbers(store).append([{"n": 0}])
    script.add("compare_and_set", Fault.DETERMINATE, times=99)
    script.add("scan", Fault.DETERMINATE, times=99)
    store.close()


def test_a_store_that_was_closed_says_so(place):
    store = place.open(config=BLOBS)
    collection = numbers(store)
    collection.append([{"n": 0}])
    snapshot = collection.snapshot()
    writer = collection.writer()
    store.close()
    for used in (
        lambda: collection.append([{"n": 1}]),
        lambda: collection.append(pa.table({"n": range(10_000)})),
        lambda: collection.upsert([{"n": 1}]),
        lambda: collection.delete({"n": 1}),
        lambda: collection.merge([{"n": 1}]).when_not_matched_insert().execute(),
        lambda: collection.snapshot(),
        lambda: collection.schema,
        lambda: collection.compact(wait=True),
        lambda: collection.retain("7 days"),
        lambda: collection.writer(),
        lambda: writer.seal(9),
        lambda: store["numbers"],
        lambda: store.names(),
        lambda: "numbers" in store,
        lambda: store.create("other", key={"n": "int64"}),
        lambda: store.maintain(),
        lambda: store.vacuum(),
        lambda: store.seal_idle(),
    ):
        with pytest.raises(UsageError, match="closed"):
            used()
    snapshot.close()
    assert rows_of(place.open()["numbers"]) == [0]


def test_a_refusal_can_be_had_as_a_value(place):
    store = place.open()
    collection = numbers(store)
    reply = store._committer.offer(CommandTransaction(((collection.id, AdvanceUpper(Frontier.at(1, 1))),)))
    assert isinstance(reply, Refused)
    assert isinstance(reply.reason, UsageError)


# All of it at once.


class Chaos(Script):
    """Faults by the throw of a die."""

    def __init__(self, random, rate):
        super().__init__()
        self.random, self.rate = random, rate

    def __call__(self, operation, key):
        if self.random.random() >= self.rate:
            return Fault.NONE
        lost = [Fault.INDETERMINATE_DONE, Fault.LATE] if operation in ("compare_and_set", "put") else []
        return self.random.choice([Fault.DETERMINATE, Fault.INDETERMINATE_NOT, *lost])


@pytest.mark.parametrize("config", [QUICK, BLOBS], ids=["inline", "blobs"])
@pytest.mark.parametrize("seed", range(6))
def test_whatever_storage_does_what_is_said_of_a_write_is_true(place, config, seed):
    """Acknowledged: there once. "Did not happen": never there. In doubt: there once, or not."""
    random = Random(seed)
    scripts = [Chaos(random, 0.0), Chaos(random, 0.0)]
    stores = [place.open(script=script, config=config) for script in scripts]
    calm = place.open(config=config)
    numbers(calm).append([{"n": -1}])
    for script in scripts:
        script.rate = 0.1 + 0.4 * random.random()
    said = {}
    for n in range(40):
        store = random.choice(stores)
        what = random.choice(["append", "append", "upsert", "expire", "maintain", "ghosts", "snapshot"])
        try:
            if what == "expire":
                place.clock.advance(random.choice([100, 4000]))
                calm.maintain(sweep=True)
            elif what == "maintain":
                store.maintain(sweep=True)
            elif what == "ghosts":
                store.ghosts()
            elif what == "snapshot":
                rows_of(store["numbers"])
            else:
                getattr(store["numbers"], what)([{"n": n}])
                said[n] = "there"
        except (Determinate, HandleExpired) as error:
            said[n] = "in doubt" if getattr(error, "in_doubt", False) else "not there"
        except Indeterminate:
            said[n] = "in doubt"
    for script in scripts:
        script.rate = 0.0
    for number, store in enumerate(stores):
        store["numbers"].append([{"n": 1000 + number}])  # settles what is in doubt
        store.ghosts()
    place.clock.advance(3 * 3600)
    calm.maintain(sweep=True)  # nothing that is referred to was deleted, or this would fail
    there = Counter(rows_of(calm["numbers"]))
    assert set(there.values()) == {1}
    assert {n for n, what in said.items() if what == "there"} <= set(there)
    assert {n for n, what in said.items() if what == "not there"}.isdisjoint(there)


class BetweenCommitAndReply:
    """Does something when a compare-and-set that changes the catalog is durable, and its caller does not know yet."""

    def __init__(self, inner):
        self._inner = inner
        self.then = None

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def compare_and_set(self, writes):
        lost = self._inner.compare_and_set(writes)
        if self.then is not None and len(writes) > 1:
            then, self.then = self.then, None
            then()
        return lost


def test_a_collection_that_another_thread_has_just_created_can_be_written_to(place):
    consensus = BetweenCommitAndReply(place.consensus)
    store = place.open(consensus=consensus)
    told = []

    def append():
        try:
            told.append(store["new"].append([{"n": 2}]).rows)
        except UsageError as error:
            told.append(str(error))

    thread = threading.Thread(target=append)

    def then():
        thread.start()
        while not told and len(store._committer._turn._queue) < 2:  # until it is answered, or waits for the commit
            thread.join(0.001)

    with store.transaction() as tx:
        tx.append(tx.create("new", key={"n": "int64"}, timeline="counter"), [{"n": 1}])
        consensus.then = then
    thread.join()
    assert told == [1]
    assert rows_of(store["new"]) == [1, 2]

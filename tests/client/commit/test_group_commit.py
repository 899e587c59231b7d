"""One committer per process: groups, leases that lapse, replies that are lost, and the end."""

import threading
from collections import Counter
from random import Random

import pyarrow as pa
import pytest
from memory_store import BLOBS, QUICK, Gate, Script, in_threads, together

from timespine.client.commit.leader_queue import GROUP_MAX
from timespine.core.batch import empty_batch
from timespine.core.group import CommandTransaction, Refused
from timespine.core.transitions import AdvanceUpper, AppendNext, Exert, ExpireCommitter, ExpireWriter
from timespine.errors import (
    ClosedError,
    Determinate,
    Fenced,
    HandleExpired,
    Indeterminate,
    Unavailable,
    UpperMismatch,
    UsageError,
)
from timespine.location.unreliable import Fault
from timespine.model.description import Description
from timespine.model.frontier import Frontier

EMPTY = empty_batch(Description(Frontier.minimum(1), Frontier(), Frontier.minimum(1)))


def numbers(store, name="numbers"):
    return store.create(name, key={"n": "int64"}, timeline="counter", if_exists="open")


def rows_of(collection):
    return sorted(row["n"] for row in collection.snapshot().to_pylist())


def ids(store):
    return store._committer.session.committer, store._committer.session.writer


def expire(other, collection, store):
    """Another process expires what a store is registered as, in one collection."""
    committer, writer = ids(store)
    other._committer.commit((collection.id, ExpireCommitter(committer)), (collection.id, ExpireWriter(writer)))


# Groups.


def test_appends_that_wait_for_a_commit_share_the_next_one(place):
    gate = Gate(place.consensus)
    store = place.open(consensus=gate)
    collection = numbers(store)
    collection.append([{"n": -1}])
    gate.sets.clear()
    done = together(gate, store, [lambda n=n: collection.append([{"n": n}]) for n in range(8)])
    assert len(gate.sets) == 2
    assert sorted(each.time for each in done) == list(range(1, 9))
    assert rows_of(collection) == list(range(-1, 8))
    assert store.metrics()["grouped"] == 6


@pytest.mark.parametrize("config", [QUICK, BLOBS], ids=["inline", "blobs"])
def test_eight_threads_append_every_row_once_at_times_without_gaps(place, config):
    store = place.open(config=config)
    collection = numbers(store)
    times = []

    def work(thread):
        for each in range(10):
            times.append(collection.append([{"n": 100 * thread + each}]).time)

    in_threads(*(lambda thread=thread: work(thread) for thread in range(8)))
    assert sorted(times) == list(range(80))
    assert rows_of(collection) == sorted(100 * thread + each for thread in range(8) for each in range(10))


def test_a_group_has_a_bound_and_the_rest_goes_into_the_next(place):
    gate = Gate(place.consensus)
    store = place.open(consensus=gate)
    collection = numbers(store)
    collection.append([{"n": -1}])
    gate.sets.clear()
    command = AppendNext(EMPTY, 0)
    commit = store._committer.commit
    done = together(gate, store, [lambda: commit((collection.id, command)) for _ in range(1 + GROUP_MAX + 1)])
    assert len(gate.sets) == 3
    assert len({reply.time for (reply,) in done}) == len(done)
    assert collection.upper == Frontier.at(1 + GROUP_MAX + 2)


def test_an_invalid_command_in_a_group_gets_its_own_error_and_disturbs_nobody(place):
    gate = Gate(place.consensus)
    store = place.open(consensus=gate)
    collection = numbers(store)
    collection.append([{"n": -1}])
    first, second, mismatch, nonsense, nowhere, last = together(
        gate,
        store,
        [
            # Tuples: lists would wait to be appended together, and not in this line.
            lambda: collection.append(({"n": 0},)),
            lambda: collection.append(({"n": 1},)),
            lambda: collection.append([{"n": 2}], expected_upper=1),
            lambda: store._committer.commit((collection.id, "not a command")),
            lambda: store._committer.commit(("no-such-collection", Exert(1))),
            lambda: collection.append(({"n": 3},)),
        ],
    )
    assert (first.time, second.time, last.time) == (1, 2, 3)
    assert isinstance(mismatch, UpperMismatch)
    assert mismatch.actual == Frontier.at(3)
    assert isinstance(nonsense, UsageError)
    assert isinstance(nowhere, UsageError)
    assert "no-such-collection" in str(nowhere)
    assert rows_of(collection) == [-1, 0, 1, 3]


def test_a_group_that_is_too_large_for_one_entry_is_committed_in_smaller_ones(place):
    class Narrow(Gate):
        def compare_and_set(self, writes):
            if sum(len(write.data) for write in writes) > 1500:
                raise UsageError("too large")
            return super().compare_and_set(writes)

    gate = Narrow(place.consensus)
    store = place.open(consensus=gate)
    collection = numbers(store)
    collection.append([{"n": -1}])
    done = together(gate, store, [lambda n=n: collection.append([{"n": n}]) for n in range(8)])
    assert sorted(each.time for each in done) == list(range(1, 9))
    assert rows_of(collection) == list(range(-1, 8))


def test_whoever_interrupts_a_commit_leaves_nobody_waiting_for_ever(place):
    gate = Gate(place.consensus)
    store = place.open(consensus=gate)
    collection = numbers(store)
    collection.append([{"n": -1}])
    gate.sets.clear()
    gate.raises[1] = KeyboardInterrupt()
    first, *others = together(gate, store, [lambda n=n: collection.append([{"n": n}]) for n in range(3)])
    assert first.time == 1
    # One of the others led, and was interrupted; the one that it led is told that it does not know.
    assert sorted(type(each).__name__ for each in others) == ["Indeterminate", "KeyboardInterrupt"]
    collection.append([{"n": 9}])
    assert rows_of(collection) == [-1, 0, 9]


def test_a_transaction_over_collections_is_all_or_nothing(place):
    store = place.open()
    left, right = numbers(store, "left"), numbers(store, "right")
    right.append([{"n": 0}])
    right.finish()
    with pytest.raises(ClosedError):
        store._committer.commit((left.id, AdvanceUpper(Frontier.at(7))), (right.id, AppendNext(EMPTY, 0)))
    assert left.upper == Frontier.at(0)


def test_a_transaction_may_rely_on_a_collection_that_it_only_reads(place):
    store, other = place.open(), place.open()
    left, right = numbers(store, "left"), numbers(store, "right")
    commit = store._committer.commit
    commit((left.id, AdvanceUpper(Frontier.at(3))), reads=((right.id, Frontier.at(0)),))
    other["right"].append([{"n": 1}])
    with pytest.raises(UpperMismatch):
        commit((left.id, AdvanceUpper(Frontier.at(4))), reads=((right.id, Frontier.at(0)),))
    assert left.upper == Frontier.at(3)


def test_a_process_registers_with_many_collections_in_one_commit(place):
    names = [f"c{number}" for number in range(9)]
    store = place.open()
    for name in names:
        numbers(store, name)
    gate = Gate(place.consensus)
    other = place.open(consensus=gate)
    other.seal(names, 5)
    assert [len(keys) for keys in gate.sets] == [9, 9]
    assert [store[name].upper for name in names] == [Frontier.at(5)] * 9
    gate.sets.clear()
    other.close()
    assert [len(keys) for keys in gate.sets] == [9]


# Leases that lapse.


@pytest.mark.parametrize("config", [QUICK, BLOBS], ids=["inline", "blobs"])
def test_a_committer_whose_lease_lapsed_renews_itself_and_the_call_succeeds(place, config):
    store, other = place.open(config=config), place.open(config=config)
    collection = numbers(store)
    collection.append([{"n": 0}])
    before = ids(store)
    place.clock.advance(2 * 3600)
    assert other.maintain(sweep=True).leases > 0
    assert before[0] not in other["numbers"]._handle.state().committers
    assert collection.append([{"n": 1}]).time == 1
    assert ids(store) != before
    assert store.metrics()["renewed"] == 1
    assert rows_of(other["numbers"]) == [0, 1]
    assert other.vacuum().blobs == []  # what was put in vain was deleted


def test_rows_that_were_swept_before_they_were_committed_are_put_again(place):
    class Slow(type(place.blob)):
        hook = None

        def put(self, key, value):
            super().put(key, value)
            hook, self.hook = self.hook, None
            if hook is not None:
                hook()

    place.blob = Slow()
    store, other = place.open(config=BLOBS), place.open(config=BLOBS)
    collection = numbers(store)
    collection.append([{"n": 0}])

    def sleep_past_the_lease():
        place.clock.advance(2 * 3600)
        assert other.maintain(sweep=True).swept == 1

    place.blob.hook = sleep_past_the_lease
    assert collection.append([{"n": 1}]).rows == 1
    assert rows_of(other["numbers"]) == [0, 1]


def test_a_committer_that_was_expired_in_one_collection_writes_once_to_each_of_a_group(place):
    gate = Gate(place.consensus)
    store, other = place.open(consensus=gate), place.open()
    left, right = numbers(store, "left"), numbers(store, "right")
    left.append([{"n": 0}])
    right.append([{"n": 0}])
    expire(other, left, store)
    done = together(
        gate,
        store,
        [
            lambda: right.append([{"n": 1}]),
            lambda: left.append([{"n": 2}]),
            lambda: right.append([{"n": 3}]),
        ],
    )
    assert [each.time for each in done] == [1, 1, 2]
    assert rows_of(other["left"]) == [0, 2]
    assert rows_of(other["right"]) == [0, 1, 3]
    assert store.metrics()["renewed"] == 1


def test_a_transaction_is_repeated_as_a_whole_if_the_committer_was_expired_in_one_of_its_collections(place):
    store, other = place.open(), place.open()
    left, right = numbers(store, "left"), numbers(store, "right")
    left.append([{"n": 0}])
    right.append([{"n": 0}])
    expire(other, left, store)
    store._committer.commit((left.id, AdvanceUpper(Frontier.at(5))), (right.id, AdvanceUpper(Frontier.at(5))))
    assert left.upper == right.upper == Frontier.at(5)


def test_neighbours_of_a_fenced_transaction_are_not_told_of_the_failure_of_its_second_try(place):
    gate, script = Gate(place.consensus), Script()
    store, other = place.open(consensus=gate, script=script), place.open()
    left, right = numbers(store, "left"), numbers(store, "right")
    left.append([{"n": 0}])
    right.append([{"n": 0}])
    expire(other, left, store)
    # The group itself is tried with both, and found to be fenced off the one; then the second try begins.
    script.add("compare_and_set", Fault.DETERMINATE, key=left.id, times=99, skip=1)
    done = together(
        gate,
        store,
        [
            lambda: right.append([{"n": 1}]),
            lambda: right.append([{"n": 2}]),
            lambda: left.append([{"n": 3}]),
        ],
    )
    assert [each.time for each in done[:2]] == [1, 2]
    assert isinstance(done[2], Determinate)
    script.rules.clear()
    assert rows_of(other["left"]) == [0]
    assert rows_of(other["right"]) == [0, 1, 2]


def test_being_fenced_off_a_hold_renews_nothing(place):
    store, other = place.open(), place.open()
    collection = numbers(store)
    collection.append([{"n": 0}])
    other["numbers"].critical_hold("backup", 0)
    before = ids(store)
    with pytest.raises(Fenced, match="backup"):
        collection.critical_hold("backup", 0)
    assert ids(store) == before


def test_the_writer_that_blobs_are_put_under_is_registered_whenever_it_is_asked_for(place):
    store, other = place.open(), place.open()
    collection = numbers(store)
    first = store._committer.writer(collection.id)
    assert first in other["numbers"]._handle.state().writers
    store._committer.renew()
    second = store._committer.writer(collection.id)
    assert second != first
    assert second in other["numbers"]._handle.state().writers


class Slow(dict):
    """States that take their time: something else happens between looking one up and putting one in."""

    def __init__(self, states, meanwhile):
        super().__init__(states)
        self.meanwhile = [meanwhile]

    def get(self, *key):
        found = super().get(*key)
        while self.meanwhile:
            self.meanwhile.pop()()
        return found


@pytest.mark.parametrize("renewed", [False, True])
def test_a_thread_that_learns_an_old_state_late_makes_nobody_forget_a_newer_one(place, renewed):
    store = place.open()
    collection = numbers(store)
    first = collection._handle.state()
    states = [first]
    for n in range(2):
        collection.append([{"n": n}])
        states.append(collection._handle.state())
    committer = store._committer
    session = committer.session
    if renewed:
        committer.renew()
    other = threading.Thread(target=lambda: committer.session.remember_state(states[2]))

    def meanwhile():
        other.start()
        other.join(0.2)  # either it is through by now, or it waits for its turn

    session.states = committer.session.states = Slow({collection.id: first}, meanwhile)
    session.remember_state(states[1])
    other.join(60)
    assert committer.known(collection.id) is states[2]


def test_no_event_that_threads_count_is_lost(place):
    session = place.open()._committer.session
    meanwhile = threading.Thread(target=lambda: session.count("events"))

    def count():
        meanwhile.start()
        meanwhile.join(0.2)

    session.counters = Slow({}, count)
    session.count("events")
    meanwhile.join(60)
    assert session.counters["events"] == 2


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
    store, other = place.open(), place.open()
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

"""One committer per process: groups, leases that lapse, replies that are lost, and the end."""

import threading

import pytest
from group_commit_cases import expire, ids, numbers
from memory_store import BLOBS, QUICK, Gate, Script, in_threads, together
from numbered_rows import rows_of

from timespine.client.commit.leader_queue import GROUP_MAX
from timespine.client.commit.shared_session import UNREAD_MAX
from timespine.core.batch import empty_batch
from timespine.core.transitions import AdvanceUpper, AppendNext, Exert
from timespine.errors import ClosedError, Determinate, Fenced, UpperMismatch, UsageError
from timespine.model.description import Description
from timespine.model.frontier import Frontier
from timespine.testing.unreliable import Fault

EMPTY = empty_batch(Description(Frontier.minimum(1), Frontier(), Frontier.minimum(1)))


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


def test_an_invalid_command_in_a_group_gets_its_own_error_and_disturbs_no_other(place):
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
    assert isinstance(nowhere, ClosedError)
    assert "no-such is not there" in str(nowhere)
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


def test_an_interrupted_commit_leaves_no_thread_waiting_for_ever(place):
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
def test_a_thread_that_learns_an_old_state_late_does_not_replace_a_newer_one(place, renewed):
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

    session._shared_counters._totals = Slow({}, count)
    session.count("events")
    assert session.counters["events"] >= 1
    meanwhile.join(60)
    assert session.counters["events"] == 2


def test_events_are_added_up_before_they_are_many(place):
    session = place.open()._committer.session
    for _ in range(3 * UNREAD_MAX):
        session.count("events")
        assert len(session._shared_counters._counted) <= UNREAD_MAX
    assert session.counters["events"] == 3 * UNREAD_MAX
    assert session.renewed().counters["events"] == 3 * UNREAD_MAX, "a renewed session goes on with them"
    assert "events" not in session.beside().counters

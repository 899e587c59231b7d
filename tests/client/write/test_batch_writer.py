"""The writer handle: a batch built by hand belongs to whoever built it until it is committed."""

import gc
import threading
import warnings
from dataclasses import replace

import msgspec
import pyarrow as pa
import pytest
from memory_store import BLOBS, QUICK, Script, counted

from timespine.columnar.ingest.update_table import to_update_table
from timespine.config import Config
from timespine.core.batch import Order
from timespine.core.transitions import ExpireCommitter, ExpireWriter
from timespine.errors import CorruptionError, Fenced, Indeterminate, TimespineError, UpperMismatch, UsageError
from timespine.location.memory import MemoryBlob
from timespine.location.unreliable import Fault
from timespine.model.frontier import Frontier

BOTH = pytest.mark.parametrize("config", [QUICK, BLOBS], ids=["inline", "blobs"])
PARTS = Config(
    part_bytes=2000, row_group_rows=16, inline_part_bytes=1, run_parts=2, retry_pause_ms=1, storage_attempts=3
)


def create(store, name="numbers", **options):
    return store.create(name, **{"key": {"n": "int64"}, "timeline": "counter", **options})


def built(collection, writer, numbers, lower, upper, **options):
    """A batch of numbers, all at its first time."""
    table = to_update_table(pa.table({"n": numbers}), collection.schema, (lower,))
    with writer.builder(lower, **options) as builder:
        builder.add(table)
        return builder.finish(Frontier.at(upper))


def now(collection):
    return sorted(row["n"] for row in collection.snapshot().to_pylist())


def parts_of(place, collection):
    return [key for key in place.blobs(f"{collection.id}/") if key.split("/")[2][0] in "ph"]


@BOTH
def test_a_batch_is_nothing_until_it_is_committed(place, config):
    numbers = create(place.open(config=config))
    writer = numbers.writer()
    batch = built(numbers, writer, [1, 2], 0, 5)
    assert numbers.count() == 0
    assert writer.compare_and_append([batch], 0, 5) == Frontier.at(5)
    assert now(numbers) == [1, 2]
    assert numbers.count(4) == 2


@BOTH
def test_several_batches_are_appended_all_or_none(place, config):
    numbers = create(place.open(config=config))
    writer = numbers.writer()
    first, second = built(numbers, writer, [1], 0, 5), built(numbers, writer, [2, 3], 0, 5)
    with pytest.raises(UpperMismatch) as raised:
        writer.compare_and_append([first, second], 3, 5)
    assert raised.value.actual == Frontier.at(0)
    wrong = built(numbers, writer, [9], 0, 4)
    with pytest.raises(UsageError, match="does not cover"):
        writer.compare_and_append([first, wrong], 0, 5)
    assert numbers.upper == Frontier.at(0)
    # What was refused still belongs to the caller, who may offer it again.
    writer.compare_and_append([first, second], 0, 5)
    assert now(numbers) == [1, 2, 3]


def test_a_batch_is_cut_to_the_interval_it_is_appended_for(place):
    numbers = create(place.open())
    writer = numbers.writer()
    table = to_update_table(pa.table({"n": [1, 2, 3], "_time": [0, 3, 6]}), numbers.schema, None)
    with writer.builder(0) as builder:
        builder.add(table)
        batch = builder.finish(Frontier.at(9))
    assert writer.compare_and_append([batch], 0, 4) == Frontier.at(4)
    assert now(numbers) == [1, 2]
    assert writer.append(batch).upper == Frontier.at(9)
    assert now(numbers) == [1, 2, 3]


@BOTH
def test_writers_that_all_write_the_same_write_it_once(place, config):
    stores = [place.open(config=config) for _ in range(3)]
    create(stores[0])
    replies, batches = [], []
    for store in stores:
        numbers = store["numbers"]
        writer = numbers.writer()
        batches.append((writer, built(numbers, writer, [1, 2], 0, 3)))
    for writer, batch in batches:
        replies.append(writer.append(batch))
    assert [each.taken for each in replies] == [True, False, False]
    assert {each.upper for each in replies} == {Frontier.at(3)}
    for writer, batch in batches[1:]:
        writer.delete(batch)
    assert now(stores[0]["numbers"]) == [1, 2]
    assert len(parts_of(place, stores[0]["numbers"])) == 1


def test_a_batch_from_further_on_is_told_the_upper_and_leaves_nothing(place):
    numbers = create(place.open())
    writer = numbers.writer()
    batch = built(numbers, writer, [1], 4, 6)
    with pytest.raises(UpperMismatch):
        writer.append(batch)
    assert parts_of(place, numbers) == []  # what was flushed for it is gone again
    writer.seal(4)
    assert writer.append(batch).taken
    assert now(numbers) == [1]


def test_rows_outside_of_a_batch_are_refused(place):
    numbers = create(place.open())
    writer = numbers.writer()
    with writer.builder(5) as builder:
        with pytest.raises(UsageError, match="lower"):
            builder.add(to_update_table(pa.table({"n": [1]}), numbers.schema, (4,)))
        builder.add(to_update_table(pa.table({"n": [1]}), numbers.schema, (7,)))
        with pytest.raises(UsageError, match="upper"):
            builder.finish(Frontier.at(7))
        assert builder.finish(Frontier.at(8)).len == 1


def test_a_builder_that_is_left_leaves_nothing(place):
    numbers = create(place.open(config=PARTS))
    writer = numbers.writer()

    def fail():
        with writer.builder(0) as builder:
            builder.add(to_update_table(pa.table({"n": range(1000)}), numbers.schema, (0,)))
            raise KeyError("on purpose")

    with pytest.raises(KeyError):
        fail()
    assert parts_of(place, numbers) == []


@pytest.mark.parametrize("order", [Order.UNORDERED, Order.SORTED])
def test_a_batch_of_many_parts_is_deleted_whole_or_committed_whole(place, order):
    numbers = create(place.open(config=PARTS))
    writer = numbers.writer()
    batch = built(numbers, writer, list(range(2000)), 0, 1, order=order)
    assert len(parts_of(place, numbers)) > 10
    writer.delete(batch)
    assert parts_of(place, numbers) == []
    batch = built(numbers, writer, list(range(2000)), 0, 1, order=order)
    writer.compare_and_append([batch], 0, 1)
    assert now(numbers) == list(range(2000))


@pytest.mark.parametrize("config", [BLOBS, PARTS], ids=["part", "parts"])
def test_a_batch_that_was_committed_cannot_be_deleted(place, config):
    numbers = create(place.open(config=config))
    writer = numbers.writer()
    batch = built(numbers, writer, list(range(2000)), 0, 1)
    writer.compare_and_append([batch], 0, 1)
    with pytest.raises(UsageError, match="part of collection"):
        writer.delete(batch)
    assert numbers.count() == 2000
    assert now(numbers) == list(range(2000))


def test_batches_that_do_not_fit_the_state_are_put_into_blobs(place):
    config = Config(inline_total_bytes=1, retry_pause_ms=1)
    numbers = create(place.open(config=config))
    writer = numbers.writer()
    batches = [built(numbers, writer, [n], 0, 1) for n in range(3)]
    assert all(part.inline is not None for batch in batches for part in batch.parts)
    writer.compare_and_append(batches, 0, 1)
    assert now(numbers) == [0, 1, 2]
    assert len(parts_of(place, numbers)) == 3
    assert numbers._handle.state().inline_bytes == 0


def test_what_was_put_for_batches_that_did_not_fit_and_were_refused_is_deleted(place):
    config = Config(inline_total_bytes=1, retry_pause_ms=1, storage_attempts=2)
    script = Script()
    store, other = place.open(config=config, script=script), place.open(config=config)
    numbers = create(store)
    writer = numbers.writer()
    batches = [built(numbers, writer, [n], 0, 1) for n in range(3)]
    # Another process is first, after the state was found to be full.
    script.add("put", Fault.NONE, hook=lambda: other["numbers"].seal(1))
    with pytest.raises(UpperMismatch):
        writer.compare_and_append(batches, 0, 1)
    assert parts_of(place, numbers) == []
    batches = [built(numbers, writer, [n], 1, 2) for n in range(3)]
    script.add("put", Fault.DETERMINATE, skip=1, times=99)
    with pytest.raises(TimespineError):
        writer.compare_and_append(batches, 1, 2)
    assert parts_of(place, numbers) == []


@BOTH
def test_a_batch_can_be_committed_by_another_process(place, config):
    store, other = place.open(config=config), place.open(config=config)
    numbers = create(store)
    writer = numbers.writer()
    data = writer.transmit(built(numbers, writer, [1, 2], 0, 1))
    theirs = other["numbers"].writer()
    assert theirs.compare_and_append([theirs.receive(data)], 0, 1) == Frontier.at(1)
    assert now(numbers) == [1, 2]


# Batches that outlive the store that built them.

TERM_S = 6 * 3600


def left_behind(place, **options):
    """A batch that was built and transmitted, and one that was only built, by a store that is closed since."""
    store = place.open(config=BLOBS)
    numbers = create(store)
    writer = numbers.writer()
    built(numbers, writer, [9], 0, 1)
    writer._loose.clear()  # it is left on purpose
    data = writer.transmit(built(numbers, writer, [1, 2], 0, 1), **options)
    store.close()
    return data


def test_a_transmitted_batch_can_be_committed_until_its_term_after_its_builder_closed_the_store(place):
    data = left_behind(place, ttl="6 hours")
    place.clock.advance(TERM_S - 1)
    other = place.open(config=BLOBS)
    other.maintain(sweep=True)
    numbers = other["numbers"]
    assert len(parts_of(place, numbers)) == 2, "the lease holds whatever else its writer has put"
    theirs = numbers.writer()
    assert theirs.compare_and_append([theirs.receive(data)], 0, 1) == Frontier.at(1)
    place.clock.advance(2)
    other.maintain(sweep=True)
    assert now(numbers) == [1, 2]
    assert len(parts_of(place, numbers)) == 1, "what was not committed is swept after the term"


def test_a_transmitted_batch_is_fenced_and_swept_after_its_term(place):
    data = left_behind(place, ttl=TERM_S)
    place.clock.advance(TERM_S + 1)
    other = place.open(config=BLOBS)
    numbers = other["numbers"]
    other.maintain(sweep=True)
    theirs = numbers.writer()
    with pytest.raises(Fenced):
        theirs.compare_and_append([theirs.receive(data)], 0, 1)
    with pytest.raises(Fenced):
        theirs.transmit(theirs.receive(data))
    assert parts_of(place, numbers) == []
    assert numbers.count() == 0


def test_who_has_received_a_batch_and_needs_longer_transmits_it_again(place):
    data = left_behind(place, ttl="10 min")
    relay = place.open(config=BLOBS)
    theirs = relay["numbers"].writer()
    again = theirs.transmit(theirs.receive(data), ttl="6 hours")
    relay.close()
    place.clock.advance(TERM_S - 1)
    other = place.open(config=BLOBS)
    other.maintain(sweep=True)
    last = other["numbers"].writer()
    last.compare_and_append([last.receive(again)], 0, 1)
    assert now(other["numbers"]) == [1, 2]


def test_a_batch_that_was_not_transmitted_goes_with_the_store_that_built_it(place):
    store = place.open(config=BLOBS)
    numbers = create(store)
    writer = numbers.writer()
    built(numbers, writer, [9], 0, 1)
    writer._loose.clear()
    store.close()
    other = place.open(config=BLOBS)
    other.maintain(sweep=True)
    assert parts_of(place, other["numbers"]) == []


def test_a_transmitted_batch_lasts_an_hour_unless_its_builder_says_otherwise(place):
    left_behind(place)
    state = place.open(read_only=True)["numbers"]._handle.state()
    (lease,) = state.writers.values()
    assert lease.until_ms == place.clock.ms + 3_600_000
    writer = place.open()["numbers"].writer()
    with pytest.raises(UsageError, match="is not a duration"):
        writer.transmit(built(place.open()["numbers"], writer, [1], 0, 1), ttl="a while")


def test_a_batch_of_another_collection_or_damaged_bytes_are_refused(place):
    store = place.open(config=BLOBS)
    numbers, others = create(store), create(store, "others")
    writer, theirs = numbers.writer(), others.writer()
    data = writer.transmit(built(numbers, writer, [1, 2], 0, 1))
    with pytest.raises(UsageError):
        theirs.receive(data)
    for length in range(0, len(data), 7):
        with pytest.raises((CorruptionError, UsageError)):
            writer.receive(data[:length])
    for place_ in range(len(data)):
        damaged = bytearray(data)
        damaged[place_] ^= 0x41
        with pytest.raises(TimespineError):
            writer.receive(bytes(damaged))
    # Not even if somebody skips the check of the bytes.
    with pytest.raises(UsageError):
        theirs.compare_and_append([writer.receive(data)], 0, 1)
    assert others.count() == 0


def test_the_batch_of_a_writer_that_was_expired_is_fenced_off_and_a_new_writer_works(place):
    store, other = place.open(config=BLOBS), place.open(config=BLOBS)
    numbers = create(store)
    writer = numbers.writer()
    batch = built(numbers, writer, [1], 0, 1)
    other._committer.commit((numbers.id, ExpireWriter(writer.id)))
    with pytest.raises(Fenced) as raised:
        writer.compare_and_append([batch], 0, 1)
    assert not raised.value.in_doubt
    assert numbers.count() == 0
    again = numbers.writer()
    assert again.id != writer.id
    again.compare_and_append([built(numbers, again, [2], 0, 1)], 0, 1)
    assert now(numbers) == [2]
    assert other.vacuum().blobs == [batch.runs[0].parts[0].key]


def test_a_batch_of_a_writer_that_is_still_registered_survives_the_renewal_of_the_committer(place):
    store, other = place.open(config=BLOBS), place.open(config=BLOBS)
    numbers = create(store)
    writer = numbers.writer()
    batch = built(numbers, writer, [1], 0, 1)
    other._committer.commit((numbers.id, ExpireCommitter(store._committer.session.committer)))
    writer.compare_and_append([batch], 0, 1)
    assert now(numbers) == [1]


@pytest.mark.parametrize("fault", [Fault.INDETERMINATE_DONE, Fault.INDETERMINATE_NOT, Fault.LATE])
def test_a_batch_whose_reply_was_lost_is_in_once(place, fault):
    script = Script()
    store = place.open(config=BLOBS, script=script)
    numbers = create(store)
    writer = numbers.writer()
    script.add("compare_and_set", fault, key=numbers.id)
    writer.compare_and_append([built(numbers, writer, [1], 0, 1)], 0, 1)
    script.add("compare_and_set", fault, key=numbers.id)
    script.add("compare_and_set", Fault.INDETERMINATE_NOT, key=numbers.id, times=9)
    batch = built(numbers, writer, [2], 1, 2)
    with pytest.raises(Indeterminate):
        writer.append(batch)
    script.rules.clear()
    assert writer.append(batch).upper == Frontier.at(2)  # the same again: it is there, or goes there, once
    store.ghosts()
    assert now(place.open()["numbers"]) == [1, 2]


def test_a_batch_can_be_moved_to_a_later_time_without_being_written_again(place):
    numbers = create(place.open(config=BLOBS))
    writer = numbers.writer()
    batch = built(numbers, writer, [1, 2], 0, 1)
    numbers.append([{"n": 9}], at=6)
    before = place.blobs()
    moved = writer.rewrite(batch, 7, 8)
    assert writer.compare_and_append([moved], 7, 8) == Frontier.at(8)
    assert place.blobs() == before
    assert numbers.count(6) == 1
    assert now(numbers) == [1, 2, 9]
    assert {row["_time"] for row in numbers.updates().to_pylist()} == {6, 7}


def test_times_of_several_coordinates_go_by_frontiers(place):
    plane = create(place.open(), time_coordinates=2)
    writer = plane.writer()
    table = to_update_table(pa.table({"n": [1, 2], "_time_0": [0, 5], "_time_1": [5, 0]}), plane.schema, None)
    with writer.builder((0, 0)) as builder:
        builder.add(table)
        batch = builder.finish(Frontier(((0, 6), (6, 0))))
    writer.compare_and_append([batch], (0, 0), Frontier(((0, 6), (6, 0))))
    assert plane.upper == Frontier(((0, 6), (6, 0)))
    assert plane.count((0, 5)) == 1
    for wrong in (lambda: writer.seal(7), lambda: writer.builder(7), lambda: writer.seal((1, 2, 3))):
        with pytest.raises(UsageError):
            wrong()


def test_the_seal_of_a_writer_goes_forward_only_and_ignores_a_time_behind_if_asked_to(place):
    writer = create(place.open()).writer()
    assert writer.seal(5).upper == Frontier.at(5)
    with pytest.raises(UsageError, match="sealed up to"):
        writer.seal(3)
    assert writer.seal(3, if_behind="ignore").upper == Frontier.at(5)
    with pytest.raises(UsageError, match="if_behind is 'error' or 'ignore'"):
        writer.seal(9, if_behind="no")
    with pytest.raises(UsageError):
        writer.seal("x")


def test_what_writers_append_counts_in_the_figures(place):
    numbers = create(place.open(config=BLOBS))
    writer = numbers.writer()
    writer.compare_and_append([built(numbers, writer, [1, 2], 0, 1)], 0, 1)
    counters = numbers._handle.context.counters_of(numbers.id)
    assert counters["append rows"] == 2
    assert counters["append bytes"] == sum(part.size for part in numbers._handle.state().parts())
    assert counted(numbers.snapshot().to_pylist(), "n") == {(1,): 1, (2,): 1}


@pytest.mark.parametrize("config", [None, BLOBS])
def test_a_batch_of_another_collection_is_refused_wherever_its_rows_are(place, config):
    store = place.open(config=config) if config else place.open()
    numbers, others = create(store), create(store, name="others")
    writer = numbers.writer()
    batch = built(numbers, writer, [1], 0, 1)
    for wrong in (lambda: others.writer().compare_and_append([batch], 0, 1), lambda: others.writer().append(batch)):
        with pytest.raises(UsageError):
            wrong()
    assert others.snapshot().to_pylist() == []
    writer.compare_and_append([batch], 0, 1)
    assert now(numbers) == [1]


@pytest.mark.parametrize("wrong", [None, 5, "x", [5]])
def test_what_is_no_batch_is_refused(place, wrong):
    writer = create(place.open()).writer()
    for call in (lambda: writer.compare_and_append(wrong, 0, 1), lambda: writer.append(wrong)):
        with pytest.raises(UsageError, match="batch"):
            call()


def test_a_batch_under_a_schema_that_this_process_has_not_seen_yet_is_appended(place):
    mine, theirs = create(place.open()), place.open()["numbers"]
    receiver = theirs.writer()
    mine.evolve(add={"more": "string"})
    writer = mine.writer()
    receiver.append(receiver.receive(writer.transmit(built(mine, writer, [1], 0, 1))))
    assert [row["n"] for row in theirs.snapshot().to_pylist()] == [1]


def test_a_batch_under_an_unknown_schema_is_refused(place):
    numbers = create(place.open())
    writer = numbers.writer()
    batch = built(numbers, writer, [1], 0, 1)
    runs = tuple(msgspec.structs.replace(run, schema=7) for run in batch.runs)
    data = writer.transmit(msgspec.structs.replace(batch, runs=runs))
    with pytest.raises(UsageError, match="schema 7"):
        writer.receive(data)


def test_a_batch_is_deleted_by_the_writer_that_built_it_alone(place):
    numbers = create(place.open(config=BLOBS))
    writer = numbers.writer()
    batch = built(numbers, writer, [1], 0, 1)
    theirs = place.open(config=BLOBS)["numbers"].writer()
    with pytest.raises(UsageError, match="another writer"):
        theirs.delete(theirs.receive(writer.transmit(batch)))
    before = place.blobs()
    writer.delete(batch)
    assert len(place.blobs()) == len(before) - 1


@pytest.mark.parametrize("settled", ["left", "committed", "deleted", "transmitted"])
def test_a_batch_that_was_built_and_left_is_told_of(place, settled):
    numbers = create(place.open(config=BLOBS))
    gc.collect()  # what other tests left is told of before
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        writer = numbers.writer()
        batch = built(numbers, writer, [1], 0, 1)
        if settled == "committed":
            writer.compare_and_append([batch], 0, 1)
        elif settled == "deleted":
            writer.delete(batch)
        elif settled == "transmitted":
            writer.transmit(batch)
        del writer
        gc.collect()
    said = [str(each.message) for each in told if "never committed" in str(each.message)]
    assert len(said) == (settled == "left")


# Several blobs at once.


class Meeting(MemoryBlob):
    """Storage whose first calls of one kind, so many, wait until all of them are under way at once."""

    def __init__(self):
        super().__init__()
        self.calls = {}

    def meet(self, what, calls):
        self.calls[what] = (threading.Barrier(calls), iter(range(calls)))

    def put(self, key, value):
        self._wait("put", key)
        return super().put(key, value)

    def delete(self, key):
        self._wait("delete", key)
        return super().delete(key)

    def _wait(self, what, key):
        barrier, calls = self.calls.get(what, (None, iter(())))
        if key.split("/")[2].startswith("p") and next(calls, None) is not None:
            barrier.wait(30)

    def close(self):
        """The place closes it."""


def test_a_writer_deletes_the_blobs_of_a_batch_in_parallel(place):
    blob = Meeting()
    numbers = create(place.open(config=replace(PARTS, run_parts=32), blob=blob))
    writer = numbers.writer()
    batch = built(numbers, writer, list(range(3000)), 0, 1)
    parts = [key for key in batch.keys if key]
    assert len(parts) >= 4
    blob.meet("delete", 4)
    writer.delete(batch)
    assert not set(parts) & {info.key for info in blob.list_keys(f"{numbers.id}/")}


def test_as_many_parts_are_uploaded_at_once_as_the_config_says(place):
    blob = Meeting()
    numbers = create(place.open(config=replace(PARTS, run_parts=64, outstanding_parts=8), blob=blob))
    writer = numbers.writer()
    blob.meet("put", 8)
    rows = list(range(3000))
    batch = built(numbers, writer, rows, 0, 1)
    assert len(list(batch.keys)) >= 8
    writer.compare_and_append([batch], 0, 1)
    assert numbers.count() == len(rows)

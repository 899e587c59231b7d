"""Batches that are transmitted: another process commits them, also after their builder has closed its store."""

import gc
import warnings

import msgspec
import pyarrow as pa
import pytest
from batch_writer_cases import built, create, now
from key_value_cases import parts_of
from memory_store import BLOBS, Script, counted

from timespine.columnar.ingest.update_table import to_update_table
from timespine.core.transitions import ExpireCommitter, ExpireWriter
from timespine.errors import CorruptionError, Fenced, Indeterminate, TimespineError, UsageError
from timespine.model.frontier import Frontier
from timespine.testing.unreliable import Fault

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

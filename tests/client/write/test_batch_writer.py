"""The writer handle: a batch built by hand belongs to whoever built it until it is committed."""

import threading
from dataclasses import replace

import pyarrow as pa
import pytest
from batch_writer_cases import built, create, now
from key_value_cases import parts_of
from memory_store import BLOBS, QUICK, Script

from timespine.columnar.ingest.update_table import to_update_table
from timespine.config import Config
from timespine.core.batch import Order
from timespine.errors import TimespineError, UpperMismatch, UsageError
from timespine.location.memory import MemoryBlob
from timespine.model.frontier import Frontier
from timespine.testing.unreliable import Fault

BOTH = pytest.mark.parametrize("config", [QUICK, BLOBS], ids=["inline", "blobs"])


PARTS = Config(
    part_bytes=2000, row_group_rows=16, inline_part_bytes=1, run_parts=2, retry_pause_ms=1, storage_attempts=3
)


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

"""Rows that come too late go by rule, also when the seal moves while they are written; and they are counted."""

from __future__ import annotations

import pyarrow as pa
import pytest
from memory_store import BLOBS, Script

from timespine.client.write.prebuilt.prebuilt_append import append_runs_step, append_time
from timespine.client.write.prebuilt.prebuilt_steps import PrebuiltAppendAtStep, PrebuiltAppendStep
from timespine.client.write.step_commit import StepCommit, commit_steps
from timespine.client.write.transaction_steps import CommandStep
from timespine.columnar.ingest.update_table import to_update_table
from timespine.config import Config
from timespine.core.transitions import Seal
from timespine.errors import ClosedError, Fenced, UsageError
from timespine.model.frontier import Frontier
from timespine.testing.unreliable import Fault

ROWS = [{"id": 1, "t": 3}, {"id": 2, "t": 8}]


def seals_before_the_commit(place, name, upper):
    """A store before whose next commit somebody else seals."""
    other, script = place.open(), Script()
    store = place.open(script=script, config=BLOBS)
    collection = store.collection(name)
    collection._handle.committer.writer(collection.id)  # registered: what comes next is the commit
    script.add("compare_and_set", Fault.NONE, key=collection.id, hook=lambda: other.collection(name).seal(upper))
    return store, collection


def times_of(collection):
    return {row["id"]: row["_time"] for row in collection.unsealed().to_pylist()}


@pytest.mark.parametrize(
    ("late", "kept", "counted"),
    [("move", {1: 5, 2: 8}, "late rows moved"), ("drop", {2: 8}, "late rows dropped")],
)
@pytest.mark.parametrize("how", ["alone", "in a transaction"])
def test_rows_that_are_sealed_while_they_are_written_go_by_rule(place, late, kept, counted, how):
    place.open().create("events", key={"id": "int64"}, timeline="counter")
    store, events = seals_before_the_commit(place, "events", 5)
    if how == "alone":
        done = events.write(ROWS, times="t", late=late)
    else:
        with store.transaction() as tx:
            tx.write(events, ROWS, times="t", late=late)
        (done,) = tx.replies
    assert done.late == 1
    assert times_of(events) == kept
    assert store.metrics()[counted] == 1
    store.maintain(sweep=True)
    assert store.vacuum().blobs == []


@pytest.mark.parametrize("how", ["alone", "in a transaction"])
def test_rows_that_are_sealed_while_they_are_written_are_refused_without_a_rule(place, how):
    place.open().create("events", key={"id": "int64"}, timeline="counter")
    store, events = seals_before_the_commit(place, "events", 5)
    tx = store.transaction()
    tx.write(events, ROWS, times="t")
    with pytest.raises(UsageError, match="sealed already"):
        tx.commit() if how == "in a transaction" else events.write(ROWS, times="t")
    assert times_of(events) == {}


def test_a_write_of_rows_that_are_all_too_late_is_counted_too(place):
    store = place.open()
    events = store.create("events", key={"id": "int64"}, timeline="counter")
    events.seal(100)
    assert events.write(ROWS, times="t", late="drop").late == 2
    assert store.metrics()["late rows dropped"] == 2
    assert "late rows moved" not in store.metrics()


@pytest.mark.parametrize("sealed", [0, 5])
@pytest.mark.parametrize("named", ["t", "_time", None])
@pytest.mark.parametrize("late", ["move", "drop", "refuse"])
def test_times_before_all_others_are_too_late_whatever_is_sealed(place, late, named, sealed):
    store = place.open()
    events = store.create("events", key={"id": "int64"}, timeline="counter")
    events.seal(sealed)
    column = named or "_time"
    given = [{"id": 1, column: -3}, {"id": 2, column: 8}, {"id": 3, column: -1}]
    if late == "refuse":
        with pytest.raises(UsageError, match="times begin at 0"):
            events.write(given, times=named)
        return
    assert events.write(given, times=named, late=late).late == 2
    assert times_of(events) == ({1: sealed, 2: 8, 3: sealed} if late == "move" else {2: 8})
    assert store.metrics()["late rows moved" if late == "move" else "late rows dropped"] == 2


@pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.uint16(), pa.int64()])
def test_times_are_whole_numbers_of_any_width(place, kind):
    events = place.open().create("events", key={"id": "int64"}, timeline="counter")
    events.seal(5)
    rows = pa.table({"id": [1, 2], "t": pa.array([3, 8], kind)})
    assert events.write(rows, times="t", late="move").late == 1
    assert times_of(events) == {1: 5, 2: 8}


def test_times_that_no_number_of_ours_can_be_are_refused(place):
    events = place.open().create("events", key={"id": "int64"}, timeline="counter")
    rows = pa.table({"id": [1], "t": pa.array([2**63], pa.uint64())})
    with pytest.raises(UsageError, match=r"column 't' has times that are too large"):
        events.write(rows, times="t", late="drop")


@pytest.mark.parametrize(("late", "kept"), [("move", {1: 6, 2: 8}), ("drop", {2: 8})])
def test_what_a_transaction_seals_before_it_writes_is_sealed_for_its_rows(place, late, kept):
    store = place.open()
    events = store.create("events", key={"id": "int64"}, timeline="counter")
    with store.transaction() as tx:
        tx.seal(events, 6)
        tx.write(events, ROWS, times="t", late=late)
    assert (tx.replies[1].late, times_of(events)) == (1, kept)
    with store.transaction() as tx:
        tx.append(events, [{"id": 5}], at=20)
        tx.write(events, [{"id": 6, "t": 20}], times="t", late=late)
    assert tx.replies[1].late == 1
    tx = store.transaction()
    tx.seal(events, 30)
    tx.write(events, [{"id": 7, "t": 29}], times="t")
    with pytest.raises(UsageError, match="too late"):
        tx.commit()


@pytest.mark.parametrize(("late", "kept"), [("move", {3: 22, 4: 50}), ("drop", {4: 50})])
@pytest.mark.parametrize("pushed_by", ["the same", "another"])
def test_rows_at_the_time_of_a_transaction_are_sealed_for_what_it_writes_then(place, late, kept, pushed_by):
    store = place.open()
    events = store.create("events", key={"id": "int64"}, timeline="counter")
    other = store.create("other", key={"id": "int64"}, timeline="counter")
    pushing = events if pushed_by == "the same" else other
    with store.transaction() as tx:
        tx.append(pushing, [{"id": 1}], at=20)
        tx.append(events, [{"id": 2}])
        tx.write(events, [{"id": 3, "t": 5}, {"id": 4, "t": 50}], times="t", late=late)
        if pushing is other:
            tx.append(other, [{"id": 2}])
    assert (tx.time, tx.replies[2].late, times_of(events)) == (21, 1, kept)
    assert store.metrics()["late rows moved" if late == "move" else "late rows dropped"] == 1


@pytest.mark.parametrize(("late", "kept"), [("move", {2: 2, 3: 10}), ("drop", {3: 10})])
def test_a_transaction_that_is_placed_again_looks_again_at_what_is_late(place, late, kept):
    script = Script()
    store, other = place.open(script=script), place.open()
    events = store.create("events", key={"id": "int64"}, timeline="counter")
    script.add("compare_and_set", Fault.NONE, key=events.id, hook=lambda: other["events"].append([{"id": 9}]))
    with store.transaction() as tx:
        tx.append(events, [{"id": 1}])
        tx.write(events, [{"id": 2, "t": 1}, {"id": 3, "t": 10}], times="t", late=late)
    assert (tx.time, tx.replies[1].late, times_of(events)) == (1, 1, kept)


@pytest.mark.parametrize("named", ["t", None])
@pytest.mark.parametrize("late", ["refuse", "move", "drop"])
def test_rows_are_checked_as_always_whatever_becomes_of_late_ones(place, late, named):
    events = place.open().create("events", key={"id": "int64"}, timeline="counter")
    column = named or "_time"
    with pytest.raises(UsageError, match="the rows lack the key column 'id'"):
        events.write([{"id": 1, column: 3}, {column: 8}], times=named, late=late)
    assert events.write([{"id": 1, column: 3, "_diff": 2}, {"id": 2, column: 8}], times=named, late=late).rows == 2
    assert events.write([], times=named or "t", late=late).rows == 0
    assert events.write((), times=named or "t", late=late).rows == 0
    empty = pa.table({"id": pa.array([], pa.int64()), column: pa.array([], pa.null())})
    assert events.write(empty, times=named, late=late).rows == 0


def test_no_rows_are_never_too_late(place):
    store = place.open()
    events = store.create("events", key={"id": "int64"}, timeline="counter")
    events.seal(5)
    assert events.write([], times="t").rows == 0
    with store.transaction() as tx:
        tx.write(events, [], times="t")
    assert tx.replies[0].rows == 0


@pytest.mark.parametrize("late", ["refuse", "move", "drop"])
def test_columns_that_are_no_times_are_refused_whatever_becomes_of_late_rows(place, late):
    events = place.open().create("events", key={"id": "int64"}, timeline="counter")
    stamps = pa.array([1], pa.timestamp("ms", "UTC"))
    with pytest.raises(UsageError, match="_time"):
        events.write(pa.table({"id": [1], "_time": stamps}), late=late)
    twice = pa.Table.from_arrays([pa.array([1])] * 3, ["id", "t", "t"])
    with pytest.raises(UsageError, match="two columns 't'"):
        events.write(twice, times="t", late=late)
    with pytest.raises(UsageError, match="two columns"):
        events.write(pa.Table.from_arrays([pa.array([1])] * 3, ["id", "_time", "_time"]), late=late)


@pytest.mark.parametrize("late", ["move", "drop"])
@pytest.mark.parametrize("before", ["append", "write"])
def test_a_step_that_is_refused_is_refused_at_once_whatever_comes_after_it(place, late, before):
    """Nothing that is begun again would help."""
    store = place.open()
    events = store.create("events", key={"id": "int64"}, timeline="counter")
    events.seal(20)
    tx = store.transaction()
    if before == "append":
        tx.append(events, [{"id": 1}], at=5)
    else:
        tx.write(events, [{"id": 1, "t": 5}], times="t")
    tx.write(events, [{"id": 2, "t": 6}], times="t", late=late)
    with pytest.raises(UsageError, match="rows at 5 come too late"):
        tx.commit()
    assert "commits started again" not in store.metrics()


def test_a_step_that_is_refused_later_is_refused_at_once_too(place):
    place.open().create("events", key={"id": "int64"}, timeline="counter")
    store, events = seals_before_the_commit(place, "events", 20)
    tx = store.transaction()
    tx.write(events, [{"id": 1, "t": 5}], times="t")
    tx.write(events, [{"id": 2, "t": 6}], times="t", late="move")
    with pytest.raises(UsageError, match="rows at 5 come too late"):
        tx.commit()
    assert store.metrics()["commits started again"] == 1


@pytest.mark.parametrize("late", ["move", "drop"])
@pytest.mark.parametrize("how", ["times", "_time", "at"])
def test_late_rows_are_counted_as_they_came(place, late, how):
    """Before equal ones are summed up, as tasks on Spark count theirs."""
    store = place.open()
    events = store.create("events", key={"id": "int64"}, timeline="counter")
    events.seal(5)
    if how == "at":
        done = events.write([{"id": 1}, {"id": 1}, {"id": 1, "_diff": -2}], at=3, late=late)
        assert done.late == 3
        return
    column = "t" if how == "times" else "_time"
    given = [{"id": 1, column: time} for time in (3, 3, -1, -2, 8)]
    assert events.write(given, times="t" if how == "times" else None, late=late).late == 4


def test_runs_that_were_built_at_a_time_never_stand_before_it_though_the_clock_went_back(place):
    store = place.open()
    events = store.create("events", key={"id": "int64"})
    built_at = place.clock.ms
    writer = events.writer()
    with writer.builder(built_at) as builder:
        builder.add(to_update_table([{"id": 1}], events.schema, (built_at,)))
        batch = builder.finish(Frontier.at(built_at + 1))
    place.clock.advance(-60)
    with store.transaction() as tx:
        tx._add(PrebuiltAppendStep(events._handle, written=built_at, rows=1, runs=batch.runs))
    assert tx.time == built_at
    assert events.snapshot(built_at).to_pylist() == [{"id": 1}]
    assert store.metrics()["append rows"] == 1


def prebuilt(events, at):
    """A row that is built already, inline, at a time."""
    writer = events.writer()
    with writer.builder(at) as builder:
        builder.add(to_update_table([{"id": at}], events.schema, (at,)))
        batch = builder.finish(Frontier.at(at + 1))
    assert all(part.inline is not None for part in batch.parts)
    return batch.runs


@pytest.mark.parametrize("expected", [None, Frontier.at(0)])
def test_prebuilt_rows_at_their_times_that_find_no_room_go_to_a_blob(place, expected):
    store = place.open(config=Config(inline_total_bytes=1))
    events = store.create("events", key={"id": "int64"}, timeline="counter")
    handle, runs = events._handle, prebuilt(events, 3)
    commands = CommandStep.of(handle, Seal(Frontier.at(9)))
    step = PrebuiltAppendAtStep(handle, runs, 1, Frontier.at(3), Frontier.at(4), expected, "append", 3)
    done, _ = commit_steps(step, commands)
    assert (done.time, done.upper, done.rows) == (3, Frontier.at(4), 1)
    assert events.upper == Frontier.at(9)
    assert events.snapshot(3).to_pylist() == [{"id": 3}]
    assert handle.state().inline_bytes == 0
    assert len(place.blobs(f"{events.id}/")) == 1


def test_prebuilt_rows_without_times_move_on_though_the_caller_says_how_far_they_complete(place):
    store, other = place.open(), place.open()
    events = store.create("events", key={"id": "int64"}, timeline="counter")
    handle = events._handle
    when = append_time(handle, ["id"], upper=9)
    runs = prebuilt(events, when.at[0])
    other["events"].append([{"id": 7}])  # at the time that the rows were built with
    (done,) = commit_steps(append_runs_step(handle, events.schema, runs, 1, when))
    assert (done.time, done.upper, done.rows) == (when.at[0] + 1, Frontier.at(9), 1)
    assert events.snapshot(when.at[0]).to_pylist() == [{"id": 7}]
    assert events.snapshot().count() == 2


def test_the_last_try_offers_prebuilt_rows_as_blobs(place, monkeypatch):
    """A process that is expired again and again finds the state full in between."""
    store = place.open(config=Config(inline_total_bytes=1))
    events = store.create("events", key={"id": "int64"}, timeline="counter")
    handle, runs = events._handle, prebuilt(events, 3)
    real, left = StepCommit._commit_placed, ["fenced", "as it is", "fenced"]

    def commit_placed(self, *arguments):
        if left and left.pop(0) == "fenced":
            raise Fenced("this writer was expired")
        return real(self, *arguments)

    monkeypatch.setattr(StepCommit, "_commit_placed", commit_placed)
    (done,) = commit_steps(PrebuiltAppendStep(handle, [], floats=True, written=3, rows=1, runs=runs))
    assert (left, done.rows, handle.state().inline_bytes) == ([], 1, 0)


@pytest.mark.parametrize("floats", [True, False])
def test_what_was_put_for_prebuilt_rows_that_are_refused_is_deleted(place, floats):
    script = Script()
    store, other = place.open(config=Config(inline_total_bytes=1), script=script), place.open()
    events = store.create("events", key={"id": "int64"}, timeline="counter")
    handle, runs = events._handle, prebuilt(events, 3)
    # Another process closes the collection after its state was found to be full.
    script.add("put", Fault.NONE, hook=lambda: other["events"].finish())
    if floats:
        step = PrebuiltAppendStep(handle, [], floats=True, written=3, rows=1, runs=runs)
    else:
        step = PrebuiltAppendAtStep(handle, runs, 1, Frontier.at(3), Frontier.at(4), None, "append", 3)
    with pytest.raises(ClosedError):
        commit_steps(step)
    assert place.blobs(f"{events.id}/") == []

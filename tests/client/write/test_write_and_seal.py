"""Write and seal: durable at once, in any order, part of the collection when the time is sealed, and never twice."""

import datetime

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_store import BLOBS, QUICK, Clock, Gate, MemoryStore, Script, counted, in_threads, together

from timespine.client.maintenance import rewrite_unsealed
from timespine.client.write.prepare_unsealed import LATE
from timespine.config import Config
from timespine.core.protocols.maintain import tidy_unsealed
from timespine.errors import ClosedError, NotSealed, SinceError, UsageError
from timespine.location.unreliable import Fault
from timespine.model.frontier import Frontier
from timespine.model.oracle import accumulate

BOTH = pytest.mark.parametrize("config", [QUICK, BLOBS], ids=["inline", "blobs"])


def create(store, name="orders", **options):
    options = {"key": {"k": "int64"}, "value": {"v": "string"}, "timeline": "counter", **options}
    return store.create(name, **options)


def row(k, time=None, v="a", **more):
    return {"k": k, "v": v, **({} if time is None else {"_time": time}), **more}


def rows_at(collection, as_of):
    return counted(collection.snapshot(as_of, multiplicity="column").to_pylist(), "k", "v")


def unsealed(collection, lower=None, upper=None):
    found = collection.unsealed(lower, upper).to_pylist()
    return sorted((each["k"], each["_time"], each["_diff"]) for each in found)


# Writing.


@BOTH
def test_what_was_written_is_durable_at_once_and_part_of_the_collection_when_it_is_sealed(place, config):
    orders = create(place.open(config=config))
    assert orders.write([row(1, 3), row(2, 7)]).number == 0
    assert orders.write([row(3, 1), row(4, 5)]).number == 1, "in any order"
    assert orders.upper == Frontier.at(0)
    with pytest.raises(NotSealed):
        orders.snapshot(1, timeout=0)
    other = place.open()["orders"]
    assert unsealed(other) == [(1, 3, 1), (2, 7, 1), (3, 1, 1), (4, 5, 1)]
    assert orders.seal(5).upper == Frontier.at(5)
    assert rows_at(other, 4) == {(1, "a"): 1, (3, "a"): 1}
    assert rows_at(other, 2) == {(3, "a"): 1}
    assert unsealed(other) == [(2, 7, 1), (4, 5, 1)]


def test_a_write_says_what_it_came_to(place):
    orders = create(place.open())
    written = orders.write([row(1, 3), row(1, 3), row(2, 7), row(3, 5, _diff=0)])
    assert (written.number, written.rows, written.first, written.last, written.late) == (0, 2, 3, 7, 0)
    assert orders.write([row(1)], at=4).last == 4
    assert orders.write([row(1, 3, _diff=-1)]).rows == 1
    assert unsealed(orders) == [(1, 3, 1), (1, 4, 1), (2, 7, 1)]


def test_minimum_and_maximum_time_of_a_write_are_known_whatever_the_order_of_its_rows(place):
    orders = create(place.open())
    orders.write([row(1, 3), row(2, 2)])
    (batch,) = orders._handle.state().unsealed
    assert (batch.lower, batch.max) == (Frontier.at(2), (3,))


def test_writes_of_all_writers_are_numbered_without_gaps(place):
    stores = [place.open() for _ in range(3)]
    create(stores[0])
    in_threads(*(lambda store=store: [store["orders"].write([row(1, 9)]) for _ in range(5)] for store in stores))
    assert [batch.seqno for batch in stores[0]["orders"]._handle.state().unsealed] == list(range(15))


def test_empty_writes_touch_no_storage(place):
    script = Script()
    orders = create(place.open(script=script))
    orders.write([row(1, 3)])
    before = dict(script.calls)
    assert orders.write([], at=4).number is None
    assert orders.write([], times="when").number is None
    assert orders.write(pa.table({"k": pa.array([], pa.int64()), "_time": pa.array([], pa.int64())})).rows == 0
    assert dict(script.calls) == before


def test_rows_need_times(place):
    orders = create(place.open())
    with pytest.raises(UsageError, match="do not say at which times"):
        orders.write([row(1)])
    with pytest.raises(UsageError, match="either"):
        orders.write([row(1)], at=1, times="k")
    with pytest.raises(UsageError, match="late is one of"):
        orders.write([row(1, 1)], late="perhaps")


def test_a_write_below_the_upper_is_refused_and_at_the_upper_taken(place):
    orders = create(place.open())
    orders.append([row(1)], at=1)
    with pytest.raises(UsageError, match="too late"):
        orders.write([row(2, 1), row(3, 5)])
    assert unsealed(orders) == []
    assert orders.write([row(2, 2)]).number == 0


def test_a_write_that_is_late_since_another_process_sealed_is_refused(place):
    orders, other = create(place.open()), place.open()["orders"]
    assert orders.upper == Frontier.at(0)
    other.seal(5)
    with pytest.raises(UsageError, match="below the upper"):
        orders.write([row(2, 3)])
    assert orders.write([row(2, 3), row(3, 9)], late="drop").late == 1
    assert unsealed(orders) == [(3, 9, 1)]


@pytest.mark.parametrize("late", LATE)
def test_what_is_too_late_is_refused_dropped_or_moved(place, late):
    orders, other = create(place.open()), place.open()["orders"]
    other.seal(5)
    given = [row(1, 2), row(2, 4), row(2, 5), row(3, 8)]
    if late == "refuse":
        with pytest.raises(UsageError):
            orders.write(given, late=late)
        return
    written = orders.write(given, late=late)
    assert written.late == 2
    expected = {"drop": [(2, 5, 1), (3, 8, 1)], "move": [(1, 5, 1), (2, 5, 2), (3, 8, 1)]}
    assert unsealed(orders) == expected[late]


def test_what_all_came_too_late_is_no_write(place):
    orders = create(place.open())
    orders.seal(5)
    assert orders.write([row(1, 2)], late="drop") == orders.write([row(1, 3)], late="drop")
    assert orders._handle.state().unsealed_next == 0


def test_a_closed_collection_takes_no_writes(place):
    orders = create(place.open())
    orders.write([row(1, 3)])
    orders.finish()
    with pytest.raises(ClosedError):
        orders.write([row(1, 9)])
    assert rows_at(orders, 3) == {(1, "a"): 1}


def test_several_coordinates(place):
    orders = create(place.open(), time_coordinates=2)
    orders.write([{"k": 1, "v": "a", "_time_0": 1, "_time_1": 0}, {"k": 2, "v": "a", "_time_0": 0, "_time_1": 1}])
    orders.seal((2, 2))
    assert rows_at(orders, (1, 1)) == {(1, "a"): 1, (2, "a"): 1}
    with pytest.raises(UsageError, match="several coordinates"):
        orders.write([{"k": 1, "v": "a", "_time_0": 1, "_time_1": 1}], late="move")
    with pytest.raises(UsageError, match="one column"):
        orders.write([row(1)], times="k")


# Times in a column.


def moment(day):
    return datetime.datetime(2026, 1, day, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([moment(2), moment(1)], pa.timestamp("us", "UTC")),
        pa.array([moment(2), moment(1)], pa.timestamp("ns", "Europe/Berlin")),
        pa.array([moment(2).date(), moment(1).date()]),
        pa.array([1767312000000, 1767225600000]),
    ],
    ids=["microseconds", "a zone", "dates", "milliseconds"],
)
def test_times_come_from_a_column(place, column):
    clicks = create(place.open(), timeline="clock")
    written = clicks.write(pa.table({"k": [2, 1], "at": column}), times="at")
    assert (written.first, written.last) == (1767225600000, 1767312000000)
    clicks.seal(moment(2))
    assert [each["k"] for each in clicks.snapshot().to_pylist()] == [1]


def test_a_column_of_times_may_be_one_of_the_collection(place):
    clicks = create(place.open(), value={"at": "timestamp[us, tz=UTC]"})
    clicks.write([{"k": 1, "at": moment(1)}], times="at")
    clicks.seal(int(moment(2).timestamp() * 1000))
    assert clicks.snapshot().to_pylist()[0]["at"] == moment(1)
    clicks.write(pl.DataFrame({"k": [3], "at": [moment(5)]}), times="at")
    assert unsealed(clicks) == [(3, 1767571200000, 1)]


@pytest.mark.parametrize(
    ("table", "why"),
    [
        (pa.table({"k": [1], "at": pa.array([None], pa.int64())}), "nulls"),
        (pa.table({"k": [1], "at": pa.array([moment(1)], pa.timestamp("us"))}), "no zone"),
        (pa.table({"k": [1], "at": ["noon"]}), "string"),
        (pa.table({"k": [1], "at": [-1]}), "below zero"),
        (pa.table({"k": [1]}), "no column"),
        (pa.table({"k": [1], "at": [1], "_time": [1]}), "times of their own"),
    ],
)
def test_a_column_that_has_no_times_is_refused(place, table, why):
    orders = create(place.open())
    with pytest.raises(UsageError, match=why):
        orders.write(table, times="at")


# Sealing.


def test_a_seal_never_goes_back_and_the_same_again_is_fine(place):
    script = Script()
    orders = create(place.open(script=script))
    assert orders.seal(11).upper == Frontier.at(11)
    before = script.calls["compare_and_set"]
    assert orders.seal(11).upper == Frontier.at(11)
    assert script.calls["compare_and_set"] == before
    with pytest.raises(UsageError, match="sealed up to"):
        orders.seal(10)
    assert orders.upper == Frontier.at(11)


def test_a_closed_or_dropped_collection_cannot_be_sealed_and_is_called_by_its_name(place):
    store = place.open()
    orders = create(store)
    orders.seal(5)
    with pytest.raises(UsageError, match="cannot seal orders at"):
        orders.seal(3)
    store.drop("orders")
    with pytest.raises(ClosedError, match="orders"):
        orders.seal(9)


# Reading what is not sealed.


@pytest.mark.parametrize(
    ("lower", "upper", "expected"),
    [
        (None, None, [3, 5]),
        (0, 6, [3, 5]),
        (0, 2, []),
        (6, None, []),
        (6, 8, []),
        (3, 3, []),
        (3, 6, [3, 5]),
        (3, 4, [3]),
        (4, 5, []),
        (5, 6, [5]),
    ],
)
def test_unsealed_updates_are_read_by_a_range_of_times(place, lower, upper, expected):
    orders = create(place.open())
    orders.write([row(1, 3), row(1, 5)])
    assert [time for _, time, _ in unsealed(orders, lower, upper)] == expected


def test_a_range_that_ends_before_it_begins_is_refused(place):
    orders = create(place.open())
    with pytest.raises(UsageError, match="must not be before"):
        orders.unsealed(4, 3)
    assert orders._handle.context.leases.idle(orders.id), "and holds nothing"


def test_unsealed_updates_can_be_restricted_to_some_columns_and_rows(place):
    orders = create(place.open())
    orders.write([row(1, 3, "x"), row(2, 5, "y")])
    found = orders.unsealed(columns=["v"], where="k = 2").to_pylist()
    assert found == [{"v": "y", "_time": 5, "_diff": 1}]


# Both ways to write, on one collection.


def test_an_append_takes_up_what_was_written_in_its_range(place):
    orders = create(place.open())
    orders.write([row(1, 2), row(2, 9)])
    orders.append([row(3)], at=5)
    assert rows_at(orders, 5) == {(1, "a"): 1, (3, "a"): 1}
    assert unsealed(orders) == [(2, 9, 1)]


def test_an_upsert_counts_what_was_written_and_will_be_sealed_by_it(place):
    orders = create(place.open(), timeline="clock")
    soon = place.clock.ms - 5
    orders.write([row(1, soon, "old"), row(2, soon, "kept")])
    orders.upsert([row(1, v="new")])
    assert rows_at(orders, place.clock.ms) == {(1, "new"): 1, (2, "kept"): 1}
    orders.write([row(3, place.clock.ms + 1, "late")])
    place.clock.advance(1)
    orders.delete({"k": 3})
    assert rows_at(orders, place.clock.ms) == {(1, "new"): 1, (2, "kept"): 1}


def test_a_change_counts_what_was_written_meanwhile_that_it_would_seal(place):
    script = Script()
    orders, other = create(place.open(script=script), timeline="clock"), place.open()["orders"]
    orders.upsert([row(1, v="first")])
    place.clock.advance(1)
    late = row(1, place.clock.ms - 3, "written meanwhile")
    script.add(
        "compare_and_set", Fault.NONE, hook=lambda: other.write([late, row(1, late["_time"], "first", _diff=-1)])
    )
    orders.upsert([row(1, v="new")])
    assert script.is_done
    assert rows_at(orders, place.clock.ms) == {(1, "new"): 1}
    counters = orders._handle.committer.counters
    assert (counters["changes read"], counters["changes placed again"], counters["changes patched"]) == (2, 1, 1)


@BOTH
def test_a_snapshot_is_the_same_before_during_and_after_every_step(place, config):
    store = place.open(config=config)
    orders = create(store)
    orders.write([row(1, 0), row(2, 1), row(1, 2, _diff=-1), row(3, 4)])
    orders.write([row(4, 1), row(5, 6)])
    orders.seal(3)
    expected = {as_of: rows_at(orders, as_of) for as_of in range(3)}
    assert expected[2] == {(2, "a"): 1, (4, "a"): 1}
    for _ in range(3):
        store.maintain()
        assert {as_of: rows_at(orders, as_of) for as_of in range(3)} == expected
        assert unsealed(orders) == [(3, 4, 1), (5, 6, 1)]
    assert orders._handle.state().trace.upper == Frontier.at(3)
    orders.compact(wait=True)
    assert {as_of: rows_at(orders, as_of) for as_of in range(3)} == expected
    orders.seal(7)
    store.maintain()
    assert not len(orders._handle.state().unsealed)
    assert rows_at(orders, 6) == {(2, "a"): 1, (3, "a"): 1, (4, "a"): 1, (5, "a"): 1}


def test_times_are_advanced_on_read_even_if_since_was_moved_beyond_the_seal(place):
    store = place.open()
    orders = create(store)
    orders.append([row(1)], at=0)
    orders.append([row(2)], at=1)
    orders.write([row(3, 10), row(4, 11)])
    orders.seal(10)
    assert orders.expire(before=30).since == Frontier.at(9), "the newest complete time stays readable"
    assert orders.expire(before=30, ahead=True).since == Frontier.at(30)
    assert unsealed(orders) == [(3, 30, 1), (4, 30, 1)]
    with pytest.raises(SinceError):
        orders.snapshot(9)
    orders.seal(40)
    assert rows_at(orders, 30) == {(k, "a"): 1 for k in (1, 2, 3, 4)}
    times = {each["_time"] for each in orders.updates().to_pylist()}
    assert times == {30}
    store.maintain()
    assert rows_at(orders, 30) == {(k, "a"): 1 for k in (1, 2, 3, 4)}


def test_since_in_the_middle_is_right_before_anything_was_rewritten(place):
    orders = create(place.open())
    orders.write([row(1, 1), row(1, 10, _diff=-1), row(2, 2)])
    orders.seal(4)
    orders.expire(before=3)
    found = sorted((each["k"], each["_time"], each["_diff"]) for each in orders.updates().to_pylist())
    assert found == [(1, 3, 1), (2, 3, 1)]
    assert unsealed(orders) == [(1, 10, -1)]


# Bytes.


def many(collection, times):
    """A write large enough to be worth rewriting: noise, at these times."""
    noise = np.random.default_rng(7).integers(0, 1 << 60, size=(len(times) * 600, 2))
    table = pa.table(
        {"k": noise[:, 0], "v": [str(each) for each in noise[:, 1]], "_time": np.repeat(np.array(times), 600)}
    )
    collection.write(table)
    return table.num_rows


def test_bytes_of_a_partly_drained_batch_are_given_back_once_that_pays(place):
    store = place.open(config=Config(retry_pause_ms=1, rollup_seqnos=4))
    orders = create(store)
    written = many(orders, range(20))
    (batch,) = orders._handle.state().unsealed
    assert rewrite_unsealed.worth_rewriting(orders._handle.state()) is None, "nothing of it is drained"
    orders.seal(5)
    store.maintain()
    orders.compact(wait=True)
    assert rewrite_unsealed.worth_rewriting(orders._handle.state()) is None, "a quarter"
    orders.seal(15)
    store.maintain()
    orders.compact(wait=True)
    place.clock.advance(100)
    store.maintain()
    (trimmed,) = orders._handle.state().unsealed
    assert trimmed.seqno == batch.seqno
    assert sum(part.rows for part in trimmed.parts) == written // 4
    assert store._upkeep.counters["unsealed batches rewritten"] == 1
    assert orders.count(14) == written * 3 // 4
    assert orders.unsealed().count() == written // 4
    old = {part.key for part in batch.parts}
    assert old.isdisjoint(place.blobs(f"{orders.id}/")), "nobody refers to them any more"
    orders.seal(20)
    store.maintain()
    assert orders.count() == written


def test_a_batch_that_the_trace_refers_to_is_not_rewritten(place):
    store = place.open()
    orders = create(store)
    many(orders, range(8))
    orders.seal(6)
    store._upkeep.run(orders.id, lambda session: tidy_unsealed(session, orders.id))
    assert rewrite_unsealed.worth_rewriting(orders._handle.state()) is None
    orders.compact(wait=True)
    assert rewrite_unsealed.worth_rewriting(orders._handle.state()) == 0


# Groups.


def test_writes_seals_and_appends_that_wait_are_committed_together_and_in_order(place):
    gate = Gate(place.consensus)
    store = place.open(consensus=gate)
    orders = create(store)
    orders.append([row(0)], at=0)
    gate.sets.clear()
    results = together(
        gate,
        store,
        [
            lambda: orders.write([row(1, 5)]),
            lambda: orders.write([row(2, 3)]),
            lambda: orders.seal(4),
            lambda: orders.write([row(3, 2)]),
            lambda: orders.write([row(4, 4)]),
            lambda: orders.expire(before=2),
        ],
    )
    first, second, sealed, refused, last, _ = results
    assert (first.number, second.number, last.number) == (0, 1, 2)
    assert sealed.upper == Frontier.at(4)
    assert {first.seqno, second.seqno, last.seqno, sealed.seqno} == {first.seqno, first.seqno + 1}, "two commits"
    assert isinstance(refused, UsageError), "by its own error, and it disturbs nobody"
    assert len(gate.sets) == 2
    assert rows_at(orders, 3) == {(0, "a"): 1, (2, "a"): 1}


# Everything at once, against the oracle.

STEPS = st.one_of(
    st.tuples(st.just("write"), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6), st.sampled_from([1, 1, -1])))),
    st.tuples(st.just("seal"), st.integers(0, 3)),
    st.tuples(st.just("append"), st.lists(st.integers(0, 3))),
    st.tuples(st.just("expire"), st.integers(0, 8)),
    st.tuples(st.just("maintain"), st.none()),
    st.tuples(st.just("compact"), st.none()),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(STEPS, max_size=14), st.sampled_from([QUICK, BLOBS]))
def test_any_history_of_writes_seals_and_appends_agrees_with_the_oracle(steps, config):
    with MemoryStore() as place:
        store = place.open(config=config, clock=Clock())
        orders, upper = create(store), 0
        written = []
        for kind, given_ in steps:
            if kind == "write":
                rows = [(k, upper + ahead, diff) for k, ahead, diff in given_]
                if rows:
                    orders.write([row(k, time, _diff=diff) for k, time, diff in rows])
                written.extend(rows)
            elif kind == "seal":
                upper += given_
                orders.seal(upper)
            elif kind == "append":
                orders.append([row(k) for k in given_], at=upper)
                written.extend((k, upper, 1) for k in given_)
                upper += 1
            elif kind == "expire":
                orders.expire(before=given_)
            elif kind == "maintain":
                store.maintain()
            else:
                orders.compact(wait=True)
        updates = [(k, (time,), diff) for k, time, diff in written]
        since = orders.since.elements[0][0]
        for as_of in range(since, upper):
            expected = {(k, "a"): count for k, count in accumulate(updates, (as_of,)).items()}
            assert rows_at(orders, as_of) == expected
        ahead = {}
        for k, time, diff in written:
            if time >= upper:
                ahead[k, max(time, since)] = ahead.get((k, max(time, since)), 0) + diff
        assert unsealed(orders) == sorted((k, time, diff) for (k, time), diff in ahead.items() if diff)

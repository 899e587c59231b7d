"""Writes ahead of the seal beside appends: on one collection, in one group, and against the oracle."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from key_value_cases import create, rows_at
from memory_store import BLOBS, QUICK, Clock, Gate, MemoryStore, Script, together
from unsealed_cases import BOTH, row, unsealed

from timespine.client.maintenance import rewrite_unsealed_policy
from timespine.config import Config
from timespine.core.protocols.maintain import tidy_unsealed
from timespine.errors import SinceError, UsageError
from timespine.model.frontier import Frontier
from timespine.model.oracle import accumulate
from timespine.testing.unreliable import Fault

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
    assert rewrite_unsealed_policy.worth_rewriting(orders._handle.state()) is None, "nothing of it is drained"
    orders.seal(5)
    store.maintain()
    orders.compact(wait=True)
    assert rewrite_unsealed_policy.worth_rewriting(orders._handle.state()) is None, "a quarter"
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
    assert rewrite_unsealed_policy.worth_rewriting(orders._handle.state()) is None
    orders.compact(wait=True)
    assert rewrite_unsealed_policy.worth_rewriting(orders._handle.state()) == 0


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

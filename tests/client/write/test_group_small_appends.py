"""Small appends that wait for each other: one batch, and nobody can tell."""

import contextlib
import datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from memory_store import BLOBS, QUICK, Gate, Script, in_threads, together
from numbered_rows import rows_of

from timespine.client.commit.retry_limits import RETRY
from timespine.client.write import group_small_appends
from timespine.client.write.small_appends import group_append_step
from timespine.core.transitions import AdvanceUpper
from timespine.errors import ClosedError, Indeterminate, InvalidRows, UsageError
from timespine.model.frontier import CLOSED, Frontier
from timespine.testing.unreliable import Fault


@pytest.fixture
def gate(place):
    return Gate(place.consensus)


def opened(place, gate, **options):
    store = place.open(consensus=gate, **options)
    value = {"text": "string", "number": "double", "whole": "int64"}
    collection = store.create("items", key={"n": "int64"}, value=value, timeline="counter")
    collection.append([{"n": 0}])
    return store, collection


def hollow_count(collection):
    return collection._handle.state().trace.hollow_count


@pytest.mark.parametrize("config", [QUICK, BLOBS], ids=["inline", "blobs"])
def test_appends_that_wait_become_one_batch_with_a_time_for_each(place, gate, config):
    store, collection = opened(place, gate, config=config)
    before = hollow_count(collection)
    done = together(gate, store, [lambda n=n: collection.append([{"n": n}]) for n in range(1, 9)])
    assert [each.time for each in done] == list(range(1, 9))
    assert [each.upper for each in done] == [Frontier.at(time + 1) for time in range(1, 9)]
    assert [each.rows for each in done] == [1] * 8
    assert hollow_count(collection) == before + 2
    for time in range(9):
        assert [row["n"] for row in collection.snapshot(as_of=time).to_pylist()] == list(range(time + 1))
    assert rows_of(place.open()["items"]) == list(range(9))


def test_on_the_wall_clock_they_stand_at_one_time_and_do_not_run_ahead_of_it(place, gate):
    store = place.open(consensus=gate)
    collection = store.create("clicks", key={"n": "int64"})
    collection.append([{"n": 0}])
    place.clock.advance(1)
    given = [[{"n": n}, {"n": n}, {"n": 100}] for n in range(1, 9)]
    done = together(gate, store, [lambda rows=rows: collection.append(rows) for rows in given])
    first, *rest = done
    assert first.time == place.clock.ms
    assert {each.time for each in rest} == {place.clock.ms + 1}, "one for those that waited together"
    assert {each.upper for each in rest} == {collection.upper}
    assert [each.rows for each in done] == [2] * 8
    found = collection.snapshot(multiplicity="column").to_pylist()
    assert {row["n"]: row["_diff"] for row in found} == {0: 1, 100: 8, **dict.fromkeys(range(1, 9), 2)}


def test_rows_of_different_kinds_wait_together_and_each_is_read_as_it_would_be_alone(place, gate):
    store, collection = opened(place, gate)
    # As a float, the large integer would be another one, or refused.
    given = [
        [{"n": 1, "whole": 2**53 + 1}],
        [{"n": 2, "whole": 2.0}, {"n": 3, "whole": 3.0}],
        pa.table({"n": [4], "number": [0.5]}),
        [{"n": 5, "text": None, "number": 7}],
        [{"number": 1.5, "n": 6}],
        pa.table({"n": pa.array([7], pa.int8())}),
    ]
    done = together(gate, store, [lambda rows=rows: collection.append(rows) for rows in given])
    assert [each.time for each in done] == list(range(1, 7))
    assert [each.rows for each in done] == [1, 2, 1, 1, 1, 1]
    found = {row["n"]: (row["whole"], row["number"]) for row in collection.snapshot().to_pylist()}
    assert found == {
        0: (None, None),
        1: (2**53 + 1, None),
        2: (2, None),
        3: (3, None),
        4: (None, 0.5),
        5: (None, 7.0),
        6: (None, 1.5),
        7: (None, None),
    }


def test_rows_that_do_not_fit_are_refused_alone_and_the_others_are_in(place, gate):
    store, collection = opened(place, gate)
    given = [
        [{"n": 1}],
        [{"n": 2}],
        [{"n": "three"}],
        [{"n": 2**70}],
        [{"text": "no key"}],
        [{"n": 6, "unknown": 1}],
        pa.table({"n": ["seven"]}),
        [{"n": 8}],
    ]
    done = together(gate, store, [lambda rows=rows: collection.append(rows) for rows in given])
    assert [type(each) is InvalidRows for each in done] == [False, False, True, True, True, True, True, False]
    assert [done[place].time for place in (0, 1, 7)] == [1, 2, 3]
    assert "three" not in str(done[2])
    assert rows_of(collection) == [0, 1, 2, 8]


def test_equal_rows_of_one_append_count_once_and_those_of_two_do_not_touch(place, gate):
    store, collection = opened(place, gate)
    given = [
        [{"n": 9}],
        [{"n": 1}, {"n": 1}],
        [{"n": 1}],
        [{"n": 2, "_diff": 1}, {"n": 2, "_diff": -1}],
        [{"n": 9, "_diff": -1}],
    ]
    done = together(gate, store, [lambda rows=rows: collection.append(rows) for rows in given])
    assert [each.time for each in done] == [1, 2, 3, 4, 5]
    assert [each.rows for each in done] == [1, 1, 1, 0, 1]
    assert rows_of(collection) == [0, 1, 1, 1]
    assert collection.snapshot(as_of=4).count() == 5


@pytest.mark.parametrize(
    "rows",
    [
        [{"n": 1, "_time": 5}],
        [{"n": Decimal(1)}],
        [{"n": 1, "text": ["a"]}],
        [{"n": 1, "text": datetime.datetime(2020, 1, 1)}],
        [{"n": 1}, {"n": 2, "text": "a"}],
        ({"n": 1},),
        [],
        [{"n": n} for n in range(group_small_appends.ROWS_MAX + 1)],
        pa.table({"n": range(group_small_appends.ROWS_MAX + 1)}),
        {"n": [1]},
    ],
    ids=str,
)
def test_an_append_with_options_or_of_many_or_nested_rows_is_not_batched(place, gate, rows, monkeypatch):
    _, collection = opened(place, gate)
    monkeypatch.setattr(group_small_appends.PendingAppend, "stages", lambda *_: pytest.fail("it waits"))
    with contextlib.suppress(UsageError):
        collection.append(rows)


@pytest.mark.parametrize("config", [QUICK, BLOBS], ids=["inline", "blobs"])
@pytest.mark.parametrize("lost", [1, RETRY.group_starts])
def test_a_group_that_another_process_outruns_stands_at_later_times(place, gate, monkeypatch, config, lost):
    store, collection = opened(place, gate, config=config)
    other = place.open()["items"]
    consolidate, first = group_append_step.consolidate, []

    def outrun(table, order):
        """Between the look at the free times and the commit."""
        if len(first) < lost:
            first.append(other.append([{"n": 100}]).time)
        return consolidate(table, order)

    monkeypatch.setattr(group_append_step, "consolidate", outrun)
    given = [[{"n": 1}], [{"n": 2}, {"n": 2}], [{"n": 3}], [{"n": "bad"}]]
    *done, bad = together(gate, store, [lambda rows=rows: collection.append(rows) for rows in given])
    assert first == list(range(2, 2 + lost))
    assert [each.time for each in done] == [1, 2 + lost, 3 + lost]
    assert [each.upper for each in done] == [Frontier.at(each.time + 1) for each in done]
    assert [each.rows for each in done] == [1, 1, 1]
    assert isinstance(bad, UsageError)
    assert rows_of(other) == [0, 1, 2, 2, 3] + [100] * lost
    assert place.open().vacuum().blobs == []


def test_a_column_that_another_process_added_is_found_by_those_who_need_it(place, gate):
    store, collection = opened(place, gate)
    place.open()["items"].evolve(add={"more": "int64"})
    given = [[{"n": 1}], [{"n": 2, "more": 5}], [{"n": 3}], [{"n": 4}]]
    done = together(gate, store, [lambda rows=rows: collection.append(rows) for rows in given])
    assert sorted(each.time for each in done) == [1, 2, 3, 4]
    assert {row["n"]: row["more"] for row in collection.snapshot().to_pylist()}[2] == 5


def test_all_of_a_group_are_told_that_the_collection_is_closed(place, gate):
    store, collection = opened(place, gate)
    appends = [lambda n=n: collection.append([{"n": n}]) for n in range(1, 4)]
    close = lambda: store._committer.commit((collection.id, AdvanceUpper(CLOSED)))  # noqa: E731
    _, *done = together(gate, store, [close, *appends])
    assert [type(each) for each in done] == [ClosedError] * 3
    assert rows_of(collection) == [0]


def test_all_of_a_group_in_doubt_are_told_so_and_none_is_in_twice(place, gate):
    script = Script()
    store, collection = opened(place, gate, script=script)
    script.add("compare_and_set", Fault.INDETERMINATE_DONE, key=collection.id, times=99, skip=1)
    done = together(gate, store, [lambda n=n: collection.append([{"n": n}]) for n in range(1, 4)])
    assert done[0].time == 1
    assert [type(each) for each in done[1:]] == [Indeterminate] * 2
    script.rules.clear()
    collection.append([{"n": 9}])
    assert rows_of(place.open()["items"]) == [0, 1, 2, 3, 9]


def test_many_threads_and_two_processes_append_every_row_once(place):
    stores = [place.open(), place.open()]
    first = stores[0].create("items", key={"n": "int64"}, timeline="counter")
    collections = [first, stores[1]["items"]]
    times = []

    def work(thread):
        for each in range(10):
            times.append(collections[thread % 2].append([{"n": 100 * thread + each}]).time)

    in_threads(*(lambda thread=thread: work(thread) for thread in range(8)))
    assert sorted(times) == list(range(80))
    assert rows_of(first) == sorted(100 * thread + each for thread in range(8) for each in range(10))

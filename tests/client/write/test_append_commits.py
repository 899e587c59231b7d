"""How appended rows become durable: several coordinates, inline or as blobs, failures, schemas, and a model."""

from collections import Counter

import pytest
from append_cases import ROWS
from hypothesis import given, settings
from hypothesis import strategies as st
from key_value_cases import create, now, parts_of
from memory_store import BLOBS, QUICK, MemoryStore, Script, counted

from timespine.config import Config
from timespine.core.protocols.garbage import collect_garbage
from timespine.core.protocols.maintain import expire_lapsed_leases, roll_up
from timespine.errors import Determinate, Fenced, Indeterminate, UsageError
from timespine.model.frontier import Frontier
from timespine.testing.unreliable import Fault

PARTS = Config(
    part_bytes=2000, row_group_rows=16, inline_part_bytes=1, run_parts=2, retry_pause_ms=1, storage_attempts=3
)
"""A few rows are many parts, and those are listed in hollow runs."""


# Several coordinates.


def test_with_several_coordinates_times_and_upper_must_be_said(place):
    plane = create(place.open(), time_coordinates=2)
    for wrong in (
        lambda: plane.append(ROWS),
        lambda: plane.append(ROWS, at=3),
        lambda: plane.append(ROWS, at=(3, 4)),
        lambda: plane.append([{"k": 1, "_time": 3}], upper=(5, 5)),
        lambda: plane.append([{"k": 1, "_time_0": 3}], upper=(5, 5)),
        lambda: plane.append(ROWS, at=(6, 6), upper=(5, 5)),
        lambda: plane.append(ROWS, at=(3, 4), upper=5),
    ):
        with pytest.raises(UsageError):
            wrong()
    assert plane.upper == Frontier.minimum(2)
    done = plane.append(ROWS, at=(3, 4), upper=(4, 4))
    assert (done.time, done.upper) == ((3, 4), Frontier(((4, 4),)))
    assert plane.count((3, 9)) == 3
    assert plane.count((3, 3)) == 0


def test_rows_at_times_that_cannot_be_compared_are_late_only_if_one_of_them_is(place):
    plane = create(place.open(), time_coordinates=2)
    plane.writer().seal(Frontier(((0, 3), (3, 0))))
    rows = [{"k": 1, "_time_0": 0, "_time_1": 5}, {"k": 2, "_time_0": 5, "_time_1": 0}]
    with pytest.raises(UsageError, match="too late"):
        plane.append([*rows, {"k": 3, "_time_0": 2, "_time_1": 2}], upper=(6, 6))
    done = plane.append(rows, upper=(6, 6))
    assert (done.time, done.rows) == (None, 2)
    assert plane.count((5, 5)) == 2
    assert plane.count((0, 5)) == 1


@settings(max_examples=60, deadline=None)
@given(
    times=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=12),
    upper=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=3),
)
def test_lateness_of_partially_ordered_times_is_that_of_the_definition(times, upper):
    with MemoryStore() as place:
        plane = create(place.open(), time_coordinates=2)
        frontier = Frontier(tuple(upper))
        plane.writer().seal(frontier)
        rows = [{"k": n, "_time_0": first, "_time_1": second} for n, (first, second) in enumerate(times)]
        if all(frontier.less_equal(time) for time in times):
            assert plane.append(rows, upper=(7, 7)).rows == len(rows)
            assert plane.count((6, 6)) == len(rows)
        else:
            with pytest.raises(UsageError, match="too late"):
                plane.append(rows, upper=(7, 7))


def test_very_many_times_that_cannot_be_compared_are_fine(place):
    plane = create(place.open(), time_coordinates=2)
    rows = [{"k": n, "_time_0": n, "_time_1": 300 - n} for n in range(300)]
    assert plane.append(rows, upper=(400, 400)).rows == 300
    assert plane.count((399, 399)) == 300


# Inline or blob.


def test_tiny_appends_live_in_the_state_and_larger_ones_in_blobs(place):
    orders = create(place.open())
    orders.append(ROWS)
    assert parts_of(place, orders) == []
    assert orders._handle.state().inline_bytes > 0
    orders.append([{"k": n, "v": f"{n * 7919:x}" * 20} for n in range(1000)])
    assert len(parts_of(place, orders)) == 1
    assert orders.count() == 1003


def test_when_the_state_is_full_rows_go_to_blobs(place):
    one = create(place.open(), "one")
    one.append([{"k": 0, "v": "x"}])
    size = one._handle.state().inline_bytes
    config = Config(inline_total_bytes=3 * size + size // 2, retry_pause_ms=1)
    orders = create(place.open(config=config))
    for n in range(6):
        orders.append([{"k": n, "v": "x"}])
    assert 2 * size < orders._handle.state().inline_bytes <= config.inline_total_bytes
    assert len(parts_of(place, orders)) == 3
    assert orders.count() == 6


def test_when_others_filled_the_state_unnoticed_rows_go_to_blobs(place):
    one = create(place.open(), "one")
    one.append([{"k": 0, "v": "x"}])
    size = one._handle.state().inline_bytes
    config = Config(inline_total_bytes=size + size // 2, retry_pause_ms=1)
    store, other = place.open(config=config), place.open(config=config)
    for way in ({}, {"at": 7}):
        orders = create(store, replace=True)
        orders._handle.state()
        other["orders"].append([{"k": 1, "v": "x"}])
        assert orders._handle.known().inline_bytes == 0
        orders.append([{"k": 2, "v": "y"}], **way)
        assert now(orders) == {(1, "x"): 1, (2, "y"): 1}
        assert 0 < orders._handle.state().inline_bytes <= config.inline_total_bytes
        assert len(parts_of(place, orders)) == 1
    orders = create(store, replace=True)
    orders._handle.state()
    other["orders"].append([{"k": 1, "v": "x"}])
    orders.upsert([{"k": 1, "v": "z"}])
    assert now(orders) == {(1, "z"): 1}


def test_a_row_larger_than_a_part_and_more_rows_than_a_run_lists_are_fine(place):
    orders = create(place.open(config=PARTS))
    orders.append([{"k": n, "v": ("long" if n % 7 else "row " * 4000)} for n in range(400)])
    assert len(parts_of(place, orders)) > 10
    assert any(part.hollow for part in orders._handle.state().parts())
    assert orders.count() == 400
    assert sum(count for (_, v), count in now(orders).items() if len(v) > 100) == 58
    orders.append([{"k": 1000, "v": "x" * 3_000_000}])
    assert len(orders.lookup({"k": 1000}).to_pylist()[0]["v"]) == 3_000_000


# Failures on the way.


def test_what_was_put_before_a_put_failed_for_good_is_deleted(place):
    script = Script()
    orders = create(place.open(script=script, config=PARTS))
    script.add("put", Fault.DETERMINATE, skip=3, times=99)
    with pytest.raises(Determinate):
        orders.append([{"k": n, "v": "value" * 20} for n in range(400)])
    assert parts_of(place, orders) == []
    script.rules.clear()
    orders.append([{"k": n, "v": "value" * 20} for n in range(400)])
    assert orders.count() == 400


def test_what_was_put_before_the_list_of_parts_failed_for_good_is_deleted(place):
    script = Script()
    orders = create(place.open(script=script, config=PARTS))
    script.add("put", Fault.INDETERMINATE_DONE, key="/h", times=99)
    with pytest.raises(Indeterminate):
        orders.append([{"k": n, "v": "value" * 20} for n in range(400)])
    assert parts_of(place, orders) == []


@pytest.mark.parametrize("fault", [Fault.DETERMINATE, Fault.INDETERMINATE_DONE, Fault.INDETERMINATE_NOT])
@pytest.mark.parametrize("kind", ["/p", "/h"])
def test_a_put_that_failed_once_is_repeated(place, fault, kind):
    script = Script()
    orders = create(place.open(script=script, config=PARTS))
    script.add("put", fault, key=kind)
    orders.append([{"k": n, "v": "value" * 20} for n in range(400)])
    assert script.is_done
    assert orders.count() == 400


@pytest.mark.parametrize("fault", [Fault.INDETERMINATE_DONE, Fault.INDETERMINATE_NOT, Fault.LATE])
def test_what_may_be_committed_is_never_deleted(place, fault):
    script = Script()
    store = place.open(script=script, config=PARTS)
    orders = create(store)
    orders.append(ROWS)
    before = parts_of(place, orders)
    script.add("compare_and_set", fault, key=orders.id)
    script.add("compare_and_set", Fault.INDETERMINATE_NOT, key=orders.id, times=3)
    with pytest.raises(Indeterminate):
        orders.append([{"k": 1000 + n, "v": "value" * 20} for n in range(100)])
    assert len(parts_of(place, orders)) > len(before)
    script.rules.clear()
    store.ghosts()
    # Whether it is in or not, every state can be read to the last row.
    assert place.open()["orders"].count() in (3, 103)
    orders.append([{"k": 1, "v": "next"}])
    assert now(place.open()["orders"])[1, "next"] == 1
    assert place.open()["orders"].count() in (4, 104)


def test_what_may_be_committed_and_was_not_is_swept_when_its_writer_is_gone(place):
    script = Script()
    store, other = place.open(script=script, config=BLOBS), place.open(config=BLOBS)
    orders = create(store)
    orders.append(ROWS)
    script.add("compare_and_set", Fault.INDETERMINATE_NOT, key=orders.id, times=99)
    with pytest.raises(Indeterminate):
        orders.append([{"k": 5, "v": "x"}])
    assert len(parts_of(place, orders)) == 2
    store.close()  # as if it had crashed: it cannot give up its ids
    assert other.maintain(sweep=True).swept == 0
    place.clock.advance(2 * 3600)
    assert other.maintain(sweep=True).swept >= 1
    assert len(parts_of(place, orders)) == 1
    assert other["orders"].count() == 3


def test_an_append_that_is_refused_because_its_writer_was_expired_is_put_again_once(place):
    script = Script()
    store, other = place.open(script=script, config=BLOBS), place.open(config=BLOBS)
    orders = create(store)
    orders.append(ROWS)

    writer = store._committer.session.writer

    def expire():
        place.clock.advance(2 * 3600)
        other._committer.run(orders.id, lambda session: expire_lapsed_leases(session, orders.id))
        assert writer not in other["orders"]._handle.state().writers

    script.add("compare_and_set", Fault.NONE, key=orders.id, hook=expire)
    orders.append([{"k": 5, "v": "x"}], at=7)
    assert script.is_done
    assert now(other["orders"])[5, "x"] == 1
    assert sorted(key.split("/")[1] == writer for key in parts_of(place, orders)) == [False, True]


@pytest.mark.parametrize(
    ("fault", "meanwhile", "there"),
    [(Fault.NONE, "compare_and_set", 0), (Fault.CONFLICT_DONE, "scan", 1)],
    ids=["lost", "misreported"],
)
def test_an_append_whose_log_was_cut_before_it_knew_is_in_doubt_and_keeps_its_blobs(place, fault, meanwhile, there):
    script = Script()
    store, other = place.open(script=script, config=BLOBS), place.open(config=BLOBS)
    orders = create(store)
    orders.append(ROWS)
    writer = store._committer.session.writer

    def expire_and_cut():
        place.clock.advance(2 * 3600)
        for step in (expire_lapsed_leases, roll_up, collect_garbage):
            other._committer.run(orders.id, lambda session, step=step: step(session, orders.id))

    if meanwhile == "scan":
        script.add("compare_and_set", fault, key=orders.id)
    script.add(meanwhile, Fault.NONE, key=orders.id, hook=expire_and_cut)
    with pytest.raises(Fenced) as raised:
        orders.append([{"k": 5, "v": "x"}], at=7)
    assert raised.value.in_doubt
    assert script.is_done
    assert [key.split("/")[1] for key in parts_of(place, orders)] == [writer] * 2, "neither deleted nor put again"
    assert now(other["orders"])[5, "x"] == there
    orders.append([{"k": 6, "v": "y"}], at=8)
    assert now(other["orders"])[6, "y"] == 1


def test_a_conflict_that_never_ends_is_reported_and_leaves_nothing(place):
    config = Config(commit_attempts=4, inline_part_bytes=1, retry_pause_ms=1)
    other = place.open()

    class Busy(Script):
        on = False

        def __call__(self, operation, key):
            if self.on and operation == "compare_and_set":
                other["orders"].append([{"k": 0, "v": "theirs"}])
            return Fault.NONE

    script = Busy()
    orders = create(place.open(script=script, config=config))
    orders.append(ROWS)
    before = parts_of(place, orders)
    script.on = True
    with pytest.raises(Determinate, match="in a row"):
        orders.append([{"k": 1, "v": "ours"}])
    script.on = False
    assert parts_of(place, orders) == before
    assert (1, "ours") not in now(orders)


# Schemas that others change.


def test_rows_of_the_old_shape_go_on_fitting_after_others_evolved_the_schema(place):
    store, other = place.open(), place.open()
    orders = create(store)
    orders.append([{"k": 1, "v": "a"}])
    other["orders"].evolve(rename={"v": "name"}, add={"n": ("int64", 7)})
    orders.append([{"k": 2, "v": "b"}])  # this process has not noticed
    assert other["orders"].snapshot().to_pylist() == [
        {"k": 1, "name": "a", "n": 7},
        {"k": 2, "name": "b", "n": 7},
    ]
    orders.append([{"k": 3, "name": "c", "n": 1}])
    with pytest.raises(UsageError, match="'v'"):
        orders.append([{"k": 4, "v": "d"}])
    assert orders.count() == 3


def test_rows_that_fit_no_schema_are_refused_with_the_newest_in_mind(place):
    store, other = place.open(), place.open()
    orders = create(store)
    other["orders"].evolve(add={"n": "int64"})
    with pytest.raises(UsageError, match="'n'"):
        orders.append([{"k": 1, "w": "a"}])


# All of it against a model.


UPDATES = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["a", None]), st.integers(0, 4), st.integers(-2, 2)))


@settings(max_examples=40, deadline=None)
@given(appends=st.lists(UPDATES, max_size=5), inline=st.booleans())
def test_every_history_of_appends_is_read_back_as_of_every_time(appends, inline):
    with MemoryStore() as place:
        orders = create(place.open(config=QUICK if inline else BLOBS))
        upper, history = 0, []
        for batch in appends:
            rows = [{"k": k, "v": v, "_time": upper + delay, "_diff": diff} for k, v, delay, diff in batch]
            history += rows
            upper = max([upper] + [row["_time"] + 1 for row in rows])
            if rows:
                assert orders.append(rows).upper == Frontier.at(upper)
        for time in range(upper):
            expected = Counter()
            for row in history:
                if row["_time"] <= time:
                    expected[row["k"], row["v"]] += row["_diff"]
            there = counted(orders.snapshot(time, multiplicity="column").to_pylist(), "k", "v")
            assert there == {row: count for row, count in expected.items() if count}


def test_fenced_in_doubt_is_told_and_not_repeated(place, monkeypatch):
    orders = create(place.open(config=BLOBS))
    orders.append(ROWS)
    calls = []

    def doubtful(*commands, **options):
        calls.append(commands)
        raise Fenced("who knows", in_doubt=True)

    monkeypatch.setattr(orders._handle.committer, "commit", doubtful)
    with pytest.raises(Fenced):
        orders.append(ROWS)
    assert len(calls) == 1
    assert len(parts_of(place, orders)) == 2


# The schema.


@pytest.mark.parametrize(
    "wrong", [{"drop": "v"}, {"drop": {"v"}}, {"add": "v"}, {"rename": ["v"]}, {"widen": [("k", "int64")]}]
)
def test_an_evolution_that_is_not_by_columns_is_refused(place, wrong):
    orders = create(place.open())
    with pytest.raises(UsageError, match="names of columns"):
        orders.evolve(**wrong)
    assert orders.schema.names == ("k", "v")

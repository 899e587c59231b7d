"""A change beside others: it reads once, follows what they commit, and stands as if it had been alone at its time."""

import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace

import polars as pl
import pyarrow as pa
import pytest
from assertions import until
from memory_store import BLOBS, QUICK, SMALL, counted, in_threads
from rival_cases import beside, counts, create, now, row

import timespine as ts
from timespine.client.commit.retry_limits import RETRY
from timespine.client.write import read_current
from timespine.columnar.scan import scan
from timespine.config import DEFAULT, TURN_MS_MAX
from timespine.errors import Contention, UsageError

BOTH = pytest.mark.parametrize("config", [QUICK, BLOBS], ids=["inline", "blobs"])


def test_what_a_change_adds_because_of_others_is_in_order_however_it_was_read(place, monkeypatch):
    monkeypatch.setattr(scan, "SMALL_ROWS", 4)

    def append_twice(theirs):
        theirs.append([row(k, 50) for k in range(100, 116)])
        theirs.append([row(103, 51)])

    table, rival = beside(place, [append_twice], replace(BLOBS, any_order_rows=4))
    table.delete(where="n > 1")
    assert not rival.works
    assert now(table) == {(1, 1): 1}
    assert table.lookup([{"k": k} for k in range(100, 116)]).num_rows == 0
    store = place.open()
    store["t"].compact()
    assert now(store["t"]) == {(1, 1): 1}


# What others commit is judged, not read from the beginning.


CHANGES = {
    "upsert": (lambda t: t.upsert([row(1, 7)]), {(1, 7): 1, (2, 2): 1}),
    "delete": (lambda t: t.delete({"k": 1}), {(2, 2): 1}),
    "delete where": (lambda t: t.delete(where="n = 1"), {(2, 2): 1}),
    "update": (lambda t: t.update(where="n = 1", set={"n": 7}), {(1, 7): 1, (2, 2): 1}),
    "update by all": (lambda t: t.update(where="n < 3", set={"n": pl.col("n").sum()}), {(1, 3): 1, (2, 3): 1}),
    "replace": (lambda t: t.replace([row(4, 1)], where="n = 1"), {(4, 1): 1, (2, 2): 1}),
    "merge": (
        lambda t: t.merge([row(1, 5), row(3, 5)]).when_matched_update().when_not_matched_insert().execute(),
        {(1, 5): 1, (2, 2): 1, (3, 5): 1},
    ),
}


@BOTH
@pytest.mark.parametrize("change", CHANGES)
def test_appends_that_do_not_touch_what_was_read_only_move_the_change(place, config, change):
    table, rival = beside(place, [lambda theirs, k=k: theirs.append([row(k, 50)]) for k in range(50, 55)], config)
    work, left = CHANGES[change]
    puts = rival.script.calls["put"]
    done = work(table)
    assert not rival.works
    assert done.time == 6
    assert now(table) == {**left, **{(k, 50): 1 for k in range(50, 55)}}
    assert now(table, 5) == {(1, 1): 1, (2, 2): 1, **{(k, 50): 1 for k in range(50, 55)}}
    assert counts(table) == (1, RETRY.quick_losses, 0), "after a few losses only the claim of its turn is judged again"
    assert rival.script.calls["put"] == puts + (config is BLOBS), "what is durable is not put again"
    assert place.open().vacuum().blobs == []


@BOTH
@pytest.mark.parametrize(
    ("change", "left"),
    [
        ("upsert", {(1, 7): 1, (2, 2): 1}),
        ("delete", {(2, 2): 1}),
        ("delete where", {(2, 2): 1}),
        ("update", {(1, 7): 3, (2, 2): 1}),
        ("update by all", {(1, 5): 3, (2, 5): 1}),
        ("replace", {(4, 1): 1, (2, 2): 1}),
        ("merge", {(1, 5): 3, (2, 2): 1, (3, 5): 1}),
    ],
)
def test_appends_of_what_was_read_are_part_of_the_change(place, config, change, left):
    table, rival = beside(place, [lambda theirs: theirs.append([row(1, 1)])] * 2, config)
    done = CHANGES[change][0](table)
    assert not rival.works
    assert now(table) == left
    assert now(table, done.time - 1) == {(1, 1): 3, (2, 2): 1}
    assert counts(table) == (1, 2, 2)
    assert done.rows == len(table.changes(after=done.time - 1, until=done.time).to_pylist())
    assert place.open().vacuum().blobs == []


def test_what_came_and_went_again_touches_nothing(place):
    def come_and_go(theirs):
        theirs.append([row(1, 9)])
        theirs.append([row(1, 9, _diff=-1)])

    table, _ = beside(place, [come_and_go])
    assert table.upsert([row(1, 7)]).rows == 2
    assert counts(table) == (1, 1, 0)


def test_a_patch_may_leave_nothing_to_do(place):
    table, _ = beside(place, [lambda theirs: theirs.upsert([row(1, 7)])])
    done = table.upsert([row(1, 7)])
    assert done.rows == 0
    assert now(table) == {(1, 7): 1, (2, 2): 1}


def test_rows_that_count_less_than_zero_by_then_are_refused_and_nothing_is_changed(place):
    table, _ = beside(place, [lambda theirs: theirs.append([row(1, 1, _diff=-2)])])
    with pytest.raises(UsageError, match="negative count"):
        table.update(where="n = 1", set={"n": 7})
    assert now(table) == {(1, 1): -1, (2, 2): 1}


def test_merges_that_put_old_and_new_rows_together_do_not_hide_what_is_new(place):
    def append_and_compact(theirs):
        theirs.append([row(1, 8), row(9, 9)])
        theirs.compact()

    table, _ = beside(place, [append_and_compact], SMALL, [(k, k) for k in range(20)])
    table.delete({"k": 1})
    assert now(table) == {**{(k, k): 1 for k in range(20) if k != 1}, (9, 9): 2}
    assert counts(table) == (1, 1, 1)


@BOTH
@pytest.mark.parametrize("is_sealed", [False, True])
def test_rows_ahead_of_the_seal_that_were_counted_are_not_counted_again_when_they_are_sealed(place, config, is_sealed):
    ahead = place.clock.ms - 5

    def seal(theirs):
        theirs.append([row(50, 50)], at=ahead - 1)
        if is_sealed:
            theirs.seal(ahead + 1)

    table, rival = beside(place, [], config, timeline="clock", rows=())
    table.append([row(1, 1)], at=ahead - 10)
    table.write([row(1, 3), row(2, 3)], at=ahead)
    if config is BLOBS:
        rival.works.append(lambda theirs: None)  # the first compare-and-set is that of the lease
    rival.works.append(seal)
    done = table.upsert([row(1, 7)])
    assert done.rows == 3, "two rows of the key go, one comes"
    assert counts(table) == (1, 1, 0)
    assert now(table) == {(1, 7): 1, (2, 3): 1, (50, 50): 1}


def test_rows_ahead_of_the_seal_that_a_later_place_would_seal_count(place):
    table, rival = beside(place, [])
    table.write([row(1, 5)], at=20)
    rival.works.append(lambda theirs: theirs.append([row(50)], at=30))
    table.delete({"k": 1})
    assert now(table) == {(2, 2): 1, (50, 0): 1}
    assert counts(table) == (1, 1, 1)


# When it must read again, it does so a bounded number of times.


def test_another_schema_is_read_again_and_the_change_is_made_under_it(place):
    def rename(theirs):
        theirs.evolve(rename={"n": "m"})
        theirs.append([{"k": 50, "m": 50}])

    table, _ = beside(place, [rename])
    table.upsert([{"k": 1}])
    assert counted(table.snapshot().to_pylist(), "k", "m") == {(1, None): 1, (2, 2): 1, (50, 50): 1}
    assert counts(table, "changes read", "changes started again") == (2, 1)


def test_a_change_reads_its_rows_four_times_at_most(place):
    def evolve(theirs):
        theirs.evolve(add={f"more{len(rival.works)}": "int64"})
        theirs.append([row(50)])

    table, rival = beside(place, [evolve] * 9, BLOBS)
    with pytest.raises(Contention, match="nothing was changed: t got another schema, or lost history, each of the 4"):
        table.delete({"k": 1})
    assert counts(table, "changes read") == (RETRY.reads,)
    rival.works.clear()
    assert now(table) == {(1, 1): 1, (2, 2): 1, (50, 0): 4}
    assert table.delete({"k": 1}).rows == 1


@BOTH
def test_a_change_beside_a_process_that_expires_all_the_time_reads_twice_at_most(place, config):
    """A read of rows in the state takes no lease, so its history may be lost once; the next read holds it."""

    def commit_and_expire(theirs):
        theirs.append([row(50, 50)])
        theirs.expire(before=theirs.upper.time)

    table, _ = beside(place, [commit_and_expire] * 20, config)
    assert table.upsert([row(1, 7)]).rows == 2
    assert counts(table, "changes started again")[0] == (0 if config is BLOBS else 1)
    assert (1, 7) in now(table)
    assert (1, 1) not in now(table)


def test_a_closed_collection_is_told_so(place):
    table, _ = beside(place, [lambda theirs: theirs.finish()])
    with pytest.raises(ts.errors.ClosedError):
        table.delete({"k": 1})


# A turn of its own.


def test_work_that_takes_long_is_done_in_a_turn_of_its_own_after_a_few_losses(place, monkeypatch):
    """A thread of the same process appends a row of the condition whenever the change is worked out."""
    table = create(place.open())
    table.append([row(1, 5), row(2, 5)])
    worked, left = [], iter(range(100))
    by_all = read_current.LocalDelta._by_all

    def appended(self, news):
        worked.append(table._handle.committer._turn.is_held)
        if not worked[-1]:
            in_threads(lambda: table.append([row(next(left) + 10, 1)]))
        return by_all(self, news)

    monkeypatch.setattr(read_current.LocalDelta, "_by_all", appended)
    first = read_current.LocalDelta.of

    def racing(*arguments):
        found = first(*arguments)
        table.append([row(next(left) + 10, 1)])
        return found

    monkeypatch.setattr(read_current.LocalDelta, "of", racing)
    table.update(set={"n": pl.col("n").sum()})
    assert worked == [False] * RETRY.quick_losses + [False, True]
    assert {n for _, n in now(table)} == {10 + len(now(table)) - 2}, "the sum of all of them"
    assert counts(table, "changes read", "changes started again") == (1, 0)


def beside_appends(table, work, keys):
    """Carry out a change while threads append, each until the change is done; how often they did."""
    stop, appended, failures = threading.Event(), Counter(), []

    def append(start):
        try:
            for k in range(start, start + 100_000):
                if stop.is_set():
                    return
                table.append([row(k, keys)])
                appended[start] += 1
        except BaseException as error:
            failures.append(error)

    starts = [1_000_000 * (1 + i) for i in range(keys)]
    threads = [threading.Thread(target=append, args=(start,)) for start in starts]
    for thread in threads:
        thread.start()
    try:
        until(lambda: all(appended[start] > 3 for start in starts))
        before = sum(appended.values())
        done = work(table)
        after = sum(appended.values())
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert not failures
    return done, after - before


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("touched", [False, True], ids=["others", "the same rows"])
def test_every_change_goes_in_beside_threads_that_append_all_the_time_and_reads_once(place, threads, touched):
    table = create(place.open())
    table.append(pa.table({"k": range(20_000), "n": [k % 10 + 100 for k in range(20_000)]}))
    where = "n >= 0" if touched else "n >= 100"
    changes = [
        lambda t: t.update(where=where, set={"n": pl.col("n") + 1}),
        lambda t: t.update(where=where, set={"n": pl.col("n").max()}),
        lambda t: t.upsert(pa.table({"k": range(5000), "n": [300] * 5000})),
        lambda t: t.merge([row(k, 400) for k in range(100)]).when_matched_update().execute(),
        lambda t: t.replace([row(-1, 500)], where=f"{where} AND k < 10"),
        lambda t: t.delete(where=where),
    ]
    for number, change in enumerate(changes, 1):
        beside_appends(table, change, threads)
        assert counts(table, "changes read", "changes started again") == (number, 0)
        # Only what this process commits itself comes in between, and never in its turn.
        assert counts(table, "changes placed again")[0] <= number * (RETRY.quick_losses + 1)


APPENDING = """
import os
import sys
import timespine as ts

path, processes, n = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
parent = os.getpid()


def append(start):
    with ts.open(path, maintenance=False) as store:
        table = store["t"]
        for k in range(start, start + 10_000):
            if os.getppid() != parent:
                return
            table.append([{"k": k, "n": n}])
            if k == start + 3:
                os.write(1, b"appending\\n")  # in one piece: the processes share this pipe


for i in range(processes):
    if os.fork() == 0:
        append(1_000_000 * (1 + i))
        os._exit(0)
os.wait()
"""


# Forked after the imports, which take longer than the test.


@pytest.mark.parametrize("processes", [1, 4])
@pytest.mark.parametrize("touched", [False, True], ids=["others", "the same rows"])
def test_every_change_goes_in_beside_processes_that_append_all_the_time_and_reads_once(tmp_path, processes, touched):
    path, config = tmp_path / "store", replace(DEFAULT, turn_ms=TURN_MS_MAX)
    with ts.open(path, maintenance=False, config=config) as store:
        table = create(store)
        table.append(pa.table({"k": range(20_000), "n": [k % 10 + 100 for k in range(20_000)]}))
        command = [sys.executable, "-c", APPENDING, str(path), str(processes), "150"]
        others = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            for _ in range(processes):
                assert others.stdout.readline() == "appending\n"
            where = "n >= 100" if touched else "n >= 100 AND n < 150"
            table.update(where=where, set={"n": pl.col("n") + 1000})
            table.update(where=where.replace("100", "1100"), set={"n": pl.col("n").max()})
            table.upsert(pa.table({"k": range(5000), "n": [2000] * 5000}))
            table.merge([row(k, 3000) for k in range(100)]).when_matched_update().execute()
            table.delete(where="n > 1100")
            with store.transaction() as tx:
                tx.update(table, where="n = 150", set={"n": 151})
            assert others.poll() is None, "they appended all the time"
            assert counts(table, "changes read", "changes started again") == (6, 0)
            # Nothing comes in between in a turn that is long enough, so each was placed a few times and once more.
            assert counts(table, "changes placed again")[0] <= 6 * RETRY.quick_losses
        finally:
            others.kill()
            others.communicate()  # until the last of them has closed it
        assert {k for k, _ in now(table)}.isdisjoint(range(5000))

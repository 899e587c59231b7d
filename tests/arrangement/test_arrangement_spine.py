"""A spine is the sum of what was inserted, whatever merges do: saved, restored, filtered, spilled, in many threads."""

from __future__ import annotations

import os
import sys
import threading
from unittest import mock

import pyarrow as pa
import pytest
from assertions import until
from test_view_as_of import ORDERS, orders

from timespine.arrangement.batch.batch import Location, batch_of
from timespine.arrangement.batch.layout import Layout
from timespine.arrangement.spine import sliced_merge
from timespine.arrangement.spine.spine import Spine
from timespine.columnar.predicate.where import col
from timespine.config import LEVELS
from timespine.core.arrangement import memory_pressure
from timespine.core.arrangement.levels import LevelRules
from timespine.core.protocols import merge_spine
from timespine.errors import CorruptionError, Determinate, SinceError, StoreClosed, UsageError
from timespine.model.frontier import Frontier

TINY = LevelRules(
    row_bounds=tuple(3**n for n in range(1, LEVELS)),
    merge_min=(2,) * LEVELS,
    merge_max=4,
    batches_max=10,
    slice_rows_min=3,
)


def spine_of(*tables, **options):
    spine = Spine(ORDERS, **{"threads": False, "rules": TINY, **options})
    for table in tables:
        spine.insert(table)
    return spine


def ids(spine):
    return [row for table in spine.view().scan() for row in table.column("id").to_pylist()]


# Saving.


def test_a_restored_spine_is_the_saved_one_and_unchanged_data_costs_a_manifest(tmp_path):
    folder = str(tmp_path / "spine")
    with spine_of(*(orders([(n, "")]) for n in range(20)), folder=folder) as spine:
        spine.insert(orders([(99, "")]), upper=Frontier.at(7))
        spine.advance_since(Frontier.at(3))
        assert spine.save() == 1
        written = sorted(os.listdir(folder))
        assert spine.save() == 2
        added = sorted(name for name in os.listdir(folder) if name not in written)
        assert added == ["files-0000000000000002.json", "manifest-0000000000000002"]
        expected = ids(spine)
    with Spine(ORDERS, folder=folder, threads=False, rules=TINY) as restored:
        assert ids(restored) == expected
        assert (restored.since, restored.upper, restored.is_dirty) == (Frontier.at(3), Frontier.at(7), True)
        assert all(batch.location is Location.STORAGE for batch in restored.batches)
        restored.insert(orders([(1000, "")]))
        restored.complete_merges()
        assert ids(restored) == [*expected, 1000]
        restored.save()
        restored.save()
        # Files of old checkpoints are gone.
        named = [name for name in os.listdir(folder) if name.endswith(".batch")]
        assert len(named) <= 2


def test_a_missing_or_damaged_file_is_an_error_at_restore_and_not_fewer_rows(tmp_path):
    folder = tmp_path / "spine"
    with spine_of(orders([(n, "") for n in range(5)]), folder=str(folder)) as spine:
        spine.save()
    (file,) = folder.glob("*.batch")
    whole = file.read_bytes()
    file.unlink()
    with pytest.raises(CorruptionError):
        Spine(ORDERS, folder=str(folder))
    file.write_bytes(whole[:100] + b"\xff" + whole[101:])
    damaged = Spine(ORDERS, folder=str(folder), threads=False)
    with pytest.raises(CorruptionError):
        ids(damaged)
    damaged.close()


def test_what_was_inserted_after_a_checkpoint_is_not_in_it_and_filters_must_be_set_again(tmp_path):
    folder = str(tmp_path)
    with spine_of(orders([(1, "")]), folder=folder) as spine:
        spine.retain_keys(col("id") > 5)
        spine.save()
        spine.insert(orders([(7, "")]))
    with Spine(ORDERS, folder=folder, threads=False) as restored:
        restored.complete_merges()
        assert ids(restored) == [1]


def test_answers_are_the_same_at_every_pressure_of_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_pressure, "RESERVE_BYTES", 0)
    tables = [orders([(n, "x" * 50) for n in range(start, 60, 7)]) for start in range(7)]
    expected = ids(spine_of(*tables))
    for number, limit in enumerate((1 << 40, 20_000, 4_000, 1)):
        with spine_of(*tables, folder=str(tmp_path / str(number)), memory_bytes=limit) as spine:
            assert ids(spine) == expected
            on_disk = sum(slot["rows on disk"] for slot in spine.metrics()["levels"])
            assert limit > 1 or on_disk == 60
            assert limit < 1 << 40 or on_disk == 0


# Filters.


def test_filters_apply_to_earlier_rows_when_they_are_merged():
    with spine_of(orders([(n, "") for n in range(10)])) as spine:
        spine.retain_keys("id >= 4")
        assert len(ids(spine)) == 10
        spine.complete_merges()
        assert ids(spine) == [4, 5, 6, 7, 8, 9]
        spine.retain_values(lambda table: table.column("id").to_numpy() > 8, top=2)
        spine.complete_merges()
        # One row per key: each is among the two largest of its key.
        assert ids(spine) == [4, 5, 6, 7, 8, 9]
        spine.retain_values(col("id") > 8)
        assert spine.consolidate().rows == 1
        with pytest.raises(UsageError, match="one of"):
            spine.retain_values(col("id") > 8, top=1, last=1)


@pytest.mark.parametrize("is_spilled", [False, True])
@pytest.mark.parametrize(
    ("keep", "retracted", "kept"), [("last", "4", "239"), ("top", "4", "239"), ("bottom", "0", "129")]
)
def test_rows_that_a_filter_keeps_per_key_are_counted_over_the_whole_spine(
    tmp_path, monkeypatch, is_spilled, keep, retracted, kept
):
    """One of the two that a merge would keep is retracted by a batch of another level, which it does not merge."""
    monkeypatch.setattr(memory_pressure, "RESERVE_BYTES", 0)
    with spine_of(folder=str(tmp_path), memory_bytes=1 if is_spilled else 1 << 40) as spine:
        if is_spilled:
            spine.pause()  # so that the first batch stays in memory, and the next one has none
        elsewhere = [orders([(7, retracted)], diff=-1), orders([(n, "8") for n in range(100, 140)])]
        spine.insert(pa.concat_tables(elsewhere))
        spine.retain_values(col("name") >= "7", **{keep: 2})
        rows = [(7, name) for name in "012349"]
        for part in [rows] if is_spilled else [rows[:3], rows[3:]]:
            spine.insert(orders(part))
        assert len(spine.batches) == 2
        assert len(spine) < 41 + len(rows)  # the filter was applied, to one batch

        def counts():
            return [(row["name"], count) for row, count in spine.view().get({"id": 7})]

        assert counts() == [(name, 1) for name in kept]
        if is_spilled:
            assert not all(batch.in_memory for batch in spine.batches)
            spine.resume()
        spine.complete_merges()
        assert counts() == [(name, 1) for name in kept]


def test_a_shared_batch_is_inserted_without_a_copy_and_an_empty_one_not_at_all():
    batch = batch_of(orders([(1, "a"), (2, "b")]), Layout.of(ORDERS))
    with spine_of() as one, spine_of() as two:
        assert one.insert(batch)
        assert two.insert(batch)
        assert one.batches[0] is two.batches[0] is batch
        assert two.insert(orders([]))
        both = pa.concat_tables([orders([(3, "c")]), orders([(3, "c")], diff=-1)])
        assert two.insert(both, upper=Frontier.at(4))
        assert two.batches == (batch,)
        assert two.upper == Frontier.at(4)


def test_state_stays_bounded_under_an_advancing_filter():
    with Spine(ORDERS, threads=False) as spine:
        most = 0
        for n in range(500):
            spine.insert(orders([(n * 10 + i, "") for i in range(10)]))
            spine.retain_keys(col("id") >= n * 10 - 100)
            most = max(most, len(spine))
        assert most < 700
        assert len(spine.batches) < 26


# Errors.


def test_reads_before_since_are_errors_and_views_keep_what_they_had():
    with spine_of(orders([(1, "a")], time=0), orders([(1, "a")], time=2, diff=-1)) as spine:
        early = spine.view((1,))
        spine.advance_since(Frontier.at(2))
        spine.complete_merges()
        with pytest.raises(SinceError):
            spine.view((1,))
        assert early.get({"id": 1}) == [({"id": 1, "name": "a"}, 1)]
        assert spine.view((2,)).get({"id": 1}) == []
        assert spine.consolidate() is None
        with pytest.raises(UsageError):
            spine.advance_since(Frontier(()))


def test_a_full_spine_says_so_and_a_paused_one_takes_all():
    with spine_of() as spine:
        spine.pause()
        for n in range(30):
            assert spine.insert(orders([(n, "")]), wait=False)
        spine.resume()
        assert len(spine.batches) < 10
    with pytest.raises(StoreClosed):
        spine.insert(orders([(1, "")]))


def test_a_merge_that_fails_loses_nothing_and_is_tried_again():
    failures = iter([OSError("broken"), OSError("broken"), None, None, None, None])
    real = sliced_merge.SlicedMerge.step

    def step(self, rows):
        failure = next(failures, None)
        if failure is not None:
            raise failure
        return real(self, rows)

    broken = mock.patch.object(sliced_merge.SlicedMerge, "step", step)
    with broken, mock.patch.object(merge_spine, "PAUSE_MS", 1), spine_of() as spine:
        for n in range(6):
            spine.insert(orders([(n, "")]))
        assert ids(spine) == list(range(6))
        until(lambda: spine.pause(wait=False) or spine.resume() or spine.is_settled())  # every call merges what it can
        assert sum(slot["failures"] for slot in spine.metrics()["levels"]) == 2


def test_one_key_in_64_batches_of_64_rows_is_read_and_merged_as_a_whole():
    expected = [(f"{n:04}", 1) for n in range(64 * 64)]
    tables = [orders([(7, f"{n:04}") for n in range(part, 64 * 64, 64)]) for part in range(64)]
    with Spine(ORDERS, threads=False) as spine:
        spine.pause()
        for table in tables:
            spine.insert(table)
        before = spine.view()
        assert len(before.batches) == 64
        spine.resume()
        spine.complete_merges()
        after = spine.view()
        assert len(after.batches) == 1
        for view in (before, after):
            assert [(row["name"], count) for row, count in view.get({"id": 7})] == expected
            found = [view.fetch([{"id": 7}, {"id": 8}]), pa.concat_tables(view.scan(rows=100))]
            for rows in found:
                assert list(zip(rows["name"].to_pylist(), rows["_diff"].to_pylist(), strict=True)) == expected
            ((key, values),) = view.items()
            assert (key, [(value["name"], count) for value, count in values]) == ({"id": 7}, expected)


def test_the_newest_view_is_made_once_per_state():
    with Spine(ORDERS, threads=False) as spine:
        spine.insert(orders([(1, "a")]), upper=Frontier.at(1))
        view = spine.newest_view()
        assert spine.newest_view() is view
        spine.insert(orders([(1, "b")], time=1), upper=Frontier.at(2))
        assert [row["name"] for row, _ in spine.newest_view().get({"id": 1})] == ["a", "b"]
        assert [row["name"] for row, _ in view.get({"id": 1})] == ["a"]
        spine.complete_merges()
        assert len(spine.newest_view().batches) == 1


# Threads.


def test_batches_merge_in_the_background_and_never_pile_up():
    with Spine(ORDERS) as spine:
        for n in range(400):
            spine.insert(orders([(n * 5 + i, "") for i in range(5)]))
            assert len(spine.batches) <= LevelRules().batches_max
        until(spine.is_settled)
        assert len(spine.batches) < 26
        assert ids(spine) == list(range(2000))
        spine.complete_merges()
        assert spine.is_compaction_complete
        assert ids(spine) == list(range(2000))


def test_forks_are_made_while_others_measure_the_memory():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    errors: list[BaseException] = []
    spine = Spine(ORDERS)
    forks = [spine.fork() for _ in range(200)]

    def measure():
        try:
            for _ in range(20):
                spine._driver.resources()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=measure) for _ in range(2)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        forks.append(spine.fork())
    for each in [spine, *forks]:
        each.close()
    sys.setswitchinterval(interval)
    assert errors == []


def test_readers_inserters_savers_and_pauses_at_once_see_only_whole_batches(tmp_path):
    """Every batch adds the same number to two keys: a reader must see equal sums."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    errors: list[BaseException] = []
    stop = threading.Event()
    spine = Spine(ORDERS, folder=str(tmp_path), rules=TINY)

    def guarded(work):
        def run():
            try:
                while not stop.is_set():
                    work()
            except BaseException as error:
                errors.append(error)

        return threading.Thread(target=run)

    inserted = iter(range(10**9))

    def insert():
        n = next(inserted)
        rows = [(1, str(n % 7)), (2, str(n % 7)), (n + 3, "")]
        spine.insert(orders(rows))

    def read():
        view = spine.view()
        one, two = ([(row["name"], count) for row, count in view.get({"id": key})] for key in (1, 2))
        assert one == two
        table = view.fetch([{"id": 1}, {"id": 2}])
        assert table.num_rows == 2 * len(one)

    def disturb():
        spine.pause()
        spine.resume()
        spine.save()
        spine.fork().close()

    threads = [guarded(work) for work in (insert, insert, read, read, disturb)]
    for thread in threads:
        thread.start()
    until(lambda: len(spine) > 300 or errors)
    stop.set()
    for thread in threads:
        thread.join(60)
    sys.setswitchinterval(interval)
    assert errors == []
    total = next(inserted)
    spine.complete_merges()
    counts = [count for _, count in spine.view().get({"id": 1})]
    assert sum(counts) == total
    spine.save()
    spine.close()
    with Spine(ORDERS, folder=str(tmp_path)) as restored:
        assert sum(count for _, count in restored.view().get({"id": 2})) == total
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]


def test_an_inserter_that_waits_too_long_is_told_and_nothing_was_added():
    with Spine(ORDERS, rules=TINY) as spine:
        batch = batch_of(orders([(100, "")]), Layout.of(ORDERS))
        with mock.patch.object(sliced_merge.SlicedMerge, "step", side_effect=OSError("broken")):
            for n in range(10):
                assert spine.insert(orders([(n, "")]), wait=False)
            assert not spine.insert(batch, wait=False)
            with pytest.raises(Determinate, match="full"):
                spine._driver.run(merge_spine.insert(batch, None, 1))
            assert len(spine) == 10
        assert spine.metrics()["seconds waited for merges"] > 0


def test_a_fork_shares_the_batches_and_reads_none_of_them():
    with spine_of(*(orders([(n, "")]) for n in range(7))) as spine:
        with mock.patch.object(sliced_merge.SlicedMerge, "step", side_effect=AssertionError):
            other = spine.fork()
        assert all(one is two for one, two in zip(spine.batches, other.batches, strict=True))
        other.insert(orders([(100, "")]))
        assert ids(spine) == list(range(7))
        assert ids(other) == [*range(7), 100]
        other.close()

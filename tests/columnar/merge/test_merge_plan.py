"""What a merge rewrites follows what was touched, inside hollow runs too; and its steps are linear in its inputs."""

from dataclasses import replace

import pytest
from run_cases import Place
from test_merge_engine import KV, TINY, comparable, kv, leaves, output, rows_of

from timespine.columnar.merge import run_merge
from timespine.columnar.merge.merge_plan import SMALL, InputPart, stretches
from timespine.columnar.scan import part_access as parts_module
from timespine.core.batch import Order, Part, Run
from timespine.model.frontier import Frontier
from timespine.model.oracle import compact

PER_PART = 100
MANY = 69


def base(place, parts=MANY, *, nested=True, step=10):
    """A run of many parts of equal size, inside hollow runs."""
    updates = [kv(step * n, time=1) for n in range(parts * PER_PART)]
    return place.run(updates, cuts=range(PER_PART, parts * PER_PART, PER_PART), nested=nested), updates


def place_of(**options):
    """Where a full part has about as many rows as those of `base`."""
    return Place([KV], config=replace(TINY, part_bytes=PER_PART * 29, **options))


@pytest.mark.parametrize("kinds", [("inline",), ("stored",)])
def test_rows_written_follow_the_parts_that_are_touched_inside_hollow_runs(kinds):
    place = place_of(run_parts=8)
    old, updates = base(place)
    touched = [kv(10 * PER_PART * at + 5, "new", time=2) for at in (3, 30, 60)]
    runs = [old, *(place.run([each], kinds=kinds) for each in touched)]
    counters = {}
    merged = output(place, runs, counters_of=lambda collection: counters)
    # Appends that are parts of their own meet one part each; rows in the state are in one table.
    assert merged.rows == counters["merge rows out"] == 3 * PER_PART + 3
    assert counters["merge rows passed"] == (MANY - 3) * PER_PART
    assert counters["merge parts passed"] == MANY - 3
    assert merged.passed == (old.parts[0].key,)
    assert merged.size == sum(info.size for info in place.blob.list_keys("orders/m1/"))
    assert comparable(rows_of(place, merged.batch)[0]) == comparable([*updates, *touched])
    # What was inside of a run stays inside of one: its writer may be gone.
    assert all(part.hollow and "/m1/" in part.key for part in merged.batch.parts)
    assert len(leaves(place, merged.batch)) == MANY


def test_merging_again_and_again_writes_what_is_touched_and_no_more():
    place = place_of(run_parts=8)
    run, updates = base(place)
    written = 0
    for round in range(12):
        row = kv(10 * PER_PART * (5 * round) + 7, "new", time=2 + round)
        updates.append(row)
        merged = output(place, [run, place.run([row])])
        (run,) = merged.batch.runs
        written += merged.rows
    assert comparable(rows_of(place, merged.batch)[0]) == comparable(updates)
    assert written == 12 * (PER_PART + 1)
    assert len(leaves(place, merged.batch)) == MANY


def test_rows_between_two_parts_become_a_part_of_their_own_that_later_rows_join():
    place = place_of()
    gap = place.run([kv(n + (n >= 150), time=1) for n in range(300)], cuts=(150,))
    for time in (2, 3):
        merged = output(place, [gap, place.run([kv(150, "new", time=time)], kinds=("inline",))])
        (gap,) = merged.batch.runs
        assert merged.rows == time - 1
        assert [part.rows for part in leaves(place, merged.batch)] == [150, time - 1, 150]


def test_times_that_would_fold_are_written_again_inside_hollow_runs_too():
    place = place_of()
    updates = [kv(n, time=time) for n in range(2 * PER_PART) for time in (0, 1)]
    folding = place.run(updates, cuts=(100, 200, 300), nested=True)
    merged = output(place, [folding], Frontier.at(2))
    assert merged.rows == 2 * PER_PART
    assert merged.passed == ()
    assert comparable(rows_of(place, merged.batch)[0]) == comparable(compact(updates, Frontier.at(2)))


def test_times_that_would_move_but_fold_nothing_pass_inside_hollow_runs_too():
    place = place_of()
    updates = [kv(n, time=n % 3) for n in range(4 * PER_PART)]
    apart = place.run(updates, cuts=(100, 200, 300), nested=True)
    merged = output(place, [apart], Frontier.at(2))
    assert merged.rows == 0
    assert merged.passed == (apart.parts[0].key,)
    assert comparable(rows_of(place, merged.batch)[0]) == comparable(updates)


def test_updates_of_a_row_in_two_neighbours_are_folded_though_neither_part_repeats_one():
    place = place_of()
    updates = [kv(n, time=n % 3) for n in range(2 * PER_PART)]
    updates.insert(PER_PART, kv(PER_PART - 1, time=1))
    run = place.run(updates, cuts=(PER_PART,), nested=True)
    merged = output(place, [run], Frontier.at(2))
    assert merged.rows == 2 * PER_PART
    assert comparable(rows_of(place, merged.batch)[0]) == comparable(compact(updates, Frontier.at(2)))


# The rule for small parts, by example: full parts have 16 KiB here.


def piece(at, rows, run=0):
    return InputPart(run, at, Part(f"c/w/p{at}", rows), b"%03d" % at, b"%03d" % at, f"c/w/p{at}")


def fates(rows, touched=()):
    """What becomes of parts with these rows (of 64 bytes), of which some are touched by another."""
    pieces = [piece(at, each) for at, each in enumerate(rows)] + [piece(at, 1, run=1) for at in touched]
    found = stretches(pieces, None, (), may_pass=lambda each: True, part_bytes=SMALL * 1024, light_bytes=1 << 20)
    return [("pass" if each.passed else "write", sorted({inside.place for inside in each.pieces})) for each in found]


BIG, TINY_ROWS = 100, 3


@pytest.mark.parametrize(
    ("rows", "touched", "expected"),
    [
        ([BIG, TINY_ROWS, BIG], (), [("pass", [0]), ("pass", [1]), ("pass", [2])]),
        ([BIG, TINY_ROWS, TINY_ROWS, BIG], (), [("pass", [0]), ("write", [1, 2]), ("pass", [3])]),
        ([TINY_ROWS, BIG, BIG, TINY_ROWS], (1,), [("write", [0, 1]), ("pass", [2]), ("pass", [3])]),
        ([BIG, BIG, BIG], (1,), [("pass", [0]), ("write", [1]), ("pass", [2])]),
        ([TINY_ROWS], (), [("pass", [0])]),
        ([TINY_ROWS] * 4, (), [("write", [0, 1, 2, 3])]),
        ([], (), []),
    ],
)
def test_a_small_part_is_written_if_that_makes_parts_fewer(rows, touched, expected):
    assert fates(rows, touched) == expected


# Steps.


def watched(monkeypatch, target, name):
    """The calls of a function."""
    calls = []
    real = getattr(target, name)

    def counting(*given, **options):
        calls.append(given)
        return real(*given, **options)

    monkeypatch.setattr(target, name, counting)
    return calls


@pytest.mark.parametrize("overlapping", [True, False])
def test_a_thousand_tiny_runs_in_the_state_are_decoded_once_each_and_merged_once(monkeypatch, overlapping):
    place = place_of()
    updates = [[kv(n, time=1), kv(5000 + n if overlapping else n, "z", time=1)] for n in range(1000)]
    runs = [place.run(each, kinds=("inline",)) for each in updates]
    decoded = watched(monkeypatch, parts_module, "decode_together")
    merges = watched(monkeypatch, run_merge, "merge_sources")
    merged = output(place, runs)
    assert merged.batch.len == 2000
    blocks = [len(parts) for parts, *_ in decoded]
    assert (sum(blocks), len(merges)) == (1000, 1)
    assert len(blocks) < 100, "they are decoded together"


def test_tiny_parts_that_do_not_meet_are_merged_together(monkeypatch):
    place = place_of()
    runs = [place.run([kv(n, time=1)]) for n in range(200)]
    merges = watched(monkeypatch, run_merge, "merge_sources")
    merged = output(place, runs, config=replace(place.config, part_bytes=1 << 16))
    assert [part.rows for part in leaves(place, merged.batch)] == [200]
    assert len(merges) == 1


@pytest.mark.parametrize("number", [100, 400])
def test_overlapping_runs_are_looked_through_once(monkeypatch, number):
    place = place_of()
    runs = [place.run([kv(n, time=1), kv(5000 + n, time=1)]) for n in range(number)]
    looked = watched(monkeypatch, run_merge.RunMerge, "_sources")
    assert output(place, runs).batch.len == 2 * number
    assert [len(pieces) for _, _, pieces in looked] == [1] * number


def test_rows_in_the_state_that_do_not_fit_the_memory_are_merged_too():
    place = place_of(merge_bytes=4096)
    old, updates = base(place, 3)
    tiny = [[kv(30 * n + 1, "t", time=2)] for n in range(40)]
    runs = [old, *(place.run(each, kinds=("inline",)) for each in tiny)]
    merged = output(place, runs)
    assert comparable(rows_of(place, merged.batch)[0]) == comparable([*updates, *(each for (each,) in tiny)])
    assert merged.batch.runs[0].order is Order.SORTED
    assert isinstance(merged.batch.runs[0], Run)

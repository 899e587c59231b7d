"""A merge gives what the oracle gives, within its memory, and leaves nothing behind but its result."""

from __future__ import annotations

import itertools
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import pairwise

import msgspec
import pytest
from building import keys_in
from hypothesis import HealthCheck, settings
from hypothesis import given as examples
from hypothesis import strategies as st
from kernel_cases import key
from run_cases import CONFIG, Place, order_keys, seen_as, updates_of, visible, worlds

from timespine.columnar.merge.merge_engine import Engine
from timespine.columnar.parts.part_cache import CacheHint, PartCache
from timespine.columnar.parts.part_list_tree import read_run
from timespine.columnar.scan.part_access import Parts
from timespine.columnar.schema.schema import define
from timespine.core.batch import HollowBatch, Order, Run, wrap_int64
from timespine.core.effects import MergeRuns
from timespine.core.spine import rope as ropes
from timespine.core.spine.layers import MergeRequest
from timespine.errors import CorruptionError, DiffOverflow, Indeterminate
from timespine.model.description import Description
from timespine.model.frontier import CLOSED, Frontier
from timespine.model.oracle import compact
from timespine.model.time import less_equal
from timespine.testing.unreliable import Fault, UnreliableBlob

some = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
TINY = replace(CONFIG, part_bytes=400, run_parts=2, inline_part_bytes=1, bound_bytes=64)
"""Parts of a few rows, lists of two parts, nothing inline."""
KV = define({"k": "int64"}, {"v": "string"})


def kv(k, v="x", time=0, diff=1):
    return (k, v), (time,), diff


def request(runs, since=None, arity=1):
    """A request to merge batches of one run each."""
    least = Frontier.minimum(arity)
    edges = [Frontier((tuple(n for _ in range(arity)),)) for n in range(len(runs) + 1)]
    batches = [
        HollowBatch(Description(a, b, least), sum(part.rows for part in run.parts), (run,))
        for run, (a, b) in zip(runs, pairwise(edges), strict=True)
    ]
    rope = ropes.balance([ropes.leaf(n, n + 1, batch) for n, batch in enumerate(batches)])
    return MergeRequest(Description(edges[0], edges[-1], least if since is None else since), rope)


def engine_of(place, pool=None, config=None, blob=None, **options):
    return Engine(
        blob or place.blob,
        lambda collection: place.schemas,
        config or place.config,
        fresh=place.name,
        cache=PartCache(1 << 20),
        pool=pool,
        **options,
    )


def merge(place, runs, since=None, **options):
    """The result of a merge as writer m1."""
    found = output(place, runs, since, **options)
    return None if found is None else found.batch


def output(place, runs, since=None, **options):
    """All that a merge as writer m1 gives."""
    effect = MergeRuns(place.collection, request(runs, since, place.newest.arity), "m1")
    return engine_of(place, **options).merge(effect)


def leaves(place, batch):
    parts = Parts(place.blob, place.collection, place.schemas.__getitem__, place.config, PartCache(0))
    return [part for run in batch.runs for part in parts.leaves(run.parts)]


def rows_of(place, batch):
    """All updates of a batch in order, as the newest schema has them, and the tables they are in."""
    parts = Parts(place.blob, place.collection, place.schemas.__getitem__, place.config, PartCache(0))
    tables = []
    for run in batch.runs:
        assert run.schema == len(place.schemas) - 1
        assert run.order is Order.SORTED
        for part in parts.leaves(run.parts):
            if part.inline is not None:
                tables.append(parts.decoded((part,), run.schema, place.newest, CacheHint.NEVER_ADD))
            else:
                tables.append(parts.open(part, run.schema, place.newest).read())
    return [update for table in tables for update in updates_of(table, place.newest)], tables


def check_runs(place, batch):
    """At most one run that is live and one of the past; each in order, with every update once; the past adds up."""
    assert batch.is_sorted
    names = (*place.newest.order_names, *place.newest.time_names)
    for run in batch.runs:
        given, tables = rows_of(place, HollowBatch(batch.desc, 0, (run,)))
        ordered = [row for each in order_keys(tables, names) for row in each]
        assert all(a < b for a, b in pairwise(ordered)), "sorted, each update once"
        if run.zero_from is not None:
            assert sums_of(given) == {}
            assert all(less_equal(time, run.zero_from) for _, time, _ in given)


def sums_of(updates):
    sums = Counter()
    for row, _, diff in updates:
        sums[tuple(map(key, row))] += diff
    return {row: diff for row, diff in sums.items() if diff}


def comparable(updates):
    return sorted((tuple(map(key, row)), time, diff) for row, time, diff in updates)


def reachable(place, *batches):
    """Every blob that batches refer to, lists of parts included."""
    found, waiting = set(), [part for batch in batches for part in batch.parts]
    while waiting:
        part = waiting.pop()
        if part.key:
            found.add(part.key)
        if part.hollow:
            waiting.extend(read_run(part, place.blob))
    return found


@st.composite
def sinces(draw, arity):
    times = st.tuples(*[st.integers(0, 6)] * arity)
    return draw(st.just(CLOSED) | st.lists(times, min_size=1, max_size=arity).map(lambda each: Frontier(tuple(each))))


configs = st.builds(
    partial(replace, TINY),
    part_bytes=st.sampled_from([1, 400, 1 << 20]),
    merge_bytes=st.sampled_from([1, 1000, 1 << 20]),
    inline_part_bytes=st.sampled_from([1, 1 << 20]),
)
"""Limits by which a merge cuts often, seldom, and in memory."""


@some
@examples(st.data())
def test_a_merge_gives_what_the_oracle_gives(data):
    place, runs, history, _ = data.draw(worlds())
    since = data.draw(sinces(place.newest.arity))
    place.config = data.draw(configs)
    runs = [run for run in runs if run.parts]
    if not runs:
        return
    before = set(keys_in(place.blob))
    with ThreadPoolExecutor(2) as pool:
        merged = output(place, runs, since, pool=pool if data.draw(st.booleans()) else None)
    batch = merged.batch
    seen = [
        (tuple(map(key, seen_as(row, schema, place.newest))), time, diff)
        for updates, part, schema in history
        for row, time, diff in visible(updates, part)
    ]
    given, _ = rows_of(place, batch)
    rows = [(tuple(map(key, row)), time, diff) for row, time, diff in given]
    passed = [part for part in leaves(place, batch) if "/m1/" not in part.key and part.inline is None]
    if passed:
        # Times of what is passed through may not be advanced yet: to whoever reads from since on, that is the same.
        assert sorted(compact(rows, since)) == sorted(compact(seen, since))
    else:
        assert sorted(rows) == sorted(compact(seen, since))
    check_runs(place, batch)
    assert batch.len == len(rows) == sum(part.rows for part in batch.parts)
    assert batch.diff_sum == wrap_int64(sum(diff for _, _, diff in seen))
    assert (not batch.runs) == (not rows)
    # Only what it refers to was added. What is not new is inside of what the result says it passed on.
    assert set(keys_in(place.blob)) == before | reachable(place, batch)
    listed = {part.key: part for run in runs for part in run.parts if part.key}
    assert set(merged.passed) <= set(listed)
    sources = Run(tuple(listed[key] for key in merged.passed))
    old = {each for each in reachable(place, batch) if "/m1/" not in each}
    assert old <= reachable(place, HollowBatch(batch.desc, 0, (sources,)))
    assert {part.key for part in batch.parts if part.key and "/m1/" not in part.key} <= set(listed)
    assert merged.rows == batch.len - sum(part.rows for part in passed)
    added = sum(info.size for info in place.blob.list_keys() if info.key not in before)
    assert merged.size == added + batch.inline_bytes


def test_a_part_that_nothing_touches_is_passed_through_by_reference():
    place = Place([KV], config=TINY)
    low = place.run([kv(n, time=1) for n in range(10)])
    high = place.run([kv(n, time=2) for n in range(20, 30)])
    touched = place.run([kv(n, time=3) for n in range(40, 50)])
    touching = place.run([kv(n, "y", time=4) for n in range(45, 55)])
    counters = {}
    batch = merge(place, [low, high, touched, touching], counters_of=lambda collection: counters)
    listed = leaves(place, batch)
    assert [part for part in listed if "/w1/" in part.key] == [*low.parts, *high.parts]
    assert counters["merge parts passed"] == 2
    assert len(rows_of(place, batch)[0]) == 40


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"lower": Frontier.at(0)}, "truncated"),
        ({"rewrite": Frontier.at(5)}, "rewritten"),
        ({"meta": b""}, "unknown"),
    ],
)
def test_a_part_that_is_not_seen_as_it_was_written_is_written_again(change, why):
    place = Place([KV], config=TINY)
    run = place.run([kv(n, time=1) for n in range(10)])
    if why == "unknown":
        run = place.run([kv(n, time=1) for n in range(10)], kinds=("inline",))
    part = msgspec.structs.replace(run.parts[0], **change)
    batch = merge(place, [Run((part,), Order.SORTED, 0)], config=replace(TINY, inline_part_bytes=1))
    assert all("/m1/" in part.key for part in leaves(place, batch))
    assert [time for _, time, _ in rows_of(place, batch)[0]] == [(5 if why == "rewritten" else 1,)] * 10


def test_a_part_whose_times_would_fold_is_written_again_and_one_with_a_single_time_is_not():
    place = Place([KV], config=TINY)
    folding = place.run([kv(n, time=n % 2) for n in range(10)] + [kv(0, time=2)])
    single = place.run([kv(n, time=1) for n in range(20, 30)])
    later = place.run([kv(n, time=5 + n % 2) for n in range(40, 50)])
    batch = merge(place, [folding, single, later], Frontier.at(4))
    listed = leaves(place, batch)
    assert [part for part in listed if "/w1/" in part.key] == [*single.parts, *later.parts]
    expected = [kv(n, time=n % 2) for n in range(10)] + [kv(0, time=2)]
    written = [update for update in rows_of(place, batch)[0] if update[0][0] < 20]
    assert comparable(written) == comparable(compact(expected, Frontier.at(4)))


def test_small_parts_are_put_together_and_not_passed_through():
    place = Place([KV], config=replace(TINY, part_bytes=1 << 20))
    runs = [place.run([kv(n, time=1)]) for n in range(10)]
    batch = merge(place, runs)
    assert [part.rows for part in leaves(place, batch)] == [10]


def test_a_part_of_an_old_schema_or_of_an_unordered_run_is_written_again():
    newest = KV.add("a", "int64", 7)
    place = Place([KV, newest], config=TINY)
    old = place.run([kv(n, time=1) for n in range(10)], 0)
    any_order = Run(place.run([((n, "x", 1), (2,), 1) for n in range(20, 30)], 1).parts, Order.UNORDERED, 1)
    fine = place.run([((n, "x", 1), (3,), 1) for n in range(40, 50)], 1)
    batch = merge(place, [any_order, fine])
    assert [part for part in leaves(place, batch) if "/w1/" in part.key] == list(fine.parts)
    batch = merge(place, [old, fine])
    assert all("/m1/" in part.key for part in leaves(place, batch)), "bounds of another schema do not compare"
    rows, _ = rows_of(place, batch)
    assert rows[0] == ((0, "x", 7), (1,), 1)


def test_rows_in_the_state_beyond_a_part_do_not_keep_it_from_passing():
    place = Place([KV], config=TINY)
    large = place.run([kv(n, time=1) for n in range(10)])
    after = place.run([kv(n, time=2) for n in range(20, 23)], kinds=("inline",))
    keys_only = Run((place.inline(place.ordered([kv(30, time=3)], 0), 0, described=False),), Order.SORTED, 0)
    inside = Run((place.inline(place.ordered([kv(5, time=3)], 0), 0, described=False),), Order.SORTED, 0)
    batch = merge(place, [large, after, keys_only])
    assert large.parts[0] in leaves(place, batch)
    assert len(rows_of(place, batch)[0]) == 14
    batch = merge(place, [large, after, keys_only, inside])
    assert all("/m1/" in part.key for part in leaves(place, batch))


def test_a_result_of_a_few_rows_stays_in_the_state_if_it_takes_no_more_room_there():
    config = replace(TINY, inline_part_bytes=4096)
    place = Place([KV], config=config)
    runs = [place.run([kv(n, time=n)], kinds=("inline",)) for n in range(3)]
    counters = {}
    batch = merge(place, runs, counters_of=lambda collection: counters)
    (part,) = batch.parts
    assert part.inline is not None
    assert part.size == len(part.inline) <= sum(run.parts[0].size for run in runs)
    assert comparable(rows_of(place, batch)[0]) == comparable([kv(n, time=n) for n in range(3)])
    assert keys_in(place.blob) == []
    assert counters["merge rows out"] == 3
    assert counters["merge parts passed"] == 0
    # Of blobs, even a single row becomes a blob: the state may have no room for it.
    stored = [place.run([kv(n, time=n)]) for n in range(3)]
    assert all(part.inline is None for part in merge(place, stored).parts)


def test_a_merge_of_which_nothing_is_left_gives_an_empty_batch():
    for kind in ("inline", "stored"):
        place = Place([KV], config=replace(TINY, inline_part_bytes=4096))
        runs = [place.run([kv(1, time=time, diff=diff)], kinds=(kind,)) for time, diff in ((1, 1), (2, -1))]
        before = keys_in(place.blob)
        batch = merge(place, runs, Frontier.at(5))
        assert (batch.len, batch.runs) == (0, ())
        assert keys_in(place.blob) == before


@pytest.mark.parametrize("memory", [1, 2000, 1 << 30])
@pytest.mark.parametrize("threads", [0, 3])
def test_many_runs_are_merged_in_rounds_that_leave_nothing_behind(memory, threads):
    place = Place([KV], config=replace(TINY, merge_bytes=memory, part_bytes=600))
    runs = [place.run([kv(n * 10 + number, time=number) for n in range(12)]) for number in range(10)]
    before = set(keys_in(place.blob))
    with ThreadPoolExecutor(max(threads, 1)) as pool:
        batch = merge(place, runs, pool=pool if threads else None)
    assert [row[0] for row, _, _ in rows_of(place, batch)[0]] == list(range(120))
    assert set(keys_in(place.blob)) == before | reachable(place, batch)


def test_rounds_are_gone_also_when_the_result_is_a_few_rows_in_the_state():
    config = replace(TINY, merge_bytes=1, inline_part_bytes=4096)
    place = Place([KV], config=config)
    runs = [place.run([kv(n, time=number, diff=1 - 2 * (number % 2)) for n in range(9)]) for number in range(6)]
    runs.append(place.run([kv(100, time=9)], kinds=("inline",)))
    before = keys_in(place.blob)
    batch = merge(place, runs, Frontier.at(9))
    assert [part.inline is not None for part in batch.parts] == [True]
    assert rows_of(place, batch)[0] == [kv(100, time=9)]
    assert keys_in(place.blob) == before


def test_parts_of_an_old_schema_are_put_in_order_by_themselves():
    # Without the column that they were ordered by first, all rows would be one group.
    schema = define(None, {"a": "int64", "b": "int64"})
    place = Place([schema, schema.drop("a")], config=replace(TINY, merge_bytes=2000))
    old = place.run([((n, n * 37 % 100), (0,), 1) for n in range(100)], 0, cuts=range(0, 100, 10))
    new = place.run([((n * 31 % 100,), (1,), 1) for n in range(100)], 1)
    batch = merge(place, [old, new], Frontier.at(1))
    assert rows_of(place, batch)[0] == [((n,), (1,), 2) for n in range(100)]


def test_long_results_are_listed_in_hollow_runs_of_own_parts_only():
    place = Place([KV], config=TINY)
    passed = place.run([kv(n, time=1) for n in range(1000, 1010)])
    mixed = [place.run([kv(n, time=time) for n in range(100)]) for time in (2, 3)]
    batch = merge(place, [passed, *mixed])
    assert any(part.hollow for part in batch.parts)
    assert passed.parts[0] in batch.parts, "directly, since nobody could check it inside of a list"
    assert len(rows_of(place, batch)[0]) == 210


def test_a_merge_whose_input_is_gone_gives_nothing_and_leaves_nothing():
    for config in (TINY, replace(TINY, merge_bytes=1)):
        for missing in range(4):
            place = Place([KV], config=config)
            runs = [place.run([kv(n, time=time) for n in range(40)], cuts=(20,)) for time in range(3)]
            runs.append(place.run([kv(n, time=4) for n in range(40)], cuts=(20,), nested=True))
            place.blob.delete(runs[missing].parts[-1].key)
            before = keys_in(place.blob)
            assert merge(place, runs) is None
            assert keys_in(place.blob) == before


@pytest.mark.parametrize("memory", [1, 1 << 30])
def test_a_count_that_overflows_is_an_error_that_leaves_nothing(memory):
    place = Place([KV], config=replace(TINY, merge_bytes=memory))
    most = (1 << 63) - 1
    runs = [place.run([kv(n, time=1, diff=most if n == 30 else 1) for n in range(60)]) for _ in range(4)]
    before = keys_in(place.blob)
    with pytest.raises(DiffOverflow):
        merge(place, runs)
    assert keys_in(place.blob) == before


def test_sums_that_overflow_only_together_are_kept_modulo_64_bits():
    place = Place([KV], config=TINY)
    most = (1 << 63) - 1
    runs = [place.run([kv(number, time=1, diff=most)]) for number in range(3)]
    batch = merge(place, runs)
    assert batch.diff_sum == wrap_int64(3 * most)
    assert [diff for _, _, diff in rows_of(place, batch)[0]] == [most] * 3


def test_storage_that_fails_is_raised_and_nothing_is_left():
    for failing in range(1, 12):
        place = Place([KV], config=replace(TINY, storage_attempts=1, merge_bytes=1500))
        runs = [place.run([kv(n, time=time) for n in range(60)]) for time in range(5)]
        before = keys_in(place.blob)
        puts = itertools.count(1)

        def decide(what, key, puts=puts, failing=failing):
            return Fault.INDETERMINATE_DONE if what == "put" and next(puts) == failing else Fault.NONE

        blob = UnreliableBlob(place.blob, decide)
        with pytest.raises(Indeterminate, match="injected"):
            merge(place, runs, blob=blob)
        assert keys_in(place.blob) == before


def test_puts_that_fail_once_are_tried_again():
    place = Place([KV], config=replace(TINY, storage_attempts=3, retry_pause_ms=1))
    runs = [place.run([kv(n, time=time) for n in range(60)]) for time in range(2)]
    seen = set()

    def decide(what, key):
        fresh = what == "put" and key not in seen
        seen.add(key)
        return Fault.DETERMINATE if fresh else Fault.NONE

    batch = merge(place, runs, blob=UnreliableBlob(place.blob, decide))
    assert len(rows_of(place, batch)[0]) == 120
    assert any(part.hollow for part in batch.parts), "lists of parts too"


def test_an_unknown_schema_is_corrupt():
    place = Place([KV], config=TINY)
    run = Run(place.run([kv(1)]).parts, Order.SORTED, 3)
    with pytest.raises(CorruptionError, match="schema 3"):
        merge(place, [run])


def test_merges_that_are_silent_for_long_are_named_once_per_term():
    now = [0.0]
    place = Place([KV], config=TINY)
    run = place.run([kv(n) for n in range(10)])
    told = []

    class Slow(type(place.blob)):
        def get_range(self, key, start, stop):
            now[0] += 30
            told.append(made.long_merges(50))
            return place.blob.get_range(key, start, stop)

    made = engine_of(place, blob=Slow(), monotonic=lambda: now[0])
    effect = MergeRuns("orders", request([Run(run.parts, Order.UNORDERED, 0)]), "m1")
    made.merge(effect)
    assert [len(each) for each in told] == [0, 1]
    assert told[1] == [("orders", (0, 1), "m1")]
    now[0] += 1000
    assert made.long_merges(50) == [], "it is done"


def test_two_coordinates_are_advanced_one_by_one_and_put_in_order_again():
    schema = define({"k": "int64"}, None, arity=2)
    place = Place([schema], config=TINY)
    made = [((k,), (a, b), 1) for k in range(3) for a in range(3) for b in range(3)]
    runs = [place.run(made[::2]), place.run(made[1::2])]
    since = Frontier(((0, 2), (2, 0)))
    for frontier in (since, Frontier.at(1, 1)):
        batch = merge(place, runs, frontier)
        assert sorted(rows_of(place, batch)[0]) == sorted(compact(made, frontier))


def test_a_closed_since_leaves_times_as_they_are():
    place = Place([KV], config=TINY)
    runs = [place.run([kv(n, time=time) for n in range(5)]) for time in (3, 7)]
    batch = merge(place, runs, CLOSED)
    assert comparable(rows_of(place, batch)[0]) == comparable([kv(n, time=time) for n in range(5) for time in (3, 7)])
    assert batch.desc.since == CLOSED


def test_parts_of_a_run_stay_in_its_order_however_long_their_bounds_are():
    schema = define({"k": "string"}, None)
    place = Place([schema], config=replace(TINY, bound_bytes=4))
    first = place.ordered([(("prefix 1",), (0,), 1)], 0)
    middle = place.ordered([(("prefix 2",), (0,), 1)], 0)
    last = place.ordered([(("prefix 3",), (0,), 1)], 0)
    parts = (place.stored(first, 0), place.inline(middle, 0, described=False), place.stored(last, 0))
    batch = merge(place, [Run(parts, Order.SORTED, 0)])
    assert [row for row, _, _ in rows_of(place, batch)[0]] == [("prefix 1",), ("prefix 2",), ("prefix 3",)]


def test_a_merge_pushes_nothing_out_of_the_cache_not_even_for_footers_and_lists():
    place = Place([KV], config=TINY)
    runs = [place.run([kv(n, time=time) for n in range(60)], cuts=(20, 40), nested=True) for time in range(4)]
    cache = PartCache(1 << 20)
    cache.put("what others come back to", b"", 1 << 20)
    engine = Engine(place.blob, lambda collection: place.schemas, place.config, fresh=place.name, cache=cache)
    assert engine.merge(MergeRuns(place.collection, request(runs, None, 1), "m1")).batch.len == 240
    assert cache.evictions == 0
    assert len(cache) == 1

"""The past is a run of its own that adds nothing from its last time on, and goes without a rewrite of the rest."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import msgspec
import pyarrow as pa
import pytest
from building import keys_in
from hypothesis import HealthCheck, settings
from hypothesis import given as examples
from hypothesis import strategies as st
from run_cases import CONFIG, Place, updates_of
from test_merge_engine import KV, TINY, check_runs, engine_of, kv, leaves, reachable, rows_of, sums_of

from timespine.columnar.merge.split_past import can_split, split_past, time_at_or_after_all
from timespine.columnar.scan.scan import needs_no_merge, scan
from timespine.columnar.scan.scan_request import ScanRequest
from timespine.columnar.scan.verify_past_run import check_past_run
from timespine.columnar.scan.visibility import Window
from timespine.columnar.schema.schema import define
from timespine.core.batch import HollowBatch, Order, Run
from timespine.core.effects import MergeRuns
from timespine.core.read_plan import Plan
from timespine.core.spine import rope as ropes
from timespine.core.spine.layers import MergeRequest
from timespine.errors import CorruptionError
from timespine.model.description import Description
from timespine.model.frontier import Frontier
from timespine.model.oracle import compact

some = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
SPLITS = replace(TINY, row_group_rows=1)
"""Everything is large enough to be split."""
NOTHING = 1 << 60


def naive_past(updates):
    """The updates at or before the last time at which those of their row add up to zero."""
    past = set()
    for row in {row for row, _, _ in updates}:
        mine = sorted((time, diff) for each, time, diff in updates if each == row)
        sums, zero = 0, None
        for place, (_, diff) in enumerate(mine):
            sums += diff
            zero = place if sums == 0 else zero
        past |= {(row, time, diff) for time, diff in mine[: 0 if zero is None else zero + 1]}
    return past


@some
@examples(
    st.dictionaries(
        st.tuples(st.sampled_from([None, 1, 2, 3]), st.sampled_from(["", "x", None]), st.integers(0, 6)),
        st.sampled_from([-2, -1, 1, 2]),
    ),
    st.sets(st.integers(1, 60)),
    st.sampled_from([1, NOTHING]),
)
def test_updates_up_to_the_last_zero_of_their_row_are_past(drawn, cuts, row_bytes_max):
    place = Place([KV])
    updates = [((k, v), (time,), diff) for (k, v, time), diff in drawn.items()]
    table = place.ordered(updates, 0)
    edges = [0, *sorted(min(cut, table.num_rows) for cut in cuts), table.num_rows]
    tables = [table.slice(a, b - a) for a, b in pairwise(edges)]
    pieces = list(split_past(tables, KV, row_bytes_max))
    live = [update for each in pieces for update in updates_of(each.live, KV)]
    past = [update for each in pieces for update in updates_of(each.past, KV)]
    assert Counter(map(repr, [*live, *past])) == Counter(map(repr, updates_of(table, KV)))
    assert sums_of(past) == {}
    if row_bytes_max == NOTHING:
        assert set(map(repr, past)) == set(map(repr, naive_past(updates)))


def test_sums_that_may_not_fit_64_bits_are_live():
    big = (1 << 63) - 1
    table = Place([KV]).ordered([kv(1, time=0, diff=big), kv(1, time=1, diff=big), kv(1, time=2, diff=2)], 0)
    (first, last) = split_past([table], KV, NOTHING)
    assert first.live.num_rows + last.live.num_rows == 3
    assert first.past.num_rows + last.past.num_rows == 0


def test_rows_with_nested_values_are_not_split():
    assert can_split(KV)
    assert not can_split(define({"k": "int64"}, {"v": "list<int64>"}))


def test_the_latest_time_is_by_coordinate():
    schema = define({"k": "int64"}, None, arity=2)
    table = pa.table({"k": [1, 1], "_time_0": [1, 5], "_time_1": [7, 2], "_diff": [1, -1]})
    assert time_at_or_after_all(table, schema) == (5, 7)


def merge_batches(place, batches, since=None, **options):
    """Merge batches, one after the other in time from the first time on."""
    whole = Description(batches[0].desc.lower, batches[-1].desc.upper, since or Frontier.minimum(1))
    rope = ropes.balance([ropes.leaf(n, n + 1, batch) for n, batch in enumerate(batches)])
    effect = MergeRuns(place.collection, MergeRequest(whole, rope), "m1")
    return engine_of(place, **options).merge(effect)


def batch_of(place, updates, lower, upper, **options):
    run = place.run(updates, **options)
    desc = Description(Frontier.at(lower), Frontier.at(upper), Frontier.minimum(1))
    return HollowBatch(desc, sum(part.rows for part in run.parts), (run,) if run.parts else ())


def snapshot(place, batch, until):
    """The rows of a batch as of a time, and the runs that were read."""
    plan = Plan(0, Frontier.minimum(1), None, (until,), batch.runs, batch.desc.upper).summed()
    request = ScanRequest(place.newest, place.newest.names, Window(until=(until,)))
    found = Counter()
    for table in scan(place.parts(), plan.runs, request, 1 << 20):
        for row in table.to_pylist():
            found[row["k"], row["v"]] += row["_diff"]
    return dict(found), plan.runs


@some
@examples(st.data())
def test_merge_after_merge_gives_what_the_oracle_gives_at_every_time(data):
    config = replace(
        SPLITS,
        part_bytes=data.draw(st.sampled_from([1, 200, 1 << 20])),
        merge_bytes=data.draw(st.sampled_from([1, 1000, 1 << 20])),
        inline_part_bytes=data.draw(st.sampled_from([1, 1 << 20])),
    )
    place = Place([KV], config)
    rows = st.tuples(st.integers(0, 5), st.sampled_from("xy"))
    history, base, since, upper = [], None, 0, 0
    for _ in range(data.draw(st.integers(1, 5))):
        fresh = []
        for lower in range(upper, upper + data.draw(st.integers(1, 3))):
            drawn = data.draw(st.dictionaries(rows, st.sampled_from([-1, 1, 2]), max_size=6))
            updates = [(row, (lower,), diff) for row, diff in drawn.items()]
            history += updates
            kinds = (data.draw(st.sampled_from(["stored", "inline"])),)
            fresh.append(
                batch_of(place, updates, lower, lower + 1, kinds=kinds, cuts=data.draw(st.sets(st.integers(1, 5))))
            )
            upper = lower + 1
        since = data.draw(st.integers(since, upper - 1))
        before = set(keys_in(place.blob))
        merged = merge_batches(place, [*([base] if base else []), *fresh], Frontier.at(since))
        base = merged.batch
        check_runs(place, base)
        given, _ = rows_of(place, base)
        assert sorted(map(repr, compact(given, Frontier.at(since)))) == sorted(
            map(repr, compact(history, Frontier.at(since)))
        )
        for until in range(since, upper):
            expected = Counter()
            for row, (time,), diff in history:
                expected[row] += diff if time <= until else 0
            found, _ = snapshot(place, base, until)
            assert found == {row: diff for row, diff in expected.items() if diff}
        assert set(keys_in(place.blob)) - before <= reachable(place, base), "nothing is left behind"
        assert merged.rows <= base.len


def upserted(place, count=60, time=5):
    """A batch of rows, all of which another one replaces."""
    old = batch_of(place, [kv(k, "old", 0) for k in range(count)], 0, 1)
    changes = [kv(k, "old", time, -1) for k in range(count)] + [kv(k, "new", time) for k in range(count)]
    return [old, batch_of(place, changes, 1, time + 1)]


def test_the_newest_rows_are_one_run_that_needs_no_merge_and_older_ones_need_both():
    place = Place([KV], SPLITS)
    base = merge_batches(place, upserted(place)).batch
    live, past = base.runs
    assert (live.zero_from, past.zero_from) == (None, (5,))
    found, runs = snapshot(place, base, 5)
    assert runs == (live,)
    assert found == {(k, "new"): 1 for k in range(60)}
    assert needs_no_merge(place.parts(), live, ScanRequest(KV, KV.names, Window(until=(5,))))
    found, runs = snapshot(place, base, 4)
    assert runs == (live, past)
    assert found == {(k, "old"): 1 for k in range(60)}


def test_expiry_drops_the_past_without_a_look_and_passes_the_live_run_through():
    place = Place([KV], SPLITS)
    base = merge_batches(place, upserted(place)).batch
    live = {part.key for part in leaves(place, HollowBatch(base.desc, 0, base.runs[:1]))}
    for key_of in {part.key for part in leaves(place, base)}:
        place.blob.delete(key_of)  # neither the one nor the other is read
    after = merge_batches(place, [base], Frontier.at(5))
    assert after.rows == 0
    assert [run.zero_from for run in after.batch.runs] == [None]
    assert {part.key for part in leaves(place, after.batch)} == live


def test_expiry_of_a_part_of_the_past_rewrites_only_the_past():
    place = Place([KV], SPLITS)
    base = merge_batches(place, upserted(place)).batch
    again = [kv(k, "new", 9, -1) for k in range(3)] + [kv(k, "newest", 9) for k in range(3)]
    base = merge_batches(place, [base, batch_of(place, again, 6, 10)]).batch
    assert base.runs[1].zero_from == (9,)
    live = {part.key for part in leaves(place, HollowBatch(base.desc, 0, base.runs[:1]))}
    after = merge_batches(place, [base], Frontier.at(7))
    assert {part.key for part in leaves(place, HollowBatch(base.desc, 0, after.batch.runs[:1]))} == live
    found, _ = snapshot(place, after.batch, 7)
    assert found == {(k, "new"): 1 for k in range(60)}
    assert sum(part.rows for part in after.batch.runs[1].parts) == 6


def test_what_nothing_touches_passes_beside_a_past_that_reaches_over_all_of_it():
    place = Place([KV], replace(SPLITS, part_bytes=2000))
    base = merge_batches(place, upserted(place, 800)).batch
    change = batch_of(place, [kv(400, "new", 7, -1), kv(400, "newest", 7)], 6, 8)
    merged = merge_batches(place, [base, change])
    assert len(leaves(place, base)) > 10
    assert merged.rows < 500, "one part of what is live and a few of the past"
    check_runs(place, merged.batch)


def test_a_row_that_comes_and_goes_is_live_once():
    place = Place([KV], SPLITS)
    base = merge_batches(place, [batch_of(place, [kv(1, "x", t, (-1) ** t) for t in range(5)], 0, 5)]).batch
    live, past = base.runs
    assert [part.rows for part in live.parts] == [1]
    assert past.zero_from == (3,)


def test_fewer_rows_than_a_row_group_and_later_times_stay_one_run():
    place = Place([KV], replace(TINY, row_group_rows=1000))
    assert len(merge_batches(place, upserted(place)).batch.runs) == 1
    place = Place([KV], SPLITS)
    later = batch_of(place, [kv(1, "x", 3), kv(1, "x", 4, -1)], 3, 5)
    assert len(merge_batches(place, [later]).batch.runs) == 1


@pytest.mark.parametrize(
    ("updates", "zero_from", "why"),
    [
        ([kv(1, "x", 0), kv(1, "x", 1, -1)], (1,), None),
        ([kv(1, "x", 0), kv(1, "x", 1, -1)], (0,), "after"),
        ([kv(1, "x", 0), kv(2, "x", 1, -1)], (1,), "add up"),
    ],
)
def test_a_claim_about_the_past_is_checked(updates, zero_from, why):
    place = Place([KV], CONFIG)
    run = msgspec.structs.replace(place.run(updates), zero_from=zero_from)
    if why is None:
        check_past_run(place.parts(), run)
        return
    with pytest.raises(CorruptionError, match=why):
        check_past_run(place.parts(), run)


def test_rows_that_go_on_in_the_next_part_are_summed():
    place = Place([KV], CONFIG)
    request = ScanRequest(KV, KV.names, Window(until=(9,)))
    apart = place.run([kv(1, "x", 0), kv(2, "x", 1)], cuts=(1,))
    assert needs_no_merge(place.parts(), apart, request)
    for nested in (False, True):
        together = place.run([kv(1, "x", 0), kv(1, "x", 1)], cuts=(1,), nested=nested)
        assert not needs_no_merge(place.parts(), together, request)
    assert not needs_no_merge(place.parts(), Run(apart.parts, Order.UNORDERED, 0), request)

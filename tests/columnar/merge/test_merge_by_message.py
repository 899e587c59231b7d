"""A merge that travels to another process as bytes, and its result back, is the one that would have been done here."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import given as examples
from hypothesis import strategies as st
from merge_by_message import by_message, contents, copy_of
from run_cases import Place, worlds
from test_around_changes import GROUPS, TEXT, histories
from test_merge_engine import KV, TINY, configs, engine_of, kv, request, sinces
from test_split_past import SPLITS, batch_of

from timespine.columnar.merge import around_changes
from timespine.core.effects import MergeRuns
from timespine.core.spine import rope as ropes
from timespine.core.spine.layers import MergeRequest
from timespine.model.description import Description
from timespine.model.frontier import Frontier

some = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def merged_both_ways(place, asked, seen=None):
    """What this process and the messages give for a request. All of it is equal: the result, blobs, and counters."""
    copied = copy_of(place)
    effect = MergeRuns(place.collection, asked, "m1")
    here_counters, there_counters = {}, {}
    here = engine_of(place, counters_of=lambda collection: here_counters).merge(effect)
    engine = engine_of(copied, counters_of=lambda collection: there_counters)
    engine.whole_delegate = by_message(copied)
    there = engine.merge(effect)
    assert untimed(there) == untimed(here)
    assert contents(copied) == contents(place)
    assert there_counters.keys() == here_counters.keys()
    for what, count in here_counters.items():
        assert there_counters[what] == count or "seconds" in what, what
    if seen is not None:
        seen.update(what for what, count in here_counters.items() if count)
    return here


def untimed(output):
    return None if output is None else msgspec.structs.replace(output, ms=0)


@some
@examples(st.data())
def test_a_merge_of_any_runs_by_messages_gives_what_it_gives_here(data):
    """Truncated, rewritten and hollow parts, one or two coordinates, schemas that changed."""
    place, runs, _, _ = data.draw(worlds())
    place.config = data.draw(configs)
    runs = [run for run in runs if run.parts]
    if runs:
        merged_both_ways(place, request(runs, data.draw(sinces(place.newest.arity)), place.newest.arity))


def asked_of(batches, since):
    """A request to merge batches, one after the other in time."""
    whole = Description(batches[0].desc.lower, batches[-1].desc.upper, Frontier.at(since))
    return MergeRequest(whole, ropes.balance([ropes.leaf(n, n + 1, batch) for n, batch in enumerate(batches)]))


@some
@examples(st.data())
def test_merge_after_merge_by_messages_gives_the_same_live_and_past_runs(data):
    place = Place([KV], replace(SPLITS, part_bytes=data.draw(st.sampled_from([1, 200, 1 << 20]))))
    rows = st.dictionaries(st.tuples(st.integers(0, 5), st.sampled_from("xy")), st.sampled_from([-1, 1, 2]), max_size=6)
    base, since, upper = [], 0, 0
    for _ in range(data.draw(st.integers(1, 4))):
        fresh = []
        for lower in range(upper, upper + data.draw(st.integers(1, 3))):
            updates = [(row, (lower,), diff) for row, diff in data.draw(rows).items()]
            fresh.append(batch_of(place, updates, lower, lower + 1, cuts=data.draw(st.sets(st.integers(1, 5)))))
            upper = lower + 1
        since = data.draw(st.integers(since, upper - 1))
        base = [merged_both_ways(place, asked_of([*base, *fresh], since)).batch]
        place.writer = f"w{upper}"


def copy_whatever_the_size(patched):
    """Let a merge copy single row groups of small parts."""
    for name, limit in {"COPIED_GROUPS_MIN": 1, "SMALL": 1 << 40, "UNTOUCHED_SHARE": 1 << 60}.items():
        patched.setattr(around_changes, name, limit)


@some
@examples(histories(), st.sampled_from([GROUPS, replace(GROUPS, part_bytes=300)]))
def test_a_merge_around_changes_by_messages_copies_the_same_row_groups(history, config):
    long, changes, since, cuts = history
    place = Place([TEXT], config=config)
    runs = [place.run(long, cuts=cuts)]
    runs += [run for time in (3, 4) if (run := place.run([each for each in changes if each[1] == (time,)])).parts]
    with pytest.MonkeyPatch.context() as patched:
        copy_whatever_the_size(patched)
        merged_both_ways(place, request(runs, Frontier.at(since)))


def test_these_merges_pass_parts_copy_row_groups_and_split_the_past(monkeypatch):
    copy_whatever_the_size(monkeypatch)
    seen = Counter()
    place = Place([KV], replace(GROUPS, bound_bytes=64))
    base = place.run([kv(n, time=1) for n in range(0, 100, 2)], cuts=range(10, 50, 10))
    change = place.run([kv(31, "new", 2), kv(32, "x", 2, -1)])
    merged = merged_both_ways(place, request([base, change]), seen)
    assert {"merge parts passed", "merge rows copied"} <= set(seen)
    assert [run.zero_from for run in merged.batch.runs] == [None, (2,)]


def test_an_input_that_is_gone_is_the_same_answer_by_messages():
    place = Place([KV], TINY)
    runs = [place.run([kv(n, time=time) for n in range(40)], cuts=(20,)) for time in range(2)]
    place.blob.delete(runs[1].parts[-1].key)
    assert merged_both_ways(place, request(runs)) is None

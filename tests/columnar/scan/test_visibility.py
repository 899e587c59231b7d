"""What is seen through a reference is what the plan says, update by update."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_cases import update_table, updates_of, windows

from timespine.columnar.scan.visibility import ALL_TIMES, Window, advance_times, apply_visibility
from timespine.columnar.schema.schema import define
from timespine.core.batch import Part
from timespine.core.read_plan import Plan
from timespine.errors import UsageError
from timespine.model.frontier import CLOSED, Frontier, advance_by
from timespine.model.time import INT64_MAX

COORDINATES = st.one_of(st.integers(0, 5), st.sampled_from([INT64_MAX, INT64_MAX - 1]))


def schema_of(arity):
    return define({"k": "int64"}, None, arity=arity)


def frontiers(arity, closed=False):
    times = st.tuples(*[COORDINATES] * arity)
    return st.lists(times, min_size=0 if closed else 1, max_size=3).map(lambda each: Frontier(tuple(each)))


@settings(max_examples=200)
@given(st.data(), st.integers(1, 3))
def test_an_update_is_seen_when_the_plan_counts_it_and_at_its_advanced_time(data, arity):
    schema = schema_of(arity)
    times = data.draw(st.lists(st.tuples(*[COORDINATES] * arity), max_size=12))
    updates = [((n,), time, n + 1) for n, time in enumerate(times)]
    part = Part(
        "c/w/p",
        len(times),
        lower=data.draw(st.none() | frontiers(arity, closed=True)),
        upper=data.draw(st.none() | frontiers(arity, closed=True)),
        rewrite=data.draw(st.none() | frontiers(arity)),
    )
    window = data.draw(windows(arity))
    until = window.until or (INT64_MAX,) * arity
    plan = Plan(0, Frontier.minimum(arity), window.after, until, (), CLOSED)
    expected = []
    for row, time, diff in updates:
        if plan.counts(part, time):
            time = time if part.rewrite is None else advance_by(time, part.rewrite)
            expected.append((row, time if window.since is None else advance_by(time, window.since), diff))
    table = update_table(updates, schema)
    cut = data.draw(st.integers(0, len(updates)))
    chunked = pa.concat_tables([table.slice(0, cut), table.slice(cut)])
    project_chunk = apply_visibility(chunked, part, window, arity)
    assert updates_of(project_chunk, schema) == expected
    assert project_chunk.schema.equals(table.schema, check_metadata=True)
    project_chunk.validate(full=True)


def test_what_is_seen_whole_is_not_copied():
    table = update_table([((n,), (n,), 1) for n in range(5)], schema_of(1))
    assert apply_visibility(table, Part("c/w/p", 5), ALL_TIMES, 1) is table
    inside = Part("c/w/p", 5, lower=Frontier.at(0), upper=Frontier.at(9))
    assert apply_visibility(table, inside, Window(until=(4,), since=Frontier.at(0)), 1) is table


def test_nothing_is_seen_after_a_closed_lower_and_everything_before_a_closed_upper():
    table = update_table([((n,), (n,), 1) for n in range(5)], schema_of(1))
    assert apply_visibility(table, Part("c/w/p", 5, lower=CLOSED), ALL_TIMES, 1).num_rows == 0
    assert apply_visibility(table, Part("c/w/p", 5, upper=CLOSED), ALL_TIMES, 1).num_rows == 5


def test_nothing_can_be_advanced_to_a_closed_frontier():
    table = update_table([((1,), (0,), 1)], schema_of(1))
    with pytest.raises(UsageError, match="closed"):
        apply_visibility(table, Part("c/w/p", 1), Window(since=CLOSED), 1)
    with pytest.raises(UsageError, match="closed"):
        advance_times([], CLOSED)

"""Timed changes: at every time between two refreshes, a plan is what the naive oracle makes of the inputs as of it."""

import itertools
from collections import Counter

import polars as pl
from assertions import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import TABLES, Names, plans, tables
from test_engine import Memory

from timespine.testing.views import Versions, minus
from timespine.views.engine.lowering import WEIGHT
from timespine.views.every.timed_evaluate import TimedEvaluator
from timespine.views.every.timed_rows import TIME
from timespine.views.plan.algebra import Aggregate, names_of, nodes_of
from timespine.views.plan.delta import NEW

BEFORE = 10


@st.composite
def histories(draw):
    """Tables as of the last refresh and as of some later times."""
    states = [{name: draw(tables) for name in TABLES}]
    for _ in range(draw(st.integers(1, 4))):
        new = {}
        for name, table in states[-1].items():
            after = Counter(table)
            if draw(st.integers(0, 2)):
                after.update(draw(tables))
                for row in draw(st.lists(st.sampled_from(sorted(after, key=repr)), max_size=3)) if after else ():
                    after[row] -= draw(st.integers(1, after[row])) if after[row] else 0
            new[name] = Counter({row: count for row, count in after.items() if count})
        states.append(new)
    times = sorted(
        draw(st.sets(st.integers(BEFORE + 1, BEFORE + 30), min_size=len(states) - 1, max_size=len(states) - 1))
    )
    return dict(zip([BEFORE, *times], states, strict=True))


class TimedMemory(Memory):
    """A source in memory that knows the inputs as of several times."""

    def __init__(self, plan, states, staged):
        super().__init__(plan, states[min(states)], states[max(states)], staged)
        self.states = states

    def timed_changes(self, scan):
        parts, times = [], sorted(self.states)
        for before, time in itertools.pairwise(times):
            changed = minus(self.states[time][scan.input], self.states[before][scan.input])
            parts.append(self._frame(scan, changed).with_columns(pl.lit(time, pl.Int64).alias(TIME)))
        return pl.concat(parts)


@settings(max_examples=examples(80), deadline=None)
@given(st.builds(lambda: Names()).flatmap(lambda names: plans(names, 3)), histories())
def test_a_plan_is_exact_at_every_time(plan, states):
    at = {time: Versions(state, state).at(plan, NEW) for time, state in states.items()}
    for staged in (False, True):
        got = TimedEvaluator(TimedMemory(plan, states, staged), BEFORE).changes(plan)
        rows = got.select([*names_of(plan), TIME, WEIGHT]).rows()
        assert len({row[:-1] for row in rows}) == len(rows), "changes are consolidated"
        running = Counter(at[BEFORE])
        for time in sorted(states)[1:]:
            for row in rows:
                if row[-2] == time:
                    running[row[:-2]] += row[-1]
            assert Counter({row: n for row, n in running.items() if n}) == at[time], time
        assert {row[-2] for row in rows} <= set(states) - {BEFORE}


@settings(max_examples=examples(80), deadline=None)
@given(st.builds(lambda: Names()).flatmap(lambda names: plans(names, 3)), histories())
def test_stages_get_the_net_change_at_the_last_time(plan, states):
    memory = TimedMemory(plan, states, staged=True)
    engine = TimedEvaluator(memory, BEFORE)
    engine.changes(plan)
    last = states[max(states)]
    whole = Memory(plan, last, last, staged=True)
    for node in nodes_of(plan):
        if isinstance(node, Aggregate):
            stage = memory.stages[node]
            before, after = engine.groups.get(node, (stage.clear(), stage.clear()))
            kept = Counter(stage.rows())
            kept.subtract(before.select(stage.columns).rows())
            kept.update(after.select(stage.columns).rows())
            assert Counter({row: n for row, n in kept.items() if n}) == Counter(whole.stages[node].rows())

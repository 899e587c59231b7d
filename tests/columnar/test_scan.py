"""Scans give what is there, whatever kind of parts it is in, whatever is skipped, and in whatever memory."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import HealthCheck, given as hypothesis_given, settings
from hypothesis import strategies as st
from run_cases import given, naive, order_keys, worlds

from timespine.columnar.scan import Wanted, cut_columns, scan
from timespine.columnar.visible import Window
from timespine.model.frontier import Frontier

slow = settings(max_examples=3000, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def windows(draw, arity, times=5):
    time = st.tuples(*[st.integers(0, times)] * arity)
    until = draw(st.none() | time)
    after = draw(st.none() | time)
    since = draw(st.none() | time.map(lambda each: Frontier((each,))))
    return Window(after, until, since)


@st.composite
def questions(draw, schema, **options):
    """What a reader may ask for."""
    columns = draw(st.lists(st.sampled_from(schema.names), min_size=1, unique=True))
    timed = draw(st.booleans())
    window = draw(windows(schema.arity))
    return Wanted(schema, tuple(columns), window, timed=timed, **options)


@slow
@hypothesis_given(st.data())
def test_a_scan_gives_exactly_what_is_seen(data):
    place, runs, history, _ = data.draw(worlds())
    wanted = data.draw(questions(place.newest))
    memory = data.draw(st.sampled_from([1, 300, 3000, 1 << 20]))
    tables = list(scan(place.parts(), runs, wanted, memory))
    assert given(tables, wanted) == naive(history, wanted)

"""Small appends that wait together give the rows and the answers that they give one at a time."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
from hypothesis import HealthCheck, settings
from hypothesis import given as examples
from hypothesis import strategies as st
from memory_store import BLOBS, QUICK, Gate, MemoryStore, together

from timespine.errors import TimespineError

some = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
KEY = {"n": "int64"}
VALUE = {"text": "string", "number": "double", "whole": "int64"}
NUMBERS = st.integers(0, 3)
COLUMNS = {
    "n": [NUMBERS, NUMBERS, NUMBERS, NUMBERS.map(float), st.just("three"), st.just(2**70), st.none(), st.just(0.5)],
    "text": [st.sampled_from(["", "a", "\u00e9"]), st.none(), NUMBERS],
    "number": [st.sampled_from([0.0, -0.0, 0.5, float("nan")]), NUMBERS, st.just(2**53 + 1), st.none()],
    "whole": [NUMBERS, st.just(2**53 + 1), st.just(2.0), st.just(0.5), st.none(), st.booleans()],
    "_diff": [st.sampled_from([1, 2, -1, 0])],
    "unknown": [NUMBERS],
}
"""For each column the kinds of its values: those of one append have one kind, some of which do not fit."""


@st.composite
def appends(draw):
    """Rows of one append, as dictionaries or as a table."""
    more = draw(st.lists(st.sampled_from(["text", "number", "whole", "whole", "_diff"]), max_size=3, unique=True))
    names = draw(st.permutations([*more, draw(st.sampled_from(["n"] * 15 + ["unknown"]))]))
    kinds = {name: draw(st.sampled_from(COLUMNS[name])) for name in names}
    # Rows that name their columns in several orders do not wait, and neither do those of several kinds.
    drawn = draw(st.lists(st.tuples(*kinds.values()), min_size=1, max_size=4))
    rows = [dict(zip(names, values, strict=True)) for values in drawn]
    if draw(st.booleans()) and not any(2**70 in row.values() for row in rows):
        return pa.table({name: [row[name] for row in rows] for name in names})
    return rows


def begun(place, config, **options):
    store = place.open(config=config, **options)
    collection = store.create("items", key=KEY, value=VALUE, timeline="counter")
    collection.append([{"n": 0}])
    return store, collection


def answer(made):
    """What an append tells: its time and what it counted, or why it was refused."""
    if isinstance(made, Exception):
        assert isinstance(made, TimespineError), made
        return type(made), str(made)
    return made.time, made.upper, made.rows


def one_by_one(collection, given):
    for rows in given:
        try:
            yield collection.append(rows)
        except TimespineError as error:
            yield error


def history(collection):
    """The rows as of each time, with their counts."""
    seen = []
    for time in range(collection.upper.elements[0][0]):
        rows = collection.snapshot(as_of=time, multiplicity="column").to_pylist()
        counts = Counter({(row["n"], row["text"], repr(row["number"]), row["whole"]): row["_diff"] for row in rows})
        assert len(counts) == len(rows)
        seen.append(counts)
    return seen


@some
@examples(st.lists(appends(), min_size=1, max_size=6), st.sampled_from([QUICK, BLOBS]))
def test_appends_that_wait_together_give_what_they_give_one_at_a_time(given, config):
    given = [[{"n": 1}], *given]  # The first one is held back until the others stand in line.
    with MemoryStore() as grouped, MemoryStore() as alone:
        gate = Gate(grouped.consensus)
        store, collection = begun(grouped, config, consensus=gate)
        tried = len(gate.sets)
        made = together(gate, store, [lambda rows=rows: collection.append(rows) for rows in given])
        assert len(gate.sets) - tried <= 2, "those that waited are one commit"
        _, other = begun(alone, config)
        assert list(map(answer, made)) == list(map(answer, one_by_one(other, given)))
        assert history(collection) == history(other)
        reopened = grouped.open(config=config)["items"]
        assert history(reopened) == history(other)

"""Pieces of a read cover each row once, and are about equally large."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import given as examples
from hypothesis import strategies as st
from run_cases import CONFIG, Place, given, naive, questions, worlds

from timespine.columnar.scan import merged, scan, sources
from timespine.columnar.schema import define
from timespine.columnar.splits import split_keys
from timespine.columnar.visible import Window
from timespine.columnar.wanted import Wanted
from timespine.columnar.where import as_predicate

some = settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
ROOMY = replace(CONFIG, bound_bytes=64, stats_bytes=1024, row_group_rows=10)
KV = define({"k": "int64"}, {"v": "string"})


def pieces(parts, runs, wanted, n):
    cuts = split_keys(parts, runs, wanted, n)
    for lower, upper in pairwise([wanted.lower, *cuts, wanted.upper]):
        yield replace(wanted, lower=lower, upper=upper)


@some
@examples(st.data(), st.integers(1, 8))
def test_the_pieces_of_a_read_have_each_row_once(data, n):
    place, runs, history, pools = data.draw(worlds())
    wanted, naively = data.draw(questions(place.newest, pools))
    parts = place.parts(audit=1.0)
    cuts = split_keys(parts, runs, wanted, n)
    assert len(cuts) < n
    assert all(
        a < b for a, b in pairwise([each for each in (wanted.lower, *cuts, wanted.upper) if each is not None]) if cuts
    )
    counted = Counter()
    for piece in pieces(parts, runs, wanted, n):
        memory = data.draw(st.sampled_from([1, 1 << 20]))
        rows = given(merged(parts, sources(parts, runs, piece), piece, memory), piece)
        assert not rows.keys() & counted.keys()
        counted.update(rows)
    assert counted == naive(history, wanted, **naively)


@pytest.mark.parametrize("n", range(1, 9))
@pytest.mark.parametrize("cuts", [(), range(0, 1000, 77)])
def test_pieces_are_about_equally_large(n, cuts):
    place = Place([KV], config=ROOMY)
    one = place.run([((k, "x"), (0,), 1) for k in range(1000)], cuts=cuts)
    two = place.run([((k, "y"), (1,), 1) for k in range(0, 1000, 2)])
    parts = place.parts()
    wanted = Wanted(KV, KV.names)
    sizes = [
        sum(table.num_rows for table in scan(parts, [one, two], piece, 1 << 20))
        for piece in pieces(parts, [one, two], wanted, n)
    ]
    assert len(sizes) == n
    assert sum(sizes) == 1500
    assert max(sizes) <= 1500 / n + 60


def test_a_piece_can_be_split_again():
    place = Place([KV], config=ROOMY)
    run = place.run([((k, "x"), (0,), 1) for k in range(1000)])
    parts = place.parts()
    half, _ = pieces(parts, [run], Wanted(KV, KV.names), 2)
    quarters = list(pieces(parts, [run], half, 2))
    rows = [
        [row["k"] for table in scan(parts, [run], piece, 1 << 20) for row in table.to_pylist()] for piece in quarters
    ]
    assert [len(each) for each in rows] == [250, 250]
    assert rows[0] + rows[1] == list(range(500))


def test_pieces_of_what_a_condition_leaves_are_about_equally_large():
    place = Place([KV], config=ROOMY)
    run = place.run([((k, "x"), (k // 500,), 1) for k in range(1000)], cuts=range(0, 1000, 100))
    parts = place.parts()
    for wanted in (Wanted(KV, KV.names, where=as_predicate("k < 400")), Wanted(KV, KV.names, Window(until=(0,)))):
        sizes = [
            sum(table.num_rows for table in scan(parts, [run], piece, 1 << 20))
            for piece in pieces(parts, [run], wanted, 2)
        ]
        assert sizes[0] == sizes[1], "parts that are skipped do not count"


def test_one_key_and_rows_in_the_state_are_not_cut():
    place = Place([KV], config=ROOMY)
    same = place.run([((7, f"v{n:04}"), (0,), 1) for n in range(100)])
    assert split_keys(place.parts(), [same, same], Wanted(KV, KV.names), 4) == []
    inline = place.run([((n, "x"), (0,), 1) for n in range(100)], kinds=("inline",))
    assert split_keys(place.parts(), [inline], Wanted(KV, KV.names), 4) == []
    assert split_keys(place.parts(), [], Wanted(KV, KV.names), 4) == []


def test_nulls_come_first_and_make_no_empty_piece():
    schema = define({"k": "string"}, {"v": "int64"})
    place = Place([schema], config=ROOMY)
    runs = [place.run([((None if n < 30 else f"{n:03}", n), (time,), 1) for n in range(100)]) for time in (0, 1)]
    parts = place.parts()
    wanted = Wanted(schema, schema.names)
    for n in range(2, 9):
        for piece in pieces(parts, runs, wanted, n):
            assert sum(table.num_rows for table in scan(parts, runs, piece, 1 << 20)) > 0


def test_a_key_that_was_widened_to_a_double_is_cut_where_it_was_written():
    schema = define({"k": "int32"}, None)
    newest = schema.widen("k", "double")
    place = Place([schema, newest], config=ROOMY)
    run = place.run([((n,), (0,), 1) for n in range(-100, 100)], 0)
    parts = place.parts()
    wanted = Wanted(newest, ("k",))
    rows = [
        [row["k"] for table in scan(parts, [run], piece, 1 << 20) for row in table.to_pylist()]
        for piece in pieces(parts, [run], wanted, 2)
    ]
    assert [len(each) for each in rows] == [100, 100]
    assert rows[0] + rows[1] == [float(n) for n in range(-100, 100)]

"""Pieces of a read cover each row once, and are about equally large."""

from __future__ import annotations

import contextlib
import datetime
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from unittest.mock import patch

import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, event, settings
from hypothesis import given as examples
from hypothesis import strategies as st
from run_cases import CONFIG, Place, given, naive, questions, worlds

from timespine.columnar.kernels.key_encoding import encode_scalar
from timespine.columnar.parts.part_stats import PartMeta
from timespine.columnar.predicate.where import as_predicate
from timespine.columnar.scan import split_keys as module
from timespine.columnar.scan.scan import merge_sources, scan, scan_sources
from timespine.columnar.scan.scan_request import ScanRequest
from timespine.columnar.scan.split_keys import FEW_PARTS, SMALL_PARTS, split_keys
from timespine.columnar.scan.visibility import Window
from timespine.columnar.schema.schema import define
from timespine.core.batch import Order, Part, Run

some = settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
ROOMY = replace(CONFIG, bound_bytes=64, stats_bytes=1024, row_group_rows=10)
KV = define({"k": "int64"}, {"v": "string"})


def pieces(parts, runs, wanted, n):
    return between(split_keys(parts, runs, wanted, n), wanted)


def between(cuts, wanted):
    for lower, upper in pairwise([wanted.lower, *cuts, wanted.upper]):
        yield replace(wanted, lower=lower, upper=upper)


PLANS = pytest.mark.parametrize("planned_by", ["footers", "bounds"])


@PLANS
@some
@examples(st.data(), st.integers(1, 8))
def test_the_pieces_of_a_read_have_each_row_once(planned_by, data, n):
    place, runs, history, pools = data.draw(worlds())
    wanted, naively = data.draw(questions(place.newest, pools))
    parts = place.parts(audit=1.0)
    with planning_by(planned_by):
        cuts = split_keys(parts, runs, wanted, n)
    assert len(cuts) < n
    assert all(
        a < b for a, b in pairwise([each for each in (wanted.lower, *cuts, wanted.upper) if each is not None]) if cuts
    )
    counted = Counter()
    for piece in between(cuts, wanted):
        memory = data.draw(st.sampled_from([1, 1 << 20]))
        rows = given(merge_sources(parts, scan_sources(parts, runs, piece), piece, memory), piece)
        assert not rows.keys() & counted.keys()
        counted.update(rows)
    assert counted == naive(history, wanted, **naively)


TEXT = define({"name": "string", "k": "int64"}, {"v": "string"})
NAMES = st.sampled_from(["a", "ab", "a long name that bounds cut", "a long name that bounds cut off", "b"])


@PLANS
@some
@examples(st.data(), st.integers(2, 8))
def test_the_pieces_of_several_runs_of_small_parts_have_each_row_once(planned_by, data, n):
    """Of both plans, with parts that begin at the same cut bound, and with parts of which only some are small."""
    place = Place([TEXT], CONFIG)
    runs = []
    for time in range(data.draw(st.integers(1, 3))):
        keys = data.draw(st.lists(st.tuples(NAMES, st.integers(-9, 9)), min_size=8, max_size=40, unique=True))
        cuts = data.draw(st.lists(st.integers(1, len(keys)), max_size=12))
        runs.append(place.run([((*key, f"v{time}"), (time,), 1) for key in keys], cuts=cuts))
    wanted = ScanRequest(TEXT, TEXT.names)
    parts = place.parts(audit=1.0)
    with planning_by(planned_by):
        cuts = split_keys(parts, runs, wanted, n)
    event(f"{len(cuts)} cuts")
    assert all(lower < upper for lower, upper in pairwise(cuts))
    by_piece = [rows_of(scan(parts, runs, piece, 1 << 20), wanted) for piece in between(cuts, wanted)]
    assert [row for rows in by_piece for row in rows] == rows_of(scan(parts, runs, wanted, 1 << 20), wanted)


def rows_of(tables, wanted):
    return [tuple(row[name] for name in (*wanted.columns, "_diff")) for table in tables for row in table.to_pylist()]


def test_where_each_part_has_one_row_group_both_plans_are_the_same():
    place = Place([KV], config=ROOMY)
    updates = [((k, "x"), (0,), 1) for k in range(100)]
    runs = [place.run(updates, cuts=range(0, 100, 10)), place.run(updates[::3], cuts=(10, 20))]
    wanted = ScanRequest(KV, KV.names)
    by_footers = split_keys(place.parts(), runs, wanted, 3)
    for run in runs:
        for part in run.parts:
            place.blob.delete(part.key)
    with planning_by("bounds"):
        assert split_keys(place.parts(), runs, wanted, 3) == by_footers
    assert len(by_footers) == 2


@contextlib.contextmanager
def planning_by(how):
    """Read all footers, or none of a part that is smaller than a piece."""
    is_costly = how == "bounds"
    with (
        patch.object(module, "FEW_PARTS", 0 if is_costly else FEW_PARTS),
        patch.object(module, "SMALL_PARTS", 1 if is_costly else SMALL_PARTS),
    ):
        yield


@pytest.mark.parametrize("n", range(1, 9))
@pytest.mark.parametrize("cuts", [(), range(0, 1000, 77)])
def test_pieces_are_about_equally_large(n, cuts):
    place = Place([KV], config=ROOMY)
    one = place.run([((k, "x"), (0,), 1) for k in range(1000)], cuts=cuts)
    two = place.run([((k, "y"), (1,), 1) for k in range(0, 1000, 2)])
    parts = place.parts()
    wanted = ScanRequest(KV, KV.names)
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
    half, _ = pieces(parts, [run], ScanRequest(KV, KV.names), 2)
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
    for wanted in (
        ScanRequest(KV, KV.names, where=as_predicate("k < 400")),
        ScanRequest(KV, KV.names, Window(until=(0,))),
    ):
        sizes = [
            sum(table.num_rows for table in scan(parts, [run], piece, 1 << 20))
            for piece in pieces(parts, [run], wanted, 2)
        ]
        assert sizes[0] == sizes[1], "parts that are skipped do not count"


def test_one_key_and_rows_in_the_state_are_not_cut():
    place = Place([KV], config=ROOMY)
    same = place.run([((7, f"v{n:04}"), (0,), 1) for n in range(100)])
    assert split_keys(place.parts(), [same, same], ScanRequest(KV, KV.names), 4) == []
    inline = place.run([((n, "x"), (0,), 1) for n in range(100)], kinds=("inline",))
    assert split_keys(place.parts(), [inline], ScanRequest(KV, KV.names), 4) == []
    assert split_keys(place.parts(), [], ScanRequest(KV, KV.names), 4) == []


def test_nulls_come_first_and_make_no_empty_piece():
    schema = define({"k": "string"}, {"v": "int64"})
    place = Place([schema], config=ROOMY)
    runs = [place.run([((None if n < 30 else f"{n:03}", n), (time,), 1) for n in range(100)]) for time in (0, 1)]
    parts = place.parts()
    wanted = ScanRequest(schema, schema.names)
    for n in range(2, 9):
        for piece in pieces(parts, runs, wanted, n):
            assert sum(table.num_rows for table in scan(parts, runs, piece, 1 << 20)) > 0


def test_a_key_that_was_widened_to_a_double_is_cut_where_it_was_written():
    schema = define({"k": "int32"}, None)
    newest = schema.widen("k", "double")
    place = Place([schema, newest], config=ROOMY)
    run = place.run([((n,), (0,), 1) for n in range(-100, 100)], 0)
    parts = place.parts()
    wanted = ScanRequest(newest, ("k",))
    rows = [
        [row["k"] for table in scan(parts, [run], piece, 1 << 20) for row in table.to_pylist()]
        for piece in pieces(parts, [run], wanted, 2)
    ]
    assert [len(each) for each in rows] == [100, 100]
    assert rows[0] + rows[1] == [float(n) for n in range(-100, 100)]


# Keys of many shapes: one tenant or one day is cut as well as any other.

PREFIX = "a tenant with a name that is longer than any bound may be, and that all of them share: "

SHAPES = {
    "one tenant": ({"tenant": "string", "id": "int64"}, lambda n: ("acme", n)),
    "one day": ({"day": "date", "id": "int64"}, lambda n: (datetime.date(2026, 1, 1), n)),
    "two booleans": ({"flag": "bool", "id": "int64"}, lambda n: (n >= 500, n)),
    "nulls first": ({"a": "int64", "b": "string", "c": "int64"}, lambda n: (None, None, n)),
    "some nulls": ({"a": "int64", "b": "int64"}, lambda n: (None if n < 600 else 1, None if n in (0, 600) else n)),
    "long common prefixes": ({"name": "string"}, lambda n: (f"{PREFIX}{n:05}",)),
    "long constants before": ({"name": "string", "data": "binary"}, lambda n: (PREFIX, b"\0" * 100 + b"%05d" % n)),
    "three constants": ({"a": "double", "b": "bool", "c": "timestamp", "d": "int32"}, lambda n: (1.5, True, 7, n)),
    "few distinct ones": ({"a": "int64", "b": "int64"}, lambda n: (n // 400, n)),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("n", [2, 3, 8])
@pytest.mark.parametrize("is_key", [True, False])
def test_keys_of_every_shape_are_cut_into_pieces_of_about_equal_size(shape, n, is_key):
    columns, key_of = SHAPES[shape]
    schema = define(columns, {"v": "int64"}) if is_key else define(None, {**columns, "v": "int64"})
    place = Place([schema], config=replace(ROOMY, bound_bytes=24))
    runs = [
        place.run([((*key_of(n), 1), (0,), 1) for n in range(1000)], cuts=range(0, 1000, 330)),
        place.run([((*key_of(n), 2), (1,), 1) for n in range(0, 1000, 3)]),
    ]
    parts = place.parts(audit=1.0)
    wanted = ScanRequest(schema, schema.names)
    cuts = list(pieces(parts, runs, wanted, n))
    found = [[row for table in scan(parts, runs, piece, 1 << 20) for row in table.to_pylist()] for piece in cuts]
    rows = [tuple(row[name] for name in schema.names) for each in found for row in each]
    assert len(rows) == len(set(rows)) == 1000 + 334
    assert len(found) == n
    assert max(map(len, found)) <= (1000 + 334) / n + 60
    # What lies between two cuts is read, and little else: two row groups of each part, where its bounds do not tell.
    groups = []
    for piece in cuts:
        reading = place.parts()
        list(scan(reading, runs, piece, 1 << 20))
        groups.append(reading.scan_stats.groups)
    assert sum(groups) <= 136 + 2 * n * sum(len(run.parts) for run in runs)


def test_a_piece_of_rows_written_before_a_column_was_added_has_all_of_its_rows():
    old = define(None, {"a": "int64", "b": "int64"})
    new = old.add("c", "int64", 5)
    place = Place([old, new], config=ROOMY)
    runs = [
        place.run([((1, n), (0,), 1) for n in range(200)], 0),
        place.run([((1, n, n % 10), (1,), 1) for n in range(200)], 1),
    ]
    parts = place.parts(audit=1.0)
    wanted = ScanRequest(new, new.names)
    cuts = list(pieces(parts, runs, wanted, 4))
    found = [row for piece in cuts for table in scan(parts, runs, piece, 1 << 20) for row in table.to_pylist()]
    assert len(cuts) == 4
    assert sum(row["_diff"] for row in found) == 400
    assert len({(row["b"], row["c"]) for row in found}) == len(found)


def test_a_plan_of_ten_thousand_parts_reads_none_of_them():
    """The parts are not even there: what the state knows of them is enough."""
    place = Place([KV])
    known = PartMeta.decode(place.run([((0, "x"), (1,), 1)]).parts[0].meta)
    starts = [encode_scalar(10 * number, pa.int64()) for number in range(10_000)]
    parts = []
    for number, start in enumerate(starts):
        meta = msgspec.structs.replace(known, lower=start, upper=start + b"\xff")
        parts.append(Part(f"orders/w1/gone{number}", 100, 5000, 100, meta=meta.encode()))
    cuts = split_keys(place.parts(), [Run(tuple(parts), Order.SORTED, 0)], ScanRequest(KV, KV.names), 32)
    assert len(cuts) == 31
    places = [0, *(starts.index(cut) for cut in cuts), len(parts)]
    assert all(abs(stop - start - 10_000 / 32) <= 1 for start, stop in pairwise(places)), "equal pieces"

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

from timespine.columnar.kernels.key_encoding import decode_integer, encode_scalar
from timespine.columnar.parts.part_stats import PartMeta
from timespine.columnar.predicate.where import as_predicate
from timespine.columnar.scan import split_keys as module
from timespine.columnar.scan.part_access import Parts
from timespine.columnar.scan.rows_between_bounds import SMALL_PIECE
from timespine.columnar.scan.scan import merge_sources, scan, scan_sources
from timespine.columnar.scan.scan_request import ScanRequest
from timespine.columnar.scan.split_keys import CROWDED_PIECES, FEW_PARTS, SMALL_PARTS, split_keys
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


def described(known, key, start, stop, rows):
    """A part with the keys from start to stop, as the state knows it; its blob is not there."""
    lower, upper = (encode_scalar(each, pa.int64()) for each in (start, stop - 1))
    meta = msgspec.structs.replace(known, lower=lower, upper=upper + b"\xff")
    return Part(f"orders/w1/{key}", rows, 20_000_000, rows, meta=meta.encode())


@pytest.mark.parametrize("n", [2_500, 5_000, 10_000])
@pytest.mark.parametrize("runs", [1, 2])
def test_a_plan_with_a_piece_for_each_of_ten_thousand_parts_opens_none(n, runs):
    """Parts of two runs begin at nearly the same keys, so a key between them is no place to cut."""
    place = Place([KV])
    known = PartMeta.decode(place.run([((0, "x"), (1,), 1)]).parts[0].meta)
    count = 10_000 // runs
    each = [
        tuple(
            described(known, f"gone{run}x{at}", 1000 * at + run, 1000 * (at + 1) + run, 1_000_000)
            for at in range(count)
        )
        for run in range(runs)
    ]
    given = [Run(parts, Order.SORTED, 0) for parts in each]
    cuts = split_keys(place.parts(), given, ScanRequest(KV, KV.names), n)
    wanted = min(n, count)
    assert len(cuts) == wanted - 1
    ends = [0, *((decode_integer(cut) + 500) // 1000 for cut in cuts), count]
    assert {stop - start for start, stop in pairwise(ends)} == {count // wanted}


def overlapping(place, count, runs, rows):
    """Runs over the same keys, each in parts of about equally many rows, and how their parts would be cut."""
    return [
        place.run([((k, f"v{run}"), (run,), 1) for k in range(run, count, runs)], cuts=range(rows, count // runs, rows))
        for run in range(runs)
    ]


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@examples(
    st.integers(1, 4),
    st.integers(20, 80),
    st.integers(1, 60),
    st.booleans(),
)
def test_pieces_cut_by_bounds_are_nearly_as_equal_as_those_cut_by_row_groups(runs, rows, n, is_one_large):
    """Whether there are more pieces than parts, as many, or fewer; also beside a part that is larger than pieces."""
    place, count = Place([KV], config=ROOMY), 1200
    given = overlapping(place, count, runs, rows)
    if is_one_large:
        given.append(place.run([((k, "large"), (9,), 1) for k in range(count // 2, count)]))
    wanted = ScanRequest(KV, KV.names)
    parts = place.parts()
    by_groups = split_keys(parts, given, wanted, n)
    with patch.object(module, "FEW_PARTS", 0), patch.object(module, "SMALL_PARTS", 1000):
        by_bounds = split_keys(parts, given, wanted, n)
    tables = [scan(parts, given, piece, 1 << 20) for piece in between(by_bounds, wanted)]
    sizes = [sum(table.num_rows for table in each) for each in tables]
    total = count + (count // 2 if is_one_large else 0)
    assert sum(sizes) == total
    assert min(sizes) > 0
    event(f"{len(by_bounds) - len(by_groups)} more cuts than by row groups")
    # What is not opened has at most two pieces between its bounds; row groups have ten rows.
    assert max(sizes) <= (1 + CROWDED_PIECES + 1 / SMALL_PIECE) * total / n + 10 * (runs + 1) + 1


def opened_by(parts, plan):
    """The parts that a plan opens."""
    opened, load = [], Parts.open

    def counted(self, part, *given):
        opened.append(part.key)
        return load(self, part, *given)

    with patch.object(Parts, "open", counted):
        plan(parts)
    return opened


def test_of_many_parts_only_those_larger_than_pieces_are_opened():
    place = Place([KV], config=ROOMY)
    run = place.run(
        [((k, "x"), (0,), 1) for k in range(1500)], cuts=[*range(10, 510, 10), 1000, *range(1010, 1500, 10)]
    )
    sizes = {part.key: part.rows for part in run.parts}
    wanted = ScanRequest(KV, KV.names)
    with patch.object(module, "FEW_PARTS", 8):
        opened = opened_by(place.parts(), lambda parts: split_keys(parts, [run], wanted, 75))
    assert [sizes[key] for key in opened] == [500]


def test_of_more_large_parts_than_a_plan_may_open_it_opens_none():
    """The pieces are the parts: as many are as large as the largest one."""
    place = Place([KV], config=ROOMY)
    run = place.run([((k, "x"), (0,), 1) for k in range(2000)], cuts=range(100, 2000, 100))
    wanted = ScanRequest(KV, KV.names)
    cuts = []
    with patch.object(module, "FEW_PARTS", 8), patch.object(module, "OPENED_PARTS", 8):
        opened = opened_by(place.parts(), lambda parts: cuts.extend(split_keys(parts, [run], wanted, 100)))
    assert opened == []
    assert len(cuts) == 19


def test_of_many_parts_those_without_bounds_are_opened_up_to_a_number():
    place = Place([KV], config=ROOMY)
    run = place.run([((k, "x"), (0,), 1) for k in range(2000)], cuts=range(100, 2000, 100))
    unbounded = []
    for at, part in enumerate(run.parts):
        meta = PartMeta.decode(part.meta)
        meta = msgspec.structs.replace(meta, lower=None, upper=None) if at % 4 == 0 else meta
        unbounded.append(msgspec.structs.replace(part, meta=meta.encode()))
    wanted, given = ScanRequest(KV, KV.names), [Run(tuple(unbounded), run.order, run.schema)]
    for most, expected in ((256, 5), (3, 3)):
        with patch.object(module, "FEW_PARTS", 8), patch.object(module, "OPENED_PARTS", most):
            opened = opened_by(place.parts(), lambda parts: split_keys(parts, given, wanted, 20))
        assert len(opened) == expected
        assert set(opened) <= {part.key for part in unbounded[::4]}


def test_many_parts_from_before_the_key_was_widened_are_cut_by_the_bounds_of_its_first_column():
    schema = define({"k": "int32", "j": "int64"}, None)
    newest = schema.widen("k", "double")
    place = Place([schema, newest], config=replace(ROOMY, bound_bytes=24))
    run = place.run([((n, n), (0,), 1) for n in range(-100, 100)], 0, cuts=range(10, 200, 10))
    wanted = ScanRequest(newest, newest.names)
    cuts = []
    with patch.object(module, "FEW_PARTS", 8):
        opened = opened_by(place.parts(), lambda parts: cuts.extend(split_keys(parts, [run], wanted, 20)))
    assert opened == []
    pieces = [scan(place.parts(), [run], piece, 1 << 20) for piece in between(cuts, wanted)]
    assert [sum(table.num_rows for table in piece) for piece in pieces] == [10] * 20

"""Slices that travel as bytes give, together, the rows of the whole read, whoever reads them."""

from __future__ import annotations

import io
from dataclasses import replace
from itertools import pairwise

import msgspec
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import given as examples
from hypothesis import strategies as st
from run_cases import CONFIG, Place, order_keys, questions, schemas, worlds
from run_cases import updates as some_updates

from timespine.columnar.parts.part_cache import PartCache
from timespine.columnar.predicate.key_set import KeySet
from timespine.columnar.predicate.where import as_predicate
from timespine.columnar.scan.prune import Pruner
from timespine.columnar.scan.scan import parts_readable_as_is, scan
from timespine.columnar.scan.scan_request import ScanRequest
from timespine.columnar.scan.visibility import Window
from timespine.columnar.scan.worker_slice import Slice, cut_slices, read_slice_rows
from timespine.columnar.schema.schema import define
from timespine.core.batch import Order, Run
from timespine.errors import CorruptionError, UsageError
from timespine.model.frontier import Frontier

some = settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
KV = define({"k": "int64"}, {"v": "string"})
MEMORY = 1 << 20


def counted(tables, wanted):
    """Rows and their sums, in order."""
    sums = {}
    for table in tables:
        if table.num_rows:
            (keys,) = order_keys([table], wanted.order)
            for key, diff in zip(keys, table.column("_diff").to_pylist(), strict=True):
                sums[key] = sums.get(key, 0) + diff
    return sorted(sums.items(), key=repr)


@some
@examples(st.data())
def test_slices_together_are_the_whole(data):
    place, runs, _, pools = data.draw(worlds())
    wanted, _ = data.draw(questions(place.newest, pools, keys=False))
    schemas = [schema.encode() for schema in place.schemas]
    slices = cut_slices(place.parts(), schemas, runs, wanted, data.draw(st.integers(1, 5)))
    found = []
    for slice in slices:
        travelled = Slice.decode(slice.encode())
        assert travelled == slice
        found.extend(read_slice_rows(travelled, place.blob, place.config, PartCache(1 << 20), MEMORY))
    assert counted(found, wanted) == counted(scan(place.parts(), runs, wanted, MEMORY), wanted)


def check_pieces(place, runs, wanted, n):
    """Compare the parts of each piece with those that a look at all parts for every piece finds."""
    parts = place.parts()
    slices = cut_slices(parts, [schema.encode() for schema in place.schemas], runs, wanted, n)
    for slice in slices:
        piece = replace(wanted, lower=slice.lower, upper=slice.upper)
        oracle = [(run, tuple(parts.matching(run.parts, run, piece))) for run in runs]
        assert [each.parts for each in slice.runs] == [inside for _, inside in oracle if inside]
        assert [(each.order, each.schema) for each in slice.runs] == [
            (run.order, run.schema) for run, inside in oracle if inside
        ]
    return slices


@some
@examples(st.data())
def test_each_piece_has_the_parts_that_a_look_at_all_of_them_finds(data):
    place, runs, _, pools = data.draw(worlds())
    wanted, _ = data.draw(questions(place.newest, pools, keys=False))
    check_pieces(place, runs, wanted, data.draw(st.integers(2, 12)))


def test_parts_that_compare_by_the_first_column_alone_are_in_all_pieces_of_that_value():
    """A key column was widened: ends of pieces within one value of the column before it do not compare with bounds."""
    narrow = define({"a": "int64", "b": "int32"}, {})
    wide = narrow.widen("b", "int64")
    place = Place([narrow, wide], replace(CONFIG, bound_bytes=64))
    rows = [((a, b), (3,), 1) for a in (4, 5, 6) for b in range(30)]
    runs = [place.run(rows, 0, cuts=range(0, 90, 10)), place.run(rows, 1, cuts=range(0, 90, 10))]
    slices = check_pieces(place, runs, ScanRequest(wide, wide.names), 9)
    assert [sum(run.schema == 0 for run in slice.runs) for slice in slices] == [1] * 9
    assert [len(slice.runs[0].parts) for slice in slices] == [3, 3, 6, 3, 3, 6, 3, 3, 3]


@pytest.mark.parametrize("runs", [1, 20], ids=["one flat run", "many flat runs"])
def test_the_steps_of_cutting_grow_with_the_parts_and_not_with_parts_times_pieces(monkeypatch, runs):
    steps, seen = [0], Pruner.bounds_may_match

    def counted(self, meta):
        steps[0] += 1
        return seen(self, meta)

    monkeypatch.setattr(Pruner, "bounds_may_match", counted)
    place = Place([KV], replace(CONFIG, bound_bytes=64))
    each = 400 // runs
    flat = [
        place.run([((k, "x"), (3,), 1) for k in range(start, start + each)], cuts=range(each))
        for start in range(0, 400, each)
    ]
    slices = cut_slices(place.parts(), [KV.encode()], flat, ScanRequest(KV, KV.names), 40)
    assert len(slices) == 40
    assert sum(len(run.parts) for slice in slices for run in slice.runs) <= 400 + 2 * 40
    # Each part is looked at once to cut, once to leave out what the whole read does not need, and once for each of its
    # pieces: a look at all parts for each piece takes 400 * 40 steps.
    assert steps[0] <= 3 * 400 + 2 * 40


def world(**more):
    place = Place([KV], CONFIG)
    return place, place.run([((k, "x"), (3,), 1) for k in range(100)], **more)


def test_a_slice_names_only_the_parts_that_it_needs():
    place = Place([KV], CONFIG)
    runs = [place.run([((k, "x"), (3,), 1) for k in range(start, start + 50)]) for start in (0, 50)]
    slices = cut_slices(place.parts(), [KV.encode()], runs, ScanRequest(KV, KV.names), 4)
    assert len(slices) == 4
    assert sorted(len(slice.runs) for slice in slices)[:3] == [1, 1, 1]
    assert sum(slice.rows for slice in slices) < 4 * 100
    assert [slice.lower for slice in slices[1:]] == [slice.upper for slice in slices[:-1]]


def test_what_cannot_travel_is_refused():
    place, run = world()
    wanted = ScanRequest(KV, KV.names, where=as_predicate(pl.col("k") > 5))
    with pytest.raises(UsageError, match="polars"):
        cut_slices(place.parts(), [KV.encode()], [run], wanted, 2)
    keys = KeySet(KV.arrow.empty_table().select(["k"]))
    with pytest.raises(UsageError, match="lookup"):
        cut_slices(place.parts(), [KV.encode()], [run], ScanRequest(KV, KV.names, keys=keys), 2)
    for wrong in (b"", b"\x00" * 20, b"\xc1"):
        with pytest.raises(CorruptionError):
            Slice.decode(wrong)


WHOLE = ScanRequest(KV, KV.names, Window(until=(5,)))


@pytest.mark.parametrize(
    "wanted",
    [
        replace(WHOLE, window=Window(until=(2,))),
        replace(WHOLE, window=Window((1,), (5,))),
        replace(WHOLE, window=Window()),
        replace(WHOLE, keep_times=True),
        replace(WHOLE, where=as_predicate("k > 1")),
        replace(WHOLE, lower=b"\x01"),
        replace(WHOLE, schema=KV.rename("v", "w"), columns=("k", "w")),
    ],
    ids=["before it", "changes", "all times", "timed", "a condition", "a range", "another schema"],
)
def test_files_are_read_as_they_stand_only_if_nothing_is_left_to_do(wanted):
    place, run = world()
    parts = place.parts()
    whole = replace(WHOLE, columns=("v",))
    assert [part.key for part in parts_readable_as_is(parts, [run], whole) or []] == [part.key for part in run.parts]
    place.schemas.append(KV.rename("v", "w"))
    assert parts_readable_as_is(parts, [run], wanted) is None
    assert parts_readable_as_is(parts, [run, run], whole) is None


def test_files_with_more_than_plain_rows_are_not_read_as_they_stand():
    place = Place([KV], CONFIG)
    parts = place.parts()
    for updates in ([((1, "x"), (0,), 2)], [((1, "x"), (0,), 1), ((1, "x"), (1,), 1)], [((1, "x"), (0,), -1)]):
        assert parts_readable_as_is(parts, [place.run(updates)], WHOLE) is None
    _, run = world()
    moved = msgspec.structs.replace(run.parts[0], rewrite=Frontier.at(4))
    hidden = msgspec.structs.replace(run.parts[0], upper=Frontier.at(2))
    for part in (moved, hidden):
        assert parts_readable_as_is(parts, [msgspec.structs.replace(run, parts=(part,))], WHOLE) is None


@st.composite
def settled_worlds(draw):
    """A place with one run of rows that are there once each, at times until 3, in files or lists of files."""
    made, pools = draw(schemas())
    place, id = Place(made), len(made) - 1
    drawn = draw(some_updates(place.newest, pools))
    table = place.ordered([(row, (3,) * place.newest.arity, 1) for row, _, _ in drawn], id)
    ones = pa.array([1] * table.num_rows, pa.int64())
    table = table.set_column(table.column_names.index("_diff"), "_diff", ones).cast(place.newest.update_arrow)
    cuts = sorted({0, table.num_rows, *draw(st.lists(st.integers(0, table.num_rows), max_size=3))})
    parts = [place.stored(table.slice(a, b - a), id) for a, b in pairwise(cuts)]
    run = Run(tuple([place.listed(parts)] if parts and draw(st.booleans()) else parts), Order.SORTED, id)
    return place, [run] if parts else [], [], pools


def rows_of_files(place, parts, wanted):
    """What a reader that knows nothing but Parquet finds in the files of parts."""
    files = [pq.read_table(io.BytesIO(place.blob.get(part.key))) for part in parts]
    return [file.cast(place.newest.update_arrow).select([*wanted.order, "_diff"]) for file in files]


def check_files(place, runs, wanted, n):
    """Compare the files of parts that are read as they stand with the slices; tell whether there are such parts."""
    parts = parts_readable_as_is(place.parts(), runs, wanted)
    if parts is None:
        return False
    found = []
    for slice in cut_slices(place.parts(), [schema.encode() for schema in place.schemas], runs, wanted, n):
        found.extend(read_slice_rows(slice, place.blob, place.config, PartCache(1 << 20), MEMORY))
    files = rows_of_files(place, parts, wanted)
    assert counted(files, wanted) == counted(found, wanted)
    assert sum(file.num_rows for file in files) == sum(sum(table["_diff"].to_pylist()) for table in found)
    return True


@some
@examples(st.data())
def test_files_that_are_read_as_they_stand_have_the_rows_of_the_slices(data):
    place, runs, _, pools = data.draw(settled_worlds())
    wanted, _ = data.draw(questions(place.newest, pools, keys=False))
    until = Window(until=(4,) * place.newest.arity)
    wanted = replace(wanted, where=None, lower=None, upper=None, keep_times=False, window=until)
    assert check_files(place, runs, wanted, data.draw(st.integers(1, 4))) == bool(runs)


@some
@examples(st.data())
def test_what_is_left_to_do_is_never_overlooked_where_files_are_read_as_they_stand(data):
    """Parts of which some rows are not seen, times that do not count, retractions and conditions: one thing at most."""
    place, runs, _, pools = data.draw(settled_worlds() | settled_worlds() | settled_worlds() | worlds(max_runs=1))
    arity = place.newest.arity
    drawn, _ = data.draw(questions(place.newest, pools, keys=False))
    until = Window(until=(data.draw(st.integers(2, 4)),) * arity)
    wanted = replace(drawn, where=None, lower=None, upper=None, keep_times=False, window=until)
    spoiler = data.draw(
        st.sampled_from(["part", "part", "part", "where", "lower", "upper", "keep_times", "window", "nothing"])
    )
    if spoiler == "part":
        bound = Frontier.at(*[data.draw(st.integers(2, 4))] * arity)
        change = {data.draw(st.sampled_from(["lower", "upper", "rewrite"])): bound}
        runs = [
            msgspec.structs.replace(run, parts=tuple(msgspec.structs.replace(part, **change) for part in run.parts))
            for run in runs
        ]
    elif spoiler != "nothing":
        wanted = replace(wanted, **{spoiler: getattr(drawn, spoiler)})
    check_files(place, runs, wanted, data.draw(st.integers(1, 4)))


def test_files_in_nested_lists_are_read_as_they_stand_in_order():
    place, run = world(cuts=(30,), nested=True)
    parts = parts_readable_as_is(place.parts(), [run], WHOLE)
    assert [row["k"] for file in rows_of_files(place, parts, WHOLE) for row in file.to_pylist()] == list(range(100))

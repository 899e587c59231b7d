"""Slices that travel as bytes give, together, the rows of the whole read, whoever reads them."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import polars as pl
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import given as examples
from hypothesis import strategies as st
from run_cases import CONFIG, Place, order_keys, questions, worlds

from timespine.columnar.parts.part_cache import PartCache
from timespine.columnar.predicate.key_set import KeySet
from timespine.columnar.predicate.where import as_predicate
from timespine.columnar.scan.scan import parts_readable_as_is, scan
from timespine.columnar.scan.scan_request import ScanRequest
from timespine.columnar.scan.visibility import Window
from timespine.columnar.scan.worker_slice import Slice, cut_slices, read_slice_rows
from timespine.columnar.schema.schema import define
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

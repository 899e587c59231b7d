"""A whole read of a settled run gives the rows that merging it would give, and takes that path only where it may."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import given as examples
from hypothesis import strategies as st
from run_cases import CONFIG, Place, order_keys, questions, worlds
from test_part_stats import updates as update_tables

from timespine.columnar.kernels.consolidate import consolidate
from timespine.columnar.parts.part_reader import MissingBlob
from timespine.columnar.scan import settled_run as settled_module
from timespine.columnar.scan.parallel_scan import scan_in_shares
from timespine.columnar.scan.scan import scan
from timespine.columnar.scan.scan_request import ScanRequest
from timespine.columnar.scan.settled_run import settled_parts
from timespine.columnar.scan.visibility import Window
from timespine.columnar.schema.schema import define
from timespine.core.batch import Order, Run

some = settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
KV = define({"k": "int64"}, {"v": "string"})
MEMORY = 1 << 20
NOW = Window(until=(5,))


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch):
    monkeypatch.setattr(settled_module, "TASK_GROUPS", 2)


def rows_of(tables, wanted):
    keys = [row for rows in order_keys([table for table in tables if table.num_rows], wanted.order) for row in rows]
    diffs = [diff for table in tables for diff in table.column("_diff").to_pylist()]
    return sorted(zip(keys, diffs, strict=True))


def read(place, runs, wanted, **options):
    with ThreadPoolExecutor(2) as pool:
        parts = place.parts(pool=pool, **options)
        return list(scan_in_shares(parts, runs, wanted, MEMORY)), parts


@some
@examples(update_tables(), st.lists(st.integers(0, 8), max_size=3), st.booleans(), st.sampled_from([0, 1 << 20]))
def test_rows_of_a_settled_run_are_those_of_a_merge_whatever_their_types(drawn, cuts, nested, cache_bytes):
    schema, table = drawn
    place = Place([schema], CONFIG)
    rows = table.select(schema.names)
    for name in schema.time_names:
        rows = rows.append_column(name, pa.array([3] * table.num_rows))
    rows = rows.append_column("_diff", pa.array([1] * table.num_rows)).cast(schema.update_arrow)
    ordered = settled_table(place, rows, schema)
    edges = [0, *sorted({min(cut, ordered.num_rows) for cut in cuts}), ordered.num_rows]
    made = [place.stored(ordered.slice(a, b - a), 0) for a, b in itertools.pairwise(edges) if b > a]
    run = Run(tuple([place.listed(made)] if nested else made), Order.SORTED, 0)
    wanted = ScanRequest(schema, schema.names, Window(until=(5,) * schema.arity))
    assert settled_parts(place.parts(), [run], wanted) is not None
    found, _ = read(place, [run], wanted, cache_bytes=cache_bytes)
    assert rows_of(found, wanted) == rows_of(list(scan(place.parts(), [run], wanted, MEMORY)), wanted)
    for table in found:
        table.validate(full=True)
        assert [table.schema.field(name) for name in schema.names] == [
            schema.update_arrow.field(name) for name in schema.names
        ]


def settled_table(place, rows, schema):
    """Rows in order, each once and with a diff of one."""
    ordered = consolidate(rows, (*schema.order_names, *schema.time_names))
    place_of = ordered.column_names.index("_diff")
    return ordered.set_column(place_of, schema.update_arrow.field("_diff"), pa.array([1] * ordered.num_rows)).select(
        schema.update_arrow.names
    )


@some
@examples(st.data())
def test_what_is_not_settled_is_merged(data):
    """Retractions, several times and coordinates, schemas that changed, truncation: whatever a snapshot may hold."""
    place, runs, _, pools = data.draw(worlds())
    wanted, _ = data.draw(questions(place.newest, pools))
    found, _ = read(place, runs, wanted)
    assert rows_of(found, wanted) == rows_of(list(scan(place.parts(), runs, wanted, MEMORY)), wanted)


def place_and_run(count=40, time=3, diff=1):
    place = Place([KV], CONFIG)
    return place, place.run([((k, "x"), (time,), diff) for k in range(count)], cuts=(17,))


@pytest.mark.parametrize(
    ("time", "diff", "wanted"),
    [
        (3, 2, ScanRequest(KV, KV.names, NOW)),
        (3, -1, ScanRequest(KV, KV.names, NOW)),
        (6, 1, ScanRequest(KV, KV.names, NOW)),
        (3, 1, ScanRequest(KV, KV.names, Window(until=(5,), after=(2,)))),
        (3, 1, ScanRequest(KV, KV.names, NOW, keep_times=True)),
        (3, 1, ScanRequest(KV, ("k",), NOW)),
        (3, 1, ScanRequest(KV, KV.names, NOW, lower=b"\x01")),
    ],
)
def test_rows_that_count_otherwise_or_are_not_all_wanted_are_looked_at(time, diff, wanted):
    place, run = place_and_run(time=time, diff=diff)
    assert settled_parts(place.parts(), [run], wanted) is None


def test_two_runs_are_merged():
    place, run = place_and_run()
    assert settled_parts(place.parts(), [run, run], ScanRequest(KV, KV.names, NOW)) is None


def test_some_columns_of_rows_that_may_repeat_are_read_as_they_are():
    place, run = place_and_run()
    wanted = ScanRequest(KV, ("v",), NOW, allow_duplicates=True, keys_only=True)
    found, _ = read(place, [run], wanted, cache_bytes=0)
    assert [row["v"] for table in found for row in table.to_pylist()] == ["x"] * 40


def test_no_columns_at_all_still_have_rows():
    place, run = place_and_run()
    found, _ = read(place, [run], ScanRequest(KV, (), NOW, allow_duplicates=True, keys_only=True), cache_bytes=0)
    assert sum(table.num_rows for table in found) == 40


def test_what_fits_the_cache_is_decoded_once_and_what_does_not_pushes_nothing_out():
    place, run = place_and_run()
    wanted = ScanRequest(KV, KV.names, NOW)
    with ThreadPoolExecutor(2) as pool:
        parts = place.parts(pool=pool)
        list(scan_in_shares(parts, [run], wanted, MEMORY))
        fetched = parts.scan_stats.bytes
        list(scan_in_shares(parts, [run], wanted, MEMORY))
        assert parts.scan_stats.bytes == fetched
        assert (parts.scan_stats.parts, parts.scan_stats.groups) == (4, 28)
        little = replace(place.parts(cache_bytes=1, pool=pool), footers=parts.cache)
        list(scan_in_shares(little, [run], wanted, MEMORY))
        assert len(little.cache) == 0


def test_a_part_that_is_gone_is_missing_and_the_other_tasks_are_not_waited_for():
    place, run = place_and_run()
    with ThreadPoolExecutor(1) as pool:
        parts = place.parts(cache_bytes=0, footers=place.parts().cache, pool=pool)
        wanted = ScanRequest(KV, KV.names, NOW)
        assert list(scan_in_shares(parts, [run], wanted, MEMORY))
        for part in run.parts:
            place.blob.delete(part.key)
        with pytest.raises(MissingBlob):
            list(scan_in_shares(parts, [run], wanted, MEMORY))

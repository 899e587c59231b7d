"""A read of a settled run and its changes gives what merging them gives, and takes that path only where it may."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import msgspec
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, settings
from hypothesis import given as examples
from hypothesis import strategies as st
from run_cases import CONFIG as LARGE
from run_cases import Place, questions, worlds
from test_part_stats import updates as update_tables
from test_settled_run import read, rows_of, settled_table

from timespine.columnar.kernels.consolidate import consolidate
from timespine.columnar.parts.part_cache import CacheHint, PartCache
from timespine.columnar.parts.part_reader import MissingBlob
from timespine.columnar.predicate.key_set import KeySet
from timespine.columnar.scan import parallel_scan
from timespine.columnar.scan import settled_run as settled_module
from timespine.columnar.scan import settled_run_with_changes as changed_module
from timespine.columnar.scan.parallel_scan import scan_in_shares
from timespine.columnar.scan.scan import scan
from timespine.columnar.scan.scan_request import ScanRequest
from timespine.columnar.scan.settled_run_with_changes import changed_run
from timespine.columnar.scan.visibility import Window
from timespine.columnar.schema.schema import define
from timespine.columnar.schema.types import is_nested
from timespine.core.batch import Order, Run
from timespine.model.frontier import Frontier

some = settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
KV = define({"k": "int64"}, {"v": "string"})
CONFIG = replace(LARGE, any_order_rows=1)
MEMORY = 1 << 20
NOW = Window(until=(5,))
WANTED = ScanRequest(KV, KV.names, NOW)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(settled_module, "TASK_GROUPS", 2)
    monkeypatch.setattr(changed_module, "FEW", 0)


def with_system(rows, schema, time, diffs):
    """Update tables of some rows."""
    for name in schema.time_names:
        rows = rows.append_column(name, pa.array([time] * rows.num_rows, pa.int64()))
    return rows.append_column("_diff", pa.array(diffs, pa.int64())).cast(schema.update_arrow)


@some
@examples(st.data(), update_tables(), st.sampled_from([0, 1 << 20]), st.booleans())
def test_rows_and_changes_of_any_type_are_those_of_a_merge(data, drawn, cache_bytes, allow_duplicates):
    schema, table = drawn
    assume(schema.key and table.num_rows)
    place = Place([schema], CONFIG)
    rows = table.select(schema.names)
    there = data.draw(st.integers(1, rows.num_rows))
    base = settled_table(place, with_system(rows.slice(0, there), schema, 1, [1] * there), schema)
    order = (*schema.order_names, *schema.time_names)
    runs = [Run((place.stored(base, 0),), Order.SORTED, 0)]
    for time in range(2, 2 + data.draw(st.integers(1, 3))):
        went = data.draw(st.sets(st.integers(0, base.num_rows - 1)))
        taken = base.select(schema.names).take(pa.array(sorted(went), pa.int64()))
        gone = with_system(taken, schema, time, [-1] * len(went))
        diffs = data.draw(st.lists(st.sampled_from([1, 1, 1, -1, 2]), max_size=rows.num_rows))
        came = with_system(rows.slice(rows.num_rows - len(diffs)), schema, time, diffs)
        updates = consolidate(pa.concat_tables([gone, came]), order).select(schema.update_arrow.names)
        if updates.num_rows:
            made = place.inline if data.draw(st.booleans()) else place.stored
            runs.append(Run((made(updates.combine_chunks(), 0),), Order.SORTED, 0))
    columns = data.draw(st.sampled_from([schema.names, schema.key_names]))
    wanted = ScanRequest(
        schema,
        columns if allow_duplicates else schema.names,
        Window(until=(data.draw(st.integers(1, 4)),) * schema.arity),
        allow_duplicates=allow_duplicates,
    )
    kinds = [schema.types[name] for name in schema.key_names]
    is_exact = not any(pa.types.is_floating(kind) or is_nested(kind) for kind in kinds)
    if is_exact and len(runs) > 1 and all(run.parts[0].rows < base.num_rows for run in runs[1:]):
        assert changed_run(place.parts(), runs, wanted, MEMORY) is not None
    found, _ = read(place, runs, wanted, cache_bytes=cache_bytes)
    expected = list(scan(place.parts(), runs, replace(wanted, allow_duplicates=False), MEMORY))
    assert rows_of(net(found, wanted), wanted) == rows_of(net(expected, wanted), wanted)
    if wanted.columns == schema.names:
        assert rows_of(found, wanted) == rows_of(expected, wanted), "each row once"

    later = [replace(wanted, window=Window(until=(time,) * schema.arity)) for time in (*range(1, 5), *range(1, 5))]
    for again, tables in zip(later, read_in_turn(place, runs, later, cache_bytes=cache_bytes), strict=True):
        expected = list(scan(place.parts(), runs, replace(again, allow_duplicates=False), MEMORY))
        assert rows_of(net(tables, again), again) == rows_of(net(expected, again), again), "one cache, several times"

    viewed, _ = read(place, runs, replace(wanted, views=True), cache_bytes=cache_bytes)
    frame, plain = (pl.concat([pl.DataFrame(pl.from_arrow(table)) for table in tables]) for tables in (viewed, found))
    assert frame.schema == plain.schema
    assert frame.equals(plain)


def read_in_turn(place, runs, requests, **options):
    """Read the same runs by several requests, one after the other, with one cache."""
    with ThreadPoolExecutor(2) as pool:
        parts = place.parts(pool=pool, **options)
        return [list(scan_in_shares(parts, runs, request, MEMORY)) for request in requests]


def test_text_of_rows_that_pass_is_not_copied_for_a_caller_who_takes_views():
    place = Place([KV], CONFIG)
    found, _ = read(place, upserted(place), replace(WANTED, views=True))
    assert found[0].schema.field("v").type == pa.string_view()


def net(tables, wanted):
    """Tables as one, each row once."""
    tables = [table.select([*wanted.read, "_diff"]) for table in tables if table.num_rows]
    return [consolidate(pa.concat_tables(tables), wanted.order)] if tables else []


@some
@examples(st.data())
def test_whatever_a_snapshot_may_hold_is_that_of_a_merge(data):
    place, runs, _, pools = data.draw(worlds())
    place.config = CONFIG
    wanted, _ = data.draw(questions(place.newest, pools))
    found, _ = read(place, runs, wanted)
    assert rows_of(found, wanted) == rows_of(list(scan(place.parts(), runs, wanted, MEMORY)), wanted)


def upserted(place, count=40, changed=range(0, 40, 3), old="x"):
    """A settled run, and a run that replaces some of its rows."""
    base = place.run([((k, "x"), (1,), 1) for k in range(count)], cuts=(17,))
    changes = [((k, old), (2,), -1) for k in changed] + [((k, "y"), (2,), 1) for k in changed]
    return [base, place.run(changes)]


@pytest.fixture
def consolidations(monkeypatch):
    """Rows that were consolidated, call by call."""
    seen = []
    true = changed_module.consolidate

    def watched(table, order):
        seen.append(table.num_rows)
        return true(table, order)

    monkeypatch.setattr(changed_module, "consolidate", watched)
    return seen


def test_an_upsert_that_retracts_the_rows_that_it_met_needs_no_consolidation(consolidations):
    place = Place([KV], CONFIG)
    found, parts = read(place, upserted(place), WANTED)
    assert not consolidations
    assert len(rows_of(found, WANTED)) == 40
    assert {row["v"] for table in found for row in table.to_pylist() if row["k"] % 3 == 0} == {"y"}
    assert parts.scan_stats.groups > 10


@pytest.mark.parametrize("others", [range(0, 40, 3), range(39, 40), range(1), range(18, 25, 3)])
def test_retractions_of_rows_that_are_not_there_are_consolidated(consolidations, others):
    """All of them, or some at any place between those that are there."""
    place = Place([KV], CONFIG)
    base, _ = upserted(place)
    old = {k: "other" if k in others else "x" for k in range(0, 40, 3)}
    changes = [((k, old[k]), (2,), -1) for k in old] + [((k, "y"), (2,), 1) for k in old]
    runs = [base, place.run(changes)]
    found, _ = read(place, runs, WANTED)
    assert consolidations == [14 + 28]
    assert rows_of(found, WANTED) == rows_of(list(scan(place.parts(), runs, WANTED, MEMORY)), WANTED)


def test_a_retraction_behind_the_last_row_that_is_there_stays(consolidations):
    place = Place([KV], CONFIG)
    base, _ = upserted(place)
    changes = [((k, "x"), (2,), -1) for k in (0, 3, 100)]
    found, _ = read(place, [base, place.run(changes)], WANTED)
    assert consolidations == [2 + 3]
    assert [row for table in found for row in table.to_pylist() if row["_diff"] != 1] == [
        {"k": 100, "v": "x", "_diff": -1}
    ]


@pytest.mark.parametrize("diffs", [(-1, 2), (-2, 1), (-1, -1), (1, 1)])
def test_changes_that_count_other_than_once_are_consolidated(consolidations, diffs):
    place = Place([KV], CONFIG)
    base = place.run([((k, "x"), (1,), 1) for k in range(40)], cuts=(17,))
    changes = [((k, value), (2,), diff) for k in range(0, 40, 3) for value, diff in zip("xy", diffs, strict=True)]
    runs = [base, place.run(changes)]
    first, again = read_in_turn(place, runs, [WANTED, WANTED])
    assert len(consolidations) == 1, "the second read has what the first one made"
    expected = rows_of(list(scan(place.parts(), runs, WANTED, MEMORY)), WANTED)
    assert rows_of(first, WANTED) == expected == rows_of(again, WANTED)


def masked(monkeypatch):
    """Rows that were compared with the keys of changes, call by call."""
    seen = []
    true = KeySet.mask

    def watched(keys, table):
        seen.append(table.num_rows)
        return true(keys, table)

    monkeypatch.setattr(KeySet, "mask", watched)
    return seen


@pytest.mark.parametrize("cache_bytes", [2000, 1 << 20])
def test_a_second_read_looks_at_no_key_and_decodes_no_change(monkeypatch, cache_bytes):
    """Also if the settled run does not fit the cache."""
    place = Place([KV], CONFIG)
    base, changes = runs = upserted(place)
    expected = rows_of(list(scan(place.parts(), runs, WANTED, MEMORY)), WANTED)
    seen = masked(monkeypatch)
    with ThreadPoolExecutor(2) as pool:
        parts = replace(place.parts(pool=pool, cache_bytes=cache_bytes), footers=PartCache(1 << 20))
        assert rows_of(list(scan_in_shares(parts, runs, WANTED, MEMORY)), WANTED) == expected
        assert sum(seen) == 40
        for part in changes.parts:
            place.blob.delete(part.key)
        later = replace(WANTED, window=Window(until=(9,)))
        for wanted in (WANTED, later):
            assert rows_of(list(scan_in_shares(parts, runs, wanted, MEMORY)), wanted) == expected
        assert sum(seen) == 40
        without = replace(WANTED, hint=CacheHint.NEVER_ADD)
        assert rows_of(list(scan_in_shares(parts, runs, without, MEMORY)), without) == expected
        with pytest.raises(MissingBlob):
            list(scan_in_shares(parts, [base, changes, changes], WANTED, MEMORY))


def test_what_a_scan_must_not_keep_is_not_kept(monkeypatch):
    place = Place([KV], CONFIG)
    seen = masked(monkeypatch)
    never = replace(WANTED, hint=CacheHint.NEVER_ADD)
    read_in_turn(place, upserted(place), [never, never])
    assert sum(seen) == 80


def test_net_changes_are_kept_only_if_the_row_groups_that_they_belong_to_stay(monkeypatch):
    place = Place([KV], CONFIG)
    runs = upserted(place)
    base_bytes = settled_module.run_bytes(place.parts(), runs[0], list(runs[0].parts))
    seen = masked(monkeypatch)
    for limit, looked in ((base_bytes, 80), (2 * base_bytes, 40)):
        seen.clear()
        with ThreadPoolExecutor(2) as pool:
            parts = replace(place.parts(pool=pool, cache_bytes=limit), footers=PartCache(1 << 20))
            for _ in range(2):
                list(scan_in_shares(parts, runs, WANTED, MEMORY))
        assert (sum(seen), parts.cache.evictions) == (looked, 0)


def test_rows_shown_at_a_later_time_than_their_own_are_kept_by_the_time_of_the_read():
    place = Place([KV], CONFIG)
    base, changes = upserted(place)
    moved = [msgspec.structs.replace(part, rewrite=Frontier.at(7)) for part in changes.parts]
    runs = [base, msgspec.structs.replace(changes, parts=tuple(moved))]
    requests = [replace(WANTED, window=Window(until=(time,))) for time in (8, 5, 8)]
    after, before, again = read_in_turn(place, runs, requests)
    assert {row["v"] for table in before for row in table.to_pylist()} == {"x"}
    assert rows_of(after, WANTED) == rows_of(again, WANTED) != rows_of(before, WANTED)


FLOATS = define({"k": "double"}, {"v": "string"})


@pytest.mark.parametrize(
    ("schema", "wanted"),
    [
        (KV, replace(WANTED, keep_times=True)),
        (KV, replace(WANTED, window=Window(after=(1,), until=(5,)))),
        (KV, replace(WANTED, window=Window(until=(0,)))),
        (KV, replace(WANTED, columns=("k",))),
        (define(None, {"k": "int64", "v": "string"}), WANTED),
        (FLOATS, WANTED),
    ],
)
def test_what_is_no_settled_run_with_changes_is_merged(schema, wanted):
    place = Place([schema], CONFIG)
    assert changed_run(place.parts(), upserted(place), replace(wanted, schema=schema), MEMORY) is None


def test_zeros_of_both_signs_are_one_key():
    place = Place([FLOATS], CONFIG)
    base = place.run([((0.0, "x"), (1,), 1), ((1.0, "x"), (1,), 1)])
    runs = [base, place.run([((-0.0, "x"), (2,), -1)])]
    wanted = ScanRequest(FLOATS, FLOATS.names, NOW)
    found, _ = read(place, runs, wanted)
    assert [row["k"] for table in found for row in table.to_pylist()] == [1.0]


def test_many_changes_and_changes_beyond_the_memory_are_merged(monkeypatch):
    place = Place([KV], CONFIG)
    runs = upserted(place)
    assert changed_run(place.parts(), runs, WANTED, MEMORY) is not None
    large = place.run([((k, "long text " * 50), (2,), 1) for k in range(10)])
    monkeypatch.setattr(changed_module, "FEW", 1)
    assert changed_run(place.parts(), [runs[0], large], WANTED, MEMORY) is not None
    assert changed_run(place.parts(), [runs[0], large], WANTED, 1) is None
    assert changed_run(place.parts(), runs, WANTED, 1) is not None, (
        "the caller has room for the settled run, so for these"
    )
    monkeypatch.setattr(changed_module, "FEW", 2)
    assert changed_run(place.parts(), runs, WANTED, MEMORY) is None
    monkeypatch.setattr(changed_module, "FEW", 0)
    place.config = replace(CONFIG, any_order_rows=41)
    assert changed_run(place.parts(), runs, WANTED, MEMORY) is None
    assert parallel_scan.changed_run is changed_run

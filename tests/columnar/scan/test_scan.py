"""Scans give what is there, whatever kind of parts it is in, whatever is skipped, and in whatever memory."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import given as examples
from hypothesis import strategies as st
from run_cases import CONFIG, Place, given, naive, order_keys, questions, update_table, updates_of, worlds

from timespine.columnar.kernels.key_encoding import encode_scalar
from timespine.columnar.parts.part_cache import CacheHint, PartCache
from timespine.columnar.parts.part_reader import MissingBlob
from timespine.columnar.parts.part_stats import PartMeta
from timespine.columnar.predicate.key_set import KeySet
from timespine.columnar.predicate.where import col
from timespine.columnar.scan.part_access import Parts
from timespine.columnar.scan.scan import (
    cut_columns,
    fits_in_memory,
    merge_sources,
    partition_by_size,
    prefetch,
    scan,
    scan_sources,
    source_of_parts,
)
from timespine.columnar.scan.scan_request import ScanRequest, empty_table
from timespine.columnar.scan.visibility import Window
from timespine.columnar.schema.schema import define
from timespine.core.batch import Order, Part, Run
from timespine.errors import CorruptionError
from timespine.model.frontier import Frontier

some = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
KV = define({"k": "int64"}, {"v": "string"})
KVW = define({"k": "int64"}, {"v": "string", "w": "int32"})


def kv(k, v="x", time=0, diff=1):
    return (k, v), (time,), diff


def rows_of(tables, names=("k", "v")):
    return [row for table in tables for row in zip(*(table.column(name).to_pylist() for name in names), strict=True)]


@some
@examples(st.data())
def test_a_scan_gives_exactly_what_is_seen_in_order_and_each_row_once(data):
    place, runs, history, pools = data.draw(worlds())
    wanted, naively = data.draw(questions(place.newest, pools))
    memory = data.draw(st.sampled_from([1, 300, 3000, 1 << 20]))
    with ThreadPoolExecutor(2) as pool:
        parts = place.parts(pool=pool if data.draw(st.booleans()) else None, audit=1.0)
        tables = list(scan(parts, runs, wanted, memory))
        again = list(merge_sources(parts, scan_sources(parts, runs, wanted), wanted, memory))
    assert given(again, wanted) == naive(history, wanted, **naively)
    ordered = order_keys(again, wanted.order)
    assert all(a < b for a, b in pairwise(row for rows in ordered for row in rows))
    # What is equal in the columns that runs are cut by comes in one table.
    streaming = [parts.schema(source.run)[1] for source in scan_sources(parts, runs, wanted) if source.streams]
    cut = order_keys([table for table in again if table.num_rows], cut_columns(wanted, streaming))
    assert all(a[-1] < b[0] for a, b in pairwise(cut))
    whole = replace(wanted, columns=place.newest.names)
    if set(whole.read) == set(wanted.read):
        assert given(tables, wanted) == given(again, wanted)


@some
@examples(st.data())
def test_what_streams_ascends_in_the_columns_that_it_is_cut_by(data):
    place, runs, _, pools = data.draw(worlds(max_runs=2))
    wanted, _ = data.draw(questions(place.newest, pools))
    parts = place.parts()
    for source in scan_sources(parts, runs, wanted):
        if source.streams:
            id, schema = parts.schema(source.run)
            tables = [table for part in source.parts for table in parts.tables(part, id, schema, wanted, 1)]
            rows = [row for each in order_keys(tables, cut_columns(wanted, [schema])) for row in each]
            assert all(a <= b for a, b in pairwise(rows))


@pytest.mark.parametrize(
    ("columns", "keep_times", "changes", "expected"),
    [
        (("k", "v", "w"), False, (), ("k", "v", "w")),
        (("k", "v", "w"), True, (), ("k", "v", "w", "_time")),
        (("w",), False, (), ("k",)),
        (("v",), True, (), ("k", "v")),
        (("k", "v", "w"), True, ("add",), ("k", "v", "w", "a", "_time")),
        (("k", "w"), True, ("drop v",), ("k",)),
        (("k", "v"), True, ("drop w",), ("k", "v")),
        (("k", "v"), False, ("drop w",), ("k", "v")),
        (("k", "v"), True, ("drop w", "add"), ("k", "v")),
        (("k", "v", "w"), True, ("rename v", "widen w"), ("k", "r", "w", "_time")),
    ],
)
def test_runs_are_cut_by_the_columns_that_all_of_them_ascend_in(columns, keep_times, changes, expected):
    newest = KVW
    for change in changes:
        what, _, name = change.partition(" ")
        newest = {
            "add": lambda schema, name: schema.add("a", "int64", 5),
            "drop": lambda schema, name: schema.drop(name),
            "rename": lambda schema, name: schema.rename(name, "r"),
            "widen": lambda schema, name: schema.widen(name, "double"),
        }[what](newest, name)
    given_columns = newest.names if columns == KVW.names else columns
    assert cut_columns(ScanRequest(newest, given_columns, keep_times=keep_times), [KVW, newest]) == expected


def test_times_of_two_coordinates_are_never_cut_by():
    schema = define({"k": "int64"}, {"v": "string"}, arity=2)
    assert cut_columns(ScanRequest(schema, schema.names, keep_times=True), [schema]) == ("k", "v")


def test_nothing_can_be_cut_by_once_the_first_column_was_dropped():
    schema = define(None, {"a": "int64", "b": "int64"})
    assert cut_columns(ScanRequest(schema.drop("a"), ("b",)), [schema]) == ()


def test_a_range_is_right_though_the_first_column_was_dropped_and_runs_are_streamed():
    schema = define(None, {"a": "int64", "b": "int64"})
    place = Place([schema, schema.drop("a")])
    old = place.run([((n, n * 37 % 100), (0,), 1) for n in range(100)], 0, cuts=range(0, 100, 20))
    new = place.run([((n * 31 % 100,), (1,), 1) for n in range(100)], 1, cuts=range(0, 100, 30))
    for low, high in [(None, 30), (30, 60), (60, None)]:
        bounds = [None if each is None else encode_scalar(each, pa.int64()) for each in (low, high)]
        wanted = ScanRequest(place.newest, ("b",), lower=bounds[0], upper=bounds[1])
        (table,) = [table for table in scan(place.parts(), [old, new], wanted, 200) if table.num_rows]
        assert table.column("b").to_pylist() == list(range(low or 0, high or 100))
        assert set(table.column("_diff").to_pylist()) == {2}


def test_the_same_inline_bytes_are_other_rows_in_another_collection():
    cache = PartCache(1 << 20)
    ab, ba = define(None, {"a": "int64", "b": "int64"}), define(None, {"b": "int64", "a": "int64"})
    seen = []
    for name, schema in (("one", ab), ("two", ba)):
        place = Place([schema], collection=name)
        run = place.run([((1, 2), (0,), 1)], kinds=("inline",))
        parts = Parts(place.blob, name, place.schemas.__getitem__, CONFIG, cache)
        seen += [table.to_pylist() for table in scan(parts, [run], ScanRequest(schema, schema.names), 1 << 20)]
    assert seen == [[{"a": 1, "b": 2, "_diff": 1}], [{"b": 1, "a": 2, "_diff": 1}]]


def test_rows_of_one_run_at_one_time_are_given_as_they_are():
    place = Place([KVW])
    run = place.run([((n // 2, "x", n), (3,), 1) for n in range(40)], cuts=(7, 20))
    for columns, allow_duplicates in ((KVW.names, False), (("v",), True)):
        wanted = ScanRequest(KVW, columns, Window(until=(3,)), allow_duplicates=allow_duplicates)
        rows = [row for table in scan(place.parts(), [run], wanted, 1 << 20) for row in table.to_pylist()]
        assert [row["k"] for row in rows] == [n // 2 for n in range(40)]
        assert all(row["_diff"] == 1 for row in rows)
        assert not list(scan(place.parts(), [run], replace(wanted, window=Window(until=(2,))), 1 << 20))


def test_rows_that_look_the_same_without_a_column_are_one_row_unless_they_may_repeat():
    place = Place([KVW])
    run = place.run([((n // 2, "x", n), (3,), 1) for n in range(40)], cuts=(7, 20))
    wanted = ScanRequest(KVW, ("k", "v"))
    (summed,) = scan(place.parts(), [run], wanted, 1 << 20)
    assert summed.column("k").to_pylist() == list(range(20))
    assert set(summed.column("_diff").to_pylist()) == {2}
    net = place.run([((n, "x", w), (3,), 1 - 2 * w) for n in range(9) for w in (0, 1)])
    for allow_duplicates in (False, True):
        assert not sum(
            table.num_rows
            for table in scan(place.parts(), [net], replace(wanted, allow_duplicates=allow_duplicates), 1 << 20)
        )


def test_rows_of_one_run_at_several_times_are_summed():
    place = Place([KV])
    run = place.run([kv(1, time=0), kv(1, time=2), kv(2, time=1), kv(2, time=2, diff=-1)], cuts=(1, 3))
    for until, expected in ((0, [(1, 1)]), (1, [(1, 1), (2, 1)]), (2, [(1, 2)])):
        wanted = ScanRequest(KV, KV.names, Window(until=(until,)))
        tables = scan(place.parts(), [run], wanted, 1 << 20)
        assert rows_of(tables, ("k", "_diff")) == expected


def test_a_run_rewritten_to_one_time_is_not_mistaken_for_one_written_there():
    place = Place([KV])
    run = place.run([kv(1, time=0), kv(1, time=1)])
    moved = Run(tuple(msgspec.structs.replace(p, rewrite=Frontier.at(5)) for p in run.parts), run.order, 0)
    wanted = ScanRequest(KV, KV.names, Window(until=(5,)), keep_times=True)
    tables = list(scan(place.parts(), [moved], wanted, 1 << 20))
    assert rows_of(tables, ("k", "_time", "_diff")) == [(1, 5, 2)]


def test_bytes_are_counted_for_the_scan_that_fetches_them_and_not_for_the_one_that_opened_the_part():
    place = Place([KVW])
    run = place.run([((n, "x" * 50, n), (n % 2,), 1) for n in range(100)])
    first = place.parts()
    list(scan(first, [run], ScanRequest(KVW, ("k",)), 1 << 20))
    seen = first.scan_stats.bytes
    second = replace(first, scan_stats=type(first.scan_stats)())
    list(scan(second, [run], ScanRequest(KVW, ("v",)), 1 << 20))
    third = replace(first, scan_stats=type(first.scan_stats)())
    list(scan(third, [run], ScanRequest(KVW, ("v",)), 1 << 20))
    assert first.scan_stats.bytes == seen > 0
    assert second.scan_stats.bytes > 0
    assert third.scan_stats.bytes == 0, "what is decoded already costs no I/O"


def test_a_scan_that_adds_nothing_leaves_rows_out_of_the_cache():
    place = Place([KV])
    run = place.run([kv(n, time=n % 2) for n in range(100)])
    parts = place.parts()
    list(scan(parts, [run], ScanRequest(KV, KV.names, hint=CacheHint.NEVER_ADD), 1 << 20))
    kept = len(parts.cache)
    list(scan(parts, [run], ScanRequest(KV, KV.names), 1 << 20))
    assert len(parts.cache) > kept == 1, "the footer alone"


def test_a_missing_part_and_a_missing_list_of_parts_are_told_by_their_key():
    place = Place([KV])
    run = place.run([kv(n) for n in range(10)], cuts=(5,), nested=True)
    (outer,) = run.parts
    leaf = next(place.parts().leaves(run.parts))
    place.blob.delete(leaf.key)
    with pytest.raises(MissingBlob) as missing:
        list(scan(place.parts(), [run], ScanRequest(KV, KV.names), 1 << 20))
    assert missing.value.key == leaf.key
    place.blob.delete(outer.key)
    with pytest.raises(MissingBlob) as missing:
        list(scan(place.parts(), [run], ScanRequest(KV, KV.names), 1 << 20))
    assert missing.value.key == outer.key


def test_a_run_without_a_schema_is_corrupt():
    place = Place([KV])
    run = Run(place.run([kv(1)]).parts, Order.SORTED, None)
    with pytest.raises(CorruptionError, match="no schema"):
        list(scan(place.parts(), [run], ScanRequest(KV, KV.names), 1 << 20))


def test_a_run_that_is_not_in_order_is_corrupt_and_not_merged_wrongly():
    place = Place([KV])
    run = place.run([kv(n, time=n % 3) for n in range(40)], cuts=(10, 20, 30))
    turned = Run(run.parts[::-1], Order.SORTED, 0)
    other = place.run([kv(n, time=7) for n in range(0, 40, 3)])
    with pytest.raises(CorruptionError, match="not in order"):
        list(scan(place.parts(), [turned, other], ScanRequest(KV, KV.names), 300))


def lying(part, **changes):
    """The part with statistics that say something else."""
    return msgspec.structs.replace(part, meta=msgspec.structs.replace(PartMeta.decode(part.meta), **changes).encode())


def planted(place, changes_of):
    """A run whose second part lies about itself."""
    run = place.run([kv(n, f"v{n}", time=n) for n in range(20)], cuts=(10,))
    first, second = run.parts
    return Run((first, lying(second, **changes_of(PartMeta.decode(second.meta)))), Order.SORTED, 0)


@pytest.mark.parametrize(
    ("changes_of", "question"),
    [
        (
            lambda meta: {
                "columns": {**meta.columns, 2: msgspec.structs.replace(meta.columns[2], lower=b"\x01w", upper=b"\x01x")}
            },
            {"where": col("v") == "v15"},
        ),
        (lambda meta: {"min_time": (90,), "max_time": (90,)}, {"window": Window(until=(19,))}),
        (lambda meta: {"min_time": (0,), "max_time": (0,)}, {"window": Window(after=(5,))}),
        (lambda meta: {"lower": b"\x02", "upper": b"\x03"}, {"keys": KeySet(pa.table({"k": [15]}))}),
        (lambda meta: {"lower": b"\x02", "upper": b"\x03"}, {"upper": b"\x01\x01"}),
    ],
    ids=["column", "min time", "max time", "key", "range"],
)
@pytest.mark.parametrize("nested", [False, True])
def test_an_audit_finds_a_part_that_was_skipped_by_a_lie(changes_of, question, nested):
    place = Place([KV], config=replace(CONFIG, stats_bytes=1000, bound_bytes=64))
    run = planted(place, changes_of)
    if nested:
        run = Run((run.parts[0], place.listed(run.parts[1:])), Order.SORTED, 0)
    wanted = ScanRequest(KV, KV.names, **question)
    with pytest.raises(CorruptionError, match="skipped by its statistics"):
        list(scan(place.parts(audit=1.0), [run], wanted, 1 << 20))
    # Without the audit the rows are missing: that is what it is for.
    blind = place.parts()
    list(scan(blind, [run], wanted, 1 << 20))
    assert blind.scan_stats.parts_skipped >= 1
    assert blind.scan_stats.audited == 0


def test_an_audit_lets_pass_what_was_skipped_rightly():
    place = Place([KV])
    run = place.run([kv(n, time=n) for n in range(20)], cuts=(5, 10, 15), kinds=("stored", "inline"))
    parts = place.parts(audit=1.0)
    tables = list(scan(parts, [run], ScanRequest(KV, KV.names, Window(until=(3,))), 1 << 20))
    assert rows_of(tables, ("k",)) == [(0,), (1,), (2,), (3,)]
    assert parts.scan_stats.audited == parts.scan_stats.parts_skipped == 3


def test_a_hollow_run_that_cannot_match_is_not_even_listed():
    place = Place([KV])
    early = place.run([kv(n, time=1) for n in range(10)], cuts=(5,), nested=True)
    late = place.run([kv(n, time=9) for n in range(10)], cuts=(5,), nested=True)
    place.blob.delete(late.parts[0].key)
    tables = list(scan(place.parts(), [early, late], ScanRequest(KV, KV.names, Window(until=(3,))), 1 << 20))
    assert rows_of(tables, ("k",)) == [(n,) for n in range(10)]


def test_a_part_of_an_unordered_run_streams_if_it_is_in_order_by_itself():
    place = Place([KV, KV.add("a", "int64").drop("v")])
    table = update_table([kv(n) for n in range(10)], KV)
    jumbled = table.take(pa.array(range(9, -1, -1)))
    tidy, any_order = place.stored(table, 0), place.stored(jumbled, 0, is_sorted=False)
    inline = place.inline(table, 0)
    run = Run((tidy, any_order, inline), Order.UNORDERED, 0)
    found = scan_sources(place.parts(), [run], ScanRequest(KV, KV.names))
    assert [source.streams for source in found] == [True, False, False]
    # Seen without the column that it was ordered by next, it has to be put in order.
    found = scan_sources(place.parts(), [run], ScanRequest(place.newest, place.newest.names))
    assert [source.streams for source in found] == [False, False, False]
    tables = scan(place.parts(), [run], ScanRequest(KV, KV.names), 1)
    assert rows_of(tables, ("k", "_diff")) == [(n, 3) for n in range(10)]


def test_what_fits_a_quarter_of_the_memory_is_gathered_and_the_rest_streams():
    place = Place([KV], config=replace(CONFIG, row_group_rows=10))
    parts = place.parts()
    runs = [place.run([kv(n, "x" * 100) for n in range(size)]) for size in (10, 1000, 20)]
    found = scan_sources(parts, runs, ScanRequest(KV, KV.names))
    assert [source.rows for source in found] == [10, 1000, 20]
    assert 1000 < found[0].size < 2000
    assert found[1].step == pytest.approx(found[1].size / 100, rel=0.2), "a row group is what is read at once"
    small, large = partition_by_size(found, 40_000)
    assert [source.rows for source in small] == [10, 20]
    assert [source.rows for source in large] == [1000]
    assert fits_in_memory(found, 40_000)
    assert not fits_in_memory(found, found[1].step)
    in_one_piece = source_of_parts(parts, runs[1], runs[1].parts, streams=False)
    assert in_one_piece.step == in_one_piece.size
    assert not fits_in_memory([in_one_piece], 40_000)


def test_chunks_are_as_small_as_the_memory_asks_for():
    place = Place([KV], config=replace(CONFIG, row_group_rows=10))
    run = place.run([kv(n, "x" * 100) for n in range(1000)])
    parts = place.parts(cache_bytes=0)
    for memory, most in ((1, 10), (20_000, 40), (1 << 30, 1000)):
        tables = list(parts.tables(run.parts[0], 0, KV, ScanRequest(KV, KV.names), memory // 4))
        assert max(table.num_rows for table in tables) <= most
        assert sum(table.num_rows for table in tables) == 1000


def test_reading_ahead_gives_the_same_and_passes_errors_on():
    def failing():
        yield pa.table({"a": [1]})
        raise MissingBlob("orders/w1/p1")

    with ThreadPoolExecutor(1) as pool:
        tables = prefetch(failing(), pool)
        assert next(tables).to_pylist() == [{"a": 1}]
        with pytest.raises(MissingBlob):
            next(tables)
        assert list(prefetch(iter([]), pool)) == []


def test_few_tables_are_read_by_the_caller_and_later_ones_ahead():
    readers = []

    def tables(count):
        for number in range(count):
            readers.append(threading.current_thread() is threading.main_thread())
            yield pa.table({"a": [number]})

    with ThreadPoolExecutor(1) as pool:
        for count in (0, 1, 4):
            readers.clear()
            found = [table.column("a")[0].as_py() for table in prefetch(tables(count), pool)]
            assert (found, readers) == (list(range(count)), [True, True, False, False][:count])
        assert pool._work_queue.empty()


def test_an_empty_table_has_the_columns_that_a_scan_gives():
    place = Place([KVW])
    run = place.run([((1, "x", 2), (3,), 1)])
    for columns in (KVW.names, ("w",)):
        for keep_times in (False, True):
            wanted = ScanRequest(KVW, columns, keep_times=keep_times)
            (table,) = scan(place.parts(), [run], wanted, 1 << 20)
            assert empty_table(wanted).schema.equals(table.select(empty_table(wanted).column_names).schema)
            assert set(empty_table(wanted).column_names) == set(table.column_names)


def test_what_was_put_into_a_run_comes_out_of_it():
    place = Place([KV])
    made = [kv(n % 7, f"v{n}", n % 5, 1 + n % 3) for n in range(50)]
    table = place.ordered(made, 0)
    run = place.run(made, cuts=(9, 30), kinds=("stored", "inline", "stored"), nested=True)
    wanted = ScanRequest(KV, KV.names, keep_times=True)
    tables = [each.select(table.column_names) for each in scan(place.parts(), [run], wanted, 500)]
    assert updates_of(pa.concat_tables(tables), KV) == updates_of(table, KV)
    assert isinstance(run.parts[0], Part)

"""What is skipped has no row that is asked for; and what can be skipped is."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import given as examples
from hypothesis import strategies as st
from run_cases import CONFIG, Place, naive, questions, updates_of, worlds

from timespine.columnar.kernels.key_encoding import encode_scalar
from timespine.columnar.parts.part_reader import PartReader
from timespine.columnar.predicate.key_set import FEW, KeySet
from timespine.columnar.predicate.where import as_predicate, col
from timespine.columnar.scan import prune
from timespine.columnar.scan.prune import Pruner
from timespine.columnar.scan.scan import ScanRequest, scan
from timespine.columnar.scan.visibility import Window
from timespine.columnar.schema.schema import define
from timespine.core.batch import Order, Run
from timespine.model.frontier import Frontier

some = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
ROOMY = replace(CONFIG, bound_bytes=64, stats_bytes=1024)
KV = define({"k": "int64"}, {"v": "int64"})


def keys(*values, name="k", kind=None):
    return KeySet(pa.table({name: pa.array(values, kind or pa.int64())}))


def pairs(numbers, time=0):
    return [((n, n * 10), (time,), 1) for n in numbers]


def read(place, runs, wanted, **options):
    """The rows of a scan, and what it did."""
    parts = place.parts(audit=1.0, **options)
    rows = [row for table in scan(parts, runs, wanted, 1 << 20) for row in table.to_pylist()]
    return rows, parts.scan_stats


@some
@examples(st.data())
def test_a_part_or_row_group_that_is_skipped_has_no_row_that_is_asked_for(data):
    place, _, history, pools = data.draw(worlds(max_runs=3))
    wanted, naively = data.draw(questions(place.newest, pools))
    parts = place.parts()
    for updates, part, schema in history:
        pruner = Pruner(wanted, schema)
        if not pruner.part_may_match(part):
            assert not any(_each(updates, part, schema, wanted, naively))
        elif part.inline is None:
            id = place.schemas.index(schema)
            reader = parts.open(part, id, schema)
            chosen = pruner.groups(reader)
            assert chosen == sorted(set(chosen))
            for group in set(range(reader.groups)) - set(chosen):
                inside = updates_of(reader.read([group]), schema)
                assert not any(_each(inside, part, schema, wanted, naively))
            for group in range(reader.groups):
                if not pruner.group_may_match(reader, group):
                    inside = updates_of(reader.read([group]), schema)
                    assert not any(_each(inside, part, schema, wanted, naively))


def _each(updates, part, schema, wanted, naively):
    """Of every update, whether it is asked for: one by one, so that none cancels another."""
    return (naive([([update], part, schema)], wanted, **naively) for update in updates)


def test_a_point_lookup_reads_one_row_group_of_one_part():
    place = Place([KV], config=replace(ROOMY, row_group_rows=10))
    run = place.run(pairs(range(0, 2000, 2)), cuts=range(0, 1000, 100))
    rows, scan_stats = read(place, [run], ScanRequest(KV, KV.names, keys=keys(1234)))
    assert [row["k"] for row in rows] == [1234]
    assert (scan_stats.parts, scan_stats.parts_skipped) == (1, 9)
    assert (scan_stats.groups, scan_stats.groups_skipped) == (1, 9)


def test_a_key_that_lies_between_two_parts_reads_nothing():
    place = Place([KV], config=ROOMY)
    run = place.run([*pairs(range(10)), *pairs(range(100, 110))], cuts=(10,))
    rows, scan_stats = read(place, [run], ScanRequest(KV, KV.names, keys=keys(50)))
    assert rows == []
    assert (scan_stats.parts, scan_stats.parts_skipped) == (0, 2)


def test_a_bloom_filter_rules_out_a_key_that_bounds_do_not():
    place = Place([KV], config=replace(ROOMY, row_group_rows=256))
    run = place.run(pairs(range(0, 4096, 2)))
    outcomes = [read(place, [run], ScanRequest(KV, KV.names, keys=keys(n))) for n in range(1, 4000, 100)]
    assert all(rows == [] for rows, _ in outcomes)
    skipped = sum(scan_stats.groups == 0 for _, scan_stats in outcomes)
    assert skipped >= 30, "of 40 keys that are not there, a filter is wrong about one in twenty"
    for n in range(0, 4096, 512):
        rows, scan_stats = read(place, [run], ScanRequest(KV, KV.names, keys=keys(n)))
        assert [row["k"] for row in rows] == [n]
        assert scan_stats.groups == 1


@pytest.mark.parametrize("kind", ["int32", "string", "timestamp[UTC]", "date", "decimal(30,2)", "binary"])
def test_bloom_filters_find_keys_of_every_type_that_has_one(kind):
    schema = define({"k": kind}, None)
    arrow = schema.types["k"]
    numbers = list(range(0, 3000, 2))
    if pa.types.is_string(arrow) or pa.types.is_binary(arrow):
        values = [f"{n:05}" if kind == "string" else f"{n:05}".encode() for n in numbers]
        column = pa.array(values, arrow)
    elif pa.types.is_decimal(arrow):
        column = pa.array(numbers, pa.int64()).cast(arrow)
    else:
        column = pa.array(numbers, pa.int32() if pa.types.is_date(arrow) else pa.int64()).cast(arrow)
    system = [pa.array([0] * len(numbers), pa.int64()), pa.array([1] * len(numbers), pa.int64())]
    table = pa.Table.from_arrays([column, *system], schema=schema.update_arrow)
    place = Place([schema], config=replace(ROOMY, row_group_rows=512))
    run = Run((place.stored(table, 0),), Order.SORTED, 0)
    for index in range(0, len(numbers), 137):
        wanted = ScanRequest(schema, ("k",), keys=KeySet(pa.table({"k": column.slice(index, 1)})))
        rows, scan_stats = read(place, [run], wanted)
        assert len(rows) == 1
        assert scan_stats.groups == 1


def test_a_range_skips_parts_and_row_groups():
    place = Place([KV], config=replace(ROOMY, row_group_rows=10))
    run = place.run(pairs(range(1000)), cuts=range(0, 1000, 100))
    for where in ("k BETWEEN 311 AND 314", col("v").between(3110, 3140)):
        rows, scan_stats = read(place, [run], ScanRequest(KV, KV.names, where=as_predicate(where)))
        assert [row["k"] for row in rows] == [311, 312, 313, 314]
        assert (scan_stats.parts, scan_stats.parts_skipped) == (1, 9)
        assert (scan_stats.groups, scan_stats.groups_skipped) == (1, 9)


def test_a_range_on_a_clustering_column_skips_and_a_lookup_by_key_still_finds():
    schema = define({"k": "int64"}, {"day": "int32"}, cluster=["day"])
    place = Place([schema], config=replace(ROOMY, row_group_rows=10))
    run = place.run([((n, n * 7 % 50), (0,), 1) for n in range(500)], cuts=range(0, 500, 50))
    rows, scan_stats = read(place, [run], ScanRequest(schema, schema.names, where=as_predicate("day = 20")))
    assert len(rows) == 10
    assert scan_stats.parts == 1
    rows, scan_stats = read(place, [run], ScanRequest(schema, schema.names, keys=keys(123)))
    assert rows == [{"day": 123 * 7 % 50, "k": 123, "_diff": 1}]


def test_a_piece_of_a_split_reads_its_own_row_groups_only():
    place = Place([KV], config=replace(ROOMY, row_group_rows=10))
    run = place.run(pairs(range(100)))
    low, high = (encode_scalar(n, pa.int64()) for n in (30, 50))
    rows, scan_stats = read(place, [run], ScanRequest(KV, KV.names, lower=low, upper=high))
    assert [row["k"] for row in rows] == list(range(30, 50))
    assert scan_stats.groups <= 4
    assert scan_stats.groups_skipped >= 6


def test_times_skip_parts():
    place = Place([KV], config=ROOMY)
    runs = [place.run(pairs(range(10), time)) for time in (1, 5, 9)]
    for window, read_parts in ((Window(until=(5,)), 2), (Window(after=(1,)), 2), (Window((1,), (5,)), 1)):
        _, scan_stats = read(place, runs, ScanRequest(KV, KV.names, window))
        assert (scan_stats.parts, scan_stats.parts_skipped) == (read_parts, 3 - read_parts)


def test_skipping_respects_truncation_and_rewriting():
    place = Place([KV], config=ROOMY)
    part = place.run(pairs(range(10), 5)).parts[0]

    def may_match(window, **changes):
        return Pruner(ScanRequest(KV, KV.names, window), KV).part_may_match(msgspec.structs.replace(part, **changes))

    assert may_match(Window(until=(5,)))
    assert not may_match(Window(until=(5,)), rewrite=Frontier.at(6))
    assert may_match(Window(after=(5,)), rewrite=Frontier.at(6))
    assert not may_match(Window(), lower=Frontier.at(6))
    assert not may_match(Window(), upper=Frontier.at(5))
    assert may_match(Window(), lower=Frontier.at(5), upper=Frontier.at(6))


def test_statistics_are_of_use_after_a_column_was_widened_or_renamed():
    schema = define({"k": "int32"}, {"v": "int32"})
    newest = schema.widen("v", "double").rename("v", "w").widen("k", "int64")
    place = Place([schema, newest], config=ROOMY)
    run = place.run(pairs(range(100)), cuts=range(0, 100, 10))
    rows, scan_stats = read(place, [run], ScanRequest(newest, newest.names, where=as_predicate("w >= 970.5")))
    assert [row["k"] for row in rows] == [98, 99]
    assert scan_stats.parts == 1
    rows, scan_stats = read(place, [run], ScanRequest(newest, newest.names, keys=keys(55)))
    assert rows == [{"k": 55, "w": 550.0, "_diff": 1}]
    assert scan_stats.parts == 1, "an integer has the same bytes however wide it is"


def test_a_key_widened_to_a_double_is_found_by_its_statistics():
    schema = define({"k": "int32"}, None)
    newest = schema.widen("k", "double")
    place = Place([schema, newest], config=ROOMY)
    run = place.run([((n,), (0,), 1) for n in range(-50, 50)], cuts=range(0, 100, 10))
    for number in (-50.0, -1.0, 0.0, 49.0):
        rows, scan_stats = read(place, [run], ScanRequest(newest, ("k",), keys=keys(number, kind=pa.float64())))
        assert rows == [{"k": number, "_diff": 1}]
        assert scan_stats.parts == 1


def test_a_condition_on_a_column_that_was_added_later_skips_nothing_old():
    schema = define({"k": "int64"}, None)
    newest = schema.add("a", "string", "x")
    place = Place([schema, newest], config=ROOMY)
    run = place.run([((n,), (0,), 1) for n in range(10)])
    rows, _ = read(place, [run], ScanRequest(newest, newest.names, where=as_predicate("a = 'x'")))
    assert len(rows) == 10
    rows, _ = read(place, [run], ScanRequest(newest, newest.names, where=as_predicate("a = 'y'")))
    assert rows == []


def test_a_column_dropped_and_added_again_is_not_judged_by_the_old_one():
    schema = define({"k": "int64"}, {"v": "int64"})
    newest = schema.drop("v").add("v", "int64")
    place = Place([schema, newest], config=ROOMY)
    old = place.run(pairs(range(10)), 0)
    rows, _ = read(place, [old], ScanRequest(newest, newest.names, where=as_predicate("v IS NULL")))
    assert len(rows) == 10
    rows, _ = read(place, [old], ScanRequest(newest, newest.names, where=as_predicate("v >= 0")))
    assert rows == []


def test_more_keys_than_a_few_still_skip_what_lies_outside():
    place = Place([KV], config=replace(ROOMY, row_group_rows=50))
    run = place.run(pairs(range(5000)), cuts=range(0, 5000, 1000))
    looked_for = range(2000, 2000 + FEW + 50)
    rows, scan_stats = read(place, [run], ScanRequest(KV, KV.names, keys=keys(*looked_for)))
    assert [row["k"] for row in rows] == list(looked_for)
    assert scan_stats.parts == 1
    assert scan_stats.groups <= 13


def test_an_empty_set_of_keys_reads_nothing():
    place = Place([KV], config=ROOMY)
    run = place.run(pairs(range(100)), cuts=(50,))
    rows, scan_stats = read(place, [run], ScanRequest(KV, KV.names, keys=keys()))
    assert rows == []
    assert scan_stats.parts == 0


def paged(count=400, group=100, page=10):
    """A run whose row groups have pages, and how often each page was decoded."""
    place = Place([KV], replace(ROOMY, row_group_rows=group, page_rows=page))
    return place, place.run(pairs(range(count)))


@pytest.fixture
def decoded(monkeypatch):
    """What was decoded: row groups with their columns, and pages."""
    calls = []
    read_each, read_page = PartReader.read_each, PartReader.read_page

    def groups(self, groups, columns):
        calls.append(("groups", tuple(groups), tuple(columns)))
        return read_each(self, groups, columns)

    def page(self, group, page, columns):
        calls.append(("page", group, page, tuple(columns)))
        return read_page(self, group, page, columns)

    monkeypatch.setattr(PartReader, "read_each", groups)
    monkeypatch.setattr(PartReader, "read_page", page)
    return calls


def test_many_keys_decode_the_other_columns_only_of_row_groups_that_have_one(decoded, monkeypatch):
    """Between the bounds of each of nine row groups lies a key that is looked for; only the last four have one."""
    place = Place([KV], replace(ROOMY, row_group_rows=100))
    run = place.run(pairs(range(0, 1800, 2)))
    looked_for = [*range(1, 1000, 4), *range(1000, 1800, 2)]
    monkeypatch.setattr(prune, "NEAR_ROWS", 0)
    assert len(looked_for) > FEW
    rows, _ = read(place, [run], ScanRequest(KV, KV.names, keys=keys(*looked_for)))
    assert [row["k"] for row in rows] == list(range(1000, 1800, 2))
    first = [("groups", tuple(range(8)), ("k",)), ("groups", (5, 6, 7), ("v",))]
    assert decoded == [*first, ("groups", (8,), ("k",)), ("groups", (8,), ("v",))]


def test_row_groups_that_all_have_a_key_are_read_whole_after_the_first_block(decoded):
    place = Place([KV], replace(ROOMY, row_group_rows=100))
    run = place.run(pairs(range(2400)))
    looked_for = range(0, 2400, 4)
    assert len(looked_for) > FEW
    rows, _ = read(place, [run], ScanRequest(KV, KV.names, keys=keys(*looked_for)))
    assert [row["k"] for row in rows] == list(looked_for)
    blocks = [tuple(range(start, start + 8)) for start in (0, 8, 16)]
    assert decoded[:2] == [("groups", blocks[0], ("k",)), ("groups", blocks[0], ("v",))]
    assert [(groups, set(names)) for _, groups, names in decoded[2:]] == [(each, {"k", "v"}) for each in blocks[1:]]


def test_a_lookup_decodes_the_key_of_a_row_group_and_one_page_of_the_rest(decoded):
    place, run = paged()
    rows, _ = read(place, [run], ScanRequest(KV, KV.names, keys=keys(137)))
    assert [(row["k"], row["v"]) for row in rows] == [(137, 1370)]
    assert decoded == [("groups", (1,), ("k",)), ("page", 1, 3, ("v",))]


def test_a_second_lookup_of_the_same_page_decodes_nothing(decoded):
    place, run = paged()
    parts = place.parts()
    for key in (137, 131, 137):
        (found,) = scan(parts, [run], ScanRequest(KV, KV.names, keys=keys(key)), 1 << 20)
        assert found.column("v").to_pylist() == [key * 10]
    assert len(decoded) == 2


def test_a_row_group_is_read_whole_the_second_time_and_by_pages_again_once_it_was_forgotten(decoded):
    place, run = paged()
    parts = place.parts()
    for key in (137, 172):
        (found,) = scan(parts, [run], ScanRequest(KV, KV.names, keys=keys(key)), 1 << 20)
        assert found.column("v").to_pylist() == [key * 10]
    assert decoded == [("groups", (1,), ("k",)), ("page", 1, 3, ("v",)), ("groups", (1,), ("v",))]
    del parts.cache._kept[
        next(name for name in parts.cache._kept if name[1:] == (1, "v"))
    ]  # another read pushed it out
    (found,) = scan(parts, [run], ScanRequest(KV, KV.names, keys=keys(193)), 1 << 20)
    assert decoded[3:] == [("page", 1, 9, ("v",))]


def test_a_range_decodes_the_pages_that_it_touches(decoded):
    place, run = paged()
    where = as_predicate((col("k") >= 118) & (col("k") < 132))
    rows, _ = read(place, [run], ScanRequest(KV, KV.names, where=where))
    assert [row["k"] for row in rows] == list(range(118, 132))
    assert decoded == [("groups", (1,), ("k",)), *(("page", 1, page, ("v",)) for page in (1, 2, 3))]


def test_rows_all_over_a_row_group_are_read_with_it(decoded):
    place, run = paged()
    rows, _ = read(place, [run], ScanRequest(KV, KV.names, keys=keys(*range(105, 200, 5))))
    assert [row["k"] for row in rows] == list(range(105, 200, 5))
    assert decoded == [("groups", (1,), ("k",)), ("groups", (1,), ("v",))]


def test_a_lookup_uses_what_a_read_of_the_row_group_has_decoded(decoded):
    place, run = paged()
    parts = place.parts()
    assert sum(table.num_rows for table in scan(parts, [run], ScanRequest(KV, KV.names), 1 << 20)) == 400
    before = len(decoded)
    (found,) = scan(parts, [run], ScanRequest(KV, KV.names, keys=keys(137)), 1 << 20)
    assert (found.column("v").to_pylist(), len(decoded)) == ([1370], before)


def test_a_key_that_is_not_there_decodes_no_page(decoded):
    place = Place([KV], replace(ROOMY, row_group_rows=100, page_rows=10))
    run = place.run(pairs(range(0, 800, 2)))
    for key in range(1, 801, 50):
        rows, _ = read(place, [run], ScanRequest(KV, KV.names, keys=keys(key)))
        assert rows == []
    assert not [each for each in decoded if each[0] == "page"]


def test_a_part_whose_columns_changed_since_is_read_by_row_groups(decoded):
    place, run = paged()
    newest = KV.add("more", "string")
    place.schemas.append(newest)
    rows, _ = read(place, [run], ScanRequest(newest, newest.names, keys=keys(137)))
    assert [(row["k"], row["v"], row["more"]) for row in rows] == [(137, 1370, None)]
    assert [each[0] for each in decoded] == ["groups"]


@some
@examples(st.data())
def test_reads_by_pages_give_what_reads_by_row_groups_give(data):
    """The plain way is the same request where no part has pages."""
    numbers = data.draw(st.lists(st.integers(0, 60), min_size=1, max_size=60))
    group, page = data.draw(st.integers(2, 20)), data.draw(st.integers(1, 10))
    schema = define({"a": "int64", "b": "string"}, {"v": "double"})
    updates = [((n // 7, f"{n:03}"[: n % 4], float(n)), (n % 3,), 1) for n in numbers]
    chosen = data.draw(st.lists(st.sampled_from(updates), min_size=1, max_size=4))
    first = pa.array([row[0] for row, *_ in chosen], pa.int64())
    second = pa.array([row[1] for row, *_ in chosen])
    low, high = sorted((data.draw(st.integers(0, 9)), data.draw(st.integers(0, 9))))
    asked = data.draw(
        st.sampled_from(
            [
                {"keys": KeySet(pa.table({"a": first, "b": second}))},
                {"keys": KeySet(pa.table({"a": first}))},
                {"where": as_predicate((col("a") >= low) & (col("a") <= high))},
                {"where": as_predicate(col("v") >= float(7 * low)), "keys": KeySet(pa.table({"a": first}))},
            ]
        )
    )
    columns = data.draw(st.sampled_from([schema.names, ("v",), ("a",), ("b", "v")]))
    found = []
    for page_rows in (page, group):
        place = Place([schema], replace(ROOMY, row_group_rows=group, page_rows=page_rows))
        run = place.run(updates)
        with mock.patch.object(prune, "NEAR_ROWS", data.draw(st.sampled_from([0, 5, 4096]))):
            rows, _ = read(place, [run], ScanRequest(schema, columns, window=Window(until=(2,)), **asked))
        found.append(rows)
    assert found[0] == found[1]


@some
@examples(st.data())
def test_reads_of_keys_first_give_what_reads_of_whole_row_groups_give(data):
    numbers = data.draw(st.lists(st.integers(0, 900), min_size=1, max_size=80))
    schema = define({"a": "int64", "b": "string"}, {"v": "double"})
    updates = [((n // 7, f"{n:03}"[: n % 4], float(n)), (n % 3,), 1) for n in numbers]
    wanted = pa.table({"a": pa.array(range(data.draw(st.integers(0, 100)), 2 * FEW + 101, 2), pa.int64())})
    asked = (
        {"where": as_predicate(col("v") >= float(data.draw(st.integers(0, 900))))} if data.draw(st.booleans()) else {}
    )
    columns = data.draw(st.sampled_from([schema.names, ("v",), ("a",), ("b", "v")]))
    place = Place([schema], replace(ROOMY, row_group_rows=data.draw(st.integers(2, 20))))
    run = place.run(updates)
    request = ScanRequest(schema, columns, window=Window(until=(2,)), keys=KeySet(wanted), **asked)
    with mock.patch.object(prune, "NEAR_ROWS", data.draw(st.sampled_from([0, 5, 4096]))):
        found, _ = read(place, [run], request)
    with mock.patch.object(Pruner, "may_read_keys_first", False):
        expected, _ = read(place, [run], request)
    assert found == expected


def test_a_search_by_the_first_column_compares_integers_of_its_type(decoded):
    """As doubles, 2,048 neighbours of these numbers are equal."""
    first = 1 << 63
    schema = define({"k": "uint64"}, {"v": "int64"})
    place = Place([schema], replace(ROOMY, row_group_rows=100, page_rows=10))
    run = place.run([((first + n, n), (0,), 1) for n in range(400)])
    where = as_predicate((col("k") >= first + 137) & (col("k") <= first + 139))
    rows, _ = read(place, [run], ScanRequest(schema, schema.names, where=where))
    assert [row["v"] for row in rows] == [137, 138, 139]
    assert decoded == [("groups", (1,), ("k",)), ("page", 1, 3, ("v",))]


def test_a_range_of_the_first_column_looks_at_the_statistics_of_its_row_groups_only(monkeypatch):
    place, run = paged()
    asked = []
    ranges = PartReader.group_ranges
    monkeypatch.setattr(PartReader, "group_ranges", lambda self, group: asked.append(group) or ranges(self, group))
    for where, groups in (
        ((col("k") >= 118) & (col("k") < 132), {1}),
        ((col("k") > 199) & (col("v") > 0) & (col("k") <= 205), {1, 2}),
        (col("k") == 305, {3}),
        ((col("k") < 5) | (col("k") > 395), {0, 1, 2, 3}),
        (~(col("k") >= 90), {0, 1, 2, 3}),
    ):
        asked.clear()
        rows, _ = read(place, [run], ScanRequest(KV, KV.names, where=as_predicate(where)))
        assert [row["k"] for row in rows] == [n for n in range(400) if where_holds(where, n)]
        assert set(asked) <= groups


def where_holds(where, number):
    return as_predicate(where).mask(pa.table({"k": [number], "v": [number * 10]})).to_pylist() == [True]

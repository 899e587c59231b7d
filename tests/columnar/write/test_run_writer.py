"""A run on its way to storage: parts of about the right size, in order, and nothing left behind."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

import pytest
from building import SCHEMA, Fresh, keys_in, read_part, table_of, up, updates_of
from hypothesis import given, settings
from hypothesis import strategies as st

from timespine.columnar.parts.inline_part import InlineRule, encode_inline
from timespine.columnar.parts.part_stats import diff_sum_of
from timespine.columnar.write.run_writer import NO_LISTS, RunWriter
from timespine.columnar.write.upload import UploadTarget
from timespine.config import DEFAULT
from timespine.core.batch import Part
from timespine.errors import Determinate
from timespine.location.memory import MemoryBlob
from timespine.testing.unreliable import Fault, UnreliableBlob

CONFIG = replace(DEFAULT, part_bytes=500, row_group_rows=4, storage_attempts=1)


def writer(blob, pool=None, config=CONFIG):
    target = UploadTarget("orders", "w1", SCHEMA, 0, blob, config, sleep=lambda seconds: None)
    return RunWriter(target, Fresh(), {}, pool, run_parts=NO_LISTS)


def add(run, *tables):
    for table in tables:
        run.add(table)


def parts_of(run):
    return [part for each in run.finish() for part in each.parts]


def rows(start, stop, width=5):
    return table_of([up(k, 1, v="x" * width) for k in range(start, stop)])


def read(parts, blob):
    return [update for part in parts for update in updates_of(read_part(part, blob))]


@settings(max_examples=30)
@given(st.lists(st.integers(0, 60), max_size=5), st.sampled_from([1, 100, 500, 1 << 20]), st.booleans())
def test_what_is_added_comes_out_in_order_and_in_parts_of_about_the_size(sizes, part_bytes, threaded):
    blob = MemoryBlob()
    edges = [sum(sizes[:place]) for place in range(len(sizes) + 1)]
    tables = [rows(a, b) for a, b in pairwise(edges)]
    with ThreadPoolExecutor(2) as pool:
        run = writer(blob, pool if threaded else None, replace(CONFIG, part_bytes=part_bytes))
        add(run, *tables)
        parts = parts_of(run)
    assert read(parts, blob) == [((k, "xxxxx"), (1,), 1) for k in range(edges[-1])]
    assert all(part.rows > 0 for part in parts)
    assert sorted(keys_in(blob)) == sorted(part.key for part in parts)
    row_bytes = rows(0, 50).nbytes / 50
    for part in parts[:-1]:
        assert part.rows * row_bytes <= max(part_bytes * 1.3, row_bytes)


def test_a_part_that_is_passed_through_keeps_its_place():
    blob = MemoryBlob()
    first = writer(blob)
    first.add(rows(10, 20))
    (passed,) = parts_of(first)
    run = writer(blob)
    run._fresh = lambda prefix: f"{prefix}x{len(keys_in(blob))}"
    run.add(rows(0, 10))
    run.refer([passed])
    run.add(rows(20, 25))
    parts = parts_of(run)
    assert [part.rows for part in parts] == [10, 10, 5]
    assert parts[1] == passed
    assert read(parts, blob) == [((k, "xxxxx"), (1,), 1) for k in range(25)]


def test_one_row_may_be_larger_than_a_part():
    blob = MemoryBlob()
    run = writer(blob, config=replace(CONFIG, part_bytes=100))
    run.add(rows(0, 3, width=1000))
    assert [part.rows for part in parts_of(run)] == [1, 1, 1]


def test_a_little_goes_to_the_state_unless_something_is_on_its_way():
    rule = InlineRule(4096, 4096)

    def finish(*tables, passed=(), rule=rule):
        run = writer(blob := MemoryBlob())
        if passed:
            run.refer(passed)
        add(run, *tables)
        runs = run.finish(rule)
        return [part.inline is not None for each in runs for part in each.parts], keys_in(blob)

    assert finish() == ([], []), "nothing was added"
    assert finish(rows(0, 0)) == ([], []), "no rows are no part"
    assert finish(rows(0, 2), rows(2, 4)) == ([True], [])
    assert finish(rows(0, 2), rule=None) == ([False], ["orders/w1/p1"])
    assert finish(rows(0, 2), rule=InlineRule(4096, 0)) == ([False], ["orders/w1/p1"]), "the state is full"
    assert finish(rows(0, 2), rule=InlineRule(4096, 10)) == ([False], ["orders/w1/p1"]), "the state is nearly full"
    assert not any(finish(rows(0, 100))[0]), "some of it is uploaded"
    assert finish(rows(0, 2), passed=[Part("orders/w1/p9", 1)])[0] == [False, False]


def test_an_upload_that_fails_is_raised_and_what_may_be_there_is_named():
    blob = UnreliableBlob(MemoryBlob(), lambda what, key: Fault.DETERMINATE if key.endswith("p3") else Fault.NONE)
    run = writer(blob)
    with pytest.raises(Determinate):
        run.add(rows(0, 200))
    assert set(keys_in(blob)) <= set(run.keys)
    assert "orders/w1/p3" in run.keys, "also what failed: it may have happened"
    assert run.abort() == 1
    assert keys_in(blob) == []


def test_the_sum_of_diffs_is_that_of_64_bits():
    huge = table_of([up(1, 1, (1 << 63) - 1), up(2, 1, (1 << 63) - 1), up(3, 1, 5)])
    assert diff_sum_of(huge) == 3
    assert diff_sum_of(huge.slice(0, 0)) == 0
    data = encode_inline(huge)
    part = InlineRule(4096, 4096).part_of(huge)
    assert (part.key, part.rows, part.size, part.diff_sum, part.inline) == ("", 3, len(data), 3, data)

"""A run on its way to storage: parts of about the right size, in order, and nothing left behind."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

import pytest
from building import SCHEMA, Fresh, keys_in, read_part, table_of, up, updates_of
from hypothesis import given, settings
from hypothesis import strategies as st

from timespine.columnar.inline import encode_inline
from timespine.columnar.run_writer import RunWriter, diff_sum_of, inline_part
from timespine.columnar.upload import Target, Uploads
from timespine.config import DEFAULT
from timespine.core.hollow import Part
from timespine.errors import Determinate
from timespine.location.memory import MemoryBlob
from timespine.location.unreliable import Fault, UnreliableBlob

CONFIG = replace(DEFAULT, part_bytes=500, row_group_rows=4, storage_attempts=1)


def writer(blob, pool=None, config=CONFIG):
    target = Target("orders", "w1", SCHEMA, 0, blob, config, sleep=lambda seconds: None)
    return RunWriter(target, Uploads(config.outstanding_parts, pool, {}, target.clock), Fresh())


def rows(start, stop, width=5):
    return table_of([up(k, 1, v="x" * width) for k in range(start, stop)])


def read(parts, blob):
    return [update for part in parts for update in updates_of(read_part(part, blob))]


@settings(max_examples=60)
@given(st.lists(st.integers(0, 60), max_size=5), st.sampled_from([1, 100, 500, 1 << 20]), st.booleans())
def test_what_is_added_comes_out_in_order_and_in_parts_of_about_the_size(sizes, part_bytes, threaded):
    blob = MemoryBlob()
    edges = [sum(sizes[:place]) for place in range(len(sizes) + 1)]
    tables = [rows(a, b) for a, b in pairwise(edges)]
    with ThreadPoolExecutor(2) as pool:
        run = writer(blob, pool if threaded else None, replace(CONFIG, part_bytes=part_bytes))
        run.add(tables)
        parts = run.finish()
    assert read(parts, blob) == [((k, "xxxxx"), (1,), 1) for k in range(edges[-1])]
    assert all(part.rows > 0 for part in parts)
    assert sorted(keys_in(blob)) == sorted(part.key for part in parts)
    row_bytes = rows(0, 50).nbytes / 50
    for part in parts[:-1]:
        assert part.rows * row_bytes <= max(part_bytes * 1.3, row_bytes)


def test_a_part_that_is_passed_through_keeps_its_place():
    blob = MemoryBlob()
    first = writer(blob)
    first.add([rows(10, 20)])
    (passed,) = first.finish()
    run = writer(blob)
    run._fresh = lambda prefix: f"{prefix}x{len(keys_in(blob))}"
    run.add([rows(0, 10)])
    run.refer(passed)
    run.add([rows(20, 25)])
    parts = run.finish()
    assert [part.rows for part in parts] == [10, 10, 5]
    assert parts[1] == passed
    assert read(parts, blob) == [((k, "xxxxx"), (1,), 1) for k in range(25)]


def test_one_row_may_be_larger_than_a_part():
    blob = MemoryBlob()
    run = writer(blob, config=replace(CONFIG, part_bytes=100))
    run.add([rows(0, 3, width=1000)])
    assert [part.rows for part in run.finish()] == [1, 1, 1]


def test_a_little_is_kept_for_the_state_unless_something_is_on_its_way():
    run = writer(MemoryBlob())
    assert run.small() is None, "nothing was added"
    run.add([rows(0, 0)])
    assert run.small() is None, "no rows are no part"
    run.add([rows(0, 2), rows(2, 4)])
    assert run.small().num_rows == 4
    run.clear()
    assert run.finish() == []
    run.add([rows(0, 100)])
    assert run.small() is None, "some of it is uploaded"
    passed = writer(MemoryBlob())
    passed.refer(Part("orders/w1/p9", 1))
    passed.add([rows(0, 2)])
    assert passed.small() is None


def test_an_upload_that_fails_is_raised_and_what_may_be_there_is_named():
    blob = UnreliableBlob(MemoryBlob(), lambda what, key: Fault.DETERMINATE if key.endswith("p3") else Fault.NONE)
    run = writer(blob)
    with pytest.raises(Determinate):
        run.add([rows(0, 200)])
    named = run.abort()
    assert set(keys_in(blob)) <= set(named)
    assert "orders/w1/p3" in named, "also what failed: it may have happened"


def test_the_sum_of_diffs_is_that_of_64_bits():
    huge = table_of([up(1, 1, (1 << 63) - 1), up(2, 1, (1 << 63) - 1), up(3, 1, 5)])
    assert diff_sum_of(huge) == 3
    assert diff_sum_of(huge.slice(0, 0)) == 0
    data = encode_inline(huge)
    part = inline_part(huge, data)
    assert (part.key, part.rows, part.size, part.diff_sum, part.inline) == ("", 3, len(data), 3, data)

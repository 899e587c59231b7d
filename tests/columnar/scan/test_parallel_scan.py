"""A read by several threads gives the same rows as a read by one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import given as examples
from hypothesis import strategies as st
from run_cases import CONFIG, Place, order_keys, questions, worlds

from timespine.columnar.parts.part_reader import MissingBlob
from timespine.columnar.predicate.key_set import KeySet
from timespine.columnar.scan import parallel_scan
from timespine.columnar.scan.parallel_scan import scan_in_shares
from timespine.columnar.scan.scan import scan
from timespine.columnar.scan.scan_request import ScanRequest
from timespine.columnar.schema.schema import define

some = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
KV = define({"k": "int64"}, {"v": "string"})
MEMORY = 1 << 20


@pytest.fixture(autouse=True)
def small_shares(monkeypatch):
    monkeypatch.setattr(parallel_scan, "SHARE_ROWS", 1)
    monkeypatch.setattr(parallel_scan, "SELECTED", 1)
    monkeypatch.setattr(parallel_scan, "FEW", 1)
    monkeypatch.setattr(parallel_scan, "usable_cores", lambda: 3)


def rows_of(tables, wanted):
    keys = [row for rows in order_keys([table for table in tables if table.num_rows], wanted.order) for row in rows]
    return list(zip(keys, [diff for table in tables for diff in table.column("_diff").to_pylist()], strict=True))


@some
@examples(st.data())
def test_shares_together_are_the_whole(data):
    place, runs, _, pools = data.draw(worlds())
    wanted, _ = data.draw(questions(place.newest, pools))
    memory = data.draw(st.sampled_from([300, 3000, MEMORY]))
    with ThreadPoolExecutor(2) as pool:
        together = list(scan_in_shares(place.parts(pool=pool), runs, wanted, memory))
    assert rows_of(together, wanted) == rows_of(list(scan(place.parts(), runs, wanted, memory)), wanted)


def parts_of_many_groups(**more):
    place = Place([KV], CONFIG)
    updates = [((k, "x"), (0,), 1) for k in range(100)]
    return place, place.parts(**more), [place.run(updates)]


def test_what_shares_did_is_added_up():
    place, alone, runs = parts_of_many_groups()
    wanted = ScanRequest(KV, KV.names)
    expected = list(scan(alone, runs, wanted, MEMORY))
    with ThreadPoolExecutor(2) as pool:
        parts = place.parts(pool=pool)
        found = list(scan_in_shares(parts, runs, wanted, MEMORY))
    assert len(found) > 1
    assert rows_of(found, wanted) == rows_of(expected, wanted)
    cuts = parts.scan_stats.parts - 1
    assert alone.scan_stats.groups <= parts.scan_stats.groups <= alone.scan_stats.groups + 2 * cuts, (
        "next to a cut: twice"
    )
    assert parts.scan_stats.groups_skipped > 0, "each share skips what the others read"


def test_whatever_a_share_fails_with_is_raised_and_the_others_are_not_waited_for():
    with ThreadPoolExecutor(1) as pool:
        place, parts, runs = parts_of_many_groups(pool=pool)
        wanted = ScanRequest(KV, KV.names)
        assert list(scan_in_shares(parts, runs, wanted, MEMORY))
        parts.cache.clear()
        reader = scan_in_shares(parts, runs, wanted, MEMORY)
        for run in runs:
            for part in run.parts:
                place.blob.delete(part.key)
        with pytest.raises(MissingBlob):
            list(reader)


def test_a_lookup_is_not_shared(monkeypatch):
    monkeypatch.setattr(parallel_scan, "FEW", 512)
    with ThreadPoolExecutor(1) as pool:
        _, parts, runs = parts_of_many_groups(pool=pool)
        monkeypatch.setattr(pool, "submit", None)  # nothing may go there
        wanted = replace(ScanRequest(KV, KV.names), keys=KeySet(pa.table({"k": [5, 70]})))
        (found,) = [
            table for table in scan_in_shares(replace(parts, pool=None), runs, wanted, MEMORY) if table.num_rows
        ]
        assert found.column("k").to_pylist() == [5, 70]
        assert parallel_scan._cuts(parts, runs, wanted, 4) == []
        assert parallel_scan._cuts(parts, runs, ScanRequest(KV, KV.names), 4) != []
        assert parts.scan_stats.parts_skipped == 0, "planning is not reading"

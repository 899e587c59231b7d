"""A count is the sum of the diffs of what is there, and costs no I/O where the state knows it."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import given as examples
from hypothesis import strategies as st
from run_cases import CONFIG, Place, given, naive, questions, worlds

from timespine.columnar.predicate.where import as_predicate
from timespine.columnar.scan.row_count import count_rows, is_whole
from timespine.columnar.scan.scan import merge_sources, scan_sources
from timespine.columnar.scan.scan_request import ScanRequest
from timespine.columnar.scan.visibility import Window
from timespine.columnar.schema.schema import define
from timespine.core.batch import Order, Run
from timespine.model.frontier import CLOSED, Frontier

some = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
KV = define({"k": "int64"}, {"v": "string"})


def kv(k, time=0, diff=1):
    return (k, f"v{k}"), (time,), diff


@some
@examples(st.data())
def test_a_count_is_the_number_of_rows_that_a_scan_gives(data):
    place, runs, history, pools = data.draw(worlds())
    wanted, naively = data.draw(questions(place.newest, pools))
    parts = place.parts(audit=1.0)
    expected = sum(naive(history, wanted, **naively).values())
    assert count_rows(parts, runs, wanted) == expected
    assert (
        sum(given(merge_sources(parts, scan_sources(parts, runs, wanted), wanted, 1 << 20), wanted).values())
        == expected
    )


@pytest.mark.parametrize("nested", [False, True])
def test_a_count_of_everything_reads_nothing(nested):
    place = Place([KV])
    runs = [place.run([kv(n, time, 2) for n in range(50)], cuts=(20, 40), nested=nested) for time in (1, 2)]
    for window, expected in (
        (Window(), 200),
        (Window(until=(2,)), 200),
        (Window(until=(1,)), 100),
        (Window((1,)), 100),
    ):
        parts = place.parts()
        assert count_rows(parts, runs, ScanRequest(KV, KV.names, window)) == expected
        assert parts.scan_stats.bytes == 0
        assert parts.scan_stats.parts == 0


def test_a_count_reads_times_and_diffs_of_what_is_partly_seen():
    place = Place([KV])
    run = place.run([kv(n, n) for n in range(90)], cuts=(30, 60))
    parts = place.parts()
    assert count_rows(parts, [run], ScanRequest(KV, KV.names, Window(until=(44,)))) == 45
    assert parts.scan_stats.parts == 1, "the first counts by its sum, the last not at all"
    whole = place.parts()
    list(
        merge_sources(whole, scan_sources(whole, [run], ScanRequest(KV, KV.names)), ScanRequest(KV, KV.names), 1 << 20)
    )
    assert 0 < parts.scan_stats.bytes < whole.scan_stats.bytes / 3


def test_of_a_hollow_run_that_is_partly_seen_what_is_inside_counts_by_its_sum():
    place = Place([KV])
    run = place.run([kv(n, n) for n in range(90)], cuts=(30, 60), nested=True)
    parts = place.parts()
    assert count_rows(parts, [run], ScanRequest(KV, KV.names, Window(until=(44,)))) == 45
    assert parts.scan_stats.parts == 1


def test_a_condition_is_counted_by_its_columns_alone():
    place = Place([KV])
    run = place.run([kv(n, diff=1 + n % 2) for n in range(60)], cuts=(30,))
    parts = place.parts()
    assert count_rows(parts, [run], ScanRequest(KV, KV.names, where=as_predicate("k >= 50"))) == 15
    assert (parts.scan_stats.parts, parts.scan_stats.parts_skipped) == (1, 1)
    assert count_rows(parts, [run], ScanRequest(KV, KV.names, where=as_predicate("v LIKE 'v5_'"))) == 15


def test_what_is_whole_is_decided_by_what_is_surely_known():
    place = Place([KV])
    (part,) = place.run([kv(1, 3), kv(2, 5)]).parts
    everything = ScanRequest(KV, KV.names)
    assert is_whole(part, everything)
    assert is_whole(part, ScanRequest(KV, KV.names, Window(until=(5,))))
    assert not is_whole(part, ScanRequest(KV, KV.names, Window(until=(4,))))
    assert not is_whole(part, ScanRequest(KV, KV.names, Window(after=(3,))))
    assert is_whole(part, ScanRequest(KV, KV.names, Window(after=(2,))))
    changed = msgspec.structs.replace
    assert not is_whole(changed(part, diff_sum=None), everything)
    assert not is_whole(changed(part, lower=Frontier.at(0)), everything)
    assert not is_whole(changed(part, rewrite=Frontier.at(9)), ScanRequest(KV, KV.names, Window(until=(8,))))
    assert is_whole(changed(part, rewrite=Frontier.at(9)), ScanRequest(KV, KV.names, Window(until=(9,))))
    assert is_whole(changed(part, rewrite=Frontier.at(9)), ScanRequest(KV, KV.names, Window(after=(8,))))
    assert not is_whole(changed(part, rewrite=CLOSED), ScanRequest(KV, KV.names, Window(until=(8,))))
    assert not is_whole(changed(part, meta=b""), ScanRequest(KV, KV.names, Window(until=(8,))))
    assert not is_whole(part, replace(everything, where=as_predicate("k = 1")))


def test_times_of_two_coordinates_are_looked_at():
    schema = define({"k": "int64"}, None, arity=2)
    place = Place([schema])
    run = place.run([((n,), (n, 9 - n), 1) for n in range(10)])
    assert count_rows(place.parts(), [run], ScanRequest(schema, ("k",), Window(until=(5, 6)))) == 3
    assert count_rows(place.parts(), [run], ScanRequest(schema, ("k",))) == 10


def test_counts_below_zero_count_below_zero():
    place = Place([KV])
    run = Run(place.run([kv(1, diff=-5), kv(2, diff=2)]).parts, Order.SORTED, 0)
    assert count_rows(place.parts(), [run], ScanRequest(KV, KV.names)) == -3
    assert count_rows(place.parts(), [run], ScanRequest(KV, KV.names, where=as_predicate("k = 1"))) == -5
    assert CONFIG.row_group_rows == 3


def test_a_sum_that_may_have_wrapped_is_not_believed():
    place = Place([KV])
    most = (1 << 63) - 1
    run = place.run([kv(n, diff=most) for n in range(4)])
    for wanted in (
        ScanRequest(KV, KV.names),
        ScanRequest(KV, KV.names, lower=b"\x00"),
        ScanRequest(KV, KV.names, Window(until=(9,))),
    ):
        assert count_rows(place.parts(), [run], wanted) == 4 * most

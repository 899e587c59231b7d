"""Kernels in the background: the same rows, in fewer calls, without a second thread."""

import threading
from unittest import mock

import pyarrow as pa
import pytest
from assertions import until
from hypothesis import given
from kernel_cases import SMALL, order_of, small, tables
from test_consolidate import check, random_table

import timespine as ts
from timespine.columnar.kernels import sort_equal_words, take_rows, text_words
from timespine.columnar.kernels.background_flag import background_work, is_background
from timespine.columnar.kernels.consolidate import consolidate
from timespine.columnar.merge.merge_engine import Engine


@given(tables(), SMALL)
def test_consolidated_in_the_background_is_what_the_oracle_says(table, how):
    with small(how), mock.patch.object(text_words, "BACKGROUND_BLOCK", 7), background_work():
        check(table, order_of(table))


def test_large_tables_are_the_same_in_the_background():
    table = random_table(300_000)
    order = order_of(table)
    with background_work():
        there = consolidate(table, order)
    assert there.equals(consolidate(table, order))


def test_blocks_are_fewer_in_the_background_and_as_before_afterwards():
    rows = 1 << 20
    before = len(list(text_words.blocks(rows)))
    with background_work():
        assert len(list(text_words.blocks(rows))) * 4 == before
        assert len(list(sort_equal_words.group_blocks(rows, None))) * 4 == before
    assert len(list(text_words.blocks(rows))) == before


@pytest.mark.parametrize("threads", [0, 1])
def test_rows_are_picked_by_one_thread_in_the_background(threads):
    column = pa.array(range(1000))
    index = pa.array(range(999, -1, -1)).to_numpy()
    started = []

    class Thread(threading.Thread):
        def start(self):
            started.append(self)
            super().start()

    with mock.patch.object(take_rows, "THREADED_ROWS", 10), mock.patch.object(take_rows.threading, "Thread", Thread):
        if threads:
            (taken,) = take_rows.take([column], index)
        else:
            with background_work():
                (taken,) = take_rows.take([column], index)
    assert len(started) == threads
    assert taken.to_pylist() == list(range(999, -1, -1))


def test_other_threads_are_not_in_the_background():
    seen = []
    with background_work():
        thread = threading.Thread(target=lambda: seen.append(is_background()))
        thread.start()
        thread.join(60)
        assert is_background()
    assert seen == [False]
    assert not is_background()


def test_merges_of_the_maintenance_thread_are_in_the_background_and_those_of_a_call_are_not(tmp_path, monkeypatch):
    seen = []
    merge = Engine.merge

    def spied(self, effect):
        seen.append((threading.current_thread().name, is_background()))
        return merge(self, effect)

    monkeypatch.setattr(Engine, "merge", spied)
    with ts.open(str(tmp_path / "store")) as store:
        orders = store.create("orders", key={"id": "int64"})
        for number in range(40):
            orders.append([{"id": number}])
        until(lambda: ("timespine-maintenance", True) in seen)
        orders.append([{"id": 1000}])
        orders.compact()
    assert {is_there for name, is_there in seen if name == "timespine-maintenance"} == {True}
    assert {is_there for name, is_there in seen if name != "timespine-maintenance"} <= {False}

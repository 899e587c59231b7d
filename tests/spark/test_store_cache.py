"""What a process beside the driver keeps open is the store that is in the folder."""

from __future__ import annotations

import shutil

import pytest

import timespine as ts
from timespine.errors import TimespineError, UsageError
from timespine.spark.options import CollectionAddress
from timespine.spark.store_cache import collection_of, store_of


def made(folder, id):
    with ts.open(folder, maintenance=False) as store:
        store.create("items", key={"id": "int64"}, timeline="counter").append([{"id": id}])


def test_a_folder_that_was_made_again_is_opened_again(tmp_path):
    folder = tmp_path / "store"
    target = CollectionAddress(str(folder), "items")
    made(folder, 0)
    first = store_of(CollectionAddress(str(folder), ""))
    assert store_of(CollectionAddress(str(folder), "")) is first
    for id in range(1, 4):
        shutil.rmtree(folder)
        made(folder, id)
        assert collection_of(target).snapshot().to_pylist() == [{"id": id}]
        collection_of(target).append([{"id": 100 + id}])
        with ts.open(folder, maintenance=False) as store:
            assert sorted(row["id"] for row in store.collection("items").snapshot().to_pylist()) == [id, 100 + id]
    with pytest.raises(TimespineError):
        first.collection("items").append([{"id": 5}])


def test_a_folder_that_is_gone_is_an_error_and_not_what_was_there(tmp_path):
    folder = tmp_path / "store"
    made(folder, 0)
    assert store_of(CollectionAddress(str(folder), "")).names() == ["items"]
    shutil.rmtree(folder)
    with pytest.raises(UsageError, match="no store"):
        store_of(CollectionAddress(str(folder), ""))
    assert not folder.exists()

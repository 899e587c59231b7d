"""A call that created a collection and failed removes it, unless other callers have written to it."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from timespine.errors import ClosedError, UsageError

KEY = {"k": "int64"}


@pytest.fixture
def half_a_load(tmp_path):
    """Two files of which the second cannot be read."""
    pq.write_table(pa.table({"k": range(100)}), tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_text("no Parquet")
    return tmp_path


def failed_load(store, folder, meanwhile):
    """Load a folder until its second file; call something after the first one."""
    with pytest.raises(UsageError, match="cannot be read"):
        store.load("orders", folder, key=["k"], timeline="counter", progress=lambda rows: meanwhile())


@pytest.mark.parametrize("write", ["append", "write"])
def test_rows_that_another_process_wrote_while_a_load_failed_stay(place, half_a_load, write):
    store, other = place.open(), place.open()

    def meanwhile():
        orders = other["orders"]
        if write == "append":
            orders.append([{"k": 7}])
        else:
            orders.write([{"k": 7, "_time": 5}])

    failed_load(store, half_a_load, meanwhile)
    assert store.names() == ["orders"]
    if write == "write":
        other["orders"].seal(6)
    store.maintain(sweep=True)
    assert other["orders"].snapshot().to_pylist() == [{"k": 7}]


def test_a_handle_to_an_undone_collection_is_closed_and_its_name_is_free(place, half_a_load):
    store, other = place.open(), place.open()
    opened = []
    failed_load(store, half_a_load, lambda: opened.append(other["orders"]))
    assert store.names() == []
    with pytest.raises(ClosedError):
        opened[0].append([{"k": 7}])
    store.maintain(sweep=True)
    again = other.create("orders", key=KEY, timeline="counter")
    again.append([{"k": 8}])
    assert store["orders"].snapshot().to_pylist() == [{"k": 8}]


def test_an_append_at_the_moment_of_the_removal_is_refused_or_keeps_the_collection(place):
    """The other process appends right before each commit that the removal makes."""
    store, other = place.open(), place.open()
    created = store.create("orders", key=KEY, timeline="counter")
    commit, acknowledged = store._committer.commit, []

    def late(*commands, **options):
        acknowledged.append(other["orders"].append([{"k": 7}]))
        return commit(*commands, **options)

    store._committer.commit = late
    assert not store._drop_service.undo_create(created.id, "orders")
    store._committer.commit = commit
    assert acknowledged
    assert store.names() == ["orders"]
    assert created.snapshot().to_pylist() == [{"k": 7}]
    assert not store._drop_service.undo_create(created.id, "orders")

"""Of several changes of a key the last one counts, and which one that is never depends on the order of rows."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest

from timespine.columnar.schema.schema import define
from timespine.errors import UsageError
from timespine.spark.write.apply_changes import latest_changes

SCHEMA = define({"id": "int64"}, {"name": "string", "tags": "list<int64>"})


def changes(*rows):
    return pa.table(
        {
            "id": [row[0] for row in rows],
            "name": [row[1] for row in rows],
            "_change_type": [row[2] for row in rows],
            "n": pa.array([row[3] for row in rows]),
        }
    )


def last(rows):
    return sorted(
        (row["id"], row["name"], row["_change_type"]) for row in latest_changes(rows, SCHEMA, "n").to_pylist()
    )


def test_of_changes_that_are_last_together_a_row_that_comes_wins_over_one_that_goes():
    rows = [(1, "a", "insert", 0), (1, "a", "delete", 1), (1, "b", "insert", 1), (2, "a", "delete", 1)]
    for order in itertools.permutations(rows):
        assert last(changes(*order)) == [(1, "b", "insert"), (2, "a", "delete")]


def test_a_later_delete_wins_over_all_before():
    rows = [
        (1, "a", "insert", 0),
        (1, "b", "update_postimage", 1),
        (1, "b", "delete", 2),
        (1, "x", "update_preimage", 9),
    ]
    for order in itertools.permutations(rows):
        assert last(changes(*order)) == [(1, "b", "delete")]


def test_two_different_rows_that_come_last_together_are_an_error():
    rows = [(1, "a", "insert", 3), (1, "b", "update_postimage", 3)]
    for order in itertools.permutations(rows):
        with pytest.raises(UsageError, match="1 rows repeat the key and the n of another one, and differ"):
            latest_changes(changes(*order), SCHEMA, "n")
        with pytest.raises(UsageError, match="and differ"):
            latest_changes(changes(*order).drop_columns(["_change_type"]), SCHEMA, "n")


def test_lines_of_a_change_log_count_in_the_order_in_which_they_stand():
    rows = changes((1, "a", "delete", 0), (1, "b", "insert", 0), (2, "a", "insert", 0), (2, "a", "delete", 0))
    rows = rows.rename_columns(["id", "name", "_change_type", "_sequence"])
    found = {row["id"]: row["_change_type"] for row in latest_changes(rows, SCHEMA, "_sequence").to_pylist()}
    assert found == {1: "insert", 2: "delete"}


def test_the_same_row_twice_is_one_and_ties_before_the_last_do_not_matter():
    rows = [(1, "a", "insert", 3), (1, "a", "update_postimage", 3), (1, "x", "insert", 2), (1, "y", "insert", 2)]
    (found,) = last(changes(*rows))
    assert found[:2] == (1, "a")


def test_without_a_sequence_a_key_comes_once():
    with pytest.raises(UsageError, match=r"repeat the key of another one.*_commit_version"):
        latest_changes(changes((1, "a", "delete", 0), (1, "b", "insert", 0)).drop_columns(["n"]), SCHEMA, None)


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.float64(), pa.timestamp("us"), pa.decimal128(30, 2)])
def test_a_sequence_may_be_of_any_ordered_type(kind):
    numbers = pa.array([b"1", b"2"]) if pa.types.is_binary(kind) else pa.array([1, 2]).cast(kind)
    rows = pa.table({"id": [1, 1], "name": ["a", "b"], "tags": [[1], None], "n": numbers})
    assert latest_changes(rows, SCHEMA, "n").column("name").to_pylist() == ["b"]

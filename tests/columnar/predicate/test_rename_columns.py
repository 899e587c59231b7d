"""A condition on renamed columns is true of the same rows."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pytest

from timespine.columnar.predicate.rename_columns import rename_columns
from timespine.columnar.predicate.where import as_predicate, col
from timespine.errors import UsageError

ROWS = pa.table({"a": [1, 2, 3, None], "b": [3, 2, 1, 0], "c": ["x", "xy", None, "z"]})
NAMES = {"a": "b", "b": "a", "c": "#7"}
RENAMED = ROWS.rename_columns([NAMES[name] for name in ROWS.column_names])


@pytest.mark.parametrize(
    "text",
    [
        "a > 1",
        "a < b",
        "a IS NULL OR NOT (b >= 2 AND c LIKE 'x%')",
        "a IN (1, 3) AND c IS NOT NULL",
        "a BETWEEN 1 AND 2 OR c = 'z'",
        "NOT a = 2",
        "TRUE",
    ],
)
def test_a_renamed_condition_is_true_of_the_same_rows(text):
    before = as_predicate(text)
    after = rename_columns(before, NAMES)
    assert after.mask(RENAMED).to_pylist() == before.mask(ROWS).to_pylist()
    assert as_predicate(str(after)) == after
    assert rename_columns(before, {}) is before
    assert set(after.columns) == {NAMES[name] for name in before.columns}


def test_a_polars_expression_is_used_unchanged_or_refused():
    native = as_predicate(pl.col("a") > 1)
    assert rename_columns(native, {"b": "c"}) is native
    for each in (native, native & (col("b") > 1)):
        with pytest.raises(UsageError, match="'a' of a polars expression was renamed"):
            rename_columns(each, NAMES)

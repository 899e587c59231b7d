"""Rows without a column of their key are refused in every form, and rows without others are not."""

import polars as pl
import pyarrow as pa
import pytest

from timespine.columnar.ingest.require_key_columns import check_key_columns, refuse_missing, require_key_columns
from timespine.columnar.schema.schema import define
from timespine.errors import InvalidRows

SCHEMA = define({"a": "int64", "b": "string"}, {"v": "string"})

WHOLE = [{"a": 1, "b": "x", "v": "y"}, {"a": 2, "b": "z"}]


@pytest.mark.parametrize(
    "rows",
    [
        [{"a": 1, "v": "y"}],
        [{"a": 1, "b": "x"}, {"a": 2}],
        {"a": [1, 2], "v": ["y", "y"]},
        pa.table({"a": [1]}),
        pl.DataFrame({"a": [1]}),
    ],
    ids=["all rows", "one of them", "columns", "arrow", "polars"],
)
def test_rows_without_a_key_column_are_refused_and_the_column_is_named(rows):
    with pytest.raises(InvalidRows, match="the rows lack the key column 'b'"):
        require_key_columns(rows, SCHEMA)


def test_rows_with_their_key_columns_may_lack_others():
    assert require_key_columns(WHOLE, SCHEMA).column("a").to_pylist() == [1, 2]


def test_no_rows_lack_nothing_and_without_a_key_there_is_none_to_lack():
    check_key_columns([], pa.table({}), SCHEMA)
    require_key_columns([{"v": "y"}], define(None, {"v": "string", "w": "string"}))
    refuse_missing((), set())

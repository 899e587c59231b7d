"""MERGE as Delta users know it: which clause a row meets, what becomes of it, and what is refused."""

import math
from collections import Counter

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_store import BLOBS, QUICK, MemoryStore, counted

from timespine.columnar.predicate.where import col
from timespine.errors import UsageError
from timespine.model.frontier import Frontier


@pytest.fixture
def stock(place):
    """Three rows: 1 apple, 2 pears, 3 plums."""
    made = create(place.open())
    made.append([item(1, "apple", 1), item(2, "pear", 2), item(3, "plum", 3)])
    return made


def create(store, **options):
    options = {"key": {"k": "int64"}, "value": {"v": "string", "n": "int64"}, "timeline": "counter", **options}
    return store.create("stock", **options)


def item(k, v, n):
    return {"k": k, "v": v, "n": n}


def now(collection, *names):
    return counted(collection.snapshot(multiplicity="column").to_pylist(), *(names or ("k", "v", "n")))


THERE = {(1, "apple", 1): 1, (2, "pear", 2): 1, (3, "plum", 3): 1}


def test_matched_rows_are_updated_and_others_inserted_in_one_commit(stock):
    done = (
        stock.merge([item(2, "quince", 20), item(4, "fig", 40)])
        .when_matched_update()
        .when_not_matched_insert()
        .execute()
    )
    assert (done.time, done.upper, done.rows) == (1, Frontier.at(2), 3)
    assert now(stock) == {(1, "apple", 1): 1, (2, "quince", 20): 1, (3, "plum", 3): 1, (4, "fig", 40): 1}
    assert stock.history()[-1].operation == "merge"


def test_columns_that_the_source_does_not_have_stay_as_they_are(stock):
    stock.merge([{"k": 2, "n": 20}, {"k": 4, "n": 40}]).when_matched_update().when_not_matched_insert().execute()
    assert now(stock) == {(1, "apple", 1): 1, (2, "pear", 20): 1, (3, "plum", 3): 1, (4, None, 40): 1}


def test_named_values_may_use_both_sides(stock):
    stock.merge([{"k": 2, "n": 5}]).when_matched_update({"n": pl.col("n") + pl.col("source.n"), "v": "more"}).execute()
    assert now(stock)[2, "more", 7] == 1


def test_matched_rows_are_deleted(stock):
    stock.merge([{"k": 1}, {"k": 3}, {"k": 9}]).when_matched_delete().execute()
    assert now(stock) == {(2, "pear", 2): 1}


def test_rows_that_the_source_does_not_have_go_or_change(stock):
    stock.merge([{"k": 1}]).when_not_matched_by_source_update({"n": 0}, where="k = 2").execute()
    assert now(stock) == {(1, "apple", 1): 1, (2, "pear", 0): 1, (3, "plum", 3): 1}
    stock.merge([{"k": 1}]).when_not_matched_by_source_delete(where=pl.col("n") > 0).execute()
    assert now(stock) == {(1, "apple", 1): 1, (2, "pear", 0): 1}
    stock.merge([{"k": 1}]).when_not_matched_by_source_delete().execute()
    assert now(stock) == {(1, "apple", 1): 1}


def test_the_source_replaces_everything_with_three_clauses(stock):
    (
        stock.merge([item(2, "pear", 22), item(5, "nut", 5)])
        .when_matched_update()
        .when_not_matched_insert()
        .when_not_matched_by_source_delete()
        .execute()
    )
    assert now(stock) == {(2, "pear", 22): 1, (5, "nut", 5): 1}


def test_an_empty_source_matches_nothing(stock):
    for empty in ([], (), pa.table({"k": pa.array([], pa.int64())}), pl.DataFrame({"k": []}, {"k": pl.Int64})):
        assert stock.merge(empty).when_matched_delete().when_not_matched_insert().execute().rows == 0
    assert now(stock) == THERE
    stock.merge([]).when_not_matched_by_source_delete().execute()
    assert now(stock) == {}


def test_a_merge_into_nothing_inserts(place):
    stock = create(place.open())
    stock.merge([item(1, "a", 1)]).when_matched_delete().when_not_matched_insert().execute()
    assert now(stock) == {(1, "a", 1): 1}


# Clauses.


def test_of_several_clauses_the_first_that_fits_counts(stock):
    source = [item(1, "one", 10), item(2, "two", 20), item(3, "three", 30)]
    (
        stock.merge(source)
        .when_matched_delete(where="n = 1")
        .when_matched_update({"v": "two and up"}, where="n < 3")
        .when_matched_update()
        .execute()
    )
    assert now(stock) == {(2, "two and up", 2): 1, (3, "three", 30): 1}


def test_the_order_of_clauses_matters(stock):
    (stock.merge([item(1, "one", 10)]).when_matched_update().when_matched_delete(where="n = 1").execute())
    assert now(stock)[1, "one", 10] == 1


def test_conditions_see_both_sides_as_text_or_as_expressions(stock):
    source = [item(1, "one", 0), item(2, "two", 20), item(7, "seven", 7), item(8, "eight", 8)]
    (
        stock.merge(source)
        .when_matched_update(where="source.n > n")
        .when_not_matched_insert(where=pl.col("source.n") > 7)
        .execute()
    )
    assert now(stock) == {(1, "apple", 1): 1, (2, "two", 20): 1, (3, "plum", 3): 1, (8, "eight", 8): 1}


def test_a_condition_that_is_null_does_not_hold(place):
    stock = create(place.open())
    stock.append([item(1, "a", None), item(2, "b", 2)])
    stock.merge([{"k": 1}, {"k": 2}]).when_matched_delete(where="n > 1").execute()
    assert now(stock) == {(1, "a", None): 1}


def test_rows_that_no_clause_is_about_stay(stock):
    assert stock.merge([item(1, "x", 9), item(9, "y", 9)]).when_matched_update(where="n > 99").execute().rows == 0
    assert stock.merge([item(1, "x", 9)]).when_not_matched_insert().execute().rows == 0
    assert stock.merge([item(9, "x", 9)]).when_matched_update().when_matched_delete().execute().rows == 0
    assert now(stock) == THERE
    assert stock.upper == Frontier.at(1)


def test_inserted_values_may_be_named_all_of_them_even(stock):
    stock.merge([{"k": 7}, {"k": 8}]).when_not_matched_insert({"v": "new", "n": pl.col("source.k") * 2}).execute()
    assert now(stock) == {**THERE, (7, "new", 14): 1, (8, "new", 16): 1}
    stock.merge([{"k": 20}, {"k": 21}]).when_not_matched_insert({"k": 99, "v": "same", "n": 0}).execute()
    assert now(stock)[99, "same", 0] == 2


def test_columns_that_an_insert_does_not_name_are_null_or_their_default_and_not_those_of_the_source(place):
    stock = create(place.open())
    stock.evolve(add={"c": ("string", "EUR")})
    source = [{"k": 7, "v": "seven", "n": 7, "c": "USD"}]
    stock.merge(source).when_not_matched_insert({"n": pl.col("source.n") * 2}).execute()
    assert stock.lookup({"k": 7}).to_pylist() == [{"k": 7, "v": None, "n": 14, "c": "EUR"}]
    stock.merge([{**source[0], "k": 8}]).when_not_matched_insert().execute()
    assert stock.lookup({"k": 8}).to_pylist() == [{"k": 8, "v": "seven", "n": 7, "c": "USD"}]


def test_a_source_may_repeat_keys_if_rows_are_only_inserted(stock):
    source = [item(7, "a", 1), item(7, "b", 2), item(7, "b", 2), item(1, "there", 0), item(1, "too", 0)]
    stock.merge(source).when_not_matched_insert(where="source.n = 1").when_not_matched_insert({"n": 0}).execute()
    assert now(stock) == {**THERE, (7, "a", 1): 1, (7, None, 0): 2}
    for merge in (
        stock.merge(source).when_not_matched_insert().when_matched_delete(),
        stock.merge(source).when_not_matched_insert().when_not_matched_by_source_delete(),
    ):
        with pytest.raises(UsageError, match="several rows of the same key"):
            merge.execute()


@pytest.mark.parametrize("values", ["v", ["v"], 5, [("v", 1)]])
def test_values_that_are_not_by_column_are_refused(stock, values):
    for clause in (
        lambda: stock.merge([]).when_matched_update(values),
        lambda: stock.merge([]).when_not_matched_insert(values),
        lambda: stock.merge([]).when_not_matched_by_source_update(values),
    ):
        with pytest.raises(UsageError, match="by column"):
            clause()


def test_an_update_of_nothing_by_source_changes_nothing(stock):
    assert stock.merge([{"k": 1}]).when_not_matched_by_source_update({}).execute().rows == 0
    assert now(stock) == THERE


def test_a_merge_without_clauses_is_refused_and_describing_one_changes_nothing(stock):
    begun = stock.merge([item(1, "x", 1)])
    with pytest.raises(UsageError, match="clause"):
        begun.execute()
    deleting, updating = begun.when_matched_delete(), begun.when_matched_update({"n": 5})
    assert begun._clauses == []
    updating.execute()
    assert now(stock)[1, "apple", 5] == 1
    deleting.execute()
    assert now(stock) == {(2, "pear", 2): 1, (3, "plum", 3): 1}
    updating.execute()  # again: there is nothing to match any more
    assert now(stock) == {(2, "pear", 2): 1, (3, "plum", 3): 1}


# Sources.


@pytest.mark.parametrize(
    "form",
    [
        lambda table: table,
        lambda table: table.to_reader(),
        lambda table: table.to_pylist(),
        lambda table: tuple(table.to_pylist()),
        lambda table: table.to_pydict(),
        lambda table: pl.from_arrow(table),
        lambda table: pl.from_arrow(table).lazy(),
        lambda table: table.to_pandas(),
    ],
    ids=["table", "reader", "dicts", "tuple", "columns", "polars", "lazy", "pandas"],
)
def test_a_feed_of_changes_is_applied_by_a_column_that_only_the_source_has(stock, form):
    feed = pa.table({"k": [1, 2, 4, 5], "v": ["a", "b", "c", "d"], "n": [10, 20, 40, 50], "op": ["D", "U", "I", "D"]})
    (
        stock.merge(form(feed))
        .when_matched_delete(where="source.op = 'D'")
        .when_matched_update()
        .when_not_matched_insert(where="source.op <> 'D'")
        .execute()
    )
    assert now(stock) == {(2, "b", 20): 1, (3, "plum", 3): 1, (4, "c", 40): 1}


def test_a_source_with_the_same_key_twice_is_refused(stock):
    for source in (
        [item(1, "a", 1), item(1, "b", 2)],
        [item(9, "a", 1), item(9, "a", 1)],
        [item(None, "a", 1), item(None, "b", 1)],
    ):
        with pytest.raises(UsageError, match="same key"):
            stock.merge(source).when_matched_update().execute()
    assert now(stock) == THERE


@pytest.mark.parametrize(
    "source",
    [
        None,
        7,
        "text",
        [1],
        [{"v": "a"}],
        {"v": ["a"]},
        [{"k": "x"}],
        [{"k": 1.5}],
        {"k": [1], "op": ["a", "b"]},
        {"k": [1], "v": ["a", "b"]},
        pa.table({"v": ["a"]}),
    ],
    ids=lambda source: repr(source)[:30],
)
def test_a_source_that_cannot_be_matched_is_refused(stock, source):
    with pytest.raises(UsageError):
        stock.merge(source).when_matched_update().execute()
    assert now(stock) == THERE


def test_null_keys_and_keys_that_are_no_number_match_themselves(place):
    points = place.open(config=BLOBS).create("points", key={"x": "double"}, value={"v": "string"}, timeline="counter")
    points.append([{"x": x, "v": "old"} for x in (None, math.nan, 0.0, 1.0)])
    source = [{"x": x, "v": "new"} for x in (None, float("-nan"), -0.0, 2.0)]
    points.merge(source).when_matched_update().when_not_matched_insert().execute()
    rows = points.snapshot().to_pylist()
    assert len(rows) == 5
    assert [row["v"] for row in rows if row["x"] == 1.0] == ["old"]
    assert Counter(row["v"] for row in rows) == {"new": 4, "old": 1}
    points.merge([{"x": None}, {"x": math.nan}]).when_not_matched_by_source_delete().execute()
    assert points.count() == 2


def test_a_collection_without_key_columns_cannot_be_merged_into(place):
    events = place.open().create("events", value={"v": "string"}, timeline="counter")
    with pytest.raises(UsageError, match="key columns"):
        events.merge([{"v": "a"}]).when_not_matched_insert().execute()


# What is refused.


def test_keys_cannot_be_updated_but_may_be_named(stock):
    for changed in (9, pl.col("k") + 1, None):
        with pytest.raises(UsageError, match="key columns"):
            stock.merge([item(1, "x", 1)]).when_matched_update({"k": changed}).execute()
        with pytest.raises(UsageError, match="key columns"):
            stock.merge([item(9, "x", 1)]).when_not_matched_by_source_update({"k": changed}).execute()
    assert now(stock) == THERE
    stock.merge([item(1, "x", 1)]).when_matched_update({"k": pl.col("source.k"), "v": "same key"}).execute()
    assert now(stock)[1, "same key", 1] == 1


@pytest.mark.parametrize(
    "where", ["", "n >", "nothing = 1", "source.nothing = 1", "v", 7, pl.col("v"), pl.col("w") > 1]
)
def test_conditions_that_make_no_sense_are_refused(stock, where):
    with pytest.raises(UsageError):
        stock.merge([item(1, "x", 1)]).when_matched_delete(where=where).execute()
    assert now(stock) == THERE


@pytest.mark.parametrize("values", [{"w": 1}, {"n": "x"}, {"n": 1 << 80}, {"v": object()}, {"n": pl.col("w")}])
def test_values_that_make_no_sense_are_refused(stock, values):
    source = [item(1, "x", 1), item(9, "y", 9)]
    for merge in (
        stock.merge(source).when_matched_update(values),
        stock.merge(source).when_not_matched_insert(values),
        stock.merge(source).when_not_matched_by_source_update(values),
    ):
        with pytest.raises(UsageError):
            merge.execute()
    assert now(stock) == THERE


def test_a_column_that_is_called_like_one_of_the_source_is_told_apart_or_refused(place):
    store = place.open()
    clash = store.create("clash", key={"k": "int64"}, value={"v": "string", "source.v": "string"}, timeline="counter")
    clash.append([{"k": 1, "v": "a", "source.v": "ours"}])
    both = clash.merge([{"k": 1, "v": "b", "source.v": "theirs"}])
    with pytest.raises(UsageError, match=r"'source\.v' is a column of the collection, and the name of another"):
        both.when_matched_delete(where="source.v = 'b'").execute()
    both.when_matched_update(where="\"target.source.v\" = 'ours' AND \"source.source.v\" = 'theirs'").execute()
    assert clash.snapshot().to_pylist() == [{"k": 1, "v": "b", "source.v": "theirs"}]


@pytest.mark.parametrize("condition", ["target.n > 1", "n > 1", pl.col("n") > 1, col("target.n") > 1])
def test_a_row_that_only_the_source_has_has_no_column_of_the_collection(stock, condition):
    with pytest.raises(UsageError, match="only the source has"):
        stock.merge([item(9, "y", 9)]).when_not_matched_insert(where=condition).execute()
    with pytest.raises(UsageError, match="only the source has"):
        stock.merge([item(9, "y", 9)]).when_not_matched_insert({"n": col("n")}).execute()
    assert now(stock) == THERE


def test_a_row_that_the_source_does_not_have_has_no_column_of_the_source(stock):
    with pytest.raises(UsageError, match="the source does not have"):
        stock.merge([item(1, "x", 1)]).when_not_matched_by_source_delete(where="source.n > 1").execute()
    with pytest.raises(UsageError, match="the source does not have"):
        stock.merge([item(1, "x", 1)]).when_not_matched_by_source_update({"n": col("source.n")}).execute()
    assert now(stock) == THERE


def test_conditions_of_a_merge_are_those_of_every_where(stock):
    source = [item(1, "Apple", 1), item(2, "pear", 5), item(3, "p", 3)]
    condition = "source.v LIKE 'p%' AND target.v IN ('pear', 'fig') AND source.n BETWEEN target.n AND 9"
    stock.merge(source).when_matched_delete(where=condition).execute()
    assert now(stock) == {(1, "apple", 1): 1, (3, "plum", 3): 1}
    stock.merge(source).when_matched_delete(where=(col("source.v") == col("target.v")) | (col("n") > 2)).execute()
    assert now(stock) == {(1, "apple", 1): 1}
    with pytest.raises(UsageError, match="position"):
        stock.merge(source).when_matched_delete(where="LENGTH(source.v) > 3")
    with pytest.raises(UsageError, match="one row at a time"):
        stock.merge(source).when_matched_delete(where=pl.col("n") == pl.col("n").max())


def test_values_may_be_columns_of_either_side(stock):
    source = [item(1, "one", 10), item(7, "seven", 70)]
    merge = stock.merge(source).when_matched_update({"v": col("source.v"), "n": col("target.k")})
    merge.when_not_matched_insert({"n": col("source.k")}).execute()
    assert now(stock) == {(1, "one", 1): 1, (2, "pear", 2): 1, (3, "plum", 3): 1, (7, None, 7): 1}
    stock.update(where="k = 2", set={"n": col("k"), "v": col("v")})
    with pytest.raises(UsageError):
        stock.merge(source).when_matched_update({"n": col("source.v")}).execute()


def test_columns_may_be_called_anything(place):
    names = ["#", "#o", "#s", "_diff2", "my column", "é", "literal"]
    odd = place.open().create("odd", key={"k": "int64"}, value=dict.fromkeys(names, "int64"), timeline="counter")
    odd.append([{"k": 1, **dict.fromkeys(names, 0)}])
    rows = [{"k": k, **dict.fromkeys(names, k)} for k in (1, 2)]
    odd.merge(rows).when_matched_update().when_not_matched_insert().execute()
    assert odd.snapshot().to_pylist() == rows


# Counts.


@pytest.mark.parametrize("config", [QUICK, BLOBS], ids=["inline", "blobs"])
def test_rows_keep_how_often_they_count(place, config):
    stock = create(place.open(config=config))
    stock.append([{**item(1, "a", 1), "_diff": 3}, {**item(1, "b", 1), "_diff": 2}, {**item(2, "c", 2), "_diff": 4}])
    (
        stock.merge([item(1, "x", 9)])
        .when_matched_update({"n": pl.col("source.n")})
        .when_not_matched_by_source_update({"v": "alone"})
        .execute()
    )
    assert now(stock) == {(1, "a", 9): 3, (1, "b", 9): 2, (2, "alone", 2): 4}
    stock.merge([item(1, "x", 9)]).when_matched_update().execute()
    assert now(stock) == {(1, "x", 9): 5, (2, "alone", 2): 4}
    stock.merge([{"k": 1}]).when_matched_delete().execute()
    assert now(stock) == {(2, "alone", 2): 4}


def test_rows_that_count_less_than_zero_are_refused(stock):
    stock.append([{**item(4, "owed", 1), "_diff": -1}])
    with pytest.raises(UsageError, match="negative count"):
        stock.merge([{"k": 4}]).when_matched_delete().execute()
    with pytest.raises(UsageError, match="negative count"):
        stock.merge([{"k": 1}]).when_not_matched_by_source_delete().execute()
    stock.merge([{"k": 1}]).when_matched_delete().execute()
    assert now(stock)[4, "owed", 1] == -1


# Against a model.

TARGET = st.dictionaries(st.integers(0, 5), st.integers(0, 3), max_size=5)


@settings(max_examples=50, deadline=None)
@given(target=TARGET, source=TARGET, bound=st.integers(0, 3), inserting=st.booleans(), by_source=st.booleans())
def test_every_merge_is_what_its_clauses_say(target, source, bound, inserting, by_source):
    with MemoryStore() as place:
        table = place.open().create("t", key={"k": "int64"}, value={"n": "int64"}, timeline="counter")
        table.upsert([{"k": k, "n": n} for k, n in target.items()])
        merge = (
            table.merge(
                pa.table({"k": pa.array(list(source), pa.int64()), "n": pa.array(list(source.values()), pa.int64())})
            )
            .when_matched_delete(where=f"n = {bound}")
            .when_matched_update({"n": pl.col("n") + pl.col("source.n")}, where=f"source.n > {bound}")
        )
        expected = {}
        for k, n in target.items():
            if k not in source:
                if by_source and n > bound:
                    continue
                expected[k] = n
            elif n != bound:
                expected[k] = n + source[k] if source[k] > bound else n
        if inserting:
            merge = merge.when_not_matched_insert(where=f"source.n >= {bound}")
            expected.update({k: n for k, n in source.items() if k not in target and n >= bound})
        if by_source:
            merge = merge.when_not_matched_by_source_delete(where=f"n > {bound}")
        merge.execute()
        assert now(table, "k", "n") == dict.fromkeys(expected.items(), 1)

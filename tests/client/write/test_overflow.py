"""Counts of a row that do not fit 64 bits: refused where one batch shows it, named by every read otherwise."""

import pickle

import pyarrow as pa
import pytest

from timespine.errors import DiffOverflow, UsageError

HALF = 1 << 62


def counted(place, rows=()):
    store = place.open()
    numbers = store.create("numbers", key={"k": "int64"}, timeline="counter")
    numbers.append([{"k": 1}, {"k": 2}])
    for each in rows:
        numbers.append([each])
    return numbers


@pytest.mark.parametrize(
    "rows",
    [
        [{"k": 7, "_time": 5, "_diff": HALF}, {"k": 7, "_time": 6, "_diff": HALF}],
        [{"k": 7, "_time": 5, "_diff": HALF}] * 2,
        [{"k": 7, "_time": 5, "_diff": -HALF}, {"k": 7, "_time": 6, "_diff": -HALF}],
        [{"k": 7, "_time": 5, "_diff": -(1 << 63)}, {"k": 7, "_time": 6, "_diff": -1}],
    ],
    ids=["at two times", "at one", "below zero", "the least and one more"],
)
def test_a_batch_whose_diffs_of_one_row_overflow_is_refused(place, rows):
    numbers = counted(place)
    before = numbers.upper
    with pytest.raises(DiffOverflow, match="add up to more than 64 bits"):
        numbers.append(rows, upper=9)
    assert numbers.upper == before
    assert numbers.count() == 2


def test_large_diffs_of_different_rows_are_no_overflow(place):
    numbers = counted(place)
    numbers.append([{"k": k, "_time": 5, "_diff": HALF} for k in range(10, 14)], upper=9)
    assert numbers.count() == 2 + 4 * HALF, "the sum of all of them is a number of Python"
    numbers.append([{"k": 20, "_time": 10, "_diff": -(1 << 63)}], upper=11)


def test_a_count_says_what_a_snapshot_says_and_every_read_says_what_to_do(place):
    numbers = counted(place, [{"k": 7, "_diff": HALF}, {"k": 7, "_diff": HALF}])
    reads = (
        lambda: numbers.snapshot(multiplicity="column").to_arrow(),
        numbers.count,
        lambda: numbers.lookup({"k": 7}),
        lambda: list(numbers.snapshot(multiplicity="column").batches()),
    )
    for read in reads:
        with pytest.raises(DiffOverflow, match=r"a row of numbers .* updates\(\) .* append the opposite") as caught:
            read()
        assert caught.value.key_range == ({"k": 7}, {"k": 7})
        assert "7" not in str(caught.value), "messages carry no rows"
    assert numbers.count(where="k < 7") == 2, "other keys can be read"
    assert [each["_diff"] for each in numbers.updates(where="k = 7").to_pylist()] == [HALF, HALF]
    numbers.append([{"k": 7, "_diff": -HALF}])
    assert numbers.count() == 2 + HALF


def test_a_count_hidden_behind_another_one_is_found(place):
    """The sum of all diffs is small, but one row has too many: a count from metadata alone would not see it."""
    rows = [{"k": 7, "_diff": HALF}, {"k": 8, "_diff": -HALF}, {"k": 7, "_diff": HALF}, {"k": 8, "_diff": -HALF}]
    numbers = counted(place, rows)
    with pytest.raises(DiffOverflow):
        numbers.count()


def test_the_range_is_from_the_least_to_the_greatest_key(place):
    store = place.open()
    pairs = store.create("pairs", key={"a": "string", "b": "int64"}, value={"v": "string"}, timeline="counter")
    large = [{"a": a, "b": 3, "v": "x", "_diff": HALF} for a in ("m", "f", "t")]
    pairs.append([{"a": "c", "b": 1, "v": "y"}, {"a": "z", "b": 9, "v": "y"}, *large])
    pairs.append(large)
    with pytest.raises(DiffOverflow) as caught:
        pairs.count()
    assert caught.value.key_range == ({"a": "f", "b": 3}, {"a": "t", "b": 3})
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.key_range == caught.value.key_range


def test_a_row_without_key_columns_is_its_own_key_and_a_key_without_a_value_in_python_is_not_named(place):
    store = place.open()
    plain = store.create("plain", value={"v": "string"}, timeline="counter")
    days = store.create("days", key={"day": "date"}, timeline="counter")
    beyond = pa.array([2**31 - 1], pa.int32()).cast(pa.date32())
    for _ in range(2):
        plain.append([{"v": "x", "_diff": HALF}])
        days.append(pa.table({"day": beyond, "_diff": pa.array([HALF])}))
    with pytest.raises(DiffOverflow) as caught:
        plain.count()
    assert caught.value.key_range == ({"v": "x"}, {"v": "x"})
    with pytest.raises(DiffOverflow) as caught:
        days.count()
    assert caught.value.key_range is None


def test_reads_of_an_arrangement_name_the_keys_too_and_are_right_again_afterwards(place):
    numbers = counted(place)
    with numbers.arrange() as index:
        for _ in range(2):
            numbers.append([{"k": 7, "_diff": HALF}])
        with pytest.raises(UsageError, match=r"count too often .* `fetch` with counts"):
            index.get(7)
        reads = (lambda: list(index.scan()), lambda: index.fetch([7]), lambda: numbers.lookup({"k": 7}))
        for read in (*reads, lambda: numbers.upsert([{"k": 7}])):
            with pytest.raises(DiffOverflow, match="append the opposite") as caught:
                read()
            assert caught.value.key_range == ({"k": 7}, {"k": 7})
        numbers.append([{"k": 7, "_diff": -HALF}, {"k": 7, "_diff": 1 - HALF}])
        assert [row["k"] for table in index.scan() for row in table.to_pylist()] == [1, 2, 7]


def test_rows_that_count_too_often_for_memory_are_refused_by_every_read_of_an_arrangement(place):
    numbers = counted(place)
    with numbers.arrange() as index:
        numbers.append([{"k": 7, "_diff": 1 << 40}])
        reads = (
            *(lambda: list(index.scan()), lambda: index.fetch([7]), lambda: index.get(7), lambda: index.get_one(7)),
            *(lambda: numbers.lookup({"k": 7}), lambda: index.at(1).lookup({"k": 7})),
        )
        for read in reads:
            with pytest.raises(UsageError, match="count too often to be given one by one"):
                read()
        assert index.fetch([7], counts=True).to_pylist() == [{"k": 7, "_diff": 1 << 40}]
        assert index.get(2) == [{"k": 2}]


def test_many_updates_of_a_key_that_overflow_are_named_by_a_view_of_an_arrangement(place):
    numbers = counted(place)
    with numbers.arrange() as index:
        for _ in range(20):
            numbers.append([{"k": 7, "_diff": HALF}])
        with pytest.raises(UsageError, match=r"counts more than 64 bits|count too often"):
            index.get(7)


def test_a_window_over_rows_that_count_too_often_for_memory_is_refused(place):
    store = place.open()
    numbers = store.create("numbers", key={"k": "int64"}, timeline="counter")
    numbers.append([{"k": 7, "_diff": 1 << 40}])
    with pytest.raises(UsageError, match="as often as it counts"):
        store.view("ranked", sql="SELECT k, row_number() OVER (PARTITION BY k ORDER BY k) AS place FROM numbers")

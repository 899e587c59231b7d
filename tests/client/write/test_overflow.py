"""Counts of a row that do not fit 64 bits: refused where one batch shows it, named by every read otherwise."""

import pytest

from timespine.errors import DiffOverflow

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
        with pytest.raises(DiffOverflow, match=r"a row of numbers .* updates\(\), .* append the opposite"):
            read()
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

"""How levels share the time of merging."""

from hypothesis import given
from hypothesis import strategies as st

from timespine.core.arrangement.merge_fuel import (
    AVERAGE_FIRST,
    SLICE_ROWS,
    charge,
    next_average,
    runs_slice,
    slice_rows,
)


def test_the_average_moves_by_a_128th_and_rounds():
    assert next_average(AVERAGE_FIRST, AVERAGE_FIRST) == AVERAGE_FIRST
    assert next_average(10_000, 10_128) == 10_001
    assert next_average(10_000, 0) == 9_922
    assert next_average(1, 0) == 1  # never zero: a level would get no credit at all


def test_the_average_follows_the_sizes_of_merges():
    average = AVERAGE_FIRST
    for _ in range(2000):
        average = next_average(average, 200_000)
    assert abs(average - 200_000) <= 64


def test_a_slice_is_at_least_as_large_as_a_kernel_likes():
    assert slice_rows(10_000) == SLICE_ROWS
    assert slice_rows(200_000) == 200_000
    assert slice_rows(3, smallest=4) == 4


@given(
    st.integers(1, 5000),
    st.integers(1, 300),
    st.lists(st.tuples(st.integers(1, 100), st.integers(1, 100)), min_size=1, max_size=400),
)
def test_levels_with_work_differ_by_at_most_one_slice_however_long(average, smallest, used):
    """A slice reads its rows or fewer, since it ends at a key: here a percentage of it, another one for each level."""
    rows = slice_rows(average, smallest)
    credit, work = [0, 0], [0, 0]
    for percents in used:
        for level in (0, 1):
            credit[level] += average
            if runs_slice(credit[level], rows, is_alone=False):
                read = max(rows * percents[level] // 100, 1)
                credit[level] = charge(credit[level], read)
                work[level] += read
    # Work and credit together are what the turns gave, so the difference of work is that of the credits.
    assert work[0] + credit[0] == work[1] + credit[1] == average * len(used)


def test_credit_is_bounded_while_a_level_has_work():
    average, credit = 10_000, 0
    for _ in range(1000):
        credit += average
        if runs_slice(credit, slice_rows(average), is_alone=False):
            credit = charge(credit, slice_rows(average))
        assert credit < SLICE_ROWS + average


def test_a_level_that_is_alone_runs_at_once_and_owes_nothing():
    assert runs_slice(0, SLICE_ROWS, is_alone=True)
    assert charge(10_000, SLICE_ROWS) == 0

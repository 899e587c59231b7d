"""SpineLevels by size: which batches merge when, that 128 is relieved, and that no batch is lost or in two places."""

from collections import deque
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timespine.config import LEVELS, Config
from timespine.core.arrangement import level_transitions as transitions
from timespine.core.arrangement.level_transitions import MergePlan, PutOff
from timespine.core.arrangement.levels import (
    LevelRules,
    SpineLevels,
    count,
    due_levels,
    has_room,
    is_compaction_complete,
    is_full,
    is_idle,
    is_not_compacting,
    is_settled,
    level_of,
    level_rules,
    may_compact,
    merges_done,
)
from timespine.core.arrangement.memory_pressure import MemoryPressure, Resources
from timespine.core.arrangement.merge_fuel import charge, runs_slice, slice_rows
from timespine.errors import NoSpace, StoreClosed, UsageError
from timespine.model.frontier import Frontier

CALM = Resources()
BATCHES_MAX = LevelRules().batches_max
MERGE_MIN = LevelRules().merge_min


@dataclass(frozen=True, eq=False)
class Sized:
    """A batch of which only the size is known."""

    rows: int
    negatives: int = 0
    in_memory: bool = True
    file: str | None = None

    @property
    def nbytes(self):
        return self.rows * 100


def filled(*sizes, rules=None):
    levels = SpineLevels(rules or LevelRules())
    for rows in sizes:
        levels, is_in = transitions.insert_batch(levels, Sized(rows))
        assert is_in
    return levels


def rows_of(batches):
    return [batch.rows for batch in batches]


@pytest.mark.parametrize(
    ("rows", "level"),
    [
        *((1, 0), (14_999, 0), (15_000, 1), (99_999, 1), (100_000, 2), (999_999, 2), (1_000_000, 3), (9_999_999, 3)),
        *((10_000_000, 4), (99_999_999, 4), (10**8, 5), (10**9 - 1, 5), (10**9, 6), (10**10, 7), (10**11 - 1, 7)),
        *((10**11, 8), (10**15, 8)),
    ],
)
def test_levels_are_by_size(rows, level):
    assert level_of(LevelRules(), Sized(rows), is_merged=False) == level


@pytest.mark.parametrize(("bound", "rows", "level"), [(1, 1, 0), (1, 2, 1), (99_999, 99_999, 0), (99_999, 100_000, 2)])
def test_the_bound_of_level_0_may_be_chosen(bound, rows, level):
    rules = level_rules(Config(arrangement_level_rows=(bound, *LevelRules().row_bounds[1:])))
    assert level_of(rules, Sized(rows), is_merged=False) == level


def test_retractions_of_merged_batches_count_more_and_those_of_fresh_ones_never():
    rules = level_rules(Config(arrangement_retraction_multiplier=9))
    batch = Sized(10_000, negatives=1_000)
    assert level_of(rules, batch, is_merged=True) == 1
    assert level_of(rules, batch, is_merged=False) == 0
    assert level_of(level_rules(Config()), batch, is_merged=True) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"row_bounds": (0, *LevelRules().row_bounds[1:])},
        {"row_bounds": (100_000, *LevelRules().row_bounds[1:])},
        {"row_bounds": (1, 2)},
        {"row_bounds": (9, 8, *LevelRules().row_bounds[2:])},
        {"merge_min": (2, 2)},
        {"merge_min": (1,) * 9},
        {"negative_multiplier": -1},
        {"merge_max": 1},
        {"merge_max": 7},
        {"batches_max": 25},
    ],
)
def test_rules_that_cannot_work_are_refused(wrong):
    with pytest.raises(UsageError):
        LevelRules(**wrong)


def test_a_configuration_sets_the_rules():
    config = Config(
        arrangement_level_rows=(10, 20, 30, 40, 50, 60, 70, 80),
        arrangement_merge_min=(4,) * LEVELS,
        arrangement_merge_max=5,
        arrangement_batches=40,
        arrangement_retraction_multiplier=3,
    )
    rules = level_rules(config)
    assert rules == LevelRules((10, 20, 30, 40, 50, 60, 70, 80), (4,) * LEVELS, 5, 40, 3)
    assert level_rules(Config()) == LevelRules()
    levels = filled(*[1] * 6, rules=rules)
    levels, plan = transitions.start_merge(levels, 0, CALM)
    assert len(plan.inputs) == 5


@pytest.mark.parametrize("level", range(LEVELS))
def test_a_level_merges_once_it_has_enough_batches_and_only_then(level):
    rows = (1, *LevelRules().row_bounds)[level] + (level > 0)
    levels = filled(*[rows] * (MERGE_MIN[level] - 1))
    assert due_levels(levels, CALM) == ()
    assert transitions.start_merge(levels, level, CALM) == (levels, None)
    levels, _ = transitions.insert_batch(levels, Sized(rows))
    assert due_levels(levels, CALM) == (level,)
    levels, plan = transitions.start_merge(levels, level, CALM)
    assert len(plan.inputs) == MERGE_MIN[level]
    assert not is_settled(levels, CALM)


def test_the_oldest_merge_first_and_one_merge_at_a_time():
    levels = filled(*range(1, 101))
    levels, plan = transitions.start_merge(levels, 0, CALM)
    assert rows_of(plan.inputs) == list(range(1, 65))
    assert plan.rows == sum(range(1, 65))
    assert transitions.start_merge(levels, 0, CALM)[1] is None
    levels, _ = transitions.complete_merge(levels, 0, Sized(2_080), slices=1)
    assert rows_of(levels.slots[0].loose) == [*range(65, 101), 2_080]
    levels, plan = transitions.start_merge(levels, 0, CALM)
    assert rows_of(plan.inputs) == [*range(65, 101), 2_080]


def test_the_inputs_of_an_abandoned_merge_go_back_before_those_that_came_later():
    levels, _ = transitions.start_merge(filled(*range(1, 9)), 0, CALM)
    levels, _ = transitions.insert_batch(levels, Sized(9))
    levels, _ = transitions.abandon_merge(levels, 0, has_failed=True)
    assert rows_of(levels.slots[0].loose) == list(range(1, 10))
    assert levels.slots[0].figures.failures == 1
    assert is_idle(levels)


def test_readers_see_all_batches_while_they_are_merged_and_the_output_instead_afterwards():
    before = filled(*[10] * 8, 500_000)
    during, plan = transitions.start_merge(before, 0, CALM)
    assert set(during.batches) == set(before.batches)
    output = Sized(80)
    after, _ = transitions.complete_merge(during, 0, output, slices=1)
    assert set(after.batches) == {*before.batches, output} - set(plan.inputs)
    assert set(before.batches) == {*plan.inputs, before.slots[2].loose[0]}  # a value never changes


def test_a_merge_of_level_0_moves_the_average_and_figures_count():
    levels, _ = transitions.start_merge(filled(*[10_000] * 8), 0, CALM)
    levels, _ = transitions.complete_merge(levels, 0, Sized(70_000), slices=1)
    assert levels.average == (127 * 10_000 + 80_000 + 64) // 128
    figures = levels.slots[0].figures
    assert (figures.merges, figures.inputs, figures.slices) == (1, 8, 1)
    assert (figures.rows_read, figures.rows_written) == (80_000, 70_000)
    assert merges_done(levels) == 1


def test_a_merge_of_another_level_does_not_move_the_average():
    levels, _ = transitions.start_merge(filled(*[500_000] * 3), 2, CALM)
    levels, _ = transitions.complete_merge(levels, 2, None, slices=23)
    assert levels.average == SpineLevels().average
    assert levels.batches == ()
    assert levels.slots[2].figures.rows_written == 0


def test_an_empty_batch_is_not_inserted_and_moves_the_upper():
    levels, is_in = transitions.insert_batch(SpineLevels(), Sized(0), Frontier.at(4))
    assert (is_in, levels.batches, levels.is_dirty, levels.upper) == (True, (), False, Frontier.at(4))
    levels, _ = transitions.insert_batch(levels, Sized(1))
    assert (levels.is_dirty, levels.upper) == (True, Frontier.at(4))
    assert not transitions.clear_dirty(levels)[0].is_dirty


def test_insertion_waits_at_128_and_counts_what_is_being_merged():
    levels = filled(*[1] * BATCHES_MAX)
    assert is_full(levels)
    levels, _ = transitions.start_merge(levels, 0, CALM)
    assert count(levels) == BATCHES_MAX
    assert transitions.insert_batch(levels, Sized(1)) == (levels, False)
    assert not has_room(levels)
    levels, _ = transitions.complete_merge(levels, 0, Sized(64), slices=1)
    assert has_room(levels)
    assert transitions.insert_batch(levels, Sized(1))[1] is True


def test_insertion_does_not_wait_while_merging_is_paused():
    levels, _ = transitions.pause_merges(filled(*[1] * BATCHES_MAX))
    assert has_room(levels)
    levels, is_in = transitions.insert_batch(levels, Sized(1))
    assert is_in
    assert due_levels(levels, CALM) == ()
    levels, _ = transitions.resume_merges(levels)
    assert is_full(levels)
    assert due_levels(levels, CALM) == (0,)
    with pytest.raises(UsageError, match="not paused"):
        transitions.resume_merges(levels)


def test_a_closing_spine_merges_and_takes_nothing():
    levels, _ = transitions.request_close(filled(*[1] * BATCHES_MAX))
    assert has_room(levels)  # who waits is woken, and refused
    assert due_levels(levels, CALM) == ()
    assert levels.gives_way
    with pytest.raises(StoreClosed):
        transitions.insert_batch(levels, Sized(1))
    with pytest.raises(StoreClosed):
        transitions.request_compaction(levels)
    with pytest.raises(StoreClosed):
        transitions.start_compaction(levels, CALM)


@given(st.lists(st.sampled_from([rows + 1 for rows in (0, *LevelRules().row_bounds)]), min_size=26, max_size=40))
def test_with_26_batches_or_more_some_level_is_due(sizes):
    assert due_levels(filled(*sizes), CALM) != ()


def test_25_batches_may_wait_for_company():
    sizes = [rows + 1 for level, rows in enumerate((0, *LevelRules().row_bounds)) for _ in range(MERGE_MIN[level] - 1)]
    assert len(sizes) == 25
    assert is_settled(filled(*sizes), CALM)


# Memory pressure


def test_a_level_with_a_batch_in_memory_merges_early_under_high_pressure():
    high = Resources(MemoryPressure.HIGH, has_folder=True, free_bytes=1 << 40)
    levels = filled(1)
    assert due_levels(levels, high) == (0,)
    levels, plan = transitions.start_merge(levels, 0, high)
    assert plan.to_disk
    levels, _ = transitions.complete_merge(levels, 0, Sized(1, in_memory=False, file="a"), slices=1)
    assert due_levels(levels, high) == ()  # else it would merge itself for ever
    assert levels.files.owned == {"a"}
    assert due_levels(filled(1), Resources(MemoryPressure.HIGH)) == ()  # without a folder it could not help


def test_a_merge_waits_for_space_unless_memory_has_room():
    full = Resources(MemoryPressure.MODERATE, has_folder=True, free_bytes=0)
    levels, plan = transitions.start_merge(filled(*[10] * 8), 0, full)
    assert isinstance(plan, PutOff)
    assert levels.slots[0].figures.put_off == 1
    assert is_idle(levels)
    large = filled(*[900_000] * 3)
    _, plan = transitions.start_merge(large, 2, Resources(MemoryPressure.LOW, has_folder=True, free_bytes=0))
    assert isinstance(plan, MergePlan)
    assert not plan.to_disk


def test_a_merge_of_everything_is_refused_without_space_unless_memory_has_room():
    levels, _ = transitions.request_compaction(filled(500_000, 500_000))
    full = Resources(MemoryPressure.MODERATE, has_folder=True, free_bytes=0)
    with pytest.raises(NoSpace, match="not begun"):
        transitions.start_compaction(levels, full)
    _, plan = transitions.start_compaction(levels, Resources(MemoryPressure.LOW, has_folder=True, free_bytes=0))
    assert not plan.to_disk
    _, plan = transitions.start_compaction(levels, Resources(MemoryPressure.LOW, has_folder=True, free_bytes=1 << 40))
    assert plan.to_disk


def test_a_merge_may_begin_with_fewer_batches_on_request():
    levels = filled(1, 2)
    assert transitions.start_merge(levels, 0, CALM, batches_min=3)[1] is None
    assert rows_of(transitions.start_merge(levels, 0, CALM, batches_min=2)[1].inputs) == [1, 2]
    paused, _ = transitions.pause_merges(levels)
    assert transitions.start_merge(paused, 0, CALM, batches_min=2)[1] is None


# Everything at once


def test_everything_is_merged_into_one_batch_while_levels_merge_on():
    levels, _ = transitions.request_compaction(filled(1, 2, 20_000, 500_000))
    assert levels.gives_way
    levels, plan = transitions.start_compaction(levels, CALM)
    assert plan.is_whole
    assert rows_of(plan.inputs) == [1, 2, 20_000, 500_000]
    assert not levels.gives_way
    assert not is_not_compacting(levels)
    for _ in range(8):
        levels, _ = transitions.insert_batch(levels, Sized(5))
    levels, beside = transitions.start_merge(levels, 0, CALM)
    assert rows_of(beside.inputs) == [5] * 8
    levels, _ = transitions.complete_compaction(levels, Sized(520_003), slices=8)
    assert rows_of(levels.slots[2].loose) == [520_003]
    assert levels.slots[2].figures.inputs == 4
    assert is_not_compacting(levels)
    levels, _ = transitions.complete_merge(levels, 0, None, slices=1)
    assert is_compaction_complete(levels)


def test_more_batches_than_a_merge_takes_need_several_of_them():
    levels, _ = transitions.pause_merges(SpineLevels())
    for _ in range(100):
        levels, _ = transitions.insert_batch(levels, Sized(3))
    levels, _ = transitions.resume_merges(levels)
    levels, _ = transitions.request_compaction(levels)
    levels, plan = transitions.start_compaction(levels, CALM)
    assert (len(plan.inputs), plan.is_whole) == (64, False)
    assert transitions.start_compaction(levels, CALM)[1] is None
    levels, _ = transitions.complete_compaction(levels, Sized(192), slices=1)
    levels, plan = transitions.start_compaction(levels, CALM)
    assert (len(plan.inputs), plan.is_whole) == (37, True)


def test_an_abandoned_merge_of_everything_leaves_each_batch_where_it_was():
    before, _ = transitions.request_compaction(filled(1, 20_000, 2))
    levels, _ = transitions.start_compaction(before, CALM)
    levels, _ = transitions.insert_batch(levels, Sized(3))
    levels, _ = transitions.abandon_compaction(levels)
    assert rows_of(levels.slots[0].loose) == [1, 2, 3]
    assert rows_of(levels.slots[1].loose) == [20_000]


def test_an_empty_spine_can_be_merged_into_nothing():
    levels, _ = transitions.request_compaction(SpineLevels())
    levels, plan = transitions.start_compaction(levels, CALM)
    assert plan.inputs == ()
    levels, _ = transitions.complete_compaction(levels, None, slices=0)
    assert is_compaction_complete(levels)


def test_everything_waits_for_merges_and_pauses():
    levels, _ = transitions.start_merge(filled(*[1] * 8), 0, CALM)
    levels, _ = transitions.request_compaction(levels)
    assert not may_compact(levels)
    levels, _ = transitions.abandon_merge(levels, 0)
    assert may_compact(levels)
    assert not may_compact(transitions.pause_merges(levels)[0])
    assert may_compact(transitions.request_close(levels)[0])
    assert transitions.withdraw_compaction(levels)[0].compactions == 0
    with pytest.raises(UsageError, match="paused"):
        transitions.request_compaction(transitions.pause_merges(levels)[0])


def test_since_never_goes_back():
    levels, _ = transitions.advance_since(SpineLevels(), Frontier.at(5))
    assert transitions.advance_since(levels, Frontier.at(3))[0].since == Frontier.at(5)
    assert transitions.look(levels) == (levels, levels)


def test_a_fork_has_all_batches_and_merges_by_itself():
    parent, _ = transitions.start_merge(filled(*range(1, 10), 500_000), 0, CALM)
    child = transitions.fork(parent)
    assert child.batches == parent.batches
    assert is_idle(child)
    child, plan = transitions.start_merge(child, 0, CALM)
    child, _ = transitions.complete_merge(child, 0, Sized(45), slices=1)
    assert count(parent) == 10
    assert parent.slots[0].merging == plan.inputs[:9]


# The guarantee: no level starves, batches do not pile up


def merged_by_the_policy(batches, rows, speed):
    """Insert batches of a size; after each, merging moves `speed` rows per row inserted.

    Returns the count of batches after each insertion, and the rows that each level merged. A task per level takes
    turns as `core/protocols/merge_spine.py` does.
    """
    levels, counts, work = SpineLevels(), [], [0] * LEVELS
    queue, tasks, budget = deque(), {}, 0
    for _ in range(batches):
        while True:  # an inserter waits until there is room
            while budget > 0 and (queue or due_levels(levels, CALM)):
                for level in due_levels(levels, CALM):
                    levels, plan = transitions.start_merge(levels, level, CALM)
                    tasks[level] = [plan.rows, 0]
                    queue.append(level)
                level = queue.popleft()
                left, credit = tasks[level]
                credit += levels.average
                wanted = left if level == 0 else slice_rows(levels.average)
                if level == 0 or runs_slice(credit, wanted, is_alone=not queue):
                    read = min(wanted, left)
                    tasks[level] = [left - read, charge(credit, read)]
                    budget -= read
                    work[level] += read
                else:
                    tasks[level][1] = credit
                if tasks[level][0]:
                    queue.append(level)
                else:
                    output = Sized(sum(batch.rows for batch in levels.slots[level].merging))
                    levels, _ = transitions.complete_merge(levels, level, output, slices=1)
            levels, is_in = transitions.insert_batch(levels, Sized(rows))
            if is_in:
                break
            budget += rows
        budget = min(budget + rows * speed, 1_000_000) if budget > 0 else budget + rows * speed
        counts.append(count(levels))
    return counts, work


@pytest.mark.parametrize(
    ("speed", "median"), [(3, 110), (6, 40), (12, 20)], ids=["slow", "as fast as usual", "with time to spare"]
)
def test_batches_do_not_pile_up_and_no_level_starves(speed, median):
    counts, work = merged_by_the_policy(batches=10_000, rows=1_000, speed=speed)
    assert max(counts) <= BATCHES_MAX
    assert sorted(counts)[len(counts) // 2] <= median
    assert all(work[level] > 0 for level in range(4))  # 10 million rows reach level 3, and none below starves


def test_merging_that_is_too_slow_makes_insertion_wait_and_not_batches_pile_up():
    counts, work = merged_by_the_policy(batches=10_000, rows=1_000, speed=1)
    assert max(counts) == BATCHES_MAX
    assert work[0] > 0  # and level 1 merges up to 64 batches at once, which skips level 2
    assert work[1] > 0

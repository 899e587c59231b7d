"""What goes to disk, and what merges early, by how full memory is."""

import pytest

from timespine.core.arrangement.memory_pressure import (
    RESERVE_BYTES,
    SPILL_BYTES,
    MemoryPressure,
    Resources,
    has_space,
    merges_early,
    pressure_of,
    spills_insert,
    spills_output,
)

LOW, MODERATE, HIGH, CRITICAL = MemoryPressure


@pytest.mark.parametrize(
    ("used", "pressure"),
    [
        (0, LOW),
        (849, LOW),
        (850, MODERATE),
        (899, MODERATE),
        (900, HIGH),
        (949, HIGH),
        (950, CRITICAL),
        (5000, CRITICAL),
    ],
)
def test_pressure_rises_with_the_share_of_the_limit(used, pressure):
    assert pressure_of(used, 1000) is pressure


@pytest.mark.parametrize(
    ("pressure", "small", "large"),
    [(LOW, False, False), (MODERATE, False, True), (HIGH, True, True), (CRITICAL, True, True)],
)
def test_inserted_batches_go_to_disk_the_sooner_the_less_memory_is_left(pressure, small, large):
    there = Resources(pressure, has_folder=True)
    assert (spills_insert(there, SPILL_BYTES - 1), spills_insert(there, SPILL_BYTES)) == (small, large)


@pytest.mark.parametrize(("pressure", "small"), [(LOW, False), (MODERATE, True), (HIGH, True), (CRITICAL, True)])
def test_outputs_go_to_disk_if_they_are_large_or_memory_is_short(pressure, small):
    there = Resources(pressure, has_folder=True)
    assert (spills_output(there, SPILL_BYTES - 1), spills_output(there, SPILL_BYTES)) == (small, True)


@pytest.mark.parametrize(("pressure", "is_early"), [(LOW, False), (MODERATE, False), (HIGH, True), (CRITICAL, True)])
def test_levels_merge_early_when_memory_is_high(pressure, is_early):
    assert merges_early(Resources(pressure, has_folder=True)) == is_early


@pytest.mark.parametrize("pressure", list(MemoryPressure))
def test_without_a_folder_nothing_goes_to_disk_and_nothing_merges_early(pressure):
    there = Resources(pressure)
    assert not spills_insert(there, SPILL_BYTES)
    assert not spills_output(there, SPILL_BYTES)
    assert not merges_early(there)


def test_a_merge_needs_space_for_its_inputs_and_a_reserve():
    assert has_space(Resources(free_bytes=RESERVE_BYTES + 5), 5)
    assert not has_space(Resources(free_bytes=RESERVE_BYTES + 5), 6)

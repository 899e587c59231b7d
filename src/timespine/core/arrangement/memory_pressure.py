"""Which batches of an arrangement go to disk, and when its levels merge early, by how full memory is.

| | low | moderate | high | critical |
| --- | --- | --- | --- | --- |
| an inserted batch goes to disk | never | from SPILL_BYTES on | always | always, and the inserter waits for one merge |
| the output of a merge goes to disk | from SPILL_BYTES on | always | always | always |
| a level merges before its count is reached | no | no | if a batch of it is in memory | the same |

Without a folder nothing goes to disk, and no level merges early: a merge that stays in memory would be due again at
once, for ever. Answers are the same at every pressure.
"""

from __future__ import annotations

import enum

import msgspec


class MemoryPressure(enum.IntEnum):
    """How full the memory for arrangements is."""

    LOW = 0
    MODERATE = 1
    HIGH = 2
    CRITICAL = 3


MODERATE_PERCENT = 85
HIGH_PERCENT = 90
CRITICAL_PERCENT = 95
"""The shares of the limit at which the pressure rises. Batches are at most a few percent of the memory each, so each
step leaves time for the next one to act."""

SPILL_BYTES = 10 << 20
"""Bytes from which on a batch is worth a file of its own while memory is not short. A smaller one is merged away
within seconds, and its file would cost an fsync for nothing."""

RESERVE_BYTES = 64 << 20
"""Bytes that a merge to disk leaves free, beyond a copy of its inputs: the log of the store may be on the same disk."""


class Resources(msgspec.Struct, frozen=True):
    """What a spine may use at a moment: memory, and the disk of its folder."""

    pressure: MemoryPressure = MemoryPressure.LOW
    """How full memory is."""
    has_folder: bool = False
    """Whether batches may go to disk at all."""
    free_bytes: int = 0
    """Free bytes of that disk."""


def pressure_of(used_bytes: int, limit_bytes: int) -> MemoryPressure:
    """Tell how full memory is."""
    percent = used_bytes * 100 // limit_bytes
    if percent >= CRITICAL_PERCENT:
        return MemoryPressure.CRITICAL
    if percent >= HIGH_PERCENT:
        return MemoryPressure.HIGH
    return MemoryPressure.MODERATE if percent >= MODERATE_PERCENT else MemoryPressure.LOW


def spills_insert(resources: Resources, nbytes: int) -> bool:
    """Tell whether a batch in memory goes to disk before it is inserted."""
    if not resources.has_folder or resources.pressure is MemoryPressure.LOW:
        return False
    return resources.pressure >= MemoryPressure.HIGH or nbytes >= SPILL_BYTES


def spills_output(resources: Resources, nbytes: int) -> bool:
    """Tell whether the output of a merge goes to disk, by the bytes of its inputs."""
    return resources.has_folder and (resources.pressure > MemoryPressure.LOW or nbytes >= SPILL_BYTES)


def merges_early(resources: Resources) -> bool:
    """Tell whether a level with a batch in memory merges though few batches are there: the output goes to disk."""
    return resources.has_folder and resources.pressure >= MemoryPressure.HIGH


def has_space(resources: Resources, nbytes: int) -> bool:
    """Tell whether the disk has space for the output of a merge of inputs of a size."""
    return resources.free_bytes >= nbytes + RESERVE_BYTES

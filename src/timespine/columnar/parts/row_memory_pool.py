"""Where decoded rows are allocated.

Arrow's default is mimalloc, which asks the system for huge pages. To fill those takes the system longer than to decode
what goes into them: the first whole read of a process spends most of its time there (`python -m bench.turns TREE
--works whole`). jemalloc does not ask for them.

A library must not change the default of the process, which others share and a user may have chosen. So only rows
that are read from parts are allocated elsewhere, and only if Arrow chose the default by itself.
"""

from __future__ import annotations

import os
from functools import lru_cache

import pyarrow as pa

VARIABLE = "ARROW_DEFAULT_MEMORY_POOL"
"""The variable by which a user chooses for all of Arrow."""


def row_pool() -> pa.MemoryPool:
    """Return the pool for decoded rows: that of the process if a user chose it, otherwise one without huge pages."""
    chosen = pa.default_memory_pool()
    return _plain_pages() if chosen.backend_name == "mimalloc" and VARIABLE not in os.environ else chosen


@lru_cache(maxsize=1)
def _plain_pages() -> pa.MemoryPool:
    return pa.jemalloc_memory_pool() if "jemalloc" in pa.supported_memory_backends() else pa.default_memory_pool()

"""Decoded rows are allocated without huge pages, unless a user chose where Arrow allocates."""

import subprocess
import sys

import pyarrow as pa
import pytest
from stored_part import encoded, opened, rows

from timespine.columnar.parts.row_memory_pool import VARIABLE, row_pool

SHOWN = "from timespine.columnar.parts.row_memory_pool import row_pool; print(row_pool().backend_name)"


def backend(monkeypatch, chosen):
    """The pool of a new process for which a user has chosen this one."""
    if chosen is None:
        monkeypatch.delenv(VARIABLE, raising=False)
    else:
        monkeypatch.setenv(VARIABLE, chosen)
    done = subprocess.run([sys.executable, "-c", SHOWN], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("chosen", pa.supported_memory_backends())
def test_the_pool_that_a_user_chose_for_the_process_is_used(monkeypatch, chosen):
    assert backend(monkeypatch, chosen) == chosen


@pytest.mark.skipif("jemalloc" not in pa.supported_memory_backends(), reason="this Arrow has one allocator less")
def test_rows_are_not_allocated_in_huge_pages_by_default(monkeypatch):
    assert backend(monkeypatch, None) != "mimalloc"


def test_a_pool_that_was_set_in_the_process_is_used(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    before = pa.default_memory_pool()
    try:
        pa.set_memory_pool(pa.system_memory_pool())
        assert row_pool().backend_name == "system"
    finally:
        pa.set_memory_pool(before)


def test_rows_that_are_read_are_allocated_there():
    reader = opened(encoded(rows(20_000)))
    pool = row_pool()
    before = pool.bytes_allocated()
    table = reader.read()
    assert pool.bytes_allocated() - before >= table.nbytes // 2

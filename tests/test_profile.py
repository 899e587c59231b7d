"""The profile of the bench: every work runs, and time goes to the part of the code that it belongs to."""

from __future__ import annotations

import cProfile
import hashlib
import math
import sqlite3
import threading
from collections import Counter
from pathlib import Path

import pytest

from bench import profile, profile_parts
from bench.profile_parts import PACKAGE, PARTS, REST, WAITING, part_of, seconds_by_part
from timespine.columnar.scan import parallel_scan
from timespine.pool import Pool


def test_every_work_runs_and_a_page_gets_a_row_for_each(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{profile.BEGIN}\nstale figures\n{profile.END}\nafter\n")
    before = parallel_scan.CORES_MAX, Pool.submit
    profile.main(["--quick", "--rows", "3000", "--dir", str(tmp_path), "--markdown", str(page)])
    assert (parallel_scan.CORES_MAX, Pool.submit) == before
    written = page.read_text()
    assert written.startswith("before\n")
    assert written.endswith("after\n")
    assert "stale figures" not in written
    head, _, *table = [line.split(" | ") for line in written.splitlines() if line.startswith("| ")]
    assert [each.strip(" |") for each in head] == ["work", "one call", *PARTS]
    expected = [work for name, work in profile.WORKS.items() if name != "threads" or profile.PER_THREAD]
    assert [row[0].strip("| ") for row in table] == [work.title for work in expected]
    for row in table:
        shares = [int(cell.strip(" |%")) for cell in row[2:] if cell.strip(" |")]
        assert 100 - len(PARTS) <= sum(shares) <= 100 + len(PARTS)
    assert [each.name for each in tmp_path.iterdir()] == ["page.md"]


def test_a_page_is_not_filled_with_some_of_the_works(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        profile.main(["append", "--markdown", str(tmp_path / "page.md")])
    with pytest.raises(SystemExit):
        profile.main(["nothing-of-the-sort"])


@pytest.mark.parametrize(
    ("function", "part"),
    [
        (("~", 0, "<built-in method posix.fsync>"), "fsync and files"),
        (("~", 0, "<method 'execute' of 'sqlite3.Connection' objects>"), "SQLite"),
        (("~", 0, "<built-in method _hashlib.openssl_sha256>"), "hashes"),
        (("~", 0, "<method 'acquire' of '_thread.lock' objects>"), WAITING),
        (("~", 0, "<built-in method builtins.sorted>"), None),
        ((f"{PACKAGE}columnar/parts/part_reader.py", 1, "_decode"), "decode Parquet"),
        ((f"{PACKAGE}columnar/parts/part_stats.py", 1, "keeps"), None),
        ((f"{PACKAGE}columnar/kernels/consolidate.py", 1, "consolidate"), "kernels"),
        ((f"{PACKAGE}client/collection.py", 1, "append"), "client and core"),
        (("/elsewhere/numpy/core.py", 1, "sort"), None),
    ],
)
def test_a_function_belongs_to_its_file_or_to_what_it_calls(function: profile_parts.Function, part: str | None) -> None:
    assert part_of(function) == part


def test_every_file_that_is_named_is_there() -> None:
    for start in profile_parts.BY_FILE:
        assert any(str(path).startswith(PACKAGE + start) for path in Path(PACKAGE).rglob("*.py")), start
    named = {part for part in profile_parts.BY_FILE.values() if part} | profile_parts.BY_NAME.keys()
    assert named | {REST} == {*PARTS, WAITING}


def test_time_of_libraries_goes_to_their_callers_and_all_of_it_is_counted() -> None:
    """Two functions that call each other are both callers of callers, and the search ends."""

    def hash_and_insert() -> None:
        hashlib.sha256(b"x" * 1_000_000)
        with sqlite3.connect(":memory:") as connection:
            connection.execute("SELECT 1")
        connection.close()
        down(3)

    def down(steps: int) -> None:
        if steps:
            up(steps - 1)

    def up(steps: int) -> None:
        down(steps)
        sorted(range(1_000))

    recorded = cProfile.Profile()
    recorded.runcall(hash_and_insert)
    found = seconds_by_part([recorded])
    assert found["hashes"] > 0
    assert found["SQLite"] > 0
    assert found[REST] > 0
    assert math.isclose(found.total(), sum(each.inlinetime for each in recorded.getstats()), rel_tol=1e-9)
    assert seconds_by_part([recorded], overhead_s=1.0) == Counter(dict.fromkeys(found, 0.0))


@pytest.mark.skipif(not profile.PER_THREAD, reason="later profilers are of all threads at once")
def test_what_threads_wait_for_each_other_is_apart() -> None:
    release = threading.Lock()
    release.acquire()
    recorded = cProfile.Profile()
    waiting = threading.Thread(target=lambda: recorded.runcall(release.acquire))
    waiting.start()
    release.release()
    waiting.join()
    assert WAITING in seconds_by_part([recorded])


def test_a_failing_call_is_told_from_every_thread() -> None:
    def fail() -> None:
        raise RuntimeError("on purpose")

    for calls in ([[fail]], [[fail], [fail]]):
        with pytest.raises(RuntimeError, match="on purpose"):
            profile._run(calls)

"""What maintenance writes: the bench runs, keeps its bound, and the page has the lines of all of its patterns."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.amplification import PATTERNS, Pattern, measured, table_of

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.name)
def test_every_pattern_stays_within_its_bound_at_a_small_size(pattern: Pattern) -> None:
    found = measured(pattern, appends=8)
    assert 0 < found.written <= found.bound
    assert found.runs >= 1
    assert found.stored >= 1


def test_the_page_has_a_line_for_every_pattern_below_the_bound_beside_it() -> None:
    head = table_of([]).splitlines()[0]
    text = PAGE.read_text()
    assert head in text
    for pattern in PATTERNS:
        (cells,) = re.findall(rf"^\| {re.escape(pattern.name)} \|(.*)\|$", text, re.MULTILINE)
        appended, written, per_row, bound, *_ = (float(cell.replace(",", "")) for cell in cells.split("|"))
        assert per_row == pytest.approx(written / appended, abs=0.05)
        assert per_row <= bound

"""Every planted bug is given away by its pinned seed; `python tests/simulation/planted.py --pin` finds them anew.

A seed stays pinned to what it found only while the simulator makes the same
choices: whoever changes the workload runs the search again. With real rows, so
does whoever changes the columnar layer, unless a seed right after it will do.
"""

import json

import planted
import pytest

SEEDS: dict[str, int] = json.loads(planted.SEEDS.read_text())


def test_every_planted_bug_has_a_pinned_seed():
    assert set(SEEDS) == set(planted.BUGS)
    assert len(SEEDS) >= 15
    assert max(SEEDS.values()) < 2000


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(planted.BUGS))
def test_planted_bug_is_caught(name):
    assert planted.is_caught(name, SEEDS[name])
    assert planted.history(name, SEEDS[name]).violations == []

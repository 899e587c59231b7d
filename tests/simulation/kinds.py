"""Which kinds of faults and calls histories have, by their counts and traces."""

from collections.abc import Callable, Iterable

from timespine.testing.simulator.checker import HistoryResult


def kinds_that_never_happen(
    run: Callable[[int], HistoryResult], seeds: Iterable[int], faults: set[str], calls: set[str]
) -> set[str]:
    """Run traced histories, each without a violation, until each kind happened; return the kinds that did not."""
    missing = faults | calls
    for seed in seeds:
        result = run(seed)
        assert result.violations == []
        missing -= {kind for kind in faults if result.counts.get(kind, 0) > 0}
        missing -= {line.split(" begins ")[1].split(" op")[0] for line in result.trace if " begins " in line}
        if not missing:
            break
    return missing

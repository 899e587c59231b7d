"""The queries of simulated views, each with its meaning in plain Python.

Inputs have a key k and a whole number n that may be null; a view on a view reads k and n of another view. Nothing here
is shared with the parser, the plans or the engine: these functions are what the views are compared with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

RowCounts = Counter[tuple[Any, ...]]
"""The count of each row (k, n) of an input, or of each row of a view."""


@dataclass(frozen=True, slots=True)
class SimulatedQuery:
    """A query over one or two inputs."""

    name: str
    sql: str
    """The text, with {a} and {b} for the inputs."""
    columns: tuple[str, ...]
    """The columns of the result."""
    answer: Callable[[RowCounts, RowCounts], RowCounts]
    """The result over the rows of both inputs."""
    key: tuple[str, ...] = ()
    """The columns that identify a row, where the view has a key."""
    policy: str = "incremental"
    stackable: bool = False
    """Whether it has columns k and n, so that another view can read it."""

    @property
    def inputs(self) -> int:
        """The number of inputs."""
        return 2 if "{b}" in self.sql else 1


def _groups(rows: RowCounts) -> dict[Any, RowCounts]:
    found: dict[Any, RowCounts] = {}
    for row, count in rows.items():
        found.setdefault(row[0], Counter())[row] += count
    return found


def _total(values: Iterable[tuple[Any, int]]) -> Any:
    there = [(value, count) for value, count in values if value is not None]
    return sum(value * count for value, count in there) if there else None


def _values(rows: RowCounts) -> list[Any]:
    return [row[1] for row in rows if row[1] is not None]


def _sums(a: RowCounts, b: RowCounts) -> RowCounts:
    return Counter(
        (k, sum(rows.values()), _total((row[1], count) for row, count in rows.items()))
        for k, rows in _groups(a).items()
    )


def _extremes(a: RowCounts, b: RowCounts) -> RowCounts:
    return Counter(
        (k, min(_values(rows), default=None), max(_values(rows), default=None)) for k, rows in _groups(a).items()
    )


def _overall(a: RowCounts, b: RowCounts) -> RowCounts:
    numbers = _values(a)
    return Counter([(sum(a.values()), min(numbers, default=None), _total((row[1], c) for row, c in a.items()))])


def _pairs(a: RowCounts, b: RowCounts) -> RowCounts:
    got: RowCounts = Counter()
    for (k, n), count in a.items():
        for (other, m), times in b.items():
            if k == other:
                got[k, n, m] += count * times
    return got


def _joined_sums(a: RowCounts, b: RowCounts) -> RowCounts:
    got: dict[Any, list[tuple[Any, int]]] = {}
    for (k, n, _), count in _pairs(a, b).items():
        got.setdefault(k, []).append((n, count))
    return Counter((k, sum(count for _, count in values), _total(values)) for k, values in got.items())


def _left_counts(a: RowCounts, b: RowCounts) -> RowCounts:
    there = _groups(b)
    got: RowCounts = Counter()
    for k, rows in _groups(a).items():
        matches = sum(count for row, count in there.get(k, Counter()).items() if row[1] is not None)
        got[k, matches * sum(rows.values())] += 1
    return got


def _without(a: RowCounts, b: RowCounts) -> RowCounts:
    there = {k for k, _ in b}
    return Counter({row: count for row, count in a.items() if row[0] not in there})


def _matched(a: RowCounts, b: RowCounts) -> RowCounts:
    there = {(k, n) for k, n in b if n is not None}
    return Counter({row: count for row, count in a.items() if row in there})


def _counted(a: RowCounts, b: RowCounts) -> RowCounts:
    there = _groups(b)
    got: RowCounts = Counter()
    for (k, n), count in a.items():
        got[k, n, sum(there.get(k, Counter()).values())] += count
    return got


def _first(a: RowCounts, b: RowCounts) -> RowCounts:
    ordered = sorted(a.elements(), key=lambda row: (row[1] is None, -(row[1] or 0), row[0]))
    return Counter(ordered[:3])


def _frequent(a: RowCounts, b: RowCounts) -> RowCounts:
    return Counter((k, sum(rows.values())) for k, rows in _groups(a).items() if sum(rows.values()) > 1)


def _sizes(a: RowCounts, b: RowCounts) -> RowCounts:
    sizes = Counter(sum(rows.values()) for rows in _groups(a).values())
    return Counter((size, groups) for size, groups in sizes.items())


def _distinct(a: RowCounts, b: RowCounts) -> RowCounts:
    return Counter(set(a))


def _numbered(a: RowCounts, b: RowCounts) -> RowCounts:
    there = {k: [count for row, count in rows.items() if row[1] is not None] for k, rows in _groups(a).items()}
    return Counter((k, sum(counts)) for k, counts in there.items())


def _keys(rows: RowCounts) -> RowCounts:
    got: RowCounts = Counter()
    for row, count in rows.items():
        got[row[:1]] += count
    return got


def _other_than(a: RowCounts, b: RowCounts) -> RowCounts:
    return Counter(set(_keys(a)) - set(_keys(b)))


def _common(a: RowCounts, b: RowCounts) -> RowCounts:
    return _keys(a) & _keys(b)


QUERIES: tuple[SimulatedQuery, ...] = (
    SimulatedQuery(
        "sums",
        "SELECT k, count(*) AS c, sum(n) AS n FROM {a} GROUP BY k",
        ("k", "c", "n"),
        _sums,
        ("k",),
        stackable=True,
    ),
    SimulatedQuery(
        "extremes",
        "SELECT k, min(n) AS least, max(n) AS n FROM {a} GROUP BY k",
        ("k", "least", "n"),
        _extremes,
        stackable=True,
    ),
    SimulatedQuery(
        "overall", "SELECT count(*) AS c, min(n) AS least, sum(n) AS s FROM {a}", ("c", "least", "s"), _overall
    ),
    SimulatedQuery(
        "pairs",
        "SELECT a.k AS k, a.n AS n, b.n AS m FROM {a} a JOIN {b} b ON a.k = b.k",
        ("k", "n", "m"),
        _pairs,
        stackable=True,
    ),
    SimulatedQuery(
        "joined sums",
        "SELECT a.k AS k, count(*) AS c, sum(a.n) AS s FROM {a} a JOIN {b} b ON a.k = b.k GROUP BY a.k",
        ("k", "c", "s"),
        _joined_sums,
    ),
    SimulatedQuery(
        "left counts",
        "SELECT a.k AS k, count(b.n) AS c FROM {a} a LEFT JOIN {b} b ON a.k = b.k GROUP BY a.k",
        ("k", "c"),
        _left_counts,
    ),
    SimulatedQuery(
        "without",
        "SELECT k, n FROM {a} a WHERE NOT EXISTS (SELECT 1 FROM {b} b WHERE b.k = a.k)",
        ("k", "n"),
        _without,
        stackable=True,
    ),
    SimulatedQuery(
        "matched",
        "SELECT k, n FROM {a} a WHERE EXISTS (SELECT 1 FROM {b} b WHERE b.k = a.k AND b.n = a.n)",
        ("k", "n"),
        _matched,
        stackable=True,
    ),
    SimulatedQuery(
        "counted",
        "SELECT a.k AS k, a.n AS n, (SELECT count(*) FROM {b} b WHERE b.k = a.k) AS c FROM {a} a",
        ("k", "n", "c"),
        _counted,
    ),
    SimulatedQuery("first", "SELECT k, n FROM {a} ORDER BY n DESC NULLS LAST, k LIMIT 3", ("k", "n"), _first),
    SimulatedQuery(
        "frequent", "SELECT k, count(*) AS c FROM {a} GROUP BY k HAVING count(*) > 1", ("k", "c"), _frequent, ("k",)
    ),
    SimulatedQuery(
        "sizes",
        "SELECT size, count(*) AS c FROM (SELECT k, count(*) AS size FROM {a} GROUP BY k) t GROUP BY size",
        ("size", "c"),
        _sizes,
    ),
    SimulatedQuery("distinct", "SELECT DISTINCT k, n FROM {a}", ("k", "n"), _distinct, stackable=True),
    SimulatedQuery("other than", "SELECT k FROM {a} EXCEPT SELECT k FROM {b}", ("k",), _other_than),
    SimulatedQuery("common", "SELECT k FROM {a} INTERSECT ALL SELECT k FROM {b}", ("k",), _common),
    SimulatedQuery("recomputed", "SELECT k, count(n) AS c FROM {a} GROUP BY k", ("k", "c"), _numbered, policy="full"),
)


def text_of(query: SimulatedQuery, inputs: Mapping[str, str]) -> str:
    """Return the text of a query over inputs of some names."""
    return query.sql.format(**inputs)

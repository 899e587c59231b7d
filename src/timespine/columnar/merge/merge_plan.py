"""What a merge rewrites, and what it passes through: the inputs side by side, in the order of their rows.

Pieces (parts of the inputs) whose bounds overlap form a stretch. Rows of tiny parts, which are decoded together
once, join the stretch that they lie in, or form one of their own between two others. What becomes of a stretch:

    passed   it is one part that nothing else touches, and a merge would change nothing about it
    written  anything else

Small parts that pass alone would stay small for ever, so a small one is written if a stretch beside it is written
or is a small part too. A small part has less than 1/SMALL of the bytes of a full one. So

    rewriting small parts costs less than 2/SMALL of a full part for every written stretch beside them,
    and less than 2/SMALL of a full part for every part that there is less afterwards;
    no two neighbours of the result are both small and both passed.

Written stretches that follow one another are merged together while they are light: a thousand tiny ones are one merge.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from timespine.columnar.kernels.key_encoding import encode_row
from timespine.columnar.scan.part_access import ROW_BYTES, meta_of
from timespine.core.batch import Part
from timespine.model.frontier import Frontier

SMALL = 16
"""The divisor of the size of a full part below which a part is small."""


@dataclass(frozen=True, slots=True)
class InputPart:
    """A part among the inputs of a merge."""

    run: int
    """The place of its run among the inputs."""
    place: int
    """Its place in that run."""
    part: Part
    """As it is seen through its run."""
    lower: bytes
    """At or before every row of it; empty: unknown."""
    upper: bytes | None
    """At or after every row of it; None: unknown."""
    origin: str
    """The key of the part that the state lists: this one, or the hollow run that it is inside of."""

    @property
    def row_bytes(self) -> int:
        """About how many bytes its rows take in memory."""
        meta = meta_of(self.part)
        return (meta.row_bytes if meta is not None else 0) or self.part.rows * ROW_BYTES


@dataclass(slots=True)
class Stretch:
    """Rows that nothing before and nothing after can meet."""

    pieces: list[InputPart] = field(default_factory=list)
    """The parts."""
    tables: list[pa.Table] = field(default_factory=list)
    """Rows of tiny parts, in order."""
    passed: InputPart | None = None
    """The only part, if it is passed through by reference."""

    @property
    def row_bytes(self) -> int:
        """About how many bytes its rows take in memory."""
        return sum(piece.row_bytes for piece in self.pieces) + sum(int(table.nbytes) for table in self.tables)


def stretches(
    pieces: Iterable[InputPart],
    tiny: pa.Table | None,
    order: Sequence[str],
    *,
    may_pass: Callable[[InputPart], bool],
    part_bytes: int,
    light_bytes: int,
) -> Iterator[Stretch]:
    """Yield all stretches, in the order of their rows, each to be passed through or to be written.

    `tiny` has the rows of tiny parts, ascending in `order`. A full part has `part_bytes`; written neighbours are put
    together while all of them have at most `light_bytes`.
    """
    found = _with_rows(_group_overlapping(pieces), tiny, order)
    for stretch in found:
        if len(stretch.pieces) == 1 and not stretch.tables and may_pass(stretch.pieces[0]):
            stretch.passed = stretch.pieces[0]
    small = [each.passed is not None and each.row_bytes * SMALL < part_bytes for each in found]
    coalesces_requests = [each.passed is None or is_small for each, is_small in zip(found, small, strict=True)]
    for place, stretch in enumerate(found):
        beside = coalesces_requests[max(place - 1, 0) : place] + coalesces_requests[place + 1 : place + 2]
        if small[place] and any(beside):
            stretch.passed = None
    return _join_light(found, light_bytes)


def _group_overlapping(pieces: Iterable[InputPart]) -> Iterator[tuple[list[InputPart], bytes, bytes | None]]:
    """Yield pieces in the order of their bounds, cut wherever nothing before can meet anything after; and their
    bounds."""
    together: list[InputPart] = []
    reach: bytes | None = b""
    for piece in sorted(pieces, key=lambda piece: piece.lower):
        if together and reach is not None and piece.lower > reach:
            yield together, together[0].lower, reach
            together, reach = [], b""
        together.append(piece)
        reach = None if reach is None or piece.upper is None else max(reach, piece.upper)
    if together:
        yield together, together[0].lower, reach


def _with_rows(
    found: Iterable[tuple[list[InputPart], bytes, bytes | None]], tiny: pa.Table | None, order: Sequence[str]
) -> list[Stretch]:
    """Return the stretches with the rows that lie in them, and between them those of rows alone."""
    rows = _Rows(tiny, order)
    result = []
    for pieces, lower, upper in found:
        if before := rows.before(lower):
            result.append(Stretch([], before))
        result.append(Stretch(pieces, rows.through(upper)))
    if rest := rows.through(None):
        result.append(Stretch([], rest))
    return result


class _Rows:
    """Ascending rows that are taken off from the front. Looks at one row where nothing is to be taken."""

    def __init__(self, table: pa.Table | None, order: Sequence[str]) -> None:
        self._table = table if table is not None and table.num_rows else None
        self._order = order
        self._place = 0
        self._next = None if self._table is None else encode_row(self._table, 0, order)

    def before(self, bound: bytes) -> list[pa.Table]:
        """Return the rows before a bound, if there are any."""
        return self._take(bisect_left, bound) if self._next is not None and self._next < bound else []

    def through(self, bound: bytes | None) -> list[pa.Table]:
        """Return the rows at or before a bound, if there are any; all that are left if there is none."""
        return self._take(bisect_right, bound) if self._next is not None and _reaches(bound, self._next) else []

    def _take(self, bisect: Callable[..., int], bound: bytes | None) -> list[pa.Table]:
        table, start = self._table, self._place
        assert table is not None
        stop = table.num_rows
        if bound is not None:
            stop = bisect(range(stop), bound, lo=start, key=lambda row: encode_row(table, row, self._order))
        self._place = stop
        self._next = encode_row(table, stop, self._order) if stop < table.num_rows else None
        return [table.slice(start, stop - start)]


def _reaches(bound: bytes | None, row: bytes) -> bool:
    return bound is None or row <= bound


def _join_light(found: Iterable[Stretch], light_bytes: int) -> Iterator[Stretch]:
    """Yield the stretches; written neighbours as one while they are light."""
    last: Stretch | None = None
    last_bytes = 0
    for stretch in found:
        row_bytes = stretch.row_bytes
        joins = last is not None and last.passed is None and stretch.passed is None
        if last is not None and joins and last_bytes + row_bytes <= light_bytes:
            last.pieces.extend(stretch.pieces)
            last.tables.extend(stretch.tables)
            last_bytes += row_bytes
            continue
        if last is not None:
            yield last
        last, last_bytes = stretch, row_bytes
    if last is not None:
        yield last


def is_until(times: tuple[int, ...], since: Frontier) -> bool:
    """Tell whether advancing to since makes all times up to these the same."""
    least = [min(element[index] for element in since.elements) for index in range(len(times))]
    return all(time <= bound for time, bound in zip(times, least, strict=True))


def is_from(times: tuple[int, ...], since: Frontier | None) -> bool:
    """Tell whether times from these on are left as they are by advancing to since."""
    if since is None:
        return True
    least = [min(element[index] for element in since.elements) for index in range(len(times))]
    return all(time >= bound for time, bound in zip(times, least, strict=True))

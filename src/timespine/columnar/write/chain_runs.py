"""Chain sorted pieces that do not overlap into few sorted runs."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def chain_non_overlapping(pieces: Iterable[tuple[bytes, bytes, T]]) -> list[list[T]]:
    """Arrange sorted pieces (first update, last update, piece) in as few sorted runs as there can be.

    Take them by their first update, and append each to the run that ends first, if it ends before. The number of
    runs is the largest number of pieces that overlap in one place.
    """
    chains: list[list[T]] = []
    ends: list[tuple[bytes, int]] = []
    for first, last, piece in sorted(pieces, key=lambda each: each[0]):
        if ends and ends[0][0] < first:
            _, chain = heapq.heappop(ends)
        else:
            chain = len(chains)
            chains.append([])
        chains[chain].append(piece)
        heapq.heappush(ends, (last, chain))
    return chains

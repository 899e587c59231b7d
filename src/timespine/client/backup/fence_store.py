"""Fence a store: processes that opened it before can commit to it no longer."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping

from timespine.client.opening.open_store import logs_address
from timespine.client.store import Store
from timespine.errors import UsageError
from timespine.location.consensus import Consensus, FencingConsensus
from timespine.location.opening.place import OpenRequest
from timespine.location.opening.registry import place_of
from timespine.location.opening.store_location import parse_location


def fence(
    location: str | os.PathLike[str],
    *,
    consensus: str | None = None,
    storage: Mapping[str, str | bool] | None = None,
) -> int:
    """Raise the epoch of a store; return the new one.

    From then on, commits of every process that has the store open raise StoreFenced and change nothing. Use it after a
    failover or a restore, before new processes open the store. It may be repeated: also after it was interrupted, and
    where the descriptor and the logs of a store in a bucket have different epochs.
    """
    parsed = parse_location(location, storage)
    place = place_of(parsed)
    address = logs_address(parsed, consensus)
    request = OpenRequest(create=False, consensus=address, adopts_epoch=True, now_ms=int(time.time() * 1000))
    ports = place.open(request)
    with contextlib.closing(ports.blob), contextlib.closing(ports.consensus):
        epoch = _fencing(ports.consensus).fence()
        place.record_epoch(epoch)
    return epoch


def raise_epoch(store: Store) -> int:
    """Raise the epoch of an open store, which goes on in the new one; return it."""
    epoch = _fencing(store._committer.driver.consensus).fence()
    if store.location:
        place_of(parse_location(store.location, dict(store._context.storage))).record_epoch(epoch)
    return epoch


def _fencing(consensus: Consensus) -> FencingConsensus:
    if not isinstance(consensus, FencingConsensus):
        raise UsageError(
            f"logs of the kind {type(consensus).__name__} have no epoch, so a store there cannot be fenced"
        )
    return consensus

"""A collection that tests of maintenance fill, and the background that passes over it."""

from timespine.client.maintenance.maintenance import REST_S
from timespine.config import Config

OFTEN = Config(retry_pause_ms=1, storage_attempts=3, inline_part_bytes=1, rollup_seqnos=16)
"""Everything in blobs, and rollups after a few commits."""


def runs(collection):
    return sum(len(batch.runs) for batch in collection._handle.state().hollow_batches())


def background(store, clock, seconds=10.0, *, step=REST_S):
    """What the background does in so many seconds in which nobody writes."""
    while seconds > 0:
        while store._maintenance.round():
            pass
        clock.advance(step)
        seconds -= step
    while store._maintenance.round():
        pass

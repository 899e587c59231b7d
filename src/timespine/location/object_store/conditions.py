"""A harmless probe: does this server keep the conditions of writes?

A server or proxy that ignores them would let two writers overwrite each other, and no later check would notice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from timespine.errors import Determinate, UsageError
from timespine.location.object_store.bucket import Bucket
from timespine.location.object_store.object_errors import translated
from timespine.pool import Pool, outcome

_WRONG_VERSION = {"e_tag": '"00000000000000000000000000000000"', "version": "1"}
"""A version that no object has."""


_MODES: list[tuple[Any, tuple[type[BaseError], ...], str]] = [
    ("create", (AlreadyExistsError,), "if the object does not exist"),
    (_WRONG_VERSION, (PreconditionError, AlreadyExistsError), "if the object is unchanged"),
]
"""The conditions, how a server refuses a write under each, and their names."""


@contextlib.contextmanager
def checked_conditions(bucket: Bucket, name: str, value: bytes) -> Iterator[None]:
    """Refuse a bucket whose server ignores conditions of writes, at the end of a block that runs beside the probes.

    SUBTLE: the probes put the bytes that the object has already. Other bytes would destroy it on exactly the servers
    that the probes look for (test_object_place.py).
    """
    with Pool(len(_MODES), "timespine-check", "the check of this bucket is over") as pool:
        probes = [pool.submit(_is_refused, bucket, name, value, mode, refusals) for mode, refusals, _ in _MODES]
        try:
            yield
        finally:  # a refusal says more than what failed beside it
            for probe, (_, _, condition) in zip(probes, _MODES, strict=True):
                if not outcome(probe):
                    raise UsageError(
                        f"the server of {bucket.location} ignores the condition of a write ({condition}), so two "
                        "writers would overwrite each other: use a server that keeps If-None-Match and If-Match"
                    ) from None


def _is_refused(bucket: Bucket, name: str, value: bytes, mode: Any, refusals: tuple[type[BaseError], ...]) -> bool:
    """Put a value under a condition that does not hold; return whether the server refused it."""
    try:
        obstore.put(bucket.objects(), bucket.path(name), value, mode=mode, use_multipart=False)
    except refusals:
        return True
    except BaseError as error:
        raise translated(error, "cannot check the conditions of writes", Determinate) from None
    return False

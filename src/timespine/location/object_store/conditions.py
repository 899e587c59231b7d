"""A harmless probe: does this server keep the conditions of writes?

A server or proxy that ignores them would let two writers overwrite each other, and no later check would notice.
"""

from __future__ import annotations

from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from timespine.errors import Determinate, UsageError
from timespine.location.object_store.bucket import Bucket
from timespine.location.object_store.object_errors import translated

_WRONG_VERSION = {"e_tag": '"00000000000000000000000000000000"', "version": "1"}
"""A version that no object has."""


def check_conditions(bucket: Bucket, name: str, value: bytes) -> None:
    """Refuse a bucket whose server ignores conditions of writes.

    SUBTLE: the probe puts the bytes that the object has already. Other bytes would destroy it on exactly the servers
    that the probe looks for (test_object_place.py).
    """
    modes: list[tuple[Any, tuple[type[BaseError], ...], str]] = [
        ("create", (AlreadyExistsError,), "if the object does not exist"),
        (_WRONG_VERSION, (PreconditionError, AlreadyExistsError), "if the object is unchanged"),
    ]
    for mode, refusals, condition in modes:
        if not _is_refused(bucket, name, value, mode, refusals):
            raise UsageError(
                f"the server of {bucket.location} ignores the condition of a write ({condition}), so two writers would "
                "overwrite each other: use a server that keeps If-None-Match and If-Match"
            )


def _is_refused(bucket: Bucket, name: str, value: bytes, mode: Any, refusals: tuple[type[BaseError], ...]) -> bool:
    """Put a value under a condition that does not hold; return whether the server refused it."""
    try:
        obstore.put(bucket.objects(), bucket.path(name), value, mode=mode, use_multipart=False)
    except refusals:
        return True
    except BaseError as error:
        raise translated(error, "cannot check the conditions of writes", Determinate) from None
    return False

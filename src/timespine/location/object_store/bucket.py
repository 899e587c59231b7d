"""A bucket, reached through obstore with the credentials of this process."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any, NoReturn, SupportsIndex

from obstore.store import AzureStore, GCSStore, ObjectStore, S3Store

from timespine.errors import UsageError, WrongProcess
from timespine.hints import Hint
from timespine.location.opening.store_location import ABFSS, FLAGS, GS, S3, StoreLocation, account_of

REQUEST_S = 60.0
"""How long one request may take, with its body. A request of more than LARGE_BYTES may take ten times as long."""

LARGE_BYTES = 64 << 20
"""From this size on a request is large."""

CONNECT_S = 5.0
"""How long a connection may take."""

RETRIES = 3
"""How often obstore repeats a request that a server refused with 429 or 5xx, or that broke off."""

RETRY_S = 20.0
"""How long after its beginning a request is repeated, at most."""

_used_in: list[int] = []
"""The process that used obstore first, and so has its threads."""


def check_process() -> None:
    """Refuse to use obstore in a forked child of a process that used it.

    SUBTLE: its threads do not exist in the child, and a call would wait for them for ever, on a new object too.
    """
    if not _used_in:
        _used_in.append(os.getpid())
    if _used_in[0] != os.getpid():
        raise WrongProcess(
            "this process was forked from one that used an object store, which hangs: start it with the method "
            "'spawn' of multiprocessing"
        )


class Bucket:
    """The objects below the prefix of a location."""

    def __init__(self, location: StoreLocation, *, request_s: float = REQUEST_S) -> None:
        self.location = location.url
        """The location, for messages."""
        self._place = location
        self._request_s = request_s
        self._opened: dict[bool, ObjectStore] = {}

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        # SUBTLE: an object of obstore that was made with keys carries them in its pickle (test_secrets.py).
        raise WrongProcess("a bucket belongs to the process that opened it: open its location in the other process")

    def path(self, name: str) -> str:
        """Return the path of an object in the bucket."""
        return f"{self._place.path}/{name}" if self._place.path else name

    def name(self, path: str) -> str:
        """Return the name of an object below the prefix."""
        return path[len(self.path("")) :]

    def objects(self, bytes_sent: int = 0) -> ObjectStore:
        """Return the object of obstore, for a request of about this size."""
        check_process()
        large = bytes_sent > LARGE_BYTES
        found = self._opened.get(large)
        if found is None:
            found = self._opened[large] = _connect(self._place, self._request_s * (10 if large else 1))
        return found


def _connect(location: StoreLocation, request_s: float) -> ObjectStore:
    """Make the object of obstore. It takes credentials from the environment of this process alone."""
    options: dict[str, Any] = {name: value == "true" if name in FLAGS else value for name, value in location.storage}
    client: dict[str, Any] = {
        "timeout": timedelta(seconds=request_s),
        "connect_timeout": timedelta(seconds=CONNECT_S),
        # With options of its own, a client of obstore no longer looks at the environment.
        "allow_http": options.pop("allow_http", os.environ.get("AWS_ALLOW_HTTP", "").lower() == "true"),
    }
    backoff = {"init_backoff": timedelta(milliseconds=50), "max_backoff": timedelta(seconds=2), "base": 2}
    common: dict[str, Any] = {
        "client_options": client,
        "retry_config": {"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRY_S), "backoff": backoff},
    }
    try:
        if location.scheme == S3:
            return S3Store(location.bucket, **options, **_profile(), **common)
        if location.scheme == GS:
            return GCSStore(location.bucket, **options, **common)
        if location.scheme == ABFSS:
            container, account = account_of(location.bucket)
            return AzureStore(container, account_name=account, **options, **common)
        return AzureStore(location.bucket, **options, **common)
    except UsageError:
        raise
    except Exception as error:  # its text may repeat a setting of the environment
        raise UsageError(
            f"{location.url} cannot be reached with the settings of this process ({type(error).__name__})",
            hint=Hint("check-storage"),
        ) from None


def _profile() -> dict[str, Any]:
    """Return the credentials of the profile that AWS_PROFILE names: obstore does not read profiles, boto3 does."""
    if "AWS_PROFILE" not in os.environ or "AWS_ACCESS_KEY_ID" in os.environ:
        return {}
    try:
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        raise UsageError("AWS_PROFILE names a profile: pip install boto3 to use it, or unset it") from None
    return {"credential_provider": Boto3CredentialProvider()}

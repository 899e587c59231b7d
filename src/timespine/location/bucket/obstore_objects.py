"""Objects of S3, Cloud Storage and Azure through obstore (extra `s3`).

obstore repeats requests by itself. So a conditional put that it reports as "exists" may be our own, and a 409 of the
server looks the same though nothing was written: the protocol above reads back whatever says so. An error of a put that
is not one of these leaves open whether it happened. obstore must not be used after a fork: the adapter refuses it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

from timespine.errors import Determinate, Indeterminate, StoreClosed, Unavailable, UsageError, WrongProcess
from timespine.location.bucket.effects import UNCHANGED, StoredObject, Unchanged
from timespine.pool import Pool, outcome

try:
    import obstore
    from obstore import exceptions
except ImportError as error:
    raise UsageError("obstore is not installed: pip install 'timespine[s3]'") from error

REQUESTS_MAX = 32
"""Requests of one adapter that are under way at once."""


class ObstoreObjects:
    """Objects below a prefix of an obstore store, which the caller configured with timeouts and credentials."""

    def __init__(self, store: Any, prefix: str = "") -> None:
        if prefix and not prefix.endswith("/"):
            raise UsageError(f"the prefix {prefix!r:.120} does not end with a slash")
        self._store = store
        self._prefix = prefix
        self._pool = Pool(REQUESTS_MAX, "timespine-objects", "this bucket is closed: open the store again")
        self._pid = os.getpid()
        self._closed = False

    def get(self, name: str, unless: str | None = None) -> StoredObject | Unchanged | None:
        self._check_usable()
        options: Any = None if unless is None else {"if_none_match": json.loads(unless)[0]}
        with _failures(Determinate, f"cannot read {name}"):
            try:
                result = obstore.get(self._store, self._prefix + name, options=options)
                return StoredObject(bytes(result.bytes()), _tag(result.meta))
            except exceptions.NotModifiedError:
                return UNCHANGED
            except FileNotFoundError:
                return None

    def get_many(self, names: Sequence[str]) -> list[StoredObject | None]:
        if len(names) == 1:
            return [self._get(names[0])]
        tasks = [self._pool.submit(self._get, name) for name in names]
        return [outcome(task) for task in tasks]

    def get_range(self, name: str, start: int, stop: int) -> bytes | None:
        self._check_usable()
        with _failures(Determinate, f"cannot read {name}"):
            try:
                return bytes(obstore.get_range(self._store, self._prefix + name, start=start, end=stop))
            except FileNotFoundError:
                return None

    def put_if_absent(self, name: str, data: bytes) -> bool:
        return self._put(name, data, "create")

    def put_if_match(self, name: str, data: bytes, tag: str) -> bool:
        e_tag, version = json.loads(tag)
        return self._put(name, data, {"e_tag": e_tag} if version is None else {"e_tag": e_tag, "version": version})

    def delete(self, names: Sequence[str]) -> None:
        self._check_usable()
        with _failures(Indeterminate, f"deleting {len(names)} objects"):
            try:
                obstore.delete(self._store, [self._prefix + name for name in names])
            except FileNotFoundError:  # some stores report missing ones, after the others were deleted
                for name in names:
                    with contextlib.suppress(FileNotFoundError):
                        obstore.delete(self._store, self._prefix + name)

    def list_names(self, prefix: str) -> list[str]:
        self._check_usable()
        with _failures(Determinate, f"cannot list {prefix}"):
            pages = obstore.list(self._store, self._prefix + prefix)
            return sorted(each["path"].removeprefix(self._prefix) for page in pages for each in page)

    def close(self) -> None:
        if not self._closed and self._pid == os.getpid():
            self._closed = True
            self._pool.shutdown()

    def _get(self, name: str) -> StoredObject | None:
        found = self.get(name)
        assert not isinstance(found, Unchanged)  # it was not asked for
        return found

    def _put(self, name: str, data: bytes, mode: Any) -> bool:
        self._check_usable()
        with _failures(Indeterminate, f"writing {name}"):
            try:
                obstore.put(self._store, self._prefix + name, data, mode=mode, use_multipart=False)
                return True
            except (exceptions.AlreadyExistsError, exceptions.PreconditionError, FileNotFoundError):
                return False

    def _check_usable(self) -> None:
        if self._pid != os.getpid():
            raise WrongProcess("obstore does not survive a fork: open the store in this process, or start it by spawn")
        if self._closed:
            raise StoreClosed("this bucket is closed: open the store again")


def _tag(meta: Any) -> str:
    """Return the tag of an object: what a conditional put of any of the stores needs."""
    return json.dumps([meta["e_tag"], meta["version"]])


_SURELY_REFUSED = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError, exceptions.NotSupportedError)


@contextlib.contextmanager
def _failures(kind: type[Unavailable], what: str) -> Iterator[None]:
    """Raise errors of obstore as `kind`, without what they say of the request: it may hold addresses and signatures."""
    try:
        yield
    except _SURELY_REFUSED as error:
        raise Determinate(f"{what}: {type(error).__name__}, check the credentials and their rights") from None
    except (exceptions.BaseError, OSError) as error:
        raise kind(f"{what}: {type(error).__name__}") from None

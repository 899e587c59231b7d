"""The Blob port on an object store.

A blob is one object, put by one conditional request ("create"). What says "exists" is read back: obstore repeats a
request whose reply was lost and then finds its own object, and a server may answer 409 although nothing is there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError

from timespine.errors import CorruptionError, Determinate, Indeterminate, ReadOnlyStore, TimespineError
from timespine.ids import is_blob_key, parse_blob_key, parse_blob_prefix
from timespine.location.blob import BLOB_BYTES_MAX, BlobInfo
from timespine.location.checks import (
    check_get,
    check_get_range,
    check_inside,
    check_open,
    check_put,
    check_same,
    check_size,
)
from timespine.location.object_store.bucket import Bucket
from timespine.location.object_store.object_errors import translated
from timespine.location.opening.descriptor import BLOBS

PUT_ATTEMPTS = 4
"""How often a put is tried while the server says that the object exists, and does not have it."""

PAUSE_S = 0.05
"""The pause before the second try; it doubles."""

LIST_PAGE = 1000
"""Objects in one answer to a listing: the most that S3 gives."""

_MISSING = (NotFoundError, FileNotFoundError)


class ObjectBlob:
    """Blobs as objects of a bucket, as durable as the bucket."""

    def __init__(self, bucket: Bucket, *, read_only: bool = False, sleep: Callable[[float], None] = time.sleep) -> None:
        self._bucket = bucket
        self._read_only = read_only
        self._sleep = sleep
        self._closed = False

    def put(self, key: str, value: bytes) -> None:
        check_put(key, value)
        self._check_writable()
        objects, path = self._bucket.objects(len(value)), self._path(key)
        for attempt in range(PUT_ATTEMPTS):
            try:
                obstore.put(objects, path, value, mode="create", use_multipart=False)
                return
            except AlreadyExistsError:
                # SUBTLE: it may be ours, or nothing may be there: only its bytes tell (test_object_blob_faults.py).
                found = self._get(key, BLOB_BYTES_MAX)
            except BaseError as error:
                raise translated(error, f"blob {key} may not have been put", Indeterminate) from None
            if found is not None:
                check_same(key, found == value)
                return
            self._sleep(PAUSE_S * 2**attempt)
        raise Indeterminate(f"blob {key} was not put: storage said {PUT_ATTEMPTS} times that it exists, and has none")

    def get(self, key: str, *, max_bytes: int = BLOB_BYTES_MAX) -> bytes | None:
        _, bytes_max = check_get(key, max_bytes)
        return self._get(key, bytes_max)

    def get_range(self, key: str, start: int, stop: int) -> bytes | None:
        check_get_range(key, start, stop)
        objects, path = self._objects(), self._path(key)
        try:
            if start == stop or stop - start > BLOB_BYTES_MAX:
                self._check_end(key, stop)
            if start == stop:
                return b""
            value = bytes(obstore.get_range(objects, path, start=start, end=stop))
        except _MISSING:
            return None
        except BaseError as error:
            failure = self._failure(key, stop, error)
            if failure is None:
                return None
            raise failure from None
        check_inside(key, stop, start + len(value))
        return value

    def delete(self, key: str) -> None:
        self.delete_many([key])

    def delete_many(self, keys: Sequence[str]) -> None:
        """Remove keys, a thousand in one request where storage can. Nothing says which of them existed."""
        paths = [self._path(str(parse_blob_key(key))) for key in keys]
        self._check_writable()
        try:
            obstore.delete(self._objects(), paths[0] if len(paths) == 1 else paths)
        except _MISSING:
            if len(paths) > 1:  # storage without bulk requests stopped at the first that is gone
                for key in keys:
                    self.delete(key)
        except BaseError as error:
            raise translated(error, f"deleting {len(keys)} blobs", Indeterminate) from None

    def list_keys(self, prefix: str = "") -> Iterator[BlobInfo]:
        parse_blob_prefix(prefix)
        objects, below = self._objects(), self._path(prefix)
        found = []
        try:
            for page in obstore.list(objects, below.rstrip("/"), chunk_size=LIST_PAGE):
                for each in page:
                    key = each["path"][len(self._path("")) :]
                    if is_blob_key(key) and key.startswith(prefix):
                        found.append(BlobInfo(key, each["size"]))
        except BaseError as error:
            raise translated(error, f"cannot list blobs in {self._bucket.location}", Determinate) from None
        return iter(sorted(found))  # some servers list folder by folder

    def close(self) -> None:
        self._closed = True

    def _path(self, key: str) -> str:
        return self._bucket.path(BLOBS + key)

    def _objects(self) -> obstore.store.ObjectStore:
        check_open(self._closed, "blob")
        return self._bucket.objects()

    def _check_writable(self) -> None:
        check_open(self._closed, "blob")
        if self._read_only:
            raise ReadOnlyStore(f"{self._bucket.location} is open for reading only")

    def _get(self, key: str, bytes_max: int) -> bytes | None:
        try:
            found = obstore.get(self._objects(), self._path(key))
            check_size(key, found.meta["size"], bytes_max)
            return bytes(found.bytes())
        except _MISSING:
            return None
        except BaseError as error:
            raise translated(error, f"cannot read blob {key}", Determinate) from None

    def _check_end(self, key: str, stop: int) -> None:
        """Raise CorruptionError if a range ends after its blob."""
        check_inside(key, stop, obstore.head(self._objects(), self._path(key))["size"])

    def _failure(self, key: str, stop: int, error: BaseError) -> TimespineError | None:
        """Find out why a range cannot be read: the blob is gone (None), it is shorter, or storage fails."""
        try:
            self._check_end(key, stop)
        except _MISSING:
            return None
        except CorruptionError as shorter:
            return shorter
        except BaseError:
            pass  # the first failure says as much
        return translated(error, f"cannot read blob {key}", Determinate)

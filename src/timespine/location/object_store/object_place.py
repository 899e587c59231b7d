"""A store in a bucket: a descriptor, blobs as objects, and logs where the descriptor says."""

from __future__ import annotations

import contextlib
import uuid
from typing import Any

import msgspec
import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError, PreconditionError

from timespine.errors import CorruptionError, Determinate, Indeterminate, UsageError
from timespine.hints import Hint
from timespine.location.blob import Blob
from timespine.location.consensus import Consensus
from timespine.location.object_store.bucket import Bucket
from timespine.location.object_store.conditions import checked_conditions
from timespine.location.object_store.object_blob import ObjectBlob
from timespine.location.object_store.object_errors import translated
from timespine.location.opening.consensus_address import BUCKET, ConsensusAddress, parse_consensus
from timespine.location.opening.consensus_registry import open_logs, reserve_store
from timespine.location.opening.descriptor import BLOBS, BYTES_MAX, NAME, Descriptor, decode_descriptor
from timespine.location.opening.place import OpenedPorts, OpenRequest
from timespine.location.opening.store_location import StoreLocation
from timespine.location.remote.read_ahead import ReadAheadBlob

EPOCH_ATTEMPTS = 8
"""How often a new epoch is written to the descriptor, which may change meanwhile."""


class ObjectPlace:
    """A prefix of a bucket that holds a store, or can hold one."""

    def __init__(self, location: StoreLocation) -> None:
        self._location = location
        self._bucket = Bucket(location)

    def open(self, request: OpenRequest) -> OpenedPorts:
        data = self.read_file(NAME, BYTES_MAX)
        check: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if data is not None:
            descriptor = decode_descriptor(data, self._bucket.location)
            if not request.read_only:
                check = checked_conditions(self._bucket, NAME, data)
        elif request.create:
            descriptor = self._create(request)
        else:
            raise UsageError(f"there is no store in {self._bucket.location}", hint=Hint("create-store"))
        address = _reached_by(descriptor, request.consensus)
        known = msgspec.structs.replace(descriptor, epoch=None) if request.adopts_epoch else descriptor
        with contextlib.ExitStack() as opened:  # a refusal closes the logs
            with check:
                logs: Consensus = open_logs(address, known, self._location, read_only=request.read_only)
                opened.callback(logs.close)
            opened.pop_all()
        return OpenedPorts(self.open_blob(read_only=request.read_only), logs, store_id=descriptor.store, is_remote=True)

    def open_blob(self, *, read_only: bool) -> Blob:
        return ReadAheadBlob(ObjectBlob(self._bucket, read_only=read_only))

    def identity(self) -> tuple[object, ...] | None:
        found = self._read()
        return None if found is None else (found.store, found.epoch)

    def read_file(self, name: str, bytes_max: int) -> bytes | None:
        where = self._bucket.location
        try:
            found = obstore.get(self._bucket.objects(), self._bucket.path(name))
            if found.meta["size"] > bytes_max:
                raise CorruptionError(f"{name} in {where} has {found.meta['size']} bytes, more than {bytes_max}")
            return bytes(found.bytes())
        except (NotFoundError, FileNotFoundError):
            return None
        except BaseError as error:
            raise translated(error, f"cannot read {name} in {where}", Determinate) from None

    def record_epoch(self, epoch: int) -> None:
        for _ in range(EPOCH_ATTEMPTS):
            try:
                found = obstore.get(self._bucket.objects(), self._bucket.path(NAME))
                known = decode_descriptor(bytes(found.bytes()), self._bucket.location)
                if (known.epoch or 0) >= epoch:
                    return  # ours, if its reply was lost, or a later one
                data = msgspec.structs.replace(known, epoch=epoch).encode()
                version: Any = {name: found.meta[name] for name in ("e_tag", "version") if found.meta.get(name)}
                obstore.put(self._bucket.objects(), self._bucket.path(NAME), data, mode=version, use_multipart=False)
            except (PreconditionError, AlreadyExistsError):
                continue
            except BaseError as error:
                raise translated(error, f"{NAME} may not have the new epoch: fence again", Indeterminate) from None
        raise Determinate(f"{NAME} in {self._bucket.location} does not take the new epoch: run `timespine fence` again")

    def file_of(self, key: str) -> str | None:
        return None

    def _read(self) -> Descriptor | None:
        """Read the descriptor; None if there is none."""
        data = self.read_file(NAME, BYTES_MAX)
        return None if data is None else decode_descriptor(data, self._bucket.location)

    def _create(self, request: OpenRequest) -> Descriptor:
        """Make the descriptor of a new store, or read the one that another process made meanwhile.

        The logs know the store before its descriptor names them: a crash in between leaves an unused id.
        """
        where, address = self._bucket.location, request.consensus or parse_consensus(BUCKET)
        if next(iter(ObjectBlob(self._bucket).list_keys()), None) is not None:
            raise CorruptionError(
                f"{where}/{BLOBS} has blobs, and {NAME} is gone: restore it from a copy, or give an empty prefix"
            )
        store = reserve_store(address, str(uuid.uuid4()))
        made = Descriptor(store, ConsensusAddress(address.kind, address.at), request.now_ms)
        data = made.encode()
        try:
            obstore.put(self._bucket.objects(), self._bucket.path(NAME), data, mode="create", use_multipart=False)
        except AlreadyExistsError:
            pass  # ours, if its reply was lost, or that of another process
        except BaseError as error:
            raise translated(error, f"{NAME} in {where} may not have been put", Indeterminate) from None
        found = self.read_file(NAME, BYTES_MAX)
        if found is None:
            raise Determinate(f"{NAME} in {where} was put and is not there: open the store again")
        try:
            with checked_conditions(self._bucket, NAME, found):
                pass
        except UsageError:
            if found == data:
                with contextlib.suppress(BaseError, OSError):
                    obstore.delete(self._bucket.objects(), self._bucket.path(NAME))
            raise
        return decode_descriptor(found, where)


def _reached_by(descriptor: Descriptor, given: ConsensusAddress | None) -> ConsensusAddress:
    """Return how this process reaches the logs. A caller may give another address of them, and no other kind."""
    if given is None:
        return descriptor.consensus
    if given.kind != descriptor.consensus.kind:
        raise UsageError(
            f"the logs of this store are in {descriptor.consensus.kind}, not in {given.kind}: leave out `consensus`"
        )
    return given

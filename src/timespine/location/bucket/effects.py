"""The effects on objects that the protocol of a bucket may request.

A protocol is a generator: it yields an effect, and receives the result or the error. Errors are `Determinate` (nothing
happened) or `Indeterminate` (it may have happened, or may still happen).
"""

from __future__ import annotations

import enum
from collections.abc import Generator
from typing import Any, NamedTuple, TypeVar

import msgspec


class StoredObject(NamedTuple):
    """An object as it was read."""

    data: bytes
    """Its bytes."""
    tag: str
    """The mark of this version: another content has another tag."""


class Unchanged(enum.Enum):
    """The answer to a conditional read whose object still has the known tag."""

    UNCHANGED = "unchanged"


UNCHANGED = Unchanged.UNCHANGED


class ObjectEffect(msgspec.Struct, frozen=True):
    """The base of all effects on objects."""


class GetObject(ObjectEffect, frozen=True):
    """Read an object. Result: a StoredObject, None if there is none, or UNCHANGED if its tag is still `unless`."""

    name: str
    unless: str | None = None


class GetObjects(ObjectEffect, frozen=True):
    """Read objects at once, in any order. Result: per name a StoredObject, or None."""

    names: tuple[str, ...]


class GetObjectRange(ObjectEffect, frozen=True):
    """Read the bytes [start, stop) of an object. Result: bytes, fewer if it is shorter, or None if there is none."""

    name: str
    start: int
    stop: int


class PutIfAbsent(ObjectEffect, frozen=True):
    """Write an object that must not exist. Result: True if it was written; False if storage says that it exists.

    SUBTLE: False proves nothing. The client library may have repeated a request whose reply was lost and found its own
    object, and some servers answer so while another write is under way (planted: `exists_means_lost`).
    """

    name: str
    data: bytes


class PutIfMatch(ObjectEffect, frozen=True):
    """Replace an object that must have this tag. Result: True if it was; False if storage says that it has another.

    SUBTLE: False proves nothing, as with PutIfAbsent (planted: `a_lost_checkpoint_deletes_its_packs`).
    """

    name: str
    data: bytes
    tag: str


class DeleteObjects(ObjectEffect, frozen=True):
    """Delete objects, missing ones included. Result: None."""

    names: tuple[str, ...]


class ListObjects(ObjectEffect, frozen=True):
    """List the names that begin with a prefix, which ends with a slash or is empty. Result: list of names."""

    prefix: str


class Pause(ObjectEffect, frozen=True):
    """Wait. Result: None."""

    ms: int


T = TypeVar("T")
ObjectProtocol = Generator[ObjectEffect, Any, T]
"""A protocol on objects that returns a T."""

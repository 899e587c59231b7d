"""What a process and the one that merges for it write to each other."""

from __future__ import annotations

import struct
from typing import IO

import msgspec

from timespine.columnar.merge.run_merge import MergeTask
from timespine.config import Config
from timespine.core.effects import MergeOutput
from timespine.model.description import Description

MESSAGE_BYTES_MAX = 1 << 30
"""The most bytes of a message. The parts of a merge are listed in it."""

LENGTH = struct.Struct("<q")
"""What stands before each message: its bytes."""


class MergeOrder(msgspec.Struct, frozen=True):
    """A merge, and where its store is."""

    version: str
    """The version of the library that asks: another one may have been installed since it was imported."""
    location: str
    """The absolute path of the folder of the store, or its URL."""
    storage: tuple[tuple[str, str], ...]
    """How its bucket is reached."""
    config: Config
    """The limits and defaults of the store."""
    schemas: tuple[bytes, ...]
    """The schemas of the collection, encoded."""
    work: MergeTask
    """What is merged."""
    desc: Description
    """The description of the result."""


class MergeReply(msgspec.Struct, frozen=True):
    """What became of a merge."""

    writer: str
    """The writer of the merge, which no other merge has."""
    output: MergeOutput | None = None
    """The result; None if an input was gone, or if the merge failed."""
    counters: dict[str, float] = {}
    """What the merge adds to the counters of the collection."""
    error: str = ""
    """Why the merge failed, for people."""


def write_framed(stream: IO[bytes], message: msgspec.Struct) -> None:
    """Write a message, and its length before it. The stream has no buffer, which a fork would write a second time."""
    data = memoryview(_encoder.encode(message))
    for each in (memoryview(LENGTH.pack(len(data))), data):
        left = each
        while left:
            left = left[stream.write(left) :]


def read_framed(stream: IO[bytes]) -> bytes:
    """Read a message; raise EOFError if the other process has ended, or wrote something else."""
    (size,) = LENGTH.unpack(_exactly(stream, LENGTH.size))
    if not 0 <= size <= MESSAGE_BYTES_MAX:
        raise EOFError(f"{size} bytes are no message")
    return _exactly(stream, size)


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = stream.read(size - len(data))
        if not piece:
            raise EOFError("the other process has ended")
        data += piece
    return bytes(data)


_encoder = msgspec.msgpack.Encoder()

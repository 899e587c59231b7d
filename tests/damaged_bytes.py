"""Bytes with damage: every wrong value of every byte, and every truncation."""

from __future__ import annotations

from collections.abc import Iterator


def flipped(data: bytes, masks: range = range(1, 256)) -> Iterator[bytes]:
    """Yield the data with one byte of another value, for each place and each mask."""
    for place in range(len(data)):
        for mask in masks:
            yield data[:place] + bytes([data[place] ^ mask]) + data[place + 1 :]


def truncated(data: bytes) -> Iterator[bytes]:
    """Yield each beginning of the data."""
    for size in range(len(data)):
        yield data[:size]

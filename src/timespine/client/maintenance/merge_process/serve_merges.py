"""The program of the process that merges for another one: it reads merges from its input and writes the results.

It ends with the process that started it, in the middle of a merge too. It also ends when it was asked for nothing for a
while. What it has put for a merge that it did not end is swept with the writer of the merge.
"""

from __future__ import annotations

import os
import queue
import select
import threading
from functools import lru_cache
from typing import IO

import msgspec

import timespine
from timespine.client.commit.effect_driver import fresh_id
from timespine.client.inner_handles import read_threads
from timespine.client.maintenance.maintenance_report import describe_error
from timespine.client.maintenance.merge_process.merge_messages import MergeOrder, MergeReply, read_framed, write_framed
from timespine.columnar.merge.merge_engine import Engine
from timespine.columnar.parts.part_cache import PartCache
from timespine.columnar.parts.part_list_tree import Counters
from timespine.columnar.schema.schema import Schema
from timespine.location.blob import Blob
from timespine.location.opening.registry import place_of
from timespine.location.opening.store_location import parse_location
from timespine.pool import Pool

LOOK_S = 5.0
"""Seconds between two looks at whether the process that asks lives: a forked child of it may keep the pipe open."""


def serve(replies: int, parent: int, idle_s: float) -> None:
    """Merge what the parent asks for, one after the other, until it ends or is silent for so long.

    `replies` is the descriptor of the pipe that it reads, and `parent` its process id.
    """
    asked, written = open(0, "rb", buffering=0, closefd=False), open(replies, "wb", buffering=0)  # noqa: SIM115
    received: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(asked, received, parent), daemon=True).start()
    while True:
        try:
            order = received.get(timeout=idle_s)
            write_framed(written, reply_to(order))
        except (queue.Empty, OSError):
            os._exit(0)  # no merge is asked for, or the parent is gone


def reply_to(order: bytes) -> MergeReply:
    """Do a merge. An error is a reply too."""
    counters: Counters = {}
    writer = ""
    try:
        asked = _decoder.decode(order)
        writer = asked.work.writer
        if asked.version != timespine.__version__:
            return MergeReply(
                writer, error=f"asked by version {asked.version}, and {timespine.__version__} is installed"
            )
        schemas = [Schema.decode(data) for data in asked.schemas]
        engine = Engine(
            _blob(asked.location, asked.storage),
            lambda collection: schemas,
            asked.config,
            fresh=fresh_id,
            cache=PartCache(1),
            pool=_pool(read_threads(asked.config)),
            counters_of=lambda collection: counters,
        )
        return MergeReply(writer, engine.merge_here(asked.work, asked.desc), dict(counters))
    except Exception as error:
        return MergeReply(writer, error=describe_error(error))


def _receive(asked: IO[bytes], received: queue.SimpleQueue[bytes], parent: int) -> None:
    """Pass on what the parent asks for, and end this process with it."""
    while True:
        try:
            while not select.select([asked], [], [], LOOK_S)[0]:
                if os.getppid() != parent:
                    os._exit(0)
            received.put(read_framed(asked))
        except (EOFError, OSError):
            os._exit(0)


@lru_cache(maxsize=1)
def _blob(location: str, storage: tuple[tuple[str, str], ...]) -> Blob:
    return place_of(parse_location(location, dict(storage))).open_blob(read_only=False)


@lru_cache(maxsize=1)
def _pool(threads: int) -> Pool:
    return Pool(threads, "timespine-merge", "this process has ended")


_decoder = msgspec.msgpack.Decoder(MergeOrder)

"""A merge as another process does it: an order and a reply as bytes, in this process so that tests are quick."""

from __future__ import annotations

import io
from unittest import mock

import msgspec
from assertions import check
from building import keys_in
from run_cases import Place

import timespine
from timespine.client.maintenance.merge_process import serve_merges
from timespine.client.maintenance.merge_process.merge_messages import MergeOrder, MergeReply, read_framed, write_framed


def travelled(message):
    """The bytes of a message, after it was written to a pipe and read from it."""
    pipe = io.BytesIO()
    write_framed(pipe, message)
    pipe.seek(0)
    return read_framed(pipe)


def by_message(place):
    """A delegate that does every merge as the process does, but with the blobs of a place and without threads."""

    def merge(work, desc, schemas, counters, here):
        encoded = tuple(schema.encode() for schema in schemas)
        order = MergeOrder(timespine.__version__, "/nowhere", (), place.config, encoded, work, desc)
        with (
            mock.patch.object(serve_merges, "_blob", return_value=place.blob),
            mock.patch.object(serve_merges, "_pool", return_value=None),
            mock.patch.object(serve_merges, "fresh_id", place.name),
        ):
            reply = msgspec.msgpack.decode(travelled(serve_merges.reply_to(travelled(order))), type=MergeReply)
        check((reply.error, reply.writer) == ("", work.writer), reply.error)
        counters.update(reply.counters)
        return reply.output

    return merge


def copy_of(place):
    """The same blobs, schemas and limits, and the same names of what comes next."""
    copied = Place(list(place.schemas), place.config, collection=place.collection, writer=place.writer)
    for key in keys_in(place.blob):
        copied.blob.put(key, place.blob.get(key))
    for _ in range(int(place.name("n")[1:])):
        copied.name("n")
    return copied


def contents(place):
    """Every blob of a place."""
    return {key: place.blob.get(key) for key in keys_in(place.blob)}

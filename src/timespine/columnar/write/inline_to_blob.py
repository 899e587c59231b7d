"""Put inline parts into blobs, for a state that has no room for them."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from timespine.columnar.parts.inline_part import decode_inline
from timespine.columnar.parts.part_list_tree import Counters, add_to_counter, delete_keys
from timespine.columnar.schema.schema import Schema
from timespine.columnar.write.upload import UploadTarget
from timespine.config import Config
from timespine.core.batch import HollowBatch, Order, Part, Run
from timespine.errors import UsageError
from timespine.location.blob import Blob


def flush_to_blob(
    batch: HollowBatch,
    collection: str,
    writer: str,
    schema_of: Callable[[int], Schema],
    blob: Blob,
    config: Config,
    *,
    fresh: Callable[[str], str],
    counters: Counters,
    sleep: Callable[[float], None] = time.sleep,
) -> HollowBatch:
    """Put the inline parts of a batch into blobs, and return the batch that refers to those.

    Parts stay in their place, with their truncation and rewriting, under the schema of their run. A failure deletes
    what was put.
    """
    put: list[str] = []

    def flush(part: Part, run: Run) -> Part:
        if part.inline is None:
            return part
        if run.schema is None:
            raise UsageError("an inline part whose run names no schema cannot be put into a blob")
        target = UploadTarget(collection, writer, schema_of(run.schema), run.schema, blob, config, sleep=sleep)
        table = decode_inline(part.inline, target.schema, part.rows, config)
        name = fresh("p")
        put.append(target.key(name))
        stored = target.send_part(name, [table], is_consolidated=True, is_sorted=run.order is Order.SORTED)
        if stored is None:
            raise UsageError("an inline part without updates cannot be put into a blob")
        for what, by in stored.counts.items():
            add_to_counter(counters, what, by)
        return msgspec.structs.replace(stored.part, lower=part.lower, upper=part.upper, rewrite=part.rewrite)

    try:
        runs = tuple(
            msgspec.structs.replace(run, parts=tuple(flush(part, run) for part in run.parts)) for run in batch.runs
        )
    except Exception:
        add_to_counter(counters, "left to the sweep", delete_keys(put, blob, None))
        raise
    return msgspec.structs.replace(batch, runs=runs)

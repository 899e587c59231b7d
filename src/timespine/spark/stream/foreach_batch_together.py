"""`foreachBatch` for several collections: the caller's function splits each batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from timespine.client.api_for_engines import context_of, handle_of, is_spark_frame
from timespine.client.collection import Collection
from timespine.client.store import Store
from timespine.columnar.schema.schema import TIME
from timespine.errors import UsageError, short_repr
from timespine.spark.blob_location import blob_location_of
from timespine.spark.options import APPEND, DELETE, UPSERT, CollectionAddress
from timespine.spark.store_cache import address_of, store_of
from timespine.spark.stream.foreach_batch import BatchResults, CollectionBatch, ForeachBatchWriter
from timespine.spark.write.driver_or_tasks import evaluate_once
from timespine.spark.write.write_frame import WRITE, FrameWrite
from timespine.spark.write.write_unsealed import unsealed_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OPTIONS = {APPEND: (), UPSERT: ("sequence_by",), DELETE: (), WRITE: ("times", "seal", "late")}
"""The modes, with the options of each."""

Split = Callable[["DataFrame", int], Mapping[Any, Any]]
"""The pieces of a batch by name of the collection: a DataFrame, or a mode and a DataFrame, or those and options."""


def foreach_batch_together(
    store: Store,
    split: Split,
    *,
    sink: str | None = None,
    done: Callable[[int, BatchResults | None], Any] | None = None,
) -> Callable[[DataFrame, int], None]:
    """Make the function for `df.writeStream.foreachBatch` that writes every batch to several collections, all or none.

    `split(frame, batch)` returns the piece of each collection by its name: a DataFrame to append, or a mode with
    a DataFrame, `("upsert", df)` or `("delete", df)`, and perhaps options: `("upsert", df, {"sequence_by":
    "n"})`, or `("write", df, {"times": "paid_at", "seal": "max", "late": "move"})` for rows ahead of the seal.

    All rows without times of their own get one time, and their collections become complete up to it,
    so that `store.snapshot([...])` shows all of a batch or nothing. `sink` and `done` are those of `foreach_batch`;
    `done` gets the results by name, None if the batch was committed before or has no rows. `split` may run again for
    a batch that is committed; the writer ignores the pieces.
    """
    return ForeachBatchWriter(SplitRows(store, split), sink, done, first_batch=None)


@dataclass(frozen=True, slots=True)
class SplitRows:
    """The route of rows to collections of a store by the caller's function."""

    store: Store
    split: Split
    call: ClassVar[str] = "foreach_batch_together(store, split, sink='...')"

    def pieces(self, frame: DataFrame, batch: int, stack: ExitStack) -> list[CollectionBatch]:
        stack.enter_context(evaluate_once(frame))  # each piece would evaluate the batch again
        given = self.split(frame, batch)
        if not isinstance(given, Mapping):
            raise UsageError(f"split returns a mapping from names of collections to rows, not {short_repr(given)}")
        pieces = [_piece(self.store, *each) for each in given.items()]
        if len({piece.collection.id for piece in pieces}) < len(pieces):
            raise UsageError("split names a collection twice: give all of its rows at once")
        return pieces

    def find(self, name: str) -> Collection | None:
        return self.store.collection(name) if name in self.store.names() else None

    def outcome(self, results: BatchResults | None) -> BatchResults | None:
        return results

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_split_rows, (address_of(context_of(self.store)), self.split)


def _open_split_rows(target: CollectionAddress, split: Split) -> SplitRows:
    return SplitRows(store_of(target), split)


def _piece(store: Store, name: Any, given: Any) -> CollectionBatch:
    """Check the piece of a collection that the caller's function returned."""
    collection = store.collection(name) if isinstance(name, str) else name
    if not isinstance(collection, Collection):
        raise UsageError(f"rows go to collections, by name or as Collection, not to {short_repr(name)}")
    mode, frame, options = _parse_piece(given)
    if mode not in OPTIONS or not is_spark_frame(frame) or not isinstance(options, Mapping):
        raise UsageError(
            f"for {collection.name} give a DataFrame, or a mode ({', '.join(OPTIONS)}), a DataFrame, and perhaps "
            f"options, not {short_repr(given)}"
        )
    unknown = [each for each in options if each not in OPTIONS[mode]]
    if unknown:
        raise UsageError(f"{mode} has no option {short_repr(unknown[0])}; it has: {', '.join(OPTIONS[mode]) or 'none'}")
    handle = handle_of(collection)
    blob_location_of(handle)  # refuse a store that tasks cannot open, also if this batch needs no tasks
    unsealed = None
    if mode == WRITE:
        unsealed = unsealed_options(handle, options.get("times", TIME), options.get("seal"), options.get("late"))
    return CollectionBatch(collection, frame, FrameWrite(mode, options.get("sequence_by"), unsealed, is_alone=False))


def _parse_piece(given: Any) -> tuple[Any, Any, Any]:
    if not isinstance(given, tuple):
        return APPEND, given, {}
    mode, frame, options = (*given, None, None, None)[:3] if len(given) <= 3 else (None, None, None)
    return mode, frame, {} if options is None else options

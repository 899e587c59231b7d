"""`foreachBatch`, exactly once, for less than the sink costs: the driver has the store open already."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from timespine.client.changes import CHANGE_TYPE
from timespine.client.collection import Collection
from timespine.client.writing import Committed
from timespine.errors import AlreadyIn, UsageError, shown
from timespine.spark import changing, writing
from timespine.spark.applying import APPEND, DELETE, UPSERT, apply
from timespine.spark.opened import collection_of
from timespine.spark.options import Target
from timespine.spark.place import place_of
from timespine.spark.sinks import Sink
from timespine.spark.types import check_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def foreach_batch(
    collection: Collection,
    mode: str = APPEND,
    *,
    sink: str | None = None,
    sequence_by: str | None = None,
    done: Callable[[int, Committed | None], Any] | None = None,
) -> Callable[[DataFrame, int], None]:
    """What to give to `df.writeStream.foreachBatch`: writes every batch to a collection, exactly once.

    Modes are those of the sink. `sink` names it; without a name it is known by the id of the query. `done` is told
    of every batch and what came of it, None if it was in already or empty.

    With Spark Connect batches are written beside the server, by a process that opens the store in the same folder;
    `done` runs there as well, and the sink needs a name.
    """
    if mode not in (APPEND, UPSERT, DELETE):
        raise UsageError(f"mode is append, upsert or delete, not {shown(mode)}")
    if sequence_by is not None and mode != UPSERT:
        raise UsageError("sequence_by says which of several changes of a key is the last: it is for upserts")
    return EachBatch(collection, mode, sink, sequence_by, done)


@dataclass(frozen=True, slots=True)
class EachBatch:
    """Writes batches to a collection. It may be pickled: then it travels without the open store."""

    collection: Collection
    mode: str
    sink: str | None
    sequence_by: str | None
    done: Callable[[int, Committed | None], Any] | None

    def __call__(self, frame: DataFrame, batch: int) -> None:
        access = self.collection._access
        known = Sink(self.sink, _query(frame))
        committed = None
        try:
            if not known.is_in(access.state(), batch):
                committed = _written(self.collection, frame, self.mode, self.sequence_by, known, batch)
        except AlreadyIn:
            pass
        if self.done is not None:
            self.done(batch, committed)

    def __reduce__(self) -> tuple[Any, ...]:
        target = Target(place_of(self.collection._access).location, self.collection.name)
        return _unpickled, (target, self.collection.id, self.mode, self.sink, self.sequence_by, self.done)


def _unpickled(target: Target, id: str, mode: str, sink: str | None, *rest: Any) -> EachBatch:
    """Beside the server of Spark Connect: the same, with the store open here. What is wrong is said at the start."""
    if sink is None:
        raise UsageError(
            "with Spark Connect a batch does not say which query it belongs to: "
            "name the sink, foreach_batch(collection, sink='...')"
        )
    collection = collection_of(target)
    if collection.id != id:
        raise UsageError(f"{target.collection} is another collection by now: open it again")
    return EachBatch(collection, mode, sink, *rest)


def _written(
    collection: Collection, frame: DataFrame, mode: str, sequence: str | None, sink: Sink, batch: int
) -> Committed | None:
    access = collection._access
    together = (sink.commit(batch),)
    _, schema = access.schema(access.known())
    if mode == APPEND:
        check_frame(frame.schema, schema, schema.system_names)
        few = writing.taken(frame, schema)
        if few is None:
            return writing.append_many(access, frame, writing.when(access, frame.columns), "append", together)
        return writing.append_few(access, few, together=together) if few.num_rows else None
    if mode == DELETE:
        return changing.delete(access, frame, together)
    if CHANGE_TYPE not in frame.columns and sequence is None:
        return changing.upsert(access, frame, together)
    extra = tuple(name for name in (CHANGE_TYPE, sequence) if name is not None)
    check_frame(frame.schema, schema, extra)
    few = writing.taken(frame, schema)
    if few is None:
        raise UsageError(
            f"a batch of changes has more than {writing.SMALL_ROWS} rows: set maxRowsPerTrigger, "
            "or split it into frame.filter(...) for upsert and delete"
        )
    return apply(access, few, sequence, together) if few.num_rows else None


def _query(frame: DataFrame) -> str | None:
    """The id of the streaming query that a batch belongs to; None with Spark Connect, which does not tell."""
    try:
        context = frame.sparkSession.sparkContext
    except Exception:
        return None
    found = context.getLocalProperty("sql.streaming.queryId")
    return str(found) if found else None

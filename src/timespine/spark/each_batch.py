"""`foreachBatch`, exactly once, for less than the sink costs: the driver has the store open already."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from timespine.client.collection import Collection
from timespine.client.writing import Committed
from timespine.errors import AlreadyIn, UsageError, shown
from timespine.spark import changing, writing
from timespine.spark.applying import apply
from timespine.spark.sinks import Sink
from timespine.spark.types import check_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

APPEND, UPSERT, DELETE = "append", "upsert", "delete"

CHANGE_COLUMN = "_change_type"


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
    """
    if mode not in (APPEND, UPSERT, DELETE):
        raise UsageError(f"mode is append, upsert or delete, not {shown(mode)}")
    if sequence_by is not None and mode != UPSERT:
        raise UsageError("sequence_by says which of several changes of a key is the last: it is for upserts")

    def write(frame: DataFrame, batch: int) -> None:
        access = collection._access
        known = Sink(sink, _query(frame))
        committed = None
        try:
            if not known.is_in(access.state(), batch):
                committed = _written(collection, frame, mode, sequence_by, known, batch)
        except AlreadyIn:
            pass
        if done is not None:
            done(batch, committed)

    return write


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
    if CHANGE_COLUMN not in frame.columns and sequence is None:
        return changing.upsert(access, frame, together)
    extra = tuple(name for name in (CHANGE_COLUMN, sequence) if name is not None)
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

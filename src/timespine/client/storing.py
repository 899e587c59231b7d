"""Making rows durable, and committing what points at them; whatever is refused is deleted again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import pyarrow as pa

from timespine.client.access import Access
from timespine.client.driver import fresh_id
from timespine.client.judging import made_again
from timespine.columnar.inline import InlineRule
from timespine.columnar.run_writer import RunWriter
from timespine.columnar.runs import count, delete_batch, rows_in, written_by
from timespine.columnar.schema import Schema
from timespine.columnar.upload import Target
from timespine.core.hollow import HollowBatch, Order, Run
from timespine.errors import (
    AskElsewhere,
    Determinate,
    Fenced,
    InlineBudgetExceeded,
    SchemaChanged,
    TimespineError,
    UsageError,
)
from timespine.ids import parse_blob_key
from timespine.model.description import Description
from timespine.model.frontier import Frontier

R = TypeVar("R")

STORE_ATTEMPTS = 3
"""How often rows are put again: because the state has no room, the writer was expired, or the schema was changed."""

SHARE_MAX = 16
"""As many appends together may be as large inline as so many of them by themselves."""


class Loose(NamedTuple):
    """Updates that belong to a collection, and are not durable yet."""

    access: Access
    id: int
    """The schema that they are written with."""
    schema: Schema
    table: pa.Table
    share: int = 1
    """Of how many appends: each of them might be inline."""
    is_sorted: bool = True
    """Whether they are consolidated and in order; else each part of them is sorted when it is written."""


Runs = tuple[Run, ...]


def stored(
    access: Access,
    id: int,
    schema: Schema,
    table: pa.Table,
    commit: Callable[[Runs], R],
    *,
    share: int = 1,
    is_sorted: bool = True,
) -> R:
    """Make rows durable and commit what points at them."""
    return stored_together([Loose(access, id, schema, table, share, is_sorted)], lambda runs: commit(runs[0]))


def stored_together(given: Sequence[Loose], commit: Callable[[list[Runs]], R]) -> R:
    """Make rows of several collections durable, and commit what points at all of them."""
    inline = True
    for _ in range(STORE_ATTEMPTS):
        try:
            return _stored(given, commit, inline=inline)
        except InlineBudgetExceeded:
            inline = False
        except Fenced as fenced:
            # This process slept past its lease, and what it put may be swept: put it again under a new writer.
            if fenced.in_doubt:
                raise
        except SchemaChanged as changed:
            given = [_made_again(each, changed) for each in given]
    return _stored(given, commit, inline=False)


def _made_again(loose: Loose, changed: SchemaChanged) -> Loose:
    """Updates under the newest schema of their collection, if that is what changed and loses none of their values."""
    access = loose.access
    if access.id != changed.collection:
        return loose
    id, schema = access.schema(access.known())
    table, lost = made_again(loose.table, loose.schema, schema)
    if lost:
        raise SchemaChanged(access.id, loose.id, id, lost, access.name) from changed
    return Loose(access, id, schema, table, loose.share, loose.is_sorted)


def _stored(given: Sequence[Loose], commit: Callable[[list[Runs]], R], *, inline: bool) -> R:
    made: list[Runs] = []
    put: list[tuple[Access, HollowBatch]] = []
    try:
        for each in given:
            runs, batch = make_runs(*each, inline=inline)
            made.append(runs)
            if batch is not None:
                put.append((each.access, batch))
        done = commit(made)
    except TimespineError as error:
        if surely_not(error) or len(made) < len(given):
            for access, batch in put:
                delete_unused(access, batch)
        raise
    for each, runs in zip(given, made, strict=True):
        count_appended(each.access, runs, rows_in(runs))
    return done


def surely_not(error: TimespineError) -> bool:
    """Whether a commit that raised this did not happen, and never will.

    SUBTLE: what may have been committed must not be deleted (test_writing.py).
    """
    return isinstance(error, UsageError | AskElsewhere | Determinate) or (
        isinstance(error, Fenced) and not error.in_doubt
    )


def delete_unused(access: Access, batch: HollowBatch) -> None:
    """Delete what this process put for a batch that was refused, whatever its writer was called then."""
    shared = access.shared
    for writer in {parse_blob_key(part.key).writer for part in batch.parts if part.key}:
        delete_batch(batch, shared.blob, owned=written_by(access.id, writer), counters=shared.counters)


def count_appended(access: Access, runs: tuple[Run, ...], rows: int) -> None:
    """Count what was committed."""
    counters = access.shared.counters_of(access.id)
    count(counters, "append bytes", sum(part.total_bytes for run in runs for part in run.parts))
    count(counters, "append rows", rows)


def make_runs(
    access: Access,
    id: int,
    schema: Schema,
    table: pa.Table,
    share: int = 1,
    is_sorted: bool = True,
    *,
    inline: bool = True,
) -> tuple[Runs, HollowBatch | None]:
    """Make rows durable as runs, inline if they are few: the runs, and the batch to delete if they are not committed.

    Without `is_sorted` rows come in any order, and each part of them is sorted by itself.
    """
    if table.num_rows == 0:
        return (), None
    config, shared = access.config, access.shared
    if inline and is_sorted:
        # If the state is full by what is known already, the commit would only say so.
        rule = InlineRule(
            config.inline_part_bytes * min(share, SHARE_MAX),
            room=lambda: config.inline_total_bytes - access.known().inline_bytes,
        )
        if (part := rule.part_of(table)) is not None:
            return (Run((part,), Order.SORTED, id),), None
    writer = access.committer.writer(access.id)
    target = Target(access.id, writer, schema, id, shared.blob, config, sleep=shared.sleep)
    pool = shared.pool if table.nbytes > config.part_bytes else None
    with RunWriter(target, fresh_id, shared.counters, pool, is_sorted=is_sorted) as run_writer:
        run_writer.add(table)
        runs = run_writer.finish()
    if not runs:
        return (), None
    return runs, HollowBatch(anywhere(schema.arity), rows_in(runs), runs)


def anywhere(arity: int) -> Description:
    """A description for a batch whose place is decided when it is committed."""
    minimum = Frontier.minimum(arity)
    return Description(minimum, Frontier(), minimum)

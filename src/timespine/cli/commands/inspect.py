"""The verb that shows how a collection is stored: inspect."""

from __future__ import annotations

import enum
from typing import Annotated, Any

import typer

from timespine.cli.options import NameArgument, OutputOption, StorePathArgument, ToOption, open_store_at
from timespine.cli.output.destination import Destination, destination, for_document
from timespine.cli.output.format_text import amplification_text, fields, size, type_text
from timespine.cli.output.row_writers import write_document, write_table
from timespine.client.arguments.time_args import plain_frontier
from timespine.client.collection import Collection, handle_of
from timespine.columnar.scan.part_access import meta_of
from timespine.core.batch import Part
from timespine.core.encoding.codec import decode_diff
from timespine.core.encoding.envelope import EnvelopeKind, envelope_kind
from timespine.core.encoding.state_diff import StateDiff
from timespine.core.state import State
from timespine.errors import UsageError, short_repr


class InspectView(enum.StrEnum):
    """The views of a stored collection."""

    state = "state"
    batches = "batches"
    parts = "parts"
    levels = "levels"
    holds = "holds"
    diffs = "diffs"
    part = "part"


_BATCHES = ("lower", "upper", "since", "rows", "bytes", "runs", "parts", "sorted")
_PARTS = ("batch", "key", "rows", "bytes", "inline", "hollow", "truncated", "rewritten", "times")
_LEVELS = ("level", "batches", "updates")
_HOLDS = ("holder", "since", "holds_back")
_DIFFS = ("seqno", "kind", "bytes", "changes")

_CHANGES = {
    "u": "upper",
    "t": "trace",
    "r": "retention",
    "x": "unsealed gone",
    "y": "unsealed",
    "w": "writers",
    "c": "committers",
    "f": "history forgotten",
    "h": "history",
    "i": "inline bytes",
    "o": "totals",
    "g": "expired history to forget",
}
"""The short names of a stored diff, in words."""


def add_commands(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("inspect")(inspect_verb)


def inspect_verb(
    store: StorePathArgument,
    name: NameArgument,
    view: Annotated[InspectView, typer.Argument(metavar="VIEW", help="The view.")] = InspectView.state,
    key: Annotated[
        str | None,
        typer.Argument(metavar="KEY", help="With `part`: its key, or the end of it.", show_default=False),
    ] = None,
    output: OutputOption = None,
    to: ToOption = None,
) -> None:
    """Show how a collection is stored.

    \b
    state    times, sizes, counts (the default)
    batches  the batches of the spine, oldest first
    parts    the parts of every batch
    levels   the layers of the spine
    holds    the holds, and the time from which each keeps history
    diffs    the log: the changes of each commit
    part     one part: its footer, row groups and bounds of times

    \b
    Example:
      timespine inspect ./data orders batches
    """
    where = (for_document if view in (InspectView.state, InspectView.part) else destination)(output, to)
    if (key is not None) != (view is InspectView.part):
        raise UsageError("inspect STORE NAME part KEY shows one part; the other views take no key")
    with open_store_at(store, read_only=True) as open_store:
        collection = open_store.collection(name)
        if view is InspectView.part:
            _part(collection, where, key or "")
        elif view is InspectView.state:
            _state(collection, where)
        else:
            names, rows = _VIEWS[view](collection)
            write_table(where, names, rows)


Table = tuple[tuple[str, ...], list[dict[str, Any]]]


def _state(collection: Collection, where: Destination) -> None:
    found = collection.inspect()
    document = {**found.to_dict(), "batches": len(found.batches)}
    held = [f"{who} at {type_text(since)}" for who, since in found.held_by]
    text = fields(
        [
            ("name", found.name),
            ("id", found.id),
            ("seqno", found.seqno),
            ("since", type_text(found.since)),
            ("upper", type_text(found.upper)),
            ("held by", ", ".join(held) or "none"),
            ("updates", found.rows),
            ("size", size(found.size)),
            ("inline", size(found.inline_bytes)),
            ("batches", len(found.batches)),
            ("runs", sum(batch.runs for batch in found.batches)),
            ("merges due", found.merges_due),
            ("unsealed", found.unsealed),
            ("readers", len(found.readers)),
            ("critical holds", len(found.holds)),
            ("writers", found.writers),
            ("schemas", found.schemas),
            ("rollups", found.rollups),
            ("amplification", amplification_text(found.amplification)),
            ("garbage", size(found.amplification.garbage_bytes)),
            ("log", size(found.amplification.log_bytes)),
            ("spine", ", ".join(f"{number} {kind}" for kind, number in found.spine.items())),
        ]
    )
    write_document(where, document, lambda: text)


def _batches(collection: Collection) -> Table:
    rows = [
        {
            "lower": each.lower,
            "upper": each.upper,
            "since": each.since,
            "rows": each.rows,
            "bytes": each.size,
            "runs": each.runs,
            "parts": each.parts,
            "sorted": each.sorted,
        }
        for each in collection.inspect().batches
    ]
    return _BATCHES, rows


def _parts(collection: Collection) -> Table:
    rows = [
        {
            "batch": number,
            "key": part.key or None,
            "rows": part.rows,
            "bytes": part.size,
            "inline": part.inline,
            "hollow": part.hollow,
            "truncated": part.truncated,
            "rewritten": part.rewritten,
            "times": part.times,
        }
        for number, batch in enumerate(collection.inspect(parts=True).batches)
        for part in batch.detail
    ]
    return _PARTS, rows


def _levels(collection: Collection) -> Table:
    levels = enumerate(collection.inspect().levels)
    return _LEVELS, [{"level": level, "batches": batches, "updates": rows} for level, (batches, rows) in levels]


def _holds(collection: Collection) -> Table:
    state = handle_of(collection).state()
    rows = [
        {"holder": who, "since": plain_frontier(since), "holds_back": since <= state.since}
        for who, since in state.holders()
    ]
    return _HOLDS, rows


def _diffs(collection: Collection) -> Table:
    handle = handle_of(collection)
    rows = []
    for seqno, data in handle.committer.driver.consensus.scan(handle.id, 0):
        kind = envelope_kind(data)
        changed = ["everything"] if kind is EnvelopeKind.STATE else _describe_changes(decode_diff(data))
        rows.append({"seqno": seqno, "kind": kind.name.lower(), "bytes": len(data), "changes": ", ".join(changed)})
    return _DIFFS, rows


def _describe_changes(change: StateDiff) -> list[str]:
    """List the changes of a diff in words."""
    fresh = StateDiff(change.n)
    names = [name for name in StateDiff.__struct_fields__ if getattr(change, name) != getattr(fresh, name)]
    return [_CHANGES.get(name, name).replace("_", " ") for name in names]


_VIEWS = {
    InspectView.batches: _batches,
    InspectView.parts: _parts,
    InspectView.levels: _levels,
    InspectView.holds: _holds,
    InspectView.diffs: _diffs,
}


def _part(collection: Collection, where: Destination, key: str) -> None:
    """Show one part: its entries in the state and its footer."""
    handle = handle_of(collection)
    state = handle.state()
    parts = handle.parts(state)
    schema, part = _found(collection, state, key)
    if schema is None:
        raise UsageError(f"part {part.key} names no schema: see `timespine doctor`")
    reader = parts.open(part, schema, parts.schema_of(schema))
    meta = meta_of(part)
    document = {
        "key": part.key,
        "rows": part.rows,
        "bytes": part.size,
        "diff_sum": part.diff_sum,
        "schema": schema,
        "sorted": reader.footer.sorted,
        "bloom_filters": reader.footer.blooms,
        "truncated": part.is_truncated,
        "rewritten": part.rewrite is not None,
        "min_time": list(meta.min_time) if meta is not None else None,
        "max_time": list(meta.max_time) if meta is not None else None,
        "columns": list(parts.schema_of(schema).names),
        "groups": [
            {"rows": reader.group_rows(group), "decoded_bytes": reader.group_bytes(group)}
            for group in range(reader.groups)
        ],
    }
    shown_fields = [(name.replace("_", " "), value) for name, value in document.items() if name != "groups"]
    write_document(where, document, lambda: fields([*shown_fields, ("row groups", reader.groups)]))


def _found(collection: Collection, state: State, key: str) -> tuple[int | None, Part]:
    """Find the part whose blob key is, or ends in, a text."""
    parts = handle_of(collection).parts(state)
    runs = [(run.schema, run.parts) for batch in state.hollow_batches() for run in batch.runs]
    runs += [(unsealed.schema, unsealed.parts) for unsealed in state.unsealed]
    found: dict[str, tuple[int | None, Part]] = {}
    for schema, listed in runs:
        for part in parts.leaves(listed):
            if part.key and part.key.endswith(key):
                found.setdefault(part.key, (schema, part))
    if len(found) != 1 and key not in found:
        raise UsageError(
            f"{len(found)} parts of {collection.name} have a key that ends in {short_repr(key)}: "
            f"see `timespine inspect STORE {collection.name} parts`"
        )
    return found[key] if key in found else next(iter(found.values()))

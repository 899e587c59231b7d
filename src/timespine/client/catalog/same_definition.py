"""Whether a collection that exists is the one that somebody wanted to create."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from timespine.client.catalog.catalog import FOR_EVER, Entry
from timespine.columnar.schema.schema import Schema
from timespine.errors import CollectionExists, shown
from timespine.hints import Hint


def check_alike(name: str, found: tuple[Entry, Sequence[Schema]], asked: tuple[Entry, Schema]) -> None:
    """A UsageError if a collection has another schema, timeline or, if asked for, `retain` or `forget_within`.

    It had its schemas one after the other. A program that creates it with an earlier one still opens it: what it
    knows of is there, under the newest schema.
    """
    entry, schemas = found
    wanted, made = asked
    if all(other := _difference(schema, made) for schema in schemas):
        raise _differs(name, f"another schema ({other})", Hint("evolve-or-replace"))
    if entry.timeline != wanted.timeline:
        both = f"the timeline {entry.timeline!r}, not {wanted.timeline!r}"
        raise _differs(name, both, Hint("open-as-it-is", {"name": name, "timeline": entry.timeline}))
    if wanted.retain_ms is not None and entry.retain_ms != wanted.retain_ms:
        both = f"{_policy(entry.retain_ms)}, not {_policy(wanted.retain_ms)}"
        raise _differs(name, both, Hint("change-retention", {"name": name}))
    if wanted.forget_within_ms is not None and entry.forget_within_ms != wanted.forget_within_ms:
        both = f"forget_within={entry.forget_within_ms} ms, not {wanted.forget_within_ms} ms"
        raise _differs(name, both, Hint("change-deadline", {"name": name}))


def _differs(name: str, what: str, hint: Hint) -> CollectionExists:
    """Make the error for a collection that exists with something else than was asked for."""
    return CollectionExists(name, f"collection {name} exists with {what}", hint=hint)


def _policy(retain_ms: int | None) -> str:
    if retain_ms is None:
        return "no retain of its own"
    return "retain='for ever'" if retain_ms == FOR_EVER else f"retain={retain_ms} ms"


def _difference(known: Schema, asked: Schema) -> str:
    """What of a schema is not as asked for, if anything: nobody asks for ids, or for what older rows hold."""

    def looks(schema: Schema) -> dict[str, Any]:
        columns = {f"column {shown(field.name)}": field.type for field in schema.fields}
        key = schema.key_names if schema.key else ()
        return {**columns, "key": key, "cluster": schema.cluster_names, "arity": schema.arity}

    has, wants = looks(known), looks(asked)
    differ = (what for what in {**has, **wants} if has.get(what) != wants.get(what))
    return next((f"{what}: {shown(has.get(what))}, not {shown(wants.get(what))}" for what in differ), "")

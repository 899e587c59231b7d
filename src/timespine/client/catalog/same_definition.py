"""Compare an existing collection with the definition that a caller wants to create."""

from __future__ import annotations

from collections.abc import Sequence

from timespine.client.catalog.catalog import FOR_EVER, CatalogEntry
from timespine.columnar.schema.schema import Schema
from timespine.errors import CollectionExists, short_repr
from timespine.hints import Hint


def require_same_definition(
    name: str, found: tuple[CatalogEntry, Sequence[Schema]], asked: tuple[CatalogEntry, Schema]
) -> None:
    """Raise CollectionExists if a collection has another schema, timeline or, if given, `retain` or `forget_within`.

    The caller may give any schema that the collection had: a program that creates it with an earlier one still
    opens it, as the newest schema has the columns that it knows.
    """
    entry, schemas = found
    wanted, made = asked
    if all(other := _difference(schema, made) for schema in schemas):
        raise _definition_error(name, f"another schema ({other})", Hint("evolve-or-replace"))
    if entry.timeline != wanted.timeline:
        both = f"the timeline {entry.timeline!r}, not {wanted.timeline!r}"
        raise _definition_error(name, both, Hint("open-as-it-is", {"name": name, "timeline": entry.timeline}))
    if wanted.retain_ms is not None and entry.retain_ms != wanted.retain_ms:
        both = f"{_policy(entry.retain_ms)}, not {_policy(wanted.retain_ms)}"
        raise _definition_error(name, both, Hint("change-retention", {"name": name}))
    if wanted.forget_within_ms is not None and entry.forget_within_ms != wanted.forget_within_ms:
        both = f"forget_within {entry.forget_within_ms} ms, not {wanted.forget_within_ms} ms"
        raise _definition_error(name, both, Hint("change-deadline", {"name": name}))


def _definition_error(name: str, what: str, hint: Hint) -> CollectionExists:
    """Make the error for a collection that exists with another definition."""
    return CollectionExists(name, f"collection {name} exists with {what}", hint=hint)


def _policy(retain_ms: int | None) -> str:
    if retain_ms is None:
        return "no retain of its own"
    return "retain 'for ever'" if retain_ms == FOR_EVER else f"retain {retain_ms} ms"


def _difference(known: Schema, asked: Schema) -> str:
    """Describe the first difference of two schemas; empty if there is none. Ids and defaults do not count."""

    def looks(schema: Schema) -> dict[str, object]:
        columns = {f"column {short_repr(field.name)}": field.type for field in schema.fields}
        key = schema.key_names if schema.key else ()
        return {**columns, "key": key, "cluster": schema.cluster_names, "time_coordinates": schema.arity}

    has, wants = looks(known), looks(asked)
    differ = (what for what in {**has, **wants} if has.get(what) != wants.get(what))
    return next((f"{what}: {short_repr(has.get(what))}, not {short_repr(wants.get(what))}" for what in differ), "")

"""Whether a collection that exists is the one that somebody wanted to create."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from timespine.client.catalog.catalog import FOR_EVER, Entry
from timespine.columnar.schema.schema import Schema
from timespine.core.spine.layers import Merging
from timespine.errors import CollectionExists, UsageError, shown


def check_alike(name: str, found: tuple[Entry, Sequence[Schema]], asked: tuple[Entry, Schema]) -> None:
    """A UsageError if a collection has another schema, timeline or, if asked for, `retain` or `forget_within`.

    It had its schemas one after the other. A program that creates it with an earlier one still opens it: what it
    knows of is there, under the newest schema.
    """
    entry, schemas = found
    wanted, made = asked
    if all(other := _difference(schema, made) for schema in schemas):
        raise CollectionExists(
            name, f"collection {name} exists with another schema ({other}): evolve it, or pass replace=True"
        )
    if entry.timeline != wanted.timeline:
        both = f"timeline={entry.timeline!r}, not timeline={wanted.timeline!r}"
        raise CollectionExists(name, f"collection {name} exists with {both}: open it with store[{name!r}]")
    if wanted.retain_ms is not None and entry.retain_ms != wanted.retain_ms:
        both = f"{_policy(entry.retain_ms)}, not {_policy(wanted.retain_ms)}"
        raise CollectionExists(
            name, f"collection {name} exists with {both}: change it with store[{name!r}].retain(...)"
        )
    if wanted.forget_within_ms is not None and entry.forget_within_ms != wanted.forget_within_ms:
        both = f"forget_within={entry.forget_within_ms} ms, not {wanted.forget_within_ms} ms"
        raise CollectionExists(
            name, f"collection {name} exists with {both}: change it with store[{name!r}].forget_within(...)"
        )


def _policy(retain_ms: int | None) -> str:
    if retain_ms is None:
        return "no retain of its own"
    return "retain='for ever'" if retain_ms == FOR_EVER else f"retain={retain_ms} ms"


def rule_of(merging: object) -> Merging | None:
    """The rule of merging of that name, if one is given, or a UsageError that names those that there are."""
    if merging is None:
        return None
    try:
        return Merging(merging)
    except ValueError:
        names = " or ".join(repr(each.value) for each in Merging)
        raise UsageError(f"merging is {names}, not {shown(merging)}") from None


def check_merging(name: str, found: Merging, asked: Merging | None) -> None:
    """A UsageError if a collection is merged by another rule than was asked for, if one was."""
    if asked not in (None, found):
        kept = f"collection {name} is merged {found.value!r} and stays so"
        raise CollectionExists(name, f"{kept}: leave out merging=, or pass replace=True")


def _difference(known: Schema, asked: Schema) -> str:
    """What of a schema is not as asked for, if anything: nobody asks for ids, or for what older rows hold."""

    def looks(schema: Schema) -> dict[str, Any]:
        columns = {f"column {shown(field.name)}": field.type for field in schema.fields}
        key = schema.key_names if schema.key else ()
        return {**columns, "key": key, "cluster": schema.cluster_names, "arity": schema.arity}

    has, wants = looks(known), looks(asked)
    differ = (what for what in {**has, **wants} if has.get(what) != wants.get(what))
    return next((f"{what}: {shown(has.get(what))}, not {shown(wants.get(what))}" for what in differ), "")

"""What is stored of a view: its text, its inputs by ids of columns, its stages, and what decides its meaning."""

from __future__ import annotations

import hashlib

import msgspec
import pyarrow as pa

from timespine.columnar.schema.schema import Schema
from timespine.errors import CorruptionError, UsageError, VersionError
from timespine.hints import Hint
from timespine.views.engine.accumulators import EXACT, accumulators_of, is_spread
from timespine.views.plan.algebra import Aggregate, PlanNode, nodes_of
from timespine.views.sql.parse import on_own_stack

VERSION = 1
"""The version of definitions that this code writes, and the newest that it reads."""

STAGES_VERSION, EXACT_VERSION, SPREADS_VERSION = 2, 3, 4
"""The version of what stages keep, of those with exact sums of doubles, and of those with exact variances and their
like: others are made again by a rebuild."""

POLICIES = ("auto", "incremental", "incremental_strict", "full")
TIMES = ("refresh", "every")
INCREMENTAL, PROCESS, SPARK = "incremental", "process", "spark"
"""How a view is refreshed: by changes; recomputed in the process; recomputed on Spark."""


class InputColumn(msgspec.Struct, frozen=True, array_like=True):
    """A column of an input, as it was when the view was made."""

    name: str
    id: int
    """The id of the column, which renaming does not change."""
    type: str
    """The text of its type."""


class Input(msgspec.Struct, frozen=True, array_like=True):
    """A collection that a view reads."""

    name: str
    """Its name in the text."""
    id: str
    """The id of the collection."""
    columns: tuple[InputColumn, ...]


class ViewDefinition(msgspec.Struct, frozen=True, tag=False):
    """A view."""

    version: int
    sql: str
    """The text as it was written."""
    inputs: tuple[Input, ...]
    policy: str
    mode: str
    """How it is refreshed: incremental, process or spark."""
    times: str
    """refresh: one time for each refresh; every: all times of changes, so that the view is exact at each."""
    token: str
    """The token of its holds on the inputs."""
    stages: tuple[str, ...] = ()
    """The ids of its stages, in the order of the aggregates in the plan."""
    digest: str = ""
    """The digest of the plan that the stages belong to."""
    reasons: tuple[str, ...] = ()
    """Why it is not incremental."""
    types: tuple[tuple[str, str], ...] = ()
    """The types that Spark gives to expressions that only it computes, by their texts."""

    def encode(self) -> bytes:
        """Encode the definition for the registry."""
        return msgspec.json.encode(self)


_decoder = msgspec.json.Decoder(ViewDefinition)


def decode_definition(data: bytes) -> ViewDefinition:
    """Decode a definition; raise VersionError for one of a newer version, CorruptionError for damage."""
    try:
        version = msgspec.json.decode(data, type=_Versioned).version
        if version > VERSION:
            raise VersionError(f"a view has a definition of version {version}, this is {VERSION}: upgrade to use it")
        found = _decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise CorruptionError(f"the definition of a view does not decode: {error}") from error
    if found.version < 1 or found.policy not in POLICIES or found.mode not in (INCREMENTAL, PROCESS, SPARK):
        raise CorruptionError("the definition of a view has values that no version writes")
    return found


class _Versioned(msgspec.Struct):
    version: int


def digest_of(plan: PlanNode) -> str:
    """Return a digest of a plan: stages belong to the plan that they were made for."""
    aggregates = (node for node in nodes_of(plan) if isinstance(node, Aggregate))
    kept = [each for node in aggregates for each in accumulators_of(node)]
    version = EXACT_VERSION if any(each.kind == EXACT for each in kept) else STAGES_VERSION
    version = SPREADS_VERSION if any(map(is_spread, kept)) else version
    return on_own_stack(lambda: hashlib.sha256(f"{version} {plan!r}".encode()).hexdigest()[:32])


def bound_input(name: str, id: str, schema: Schema) -> Input:
    """Bind the columns of an input by their ids."""
    return Input(name, id, tuple(InputColumn(each.name, each.id, each.type) for each in schema.fields))


def rebound_input(known: Input, schema: Schema) -> Input:
    """Bind an input again: columns that are still there keep the names that the text has for them, with their types."""
    kept = [
        InputColumn(each.name, each.id, schema.by_id(each.id).type) for each in known.columns if schema.has_id(each.id)
    ]
    taken = {each.name.lower() for each in kept}
    ids = {each.id for each in kept}
    new = [each for each in schema.fields if each.id not in ids and each.name.lower() not in taken]
    return Input(known.name, known.id, (*kept, *(InputColumn(each.name, each.id, each.type) for each in new)))


def with_present_types(known: Input, schema: Schema) -> Input:
    """Return an input with the types that its columns have now."""
    return Input(
        known.name,
        known.id,
        tuple(
            InputColumn(each.name, each.id, schema.by_id(each.id).type) if schema.has_id(each.id) else each
            for each in known.columns
        ),
    )


def arrow_schema(bound: Input, types: dict[str, pa.DataType]) -> pa.Schema:
    """Return the columns of an input as the text names them."""
    return pa.schema([(each.name, types[each.name]) for each in bound.columns])


def current_names(bound: Input, schema: Schema, used: set[str]) -> dict[str, str]:
    """Return the present names of the columns of an input that are used, by those in the text.

    Raise a UsageError for a column that was dropped, or has another type since.
    """
    names: dict[str, str] = {}
    for each in bound.columns:
        if each.name not in used:
            continue
        if not schema.has_id(each.id):
            raise UsageError(
                f"column {each.name} of {bound.name} was dropped, and the view reads it: it stays as it is",
                hint=Hint("write-without-column"),
            )
        field = schema.by_id(each.id)
        if field.type != each.type:
            raise UsageError(
                f"column {each.name} of {bound.name} is {field.type} now, and was {each.type} when the view was made",
                hint=Hint("rebuild-types"),
            )
        names[each.name] = field.name
    return names


def dropped_input(view: str, name: str) -> UsageError:
    """Make the error for a view with an input that was dropped by force."""
    return UsageError(
        f"view {view} is no longer refreshed, because its input {name} was dropped",
        hint=Hint("drop-or-write-without"),
    )

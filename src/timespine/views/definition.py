"""What is stored of a view: its text, its inputs by ids of columns, its stages, and what decides its meaning."""

from __future__ import annotations

import hashlib

import msgspec
import pyarrow as pa

from timespine.columnar.schema.schema import Schema
from timespine.errors import CorruptionError, UsageError, VersionError
from timespine.views.plan.algebra import Plan

VERSION = 1
"""The version of definitions that this code writes, and the newest that it reads."""

POLICIES = ("auto", "incremental", "full")
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
    """refresh: one time for each refresh."""
    token: str
    """The token of its holds on the inputs."""
    stages: tuple[str, ...] = ()
    """The ids of its stages, in the order of the aggregates in the plan."""
    digest: str = ""
    """The digest of the plan that the stages belong to."""
    reasons: tuple[str, ...] = ()
    """Why it is not incremental."""

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


def digest_of(plan: Plan) -> str:
    """Return a digest of a plan: stages belong to the plan that they were made for."""
    return hashlib.sha256(repr(plan).encode()).hexdigest()[:32]


def bound_input(name: str, id: str, schema: Schema) -> Input:
    """Bind the columns of an input by their ids."""
    return Input(name, id, tuple(InputColumn(each.name, each.id, each.type) for each in schema.fields))


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
            raise UsageError(f"column {each.name} of {bound.name} was dropped, and the view reads it: drop the view")
        field = schema.by_id(each.id)
        if field.type != each.type:
            raise UsageError(
                f"column {each.name} of {bound.name} is {field.type} now, and was {each.type} when the view was made: "
                "drop the view and create it again"
            )
        names[each.name] = field.name
    return names

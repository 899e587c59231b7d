"""Schemas: the columns of the rows of a collection, and their evolution.

A column is its *id*, for ever; name, type and place may change.
So a column that was dropped and added again under the same name is another
column, a renamed one is the same, and rows that were written under an old
schema are converted to a new one by ids alone (`project_rows`). Ids are never
used twice. The state of a collection keeps every schema it ever had.

An update table has the columns of the user, then one column per coordinate of
the time, then the diff; their names are reserved, in any case.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any

import msgspec
import pyarrow as pa

from timespine.columnar.cached_property import cached_property
from timespine.columnar.schema import defaults
from timespine.columnar.schema.column_names import check_column_name
from timespine.columnar.schema.defaults import Default
from timespine.columnar.schema.types import TypeLike, can_widen, is_nested, parse_type, stored_type, type_name
from timespine.core.transitions.lifecycle import SCHEMA_BYTES_MAX
from timespine.errors import CorruptionError, UnsupportedType, UsageError, short_repr
from timespine.model.time import check_arity

TIME = "_time"
"""The column of the time; with more than one coordinate `_time_0`, `_time_1`, ..."""

DIFF = "_diff"
"""The column of the diff."""

COLUMNS_MAX = 4096
"""The most columns of one schema, which bounds every loop over them."""

SYSTEM_IDS = 1 << 30
"""Ids from here on are not the user's: the diff has this one, the coordinates of the time the next ones."""

_RESERVED = {TIME, DIFF, "_change_type", "_commit_version", "_commit_timestamp"}
_RESERVED_TIME = re.compile(r"_time_[0-9]+")

FieldId = Annotated[int, msgspec.Meta(ge=1, le=SYSTEM_IDS)]


def is_reserved(name: str) -> bool:
    """Return whether a name is reserved: a column of updates or of change feeds, in any case."""
    lowered = name.lower()
    return lowered in _RESERVED or _RESERVED_TIME.fullmatch(lowered) is not None


@lru_cache(maxsize=16)
def time_names(arity: int) -> tuple[str, ...]:
    """Return the columns of the time, one per coordinate."""
    return (TIME,) if check_arity(arity) == 1 else tuple(f"{TIME}_{i}" for i in range(arity))


class Field(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One column. Always valid, since its constructor checks it."""

    id: FieldId
    """The identity of the column."""
    name: str
    """Its current name."""
    type: str
    """The canonical text of its type."""
    default: Default = None
    """The value in rows without the column, in its stored form (see `defaults`); None is null."""

    def __post_init__(self) -> None:
        if type(self.id) is not int or not 1 <= self.id < SYSTEM_IDS:
            raise UsageError(f"{short_repr(self.id)} is not an id of a column: an integer from 1 to 2^30 - 1")
        check_column_name(self.name, "column")
        if is_reserved(self.name):
            raise UsageError(f"the name {short_repr(self.name)} is reserved: use another one for the column")
        if type(self.type) is not str or type_name(stored_type(self.type)) != self.type:
            raise UsageError(f"{short_repr(self.type)} is not the canonical text of a type")
        defaults.check_stored(self.default, self.arrow_type)

    @property
    def arrow_type(self) -> pa.DataType:
        """Return the Arrow type of its values."""
        return stored_type(self.type)

    def default_scalar(self) -> pa.Scalar:
        """Return the default as an Arrow scalar."""
        return defaults.to_scalar(self.default, self.arrow_type)


class Schema(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """The columns of a collection. Always valid, since its constructor checks it.

    Each object computes derived values once; `decode` gives the same object for the same bytes.
    """

    fields: tuple[Field, ...]
    """The columns, in the order of display."""
    key: tuple[int, ...]
    """Ids of the key columns; empty: the key is all columns."""
    cluster: tuple[int, ...]
    """Ids of the columns that rows are sorted by first."""
    arity: int
    """Coordinates per time."""
    next_id: FieldId
    """The id of the next column, above all ids that were ever used."""

    def __post_init__(self) -> None:
        check_arity(self.arity)
        if type(self.fields) is not tuple or not all(type(field) is Field for field in self.fields):
            raise UsageError("the columns of a schema must be a tuple of fields")
        if not 1 <= len(self.fields) <= COLUMNS_MAX:
            raise UsageError(f"a schema of {len(self.fields)} columns: it must have 1 to {COLUMNS_MAX}")
        spellings: dict[str, str] = {}
        for field in self.fields:
            other = spellings.get(field.name.lower())
            if other is not None:
                raise UsageError(
                    f"columns {short_repr(other)} and {short_repr(field.name)} have one name: rename one of them"
                )
            spellings[field.name.lower()] = field.name
        ids = {field.id: field for field in self.fields}
        if len(ids) < len(self.fields):
            raise UsageError("two columns of a schema have the same id")
        if type(self.next_id) is not int or not max(ids) < self.next_id <= SYSTEM_IDS:
            raise UsageError(f"{short_repr(self.next_id)} is not the next id after {max(ids)}")
        for what, chosen in (("key", self.key), ("cluster", self.cluster)):
            if type(chosen) is not tuple or not all(type(each) is int and each in ids for each in chosen):
                raise UsageError(f"the {what} {short_repr(chosen)} names columns that are not there")
            if len(set(chosen)) < len(chosen):
                raise UsageError(f"the {what} {short_repr(chosen)} names a column twice")
            for each in chosen:
                if is_nested(ids[each].arrow_type):
                    raise UsageError(f"column {short_repr(ids[each].name)} is nested and cannot be in the {what}")

    @cached_property
    def _names(self) -> dict[str, Field]:
        return {field.name: field for field in self.fields}

    @cached_property
    def _ids(self) -> dict[int, Field]:
        return {field.id: field for field in self.fields}

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the names of the user's columns."""
        return tuple(self._names)

    @cached_property
    def key_ids(self) -> tuple[int, ...]:
        """The columns that identify a row: all of them if no key was given."""
        return self.key or tuple(self._ids)

    @cached_property
    def key_names(self) -> tuple[str, ...]:
        """The columns that identify a row: all of them if no key was given."""
        return tuple(self._ids[each].name for each in self.key_ids)

    @cached_property
    def value_names(self) -> tuple[str, ...]:
        """Return the columns outside of the key."""
        key = set(self.key_ids)
        return tuple(field.name for field in self.fields if field.id not in key)

    @cached_property
    def cluster_names(self) -> tuple[str, ...]:
        """The columns that rows are sorted by first."""
        return tuple(self._ids[each].name for each in self.cluster)

    @cached_property
    def order_ids(self) -> tuple[int, ...]:
        """The columns in the order in which rows are sorted by them: cluster, key, then the others."""
        return tuple(dict.fromkeys((*self.cluster, *self.key_ids, *self._ids)))

    @cached_property
    def cut_ids(self) -> tuple[int, ...]:
        """Return the leading columns of the order by which ranges of rows are cut: cluster and key.

        A cut never separates rows of one key. Without a key these are all columns.
        """
        return self.order_ids[: len({*self.cluster, *self.key_ids})]

    @cached_property
    def order_names(self) -> tuple[str, ...]:
        """The columns in the order in which rows are sorted by them: cluster, key, then the others."""
        return tuple(self._ids[each].name for each in self.order_ids)

    @cached_property
    def time_names(self) -> tuple[str, ...]:
        """The columns of the time, one per coordinate."""
        return time_names(self.arity)

    @cached_property
    def system_names(self) -> tuple[str, ...]:
        """Return the columns of an update table after the user's: times, then diff."""
        return (*self.time_names, DIFF)

    @cached_property
    def types(self) -> dict[str, pa.DataType]:
        """Return the types of the user's columns by name. Callers must not change it."""
        return {field.name: field.arrow_type for field in self.fields}

    @cached_property
    def arrow(self) -> pa.Schema:
        """Return the user's columns as an Arrow schema: all may be null."""
        return pa.schema([pa.field(field.name, field.arrow_type) for field in self.fields])

    @cached_property
    def update_arrow(self) -> pa.Schema:
        """Return the columns of an update table, each with its Parquet field id.

        The ids of the times come after that of the diff, so that no id depends on the arity.
        """
        columns = [_with_field_id(pa.field(field.name, field.arrow_type), field.id) for field in self.fields]
        for i, name in enumerate(self.time_names):
            columns.append(_with_field_id(pa.field(name, pa.int64(), nullable=False), SYSTEM_IDS + 1 + i))
        columns.append(_with_field_id(pa.field(DIFF, pa.int64(), nullable=False), SYSTEM_IDS))
        return pa.schema(columns)

    def field(self, name: str) -> Field:
        """Return the column of that name; raise a UsageError if there is none."""
        found = self._names.get(name)
        if found is None:
            raise UsageError(f"there is no column {short_repr(name)}; there are {shown_names(self.names)}")
        return found

    def by_id(self, id: int) -> Field:
        """Return the column of that id; raise a UsageError if there is none."""
        found = self._ids.get(id)
        if found is None:
            raise UsageError(f"there is no column of id {short_repr(id)}")
        return found

    def has_id(self, id: int) -> bool:
        """Return whether there is a column of that id."""
        return id in self._ids

    def add(self, name: str, type: TypeLike, default: object = None) -> Schema:
        """Add a column at the end. Rows that were written without it have the default."""
        if self.next_id >= SYSTEM_IDS:
            raise UsageError("this collection has used up the ids of columns: create a new one")
        parsed = parse_type(type)
        added = Field(self.next_id, name, type_name(parsed), defaults.from_python(default, parsed))
        return msgspec.structs.replace(self, fields=(*self.fields, added), next_id=self.next_id + 1)

    def drop(self, name: str) -> Schema:
        """Drop a column. Its values stay in storage, but no read gives them."""
        dropped = self.field(name)
        if dropped.id in self.key or dropped.id in self.cluster:
            what = "key" if dropped.id in self.key else "cluster"
            raise UsageError(
                f"column {short_repr(name)} is in the {what} and cannot be dropped: create a new collection"
            )
        if len(self.fields) == 1:
            raise UsageError(f"column {short_repr(name)} is the only one and cannot be dropped: add another one first")
        return msgspec.structs.replace(self, fields=tuple(field for field in self.fields if field is not dropped))

    def rename(self, old: str, new: str) -> Schema:
        """Rename a column."""
        return self._with(msgspec.structs.replace(self.field(old), name=new))

    def widen(self, name: str, type: TypeLike) -> Schema:
        """Widen the type of a column: every value stays the same and keeps its place in the order."""
        field, parsed = self.field(name), parse_type(type)
        if not can_widen(field.arrow_type, parsed):
            raise UsageError(
                f"column {short_repr(name)} cannot go from {field.type} to {type_name(parsed)}: only to a type that "
                "holds all its values; add a new column instead"
            )
        default = defaults.widen_default(field.default, parsed)
        return self._with(Field(field.id, field.name, type_name(parsed), default))

    def encode(self) -> bytes:
        """Encode the schema for the state."""
        data = _encoder.encode(self)
        if len(data) > SCHEMA_BYTES_MAX:
            raise UsageError(f"a schema of {len(data)} bytes is over the limit of {SCHEMA_BYTES_MAX}")
        return data

    @staticmethod
    def decode(data: bytes) -> Schema:
        """Decode stored bytes with every check; raise a CorruptionError if they are no schema."""
        if type(data) is not bytes:
            raise UsageError(f"{type(data).__name__} is not bytes to decode")
        return decode_schema(data)

    def _with(self, changed: Field) -> Schema:
        fields = tuple(changed if field.id == changed.id else field for field in self.fields)
        return msgspec.structs.replace(self, fields=fields)


ColumnTypes = Mapping[str, TypeLike]


def define(key: ColumnTypes | None, value: ColumnTypes | None, cluster: Sequence[str] = (), arity: int = 1) -> Schema:
    """Make a new schema: key columns, then value columns. Without a key, all columns together are the key."""
    for what, columns in (("key", key), ("value", value)):
        if columns is not None and not isinstance(columns, Mapping):
            raise UsageError(f"{what} must map names to types, such as {{'id': 'int64'}}, not {short_repr(columns)}")
    pairs = [*(key or {}).items(), *(value or {}).items()]
    return _schema(pairs, tuple(key or ()), cluster, arity)


def infer(table: pa.Schema, key: Sequence[str] = (), *, cluster: Sequence[str] = (), arity: int = 1) -> Schema:
    """Infer the schema of Arrow data, without the columns of times and diffs."""
    if not isinstance(table, pa.Schema):
        raise UsageError(f"{type(table).__name__} is not an Arrow schema: give `table.schema`")
    system = (*time_names(arity), DIFF)
    return _schema([(field.name, field.type) for field in table if field.name not in system], key, cluster, arity)


def shown_names(names: Sequence[str]) -> str:
    """List some names for a message."""
    some = ", ".join(short_repr(name) for name in names[:8])
    return some if len(names) <= 8 else f"{some} and {len(names) - 8} more"


def _schema(pairs: Sequence[tuple[str, TypeLike]], key: Sequence[str], cluster: Sequence[str], arity: int) -> Schema:
    fields = []
    for number, (name, given) in enumerate(pairs, 1):
        try:
            fields.append(Field(number, name, type_name(parse_type(given))))
        except UnsupportedType as error:
            raise UnsupportedType(f"column {short_repr(name)}: {error}") from None
        except UsageError as error:
            raise UsageError(f"column {short_repr(name)}: {error}") from None
    ids = {field.name: field.id for field in fields}
    return Schema(
        tuple(fields),
        _ids_of_names("key", key, ids),
        _ids_of_names("cluster", cluster, ids),
        arity,
        next_id=len(fields) + 1,
    )


def _ids_of_names(what: str, names: Sequence[str], ids: dict[str, int]) -> tuple[int, ...]:
    """Return the ids of the columns that a caller named."""
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise UsageError(f"{what} must be a list of names of columns, not {short_repr(names)}")
    for name in names:
        if not isinstance(name, str) or name not in ids:
            raise UsageError(f"the {what} names {short_repr(name)}; there are {shown_names(tuple(ids))}")
    return tuple(ids[name] for name in names)


def _with_field_id(field: pa.Field, number: int) -> pa.Field:
    return field.with_metadata({b"PARQUET:field_id": str(number).encode()})


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Schema)


@lru_cache(maxsize=4096)
def decode_schema(data: bytes) -> Schema:
    """Decode a schema of a state, once per process; raise a CorruptionError if it is none."""
    if len(data) > SCHEMA_BYTES_MAX:
        raise CorruptionError(f"a stored schema has {len(data)} bytes, more than {SCHEMA_BYTES_MAX}")
    try:
        decoded: Schema = _decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise CorruptionError(f"a stored schema does not make sense: {error}") from error
    return decoded


def schemas_by_id(stored: Mapping[int, bytes], collection: str) -> Callable[[int], Schema]:
    """Return the function that gives a stored schema of a collection; it raises a CorruptionError for other ids."""

    def schema_of(id: int) -> Schema:
        data = stored.get(id)
        if data is None:
            raise CorruptionError(f"a run of {collection} was written with schema {id}, which is not known")
        return decode_schema(data)

    return schema_of

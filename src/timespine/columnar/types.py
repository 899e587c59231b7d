"""The types that a column may have: a closed list, each with one text and one Arrow type.

    bool  int8 int16 int32 int64  uint8 uint16 uint32 uint64
    float32 (float)  float64 (double)  decimal(p,s)
    string  binary  date  timestamp  timestamp[Europe/Berlin]
    list<T>  struct<a:T,"any name":T>

The list is closed because every row must have one order, one equality and one
Parquet form in every engine. Arrow has several types for the same values
(string, large_string, string_view, dictionary); here they are one. The text is
what the state stores, so it must mean the same on every machine: reading it
back asks no time zone database and no Unicode table.

Timestamps are microseconds; without a zone they are wall-clock times, with one
they are instants. Every value, also inside of nested ones, may be null.
"""

from __future__ import annotations

import difflib
import functools
import re

import polars as pl
import pyarrow as pa

from timespine.errors import UsageError, shown

NAME_BYTES_MAX = 255
"""UTF-8 bytes in the name of a column or of a field of a struct."""

TYPE_TEXT_MAX = 16_384
"""Characters in the text of one type: a bound for whoever parses one."""

TYPE_DEPTH_MAX = 16
"""Types inside of types, at most: a bound on every recursion over a type."""

DECIMAL_DIGITS_MAX = 38
"""Digits that 128 bits hold."""

_PLAIN: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
}
_PLAIN_NAMES = {given: name for name, given in _PLAIN.items()}
_ALIASES = {"float": "float32", "double": "float64"}

_INSTEAD = {
    "int": "int64",
    "integer": "int64",
    "long": "int64",
    "bigint": "int64",
    "smallint": "int16",
    "tinyint": "int8",
    "boolean": "bool",
    "real": "float32",
    "float16": "float32",
    "halffloat": "float32",
    "str": "string",
    "text": "string",
    "varchar": "string",
    "utf8": "string",
    "json": "string",
    "uuid": "string or binary",
    "bytes": "binary",
    "blob": "binary",
    "datetime": "timestamp or timestamp[UTC]",
    "timestamptz": "timestamp[UTC]",
    "time": "int64 (microseconds of the day)",
    "duration": "int64 (microseconds)",
    "interval": "int64 (microseconds)",
    "decimal": "decimal(p,s) such as decimal(18,2)",
    "numeric": "decimal(p,s) such as decimal(18,2)",
    "list": "list<T> such as list<int64>",
    "array": "list<T> such as list<int64>",
    "struct": "struct<a:T,b:T>",
    "map": "list<struct<key:K,value:V>>",
    "run_end_encoded": "the type of its values",
}
"""What people write, and what they mean by it."""

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_QUOTED = re.compile(r'"((?:[^"]|"")*)"')
_NUMBERS = re.compile(r"\(\s*([0-9]{1,9})\s*,\s*([0-9]{1,9})\s*\)")
_ARROW_TIMESTAMP = re.compile(r"\s*(?:s|ms|us|ns)\s*(?:,\s*tz=([^\],]+))?\s*")
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+/-]{0,63}")
_UTC = {"utc", "z", "+00:00", "-00:00", "+0000"}


def check_name(name: object, what: str) -> str:
    """The name itself if it can be one of a column or of a field of a struct, or a UsageError."""
    if type(name) is not str or not name:
        raise UsageError(f"{shown(name)} cannot be the name of a {what}: a text that is not empty is needed")
    if any(letter < " " or letter == "\x7f" for letter in name):
        raise UsageError(f"{shown(name)} cannot be the name of a {what}: leave out the control characters")
    if name == "*" or (name.startswith("^") and name.endswith("$")):
        raise UsageError(f"{shown(name)} cannot be the name of a {what}: Polars takes it for a pattern")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise UsageError(f"{shown(name)} cannot be the name of a {what}: it is not valid Unicode") from None
    if size > NAME_BYTES_MAX:
        raise UsageError(f"{shown(name)} cannot be the name of a {what}: over {NAME_BYTES_MAX} bytes")
    return name


def parse_type(given: str | pa.DataType) -> pa.DataType:
    """The one Arrow type that stands for what a caller gave, or a UsageError that says what to use instead."""
    if isinstance(given, str):
        parsed = stored_type(given)
    elif isinstance(given, pa.DataType):
        parsed = _normal(given, 1)
    else:
        raise UsageError(f"{shown(given)} is not a type: give its name, such as 'int64', or an Arrow type")
    _check_zones(parsed)
    return parsed


@functools.lru_cache(maxsize=4096)
def stored_type(text: str) -> pa.DataType:
    """The type that a text means, whatever zones this machine knows.

    SUBTLE: what was stored on one machine must decode on every other one, so
    only `parse_type`, which takes the caller's types, looks zones up. Caught by
    test_a_stored_zone_is_not_looked_up.
    """
    if len(text) > TYPE_TEXT_MAX:
        raise UsageError(f"a type of {len(text)} characters is over the limit of {TYPE_TEXT_MAX}")
    return _Parser(text).whole()


def type_name(given: pa.DataType) -> str:
    """The text of a type: `parse_type(type_name(t)) == t` for every type that `parse_type` gives."""
    return _text(_normal(given, 1))


def is_nested(given: pa.DataType) -> bool:
    """Whether values of the type have values inside of them."""
    return bool(pa.types.is_list(given) or pa.types.is_struct(given))


@functools.lru_cache(maxsize=4096)
def holds_floats(given: pa.DataType) -> bool:
    """Whether there are floats in a type of the closed list, on the outside or inside."""
    if pa.types.is_floating(given):
        return True
    return is_nested(given) and any(holds_floats(given.field(i).type) for i in range(given.num_fields))


def can_widen(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether every value of `old` is one of `new`, and their order stays the same.

    The second half matters as much: runs that were sorted as `old` are read as `new` without sorting again.
    """
    if old == new:
        return True
    types = pa.types
    if types.is_integer(old):
        if types.is_float64(new):
            return bool(old.bit_width <= 32)
        if not types.is_integer(new) or (types.is_signed_integer(old) and types.is_unsigned_integer(new)):
            return False
        return bool(old.bit_width < new.bit_width)
    if types.is_decimal128(old) and types.is_decimal128(new):
        return bool(old.scale == new.scale and old.precision <= new.precision)
    return bool(types.is_float32(old) and types.is_float64(new))


def is_list_like(given: pa.DataType) -> bool:
    """Whether it is one of the Arrow types whose values are lists."""
    return bool(
        pa.types.is_list(given)
        or pa.types.is_large_list(given)
        or pa.types.is_fixed_size_list(given)
        or pa.types.is_list_view(given)
        or pa.types.is_large_list_view(given)
    )


def is_string_like(given: pa.DataType) -> bool:
    """Whether it is one of the Arrow types whose values are texts."""
    return bool(pa.types.is_string(given) or pa.types.is_large_string(given) or pa.types.is_string_view(given))


def is_binary_like(given: pa.DataType) -> bool:
    """Whether it is one of the Arrow types whose values are bytes."""
    return bool(
        pa.types.is_binary(given)
        or pa.types.is_large_binary(given)
        or pa.types.is_binary_view(given)
        or pa.types.is_fixed_size_binary(given)
    )


def _normal(given: pa.DataType, depth: int) -> pa.DataType:
    """The type of the closed list that has the same values."""
    _check_depth(depth)
    types = pa.types
    if given in _PLAIN_NAMES:
        return given
    if types.is_dictionary(given):
        return _normal(given.value_type, depth)
    if is_string_like(given):
        return pa.string()
    if is_binary_like(given):
        return pa.binary()
    if types.is_date(given):
        return pa.date32()
    if types.is_timestamp(given):
        return pa.timestamp("us", given.tz and _zone(given.tz))
    if types.is_decimal(given):
        return _decimal(given.precision, given.scale)
    if is_list_like(given):
        return pa.list_(_normal(given.value_type, depth + 1))
    if types.is_struct(given):
        return _struct([(field.name, _normal(field.type, depth + 1)) for field in given])
    if types.is_null(given):
        raise UsageError("a column of type null says nothing about its values: give it a type")
    if isinstance(given, pa.BaseExtensionType):
        raise UsageError(f"{shown(str(given))} is an extension type: cast it to its storage type first")
    raise _unknown(str(given))


def _text(given: pa.DataType) -> str:
    plain = _PLAIN_NAMES.get(given)
    if plain is not None:
        return plain
    if pa.types.is_timestamp(given):
        return f"timestamp[{given.tz}]"
    if pa.types.is_decimal(given):
        return f"decimal({given.precision},{given.scale})"
    if pa.types.is_list(given):
        return f"list<{_text(given.value_type)}>"
    return f"struct<{','.join(f'{_quoted(field.name)}:{_text(field.type)}' for field in given)}>"


def _quoted(name: str) -> str:
    # ASCII on purpose: which other letters are letters changes with the Unicode table of the interpreter.
    return name if _WORD.fullmatch(name) else '"' + name.replace('"', '""') + '"'


def _zone(zone: str) -> str:
    if zone.lower() in _UTC:
        return "UTC"
    if not _ZONE.fullmatch(zone):
        raise UsageError(f"{shown(zone)} is not the name of a time zone: use one such as UTC or Europe/Berlin")
    return zone


def _check_zones(given: pa.DataType) -> None:
    """Refuse a zone that nobody could read back, while the caller can still correct it."""
    if pa.types.is_timestamp(given):
        if given.tz is not None and not _is_known_zone(given.tz):
            raise UsageError(f"{shown(given.tz)} is not a known time zone: use one such as UTC or Europe/Berlin")
    elif is_nested(given):
        for i in range(given.num_fields):
            _check_zones(given.field(i).type)


@functools.lru_cache(maxsize=1024)
def _is_known_zone(zone: str) -> bool:
    # Polars brings its own table of zones, and sorts our rows: what it does not know is of no use.
    try:
        pl.Series([], dtype=pl.Int64).cast(pl.Datetime("us", zone))
    except pl.exceptions.ComputeError:
        return False
    return True


def _decimal(precision: int, scale: int) -> pa.DataType:
    if not 1 <= precision <= DECIMAL_DIGITS_MAX or not 0 <= scale <= precision:
        raise UsageError(f"decimal({precision},{scale}) cannot be stored: use 1 to 38 digits, 0 to all of them decimal")
    return pa.decimal128(precision, scale)


def _struct(fields: list[tuple[str, pa.DataType]]) -> pa.DataType:
    if not fields:
        raise UsageError("a struct without fields cannot be stored: leave the column out")
    seen = {check_name(name, "field of a struct").lower() for name, _ in fields}
    if len(seen) < len(fields):
        raise UsageError("two fields of a struct differ in nothing but upper and lower case: rename one")
    return pa.struct(fields)


def _check_depth(depth: int) -> None:
    if depth > TYPE_DEPTH_MAX:
        raise UsageError(f"a type may have at most {TYPE_DEPTH_MAX} types inside of each other")


def _unknown(text: str) -> UsageError:
    word = _WORD.match(text.strip())
    name = word.group().lower() if word else ""
    close = difflib.get_close_matches(name, [*_PLAIN, *_ALIASES], n=1)
    instead = _INSTEAD.get(name) or (name if name in _PLAIN or name in _ALIASES else next(iter(close), None))
    for known in ("time", "interval"):  # as Arrow spells them: time64[us], month_day_nano_interval
        if instead is None and known in name:
            instead = _INSTEAD[known]
    hint = f"use {instead}" if instead else f"use one of {', '.join(_PLAIN)}, decimal(p,s), list<T>, struct<a:T>"
    return UsageError(f"{shown(text)} is not a type of a column: {hint}")


class _Parser:
    """Reads one type from a text, front to back."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def whole(self) -> pa.DataType:
        """The type, if the text is one and nothing else."""
        parsed = self._type(1)
        self._space()
        if self.at < len(self.text):
            raise _unknown(self.text)
        return parsed

    def _type(self, depth: int) -> pa.DataType:
        _check_depth(depth)
        self._space()
        name = self._match(_WORD).group()
        name = _ALIASES.get(name, name)
        if name == "decimal":
            numbers = self._match(_NUMBERS)
            return _decimal(int(numbers[1]), int(numbers[2]))
        if name == "timestamp" and self._taken("["):
            end = self.text.find("]", self.at)
            if end < 0:
                raise _unknown(self.text)
            zone, self.at = self.text[self.at : end], end + 1
            arrow = _ARROW_TIMESTAMP.fullmatch(zone)  # as Arrow prints it: the unit, and perhaps a zone
            if arrow is not None:
                return pa.timestamp("us", arrow[1] and _zone(arrow[1]))
            return pa.timestamp("us", _zone(zone.strip()))
        if name == "list" and self._taken("<"):
            inside = self._type(depth + 1)
            self._expect(">")
            return pa.list_(inside)
        if name == "struct" and self._taken("<"):
            return self._fields(depth)
        if name not in _PLAIN:
            raise _unknown(name)
        return _PLAIN[name]

    def _fields(self, depth: int) -> pa.DataType:
        fields: list[tuple[str, pa.DataType]] = []
        while not fields or self._taken(","):
            self._space()
            quoted = _QUOTED.match(self.text, self.at)
            if quoted:
                self.at, name = quoted.end(), quoted[1].replace('""', '"')
            else:
                name = self._match(_WORD).group()
            self._expect(":")
            fields.append((name, self._type(depth + 1)))
        self._expect(">")
        return _struct(fields)

    def _space(self) -> None:
        while self.text.startswith(" ", self.at):
            self.at += 1

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        found = pattern.match(self.text, self.at)
        if found is None:
            raise _unknown(self.text)
        self.at = found.end()
        return found

    def _taken(self, sign: str) -> bool:
        self._space()
        taken = self.text.startswith(sign, self.at)
        self.at += taken
        return taken

    def _expect(self, sign: str) -> None:
        if not self._taken(sign):
            raise _unknown(self.text)

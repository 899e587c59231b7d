"""Parse the text of a type, and the text of a whole schema ("id bigint, name string").

Every name of a type stands in one table, `NAMES`: ours, those of Spark SQL, and those of Arrow.
Case is ignored. Some names differ between systems; here they mean:

    int, integer   32 bits, as in Spark SQL         (the Python type `int`: 64 bits)
    float, real    32 bits, as in Spark and Arrow   (the Python type `float`: 64 bits)
    timestamp      a wall-clock time, as in Arrow; in the text of a whole schema an instant, as in Spark SQL
    timestamp_ntz  a wall-clock time
    timestamp_ltz  an instant

The text that a state stores is one of these too: `types.type_name` gives it.
"""

from __future__ import annotations

import datetime
import decimal
import difflib
import re

import pyarrow as pa

from timespine.columnar.schema.column_names import check_column_name
from timespine.errors import UsageError, short_repr

TYPE_TEXT_MAX = 16_384
"""The most characters in the text of one type, which bounds the work of the parser."""

TYPE_DEPTH_MAX = 16
"""The largest depth of types inside of types, which bounds every recursion over a type."""

DECIMAL_DIGITS_MAX = 38
"""The digits that 128 bits hold."""

PLAIN: dict[str, pa.DataType] = {
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
"""The types that need nothing but a name, by the name that a state stores."""

_INSTANT = pa.timestamp("us", "UTC")

NAMES: dict[str, pa.DataType] = {
    **PLAIN,
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "str": pa.string(),
    "varchar": pa.string(),
    "text": pa.string(),
    "utf8": pa.string(),
    "large_utf8": pa.string(),
    "large_string": pa.string(),
    "string_view": pa.string(),
    "bytes": pa.binary(),
    "large_binary": pa.binary(),
    "binary_view": pa.binary(),
    "date32": pa.date32(),
    "date64": pa.date32(),
    "timestamp_ntz": pa.timestamp("us"),
    "timestamp_ltz": _INSTANT,
    "timestamptz": _INSTANT,
}
"""Every name of a type that needs nothing but a name."""

PYTHON_TYPES: dict[object, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    datetime.date: pa.date32(),
    datetime.datetime: pa.timestamp("us"),
    decimal.Decimal: pa.decimal128(38, 18),
}
"""The types for Python types: the widest numbers, times without a zone, and decimals as in Spark."""

_DECIMALS = ("decimal", "numeric", "dec", "decimal128")
_LISTS = ("list", "array", "large_list")

WORKS = f"{', '.join(NAMES)}, timestamp[ZONE], decimal(p,s), list<T>, array<T>, struct<a:T>"
"""All names, for a message."""

_INSTEAD = {
    "float16": "float32",
    "halffloat": "float32",
    "json": "string",
    "uuid": "string or binary",
    "blob": "binary",
    "char": "string: the length of a text is not checked",
    "varchar": "string: the length of a text is not checked",
    "datetime": "timestamp or timestamp[UTC]",
    "time": "int64 (microseconds of the day)",
    "duration": "int64 (microseconds)",
    "interval": "int64 (microseconds)",
    "decimal": "decimal(p,s) such as decimal(18,2)",
    "numeric": "decimal(p,s) such as decimal(18,2)",
    "dec": "decimal(p,s) such as decimal(18,2)",
    "list": "list<T> such as list<int64>",
    "array": "array<T> such as array<bigint>",
    "struct": "struct<a:T,b:T>",
    "map": "list<struct<key:K,value:V>>",
    "run_end_encoded": "the type of its values",
}
"""The replacements for common names that are no types, or incomplete ones."""

WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_QUOTED = re.compile(r'"((?:[^"]|"")*)"|`((?:[^`]|``)*)`')
_NUMBERS = re.compile(r"\s*\(\s*([0-9]{1,9})\s*(?:,\s*([0-9]{1,9})\s*)?\)")
_ARROW_TIMESTAMP = re.compile(r"\s*(?:s|ms|us|ns)\s*(?:,\s*tz=([^\],]+))?\s*")
_ARROW_DATE = re.compile(r"\[(?:day|ms)\]")
_ARROW_ITEM = re.compile(r"\s*(?:item|element)\s*:")
_NOT_NULL = re.compile(r"\s+not\s+null\b", re.IGNORECASE)
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+/-]{0,63}")
_UTC = {"utc", "z", "+00:00", "-00:00", "+0000"}


def parse_text(text: str) -> pa.DataType:
    """Parse the text of a type, without a check of its time zones."""
    _check_length(text)
    return _Parser(text).whole()


def parse_columns(text: str) -> list[tuple[str, pa.DataType]]:
    """Parse the columns of a schema of Spark SQL: "id bigint, name string", or "struct<id:bigint,...>".

    `NOT NULL` is ignored: every column of a collection may be null. A `timestamp` is an instant, as in Spark SQL,
    so that a collection made by the text of a DataFrame's schema takes the rows of that DataFrame.
    """
    _check_length(text)
    return _Parser(text, is_sql=True).columns()


def decimal_of(precision: int, scale: int) -> pa.DataType:
    """Return the decimal with this number of digits; raise a UsageError if it is out of range."""
    if not 1 <= precision <= DECIMAL_DIGITS_MAX or not 0 <= scale <= precision:
        raise UsageError(f"decimal({precision},{scale}) cannot be stored: use 1 to 38 digits, 0 to all of them decimal")
    return pa.decimal128(precision, scale)


def struct_of(fields: list[tuple[str, pa.DataType]]) -> pa.DataType:
    """Return the struct of these fields; raise a UsageError if they are not valid."""
    if not fields:
        raise UsageError("a struct without fields cannot be stored: leave the column out")
    seen = {check_column_name(name, "field of a struct").lower() for name, _ in fields}
    if len(seen) < len(fields):
        raise UsageError("two fields of a struct differ in nothing but upper and lower case: rename one")
    return pa.struct(fields)


def zone_of(zone: str) -> str:
    """Return the canonical name of a time zone; raise a UsageError if it is none."""
    if zone.lower() in _UTC:
        return "UTC"
    if not _ZONE.fullmatch(zone):
        raise UsageError(f"{short_repr(zone)} is not the name of a time zone: use one such as UTC or Europe/Berlin")
    return zone


def check_depth(depth: int) -> None:
    """Refuse a type that is nested too deeply."""
    if depth > TYPE_DEPTH_MAX:
        raise UsageError(f"a type may have at most {TYPE_DEPTH_MAX} types inside of each other")


def unknown_type(text: str) -> UsageError:
    """Make the error for a text that is no type, with a replacement or all names."""
    word = WORD.match(text.strip())
    name = word.group().lower() if word else ""
    close = difflib.get_close_matches(name, NAMES, n=1)
    instead = _INSTEAD.get(name) or (name if name in NAMES else next(iter(close), None))
    for known in ("time", "interval"):  # as Arrow spells them: time64[us], month_day_nano_interval
        if name not in _INSTEAD and name not in NAMES and known in name:
            instead = _INSTEAD[known]
    hint = f"use {instead}; " if instead else ""
    return UsageError(f"{short_repr(text)} is not a type of a column: {hint}these work: {WORKS}")


def _check_length(text: str) -> None:
    if len(text) > TYPE_TEXT_MAX:
        raise UsageError(f"a type of {len(text)} characters is over the limit of {TYPE_TEXT_MAX}")


class _Parser:
    """A parser of one type, or of the columns of a schema."""

    def __init__(self, text: str, *, is_sql: bool = False) -> None:
        self.text = text
        self.at = 0
        self._timestamp = _INSTANT if is_sql else PLAIN["timestamp"]

    def whole(self) -> pa.DataType:
        """Read the type, if the text is one and nothing else."""
        parsed = self._type(1)
        self._end()
        return parsed

    def columns(self) -> list[tuple[str, pa.DataType]]:
        """Read the columns of a schema, if the text is one and nothing else."""
        if re.match(r"\s*struct\s*<", self.text, re.IGNORECASE):
            return [(field.name, field.type) for field in self.whole()]
        columns = self._fields(0)
        self._end()
        return columns

    def _end(self) -> None:
        self._space()
        if self.at < len(self.text):
            raise unknown_type(self.text)

    def _type(self, depth: int) -> pa.DataType:
        check_depth(depth)
        self._space()
        word = self._match(WORD).group()
        name = word.lower()
        if name in _DECIMALS:
            numbers = self._match(_NUMBERS)
            return decimal_of(int(numbers[1]), int(numbers[2] or 0))
        if name == "timestamp":
            return self._parse_zone() if self._skip_sign("[") else self._timestamp
        if name in _LISTS and self._skip_sign("<"):
            self._skip(_ARROW_ITEM)
            inside = self._type(depth + 1)
            self._expect(">")
            return pa.list_(inside)
        if name == "struct" and self._skip_sign("<"):
            fields = self._fields(depth)
            self._expect(">")
            return struct_of(fields)
        if name not in NAMES:
            raise unknown_type(word)
        if name.startswith("date"):
            self._skip(_ARROW_DATE)
        return NAMES[name]

    def _parse_zone(self) -> pa.DataType:
        """Read the rest of a timestamp with a zone, or as Arrow prints it: the unit, and perhaps a zone."""
        end = self.text.find("]", self.at)
        if end < 0:
            raise unknown_type(self.text)
        zone, self.at = self.text[self.at : end], end + 1
        arrow = _ARROW_TIMESTAMP.fullmatch(zone)
        if arrow is not None:
            return pa.timestamp("us", arrow[1] and zone_of(arrow[1]))
        return pa.timestamp("us", zone_of(zone.strip()))

    def _fields(self, depth: int) -> list[tuple[str, pa.DataType]]:
        """Read names with types, with a colon or a space between the two, and a comma after each."""
        fields: list[tuple[str, pa.DataType]] = []
        while not fields or self._skip_sign(","):
            self._space()
            quoted = _QUOTED.match(self.text, self.at)
            if quoted:
                self.at = quoted.end()
                name = quoted[2].replace("``", "`") if quoted[1] is None else quoted[1].replace('""', '"')
            else:
                name = self._match(WORD).group()
            self._skip_sign(":")
            fields.append((name, self._type(depth + 1)))
            self._skip(_NOT_NULL)
        return fields

    def _space(self) -> None:
        while self.at < len(self.text) and self.text[self.at] in " \t\n":
            self.at += 1

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        found = pattern.match(self.text, self.at)
        if found is None:
            raise unknown_type(self.text)
        self.at = found.end()
        return found

    def _skip(self, pattern: re.Pattern[str]) -> None:
        found = pattern.match(self.text, self.at)
        if found is not None:
            self.at = found.end()

    def _skip_sign(self, sign: str) -> bool:
        self._space()
        taken = self.text.startswith(sign, self.at)
        self.at += taken
        return taken

    def _expect(self, sign: str) -> None:
        if not self._skip_sign(sign):
            raise unknown_type(self.text)

"""Parse the text of a type, and the text of a whole schema ("id bigint, name string").

Every name of a type stands in one table, `NAMES`: ours, those of Spark SQL, and those of Arrow.
Case is ignored. Some names differ between systems; here they mean:

    int, integer   32 bits, as in Spark SQL         (the Python type `int`: 64 bits)
    float, real    32 bits, as in Spark and Arrow   (the Python type `float`: 64 bits)
    timestamp      a wall-clock time, as in Arrow; in the text of a whole schema an instant, as in Spark SQL
    timestamp_ntz  a wall-clock time
    timestamp_ltz  an instant
    list[int]      a list as Python writes it: inside of it `int` and `float` have 64 bits

The text that a state stores is one of these too: `types.type_name` gives it.
"""

from __future__ import annotations

import datetime
import decimal
import difflib
import re

import pyarrow as pa

from timespine.columnar.schema.column_names import name_fault
from timespine.errors import UnsupportedType, short_repr

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
    "bytearray": pa.binary(),
    "large_binary": pa.binary(),
    "binary_view": pa.binary(),
    "date32": pa.date32(),
    "date64": pa.date32(),
    "datetime": pa.timestamp("us"),
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
    bytearray: pa.binary(),
    datetime.date: pa.date32(),
    datetime.datetime: pa.timestamp("us"),
    decimal.Decimal: pa.decimal128(38, 18),
}
"""The types for Python types: the widest numbers, times without a zone, and decimals as in Spark."""

_IN_PYTHON: dict[str, pa.DataType] = {
    "int": pa.int64(),
    "float": pa.float64(),
    "datetime.date": pa.date32(),
    "datetime.datetime": pa.timestamp("us"),
    "decimal.decimal": PYTHON_TYPES[decimal.Decimal],
}
"""Names with the meaning of Python: the first two only inside of `list[...]`."""

_DECIMALS = ("decimal", "numeric", "dec", "decimal128")
_LISTS = ("list", "array", "large_list")

WORKS = f"{', '.join(NAMES)}, timestamp[ZONE], decimal(p,s), list<T>, array<T>, struct<a:T>"
"""All names, for a message."""

_INSTEAD = {
    "float16": "float32",
    "halffloat": "float32",
    "uint": "uint32 or uint64",
    "ubyte": "uint8",
    "utinyint": "uint8",
    "ushort": "uint16",
    "usmallint": "uint16",
    "uinteger": "uint32",
    "ulong": "uint64",
    "ubigint": "uint64",
    "int24": "int32",
    "mediumint": "int32",
    "int128": "decimal(38,0)",
    "uint128": "decimal(38,0)",
    "hugeint": "decimal(38,0)",
    "json": "string",
    "variant": "string",
    "uuid": "string or binary",
    "blob": "binary",
    "fixed_size_binary": "binary",
    "char": "string: the length of a text is not checked",
    "character": "string: the length of a text is not checked",
    "varchar": "string: the length of a text is not checked",
    "dictionary": "the type of its values",
    "category": "the type of its values",
    "categorical": "the type of its values",
    "enum": "the type of its values",
    "run_end_encoded": "the type of its values",
    "datetime64": "timestamp or timestamp[UTC]",
    "timestamp_tz": "timestamp[UTC]",
    "time": "int64 (microseconds of the day)",
    "time32": "int64 (microseconds of the day)",
    "time64": "int64 (microseconds of the day)",
    "timedelta": "int64 (microseconds)",
    "timedelta64": "int64 (microseconds)",
    "duration": "int64 (microseconds)",
    "interval": "int64 (microseconds)",
    "month_day_nano_interval": "int64 (microseconds)",
    "decimal": "decimal(p,s) such as decimal(18,2)",
    "numeric": "decimal(p,s) such as decimal(18,2)",
    "dec": "decimal(p,s) such as decimal(18,2)",
    "list": "list<T> such as list<int64>",
    "fixed_size_list": "list<T> such as list<int64>",
    "list_view": "list<T> such as list<int64>",
    "set": "list<T> such as list<int64>",
    "tuple": "struct<a:T,b:T> or list<T>",
    "array": "array<T> such as array<bigint>",
    "struct": "struct<a:T,b:T>",
    "dict": "struct<a:T,b:T> or list<struct<key:K,value:V>>",
    "map": "list<struct<key:K,value:V>>",
}
"""The replacements for common names that are no types, or incomplete ones."""

CLOSE_MIN = 0.8
"""How alike a name and a known one must be, as difflib counts, to be one with a typing error. Below that names of
other types are found: `byte` for `bytearray`, `int` for `variant`."""

WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME = re.compile(r"datetime\.date(?:time)?\b|decimal\.decimal\b|[A-Za-z_][A-Za-z0-9_]*", re.IGNORECASE)
_DOTTED = re.compile(r"(?:[A-Za-z_][A-Za-z0-9_]*\.)*([A-Za-z_][A-Za-z0-9_]*)")
_QUOTED = re.compile(r'"((?:[^"]|"")*)"|`((?:[^`]|``)*)`')
_NUMBERS = re.compile(r"\s*\(\s*([0-9]{1,9})\s*(?:,\s*([0-9]{1,9})\s*)?\)")
_ARROW_TIMESTAMP = re.compile(r"\s*(?:s|ms|us|ns)\s*(?:,\s*tz=([^\],]+))?\s*")
_ARROW_DATE = re.compile(r"\[(?:day|ms)\]")
_ARROW_ITEM = re.compile(r"\s*(?:item|element)\s*:")
_NOT_NULL = re.compile(r"\s+not\s+null\b", re.IGNORECASE)
_TEXT = r"""'(?:[^'\\]|''|\\.)*'|"(?:[^"\\]|""|\\.)*\""""
_COMMENT = re.compile(rf"\s*\bcomment\s*(?:{_TEXT})", re.IGNORECASE | re.DOTALL)
_COMPUTED = re.compile(r"\s*\b(default|generated)\b", re.IGNORECASE)
_STRUCT = re.compile(r"\s*struct\s*<", re.IGNORECASE)
_SIGN = re.compile(rf"{_TEXT}|`(?:[^`]|``)*`|.", re.DOTALL)
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+/-]{0,63}")
_UTC = {"utc", "z", "+00:00", "-00:00", "+0000"}


def parse_text(text: str) -> pa.DataType:
    """Parse the text of a type, without a check of its time zones."""
    _check_length(text)
    return _Parser(text).whole()


def parse_columns(text: str) -> list[tuple[str, pa.DataType]]:
    """Parse the columns of a schema of Spark SQL: "id bigint, name string", or "struct<id:bigint,...>".

    `NOT NULL` and `COMMENT 'text'` are ignored: every column of a collection may be null, and none has a comment.
    `DEFAULT` and `GENERATED` say what rows hold, so they are refused. A `timestamp` is an instant, as in Spark SQL, so
    that a collection made by the text of a DataFrame's schema takes the rows of that DataFrame.
    """
    _check_length(text)
    return _Parser(text, is_sql=True).columns()


def decimal_of(precision: int, scale: int) -> pa.DataType:
    """Return the decimal with this number of digits; raise an UnsupportedType if it is out of range."""
    if not 1 <= precision <= DECIMAL_DIGITS_MAX or not 0 <= scale <= precision:
        raise UnsupportedType(
            f"decimal({precision},{scale}) cannot be stored: use 1 to 38 digits, 0 to all of them decimal"
        )
    return pa.decimal128(precision, scale)


def struct_of(fields: list[tuple[str, pa.DataType]]) -> pa.DataType:
    """Return the struct of these fields; raise an UnsupportedType if they are not valid."""
    if not fields:
        raise UnsupportedType("a struct without fields cannot be stored: leave the column out")
    for name, _ in fields:
        fault = name_fault(name)
        if fault is not None:
            raise UnsupportedType(f"{short_repr(name)} cannot be the name of a field of a struct: {fault}")
    seen = {name.lower() for name, _ in fields}
    if len(seen) < len(fields):
        raise UnsupportedType("two fields of a struct differ in nothing but upper and lower case: rename one")
    return pa.struct(fields)


def zone_of(zone: str) -> str:
    """Return the canonical name of a time zone; raise an UnsupportedType if it is none."""
    if zone.lower() in _UTC:
        return "UTC"
    if not _ZONE.fullmatch(zone):
        raise UnsupportedType(
            f"{short_repr(zone)} is not the name of a time zone: use one such as UTC or Europe/Berlin"
        )
    return zone


def check_depth(depth: int) -> None:
    """Refuse a type that is nested too deeply."""
    if depth > TYPE_DEPTH_MAX:
        raise UnsupportedType(f"a type may have at most {TYPE_DEPTH_MAX} types inside of each other")


def unknown_type(text: str) -> UnsupportedType:
    """Make the error for a text that is no type, with a replacement if one is sure, and all names."""
    found = _DOTTED.match(text.strip())
    name = found[1].lower() if found else ""
    instead = _INSTEAD.get(name) or (name if name in NAMES else _corrected(name))
    hint = f"use {instead}; " if instead else ""
    return UnsupportedType(f"{short_repr(text)} is not a type of a column: {hint}these work: {WORKS}")


def _corrected(name: str) -> str | None:
    """Return the known name of which this one is a misspelling; None if there is none."""
    # An unsigned type is none that has a sign, however alike their names are.
    known = [each for each in NAMES if each.startswith("u") == name.startswith("u")]
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=CLOSE_MIN)), None)


def _check_length(text: str) -> None:
    if len(text) > TYPE_TEXT_MAX:
        raise UnsupportedType(f"a type of {len(text)} characters is over the limit of {TYPE_TEXT_MAX}")


class _Parser:
    """A parser of one type, or of the columns of a schema."""

    def __init__(self, text: str, *, is_sql: bool = False) -> None:
        self.text = text
        self.at = 0
        self._shown = text
        """What an error shows: the whole text, or that of the type of one column."""
        self._timestamp = _INSTANT if is_sql else PLAIN["timestamp"]

    def whole(self) -> pa.DataType:
        """Read the type, if the text is one and nothing else."""
        parsed = self._type(1)
        self._end()
        return parsed

    def columns(self) -> list[tuple[str, pa.DataType]]:
        """Read the columns of a schema, if the text is one and nothing else."""
        is_struct = self._skip(_STRUCT)
        columns: list[tuple[str, pa.DataType]] = []
        while not columns or self._skip_sign(","):
            columns.append(self._column(is_struct))
        self._shown = self.text
        if is_struct:
            self._expect(">")
        self._end()
        return columns

    def _column(self, is_struct: bool) -> tuple[str, pa.DataType]:
        """Read the name and the type of a column. An error names the column, and shows the text of its type."""
        self._space()
        self._shown = self.text[self.at :] or self.text
        name = self._field_name()
        self._skip_sign(":")
        self._space()
        end = self._end_of_column(is_struct)
        self._shown = self.text[self.at : end].strip()
        try:
            if not self._shown:
                raise UnsupportedType(f"there is no type after the name: these work: {WORKS}")
            found = self._field_type(0)
            self._space()
            if self.at < end:
                raise unknown_type(self._shown)
        except UnsupportedType as error:
            raise error.in_context(f"column {short_repr(name)}") from None
        return name, found

    def _end_of_column(self, is_struct: bool) -> int:
        """Return where the text of the column ends: at the next comma, or the last `>` of the struct, or the end."""
        depth = 0
        for sign in _SIGN.finditer(self.text, self.at):
            if depth <= 0 and (sign[0] == "," or (is_struct and sign[0] == ">")):
                return sign.start()
            depth += (sign[0] in "<([") - (sign[0] in ">)]")
        return len(self.text)

    def _end(self) -> None:
        self._space()
        if self.at < len(self.text):
            raise unknown_type(self._shown)

    def _type(self, depth: int, *, is_python: bool = False) -> pa.DataType:
        """Read a type; `is_python`: inside of `list[...]`, where names have the meaning of Python."""
        check_depth(depth)
        self._space()
        word = self._match(_NAME).group()
        name = word.lower()
        if name in _IN_PYTHON and (is_python or "." in name):
            return _IN_PYTHON[name]
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
        if name == "list" and self._skip_sign("["):
            inside = self._type(depth + 1, is_python=True)
            self._expect("]")
            return pa.list_(inside)
        if name == "struct" and self._skip_sign("<"):
            fields = self._fields(depth)
            self._expect(">")
            return struct_of(fields)
        if name not in NAMES:
            raise unknown_type(self._rest_of(word))
        if name in ("date32", "date64"):
            self._skip(_ARROW_DATE)
        return NAMES[name]

    def _rest_of(self, word: str) -> str:
        """Return a word that was just read, with what follows it after dots: "numpy.int7"."""
        found = _DOTTED.match(self.text, self.at - len(word))
        return found.group() if found else word

    def _parse_zone(self) -> pa.DataType:
        """Read the rest of a timestamp with a zone, or as Arrow prints it: the unit, and perhaps a zone."""
        end = self.text.find("]", self.at)
        if end < 0:
            raise unknown_type(self._shown)
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
            name = self._field_name()
            self._skip_sign(":")
            fields.append((name, self._field_type(depth)))
        return fields

    def _field_name(self) -> str:
        """Read the name of a field, which may be quoted."""
        quoted = _QUOTED.match(self.text, self.at)
        if quoted is None:
            return self._match(WORD).group()
        self.at = quoted.end()
        return quoted[2].replace("``", "`") if quoted[1] is None else quoted[1].replace('""', '"')

    def _field_type(self, depth: int) -> pa.DataType:
        """Read the type of a field, and skip what Spark may write after it: NOT NULL and COMMENT, in any order."""
        found = self._type(depth + 1)
        while self._skip(_NOT_NULL) or self._skip(_COMMENT):
            pass
        computed = _COMPUTED.match(self.text, self.at)
        if computed is not None:
            raise UnsupportedType(
                f"{computed[1].upper()} is not part of a schema: leave it out, and give rows the values"
            )
        return found

    def _space(self) -> None:
        while self.at < len(self.text) and self.text[self.at] in " \t\n":
            self.at += 1

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        found = pattern.match(self.text, self.at)
        if found is None:
            raise unknown_type(self._shown)
        self.at = found.end()
        return found

    def _skip(self, pattern: re.Pattern[str]) -> bool:
        found = pattern.match(self.text, self.at)
        if found is not None:
            self.at = found.end()
        return found is not None

    def _skip_sign(self, sign: str) -> bool:
        self._space()
        taken = self.text.startswith(sign, self.at)
        self.at += taken
        return taken

    def _expect(self, sign: str) -> None:
        if not self._skip_sign(sign):
            raise unknown_type(self._shown)

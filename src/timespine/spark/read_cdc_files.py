"""Read change logs as DataFrames: the changes of rows, in the formats of databases and their tools.

    read_changes(spark, "orders.csv", key="id")            all lines of the log
    stream_changes(spark, "incoming/", key="id")           new files, one per batch

The formats are CSV, JSON lines and Parquet, as files or folders. Both functions give the columns of the rows, and

    _change_type    insert, update_postimage, upsert or delete (update_preimage adds no information)
    _sequence       the order of several changes of one key

`foreach_batch(collection, "upsert", sequence_by="_sequence")` and the sink take these columns. A log of Debezium
envelopes has columns `op` and `before` or `after`, with or without `payload` around them. Any other log may have the
change type in `_change_type` or `op`; without such a column, every row is an upsert.

The order of changes is that of the database, if the envelope has it, then of the file names, then of the lines.

SUBTLE: lines of one split of a file have the same `_sequence`, since a stream cannot number them. A task reads them in
their order, and the writer that applies them keeps it (test_read_cdc_files.py).
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from timespine.errors import TimespineError, UsageError, short_repr
from timespine.spark.change_columns import CHANGE_TYPE, DELETE, KINDS, SEQUENCE, UPSERT
from timespine.spark.quoted_names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

SUFFIXES = {
    "csv": (".csv", ".csv.gz"),
    "json": (".json", ".jsonl", ".ndjson", ".json.gz", ".jsonl.gz", ".ndjson.gz"),
    "parquet": (".parquet", ".pq"),
}
"""The suffixes of file names, by format."""

ORDERS = {
    "lsn": ("lsn",),
    "scn": ("scn",),
    "change_lsn": ("commit_lsn", "change_lsn", "event_serial_no"),
    "pos": ("file", "pos", "row"),
    "ord": ("ts_ms", "ord"),
}
"""The fields of `source` that order changes: of PostgreSQL, Oracle, SQL Server, MySQL, MongoDB."""

_OPTIONS: dict[str, dict[str, str]] = {
    "csv": {"header": "true", "enforceSchema": "false", "mode": "FAILFAST"},
    "json": {"mode": "FAILFAST"},
    "parquet": {},
}
"""The options of Spark's readers: a malformed line or header is an error, never other values."""

_FILE = "_file"
"""The columns with the place of a line, from which the sequence is computed."""


def read_changes(
    spark: SparkSession,
    path: str | os.PathLike[str],
    *,
    key: str | Sequence[str] | None = None,
    sequence: str | None = None,
    format: str | None = None,
) -> DataFrame:
    """Read a log as a DataFrame of changes.

    `key` names the key columns; the default is `id`, if there is such a column. `sequence` names a
    column that orders the changes, for logs whose lines are not in order. `format` is needed where names do not end
    in .csv, .json, .jsonl, .ndjson or .parquet.
    """
    log = _log(path, format)
    return _changes(log.read(spark, _schema(spark, log)), has_key_columns(key), sequence)


def stream_changes(
    spark: SparkSession,
    path: str | os.PathLike[str],
    *,
    key: str | Sequence[str] | None = None,
    sequence: str | None = None,
    format: str | None = None,
    files_per_trigger: int = 1,
) -> DataFrame:
    """Read a log as a stream: present files by age, then new ones. The columns are those of the present files."""
    log = _log(path, format)
    schema = _schema(spark, log)
    _changes(log.read(spark, schema), has_key_columns(key), sequence)
    return _changes(log.follow(spark, schema, files_per_trigger), has_key_columns(key), sequence)


def has_key_columns(key: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """Parse the names of key columns: one, several, several separated by commas, or none."""
    if key is None:
        return None
    names = tuple(each.strip() for each in key.split(",")) if isinstance(key, str) else tuple(key)
    if not names or not all(names) or len(set(names)) < len(names):
        raise UsageError(f"key names columns, each once, such as 'id' or 'country,id', not {short_repr(key)}")
    return names


def find_key_columns(columns: Sequence[str], key: Sequence[str] | None) -> tuple[str, ...]:
    """Find the key columns among some columns; raise a UsageError if one is missing."""
    data = [name for name in columns if name not in (CHANGE_TYPE, SEQUENCE)]
    if key is None:
        if "id" not in data:
            raise UsageError(f"name the key columns; there are: {', '.join(data)}")
        return ("id",)
    missing = [name for name in key if name not in data]
    if missing:
        raise UsageError(f"there is no column {short_repr(missing[0])} to be the key; there are: {', '.join(data)}")
    return tuple(key)


def collection_columns(
    frame: DataFrame, key: str | Sequence[str] | None = None
) -> tuple[dict[str, pa.DataType], dict[str, pa.DataType]]:
    """Give the key and value columns of a collection for these changes: `store.create(name, key=..., value=...)`."""
    from pyspark.sql.pandas.types import to_arrow_schema

    keys = find_key_columns(frame.columns, has_key_columns(key))
    schema = to_arrow_schema(frame.drop(CHANGE_TYPE, SEQUENCE).schema)
    kinds = {field.name: field.type for field in schema}
    return {name: kinds[name] for name in keys}, {name: kinds[name] for name in kinds if name not in keys}


@dataclass(frozen=True, slots=True)
class _Log:
    """The files of a change log."""

    path: str
    """A file, a folder, or a path pattern of Spark."""
    format: str
    name: str | None
    """The only file of the folder `path` to read; None for all of them."""

    def read(self, spark: SparkSession, schema: StructType) -> DataFrame:
        """Read the present files."""
        return _with_file(self._with_options(spark.read.format(self.format).schema(schema)).load(self.path))

    def follow(self, spark: SparkSession, schema: StructType, files: int) -> DataFrame:
        """Read the present files, then new ones."""
        reader = self._with_options(spark.readStream.format(self.format).schema(schema))
        return _with_file(reader.option("maxFilesPerTrigger", files).load(self.path))

    def _with_options(self, reader: Any) -> Any:
        reader = reader.options(**_OPTIONS[self.format])
        return reader if self.name is None else reader.option("pathGlobFilter", self.name)


def _with_file(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    place = F.struct(F.col("_metadata.file_path").alias("file"), F.col("_metadata.file_block_start").alias("at"))
    return frame.select("*", place.alias(_FILE))


def _log(path: str | os.PathLike[str], format: str | None) -> _Log:
    """Find the log at a path, with the format that its name or its files have."""
    if format is not None and format not in SUFFIXES:
        raise UsageError(f"format is {', '.join(SUFFIXES)}, not {short_repr(format)}")
    text = os.fspath(path)
    if "://" in text and not text.startswith("file://"):
        found = format or _format_of(text)
        if found is None:
            raise UsageError(f"{short_repr(text)} has a suffix of no known format: name the format with format=")
        return _Log(text, found, None)
    place = Path(text.removeprefix("file://")).absolute()
    if not place.exists():
        raise UsageError(f"there is no file and no folder {short_repr(str(place))}")
    inside = sorted(place.rglob("*")) if place.is_dir() else [place]
    files = [each.name for each in inside if each.is_file() and not each.name.startswith((".", "_"))]
    formats = {format} if format is not None and files else set(map(_format_of, files)) - {None}
    if len(formats) != 1:
        reason = f"holds {' and '.join(sorted(map(str, formats)))}" if formats else "holds no CSV, JSON or Parquet file"
        raise UsageError(f"{short_repr(str(place))} {reason}: give files of one format, or name it with format=")
    (found,) = formats
    return _Log(str(place), str(found), None) if place.is_dir() else _Log(str(place.parent), str(found), place.name)


def _format_of(name: str) -> str | None:
    lower = name.lower().rstrip("/")
    return next((each for each, ends in SUFFIXES.items() if lower.endswith(ends)), None)


def _schema(spark: SparkSession, log: _Log) -> StructType:
    """Infer the columns of a log from all of its lines. Integers are 64 bits wide, so that later lines fit."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException
    from pyspark.sql.types import IntegerType, LongType, StructField, StructType

    reader = log._with_options(spark.read.format(log.format))
    if log.format == "csv":
        reader = reader.option("inferSchema", "true")
    try:
        fields = reader.load(log.path).schema.fields
    except (PySparkException, Py4JJavaError) as error:
        raise UsageError(f"{short_repr(log.path)} cannot be read as {log.format}: {reason_of(error)}") from error
    if not fields:
        raise UsageError(f"{short_repr(log.path)} has no columns")
    if log.format != "csv":
        return StructType(fields)
    wide = {field.name: LongType() for field in fields if isinstance(field.dataType, IntegerType)}
    return StructType([StructField(field.name, wide.get(field.name, field.dataType)) for field in fields])


def reason_of(error: BaseException) -> str:
    """Reduce an error of Spark to its cause, in one line."""
    text = str(error).strip()
    for wanted in (r"\w+Error: ", r"\[USER_RAISED_EXCEPTION\] ", r"\[MALFORMED\w+(?:\.\w+)*\] ", r"\[[A-Z_.]+\] "):
        found = re.search(rf"{wanted}(.+?)(?: SQLSTATE.*)?$", text, re.MULTILINE)
        if found is not None and not isinstance(error, TimespineError):
            return found[1].strip()
    return text.splitlines()[0] if text else type(error).__name__


def _changes(raw: DataFrame, key: tuple[str, ...] | None, sequence: str | None) -> DataFrame:
    """Convert the lines of a log to changes. Check present lines at once, and lines of a stream when it reads them."""
    envelope = _envelope(raw)
    if envelope is not None and sequence is not None:
        raise UsageError("an envelope has its own order: leave out sequence")
    found = _of_plain(raw, sequence) if envelope is None else _of_envelope(envelope)
    if not raw.isStreaming:
        found.check()
    find_key_columns(found.frame.columns, key)
    return found.frame


@dataclass(frozen=True, slots=True)
class _Found:
    """Changes, and the check of the lines that they come from."""

    frame: DataFrame
    raw: DataFrame
    doubt: Column | None
    """The expression for the fault of a line, null if it has none; None if no line can be wrong."""

    def check(self) -> None:
        """Raise a UsageError if a line is malformed."""
        from pyspark.errors import PySparkException

        if self.doubt is None:
            return
        try:
            wrong = self.raw.select(self.doubt.alias("wrong")).where("wrong IS NOT NULL").head()
        except PySparkException as error:
            raise UsageError(f"the log cannot be read: {reason_of(error)}") from error
        if wrong is not None:
            raise UsageError(str(wrong["wrong"]))


def _of_plain(raw: DataFrame, sequence: str | None) -> _Found:
    """Convert lines that are rows, with or without a column of change types."""
    from pyspark.sql import functions as F

    names = [name for name in raw.columns if name != _FILE]
    kind = next((name for name in (CHANGE_TYPE, *names) if name in names and name.lower() in (CHANGE_TYPE, "op")), None)
    if sequence is not None and sequence not in names:
        raise UsageError(
            f"there is no column {short_repr(sequence)} to order changes by; there are: {', '.join(names)}"
        )
    rows = [_column(name) for name in names if name not in (kind, SEQUENCE)]
    if sequence is not None:
        order = F.struct(_column(sequence).alias("by"), F.col(_FILE))
    else:
        order = F.col(SEQUENCE if SEQUENCE in names else _FILE)
    doubt = None if kind is None else _unknown(_column(kind), kind)
    happened = F.lit(UPSERT) if kind is None else _kind(_column(kind), doubt)
    return _Found(raw.select(*rows, happened.alias(CHANGE_TYPE), order.alias(SEQUENCE)), raw, doubt)


def _envelope(raw: DataFrame) -> DataFrame | None:
    """Unwrap the envelopes of a log; return None if it has none."""
    payload = _fields(raw.schema, "payload")
    if payload and "op" in payload:
        if not {"before", "after"} & payload.keys():
            raise UsageError("the payload has neither before nor after: there is no row in it")
        raw = raw.where("payload IS NOT NULL").select("payload.*", _FILE)
    if "op" not in raw.columns or not {"before", "after"} & set(raw.columns):
        return None
    if not (_fields(raw.schema, "before") or _fields(raw.schema, "after")):
        raise UsageError("neither before nor after has columns: give them as objects, not as text")
    return raw


def _of_envelope(raw: DataFrame) -> _Found:
    """Extract rows from envelopes: `after`, or `before` of a delete."""
    from pyspark.sql import functions as F

    before, after = _fields(raw.schema, "before"), _fields(raw.schema, "after")
    # The tombstone that follows a delete carries no information.
    raw = raw.where(" OR ".join(f"{name} IS NOT NULL" for name in ("op", "before", "after") if name in raw.columns))
    gone = F.lower(F.trim(F.col("op"))).isin(*KINDS[DELETE])
    rows = []
    for name in dict.fromkeys((*after, *before)):
        was = F.col(f"before.{quoted(name)}") if name in before else F.lit(None)
        rows.append(
            F.when(gone, was).otherwise(F.col(f"after.{quoted(name)}") if name in after else F.lit(None)).alias(name)
        )
    has_before, has_after = (F.col(name).isNotNull() if got else F.lit(False) for name, got in _sides(before, after))
    no_row = F.when(gone & ~has_before, F.lit("a delete has nothing in before: its key is unknown")).when(
        ~gone & ~has_after, F.concat(F.lit("a change with op "), F.col("op"), F.lit(" has nothing in after"))
    )
    doubt = F.coalesce(_unknown(F.col("op"), "op"), no_row)
    frame = raw.select(*rows, _kind(F.col("op"), doubt).alias(CHANGE_TYPE), _order(raw).alias(SEQUENCE))
    return _Found(frame, raw, doubt)


def _sides(before: dict[str, DataType], after: dict[str, DataType]) -> tuple[tuple[str, bool], tuple[str, bool]]:
    return ("before", bool(before)), ("after", bool(after))


def _order(raw: DataFrame) -> Column:
    """Give the order of envelopes: the place in the log of the database, or the time, then the place in the files."""
    from pyspark.sql import functions as F

    source = _fields(raw.schema, "source")
    named = next((order for field, order in ORDERS.items() if field in source), ())
    parts = [F.col(f"source.{quoted(name)}") for name in named if name in source]
    if "scn" in named:
        parts = [F.expr("try_cast(source.scn AS DECIMAL(38, 0))").alias("scn")]
    if not parts:
        times = [F.col("source.ts_ms")] if "ts_ms" in source else []
        parts = [*times, *([F.col("ts_ms").alias("told_ms")] if "ts_ms" in raw.columns else [])]
    return F.struct(*parts, F.col(_FILE))


def _kind(said: Column, doubt: Column | None) -> Column:
    """Map the words of a log to change types; an unknown word fails the query."""
    from pyspark.sql import functions as F

    plain = F.lower(F.trim(said))
    found = F.when(doubt.isNotNull(), F.raise_error(doubt)) if doubt is not None else F
    for kind, words in KINDS.items():
        found = found.when(plain.isin(*words), F.lit(kind))
    return found  # type: ignore[return-value]


def _unknown(said: Column, name: str) -> Column:
    """Give the error message for an unknown word; null if the word is known."""
    from pyspark.sql import functions as F

    words = [word for kinds in KINDS.values() for word in kinds]
    told = F.coalesce(F.concat(F.lit("'"), F.substring(said.cast("string"), 1, 40), F.lit("'")), F.lit("null"))
    known = F.lower(F.trim(said.cast("string"))).isin(*words)
    wrong = F.concat(F.lit(f"{name} is one of {', '.join(words)}, not "), told)
    return F.when(~F.coalesce(known, F.lit(False)), wrong)


def _fields(schema: StructType, name: str) -> dict[str, DataType]:
    """Return the fields of a struct column by name; none if the column is missing or no struct."""
    from pyspark.sql.types import StructType

    kind = next((field.dataType for field in schema.fields if field.name == name), None)
    return {field.name: field.dataType for field in kind.fields} if isinstance(kind, StructType) else {}


def _column(name: str) -> Column:
    from pyspark.sql import functions as F

    return F.col(quoted(name))

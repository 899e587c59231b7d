"""Sources to load: a Parquet file, a folder of such files, or a Delta table, as a schema and a stream of rows."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa

from timespine.client.load.bounded_batches import file_batches, parquet_batches
from timespine.columnar.schema.schema import TIME
from timespine.errors import UsageError, short_repr
from timespine.libraries import pq

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""The name that Hive and Spark give to the folder of null."""

_WHOLE = re.compile(r"-?[0-9]{1,18}")


def as_path(given: str | os.PathLike[str]) -> Path:
    """Convert an argument to a path; raise a UsageError if it is none."""
    try:
        text = os.fsdecode(given)
    except TypeError:
        raise UsageError(f"{short_repr(given)} is not a path: give a text") from None
    if "\0" in text:
        raise UsageError(f"{short_repr(given)} is not a path: no file or folder has a NUL in its name")
    return Path(text)


def open_source(path: str | os.PathLike[str]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Open a Parquet file, a folder of such files, or a Delta table; return the schema and the rows."""
    root = as_path(path)
    schema, batches = _delta(root) if (root / "_delta_log").is_dir() else _parquet(root)
    if TIME in schema.names:
        raise UsageError(f"{root} has a column {TIME}, and a load puts all rows at one time: append them, or rename it")
    return schema, batches


def _parquet(root: Path) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    files = [root] if root.is_file() else _files(root)
    if not files:
        raise UsageError(f"there is no Parquet file at {root}")
    partitions = _partitions(root, files)
    try:
        schema = pq.read_schema(files[0]).remove_metadata()
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"{files[0].name} is not a Parquet file that can be read") from error
    for name, values in partitions.items():
        if name not in schema.names:
            schema = schema.append(pa.field(name, values.type))
    return schema, _batches(files, partitions)


def _files(root: Path) -> list[Path]:
    """List the Parquet files below a folder, without unfinished ones of other writers, such as below `_temporary`."""
    found = sorted(root.rglob("*.parquet"))
    return [
        file
        for file in found
        if file.is_file() and not any(part.startswith(("_", ".")) for part in file.relative_to(root).parts)
    ]


def _partitions(root: Path, files: list[Path]) -> dict[str, pa.Array]:
    """Return the columns in the names of folders, `day=2024-01-01/...`, as Hive and Spark write them: a value per file.

    Whole numbers are int64, anything else is text.
    """
    named = [[part.partition("=") for part in file.relative_to(root).parts[:-1] if "=" in part] for file in files]
    names = [[name for name, _, _ in parts] for parts in named]
    if any(each != names[0] for each in names):
        raise UsageError(f"the folders below {root} do not name the same columns everywhere")
    columns: dict[str, pa.Array] = {}
    for place, name in enumerate(names[0]):
        texts = [None if parts[place][2] == NO_VALUE else unquote(parts[place][2]) for parts in named]
        whole = all(text is None or _WHOLE.fullmatch(text) for text in texts)
        numbers = [None if text is None else int(text) for text in texts] if whole else None
        columns[unquote(name)] = pa.array(texts, pa.string()) if numbers is None else pa.array(numbers, pa.int64())
    return columns


def _batches(files: list[Path], partitions: dict[str, pa.Array]) -> Iterator[pa.RecordBatch]:
    for place, file in enumerate(files):
        try:
            for batch in file_batches(file):
                for name, values in partitions.items():
                    if name not in batch.schema.names:
                        batch = batch.append_column(name, pa.repeat(values[place], batch.num_rows))
                yield batch
        except (pa.ArrowException, OSError) as error:
            raise UsageError(f"{file.name} cannot be read as Parquet: {type(error).__name__}") from error


def _delta(root: Path) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    try:
        import pyarrow.dataset as dataset
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError
    except ImportError as error:
        raise UsageError("to load a Delta table, install deltalake: pip install deltalake") from error
    failures = (DeltaError, pa.ArrowException, OSError, ValueError)
    try:
        found = DeltaTable(str(root)).to_pyarrow_dataset()
        fragments = list(found.get_fragments())
    except failures as error:
        raise UsageError(f"{root} cannot be read as a Delta table: {type(error).__name__}") from error

    def batches() -> Iterator[pa.RecordBatch]:
        # SUBTLE: not by a scanner of the dataset, which decodes a number of rows at once, however large they are
        # (test_bounded_batches.py).
        try:
            for fragment in fragments:
                values = dataset.get_partition_keys(fragment.partition_expression)
                for batch in parquet_batches(fragment.open, fragment.path):
                    yield _with_schema(batch, found.schema, values)
        except failures as error:
            raise UsageError(f"{root} cannot be read as a Delta table: {type(error).__name__}") from error

    return found.schema, batches()


def _with_schema(batch: pa.RecordBatch, schema: pa.Schema, values: dict[str, object]) -> pa.RecordBatch:
    """Give rows of one file of a table the columns of the table: partition values, and nulls for later columns."""
    columns = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.repeat(pa.scalar(values.get(field.name), field.type), batch.num_rows)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)

"""Cut a change log into files that a stream takes one by one, in their order."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from examples.spark_pipeline.change_log import SEQUENCE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def cut_into_files(frame: DataFrame, folder: Path, rows: int) -> int:
    """Write changes in their order into Parquet files of at most `rows` rows; return how many files."""
    from pyspark.sql import functions as F

    numbered = frame.withColumn(SEQUENCE, F.struct(F.col(SEQUENCE).alias("by"), F.monotonically_increasing_id()))
    ordered = numbered.repartition(1).sortWithinPartitions(SEQUENCE)
    ordered.write.option("maxRecordsPerFile", rows).parquet(str(folder))
    files = sorted(folder.glob("*.parquet"))
    age_in_order(files)
    return len(files)


def age_in_order(files: Sequence[Path]) -> None:
    """Make each file a second younger than the one before it: a stream takes the oldest file first."""
    for number, file in enumerate(files):
        newest = files[-1].stat().st_mtime
        os.utime(file, (newest, newest - len(files) + 1 + number))

"""The types of expressions that only Spark computes: asked of Spark when a view is made, and stored with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from timespine.columnar.schema.types import stored_type, type_name
from timespine.errors import UnsupportedType
from timespine.views.plan.expressions import Expression
from timespine.views.spark_engine.scalar_text import spark_type
from timespine.views.spark_engine.session import borrowed, find_session
from timespine.views.sql.functions import NotListed


def filled_text(template: str, args: Sequence[Expression], values: Sequence[str]) -> str:
    """Return a text with values in the places of its arguments."""
    pieces = template.split("\0")
    return pieces[0] + "".join(
        values[int(number)] + text for number, text in zip(pieces[1::2], pieces[2::2], strict=True)
    )


class SparkTypes:
    """Types by texts: those that are stored, and those that a session is asked for."""

    def __init__(self, stored: Sequence[tuple[str, str]] = (), spark: Any = None) -> None:
        self._known = {text: stored_type(kind) for text, kind in stored}
        self._spark = spark

    @property
    def asks(self) -> bool:
        """Whether there is a session to ask."""
        return self._spark is not None

    def type_of(self, template: str, args: Sequence[Expression], *, is_aggregate: bool = False) -> pa.DataType:
        """Return the type of a text; raise NotListed if Spark has no answer, or not always the same."""
        try:
            nulls = [f"CAST(NULL AS {spark_type(each.type)})" for each in args]
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise NotListed(f"an argument has no type of Spark: {error}") from None
        text = filled_text(template, args, nulls)
        if text not in self._known:
            if self._spark is None:
                raise NotListed("it is not on the list of this process, and there is no session of Spark")
            if is_aggregate:
                names = [f"y{place}" for place in range(len(args))]
                rows = ", ".join(f"{null} AS {name}" for null, name in zip(nulls, names, strict=True))
                # Only an aggregate may stand beside another one, over columns that are not grouped.
                whole = f"SELECT {filled_text(template, args, names)} AS x, count(*) AS n FROM (SELECT {rows})"
            else:
                # SUBTLE: Spark takes no condition of a join that is another one each time, nor an aggregate in it. So
                # it can be asked over Spark Connect too, which has no plans (test_view_oracle.py).
                whole = f"SELECT {text} AS x FROM (SELECT 1) l JOIN (SELECT 1) r ON ({text}) IS NULL"
            self._known[text] = self._ask(whole)
        return self._known[text]

    def known(self) -> tuple[tuple[str, str], ...]:
        """Return all types, to be stored."""
        return tuple((text, type_name(kind)) for text, kind in self._known.items())

    def _ask(self, query: str) -> pa.DataType:
        from pyspark.errors import PySparkException

        from timespine.spark.type_mapping import arrow_columns

        with borrowed(self._spark) as spark:
            try:
                kind = stored_type(type_name(arrow_columns(spark.sql(query).schema).field(0).type))
            except PySparkException as error:
                raise NotListed(f"Spark says: {str(error).splitlines()[0]}") from None
            except UnsupportedType as error:
                raise NotListed(f"its type cannot be kept: {error}") from None
        return kind


def asked_types(spark: Any) -> SparkTypes | None:
    """Return types that a session is asked for; None if there is no session."""
    found = find_session(spark)
    return None if found is None else SparkTypes((), found)

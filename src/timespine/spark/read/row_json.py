"""Encode rows as JSON, one text each.

Values without a JSON literal become strings: `"NaN"`, `"Infinity"` and `"-Infinity"`,
and bytes in base64. Integers and decimals have all their digits.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa

from timespine.libraries import pl

NONE = "null"


def json_of(table: pa.Table, columns: Sequence[str]) -> pa.Array:
    """Encode the rows of a table as JSON objects of some of its columns."""
    frame = pl.DataFrame(pl.from_arrow(table.select(list(columns))))
    whole = _object([(name, pl.col(name), kind) for name, kind in frame.schema.items()])
    rows = frame.select(whole).to_series().to_arrow().cast(pa.string())
    return rows.combine_chunks() if isinstance(rows, pa.ChunkedArray) else rows


def _object(fields: Sequence[tuple[str, pl.Expr, pl.DataType]]) -> pl.Expr:
    """Give the expression of the text of an object with these fields."""
    pieces: list[pl.Expr] = []
    for number, (name, value, kind) in enumerate(fields):
        pieces.append(pl.lit(f"{',' if number else '{'}{msgspec.json.encode(name).decode()}:"))
        pieces.append(_text(value, kind))
    return pl.concat_str(*pieces, pl.lit("}")) if pieces else pl.lit("{}")


def _text(value: pl.Expr, kind: pl.DataType) -> pl.Expr:
    """Give the expression of the text of values of a type."""
    if isinstance(kind, pl.List):
        items = value.list.eval(_text(pl.element(), kind.inner)).list.join(",")  # type: ignore[arg-type]
        return _unless_null(value, pl.concat_str(pl.lit("["), items, pl.lit("]")))
    if isinstance(kind, pl.Struct):
        fields = [(each.name, value.struct.field(each.name), each.dtype) for each in kind.fields]
        return _unless_null(value, _object(fields))  # type: ignore[arg-type]
    if kind == pl.Binary:
        return _unless_null(value, pl.concat_str(pl.lit('"'), value.bin.encode("base64"), pl.lit('"')))
    plain = pl.struct(value.alias("v")).struct.json_encode().str.slice(len('{"v":')).str.head(-1)
    if not kind.is_float():
        return plain
    infinite = pl.when(value > 0).then(pl.lit('"Infinity"')).otherwise(pl.lit('"-Infinity"'))
    strange = pl.when(value.is_nan()).then(pl.lit('"NaN"')).when(value.is_infinite()).then(infinite)
    return strange.otherwise(plain)


def _unless_null(value: pl.Expr, text: pl.Expr) -> pl.Expr:
    return pl.when(value.is_null()).then(pl.lit(NONE)).otherwise(text)

"""The oracle of views: Spark answers the text of each, over the inputs as of every refresh point.

212 views (the 22 of TPC-H, 43 shapes of TPC-DS, 147 others) follow random histories with upserts, deletes, late rows,
seals, expiry and compaction. A roulette chooses the engine of each refresh. Spark answers many texts in one job. The
short version asks it about two refresh points; the long one, `make soak`, about all points of longer histories.
"""

import datetime
import decimal
import json
import math
import random
import sys
from collections import Counter
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

import timespine as ts
from timespine.columnar.schema.types import parse_schema
from timespine.views.spark_engine.session import borrowed
from timespine.views.spark_engine.source import SparkSource

sys.path.insert(0, str(Path(__file__).parent.parent / "views"))
from more_shapes import ARRAY_TABLES, ARRAYS, DS, DS_TABLES, LISTED, MEASURES, ON_SPARK
from shapes import SHAPES
from test_tpch import KEYS as TPCH_KEYS
from test_tpch import cell as tpch_cell
from tpch import QUERIES, TABLES

FAST = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Settings for small queries: they change no answers."""

BATCH = 25
"""Texts that Spark answers in one job."""

ROW = "to_json(struct(*), map('ignoreNullFields', 'false'))"

PLAIN = "k bigint, g bigint, v bigint"


class World:
    """Tables and views over them."""

    def __init__(self, tables, queries, only_spark=(), cell=None):
        self.tables = {
            name: ([(field.name, field.type) for field in parse_schema(columns)], columns, key)
            for name, (columns, key) in tables.items()
        }
        self.queries = queries
        self.only_spark = set(only_spark)
        self.cell = cell or cell_of


WORDS = ["xa", "xyz", " ay1", "b", "CA", "TX", "Books", "Home", "Sunday", "Monday", "NO", None]


def cell_of(rng, name, kind):
    """A value of a few, so that rows match and groups have members."""
    text = str(kind)
    if name == "d_year":
        return rng.choice([2000, 2001])
    if name == "d_moy":
        return rng.choice([1, 11])
    if rng.random() < 0.08:
        return None
    if pa.types.is_list(kind):
        return [cell_of(rng, name, kind.value_type) for _ in range(rng.randrange(4))]
    if pa.types.is_struct(kind):
        return {each.name: cell_of(rng, each.name, each.type) for each in kind}
    if text.startswith("date"):
        return datetime.date(2000, 1, 1) + datetime.timedelta(days=rng.choice([0, 1, 31, 59, 365, -200]))
    if text.startswith("decimal"):
        return decimal.Decimal(rng.randrange(-500, 4000)) / 100
    if text == "double":
        return rng.choice([0.1, 0.2, 2.5, -1e9, 1e-9, 3.0])
    if text == "bool":
        return rng.random() < 0.5
    if text == "string":
        return rng.choice(WORDS)
    return rng.randrange(7)


def tpch_value(rng, name, kind):
    text = str(kind)
    return tpch_cell(rng, name, {"int32": "int", "int64": "bigint", "date32[day]": "date"}.get(text, text))


AB = {"a": (f"{PLAIN}, s string", ["k"]), "b": (PLAIN, []), "m": (MEASURES, ["k"])}
WORLDS = {
    "shapes": World(AB, {**SHAPES, **LISTED}),
    "on spark": World(AB, ON_SPARK, ON_SPARK),
    "arrays": World(ARRAY_TABLES, ARRAYS, ["split on spark"]),
    "tpcds": World(DS_TABLES, DS),
    "tpch": World(
        {name: (columns, TPCH_KEYS[name]) for name, columns in TABLES.items()},
        {f"q{number}": text for number, text in QUERIES.items()},
        cell=tpch_value,
    ),
}


SHARES = {"arrays": 0.1, "tpcds": 0.1, "tpch": 0.1}
"""The shares of views that Spark refreshes in short histories; 0.01 of the others: one view."""


def made(rng, world, table):
    columns, _, key = world.tables[table]
    row = {name: world.cell(rng, name, kind) for name, kind in columns}
    texts = {name for name, kind in columns if str(kind) == "string"}
    filled = {name: rng.choice(WORDS[:-1]) if name in texts else rng.randrange(9) for name in key if row[name] is None}
    return {**row, **filled}


def change(rng, store, world, most):
    """Change the inputs at random, and seal them at one time."""
    with store.transaction() as tx:
        for table, (_, _, key) in world.tables.items():
            rows = [made(rng, world, table) for _ in range(rng.randrange(most + 1))]
            if not key:
                gone = [{**row, "_diff": -1} for row in store[table].snapshot().to_pylist()[: rng.randrange(2)]]
                tx.append(table, [*({**row, "_diff": 1} for row in rows), *gone])
                continue
            unique = {tuple(row[name] for name in key): row for row in rows}
            if unique and rng.random() < 0.3:
                tx.delete(table, [{name: row[name] for name in key} for row in unique.values()])
            elif unique:
                tx.upsert(table, list(unique.values()))
    for table, (_, _, key) in world.tables.items():
        if not key and rng.random() < 0.5:  # late rows: before others that are sealed with them
            late = store[table].upper.time
            store[table].write([made(rng, world, table)], at=late + 1)
            store[table].write([made(rng, world, table)], at=late)
    top = max(store[table].upper.time for table in world.tables) + rng.randrange(3)
    store.seal(list(world.tables), top, if_behind="ignore")
    for table in world.tables:
        if rng.random() < 0.2:
            store[table].compact(wait=True)
        if rng.random() < 0.2:
            store[table].expire(max(top - 2, 0))
    if rng.random() < 0.3:
        store.maintain()


def plain(value):
    """A value as JSON has it; doubles to nine digits."""
    if isinstance(value, list):
        return tuple(map(plain, value))
    if isinstance(value, dict):
        return tuple(map(plain, value.values()))
    if isinstance(value, datetime.datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%S.000Z")
    if isinstance(value, datetime.date):
        return value.isoformat()
    if value is None or isinstance(value, bool | str):
        return value
    number = float(value)
    return "NaN" if math.isnan(number) else float(f"{number:.9g}") + 0.0


def answers(spark, tables, schemas, queries):
    """What Spark answers to texts, some in one job."""
    rows = {name: Counter() for name in queries}
    with borrowed(spark) as inner:
        for key, value in FAST.items():
            inner.conf.set(key, value)
        source = SparkSource(inner, None)
        for name, table in tables.items():
            source.local(pl.DataFrame(pl.from_arrow(table)), schemas[name]).createOrReplaceTempView(name)
        names = list(queries)
        for start in range(0, len(names), BATCH):
            texts = [
                f"SELECT {place} AS view, {ROW} AS row FROM ({queries[name]}) q"
                for place, name in enumerate(names[start : start + BATCH], start)
            ]
            for row in inner.sql(" UNION ALL ".join(texts)).toArrow().to_pylist():
                values = json.loads(row["row"], parse_float=decimal.Decimal).values()
                rows[names[row["view"]]][tuple(map(plain, values))] += 1
        for name in tables:
            inner.catalog.dropTempView(name)
        for key in FAST:
            inner.conf.unset(key)
    return rows


def counted(view, time):
    """Return the rows of a view with their counts, each of which is positive."""
    found = Counter()
    for row in view.snapshot(as_of=time, multiplicity="column").to_pylist():
        assert row["_diff"] > 0, row
        found[tuple(plain(v) for name, v in row.items() if name != "_diff")] += row["_diff"]
    return found


def refreshed(rng, store, spark, world, views, share):
    """Refresh all views to one time, some on Spark."""
    time = min(store[table].upper.time for table in world.tables) - 1
    chosen = rng.sample(sorted(views), max(1, round(share * len(views))))
    on_spark = sorted(name for name in views if name in world.only_spark or name in chosen)
    others = [views[name].name for name in views if name not in on_spark]
    if others:
        done = store.refresh(others, through=time, engine="process")
        assert {each.how for each in done.values()} <= {"changes", "none"}
    # Of views that only Spark computes, the driver may compute parts, unless all is asked of Spark.
    by_driver = [name for name in on_spark if name in world.only_spark and rng.random() < 0.5]
    for names, engine in ((by_driver, None), ([name for name in on_spark if name not in by_driver], "spark")):
        if names:
            done = store.refresh([views[name].name for name in names], through=time, spark=spark, engine=engine)
            assert {(each.engine, each.how) for each in done.values()} <= {("spark", "changes"), ("none", "none")}
    return time


def follow_history(spark, path, world, seed, points, share):
    """Let all views of a world follow a history, and compare all of them with Spark at all refresh points."""
    rng = random.Random(seed)
    schemas = {name: parse_schema(columns) for name, (_, columns, _) in world.tables.items()}
    with ts.open(path, maintenance=False) as store:
        for table, (_, columns, key) in world.tables.items():
            store.create(table, schema=columns, key=key or None, timeline="counter")
        change(rng, store, world, 8)
        change(rng, store, world, 8)
        views = {
            name: store.view(f"v{place}", sql=sql, policy="incremental", spark=spark, check=False)
            for place, (name, sql) in enumerate(world.queries.items())
        }
        seen = {}
        for number in range(points):
            change(rng, store, world, 2 if number % 2 else 5)
            time = refreshed(rng, store, spark, world, views, share)
            seen[time] = {name: store[name].snapshot(as_of=time).to_arrow() for name in world.tables}
        wrong = []
        for time, tables in seen.items():
            told = answers(spark, tables, schemas, world.queries)
            for name, view in views.items():
                got = counted(view, time)
                if got != told[name]:
                    wrong.append((name, time, dict(got - told[name]), dict(told[name] - got)))
        assert not wrong, "\n".join(map(str, wrong[:5]))


@pytest.mark.parametrize("name", sorted(WORLDS))
def test_every_view_is_what_spark_answers_at_every_refresh_point(spark, tmp_path, name):
    world = WORLDS[name]
    follow_history(spark, tmp_path / "store", world, 1, 1 if world.only_spark else 2, SHARES.get(name, 0.01))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", sorted(WORLDS))
def test_long_histories_of_every_view(spark, tmp_path, name, seed):
    follow_history(spark, tmp_path / "store", WORLDS[name], 100 + seed, 6, 0.2)


def test_there_are_enough_views():
    assert sum(len(world.queries) for world in WORLDS.values()) >= 150
    assert len(DS) >= 40

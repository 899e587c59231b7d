"""All 22 queries of TPC-H as incremental views, over random histories of tiny tables: DuckDB answers the same text."""

import datetime
import decimal
import random

import pytest
from test_view_histories import answer_over
from tpch import QUERIES, TABLES

import timespine as ts

KEYS = {
    "lineitem": ["l_orderkey", "l_linenumber"],
    "orders": ["o_orderkey"],
    "customer": ["c_custkey"],
    "part": ["p_partkey"],
    "supplier": ["s_suppkey"],
    "partsupp": ["ps_partkey", "ps_suppkey"],
    "nation": ["n_nationkey"],
    "region": ["r_regionkey"],
}
NATIONS = ["FRANCE", "GERMANY", "BRAZIL", "SAUDI ARABIA", "CANADA", "INDIA"]
REGIONS = ["EUROPE", "AMERICA", "ASIA"]
CHOICES = {
    "l_returnflag": ["R", "A", "N"],
    "l_linestatus": ["O", "F"],
    "l_shipmode": ["MAIL", "SHIP", "AIR"],
    "l_shipinstruct": ["DELIVER IN PERSON", "NONE"],
    "o_orderstatus": ["F", "O"],
    "o_orderpriority": ["1-URGENT", "2-HIGH", "5-LOW"],
    "o_comment": ["special requests", "plain", None],
    "c_mktsegment": ["BUILDING", "AUTOMOBILE"],
    "c_phone": ["13-1", "31-2", "99-3"],
    "p_name": ["forest green", "green", "blue"],
    "p_brand": ["Brand#12", "Brand#23", "Brand#34", "Brand#45"],
    "p_type": ["ECONOMY ANODIZED STEEL", "PROMO BRASS", "SMALL BRASS", "MEDIUM POLISHED TIN"],
    "p_container": ["SM CASE", "MED BOX", "LG CASE"],
    "p_size": [1, 3, 9, 15],
    "s_comment": ["Customer Complaints", "fine", None],
}
DATES = ["1993-08-01", "1993-11-05", "1994-01-31", "1994-06-30", "1995-03-10", "1995-03-20", "1995-09-15", "1996-02-01"]


def cell(rng, name, kind):
    """A value that the conditions of the queries look at."""
    if name in CHOICES:
        return rng.choice(CHOICES[name])
    if name == "n_name":
        return rng.choice(NATIONS)
    if name == "r_name":
        return rng.choice(REGIONS)
    if name in ("l_discount", "l_tax"):
        return decimal.Decimal(rng.choice(["0.05", "0.06", "0.07", "0.00"]))
    if name == "l_quantity":
        return decimal.Decimal(rng.choice([3, 11, 20, 23, 170, 200]))
    if kind == "date":
        return datetime.date.fromisoformat(rng.choice(DATES))
    if kind.startswith("decimal"):
        return decimal.Decimal(rng.randrange(-50, 5000)) / 100
    if kind in ("int", "bigint"):
        return rng.randrange(5)
    return f"{name}{rng.randrange(3)}"


def made(rng, table):
    columns = [each.rsplit(" ", 1) for each in TABLES[table].replace(", ", ",").replace("(15,2)", "(15;2)").split(",")]
    return {name: cell(rng, name, kind) for name, kind in columns}


def change(rng, store, most):
    with store.transaction() as tx:
        for table, key in KEYS.items():
            count = rng.randrange(most * (3 if table == "lineitem" else 1) + 1)
            rows = {tuple(row[name] for name in key): row for row in (made(rng, table) for _ in range(count))}
            if rows and rng.random() < 0.25:
                tx.delete(table, list(rows.values()))
            elif rows:
                tx.upsert(table, list(rows.values()))
    top = max(store[table].upper.time for table in KEYS)
    store.seal(list(KEYS), top, if_behind="ignore")


def plain(value):
    return round(float(value), 3) if isinstance(value, float | decimal.Decimal) else value


@pytest.mark.parametrize("part", range(4))
def test_every_query_is_incremental_and_right_at_every_refresh(tmp_path, part):
    rng = random.Random(part)
    chosen = sorted(QUERIES)[part::4]
    with ts.open(tmp_path / "store") as store:
        for table, columns in TABLES.items():
            store.create(table, schema=columns, key=KEYS[table], timeline="counter")
        change(rng, store, 12)
        change(rng, store, 12)
        views = {number: store.view(f"q{number}", sql=QUERIES[number], policy="incremental") for number in chosen}
        for step in range(5):
            change(rng, store, 2 if step % 2 else 6)
            done = store.refresh()
            assert {each.how for each in done.values()} == {"changes"}
            time = done[f"q{chosen[0]}"].time
            tables = {table: store[table].snapshot(as_of=time).to_arrow() for table in TABLES}
            for number, view in views.items():
                told = sorted(
                    (tuple(map(plain, row)) for row in answer_over(tables, QUERIES[number]).elements()), key=repr
                )
                got = sorted(
                    (tuple(map(plain, row.values())) for row in view.snapshot(as_of=time).to_pylist()), key=repr
                )
                assert got == told, number
                assert view.verify().is_exact, number

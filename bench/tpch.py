"""Data of TPC-H by its rules of cardinality, dates, prices and words, made with NumPy from a seed; and changes of it.

There is no dbgen here: texts are shorter and drawn from fewer words, so that figures are of this data only. What the
22 queries look at (dates, segments, brands, types, words in names and comments) has the shares of the specification.
"""

from __future__ import annotations

import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

_WRITTEN = runpy.run_path(str(Path(__file__).parents[1] / "tests" / "views" / "tpch.py"))
QUERIES: dict[int, str] = _WRITTEN["QUERIES"]
"""The 22 queries in Spark SQL."""
TABLES: dict[str, str] = _WRITTEN["TABLES"]
"""The columns of the tables."""

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

NATIONS = [
    *("ALGERIA 0", "ARGENTINA 1", "BRAZIL 1", "CANADA 1", "EGYPT 4", "ETHIOPIA 0", "FRANCE 3", "GERMANY 3", "INDIA 2"),
    *("INDONESIA 2", "IRAN 4", "IRAQ 4", "JAPAN 2", "JORDAN 4", "KENYA 0", "MOROCCO 0", "MOZAMBIQUE 0", "PERU 1"),
    *("CHINA 2", "ROMANIA 3", "SAUDI ARABIA 4", "VIETNAM 2", "RUSSIA 3", "UNITED KINGDOM 3", "UNITED STATES 1"),
]
REGIONS = ["AFRICA", "AMERICA", "ASIA", "EUROPE", "MIDDLE EAST"]
COLOURS = [
    *("almond", "azure", "beige", "black", "blue", "brown", "coral", "cream", "cyan", "dark", "forest", "gold"),
    *("green", "grey", "ivory", "khaki", "lime"),
]
WORDS = [
    *("quickly", "final", "ideas", "sleep", "among", "deposits", "carefully", "bold", "requests", "haggle", "special"),
    *("Customer", "Complaints"),
]
SYLLABLES = (
    ["STANDARD", "SMALL", "MEDIUM", "LARGE", "ECONOMY", "PROMO"],
    ["ANODIZED", "BURNISHED", "PLATED", "POLISHED", "BRUSHED"],
    ["TIN", "NICKEL", "BRASS", "STEEL", "COPPER"],
)
CONTAINERS = (["SM", "LG", "MED", "JUMBO", "WRAP"], ["CASE", "BOX", "BAG", "JAR", "PKG", "PACK", "CAN", "DRUM"])
FIRST_DAY = int(np.datetime64("1992-01-01").astype(int))
LAST_DAY = int(np.datetime64("1998-08-02").astype(int))
TODAY = int(np.datetime64("1995-06-17").astype(int))

Rng = np.random.Generator


def _choose(rng: Rng, words: Sequence[str], count: int) -> np.ndarray:
    return np.array(words, object)[rng.integers(0, len(words), count)]


def _joined(rng: Rng, lists: Sequence[Sequence[str]], count: int) -> pl.Series:
    return pl.select(pl.concat_str([pl.Series(_choose(rng, each, count)) for each in lists], separator=" ")).to_series()


def _text(rng: Rng, count: int) -> pl.Series:
    return _joined(rng, [WORDS] * 4, count)


def _money(cents: Any) -> pl.Series:
    """Return amounts of cents as decimal(15,2)."""
    table = pa.array(np.asarray(cents, np.int64)).cast(pa.decimal128(20, 0))
    frame = pl.DataFrame({"x": pl.from_arrow(table)})
    return frame.select((pl.col("x").cast(pl.Decimal(20, 2)) / 100).cast(pl.Decimal(15, 2))).to_series()


def _dates(days: Any) -> pl.Series:
    return pl.Series(np.asarray(days, np.int32)).cast(pl.Date)


def _numbered(prefix: str, keys: np.ndarray) -> pl.Series:
    return pl.select(pl.concat_str([pl.lit(prefix), pl.Series(keys).cast(pl.String).str.zfill(9)])).to_series()


def _phones(rng: Rng, nations: np.ndarray) -> pl.Series:
    rest = pl.Series(rng.integers(100_0000, 999_9999, len(nations))).cast(pl.String)
    return pl.select(pl.concat_str([pl.Series(nations + 10).cast(pl.String), rest], separator="-")).to_series()


class Shop:
    """All tables as they are now, and the changes that lead on."""

    def __init__(self, scale: float, seed: int = 1) -> None:
        self.rng = np.random.default_rng(seed)
        self.scale = scale
        self.parts, self.suppliers = int(200_000 * scale), max(int(10_000 * scale), 10)
        self.customers = int(150_000 * scale)
        self.next_order = 1
        self.tables: dict[str, pl.DataFrame] = {}
        self.tables |= self._fixed()
        orders, lines = self._orders(int(1_500_000 * scale))
        self.tables |= {"orders": orders, "lineitem": lines}

    def _fixed(self) -> dict[str, pl.DataFrame]:
        """Make the tables that orders refer to."""
        rng, parts, suppliers = self.rng, self.parts, self.suppliers
        names = [each.rsplit(" ", 1) for each in NATIONS]
        nation = {"n_nationkey": range(25), "n_name": [name for name, _ in names]}
        region = {"r_regionkey": range(5), "r_name": REGIONS, "r_comment": ["region"] * 5}
        keys = np.arange(1, parts + 1)
        home = rng.integers(0, 25, suppliers)
        supplied = np.repeat(keys, 4)
        turn = np.tile(np.arange(4), parts)
        return {
            "nation": pl.DataFrame({**nation, "n_regionkey": [int(r) for _, r in names], "n_comment": ["nation"] * 25}),
            "region": pl.DataFrame(region),
            "customer": self._customers(np.arange(1, self.customers + 1)),
            "supplier": pl.DataFrame(
                {
                    "s_suppkey": np.arange(1, suppliers + 1),
                    "s_name": _numbered("Supplier#", np.arange(1, suppliers + 1)),
                    "s_address": _text(rng, suppliers),
                    "s_nationkey": home.astype(np.int32),
                    "s_phone": _phones(rng, home),
                    "s_acctbal": _money(rng.integers(-99_999, 999_999, suppliers)),
                    "s_comment": _text(rng, suppliers),
                }
            ),
            "part": pl.DataFrame(
                {
                    "p_partkey": keys,
                    "p_name": _joined(rng, [COLOURS] * 3, parts),
                    "p_mfgr": _choose(rng, [f"Manufacturer#{n}" for n in range(1, 6)], parts),
                    "p_brand": _choose(rng, [f"Brand#{a}{b}" for a in range(1, 6) for b in range(1, 6)], parts),
                    "p_type": _joined(rng, SYLLABLES, parts),
                    "p_size": rng.integers(1, 51, parts).astype(np.int32),
                    "p_container": _joined(rng, CONTAINERS, parts),
                    "p_retailprice": _money(90_000 + (keys // 10) % 20_001 + 100 * (keys % 1000)),
                    "p_comment": _text(rng, parts),
                }
            ),
            "partsupp": pl.DataFrame(
                {
                    "ps_partkey": supplied,
                    "ps_suppkey": self._supplier(supplied, turn),
                    "ps_availqty": rng.integers(1, 10_000, len(supplied)).astype(np.int32),
                    "ps_supplycost": _money(rng.integers(100, 100_000, len(supplied))),
                    "ps_comment": _text(rng, len(supplied)),
                }
            ),
        }

    def _supplier(self, part: np.ndarray, turn: np.ndarray) -> np.ndarray:
        """Return one of the four suppliers of a part, all different."""
        count = self.suppliers
        return (part + turn * (count // 4 + (part - 1) // count)) % count + 1

    def _customers(self, keys: np.ndarray) -> pl.DataFrame:
        rng, count = self.rng, len(keys)
        home = rng.integers(0, 25, count)
        segments = ["AUTOMOBILE", "BUILDING", "FURNITURE", "MACHINERY", "HOUSEHOLD"]
        return pl.DataFrame(
            {
                "c_custkey": keys,
                "c_name": _numbered("Customer#", keys),
                "c_address": _text(rng, count),
                "c_nationkey": home.astype(np.int32),
                "c_phone": _phones(rng, home),
                "c_acctbal": _money(rng.integers(-99_999, 999_999, count)),
                "c_mktsegment": _choose(rng, segments, count),
                "c_comment": _text(rng, count),
            }
        )

    def _orders(self, count: int) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Make orders with one to seven lines each; two thirds of the customers order."""
        rng = self.rng
        keys = np.arange(self.next_order, self.next_order + count)
        self.next_order += count
        day = rng.integers(FIRST_DAY, LAST_DAY - 151, count)
        lines = rng.integers(1, 8, count)
        order = np.repeat(np.arange(count), lines)
        number = np.arange(len(order)) - np.repeat(np.cumsum(lines) - lines, lines) + 1
        part = rng.integers(1, self.parts + 1, len(order))
        quantity = rng.integers(1, 51, len(order))
        shipped = day[order] + rng.integers(1, 122, len(order))
        received = shipped + rng.integers(1, 31, len(order))
        price = quantity * (90_000 + (part // 10) % 20_001 + 100 * (part % 1000))
        is_open = shipped > TODAY
        unshipped = np.bincount(order, is_open, count)
        status = np.where(unshipped == 0, "F", np.where(unshipped == lines, "O", "P")).astype(object)
        customer = rng.integers(0, max(self.customers // 3, 1), count) * 3 + rng.integers(1, 3, count)
        priorities = ["1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW"]
        instructions = ["DELIVER IN PERSON", "COLLECT COD", "NONE", "TAKE BACK RETURN"]
        orders = pl.DataFrame(
            {
                "o_orderkey": keys,
                "o_custkey": np.minimum(customer, self.customers),
                "o_orderstatus": status,
                "o_totalprice": _money(np.bincount(order, price, count)),
                "o_orderdate": _dates(day),
                "o_orderpriority": _choose(rng, priorities, count),
                "o_clerk": _choose(rng, [f"Clerk#{n:09}" for n in range(1000)], count),
                "o_shippriority": np.zeros(count, np.int32),
                "o_comment": _text(rng, count),
            }
        )
        lineitem = pl.DataFrame(
            {
                "l_orderkey": keys[order],
                "l_partkey": part,
                "l_suppkey": self._supplier(part, rng.integers(0, 4, len(order))),
                "l_linenumber": number.astype(np.int32),
                "l_quantity": _money(quantity * 100),
                "l_extendedprice": _money(price),
                "l_discount": _money(rng.integers(0, 11, len(order))),
                "l_tax": _money(rng.integers(0, 9, len(order))),
                "l_returnflag": np.where(
                    received > TODAY, "N", np.where(rng.random(len(order)) < 0.5, "R", "A")
                ).astype(object),
                "l_linestatus": np.where(is_open, "O", "F").astype(object),
                "l_shipdate": _dates(shipped),
                "l_commitdate": _dates(day[order] + rng.integers(30, 91, len(order))),
                "l_receiptdate": _dates(received),
                "l_shipinstruct": _choose(rng, instructions, len(order)),
                "l_shipmode": _choose(rng, ["REG AIR", "AIR", "RAIL", "SHIP", "TRUCK", "MAIL", "FOB"], len(order)),
                "l_comment": _text(rng, len(order)),
            }
        )
        return orders, lineitem

    def arrow(self, table: str) -> pa.Table:
        """Return a table as it is now."""
        return self.tables[table].to_arrow()

    def change(self, share: float) -> dict[str, pa.Table]:
        """Change a share of the shop; return the updates of each table.

        Half of the share of orders leaves with its lines, as many come; the share of customers gets other values.
        """
        rng, updates = self.rng, {}
        orders, lines, customers = self.tables["orders"], self.tables["lineitem"], self.tables["customer"]
        count = max(int(len(orders) * share / 2), 1)
        gone = pl.DataFrame({"key": rng.choice(orders["o_orderkey"].to_numpy(), count, replace=False)})
        new_orders, new_lines = self._orders(count)
        for name, table, key, new in (
            ("orders", orders, "o_orderkey", new_orders),
            ("lineitem", lines, "l_orderkey", new_lines),
        ):
            left = table.join(gone, left_on=key, right_on="key", how="semi")
            updates[name] = _updates(left, new)
            self.tables[name] = pl.concat([table.join(gone, left_on=key, right_on="key", how="anti"), new])
        keys = rng.choice(customers["c_custkey"].to_numpy(), max(int(len(customers) * share), 1), replace=False)
        moved = pl.DataFrame({"c_custkey": keys})
        left, new = customers.join(moved, on="c_custkey", how="semi"), self._customers(np.sort(keys))
        updates["customer"] = _updates(left, new)
        self.tables["customer"] = pl.concat([customers.join(moved, on="c_custkey", how="anti"), new])
        return updates


def _updates(gone: pl.DataFrame, new: pl.DataFrame) -> pa.Table:
    both = pl.concat([gone.with_columns(_diff=pl.lit(-1, pl.Int64)), new.with_columns(_diff=pl.lit(1, pl.Int64))])
    return both.to_arrow()

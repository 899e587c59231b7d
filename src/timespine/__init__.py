"""Collections that change over time.

import timespine as ts

store = ts.open("./data")
orders = store.create("orders", key={"id": "int64"}, value={"total": "double"})
"""

from typing import Any

from timespine.client.collection import Collection
from timespine.client.open_store import open
from timespine.client.store import Store
from timespine.columnar.predicate.column import col
from timespine.config import Config

__version__ = "0.1.0"

__all__ = ["Collection", "Config", "Store", "__version__", "col", "open"]


def __getattr__(name: str) -> Any:
    """`ts.spark`, loaded when it is asked for: it needs `timespine[spark]`."""
    if name != "spark":
        raise AttributeError(f"module 'timespine' has no attribute {name!r}")
    import importlib

    return importlib.import_module("timespine.spark")

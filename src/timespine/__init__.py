"""Collections that change over time.

import timespine as ts

store = ts.open("./data")
orders = store.create("orders", key={"id": "int64"}, value={"total": "double"})
"""

from timespine.client.collection import Collection
from timespine.client.opening import open
from timespine.client.store import Store
from timespine.columnar.where import col
from timespine.config import Config

__version__ = "0.1.0"

__all__ = ["Collection", "Config", "Store", "__version__", "col", "open"]

"""The systems, by name: where each lives, and which interpreter runs it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from bench.peers import install
from bench.peers.system import System

SYSTEMS = {
    "ours": "bench.ours:Ours",
    "deltalake": "bench.peers.delta:Delta",
    "pyiceberg": "bench.peers.iceberg:Iceberg",
    "ducklake": "bench.peers.ducklake:DuckLake",
    "duckdb": "bench.peers.duckdb_table:DuckTable",
    "polars": "bench.peers.polars_files:PolarsFiles",
    "rocksdict": "bench.peers.rocks:Rocks",
    "pyarrow": "bench.peers.arrow:Arrow",
}


def system(name: str) -> type[System]:
    """The class of a system; ImportError when its library is not there."""
    module, _, attribute = SYSTEMS[name].partition(":")
    found: type[System] = getattr(importlib.import_module(module), attribute)
    return found


def interpreter(name: str) -> Path:
    """Who runs a system: this interpreter, except for DuckLake where its own environment was made."""
    if name == "ducklake" and install.PYTHON.exists():
        return install.PYTHON
    return Path(sys.executable)

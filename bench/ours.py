"""Timespine, by its public API only."""

from __future__ import annotations

import timespine as ts
from bench.peers.system import System

KEY = {"id": "int64"}
VALUE = {"customer": "string", "total": "double", "created": "timestamp[us]", "note": "string"}


class Ours(System):
    """Background maintenance as it is by default, except where a work is about its absence."""

    name = "ours"
    kind = "ours"
    commit = "blob, folder and consensus (SQLite) are fsynced"
    packages = ("pyarrow", "polars", "numpy")

    _open = staticmethod(ts.open)
    _maintenance = True

    @classmethod
    def versions(cls) -> dict[str, str]:
        return {"timespine": ts.__version__, **super().versions()}

"""Setups that several works share: a loaded table, and the same after upserts."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from bench.peers.system import System
from bench.rows import Digest, digest, minus, plus, rows, sample
from bench.works.work import Out, Size, State, Work


class Loaded(Work):
    """A table of `base` rows, in the order of their ids, from one commit."""

    def setup_key(self, size: Size) -> str:
        return f"loaded-{size['base']}"

    def setup(self, system: System, size: Size, out: Out) -> State:
        base = rows(np.arange(size["base"]))
        system.create()
        system.load(base)
        state = {"loaded": system.version(), "digest": digest(base)}
        system.close()
        return state


class Upserted(Loaded):
    """The same, after one upsert of `upsert` rows."""

    needs = ("append", "upsert")

    def setup_key(self, size: Size) -> str:
        return f"upserted-{size['base']}-{size['upsert']}"

    def setup(self, system: System, size: Size, out: Out) -> State:
        state = super().setup(system, size, out)
        system.open()
        system.upsert(upsert_rows(size))
        state["upserted"] = system.version()
        system.close()
        return state


def forget(system: System) -> None:
    """Expire every version but the latest, and compact what is left."""
    system.expire()
    if system.why_not("compact") is None:
        system.compact()


def upsert_rows(size: Size, version: int = 1) -> pa.Table:
    """Nine of ten have an id that is there, at random; the rest is new."""
    return rows(_upsert_ids(size, version), version)


def replaced(size: Size, version: int = 1) -> int:
    """How many of those are there already."""
    return int((_upsert_ids(size, version) < size["base"]).sum())


def after_upserts(before: Digest, size: Size, count: int = 1) -> Digest:
    """Return the digest of the table after its first upserts."""
    found = before
    versions = np.full(size["base"] + count * (size["upsert"] // 10), -1, dtype=np.int8)
    versions[: size["base"]] = 0
    for version in range(1, count + 1):
        ids = _upsert_ids(size, version)
        for old in range(version):
            found = minus(found, digest(rows(ids[versions[ids] == old], old)))
        found = plus(found, digest(rows(ids, version)))
        versions[ids] = version
    return found


def _upsert_ids(size: Size, version: int) -> np.ndarray:
    count, base = size["upsert"], size["base"]
    new = count // 10
    first = base + (version - 1) * new
    return np.concatenate([sample(count - new, base, version), np.arange(first, first + new, dtype=np.int64)])

"""Rows that the views of a refresh share, or that a process keeps, are those that the store gives, before and after."""

import random
from collections import Counter
from contextlib import ExitStack
from itertools import pairwise

import polars as pl
import pyarrow as pa
import pytest
from test_view_histories import answer_over
from test_views import SUMS, filled

import timespine as ts
from timespine.client.api_for_engines import handle_of
from timespine.views.engine import kept_rows, store_source, touched_rows
from timespine.views.engine.evaluate import Keys
from timespine.views.engine.lowering import WEIGHT
from timespine.views.engine.store_source import InputReader
from timespine.views.engine.touched_rows import TouchedInputs
from timespine.views.plan.delta import NEW, OLD

NAMES = {"k": "k", "g": "g", "v": "v"}
BY = [("k",), ("g",), ("g", "k"), ("v",)]


def counted(frame, columns):
    counts = Counter()
    for row in frame.to_dicts():
        counts[tuple(row[name] for name in columns)] += row[WEIGHT]
    return Counter({row: count for row, count in counts.items() if count})


def change(rng, store):
    def cell(limit):
        return None if rng.random() < 0.2 else rng.randrange(limit)

    rows = [{"k": rng.randrange(6), "g": rng.randrange(3), "v": cell(4)} for _ in range(rng.randrange(1, 9))]
    if rng.random() < 0.4:
        store["a"].delete([{"k": row["k"], "g": row["g"]} for row in rows])
    else:
        store["a"].append(rows)


def some_keys(rng, names):
    kinds = {"k": 8, "g": 4, "v": 5}
    rows = [
        {name: None if name == "v" and rng.random() < 0.3 else rng.randrange(kinds[name]) for name in names}
        for _ in range(rng.randrange(5))
    ]
    frame = pl.DataFrame(rows, schema=dict.fromkeys(names, pl.Int64)).unique()
    return Keys(names, frame)


@pytest.mark.parametrize("way", ["kept", "kept no longer", "arranged", "read"])
@pytest.mark.parametrize("seed", range(6))
def test_shared_rows_are_those_of_plain_reads_before_and_after(tmp_path, monkeypatch, seed, way):
    rng = random.Random(seed)
    if way == "kept no longer":
        monkeypatch.setattr(kept_rows, "KEPT_SHARE", 1 << 40)
    elif way != "kept":
        monkeypatch.setattr(kept_rows, "KEPT_ROWS", -1)
    with ts.open(tmp_path / "store") as store:
        store.create("a", key={"k": "int64", "g": "int64"}, value={"v": "int64"}, timeline="counter")
        for _ in range(8):
            change(rng, store)
        handle, last = handle_of(store["a"]), store["a"].upper.time - 1
        times = sorted(rng.sample(range(last + 1), min(last + 1, 4)))
        arranged = ExitStack()
        if way == "arranged":
            for by in (["k", "g"], ["g"], ["v"]):
                arrangement = arranged.enter_context(store["a"].arrange(by=by, history="all"))
                assert arrangement.rows_as_of(last, pa.table({by[0]: pa.array([], pa.int64())}), 0) is not None
        with arranged:
            for before, after in pairwise(times):
                compare(rng, handle, before, after)


def compare(rng, handle, before, after):
    touched = TouchedInputs()
    touched.expect(handle, ["k", "v"] if rng.random() < 0.5 else ["v"])
    touched.expect(handle, ["g", "k"])
    plain = InputReader(handle, NAMES, before, after)
    shared = InputReader(handle, NAMES, before, after, touched=touched.of(handle, before, after))
    assert touched.of(handle, before, after) is shared.touched
    for _ in range(8):
        columns = rng.choice([["k", "g", "v"], ["v"], ["g", "k"]])
        keys, version = some_keys(rng, rng.choice(BY)), rng.choice((OLD, NEW))
        whole = plain.rows(version, ["k", "g", "v"], None)
        assert counted(shared.rows(version, columns, None), columns) == counted(whole, columns)
        got = shared.rows(version, columns, keys)
        assert counted(got, columns) == counted(keys.only(whole), columns), (version, keys, columns)
        assert len(got) == 0 or got[WEIGHT].min() > 0
        assert counted(shared.changes(columns), columns) == counted(plain.changes(columns), columns)


@pytest.mark.parametrize("seed", range(4))
def test_rows_that_a_search_finds_in_row_groups_are_those_of_a_scan(tmp_path, monkeypatch, seed):
    """Row groups of many rows with few wanted keys, of a part that is merged and of later ones that retract."""
    monkeypatch.setattr(kept_rows, "KEPT_ROWS", -1)
    rng = random.Random(seed)
    config = ts.Config(row_group_rows=128, inline_part_bytes=1)
    with ts.open(tmp_path / "store", config=config) as store:
        store.create("a", key={"k": "int64", "g": "int64"}, value={"v": "int64"}, timeline="counter")
        step = rng.choice((1, 3))
        store["a"].append([{"k": k // 2 * step, "g": k % 2, "v": rng.choice((None, 1, 2))} for k in range(1500)])
        store["a"].compact(wait=True)
        store["a"].delete([{"k": k * step, "g": 0} for k in rng.sample(range(750), 20)])
        store["a"].append([{"k": rng.randrange(2500), "g": 5, "v": 7} for _ in range(20)])
        handle = handle_of(store["a"])
        plain = InputReader(handle, NAMES, 0, 2)
        for names in (("k",), ("g", "k"), ("k", "g"), ("v",)):
            wanted = pl.DataFrame([{n: rng.randrange(2400 if n == "k" else 6) for n in names} for _ in range(60)])
            keys = Keys(names, wanted.unique())
            for version in (OLD, NEW):
                whole = keys.only(plain.rows(version, ["k", "g", "v"], None))
                assert counted(plain.rows(version, ["v", "g", "k"], keys), ["k", "g", "v"]) == counted(
                    whole, ["k", "g", "v"]
                )


def test_the_changes_of_an_input_and_the_rows_of_a_key_are_read_once_for_all_views(tmp_path, monkeypatch):
    reads = Counter()
    for name in ("open_changes", "open_snapshot"):
        real = getattr(touched_rows, name)

        def counting(handle, *args, name=name, real=real):
            reads[name, handle.name] += 1
            return real(handle, *args)

        monkeypatch.setattr(touched_rows, name, counting)
        monkeypatch.setattr(kept_rows, name, counting, raising=False)
    with ts.open(tmp_path / "store") as store:
        for name in ("a", "b"):
            store.create(name, key={"k": "int64"}, value={"v": "int64"}, timeline="counter")
            store[name].append([{"k": k, "v": k} for k in range(5)])
        for number in range(4):
            sql = f"SELECT a.k, a.v + {number} AS v, b.v AS w FROM a JOIN b ON a.k = b.k"
            store.view(f"v{number}", sql=sql, policy="incremental")
        store["a"].append([{"k": 3, "v": 9}])
        store["b"].append([{"k": 4, "v": 7}])
        done = store.refresh()
        assert {each.changes for each in done.values()} == {2}
    assert reads == {
        ("open_changes", "a"): 1,
        ("open_changes", "b"): 1,
        ("open_snapshot", "a"): 1,
        ("open_snapshot", "b"): 1,
    }


def test_a_small_input_is_read_once_and_then_follows_its_changes(tmp_path, monkeypatch):
    reads = Counter()
    real = kept_rows.open_snapshot

    def counting(handle, *args):
        reads[handle.name] += 1
        return real(handle, *args)

    monkeypatch.setattr(kept_rows, "open_snapshot", counting)
    monkeypatch.setattr(touched_rows, "open_snapshot", counting)
    with ts.open(tmp_path / "store") as store:
        for name in ("a", "b"):
            store.create(name, key={"k": "int64"}, value={"v": "int64"}, timeline="counter")
            store[name].append([{"k": k, "v": k} for k in range(5)])
        view = store.view("v", sql="SELECT a.k, a.v, b.v AS w FROM a JOIN b ON a.k = b.k", policy="incremental")
        for turn in range(4):
            store["a"].upsert([{"k": turn, "v": 10 + turn}])
            store["b"].upsert([{"k": 4, "v": 20 + turn}])
            view.refresh()
        rows = {row["k"]: (row["v"], row["w"]) for row in view.snapshot().to_pylist()}
    assert rows == {0: (10, 0), 1: (11, 1), 2: (12, 2), 3: (13, 3), 4: (4, 23)}
    assert reads == {"a": 1, "b": 1}


def test_a_view_reads_a_large_input_through_an_arrangement_if_there_is_one(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_rows, "KEPT_ROWS", -1)
    reads = Counter()
    real = touched_rows.open_snapshot
    monkeypatch.setattr(
        touched_rows, "open_snapshot", lambda handle, *args: reads.update([handle.name]) or real(handle, *args)
    )
    with ts.open(tmp_path / "store") as store:
        for name in ("a", "b"):
            store.create(name, key={"k": "int64"}, value={"v": "int64"}, timeline="counter")
            store[name].append([{"k": k, "v": k} for k in range(5)])
        view = store.view("v", sql="SELECT a.k, b.v AS w FROM a JOIN b ON a.v = b.k", policy="incremental")
        with store["a"].arrange(by=["v"]):
            store["b"].upsert([{"k": 2, "v": 20}])
            store["a"].upsert([{"k": 9, "v": 3}])
            view.refresh()
        assert reads == {"b": 1}
        assert sorted(row["w"] for row in view.snapshot().to_pylist()) == [0, 1, 3, 3, 4, 20]


# Groups of stages.

GROUPED = {
    "sums": SUMS,
    "whole": "SELECT sum(v) AS s, count(*) AS n FROM a",
    "means": "SELECT g, v, avg(k) AS m FROM a GROUP BY g, v",
}


def stages(store):
    return [store[name] for name in store.names(hidden=True) if name.startswith("timespine.stage.")]


def rows_of(frame):
    return Counter(frame.select(sorted(frame.columns)).rows())


@pytest.mark.parametrize("seed", range(4))
def test_kept_groups_are_those_of_the_store_though_others_refresh_too(place, seed):
    rng = random.Random(seed)
    one, two = filled(place), place.open()
    for name, sql in GROUPED.items():
        one.view(name, sql=sql)
    compared = 0
    for _ in range(12):
        rows = {k: {"k": k, "g": rng.choice([None, 0, 1]), "v": rng.randrange(3)} for k in rng.choices(range(6), k=3)}
        if rng.random() < 0.3:
            one["a"].delete([{"k": k} for k in rows])
        else:
            one["a"].upsert(list(rows.values()))
        rng.choice((one, two)).refresh()
        for store in (one, two):
            for stage in stages(store):
                known = store.collection(stage.name)
                handle = handle_of(known)
                kept = handle.context.cache.get(("view stage", handle.id))
                if kept is not None and kept[0] == known.upper.time - 1:
                    stored = Counter(
                        tuple(row[name] for name in sorted(row) if name != "_diff")
                        for row in known.snapshot(multiplicity="column").to_pylist()
                    )
                    assert rows_of(kept[1]) == stored
                    compared += 1
        table = {"a": one["a"].snapshot().to_arrow()}
        for name, sql in GROUPED.items():
            assert Counter(tuple(row.values()) for row in one[name].snapshot().to_pylist()) == answer_over(table, sql)
    assert compared >= 30


def test_a_refresh_reads_a_small_stage_once_and_a_large_one_by_its_keys(place, monkeypatch):
    store = filled(place)
    view = store.view("sums", sql=SUMS, key=["g"])
    read = []
    for module in (store_source, kept_rows):
        whole = module.open_snapshot
        monkeypatch.setattr(
            module,
            "open_snapshot",
            lambda handle, *given, whole=whole: read.append(handle.name) or whole(handle, *given),
        )

    def step(k):
        read.clear()
        store["a"].upsert([{"k": k, "g": 1, "v": 7}])
        assert view.refresh().changes
        return sum(name.startswith("timespine.stage.") for name in read)

    assert [step(1), step(2), step(3)] == [1, 0, 0]
    place.open().view("sums").refresh()
    monkeypatch.setattr(kept_rows, "KEPT_GROUPS", -1)
    assert step(4) == 0
    store["a"].upsert([{"k": 5, "g": 1, "v": 7}])
    place.open().view("sums").refresh()
    assert step(6) == 1
    assert view.verify().is_exact

"""Streams: many writers, many collections, data out of order. Each work against the same work done the plain way.

python -m bench.streams                                  everything, full sizes
python -m bench.streams groups growth --quick            some of it, small: does it run, not how fast is it
python -m bench.streams --json FILE --markdown docs/benchmarks.md

    groups    appends per second of 8 and 64 threads, with and without group commit, and of 1 to 8 processes
    upserts   upserts of one collection by 1 and 4 processes, and how often a change had to start again
    seals     one seal of 1,000 collections, against sealing them one by one
    growth    what a commit costs with 10 to 10,000 collections in the store
    drain     unsealed batches that become part of the trace, and updates from write to compact
    order     the same updates at random times by write and seal, and in order by append
    latency   from the call that writes to the listener that has the row

Everything is a folder with SQLite, each commit fsynced. What is compared runs in turns; what is
printed is the median of the repetitions, their spread, and the ratio of ours to the other. Where it
says so a figure is a rate, of which more is better, or a count; all others are times. At the end stand the figures
that have an aim: 8 threads, and 8 processes of 8 threads, of `groups`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sqlite3
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

import timespine as ts
from bench.report import machine, put_between
from bench.streams_report import BEGIN, END, aims, markdown
from bench.streams_runs import (
    KEY,
    NOTE_BYTES,
    QUICK,
    VALUE,
    Bench,
    Sizes,
    in_threads,
    prefixed,
    race,
    require,
    seconds_of,
    spread,
    wait_for_start,
)
from bench.streams_upserts import upserts
from bench.usage import used
from timespine.client.catalog.catalog import CatalogEntry, first_state, fresh_collection_id
from timespine.client.commit import leader_queue
from timespine.columnar.schema.schema import define
from timespine.core.encoding.codec import encode_state
from timespine.core.protocols import maintain
from timespine.location.consensus import LogWrite

# Many writers.


def groups(bench: Bench) -> None:
    """Appends of one row of 100 bytes, by threads of one process, for some seconds."""
    for writers in bench.sizes.writers:
        bench.compare(
            f"appends of one row by {writers} threads",
            **{
                "ours": lambda writers=writers: _appends(bench, writers, _as_rows),
                "ours, Arrow tables": lambda writers=writers: _appends(bench, writers, _as_table),
                "without group commit": lambda writers=writers: _alone(bench, writers),
                "SQLite, a commit per row": lambda writers=writers: _sqlite(bench, writers),
            },
        )
    for many in bench.sizes.processes:
        bench.compare(
            f"appends of one row by {many} process{'es' if many > 1 else ''} of {bench.sizes.writers[0]} threads",
            ours=lambda many=many: _processes(bench, many, bench.sizes.writers[0]),
        )


def _as_rows(id: int, note: str) -> Any:
    return [{"id": id, "note": note}]


def _as_table(id: int, note: str) -> Any:
    return pa.table({"id": [id], "note": [note]})


def _appends(bench: Bench, writers: int, rows: Callable[[int, str], Any]) -> dict[str, float]:
    with bench.store() as store:
        log = store.create("log", key=KEY, value=VALUE, timeline="counter")
        log.append(rows(-1, "first"))
        figures, done = _written(writers, bench.sizes.seconds, lambda id, note: log.append(rows(id, note)))
        require(log.snapshot().count() == done + 1, "rows are missing, or there twice")
    return figures


def _alone(bench: Bench, writers: int) -> dict[str, float]:
    """The same, where no two writers share a commit."""
    most, leader_queue.GROUP_MAX = leader_queue.GROUP_MAX, 1
    try:
        return _appends(bench, writers, _as_rows)
    finally:
        leader_queue.GROUP_MAX = most


def _sqlite(bench: Bench, writers: int) -> dict[str, float]:
    """A table of SQLite, as durable: what one commit per row costs by itself."""
    path = bench.folder / "rows.db"
    path.unlink(missing_ok=True)
    turn = threading.Lock()
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE log (id INTEGER, note TEXT)")

        def insert(id: int, note: str) -> None:
            with turn:
                connection.execute("INSERT INTO log VALUES (?, ?)", (id, note))

        figures, done = _written(writers, bench.sizes.seconds, insert)
        require(connection.execute("SELECT count(*) FROM log").fetchone() == (done,), "rows are missing")
    return figures


def _written(
    writers: int, seconds: float, write: Callable[[int, str], Any], first: int = 0
) -> tuple[dict[str, float], int]:
    """Let threads write rows for some seconds: how many per second, how long one takes, and how many in all."""
    notes = [np.random.default_rng(number).bytes(NOTE_BYTES // 2).hex() for number in range(64)]
    times: list[list[float]] = [[] for _ in range(writers)]
    began, cpu_s = time.perf_counter(), used().cpu_s

    def work(writer: int) -> None:
        id = first + writer
        while (start := time.perf_counter()) < began + seconds:
            write(id, notes[id % 64])
            times[writer].append(time.perf_counter() - start)
            id += writers

    in_threads([lambda writer=writer: work(writer) for writer in range(writers)])
    lasted = time.perf_counter() - began
    done = sum(map(len, times))
    figures = {"appends per second": done / lasted, **spread([each for some in times for each in some])}
    return {**figures, "CPU time per append": (used().cpu_s - cpu_s) / done}, done


def _processes(bench: Bench, processes: int, writers: int) -> dict[str, float]:
    with bench.store() as store:
        log = store.create("log", key=KEY, value=VALUE, timeline="counter")
        command = ("--writer", store.location, writers)
        said = race("bench.streams", [(*command, number, bench.sizes.seconds) for number in range(processes)])
        require(log.snapshot().count() == sum(each.pop("done") for each in said), "rows are missing, or there twice")
    rate = sum(each["appends per second"] for each in said)
    cpu_s = sum(each["CPU time per append"] * each["appends per second"] for each in said) / rate
    figures = {figure: max(each[figure] for each in said) for figure in said[0]}
    return {**figures, "appends per second": rate, "CPU time per append": cpu_s}


def writer(location: str, writers: int, number: int, seconds: float) -> None:
    """One of several processes that append."""
    with ts.open(location) as store:
        log = store["log"]
        log.append(_as_rows(-1, "first"))
        wait_for_start()
        figures, done = _written(writers, seconds, lambda id, note: log.append(_as_rows(id, note)), number << 32)
    print(json.dumps({**figures, "done": done + 1}))


# Many collections.


def seals(bench: Bench) -> None:
    """One seal of many collections, each with something to seal."""
    many = bench.sizes.sealed

    def together(store: ts.Store, names: list[str]) -> None:
        store.seal(names, 1)

    def one_by_one(store: ts.Store, names: list[str]) -> None:
        for name in names:
            store.seal(name, 1)

    def run(seal: Callable[[ts.Store, list[str]], None]) -> dict[str, float]:
        with bench.store(maintenance=False) as store:
            names = _created(store, many)
        with ts.open(store.location, maintenance=False) as again:
            first = seconds_of(lambda: seal(again, names))
            with again.transaction() as tx:
                for name in names:
                    tx.write(name, [{"id": 1, "note": "x"}], at=1)
            sealed = seconds_of(lambda: again.seal(names, 2) if seal is together else _each(again, names, 2))
            require(all(again[name].snapshot(as_of=1).count() == 1 for name in names[:20]), "a row is missing")
        return {"first seal of a process": first, "seal": sealed}

    bench.compare(
        f"seal of {many:,} collections",
        **{"ours": lambda: run(together), "one by one": lambda: run(one_by_one)},
    )


def _each(store: ts.Store, names: list[str], upper: int) -> None:
    for name in names:
        store.seal(name, upper)


def growth(bench: Bench) -> None:
    """What things cost in a store of more and more collections."""
    for count in bench.sizes.collections:
        bench.compare(f"a store of {count:,} collections", ours=lambda count=count: _grown(bench, count))


def _grown(bench: Bench, count: int) -> dict[str, float]:
    with bench.store(maintenance=False) as store:
        names = _created(store, count)
    figures: dict[str, float] = {}
    opened: list[ts.Store] = []
    figures["open"] = seconds_of(lambda: opened.append(ts.open(store.location)))
    with opened[0] as again:
        figures["names()"] = seconds_of(again.names)
        figures["names() again"] = seconds_of(again.names)
        one = again[names[count // 2]]
        one.append([{"id": 0, "note": "first"}])
        figures |= prefixed("append, one open", spread(_appended(one, bench.sizes.appends)))
        handles = [again[name] for name in names]
        figures |= prefixed("append, all open", spread(_appended(one, bench.sizes.appends)))
        some = handles[:: max(count // bench.sizes.appends, 1)]
        for each in some:
            each.append([{"id": 0, "note": "first"}])  # which registers the process with it
        each_one = [seconds for each in some for seconds in _appended(each, 1)]
        figures |= prefixed("append, in turns", spread(each_one))
        figures["create"] = statistics.median(
            seconds_of(lambda name=name: again.create(name, key=KEY, value=VALUE)) for name in ("x", "y", "z")
        )
    return figures


def _appended(collection: Any, times: int) -> list[float]:
    return [seconds_of(lambda id=id: collection.append([{"id": id, "note": "x" * NOTE_BYTES}])) for id in range(times)]


def _created(store: ts.Store, count: int) -> list[str]:
    """Many collections at once: their logs first, then all names in one change."""
    schema = define(KEY, VALUE, (), 1)
    entries = {name: CatalogEntry(fresh_collection_id(name), "counter") for name in (f"c{n:05}" for n in range(count))}
    writes = [
        LogWrite(entry.id, None, encode_state(first_state(entry.id, 1, schema.encode()))) for entry in entries.values()
    ]
    for start in range(0, count, 1000):
        require(store._driver.consensus.compare_and_set(writes[start : start + 1000]) is None, "an id is taken")
    store._catalog.change(lambda names: msgspec.structs.replace(names, entries={**names.entries, **entries}))
    return list(entries)


# Ahead of the seal.


def drain(bench: Bench) -> None:
    """Batches that were written ahead of the seal become part of the trace, and then one run."""
    count, rows = bench.sizes.batches, bench.sizes.rows

    def run() -> dict[str, float]:
        with bench.store(maintenance=False) as store:
            log = store.create("log", key=KEY, value=VALUE, timeline="counter")
            tables = [_table(np.arange(rows) + number * rows, number) for number in range(count)]
            wrote = seconds_of(lambda: [log.write(each) for each in tables])
            sealed = seconds_of(lambda: log.seal(count))
            drained = seconds_of(lambda: store._upkeep.run(log.id, lambda each: maintain.tidy_unsealed(each, log.id)))
            require(len(log._handle.state().unsealed) == 0, "something was not drained")
            merged = seconds_of(lambda: log.compact(wait=True))
            require(log.snapshot().count() == count * rows, "rows are missing")
        whole = wrote + sealed + drained + merged
        return {
            "drained and evicted, batches per second": count / drained,
            "write to compact, updates per second": count * rows / whole,
            "write of a batch": wrote / count,
            "seal": sealed,
            "drain and evict": drained,
            "merge": merged,
        }

    bench.compare(f"{count:,} writes of {rows} rows, sealed, drained and merged", ours=run)


def order(bench: Bench) -> None:
    """The same updates, in order by append and at random times by write."""
    steps, rows = bench.sizes.steps, bench.sizes.rows
    times = np.repeat(np.arange(steps), rows)
    shuffled = np.random.default_rng(7).permutation(len(times))

    def in_order(log: Any) -> None:
        for step in range(steps):
            log.append(_table(np.arange(rows) + step * rows, step))

    def out_of_order(log: Any) -> None:
        for batch in np.split(shuffled, steps):
            log.write(_table(batch, times[batch]))
        for upper in range(steps // 10, steps + 1, max(steps // 10, 1)):
            log.seal(upper)
        log.seal(steps)

    def run(ingest: Callable[[Any], None]) -> dict[str, float]:
        with bench.store() as store:
            log = store.create("log", key=KEY, value=VALUE, timeline="counter")
            took = {"ingest": seconds_of(lambda: ingest(log)), "read at once": seconds_of(lambda: _read(log, steps))}
            took["maintain"] = seconds_of(store.maintain)
            took["read after maintenance"] = seconds_of(lambda: _read(log, steps))
            require(_read(log, steps // 2) == (steps // 2 + 1) * rows, "rows are at other times")
        return {**took, "ingested, updates per second": steps * rows / took["ingest"]}

    bench.compare(
        f"{steps:,} steps of {rows} rows",
        **{"ours": lambda: run(out_of_order), "in order, by append": lambda: run(in_order)},
    )


def _table(ids: Any, times: Any) -> pa.Table:
    notes = pa.array(np.char.mod("%092d", ids).astype(object), pa.string())
    return pa.table({"id": ids, "note": notes, "_time": np.broadcast_to(times, len(ids)).copy()})


def _read(log: Any, before: int) -> int:
    table = log.snapshot(as_of=min(before, log.upper.elements[0][0] - 1)).to_arrow()
    return int(table.num_rows)


# Listeners.


def latency(bench: Bench) -> None:
    """One row at a time, from the call that appends it to the listener that has it."""

    def subscribed(log: Any, seen: Callable[[pa.Table], None]) -> Callable[[], Any]:
        feed = log.subscribe(as_of=0, snapshot=False)

        def listen() -> None:
            for event in feed:
                if event.rows is not None:
                    seen(event.rows)

        threading.Thread(target=listen, daemon=True).start()
        return lambda: feed.close()

    def listened(log: Any, seen: Callable[[pa.Table], None]) -> Callable[[], Any]:
        listener = log.listen(snapshot=False, callback=lambda event: event.rows is not None and seen(event.rows))
        return lambda: listener.close()

    listeners = {"ours, subscribe": subscribed, "ours, listen": listened}
    bench.compare(
        f"{bench.sizes.events} rows, each from the call of append to the listener",
        **{name: lambda listen=listen: _heard(bench, listen) for name, listen in listeners.items()},
    )


def _heard(bench: Bench, listen: Callable[[Any, Callable[[pa.Table], None]], Callable[[], Any]]) -> dict[str, float]:
    heard: dict[int, float] = {}
    told = threading.Condition()

    def seen(rows: pa.Table) -> None:
        with told:
            heard.update((id, time.perf_counter()) for id in rows.column("id").to_pylist())
            told.notify_all()

    with bench.store() as store:
        log = store.create("log", key=KEY, value=VALUE, timeline="counter")
        log.append([{"id": -1, "note": "first"}])
        end = listen(log, seen)
        called, answered = [], []
        for id in range(bench.sizes.events):
            called.append(time.perf_counter())
            log.append([{"id": id, "note": "x" * NOTE_BYTES}])
            answered.append(time.perf_counter())
            with told:
                require(told.wait_for(lambda id=id: id in heard, 60), "the listener heard nothing")
        end()
    figures = prefixed("from the call", spread([heard[id] - each for id, each in enumerate(called)]))
    return figures | prefixed("from the answer", spread([max(heard[id] - each, 0) for id, each in enumerate(answered)]))


WORKS = {each.__name__: each for each in (groups, upserts, seals, growth, drain, order, latency)}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.streams", description=__doc__.splitlines()[0])
    parser.add_argument("works", nargs="*", help=f"of {', '.join(WORKS)}; all of them by default")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run, not how fast is it")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--dir", type=Path, help="where the stores are made")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--from", dest="source", type=Path, help="figures that were measured before")
    parser.add_argument("--markdown", type=Path, help="a page with the marks to put the tables between")
    parser.add_argument("--writer", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.writer:
        location, writers, number, seconds = options.writer
        writer(location, int(writers), int(number), float(seconds))
        return
    unknown = [each for each in options.works if each not in WORKS]
    if unknown:
        parser.error(f"no such work: {unknown[0]}")
    report = json.loads(options.source.read_text()) if options.source else _measured(options)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    if options.markdown:
        put_between(options.markdown, BEGIN, END, markdown(report))


def _measured(options: argparse.Namespace) -> dict[str, Any]:
    when = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC"
    about = {"when": when, "machine": machine(), "quick": options.quick, "repeat": options.repeat}
    with tempfile.TemporaryDirectory(prefix="bench-streams-", dir=options.dir) as folder:
        bench = Bench(Path(folder), QUICK if options.quick else Sizes(), options.repeat)
        for name in options.works or WORKS:
            WORKS[name](bench)
    print("", *aims(bench.found), sep="\n")
    return {**about, "found": bench.found}


if __name__ == "__main__":
    main()

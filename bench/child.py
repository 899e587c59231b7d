"""One process: the setup of a work on one system, or one measured run of it.

    python -m bench.child --probe --system NAME
    python -m bench.child --setup --system NAME --folder DIR --spec JSON --result FILE
    python -m bench.child --run   --system NAME --folder DIR --spec JSON --result FILE

What it finds goes to the result file line by line, each a JSON object, so that
the figures that were ready before a kill are not lost. The first process of a
run makes a folder, the next ones get copies of it at the same path.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers import system as find_system
from bench.peers.system import Cannot, System
from bench.rows import rows, updates
from bench.usage import peak_mb, used


class Result:
    """The lines of one process. Implements `bench.works.work.Out`."""

    def __init__(self, path: Path, spec: dict[str, Any]) -> None:
        self.first = spec["repetition"] == 0
        self._file = path.open("a")
        self._deadline = time.monotonic() + spec["limit_s"]
        self._sealed = False
        self._began = used()

    def line(self, **fields: Any) -> None:
        self._file.write(json.dumps(fields) + "\n")
        self._file.flush()

    def figure(self, metric: str, value: float, unit: str = "s", note: str = "") -> None:
        self.line(metric=metric, value=value, unit=unit, note=note)

    def cannot(self, metric: str, reason: str) -> None:
        self.line(metric=metric, cannot=reason)

    def seal(self) -> None:
        if not self._sealed:
            self._sealed = True
            self.line(peak_mb=peak_mb(), usage=asdict(used().since(self._began)))

    def begin(self) -> None:
        """Count from here on: what came before was preparation."""
        self._began = used()

    def remaining(self) -> float:
        return self._deadline - time.monotonic()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--probe", action="store_true", help="print what the system is and can")
    what.add_argument("--setup", action="store_true", help="fill the folder")
    what.add_argument("--run", action="store_true", help="measure")
    what.add_argument("--write", type=int, metavar="COUNT", help="commit single rows, for a subscriber elsewhere")
    parser.add_argument("--system", required=True)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--spec", type=json.loads)
    parser.add_argument("--result", type=Path)
    options = parser.parse_args()
    if options.probe:
        print(json.dumps(probe(options.system)))
    elif options.write:
        write_for_subscriber(options.system, options.folder, options.write)
    else:
        measure(options)


def probe(name: str) -> dict[str, Any]:
    """What the tables say about a system, or why it is not there."""
    try:
        found = find_system(name)
        versions = found.versions()
    except (ImportError, AttributeError) as missing:
        return {"missing": str(missing)}
    methods = [each for each in vars(System) if not each.startswith("_")]
    reasons = {each: found.why_not(each) for each in methods if callable(getattr(System, each))}
    return {
        "kind": found.kind,
        "commit": found.commit,
        "versions": versions,
        "cannot": {each: reason for each, reason in reasons.items() if reason is not None},
    }


def measure(options: argparse.Namespace) -> None:
    from bench.works import WORKS

    work, spec = WORKS[options.spec["work"]], options.spec
    out = Result(options.result, spec)
    try:
        cls = find_system(options.system)
        if options.setup:
            out.line(state=work.setup(cls(options.folder), spec["size"], out))
        else:
            warm(cls, options.folder.with_name("warm"))
            gc.collect()
            out.begin()
            work.run(cls(options.folder), spec["size"], spec["state"], out)
            out.seal()
        out.line(end=True)
    except Cannot as reason:
        out.line(refused=str(reason))
    except Exception as failure:
        traceback.print_exc()
        out.line(failed=f"{type(failure).__name__}: {failure}".partition("\n")[0])
        sys.exit(1)


def warm(cls: type[System], folder: Path) -> None:
    """Every call once on a table of ten rows, so that no figure contains an import or the start of a thread pool."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    table, tiny = rows(np.arange(10)), cls(folder)
    with suppress(Cannot):
        tiny.consolidate(updates(table, time=1))
    with suppress(Cannot):
        tiny.create()
        tiny.append(table)
        before = tiny.version()
        for call in (
            lambda: tiny.upsert(rows(np.arange(5), 1)),
            lambda: tiny.changes(before, tiny.version()),
            tiny.snapshot,
            lambda: tiny.lookup(3),
            lambda: tiny.range(3, 7),
        ):
            with suppress(Cannot):
                call()
        tiny.close()
    shutil.rmtree(folder, ignore_errors=True)


def write_for_subscriber(name: str, folder: Path, count: int) -> None:
    from bench.works.subscribing import write

    cls = find_system(name)
    warm(cls, folder.with_name("warm-writer"))
    writer = cls(folder)
    writer.open()
    print(*write(writer, count))
    writer.close()


if __name__ == "__main__":
    main()

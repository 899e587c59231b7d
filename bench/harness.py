"""Runs works on systems in alternation, each run in a process of its own, and keeps what they found.

    A B C, A B C, A B C: whatever the machine does meanwhile, it does to all of them.

Setup runs once per (work, sizes, system); every repetition gets a copy of what
it left, at the same path, flushed to the disk before the clock starts.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.figures import OURS
from bench.peers import interpreter
from bench.works.work import Case, Size, Work

ROOT = Path(__file__).parent.parent
PROBE_S = 60
MANY_FILES = 200

PEER_TIMES = 5
"""Within a budget, a peer is ended after this number of times what we took."""

PEER_MIN_S = 30.0
"""But it may always take this long."""


@dataclass(frozen=True)
class About:
    """What is known of a system before it runs."""

    missing: str = ""
    """Why it cannot take part at all; empty when it can."""

    kind: str = ""
    commit: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    cannot: dict[str, str] = field(default_factory=dict)


@dataclass
class Measured:
    """All repetitions of one case of a work on one system."""

    values: dict[str, list[float]] = field(default_factory=dict)
    """By metric, one value per repetition."""

    units: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    """The last repetition's remark on a metric."""

    refused: dict[str, str] = field(default_factory=dict)
    """Why a metric is missing."""

    reason: str = ""
    """Why it stopped, or never began."""

    peak_mb: float = 0.0
    """The most memory that any repetition had."""

    usage: dict[str, list[float]] = field(default_factory=dict)
    """Processor time and bytes of the whole run, one value per repetition."""


@dataclass(frozen=True)
class Plan:
    """How a whole invocation runs."""

    quick: bool
    repeat: int | None
    limit_s: float
    folder: Path
    until: float | None = None
    """When the whole run should end, by the monotonic clock; None: it takes what it takes."""

    def share_s(self, cases: int) -> float | None:
        """Return the seconds that the next of the cases that are left may take, if there is an end."""
        return None if self.until is None else max(self.until - time.monotonic(), 0.0) / cases


def peer_limit_s(limit_s: float, ours_s: float, share_s: float | None) -> float:
    """Return the seconds that a process of a peer may take, which is a setup or a run, given what ours took.

    Within a budget, what has lost anyway does not spend it.
    """
    return limit_s if share_s is None else min(limit_s, max(PEER_MIN_S, PEER_TIMES * ours_s))


def has_time(took_s: float, repetitions: int, share_s: float | None) -> bool:
    """Tell whether one repetition more fits into the share of a case, given what those so far took."""
    return share_s is None or took_s * (repetitions + 1) / repetitions <= share_s


def probe(names: Sequence[str]) -> dict[str, About]:
    """Ask every system, in the interpreter that would run it."""
    return {name: _probe(name) for name in names}


def measure(
    work: Work, case: Case, about: dict[str, About], plan: Plan, kept: Kept, share_s: float | None = None
) -> dict[str, Measured]:
    """One case of a work on every system that can do it, in alternation; at least once, whatever its share is."""
    size = case.quick if plan.quick else case.full
    results = {name: Measured(reason=_why_not(work, each)) for name, each in about.items()}
    began, limit_s = time.monotonic(), plan.limit_s * work.patience
    for repetition in range(plan.repeat or work.repeat):
        if repetition and not has_time(time.monotonic() - began, repetition, share_s):
            break
        peer_s = limit_s
        for name, result in results.items():
            if result.reason:
                continue
            took_s = _once(work, size, name, result, repetition, limit_s if name == OURS else peer_s, plan, kept)
            if name == OURS:
                peer_s = peer_limit_s(limit_s, took_s, share_s)
    return results


class Kept:
    """Folders that setup filled, to be copied for every repetition; removed when no later work wants them."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._done: dict[tuple[str, str], dict[str, Any] | str] = {}
        self._took_s: dict[tuple[str, str], float] = {}
        """Seconds of every setup, by the keys of `_done`."""

    def setup(self, work: Work, size: Size, name: str) -> tuple[Path, dict[str, Any] | str]:
        """The fresh folder of one repetition, and the state that setup handed over, or why there is none."""
        home = self._plan.folder / work.setup_key(size) / name
        live, keep = home / "live", home / "keep"
        key = (work.setup_key(size), name)
        shutil.rmtree(live, ignore_errors=True)
        if key not in self._done:
            live.mkdir(parents=True)
            began = time.monotonic()
            self._done[key] = self._first(work, size, name, live)
            self._took_s[key] = time.monotonic() - began
            live.rename(keep)
        if isinstance(self._done[key], dict):
            shutil.copytree(keep, live)
            _flush(live)
        return live, self._done[key]

    def forget_all_but(self, keys: set[str]) -> None:
        for folder in self._plan.folder.iterdir():
            if folder.is_dir() and folder.name not in keys:
                shutil.rmtree(folder)
        self._done = {key: state for key, state in self._done.items() if key[0] in keys}

    def _first(self, work: Work, size: Size, name: str, live: Path) -> dict[str, Any] | str:
        spec = _spec(work, size, {}, 0, self._plan)
        ours = (work.setup_key(size), OURS)
        if name != OURS and isinstance(self._done.get(ours), dict):
            spec["limit_s"] = peer_limit_s(spec["limit_s"], self._took_s[ours], self._plan.share_s(1))
        lines, reason = _child("--setup", name, live, spec, self._plan)
        for line in lines:
            if "state" in line:
                return dict(line["state"])
        return f"setup: {reason}"


def _flush(folder: Path) -> None:
    """Write the copies to the disk, or the first fsync that is measured would wait for them."""
    files = [each for each in folder.rglob("*") if each.is_file()]
    if len(files) > MANY_FILES:
        os.sync()
        return
    for each in files:
        with each.open("rb") as file:
            os.fsync(file.fileno())


def _once(
    work: Work, size: Size, name: str, result: Measured, repetition: int, limit_s: float, plan: Plan, kept: Kept
) -> float:
    """Run once; return the seconds that it took, without its setup."""
    folder, state = kept.setup(work, size, name)
    began = time.monotonic()
    if isinstance(state, str):
        result.reason = state
    else:
        spec = _spec(work, size, state, repetition, plan) | {"limit_s": limit_s}
        lines, result.reason = _child("--run", name, folder, spec, plan)
        for line in lines:
            _take(result, line)
        if any("failed" in line for line in lines):
            # Whatever it did before that, it did not do it right.
            result.values.clear()
            result.usage.clear()
    took_s = time.monotonic() - began
    shutil.rmtree(folder, ignore_errors=True)
    return took_s


def _take(result: Measured, line: dict[str, Any]) -> None:
    if "value" in line:
        metric = line["metric"]
        result.values.setdefault(metric, []).append(line["value"])
        result.units[metric], result.notes[metric] = line["unit"], line["note"]
    elif "metric" in line:
        result.refused[line["metric"]] = line["cannot"]
    elif "peak_mb" in line:
        result.peak_mb = max(result.peak_mb, line["peak_mb"])
        for name, value in line.get("usage", {}).items():
            result.usage.setdefault(name, []).append(value)


def _spec(work: Work, size: Size, state: dict[str, Any], repetition: int, plan: Plan) -> dict[str, Any]:
    spec = {"work": work.name, "size": dict(size), "state": state, "repetition": repetition}
    return {**spec, "limit_s": plan.limit_s * work.patience}


def _child(what: str, name: str, folder: Path, spec: dict[str, Any], plan: Plan) -> tuple[list[dict[str, Any]], str]:
    """The lines that a process left, and why it did not come to its end (empty when it did)."""
    with tempfile.TemporaryDirectory(dir=plan.folder.parent) as scratch:
        result, errors = Path(scratch) / "result", Path(scratch) / "errors"
        command = [str(interpreter(name)), "-m", "bench.child", what, "--system", name, "--folder", str(folder)]
        command += ["--spec", json.dumps(spec), "--result", str(result)]
        with errors.open("wb") as log:
            process = subprocess.Popen(
                command, cwd=ROOT, env=_environment(), stdout=log, stderr=log, start_new_session=True
            )
            over = _wait(process, spec["limit_s"])
        lines = [json.loads(line) for line in _lines(result)]
        if over:
            return lines, f"over {spec['limit_s']:g} s"
        ends = [line for line in lines if line.keys() & {"end", "refused", "failed"}]
        if not ends:
            said = errors.read_text(errors="replace").strip().splitlines()
            return lines, f"died with code {process.returncode}: {said[-1] if said else 'said nothing'}"
        return lines, ends[0].get("refused") or ends[0].get("failed") or ""


def _wait(process: subprocess.Popen[bytes], limit_s: float) -> bool:
    """Whether it took too long, and was ended with whatever it had started itself: it leads a group of its own."""
    try:
        process.wait(limit_s)
        return False
    except BaseException as why:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if not isinstance(why, subprocess.TimeoutExpired):
            raise
        return True


def _lines(result: Path) -> Iterator[str]:
    if result.exists():
        # A line that a kill cut short is no line.
        yield from (line for line in result.read_text().splitlines(keepends=True) if line.endswith("\n"))


def _environment() -> dict[str, str]:
    source = str(ROOT / "src")
    path = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{path}" if path else source}


def _probe(name: str) -> About:
    command = [str(interpreter(name)), "-m", "bench.child", "--probe", "--system", name]
    done = subprocess.run(
        command, cwd=ROOT, env=_environment(), capture_output=True, text=True, timeout=PROBE_S, check=False
    )
    if done.returncode:
        said = done.stderr.strip().splitlines()
        return About(missing=said[-1] if said else f"code {done.returncode}")
    return About(**json.loads(done.stdout))


def _why_not(work: Work, about: About) -> str:
    """Why a system does not take part in a work; empty when it does."""
    if about.missing:
        return about.missing
    return next((about.cannot[each] for each in work.needs if each in about.cannot), "")

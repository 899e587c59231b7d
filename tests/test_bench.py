"""The bench runs, says what it cannot do, and gets its ratios right. Figures themselves are no test's business."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import (
    arrangements,
    beside,
    bucket,
    figures,
    harness,
    mark,
    pictures,
    report,
    rows,
    streams,
    streams_report,
    views,
)
from bench.__main__ import main
from bench.aims import AIMS, aims
from bench.harness import About, Kept, Plan, measure
from bench.works import WORKS
from bench.works.work import Case

INSTALLED = ["ours", *(each for each in ("duckdb", "polars") if importlib.util.find_spec(each))]


MARKS = f"{report.SUMMARY_BEGIN}\n{report.SUMMARY_END}\n{report.BEGIN}\nold\n{report.END}"


def test_one_work_on_every_system_that_is_installed(tmp_path: Path) -> None:
    found, page = tmp_path / "found.json", tmp_path / "page.md"
    arguments = ["commit-1", "--quick", "--repeat", "1", "--dir", str(tmp_path), "--json", str(found)]
    main([*arguments, "--markdown", str(page), "--systems", *INSTALLED])
    (entry,) = json.loads(found.read_text())["works"]
    for system in INSTALLED:
        assert entry["results"][system]["reason"] == ""
        (seconds,) = entry["results"][system]["values"]["commit"]
        assert 0 < seconds < 60
        assert entry["results"][system]["peak_mb"] > 10
        (processor,), (written,) = (entry["results"][system]["usage"][each] for each in ("cpu_s", "written_mb"))
        assert 0 < processor < 60
        assert written > 0
    assert "| commit-1 | commit |" in page.read_text()
    assert page.read_text().index("| commit-1: commit |") < page.read_text().index("### All ratios")
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith("bench-")] == []


def test_a_pipeline_and_the_growth_of_a_table_are_measured_and_drawn(tmp_path: Path) -> None:
    found, many = tmp_path / "found.json", tmp_path / "streams.json"
    main(["pipeline", "growth", "--quick", "--dir", str(tmp_path), "--json", str(found), "--systems", "ours"])
    works = json.loads(found.read_text())["works"]
    assert [each["results"]["ours"]["reason"] for each in works] == [""] * len(works)
    assert {"ingest", "consumers", "snapshots", "all of it"} <= works[0]["results"]["ours"]["values"].keys()
    many.write_text(json.dumps({"found": _streams()}))
    if importlib.util.find_spec("matplotlib"):
        pictures.main([str(found), str(many), "--folder", str(tmp_path / "first")])
        pictures.main([str(found), str(many), "--folder", str(tmp_path / "second")])
        names = sorted(each.name for each in (tmp_path / "first").iterdir())
        assert names == ["growth-collections.svg", "growth-processes.svg", "growth-rows.svg"]
        for name in names:
            drawn = (tmp_path / "first" / name).read_bytes()
            assert drawn == (tmp_path / "second" / name).read_bytes()
            assert b"ours" in drawn or b"create" in drawn


def _streams() -> list[dict[str, Any]]:
    """What the bench of streams writes, of stores with more and more collections and processes."""
    stores = [{"work": f"a store of {n:,} collections", "figure": "create", "median": n / 1e4} for n in (10, 1000)]
    races = [
        {"work": f"appends of one row by {n} process{'es' * (n > 1)} of 8 threads", "figure": figure, "median": 1.0}
        for n in (1, 8)
        for figure in ("appends per second", "p50", "p99")
    ]
    return [{"system": "ours", **each} for each in [*stores, *races]]


@pytest.mark.skipif(not importlib.util.find_spec("rocksdict"), reason="a peer that the extra `bench` brings")
def test_arrangements_are_measured_beside_peers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrangements.main(["--rows", "20000", "--inserts", "20", "--repeat", "3", "--json", str(tmp_path / "figures.json")])
    printed = capsys.readouterr().out
    for title in (
        *("memory per row", "get, settled", "get, 69 batches", "get, mapped files", "fetch of 1,000, settled"),
        *("fetch of 1,000, 69 batches", "scan of 20,000", "save, unchanged", "restore", "inserts of 1,000 new rows"),
        *("pairs of retraction and new version", "beside", "lookup of one key", "upsert of 100 rows"),
    ):
        assert title in printed
    assert len(json.loads((tmp_path / "figures.json").read_text())) > 40


def test_a_process_over_its_limit_is_ended_and_reported(tmp_path: Path) -> None:
    plan = Plan(quick=True, repeat=1, limit_s=0.01, folder=tmp_path)
    result = measure(WORKS["commit-1"], WORKS["commit-1"].cases[0], {"polars": About()}, plan, Kept(plan))
    assert result["polars"].reason == "setup: over 0.01 s"
    assert result["polars"].values == {}


def test_a_system_that_cannot_do_the_work_says_why(tmp_path: Path) -> None:
    plan = Plan(quick=True, repeat=1, limit_s=60, folder=tmp_path)
    about = {"gone": About(missing="not installed"), "poor": About(cannot={"append": "is read-only"})}
    result = measure(WORKS["commit-1"], Case(), about, plan, Kept(plan))
    assert {name: each.reason for name, each in result.items()} == {"gone": "not installed", "poor": "is read-only"}


def test_the_ratio_is_ours_by_the_fastest_peer_also_when_it_loses() -> None:
    made, entry = _made_up()
    assert figures.ratio(made, entry, "commit") == figures.Ratio("fast", 3.0)
    assert figures.ratio(made, entry, "commit", figures.TABLE_FORMAT) == figures.Ratio("slow", 0.25)
    assert "ours / best peer: 3.00 (fast)" in "\n".join(report.text(made, entry))


def test_aims_stand_below_the_first_table_as_times_and_ratios_with_misses_in_bold() -> None:
    made, entry = _made_up()
    assert list(aims(made)) == [
        "| work | we | compared with | at most | reached |",
        "| --- | ---: | ---: | ---: | --- |",
        "| commit-1: commit | **3.00 s** | | 1 ms | **no** |",
    ]
    entry["work"] = "commit-10k"
    (*_, row) = aims(made)
    assert row == "| commit-10k: commit | 3.00 s | **1.00 s fast = 3.00x** | 1x | **no** |"
    entry["results"]["fast"]["values"]["commit"] = [4.0]
    (*_, row) = aims(made)
    assert row == "| commit-10k: commit | 3.00 s | 4.00 s fast = 0.75x | 1x | yes |"
    page = report.summary(made)
    assert page.index("best table format") < page.index("What has an aim")
    entry["work"] = "consolidate"
    assert list(aims(made)) == []


def test_every_aim_is_of_a_work_that_there_is() -> None:
    for aim in AIMS:
        assert aim.case in {case.label for case in WORKS[aim.work].cases}, aim


def test_a_page_without_marks_is_refused_and_one_with_them_keeps_the_rest(tmp_path: Path) -> None:
    made, _ = _made_up()
    page = tmp_path / "page.md"
    page.write_text("no marks\n")
    with pytest.raises(SystemExit, match="summary: begin"):
        report.fill(page, made)
    page.write_text(f"before\n{MARKS}\nafter\n")
    report.fill(page, made)
    assert page.read_text().startswith("before\n")
    assert page.read_text().endswith("after\n")
    assert "old" not in page.read_text()


def test_rows_are_a_function_of_id_and_version() -> None:
    some, all_of_them = rows.rows(np.array([5, 3]), 2), rows.rows(np.arange(10), 2)
    assert some.equals(all_of_them.take([5, 3]))
    assert not some.column("total").equals(rows.rows(np.array([5, 3]), 1).column("total"))
    halves = rows.plus(rows.digest(all_of_them.slice(0, 4)), rows.digest(all_of_them.slice(4)))
    assert halves == rows.digest(all_of_them)


def test_streams_run_and_their_figures_fill_a_page_of_their_own(tmp_path: Path) -> None:
    found, page = tmp_path / "found.json", tmp_path / "page.md"
    page.write_text(f"before\n{streams.BEGIN}\nold\n{streams.END}\nafter\n")
    arguments = ["--quick", "--repeat", "1", "--dir", str(tmp_path), "--json", str(found)]
    streams.main(arguments)
    rows = json.loads(found.read_text())["found"]
    assert {row["system"] for row in rows if row["work"] == "appends of one row by 4 threads"} == {
        "ours",
        "ours, Arrow tables",
        "without group commit",
        "SQLite, a commit per row",
    }
    assert all(0 <= row["median"] < 1e9 for row in rows)
    works = {row["work"] for row in rows}
    assert {row["work"] for row in rows if row["figure"] == "CPU time of the run" and row["median"] > 0} == works
    together = {row["figure"]: row["median"] for row in rows if row["work"].endswith("by 2 processes")}
    assert together.keys() >= {"upserts per second", "p50", "p99", "changes started again", "changes placed again"}
    assert together["changes started again"] == together["refused"] == 0
    streams.main(["--from", str(found), "--markdown", str(page)])
    said = page.read_text()
    assert said.startswith("before\n")
    assert said.endswith("after\n")
    assert "old" not in said
    assert "| appends per second | without group commit |" in said
    with pytest.raises(SystemExit):
        streams.main(["nothing-of-the-sort"])


def test_aims_of_many_writers_stand_first_in_the_page_with_their_figures_and_misses_in_bold() -> None:
    threads, processes, upserts = dict.fromkeys(aim.work for aim in streams_report.AIMS)
    values = {
        threads: {"appends per second": 6000.0, "p99": 0.0251},
        processes: {"appends per second": 458.0, "p99": 0.04},
        upserts: {"changes started again": 0.0},
    }
    found = [
        {"work": work, "system": "ours", "figure": figure, "median": value, "all": [value]}
        for work, figures_ in values.items()
        for figure, value in figures_.items()
    ]
    page = streams_report.markdown({"machine": {}, "quick": False, "when": "now", "repeat": 1, "found": found})
    table = list(streams_report.aims(found))
    assert f"| {threads} | appends per second | 6,000 | at least 5,000 | yes |" in table
    assert f"| {threads} | p99 | **25.10 ms** | at most 20.00 ms | **no** |" in table
    assert f"| {processes} | appends per second | **458** | at least 3,500 | **no** |" in table
    assert f"| {upserts} | changes started again | 0 | at most 0 | yes |" in table
    assert page.index(table[0]) < page.index("**Appends of one row by 8 threads**")
    assert list(streams_report.aims([each for each in found if each["figure"] == "p50"])) == []
    sizes = streams.Sizes()
    assert threads == f"appends of one row by {sizes.writers[0]} threads"
    assert processes == f"appends of one row by {sizes.processes[-1]} processes of {sizes.writers[0]} threads"
    assert upserts == f"upserts of {sizes.rows} rows in {sizes.base:,} by {sizes.upserters[-1]} processes"


def _made_up() -> tuple[figures.Report, figures.Entry]:
    """Ours takes 3 s, a peer 1 s, a table format 12 s."""
    seconds = {"ours": [2.0, 3.0, 4.0], "fast": [1.0], "slow": [12.0]}
    kinds = {"ours": "ours", "fast": "database", "slow": figures.TABLE_FORMAT}
    results: dict[str, Any] = {
        name: {
            "values": {"commit": values},
            "units": {"commit": "s"},
            "notes": {},
            "refused": {},
            "reason": "",
            "peak_mb": 1.0,
        }
        for name, values in seconds.items()
    }
    systems = {name: {"kind": kind, "missing": "", "commit": "", "versions": {}} for name, kind in kinds.items()}
    entry = {"work": "commit-1", "case": "", "title": "a commit", "repetitions": 3, "size": {}, "results": results}
    return {"when": "now", "quick": True, "machine": {}, "systems": systems, "works": [entry]}, entry


def test_the_cost_of_the_mark_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, inside = mark.measure(tmp_path, 3)
    assert len(whole) == len(inside) == 3
    assert all(0 < part < all_of_it for part, all_of_it in zip(inside, whole, strict=True))
    mark.main(["--appends", "3", "--dir", str(tmp_path)])
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["p50", "mean"]


def test_merges_are_measured_beside_a_thread_that_runs_python(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    beside.main(["--rows", "4000", "--turns", "1", "--dir", str(tmp_path)])
    title, head, *lines = capsys.readouterr().out.strip().splitlines()
    assert title.startswith("Merges of 8 runs")
    assert head.split() == ["rows", "merge", "alone", "beside", "kept", "waits"]
    assert [len([line for line in lines if each in line]) for each in ("in memory", "stored runs")] == [8, 8]
    assert lines[-1].startswith("Aim: background merges keep at least 30%")
    assert list(tmp_path.iterdir()) == []


def test_the_limits_of_a_bucket_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """All in virtual time. The figures are those of docs/design/0022, within a tenth."""
    bucket.main([])
    printed = capsys.readouterr().out
    assert "120 GET and 0 PUT an hour" in printed
    counted = [line.split() for line in printed.splitlines()[1:5]]
    page = (Path(__file__).parents[1] / "docs" / "design" / "0022-a-bucket-alone.md").read_text()
    published = [re.findall(r"[\d.,]+", line) for line in page.splitlines() if re.match(r"\| \d+ \|", line)]
    assert [row[0] for row in published] == ["1", "2", "4", "8"]
    for shown, (*found, shares) in zip(published, counted, strict=True):
        assert [float(each.replace(",", "")) for each in shown] == pytest.approx(list(map(float, found)), rel=0.1)
        assert float(found[1]) > 20  # commits a second
        least, most = map(int, shares.split(".."))
        assert least >= most * 4 / 5


def test_a_budget_ends_repetitions_and_slow_peers_and_nothing_without_one() -> None:
    assert harness.has_time(100.0, 1, None)
    assert harness.has_time(10.0, 1, 20.0)
    assert not harness.has_time(10.0, 1, 19.0)
    assert harness.peer_limit_s(120.0, 1.0, None) == 120.0
    assert harness.peer_limit_s(120.0, 1.0, 50.0) == harness.PEER_MIN_S
    assert harness.peer_limit_s(120.0, 10.0, 50.0) == 50.0
    assert harness.peer_limit_s(120.0, 100.0, 50.0) == 120.0


@pytest.mark.parametrize(("until", "reason"), [(None, ""), (1e12, "setup: over 0.01 s")])
def test_a_budget_ends_the_setup_of_a_slow_peer_too(
    until: float | None, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "PEER_MIN_S", 0.01)
    monkeypatch.setattr(harness, "PEER_TIMES", 0.0)
    plan = Plan(quick=True, repeat=1, limit_s=120, folder=tmp_path, until=until)
    kept, work = Kept(plan), WORKS["subscribe"]
    ours, peer = (kept.setup(work, work.cases[0].quick, name)[1] for name in ("ours", "polars"))
    assert isinstance(ours, dict)
    assert peer == reason if reason else isinstance(peer, dict)


def test_a_run_without_time_measures_each_case_once_or_says_what_is_left(tmp_path: Path, capsys: Any) -> None:
    found = tmp_path / "found.json"
    arguments = ["commit-1", "open", "--quick", "--repeat", "3", "--dir", str(tmp_path), "--json", str(found)]
    main([*arguments, "--minutes", "0.001", "--systems", "ours"])
    entries = json.loads(found.read_text())["works"]
    assert [each["repetitions"] for each in entries] == [1]
    assert "no time is left for 3 of 4 cases, from open on" in capsys.readouterr().out


@pytest.mark.skipif(importlib.util.find_spec("pyspark") is None, reason="no Spark here")
def test_the_bench_of_spark_can_be_imported() -> None:
    assert callable(importlib.import_module("bench.spark").session)


def test_views_are_measured_in_pieces_checked_and_put_into_a_page(tmp_path: Path) -> None:
    found, page = tmp_path / "found.json", tmp_path / "page.md"
    page.write_text("before\n<!-- views: begin -->\nstale figures\n<!-- views: end -->\nafter\n")
    small = ["--scale", "0.001", "--repeat", "1", "--json", str(found)]
    assert views.main([*small, "--changes", "0.1,10", "--views", "q1,q3", "--markdown", str(page)]) == 0
    assert views.main([*small, "--peers", "process", "--views", "q6", "--together"]) == 0
    cases = {(each["view"], each["change"]): each for each in json.loads(found.read_text())}
    assert {view for view, _ in cases} >= {"q1", "q3", "q6", "an idle refresh of them", "one row, one stage"}
    assert all(each["right"] for each in cases.values())
    assert set(cases["q1", 10.0]["figures"]) == {"process", "duckdb"}
    assert set(cases["q6", 0.1]["figures"]) == {"process"}
    written = page.read_text()
    assert written.startswith("before\n")
    assert written.endswith("after\n")
    assert "stale figures" not in written
    assert written.count("| q3 |") == 2
    assert "10 % changed" in written
    # A view that differs from DuckDB's answer is told, and fails the run.
    cases["q1", 10.0]["right"] = False
    found.write_text(json.dumps(list(cases.values())))
    assert views.main(["--from", str(found), "--markdown", str(page)]) == 1
    assert "**Wrong answers: q1.**" in page.read_text()

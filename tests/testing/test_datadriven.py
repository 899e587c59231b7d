"""The runner of data-driven scripts, and all scripts that there are."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from timespine.core.encoding import flat_spine
from timespine.core.spine.spine import empty_spine
from timespine.errors import UsageError
from timespine.testing import datadriven
from timespine.testing.datadriven import (
    Directive,
    DirectiveCall,
    DirectiveSet,
    Registry,
    default_registry,
    main,
    parse_call,
    run_file,
)

SCRIPTS = sorted((Path(__file__).parent.parent / "scripts").glob("*.txt"))


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "script.txt"


def ran(path: Path, text: str, *, rewrite: bool = False, registry: Registry | None = None) -> datadriven.ScriptResult:
    """What comes of a script of this text."""
    path.write_bytes(text.encode())
    return run_file(path, registry or default_registry(), rewrite)


def rewritten(path: Path, text: str, registry: Registry | None = None) -> str:
    """The script after `--rewrite`, which then must pass."""
    scan_stats = ran(path, text, rewrite=True, registry=registry)
    assert scan_stats.failed == 0
    again = run_file(path, registry or default_registry())
    assert (again.passed, again.failed) == (scan_stats.passed, 0)
    return path.read_bytes().decode()


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) >= 18


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_script_passes(path: Path) -> None:
    scan_stats = run_file(path, default_registry())
    assert scan_stats.report == []
    assert scan_stats.failed == 0
    assert scan_stats.passed > 0


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_rewriting_a_script_that_passes_changes_nothing(path: Path, script: Path) -> None:
    for content in (path.read_bytes(), path.read_bytes().replace(b"\n", b"\r\n"), path.read_bytes().rstrip(b"\n")):
        script.write_bytes(content)
        scan_stats = run_file(script, default_registry(), rewrite=True)
        assert (scan_stats.failed, scan_stats.report) == (0, [])
        assert script.read_bytes() == content


def test_every_directive_is_used_by_some_script() -> None:
    used = {line.split()[0] for path in SCRIPTS for line in path.read_text().splitlines() if line.split()}
    assert set(default_registry().owners) <= used


# The command line


def test_the_command_runs_scripts_and_counts_cases(script: Path) -> None:
    script.write_text("since-upper\n----\n[0][0]\n\nspine-batches\n----\n[0]\n")
    command = [sys.executable, "-m", "timespine.testing.datadriven"]
    fine = subprocess.run([*command, str(SCRIPTS[0])], capture_output=True, text=True, check=False)
    assert (fine.returncode, fine.stderr) == (0, "")
    assert fine.stdout.splitlines()[-1].endswith(" passed, 0 failed")
    wrong = subprocess.run([*command, str(script)], capture_output=True, text=True, check=False)
    assert (wrong.returncode, wrong.stderr) == (1, "")
    assert wrong.stdout.splitlines()[-1] == "1 passed, 1 failed"


def test_all_files_are_run_and_counted_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good.txt", tmp_path / "bad.txt"
    good.write_text("since-upper\n----\n[0][0]\n")
    bad.write_text("since-upper\n----\n[0][0]\n\nsince-upper\n----\n[1][1]\n")
    assert main([str(good), str(bad), str(tmp_path / "none.txt"), str(good)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "3 passed, 2 failed"
    assert any(line.startswith(f"{tmp_path / 'none.txt'}: ") and "No such file" in line for line in lines)
    assert main([str(good)]) == 0
    assert capsys.readouterr().out == "1 passed, 0 failed\n"


@pytest.mark.parametrize("arguments", [[], ["--rewrite"], ["--unknown", "file"]])
def test_a_command_line_without_files_is_misuse(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert "usage: python -m timespine.testing.datadriven" in capsys.readouterr().err


def test_a_mismatch_is_shown_as_a_diff_with_its_place(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text("# One.\n\npush-batch\n[0][1][0] 1 k0\n----\nok\n\nspine-batches\n----\nsomething else\n")
    assert main([str(script)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{script}:8: spine-batches",
        f"--- {script}:8 expected",
        f"+++ {script}:8 actual",
        "@@ -1 +1 @@",
        "-something else",
        "+[0-1][0][1][0] 1/1 k0",
        "1 passed, 1 failed",
    ]


def test_rewriting_says_what_it_did(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text("since-upper\n----\n\nsince-upper\n----\n[0][0]\n")
    assert main([str(script), "--rewrite"]) == 0
    assert capsys.readouterr().out == f"{script}:1: since-upper: rewritten\n2 passed, 0 failed\n"
    assert main([str(script)]) == 0


def test_what_the_terminal_cannot_show_is_escaped(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script.write_text("since-upper\n----\n\u2192\n", encoding="utf-8")
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", terminal)
    assert main([str(script)]) == 1
    terminal.seek(0)
    assert "-\\u2192\n" in terminal.read()


# What is not a script


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("# one\nsince-upper\n", 2, "the case 'since-upper' has no ----"),
        ("since-upper", 1, "the case 'since-upper' has no ----"),
        ("push-batch\n[0][1][0] 1 k0\n\n# end\n", 1, "the case 'push-batch' has no ----"),
        ("since-upper\n\npush-batch\n[0][1][0] 1\n----\nok\n", 1, "the case 'since-upper' has no ----"),
        ("# one\n\n----\nok\n", 3, "a ---- without a directive before it"),
        ("since-upper\n----\n[0][0]\nsince-upper\n----\n[0][0]\n", 5, "a ---- inside the output: a blank line must"),
        ("since-upper\n----\n----\n[0][0]\n", 3, "does not end with ---- twice"),
        ("since-upper\n----\n----\n[0][0]\n----\n\n", 3, "does not end with ---- twice"),
        ("since-upper\n----\n----", 3, "does not end with ---- twice"),
    ],
)
def test_a_file_that_is_no_script_fails_and_says_where(script: Path, text: str, line: int, why: str) -> None:
    for rewrite in (False, True):
        scan_stats = ran(script, text, rewrite=rewrite)
        assert (scan_stats.passed, scan_stats.failed) == (0, 1)
        assert len(scan_stats.report) == 1
        assert scan_stats.report[0].startswith(f"{script}:{line}: ")
        assert why in scan_stats.report[0]
        assert script.read_bytes() == text.encode()


def test_a_file_that_cannot_be_read_fails(tmp_path: Path, script: Path) -> None:
    script.write_bytes(b"since-upper\n----\n\xff\n")
    for path in (script, tmp_path, tmp_path / "none.txt"):
        scan_stats = run_file(path, default_registry())
        assert (scan_stats.passed, scan_stats.failed) == (0, 1)
        assert scan_stats.report[0].startswith(f"{path}: ")


def test_a_file_that_cannot_be_written_fails(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script.write_text("since-upper\n----\nx\n")

    def refuse(path: Path, data: bytes) -> int:
        raise PermissionError("read only")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    scan_stats = run_file(script, default_registry(), rewrite=True)
    assert scan_stats.failed == 1
    assert scan_stats.report[-1] == f"{script}: read only"


@pytest.mark.parametrize("text", ["", "\n", "# only prose\n", "\n\n  \n# a\n\n# b"])
def test_a_script_may_have_no_cases(script: Path, text: str) -> None:
    scan_stats = ran(script, text)
    assert (scan_stats.passed, scan_stats.failed, scan_stats.report) == (0, 0, [])


# The format


@pytest.mark.parametrize(
    "text",
    [
        "since-upper\n----\n[0][0]",
        "since-upper\n----\n[0][0]\n",
        "since-upper\n----\n[0][0]\n\n\n\n",
        "since-upper\r\n----\r\n[0][0]\r\n",
        "\ufeffsince-upper\n----\n[0][0]\n",
        "\ufeff# prose\n\nsince-upper\n----\n[0][0]\n",
        "  since-upper  \n----  \n[0][0]  \t\n  \n# prose\n",
        "since-upper\n# prose\n----\n[0][0]\n",
        "since-upper\n\n----\n[0][0]\n",
        "since-upper\n----\n----\n[0][0]\n----\n----\n",
        "since-upper\n----\n----\n[0][0]\n----\n----",
        "since-upper\r\n----\r\n----\r\n[0][0]\r\n----\r\n----\r\n",
        "#x\nsince-upper\n----\n[0][0]\n",
    ],
)
def test_ways_to_write_the_same_case(script: Path, text: str) -> None:
    for rewrite in (False, True):
        scan_stats = ran(script, text, rewrite=rewrite)
        assert (scan_stats.passed, scan_stats.failed, scan_stats.report) == (1, 0, [])
        assert script.read_bytes() == text.encode()


@pytest.mark.parametrize(
    "expected",
    [
        " [0][0]",
        "[0] [0]",
        "[0][0]\n[0][0]",
        "",
        "----\n\n[0][0]\n----\n----",
        "----\n[0][0]\n\n----\n----",
        "[0][0]\n#",
    ],
)
def test_only_whitespace_at_the_ends_of_lines_is_ignored(script: Path, expected: str) -> None:
    scan_stats = ran(script, f"since-upper\n----\n{expected}\n")
    assert (scan_stats.passed, scan_stats.failed) == (0, 1)


def test_a_failing_case_changes_nothing_and_the_next_ones_go_on(script: Path) -> None:
    text = (
        "push-batch\n[0][1][0] 1 k0\n[1][2][0] 1 k1\n[1][2][0] 1 k2\n----\n"
        "error: a batch that begins at [1] cannot follow the upper [2]\n\n"
        "since-upper\n----\n[0][0]\n\ntake-merge-reqs\n----\n<empty>\n"
    )
    scan_stats = ran(script, text)
    assert (scan_stats.passed, scan_stats.failed) == (3, 0)


def test_every_script_begins_anew(script: Path) -> None:
    text = "push-batch\n[0][1][0] 1 k0\n----\nok\n"
    registry = default_registry()
    for _ in range(2):
        assert ran(script, text, registry=registry).failed == 0


# Rewriting


def test_rewrite_keeps_every_other_byte(script: Path) -> None:
    text = (
        "\ufeff# prose\r\n\r\n\r\n  push-batch  \r\n# more\r\n[0][1][0] 1 k0\r\n----\r\nwrong\r\nwrong\r\n\r\n# end"
        "\r\nsince-upper\r\n----\r\n[0][1]  \r\n \r\nspine-batches\r\n----\r\n"
    )
    assert rewritten(script, text) == (
        "\ufeff# prose\r\n\r\n\r\n  push-batch  \r\n# more\r\n[0][1][0] 1 k0\r\n----\r\nok\r\n\r\n# end"
        "\r\nsince-upper\r\n----\r\n[0][1]  \r\n \r\nspine-batches\r\n----\r\n[0-1][0][1][0] 1/1 k0\r\n"
    )


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("since-upper\n----", "since-upper\n----\n[0][0]"),
        ("since-upper\n----\n", "since-upper\n----\n[0][0]\n"),
        ("since-upper\n----\nx", "since-upper\n----\n[0][0]"),
        ("since-upper\n----\n\n\n", "since-upper\n----\n[0][0]\n\n\n"),
        ("since-upper\n----\n----\n\n----\n----\n# prose", "since-upper\n----\n----\n[0][0]\n----\n----\n# prose"),
        ("spine-batches\n----\nx\ny\n", "spine-batches\n----\n<empty>\n"),
        ("nonsense\n----\n", "nonsense\n----\nerror: unknown directive nonsense\n"),
    ],
)
def test_rewriting_puts_the_output_in_its_place(script: Path, text: str, after: str) -> None:
    assert rewritten(script, text) == after


def echo() -> Registry:
    """A machine whose directive gives its input, with `|` for the ends of lines."""

    def run(state: int, call: DirectiveCall) -> tuple[int, str]:
        if call.arguments:
            raise RuntimeError("a bug")
        return state + 1, "".join(call.input).replace("|", "\n")

    registry = Registry()
    registry.add(DirectiveSet(lambda: 0, {"echo": Directive(run, optional=("bug",), takes_input=True)}))
    registry.add(DirectiveSet(lambda: 0, {"count": Directive(lambda state, call: (state, str(state)))}))
    return registry


def test_output_with_blank_lines_is_written_between_double_rules(script: Path) -> None:
    text = "echo\na||b\n----\nx\n\necho\n|\n----\n\necho\n----\n"
    after = "echo\na||b\n----\n----\na\n\nb\n----\n----\n\necho\n|\n----\n----\n\n----\n----\n\necho\n----\n<empty>\n"
    assert rewritten(script, text, echo()) == after


def test_output_that_looks_like_a_rule_is_written_between_double_rules(script: Path) -> None:
    assert rewritten(script, "echo\na|----|b\n----\n", echo()) == (
        "echo\na|----|b\n----\n----\na\n----\nb\n----\n----\n"
    )


def test_output_with_a_double_rule_cannot_be_written_down(script: Path) -> None:
    text = "echo\na|----|----\n----\nx\n"
    scan_stats = ran(script, text, rewrite=True, registry=echo())
    assert (scan_stats.passed, scan_stats.failed) == (0, 1)
    assert "cannot be written down" in scan_stats.report[0]
    assert script.read_text() == text


def test_a_bug_is_a_failure_and_never_an_expected_output(script: Path) -> None:
    text = "echo bug=1\n----\nx\n\necho\na\n----\na\n\ncount\n----\n0\n"
    for rewrite in (False, True):
        scan_stats = ran(script, text, rewrite=rewrite, registry=echo())
        assert (scan_stats.passed, scan_stats.failed) == (2, 1)
        assert scan_stats.report[0] == f"{script}:1: echo bug=1"
        assert scan_stats.report[-1] == "RuntimeError: a bug"
        assert script.read_text() == text


# The registry


def test_machines_have_a_state_each_and_names_of_their_own(script: Path) -> None:
    registry = echo()
    assert ran(script, "echo\na\n----\na\n\ncount\n----\n0\n", registry=registry).failed == 0
    with pytest.raises(UsageError, match="directive count is registered already"):
        registry.add(DirectiveSet(int, {"other": Directive(lambda s, c: (s, "")), "count": registry_count()}))
    assert "other" not in registry.owners
    registry.add(default_registry().sets[0])
    assert ran(script, "since-upper\n----\n[0][0]\n\ncount\n----\n0\n", registry=registry).failed == 0


def registry_count() -> Directive[int]:
    return Directive(lambda state, call: (state, ""))


def test_a_directive_line_is_split_at_spaces_outside_of_brackets() -> None:
    assert parse_call("a") == DirectiveCall("a", {})
    assert parse_call(" a  b=1\tc=(1, 2) d=[(1, 2), (2, 1)] e= f=g=h", ("x",)) == DirectiveCall(
        "a", {"b": "1", "c": "(1, 2)", "d": "[(1, 2), (2, 1)]", "e": "", "f": "g=h"}, ("x",)
    )
    for wrong in ("a b", "a =1", "a b=1 b=2", "a b=(1", "a b=1)"):
        with pytest.raises(UsageError):
            parse_call(wrong)


def test_a_roundtrip_that_gives_another_spine_is_an_error(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flat_spine, "unflatten", lambda table, arity: empty_spine(arity))
    text = (
        "push-batch\n[0][1][0] 1 k0\n----\nok\n\nflatten-roundtrip\n----\nerror: the flat tables gave another spine\n"
    )
    assert ran(script, text).report == []


def test_scripts_by_others_may_end_lines_as_they_like(script: Path) -> None:
    text = SCRIPTS[0].read_text()
    mixed = "".join(line + ("\r\n" if i % 2 else "\n") for i, line in enumerate(text.splitlines()))
    assert ran(script, mixed).failed == 0


def test_file_names_of_any_bytes_are_fine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = os.fsdecode(b"\xff.txt")
    assert main([str(tmp_path / name)]) == 1
    assert capsys.readouterr().out.endswith("0 passed, 1 failed\n")

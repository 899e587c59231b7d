"""Data-driven scripts: text in, text out, comments as prose.

    python -m timespine.testing.datadriven FILE... [--rewrite]

A script is a sequence of cases, in order, on one state:

    # A comment, anywhere between the cases or among the input lines.
    push-batch
    [0][1][0] 2 k0
    ----
    ok

A case is a directive line (`name key=value ...`), input lines if the directive
takes any, a line `----`, and the expected output up to a blank line. Output
that has blank lines itself stands between `----` twice before and `----` twice
after it. Empty output is `<empty>`; an error is `error: message` and changes
nothing. A blank line among the input lines is input like any other. Whitespace
at the ends of lines does not count.

`--rewrite` replaces the expected output by the actual one and leaves
every other byte of the file as it is.

This module knows the format, not the directives. A `DirectiveSet` gives a state
machine its directives; a script may use all that are registered, and has one
state of each machine.
"""

from __future__ import annotations

import argparse
import difflib
import itertools
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from timespine.errors import TimespineError, UsageError, short_repr

S = TypeVar("S")

RULE = "----"
EMPTY = "<empty>"


@dataclass(frozen=True, slots=True)
class DirectiveCall:
    """A parsed directive line, and the input below it."""

    name: str
    """The directive."""
    arguments: dict[str, str]
    """The values after `key=`."""
    input: tuple[str, ...] = ()
    """The input lines, without comments and line ends."""


@dataclass(frozen=True, slots=True)
class Directive(Generic[S]):
    """One operation of a script on a machine."""

    run: Callable[[S, DirectiveCall], tuple[S, str]]
    """The function from the state before to the state after and the output. It is pure, so an error changes nothing."""
    required: tuple[str, ...] = ()
    """Arguments that a call must give."""
    optional: tuple[str, ...] = ()
    """Arguments that a call may give."""
    takes_input: bool = False
    """Whether input lines may follow."""


@dataclass(frozen=True, slots=True)
class DirectiveSet(Generic[S]):
    """The directives of one state machine."""

    start: Callable[[], S]
    """The state that each script begins with: an immutable value."""
    directives: dict[str, Directive[S]]
    """The directives by name."""


@dataclass(slots=True)
class Registry:
    """All directives that scripts may use."""

    sets: list[DirectiveSet[Any]] = field(default_factory=list)
    """The sets in order of registration."""
    owners: dict[str, int] = field(default_factory=dict)
    """The index of the set that each name belongs to."""

    def add(self, directives: DirectiveSet[Any]) -> None:
        """Register a set; raise UsageError for a name that another set has."""
        taken = sorted(self.owners.keys() & directives.directives.keys())
        if taken:
            raise UsageError(f"directive {taken[0]} is registered already")
        self.sets.append(directives)
        self.owners.update(dict.fromkeys(directives.directives, len(self.sets) - 1))

    def start(self) -> list[Any]:
        """Return the states that a script begins with, one of each machine."""
        return [directives.start() for directives in self.sets]

    def run(self, states: list[Any], line: str, input: tuple[str, ...]) -> str:
        """Run one case on the states, and return its output. An error leaves them as they are."""
        call = parse_call(line, input)
        owner = self.owners.get(call.name)
        if owner is None:
            raise UsageError(f"unknown directive {call.name}")
        directive: Directive[Any] = self.sets[owner].directives[call.name]
        _check_call(call, directive)
        states[owner], output = directive.run(states[owner], call)
        return output


def parse_call(line: str, input: tuple[str, ...] = ()) -> DirectiveCall:
    """Parse a directive line; raise UsageError if it is malformed."""
    name, *words = _words(line)
    arguments: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise UsageError(f"{name}: {short_repr(word)} is not of the form key=value")
        if key in arguments:
            raise UsageError(f"{name}: argument {key} is given twice")
        arguments[key] = value
    return DirectiveCall(name, arguments, input)


def _words(line: str) -> list[str]:
    """Split a line into words at spaces that are not inside brackets."""
    words: list[str] = [""]
    depth = 0
    for character in line.strip():
        depth += (character in "([") - (character in ")]")
        if character.isspace() and depth == 0:
            words.append("")
        else:
            words[-1] += character
    if depth != 0:
        raise UsageError(f"brackets do not match in {short_repr(line.strip())}")
    return [word for word in words if word]


def _check_call(call: DirectiveCall, directive: Directive[Any]) -> None:
    """Raise UsageError if the directive does not take these arguments and this input."""
    for key in directive.required:
        if key not in call.arguments:
            raise UsageError(f"{call.name}: argument {key}= is missing")
    for key in call.arguments:
        if key not in directive.required and key not in directive.optional:
            raise UsageError(f"{call.name}: unknown argument {key}")
    if not directive.takes_input and any(line.strip() for line in call.input):
        raise UsageError(f"{call.name}: takes no input")


class ScriptError(Exception):
    """A file that is not a script."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line
        """The line of the error, counted from 1."""


@dataclass(frozen=True, slots=True)
class Case:
    """One case, and the place of its expected output in the file."""

    line: int
    """The line of the directive, counted from 1."""
    directive: str
    """The directive line."""
    input: tuple[str, ...]
    """The input lines, without comments."""
    expected: tuple[str, ...]
    """The expected output, without whitespace at the ends of lines."""
    begin: int
    """The index of the first line after the first `----`."""
    end: int
    """The index of the first line after the expected output."""
    framed: bool
    """Whether the output is written between double rules."""


def parse_script(lines: Sequence[str], names: Collection[str]) -> Iterator[Case]:
    """Yield the cases of a script. `names` are the known directives: one after a blank line cannot be input."""
    at = 0
    while at < len(lines):
        if _is_blank(lines[at]) or _is_comment(lines[at]):
            at += 1
            continue
        case = _parse_case(lines, at, names)
        yield case
        at = case.end


def _parse_case(lines: Sequence[str], first: int, names: Collection[str]) -> Case:
    """Parse the case whose directive is at index `first`."""
    if _is_rule(lines[first]):
        raise ScriptError(first + 1, f"a {RULE} without a directive before it")
    rule = first + 1
    while rule < len(lines) and not _is_rule(lines[rule]):
        if _is_blank(lines[rule - 1]) and lines[rule].split()[:1] and lines[rule].split()[0] in names:
            break
        rule += 1
    if rule == len(lines) or not _is_rule(lines[rule]):
        raise ScriptError(first + 1, f"the case {short_repr(lines[first].strip())} has no {RULE}")
    input = tuple(line.rstrip() for line in lines[first + 1 : rule] if not _is_comment(line))
    begin = rule + 1
    framed = begin < len(lines) and _is_rule(lines[begin])
    last, end = _end_framed(lines, begin) if framed else _end_plain(lines, begin)
    expected = tuple(line.rstrip() for line in lines[begin + framed : last])
    return Case(first + 1, lines[first].strip(), input, expected, begin, end, framed)


def _end_plain(lines: Sequence[str], begin: int) -> tuple[int, int]:
    """Return the index after output that a blank line ends, twice: no rule follows it."""
    end = begin
    while end < len(lines) and not _is_blank(lines[end]):
        if _is_rule(lines[end]):
            raise ScriptError(end + 1, f"a {RULE} inside the output: a blank line must end it before the next case")
        end += 1
    return end, end


def _end_framed(lines: Sequence[str], begin: int) -> tuple[int, int]:
    """Return the index after output between double rules, and the index after the rules."""
    for at in range(begin + 1, len(lines) - 1):
        if _is_rule(lines[at]) and _is_rule(lines[at + 1]):
            return at, at + 2
    raise ScriptError(begin + 1, f"the output that begins with {RULE} twice does not end with {RULE} twice")


def _is_blank(line: str) -> bool:
    return not line.strip()


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith("#")


def _is_rule(line: str) -> bool:
    return line.rstrip() == RULE


def output_of(registry: Registry, states: list[Any], case: Case) -> tuple[str, ...]:
    """Return the actual output lines of a case."""
    try:
        output = registry.run(states, case.directive, case.input)
    except TimespineError as error:
        output = f"error: {' '.join(str(error).splitlines())}"
    lines = output.removesuffix("\n").split("\n") if output else [EMPTY]
    return tuple(line.rstrip() for line in lines)


@dataclass(slots=True)
class ScriptResult:
    """The result of one script, or of several."""

    passed: int = 0
    """Cases with the expected output."""
    failed: int = 0
    """Cases with another output, and files that could not be run."""
    report: list[str] = field(default_factory=list)
    """The report, line by line."""

    def fail(self, *lines: str) -> None:
        """Count one failure, and report why."""
        self.failed += 1
        self.report.extend(lines)


def run_file(path: Path, registry: Registry, rewrite: bool = False) -> ScriptResult:
    """Run one script; with `rewrite`, correct its expected output."""
    tally = ScriptResult()
    try:
        content = path.read_bytes()
        text = content.decode()
    except (OSError, ValueError) as error:
        tally.fail(f"{path}: {error}")
        return tally
    # SUBTLE: lines keep a carriage return, and the first one a byte order mark, so that
    # joining them gives the file again (test_rewrite_keeps_every_other_byte).
    lines = text.split("\n")
    mark = "\ufeff" if lines[0].startswith("\ufeff") else ""
    lines[0] = lines[0].removeprefix(mark)
    try:
        cases = list(parse_script(lines, registry.owners))
    except ScriptError as error:
        tally.fail(f"{path}:{error.line}: {error}")
        return tally
    corrections = _run_cases(cases, registry, path, tally, rewrite)
    for case, actual in reversed(corrections):
        lines[case.begin : case.end] = _rendered(case, actual, lines[case.begin - 1])
    if corrections:
        try:
            path.write_bytes((mark + "\n".join(lines)).encode())
        except OSError as error:
            tally.fail(f"{path}: {error}")
    return tally


def _run_cases(
    cases: list[Case], registry: Registry, path: Path, tally: ScriptResult, rewrite: bool
) -> list[tuple[Case, tuple[str, ...]]]:
    """Run the cases in order and count them; return those to be rewritten, with their output."""
    states = registry.start()
    corrections: list[tuple[Case, tuple[str, ...]]] = []
    for case in cases:
        place = f"{path}:{case.line}"
        try:
            actual = output_of(registry, states, case)
        except Exception:  # a bug in the tested code: never an expected output, so never rewritten
            tally.fail(f"{place}: {case.directive}", *traceback.format_exc().splitlines())
            continue
        if actual == case.expected:
            tally.passed += 1
        elif rewrite and (RULE, RULE) in itertools.pairwise(actual):
            tally.fail(f"{place}: {case.directive}: the output has {RULE} twice and cannot be written down")
        elif rewrite:
            tally.passed += 1
            tally.report.append(f"{place}: {case.directive}: rewritten")
            corrections.append((case, actual))
        else:
            diff = difflib.unified_diff(case.expected, actual, f"{place} expected", f"{place} actual", lineterm="")
            tally.fail(f"{place}: {case.directive}", *diff)
    return corrections


def _rendered(case: Case, actual: tuple[str, ...], rule: str) -> list[str]:
    """Return the lines of an output as they stand in a file whose `----` line is `rule`."""
    line_end = "\r" if rule.endswith("\r") else ""
    needs_frame = any(not line or line == RULE for line in actual)
    framed = [RULE, *actual, RULE, RULE] if case.framed or needs_frame else actual
    return [line + line_end for line in framed]


def default_registry() -> Registry:
    """Return the directives of all machines that Timespine has."""
    from timespine.testing.scripts.trace_directives import TRACE

    registry = Registry()
    registry.add(TRACE)
    return registry


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the scripts named on the command line; return 0 if they pass, 1 if not, 2 if misused."""
    parser = argparse.ArgumentParser(
        prog="python -m timespine.testing.datadriven", description="Run data-driven scripts."
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a script")
    parser.add_argument("--rewrite", action="store_true", help="replace expected output by actual output")
    options = parser.parse_args(arguments)
    registry = default_registry()
    total = ScriptResult()
    for path in options.files:
        tally = run_file(path, registry, options.rewrite)
        total.passed += tally.passed
        total.failed += tally.failed
        for line in tally.report:
            _print(line)
    _print(f"{total.passed} passed, {total.failed} failed")
    return 1 if total.failed else 0


def _print(line: str) -> None:
    """Print a line, whatever is in it and whatever the terminal can show."""
    encoding = sys.stdout.encoding or "ascii"
    print(line.encode(encoding, "backslashreplace").decode(encoding))


if __name__ == "__main__":
    # The directive sets import this module by its name: use that one, not a second copy of it.
    from timespine.testing import datadriven

    raise SystemExit(datadriven.main())

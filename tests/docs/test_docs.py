"""The documents are true: examples run, links lead somewhere, names exist, limits are those of the code."""

import ast
import builtins
import contextlib
import importlib
import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest
from pages import BLOCK, run_blocks

from timespine.config import Config
from timespine.core.batch import Part
from timespine.core.encoding.codec import StateImage, decode_diff
from timespine.core.encoding.state_diff import SpineDiff, StateDiff
from timespine.core.invariants import INVARIANTS
from timespine.location.sqlite.sqlite_file import SCHEMA

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "timespine"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
IDS = [str(page.relative_to(ROOT)) for page in PAGES]

ON_SPARK = [ROOT / "docs" / "spark.md", ROOT / "docs" / "object-stores.md"]
"""Pages whose examples run where there is a session or a server: tests/spark/test_guide.py and
tests/location/test_object_stores_page.py."""

LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
PATH = re.compile(r"`((?:src|tests|bench|docs|model|core|location|client|testing)/[\w./-]+)`")
CODE = re.compile(r"`((?:[a-z]\w*\.)*)([A-Z][A-Za-z]*[a-z]\w*)(?:\.(\w+))?(?:\([^`\n]*\))?`")
"""A class in backticks, perhaps with its module before it and a member or arguments after it."""

LAYERS = {path.name for path in PACKAGE.iterdir() if path.is_dir()}
PLANTED = "".join(path.read_text() for path in sorted((ROOT / "tests" / "simulation").glob("planted*.py")))


def prose(page):
    """A page without its blocks of code."""
    return BLOCK.sub("", page.read_text())


def rows(page):
    """The cells of all lines of tables in a page."""
    for line in page.read_text().splitlines():
        if line.startswith("| "):
            yield [cell.strip() for cell in line.strip("|").split(" | ")]


def resolved(dotted):
    """What a dotted name stands for: a module, then attributes."""
    parts = dotted.split(".")
    for count in range(len(parts), 0, -1):
        with contextlib.suppress(ModuleNotFoundError):
            found = importlib.import_module(".".join(parts[:count]))
            for name in parts[count:]:
                found = getattr(found, name)
            return found
    raise AssertionError(f"{dotted} is not there")


@pytest.mark.parametrize("page", [page for page in PAGES if page not in ON_SPARK], ids=lambda page: page.name)
def test_every_python_block_runs(page, tmp_path, monkeypatch):
    """In order, in a folder of its own; what a block prints is the text block that follows it."""
    monkeypatch.chdir(tmp_path)
    run_blocks(page)


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_block_says_what_it_is(page):
    assert {language for language, _ in BLOCK.findall(page.read_text())} <= {"python", "text"}
    assert page.read_text().count("```") == 2 * len(BLOCK.findall(page.read_text()))


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_relative_link_leads_somewhere(page):
    for target in LINK.findall(prose(page)):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            assert (page.parent / path).exists(), target
            assert not anchor, f"{target}: anchors are not checked, so there are none"


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_file_that_is_named_exists(page):
    for named in PATH.findall(page.read_text()):
        assert (ROOT / named).exists() or (PACKAGE / named).exists(), named


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_make_target_that_is_named_exists(page):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:`|^ {4})make ([a-z-]+)", page.read_text(), re.MULTILINE)) <= targets


def test_every_class_and_member_and_module_that_a_page_names_exists():
    """`Frontier`, `Frontier.time` or `columnar.merge.engine.Engine`: in our code, or imported by it."""
    classes, members = names_of_code()
    for page in (page for page in PAGES if page.name != "CHANGELOG.md"):  # that one names what is gone
        for module, name, member in CODE.findall(prose(page)):
            found = f"{module}{name}{'.' if member else ''}{member}"
            assert name in classes or hasattr(builtins, name), f"{page.name} names {found}"
            assert not member or member in members, f"{page.name} names {found}"
            if module and module.split(".")[0] in LAYERS:
                assert callable(resolved(f"timespine.{module}{name}"))


def names_of_code():
    """Return the names of classes, ours and imported ones, and those of all members."""
    classes, members = {"Struct"}, set()  # of msgspec, which is imported whole
    for folder in ("src", "tests", "bench", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef | ast.FunctionDef):
                    (classes if isinstance(node, ast.ClassDef) else members).add(node.name)
                elif isinstance(node, ast.ImportFrom):
                    classes |= {alias.name for alias in node.names}
                elif isinstance(node, ast.Attribute):
                    members.add(node.attr)
                elif isinstance(node, ast.AnnAssign | ast.Assign):
                    targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
                    known = {target.id for target in targets if isinstance(target, ast.Name)}
                    classes |= known
                    members |= known
    return classes, members


def test_every_file_of_tests_that_a_comment_names_exists():
    there = {path.name for path in (ROOT / "tests").rglob("*.py")}
    for path in (*PACKAGE.rglob("*.py"), *(ROOT / "tests").rglob("*.py")):
        for name in re.findall(r"\btest_\w+\.py", path.read_text()):
            assert name in there, f"{path.relative_to(ROOT)} names {name}"


def test_every_page_can_be_found_from_the_readme():
    found, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page not in found and page.suffix == ".md":
            found.add(page)
            links = (link for link in LINK.findall(prose(page)) if "://" not in link)
            waiting.extend((page.parent / link).resolve() for link in links)
    assert set(PAGES) <= found


# PROMISES.md


def promises():
    """The sections of the page, by title."""
    parts = re.split(r"^## (.*)$", (ROOT / "PROMISES.md").read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def named(section, kind):
    """What stands in backticks in the items of a kind."""
    items = re.split(r"^- ", section, flags=re.MULTILINE)[1:]
    return [name for item in items if item.startswith(f"{kind}:") for name in re.findall(r"`([^`]+)`", item)]


def test_there_are_twelve_promises_each_with_its_status_tests_and_gaps():
    assert [title.split(". ")[0] for title in promises()] == [str(number) for number in range(1, 13)]
    for section in promises().values():
        assert "\nStatus: " in section
        assert "\n- Tests: " in section
        assert "\n- Not covered yet: " in section
        kinds = set(re.findall(r"^- ([A-Z][a-z ]+):", section, re.MULTILINE))
        assert kinds <= {"Tests", "Simulator", "Invariants", "Planted bugs", "Not covered yet"}


@pytest.mark.parametrize("title", promises())
def test_every_test_that_a_promise_names_exists(title):
    for name in named(promises()[title], "Tests"):
        path, _, function = name.partition("::")
        if path.startswith("conformance."):
            assert callable(resolved(f"timespine.testing.{path}"))
        else:
            wanted = rf"^def {function}\(" if function else "^(def test_|Test)"
            assert re.search(wanted, (ROOT / path).read_text(), re.MULTILINE), name


@pytest.mark.parametrize("title", promises())
def test_every_check_of_the_simulator_that_a_promise_names_exists(title):
    for name in named(promises()[title], "Simulator"):
        source = inspect.getsource(resolved(f"timespine.testing.{name}"))
        assert "violate(" in source or "BrokenPromise(" in source, f"{name} notices nothing by itself"


def test_every_invariant_and_no_other_is_named_by_a_promise():
    assert {name for section in promises().values() for name in named(section, "Invariants")} == {
        invariant.__name__ for invariant in INVARIANTS
    }


def test_every_planted_bug_and_no_other_is_named_by_a_promise():
    assert {name for section in promises().values() for name in named(section, "Planted bugs")} == set(
        re.findall(r"^@bug\ndef (\w+)", PLANTED, re.MULTILINE)
    )


# SECURITY.md


def test_every_limit_is_that_of_the_code():
    limits = [row for row in rows(ROOT / "SECURITY.md") if row[0].startswith("`timespine.")]
    assert len(limits) >= 30
    for name, value, _ in limits:
        assert str(resolved(name.strip("`"))) == value, name


def test_every_number_of_the_configuration_is_among_the_limits():
    listed = {row[0].strip("`") for row in rows(ROOT / "SECURITY.md")}
    numbers = [each.name for each in fields(Config) if each.type == "int"]
    assert [name for name in numbers if f"timespine.config.DEFAULT.{name}" not in listed] == []


# docs/format


def fields_named(page):
    """The first cells of the tables, if they are names."""
    return [row[0].strip("`") for row in rows(page) if row[0].startswith("`")]


def test_every_field_of_a_state_is_described():
    assert fields_named(ROOT / "docs/format/state.md") == list(StateImage.__struct_fields__)


def test_every_field_of_a_diff_is_described():
    described = fields_named(ROOT / "docs/format/diff.md")
    assert described == [*StateDiff.__struct_fields__, *SpineDiff.__struct_fields__]


def test_every_field_of_a_part_is_described_in_its_place():
    described = [row for row in rows(ROOT / "docs/format/state.md") if row[0].isdigit()]
    assert [(row[0], row[1].strip("`")) for row in described] == [
        (str(place), name) for place, name in enumerate(Part.__struct_fields__)
    ]


def test_the_table_is_the_one_that_is_created():
    assert ("text", f"{SCHEMA}\n") in BLOCK.findall((ROOT / "docs/format/sqlite.md").read_text())


def test_the_worked_example_is_the_same_byte_by_byte():
    page = (ROOT / "docs/format/diff.md").read_text()
    whole = bytes.fromhex(re.search(r'fromhex\("""(.*?)"""\)', page, re.DOTALL)[1])
    (listing,) = (code for language, code in BLOCK.findall(page) if language == "text")
    leading = (re.match(r"(?:\s*[0-9a-f]{2}(?=\s|$))*", line)[0] for line in listing.splitlines())
    assert bytes.fromhex("".join(leading)) == whole
    assert decode_diff(whole).n == 2


def test_the_table_of_nouns_defines_each_noun_once():
    table = (ROOT / "ARCHITECTURE.md").read_text().partition("## The nouns")[2].partition("\n\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| ")][2:]
    nouns = [noun.strip() for row in rows for noun in row.split(",")]
    assert len(nouns) > 60
    assert sorted(noun for noun in set(nouns) if nouns.count(noun) > 1) == []
    # A noun with a qualifier has one everywhere.
    plain = {noun for noun in nouns if "(" not in noun}
    assert sorted(noun for noun in nouns if "(" in noun and noun.partition(" (")[0] in plain) == []

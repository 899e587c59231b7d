"""Find discouraged words in sources and documents, and check docstrings: `make lint` runs this file.

The words stand where a sentence should name its agent or its noun.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

WORDS = ("whoever", "somebody", "nobody", "all the same", "so many", "any more", "by now")
DISCOURAGED = re.compile(r"\b(?:" + "|".join(word.replace(" ", r"\s+(?:#\s+)?") for word in WORDS) + r")\b", re.I)
METAPHORS = ("born", "unborn", "bury", "buried", "grave", "graves", "goodbye", "nonsense", "nursery")
NAMES = re.compile(
    r"(?:^|_)(?:" + "|".join((*(word.replace(" ", "_") for word in WORDS), *METAPHORS)) + r")(?:_|$)", re.I
)
"""The same words, and metaphors, in the names of functions and classes, tests included."""

NOUNS = re.compile(
    r"(?:The|An?|What|How|Which|Where|Of|All|One|Some|Every|Each|Everything|Whether|Exactly|Only|No|In|By|With|At|About"
    r"|If|Its|Our|Their|More|Most|Less|Few|Inline|Row|Arrow|Spark|Polars|Python|\d\S*|[A-Z][a-z]*[^\Wus]s)\b"
)
"""First words of a docstring that answers "what is returned" where a reader asks "what does it do".

Any word in the plural is one: "Rows", "Bounds"."""

INVARIANTS = Path("src/timespine/core/invariants.py")
"""The docstring of an invariant is the sentence that holds."""

BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
"""A block of code or output in a document. Its words are those of a source, which is counted itself."""


def files() -> Iterator[Path]:
    """List the files that people read: documents, sources, examples and benchmarks."""
    yield from sorted(ROOT.glob("*.md"))
    yield from sorted((ROOT / "docs").rglob("*.md"))
    for folder in ("src", "examples", "bench"):
        yield from sorted((ROOT / folder).rglob("*.py"))


def discouraged(text: str) -> list[tuple[int, str]]:
    """Find the discouraged words of a text, each with its line."""
    return [(text.count("\n", 0, found.start()) + 1, found[0]) for found in DISCOURAGED.finditer(text)]


def words_in(path: Path) -> list[tuple[int, str]]:
    """Find the discouraged words of a file, each with its line."""
    text = path.read_text()
    if path.suffix == ".md":
        text = BLOCK.sub(lambda block: "\n" * block[0].count("\n"), text)
    return discouraged(text)


def name_faults(source: str) -> list[tuple[int, str]]:
    """Find functions and classes whose name has a discouraged word, each with its line."""
    kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds))
    return [(node.lineno, f"the name {node.name} has a discouraged word") for node in nodes if NAMES.search(node.name)]


def docstring_faults(source: str) -> list[tuple[int, str]]:
    """Find public classes, functions and methods whose docstring is not a sentence, each with its line."""
    faults = []
    for node, path in _definitions(ast.parse(source), ()):
        text = ast.get_docstring(node)
        first = (text or "").partition("\n\n")[0].strip()
        if text is not None and not re.match(r"[A-Z`\d(]|\w+\.\w", first):
            faults.append((node.lineno, f"the docstring of {'.'.join(path)} begins without a capital letter"))
        if text is not None and not first.endswith((".", ".)", ":", "?")):
            faults.append((node.lineno, f"the docstring of {'.'.join(path)} ends without a period"))
    return faults


def verb_faults(source: str) -> list[tuple[int, str]]:
    """Find functions whose docstring begins with no verb, each with its line. That of a property names its value."""
    return [
        (node.lineno, f"the docstring of {node.name} begins with no verb")
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef)
        and not any("property" in ast.unparse(each) for each in node.decorator_list)
        and NOUNS.match(ast.get_docstring(node) or "")
    ]


def _definitions(
    node: ast.AST, outer: tuple[str, ...]
) -> Iterator[tuple[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, tuple[str, ...]]]:
    """List the public definitions of a module, and those inside of its public classes."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not child.name.startswith("_"):
            path = (*outer, child.name)
            yield child, path
            if isinstance(child, ast.ClassDef):
                yield from _definitions(child, path)


def problems() -> list[str]:
    """Check every file."""
    found = []
    for path in files():
        name = path.relative_to(ROOT)
        found.extend(f"{name}:{line}: {word!r} is discouraged" for line, word in words_in(path))
        if path.suffix == ".py":
            found.extend(f"{name}:{line}: {fault}" for line, fault in docstring_faults(path.read_text()))
            if name.parts[0] in ("src", "examples") and name != INVARIANTS:
                found.extend(f"{name}:{line}: {fault}" for line, fault in verb_faults(path.read_text()))
    for folder in ("src", "tests", "bench", "examples"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT)
            found.extend(f"{name}:{line}: {fault}" for line, fault in name_faults(path.read_text()))
    return found


def main() -> None:
    """Print every problem, and fail if there is one."""
    if found := problems():
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()

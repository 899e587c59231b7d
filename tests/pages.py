"""Pages of documentation, and their examples as programs."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run_blocks(page: Path) -> None:
    """Run the Python blocks of a page, in order; what a block prints is the text block that follows it."""
    blocks = BLOCK.findall(page.read_text())
    names = {"__name__": "example"}
    for index, (language, code) in enumerate(blocks):
        if language != "python":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            # optimize=0: the assertions of an example count under `python -O` too.
            exec(compile(code, f"{page.name}, block {index + 1}", "exec", optimize=0), names)
        if printed.getvalue():
            told = printed.getvalue()
            assert blocks[index + 1] == ("text", told), f"{page.name}, block {index + 1} prints:\n{told}"

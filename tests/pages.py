"""Pages of documentation, and their examples as programs."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Mapping
from pathlib import Path

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run_blocks(page: Path, places: Mapping[str, str] | None = None) -> None:
    """Run the Python blocks of a page, in order; what a block prints is the text block that follows it.

    `places` has addresses of the tests for some names in the page.
    """
    blocks = BLOCK.findall(page.read_text())
    names = {"__name__": "example"}
    for index, (language, code) in enumerate(blocks):
        if language != "python":
            continue
        for name, place in (places or {}).items():
            code = code.replace(name, place)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            # optimize=0: the assertions of an example count under `python -O` too.
            exec(compile(code, f"{page.name}, block {index + 1}", "exec", optimize=0), names)
        if printed.getvalue():
            told = printed.getvalue()
            assert blocks[index + 1] == ("text", told), f"{page.name}, block {index + 1} prints:\n{told}"

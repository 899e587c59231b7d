"""Say what to install where an adapter needs a package of an extra."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from timespine.errors import UsageError


@contextlib.contextmanager
def needs(package: str, scheme: str, extra: str) -> Iterator[None]:
    """Turn the failure of an import into one line that names the extra."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != package:
            raise
        raise UsageError(f"{scheme}:// needs {package}: pip install 'timespine[{extra}]'") from None

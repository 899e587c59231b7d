"""A check that keeps its teeth under `python -O`.

Pytest rewrites the asserts of test modules, and those survive -O. It does not
rewrite modules that tests only import, so what checks something there uses this.
"""

from __future__ import annotations


def check(condition: object, message: str = "") -> None:
    """Fail the test unless the condition holds."""
    if not condition:
        raise AssertionError(message or "a check failed")

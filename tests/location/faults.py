"""System calls that fail."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any


def failing(code: int) -> Callable[..., Any]:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail

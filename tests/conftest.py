"""Settings that all tests share."""

from __future__ import annotations

from hypothesis import settings

# A slow machine is not a failing property, and a failure must be repeatable by copying what it printed.
settings.register_profile("timespine", deadline=None, print_blob=True)
settings.load_profile("timespine")

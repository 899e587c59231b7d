"""The interval of times that a batch describes, and the frontier from which on it is exact."""

from __future__ import annotations

import msgspec

from timespine.errors import UsageError
from timespine.model.frontier import Frontier
from timespine.model.time import Time


class Description(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The interval of times that a batch describes, and the frontier from which on it is exact.

    For every row and every t >= since:
        sum(diff at times <= t in the batch) == sum(diff at times <= t of history in [lower, upper))
    """

    lower: Frontier
    """The first times included."""
    upper: Frontier
    """The first times after the interval."""
    since: Frontier
    """The first times at which the batch is exact. A merge may have advanced times in it by this frontier."""

    def __post_init__(self) -> None:
        if not self.lower <= self.upper:
            raise UsageError(f"a batch cannot begin at {self.lower} and end before, at {self.upper}")

    @property
    def is_empty_interval(self) -> bool:
        """Whether no time lies between lower and upper."""
        return self.lower == self.upper

    def contains(self, time: Time) -> bool:
        """Tell whether `time`, as it was written, lies in [lower, upper)."""
        return self.lower.less_equal(time) and not self.upper.less_equal(time)

    def __str__(self) -> str:
        return f"{self.lower}{self.upper}{self.since}"

"""The rule by which a stream seals the rows that it has written ahead of the seal.

    none        the stream does not seal: another writer does
    max         it seals up to the largest time of its rows, that one included
    delay D     it seals up to the largest time of its rows, less a delay: "delay 10 minutes", or "delay 5" on a
                counter

The commit of the batch contains the seal, which never goes back: a batch of earlier times
seals nothing. A delay of zero is the same as max.
"""

from __future__ import annotations

from dataclasses import dataclass

from timespine.client.api_for_engines import parse_duration_ms, upper_after
from timespine.core.transitions import AdvanceUpper, Command
from timespine.errors import UsageError, short_repr
from timespine.model.frontier import Frontier

NONE, MAX, DELAY = "none", "max", "delay"


@dataclass(frozen=True, slots=True)
class SealRule:
    """The rule of one stream."""

    delay: int | None
    """The distance from the largest time to the seal; None for no seal."""

    def upper(self, latest: int | None) -> Frontier | None:
        """Return the upper after a batch with this largest time; None if the batch does not seal."""
        if self.delay is None or latest is None or latest < self.delay:
            return None
        return upper_after(latest - self.delay)

    def commands(self, latest: int | None) -> tuple[Command, ...]:
        """Make the commands that seal, for the commit of the batch.

        SUBTLE: not `Seal`, which refuses to go back. Batches may come in any order, and others may seal further
        (test_late_rows.py).
        """
        upper = self.upper(latest)
        return () if upper is None else (AdvanceUpper(upper),)


def parse_seal_rule(text: str, timeline: str) -> SealRule:
    """Parse the rule that a user names, for times of a time line."""
    word, _, delay = text.strip().partition(" ") if isinstance(text, str) else ("", "", "")
    if word.lower() == NONE and not delay:
        return SealRule(None)
    if word.lower() == MAX and not delay:
        return SealRule(0)
    if word.lower() == DELAY and delay:
        return SealRule(_delay_of(delay.strip(), timeline))
    raise UsageError(f"seal is none, max, or a delay such as 'delay 10 minutes', not {short_repr(text)}")


def _delay_of(text: str, timeline: str) -> int:
    if text.isascii() and text.isdigit():
        if timeline == "clock" and int(text):
            raise UsageError(f"a delay on the wall clock has a unit: 'delay {text} seconds', for example")
        return int(text)
    if timeline == "counter":
        raise UsageError(
            f"times of this collection count 0, 1, 2, and so on: a delay is a number, not {short_repr(text)}"
        )
    return parse_duration_ms(text)

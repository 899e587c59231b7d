"""By which rule a stream seals what it has written ahead of the seal.

    none        it does not: somebody else seals
    max         everything up to the largest time that came, that one included
    delay D     everything up to the largest time that came, less a delay: "delay 10 minutes", or "delay 5" on a
                time line that counts

The seal is in the commit of the batch, and never goes back: a batch of earlier times
seals nothing. A delay of nothing is the same as max.
"""

from __future__ import annotations

from dataclasses import dataclass

from timespine.client.engines import to_ms, upper_after
from timespine.core.transitions import AdvanceUpper, Command
from timespine.errors import UsageError, shown
from timespine.model.frontier import Frontier

NONE, MAX, DELAY = "none", "max", "delay"


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule for the seal."""

    delay: int | None
    """How far it stays behind the largest time that came; None: nothing is sealed."""

    def upper(self, latest: int | None) -> Frontier | None:
        """How far everything is complete after a batch whose largest time is this; None if it says nothing of that."""
        if self.delay is None or latest is None or latest < self.delay:
            return None
        return upper_after(latest - self.delay)

    def commands(self, latest: int | None) -> tuple[Command, ...]:
        """What seals, to be committed with the batch.

        SUBTLE: not `Seal`, which refuses to go back. Batches may come in any order, and others may seal further
        (test_late_rows.py).
        """
        upper = self.upper(latest)
        return () if upper is None else (AdvanceUpper(upper),)


def rule_of(text: str, timeline: str) -> Rule:
    """The rule that somebody names, for times of a time line."""
    word, _, delay = text.strip().partition(" ") if isinstance(text, str) else ("", "", "")
    if word.lower() == NONE and not delay:
        return Rule(None)
    if word.lower() == MAX and not delay:
        return Rule(0)
    if word.lower() == DELAY and delay:
        return Rule(_delay_of(delay.strip(), timeline))
    raise UsageError(f"seal is none, max, or a delay such as 'delay 10 minutes', not {shown(text)}")


def _delay_of(text: str, timeline: str) -> int:
    if text.isascii() and text.isdigit():
        if timeline == "clock" and int(text):
            raise UsageError(f"a delay on the wall clock has a unit: 'delay {text} seconds', for example")
        return int(text)
    if timeline == "counter":
        raise UsageError(f"times of this collection count 0, 1, 2, and so on: a delay is a number, not {shown(text)}")
    return to_ms(text)

"""The checks of answers: every answer of a simulated operation is compared with the truth."""

from __future__ import annotations

from typing import Any

from timespine.core.group import Refused
from timespine.errors import (
    Determinate,
    Fenced,
    Indeterminate,
    LeaseExpired,
    NotSealed,
    SchemaChanged,
    SinceError,
    UpperMismatch,
    UsageError,
)
from timespine.model.description import Description
from timespine.model.frontier import Frontier
from timespine.model.oracle import accumulate, consolidate, difference, restrict
from timespine.model.time import Time
from timespine.testing.simulator.check_holds import HoldChecks
from timespine.testing.simulator.simulator import Operation
from timespine.testing.simulator.world import World

EXPECTED_ERRORS = (Determinate, Indeterminate, Fenced, LeaseExpired)
"""The errors that a caller may get when storage fails or its leases lapse."""


REFUSALS = dict.fromkeys(
    (
        "seal",
        "seal both",
        "write",
        "write after a read",
        "append",
        "append at one time",
        "transaction",
        "trim",
        "replicated append",
        "append across a change of the schema",
    ),
    (Fenced, UsageError),
)
"""The permitted refusals of operations, besides those for leases: these are often wrong about the upper on purpose."""


def is_surely_refused(operation: Operation) -> bool:
    """Tell whether the caller knows that nothing happened: refused, failed, or fenced and not in doubt."""
    error = operation.error
    fenced = isinstance(error, Fenced) and not error.in_doubt
    return isinstance(operation.result, Refused) or isinstance(error, Determinate) or fenced


class AnswerChecks:
    """The checks of a workload."""

    world: World
    arities: dict[str, int]
    """The collections, and the number of coordinates of their times."""
    rows: dict[str, list[str]]
    """Inserted rows, to be retracted some time."""
    holding: HoldChecks
    halves: dict[str, int]
    """The common time of each operation that appended to both collections at one time."""

    def _check(self, operation: Operation) -> None:
        """Compare the outcome of an operation with the truth."""
        if operation.error is not None:
            if not isinstance(operation.error, EXPECTED_ERRORS):
                self.world.violate(f"{operation.kind} {operation.id} raised {operation.error!r}", operation.error)
            self._check_durability(operation)
            return
        reply = operation.result
        self.holding.check()
        self._check_upper(operation)
        if isinstance(reply, Refused):
            self._check_refusal(operation, reply)
        elif operation.kind == "append next":
            self._check_next(operation)
        elif operation.kind.startswith("snapshot"):
            self._check_snapshot(operation)
        elif operation.kind == "cut":
            self._check_cut(operation)
        elif operation.kind == "read unsealed":
            self._check_unsealed(operation)
        elif operation.kind == "listen" and isinstance(reply, dict):
            self._check_changes(operation)
        elif operation.kind == "listen":
            self._check_silence(operation)
        self._check_durability(operation)

    def _check_upper(self, operation: Operation) -> None:
        """Check that the collection has an acknowledged upper, or a later one."""
        upper = operation.details.get("upper")
        if upper is not None and not upper <= self.world.head(operation.collection).upper:
            self.world.violate(f"{operation.kind} {operation.id} was acknowledged and the upper did not move")

    def _check_silence(self, operation: Operation) -> None:
        """Check that a feed reports no changes only if nothing was sealed, and never loses a live lease."""
        if operation.result is not None:
            self.world.violate(f"listen {operation.id} under a live lease was told {operation.result!r}")
        elif "after" in operation.details:
            uppers = self.world.uppers_between(operation.collection, operation.invoked, operation.returned)
            if all(not upper.is_closed and upper.time - 1 > operation.details["after"][0] for upper in uppers):
                self.world.violate(f"listen {operation.id} says that there is nothing new")

    def _check_durability(self, operation: Operation) -> None:
        """Check that acknowledged rows are durable since then, and that refused rows are not, nor will be."""
        if "rows" not in operation.details:
            return
        committed = self.world.committed.get(operation.id)
        acknowledged = operation.error is None and not isinstance(operation.result, Refused)
        if acknowledged and committed is None and "may be cut" not in operation.details:
            self.world.violate(f"{operation.kind} {operation.id} was acknowledged and is not there")
        if is_surely_refused(operation) and committed is not None:
            self.world.violate(f"{operation.kind} {operation.id} was refused and is there")
        if committed is not None:
            if "keep" not in operation.details:
                self.rows[operation.collection].extend(operation.details["rows"])
            if not operation.invoked <= committed <= operation.returned:
                self.world.violate(f"{operation.kind} {operation.id} took effect outside of its call")

    def _check_next(self, operation: Operation) -> None:
        """Check that an append at the next free time stands at the free one, once, and that its reply names it."""
        name, reply, asked = operation.collection, operation.result, operation.details["at"]
        rows = set(operation.details["rows"])
        stand = sorted((row, time) for row, time, diff in self.world.truth[name] if diff > 0 and row in rows)
        if stand != sorted((row, (reply.time,)) for row in rows):
            self.world.violate(f"append next {operation.id} was told {reply.time} and stands at {stand}")
        states = self.world.states[name]
        after = next((index for index, state in enumerate(states) if state.upper == reply.upper), 0)
        free = states[after - 1].upper if after else Frontier()
        if (
            not free.elements
            or reply.time != max(asked, *free.elements[0])
            or reply.upper != Frontier.at(reply.time + 1)
        ):
            self.world.violate(f"append next {operation.id} asked for {asked} at upper {free} and was told {reply}")

    def _check_refusal(self, operation: Operation, refused: Refused) -> None:
        reason = refused.reason
        if operation.kind == "append next" and self.arities[operation.collection] != 1:
            if not isinstance(reason, (UsageError, Fenced)):
                self.world.violate(f"append next {operation.id} in a partial order was refused: {reason!r}")
        elif isinstance(reason, UpperMismatch) and operation.kind != "append next":
            about_both = "both" in operation.details or "about_both" in operation.details
            names = tuple(self.arities) if about_both else (operation.collection,)
            uppers = [
                upper
                for name in names
                for upper in self.world.uppers_between(name, operation.invoked, operation.returned)
            ]
            if reason.actual not in uppers or reason.actual == reason.expected:
                self.world.violate(f"{operation.kind} {operation.id} was told upper {reason.actual}, had {uppers}")
        elif isinstance(reason, SchemaChanged):
            self._check_schema_changed(operation, reason)
        elif not isinstance(reason, REFUSALS.get(operation.kind, (Fenced, LeaseExpired))):
            self.world.violate(f"{operation.kind} {operation.id} was refused: {reason!r}")

    def _check_schema_changed(self, operation: Operation, reason: SchemaChanged) -> None:
        """Check that rows are refused for their schema only if another one was the newest during the call."""
        states = self.world.states_between(reason.collection, operation.invoked, operation.returned)
        newest = {len(state.schemas) - 1 for state in states}
        if reason.newest not in newest or reason.written >= reason.newest:
            self.world.violate(f"{operation.kind} {operation.id} was told {reason!r}, the newest were {newest}")

    def _check_snapshot(self, operation: Operation) -> None:
        self._check_read(operation, operation.collection, operation.details["as_of"], operation.result)

    def _check_read(self, operation: Operation, name: str, as_of: Time, reply: Any) -> None:
        """Check that a collection as of one time is the truth, or cannot be read at that time."""
        state = self.world.head(name)
        if isinstance(reply, SinceError):
            if state.since.less_equal(as_of):
                self.world.violate(f"snapshot of {name} at {as_of} was refused though since is {state.since}")
        elif isinstance(reply, NotSealed):
            uppers = self.world.uppers_between(name, operation.invoked, operation.returned)
            if not any(upper.less_equal(as_of) for upper in uppers):
                self.world.violate(f"snapshot of {name} at {as_of} was not sealed though upper is {state.upper}")
        else:
            self.compare(name, as_of, reply, f"{operation.kind} {operation.id}")

    def _check_cut(self, operation: Operation) -> None:
        """Check that a cut is the truth of both as of one time, with both halves of an append at one time or none."""
        found: dict[str, Any] = operation.result
        for name, as_of in operation.details["as_of"].items():
            if isinstance(found[name], NotSealed):
                self.world.violate(f"cut {operation.id} at {as_of}, which is complete in {name}: {found[name]!r}")
            self._check_read(operation, name, as_of, found[name])
        if len(found) < 2 or not all(isinstance(counts, dict) for counts in found.values()):
            return
        for half, at in self.halves.items():
            there = [name for name, counts in found.items() if f"{half}.0" in counts]
            if len(there) == 1:
                self.world.violate(f"cut {operation.id} has {half}, at {at}, only in {there[0]}")

    def _check_unsealed(self, operation: Operation) -> None:
        """Check that a read of unsealed updates gives those written so far, at those times and not below the upper."""
        name, seqno = operation.collection, operation.details["seqno"]
        lower, until = operation.details["between"]
        asked = Description(lower, until, Frontier())
        upper = self.world.states[name][seqno].upper
        written = self.world.truth[name][: self.world.truth_sizes[name][seqno]]
        expected = [update for update in restrict(written, asked) if upper.less_equal(update[1])]
        if operation.result != sorted(consolidate(expected), key=str):
            found = f"{operation.result}, not {expected}"
            self.world.violate(f"read unsealed {operation.id} of {name} in {asked} at upper {upper}: {found}")

    def _check_changes(self, operation: Operation) -> None:
        name, after, until = operation.collection, operation.details["after"], operation.details["until"]
        truth = self.world.truth[name]
        expected = difference(accumulate(truth, after), accumulate(truth, until))
        if operation.result != expected:
            self.world.violate(f"changes of {name} in ({after}, {until}]: {operation.result}, not {expected}")

    def compare(self, name: str, as_of: Time, found: dict[Any, int], who: str) -> None:
        """Compare a snapshot with the truth."""
        expected = accumulate(self.world.truth[name], as_of)
        if found != expected:
            wrong = difference(expected, found)
            self.world.violate(f"{who} of {name} as of {as_of} differs from the truth by {wrong}")

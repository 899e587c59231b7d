"""Turns: a change that keeps losing asks the other processes to wait until it is in.

A change is computed from rows, and is right only at the upper that it has seen.
Appends of other processes move the upper. A turn is a note in the state: until its
deadline, the groups of other processes refuse what would invalidate the change with
`TurnTaken`, and their committers offer it again later. The compare-and-set stays the
only truth: a turn that no process respects costs the change another try, and nothing else.

Clocks decide only which processes wait. A turn that begins or ends further from the clock of
another process than it is long is not respected by that process.
"""

from __future__ import annotations

import msgspec

from timespine.config import TURN_MS_MAX
from timespine.core.state import Commit, NoOp, State, Turn
from timespine.core.transitions.append import AdvanceUpper, Append, AppendNext, CompareAndAppend
from timespine.core.transitions.command import Command
from timespine.core.transitions.lifecycle import AddSchema
from timespine.core.transitions.unsealed import Seal, Write
from timespine.errors import Fenced, UsageError

REST_MS = 100
"""How long no process may claim a turn after one has ended, at least: several pauses of a committer that waits."""

RESPECTS_TURNS = frozenset({AddSchema, AdvanceUpper, Append, AppendNext, CompareAndAppend, Seal, Write})
"""The commands that wait for the turn of another process: those that move the upper, add rows below the next one, or
change the schema. Leases, merges, sinks, drains and garbage collection invalidate no change, and go on."""


class ClaimTurn(Command, frozen=True, array_like=True):
    """Ask the other processes to let one change in."""

    writer: str
    """The writer of the process that claims it."""
    term_ms: int
    """How long the turn lasts, at most."""


class ReleaseTurn(Command, frozen=True, array_like=True):
    """End the turn of a writer: its change is in, or has failed. Fine if it has none."""

    writer: str


class TurnTaken(msgspec.Struct, frozen=True):
    """Another process has its turn, or had one a moment ago: offer the same transaction again later."""

    until_ms: int
    """The end of the turn, by the clock of the process that has it."""
    term_ms: int
    """The whole length of the turn. No process waits much longer than that, whatever the clocks show."""


def claim_turn(state: State, command: ClaimTurn, now_ms: int) -> Commit[None] | NoOp[TurnTaken | Fenced | UsageError]:
    """Give the turn to a registered writer, if there is none, and if others had time to commit since the last one."""
    if not 1 <= command.term_ms <= TURN_MS_MAX:
        return NoOp(UsageError(f"a turn takes from 1 to {TURN_MS_MAX} milliseconds, not {command.term_ms}"))
    if command.writer not in state.writers:
        return NoOp(Fenced(f"writer {command.writer} of {state.collection} is not registered: start a new one"))
    taken = free_from(state, now_ms)
    if taken is not None:
        return NoOp(taken)
    turn = Turn(command.writer, now_ms, now_ms + command.term_ms)
    return Commit(msgspec.structs.replace(state, turn=turn), None)


def release_turn(state: State, command: ReleaseTurn, now_ms: int) -> Commit[None] | NoOp[None]:
    """End the turn of a writer. The unused rest does not count as taken."""
    turn = state.turn
    if turn is None or not turn.writer or turn.writer != command.writer:
        return NoOp(None)
    until_ms = min(max(now_ms, turn.from_ms), turn.until_ms)
    return Commit(msgspec.structs.replace(state, turn=Turn("", turn.from_ms, until_ms)), None)


def free_from(state: State, now_ms: int) -> TurnTaken | None:
    """Return until when no process can claim a turn; None if one can now.

    After a turn, others have as much time as it took, and at least `REST_MS`.
    """
    turn = state.turn
    if turn is None or _is_abandoned(state, turn):
        return None
    length = max(turn.until_ms - turn.from_ms, REST_MS)
    free_ms = turn.until_ms + length
    return TurnTaken(free_ms, 2 * length) if turn.from_ms - length <= now_ms < free_ms else None


def waits_for(state: State, writer: str | None, now_ms: int) -> TurnTaken | None:
    """Return the turn of another writer that is in force; None: there is none."""
    turn = state.turn
    if turn is None or turn.writer in ("", writer) or _is_abandoned(state, turn):
        return None
    length = turn.until_ms - turn.from_ms
    return TurnTaken(turn.until_ms, length) if turn.from_ms - length <= now_ms < turn.until_ms else None


def _is_abandoned(state: State, turn: Turn) -> bool:
    """Tell whether the writer that has a turn was expired: the turn ends with it."""
    return turn.writer != "" and turn.writer not in state.writers
